"""SelectionProgram -> mixed-integer linear arrays, and the map back.

Two exact linearizations of the products x_i x_j in  max p.x - sum_{i<j} P_ij x_i x_j :

**Fortet / McCormick** ("mccormick"): one continuous y_ij in [0, 1] per nonzero pair, with

    P_ij > 0 (penalty, so y_ij is pushed down):  y_ij >= x_i + x_j - 1
    P_ij < 0 (benefit, so y_ij is pushed up):    y_ij <= x_i,  y_ij <= x_j

**Glover** ("glover"): one continuous z_i per item that stands for x_i g_i(x), with
g_i(x) = sum_{j>i} P_ij x_j,

    z_i >= L_i x_i,    z_i >= g_i(x) - U_i (1 - x_i),      L_i <= g_i(x) <= U_i.

The second row must hold for *every* feasible x with x_i = 0, so U_i is taken over the whole budget B. Taking
it over B - c_i, which looks tighter, cuts off optima. L_i matters only when x_i = 1: B - c_i is right there.

Sources: Fortet (1960); McCormick (1976); Glover, Management Science 22 (1975).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mio_rag.formulations.program import SelectionProgram, precedence_program

if TYPE_CHECKING:
    import scipy

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]
Linearization = Literal["mccormick", "glover"]


@dataclass(frozen=True, eq=False)
class MilpArrays:
    """max objective . v  subject to  row_lower <= matrix v <= row_upper,  col_lower <= v <= col_upper.

    The first n columns are the binary x; the others are continuous helpers.
    """

    n: int
    objective: FloatArray
    matrix: scipy.sparse.csr_array
    row_lower: FloatArray
    row_upper: FloatArray
    col_lower: FloatArray
    col_upper: FloatArray
    integral: NDArray[np.bool_]

    def recover(self, values: NDArray[np.float64]) -> NDArray[np.int8]:
        """The 0/1 decision in a solution vector, rounded (solvers return 0.9999999 for 1)."""
        return (np.asarray(values)[: self.n] > 0.5).astype(np.int8)


def knapsack_bound(values: FloatArray, costs: FloatArray, budget: float) -> float:
    """Upper bound on sum values_i x_i over costs . x <= budget, 0 <= x <= 1 (Dantzig's fractional fill)."""
    keep = (values > 0) & (costs <= budget)
    value, cost = values[keep], costs[keep]
    free = cost <= 0
    total = float(value[free].sum())
    value, cost = value[~free], cost[~free]
    with np.errstate(over="ignore", divide="ignore"):  # a cost next to nothing comes first
        order = np.argsort(_by_largest(-value) / _by_largest(cost), kind="stable")
    value, cost = value[order], cost[order]
    spent = np.cumsum(cost)
    whole = spent <= budget
    total += float(value[whole].sum())
    k = int(whole.sum())
    if k < value.size:
        left = budget - (float(spent[k - 1]) if k else 0.0)
        total += float(value[k]) * (left / float(cost[k]))  # the product of two tiny numbers would be 0
    return total


def _by_largest(values: FloatArray) -> FloatArray:
    """In units of the largest, so that ratios of tiny and of huge numbers stay apart."""
    return values / float(np.abs(values).max(initial=np.finfo(np.float64).tiny))


def linearize(program: SelectionProgram, form: Linearization = "mccormick") -> MilpArrays:
    """Return the program as a mixed-integer linear one: "mccormick" has one helper per nonzero pair,
    "glover" one per item (smaller, weaker relaxation). Segments become binary columns, as in
    `precedence_program`.
    """
    import scipy.sparse  # here: it takes a tenth of a second

    program = precedence_program(program)
    n, rows = program.n, program.rows
    base = np.stack([program.costs, *(row.coefficients for row in rows)])
    helpers = _mccormick(program) if form == "mccormick" else _glover(program)
    m = helpers.objective.size
    row, column = np.nonzero(base)
    # All entries at once: stacking sparse blocks takes longer than HiGHS does for a small program.
    values = np.concatenate([base[row, column], helpers.values])
    at = np.concatenate([row, len(base) + helpers.row]), np.concatenate([column, helpers.column])
    assert program.fixed is not None
    return MilpArrays(
        n=n,
        objective=np.concatenate([program.linear, helpers.objective]),
        matrix=scipy.sparse.csr_array((values, at), shape=(len(base) + helpers.lower.size, n + m)),
        row_lower=np.concatenate([[-np.inf], [row.lower for row in rows], helpers.lower]),
        row_upper=np.concatenate([[program.budget], [row.upper for row in rows], helpers.upper]),
        col_lower=np.concatenate([program.fixed == 1, helpers.least]).astype(np.float64),
        col_upper=np.concatenate([program.fixed != 0, helpers.most]).astype(np.float64),
        integral=np.arange(n + m) < n,
    )


class _Helpers(NamedTuple):
    """The helper columns, numbered behind the items, and the rows that bind them, numbered from 0."""

    row: IntArray
    column: IntArray
    values: FloatArray
    lower: FloatArray
    upper: FloatArray
    objective: FloatArray
    least: FloatArray
    most: FloatArray


def _mccormick(program: SelectionProgram) -> _Helpers:
    i, j = np.nonzero(np.triu(program.pairwise, 1))
    weight = program.pairwise[i, j]
    m = weight.size
    y = program.n + np.arange(m)
    penalty, benefit = np.flatnonzero(weight > 0), np.flatnonzero(weight < 0)
    p, b = penalty.size, benefit.size
    # penalties: x_i + x_j - y <= 1; benefits: y - x_i <= 0 and y - x_j <= 0
    row = np.concatenate([np.repeat(np.arange(p), 3), p + np.repeat(np.arange(2 * b), 2)])
    penalized = np.stack([i[penalty], j[penalty], y[penalty]], axis=1).ravel()
    linked = np.stack([y[benefit], i[benefit], y[benefit], j[benefit]], axis=1).ravel()
    values = np.concatenate([np.tile([1.0, 1.0, -1.0], p), np.tile([1.0, -1.0], 2 * b)])
    upper = np.concatenate([np.ones(p), np.zeros(2 * b)])
    sides = np.full(p + 2 * b, -np.inf), upper
    return _Helpers(
        row, np.concatenate([penalized, linked]), values, *sides, -weight, np.zeros(m), np.ones(m)
    )


def _glover(program: SelectionProgram) -> _Helpers:
    above = np.triu(program.pairwise, 1)
    used = np.flatnonzero(np.any(above != 0, axis=1))
    m = used.size
    # In floating point 0.3 - 0.1 < 0.2: without the tolerance, items that just fit would be left out.
    budget = program.most_cost
    low = np.array([-knapsack_bound(-above[i], program.costs, budget - program.costs[i]) for i in used])
    high = np.array([knapsack_bound(above[i], program.costs, budget) for i in used])
    # z - L x >= 0, and z - g(x) - U x >= -U: a row of each kind for every item that has pairs above it
    of, other = np.nonzero(above[used])
    first, second = np.arange(m), m + np.arange(m)
    z = program.n + np.arange(m)
    bound = np.abs(above[used]).sum(axis=1)
    return _Helpers(
        np.concatenate([first, first, m + of, second, second]),
        np.concatenate([used, z, other, used, z]),
        np.concatenate([-low, np.ones(m), -above[used[of], other], -high, np.ones(m)]),
        np.concatenate([np.zeros(m), -high]),
        np.full(2 * m, np.inf),
        -np.ones(m),
        -bound,
        bound,
    )
