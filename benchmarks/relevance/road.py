"""The whole road of a new question, without a reader: what takes how long.

A question is embedded afresh (an empty cache), searched, its pool expanded along links, valued by the shipped
weights, selected from by the exact kernel, explained, and laid out as a prompt. Times are exclusive: what one
stage calls in another is charged to that one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

import mio_rag.counterpart
import mio_rag.retrieval.retriever
from benchmarks.relevance.methods import LINK_BENEFIT
from mio_rag.generation import build_prompt
from mio_rag.relevance import RelevanceModel, load_model
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.retrieval.links import LinkIndex
from mio_rag.selector import Selector
from mio_rag.solvers import SolveOptions
from mio_rag.types import Question

__all__ = ["STAGES", "measure", "table"]

STAGES = ("embed", "search", "links", "pool", "features", "solve", "explain", "select", "render")


class _Clock:
    """Exclusive seconds by stage, for stages that call each other."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self._open: list[float] = []  # time that inner stages took, for each open one

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        self._open.append(0.0)
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            self.seconds[name] += spent - self._open.pop()
            if self._open:
                self._open[-1] += spent


@contextmanager
def _timed(owner: Any, name: str, stage: str, clock: Callable[[], _Clock]) -> Iterator[None]:
    """Charge calls of a function or method to a stage."""
    original = getattr(owner, name)

    def timed(*arguments: Any, **named: Any) -> Any:
        with clock().stage(stage):
            return original(*arguments, **named)

    setattr(owner, name, timed)
    try:
        yield
    finally:
        setattr(owner, name, original)


def measure(
    index: CorpusIndex, questions: Sequence[Question], pool: int, budget_tokens: int
) -> dict[str, Any]:
    """Median, 95th percentile and share of each stage over questions; milliseconds.

    Parameters
    ----------
    questions : sequence of Question
        The first three only warm up and are not counted.
    """
    selector = Selector(
        redundancy_weight=0.0,
        passage_penalty=0.0,
        link_benefit=LINK_BENEFIT,
        relevance_model=load_model("default"),
        options=SolveOptions(time_limit_seconds=2.0),
    )
    retriever = Retriever(index, pool=pool, link_hops=1)
    rows: list[dict[str, float]] = []
    sizes: list[int] = []
    clock = _Clock()
    with ExitStack() as stack:
        for owner, name, stage in (
            (type(index.embedder), "encode", "embed"),
            (CorpusIndex, "search_dense", "search"),
            (CorpusIndex, "search_bm25", "search"),
            (Retriever, "_expanded", "links"),
            (LinkIndex, "among", "links"),
            (RelevanceModel, "probabilities", "features"),
            (mio_rag.counterpart, "decisions", "explain"),
        ):
            stack.enter_context(_timed(owner, name, stage, lambda: clock))
        for question in questions:
            clock = _Clock()
            with clock.stage("pool"):
                candidates = retriever.retrieve(question.text)
            with clock.stage("select"):
                selection = selector.select(candidates, budget_tokens, retriever.counter)
            # The kernel's own wall time; the rest of "select" builds the program and counts the block.
            solving = selection.result.wall_seconds
            clock.seconds["select"] -= solving
            clock.seconds["solve"] += solving
            with clock.stage("render"):
                build_prompt(question, selection.passages)
            rows.append(clock.seconds)
            sizes.append(len(candidates))
    return _summary(rows[3:], sizes[3:])


def _summary(rows: Sequence[dict[str, float]], sizes: Sequence[int]) -> dict[str, Any]:
    totals = 1e3 * np.array([sum(row.values()) for row in rows])
    stages = {}
    for stage in STAGES:
        values = 1e3 * np.array([row[stage] for row in rows])
        stages[stage] = {**_ends(values), "share": float(values.sum() / totals.sum())}
    return {
        "questions": len(rows),
        "candidates": float(np.mean(sizes)),
        "total": _ends(totals),
        "without_embedding": _ends(totals - 1e3 * np.array([row["embed"] for row in rows])),
        "stages": stages,
    }


def _ends(values: Any) -> dict[str, float]:
    return {"median": float(np.median(values)), "p95": float(np.percentile(values, 95))}


def table(found: dict[str, Any]) -> str:
    """One line a set: total, and the share of each stage."""
    lines = []
    for name, one in found.items():
        total, rest = one["total"], one["without_embedding"]
        shares = ", ".join(f"{stage} {entry['share']:.0%}" for stage, entry in one["stages"].items())
        lines.append(
            f"{name}: {one['questions']} questions, {one['candidates']:.0f} candidates: median "
            f"{total['median']:.1f} ms, p95 {total['p95']:.1f} ms ({rest['median']:.1f} and "
            f"{rest['p95']:.1f} without the embedding); {shares}"
        )
    return "\n".join(lines)
