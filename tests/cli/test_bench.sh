#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# bench attend: its JSON, that every row is right, and what it refuses. Small shapes and a small pool: no figure is judged here.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

small=(bench attend -t 1 --samples 9 --pool 1 --q-heads 6 --kv-heads 2 --head-dim 64)

succeeds bench_json "${small[@]}" --context 200 --kv f16/f16,kivi4:group=64/q4_0:rot=h,balanced --json
json bench_machine 'all(isinstance(o["machine"][k], str) and o["machine"][k] for k in ("processor", "kvfold", "cpu", "libllama", "ggml"))'
json bench_origin 'o["format"] == 1 and o["kind"] == "attend" and "bench attend" in o["command"] and "--pool 1" in o["command"] and o["date"].startswith("20")'
json bench_shape '{k: o["runs"][0][k] for k in ("q_heads", "kv_heads", "head_dim", "context", "queries", "threads")} == {"q_heads": 6, "kv_heads": 2, "head_dim": 64, "context": 200, "queries": 1, "threads": 1}'
json bench_title 'o["runs"][0]["title"] == "6 query heads, 2 KV heads, head size 64, 200 tokens, 1 thread, 9 samples"'
json bench_row_fields 'all(isinstance(r[k], number) for r in o["rows"] for k in ("us_median", "us_min", "us_max", "bytes", "samples", "noise"))'
json bench_our_rows '[r["name"] for r in o["rows"] if "llama" not in r["name"]] == ["f16/f16", "kivi4:group=64/q4_0:rot=h", "balanced"]'
json bench_llama_rows '{r["name"] for r in o["rows"] if "llama" in r["name"]} == {"llama-f16-noflash", "llama-q8_0/f16-noflash", "llama-f16-flash", "llama-q8_0-flash", "llama-q4_0-flash"}'
json bench_times 'all(0 < r["us_min"] <= r["us_median"] <= r["us_max"] and r["samples"] == 9 for r in o["rows"])'
json bench_right 'all(0 < r["error"] < (3e-2 if "llama" in r["name"] else 2e-3) for r in o["rows"])'
json bench_baseline_is_fastest 'o["runs"][0]["baseline"] == min((r for r in o["rows"] if "llama" in r["name"]), key=lambda r: r["us_median"])["name"]'
json bench_ratio_of_medians 'all(abs(r["ratio"] * r["us_median"] / min(l["us_median"] for l in o["rows"] if "llama" in l["name"]) - 1) < 1e-3 for r in o["rows"])'
json bench_ratio_interval 'all(r["ratio_low"] <= r["ratio"] <= r["ratio_high"] for r in o["rows"])'
json bench_claims_leave_the_noise 'all(not r["distinguishable"] or r["ratio_low"] > 1 and r["ratio"] > 1 + o["runs"][0]["noise_floor"] or r["ratio_high"] < 1 and r["ratio"] < 1 / (1 + o["runs"][0]["noise_floor"]) for r in o["rows"])'
json bench_busy 'all((r["verdict"] == "busy machine") == (r["verdict"] != "baseline" and 2 * o["runs"][0]["other_load"]["marked"] > 9) for r in o["rows"])'
json bench_arm_fields '[(r["k"], r["v"], r["sink"], r["window"], r["evict"]) for r in o["rows"] if "llama" not in r["name"]][2] == ("uni4", "uni4", 4, 64, "none") and "k" not in o["rows"][3]'
json bench_noise_floor 'o["runs"][0]["noise_floor"] >= 0 and "llama" in o["runs"][0]["against_itself"]["name"]'
json bench_samples 'all(len(r["us"]) == 9 and sorted(r["us"])[4] == r["us_median"] for r in o["rows"])'
json bench_ceiling 'all(abs(r["ceiling"] / r["ratio"] * r["of_limit"] - 1) < 0.05 for r in o["rows"])'
json bench_no_doubts 'all("results" not in r["doubts"] and "put off" not in r["doubts"] and "inputs" not in r["doubts"] for r in o["rows"])'
json bench_read_limit 'o["runs"][0]["read_gb_per_s"] > 0'
# 199 tokens of history: two packed blocks, 72 exact rows and the sink, K and V, two heads.
json bench_bytes_f16 'o["rows"][0]["bytes"] == 2 * 2 * (2 * 64 * 64 * 2 + (72 + 4) * 64 * 2)'
json bench_bytes_llama 'next(r for r in o["rows"] if r["name"] == "llama-f16-flash")["bytes"] == 200 * 2 * 2 * 64 * 2'
json bench_nothing_refused 'o["refused"] == []'

succeeds bench_contexts "${small[@]}" --context 2,65,129 --kv kivi2/kivi2 --json
json bench_contexts_listed '[c["context"] for c in o["runs"]] == [2, 65, 129] and all(r["context"] == o["runs"][r["run"]]["context"] for r in o["rows"])'
json bench_contexts_of_rows 'sorted({r["context"] for r in o["rows"]}) == [2, 65, 129] and len(o["rows"]) == 18'
json bench_contexts_right 'all(r["error"] < 2e-3 for r in o["rows"] if "llama" not in r["name"])'

# One thread twice: two that wait for each other take minutes where other tests run beside this one.
succeeds bench_grid bench attend -t 1,1 --samples 9 --pool 1 --shape 4/2x32,2/1x64 --context 70 --kv f16/f16 --json
json bench_grid_runs '[(r["q_heads"], r["head_dim"], r["threads"]) for r in o["runs"]] == [(4, 32, 1), (4, 32, 1), (2, 64, 1), (2, 64, 1)]'

# Batches: the last tokens of the context, causal among themselves. A mask of libllama's that is off by one key fails here, and so do rows of
# ours that see the whole batch, or its rows in another order. History there is none, exact rows only, or blocks, too.
succeeds bench_queries "${small[@]}" --context 70,200 --queries 3,70 --kv f16/f16,kivi4/kivi4 --seed 11 --json --save "$work/batches.json"
json bench_queries_runs '[(r["context"], r["queries"]) for r in o["runs"]] == [(70, 3), (70, 70), (200, 3), (200, 70)]'
json bench_queries_titles '["%d queries on %d tokens, 1 thread" % (r["queries"], r["context"] - r["queries"]) in r["title"] for r in o["runs"]] == 4 * [True]'
json bench_queries_of_rows 'len(o["rows"]) == 28 and all(r["queries"] == o["runs"][r["run"]]["queries"] for r in o["rows"])'
json bench_queries_right 'all(0 < r["error"] < (3e-2 if "llama" in r["name"] else 2e-3) for r in o["rows"])'
json bench_queries_distinct 'all("results" not in r["doubts"] and "inputs" not in r["doubts"] for r in o["rows"])'
# 130 tokens before 70 queries: one packed block, 66 exact rows, the batch and the sink.
json bench_queries_bytes '[r["bytes"] for r in o["rows"] if r["name"] == "f16/f16"][3] == 2 * 2 * (64 * 64 * 2 + (66 + 70 + 4) * 64 * 2)'

# Rows of one batch are compared with rows of as many queries, and what was saved before there were batches with one query.
succeeds bench_queries_one "${small[@]}" --context 70 --kv f16/f16 --save "$work/one.json"
python3 -c '
import json, sys
o = json.load(open(sys.argv[1]))
for x in o["runs"] + o["rows"]: del x["queries"]
json.dump(o, open(sys.argv[2], "w"))' "$work/one.json" "$work/older.json"
kv bench compare "$work/batches.json" "$work/batches.json" --json
json bench_compare_queries 'len(o["rows"]) == 28 and all(r["ratio"] == 1 for r in o["rows"])'
kv bench compare "$work/older.json" "$work/one.json" --json
json bench_compare_older 'len(o["rows"]) == 6'
kv bench compare "$work/older.json" "$work/batches.json" --json
holds bench_compare_batch_code test "$rc" -eq 2
holds bench_compare_batch grep -q "no row in common" "$work/err"

# Without --kv every codec of `list` has a row, beside f16 where it is for one side only.
succeeds bench_defaults "${small[@]}" --context 130 --json
cp "$work/out" "$work/rows"
succeeds bench_list list --json
json bench_every_codec '({"/".join(e["spec"] if side in c["sides"] else "f16" for side in "kv") for c in o["codecs"] for e in c["examples"] if ":" not in e["spec"]} ==
    {r["name"] for r in json.load(open("'"$work"'/rows"))["rows"] if "llama" not in r["name"]})'

# A head size without whole blocks of 32: those rows of libllama cannot run, which is said, and the others do.
succeeds bench_odd_head bench attend -t 1 --samples 9 --pool 1 --q-heads 2 --kv-heads 1 --head-dim 20 --context 70 --kv f16/kivi4 --json
json bench_odd_head_said 'len(o["refused"]) == 3 and all("llama" in r for r in o["refused"]) and len(o["rows"]) == 3'

succeeds bench_table "${small[@]}" --context 200 --kv kivi4/kivi4 --cpu scalar
holds bench_table_rows grep -Eq "^kivi4/kivi4 .*[0-9]e-[0-9]" "$work/out"
holds bench_table_baseline grep -q "the baseline" "$work/out"
holds bench_table_set grep -Eq "^kivi4/kivi4 .*scalar$" "$work/out"
holds bench_table_ceiling grep -Eq "^kivi4/kivi4 .* memory " "$work/out"
holds bench_pool_said grep -q "less than the last-level cache" "$work/err"

# The other forms say the same.
succeeds bench_csv "${small[@]}" --context 70 --kv f16/f16 --csv --save "$work/saved.json"
holds bench_csv_lines python3 -c '
import csv, json, sys
rows = list(csv.DictReader(open(sys.argv[1])))
saved = json.load(open(sys.argv[2]))
assert len(rows) == len(saved["rows"]) == 6
for line, row in zip(rows, saved["rows"]):
    assert line["name"] == row["name"] and float(line["us_median"]) == row["us_median"] and line["kv_heads"] == "2"
' "$work/out" "$work/saved.json"
# Our rows and libllama's differ in what they are; both have the same baseline.
kv bench compare "$work/saved.json" "$work/saved.json" --json
json bench_compare_rows 'len(o["rows"]) == 6 and all(r["ratio"] == 1 for r in o["rows"])'
succeeds bench_md "${small[@]}" --context 70 --kv f16/f16 -o md
holds bench_md_table grep -Eq '^\| f16/f16 ' "$work/out"
holds bench_md_command grep -q '^`kvfold bench attend -t 1' "$work/out"

# A file that cannot be written costs nothing that was there.
cp "$work/saved.json" "$work/before"
kv "${small[@]}" --context 70 --kv f16/f16 --save "$work/missing/folder.json"
holds bench_save_refused test "$rc" -eq 2
holds bench_save_said grep -q "cannot save '.*folder.json'" "$work/err"
(
    trap '' XFSZ
    ulimit -f 2
    "$kvfold" "${small[@]}" --context 70 --kv f16/f16 -o md --save "$work/saved.json" >/dev/null 2>"$work/err"
)
rc=$?
holds bench_save_full test "$rc" -eq 2
holds bench_save_kept cmp "$work/saved.json" "$work/before"
holds bench_save_no_rest test -z "$(find "$work" -name 'saved.json.*')"

# Two presets of the same codecs keep their names, a policy is refused by name, and a seed is kept.
kv "${small[@]}" --context 70 --kv balanced,uni4/uni4,f16/f16,evict=window:budget=256 --seed 7 --cpu scalar --json
holds bench_policy_code test "$rc" -eq 2
json bench_policy '[r["name"] for r in o["rows"] if "llama" not in r["name"]] == ["balanced", "uni4/uni4"] and ["drops tokens" in r and r.startswith("f16/f16,evict=window:budget=256:") for r in o["refused"]] == [True]'
json bench_seed 'o["seed"] == 7 and o["machine"]["cpu"] == "scalar"'

refuses bench_what 1 "attend" bench
refuses bench_unknown 1 "'atend'.*attend" bench atend
refuses bench_shape_form 1 "--shape: '32x128'" bench attend --shape 32x128
refuses bench_shape_heads 1 "7.*--kv-heads 2" bench attend --shape 7/2x64
refuses bench_threads_form 1 "--threads: '0'" bench attend -t 0
refuses bench_form 1 "-o" bench attend -o xml
refuses bench_heads 1 "--q-heads 7.*--kv-heads 2" bench attend --q-heads 7 --kv-heads 2
refuses bench_context_word 1 "--context: '4k'" bench attend --context 4k
refuses bench_context_one 1 "--context: '1'" bench attend --context 1
refuses bench_context_tail 1 "--context: '64,'" bench attend --context 64,
refuses bench_queries_none 1 "--queries: '0'" bench attend --queries 0
refuses bench_queries_most 1 "--queries: '4097'.* 1 to 4096" bench attend --queries 4097 --context 8192
refuses bench_queries_context 1 "--queries 65 is more than --context 64" bench attend --context 128,64 --queries 64,65
refuses bench_samples 1 "--samples: '8'" bench attend --samples 8
refuses bench_codec 1 "nosuch" bench attend --kv f16/f16,nosuch/f16
refuses bench_empty_arm 1 "empty arm" bench attend --kv f16/f16,
refuses bench_cpu 1 "--cpu: 'mmx'" bench attend --cpu mmx
refuses bench_memory 2 "need about .* are free" bench attend --pool 4000 --context 16777216 --kv-heads 1024 --q-heads 1024 --head-dim 1024

finish
