"""Latency of a new question by stage, end to end without a reader.

Each question is embedded with an empty cache and searched; its pool is extended along links, scored by the
default relevance model, selected from by the exact kernel, explained and rendered as a prompt. Times are
exclusive: time in a nested stage counts for that stage only. Wall time depends on the load of the machine;
processor time is what an idle machine would take, since one thread does all the work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

import mio_rag.selection.solving
import mio_rag.solvers.branch_and_bound
from benchmarks.relevance.methods import LINK_BENEFIT
from mio_rag.generation import build_prompt
from mio_rag.relevance import RelevanceModel, load_model
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.retrieval.links import LinkIndex
from mio_rag.selection.selector import Selector
from mio_rag.solvers import SolveOptions
from mio_rag.types import Question

STAGES = ("embed", "search", "links", "pool", "features", "solve", "explain", "select", "render")


class _Clock:
    """Exclusive seconds by stage, for stages that call each other."""

    def __init__(self) -> None:
        self.wall = dict.fromkeys(STAGES, 0.0)
        self.processor = dict.fromkeys(STAGES, 0.0)
        self._open: list[list[float]] = []  # time that inner stages took, for each open one

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = time.perf_counter(), time.process_time()
        self._open.append([0.0, 0.0])
        try:
            yield
        finally:
            spent = time.perf_counter() - start[0], time.process_time() - start[1]
            inner = self._open.pop()
            for seconds, whole, part in zip((self.wall, self.processor), spent, inner, strict=True):
                seconds[name] += whole - part
            if self._open:
                self._open[-1][0] += spent[0]
                self._open[-1][1] += spent[1]


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
        relevance_model=load_model("ranks"),  # of any embedder
        options=SolveOptions(time_limit_seconds=2.0),
    )
    retriever = Retriever(index, pool=pool, link_hops=1)
    rows: list[_Clock] = []
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
            (mio_rag.selection.solving, "decisions", "explain"),
            (mio_rag.solvers.branch_and_bound, "solve", "solve"),
        ):
            stack.enter_context(_timed(owner, name, stage, lambda: clock))
        for question in questions:
            clock = _Clock()
            with clock.stage("pool"):
                candidates = retriever.retrieve(question.text)
            with clock.stage("select"):
                selection = selector.select(candidates, budget_tokens, retriever.counter)
            with clock.stage("render"):
                build_prompt(question, selection.passages)
            rows.append(clock)
            sizes.append(len(candidates))
    return _summary(rows[3:], sizes[3:])


def _summary(rows: Sequence[_Clock], sizes: Sequence[int]) -> dict[str, Any]:
    found: dict[str, Any] = {"questions": len(rows), "candidates": float(np.mean(sizes))}
    for clock in ("processor", "wall"):
        seconds = [getattr(row, clock) for row in rows]
        totals = 1e3 * np.array([sum(one.values()) for one in seconds])
        stages = {}
        for stage in STAGES:
            values = 1e3 * np.array([one[stage] for one in seconds])
            stages[stage] = {**_ends(values), "share": float(values.sum() / totals.sum())}
        found[clock] = {
            "total": _ends(totals),
            "without_embedding": _ends(totals - 1e3 * np.array([one["embed"] for one in seconds])),
            "stages": stages,
        }
    return found


def _ends(values: Any) -> dict[str, float]:
    return {"median": float(np.median(values)), "p95": float(np.percentile(values, 95))}


def table(found: dict[str, Any]) -> str:
    """Lines for each set: total by both clocks, and the share of each stage of the processor time."""
    lines = []
    for name, one in found.items():
        lines.append(f"{name}: {one['questions']} questions, {one['candidates']:.0f} candidates")
        for clock in ("processor", "wall"):
            total, rest = one[clock]["total"], one[clock]["without_embedding"]
            lines.append(
                f"  {clock:<10} median {total['median']:.1f} ms, p95 {total['p95']:.1f} ms "
                f"({rest['median']:.1f} and {rest['p95']:.1f} without the embedding)"
            )
        stages = one["processor"]["stages"].items()
        lines.append("  " + ", ".join(f"{stage} {entry['share']:.0%}" for stage, entry in stages))
    return "\n".join(lines)
