#!/usr/bin/env bash
# python-docx: the text of a paragraph lacks tracked insertions and filled-in form fields.
#
# Word shows a tracked insertion and the value of a content control as part of the sentence. The
# documentation calls `paragraph.text` the textual content of the paragraph, so one expects both.
# They are skipped without a word, and what is left can still read as a whole sentence.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -qq --disable-pip-version-check python-docx==1.2.0 || exit 2
"$dir/venv/bin/python" -I - <<'PY'
import io
import sys
from importlib.metadata import version

from docx import Document
from docx.oxml import parse_xml
from docx.oxml.ns import nsdecls

W = nsdecls("w")
INSERTED = f"""<w:ins {W} w:id="1" w:author="Editor" w:date="2026-01-05T09:00:00Z">
<w:r><w:t xml:space="preserve">not </w:t></w:r></w:ins>"""
FIELD = f"<w:sdt {W}><w:sdtContent><w:r><w:t>30 June</w:t></w:r></w:sdtContent></w:sdt>"

document = Document()
paragraph = document.add_paragraph("The contract is ")
paragraph._p.append(parse_xml(INSERTED))
paragraph.add_run("renewed by itself after ")
paragraph._p.append(parse_xml(FIELD))
paragraph.add_run(".")
file = io.BytesIO()
document.save(file)
seen = Document(file).paragraphs[0].text

print("python-docx", version("python-docx"))
print("expected: The contract is not renewed by itself after 30 June.")
print("seen:    ", seen)
sys.exit(seen != "The contract is renewed by itself after .")
PY
