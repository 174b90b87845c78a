#!/usr/bin/env bash
# markitdown: one fraction without optional properties makes every equation of a Word file vanish.
#
# The schema of Office formulas makes the properties of a fraction (m:fPr) optional. One fraction
# without them turns off the conversion for the whole file: equations elsewhere, which are read well
# in a file of their own, are gone without a warning, and the sentences around them stay.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -qq --disable-pip-version-check 'markitdown[docx]==0.1.9' python-docx==1.2.0 || exit 2
cd "$dir"
"$dir/venv/bin/python" -I -W ignore - <<'PY'
import io
import sys
from importlib.metadata import version

import docx
from docx.oxml import parse_xml
from markitdown import MarkItDown

SPACE = 'xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math"'
SQUARE = "<m:sSup><m:e><m:r><m:t>x</m:t></m:r></m:e><m:sup><m:r><m:t>2</m:t></m:r></m:sup></m:sSup>"
HALF = "<m:f>{}<m:num><m:r><m:t>a</m:t></m:r></m:num><m:den><m:r><m:t>b</m:t></m:r></m:den></m:f>"


def read(*formulas):
    file, data = docx.Document(), io.BytesIO()
    for formula in formulas:
        file.add_paragraph("It is ")._p.append(parse_xml(f"<m:oMath {SPACE}>{formula}</m:oMath>"))
    file.save(data)
    data.seek(0)
    return MarkItDown().convert_stream(data, file_extension=".docx").text_content


whole = read(SQUARE, HALF.format("<m:fPr/>"))
plain = read(SQUARE, HALF.format(""))
print("markitdown", version("markitdown"))
print("with the optional element:   ", repr(whole))
print("without it, in the fraction: ", repr(plain))
same = whole == "It is $x^{2}$\n\nIt is $\\frac{a}{b}$" and plain == "It is\n\nIt is"
sys.exit(0 if same else "this version behaves otherwise")
PY
