#!/usr/bin/env bash
# bm25s: a query of unknown words finds the last documents of the collection, with score 0.
#
# A search for words that no document holds does not come back empty: it gives the k documents that
# stand last in the collection. A query with one known word is filled up with such documents, too.
# Who passes on what retrieve() returns shows a reader documents that share no word with the question.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -qq --disable-pip-version-check bm25s==0.3.16 || exit 2
cd "$dir"
"$dir/venv/bin/python" -I -W ignore - <<'PY'
import sys
from importlib.metadata import version

import bm25s

documents = ["the pump needs oil", "the valve is brass", "the hose is red", "fees are due in May"]
index = bm25s.BM25()
index.index(bm25s.tokenize(documents, show_progress=False), show_progress=False)


def search(question):
    words = bm25s.tokenize([question], show_progress=False)
    found = index.retrieve(words, k=2, show_progress=False)
    return found.documents[0].tolist(), [round(float(score), 3) for score in found.scores[0]]


unknown, one_known = search("zebra"), search("pump zebra")
print("bm25s", version("bm25s"))
print("zebra (in no document):   ", unknown)
print("pump zebra (pump in one): ", one_known)
same = unknown == ([3, 2], [0.0, 0.0]) and one_known[0] == [0, 3] and one_known[1][1] == 0.0
sys.exit(0 if same else "this version behaves otherwise")
PY
