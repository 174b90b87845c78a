#!/usr/bin/env bash
# rank-bm25: a document without the word of the query can rank above all documents that have it.
#
# A word in more than half of the documents has a negative weight in BM25. BM25Okapi says that it
# prevents that by a floor, epsilon times the mean weight of all words. But in a small collection
# with a shared vocabulary the mean is itself negative, and so is the floor.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -qq --disable-pip-version-check rank-bm25==0.2.2 numpy==2.4.6 || exit 2
"$dir/venv/bin/python" -I - <<'PY'
import sys
from importlib.metadata import version

from rank_bm25 import BM25Okapi

NOTES = ["invoice paid", "invoice paid", "invoice paid", "holiday"]
index = BM25Okapi([note.split() for note in NOTES])
scores = [round(float(score), 3) for score in index.get_scores(["invoice"])]
best = index.get_top_n(["invoice"], NOTES, n=1)

print("rank-bm25", version("rank-bm25"))
print("query: invoice; documents:", NOTES)
print("expected: scores of at least 0, and a first hit that holds the word")
print("seen:     scores", scores, "and the first hit", best)
sys.exit(not (best == ["holiday"] and max(scores[:3]) < 0 == scores[3]))
PY
