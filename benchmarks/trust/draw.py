"""Programs that are hard for certificates: those of `mio_rag.testing` with odd scales and edges."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.trust.oracle import Truth, enumerate_all
from mio_rag.formulations import LinearConstraint, NormBall, Segments, SelectionProgram, termwise_program
from mio_rag.formulations.uncertainty import Norm
from mio_rag.testing.programs import at_scale, random_program, random_shared_program

FloatArray = NDArray[np.float64]
_Twist = Callable[[np.random.Generator, SelectionProgram], SelectionProgram]
#: Sizes of values, costs and rows.
SIZES = tuple(10.0**k for k in range(-12, 13, 2))


def draw(
    rng: np.random.Generator, n_max: int, shared: bool = False
) -> tuple[SelectionProgram, tuple[str, ...]]:
    """A program of at most `n_max` items, and the names of its twists, none to three, and of its scale.

    shared: whether its items share segments, and may be twisted by `SHARED_TWISTS`, too.
    """
    program = random_shared_program(rng, n_max) if shared else random_program(rng, n_max)
    twists = {**TWISTS, **SHARED_TWISTS} if shared else TWISTS
    count = int(rng.integers(4))
    names = tuple(str(name) for name in rng.choice(list(twists), count, replace=False))
    for name in names:
        program = twists[name](rng, program)
    if rng.random() < 0.5:
        values, costs, rows = (float(s) for s in rng.choice(SIZES, 3))
        program, names = at_scale(program, values, costs, rows), (*names, f"values at {values:g}")
    return program, names


def path(rng: np.random.Generator, program: SelectionProgram, steps: int) -> list[SelectionProgram]:
    """Programs of one pool: penalties grow or shrink, evenly or not, or vanish; the budget may move."""
    programs = []
    for _ in range(steps):
        weight = float(rng.choice([0.0, 0.25, 0.9, 1.0, 1.1, 4.0]))
        each = np.triu(rng.random((program.n, program.n)), 1) if rng.random() < 0.5 else np.full((), 0.5)
        budget = program.budget * float(rng.choice([0.5, 1.0, 1.0, 1.3]))
        programs.append(replace(program, pairwise=weight * (each + each.T) * program.pairwise, budget=budget))
    return programs


def _powers(rng: np.random.Generator, shape: int | tuple[int, int], most: int = 6) -> FloatArray:
    """Powers of ten between 10^-most and 10^most."""
    return np.asarray(10.0 ** rng.integers(-most, most + 1, shape))


def _scaled_values(rng: np.random.Generator, program: SelectionProgram) -> SelectionProgram:
    factor = float(_powers(rng, 1)[0])
    return replace(program, linear=factor * program.linear, pairwise=factor * program.pairwise)


def _mixed_values(rng: np.random.Generator, program: SelectionProgram) -> SelectionProgram:
    """Every item with a size of its own, or every number."""
    most = int(rng.integers(1, 7))
    size = _powers(rng, program.n, most)
    if rng.random() < 0.5:
        return replace(
            program, linear=size * program.linear, pairwise=np.sqrt(np.outer(size, size)) * program.pairwise
        )
    pairs = np.triu(_powers(rng, (program.n, program.n), most), 1)
    return replace(program, linear=size * program.linear, pairwise=(pairs + pairs.T) * program.pairwise)


def _scaled_costs(rng: np.random.Generator, program: SelectionProgram) -> SelectionProgram:
    factor = float(_powers(rng, 1)[0])
    return replace(program, costs=factor * program.costs, budget=factor * program.budget)


def _mixed_costs(rng: np.random.Generator, program: SelectionProgram) -> SelectionProgram:
    costs = _powers(rng, program.n, int(rng.integers(1, 7))) * program.costs
    return replace(program, costs=costs, budget=float(rng.choice([0.0, 0.3, 0.6])) * float(costs.sum()))


def _edge_of_budget(rng: np.random.Generator, program: SelectionProgram) -> SelectionProgram:
    """Exactly what some items cost, off by nothing or by about the feasibility tolerance."""
    some = program.cost(rng.random(program.n) < 0.5)
    off = float(rng.choice([0.0, 0.0, 5e-7, -5e-7, 1e-6, -1e-6, 2e-6, -2e-6]))
    return replace(program, budget=some + off)


def _edge_of_rows(rng: np.random.Generator, program: SelectionProgram) -> SelectionProgram:
    """A row that some selection meets with equality, of coefficients of any size."""
    coefficients = np.round(rng.normal(size=program.n), 3) * float(_powers(rng, 1)[0])
    if rng.random() < 0.3:
        coefficients = coefficients * _powers(rng, program.n, 3)
    at = float(coefficients[rng.random(program.n) < 0.5].sum())
    kind = int(rng.integers(3))
    row = LinearConstraint(
        coefficients,
        lower=-np.inf if kind == 0 else at,
        upper=np.inf if kind == 1 else at,
        name="met exactly",
    )
    return replace(program, rows=(*program.rows, row))


def _conflicts(rng: np.random.Generator, program: SelectionProgram) -> SelectionProgram:
    """Some pairs excluded by a huge penalty."""
    huge = float(rng.choice([1e3, 1e6, 1e9]))
    chosen = np.triu(rng.random((program.n, program.n)) < 0.1, 1)
    return replace(program, pairwise=np.where(chosen | chosen.T, huge, program.pairwise))


def _strong_links(rng: np.random.Generator, program: SelectionProgram) -> SelectionProgram:
    """Some pairs worth far more together than anything alone."""
    benefit = float(rng.choice([3.0, 100.0, 1e6]))
    chosen = np.triu(rng.random((program.n, program.n)) < 0.1, 1)
    return replace(program, pairwise=np.where(chosen | chosen.T, -benefit, program.pairwise))


def _offset(rng: np.random.Generator, program: SelectionProgram) -> SelectionProgram:
    """An item that is fixed in and worth far more, or less, than the rest."""
    if program.n == 0:
        return program
    assert program.fixed is not None
    i = int(rng.integers(program.n))
    fixed, linear = program.fixed.copy(), program.linear.copy()
    fixed[i], linear[i] = 1, float(rng.choice([-1.0, 1.0])) * float(_powers(rng, 1)[0])
    return replace(program, fixed=fixed, linear=linear)


def _exact_ties(rng: np.random.Generator, program: SelectionProgram) -> SelectionProgram:
    """Small whole numbers: many selections are equally good, and meet the budget exactly."""
    n = program.n
    linear, pairs = rng.choice([0.0, 1.0, 2.0], n), np.triu(rng.choice([-1.0, 0.0, 1.0], (n, n)), 1)
    costs = rng.choice([1.0, 2.0], n)
    return replace(
        program, linear=linear, pairwise=pairs + pairs.T, costs=costs, budget=float(costs.sum() // 2)
    )


def _twins(rng: np.random.Generator, program: SelectionProgram) -> SelectionProgram:
    """Some items are copies of others, in values, costs and rows."""
    if program.n == 0:
        return program
    of = np.where(rng.random(program.n) < 0.5, rng.integers(program.n), np.arange(program.n))
    pairwise = program.pairwise[np.ix_(of, of)]
    np.fill_diagonal(pairwise, 0.0)
    rows = tuple(replace(row, coefficients=row.coefficients[of]) for row in program.rows)
    return replace(program, linear=program.linear[of], pairwise=pairwise, costs=program.costs[of], rows=rows)


def _precedence(rng: np.random.Generator, program: SelectionProgram) -> SelectionProgram:
    """Items that need others: a chain, or a tree."""
    order, rows = rng.permutation(program.n), list(program.rows)
    for k in range(1, program.n):
        before = k - 1 if rng.random() < 0.7 else int(rng.integers(k))
        coefficients = np.zeros(program.n)
        coefficients[order[k]], coefficients[order[before]] = 1.0, -1.0
        rows.append(LinearConstraint(coefficients, -np.inf, 0.0, f"need {k}"))
    return replace(program, rows=tuple(rows))


def _robust(rng: np.random.Generator, program: SelectionProgram) -> SelectionProgram:
    """The robust counterpart of similar texts, some of them nearly the same, with numbers of full digits."""
    vectors = rng.normal(size=(program.n, 4)) + 1.0
    if program.n:
        vectors = vectors[rng.integers(program.n, size=program.n)] + 1e-3 * vectors
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    query = vectors[0] if program.n else np.ones(4)
    norms: tuple[Norm, ...] = ("l2", "l1", "linf")
    ball = NormBall(float(rng.choice([0.01, 0.1, 0.5])), norms[int(rng.integers(3))])
    return termwise_program(
        *(vectors @ query, vectors, query, program.costs, program.budget, ball),
        redundancy_weight=float(rng.choice([0.1, 0.5, 2.0])),
        rows=program.rows, fixed=program.fixed, segments=program.segments,
    )  # fmt: skip


def _full_digits(rng: np.random.Generator, program: SelectionProgram) -> SelectionProgram:
    """Numbers with all their digits."""
    n = program.n
    noise = np.triu(rng.random((n, n)), 1)
    return replace(
        program,
        linear=program.linear * rng.random(n),
        pairwise=program.pairwise * (noise + noise.T),
        costs=program.costs * rng.random(n),
        budget=program.budget * float(rng.random()),
    )


def _other_segments(
    program: SelectionProgram, costs: FloatArray | None = None, prices: FloatArray | None = None
) -> SelectionProgram:
    """The program with other costs or prices of its segments, where it has any."""
    given = program.segments
    if given is None:
        return program
    costs, prices = (given.costs if costs is None else costs), (given.prices if prices is None else prices)
    return replace(program, segments=Segments(costs, given.needs, prices))


def _segments_of(program: SelectionProgram) -> int:
    return 0 if program.segments is None else program.segments.m


def _scaled_segments(rng: np.random.Generator, program: SelectionProgram) -> SelectionProgram:
    """Segments of another size than the items, or each of its own; what some items cost is the budget."""
    if program.segments is None:
        return program
    size = _powers(rng, program.segments.m if rng.random() < 0.5 else 1, int(rng.integers(1, 7)))
    bent = _other_segments(program, costs=size * program.segments.costs)
    return replace(bent, budget=bent.cost(rng.random(program.n) < 0.6))


def _full_segments(rng: np.random.Generator, program: SelectionProgram) -> SelectionProgram:
    """Costs and prices of segments with all their digits."""
    if program.segments is None:
        return program
    m = program.segments.m
    bent = _other_segments(program, rng.random(m) * program.segments.costs, 0.3 * rng.random(m))
    return replace(bent, budget=bent.cost(rng.random(program.n) < 0.6))


def _no_own_costs(rng: np.random.Generator, program: SelectionProgram) -> SelectionProgram:
    """All cost on segments: what is covered costs nothing more."""
    bent = replace(program, costs=0 * program.costs)
    return replace(bent, budget=bent.cost(rng.random(program.n) < 0.6))


#: Ways to bend the segments of a program, by name.
SHARED_TWISTS: dict[str, _Twist] = {
    "scaled segments": _scaled_segments,
    "full digits of segments": _full_segments,
    "no own costs": _no_own_costs,
    "huge prices": lambda rng, program: _other_segments(
        program, prices=0.1 * _powers(rng, _segments_of(program), 4)
    ),
    "free segments": lambda _, program: _other_segments(program, costs=np.zeros(_segments_of(program))),
}

#: Ways to bend a program, by name.
TWISTS: dict[str, _Twist] = {
    "scaled values": _scaled_values,
    "mixed values": _mixed_values,
    "scaled costs": _scaled_costs,
    "mixed costs": _mixed_costs,
    "edge of the budget": _edge_of_budget,
    "edge of a row": _edge_of_rows,
    "conflicts": _conflicts,
    "strong links": _strong_links,
    "offset": _offset,
    "full digits": _full_digits,
    "exact ties": _exact_ties,
    "twins": _twins,
    "precedence": _precedence,
    "robust counterpart": _robust,
    "no interactions": lambda _, program: replace(program, pairwise=0 * program.pairwise),
    "no costs": lambda _, program: replace(program, costs=0 * program.costs),
    "no values": lambda _, program: replace(program, linear=0 * program.linear),
    "no rows": lambda _, program: replace(program, rows=(), fixed=None),
    "positive values": lambda _, program: replace(program, linear=np.abs(program.linear)),
}


# Variants that a program's own selections suggest ----------------------------------------------------------

_Variant = Callable[[np.random.Generator, SelectionProgram, Truth], SelectionProgram]


def family(
    rng: np.random.Generator, program: SelectionProgram, more: int
) -> Iterator[tuple[str, SelectionProgram, Truth]]:
    """A program and so many variants of it, which are hard to decide: name, program, truth."""
    truth = enumerate_all(program)
    yield "as drawn", program, truth
    if not truth.within.any():
        return
    several = np.count_nonzero(truth.sure) > 1
    names = rng.choice(list(VARIANTS) if several else list(VARIANTS)[:2], more)
    for name in names:
        other = VARIANTS[name](rng, program, truth)
        yield str(name), other, enumerate_all(other)


def _budget_of_any(rng: np.random.Generator, program: SelectionProgram, truth: Truth) -> SelectionProgram:
    """Exactly what a selection costs, or off by about the tolerance."""
    cost = truth.cost[rng.choice(np.flatnonzero(truth.within))]
    off = float(rng.choice([0.0, 0.0, 5e-7, -5e-7, 1e-6, -1e-6, 2e-6, -2e-6]))
    return program.within(cost + off * min(1.0, abs(cost)))


def _budget_of_best(rng: np.random.Generator, program: SelectionProgram, truth: Truth) -> SelectionProgram:
    """What the best of all selections costs, or next to nothing less."""
    cost = truth.cost[np.argmax(np.where(truth.within, truth.value, -np.inf))]
    less = float(rng.choice([0.0, 2e-16, 1e-12, 1e-6, 1e-5, 1.0]))
    return program.within(float(cost - less * abs(cost)))


def _second_as_good(rng: np.random.Generator, program: SelectionProgram, truth: Truth) -> SelectionProgram:
    """The second best selection is worth as much as the best, or differs by about the tolerance."""
    value = np.where(truth.sure, truth.value, -np.inf)
    best = int(np.argmax(value))
    value[best] = -np.inf
    second = int(np.argmax(value))
    lift = truth.value[best] - truth.value[second]
    lift += float(rng.choice([0.0, 0.0, 0.4, 0.9, 1.1, 3.0])) * 1e-6 * min(1.0, truth.largest)
    linear, gains = program.linear.copy(), second & ~best
    item = truth.free[(gains or best & ~second).bit_length() - 1]
    linear[item] += lift if gains else -lift
    return program.with_values(linear, program.segments)


def _worth_nothing(rng: np.random.Generator, program: SelectionProgram, truth: Truth) -> SelectionProgram:
    """The value of the best is taken off one of its items: the objective cancels."""
    best = int(np.argmax(np.where(truth.sure, truth.value, -np.inf)))
    linear = program.linear.copy()
    if best:
        linear[truth.free[best.bit_length() - 1]] -= truth.value[best]
    return program.with_values(linear, program.segments)


#: Ways to change a program; the first two need no feasible selection.
VARIANTS: dict[str, _Variant] = {
    "budget of a selection": _budget_of_any,
    "budget of the best": _budget_of_best,
    "second as good as the best": _second_as_good,
    "worth nothing": _worth_nothing,
    "values exchanged": lambda rng, program, _: program.with_values(
        rng.permutation(program.linear), program.segments
    ),
    "other sizes": lambda rng, program, _: at_scale(program, *(float(s) for s in rng.choice(SIZES, 3))),
}
