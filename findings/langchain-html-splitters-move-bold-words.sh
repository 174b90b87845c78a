#!/usr/bin/env bash
# langchain-text-splitters: words in bold or italics change their place in the sentence.
#
# Both HTML splitters read the text of an element first and that of the elements inside it later.
# "Give <b>no more than</b> two tablets, <i>never</i> with alcohol." becomes "Give two tablets, with
# alcohol.", with the emphasized words behind it or before it. Nothing is missing, so no count shows
# it, yet the sentence says the opposite.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -qq --disable-pip-version-check langchain-text-splitters==1.1.3 beautifulsoup4==4.15.0 lxml==6.1.1 || exit 2
cd "$dir"
"$dir/venv/bin/python" -I -W ignore - <<'PY'
import sys
from importlib.metadata import version

from langchain_text_splitters import HTMLHeaderTextSplitter, HTMLSemanticPreservingSplitter

page = (
    "<html><body><h1>Doses</h1>"
    "<p>Give <b>no more than</b> two tablets, <i>never</i> with alcohol.</p></body></html>"
)
expected = "Give no more than two tablets, never with alcohol."
heads = [("h1", "H1")]
by_header = HTMLHeaderTextSplitter(heads).split_text(page)[-1].page_content
semantic = HTMLSemanticPreservingSplitter(heads, max_chunk_size=500).split_text(page)[-1].page_content

print("langchain-text-splitters", version("langchain-text-splitters"))
print("the page shows:                ", repr(expected))
print("HTMLHeaderTextSplitter:        ", repr(by_header))
print("HTMLSemanticPreservingSplitter:", repr(semantic))
same = (
    by_header == "Give two tablets, with alcohol.  \nno more than  \nnever"
    and semantic == "no more than never Give two tablets, with alcohol."
)
sys.exit(0 if same else "this version behaves otherwise")
PY
