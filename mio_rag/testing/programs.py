"""Selection programs for tests: random, hard, with shared segments, and with known answers.

Data of random programs are decimals with at most three places (five with segments), so that no sum lies near
a tolerance and exact solvers must agree to the last digit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mio_rag.formulations import (
    LinearConstraint,
    Segments,
    SelectionProgram,
    passage_count,
    source_caps,
    with_token_price,
)
from mio_rag.formulations.rows import (
    SoftRow,
    change_rows,
    conflict_rows,
    coverage_rows,
    need_rows,
    share_rows,
    with_soft_rows,
)

FloatArray = NDArray[np.float64]

PAIRS = ("none", "mixed", "penalties", "few benefits", "gram", "duplicates", "ties")
COSTS = ("integer", "decimal", "some zero", "equal", "large")
SHARING = ("windows", "titles", "versions", "nested", "anyhow")
#: Sizes of numbers that solvers must be right for.
SCALES = tuple(10.0**k for k in range(-10, 11, 2))


def random_program(rng: np.random.Generator, n_max: int = 10) -> SelectionProgram:
    """Draw a program with at most `n_max` >= 2 items; one in thirty has none, one in thirty a single one."""
    few = int(rng.integers(30))
    n = few if few < 2 else int(rng.integers(2, n_max + 1))
    pairwise, linear = _values(rng, n, str(rng.choice(PAIRS)))
    costs = _costs(rng, n, str(rng.choice(COSTS)))
    fixed = rng.choice([-1, 0, 1], size=n, p=[0.8, 0.1, 0.1]) if rng.random() < 0.3 else np.full(n, -1)
    rows = _rows(rng, n)
    soft = []
    if rng.random() < 0.15:  # a source cap and coverage that may be broken at a price
        labels = _labels(rng, n)
        kinds = [*source_caps(labels, 1), *coverage_rows(labels)]
        soft = [SoftRow(row, round(float(rng.random()), 3)) for row in kinds[:3]]
    total, kind = float(costs.sum()), rng.random()
    if kind < 0.6:
        budget = round(total * float(rng.random()), 3)
    elif kind < 0.85:  # met exactly, if only up to rounding: 0.1 + 0.2 against 0.3
        budget = round(float(costs[rng.random(costs.size) < 0.5].sum()), 3)
    else:
        budget = [0.0, -1.0, total + 1.0][int(rng.integers(3))]
    program = SelectionProgram(linear, pairwise, costs, budget, rows, fixed.astype(np.int8))
    priced = with_soft_rows(program, soft)
    return priced if priced.n <= n_max else program


def at_scale(program: SelectionProgram, values: float, costs: float, rows: float) -> SelectionProgram:
    """Multiply the values, costs and rows of a program: the same selections are best."""
    shared = program.segments
    return replace(
        program,
        linear=values * program.linear,
        pairwise=values * program.pairwise,
        costs=costs * program.costs,
        budget=costs * program.budget,
        rows=tuple(
            LinearConstraint(rows * row.coefficients, rows * row.lower, rows * row.upper, row.name)
            for row in program.rows
        ),
        segments=shared and Segments(costs * shared.costs, shared.needs, values * shared.prices),
    )


def hard_program(rng: np.random.Generator, n: int = 120) -> SelectionProgram:
    """Draw dense pairs of both signs; no solver proves 120 items in seconds."""
    pairwise = _symmetric(rng.normal(size=(n, n)))
    costs = rng.integers(1, 50, n).astype(np.float64)
    return SelectionProgram(3 * rng.random(n), pairwise, costs, float(costs.sum() // 3))


def _symmetric(raw: FloatArray) -> FloatArray:
    upper = np.triu(np.round(raw, 3), 1)
    return upper + upper.T


def _labels(rng: np.random.Generator, n: int) -> list[str]:
    return [str(s) for s in rng.choice(["a", "b", "c", ""], n)]


def _values(rng: np.random.Generator, n: int, kind: str) -> tuple[FloatArray, FloatArray]:
    linear = np.round(rng.normal(0.4, 1.0, n), 3)
    raw = np.zeros((n, n))
    if kind == "mixed":
        raw = rng.normal(0, rng.choice([0.2, 1.0, 3.0]), (n, n))
        raw = raw * (rng.random((n, n)) < rng.choice([0.3, 1.0]))
    elif kind == "penalties":
        raw = rng.random((n, n)) * rng.choice([0.1, 0.5, 2.0])
    elif kind == "few benefits":  # evidence links: worthless items that pay in company
        raw = np.where(rng.random((n, n)) < 0.2, -rng.random((n, n)), 0.1 * rng.random((n, n)))
        linear = np.round(rng.normal(-0.1, 0.3, n), 3)
    elif kind in ("gram", "duplicates"):
        vectors = rng.normal(size=(n, 4)) + 1.0
        if kind == "duplicates" and n > 1:
            twins = rng.integers(0, n, n)
            vectors, linear = vectors[twins], linear[twins]
        unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        raw = rng.choice([0.1, 0.5, 1.0]) * unit @ unit.T
    elif kind == "ties":
        linear = rng.choice([0.0, 0.5], n)
        raw = rng.choice([-0.5, 0.0, 0.5], (n, n))
    return _symmetric(raw), linear


def _costs(rng: np.random.Generator, n: int, kind: str) -> FloatArray:
    if kind == "decimal":
        return np.round(rng.random(n) * 10, int(rng.integers(1, 4)))
    if kind == "equal":
        return np.full(n, float(rng.choice([1.0, 7.0, 0.1])))
    low, high = {"some zero": (0, 4), "large": (1, 1_000_000)}.get(kind, (1, 60))
    return rng.integers(low, high, n).astype(np.float64)


def _rows(rng: np.random.Generator, n: int) -> tuple[LinearConstraint, ...]:
    rows: list[LinearConstraint] = []
    if rng.random() < 0.25:
        low, high = sorted(int(k) for k in rng.integers(0, n + 1, 2))
        rows += passage_count(n, low if rng.random() < 0.6 else None, high if rng.random() < 0.6 else None)
    if rng.random() < 0.25:
        rows += source_caps(_labels(rng, n), int(rng.integers(0, 3)))
    ids, labels = [str(k) for k in range(n)], _labels(rng, n)
    if rng.random() < 0.1:
        rows += share_rows(labels, float(rng.choice([0.25, 1 / 3, 0.5, 0.8])))
    if rng.random() < 0.15:
        rows += coverage_rows(labels, int(rng.integers(1, 3)))
    if rng.random() < 0.15:
        rows += change_rows(ids, [i for i in ids if rng.random() < 0.4], int(rng.integers(0, 4)))
    if n > 1 and rng.random() < 0.2:
        pairs = np.argwhere(np.triu(rng.random((n, n)) < 0.3, 1))
        rows += conflict_rows(ids, [(int(i), int(j)) for i, j in pairs])
    if n > 1 and rng.random() < 0.15:
        rows += need_rows(ids, {i: [str(rng.choice([*ids, "gone"]))] for i in ids if rng.random() < 0.3})
    for k in range(int(rng.integers(1, 3)) if rng.random() < 0.25 else 0):
        sides = np.sort(np.round(rng.normal(0, 2, 2), 3))
        lower = float(sides[0]) if rng.random() < 0.3 else -np.inf
        coefficients = np.round(rng.normal(0, 1, n), int(rng.integers(0, 4)))
        rows.append(LinearConstraint(coefficients, lower, float(sides[1]), f"mixed {k}"))
    return tuple(rows)


def random_shared_program(rng: np.random.Generator, n_max: int = 10) -> SelectionProgram:
    """Draw a program of `random_program` with segments: cost moves from the items to what they share.

    Items share segments as windows, titles, versions or nested passages do, or at random. Some items need
    none, some segments have no users, some cost nothing; half of the programs have prices of segments.
    """
    program = random_program(rng, n_max)
    needs = _needs(rng, program.n, str(rng.choice(SHARING)))
    largest = float(program.costs.max(initial=1.0)) or 1.0
    places = 0 if np.all(program.costs % 1 == 0) else 2
    costs = np.round(rng.random(needs.shape[1]) * largest * float(rng.choice([0.2, 1.0])), places)
    if rng.random() < 0.2:
        costs *= rng.random(costs.size) < 0.5
    prices = np.zeros(costs.size)
    if rng.random() < 0.2:
        prices = np.round(rng.random(costs.size) * float(rng.choice([0.1, 1.0])), 3)
    kept = np.round(program.costs * float(rng.choice([0.0, 0.3, 1.0])), places)
    shared = Segments(costs, needs, prices)
    total, kind = float(kept.sum() + costs.sum()), rng.random()
    if kind < 0.5:
        chosen = rng.random(kept.size) < rng.random()
        budget = round(float(kept[chosen].sum()) + shared.cost(chosen), 3)
    elif kind < 0.9:
        budget = round(total * float(rng.random()), 3)
    else:
        budget = [0.0, -1.0, total + 1.0][int(rng.integers(3))]
    program = replace(program, costs=kept, segments=shared, budget=budget)
    if rng.random() < 0.4 and program.segments is not None:
        price = float(10.0 ** -int(rng.integers(1, 4)))
        program = with_token_price(program, round(price / max(1.0, 10.0 ** np.ceil(np.log10(largest))), 5))
    return program


def _needs(rng: np.random.Generator, n: int, kind: str) -> NDArray[np.bool_]:
    """Segments that each item needs; segments and items in random order."""
    if kind == "windows":
        needs = np.zeros((n, n + 1), dtype=bool)
        for i in range(n):
            needs[i, i : i + int(rng.integers(1, 4))] = True
    elif kind == "titles":
        needs = rng.integers(0, max(1, n // 3), n)[:, None] == np.arange(max(1, n // 3))
    elif kind == "versions":
        groups = rng.integers(0, 3, n)
        needs = (groups[:, None] == rng.integers(0, 3, 2 * n)) & (rng.random((n, 2 * n)) < 0.9)
    elif kind == "nested":
        needs = np.tri(n, dtype=bool)
    else:
        needs = rng.random((n, int(rng.integers(0, 2 * n + 1)))) < float(rng.choice([0.1, 0.3, 0.7]))
    if rng.random() < 0.3:
        needs &= rng.random(needs.shape) < 0.8
    return np.ascontiguousarray(needs[rng.permutation(n)][:, rng.permutation(needs.shape[1])])


# Known answers ----------------------------------------------------------------------------------------------

#: What an exact solver owes. "proof": the proven optimum. "selection": the best selection, proven or with a
#: message why not. "honesty": the same, or limit="precision" where numbers lie too far apart for floating
#: point. "bound": a selection, and a bound that holds.
Demand = Literal["proof", "selection", "honesty", "bound"]


@dataclass(frozen=True, eq=False)
class Case:
    """A program and its answer.

    optimum: by hand; None: by enumeration, or nothing is feasible.
    selected: the only optimal selection; None: there are several, or none.
    plain: every solver has to take it: numbers of few digits and ordinary size.
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
    return SelectionProgram(np.asarray(linear), pairwise, np.asarray(costs), budget, tuple(rows), marks)


def _row(
    coefficients: Sequence[float], lower: float = -np.inf, upper: float = np.inf, name: str = "row"
) -> LinearConstraint:
    return LinearConstraint(np.asarray(coefficients), lower, upper, name)


def knapsack() -> SelectionProgram:
    """Return problem P01 of the Florida State collection: ten items, optimum 309."""
    values, weights = [92, 57, 49, 68, 60, 43, 67, 84, 87, 72], [23, 31, 29, 44, 53, 38, 63, 85, 89, 82]
    return _program(values, weights, 165)


def known_cases() -> tuple[Case, ...]:
    """Return programs with known answers; each caught a solver out, or could."""
    return (*_small(), *_infeasible(), *_hard_numbers(), *_far_apart(), *_beyond_products())


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


def _infeasible() -> Iterator[Case]:
    both = [*passage_count(2, minimum=2), _row([1, 0], upper=0)]
    table = {
        "negative budget": _program([1.0], [0], -1),
        "negative budget, no items": _program([], [], -1),
        "row without items": _program([], [], 1, rows=[_row([], lower=1)]),
        "row without coefficients": _program([1.0], [1], 1, rows=[_row([0], upper=-1)]),
        "contradictory rows": _program([1.0, 1.0], [1, 1], 5, rows=both),
        "fixed beyond the budget": _program([1.0, 1.0], [3, 3], 5, fixed=[1, 1]),
        "count beyond the budget": _program([1.0] * 3, [2] * 3, 5, rows=passage_count(3, minimum=3)),
    }
    yield from (Case(name, program) for name, program in table.items())
    yield Case("negative budget, huge costs", _program([0.0], [5e59], -1), plain=False)


def _hard_numbers() -> Iterator[Case]:
    # What is proven and what is feasible is relative to the numbers.
    small = [4e-7, 4e-7, 4e-7]
    yield Case("values of a hundred millionth", _program([3e-8, 2e-8, 2e-8], [3, 2, 2], 4), 4e-8, (1, 2))
    yield Case("costs below a millionth", _program([1, 1, 1], small, 5e-7), 1.0)
    below = [_row(small, upper=5e-7)]
    yield Case("a row below a millionth", _program([1, 1, 1], [1, 1, 1], 9, rows=below), 1.0)
    # What cannot be chosen must not decide the scale of what can.
    pair, benefit = [(0, 1, 5e198)], [(0, 1, -1.0)]
    giants: list[tuple[SelectionProgram, tuple[int, ...]]] = [
        (_program([1.0, 1.0], [0.5, 6.2e209], 0.749), (0,)),
        (_program([1.0, 1.0], [1.0, 6.2e209], 0.0), ()),
        (_program([0.5, 1.0], [0.0, 0.0], 0.0, pair), (1,)),
        (_program([1.0, -5e198], [1.0, 1.0], 2.0), (0,)),
        (_program([1.0, 3e-8, 2e-8, 2e-8], [100, 3, 2, 2], 4), (2, 3)),
        (_program([3e-8, 2e-8, 2e-8], [3, 2, 2], 4, benefit), (1, 2)),
        (_program([5e220], [6.8e-257], 1.0), (0,)),
        (_program([-2.7e12, 1.3e12, 1.4e12], [1, 1, 1], 3, rows=passage_count(3, minimum=3)), (0, 1, 2)),
    ]
    # Costs of many digits, with values that differ little or a budget that is met exactly.
    values = [1.5456e-10, 1.05043e-7, 2.27215e-12, 7.94716e-11, 4.6855357e-6]
    twice, thrice = 8188402.522009669, 14487173.692786334
    exactly = [5174913993.137038, 7762370989.705557, 10349827986.274076]
    digits: list[tuple[SelectionProgram, tuple[int, ...]]] = [
        (_program(values, [twice, thrice, twice, 4619098.858569557, thrice], 24565207.566029005), (0, 4)),
        (_program([3.2e-4, 3.8e-4, 5.8e-5], exactly, 23287112969.11667), (0, 1, 2)),
        # relative to large values too, a gain of a hundred millionth is one
        (_program([2.8e9, 71.0, 40.0], [1.0, 1.0, 1.0], 2.0), (0, 1)),
    ]
    for name, table in (("giants", giants), ("many digits", digits)):
        for k, (program, best) in enumerate(table):
            yield Case(f"{name} {k}", program, None, best, "selection", plain=False)


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
    for k, (one, best) in enumerate(plain):
        for values, costs in sizes:
            name = f"values times {values:g}, costs times {costs:g}, {k}"
            yield Case(name, at_scale(one, values, costs, 1.0), values * best, None, "bound", plain=False)
