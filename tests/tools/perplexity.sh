#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# perplexity.sh WORK [PREFIX]: builds llama.cpp's own llama-perplexity of the pinned release in the folder WORK, against the
# libllama in PREFIX (default: build/deps), so that both programs run the same kernels. tests/tools/agreement.sh compares them.
# Half an hour of one core and 400 MB; no part of any build or test. Run again, it goes on where it stopped.
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
work=${1:?usage: perplexity.sh WORK [PREFIX]}
prefix=${2:-$root/build/deps}
source=$work/build/deps-source

mkdir -p "$work/scripts" "$work/objects"
cp "$root/scripts/fetch.py" "$root/scripts/pins.txt" "$work/scripts/"
[ -d "$source" ] || python3 "$work/scripts/fetch.py" deps

cat >"$work/objects/build_info.cpp" <<'END'
#include "build-info.h"
int llama_build_number(void) { return 0; }
const char * llama_commit(void) { return "pinned"; }
const char * llama_compiler(void) { return "unknown"; }
const char * llama_build_target(void) { return "unknown"; }
const char * llama_build_info(void) { return "pinned"; }
void llama_print_build_info(const char *, FILE *) {}
END

# Only the arithmetic of perplexity.cpp is worth optimising; the rest reads options.
objects=()
for file in "$source"/tools/perplexity/*.cpp "$source"/common/*.cpp "$source"/common/parsers/*.cpp "$source"/common/jinja/*.cpp \
    "$source"/vendor/cpp-httplib/httplib.cpp "$work/objects/build_info.cpp"; do
    [ -e "$file" ] || continue
    object=$work/objects/$(basename "$(dirname "$file")")-$(basename "$file" .cpp).o
    objects+=("$object")
    [ ! -s "$object" ] || continue
    level=-O0
    case $file in */perplexity.cpp) level=-O2 ;; esac
    echo "compiling $(basename "$file")" >&2
    c++ -std=c++17 $level -w -c -o "$object.part" "$file" -I"$prefix/include" -I"$source/include" -I"$source/ggml/include" \
        -I"$source/common" -I"$source/vendor" -I"$source/src"
    mv "$object.part" "$object"
done
c++ -o "$work/llama-perplexity" "${objects[@]}" -L"$prefix/lib" -lllama -lggml -lggml-base -lpthread \
    -Wl,--disable-new-dtags,-rpath,"$prefix/lib"
echo "$work/llama-perplexity"
