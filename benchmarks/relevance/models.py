"""Questions of a set in two halves, their pools, and relevance models fitted on the first half.

The halves come from a seeded permutation of the questions with labels. Nothing is fitted on the half that is
reported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.relevance.methods import LINKED, PLAIN, RERANKED
from mio_rag.corpora.dataset import Dataset
from mio_rag.corpora.load import load_dataset
from mio_rag.evaluation.fit import labelled_pools
from mio_rag.relevance import Labelled, RelevanceModel, fit
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.retrieval.rerank import Reranker, rescored
from mio_rag.storage import write_atomically
from mio_rag.types import Question


@dataclass(frozen=True, eq=False)
class Halves:
    """A set's labelled questions: to fit on, and to report."""

    name: str
    fit: tuple[Question, ...]
    report: tuple[Question, ...]

    @property
    def by_passage(self) -> bool:
        """Whether gold passages are known, or only gold documents."""
        return any(q.gold_ids for q in self.report)


def halves(dataset: Dataset, seed: int = 0, limit: int | None = None) -> Halves:
    """Split the questions that have labels; `limit` bounds each half."""
    labelled = [q for q in dataset.questions if q.gold_ids]
    if not labelled:
        labelled = [q for q in dataset.questions if q.gold_sources]
    order = np.random.default_rng(seed).permutation(len(labelled))
    middle = len(labelled) // 2
    report, fitted = (tuple(labelled[k] for k in part) for part in (order[:middle], order[middle:]))
    return Halves(dataset.name, fitted[:limit], report[:limit])


def fit_pools(
    data: Path, indexes: Path, name: str, seed: int, limit: int | None, reranker: Reranker | None = None
) -> dict[int, list[Labelled]]:
    """Pools of the half to fit on: as retrieved, expanded along links, re-ranked.

    Empty where no gold passages are known.
    """
    split = halves(load_dataset(data / name), seed, limit)
    if not split.by_passage:
        return {PLAIN: [], LINKED: []}
    index = CorpusIndex.load(indexes / name)
    pools = {hops: labelled_pools(split.fit, Retriever(index, link_hops=hops)) for hops in (PLAIN, LINKED)}
    if reranker is not None:
        looked = rescored([p.candidates for p in pools[LINKED]], reranker)
        pools[RERANKED] = [replace(p, candidates=c) for p, c in zip(pools[LINKED], looked, strict=True)]
    return pools


def models_of(name: str, pools: Mapping[int, Sequence[Labelled]], embedder: str) -> dict[str, RelevanceModel]:
    """Models of one set: on the plain pool, on the expanded one, with link features; each isotonic."""
    says = f"{len(pools[PLAIN])} questions of '{name}'"
    made = {
        "plain": fit(pools[PLAIN], kind="isotonic", link_stages=0, embedder=embedder, provenance=says),
        "expanded": fit(pools[LINKED], kind="isotonic", link_stages=0, embedder=embedder, provenance=says),
        "links": fit(pools[LINKED], kind="isotonic", embedder=embedder, provenance=says),
        "links-logistic": fit(pools[LINKED], kind="logistic", embedder=embedder, provenance=says),
    }
    if RERANKED in pools:
        made["reranked"] = fit(pools[RERANKED], kind="isotonic", embedder=embedder, provenance=says)
    return {key: replace(model, name=f"{name}/{key}") for key, model in made.items()}


def default_model(
    pools: Mapping[str, Sequence[Labelled]], embedder: str, name: str = "default"
) -> RelevanceModel:
    """One model for several sets, each of the same total weight."""
    every = [replace(p, weight=1 / len(given)) for given in pools.values() for p in given]
    says = ", ".join(f"{len(given)} of {key}" for key, given in pools.items())
    return fit(
        every,
        kind="isotonic",
        name=name,
        embedder=embedder,
        provenance=f"Fitted on {says} (questions of public sets; every set weighs the same), pools of 50 by "
        "fused retrieval with all-MiniLM-L6-v2 and BM25, expanded one link deep. Only numbers are kept.",
    )


def store(path: Path, model: RelevanceModel) -> None:
    """Write a model."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(model.to_dict(), indent=1, allow_nan=False) + "\n")


def load(path: Path) -> RelevanceModel:
    """The model that `store` wrote."""
    return RelevanceModel.from_dict(json.loads(path.read_text(encoding="utf-8")))
