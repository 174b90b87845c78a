"""`python -m benchmarks pacing`: a pacer against the best split of the same total in hindsight.

Questions of several sets come in one stream. What they are worth is what the programs say: the evidence that
is expected of what is read. The bound is a Lagrangian one: for every price, the values less price times
tokens of all questions, plus price times total. Nothing that keeps to the total is worth more.

    one budget     every question has the same budget, total / questions, and tokens cost nothing
    first day      a pacer that begins at its first price
    second day     one that has seen a day of other questions of these sets, in the same kind of order
    third day      one that has seen two: those others, and those others in another order of that kind
    forecast       one that begins with the price and mean tokens that `price_for` finds on those others
    wrong forecast likewise, with mean tokens that are 1.3 times what those take
    even rate      the best split in hindsight that gives each tenth of the questions a tenth of the total:
                   what can be had where all that is known is that the total has to last

The days before are of the same mix, and every draw shares the questions out anew among today and the days
before: how far days differ decides what a forecast is worth. Of a set with few questions each has half.
Orders: random; easy first and hard first, by tokens at the best price; bursts, 25 questions of one set at a
time. The constants of the pacer were chosen with questions of other sets (hotpotqa, mini_wikipedia and
pubmedqa; that of the step with seed 7 of hotpotqa, mini_wikipedia, nq_open and musique).
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.default.models import pools_of
from benchmarks.options import numbers
from benchmarks.price.decisions import decisions_a_second
from benchmarks.runner import Measured
from mio_rag.allocation import price_for
from mio_rag.allocation.pacer import Pacer
from mio_rag.allocation.pacer_forecast import Forecast
from mio_rag.allocation.workload import PricedQuestion
from mio_rag.corpora.load import load_dataset
from mio_rag.errors import InputError
from mio_rag.measures import evidence_found
from mio_rag.pool import Candidates
from mio_rag.retrieval import CorpusIndex
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
    """A question, what was found for it, the set that it is of, and what is known of it by its ceiling."""

    question: Question
    pool: Candidates
    of: str
    known: dict[int, PricedQuestion] = dataclasses.field(default_factory=dict, compare=False, repr=False)


@dataclasses.dataclass(frozen=True)
class Read:
    """What a question got: value without the price of its tokens, tokens, share of its evidence."""

    value: float
    tokens: int
    evidence: float


@dataclasses.dataclass(frozen=True)
class Share:
    """What a day reached: value as a share of the bound, tokens as one of the total, mean evidence."""

    value: float
    spent: float
    evidence: float


def command(given: argparse.Namespace) -> Measured:
    """Run it, then write JSON and table; the exit status is 1 where a total was exceeded."""
    names = [name.strip() for name in given.sets.split(",") if name.strip()]
    asked = _questions(given, names)
    selector = Selector(options=SolveOptions(time_limit_seconds=1.0, relative_gap=1e-3))
    results = {}
    for mean in numbers("--tokens", given.tokens, int):
        results[str(mean)] = _at(selector, asked, given.limit, mean, given.most, given.draws)
        print(f"{mean} tokens a question: done", file=sys.stderr, flush=True)
    report = {
        "sets": names,
        "questions": sum(_half(of, given.limit) for of in asked),
        "seed": given.seed,
        "draws": given.draws,
        "most": given.most,
        "counter": "regex",
        "results": results,
        "decisions": decisions_a_second(),
    }
    wrong = sum(row["most_spent"] > 1 for one in results.values() for row in one["rows"].values())
    return Measured(report, table(report), wrong=wrong)


def _questions(given: argparse.Namespace, names: Sequence[str]) -> list[list[Asked]]:
    """The questions of each set, enough for two days."""
    sets = []
    for name in names:
        index = CorpusIndex.load(given.indexes / f"{name}-minilm")
        found = pools_of(load_dataset(given.data / name), index, 2 * given.limit, given.seed)
        if len(found.questions) < 2:
            raise InputError(
                f"'{name}' has {len(found.questions)} questions: two are needed, one for each day"
            )
        sets.append([Asked(q, pool, name) for q, pool in zip(found.questions, found.pools, strict=True)])
        print(f"{name}: {len(sets[-1])} pools", file=sys.stderr, flush=True)
    return sets


def _half(of: Sequence[Asked], limit: int) -> int:
    return min(limit, len(of) // 2)


def _shared_out(sets: Sequence[Sequence[Asked]], limit: int, draw: int) -> tuple[list[Asked], list[Asked]]:
    """Questions of the day that is reported, and others of the day before."""
    rng = np.random.default_rng(draw)
    today: list[Asked] = []
    yesterday: list[Asked] = []
    for of in sets:
        half, mixed = _half(of, limit), rng.permutation(len(of))
        today += [of[k] for k in mixed[:half]]
        yesterday += [of[k] for k in mixed[half : 2 * half]]
    return today, yesterday


def _at(
    selector: Selector, sets: Sequence[Sequence[Asked]], limit: int, mean: int, most: int, draws: int
) -> dict[str, Any]:
    """Everything at one total, a question in the mean."""
    shares: dict[str, list[Share]] = {}
    told = []
    for draw in range(draws):
        today, yesterday = _shared_out(sets, limit, draw)
        total = mean * len(today)
        best, bound, price = offline(selector, today, total, most)
        found = price_for([asked.pool for asked in yesterday], mean, selector=selector, ceilings=most)
        forecasts = {
            name: Forecast(found.token_price, factor * found.at.mean_tokens)
            for name, factor in (("forecast", 1.0), ("wrong forecast", _WRONG))
        }
        takes = float(np.mean([read(selector, asked, found.token_price, most).tokens for asked in today]))
        told.append({"best_price": price, **dataclasses.asdict(forecasts["forecast"]), "day_takes": takes})
        runs = {"best split": best, "one budget": [read(selector, asked, 0.0, mean) for asked in today]}
        efforts = (
            [one.tokens for one in best],
            [read(selector, asked, price, most).tokens for asked in yesterday],
        )
        for kind in ORDERS:
            last = [today[k] for k in order(kind, today, efforts[0], 100 + draw)]
            days = [
                *([yesterday[k] for k in order(kind, yesterday, efforts[1], s + draw)] for s in (300, 200)),
                last,
            ]
            for count, name in enumerate(DAYS, 1):
                runs[f"{name}, {kind}"] = paced(selector, days[-count:], total, most)
            for name, forecast in forecasts.items():
                runs[f"{name}, {kind}"] = paced(selector, [last], total, most, forecast)
            parts = [[last[k] for k in part] for part in np.array_split(np.arange(len(last)), _PARTS)]
            runs[f"even rate, {kind}"] = [
                one for part in parts for one in offline(selector, part, mean * len(part), most)[0]
            ]
        for name, run in runs.items():
            shares.setdefault(name, []).append(_share(run, bound, total))
        print(f"{mean} tokens a question: draw {draw + 1} of {draws}", file=sys.stderr, flush=True)
    return {"draws": told, "rows": {name: _row(of) for name, of in shares.items()}}


def read(selector: Selector, asked: Asked, price: float, allowed: int) -> Read:
    """A question at a price; its tokens are the sum over its passages."""
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
    """The best price in hindsight by bisection: what is read, the bound on any split, and the price."""
    low, high = 0.0, 1.0
    best = [read(selector, asked, high, most) for asked in questions]
    bound = np.inf
    for _ in range(steps):
        price = (low + high) / 2 if low > 0 else high / 8
        found = [read(selector, asked, price, most) for asked in questions]
        spent = sum(one.tokens for one in found)
        bound = min(bound, sum(one.value - price * one.tokens for one in found) + price * total)
        if spent <= total:
            high, best = price, found
        else:
            low = price
    return best, float(bound), high


def order(kind: str, questions: Sequence[Asked], efforts: Sequence[int], seed: int) -> NDArray[np.int64]:
    """A permutation of the questions."""
    rng = np.random.default_rng(seed)
    mixed = rng.permutation(len(questions))
    if kind == "random":
        return mixed
    if kind in ("easy first", "hard first"):
        key = np.asarray(efforts)[mixed] * (1 if kind == "easy first" else -1)
        return mixed[np.argsort(key, kind="stable")]
    runs = [
        [k for k in mixed if questions[k].of == name][start : start + _BURST]
        for name in dict.fromkeys(asked.of for asked in questions)
        for start in range(0, sum(asked.of == name for asked in questions), _BURST)
    ]
    return np.concatenate([runs[k] for k in rng.permutation(len(runs))])


def paced(
    selector: Selector,
    days: Sequence[Sequence[Asked]],
    total: int,
    most: int,
    forecast: Forecast | None = None,
) -> list[Read]:
    """What the questions of the last day read, with a pacer that has seen the days before it."""
    now = 0.0
    pacer = Pacer(
        total,
        len(days[-1]),
        "day",
        forecast.price if forecast else None,
        mean_tokens=forecast.mean_tokens if forecast else None,
        most=most,
        clock=lambda: now,
    )
    found: list[Read] = []
    for number, day in enumerate(days):
        found = []
        for k, asked in enumerate(day):
            now = _DAY * (number + k / len(day))
            reservation = pacer.ask()
            found.append(read(selector, asked, *reservation))
            pacer.spent(reservation, found[-1].tokens)
    return found


def _share(run: Sequence[Read], bound: float, total: int) -> Share:
    return Share(
        sum(one.value for one in run) / bound,
        sum(one.tokens for one in run) / total,
        float(np.mean([one.evidence for one in run])),
    )


def _row(shares: Sequence[Share]) -> dict[str, float]:
    """Means over the draws, and the worst of them."""
    values = [one.value for one in shares]
    return {
        "share_of_bound": float(np.mean(values)),
        "worst_share": min(values),
        "spent": float(np.mean([one.spent for one in shares])),
        "most_spent": max(one.spent for one in shares),
        "evidence": float(np.mean([one.evidence for one in shares])),
    }


def table(report: Mapping[str, Any]) -> str:
    """The figures as text."""
    lines = [
        f"{report['questions']} questions a day of {', '.join(report['sets'])}; value as a share of a bound "
        f"on any split of the total; means (and worst) of {report['draws']} draws",
        "",
        f"{'tokens a question':>26}" + "".join(f"{mean:>34}" for mean in report["results"]),
        f"{'':26}" + f"{'value (worst)   spent  evidence':>34}" * len(report["results"]),
    ]
    for name in next(iter(report["results"].values()))["rows"]:
        cells = [one["rows"][name] for one in report["results"].values()]
        lines.append(
            f"{name:26}"
            + "".join(
                f"{c['share_of_bound']:14.3f} ({c['worst_share']:.3f}){c['spent']:8.3f}{c['evidence']:8.3f}  "
                for c in cells
            )
        )
    said = report["decisions"]
    lines += [
        "",
        f"{said['processes']} processes on one file: {said['a_second']:.0f} questions a second, each two "
        f"transactions; one takes {1e3 * said['median_seconds']:.2f} ms (median), "
        f"{1e3 * said['p95_seconds']:.2f} ms (95 %), waiting included; alone "
        f"{1e3 * said['alone_median_seconds']:.2f} ms",
    ]
    return "\n".join(lines)
