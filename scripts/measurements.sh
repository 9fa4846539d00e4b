#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# measurements.sh: measures what docs/MEASUREMENTS.md shows, on this machine, and writes it. Results are kept in build/results:
# what is there already is not measured again, so an interrupted run goes on where it was, and deleting a file repeats it.
# MEASURE="ops attend e2e quality" names the parts. Takes an hour or two; leave the machine alone meanwhile.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
PATH="$root/build/bin:$PATH" # so that commands are saved as they would be typed
results=build/results
smollm2=build/models/smollm2-135m-instruct-q4_1.gguf
gemma=build/models/gemma-3-270m-q4_k_m.gguf
text=build/text/jargon.txt
parts=${MEASURE:-ops attend e2e quality}
mkdir -p "$results"
wide=$results/llama-wide.gguf # generated: 32 query and 8 KV heads of size 128, random weights

# measure PART NAME ARGS...: runs kvfold with --save, once.
measure() {
    local part=$1 file="$results/$2.json"
    case " $parts " in
    *" $part "*) ;;
    *) return 0 ;;
    esac
    [ ! -e "$file" ] || return 0
    echo "measurements: $2" >&2
    kvfold "${@:3}" --save "$file" >/dev/null
}

measure ops ops bench ops
measure attend attend-32-8x128 bench attend --shape 32/8x128 --context 4096,16384 -t 1,2
measure attend attend-models bench attend --shape 9/3x64,4/1x256 --context 1024,8192 -t 2
measure e2e e2e-smollm2 bench e2e -m "$smollm2" -f "$text" -d 512,2048,8000 --processes 5
measure e2e e2e-gemma bench e2e -m "$gemma" -f "$text" -d 512,2048 --processes 5
[ -e "$wide" ] || gen-model llama-wide "$wide" q8_0 >/dev/null
measure e2e e2e-generated bench e2e -m "$wide" -d 512,2048
if kvfold help quality >/dev/null 2>&1; then
    measure quality quality-smollm2 quality -m "${smollm2/q4_1/f32}" -f "$text" -c 2048
    measure quality quality-gemma quality -m "${gemma/q4_k_m/f32}" -f "$text" -c 2048
fi

found=("$results"/*.json)
[ -e "${found[0]}" ] || { echo "measurements: nothing was measured" >&2 && exit 2; }
kvfold report "${found[@]}" -o build/report --markdown docs/MEASUREMENTS.md
