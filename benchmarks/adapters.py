"""What does an adapter cost? Each framework's adapter against the bare selector, on the same pools.

*bare* is `Selector.select` on a finished `Candidates`: tokens counted, vectors in an array. *select* is the
plain-Python `select()`, which counts tokens and checks what it is given. The adapters get documents as their
framework's store hands them out: LangChain's and LlamaIndex's without vectors, Haystack's with them as lists,
DSPy's from its own retriever's array. LlamaIndex's nodes show no metadata: rendering it is its own work, and
comes on top. Vectors and token counts are remembered by text; the first, cold call
is not counted. Every contender takes its turn in every round, and all must choose the same passages.

The overhead of a call is its CPU time less what it spends in `Selector.select`, measured in the same call:
the solver's own ups and downs are many times larger. What the framework itself does around any part of its
pipeline is in it; it is also measured alone, with a part that chooses nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.adapters_contenders import contenders, frameworks, pools
from benchmarks.runner import Measured
from mio_rag.errors import InputError
from mio_rag.selection.result import Selection
from mio_rag.selection.selector import Selector

#: An adapter should add less than this to the bare selector and its framework, for 50 documents.
TARGET_MILLISECONDS = 1.0


def run(
    documents: int,
    questions: int,
    rounds: int,
    embedder: str,
    budget_tokens: int = 512,
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Measure.

    Parameters
    ----------
    documents, questions, rounds : int
        Documents of a pool, pools, and turns of every contender on each, >= 1.
    embedder : str
        "minilm" or "tfidf".
    """
    progress("retrieve")
    made = pools(documents, questions, embedder)
    seconds: dict[str, list[list[tuple[float, float]]]] = {}
    alone: dict[str, list[float]] = {}
    wrong = []
    for k, pool in enumerate(made):
        progress(f"question {k + 1} of {len(made)}")
        calls = contenders(pool, budget_tokens)
        wanted = calls["bare"]()
        wrong += [f"{pool.question}: {name}" for name, call in calls.items() if call() != wanted]
        empty = frameworks(pool)
        for name, call in calls.items():
            seconds.setdefault(name, []).append([])
            call()
        for _ in range(rounds):
            for name, call in calls.items():
                with _timed() as taken:
                    call()
                seconds[name][-1].append((taken.wall, taken.overhead))
                if name in empty:
                    with _timed() as taken:
                        empty[name]()
                    alone.setdefault(name, []).append(taken.overhead)
    return {
        "documents": [len(pool.texts) for pool in made],
        "dimensions": int(made[0].embeddings.shape[1]),
        "embedder": embedder,
        "budget_tokens": budget_tokens,
        "rounds": rounds,
        "contenders": _summary(seconds, alone),
        "wrong": wrong,
        "target_milliseconds": TARGET_MILLISECONDS,
    }


@dataclass
class _Taken:
    wall: float = 0.0
    overhead: float = 0.0
    inside: float = 0.0


@contextmanager
def _timed() -> Iterator[_Taken]:
    """Wall and CPU time of the block, and CPU time of `Selector.select` within it."""
    taken, inner = _Taken(), Selector.select

    def select(self: Selector, *given: Any, **named: Any) -> Selection:
        start = time.thread_time()
        chosen = inner(self, *given, **named)
        taken.inside += time.thread_time() - start
        return chosen

    with mock.patch.object(Selector, "select", select):
        wall, start = time.perf_counter(), time.thread_time()
        yield taken
        taken.overhead = time.thread_time() - start - taken.inside
        taken.wall = time.perf_counter() - wall


def _summary(
    seconds: dict[str, list[list[tuple[float, float]]]], alone: dict[str, list[float]]
) -> list[dict[str, Any]]:
    rows = []
    for name, taken in seconds.items():
        times = 1e3 * np.array(taken)  # question, round, (wall, overhead)
        extra = times[:, :, 1]
        rows.append(
            {
                "name": name,
                "median_milliseconds": float(np.median(times[:, :, 0])),
                "overhead_milliseconds": float(np.median(extra)),
                "framework_milliseconds": 1e3 * float(np.median(alone[name])) if name in alone else 0.0,
                "overhead_best_milliseconds": float(extra.min()),
                "overhead_90_milliseconds": float(np.quantile(extra, 0.9)),
                "overhead_by_question": [float(value) for value in np.median(extra, axis=1)],
                "runs": int(extra.size),
            }
        )
    return rows


def table(report: dict[str, Any]) -> str:
    """The measurements as text."""
    least, most = min(report["documents"]), max(report["documents"])
    span = str(most) if least == most else f"{least} to {most}"
    lines = [
        f"{span} documents, {report['dimensions']} dimensions, {len(report['documents'])} questions, "
        f"{report['rounds']} rounds; milliseconds",
        f"{'':<14}{'whole call':>11}{'overhead':>10}{'best':>8}{'90 %':>8}{'the framework alone':>21}",
    ]
    for row in report["contenders"]:
        lines.append(
            f"{row['name']:<14}{row['median_milliseconds']:>11.2f}{row['overhead_milliseconds']:>10.3f}"
            f"{row['overhead_best_milliseconds']:>8.3f}{row['overhead_90_milliseconds']:>8.3f}"
            f"{row['framework_milliseconds']:>21.3f}"
        )
    missed = [
        row["name"]
        for row in report["contenders"]
        if row["overhead_milliseconds"] - row["framework_milliseconds"] >= report["target_milliseconds"]
    ]
    target = f"overhead beyond the framework's own under {report['target_milliseconds']:g} ms"
    lines.append(f"{target}: {'all' if not missed else 'not ' + ', '.join(missed)}")
    lines += [f"chose otherwise: {name}" for name in report["wrong"]]
    return "\n".join(lines)


def command(given: argparse.Namespace) -> Measured:
    """Measure, write JSON, print the table; 1 where an adapter chose otherwise, 2 for bad options."""
    if min(given.documents, given.questions, given.rounds) < 1:
        raise InputError("--documents, --questions and --rounds must be >= 1")
    report = run(given.documents, given.questions, given.rounds, given.embedder, progress=_show)
    return Measured(report, table(report), wrong=len(report["wrong"]))


def _show(text: str) -> None:
    print(f"\r{text:<78}", end="", file=sys.stderr, flush=True)
