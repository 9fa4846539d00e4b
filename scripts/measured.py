#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes src/codec/measured.def from saved results of `kvfold quality`: scripts/measured.py docs/measured/*.json > src/codec/measured.def

Each file is one run with all presets among its arms. Afterwards build, and let tests/cli/test_measured.sh compare `kvfold list --json`
with the files. The commands that made the files are in the file that is written.
"""
import json
import os
import sys


def load(path):
    with open(path, encoding="utf-8") as f:
        result = json.load(f)
    if result["kind"] != "quality" or result["interrupted"]:
        sys.exit("measured: %s is no finished result of kvfold quality" % path)
    return result


def rows(result):
    """(preset, model, context, positions, mean, error) of arms that are the name of a preset, in their order."""
    model = os.path.basename(result["model"]["file"]).removesuffix(".gguf")
    for arm in result["arms"]:
        if arm["libllama"] or "/" in arm["name"] or "," in arm["name"]:
            continue
        if not arm["complete"]:
            sys.exit("measured: %s of %s is not complete" % (arm["name"], model))
        yield arm["name"], model, result["context"], arm["positions"], arm["kld"]["mean"], arm["kld"]["error"]


results = [load(path) for path in sys.argv[1:]]
if not results:
    sys.exit(__doc__)
table = [row for result in results for row in rows(result)]
order = list(dict.fromkeys(row[0] for row in table))
table.sort(key=lambda row: order.index(row[0]))
print("/* SPDX-License-Identifier: MIT")
print(" * What `kvfold quality` measured of the presets, each preset's rows together. Written by scripts/measured.py; do not edit.")
print(" * KVFI_MEASURED(preset, model, context, positions, mean KL divergence, its standard error)")
for result in results:
    words = result["command"].split()
    line = " *  "
    for word in words:
        if len(line) + len(word) > 126:
            print(line)
            line = " *     "
        line += " " + word
    print(line)
print(" */")
for preset, model, context, positions, mean, error in table:
    print('KVFI_MEASURED("%s", "%s", %d, %d, %r, %r)' % (preset, model, context, positions, mean, error))
