"""Segments as rows: the same program for solvers that know nothing of shared text.

    maximise    linear . x  -  prices . y  -  1/2 x' pairwise x
    subject to  costs . x  +  segment_costs . y  <=  budget
                x_i - y_s <= 0       for every item i and segment s that it needs
                ... and the rows and fixed items on x;  x, y in {0, 1}

Segments become items behind the program's own. One row for each need, rather than one for each segment, is
the tight form: without pairs and budget its linear relaxation is integral (Balinski, 1970).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mio_rag.errors import InputError
from mio_rag.formulations.linear_constraint import LinearConstraint
from mio_rag.formulations.numbers import is_setting
from mio_rag.formulations.program import SelectionProgram

__all__ = ["precedence_program", "with_token_price"]


def precedence_program(program: SelectionProgram) -> SelectionProgram:
    """The program with its segments as items n, n + 1, ... and a row for every need.

    The first n entries of a decision are one of the given program, at the same objective and cost if its
    segments are no more than those that are needed. Without segments, the program as it is.
    """
    shared = program.segments
    if shared is None:
        return program
    assert program.fixed is not None
    n, m = program.n, shared.m
    rows = [replace(row, coefficients=np.append(row.coefficients, np.zeros(m))) for row in program.rows]
    for i, s in zip(*np.nonzero(shared.needs), strict=True):
        need = np.zeros(n + m)
        need[i], need[n + s] = 1.0, -1.0
        rows.append(LinearConstraint(need, upper=0, name=f"item {i} needs segment {s}"))
    return SelectionProgram(
        linear=np.append(program.linear, -shared.prices),
        pairwise=np.pad(program.pairwise, (0, m)),
        costs=program.all_costs,
        budget=program.budget,
        rows=tuple(rows),
        fixed=np.append(program.fixed, np.full(m, -1, dtype=np.int8)),
    )


def with_token_price(program: SelectionProgram, price: float) -> SelectionProgram:
    """The program with a price for every token that is read, shared ones once, on top of any that it has.

    Parameters
    ----------
    price : float
        >= 0, in units of the objective.

    Raises
    ------
    InputError
        If the price is not a number from 0 to 1e50.
    """
    if not is_setting(price):
        raise InputError(f"the price of a token is {price!r}: it must be a number from 0 to 1e50")
    shared = program.segments
    if shared is not None:
        shared = replace(shared, prices=shared.prices + price * shared.costs)
    return program.with_values(program.linear - price * program.costs, shared)
