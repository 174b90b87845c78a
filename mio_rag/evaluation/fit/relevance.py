"""Labelled questions -> a relevance model: retrieve their pools, fit, write the model and its plot."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import DataError, InputError
from mio_rag.files import make_parent, write_atomically
from mio_rag.relevance import Labelled, RelevanceModel, fit, reliability_plot
from mio_rag.relevance.model import Kind
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.retriever import Retriever
from mio_rag.types import Question

__all__ = ["calibrate", "labelled_pools", "write_model"]


def labelled_pools(
    questions: Sequence[Question], retriever: Retriever, progress: Callable[[int], None] | None = None
) -> list[Labelled]:
    """The pool of each question with passage-level gold, and what it needs."""
    asked = [question for question in questions if question.gold_ids]
    if progress:
        progress(len(questions) - len(asked))
    pools = retriever.retrieve_many([question.text for question in asked], progress)
    return [Labelled(pool, frozenset(question.gold_ids)) for pool, question in zip(pools, asked, strict=True)]


def calibrate(
    dataset: Dataset,
    retriever: Retriever,
    *,
    kind: Kind = "logistic",
    link_stages: int = 1,
    limit: int | None = None,
    seed: int = 0,
    name: str = "model",
    progress: Callable[[int], None] | None = None,
) -> RelevanceModel:
    """Fit relevance on the questions of a data set that name their gold passages.

    Parameters
    ----------
    retriever : Retriever
        Over the index of this corpus, with the pool, mode and link expansion of later use.
    kind, link_stages, seed
        See `mio_rag.relevance.fit`.
    limit : int, optional
        Only the first so many questions.

    Raises
    ------
    DataError
        If no question names a gold passage.
    InputError
        If the index holds another corpus, or there is too little to fit on.
    """
    if limit is not None and limit < 1:
        raise InputError(f"limit={limit} must be >= 1")
    questions = dataset.questions[:limit]
    if not any(question.gold_ids for question in questions):
        raise DataError(
            f"no question of '{dataset.name}' names its gold passages (gold_ids): a relevance model is "
            "fitted on them; label some questions, or leave relevance at auto"
        )
    index: CorpusIndex = retriever.index
    if set(dataset.passages) ^ set(index.passages):
        raise InputError(
            f"the index does not hold the corpus of '{dataset.name}': build it from the same data"
        )
    pools = labelled_pools(questions, retriever, progress)
    today = datetime.now(UTC).date().isoformat()
    hops = f", links followed {retriever.link_hops} deep" if retriever.link_hops else ""
    looked = "".join(f", re-ranked by {reranker.fingerprint}" for reranker in retriever.rerankers)
    return fit(
        pools,
        kind=kind,
        link_stages=link_stages,
        seed=seed,
        name=name,
        embedder=index.embedder.fingerprint,
        provenance=f"{len(pools)} questions of '{dataset.name}' ({dataset.content_hash()[:12]}), pools of "
        f"{retriever.pool} by {retriever.mode} retrieval with {index.embedder.name}{hops}{looked}; {today}",
    )


def write_model(model: RelevanceModel, path: Path) -> Path:
    """Write a model as JSON and, beside it, its reliability plot; the path of the plot is returned.

    Raises
    ------
    InputError
        If they cannot be written.
    """
    make_parent(path)
    write_atomically(path, json.dumps(model.to_dict(), indent=1, allow_nan=False) + "\n")
    picture = path.with_suffix(".png")
    curves = {
        "cosine": model.measures["reliability_before"],
        f"{model.kind} (out of fold)": model.measures["reliability_after"],
    }
    reliability_plot(picture, curves, f"Relevance '{model.name}'")
    return picture
