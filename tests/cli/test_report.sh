#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# kvfold report: one page that needs no other file, pictures in both forms, Markdown, and what is refused.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

kv bench attend -t 1 --samples 9 --pool 1 --shape 2/1x32 --context 70,140 --kv f16/f16,uni4/uni4 --save "$work/attend.json"
kv bench ops --samples 9 --pool 1 --head-dim 32 --codec none --save "$work/ops.json"
refuses report_which 1 "which results" report
refuses report_missing 2 "nosuch" report "$work/nosuch.json"
echo '[]' >"$work/list.json"
refuses report_no_result 3 "list.json" report "$work/list.json"
refuses report_folder 2 "cannot make the folder" report "$work/ops.json" -o "$work/no/folder"

# Without gnuplot: the tables, a sentence, and exit code 2.
mkdir "$work/empty"
PATH="$work/empty" kv report "$work/attend.json" -o "$work/bare"
holds report_without_gnuplot test "$rc" -eq 2
holds report_without_gnuplot_said grep -q "gnuplot cannot be started.*gnuplot-nox" "$work/err"
holds report_without_gnuplot_tables grep -q "llama-f16-flash" "$work/bare/report.html"

if command -v gnuplot >/dev/null; then
    succeeds report_made report "$work/attend.json" "$work/ops.json" -o "$work/report" --markdown "$work/tables.md"
    holds report_page python3 -c '
import re, sys
from html.parser import HTMLParser
page = open(sys.argv[1]).read()
tags = []
class Parser(HTMLParser):
    def handle_starttag(self, tag, attributes):
        tags.append((tag, dict(attributes)))
Parser().feed(page)
images = [a["src"] for t, a in tags if t == "img"]
assert len(images) == 1 and all(i.startswith("data:image/svg+xml,%3C") for i in images), len(images)
assert not [a for t, a in tags if t in ("link", "script")]
assert sum(t == "table" for t, a in tags) == 3
' "$work/report/report.html"
    holds report_svg python3 -c '
import sys, xml.etree.ElementTree as tree
text = "".join(tree.parse(sys.argv[1]).getroot().itertext())
assert all(word in text for word in ("uni4/uni4", "llama-q4_0-flash", "tokens of history", "microseconds")), text' "$work/report/attend-1.svg"
    holds report_png python3 -c '
import struct, sys
head = open(sys.argv[1], "rb").read(24)
assert head[:8] == b"\x89PNG\r\n\x1a\n" and struct.unpack(">II", head[16:]) == (960, 560), head' "$work/report/attend-1.png"
    holds report_markdown grep -q '^| uni4/uni4 ' "$work/tables.md"
    holds report_markdown_command grep -q '^`kvfold bench ops --samples 9' "$work/tables.md"
else
    skip report_pictures
fi

finish
