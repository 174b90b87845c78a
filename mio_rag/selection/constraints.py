"""Side constraints of a selection beyond counts, hard or soft (at a price).

`mio_rag.selection.pool_constraints` applies them to a pool.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from mio_rag.errors import InputError
from mio_rag.formulations.numbers import LARGEST_SETTING, is_setting
from mio_rag.formulations.rows import count_problem
from mio_rag.selection.clusters import check_clustering

__all__ = ["KINDS", "SideConstraints"]

#: Kinds of constraints that may be broken at a price.
KINDS = ("passages", "sources", "clusters", "conflicts", "needs")

_MAPPINGS = {
    "versions": "id to version",
    "needs": "id to the ids that it needs",
    "prices": "kind of constraint to price",
}


@dataclass(frozen=True)
class SideConstraints:
    """Constraints on a selection, besides budget and counts.

    Parameters
    ----------
    max_source_share : float, optional
        In (0, 1]: largest share of the chosen passages from one source.
    cover : str, optional
        At least `per_cluster` passages from every topical cluster: "labels" (`Candidates.clusters`),
        "kmeans:K" or "agglomerative:S" (made from the embeddings). None: no coverage.
    per_cluster : int
        >= 1.
    previous : sequence of str, optional
        Ids of an earlier selection, of the question before, for instance. None: not known; `Conversation`
        gives it turn by turn. Empty: a selection of nothing.
    max_changes : int, optional
        Largest number of passages that come in or go against `previous`. Those that are no candidates any
        more are dropped without being counted, since nothing could keep them.
    change_price : float
        >= 0, in units of relevance: what each of these changes costs.
    max_similarity : float, optional
        Never both of two passages whose embeddings have a larger inner product (near-duplicates).
    conflicts : sequence of (str, str)
        Never both ids of a pair. Where one is no candidate there is nothing to forbid.
    versions : mapping of str to str
        Id -> the document that it is a version of: at most one version of each.
    needs : mapping of str to sequence of str
        Id -> ids without which it must not be chosen (a chunk -> its header). A passage whose need is no
        candidate cannot be chosen.
    prices : mapping of str to float
        Kind of constraint -> price for every unit by which it is broken, in units of relevance: "passages"
        (min and max), "sources" (caps by count), "clusters", "conflicts", "needs". Kinds that are not named
        are hard. What a selection breaks is in `Selection.notes`, with what that costs.

    Raises
    ------
    InputError
        With every problem found.
    """

    max_source_share: float | None = None
    cover: str | None = None
    per_cluster: int = 1
    previous: Sequence[str] | None = None
    max_changes: int | None = None
    change_price: float = 0.0
    max_similarity: float | None = None
    conflicts: Sequence[tuple[str, str]] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    needs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    prices: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_given(self) -> bool:
        """Whether there is any constraint, or price of changes."""
        known = (self.max_source_share, self.cover, self.max_changes, self.max_similarity)
        some = (self.change_price, self.conflicts, self.versions, self.needs, self.prices)
        return any(value is not None for value in known) or any(map(bool, some))

    def replace(self, **changes: Any) -> Self:
        """Return the settings with changes; checked as when settings are made."""
        return replace(self, **changes)

    def __post_init__(self) -> None:
        problems = [
            f"{name} is of type {type(getattr(self, name)).__name__}: give a mapping of {what}"
            for name, what in _MAPPINGS.items()
            if not isinstance(getattr(self, name), Mapping)
        ]
        if problems:
            raise InputError(problems)
        share = self.max_source_share
        if share is not None and not 0 < share <= 1:
            problems.append(f"max_source_share={share!r} must be in (0, 1]: a share of the chosen passages")
        if self.cover is not None:
            try:
                check_clustering(self.cover)
            except InputError as error:
                problems += error.problems
        if self.max_changes is not None and (problem := count_problem("max_changes", self.max_changes)):
            problems.append(problem)
        if (problem := count_problem("per_cluster", self.per_cluster)) or self.per_cluster < 1:
            problems.append(problem or "per_cluster must be >= 1")
        if self.cover is None and self.per_cluster != 1:
            problems.append(f"per_cluster={self.per_cluster!r} needs clusters to cover: give cover too")
        if self.cover is None and "clusters" in self.prices:
            problems.append("prices: 'clusters' needs clusters to cover: give cover too, or leave it out")
        if isinstance(self.previous, str):
            problems.append(f"previous={self.previous!r} is a string: give a list of ids")
        if self.max_similarity is not None and not -1 <= self.max_similarity <= 1:
            problems.append(f"max_similarity={self.max_similarity!r} must be between -1 and 1: a cosine")
        problems += [f"conflicts: {pair!r} is not a pair of ids" for pair in self.conflicts if len(pair) != 2]
        problems += [
            f"needs: what '{i}' needs is a string: give a list of ids"
            for i, ids in self.needs.items()
            if isinstance(ids, str)
        ]
        problems += [
            f"prices: '{k}' is unknown: choose {', '.join(KINDS)}" for k in self.prices if k not in KINDS
        ]
        for name, price in [("change_price", self.change_price), *self.prices.items()]:
            if not is_setting(price):
                problems.append(f"the price {name}={price!r} must be a number from 0 to {LARGEST_SETTING:g}")
        if problems:
            raise InputError(problems)

    def lacking(self) -> str | None:
        """What these settings need before anything can be selected, in a sentence; None if nothing."""
        names = ["max_changes"] if self.max_changes is not None else []
        names += ["change_price"] if self.change_price > 0 else []
        if self.previous is not None or not names:
            return None
        return (
            f"{' and '.join(names)} compare with the previous selection, which is not given: "
            "give previous=[ids], or let Conversation carry it from turn to turn"
        )

    def named(self) -> list[tuple[str, str]]:
        """(setting, id) for every id that these name, each once."""
        given = [("previous", i) for i in self.previous or ()]
        given += [("conflicts", i) for pair in self.conflicts for i in pair]
        given += [("versions", i) for i in self.versions]
        given += [("needs", i) for child, parents in self.needs.items() for i in (child, *parents)]
        return list(dict.fromkeys(given))
