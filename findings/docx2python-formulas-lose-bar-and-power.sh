#!/usr/bin/env bash
# docx2python: a fraction loses its bar and a power its height: a/b reads ab, x squared reads x2.
#
# The text marks formulas as LaTeX, but holds only their letters in a row. So a share reads as a
# product, ten to the sixth as 106, and what says "latex" cannot be set again as the formula it was.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -qq --disable-pip-version-check docx2python==3.7.1 python-docx==1.2.0 || exit 2
cd "$dir"
"$dir/venv/bin/python" -I -W ignore - <<'PY'
import sys
from importlib.metadata import version

import docx
from docx.oxml import parse_xml
from docx2python import docx2python

SPACE = 'xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math"'


def text(said):
    return f"<m:r><m:t>{said}</m:t></m:r>"


formulas = {
    "a / b": f"<m:f><m:fPr/><m:num>{text('a')}</m:num><m:den>{text('b')}</m:den></m:f>",
    "10 to the power 6": f"<m:sSup><m:e>{text('10')}</m:e><m:sup>{text('6')}</m:sup></m:sSup>",
}
file = docx.Document()
for formula in formulas.values():
    file.add_paragraph("It is ")._p.append(parse_xml(f"<m:oMath {SPACE}>{formula}</m:oMath>"))
file.save("formulas.docx")

with docx2python("formulas.docx") as read:
    seen = read.text.split("\n\n")
print("docx2python", version("docx2python"))
for name, line in zip(formulas, seen, strict=True):
    print(f"{name:>18}: {line!r}")
same = seen == ["It is <latex>ab</latex>", "It is <latex>106</latex>"]
sys.exit(0 if same else "this version behaves otherwise")
PY
