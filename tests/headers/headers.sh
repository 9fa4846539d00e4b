#!/bin/sh
# SPDX-License-Identifier: MIT
# Each public header compiles alone, twice, as C99, C11 and C++17, without a warning.
: "${CC:=cc}" "${CXX:=c++}" "${KVFOLD_SOURCE:=$(dirname "$0")/../..}"
failed=0

# compiles NAME COMPILER... : reads a source text
compiles() {
    name=$1
    shift
    if "$@" -Wall -Wextra -Wshadow -Wundef -pedantic -Werror -fsyntax-only -I"$KVFOLD_SOURCE/include" -; then
        echo "ok $name"
    else
        echo "not ok $name"
        failed=1
    fi
}

for path in "$KVFOLD_SOURCE"/include/*.h; do
    header=$(basename "$path")
    text="#include \"$header\"
#include \"$header\"
int kvf_nothing(void);
int kvf_nothing(void) { return 0; }"
    for standard in c99 c11; do
        echo "$text" | compiles "$header $standard" "$CC" -x c -std=$standard -Wstrict-prototypes -Wmissing-prototypes
    done
    echo "$text" | compiles "$header c++17" "$CXX" -x c++ -std=c++17
done
exit $failed
