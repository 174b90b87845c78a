"""Measures of the ranking that was retrieved, before anything is selected: alike for all methods of a run."""

from __future__ import annotations

from collections.abc import Callable

from mio_rag.measures.measure import Frontier, Measure, Page, Use
from mio_rag.selection.result import Selection
from mio_rag.types import Question

_BOOK = "Manning, Raghavan and Schütze, Introduction to Information Retrieval, 2008, chapter 8"


def _hits(question: Question, selection: Selection, depth: int | None) -> list[int]:
    """Places of gold passages among the first of the pool, from 1."""
    gold = set(question.gold_ids)
    return [k for k, i in enumerate(selection.pool.ids[:depth], start=1) if i in gold]


def _precision(depth: int) -> Callable[[Question, Selection], float]:
    return lambda question, selection: len(_hits(question, selection, depth)) / depth


def _recall(depth: int) -> Callable[[Question, Selection], float]:
    return lambda question, selection: len(_hits(question, selection, depth)) / len(set(question.gold_ids))


def _reciprocal(question: Question, selection: Selection) -> float:
    hits = _hits(question, selection, None)
    return 1 / hits[0] if hits else 0.0


def _ranking(
    name: str,
    label: str,
    meaning: str,
    source: str,
    compute: Callable[[Question, Selection], float],
    place: int,
) -> Measure:
    """Neither compared nor judged: methods do not decide it."""
    return Measure(
        name,
        label,
        meaning,
        of="selection",
        better="higher",
        unit="0 to 1",
        source=source,
        compute=compute,
        labelled=lambda question: bool(question.gold_ids),
        compared=False,
        console=None,
        page=Page(place, judged=False, card=False),
        frontier=Frontier(Use.NONE),
    )


#: In the order of the ledger.
RANKINGS = (
    *(
        _ranking(
            f"retrieved_precision_{k}",
            f"Retrieved precision at {k}",
            f"share of gold passages among the first {k} that were retrieved; fewer count as {k}",
            f"{_BOOK} (a short list divided by {k}, as by trec_eval)",
            _precision(k),
            300 + k,
        )
        for k in (5, 10)
    ),
    *(
        _ranking(
            f"retrieved_recall_{k}",
            f"Retrieved recall at {k}",
            f"share of the gold passages that are among the first {k} that were retrieved",
            _BOOK,
            _recall(k),
            320 + k,
        )
        for k in (5, 10)
    ),
    _ranking(
        "retrieved_reciprocal_rank",
        "Retrieved reciprocal rank",
        "one over the place of the first gold passage in the pool; its mean is MRR",
        "Voorhees, TREC-8 Question Answering Track, 1999 (in the order of retrieval)",
        _reciprocal,
        340,
    ),
)
