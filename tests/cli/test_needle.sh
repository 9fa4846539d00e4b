#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# kvfold needle: facts at the end are found, those that a window has left are not; the grid is saved, printed and drawn.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

refuses needle_which 1 "-m FILE is missing" needle
refuses needle_lengths 1 "ctx-size" needle -m nosuch.gguf -c 10
if [ -z "$smollm2" ]; then
    skip models
    finish
fi
base=(needle -m "$smollm2" -t 1 --seeds 1 -d 2)
succeeds needle "${base[@]}" -c 300 --kv uni4/uni4,evict=window:budget=100 --json --save "$work/needle.json"
json needle_grid 'o["kind"] == "needle" and len(o["rows"]) == 4 and [r["position"] for r in o["rows"]] == [0, 1, 0, 1]'
json needle_names 'len({r["name"] for r in o["rows"]}) == 2 and o["rows"][2]["evict"] == "window:budget=100,recent=64,sink=4"'
holds needle_binds test "$(grep -c "does not bind" "$work/err")" -eq 0
json needle_found '[r["found"] for r in o["rows"]] == [1, 1, 0, 1]'
succeeds needle_markdown report "$work/needle.json" -o "$work/report" --markdown "$work/tables.md"
holds needle_table grep -Eq "uni4.*300.*0 %" "$work/tables.md"
holds needle_drawn test -s "$work/report/needle-1.svg" -a -s "$work/report/needle-2.svg"

# Several facts are told apart; too many for a text are refused, after the arms that could.
succeeds needle_several "${base[@]}" -c 400 --needles 6 --kv f16/f16,evict=window:budget=600 --json
holds needle_idle grep -q "budget=600.*does not bind within 400 tokens" "$work/err"
json needle_counts 'o["runs"][0]["needles"] == 6 and all(r["asked"] == 1 for r in o["rows"])'
kv "${base[@]}" -c 100 --needles 20 --kv f16/f16
holds needle_too_many test "$rc" -eq 2
holds needle_says grep -q "100 tokens are too few for 20 facts and the question" "$work/err"
finish
