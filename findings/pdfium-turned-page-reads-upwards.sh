#!/usr/bin/env bash
# pypdfium2: turning a page by 90 degrees makes its text come out from the last line to the first.
#
# /Rotate says how a viewer shows the page. The content stream stays as it was, so one expects the
# same text; pypdf gives it. With 90 pdfium puts the lines in reverse order. With 180 and 270, where
# one would look for trouble just as much, it does not.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -qq --disable-pip-version-check pypdfium2==5.15.2 pypdf==7.1.1 reportlab==5.1.0 || exit 2
"$dir/venv/bin/python" -I - <<'PY'
import io
import sys
from importlib.metadata import version

from pypdf import PdfReader, PdfWriter
from pypdfium2 import PdfDocument
from reportlab.pdfgen.canvas import Canvas

LINES = ["Open the valve.", "Wait for ten minutes.", "Close the valve."]
upright = io.BytesIO()
canvas = Canvas(upright, pagesize=(612, 792))
for i, line in enumerate(LINES):
    canvas.drawString(72, 700 - 20 * i, line)
canvas.save()

print("pypdfium2", version("pypdfium2"), "(and pypdf", version("pypdf") + ")")
print("expected at every angle:", LINES)
seen = {}
for angle in (0, 90, 180, 270):
    turned = io.BytesIO()
    writer = PdfWriter(clone_from=PdfReader(upright))
    writer.pages[0].rotate(angle)
    writer.write(turned)
    seen[angle] = PdfDocument(turned.getvalue())[0].get_textpage().get_text_range().splitlines()
    assert PdfReader(turned).pages[0].extract_text().splitlines() == LINES  # pypdf
    print(f"seen at {angle}:", seen[angle])
sys.exit(seen != {0: LINES, 90: LINES[::-1], 180: LINES, 270: LINES})
PY
