#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# lint.sh [--format]: the style of the whole tree, committed or not: formatting, blanks, compiler warnings as errors, and static
# analysis where cppcheck or clang-tidy is present. --format formats instead of complaining.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
bad=0

note() { echo "lint: $*"; }
complain() {
    note "$*"
    bad=1
}

mapfile -t sources < <(find include src host cli tests examples -name '*.[ch]' | sort)
mapfile -t texts < <(find . -path ./.git -prune -o -path './build*' -prune -o -name __pycache__ -prune -o -type f -print | sort)

if ! command -v clang-format >/dev/null; then
    note "no clang-format: formatting not checked"
elif [ "${1:-}" = --format ]; then
    clang-format -i "${sources[@]}"
else
    for file in "${sources[@]}"; do
        clang-format "$file" | cmp -s "$file" - || complain "$file: not formatted (scripts/lint.sh --format)"
    done
fi

grep -nIE '[[:blank:]]+$' "${texts[@]}" && complain "blanks at the end of lines"
grep -nIP '^ *\t' "${sources[@]}" && complain "tabs"
for file in "${sources[@]}" scripts/* tests/run tests/*/*.sh tests/*/*.py Makefile CMakeLists.txt; do
    [ -f "$file" ] && ! head -n 3 "$file" | grep -q 'SPDX-License-Identifier: MIT' && [ "$file" != scripts/pins.txt ] &&
        complain "$file: no SPDX line"
done

note "compiler warnings as errors"
mkdir -p build-lint
{ cmake --preset lint && cmake --build build-lint -j "$(nproc)"; } >build-lint/lint.log 2>&1 ||
    { grep -E 'error|warning' build-lint/lint.log; complain "the compiler warns (build-lint/lint.log)"; }

if command -v cppcheck >/dev/null; then
    note "cppcheck"
    # median_in_place is never called with no samples, which cppcheck cannot know.
    cppcheck --suppress=uninitvar:cli/measure.c --quiet --std=c11 --enable=warning,portability --inline-suppr \
        --error-exitcode=1 -j "$(nproc)" -I include -I src src host/llama cli || complain "cppcheck"
elif command -v clang-tidy >/dev/null; then
    note "clang-tidy"
    find src/cache src/codec src/ops host/llama cli -name '*.c' -print0 |
        xargs -0 clang-tidy --quiet -p build-lint --warnings-as-errors='*' || complain "clang-tidy"
else
    note "no static analysis: neither cppcheck nor clang-tidy is installed"
fi
[ $bad = 0 ] && note "clean"
exit $bad
