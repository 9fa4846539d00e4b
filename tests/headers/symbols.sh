#!/bin/sh
# SPDX-License-Identifier: MIT
# symbols.sh LIBRARY_FOLDER: the shared libraries export the functions of the public headers, all of them and nothing else;
# whatever is global in the static ones carries our prefix too (kvfi_ between files, kvf_ to the outside).
: "${KVFOLD_SOURCE:=$(dirname "$0")/../..}"
library_folder=$1
failed=0

# holds NAME LIST: succeeds when the list is empty
holds() {
    if [ -z "$2" ]; then
        echo "ok $1"
    else
        echo "not ok $1: $(echo "$2" | tr '\n' ' ')"
        failed=1
    fi
}

# Names of the functions that a header declares.
declared() {
    cat "$@" | tr '\n' ' ' | tr ';' '\n' | sed -n 's/.*KVF_API[^(]*[ *]\(kvf_[a-z0-9_]*\) *(.*/\1/p' | sort -u
}
exported() { nm -D --defined-only "$1" | sed 's/.* //; s/@.*//' | grep -v '^__\(asan\|odr_asan\|ubsan\)' | sort -u; }
only_in_first() { printf '%s\n' "$1" | while read -r name; do printf '%s\n' "$2" | grep -qx -- "$name" || echo "$name"; done; }

# check LIBRARY HEADER...
check() {
    library=$library_folder/lib$1
    name=$1
    shift
    [ -e "$library.so" ] || return 0
    there=$(exported "$library.so")
    wanted=$(declared "$@")
    holds "lib$name.so exports the whole API" "$(only_in_first "$wanted" "$there")"
    holds "lib$name.so exports nothing else" "$(only_in_first "$there" "$wanted")"
    holds "lib$name.a has prefixed symbols only" "$(nm --defined-only --extern-only "$library.a" | sed -n 's/.* [A-Z] //p' |
        grep -v '^kvfi\{0,1\}_' | sort -u)"
}

include=$KVFOLD_SOURCE/include
check kvfold "$include/kvfold.h" "$include/kvfold_codec.h" "$include/kvfold_calibration.h"
check kvfold-llama "$include/kvfold_llama.h"
exit $failed
