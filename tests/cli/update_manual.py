# SPDX-License-Identifier: MIT
"""Writes the --help texts of the program into docs/cli.md: update_manual.py PROGRAM MANUAL"""
import re
import subprocess
import sys


def block(match):
    text = subprocess.run([sys.argv[1], *match[1].split(), "--help"], check=True, capture_output=True, text=True).stdout
    return "<!-- help: %s -->\n```\n%s```\n<!-- end -->" % (match[1], text)


with open(sys.argv[2]) as f:
    manual = f.read()
manual = re.sub(r"<!-- help: ([\w ]+) -->\n.*?<!-- end -->", block, manual, flags=re.S)
with open(sys.argv[2], "w") as f:
    f.write(manual)
