"""Labelled questions -> a relevance model: retrieve their pools, fit, write the model and its plot."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import DataError, InputError
from mio_rag.evaluation.fit.sentences import fit_sentences
from mio_rag.files import make_parent, write_atomically
from mio_rag.relevance import Labelled, RelevanceModel, fit, reliability_plot
from mio_rag.relevance.model import Kind
from mio_rag.relevance.source import relevance_of
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
    sentences: bool = False,
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
    sentences : bool
        Fit weights of sentences, too, on answers (`mio_rag.evaluation.fit.sentences`). Then no question need
        name a gold passage: without any, the weights of passages are those that ship for most of the pools.

    Raises
    ------
    DataError
        If no question names a gold passage, or with `sentences` none has an answer.
    InputError
        If the index holds another corpus, or there is too little to fit on.
    """
    if limit is not None and limit < 1:
        raise InputError(f"limit={limit} must be >= 1")
    questions = dataset.questions[:limit]
    labelled = any(question.gold_ids for question in questions)
    if sentences and not any(question.answers for question in questions):
        raise DataError(
            f"no question of '{dataset.name}' has an answer: weights of sentences are fitted on them; give "
            "answers, or leave --sentences out"
        )
    if not labelled and not sentences:
        raise DataError(
            f"no question of '{dataset.name}' names its gold passages (gold_ids): a relevance model is "
            "fitted on them, and gold documents (gold_sources) do not tell which passages of theirs are "
            "needed; label some questions, leave relevance at auto, or fit weights of sentences on answers "
            "alone (--sentences)"
        )
    index: CorpusIndex = retriever.index
    if set(dataset.passages) ^ set(index.passages):
        raise InputError(
            f"the index does not hold the corpus of '{dataset.name}': build it from the same data"
        )
    today = datetime.now(UTC).date().isoformat()
    hops = f", links followed {retriever.link_hops} deep" if retriever.link_hops else ""
    looked = "".join(f", re-ranked by {reranker.fingerprint}" for reranker in retriever.rerankers)
    told = (
        f"questions of '{dataset.name}' ({dataset.content_hash()[:12]}), pools of {retriever.pool} by "
        f"{retriever.mode} retrieval with {index.embedder.name}{hops}{looked}; {today}"
    )
    model: RelevanceModel | None = None
    if labelled:
        pools = labelled_pools(questions, retriever, progress)
        model = fit(
            pools,
            kind=kind,
            link_stages=link_stages,
            seed=seed,
            name=name,
            embedder=index.embedder.fingerprint,
            provenance=f"{len(pools)} {told}",
        )
    return _with_sentences(model, questions, retriever, seed, name, told) if sentences else _known(model)


def _with_sentences(
    model: RelevanceModel | None,
    questions: Sequence[Question],
    retriever: Retriever,
    seed: int,
    name: str,
    told: str,
) -> RelevanceModel:
    """The model, or the one that ships for the embedder, with weights of sentences."""
    asked = [question for question in questions if question.answers]
    pools = retriever.retrieve_many([question.text for question in asked])
    if model is None:
        # Which weights ship for a pool depends on what it looks like: those of most pools, the first if even.
        each = [relevance_of("auto", pool)[0] for pool in pools]
        shipped = _known(max(each, key=each.count))
        model = replace(shipped, name=name, embedder=retriever.index.embedder.fingerprint)
    valued = [model.valued(pool) for pool in pools]
    weights = fit_sentences(asked, valued, seed=seed, name=name, provenance=f"{len(asked)} {told}")
    return replace(model, sentences=weights)


def _known(model: RelevanceModel | None) -> RelevanceModel:
    assert model is not None
    return model


def write_model(model: RelevanceModel, path: Path) -> Path | None:
    """Write a model as JSON and, beside it, its reliability plot; the path of the plot is returned.

    None where nothing is known of its reliability, since its weights ship.

    Raises
    ------
    InputError
        If they cannot be written.
    """
    make_parent(path)
    write_atomically(path, json.dumps(model.to_dict(), indent=1, allow_nan=False) + "\n")
    if "reliability_before" not in model.measures:
        return None
    picture = path.with_suffix(".png")
    curves = {
        "cosine": model.measures["reliability_before"],
        f"{model.kind} (out of fold)": model.measures["reliability_after"],
    }
    reliability_plot(picture, curves, f"Relevance '{model.name}'")
    return picture
