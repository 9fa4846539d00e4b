#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# A longer stream than the tests have time for: 100,000 rows through caches with policies, which must not grow nor allocate.
#   scripts/stream.sh [BUILD [ROWS]]
set -eu
build=${1:-build}
KVFOLD_STREAM=${2:-100000} "$build/tests/unit/test_compaction"
