#!/usr/bin/env bash
# langchain-text-splitters: start_index is -1 or wrong once chunks are measured in words.
#
# With add_start_index each chunk says at which character of the text it begins. That holds while the
# size of chunks is counted in characters. Counted in words or tokens, which a length_function is for,
# the overlap is still taken off as if it were characters: the search for the next chunk starts too
# late and finds nothing, or the same words at another place. There is no warning, and text[-1:] is
# valid Python, so who cuts the source at these places shows its last letter.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -qq --disable-pip-version-check \
    langchain-text-splitters==1.1.3 langchain-core==1.8.3 || exit 2
cd "$dir"
"$dir/venv/bin/python" -I -W ignore - <<'PY'
import sys
from importlib.metadata import version

from langchain_text_splitters import RecursiveCharacterTextSplitter

PLAIN = "open the valve then wait until the gauge reads zero"
REPEATED = "left left left left right left left left left"


def split(text, **settings):
    splitter = RecursiveCharacterTextSplitter(separators=[" "], add_start_index=True, **settings)
    return [(chunk.metadata["start_index"], chunk.page_content) for chunk in splitter.create_documents([text])]


print("langchain-text-splitters", version("langchain-text-splitters"))
in_characters = split(PLAIN, chunk_size=20, chunk_overlap=6)
assert all(PLAIN.startswith(chunk, start) for start, chunk in in_characters)
print("20 characters, 6 shared:", in_characters)
seen = []
for text in (PLAIN, REPEATED):
    chunks = split(text, chunk_size=4, chunk_overlap=1, length_function=lambda part: len(part.split()))
    words = text.split()  # with 4 words and 1 shared, each chunk begins three words after the last
    places = [len(" ".join([*words[:first], ""])) for first in range(0, len(words) - 1, 3)]
    assert all(text.startswith(chunk, place) for place, (_, chunk) in zip(places, chunks, strict=True))
    seen.append([start for start, _ in chunks])
    print("4 words, 1 shared:      ", chunks)
    print("            they are at:", places)
same = seen == [[0, -1, 31], [0, -1, 26]]
sys.exit(0 if same else "this version behaves otherwise")
PY
