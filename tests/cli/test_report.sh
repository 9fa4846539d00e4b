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
# Files with values where sentences belong, or times that are none.
damage() { python3 -c '
import json, sys
o = json.load(open(sys.argv[1]))
exec(sys.argv[3])
json.dump(o, open(sys.argv[2], "w"))' "$work/ops.json" "$work/damaged.json" "$1"; }
damage 'o["runs"][0]["notes"] = [1]'
refuses report_note_no_sentence 3 "damaged.json.*notes are sentences" report "$work/damaged.json"
refuses compare_note_no_sentence 3 "notes are sentences" bench compare "$work/damaged.json" "$work/ops.json"
damage 'o["refused"] = [1]'
refuses report_refused_no_sentence 3 "refused holds no sentences" report "$work/damaged.json"
damage 'o["runs"] = [1]'
refuses report_run_no_object 3 "a run that is none" report "$work/damaged.json"
damage 'o["rows"][0]["us"][3] = "x"'
refuses report_sample_no_number 3 "times above 0" report "$work/damaged.json"
damage 'o["rows"][0]["run"] = 9'
refuses report_row_of_no_run 3 "belongs to no run" report "$work/damaged.json"
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
    # A picture that cannot be written, and a row without numbers: the other pictures are there, and the exit code says so.
    rm "$work"/report/*
    mkdir "$work/report/attend-1.svg"
    python3 -c '
import json, sys
o = json.load(open(sys.argv[1]))
for row in list(o["rows"]):
    o["rows"].append({"name": "nothing", "run": row["run"]})
for run in list(o["runs"]):
    o["runs"].append(dict(run, head_dim=33))
    o["rows"].append(dict(o["rows"][0], run=len(o["runs"]) - 1))
json.dump(o, open(sys.argv[2], "w"))' "$work/attend.json" "$work/odd.json"
    kv report "$work/odd.json" -o "$work/report"
    holds report_one_failed test "$rc" -eq 2 -a "$(grep -c 'cannot draw' "$work/err")" -eq 1
    holds report_others_drawn grep -q "1 pictures" "$work/out"
    holds report_other_picture test -s "$work/report/attend-2.png"
    holds report_no_nan sh -c '! grep -q "nan" "$0"' "$work/report/attend-2.svg"
else
    skip report_pictures
fi

finish
