#!/usr/bin/env bash
# llama-index-core: a window of sentences keeps the places of its middle one, and is in no document.
#
# The sentence window parser finds one sentence and gives the reader its neighbours as well: that is
# what MetadataReplacementPostProcessor is for. The text of the node grows, start_char_idx and
# end_char_idx stay those of one sentence, so a citation marks a third of what was read. The text
# cannot be looked up either: the sentences keep their blanks and are joined with one more.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -qq --disable-pip-version-check llama-index-core==0.14.25 || exit 2
cd "$dir"
"$dir/venv/bin/python" -I -W ignore - <<'PY'
import sys
from importlib.metadata import version

from llama_index.core import Document
from llama_index.core.node_parser import SentenceWindowNodeParser
from llama_index.core.postprocessor import MetadataReplacementPostProcessor
from llama_index.core.schema import NodeWithScore

TEXT = "The pump may leak. Close the valve first. Then call the plant. Bring oil."
nodes = SentenceWindowNodeParser.from_defaults(window_size=1).get_nodes_from_documents([Document(text=TEXT)])
assert all(TEXT[node.start_char_idx : node.end_char_idx] == node.text for node in nodes)  # right before

hit = NodeWithScore(node=nodes[1], score=1.0)
window = MetadataReplacementPostProcessor("window").postprocess_nodes([hit])[0].node
places = (window.start_char_idx, window.end_char_idx)
print("llama-index-core", version("llama-index-core"))
print("expected: places (0, 62) and their text,", repr(TEXT[:62]))
print("seen:     the text is", repr(window.text))
print("          its places are", places, "where the document has", repr(TEXT[slice(*places)]))
print("          the document has the text:", window.text.strip() in TEXT)
same = (
    window.text == "The pump may leak.  Close the valve first.  Then call the plant. "
    and places == (19, 42)
    and window.text.strip() not in TEXT
)
sys.exit(0 if same else "this version behaves otherwise")
PY
