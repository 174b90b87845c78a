"""Side constraints in the user's words, as linear rows and fixed values.

Every function returns rows (or fixed values) for `SelectionProgram`. Explanations and infeasibility reports
quote the names of these rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import InputError
from mio_rag.formulations.numbers import LARGEST_NUMBER, plural
from mio_rag.formulations.program import LinearConstraint

__all__ = ["fixed_values", "passage_count", "source_caps"]


def count_problem(name: str, value: Any) -> str | None:
    """What is wrong with a count, or None."""
    number = isinstance(value, (int, float, np.integer)) and not isinstance(value, bool)
    if not (number and value >= 0 and value % 1 == 0):
        return f"{name}={value!r} must be a whole number >= 0"
    return None if value <= LARGEST_NUMBER else f"{name} must be at most {LARGEST_NUMBER:g}"


def passage_count(n: int, minimum: int | None = None, maximum: int | None = None) -> list[LinearConstraint]:
    """At least `minimum` and at most `maximum` of n passages; None: no limit.

    Raises
    ------
    InputError
        For negative or fractional counts, minimum > maximum, or minimum > n.
    """
    given = [(name, v) for name, v in (("min_passages", minimum), ("max_passages", maximum)) if v is not None]
    problems = [p for name, v in given if (p := count_problem(name, v))]
    if not problems and minimum is not None:
        if maximum is not None and minimum > maximum:
            problems.append(
                f"min_passages={minimum} is above max_passages={maximum}: no selection can satisfy both"
            )
        if minimum > n:
            problems.append(
                f"min_passages={minimum} is above the {n} candidates: lower it or retrieve a larger pool"
            )
    if problems:
        raise InputError(problems)
    rows = []
    if minimum:
        rows.append(
            LinearConstraint(np.ones(n), lower=minimum, name=f"at least {plural(minimum, 'passage')}")
        )
    if maximum is not None and maximum < n:
        rows.append(LinearConstraint(np.ones(n), upper=maximum, name=f"at most {plural(maximum, 'passage')}"))
    return rows


def source_caps(sources: Sequence[str], cap: int | Mapping[str, int]) -> list[LinearConstraint]:
    """At most `cap` passages from one source.

    Parameters
    ----------
    sources : sequence of str, length n
        Source of each passage. Passages without a source (empty string) are not capped.
    cap : int or mapping of source to int
        One cap for all sources, or caps for the named ones only.

    Raises
    ------
    InputError
        For a negative or fractional cap.
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
    """Fixed values for passages that must be in or out: 1, 0, or -1 where free.

    Raises
    ------
    InputError
        For an id that is not a candidate, or one that is asked to be both in and out.
    """
    included, excluded = set(must_include), set(must_exclude)
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
