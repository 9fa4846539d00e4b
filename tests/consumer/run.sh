#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Installs the build, moves what was installed, and builds consumers against it with CMake and with pkg-config.
# Needs: KVFOLD_BUILD (a build folder). Optional: CC, CMAKE.
set -uo pipefail
: "${CC:=cc}" "${CMAKE:=cmake}"
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# step NAME COMMAND...
step() {
    local name=$1
    shift
    if "$@" >"$work/log" 2>&1; then
        echo "ok $name"
    else
        echo "not ok $name"
        tail -n 20 "$work/log"
        failed=1
        return 1
    fi
}

step install "$CMAKE" --install "$KVFOLD_BUILD" --prefix "$work/first" || exit 1
mv "$work/first" "$work/moved"
prefix=$work/moved
libdir=$(dirname "$(find "$prefix" -name libkvfold.a)")
with_llama=OFF
[ ! -e "$prefix/include/kvfold_llama.h" ] || with_llama=ON

# The libllama of the build. Upstream's has no search path of its own.
cache() { sed -n "s/^$1:[A-Z]*=//p" "$KVFOLD_BUILD/CMakeCache.txt"; }
llama=$(cache KVFOLD_LLAMA_DIR)
if [ -z "$llama" ] && [ -e "$libdir/kvfold" ]; then
    llama=$(cache CMAKE_HOME_DIRECTORY)/build/deps
fi
export LD_LIBRARY_PATH=$libdir${llama:+:$llama/lib}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export PKG_CONFIG_PATH=$libdir/pkgconfig${llama:+:$llama/lib/pkgconfig}${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}

# No file that was installed may remember where it was built or first installed.
step "no absolute paths" sh -c "! grep -rIl -e '$work/first' -e '$KVFOLD_BUILD' '$prefix/include' '$libdir/cmake' '$libdir/pkgconfig'"

step "cmake: configure" "$CMAKE" -S "$here" -B "$work/build" -DCMAKE_PREFIX_PATH="$prefix" -DKVFOLD_LLAMA_DIR="$llama" \
    -DWITH_LLAMA=$with_llama -DCMAKE_C_COMPILER="$CC" &&
    step "cmake: build" "$CMAKE" --build "$work/build" && {
    programs="shared static plusplus"
    [ $with_llama = OFF ] || programs="$programs llama_shared llama_static"
    for program in $programs; do
        step "cmake: $program" "$work/build/$program"
    done
}

# built NAME SOURCE PACKAGE...: with nothing but what pkg-config says
built() {
    local name=$1 source=$2
    shift 2
    # shellcheck disable=SC2046
    step "pkg-config: build $name" "$CC" "$here/$source" -o "$work/$name" $(pkg-config --cflags --libs "$@") &&
        step "pkg-config: $name" "$work/$name"
}
built library main.c kvfold
[ $with_llama = OFF ] || built adapter llama.c kvfold-llama
step "pkg-config: version" test "$(pkg-config --modversion kvfold)" = "$(cache CMAKE_PROJECT_VERSION)"

if [ -e "$prefix/bin/kvfold" ]; then
    step "program runs where it was installed" env -u LD_LIBRARY_PATH "$prefix/bin/kvfold" --version
fi
exit $failed
