#!/usr/bin/env bash
# markitdown: in a workbook the text NA reads as NaN, as an empty cell does, and whole numbers get .0.
#
# NA is the code of Namibia, of sodium in capitals, of North America. In the Markdown of a workbook it
# is NaN, and so is an empty cell, so nobody can tell a code from a value that nobody filled in. In a
# column with one empty cell, 3 days read 3.0.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -qq --disable-pip-version-check 'markitdown[xlsx]==0.1.9' openpyxl==3.1.5 || exit 2
cd "$dir"
"$dir/venv/bin/python" -I -W ignore - <<'PY'
import io
import sys
from importlib.metadata import version

from markitdown import MarkItDown
from openpyxl import Workbook, load_workbook

book, file = Workbook(), io.BytesIO()
for row in (["country", "code", "days"], ["Namibia", "NA", 3], ["Norway", "NO", None], ["Oman", None, 4]):
    book.active.append(row)
book.save(file)

file.seek(0)
held = [row for row in load_workbook(file).active.values][1:]
file.seek(0)
lines = MarkItDown().convert_stream(file, file_extension=".xlsx").text_content.strip().split("\n")[-3:]
print("markitdown", version("markitdown"))
for row, line in zip(held, lines, strict=True):
    print(f"{row!s:25} reads {line}")
same = lines == ["| Namibia | NaN | 3.0 |", "| Norway | NO | NaN |", "| Oman | NaN | 4.0 |"]
sys.exit(0 if same else "this version behaves otherwise")
PY
