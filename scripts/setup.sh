#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# setup.sh [demo|all|hosts]: brings what a build needs, and does nothing when it is there already.
#   demo    tools, libllama, the first model
#   all     also both models, the text, and the cross compiler with its emulator (the default)
#   hosts   also the second libllama, in build/deps-next
# KVFOLD_LLAMA_DIR=PREFIX names an installed libllama; KVFOLD_LLAMA=OFF leaves libllama and models out.
# Exit codes: 0 done, 1 wrong use, 2 cannot be done (one sentence says why).
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build
want=${1:-all}
llama=${KVFOLD_LLAMA:-ON}
llama_dir=${KVFOLD_LLAMA_DIR:-}
jobs=${JOBS:-$(nproc)}

say() { echo "setup: $*" >&2; }
cannot() {
    say "$*"
    exit 2
}

# ---- tools --------------------------------------------------------------------------------------------------------------------

has() { command -v "$1" >/dev/null; }
has_header() { echo "#include <$1>" | cc -E -x c - >/dev/null 2>&1; }

# Prints the Debian packages of what is missing.
missing_packages() {
    has cc && has c++ && has make || echo build-essential
    has cmake || echo cmake
    has pkg-config || echo pkg-config
    has_header cmocka.h || echo libcmocka-dev
    has python3 && python3 -m pip --version >/dev/null 2>&1 || echo python3-pip
    if [ "$llama" = ON ]; then
        has_header jansson.h || echo libjansson-dev
        has_header xxhash.h || echo libxxhash-dev # header only: checksums of calibration files
        [ "$want" = demo ] || has gnuplot || echo gnuplot-nox # draws for kvfold report
    fi
    if [ "$want" != demo ] && [ "$(uname -m)" != aarch64 ]; then
        has aarch64-linux-gnu-gcc || echo gcc-aarch64-linux-gnu
        [ -e /usr/aarch64-linux-gnu/include/stdio.h ] || echo libc6-dev-arm64-cross
        has qemu-aarch64 || echo qemu-user
    fi
}

install_tools() {
    local packages as=""
    packages=$(missing_packages | tr '\n' ' ')
    [ -n "$packages" ] || return 0
    has apt-get || cannot "missing here: the counterparts of these Debian packages: $packages"
    if [ "$(id -u)" != 0 ]; then
        as="sudo -n"
        $as true 2>/dev/null || cannot "some packages are missing; please run this and start again:
sudo apt-get update && sudo apt-get install -y --no-install-recommends $packages"
    fi
    say "installing $packages"
    # shellcheck disable=SC2086
    { $as apt-get update -q && $as env DEBIAN_FRONTEND=noninteractive \
        apt-get install -q -y --no-install-recommends $packages; } >&2 </dev/null ||
        cannot "apt-get could not install: $packages"
    packages=$(missing_packages | tr '\n' ' ')
    [ -z "$packages" ] || cannot "installed, but still not usable: $packages"
}

# ---- libllama -----------------------------------------------------------------------------------------------------------------

# Looks for an installed libllama as the build will. Prints where it is, or why there is none.
find_llama() {
    local probe=$build/find-llama status=0
    rm -rf "$probe"
    mkdir -p "$probe"
    cmake -S "$root/scripts/find-llama" -B "$probe" -DKVFOLD_LLAMA_DIR="$llama_dir" >"$probe/log" 2>&1 || status=1
    cat "$probe/answer" 2>/dev/null || tail -n 3 "$probe/log"
    rm -rf "$probe"
    return $status
}

# The processor's matrix unit (AMX) crashes on some virtual machines inside ggml, so its path is not compiled.
no_amx() {
    local flag
    for flag in -mno-amx-tile -mno-amx-int8 -mno-amx-bf16; do
        if [ "$(uname -m)" = x86_64 ] && cc "$flag" -E -x c /dev/null >/dev/null 2>&1; then
            printf '%s ' "$flag"
        fi
    done
}

llama_failed() {
    ! grep -qi 'no space left' "$1" || cannot "no space left to build libllama below $build: free some and run set-up again"
    tail -n 15 "$1" >&2
    cannot "libllama did not build; the whole log is $1"
}

# build_llama TARGET: builds a source release of pins.txt into build/TARGET. The stamp, its line of pins.txt, is written last.
build_llama() {
    local to=$build/$1 source=$build/$1-source work=$build/$1-build log=$build/$1.log pin flags
    pin=$(grep "^$1 " "$root/scripts/pins.txt")
    [ "$(cat "$to/pin" 2>/dev/null)" != "$pin" ] || return 0
    python3 "$root/scripts/fetch.py" "$1" || exit $?
    say "building libllama in build/$1: 5 to 20 minutes without a word; tail -f $log shows how far it is"
    flags=$(no_amx)
    rm -rf "$to" "$work"
    { cmake -S "$source" -B "$work" -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$to" -DCMAKE_INSTALL_LIBDIR=lib \
        "-DCMAKE_INSTALL_RPATH=\$ORIGIN" -DCMAKE_C_FLAGS="$flags" -DCMAKE_CXX_FLAGS="$flags" \
        -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
        -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_SERVER=OFF &&
        cmake --build "$work" -j "$jobs" && cmake --install "$work"; } >"$log" 2>&1 ||
        llama_failed "$log"
    if nm -D "$to"/lib/libggml-cpu.so | grep -q ggml_backend_amx; then
        cannot "libllama was built with AMX in spite of '$flags'"
    fi
    echo "$pin" >"$to/pin"
    rm -rf "$source" "$work"
}

provide_llama() {
    local answer
    if [ -z "$llama_dir" ] && [ -e "$build/deps/pin" ]; then
        build_llama deps
    elif answer=$(find_llama); then
        say "using libllama: $answer"
    elif [ -n "$llama_dir" ]; then
        cannot "$answer"
    else
        say "$answer"
        build_llama deps
    fi
}

# ---- all of it ----------------------------------------------------------------------------------------------------------------

case $want in
    demo) targets="models/smollm2-135m-instruct-q4_1.gguf" ;;
    all | hosts) targets="models/smollm2-135m-instruct-q4_1.gguf models/gemma-3-270m-q4_k_m.gguf text/jargon.txt" ;;
    *)
        say "usage: setup.sh [demo|all|hosts]"
        exit 1
        ;;
esac
[ "$llama" = ON ] || targets=""
if [ "$want" != demo ] && [ "$(uname -m)" != aarch64 ]; then
    targets="$targets deps-aarch64"
fi

mkdir -p "$build"
install_tools
if [ "$llama" = ON ]; then
    provide_llama
    [ "$want" != hosts ] || build_llama deps-next
fi
# shellcheck disable=SC2086
python3 "$root/scripts/fetch.py" $targets
