#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# kvfold tune from outside, on a small generated model that reads bytes; and the profile in use.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

model=$work/model.gguf other=$work/other.gguf text=$work/text profile=$work/p.profile
"$KVFOLD_BIN/gen-model" --bytes llama-64 "$model" f32 && "$KVFOLD_BIN/gen-model" --bytes llama-64 "$other" bf16
ferries >"$text"

met=0
base=(tune -m "$model" -f "$text" -t 1 -c 256 --score 96)

# Wrong use: one sentence each.
refuses no_target 1 "one target is needed" "${base[@]}"
refuses two_targets 1 "one target is needed" "${base[@]}" --bits 3 --bytes 1MiB
refuses few_bits 1 "0.5 is not between the 1 and 6" "${base[@]}" --bits 0.5
refuses many_bits 1 "6.5 is not between the 1 and 6" "${base[@]}" --bits 6.5
refuses odd_size 1 "'1Mib' is no size" "${base[@]}" --bytes 1Mib
ln -s "$model" "$work/link"
refuses over_model 1 "are the same file" "${base[@]}" --bits 3 --write "$work/link"
refuses over_text 1 "are the same file" "${base[@]}" --bits 3 --write "$text"
refuses huge_size 1 "'9e11GiB' is no size" "${base[@]}" --bytes 9e11GiB
refuses no_size 1 "'0.5B' is no size" "${base[@]}" --bytes 0.5B
refuses odd_codec 1 "nothing has fewer than 2 levels" "${base[@]}" --bits 3 --codec nothing
refuses short_text 2 "fewer than the context|enough for" "${base[@]}" --bits 3 --slice 0:300

# Ctrl-C: nothing is written, and no script goes on as if there were.
for _ in {1..4}; do ferries; done >"$work/long"
interrupt ctrl_c "tokens, [0-9]" 2 "${base[@]/$text/$work/long}" --chunks 60 --bits 3 --held-out 2 --write "$work/none.profile"
holds ctrl_c_says grep -q "interrupted: nothing was written" "$work/err"
holds ctrl_c_nothing test ! -e "$work/none.profile" -a ! -s "$work/out"

# Sensitivities of all sides, a gain on held-out text that is bounded, and a profile of no more bytes than the target.
succeeds tune "${base[@]}" --bits 3 --held-out 2 --write "$profile" --save "$work/r.json" --json
json tune_rows 'o["kind"] == "sensitivity" and len(o["rows"]) == 8 and all(r["kld_mean"] > 0 for r in o["rows"]) and
    {(r["name"], r["layer"]) for r in o["rows"]} == {(s, l) for s in ("keys", "values") for l in range(4)}'
json tune_budget 'sum(r["bits"] for r in o["rows"]) <= 24 and len({r["bits"] for r in o["rows"]}) > 1'
json tune_gains 'all(g["bits"] <= 1.01 * g["bits_uniform"] for g in o["runs"][0]["gains"]) and
    {g["rule"] for g in o["runs"][0]["gains"]} == {"greedy", "ratequant"}'
holds profile_names_model grep -Eq "^model [0-9a-f]{16}$" "$profile"
if command -v gnuplot >/dev/null; then
    succeeds report report "$work/r.json" -o "$work/page"
    holds report_draws test -s "$work/page/layers-1.svg"
fi

# A model in which every query looks everywhere alike, so that no key matters, and which lives on the attention of layer 1: its values are
# what suffers, what gets the bits, and what those gain by.
planted=$work/planted.gguf
cp "$model" "$planted"
scale() { python3 "$here/scale_tensor.py" "$planted" "$@"; }
scale 0 blk.{0,1,2,3}.attn_q.weight && scale 0.02 blk.{0,2,3}.attn_output.weight && scale 4 blk.1.attn_output.weight
succeeds planted "${base[@]/$model/$planted}" --bits 2 --held-out 2 --write "$work/planted.profile" --json
json planted_sensitivity '(lambda s: all(x < 0.05 * s["values", 1] for k, x in s.items() if k != ("values", 1)) and
    all(x < 1e-6 * s["values", 1] for k, x in s.items() if k[0] == "keys"))({(r["name"], r["layer"]): r["kld_mean"] for r in o["rows"]})'
json planted_bits '(lambda b: all(x < b["values", 1] for k, x in b.items() if k != ("values", 1)))(
    {(r["name"], r["layer"]): r["bits"] for r in o["rows"]})'
json planted_gain '(lambda g: len(g) >= 2 and all(x["low"] > 0.5 for x in g))([g for g in o["runs"][0]["gains"] if g["rule"] == "greedy"])'
holds planted_profile grep -Eq "^1=turbo[1-3]/turbo[456]$" "$work/planted.profile"

# Each text counts, in what is measured and in what is held out: means over two are the means of both.
german=$source_dir/tests/text/german.txt
two=("${base[@]:0:3}" -t 1 -c 256 --score 96 --bits 3 --json)
for name in text german; do
    succeeds "alone_$name" "${two[@]}" -f "${!name}" --save "$work/$name.json"
done
succeeds both "${two[@]}" -f "$text" -f "$german" --save "$work/both.json"
holds texts_count python3 - "$work"/{text,german,both}.json <<'END'
import json, sys
a, b, both = (json.load(open(path)) for path in sys.argv[1:])
losses = lambda o: [r["kld_mean"] for r in o["rows"]] + [g["kld_uniform"] for g in o["runs"][0]["gains"] if g["rule"] == "greedy"]
mean = [(x + y) / 2 for x, y in zip(losses(a), losses(b))]
assert len(mean) > 8 and all(abs(x - y) > 1e-3 * x for x, y in zip(losses(a), losses(b))), "the texts read alike"
assert all(abs(x - y) < 1e-6 * x for x, y in zip(mean, losses(both))), (mean, losses(both))
END
head -c 500 "$german" >"$work/short"
refuses short_second 2 "short' has [0-9]+ tokens, enough for 2 chunks of 256; 1 to measure and 2 held out .* of each text" \
    "${two[@]}" -f "$text" -f "$work/short" --held-out 2

# Other targets from the same measurements, without reading the text again for them.
succeeds measured "${base[@]}" --bits 2.5 --measured "$work/r.json" --held-out 0 --rule ratequant --json
json measured_budget 'sum(r["bits"] for r in o["rows"]) <= 20 and o["runs"][0]["gains"] == []'
# Between two levels the same bits everywhere are fewer: no share of gain at more bytes than they take, but one at theirs.
succeeds between "${base[@]}" --bits 2.9 --held-out 2 --measured "$work/r.json" --json
json between_same_bytes '{g["rule"] for g in o["runs"][0]["gains"]} == {"greedy", "ratequant"} and
    all(g["bits"] <= 1.01 * g["bits_uniform"] for g in o["runs"][0]["gains"])'
json between_says_bits 'any(re.search(r"greedy reads \S+ at (2\.8|2\.9|3\.)\S+ bits, \S+ in all layers \S+ at 2\.\d+: other bytes", n)
    for n in o["runs"][0]["notes"]) and not any("other bytes" in n and "%" in n for n in o["runs"][0]["notes"])'
size=$("$kvfold" plan "$model" -c 4096 --kv turbo3/turbo3 --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["bytes_total"])')
succeeds bytes "${base[@]}" --bytes "${size}B" --tokens 4096 --measured "$work/r.json" --held-out 0 --write "$work/b.profile"
kv plan "$model" -c 4096 --profile "$work/b.profile" --json
json bytes_fit "0.9 * $size < o['bytes_total'] <= $size"

# With a calibration, which is part of what was measured; and codecs that have no size without one.
succeeds calibrate calibrate -m "$model" -f "$text" -t 1 -c 256 --chunks 2 -o "$work/c.gguf" --codebooks 8x8,4x8
cal=("${base[@]}" --calibration "$work/c.gguf" --held-out 0)
succeeds calibrated "${cal[@]}" --bits 3 --save "$work/c.json"
succeeds calibrated_measured "${cal[@]}" --bits 2 --measured "$work/c.json"
refuses uncalibrated 2 "another --calibration" "${base[@]}" --bits 2 --measured "$work/c.json"
succeeds calibrated_bytes "${cal[@]}" --bytes "${size}B" --tokens 4096 --measured "$work/c.json"
succeeds codebooks "${cal[@]}" --codec vecinfer --least 1 --most 2 --bytes 1500KiB --tokens 4096 --write "$work/v.profile"
# Its profile is planned with the calibration that it needs, to the bytes that were asked for.
holds profile_says_bytes grep -Eq "^# .*, 1[45][0-9]{5} bytes of the cache at 4096 tokens, by greedy" "$work/v.profile"
succeeds plan_codebooks plan "$model" -c 4096 --profile "$work/v.profile" --calibration "$work/c.gguf" --json
json plan_codebooks_fit '0.9 * 1500 * 1024 < o["bytes_total"] <= 1500 * 1024 and o["kv"]["layers_folded"] == 4 and
    o["kv"]["calibration"].endswith("c.gguf")'
refuses plan_uncalibrated 2 "kvfold calibrate.*plan takes its file with --calibration" plan "$model" -c 4096 --kv vecinfer2/vecinfer2
refuses plan_weights 2 "is of other weights" plan "$other" -c 4096 --calibration "$work/c.gguf"
refuses measured_otherwise 2 "was measured with other codecs" "${base[@]}" --bits 3 --codec uni --least 2 --measured "$work/r.json"
# 12 blocks of positions bound nothing; 24 did.
succeeds few_blocks "${base[@]}" --bits 3 --measured "$work/r.json" --json
json few_not_bounded 'len(o["runs"][0]["gains"]) > 0 and all(g["low"] is None and g["gain"] is not None for g in o["runs"][0]["gains"]) and
    any("not bounded" in n for n in o["runs"][0]["notes"])'
# Of the same model, text, pieces and calibration alone, each number once; what is held out lies behind the chunks that were measured.
wrong() { python3 -c "import json; o = json.load(open('$work/r.json')); $1; json.dump(o, open('$work/w.json', 'w'))"; }
from=("${base[@]}" --bits 3 --measured)
refuses measured_weights 2 "is of other weights" "${from[@]/$model/$other}" "$work/r.json"
refuses measured_text 2 "was measured on another text" "${from[@]}" "$work/r.json" --slice 0:2000
refuses measured_context 2 "another -c or --score" "${from[@]/#256/320}" "$work/r.json"
wrong 'o["rows"].append(o["rows"][0])'
refuses measured_twice 2 "each side of each layer of this model once" "${from[@]}" "$work/w.json"
wrong 'o["rows"][1] = o["rows"][0]'
refuses measured_instead 2 "each side of each layer of this model once" "${from[@]}" "$work/w.json"
wrong 'o["runs"][0]["ratios"][1] = o["runs"][0]["ratios"][0]'
refuses measured_ratios 2 "at fewer bits" "${from[@]}" "$work/w.json"
wrong 'o["runs"][0]["calibration_hash"] = "0123456789abcdef"'
refuses measured_calibration 2 "another --calibration" "${from[@]}" "$work/w.json"
wrong 'o["runs"][0]["chunks"] = 1000'
refuses measured_all 2 "enough for .* chunks" "${from[@]}" "$work/w.json"
refuses measured_what 3 "." "${base[@]}" --bits 3 --measured "$text"

# The profile in use.
use=(run "${quick[@]}" --raw -p "The ferry left" -n 4 -c 512 --json)
succeeds run "${use[@]}" -m "$model" --profile "$profile"
json run_uses_it 'o["kv"]["layers"].count("turbo") >= 4 and abs(o["kv"]["bits_code"] - 3.25) < 0.3'
succeeds run_beside "${use[@]}" -m "$model" --profile "$profile" --kv f16/f16
json run_beside_its_layers 'o["kv"]["k"] == "f16" == o["kv"]["v"] and o["kv"]["layers"].count("turbo") >= 4'
succeeds run_other "${use[@]}" -m "$other" --profile "$profile"
holds other_weights grep -q "was made for other weights" "$work/err"
# Wherever a profile meets a model: other weights and another calibration, or none, are said once each; the right ones are not.
succeeds calibrated_profile "${cal[@]}" --bits 3 --measured "$work/c.json" --write "$work/c.profile"
holds profile_names_calibration grep -Eq "^calibration [0-9a-f]{16}$" "$work/c.profile"
succeeds calibrate_other calibrate -m "$model" -f "$text" -t 1 -c 256 --chunks 2 --seed 2 -o "$work/other_c.gguf" --codebooks 8x8,4x8
succeeds calibrate_weights calibrate -m "$other" -f "$text" -t 1 -c 256 --chunks 2 -o "$work/weights_c.gguf"
says() { # NAME PATTERN TIMES ARGS...
    succeeds "$1" "${@:4}"
    holds "$1_said" test "$(grep -Ec -- "$2" "$work/err")" -eq "$3"
}
weights="was made for other weights" calibration="was tuned with another --calibration|was tuned with a --calibration"
arms=(quality -f "$text" -t 1 -c 256 --floor 0 --json)
e2e=(bench e2e -t 1 -n 2 -p 16 --pool 1 -d 100 --first 1 --json)
planned=(plan -c 1024 --json)
while read -r command pattern times given; do
    [ -n "$command" ] || continue
    declare -n args=$command
    # shellcheck disable=SC2086 # words
    says "meets_${command}_$((++met))" "${!pattern}" "$times" "${args[@]}" $given
done <<END
use weights 1 -m $other --profile $profile
use weights 0 -m $model --profile $profile
planned weights 1 -m $other --profile $profile
planned weights 0 -m $model --profile $profile
arms weights 1 -m $other --kv @$profile,@$profile,window=0,turbo3/turbo3
arms weights 1 -m $other --kv turbo3/turbo3 --profile $profile
arms weights 0 -m $model --kv @$profile
e2e weights 1 -m $other --kv @$profile
e2e weights 0 -m $model --kv @$profile
use calibration 1 -m $model --profile $work/c.profile
use calibration 1 -m $model --profile $work/c.profile --calibration $work/other_c.gguf
use calibration 0 -m $model --profile $work/c.profile --calibration $work/c.gguf
use calibration 0 -m $model --profile $profile --calibration $work/c.gguf
arms calibration 1 -m $model --kv @$work/c.profile,turbo3/turbo3
arms calibration 0 -m $model --kv @$work/c.profile --calibration $work/c.gguf
e2e calibration 1 -m $model --kv @$work/c.profile
planned calibration 1 -m $model --profile $work/c.profile
END

succeeds quality quality -m "$model" -f "$text" -t 1 -c 320 --floor 0 --kv "@$profile,turbo3/turbo3" --json
json quality_arms '[a["name"][0] for a in o["arms"] if not a["libllama"]] == ["@", "t"]'
# needle and bench e2e take it, too: alone as their arm, or beside the codecs of arms; and as an arm.
asked=(needle -m "$model" -t 1 -c 1800 -d 1 --seeds 1 --json)
timed=("${e2e[@]}" -m "$model")
bits='[a for a in o["rows"] if "llama" not in a["name"] and a.get("phase", "decode") == "decode"]'
succeeds needle_profile "${asked[@]}" --profile "$profile"
json needle_profile_arm "[a['name'] for a in $bits] == ['@$profile']"
succeeds needle_arm "${asked[@]}" --kv "@$profile"
json needle_arm_named "[a['name'] for a in $bits] == ['@$profile']"
refuses needle_profile_damaged 3 "is no profile" "${asked[@]}" --profile "$text"
succeeds e2e_profile "${timed[@]}" --profile "$profile"
json e2e_profile_arm "[a['name'] for a in $bits] == ['@$profile'] and 3 < $bits[0]['bits_code'] < 3.5"
succeeds e2e_profile_beside "${timed[@]}" --kv f16/f16 --profile "$profile"
json e2e_profile_layers "[a['name'] for a in $bits] == ['f16/f16'] and $bits[0]['bits_code'] < 16"
refuses bench_attend 1 "is a profile, and one layer alone is timed here" bench attend --kv "@$profile"
printf '# kvfold profile 1\nkv f16/f16\n99=q8_0\n' >"$work/far"
refuses far_layer 1 "the model has no layer 99" "${use[@]}" -m "$model" --profile "$work/far"
damaged() { # NAME SENTENCE BYTES: a profile that is at fault, and is named
    printf "$3" >"$work/bad.profile"
    refuses "profile_$1" 3 "$2" "${use[@]}" -m "$model" --profile "$work/bad.profile"
    holds "profile_$1_named" grep -q "bad.profile" "$work/err"
}
damaged version "is no profile" '# kvfold profile 12\nkv f16/f16\n'
damaged nul "byte 35 is 0x00" '# kvfold profile 1\nkv turbo3/turbo3\0\n1=f16\n'
damaged kv_twice "line 3: a second 'kv'" '# kvfold profile 1\nkv f16/f16\nkv q8_0/q8_0\n'
damaged model_twice "line 4: a second 'model'" '# kvfold profile 1\nkv f16/f16\nmodel 0123456789abcdef\nmodel 0123456789abcdee\n'
damaged calibration_twice "line 4: a second 'calibration'" '# kvfold profile 1\nkv f16/f16\ncalibration 0123456789abcdef\ncalibration 0123456789abcdef\n'
damaged calibration_form "'calibration' is followed by 16 hexadecimal digits" '# kvfold profile 1\nkv f16/f16\ncalibration c.gguf\n'
damaged model_prefix "16 hexadecimal digits" '# kvfold profile 1\nkv f16/f16\nmodel 0x00000000000001\n'
damaged kv_form "'f16' is not of the form K/V" '# kvfold profile 1\nkv f16\n'
damaged codec "nothing" '# kvfold profile 1\nkv f16/nothing\n'
damaged layer "'1,=f16' is not of the form" '# kvfold profile 1\nkv f16/f16\n1,=f16\n'
damaged layer_codec "nothing" '# kvfold profile 1\nkv f16/f16\n1=nothing\n'
refuses no_profile 3 "is no profile" "${use[@]}" -m "$model" --profile "$text"
refuses missing 2 "No such file" "${use[@]}" -m "$model" --profile "$work/nothing"
finish
