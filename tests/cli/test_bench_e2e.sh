#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# bench e2e on a generated model: its rows, that texts agree where they should, and what it refuses. No speed is judged.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

"$KVFOLD_BIN/gen-model" llama-64 "$work/model.gguf" >/dev/null 2>&1 || { echo "gen-model failed" && exit 1; }
small=(bench e2e -m "$work/model.gguf" -t 1 -n 2 -p 16 --pool 1)

succeeds e2e_json "${small[@]}" -d 100 --kv f16/f16,balanced --first 2 --json --save "$work/saved.json"
json e2e_runs '[(r["phase"], r["depth"], r["model"]) for r in o["runs"]] == [("decode", 100, "model.gguf"), ("prefill", 100, "model.gguf")]'
json e2e_arms '[r["name"] for r in o["rows"] if r["phase"] == "decode"] == ["llama-f16-noflash", "llama-f16-flash", "llama-q8_0-flash", "llama-q4_0-flash", "f16/f16", "uni4/uni4"]'
json e2e_prefill_arms '[r["name"] for r in o["rows"] if r["phase"] == "prefill"] == [r["name"] for r in o["rows"] if r["phase"] == "decode"]'
json e2e_speed 'all(0 < r["tokens_per_s_min"] <= r["tokens_per_s"] <= r["tokens_per_s_max"] and abs(r["tokens_per_s"] * r["us_median"] / 1e6 - 1) < 1e-3 for r in o["rows"])'
json e2e_samples 'all(r["samples"] == 9 == len(r["us"]) and r["calls"] == {"decode": 2, "prefill": 16}[r["phase"]] for r in o["rows"])'
json e2e_baseline 'all(sum(r["run"] == i and r["verdict"] == "baseline" and "llama" in r["name"] for r in o["rows"]) == 1 for i in (0, 1))'
json e2e_floor 'all(r["noise_floor"] >= 0 and "llama" in r["against_itself"]["name"] for r in o["runs"])'
json e2e_memory 'all(0 < r["anonymous"] <= r["resident"] <= r["peak"] and r["accounted"] > 0 for r in o["rows"] if r["phase"] == "decode")'
json e2e_one_process 'all("no claim" in r["memory_verdict"] or r["memory_verdict"] == "the baseline" for r in o["rows"] if r["phase"] == "decode")'
json e2e_first 'all(r["first_ms"] > 0 and r["first_samples"] == 2 for r in o["rows"] if r["phase"] == "decode")'
# All arms decode the same number of tokens: two to warm up, three at first sight, two again, then the rounds.
json e2e_in_step 'len({r["held"] for r in o["rows"] if r["phase"] == "decode"}) == 1 and o["rows"][0]["held"] >= 100 + 2 * (5 + 2 + 9)'
json e2e_text '[r["text_same"] for r in o["rows"] if r["name"] in ("llama-f16-noflash", "f16/f16") and r["phase"] == "decode"] == [True, True]'
json e2e_text_is_there 'all(len(r["text"]) > 10 for r in o["rows"] if r["phase"] == "decode")'
# What libllama would save of its caches: fewer bits, fewer bytes.
json e2e_cache_sizes '(lambda b: b["llama-q4_0-flash"] < b["llama-q8_0-flash"] < b["llama-f16-flash"])({r["name"]: r["accounted"] for r in o["rows"] if r["phase"] == "decode"})'
json e2e_folded 'all(r["bits_code"] == {"f16/f16": 16, "uni4/uni4": 4.25}[r["name"]] for r in o["rows"] if r["phase"] == "decode" and "llama" not in r["name"])'

kv bench compare "$work/saved.json" "$work/saved.json" --json
holds compare_itself test "$rc" -eq 0
json compare_all_rows 'len(o["rows"]) == 12'
json compare_no_change 'all(r["ratio"] == 1 and not r["distinguishable"] for r in o["rows"])'

# Several processes, and arms that cannot be: the model has no tokenizer for a text.
kv "${small[@]}" -d 20 --kv balanced --processes 5 -o md
holds e2e_processes test "$rc" -eq 0
holds e2e_memory_claim grep -Eq "uni4/uni4 .*(not distinguishable \(.* MiB|MiB \()" "$work/out"
echo "some text" >"$work/text"
kv "${small[@]}" -d 20 --kv balanced -f "$work/text"
holds e2e_no_tokenizer test "$rc" -eq 2
holds e2e_no_tokenizer_said grep -q "uni4/uni4: the model has no tokenizer" "$work/err"

# Ctrl-C, whenever it comes: what was measured is printed, and the arms' processes are gone. (--foreground: one signal, not one more to
# the group; a second Ctrl-C ends at once.)
timeout --foreground --preserve-status -s INT 3 "$kvfold" "${small[@]}" -d 50 --samples 200 --kv balanced --json >"$work/out" 2>"$work/err"
rc=$?
holds e2e_interrupted test "$rc" -eq 0
json e2e_interrupted_said 'o["interrupted"] is True'
holds e2e_no_process_left test -z "$(pgrep -f "worker -m $work/model.gguf")"

refuses e2e_which 1 "which model" bench e2e
refuses e2e_missing 2 "nosuch" bench e2e -m "$work/nosuch.gguf"
refuses e2e_depth 1 "--depth: 'x'" bench e2e -m "$work/model.gguf" -d x
refuses e2e_samples 1 "--samples: '8'" bench e2e -m "$work/model.gguf" --samples 8
refuses e2e_codec 1 "nosuch" bench e2e -m "$work/model.gguf" --kv nosuch/f16
refuses e2e_file 2 "nofile" bench e2e -m "$work/model.gguf" -f "$work/nofile"
head -c 5000 "$work/model.gguf" >"$work/cut.gguf"
refuses e2e_damaged 3 "cut.gguf" bench e2e -m "$work/cut.gguf"

finish
