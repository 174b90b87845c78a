"""Selection programs whose answers are known, each of which caught a solver out or could."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mio_rag.formulations import LinearConstraint, SelectionProgram, passage_count

__all__ = ["Case", "Demand", "knapsack", "known_cases"]

#: What an exact solver owes. "proof": the optimum, proven. "selection": the best selection, proven, or a
#: message that says why not. "honesty": the numbers may lie too far apart for floating point; then it says
#: so. "bound": a selection, and a bound that holds.
Demand = Literal["proof", "selection", "honesty", "bound"]


@dataclass(frozen=True, eq=False)
class Case:
    """A program and its answer.

    Parameters
    ----------
    optimum : float or None
        By hand; None where it is left to enumeration, or nothing is feasible.
    selected : tuple of int or None
        The only optimal selection; None where there are several, or none at all.
    demand : {"proof", "selection", "honesty", "bound"}
    plain : bool
        Whether every solver has to take it: numbers of few digits and ordinary size.
    """

    name: str
    program: SelectionProgram
    optimum: float | None = None
    selected: tuple[int, ...] | None = None
    demand: Demand = "proof"
    plain: bool = True


def _program(
    linear: Sequence[float],
    costs: Sequence[float],
    budget: float,
    pairs: Iterable[tuple[int, int, float]] = (),
    rows: Iterable[LinearConstraint] = (),
    fixed: Sequence[int] | None = None,
) -> SelectionProgram:
    pairwise = np.zeros((len(linear), len(linear)))
    for i, j, weight in pairs:
        pairwise[i, j] = pairwise[j, i] = weight
    marks = None if fixed is None else np.asarray(fixed, dtype=np.int8)
    return SelectionProgram(_floats(linear), pairwise, _floats(costs), budget, tuple(rows), marks)


def _floats(values: Sequence[float]) -> NDArray[np.float64]:
    return np.asarray(values, dtype=np.float64)


def _row(
    coefficients: Sequence[float], lower: float = -np.inf, upper: float = np.inf, name: str = "row"
) -> LinearConstraint:
    return LinearConstraint(_floats(coefficients), lower, upper, name)


def knapsack() -> SelectionProgram:
    """P01 of the Florida State collection: ten items, optimum 309."""
    values, weights = [92, 57, 49, 68, 60, 43, 67, 84, 87, 72], [23, 31, 29, 44, 53, 38, 63, 85, 89, 82]
    return _program(values, weights, 165)


def known_cases() -> tuple[Case, ...]:
    """All of them."""
    return (*_small(), *_infeasible(), *_sizes(), *_giants(), *_digits(), *_far_apart(), *_beyond_products())


def _small() -> Iterable[Case]:
    two_of_three = passage_count(3, minimum=2)
    equal = _row([1, 1, -1], 0, 0)
    table: tuple[tuple[str, SelectionProgram, float, tuple[int, ...] | None], ...] = (
        ("no items", _program([], [], 5), 0.0, ()),
        ("one item", _program([2.0], [3], 3), 2.0, (0,)),
        ("one item too many", _program([2.0], [3], 2), 0.0, ()),
        ("one harmful item", _program([-1.0], [1], 5), 0.0, ()),
        ("all ties", _program([1.0] * 6, [1] * 6, 3), 3.0, None),
        ("all zero", _program([0.0] * 3, [1] * 3, 3), 0.0, None),
        ("exact duplicates", _program([1.0, 1.0, 0.6], [1] * 3, 3, [(0, 1, 1.0)]), 1.6, None),
        ("zero budget", _program([1.0, 2.0, 5.0], [1, 0, 3], 0), 2.0, (1,)),
        ("benefit of a pair", _program([-1.0, -1.0, 0.1], [1, 1, 1], 2, [(0, 1, -5.0)]), 3.0, (0, 1)),
        ("benefit forgone", _program([-1.0, -1.0, 0.1], [1, 2, 1], 2, [(0, 1, -5.0)]), 0.1, (2,)),
        ("top-k", _program([0.9, 0.1, 0.8, 0.3, 0.7], [7] * 5, 21), 2.4, (0, 2, 4)),
        ("knapsack P01", knapsack(), 309.0, (0, 1, 2, 3, 5)),
        ("fixed in", _program([5.0, 4.0, -1.0], [1, 1, 1], 2, fixed=[-1, -1, 1]), 4.0, (0, 2)),
        ("all fixed", _program([5.0, 4.0], [1, 1], 2, [(0, 1, 1.0)], fixed=[1, 1]), 8.0, (0, 1)),
        ("minimum count", _program([-1.0, -3.0, -2.0], [1] * 3, 9, rows=two_of_three), -3.0, (0, 2)),
        ("only equality", _program([3.0, 2.0, 1.0], [1] * 3, 9, rows=[equal]), 4.0, (0, 2)),
        # 0.3 - 0.1 < 0.2 and 0.1 + 0.2 > 0.3 in floating point
        ("decimals that just fit", _program([-1.0, -1.0], [0.1, 0.2], 0.3, [(0, 1, -5.0)]), 3.0, (0, 1)),
        ("decimals that fit alone", _program([1.0, 10.0], [0.3, 0.1 + 0.2], 0.3, [(0, 1, 5.0)]), 10.0, (1,)),
        ("one token over a million", _program([1.0, 1.0], [1, 1_000_000], 1_000_000), 1.0, None),
        ("large decimals", _program([1.0, 1.0], [1e8 + 0.05, 1e8 + 0.05], 2e8 + 0.01), 1.0, None),
        ("huge budget", _program([1.0, 1.0], [0.001, 0.002], 1e19), 2.0, (0, 1)),
        ("large values", _program([1e9, 2e9, 1.5e9], [1, 1, 1], 2, [(1, 2, 1e8)]), 3400000000.0, (1, 2)),
    )
    return (Case(name, program, optimum, selected) for name, program, optimum, selected in table)


def _infeasible() -> Iterable[Case]:
    contradiction = [*passage_count(2, minimum=2), _row([1, 0], upper=0)]
    table = (
        ("negative budget", _program([1.0], [0], -1)),
        ("negative budget, no items", _program([], [], -1)),
        ("row without items", _program([], [], 1, rows=[_row([], lower=1)])),
        ("row without coefficients", _program([1.0], [1], 1, rows=[_row([0], upper=-1)])),
        ("contradictory rows", _program([1.0, 1.0], [1, 1], 5, rows=contradiction)),
        ("fixed beyond the budget", _program([1.0, 1.0], [3, 3], 5, fixed=[1, 1])),
        (
            "count beyond the budget",
            _program([1.0] * 3, [2] * 3, 5, rows=passage_count(3, minimum=3)),
        ),
    )
    huge = Case("negative budget, huge costs", _program([0.0], [5e59], -1), plain=False)
    return (*(Case(name, program) for name, program in table), huge)


def _sizes() -> Iterable[Case]:
    """What is proven and what is feasible is relative to the numbers."""
    small = [4e-7, 4e-7, 4e-7]
    row = _row(small, upper=5e-7)
    return (
        Case("values of a hundred millionth", _program([3e-8, 2e-8, 2e-8], [3, 2, 2], 4), 4e-8, (1, 2)),
        Case("costs below a millionth", _program([1, 1, 1], small, 5e-7), 1.0),
        Case("a row below a millionth", _program([1, 1, 1], [1, 1, 1], 9, rows=[row]), 1.0),
    )


def _giants() -> Iterable[Case]:
    """What cannot be chosen must not decide the scale of what can."""
    pair, benefit = [(0, 1, 5e198)], [(0, 1, -1.0)]
    table: tuple[tuple[SelectionProgram, tuple[int, ...]], ...] = (
        (_program([1.0, 1.0], [0.5, 6.2e209], 0.749), (0,)),
        (_program([1.0, 1.0], [1.0, 6.2e209], 0.0), ()),
        (_program([0.5, 1.0], [0.0, 0.0], 0.0, pair), (1,)),
        (_program([1.0, -5e198], [1.0, 1.0], 2.0), (0,)),
        (_program([1.0, 3e-8, 2e-8, 2e-8], [100, 3, 2, 2], 4), (2, 3)),
        (_program([3e-8, 2e-8, 2e-8], [3, 2, 2], 4, benefit), (1, 2)),
        (_program([5e220], [6.8e-257], 1.0), (0,)),
    )
    return (
        Case(f"giants {k}", program, None, best, "selection", plain=False)
        for k, (program, best) in enumerate(table)
    )


def _digits() -> Iterable[Case]:
    """Costs of many digits, beside values that differ little or a budget that is met exactly."""
    values = [1.5456e-10, 1.05043e-7, 2.27215e-12, 7.94716e-11, 4.6855357e-6]
    twice, thrice = 8188402.522009669, 14487173.692786334
    costs = [twice, thrice, twice, 4619098.858569557, thrice]
    exactly = [5174913993.137038, 7762370989.705557, 10349827986.274076]
    table = (
        (_program(values, costs, 24565207.566029005), (0, 4)),
        (_program([3.2e-4, 3.8e-4, 5.8e-5], exactly, 23287112969.11667), (0, 1, 2)),
        # relative to large values too, a gain of a hundred millionth is one
        (_program([2.8e9, 71.0, 40.0], [1.0, 1.0, 1.0], 2.0), (0, 1)),
    )
    return (
        Case(f"many digits {k}", program, None, best, "selection", plain=False)
        for k, (program, best) in enumerate(table)
    )


def _far_apart() -> Iterable[Case]:
    """Beside the largest number, a solver in floating point takes the others for zero."""

    def some(size: float) -> list[tuple[int, int, float]]:
        return [(0, 1, 0.4 * size), (0, 2, 0.3 * size)]

    one = _row([1, 1, 0], lower=1, name="one of the first two")
    beyond = _row([0, 1e-90, 1], lower=1e-90)
    limits = [_row([0, 0, -1e211], upper=1), _row([0, 0, 1e-198], lower=1e187)]
    ones = [1, 1, 1]
    table = (
        ("values beside a huge one", _program([0.0, 0.9, 6.4e7], ones, 3, some(1), [one])),
        ("a huge value that is out", _program([1e12, 7e20, 2e11], ones, 3, fixed=[-1, 0, 1])),
        ("a gain of next to nothing", _program([-0.6, 2e-47, -1], ones, 3, some(0.05), [one])),
        ("nothing gains", _program([-3e104, -2e-286, 0], [0, 0, 0], 0, some(1e27))),
        ("a row beyond all", _program([1, 2, 3], ones, 3, rows=[beyond])),
        ("limits beyond all", _program([1, 2, 3], ones, 3, rows=limits)),
        ("values next to nothing", _program([5e-324, 0, 0], ones, 3)),
        ("costs next to nothing", _program([1, 1, 0], [1e145, 7e-201, 0], 2e250, rows=[one])),
        ("penalties beyond all", _program([1.6, 1.8, 2.3], ones, 3, some(1e23), [one])),
        # a benefit of 10^12 that is always there hides values of 10^-6
        ("a mixture", _program([1e12, 3e-6, 4e-6], [0, 3, 4], 4)),
    )
    return (Case(name, program, None, None, "honesty", plain=False) for name, program in table)


def _beyond_products() -> Iterable[Case]:
    """Products and ratios of these numbers leave the range of floats."""
    plain = ((_program([3, 2, 2], [3, 2, 2], 4), 4.0), (_program([1, 1, 3, 3], [3, 3, 3, 3], 6), 6.0))
    sizes = ((1e-200, 1e-200), (1e-300, 1e-300), (1e-200, 1e200), (1e200, 1e-200))
    return (
        Case(
            f"values times {values:g}, costs times {costs:g}, {k}",
            SelectionProgram(
                values * one.linear, one.pairwise, costs * one.costs, costs * one.budget, one.rows, one.fixed
            ),
            values * best,
            None,
            "bound",
            plain=False,
        )
        for k, (one, best) in enumerate(plain)
        for values, costs in sizes
    )
