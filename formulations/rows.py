"""Side constraints as linear rows and fixed values for `SelectionProgram`; explanations quote their names."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import InputError
from mio_rag.formulations.numbers import LARGEST_NUMBER, LARGEST_SETTING, is_setting, plural
from mio_rag.formulations.program import LinearConstraint, SelectionProgram


def count_problem(name: str, value: Any, least: int = 0) -> str | None:
    """What is wrong with a count, or None."""
    number = isinstance(value, (int, float, np.integer)) and not isinstance(value, bool)
    if not (number and value >= least and value % 1 == 0):
        return f"{name}={value!r} must be a whole number >= {least}"
    return None if value <= LARGEST_NUMBER else f"{name} must be at most {LARGEST_NUMBER:g}"


def passage_count(n: int, minimum: int | None = None, maximum: int | None = None) -> list[LinearConstraint]:
    """At least `minimum` and at most `maximum` of n passages; None: no limit."""
    given = [(name, v) for name, v in (("min_passages", minimum), ("max_passages", maximum)) if v is not None]
    problems = [p for name, v in given if (p := count_problem(name, v))]
    if not problems and minimum is not None:
        above = f"min_passages={minimum} is above"
        if maximum is not None and minimum > maximum:
            problems.append(f"{above} max_passages={maximum}: no selection can satisfy both")
        if minimum > n:
            problems.append(f"{above} the {n} candidates: lower it or retrieve a larger pool")
    if problems:
        raise InputError(problems)
    rows, every = [], np.ones(n)
    if minimum:
        rows.append(LinearConstraint(every, lower=minimum, name=f"at least {plural(minimum, 'passage')}"))
    if maximum is not None and maximum < n:
        rows.append(LinearConstraint(every, upper=maximum, name=f"at most {plural(maximum, 'passage')}"))
    return rows


def source_caps(sources: Sequence[str], cap: int | Mapping[str, int]) -> list[LinearConstraint]:
    """At most `cap` passages from one source: one cap for all, or caps for the named sources only.

    Passages without a source (empty string) are not capped.
    """
    caps = dict(cap) if isinstance(cap, Mapping) else dict.fromkeys(sources, cap)
    problems = [p for s, v in caps.items() if (p := count_problem(f"max_per_source for '{s}'", v))]
    if problems:
        raise InputError(sorted(set(problems)))
    labels = np.array(list(sources), dtype=object)
    rows = []
    for source, limit in caps.items():
        member = (labels == source).astype(np.float64)
        if source and member.sum() > limit:
            rows.append(LinearConstraint(member, upper=limit, name=f"at most {limit} from source '{source}'"))
    return rows


def fixed_values(
    ids: Sequence[str], must_include: Iterable[str] = (), must_exclude: Iterable[str] = ()
) -> NDArray[np.int8]:
    """Return 1, 0, or -1 (free) for each passage. Ids of no candidates may be excluded, not included."""
    included, excluded = set(must_include), set(must_exclude)
    if not included and not excluded:
        return np.full(len(ids), -1, dtype=np.int8)
    problems = [
        f"'{i}' is in both must_include and must_exclude: keep one" for i in sorted(included & excluded)
    ]
    problems += [
        f"must_include names '{i}', which is not among the {len(ids)} candidates: "
        "check the id or enlarge the pool"
        for i in sorted(included - set(ids))
    ]
    if problems:
        raise InputError(problems)
    return np.array([1 if i in included else 0 if i in excluded else -1 for i in ids], dtype=np.int8)


def share_rows(labels: Sequence[str], share: float) -> list[LinearConstraint]:
    """At most a share in (0, 1] of the chosen passages from one source: count_s <= share * count.

    Exact, with the share as the nearest fraction with a denominator up to 1000; below 1 a single passage is
    never enough. Passages without a label are not capped, but counted in the total.
    """
    if not 0 < share <= 1:
        raise InputError(f"max_source_share={share!r} must be in (0, 1]: a share of the chosen passages")
    part = Fraction(share).limit_denominator(1000)
    given = np.array(list(labels), dtype=object)
    rows = []
    for label in dict.fromkeys(labels):
        if label and part < 1:
            row = part.denominator * (given == label).astype(np.float64) - part.numerator
            name = f"at most {share:.3g} of all from source '{label}'"
            rows.append(LinearConstraint(row, upper=0, name=name))
    return rows


def coverage_rows(clusters: Sequence[str], least: int = 1) -> list[LinearConstraint]:
    """At least `least` passages from every cluster, or all of a smaller one; blank labels do not count."""
    given = np.array(list(clusters), dtype=object)
    rows = []
    for label in dict.fromkeys(clusters):
        member = (given == label).astype(np.float64)
        if label and least > 0:
            count = min(least, int(member.sum()))
            name = f"at least {count} from cluster '{label}'"
            rows.append(LinearConstraint(member, lower=count, name=name))
    return rows


def change_rows(ids: Sequence[str], previous: Iterable[str], most: int) -> list[LinearConstraint]:
    """At most `most` passages added to a previous selection or removed; of the candidates alone."""
    kept = set(previous)
    sign = np.array([-1.0 if i in kept else 1.0 for i in ids])
    upper = most - float((sign < 0).sum())
    if upper >= float((sign > 0).sum()):
        return []
    name = f"at most {plural(most, 'change')} against the previous selection"
    return [LinearConstraint(sign, upper=upper, name=name)]


def conflict_rows(ids: Sequence[str], pairs: Iterable[tuple[int, int]]) -> list[LinearConstraint]:
    """Never both of a pair. Passages that all conflict with each other share one row, which is tighter."""
    n = len(ids)
    near: list[set[int]] = [set() for _ in range(n)]
    for i, j in pairs:
        near[i].add(j)
        near[j].add(i)
    open_pairs = {(i, j) for i in range(n) for j in near[i] if i < j}
    rows = []
    for i, j in sorted(open_pairs):
        if (i, j) not in open_pairs:
            continue
        clique, common = [i, j], near[i] & near[j]
        while common:  # the one that keeps most of the others
            k = max(sorted(common), key=lambda c: len(near[c] & common))
            clique.append(k)
            common &= near[k]
        open_pairs -= {(a, b) for a in clique for b in clique}
        row = np.zeros(n)
        row[clique] = 1.0
        named = ", ".join(f"'{ids[k]}'" for k in sorted(clique)[:4]) + (" ..." if len(clique) > 4 else "")
        what = f"not both of {named}" if len(clique) == 2 else f"at most 1 of {named}"
        rows.append(LinearConstraint(row, upper=1, name=what))
    return rows


def need_rows(ids: Sequence[str], needs: Mapping[str, Sequence[str]]) -> list[LinearConstraint]:
    """A passage only together with those it needs; if one of them is not a candidate, it cannot be chosen."""
    at = {i: k for k, i in enumerate(ids)}
    rows = []
    for child, parents in needs.items():
        for parent in dict.fromkeys(parents):
            if child not in at or child == parent:
                continue
            row = np.zeros(len(ids))
            row[at[child]] = 1.0
            name = f"'{child}' needs '{parent}'"
            if parent in at:
                row[at[parent]] = -1.0
            else:
                name += ", which is not in the pool"
            rows.append(LinearConstraint(row, upper=0, name=name))
    return rows


@dataclass(frozen=True, eq=False)
class SoftRow:
    """A row of whole numbers that may be broken at a price >= 0 per unit, in units of the objective."""

    row: LinearConstraint
    price: float

    def __post_init__(self) -> None:
        if not is_setting(self.price):
            raise InputError(
                f"the price of '{self.row.name}' is {self.price!r}: it must be from 0 to {LARGEST_SETTING:g}"
            )
        ends = [b for b in (self.row.lower, self.row.upper) if math.isfinite(b)]
        if np.any(self.row.coefficients % 1 != 0) or any(b % 1 != 0 for b in ends):
            raise InputError(f"'{self.row.name}' cannot be soft: its numbers are not whole")

    def broken(self, x: NDArray[np.int8]) -> float:
        """By how much a decision on the row's items violates it."""
        return self.row.violation(float(self.row.coefficients @ x[: self.row.coefficients.size]))


def with_soft_rows(program: SelectionProgram, soft: Sequence[SoftRow]) -> SelectionProgram:
    """Add soft rows: violations are slack items behind the program's own, without tokens, in sizes 1, 2,
    4, ..., whose linear values are minus their prices.
    """
    if not soft:
        return program
    sizes: list[tuple[int, float, float]] = []  # (soft row, coefficient, linear value)
    for k, part in enumerate(soft):
        least = float(np.minimum(part.row.coefficients, 0).sum())
        most = float(np.maximum(part.row.coefficients, 0).sum())
        for sign, excess in ((1.0, part.row.lower - least), (-1.0, most - part.row.upper)):
            left = int(excess) if math.isfinite(excess) else 0
            size = 1
            while left > 0:
                take = min(size, left)
                sizes.append((k, sign * take, -part.price * take))
                left, size = left - take, 2 * size
    extended = _with_items(program, [value for *_, value in sizes], -1)
    rows = list(extended.rows)
    for k, part in enumerate(soft):
        slack = np.array([coefficient if at == k else 0.0 for at, coefficient, _ in sizes])
        rows.append(replace(part.row, coefficients=np.append(part.row.coefficients, slack)))
    return replace(extended, rows=tuple(rows))


def with_constant(program: SelectionProgram, value: float) -> SelectionProgram:
    """The program with a constant in its objective: one more item, which is always in and has no cost."""
    return program if value == 0 else _with_items(program, [value], 1)


def _with_items(program: SelectionProgram, values: Sequence[float], fixed: int) -> SelectionProgram:
    """The program with more items behind its own, without tokens and in no row."""
    m = len(values)
    assert program.fixed is not None
    rows = [replace(row, coefficients=np.append(row.coefficients, np.zeros(m))) for row in program.rows]
    return SelectionProgram(
        linear=np.append(program.linear, values),
        pairwise=np.pad(program.pairwise, (0, m)),
        costs=np.append(program.costs, np.zeros(m)),
        budget=program.budget,
        rows=tuple(rows),
        fixed=np.append(program.fixed, np.full(m, fixed)),
        segments=program.segments and program.segments.with_items(m),
    )
