#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# kvfold calibrate from outside, on small generated models that read bytes: odd texts, the same file again, the file in use, and files that
# are refused.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

model=$work/model.gguf other=$work/other.gguf wide=$work/wide.gguf text=$work/text file=$work/c.gguf
gen() { "$KVFOLD_BIN/gen-model" --bytes "$@" 2>"$work/gen" || cat "$work/gen"; }
gen llama-64 "$model" f32 && gen gemma3 "$other" f32 && gen llama-64 "$wide" bf16
ferries >"$text"
base=(calibrate -m "$model" -t 1 -c 256 --chunks 6)

# Wrong use and odd texts: one sentence each.
refuses no_model 1 "-m FILE is missing" calibrate -f "$text" -o "$file"
refuses no_text 1 "-f TEXT is missing" calibrate -m "$model" -o "$file"
refuses no_output 1 "-o FILE is missing" calibrate -m "$model" -f "$text"
refuses codebooks 1 "'3x8' is not a list like" "${base[@]}" -f "$text" -o "$file" --codebooks 3x8
ln -s "$model" "$work/link"
refuses over_model 1 "are the same file" "${base[@]}" -f "$text" -o "$work/link"
refuses over_text 1 "are the same file" "${base[@]}" -f "$text" -o "$work/../$(basename "$work")/text"
refuses codebooks_twice 1 "each once" "${base[@]}" -f "$text" -o "$file" --codebooks 4x8,k4x8
: >"$work/empty"
refuses empty_text 2 "is empty" "${base[@]}" -f "$work/empty" -o "$file"
printf x >"$work/one"
refuses one_token 2 "the text has [12] tokens?; at least 64 are needed" "${base[@]}" -f "$work/one" -o "$file"
refuses missing_text 2 "No such file" "${base[@]}" -f "$work/nothing" -o "$file"
holds wrote_nothing test ! -e "$file" -a ! -e "$file.part"
refuses no_folder 2 "cannot save" "${base[@]}" -f "$text" -o "$work/none/c.gguf"

# A file, and the same one again; another seed gives another.
succeeds calibrate "${base[@]}" -f "$text" -o "$file" --codebooks 4x4
holds says_what grep -Eq "positions of 1536 tokens" "$work/out"
succeeds again "${base[@]}" -f "$text" -o "$work/again.gguf" --codebooks 4x4
holds deterministic cmp "$file" "$work/again.gguf"
# Fewer positions than the text has: the same sample again, on one thread or two; another seed draws another one, of which layers tell.
sampled() { succeeds "$1" "${base[@]}" -f "$text" -o "$work/$1.gguf" --positions 300 "${@:2}"; }
sampled first && sampled second && sampled seed --seed 2 && sampled threads -t 2 && sampled threads_again -t 2
holds sampled_again cmp "$work/first.gguf" "$work/second.gguf"
holds sampled_again_threads cmp "$work/threads.gguf" "$work/threads_again.gguf"
layers_of() { "$kvfold" inspect "$work/$1.gguf" --json | python3 -c 'import json, sys; print(json.dumps(json.load(sys.stdin)["layers"]))'; }
holds seed_matters test "$(layers_of first)" != "$(layers_of seed)"
# The last 5 of 25 layers read the keys of others: they have no part of their own.
gen gemma3n "$work/sharing.gguf" f32
sharing=(calibrate -m "$work/sharing.gguf" -t 1 -c 256 --chunks 2 -f "$text" --codebooks 4x2)
succeeds sharing "${sharing[@]}" -o "$work/shared.gguf"
succeeds sharing_again "${sharing[@]}" -o "$work/shared_again.gguf"
holds sharing_deterministic cmp "$work/shared.gguf" "$work/shared_again.gguf"
kv inspect "$work/shared.gguf" --json
json sharing_owners '[l["kv_heads"] for l in layers] == 20 * [1] + 5 * [0] and [len(l["codebooks"]) for l in layers] == 20 * [2] + 5 * [0]'
succeeds sharing_use run "${quick[@]}" -m "$work/sharing.gguf" -c 512 --raw -p "The ferry left" -n 4 --calibration "$work/shared.gguf"
succeeds short_text "${base[@]}" --slice 0:100 -f "$text" -o "$work/short.gguf" --codebooks 2x8 # fewer samples than centroids
# What few bits cost each layer: asked for, the figures that tune measures on the same tokens; else not known.
kv inspect "$file" --json
json losses_unknown 'o["sensitivity_codec"] == "" and all(l["sensitivity"] == {"keys": None, "values": None} for l in layers)'
refuses no_name 1 "is no name of a file" calibrate -m "$model" -f "$text" -o ""
refuses stdout_as_file 1 "'-' is no name of a file" calibrate -m "$model" -f "$text" -o -
refuses losses_short 1 "needs chunks of at least 256 tokens" calibrate -m "$model" -t 1 -c 128 -f "$text" -o "$work/none.gguf" --sensitivity
succeeds losses "${base[@]}" -f "$text" -o "$work/losses.gguf" --sensitivity
succeeds losses_tuned tune -m "$model" -t 1 -f "$text" -c 256 --bits 3 --held-out 0 --save "$work/tuned.json"
kv inspect "$work/losses.gguf" --json
json losses_are_those_of_tune 'o["sensitivity_codec"] == "turbo2" and o["sensitivity_context"] == 256 and
    len(layers) == 4 and (lambda rows: len(rows) == 8 and all(abs(layers[r["layer"]]["sensitivity"][r["name"]] - r["kld_mean"])
    <= 1e-6 * r["kld_mean"] and r["kld_mean"] > 1e-9 for r in rows))(json.load(open("'"$work/tuned.json"'"))["rows"])'
succeeds losses_inspect inspect "$work/losses.gguf"
holds losses_shown grep -Eq "^most by (keys|values) of layer [0-3] \(" "$work/out"
if command -v gnuplot >/dev/null; then
    succeeds losses_plot inspect "$work/losses.gguf" --plot "$work/losses"
    holds losses_picture test -s "$work/losses/sensitivity.svg"
fi
for language in german chinese; do
    succeeds "$language" "${base[@]}" -f "$source_dir/tests/text/$language.txt" -o "$work/$language.gguf"
done

# In use: key stages come from it, and every command takes it.
use=(run "${quick[@]}" -m "$model" -c 512 --raw -p "The ferry left" -n 4 --json)
succeeds run "${use[@]}" --calibration "$file"
json run_says_it 'o["kv"]["calibration"].endswith("c.gguf")'
succeeds quality quality -m "$model" -t 1 -f "$text" -c 320 --floor 0 --kv uni4/uni4,uni4:centre=prompt/uni4 --calibration "$file" --json
json quality_differs 'len({a["kld"]["mean"] for a in o["arms"] if not a["libllama"]}) == 2'

succeeds by_books "${use[@]}" --kv vecinfer:sub=4,bits=4/vecinfer:sub=4,bits=4 --calibration "$file"
json by_books_full 'o["bytes"]["full"] > 0' # of the whole context, which needs what the file says

# Shown: where it comes from, each layer, which heads; and as pictures.
succeeds inspect inspect "$file"
holds inspect_says grep -Eq "calibration of a llama model with 4 layers" "$work/out"
holds inspect_heads grep -Eq "^heads whose keys are better not ranked by it" "$work/out"
succeeds inspect_json inspect "$file" --json
json inspect_layers 'len(layers) == 4 and all(set(h["rank"]) == {"q", "knorm", "recency", "k"} and -1 <= h["rank"]["q"] <= 1 and
    0 <= h["one_sided"] <= 1 for l in layers for h in l["heads"]) and layers[0]["codebooks"] == ["k4x4", "v4x4"]'
if command -v gnuplot >/dev/null; then
    succeeds inspect_plot inspect "$file" --plot "$work/pictures"
    holds inspect_pictures test -s "$work/pictures/ranks.svg" -a -s "$work/pictures/channels-3.png"
fi
# Ranks that nothing is known of are not there, and no finding: of a chunk that is too short, of attention sinks, of ALiBi.
unranked() { # NAME REASON MODEL ARGS...
    succeeds "unranked_$1" calibrate -t 1 -m "$3" -f "$text" -o "$work/unranked.gguf" "${@:4}"
    holds "unranked_$1_says" grep -q "how well keys are ranked is not known: .*$2" "$work/out"
    holds "unranked_$1_absent" test "$(grep -ac "rank\.q" "$work/unranked.gguf")" -eq 0
    succeeds "unranked_$1_inspect" inspect "$work/unranked.gguf"
    holds "unranked_$1_not_known" grep -q "how keys are ranked is not known" "$work/out"
    holds "unranked_$1_no_finding" test "$(grep -c "better not ranked" "$work/out")" -eq 0
    kv inspect "$work/unranked.gguf" --json
    json "unranked_$1_json" 'all(h["ranks_badly"] is None and set(h["rank"].values()) == {None} and h["one_sided"] > 0
        for l in layers for h in l["heads"]) and sum(len(l["heads"]) for l in layers) > 0'
}
gen gpt-oss "$work/sinks.gguf" f32 && gen mpt "$work/alibi.gguf" f32
unranked short "too short" "$model" -c 64 --chunks 2
unranked sinks "attention sinks" "$work/sinks.gguf" -c 256 --chunks 1
unranked alibi "ALiBi" "$work/alibi.gguf" -c 256 --chunks 1
if command -v gnuplot >/dev/null; then
    for what in "largest of the keys, head 0" "lambda of the keys, head 0" "spread of the keys, head 0"; do
        holds "inspect_draws_${what%% *}" grep -q "$what" "$work/pictures/channels-3.svg"
    done
    gen llama-wide "$work/heads.gguf" f32
    succeeds many_heads calibrate -t 1 -m "$work/heads.gguf" -f "$text" -o "$work/heads_c.gguf" -c 128 --chunks 1
    succeeds many_heads_plot inspect "$work/heads_c.gguf" --plot "$work/heads"
    holds many_heads_named grep -q "heads 0 to 3 of 8" "$work/heads/channels-0.svg"
fi
refuses plot_of_model 1 "pictures are drawn of calibrations" inspect "$model" --plot "$work/pictures"

# Ctrl-C: nothing is written, and no script goes on as if there were.
for _ in {1..4}; do ferries; done >"$work/long"
interrupt ctrl_c "[0-9] tokens" 2 calibrate -t 1 -m "$model" -f "$work/long" -o "$work/none.gguf" -c 256 --chunks 60
holds ctrl_c_says grep -q "interrupted: nothing was written" "$work/err"
holds ctrl_c_nothing test ! -e "$work/none.gguf" -a ! -s "$work/out"

# Refused: files of other models, damaged, or no calibration at all.
refuses other_model 2 "is of a llama model, and this one is gemma3" "${use[@]/$model/$other}" --calibration "$file"
refuses other_weights 2 "is of other weights: hash [0-9a-f]{16}, and '.*' has [0-9a-f]{16}" "${use[@]/$model/$wide}" --calibration "$file"
head -c 3000 "$file" >"$work/cut.gguf"
refuses cut 3 "damaged or cut short" "${use[@]}" --calibration "$work/cut.gguf"
refuses a_model 3 "is no calibration of kvfold" "${use[@]}" --calibration "$model"
refuses a_text 3 "does not begin with the letters GGUF" "${use[@]}" --calibration "$text"
refuses missing 2 "No such file" "${use[@]}" --calibration "$work/nothing.gguf"
finish
