#!/usr/bin/env bash
# mistune: a row with fewer cells than the header undoes the whole table.
#
# Tables of GitHub's Markdown may have rows with fewer cells than the header: empty ones are added.
# markdown-it-py does that. With mistune one such row makes a paragraph of all the rows, so that no
# figure stands below its column any more.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -qq --disable-pip-version-check mistune==3.4.0 markdown-it-py==4.3.0 || exit 2
cd "$dir"
"$dir/venv/bin/python" -I -W ignore - <<'PY'
import sys
from importlib.metadata import version

import mistune
from markdown_it import MarkdownIt

text = "| item | price |\n|---|---|\n| pump | 75 |\n| valve |\n"
known = MarkdownIt().enable("table").render(text)
seen = mistune.html(text)
print("mistune", version("mistune"))
print("markdown-it-py", version("markdown-it-py"), "makes a table:", "<table>" in known)
print("mistune makes a table:", "<table>" in seen)
print(seen)
same = "<table>" in known and "<table>" not in seen and "<table>" in mistune.html(text.replace("| valve |\n", ""))
sys.exit(0 if same else "this version behaves otherwise")
PY
