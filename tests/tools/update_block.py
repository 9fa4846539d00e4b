# SPDX-License-Identifier: MIT
"""Writes what a command prints into a document, between `<!-- NAME -->` and `<!-- end -->`: update_block.py FILE NAME COMMAND..."""
import subprocess
import sys

path, name, command = sys.argv[1], sys.argv[2], sys.argv[3:]
opening, closing = "<!-- %s -->\n" % name, "<!-- end -->"
with open(path, encoding="utf-8") as f:
    before, found, rest = f.read().partition(opening)
if not found or closing not in rest:
    sys.exit("update_block: %s has no %s ... %s" % (path, opening.strip(), closing))
text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
with open(path, "w", encoding="utf-8") as f:
    f.write(before + opening + text + rest[rest.index(closing):])
