"""Share a total of tokens among the rows of Parquet files, in memory that does not grow with pools.

The price is estimated on a sample. Every row is then solved at it, by any engine; the selection, and those of
one passage less and one more, are stored as options. Once the options of all rows are known, each row gets
one of them: tokens are counted over all rows, so that the total holds whatever the sample was. Should the
options not reach the total, the rows are solved again at another price: the one at which the sample spends as
much less, or more.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.allocation.workload import PricedQuestion, Told, Workload, selector_problems
from mio_rag.batch.job import (
    BatchSettings,
    BatchSummary,
    Engine,
    Group,
    Job,
    groups_of,
    input_files,
    open_parquet,
    question_of,
)
from mio_rag.batch.rows import MOST_BUDGET, read_rows
from mio_rag.batch.run import (
    Progress,
    batches_of,
    claim,
    gather,
    prepare,
    run,
    shard_paths,
    shard_state,
    shards_of,
    write_shard,
)
from mio_rag.errors import DataError, InputError, MioRagError, SolverError, collect, require
from mio_rag.selection.selector import Selector
from mio_rag.solvers.registry import check_name
from mio_rag.storage import locked, write_atomically

#: Columns of a shard of the allocation; those of the chosen option follow.
COLUMNS = {"row": "int64", "query_id": "string", "weight": "double", "budget_tokens": "int64"}
#: Relative error of an estimated price: far less than that of the sample.
_CLOSE = 1e-3
_BLOCK = 1 << 16  # steps that are Python objects at a time
_ROUNDS = 12
_WIDER = 16.0  # factor of the next round's price, should the total lie outside
_SMALLEST = 1e-6
_TRIED = 40  # prices that a sample takes, about


# The price ------------------------------------------------------------------------------------------------


def sampled_prices(
    job: Job, groups: Sequence[Group], total_tokens: float, sample: int, workers: int, told: Told
) -> tuple[float, ...]:
    """Estimate the price at which all rows together spend about the total; `sample`: rows.

    Where the sample is the whole, it returns two neighbouring prices: at the lower one they spend more.
    Raises `InputError` if no row of the sample can be used.
    """
    rows = groups[-1].first_row + groups[-1].rows
    size = min(sample, rows)
    drawn = np.sort(np.random.default_rng(job.selector.options.seed).choice(rows, size, replace=False))
    questions = _questions(job, groups, drawn)
    if not questions:
        raise InputError(
            f"none of {size} sampled rows can be used: run `batch select` on some of them to learn why"
        )
    workload = Workload(questions, job.selector, workers=workers, told=told)
    whole, total = size == rows, max(0, math.floor(total_tokens * size / rows))
    try:
        below, above = workload.bracket(total, 0.0 if whole else _CLOSE, workload.roughly(total))
        high, low = above.price, below.price if below else 0.0
    except InputError:  # what must be chosen takes more in this sample: the highest price; all rows decide
        high, low = workload.at(max(workload.tried)).price, 0.0
    return tuple(sorted({high, low}, reverse=True)) if whole else (high,)


def _questions(job: Job, groups: Sequence[Group], drawn: NDArray[np.int64]) -> list[PricedQuestion]:
    """The questions of the drawn rows that can be used; rejected rows spend nothing."""
    arrow: Any = require("pyarrow", "batch", "batches")
    found = []
    for group in groups:
        inside = drawn[(drawn >= group.first_row) & (drawn < group.first_row + group.rows)] - group.first_row
        position = 0
        for batch in batches_of(job, group) if inside.size else ():
            here = inside[(inside >= position) & (inside < position + batch.num_rows)] - position
            position += batch.num_rows
            # Taken out: a slice would keep the strings of all rows.
            for row in read_rows(batch.take(arrow.array(here)), job.kinds, job.names) if here.size else ():
                try:
                    found.append(question_of(job, row))
                except MioRagError:
                    continue
    return found


# Sharing the total ----------------------------------------------------------------------------------------


@dataclass
class Shares:
    """The option of each row, and what follows.

    steps: option of each row, shape (rows,).
    fewest, most: tokens if every row had its first, or its last option.
    shortest: tokens of the shortest passage of all rows; None where no row is answered.
    tokens: that all rows take of the total.
    relaxed: sum of the proven bounds at each price of the job.
    """

    steps: NDArray[np.int8]
    fewest: int = 0
    most: int = 0
    shortest: int | None = None
    tokens: int = 0
    relaxed: tuple[float, ...] = ()


def shared(job: Job, groups: Sequence[Group], total_tokens: int) -> Shares:
    """Choose an option for each row; where even the first ones exceed the total, the first ones."""
    found = Shares(np.zeros(groups[-1].first_row + groups[-1].rows, dtype=np.int8))
    sums: list[list[float]] = [[] for _ in job.prices]
    parts: list[tuple[NDArray[Any], ...]] = []
    inner = [f"options.list.element.{name}" for name in ("charged", "value")]
    for group, start, _ in shards_of(job, groups):
        table = _read(job, group, start, ["row", "weight", "relaxed", "shortest", *inner])
        lists = table["options"].combine_chunks()
        tokens, value = (lists.flatten().field(name).to_numpy() for name in ("charged", "value"))
        ends = np.cumsum(lists.value_lengths().to_numpy(zero_copy_only=False))
        begins = np.concatenate([[0], ends[:-1]]).astype(np.int64)
        owner = np.repeat(np.arange(len(ends)), ends - begins)
        places = np.arange(len(tokens)) - begins[owner]
        rows, weights = table["row"].to_numpy(), table["weight"].to_numpy()
        found.fewest += int(tokens[begins].sum())
        found.most += int(tokens[ends - 1].sum())
        shortest = [*table["shortest"].to_pylist(), found.shortest]
        found.shortest = min((one for one in shortest if one is not None), default=None)
        relaxed = np.array(table["relaxed"].to_pylist()).reshape(len(rows), -1)
        sums = [[math.fsum([*one, *relaxed[:, k]])] for k, one in enumerate(sums)]
        later = np.flatnonzero(places)
        gains = weights[owner[later]] * (value[later] - value[later - 1])
        later, gains = later[gains > 0], gains[gains > 0]
        parts.append((rows[owner[later]], places[later], tokens[later] - tokens[later - 1], gains))
    found.relaxed = tuple(math.fsum(one) for one in sums)
    found.tokens = found.fewest
    rows, places, more, gains = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.lexsort((places, rows, -gains / more))  # by value per token
    for begin in range(0, len(order), _BLOCK):
        block = order[begin : begin + _BLOCK]
        for row, place, tokens in zip(
            *(column[block].tolist() for column in (rows, places, more)), strict=True
        ):
            if found.steps[row] == place - 1 and found.tokens + tokens <= total_tokens:
                found.steps[row] = place
                found.tokens += tokens
    return found


def written(
    job: Job, final: Job, groups: Sequence[Group], shares: Shares, progress: Callable[[int], None]
) -> tuple[int, float, Counter[str]]:
    """Write the shards of the allocation from those of the options; return tokens, value and statuses.

    Raises `SolverError` if a shard of the options is missing, or they do not hold what was shared.
    """
    tokens, charged, values, statuses = 0, 0, [0.0], Counter[str]()
    schema = {**COLUMNS, **{name: kind for name, kind in job.schema["options"].items() if name != "charged"}}
    for group, start, count in shards_of(job, groups):
        made = []
        for row in _read(job, group, start, None).to_pylist():
            option = row["options"][shares.steps[row["row"]]]
            charged += option["charged"]
            tokens += option["tokens_used"]
            values.append(row["weight"] * option["value"])
            made.append({name: option.get(name, row.get(name)) for name in schema})
        here = Counter(row["status"] for row in made)
        state = {**(shard_state(job, group, start) or {}), "statuses": dict(sorted(here.items()))}
        path, _ = shard_paths(final, group, start)
        write_shard(path, schema, made, state)
        values = [math.fsum(values)]
        statuses += here
        progress(count)
    if charged != shares.tokens or tokens > charged:
        raise SolverError(f"the shards in '{final.out}' hold {tokens} tokens: delete them and run again")
    return tokens, values[0], statuses


def _read(job: Job, group: Group, start: int, columns: list[str] | None) -> Any:
    path, _ = shard_paths(job, group, start)
    if shard_state(job, group, start) is None:
        raise SolverError(f"shard '{path.name}' of the options is missing or damaged: run again")
    with open_parquet(path) as file:
        return file.read(columns)


# The run --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AllocationSummary(BatchSummary):
    """The result of an allocation.

    total_tokens, tokens_used: the limit, and what all answered rows use, never above it.
    token_price: mu of the best bound.
    value: sum of weight times value over all answered rows.
    bound: proven: no allocation of the total to the answered rows is worth more; None: nothing was proven.
    gap: (bound - value) / |value|; None without a bound, or where only the value is 0.
    prices: at which every row was solved.
    rounds: 1 unless the sample was far off.
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
    """Share a total of tokens among all rows of Parquet files; resume an interrupted run.

    candidates, out, engine, workers, columns, shard_rows: as in `mio_rag.batch.select_batch`. Shards have
        further columns: weight, value (without the price of tokens) and token_price (at which objective,
            bound
        and gap are the row's own). Where texts are merged, the total holds for what is read, and the bound
        for costs before merging.
    total_tokens: of all rows together.
    selector: without a token price. Its seed draws the sample.
    weighted: use the column "weight", from 1e-9 to 1e9, as the weight of each row.
    floor: fewest tokens of a row.
    ceiling: most tokens of a row without a `budget_tokens` of its own.
    sample: rows on which the price is estimated, >= 1; their pools are in memory at once. A larger one
        narrows the gap.
    progress: called with ("reading", "pricing", "selecting" or "writing", total, done).

    Deterministic as long as no program meets its time limit. Raises as `select_batch`, and `InputError` for a
    total below the shortest passage or what must be chosen.
    """
    began, chosen = time.perf_counter(), selector or Selector()
    collect(
        lambda: _check(chosen),
        lambda: BatchSettings(
            engine=engine, workers=workers, shard_rows=shard_rows, total_tokens=total_tokens, floor=floor,
            ceiling=ceiling, sample=sample,
        ),
    )  # fmt: skip
    check_name(chosen.solver)
    names, folder, total = dict(columns or {}), Path(out), int(total_tokens)
    if weighted:
        names.setdefault("weight", "weight")
    files = input_files(Path(candidates))
    groups, kinds = groups_of(files, chosen, names, weighted=weighted)
    told = {"total_tokens": total, "floor": int(floor), "ceiling": ceiling, "sample": int(sample)}
    most = MOST_BUDGET if ceiling is None else int(ceiling)
    final = Job(
        folder.resolve(), chosen.whole(), most, names, kinds, int(shard_rows), floor=int(floor), told=told
    )
    tell = progress or (lambda kind, total, done: None)
    with locked(folder):
        claim(final, files, tell)
        rows = groups[-1].first_row + groups[-1].rows
        if (known := _finished(final, groups)) is not None:
            return replace(known, done_before=rows, seconds=time.perf_counter() - began)
        job, shares, ran = _rounds(final, groups, total, sample, engine, workers, tell)
        tell("writing", rows, 0)
        tokens, value, statuses = written(
            job, final, groups, shares, lambda done: tell("writing", rows, done)
        )
        if tokens > total:
            raise SolverError(f"the shards in '{folder}' hold {tokens} tokens: delete them and run again")
        gather(job, groups, final.out)
        # At every price, no allocation of the total is worth more than this.
        bounds = [one + price * total for one, price in zip(shares.relaxed, job.prices, strict=True)]
        bound = max(value, min(bounds))
        proven, missing = math.isfinite(bound), bound - value
        peaks, seconds = [one.peak_worker_mb for one in ran], sum(one.seconds for one in ran)
        fields = {
            **vars(ran[-1]),
            "out": folder,
            "statuses": dict(sorted(statuses.items())),
            "seconds": time.perf_counter() - began,
            "rows_per_second": (rows - ran[-1].done_before) / seconds if seconds else 0.0,
            "worker_seconds": sum(one.worker_seconds for one in ran),
            "peak_worker_mb": None if None in peaks else max(peak for peak in peaks if peak is not None),
        }
        summary = AllocationSummary(
            **fields,
            total_tokens=total,
            tokens_used=tokens,
            token_price=job.prices[bounds.index(min(bounds))],
            value=value,
            bound=bound if proven else None,
            gap=0.0 if missing == 0 else missing / abs(value) if proven and value else None,
            prices=job.prices,
            rounds=len(ran),
        )
        write_atomically(folder / "summary.json", json.dumps(summary.to_dict(), indent=1))
        _clear(final)
    return summary


def _check(selector: Selector) -> None:
    if problems := selector_problems(selector):
        raise InputError(problems)


def _rounds(
    final: Job,
    groups: list[Group],
    total: int,
    sample: int,
    engine: Engine,
    workers: int,
    tell: Progress,
) -> tuple[Job, Shares, list[BatchSummary]]:
    """Solve all rows until the total lies within their options, usually once; the last job and its shares.

    The prices of each round are recorded, so that a resumed run takes those that were found first.
    """
    record, ran = final.out / "prices.json", list[BatchSummary]()
    fewest: list[int] = []
    over: float | None = None  # the highest price known at which more than the total is spent
    under: float | None = None  # the lowest at which less is
    given: tuple[float, ...] | None = None

    def estimated(tokens: float) -> tuple[float, ...]:
        done = 0

        def told(_: str) -> None:
            nonlocal done
            if done < _TRIED - 1:
                done += 1
                tell("pricing", _TRIED, 1)

        found = sampled_prices(final, groups, tokens, sample, max(1, workers), told)
        tell("pricing", _TRIED, _TRIED - done)
        return found

    while True:
        known: list[Any] = []
        if record.is_file():
            try:
                known = json.loads(record.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise DataError(f"'{record}' cannot be read ({error}): delete it") from error
        if len(known) <= len(ran):
            known = [*known, list(given or estimated(total))]
            write_atomically(record, json.dumps(known))
        prices = tuple(known[len(ran)])
        job = replace(final, out=final.out / f"options-{len(ran) + 1}", prices=prices)
        job.out.mkdir(exist_ok=True)
        prepare(job.out)
        ran.append(run(job, groups, engine, workers, tell))
        found = shared(job, groups, total)
        if found.shortest is not None and found.shortest > total:
            raise InputError(
                f"total_tokens={total} is below the shortest passage of all rows, {found.shortest} "
                "tokens: raise it, or split passages"
            )
        is_over, is_under = found.fewest > total, found.most < total and prices[-1] > 0
        over, under = prices[0] if is_over else over, prices[-1] if is_under else under
        if (is_over or is_under) and len(ran) == len(prices) == 1:
            # All rows spend another multiple of the total than the sample does.
            given = estimated(total**2 / max(1, (found.fewest + found.most) / 2))
        elif is_over:
            fewest.append(found.fewest)
            if len(ran) == _ROUNDS or (len(ran) > 2 and fewest[-2:] == [found.fewest] * 2):
                raise InputError(
                    f"total_tokens={total} is too little: what must be chosen (must_include, "
                    f"min_passages, floor) takes {found.fewest} tokens at least; raise it, or ask for less"
                )
            given = (under or max(_WIDER * prices[0], _SMALLEST), prices[0])
        elif is_under and len(ran) < _ROUNDS:
            lower = prices[-1] / _WIDER if len(ran) < 3 else 0.0
            given = (prices[-1], lower if over is None else over)
        else:
            return job, found, ran


def _clear(final: Job) -> None:
    """Remove what only an unfinished run needs."""
    for folder in (*final.out.glob("options-*"), final.out / "work", final.out / "rejected"):
        shutil.rmtree(folder, ignore_errors=True)


def _finished(final: Job, groups: list[Group]) -> AllocationSummary | None:
    """The summary of a finished run; None where anything is missing."""
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
