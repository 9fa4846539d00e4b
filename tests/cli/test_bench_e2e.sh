#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# bench e2e on a generated model: its rows, that texts agree where they should, and what it refuses. No speed is judged.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

"$KVFOLD_BIN/gen-model" llama-64 "$work/model.gguf" >/dev/null 2>&1 || { echo "gen-model failed" && exit 1; }
small=(bench e2e -m "$work/model.gguf" -t 1 -n 2 -p 16 --pool 1 --seed 1) # the same tokens each time: no near tie among them

succeeds e2e_json "${small[@]}" -d 100 --kv f16/f16,balanced -ub 300 --first 2 --json --save "$work/saved.json"
json e2e_runs '[(r["phase"], r["depth"], r["model"]) for r in o["runs"]] == [("decode", 100, "model.gguf"), ("prefill", 100, "model.gguf")]'
json e2e_arms '[r["name"] for r in o["rows"] if r["phase"] == "decode"] == ["llama-f16-noflash", "llama-f16-flash", "llama-q8_0-flash", "llama-q4_0-flash", "f16/f16", "balanced"]'
json e2e_prefill_arms '[r["name"] for r in o["rows"] if r["phase"] == "prefill"] == [r["name"] for r in o["rows"] if r["phase"] == "decode"]'
json e2e_same_batches '{r["batch"] for r in o["rows"]} == {255} and all(r["batch"] == 255 for r in o["runs"])'
json e2e_depth '[(r["depth_from"], r["depth_to"]) for r in o["runs"]][1] == (100, 116) and 100 < o["runs"][0]["depth_from"] >= 100 + 2 * 7 and o["runs"][0]["depth_to"] == o["rows"][0]["held"] and o["runs"][0]["depth_mean"] == (o["runs"][0]["depth_from"] + o["runs"][0]["depth_to"]) / 2'
json e2e_ceilings 'all(r["amdahl"] and r["amdahl"] > 1 for r in o["rows"])'
json e2e_speed 'all(0 < r["tokens_per_s_min"] <= r["tokens_per_s"] <= r["tokens_per_s_max"] and abs(r["tokens_per_s"] * r["us_median"] / 1e6 - 1) < 1e-3 for r in o["rows"])'
json e2e_samples 'all(r["samples"] == 9 == len(r["us"]) and r["calls"] == {"decode": 2, "prefill": 16}[r["phase"]] for r in o["rows"])'
json e2e_baseline 'all(sum(r["run"] == i and r["verdict"] == "baseline" and "llama" in r["name"] for r in o["rows"]) == 1 for i in (0, 1))'
json e2e_floor 'all(r["noise_floor"] >= 0 and "llama" in r["against_itself"]["name"] for r in o["runs"])'
json e2e_memory 'all(0 < r["anonymous"] <= r["resident"] <= r["peak"] and r["accounted"] > 0 for r in o["rows"] if r["phase"] == "decode")'
json e2e_one_process 'all("no claim" in r["memory_verdict"] or r["memory_verdict"] == "the baseline" for r in o["rows"] if r["phase"] == "decode")'
json e2e_first 'all(r["first_ms"] > 0 and r["first_samples"] == 2 == len(r["first_ms_all"]) and r["first_ratio_low"] <= r["first_ratio"] <= r["first_ratio_high"] for r in o["rows"] if r["phase"] == "decode")'
# All arms decode the same number of tokens: two to warm up, three at first sight, two again, then the rounds.
json e2e_in_step 'len({r["held"] for r in o["rows"] if r["phase"] == "decode"}) == 1 and o["rows"][0]["held"] >= 100 + 2 * (5 + 2 + 9)'
json e2e_text '[r["text_same"] for r in o["rows"] if r["name"] in ("llama-f16-noflash", "f16/f16") and r["phase"] == "decode"] == [True, True]'
json e2e_text_is_there 'all(len(r["text"]) > 10 for r in o["rows"] if r["phase"] == "decode")'
# What libllama would save of its caches: fewer bits, fewer bytes.
json e2e_cache_sizes '(lambda b: b["llama-q4_0-flash"] < b["llama-q8_0-flash"] < b["llama-f16-flash"])({r["name"]: r["accounted"] for r in o["rows"] if r["phase"] == "decode"})'
json e2e_folded 'all(r["bits_code"] == {"f16/f16": 16, "balanced": 4.25}[r["name"]] for r in o["rows"] if r["phase"] == "decode" and "llama" not in r["name"])'

kv bench compare "$work/saved.json" "$work/saved.json" --json
holds compare_itself test "$rc" -eq 0
json compare_all_rows 'len(o["rows"]) == 12'
json compare_no_change 'all(r["ratio"] == 1 and not r["distinguishable"] for r in o["rows"])'

# Several processes, and arms that cannot be: the model has no tokenizer for a text.
kv "${small[@]}" -d 20 --kv balanced --processes 5 -o md
holds e2e_processes test "$rc" -eq 0
holds e2e_memory_claim grep -Eq "^\| balanced .*(not distinguishable \([-+0-9.]+ to [-+0-9.]+ MiB\)|[-+][0-9.]+ MiB \([-+0-9.]+ to [-+0-9.]+\))" "$work/out"
holds e2e_memory_baseline test "$(grep -c "no claim" "$work/out")" -eq 0

# Options of an arm reach its process: a policy drops tokens, a window of its own is kept.
succeeds e2e_options "${small[@]}" -d 300 --kv "balanced,sink=0,window=128,uni4/uni4,f16/f16,evict=window:budget=128" --first 1 --json
json e2e_option_names '[r["name"] for r in o["rows"] if r["phase"] == "decode" and "llama" not in r["name"]] == ["balanced,sink=0,window=128", "uni4/uni4", "f16/f16,evict=window:budget=128"]'
json e2e_option_bytes '(lambda b: b[2] < b[1] and b[0] > b[1])([r["accounted"] / (1 if "f16" not in r["name"] else 4) for r in o["rows"] if r["phase"] == "decode" and "llama" not in r["name"]])'
json e2e_option_fields '[(r["sink"], r["window"], r["evict"][:6]) for r in o["rows"] if r["phase"] == "decode" and "llama" not in r["name"]] == [(0, 128, "none"), (4, 64, "none"), (4, 64, "window")]'

# workers ARM PID...: those of these processes (none: of all) that serve that arm. Read from /proc, which needs no other program.
workers() {
    local pid words arm=$1
    shift
    [ $# -gt 0 ] || { pid=(/proc/[0-9]*) && set -- "${pid[@]#/proc/}"; }
    for pid in "$@"; do
        { mapfile -d '' words <"/proc/$pid/cmdline"; } 2>/dev/null || continue
        case "${words[*]} " in *"bench worker -m $work/model.gguf "*"$arm"*) echo "$pid" ;; esac
    done
}

# children PID: waits a moment first, as who asks again and again takes the processor from who is watched.
children() {
    sleep 0.03
    local found=()
    { read -r -a found <"/proc/$1/task/$1/children"; } 2>/dev/null || true # there is no line end
    echo "${found[@]:-0}"
}

# A process that dies costs its own row: those of the others are there, the exit code is 2. Once in the rounds, once in a further process.
# shellcheck disable=SC2046 # numbers, to be split
dies() { # NAME ARGS...
    "$kvfold" "${small[@]}" -d 50 "${@:2}" --kv f16/f16,balanced --json >"$work/out" 2>"$work/err" &
    local run=$! first="" all=""
    while [ -z "$first" ]; do first=$(workers "--kv balanced" $(children $run)); done
    if [ "$1" = rounds ]; then
        until grep -q "decode 1 of\|decode [0-9]* of" "$work/err" || ! kill -0 $run; do sleep 0.05; done
        kill -KILL "$first"
    else
        while kill -0 $run 2>/dev/null; do
            all=$(workers "--kv balanced" $(children $run))
            [ "$all" = "$first" ] || [ -z "$all" ] || break
        done
        for pid in $all; do [ "$pid" = "$first" ] || kill -KILL "$pid"; done
    fi
    wait $run
    rc=$?
}
dies rounds --samples 60 --first 1
holds e2e_dead_arm_code test "$rc" -eq 2
json e2e_dead_arm '{r["name"] for r in o["rows"]} >= {"llama-f16-flash", "f16/f16"} and "balanced" not in {r["name"] for r in o["rows"]} and any(r.startswith("balanced: its process ended") for r in o["refused"])'
json e2e_dead_arm_samples 'all(r["samples"] == 60 for r in o["rows"])'
dies further --processes 6 --first 1 -d 400
holds e2e_dead_process_code test "$rc" -eq 2
json e2e_dead_process 'any("further processes" in r for r in o["refused"]) and "balanced" in {r["name"] for r in o["rows"]} and len(o["rows"]) == 12'

echo "some text" >"$work/text"
kv "${small[@]}" -d 20 --kv balanced -f "$work/text"
holds e2e_no_tokenizer test "$rc" -eq 2
holds e2e_no_tokenizer_said grep -q "balanced: the model has no tokenizer" "$work/err"

# Ctrl-C, whenever it comes: what was measured is printed, and the arms' processes are gone. (--foreground: one signal, not one more to
# the group; a second Ctrl-C ends at once.)
timeout --foreground --preserve-status -s INT 3 "$kvfold" "${small[@]}" -d 50 --samples 200 --kv balanced --json >"$work/out" 2>"$work/err"
rc=$?
holds e2e_interrupted test "$rc" -eq 0
json e2e_interrupted_said 'o["interrupted"] is True'
holds e2e_no_process_left test -z "$(workers "")"

refuses e2e_which 1 "which model" bench e2e
refuses e2e_missing 2 "nosuch" bench e2e -m "$work/nosuch.gguf"
refuses e2e_depth 1 "--depth: 'x'" bench e2e -m "$work/model.gguf" -d x
refuses e2e_samples 1 "--samples: '8'" bench e2e -m "$work/model.gguf" --samples 8
refuses e2e_codec 1 "nosuch" bench e2e -m "$work/model.gguf" --kv nosuch/f16
refuses e2e_file 2 "nofile" bench e2e -m "$work/model.gguf" -f "$work/nofile"
head -c 5000 "$work/model.gguf" >"$work/cut.gguf"
refuses e2e_damaged 3 "cut.gguf" bench e2e -m "$work/cut.gguf"

finish
