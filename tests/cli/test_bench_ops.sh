#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# bench ops and bench compare: rows, results that are right, two results beside each other, and what is refused. No speed is judged.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

small=(bench ops --samples 9 --pool 1 --head-dim 32)

succeeds ops_json "${small[@]}" --codec kivi2:group=32,uni4 --json --save "$work/a.json"
json ops_rows '[r["name"] for r in o["rows"] if r["verdict"] != "baseline"][:12] == ["pack, 2 bits", "pack, 3 bits", "pack, 4 bits", "unpack, 2 bits", "unpack, 3 bits", "unpack, 4 bits", "kivi quantise, 4 bits", "kivi dequantise, 4 bits", "hadamard", "nearest of 256 centroids", "gather centroids", "merge"]'
json ops_codecs '[r["name"] for r in o["rows"] if r["verdict"] != "baseline"][12:] == ["%s %s, %s" % (w, c, s) for c in ("kivi2:group=32", "uni4") for s in ("keys", "values") for w in ("encode", "decode")]'
json ops_pairs 'len(o["rows"]) == 40 and all(a["base"] == b["name"] and b["verdict"] == "baseline" for a, b in zip(o["rows"][::2], o["rows"][1::2]))'
json ops_right 'all(r["wrong"] == "" for r in o["rows"]) and all(r["error"] == 0 for r in o["rows"][:16:2]) and all(0 < r["error"] < 1 for r in o["rows"] if r["name"].startswith("encode") and r["verdict"] != "baseline")'
json ops_per_value 'all(abs(r["ns_per_value"] * 64 * 32 / 1e3 / r["us_median"] - 1) < 0.01 for r in o["rows"])'
json ops_bytes '[r["bytes"] for r in o["rows"][:2]] == [64 * 32 + 64 * 32 * 2 // 8] * 2'
json ops_no_doubts 'not any("different inputs" in r["doubts"] or "not there" in r["doubts"] for r in o["rows"])'
json ops_load 'all(set(o["runs"][0]["other_load"]) >= {"repeated", "marked", "busy", "slow", "worst_share"} for r in o["rows"]) and all(r["other_load"]["marked"] >= len(r["other_load"]["busy_samples"]) for r in o["rows"]) and sum(r["other_load"]["marked"] for r in o["rows"]) == 2 * o["runs"][0]["other_load"]["marked"]'
json ops_floor 'all(r["against_itself"]["name"] == r["base"] and r["read_gb_per_s"] > 0 for r in o["rows"])'
succeeds ops_again "${small[@]}" --codec uni4 --json --save "$work/b.json"

# B has fewer rows, and what is left out is said.
succeeds compare_json bench compare "$work/a.json" "$work/b.json" --json
json compare_rows 'len(o["rows"]) == 32 and o["kind"] == "compare"'
json compare_left_out 'sum("kivi2" in n and "only in A" in n for n in o["runs"][0]["notes"]) == 8'
json compare_interval 'all(r["ratio_low"] <= r["ratio"] <= r["ratio_high"] for r in o["rows"])'
json compare_ratio 'all(abs(r["ratio"] * r["ratio_a"] / r["ratio_b"] - 1) < 0.02 for r in o["rows"] if r["ratio_a"] > 0.05)'

kv bench compare "$work/b.json" "$work/a.json" --json
json compare_only_in_b 'sum("kivi2" in n and "only in B" in n for n in o["runs"][0]["notes"]) == 8'
sed 's/"pool": [0-9]*/"pool": 77/' "$work/a.json" >"$work/pool.json"
refuses compare_other_pool 2 "no row in common" bench compare "$work/a.json" "$work/pool.json"
python3 - "$work/a.json" "$work/part.json" <<'END'
import json, sys
o = json.load(open(sys.argv[1]))
o["interrupted"] = True
o["rows"][0]["doubts"] = "odd"
o["rows"][2]["values"] += 1
o["refused"] = ["x: no"]
for row in o["rows"]:
    row["other_load"]["marked"] = 9 if "hadamard" in row["name"] else 0
json.dump(o, open(sys.argv[2], "w"))
END
kv bench compare "$work/a.json" "$work/part.json" --json
json compare_remarks 'all(any(w in n for n in o["runs"][0]["notes"]) for w in ("B: Interrupted", "B: DOUBTFUL", "B: Refused: x: no", "not compared, as \x27values\x27 differs"))'
json compare_busy '[r["verdict"] for r in o["rows"] if r["name"] == "hadamard"] == ["busy machine"]'

# A result in which one row became twice as fast: found, and nothing else.
python3 - "$work/a.json" "$work/faster.json" <<'END'
import json, sys
o = json.load(open(sys.argv[1]))
o["machine"]["processor"] = "another"
for row in o["rows"]:
    row["noise_floor"] = 0.01
    row["other_load"]["marked"] = 0
    row["us"] = [100 + i / 10 for i in range(9)]
json.dump(o, open(sys.argv[1], "w"))
for row in o["rows"]:
    row["us"] = [10 * (100 + i / 10) for i in range(9)]
    if row["name"] == "hadamard":
        row["us"] = [x / 2 for x in row["us"]]
o["machine"]["processor"] = "a slower one"
json.dump(o, open(sys.argv[2], "w"))
END
succeeds compare_planted bench compare "$work/a.json" "$work/faster.json" --json
json compare_found '[(r["name"], r["verdict"]) for r in o["rows"] if r["distinguishable"]] == [("hadamard", "faster")]'
json compare_machines 'any("processor" in n and "slower" in n for n in o["runs"][0]["notes"])'
kv bench compare "$work/a.json" "$work/faster.json"
holds compare_table grep -Eq '^hadamard .* 2.00 \(' "$work/out"

succeeds ops_none "${small[@]}" --codec none --csv
holds ops_none_lines test "$(wc -l <"$work/out")" -eq 25

echo '{"kind": 1}' >"$work/no-result.json"
echo '{' >"$work/no-json.json"
sed 's/"kind": "ops"/"kind": "attend"/' "$work/a.json" >"$work/other.json"
refuses compare_one 1 "two saved results" bench compare "$work/a.json"
refuses compare_missing 2 "nosuch" bench compare "$work/a.json" "$work/nosuch.json"
refuses compare_no_json 3 "no-json.json' is no JSON" bench compare "$work/a.json" "$work/no-json.json"
refuses compare_no_result 3 "no result of kvfold" bench compare "$work/no-result.json" "$work/a.json"
refuses compare_kinds 1 "of kind ops .*of kind attend" bench compare "$work/a.json" "$work/other.json"
refuses ops_codec 1 "nosuch" bench ops --codec nosuch
refuses ops_head 1 "--head-dim 48.*32" bench ops --head-dim 48

finish
