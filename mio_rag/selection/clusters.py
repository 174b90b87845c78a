"""Topical clusters of a pool, from its labels or its embeddings (scikit-learn)."""

from __future__ import annotations

import re

import numpy as np

from mio_rag.candidates import Candidates
from mio_rag.errors import InputError, require

__all__ = ["check_clustering", "cluster_labels"]

_FORM = "labels, kmeans:K (K clusters) or agglomerative:S (merged down to a mean similarity of S)"


def check_clustering(how: str) -> tuple[str, float]:
    """(kind, its number) of a way to cluster.

    Raises
    ------
    InputError
        If it is none.
    """
    if how == "labels":
        return how, 0.0
    found = re.fullmatch(r"(kmeans|agglomerative):([0-9.]+)", how)
    try:
        number = float(found[2]) if found else 0.0
    except ValueError:
        number = 0.0
    whole = number >= 1 and number % 1 == 0
    if found is None or (found[1] == "kmeans" and not whole) or not (number > 0 or found[1] == "kmeans"):
        raise InputError(f"cover={how!r} is unknown: give {_FORM}")
    return found[1], number


def cluster_labels(candidates: Candidates, how: str, seed: int = 0) -> list[str]:
    """A label for every candidate.

    Parameters
    ----------
    how : str
        "labels": `Candidates.clusters`; "kmeans:K": K clusters of the embeddings; "agglomerative:S": average
        linkage, merged while the mean cosine between clusters is at least S.
    seed : int
        Of k-means.

    Raises
    ------
    InputError
        If the candidates have no labels, or no embeddings.
    """
    kind, number = check_clustering(how)
    if kind == "labels":
        if candidates.clusters is None:
            raise InputError("cover='labels' needs candidates with clusters: pass them, or use kmeans:K")
        return [str(label) for label in candidates.clusters]
    if candidates.embeddings is None:
        raise InputError(f"cover={how!r} needs candidates with embeddings")
    vectors = candidates.embeddings.astype(np.float64)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    if len(candidates) < 2:
        return ["1"] * len(candidates)
    library = require("sklearn.cluster", "retrieval", f"cover={how!r}")
    if kind == "kmeans":
        most = min(int(number), len(np.unique(vectors, axis=0)))
        made = library.KMeans(n_clusters=most, n_init=4, random_state=seed)
    else:
        made = library.AgglomerativeClustering(
            n_clusters=None, distance_threshold=1 - number, metric="cosine", linkage="average"
        )
    found = made.fit_predict(vectors)
    names = {label: str(k + 1) for k, label in enumerate(dict.fromkeys(found.tolist()))}
    return [names[label] for label in found.tolist()]
