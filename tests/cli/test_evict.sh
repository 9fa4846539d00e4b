#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Policies from outside: what plan counts, what run reports, and that quality judges only where the budget binds.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

if [ -z "$smollm2" ]; then
    skip models
    exit 77
fi
text=$work/text
python3 - >"$text" <<'END'
for i in range(30):
    print(f"On day {i} the ferry left the quay at {i % 12 + 1} o'clock, and {i * 7 % 40} people stood at the rail to watch the town go.")
END

# plan: beyond the budget a window costs nothing more; a policy that scores rows has no such bound and says so.
size() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["bytes_total"])' "$work/out"; }
succeeds plan_none plan "$smollm2" -c 8192 --json
none=$(size)
json plan_says_none 'o["kv"]["evict"] == "none"'
succeeds plan_window plan "$smollm2" -c 8192 --evict window:budget=1024 --json
window=$(size)
json plan_says_window 'o["kv"]["evict"] == "window:budget=1024,recent=64,sink=4" and o["bytes_per_token"] == 0'
succeeds plan_knorm plan "$smollm2" -c 8192 --evict knorm:budget=1024 --json
holds plan_sizes test "$window" -lt $((none / 3)) -a "$(size)" -gt "$none"
kv plan "$smollm2" -c 8192 --evict knorm:budget=1024
holds plan_says_bound grep -q "^evict knorm:budget=1024,recent=64,sink=4: sizes are the most that it can be" "$work/out"
kv list
holds list_policies grep -Eq "^  knorm +keeps the keys with the smallest L2 norm" "$work/out"

# run: budget and at most 63 tokens more are held, at positions that count on.
succeeds run run "${quick[@]}" -m "$smollm2" -c 1024 --raw -f "$text" -n 8 --evict window:budget=200 --json
json run_within_budget '200 <= o["tokens"]["held"] <= 263 and o["prompt_tokens"] > 600 and
    o["tokens"]["evicted"] + o["tokens"]["held"] - o["prompt_tokens"] - o["generated_tokens"] in (-1, 0)'
json run_says_policy 'o["kv"]["evict"] == "window:budget=200,recent=64,sink=4"'

# quality: a budget that binds late takes positions away, one that never does is refused.
base=(quality -m "$smollm2" -t 1 -f "$text" -c 320 --floor 0)
refuses quality_never_binds 1 "f16/f16,evict=knorm:budget=300: a budget that does not bind within 320 tokens" "${base[@]}" --kv f16/f16,evict=knorm:budget=300
succeeds quality "${base[@]}" --kv f16/f16,f16/f16,evict=window:budget=200,recent=100 --json
json quality_score 'o["score"] == 63 and all(a["positions"] == 63 for a in o["arms"] if not a["libllama"])'
json quality_arms '[(a["evict"], a.get("tokens_evicted")) for a in o["arms"] if not a["libllama"]] == [("none", None),
    ("window:budget=200,recent=100,sink=4", 120)]'
json quality_loses '[a["kld"]["mean"] for a in o["arms"] if not a["libllama"]][1] > 1e-4'
finish
