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

# plan: beyond the budget nothing costs more; what a policy that scores rows takes at most is said so.
size() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["bytes_total"])' "$work/out"; }
succeeds plan_none plan "$smollm2" -c 8192 --json
none=$(size)
json plan_says_none 'o["kv"]["evict"] == "none"'
succeeds plan_window plan "$smollm2" -c 8192 --evict window:budget=1024 --json
window=$(size)
json plan_says_window 'o["kv"]["evict"] == "window:budget=1024,recent=64,sink=4" and o["bytes_per_token"] == 0'
succeeds plan_knorm plan "$smollm2" -c 8192 --evict knorm:budget=1024 --json
holds plan_sizes test "$window" -lt $((none / 3)) -a "$(size)" -gt "$window" -a "$(size)" -lt $((none / 2))
json plan_knorm_is_constant 'o["bytes_per_token"] == 0'
kv plan "$smollm2" -c 8192 --evict knorm:budget=40MiB
holds plan_bytes grep -Eq "^budget [0-9]{3,4} tokens of each head" "$work/out"
refuses plan_too_few_bytes 1 "a budget of 1048576 bytes is too small: the 68 tokens" plan "$smollm2" --evict knorm:budget=1MiB
refuses plan_protected_grow 2 "layer 0 keeps everything and grows without end" plan "$smollm2" --evict knorm:budget=64MiB,protect=0
refuses plan_no_calibration 2 "kvfold calibrate; plan takes its file with --calibration" plan "$smollm2" --evict qfilters:budget=512
kv plan "$smollm2" -c 8192 --evict knorm:budget=1024
holds plan_says_bound grep -q "^evict knorm:budget=1024,recent=64,sink=4: sizes are the most that it can be" "$work/out"
kv plan "$smollm2" -c 8192 --evict window:budget=1024
holds plan_says_exact grep -q "^evict window:budget=1024,recent=64,sink=4$" "$work/out"
succeeds plan_layers plan "$smollm2" -c 8192 --evict window:budget=1024,layers=0-14:128 --json
json plan_says_layers 'o["kv"]["evict"] == "window:budget=1024,recent=64,sink=4,layers=0-14:128"'
holds plan_layers_are_less test "$(size)" -lt "$window"
# Layer 0 alone has a budget of its own: that of the others is told, as it is without.
kv plan "$smollm2" -c 8192 --evict knorm:budget=64MiB --json
others=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["kv"]["budget_tokens"])' "$work/out")
succeeds plan_bytes_and_layer plan "$smollm2" -c 8192 --evict knorm:budget=64MiB,layers=0:200 --json
json plan_bytes_of_others "$others < o['kv']['budget_tokens'] < $others * 31 / 29"
kv plan "$smollm2" -c 8192 --evict knorm:budget=64MiB,layers=0:200
holds plan_bytes_says_whose grep -Eq "^budget [0-9]{4} tokens of each head, in layers without one of their own" "$work/out"
succeeds plan_bytes_of_none plan "$smollm2" -c 8192 --evict knorm:budget=64MiB,layers=0-29:200 --json
json plan_bytes_none_left '"budget_tokens" not in o["kv"]'
refuses plan_no_such_layer 1 "gives layer 40 a budget; there are 0 to 29" plan "$smollm2" --evict window:budget=1024,layers=40:128
refuses plan_layer_twice 1 "layers gives layer 3 two budgets" plan "$smollm2" --evict window:budget=1024,layers=0-3:128+3:256
refuses plan_layer_too_small 1 "layer 3: a budget of 60 tokens is less than the 68" plan "$smollm2" --evict window:budget=1024,layers=3:60
kv list
holds list_policies grep -Eq "^  knorm +keeps the keys with the smallest L2 norm" "$work/out"

# run: budget and at most 63 tokens more are held, at positions that count on.
succeeds run run "${quick[@]}" -m "$smollm2" -c 1024 --raw -f "$text" -n 8 --evict window:budget=200 --json
json run_within_budget '200 <= o["tokens"]["held"] <= 263 and o["prompt_tokens"] > 600 and
    o["tokens"]["evicted"] + o["tokens"]["held"] - o["prompt_tokens"] - o["generated_tokens"] in (-1, 0)'
json run_says_policy 'o["kv"]["evict"] == "window:budget=200,recent=64,sink=4"'

# Rows move between blocks as they are, or where scales belong to several tokens are coded a second time: the report says which.
json run_recodes_none 'o["tokens"]["recoded"] == 0'
succeeds run_kivi run "${quick[@]}" -m "$smollm2" -c 1024 --raw -f "$text" -n 8 --kv kivi4/kivi4 --evict knorm:budget=200 --json
json run_recodes 'o["tokens"]["recoded"] > 1000'
kv run "${quick[@]}" -m "$smollm2" -c 1024 --raw -f "$text" -n 8 --kv kivi4/kivi4 --evict knorm:budget=200
holds run_reports_recoded grep -Eq "^  coded twice +[1-9][0-9]{3,} rows of single heads" "$work/out"
kv run "${quick[@]}" -m "$smollm2" -c 1024 --raw -p "The ferry left" -n 2
holds run_reports_no_policy test "$(grep -cE 'tokens dropped|coded twice' "$work/out")" -eq 0

# A prompt longer than the context, and on: positions end with the training length, not with -c.
succeeds run_past_context run "${quick[@]}" -m "$smollm2" -c 400 --raw -f "$text" -n 8 --evict knorm:budget=200 --json
json run_past 'o["prompt_tokens"] > 600 and 200 <= o["tokens"]["held"] <= 263'
holds run_says_so grep -q "text may go on past the context, up to 8192 tokens" "$work/err"
refuses run_none_stops 2 "holds 400[.] Give -c" run "${quick[@]}" -m "$smollm2" -c 400 --raw -f "$text" -n 8
refuses run_protected_stops 2 "holds 400, dropped ones counted .--evict knorm:budget=200" run "${quick[@]}" -m "$smollm2" -c 400 --raw -f "$text" -n 8 --evict knorm:budget=200,protect=3

# Layers with a budget above -c never come to it: the end is that of the context.
refuses run_layers_stop 2 "holds 400, dropped ones counted" run "${quick[@]}" -m "$smollm2" -c 400 --raw -f "$text" -n 8 --evict knorm:budget=200,layers=3:401
succeeds run_layers_go_on run "${quick[@]}" -m "$smollm2" -c 400 --raw -f "$text" -n 8 --evict knorm:budget=200,layers=3:400 --json
json run_layers_past 'o["prompt_tokens"] > 600 and 400 <= o["tokens"]["held"] <= 463'

# quality: a budget that binds late takes positions away, one that never does is refused.
base=(quality -m "$smollm2" -t 1 -f "$text" -c 320 --floor 0)
refuses quality_never_binds 1 "f16/f16,evict=knorm:budget=300: a budget that does not bind within 320 tokens" "${base[@]}" --kv f16/f16,evict=knorm:budget=300
refuses quality_layers_never_bind 1 "layers=0-29:4000: a budget that does not bind within 320 tokens" "${base[@]}" \
    --kv f16/f16,evict=window:budget=100,layers=0-29:4000
succeeds quality "${base[@]}" --kv f16/f16,f16/f16,evict=window:budget=200,recent=100,kivi4/kivi4,evict=knorm:budget=200,recent=100 --json
json quality_score 'o["score"] == 63 and all(a["positions"] == 63 for a in o["arms"] if not a["libllama"])'
json quality_arms '[(a["evict"], a.get("tokens_evicted"), a.get("rows_recoded", -1) > 0) for a in o["arms"] if not a["libllama"]] == [
    ("none", None, False), ("window:budget=200,recent=100,sink=4", 120, False), ("knorm:budget=200,recent=100,sink=4", 120, True)]
    and ["rows_recoded" in a for a in o["arms"] if not a["libllama"]] == [False, True, True]'
json quality_loses '[a["kld"]["mean"] for a in o["arms"] if not a["libllama"]][1] > 1e-4'
finish
