"""A pacer of tokens against the best split of the same total in hindsight.

Questions of several sets come in one stream. Their value is what the programs expect: the evidence in what
is read. The bound is a Lagrangian one: for every price, the values less price times tokens of all
questions, plus price times total. No split within the total is worth more.

    one budget      every question has the same budget, total / questions, and tokens cost nothing
    first day       a pacer that begins at its first price
    second, third   one that has seen a day, or two, of other questions in the same kind of order
    forecast        one that begins with the price and mean tokens that `price_for` finds on those others
    wrong forecast  likewise, with 1.3 times the mean tokens
    even rate       the best split in hindsight that gives each tenth of the questions a tenth of the total

Orders: random; easy first and hard first, by tokens at the best price; bursts of 25 questions of one set.
The constants of the pacer were chosen with questions of other sets (hotpotqa, mini_wikipedia, pubmedqa).
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.questions import load_sets, pools_of
from benchmarks.runner import Measured, at_least, note, numbers, text_table
from mio_rag.allocation import price_for
from mio_rag.allocation.pacer import Pacer
from mio_rag.allocation.workload import PricedQuestion
from mio_rag.measures import evidence_found
from mio_rag.pool import Candidates
from mio_rag.selection.selector import Selector
from mio_rag.solvers import SolveOptions
from mio_rag.solvers.registry import solve
from mio_rag.types import Question

DAYS = ("first day", "second day", "third day")
ORDERS = ("random", "easy first", "hard first", "bursts")
_BURST, _PARTS = 25, 10
_DAY = 86400.0
_WRONG = 1.3


@dataclasses.dataclass(frozen=True)
class Asked:
    """A question, its pool and its set; solved programs by ceiling."""

    question: Question
    pool: Candidates
    of: str
    known: dict[int, PricedQuestion] = dataclasses.field(default_factory=dict, compare=False, repr=False)


@dataclasses.dataclass(frozen=True)
class Read:
    """The value of what a question read without the price of its tokens, tokens, share of its evidence."""

    value: float
    tokens: int
    evidence: float


def measure(given: argparse.Namespace) -> Measured:
    """Pace several days; a total that was exceeded is wrong."""
    at_least(given, limit=1, draws=1)
    sets = []
    for one in load_sets(given):
        found = pools_of(one, 2 * given.limit)
        sets.append([Asked(q, pool, one.name) for q, pool in zip(found.questions, found.pools, strict=True)])
    selector = Selector(options=SolveOptions(time_limit_seconds=1.0, relative_gap=1e-3))
    results = {
        str(mean): _at(selector, sets, given.limit, mean, given.most, given.draws)
        for mean in numbers("--tokens", given.tokens, int)
    }
    report = {
        "sets": [of[0].of for of in sets],
        "results": results,
        "decisions": decisions_a_second(given.processes),
    }
    wrong = sum(row["most_spent"] > 1 for one in results.values() for row in one["rows"].values())
    return Measured(report, _table(report), wrong=wrong)


def _at(
    selector: Selector, sets: Sequence[Sequence[Asked]], limit: int, mean: int, most: int, draws: int
) -> dict[str, Any]:
    """Run everything at one total."""
    shares: dict[str, list[tuple[float, float, float]]] = {}
    reported = []
    for draw in range(draws):
        today, yesterday = _shared_out(sets, limit, draw)
        total = mean * len(today)
        best, bound, price = offline(selector, today, total, most)
        found = price_for([asked.pool for asked in yesterday], mean, selector=selector, ceilings=most)
        forecasts = {
            name: (found.token_price, factor * found.at.mean_tokens)
            for name, factor in (("forecast", 1.0), ("wrong forecast", _WRONG))
        }
        forecast = dict(zip(("price", "mean_tokens"), forecasts["forecast"], strict=True))
        reported.append({"best_price": price, **forecast})
        runs = {"best split": best, "one budget": [read(selector, asked, 0.0, mean) for asked in today]}
        efforts = [one.tokens for one in best]
        earlier = [read(selector, asked, price, most).tokens for asked in yesterday]
        for kind in ORDERS:
            last = [today[k] for k in order(kind, today, efforts, 100 + draw)]
            days = [[yesterday[k] for k in order(kind, yesterday, earlier, s + draw)] for s in (300, 200)]
            for count, name in enumerate(DAYS, 1):
                runs[f"{name}, {kind}"] = paced(selector, [*days, last][-count:], total, most)
            for name, expected in forecasts.items():
                runs[f"{name}, {kind}"] = paced(selector, [last], total, most, *expected)
            runs[f"even rate, {kind}"] = [
                one
                for part in np.array_split(np.arange(len(last)), min(_PARTS, len(last)))
                for one in offline(selector, [last[k] for k in part], mean * len(part), most)[0]
            ]
        for name, run in runs.items():
            share = (sum(r.value for r in run) / bound, sum(r.tokens for r in run) / total)
            shares.setdefault(name, []).append((*share, float(np.mean([r.evidence for r in run]))))
        note(f"{mean} tokens a question: draw {draw + 1} of {draws}")
    rows = {}
    for name, of in shares.items():
        value, spent, evidence = np.array(of).T
        rows[name] = {
            "share_of_bound": float(value.mean()), "worst_share": float(value.min()),
            "spent": float(spent.mean()), "most_spent": float(spent.max()),
            "evidence": float(evidence.mean()),
        }  # fmt: skip
    return {"draws": reported, "rows": rows}


def _shared_out(sets: Sequence[Sequence[Asked]], limit: int, draw: int) -> tuple[list[Asked], list[Asked]]:
    """Deal the questions to the day that is reported and to the day before."""
    rng = np.random.default_rng(draw)
    today: list[Asked] = []
    yesterday: list[Asked] = []
    for of in sets:
        half, mixed = min(limit, len(of) // 2), rng.permutation(len(of))
        today += [of[k] for k in mixed[:half]]
        yesterday += [of[k] for k in mixed[half : 2 * half]]
    return today, yesterday


def read(selector: Selector, asked: Asked, price: float, allowed: int) -> Read:
    """Read a question at a price; its tokens are the sum over its passages."""
    if allowed < 1:
        return Read(0.0, 0, evidence_found(asked.question, asked.pool, ()))
    question = asked.known.get(allowed)
    if question is None:
        question = asked.known[allowed] = PricedQuestion(selector, asked.pool, 1.0, 0, allowed)
    probe = question.known(price)
    if probe is None:
        probe = question.learn(price, solve(question.program(price), selector.solver, selector.options))
    found = probe.decided
    chosen = [] if found.x is None else np.flatnonzero(found.x[: len(asked.pool)]).tolist()
    return Read(found.value, found.tokens, evidence_found(asked.question, asked.pool, chosen))


def offline(
    selector: Selector, questions: Sequence[Asked], total: int, most: int, steps: int = 16
) -> tuple[list[Read], float, float]:
    """Find the best price in hindsight by bisection: what is read, the bound on any split, and the price."""
    low, high = 0.0, 1.0
    best = [read(selector, asked, high, most) for asked in questions]
    bound = np.inf
    for _ in range(steps):
        price = (low + high) / 2 if low > 0 else high / 8
        found = [read(selector, asked, price, most) for asked in questions]
        bound = min(bound, sum(one.value - price * one.tokens for one in found) + price * total)
        if sum(one.tokens for one in found) <= total:
            high, best = price, found
        else:
            low = price
    return best, float(bound), high


def order(kind: str, questions: Sequence[Asked], efforts: Sequence[int], seed: int) -> NDArray[np.int64]:
    """Return a permutation of the questions."""
    rng = np.random.default_rng(seed)
    mixed = rng.permutation(len(questions))
    if kind == "random":
        return mixed
    if kind in ("easy first", "hard first"):
        key = np.asarray(efforts)[mixed] * (1 if kind == "easy first" else -1)
        return mixed[np.argsort(key, kind="stable")]
    of = np.array([asked.of for asked in questions])[mixed]
    runs = [
        mixed[of == name][start : start + _BURST]
        for name in dict.fromkeys(asked.of for asked in questions)
        for start in range(0, int((of == name).sum()), _BURST)
    ]
    return np.concatenate([runs[k] for k in rng.permutation(len(runs))])


def paced(
    selector: Selector,
    days: Sequence[Sequence[Asked]],
    total: int,
    most: int,
    price: float | None = None,
    mean_tokens: float | None = None,
) -> list[Read]:
    """Return what the questions of the last day read, with a pacer that has seen the days before it."""
    now = 0.0
    pacer = Pacer(total, len(days[-1]), "day", price, mean_tokens=mean_tokens, most=most, clock=lambda: now)
    found: list[Read] = []
    for number, day in enumerate(days):
        found = []
        for k, asked in enumerate(day):
            now = _DAY * (number + k / len(day))
            reservation = pacer.ask()
            found.append(read(selector, asked, *reservation))
            pacer.spent(reservation, found[-1].tokens)
    return found


def _table(report: Mapping[str, Any]) -> str:
    results = report["results"]
    heads = ("value as a share of the bound (worst draw), spent, evidence", *(f"{n} tokens" for n in results))
    names = next(iter(results.values()))["rows"]
    cells = [
        (
            name,
            *(
                f"{r['share_of_bound']:.3f} ({r['worst_share']:.3f}) {r['spent']:.3f} {r['evidence']:.3f}"
                for r in (one["rows"][name] for one in results.values())
            ),
        )
        for name in names
    ]
    rate = report["decisions"]
    return (
        f"{text_table(heads, cells)}\n\n{rate['processes']} processes on one file: {rate['a_second']:.0f} "
        f"questions a second; alone {1e3 * rate['alone_median_seconds']:.2f} ms a transaction"
    )


# Processes that share one pacer's file ---------------------------------------------------------------------


def decisions_a_second(processes: int = 4, questions: int = 2000) -> dict[str, Any]:
    """Ask and settle from several processes at once, and from one alone."""
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("spawn")
        path, total = Path(folder) / "pacer.sqlite", 10**9
        start, found = context.Barrier(processes), context.Queue()
        args = (path, total, questions, start, found)
        started = [context.Process(target=_work, args=args) for _ in range(processes)]
        for process in started:
            process.start()
        reported = [found.get() for _ in started]
        for process in started:
            process.join()
        alone = _transactions(Pacer(total, questions, path=Path(folder) / "alone.sqlite"), questions)
    seconds = np.concatenate([one[2] for one in reported])
    return {
        "processes": processes,
        "questions": processes * questions,
        "a_second": processes
        * questions
        / (max(one[1] for one in reported) - min(one[0] for one in reported)),
        "median_seconds": float(np.median(seconds)),
        "p95_seconds": float(np.quantile(seconds, 0.95)),
        "alone_median_seconds": float(np.median(alone)),
    }


def _work(path: Path, total: int, questions: int, start: Any, found: Any) -> None:
    pacer = Pacer(total, questions, path=path)
    start.wait()
    began = time.time()
    seconds = _transactions(pacer, questions)
    found.put((began, time.time(), seconds))


def _transactions(pacer: Pacer, questions: int) -> list[float]:
    seconds = []
    for _ in range(questions):
        began = time.perf_counter()
        reservation = pacer.ask()
        asked = time.perf_counter()
        pacer.spent(reservation, 500)
        seconds += [asked - began, time.perf_counter() - asked]
    return seconds
