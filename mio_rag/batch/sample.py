"""The price that a total is shared at, estimated on a sample of rows drawn with a seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mio_rag.allocation.question import PricedQuestion
from mio_rag.allocation.workload import Bracket, Told, Workload
from mio_rag.batch.job import Group, Job
from mio_rag.batch.options import question_of
from mio_rag.batch.rows import read_rows
from mio_rag.batch.work import batches_of
from mio_rag.errors import InputError, MioRagError, require

__all__ = ["sampled_prices"]

#: Share of the price that an estimate may be off: far less than what other rows than the sample's make of it.
_CLOSE = 1e-3


def sampled_prices(
    job: Job,
    groups: Sequence[Group],
    total_tokens: float,
    sample: int,
    workers: int,
    told: Told | None = None,
) -> tuple[float, ...]:
    """The price at which all rows together spend about the total.

    Where the sample is the whole, it is two, next to each other: at the lower one they spend more.

    Parameters
    ----------
    sample : int
        Rows; what is rejected among them spends nothing.

    Raises
    ------
    InputError
        If no row of the sample can be used.
    """
    rows = groups[-1].first_row + groups[-1].rows
    size = min(sample, rows)
    drawn = np.sort(np.random.default_rng(job.selector.options.seed).choice(rows, size, replace=False))
    questions = _questions(job, groups, drawn)
    if not questions:
        raise InputError(
            f"none of {size} sampled rows can be used: run select-batch on some of them to learn why"
        )
    workload = Workload(questions, job.selector, workers=workers, told=told)
    whole = size == rows
    wanted = total_tokens * size / rows
    middle = _bracket(workload, wanted, 0.0 if whole else _CLOSE)
    if whole:
        prices = {middle.high.price, middle.low.price if middle.low else 0.0}
        return tuple(sorted(prices, reverse=True))
    return (middle.high.price,)


def _bracket(workload: Workload, tokens: float, closeness: float) -> Bracket:
    total = max(0, math.floor(tokens))
    try:
        return workload.bracket(total, closeness, workload.roughly(total))
    except (
        InputError
    ):  # what must be chosen takes more in this sample: the highest price, and the whole tells
        return Bracket(None, workload.at(max(workload.tried)))


def _questions(job: Job, groups: Sequence[Group], drawn: np.ndarray) -> list[PricedQuestion]:
    """The questions of the drawn rows that can be used."""
    arrow: Any = require("pyarrow", "batch", "batches")
    found = []
    for group in groups:
        inside = drawn[(drawn >= group.first_row) & (drawn < group.first_row + group.rows)] - group.first_row
        if not inside.size:
            continue
        position = 0
        for batch in batches_of(job, group):
            here = inside[(inside >= position) & (inside < position + batch.num_rows)] - position
            position += batch.num_rows
            # Taken out: a slice would carry the strings of all rows along.
            for row in read_rows(batch.take(arrow.array(here)), job.kinds, job.names) if here.size else ():
                try:
                    found.append(question_of(job, row))
                except MioRagError:
                    continue
    return found
