"""A total of tokens shared among the rows of Parquet files, in memory that does not grow with pools.

The price is estimated on a sample. Every row is then solved at it, by any engine; the selection, and those of
one passage less and one more, are kept as options. Once the options of all rows are known, each gets one of
them: tokens are counted over all rows, so that the total holds whatever the sample said. Should the sample
have been so far off that the options do not reach the total, the rows are solved again at another price: the
one at which the sample spends as much less, or more.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from mio_rag.allocation.question import selector_problems
from mio_rag.batch.job import BatchSummary, Engine, Group, Job, groups_of, input_files
from mio_rag.batch.sample import sampled_prices
from mio_rag.batch.schema import MOST_BUDGET
from mio_rag.batch.sharing import Shares, shared, written
from mio_rag.batch.stages import (
    Progress,
    claim,
    counted,
    gather,
    open_groups,
    prepare,
    run,
    shards_of,
)
from mio_rag.batch.work import shard_state
from mio_rag.errors import DataError, InputError, SolverError
from mio_rag.files import locked, write_atomically
from mio_rag.formulations.rows import count_problem
from mio_rag.selection.selector import Selector
from mio_rag.solvers.registry import check_name

__all__ = ["AllocationSummary", "allocate_batch"]

_ROUNDS = 12
_WIDER = 16.0  # how far the next round's price lies from this one's, should the total lie outside
_SMALLEST = 1e-6
_TRIED = 40  # prices that a sample takes, about


@dataclass(frozen=True)
class AllocationSummary(BatchSummary):
    """What an allocation has come to.

    Parameters
    ----------
    total_tokens, tokens_used : int
        What there was; of all answered rows, never above it.
    token_price : float
        mu of the best bound.
    value : float
        Sum of weight times value over all answered rows.
    bound : float or None
        Proven: no allocation of the total to the answered rows is worth more.
    gap : float or None
        (bound - value) / |value|; None without a bound, or where only the value is 0.
    prices : tuple of float
        At which every row was solved.
    rounds : int
        1 unless the sample was far off.
    """

    total_tokens: int
    tokens_used: int
    token_price: float
    value: float
    bound: float | None
    gap: float | None
    prices: tuple[float, ...]
    rounds: int


def allocate_batch(
    candidates: str | Path,
    out: str | Path,
    total_tokens: int,
    selector: Selector | None = None,
    *,
    weighted: bool = False,
    floor: int = 0,
    ceiling: int | None = None,
    sample: int = 2000,
    engine: Engine = "local",
    workers: int = 1,
    columns: Mapping[str, str] | None = None,
    shard_rows: int = 5000,
    progress: Progress | None = None,
) -> AllocationSummary:
    """Share a total of tokens among all rows of Parquet files; resumes an interrupted run.

    Parameters
    ----------
    candidates, out, engine, workers, columns, shard_rows
        As in `mio_rag.batch.select_batch`. Shards have further columns: weight, value (without the price of
        tokens) and token_price (at which objective, bound and gap are the row's own). Where texts are merged,
        the total is kept by what is read, and the bound stands for costs as the programs sum them up.
    total_tokens : int
        Of all rows together.
    selector : Selector, optional
        Without a token price. Its seed draws the sample.
    weighted : bool
        Whether the column "weight" says what each row counts, from 1e-9 to 1e9.
    floor : int
        Fewest tokens of a row.
    ceiling : int, optional
        Most tokens of a row that brings no `budget_tokens` of its own.
    sample : int
        Rows on which the price is estimated, >= 1. A larger one comes closer, which narrows the gap; all rows
        at most. Their pools are in memory at once.
    progress : callable, optional
        Called with ("reading", "pricing", "selecting" or "writing", total, done).

    Returns
    -------
    AllocationSummary

    Raises
    ------
    InputError
        As `select_batch`, and for a total below the shortest passage or what must be chosen.
    SolverError
        If worker processes cannot be started.

    Notes
    -----
    Deterministic as long as no program meets its time limit. Prices are kept as soon as they are known.
    """
    began = time.perf_counter()
    chosen = selector or Selector()
    _check(total_tokens, floor, ceiling, sample, workers, shard_rows, engine, chosen)
    check_name(chosen.solver)
    names, folder = dict(columns or {}), Path(out)
    if weighted:
        names.setdefault("weight", "weight")
    files = input_files(Path(candidates))
    groups, kinds = groups_of(files, chosen, names, weighted=weighted)
    told = {
        "total_tokens": int(total_tokens), "floor": int(floor), "ceiling": ceiling, "sample": int(sample)
    }  # fmt: skip
    most = MOST_BUDGET if ceiling is None else int(ceiling)
    final = Job(folder.resolve(), chosen, most, names, kinds, int(shard_rows), floor=int(floor), told=told)
    tell = progress or (lambda kind, total, done: None)
    with locked(folder):
        claim(final, files, tell)
        prepare(folder)
        rows = groups[-1].first_row + groups[-1].rows
        if (known := _finished(final, groups)) is not None:
            return replace(known, done_before=rows, seconds=time.perf_counter() - began)
        work = _Work(final, groups, int(total_tokens), engine, workers, tell)
        prices = work.prices(sample)
        while (shares := work.shares(prices, sample)) is None:
            prices = work.prices(sample)
        job = work.job(prices)
        rejected, _ = counted(job, groups)
        tell("writing", rows, 0)
        tokens, value, statuses = written(
            job, final, groups, shares, lambda done: tell("writing", rows, done)
        )
        if tokens > total_tokens:
            raise SolverError(f"the shards in '{folder}' hold {tokens} tokens: delete them and run again")
        gather(job, groups)
        os.replace(job.out / "rejected.jsonl", folder / "rejected.jsonl")
        bound = max(value, shares.bound(prices, int(total_tokens)))
        best = min(range(len(prices)), key=lambda k: shares.relaxed[k] + prices[k] * int(total_tokens))
        proven = math.isfinite(bound)
        missing = bound - value
        summary = AllocationSummary(
            folder,
            engine,
            workers,
            rows,
            rejected,
            work.before,
            dict(sorted(statuses.items())),
            time.perf_counter() - began,
            (rows - work.before) / work.taken if work.taken else 0.0,
            work.cpu,
            work.peak,
            int(total_tokens),
            tokens,
            prices[best],
            value,
            bound if proven else None,
            0.0 if missing == 0 else missing / abs(value) if proven and value else None,
            prices,
            work.rounds,
        )
        write_atomically(folder / "summary.json", json.dumps(summary.to_dict(), indent=1))
        _clear(final)
    return summary


class _Work:
    """The rounds of one allocation; all but the last are rarely needed."""

    def __init__(
        self,
        final: Job,
        groups: list[Group],
        total_tokens: int,
        engine: Engine,
        workers: int,
        tell: Progress,
    ) -> None:
        self.final, self.groups, self.total, self.engine = final, groups, total_tokens, engine
        self.workers, self.tell = workers, tell
        self.rounds, self.before, self.cpu, self.taken = 0, 0, 0.0, 0.0
        self.peak: float | None = 0.0
        self._record = final.out / "prices.json"
        self._fewest: list[int] = []
        self._next: tuple[float, ...] | None = None
        self._over: float | None = None  # the highest price known at which more than the total is spent
        self._under: float | None = None  # the lowest at which less is

    def prices(self, sample: int) -> tuple[float, ...]:
        """Those of the next round, as they were first found."""
        known: list[list[float]] = []
        if self._record.is_file():
            try:
                known = json.loads(self._record.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise DataError(f"'{self._record}' cannot be read ({error}): delete it") from error
        if len(known) <= self.rounds:
            found = self._next or self._estimated(sample, self.total)
            known = [*known, list(found)]
            write_atomically(self._record, json.dumps(known))
        self.rounds += 1
        return tuple(known[self.rounds - 1])

    def _estimated(self, sample: int, total: float) -> tuple[float, ...]:
        done = 0

        def told(_: str) -> None:
            nonlocal done
            if done < _TRIED - 1:
                done += 1
                self.tell("pricing", _TRIED, 1)

        found = sampled_prices(self.final, self.groups, total, sample, max(1, self.workers), told)
        self.tell("pricing", _TRIED, _TRIED - done)
        return found

    def job(self, prices: tuple[float, ...]) -> Job:
        """The options of a round."""
        return replace(self.final, out=self.final.out / f"options-{self.rounds}", prices=prices)

    def shares(self, prices: tuple[float, ...], sample: int) -> Shares | None:
        """What each row gets; None where the total lies outside its options.

        Raises
        ------
        InputError
            If what must be chosen takes more than the total.
        """
        job = self.job(prices)
        job.out.mkdir(exist_ok=True)
        prepare(job.out)
        total = self.groups[-1].first_row + self.groups[-1].rows
        todo, before = open_groups(job, self.groups)
        self.tell("selecting", total, before)
        began = time.perf_counter()
        cpu, peak = run(
            job, todo, self.engine, self.workers, lambda rows: self.tell("selecting", total, rows)
        )
        self.taken += time.perf_counter() - began
        self.before, self.cpu = before, self.cpu + cpu
        self.peak = None if peak is None or self.peak is None else max(self.peak, peak)
        counted(job, self.groups)
        found = shared(job, self.groups, self.total)
        if found.shortest is not None and found.shortest > self.total:
            raise InputError(
                f"total_tokens={self.total} is below the shortest passage of all rows, {found.shortest} "
                "tokens: raise it, or split passages"
            )
        over, under = found.fewest > self.total, found.most < self.total and prices[-1] > 0
        if over:
            self._over = prices[0]
        if under:
            self._under = prices[-1]
        if (over or under) and self.rounds == 1 and len(prices) == 1:
            # All rows spend another multiple of the total than the sample does.
            seen = max(1, found.fewest + found.most) / 2
            self._next = self._estimated(sample, self.total**2 / seen)
            return None
        if over:
            self._fewest.append(found.fewest)
            if self.rounds == _ROUNDS or (self.rounds > 2 and self._fewest[-2:] == [found.fewest] * 2):
                raise InputError(
                    f"total_tokens={self.total} is too little: what must be chosen (must_include, "
                    f"min_passages, floor) takes {found.fewest} tokens at least; raise it, or ask for less"
                )
            self._next = (self._under or max(_WIDER * prices[0], _SMALLEST), prices[0])
            return None
        if under and self.rounds < _ROUNDS:
            lower = prices[-1] / _WIDER if self.rounds < 3 else 0.0
            self._next = (prices[-1], lower if self._over is None else self._over)
            return None
        return found


def _clear(final: Job) -> None:
    """Remove what only an unfinished run needs."""
    for folder in (*final.out.glob("options-*"), final.out / "work", final.out / "rejected"):
        shutil.rmtree(folder, ignore_errors=True)


def _finished(final: Job, groups: list[Group]) -> AllocationSummary | None:
    """The summary of a run that came to its end; None where anything is missing."""
    path = final.out / "summary.json"
    if not path.is_file() or any(
        shard_state(final, g, start) is None for g, start, _ in shards_of(final, groups)
    ):
        return None
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        found = AllocationSummary(**{**held, "out": final.out, "prices": tuple(held["prices"])})
    except (OSError, ValueError, LookupError, TypeError):
        return None
    _clear(final)
    return found


def _check(
    total_tokens: int,
    floor: int,
    ceiling: int | None,
    sample: int,
    workers: int,
    shard_rows: int,
    engine: str,
    selector: Selector,
) -> None:
    problems = selector_problems(selector)
    for name, value, least in (
        ("total_tokens", total_tokens, 1), ("floor", floor, 0), ("ceiling", ceiling, 1),
        ("sample", sample, 1), ("workers", workers, 0), ("shard_rows", shard_rows, 1),
    ):  # fmt: skip
        if value is None:
            continue
        problem = count_problem(name, value)
        if problem is None and value < least:
            problem = f"{name}={value!r} must be >= {least}"
        if problem is None and value > MOST_BUDGET:
            problem = f"{name}={value} must be at most {MOST_BUDGET:.0e}"
        problems += [problem] if problem else []
    if not problems and ceiling is not None and floor > ceiling:
        problems.append(f"floor={floor} is above ceiling={ceiling}: lower the floor or raise the ceiling")
    if engine not in get_args(Engine):
        problems.append(f"engine={engine!r} is unknown: choose local or ray")
    if problems:
        raise InputError(problems)
