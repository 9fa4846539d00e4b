#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# measurements.sh: measures what docs/MEASUREMENTS.md shows, on this machine, and writes it. Each result is one command and one file
# in build/results: what is there already is not measured again, so an interrupted run goes on where it was, and deleting a file
# repeats it. Takes hours; leave the machine alone meanwhile.
#
#   MEASURE="quality-smollm2 ops"   only results whose names begin with these words
#   MEASURE_SHORT=1                 quality on 256 tokens, few arms and quantised weights, into build/results-short: are all commands right?
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
PATH="$root/build/bin:$PATH" # so that commands are saved as they would be typed
short=${MEASURE_SHORT:-}
results=build/results${short:+-short}
smollm2=build/models/smollm2-135m-instruct-q4_1.gguf
gemma=build/models/gemma-3-270m-q4_k_m.gguf
smollm2_f32=${smollm2/q4_1/f32}
gemma_f32=${gemma/q4_k_m/f32}
wide=$results/llama-wide.gguf # generated: 32 query and 8 KV heads of size 128, random weights
text=build/text/jargon.txt
arms=scripts/arms.txt
mkdir -p "$results"

# wanted NAME: is it asked for, and not there yet?
wanted() {
    local word
    [ ! -e "$results/$1.json" ] || return 1
    [ -n "${MEASURE:-}" ] || return 0
    for word in $MEASURE; do
        case $1 in "$word" | "$word"-*) return 0 ;; esac
    done
    return 1
}

# learn FILE: the calibration $results/MODEL-filters.gguf or MODEL-books.gguf, once, from a part of the book that nothing is judged by.
# Filters need directions of queries alone; codebooks take far longer to learn.
learn() {
    local name more=()
    [ ! -e "$1" ] || return 0
    name=$(basename "$1")
    case $name in *-books.gguf) more=(--codebooks 4x8,8x8,8x10,8x12,k4x8h) ;; esac
    name=${name%%-*}_f32
    kvfold calibrate -m "${!name}" -f "$text" --slice 1000000:65536 --chunks 3 ${more[@]+"${more[@]}"} -o "$1"
}

# measure NAME ARGS...: runs kvfold with --save, once. An arm that cannot be had is in the result, and no reason to stop.
measure() {
    local file="$results/$1.json" word
    wanted "$1" || return 0
    for word in "${@:2}"; do
        case $word in "$results"/*-filters.gguf | "$results"/*-books.gguf) learn "$word" ;; esac
    done
    echo "measurements: $1" >&2
    kvfold "${@:2}" --save "$file" >/dev/null || [ -e "$file" ]
    if grep -Eq '"wrong": "[^"]' "$file"; then # nothing of it may be published
        mv "$file" "$file.wrong"
        echo "measurements: WRONG; see $file.wrong" >&2
        exit 3
    fi
    if grep -q '"interrupted": true' "$file"; then
        mv "$file" "$file.interrupted"
        echo "measurements: interrupted; what there is of $1 is in $file.interrupted" >&2
        exit 130
    fi
}

# quality NAME MODEL CONTEXT ARGS...
quality() {
    local context=$3 less=()
    if [ -n "$short" ]; then
        less=(--score 32 -t 1)
        case " $* " in
        *" --generate "*) ;;              # planted facts need their room,
        *,evict=*) context=$short_evict ;; # and policies a budget that binds
        *) context=256 ;;
        esac
    fi
    measure "quality-$1" quality -m "$2" -c "$context" "${@:4}" ${less[@]+"${less[@]}"}
}

# A file that a command writes, once.
once() { # FILE COMMAND...
    [ -e "$1" ] || { "${@:2}" >"$1.new" && mv "$1.new" "$1"; }
}

book() { # FIRST BYTES
    head -c $(($1 + $2)) "$text" | tail -c "$2"
}

# The text with something else in front: what codecs learn from the first tokens is then learnt from the wrong ones.
in_front() { # COMMAND...
    "$@" && book 300000 16384
}

# Facts, a stretch of the book, and the same facts again in another order: who dropped the first ones cannot know the second.
facts() { # STRIDE
    local i
    for i in $(seq 0 60); do echo "Locker $((i * $1 % 61 + 100)) opens with the code $(((i * $1 % 61 + 1) * 7919 % 9000 + 1000))."; done
}
facts_text() { # BYTES of the book between
    facts 23
    book 300000 "$1"
    facts 37 && facts 44
}

policies="window random knorm qfilters h2o snapkv" parts="2 4 8" short_evict=512
few=llama-q8_0,llama-q4_0,f16/f16,kivi4/kivi4,uni4/uni4,turbo4/turbo4,turbo4/turbo3,turbo3/turbo2
if [ -n "$short" ]; then
    arms=$results/arms.txt
    few=llama-q4_0,uni4/uni4
    policies="window qfilters snapkv" parts=4
    grep -E '^(llama-q4_0|uni4/)' scripts/arms.txt >"$arms"
    smollm2_f32=$smollm2
    gemma_f32=$gemma
fi
[ -e "$smollm2_f32" ] || kvfold widen -m "$smollm2" -o "$smollm2_f32"
[ -e "$gemma_f32" ] || kvfold widen -m "$gemma" -o "$gemma_f32"
once "$results/program-first.txt" in_front head -c 400 tests/text/program.txt
once "$results/numbers-first.txt" in_front seq -s ' ' 10007 37 12300

# All arms, two places of the book. The large vocabulary of Gemma costs more than its attention: fewer positions.
place=(a 300000:16384 b 800000:16384)
for i in 0 2; do
    slice=(-f "$text" --slice "${place[i + 1]}")
    quality "smollm2-${place[i]}" "$smollm2_f32" 2048 "${slice[@]}" --arms "$arms" --kv qjl:m=64/kivi4,qjl:m=128/kivi4,qjl:m=256/kivi4,qjl:m=128,outliers=4/kivi4
    quality "gemma-${place[i]}" "$gemma_f32" 1024 --score 255 "${slice[@]}" --arms "$arms" --kv qjl:m=256/kivi4,qjl:m=512/kivi4,qjl:m=1024/kivi4
done

slice=(-f "$text" --slice "${place[1]}") slice_b=(-f "$text" --slice "${place[3]}")
seeds=
for codecs in uni4/uni4 turbo4/turbo4 turbo3/turbo2 tcq4/tcq4 tcq3/tcq3 tcq3/tcq2; do
    for seed in 1 2 3; do seeds+=${seeds:+,}${codecs/\//:seed=$seed/}:seed=$seed; done
done
quality smollm2-seeds "$smollm2_f32" 2048 "${slice[@]}" --kv "$seeds"
quality smollm2-seeds-b "$smollm2_f32" 2048 "${slice_b[@]}" --kv "$seeds"
quality gemma-seeds "$gemma_f32" 1024 --score 255 "${slice[@]}" --kv "$seeds"
quality gemma-seeds-b "$gemma_f32" 1024 --score 255 "${slice_b[@]}" --kv "$seeds"
quality smollm2-sealed "$smollm2_f32" 2048 "${slice[@]}" --seal-each --sink 0 --kv "$few,q8_0/q8_0,q4_0/q4_0"
quality gemma-sealed "$gemma_f32" 1024 --score 255 "${slice[@]}" --seal-each --sink 0 --kv "$few,q8_0/q8_0,q4_0/q4_0"
quality smollm2-8192 "$smollm2_f32" 8192 -f "$text" --slice 300000:49152 --score 1023 --kv "$few"
quality smollm2-quantised "$smollm2" 2048 "${slice[@]}" --kv "$few" # how much of a small loss the weights hide
quality smollm2-written "$smollm2_f32" 1024 "${slice[@]}" --score 64 --generate --kv "$few"
for name in program numbers; do
    quality "smollm2-$name-first" "$smollm2_f32" 2048 -f "$results/$name-first.txt" --kv "uni4/uni4,turbo4/turbo4,tcq4/tcq4"
    quality "gemma-$name-first" "$gemma_f32" 1024 --score 255 -f "$results/$name-first.txt" --kv "uni4/uni4,turbo4/turbo4,tcq4/tcq4"
done
products=vecinfer2/f16,vecinfer2:per=head/f16,vecinfer2/vecinfer2,vecinfer1.5/vecinfer1.5,vecinfer1.25/vecinfer1.25,vecinfer1/vecinfer1
quality vecinfer-smollm2 "$smollm2_f32" 2048 "${slice[@]}" --calibration "$results/smollm2-books.gguf" --kv "$products"
quality vecinfer-gemma "$gemma_f32" 1024 --score 255 "${slice[@]}" --calibration "$results/gemma-books.gguf" --kv "$products"
# Policies at a half, a quarter and an eighth of the tokens, beside none (f16/f16) and coding alone in the same bytes, and with codecs;
# judged where the last budget binds.
evicting() { # CONTEXT
    local context=${short:+$short_evict} part policy arms=f16/f16,uni8/uni8,tcq4/tcq4,tcq2/tcq2
    context=${context:-$1}
    for part in $parts; do
        for policy in $policies; do arms+=",f16/f16,evict=$policy:budget=$((context / part))"; done
    done
    for policy in window h2o snapkv; do
        arms+=",tcq4/tcq4,evict=$policy:budget=$((context / 2)),turbo4/turbo4,evict=$policy:budget=$((context / 4))"
    done
    echo "$arms"
}
# Of the facts, the last positions that fill the context lie in the lines that come a second time: from 3,144 on with the tokens of SmolLM2,
# from 3,400 on with those of Gemma.
once "$results/facts.txt" facts_text 8000
for model in smollm2 gemma; do
    name=${model}_f32 learnt=(--calibration "$results/$model-filters.gguf") less=() last=800
    [ "$model" = smollm2 ] || { less=(--score 511) && last=511; }
    quality "evict-$model" "${!name}" 4096 ${less[@]+"${less[@]}"} "${slice[@]}" "${learnt[@]}" --kv "$(evicting 4096)"
    quality "evict-$model-facts" "${!name}" 4096 -f "$results/facts.txt" --score "$last" "${learnt[@]}" --kv "$(evicting 4096)"
done
needles=f16/f16,uni4/uni4
for policy in $policies; do needles+=",f16/f16,evict=$policy:budget=256"; done
for model in smollm2 gemma; do
    name=${model}_f32
    measure "needle-$model" needle -m "${!name}" -c 512,1024 --calibration "$results/$model-filters.gguf" --kv "$needles"
done
# Bits that layers need: sensitivities are measured once, and serve all targets.
tune() { # MODEL FILE
    local bits known=() less=()
    [ -z "$short" ] || less=(-c 256 --score 32 -t 1)
    for bits in 4 3 2; do
        [ "$bits" = 4 ] || [ ! -e "$results/tune-$1-4.json" ] || known=(--measured "$results/tune-$1-4.json")
        measure "tune-$1-$bits" tune -m "$2" "${slice[@]}" --bits "$bits" ${known[@]+"${known[@]}"} ${less[@]+"${less[@]}"}
    done
}
tune smollm2 "$smollm2_f32"
tune gemma "$gemma_f32"
written=(-f tests/text/german.txt -f tests/text/chinese.txt -f tests/text/program.txt)
quality smollm2-texts "$smollm2_f32" 2048 "${written[@]}" --kv "$few"
quality gemma-texts "$gemma_f32" 1024 --score 255 "${written[@]}" --kv "$few"

if [ -z "$short" ]; then
    measure ops bench ops
    measure attend-32-8x128 bench attend --shape 32/8x128 --context 4096,16384 -t 1,2
    # 3 bits beside 4, and whole families, where threads share the memory
    measure attend-bits bench attend -t 2 --context 8192,16384 --kv uni4/uni4,uni3/uni3,turbo4/turbo4,turbo3/turbo3,kivi4/kivi4,uni8/uni8,uni2/uni2,f16/f16 --samples 15 --pool 96
    measure attend-models bench attend --shape 9/3x64,4/1x256 --context 1024,8192 -t 2
    measure attend-shapes bench attend --shape 9/3x64,8/8x80,28/4x96,16/2x256 --context 8192 -t 2 --pool 96 --samples 9 --kv uni4/uni4,turbo4/turbo4,kivi4/kivi4,uni8/uni8
    measure attend-short bench attend --context 256,1024 -t 2 --pool 64 --samples 9 --kv uni4/uni4,turbo4/turbo4,kivi4/kivi4,uni8/uni8,f16/f16
    measure attend-prefill bench attend --shape 8/2x128 --context 8704 --queries 512 -t 2 --pool 8 --samples 9 --kv uni4/uni4,turbo4/turbo4,kivi4/kivi4,q8_0/q8_0,f16/f16,tcq4/tcq4
    measure e2e-smollm2 bench e2e -m "$smollm2" -f "$text" -d 512,2048,8000 --processes 5
    measure e2e-gemma bench e2e -m "$gemma" -f "$text" -d 512,2048 --processes 5
    if wanted e2e-generated && [ ! -e "$wide" ]; then gen-model llama-wide "$wide" q8_0 >/dev/null; fi
    measure e2e-generated bench e2e -m "$wide" -d 512,2048
fi

shopt -s nullglob
found=("$results"/quality-*.json "$results"/needle-*.json "$results"/tune-*.json "$results"/e2e-*.json "$results"/attend-*.json "$results"/ops*.json)
[ ${#found[@]} -gt 0 ] || { echo "measurements: nothing was measured" >&2 && exit 2; }
if [ -n "$short" ]; then
    kvfold report "${found[@]}" -o "$results/report" --markdown "$results/MEASUREMENTS.md"
else
    # The page has everything; the document leaves out depths and the worst positions, which quote the text.
    kvfold report "${found[@]}" -o build/report --markdown "$results/MEASUREMENTS.md"
    awk '/^#### / { skip = 1 } /^`kvfold|^##? |^### / { skip = 0 } !skip' "$results/MEASUREMENTS.md" >docs/MEASUREMENTS.md
fi
