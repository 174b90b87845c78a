#!/usr/bin/env bash
# faiss: a search restricted to 20 ids finds next to none of them in an HNSW index.
#
# An IDSelector names the vectors that may be returned. With k of 20 and 20 ids allowed one expects
# 20 results, perhaps not in perfect order: HNSW is approximate. But the graph is walked as without
# the selector, and what is not allowed is left out of the results, so few or none remain and the
# rest is filled up with -1. A flat index finds all; so does HNSW with efSearch as large as the index.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -qq --disable-pip-version-check faiss-cpu==1.15.1 numpy==2.4.6 || exit 2
"$dir/venv/bin/python" -I - <<'PY'
import sys
from importlib.metadata import version

import faiss
import numpy as np

faiss.omp_set_num_threads(1)  # the same graph in every run
rng = np.random.default_rng(0)
vectors = rng.normal(size=(10_000, 32)).astype("float32")
query = rng.normal(size=(1, 32)).astype("float32")
allowed = faiss.IDSelectorBatch(rng.choice(10_000, 20, replace=False).astype("int64"))
flat, graph = faiss.IndexFlatL2(32), faiss.IndexHNSWFlat(32, 16)
flat.add(vectors)
graph.add(vectors)


def found(index, params):
    return int((index.search(query, 20, params=params)[1] >= 0).sum())


exact = found(flat, faiss.SearchParameters(sel=allowed))
seen = found(graph, faiss.SearchParametersHNSW(sel=allowed))
wide = found(graph, faiss.SearchParametersHNSW(sel=allowed, efSearch=10_000))
print("faiss-cpu", version("faiss-cpu"))
print("expected: 20 results of 20 allowed, as a flat index gives:", exact)
print(f"seen:     {seen} with the usual settings, {wide} with efSearch=10000")
sys.exit(not (exact == wide == 20 and seen < 10))
PY
