#!/usr/bin/env bash
# chromadb: a filter on a key that no document has returns no hits and no error.
#
# A misspelt key in `where` ("departement") looks like a department without documents. One expects an
# error, or at least a sign, since the collection knows all keys of its metadata. What the filter asks
# is answered as if every document lacked the value. LanceDB, for comparison, names the valid fields.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -qq --disable-pip-version-check chromadb==1.5.9 lancedb==0.40.0 || exit 2
cd "$dir"
"$dir/venv/bin/python" -I - <<'PY'
import sys
from importlib.metadata import version

import chromadb
import lancedb

client = chromadb.EphemeralClient(chromadb.Settings(anonymized_telemetry=False))
rules = client.create_collection("rules", embedding_function=None)
rules.add(
    ids=["a", "b"], embeddings=[[1.0, 0.0], [0.0, 1.0]], documents=["on call", "leave"],
    metadatas=[{"department": "support"}, {"department": "people"}],
)
right = rules.query(query_embeddings=[[1.0, 0.0]], n_results=2, where={"department": "support"})["ids"][0]
wrong = rules.query(query_embeddings=[[1.0, 0.0]], n_results=2, where={"departement": "support"})["ids"][0]

rows = [{"vector": [1.0, 0.0], "department": "support"}, {"vector": [0.0, 1.0], "department": "people"}]
table = lancedb.connect("lance").create_table("rules", rows)
try:
    table.search([1.0, 0.0]).where("departement = 'support'").to_list()
    other = "no error"
except Exception as error:
    other = type(error).__name__
print("chromadb", version("chromadb"), "lancedb", version("lancedb"))
print("expected: an error for the misspelt key, as lancedb gives:", other)
print(f"seen:     {wrong} and no error; spelt right, {right}")
sys.exit(not (right == ["a"] and wrong == [] and other != "no error"))
PY
