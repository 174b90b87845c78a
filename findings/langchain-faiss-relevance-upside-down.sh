#!/usr/bin/env bash
# langchain-community: FAISS by inner product gives the best match a relevance of 0, the opposite 1.
#
# The docstring of similarity_search_with_relevance_scores says: 0 is dissimilar, 1 is most similar.
# The order of the hits is right, only the relevance is upside down, so a retriever with a threshold
# drops every good match and keeps the document that points the other way.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -qq --disable-pip-version-check \
    langchain-community==0.4.2 langchain-core==1.8.3 faiss-cpu==1.15.1 || exit 2
"$dir/venv/bin/python" -I -W ignore - <<'PY'
import sys
from importlib.metadata import version

from langchain_community.vectorstores import FAISS
from langchain_community.vectorstores.utils import DistanceStrategy
from langchain_core.embeddings import Embeddings

VECTORS = {"query": [1, 0], "same": [1, 0], "near": [0.8, 0.6], "unrelated": [0, 1], "opposite": [-1, 0]}


class Table(Embeddings):
    """Unit vectors that are looked up, in place of a model."""

    def embed_query(self, text):
        return VECTORS[text]

    def embed_documents(self, texts):
        return [VECTORS[text] for text in texts]


store = FAISS.from_texts(
    [name for name in VECTORS if name != "query"], Table(), distance_strategy=DistanceStrategy.MAX_INNER_PRODUCT
)
relevance = {d.page_content: round(float(r), 2) for d, r in store.similarity_search_with_relevance_scores("query")}
kept = store.as_retriever(search_type="similarity_score_threshold", search_kwargs={"score_threshold": 0.5})
names = [document.page_content for document in kept.invoke("query")]

print("langchain-community", version("langchain-community"), "with faiss-cpu", version("faiss-cpu"))
print("expected: relevance 1 for 'same'; a threshold of 0.5 keeps 'same' and 'near'")
print("seen:     relevance", relevance, "and the threshold keeps", names)
sys.exit(not (relevance["same"] == 0 and relevance["opposite"] == 1 and names == ["opposite"]))
PY
