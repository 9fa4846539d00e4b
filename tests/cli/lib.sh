# SPDX-License-Identifier: MIT
# shellcheck shell=bash disable=SC2034
# Shared by the scripts that run the whole program. They need KVFOLD_BIN, a folder with kvfold; KVFOLD_MODELS, a folder with
# GGUF models. Each check prints "ok NAME", "not ok NAME" or "skip NAME"; finish ends the script, non-zero when any failed.

set -u
kvfold="${KVFOLD_BIN:?folder with the program}/kvfold"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source_dir=$(cd "$here/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
passed=0

# The ordinary copy of a model: widened ones have f32 or bf16 in their names.
find_model() {
    local file
    for file in "${KVFOLD_MODELS:-/nonexistent}"/*"$1"*.gguf; do
        case $file in
        *f32* | *bf16* | *'*'*) ;;
        *) echo "$file" && return ;;
        esac
    done
}
smollm2=$(find_model smollm2)
gemma=$(find_model gemma)

# Text with enough tokens for small contexts, in which nothing repeats exactly.
ferries() {
    python3 - <<'END'
for i in range(120):
    print(f"On day {i} the ferry left the quay at {i % 12 + 1} o'clock, and {i * 7 % 40} people stood at the rail to watch the town go.")
END
}

# One thread: where other work runs beside the tests, two that wait for each other are slower than one.
quick=(-t 1 --temp 0)

ok() { # NAME
    echo "ok $1"
    passed=$((passed + 1))
}

not_ok() { # NAME [TEXT]
    echo "not ok $1"
    failed=$((failed + 1))
    [ $# -lt 2 ] || printf '    %s\n' "${@:2}"
    sed 's/^/    out: /' "$work/out" 2>/dev/null | head -20 | cut -c1-200
    sed 's/^/    err: /' "$work/err" 2>/dev/null | head -20 | cut -c1-200
}

skip() { echo "skip $1"; }

# Runs the program: exit code in $rc, streams in $work/out and $work/err. Input: $work/in when it exists.
kv() {
    local input=/dev/null
    [ ! -e "$work/in" ] || input="$work/in"
    "$kvfold" "$@" >"$work/out" 2>"$work/err" <"$input"
    rc=$?
}

# interrupt NAME PATTERN CODE ARGS...: sends SIGINT once stderr matches; the program ends with that exit code. Reads $input.
interrupt() {
    rm -f "$work/out" "$work/err" # else the pattern may be found in what the run before left
    "$kvfold" "${@:4}" >"$work/out" 2>"$work/err" <"${input:-/dev/null}" &
    local pid=$!
    while kill -0 $pid 2>/dev/null && ! grep -qs "$2" "$work/err"; do sleep 0.05; done
    kill -INT $pid
    wait $pid
    rc=$?
    holds "$1_exit_code" test "$rc" -eq "$3"
}

# refuses NAME CODE PATTERN ARGS...: exit code, exactly one line on stderr that matches, nothing on stdout.
refuses() {
    local name=$1 code=$2 pattern=$3
    kv "${@:4}"
    if [ "$rc" -ne "$code" ]; then
        not_ok "$name" "exit code $rc, expected $code"
    elif [ -s "$work/out" ]; then
        not_ok "$name" "stdout is not empty"
    elif [ "$(wc -l <"$work/err")" -ne 1 ]; then
        not_ok "$name" "stderr is not one line"
    elif ! grep -Eq -- "$pattern" "$work/err"; then
        not_ok "$name" "stderr does not match: $pattern"
    else
        ok "$name"
    fi
}

# succeeds NAME ARGS...: exit code 0.
succeeds() {
    kv "${@:2}"
    if [ "$rc" -eq 0 ]; then ok "$1"; else not_ok "$1" "exit code $rc"; fi
}

# holds NAME COMMAND...: the command succeeds.
holds() {
    if "${@:2}" >"$work/holds" 2>&1; then ok "$1"; else not_ok "$1" "$(cat "$work/holds")"; fi
}

# json NAME EXPRESSION: the expression holds of o, the one JSON object in $work/out.
json() {
    if python3 -c '
import json, re, sys
o = json.load(open(sys.argv[1]))
number = (int, float)
assert isinstance(o, dict)
layers = o.get("layers")
assert eval("(" + sys.argv[2] + ")"), sys.argv[2]' "$work/out" "$2" 2>"$work/python"; then
        ok "$1"
    else
        not_ok "$1" "$(tail -1 "$work/python")"
    fi
}

finish() {
    echo "$passed passed, $failed failed"
    exit $((failed > 0))
}
