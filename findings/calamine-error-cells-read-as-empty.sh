#!/usr/bin/env bash
# python-calamine: a cell that holds an error reads exactly like an empty cell.
#
# A spreadsheet tells "nobody filled this in" from "this failed": the second is #N/A or #DIV/0!.
# openpyxl keeps the difference. In calamine's rows both are the empty string, so a reader of the
# values cannot know that a figure is missing because a formula failed.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -qq --disable-pip-version-check python-calamine==0.9.1 openpyxl==3.1.5 || exit 2
"$dir/venv/bin/python" -I - <<'PY'
import io
import sys
from importlib.metadata import version

from openpyxl import Workbook, load_workbook
from python_calamine import CalamineWorkbook

book = Workbook()
for row in (["city", "price"], ["Oslo", 12], ["Bergen", "#N/A"], ["Narvik", "#DIV/0!"], ["Alta", None]):
    book.active.append(row)  # openpyxl stores the two as cells of type error, as Excel does
assert [cell.data_type for cell in book.active["B"]] == ["s", "n", "e", "e", "n"]
file = io.BytesIO()
book.save(file)

file.seek(0)
expected = [row[1] for row in load_workbook(file, data_only=True).active.values][1:]
file.seek(0)
seen = [row[1] for row in CalamineWorkbook.from_filelike(file).get_sheet_by_index(0).to_python()][1:]

print("python-calamine", version("python-calamine"))
print("expected: errors differ from an empty cell, as in openpyxl:", expected)
print("seen:    ", seen)
sys.exit(seen != [12.0, "", "", ""])
PY
