#!/usr/bin/env bash
# semantic-text-splitter: a Markdown heading becomes a chunk of its own although more would fit.
#
# The README says that neighbouring pieces are merged into a chunk as long as they fit, and headings
# say what a section is about. But when the section as a whole is too long, its heading is cut off
# first and nothing is merged with it, so the text that follows no longer says its topic.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -qq --disable-pip-version-check semantic-text-splitter==0.33.1 || exit 2
"$dir/venv/bin/python" -I - <<'PY'
import sys
from importlib.metadata import version

from semantic_text_splitter import MarkdownSplitter

SIZE = 60
FIRST, SECOND = "Trains are booked in second class.", "Flights need the approval of the head of unit."
chunks = MarkdownSplitter(SIZE).chunks(f"# Travel\n\n{FIRST} {SECOND}\n")
wanted = [f"# Travel\n\n{FIRST}", SECOND]
assert max(map(len, wanted)) <= SIZE  # the expected chunks are allowed

print("semantic-text-splitter", version("semantic-text-splitter"))
print(f"expected, at most {SIZE} characters each:", wanted)
print("seen:    ", chunks)
sys.exit(chunks != ["# Travel", FIRST, SECOND])
PY
