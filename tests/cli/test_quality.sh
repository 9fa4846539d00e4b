#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# quality: what it refuses, that it is exact where it must be, and what it saves. On a small context: no codec is judged here.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

text=$work/text
ferries >"$text"
base=(quality -m "$smollm2" -t 1)

refuses quality_no_model 1 "-m FILE is missing" quality -f "$text"
refuses quality_no_text 1 "-f TEXT is missing" quality -m "$smollm2"
refuses quality_option 1 "'--ctx'.*nearest" quality --ctx 5
refuses quality_slice 1 "--slice: '5' is not of the form FIRST:BYTES" "${base[@]}" -f "$text" --slice 5
refuses quality_codec 1 "'nosuch' does not exist" "${base[@]}" -f "$text" --kv f16/f16,nosuch/f16
refuses quality_host_type 1 "'llama-q9'.*llama-TYPE" "${base[@]}" -f "$text" --kv llama-q9
refuses quality_host_pair 1 "'llama-q8_0/x'.*llama-TYPE" "${base[@]}" -f "$text" --kv llama-q8_0/x
refuses quality_arm_option 1 "'sink=65'" "${base[@]}" -f "$text" --kv f16,sink=65
refuses quality_no_arms_file 2 "cannot read '$work/none'" "${base[@]}" -f "$text" --arms "$work/none"
printf '# nothing\n\n' >"$work/arms"
refuses quality_empty_arms_file 1 "names no arm" "${base[@]}" -f "$text" --arms "$work/arms"
refuses quality_missing_text 2 "cannot read '$work/none'" "${base[@]}" -f "$work/none"
: >"$work/empty"
refuses quality_empty_text 2 "'$work/empty' is empty" "${base[@]}" -f "$work/empty"
printf 'some text \377 more' >"$work/bytes"
refuses quality_not_utf8 3 "'$work/bytes' is no UTF-8 text: byte 10 is 0xFF" "${base[@]}" -f "$work/bytes"
printf 'some text \0 more' >"$work/bytes"
refuses quality_zero_byte 3 "byte 10 is 0x00" "${base[@]}" -f "$work/bytes"
refuses quality_slice_beyond 2 "100000 from byte 0 on are asked for" "${base[@]}" -f "$text" --slice 0:100000
refuses quality_slice_far 2 "1 from byte 9223372036854775807 on" "${base[@]}" -f "$text" --slice 9223372036854775807:1
refuses quality_slice_no_number 1 "--slice: '1:99999999999999999999'" "${base[@]}" -f "$text" --slice 1:99999999999999999999
refuses quality_save_nowhere 2 "cannot save '$work/none/x'" "${base[@]}" -f "$text" --save "$work/none/x"
refuses quality_save_folder 2 "it is a directory" "${base[@]}" -f "$text" --save "$work"

# A reference that fails in the second chunk: the first one is printed, the reference is blamed and not the arms, and the exit code is 3.
# The model is made here: random weights, a vocabulary of bytes, and no number for one letter.
"$KVFOLD_BIN/gen-model" --bytes llama-64 "$work/bytes.gguf" >"$work/out" 2>"$work/err" || not_ok quality_bytes_model
cp "$work/bytes.gguf" "$work/poisoned.gguf"
python3 "$here/poison.py" "$work/poisoned.gguf" "<0x5A>" || not_ok quality_poisoned_model
head -c 300 "$text" >"$work/late"
printf ' Z ' >>"$work/late"
tail -c 300 "$text" >>"$work/late"
kv quality -m "$work/poisoned.gguf" -t 1 -f "$work/late" -c 256 --score 64 --chunks 2 --floor 0 --kv llama-q8_0,llama-q4_0 --json
holds quality_late_failure_code test "$rc" -eq 3
json quality_late_failure '[a["positions"] for a in o["arms"]] == [64, 64] and not any("failure" in a or a["complete"] for a in o["arms"])'
holds quality_late_failure_said grep -q "the reference cannot go on: its logits at position [0-9]* are not finite" "$work/err"
kv quality -m "$work/poisoned.gguf" -t 1 -f "$work/late" -c 256 --score 64 --chunks 2 --floor 0 --kv llama-q8_0,llama-q4_0 --resident 1 --json
json quality_late_failure_passes '[a["positions"] for a in o["arms"]] == [64, 0] and "the reference failed" in o["arms"][1]["failure"] and "failure" not in o["arms"][0]'
# What the reference cannot do at all is said: with bytes for tokens the questions are too long.
kv quality -m "$work/bytes.gguf" -t 1 -f "$text" -c 256 --score 64 --floor 0 --kv q8_0/q8_0 --generate --json
holds quality_generate_failure_code test "$rc" -eq 2
holds quality_generate_failure_said grep -q "generate: the reference cannot write.*more than 1400 tokens" "$work/err"
json quality_generate_failure_rest 'o["arms"][0]["positions"] == 64 and "generation" not in o["arms"][0]'

# A slice that begins and ends within a character: what was read is recorded, in whole ones.
python3 -c 'print("é" * 300)' >"$work/accents"
kv quality -m "$work/bytes.gguf" -t 1 -f "$work/accents" --slice 1:202 -c 64 --score 8 --floor 0 --kv q8_0/q8_0 --json
json quality_slice_recorded '[(t["first"], t["bytes"]) for t in o["texts"]] == [(2, 200)] and " 2:200" in o["runs"][0]["title"]'
# Too few positions for a verdict, and windows that are no multiple of 64.
kv quality -m "$work/bytes.gguf" -t 1 -f "$text" -c 256 --score 64 --kv f16/f16 --json
json quality_few_blocks 'o["arms"][0]["at_floor"] is None and o["floor"]["positions"] == 64'
kv quality -m "$work/bytes.gguf" -t 1 -f "$text" -c 256 --score 160 --kv f16/f16 --json
json quality_enough_blocks 'o["arms"][0]["at_floor"] is True'
kv quality -m "$work/bytes.gguf" -t 1 -f "$text" -c 256 --score 8 --floor 0 --kv f16/f16,window=32
holds quality_not_faithful grep -q "not decode-faithful where a window is no multiple of 64" "$work/out"
kv quality -m "$work/bytes.gguf" -t 1 -f "$text" -c 256 --score 8 --floor 0 --kv f16/f16
holds quality_faithful grep -q "^decode-faithful" "$work/out"

if [ -z "$smollm2" ]; then
    skip quality_with_a_model
    finish
fi

refuses quality_short_text 2 "has [0-9]+ tokens, fewer than the context of 8000" "${base[@]}" -f "$text" -c 8000
# The texts of our own fill a context of 2,048.
for language in german chinese program; do
    refuses "quality_text_$language" 2 "has 2[0-9]{3} tokens" "${base[@]}" -f "$source_dir/tests/text/$language.txt" -c 8000
done
refuses quality_many_chunks 2 "enough for [0-9]+ chunks of 512, and --chunks asks for 99" "${base[@]}" -f "$text" -c 512 --chunks 99
refuses quality_score 1 "--score 320: a chunk of 320 tokens .* 1 to 319" "${base[@]}" -f "$text" -c 320 --score 320

printf 'f16 # exact\n\n# all of them\nq8_0/q8_0\n' >"$work/arms"
kv "${base[@]}" -f "$text" -c 128 --score 16 --floor 0 --kv f16/f16 --kv-layer 99=q8_0 --json
holds quality_layer_code test "$rc" -eq 1
kv "${base[@]}" -f "$text" -c 128 --score 16 --floor 0 --kv "llama-q4_0" --arms "$work/arms" -o csv
holds quality_csv test "$rc" -eq 0 -a "$(wc -l <"$work/out")" -eq 4
holds quality_csv_columns python3 -c '
import csv, sys
rows = list(csv.DictReader(open(sys.argv[1])))
assert [r["name"] for r in rows] == ["llama-q4_0", "f16", "q8_0/q8_0"], rows
assert all(float(r["kld_mean"]) >= 0 < float(r["bits_per_value"]) and r["positions"] == "16" and r["texts"] for r in rows), rows
assert [r["sink"] for r in rows] == ["", "4", "4"], rows
' "$work/out"
succeeds quality_markdown "${base[@]}" -f "$text" -c 128 --score 16 --floor 0 --kv kivi4/kivi4,window=0 -o md
holds quality_markdown_row grep -q "^| kivi4/kivi4,window=0 | 4/0 | 5.000 |" "$work/out"
holds quality_no_floor test "$(grep -c "^|.*at the floor" "$work/out")" -eq 0
succeeds quality_table "${base[@]}" -f "$text" -c 128 --score 16 --floor 0 --kv kivi4/kivi4,window=0
holds quality_table_row grep -q "^kivi4/kivi4,window=0 *4/0 *5.000 " "$work/out"
holds quality_table_r_0 grep -q "0 to 63 of the newest tokens are exact" "$work/out"
holds quality_table_worst grep -q "likeliest '" "$work/out"

# 64 tokens: nothing is coded, which is said.
succeeds quality_nothing_coded "${base[@]}" -f "$text" -c 64 --score 8 --floor 0 --kv uni4/uni4 --json
holds quality_nothing_coded_said grep -q "too few for a packed block" "$work/err"

# A full disk: the old result stays, the new one is on stdout.
echo old >"$work/kept"
(trap "" XFSZ && ulimit -f 1 && exec "$kvfold" "${base[@]}" -f "$text" -c 128 --score 16 --floor 0 --kv kivi2/kivi2 --save "$work/kept" --csv) >"$work/out" 2>"$work/err"
rc=$?
holds quality_full_code test "$rc" -eq 2
holds quality_full_said grep -q "cannot save '$work/kept': .*nothing that was there is lost" "$work/err"
holds quality_full_keeps_the_old grep -qx old "$work/kept"
holds quality_full_leaves_no_piece test "$(ls "$work"/kept* | wc -l)" -eq 1
holds quality_full_still_prints grep -q "kivi2/kivi2," "$work/out"

# Ctrl-C: what is finished is printed and marked; exit code 0.
"$kvfold" "${base[@]}" -f "$text" -c 1024 --kv uni4/uni4 --json >"$work/out" 2>"$work/err" &
pid=$!
for _ in $(seq 600); do
    grep -q "^kvfold: quality" "$work/err" && break
    sleep 0.1
done
kill -INT "$pid"
wait "$pid"
rc=$?
holds quality_interrupted_code test "$rc" -eq 0
json quality_interrupted 'o["interrupted"] is True and all(not a["complete"] for a in o["arms"]) and len({a["positions"] for a in o["arms"]}) == 1'

# An arm that this model cannot have: it is said, the others are judged, and the exit code is 2. The model is made here: latent attention,
# random weights, and a vocabulary of bytes.
"$KVFOLD_BIN/gen-model" --bytes deepseek2 "$work/latent.gguf" >"$work/out" 2>"$work/err" || not_ok quality_latent_model
kv quality -m "$work/latent.gguf" -t 1 -f "$text" -c 256 --score 32 --floor 0 --kv uni4/uni4,q8_0/q8_0,llama-q8_0 --json
holds quality_arm_impossible_code test "$rc" -eq 2
holds quality_arm_impossible_said grep -q "uni4/uni4: cannot be measured: .*latent attention.*allowed are f16 and q8_0" "$work/err"
json quality_arm_impossible '(lambda a: a["positions"] == 0 and not a["complete"] and "kld" not in a and "latent attention" in a["failure"])(next(a for a in o["arms"] if a["name"] == "uni4/uni4"))'
json quality_other_arms 'all(a["complete"] and a["positions"] == 32 and 0 < a["kld"]["mean"] < 0.01 for a in o["arms"] if a["name"] != "uni4/uni4") and len(o["arms"]) == 3'

finish
