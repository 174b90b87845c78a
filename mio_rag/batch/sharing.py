"""Which option each row gets, once the options of all rows are known, and the shards that say so.

Every row begins with its option of fewest tokens. Steps to the next one are taken by value per token until
the total is used, over all rows, so that memory grows by a few numbers for each row that has several options.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.batch.job import Group, Job
from mio_rag.batch.options import OPTION
from mio_rag.batch.stages import shards_of
from mio_rag.batch.work import shard_paths, shard_state, table_of
from mio_rag.errors import SolverError, require
from mio_rag.files import replaced

__all__ = ["COLUMNS", "Shares", "shared", "written"]

COLUMNS = {
    "row": "int64",
    "query_id": "string",
    "weight": "double",
    "budget_tokens": "int64",
    **OPTION,
}


@dataclass
class Shares:
    """Which option each row gets, and what comes of it.

    Parameters
    ----------
    fewest, most : int
        Tokens if every row had its first, or its last option.
    tokens : int
    value : float
        Sum of weight times value.
    relaxed : tuple of float
        Sum of the proven bounds at each price of the job.
    steps : ndarray of int8, shape (rows,)
        Option of each row.
    """

    steps: NDArray[np.int8]
    fewest: int = 0
    most: int = 0
    tokens: int = 0
    value: float = 0.0
    relaxed: tuple[float, ...] = field(default_factory=tuple)

    def bound(self, prices: Sequence[float], total_tokens: int) -> float:
        """No allocation of so many tokens is worth more."""
        return min(
            relaxed + price * total_tokens for relaxed, price in zip(self.relaxed, prices, strict=True)
        )


def shared(job: Job, groups: Sequence[Group], total_tokens: int) -> Shares:
    """Which option each row gets; where even the first ones are too many, the first ones."""
    found = Shares(np.zeros(groups[-1].first_row + groups[-1].rows, dtype=np.int8))
    sums: list[list[float]] = [[] for _ in job.prices]
    values: list[float] = []
    rows, places, steps, ratios, gains = [], [], [], [], []
    columns = ["row", "weight", "relaxed", "option_tokens_used", "option_value"]
    for group, start, _ in shards_of(job, groups):
        table = _read(job, group, start, columns)
        for row, weight, relaxed, tokens, value in zip(*(table[c].to_pylist() for c in columns), strict=True):
            found.fewest += tokens[0]
            found.most += tokens[-1]
            values.append(weight * value[0])
            for one, bound in zip(sums, relaxed, strict=True):
                one.append(bound)
            for k in range(1, len(tokens)):
                gain, step = weight * (value[k] - value[k - 1]), tokens[k] - tokens[k - 1]
                if gain > 0:
                    rows.append(row)
                    places.append(k)
                    steps.append(step)
                    ratios.append(gain / step)
                    gains.append(gain)
        sums = [[math.fsum(one)] for one in sums]
        values = [math.fsum(values)]
    found.relaxed = tuple(math.fsum(one) for one in sums)
    found.tokens = found.fewest
    for k in np.lexsort((np.array(places), np.array(rows), -np.array(ratios))).tolist():
        if found.steps[rows[k]] == places[k] - 1 and found.tokens + steps[k] <= total_tokens:
            found.steps[rows[k]] = places[k]
            found.tokens += steps[k]
            values.append(gains[k])
    found.value = math.fsum(values)
    return found


def written(
    job: Job, final: Job, groups: Sequence[Group], shares: Shares, progress: Callable[[int], None]
) -> tuple[int, float, Counter[str]]:
    """Write the shards of the allocation from those of the options: tokens, value and statuses in them.

    Parameters
    ----------
    job, final : Job
        Of the options, and of the allocation.

    Raises
    ------
    SolverError
        If a shard of the options is missing.
    """
    parquet: Any = require("pyarrow.parquet", "batch", "batches")
    tokens, values, statuses = 0, [0.0], Counter[str]()
    for group, start, count in shards_of(job, groups):
        path, _ = shard_paths(final, group, start)
        made: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        for row in _read(job, group, start, None).to_pylist():
            k = int(shares.steps[row["row"]])
            for name in COLUMNS:
                made[name].append(row[f"option_{name}"][k] if name in OPTION else row[name])
        here = Counter(made["status"])
        state = {**(shard_state(job, group, start) or {}), "statuses": dict(sorted(here.items()))}
        with replaced(path) as partial:
            table = table_of(made, COLUMNS, {"mio_rag": json.dumps(state)})
            parquet.write_table(table, partial, compression="zstd")
        tokens += sum(made["tokens_used"])
        values = [math.fsum([*values, *(w * v for w, v in zip(made["weight"], made["value"], strict=True))])]
        statuses += here
        progress(count)
    return tokens, math.fsum(values), statuses


def _read(job: Job, group: Group, start: int, columns: list[str] | None) -> Any:
    parquet: Any = require("pyarrow.parquet", "batch", "batches")
    path, _ = shard_paths(job, group, start)
    if shard_state(job, group, start) is None:
        raise SolverError(f"shard '{path.name}' of the options is missing or damaged: run again")
    return parquet.read_table(path, columns=columns)
