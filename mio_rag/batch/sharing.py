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
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mio_rag.batch.answers import READ, is_merged
from mio_rag.batch.job import Group, Job
from mio_rag.batch.options import LISTED, OPTION
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
_BLOCK = 1 << 16  # steps that are Python objects at a time


@dataclass
class Shares:
    """Which option each row gets, and what comes of it.

    Parameters
    ----------
    fewest, most : int
        Of the total, if every row had its first, or its last option.
    shortest : int or None
        Tokens of the shortest passage of all rows; None where no row is answered.
    tokens : int
        What all rows take of the total.
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
    shortest: int | None = None
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
    parts: list[_Steps] = []
    columns = ["row", "weight", "relaxed", "shortest", "option_charged", "option_value"]
    for group, start, _ in shards_of(job, groups):
        table = _read(job, group, start, columns)
        places, first, last = _places(table["option_charged"])
        tokens, value = _flat(table["option_charged"]), _flat(table["option_value"])
        rows, weights = table["row"].to_numpy(), table["weight"].to_numpy()
        found.fewest += int(tokens[first].sum())
        found.most += int(tokens[last].sum())
        shortest = table["shortest"].to_pylist()
        if found.shortest is not None:
            shortest.append(found.shortest)
        found.shortest = min(shortest, default=None)
        relaxed = _flat(table["relaxed"]).reshape(len(rows), -1)
        sums = [[math.fsum([*one, *relaxed[:, k]])] for k, one in enumerate(sums)]
        values = [math.fsum([*values, *(weights * value[first])])]
        later = np.flatnonzero(places)
        owner = np.repeat(np.arange(len(rows)), last - first + 1)[later]
        gains = weights[owner] * (value[later] - value[later - 1])
        gaining = gains > 0
        later, owner, gains = later[gaining], owner[gaining], gains[gaining]
        parts.append(_Steps(rows[owner], places[later], tokens[later] - tokens[later - 1], gains))
    found.relaxed = tuple(math.fsum(one) for one in sums)
    found.tokens = found.fewest
    if parts:
        found.value = math.fsum([*values, _taken(found, parts, total_tokens)])
    return found


class _Steps(NamedTuple):
    """Steps from one option to the next: whose, to which option, tokens and value more."""

    rows: NDArray[np.int64]
    places: NDArray[np.int8]
    tokens: NDArray[np.int64]
    gains: NDArray[np.float64]


def _taken(found: Shares, parts: Sequence[_Steps], total_tokens: int) -> float:
    """Take steps by value per token while the total allows; the value that they add."""
    steps = _Steps(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    order = np.lexsort((steps.places, steps.rows, -steps.gains / steps.tokens))
    added = 0.0
    for begin in range(0, len(order), _BLOCK):
        block = order[begin : begin + _BLOCK]
        gains = []
        for row, place, tokens, gain in zip(*(column[block].tolist() for column in steps), strict=True):
            if found.steps[row] == place - 1 and found.tokens + tokens <= total_tokens:
                found.steps[row] = place
                found.tokens += tokens
                gains.append(gain)
        added = math.fsum([added, *gains])
    return added


def _places(column: Any) -> tuple[NDArray[np.int8], NDArray[np.int64], NDArray[np.int64]]:
    """Of lists that are laid end to end: the place of each entry in its own; where each begins, and ends."""
    ends = np.cumsum(column.combine_chunks().value_lengths().to_numpy(zero_copy_only=False))
    begins = np.concatenate([[0], ends]).astype(np.int64)[:-1]
    places = np.arange(ends[-1] if len(ends) else 0) - np.repeat(begins, ends - begins)
    return places.astype(np.int8), begins, ends - 1


def _flat(column: Any) -> NDArray[Any]:
    whole = column.combine_chunks() if hasattr(column, "combine_chunks") else column
    return np.asarray(whole.flatten().to_numpy(zero_copy_only=False))


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
        If a shard of the options is missing, or they do not hold what was shared.
    """
    arrow: Any = require("pyarrow", "batch", "batches")
    parquet: Any = require("pyarrow.parquet", "batch", "batches")
    schema = {**COLUMNS, **READ} if is_merged(final) else COLUMNS
    tokens, charged, values, statuses = 0, 0, [0.0], Counter[str]()
    for group, start, count in shards_of(job, groups):
        path, _ = shard_paths(final, group, start)
        held = _read(job, group, start, None)
        _, first, _ = _places(held["option_charged"])
        chosen = arrow.array(first + shares.steps[held["row"].to_numpy()])
        made = {
            name: _of_option(held, f"option_{name}", chosen) if name in OPTION else held[name]
            for name in COLUMNS
            if name not in LISTED
        }
        made |= {name: _listed(held, f"any_{name}", "option_places", chosen) for name in LISTED}
        if schema is not COLUMNS:
            made["read"] = _listed(held, "any_read", "option_read_places", chosen)
        here = Counter(made["status"].to_pylist())
        state = {**(shard_state(job, group, start) or {}), "statuses": dict(sorted(here.items()))}
        with replaced(path) as partial:
            table = table_of(made, schema, {"mio_rag": json.dumps(state)})
            parquet.write_table(table, partial, compression="zstd")
        tokens += sum(made["tokens_used"].to_pylist())
        charged += sum(_of_option(held, "option_charged", chosen).to_pylist())
        worth = zip(made["weight"].to_pylist(), made["value"].to_pylist(), strict=True)
        values = [math.fsum([*values, *(w * v for w, v in worth)])]
        statuses += here
        progress(count)
    if charged != shares.tokens or tokens > charged:
        raise SolverError(f"the shards in '{final.out}' hold {tokens} tokens: delete them and run again")
    return tokens, math.fsum(values), statuses


def _of_option(held: Any, column: str, chosen: Any) -> Any:
    """A column of the options: its entry for the chosen option of each row."""
    return held[column].combine_chunks().flatten().take(chosen)


def _listed(held: Any, column: str, places: str, chosen: Any) -> Any:
    """What the chosen option of each row has of a column that its options share, in its own order."""
    arrow: Any = require("pyarrow", "batch", "batches")
    own = _of_option(held, places, chosen)
    lengths = own.value_lengths().to_numpy(zero_copy_only=False)
    _, begins, _ = _places(held[column])
    taken = arrow.array(np.repeat(begins, lengths) + _flat(own))
    ends = arrow.array(np.concatenate([[0], np.cumsum(lengths)]), arrow.int32())
    return arrow.ListArray.from_arrays(ends, held[column].combine_chunks().flatten().take(taken))


def _read(job: Job, group: Group, start: int, columns: list[str] | None) -> Any:
    parquet: Any = require("pyarrow.parquet", "batch", "batches")
    path, _ = shard_paths(job, group, start)
    if shard_state(job, group, start) is None:
        raise SolverError(f"shard '{path.name}' of the options is missing or damaged: run again")
    return parquet.read_table(path, columns=columns)
