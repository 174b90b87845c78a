"""Side constraints of a selection beyond counts: what they mean for a pool, hard or at a price."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mio_rag.clusters import check_clustering, cluster_labels
from mio_rag.errors import InputError
from mio_rag.formulations.constraints import count_problem, passage_count, source_caps
from mio_rag.formulations.program import LinearConstraint, SelectionProgram
from mio_rag.formulations.side_rows import (
    SoftRow,
    change_rows,
    conflict_rows,
    coverage_rows,
    need_rows,
    share_rows,
    with_soft_rows,
)
from mio_rag.types import Candidates

if TYPE_CHECKING:
    from mio_rag.selector import Selector

__all__ = ["KINDS", "Side", "SideConstraints", "side_of"]

#: Kinds of constraints that may be broken at a price.
KINDS = ("passages", "sources", "clusters", "conflicts", "needs")


@dataclass(frozen=True)
class SideConstraints:
    """What a selection must keep beside budget and counts.

    Parameters
    ----------
    max_source_share : float, optional
        In (0, 1]: largest share of the chosen passages from one source.
    cover : str, optional
        At least `per_cluster` passages from every topical cluster: "labels" (`Candidates.clusters`),
        "kmeans:K" or "agglomerative:S" (made from the embeddings). None: no coverage.
    per_cluster : int
        >= 1.
    previous : sequence of str
        Ids of an earlier selection, of the question before, for instance.
    max_changes : int, optional
        Largest number of passages that come in or go against `previous`. Those that are no candidates any
        more do not count. Without `previous` nothing is asked.
    change_price : float
        >= 0, in units of relevance: what each of these changes costs. Objective and bound count from the
        selection without any passage of `previous`: each that stays earns this price, each that comes in pays
        it. That is the value less the changes' price, plus a constant.
    max_similarity : float, optional
        Never both of two passages whose embeddings have a larger inner product (near-duplicates).
    conflicts : sequence of (str, str)
        Never both ids of a pair; ids that are no candidates are ignored.
    versions : mapping of str to str
        Id -> the document that it is a version of: at most one version of each.
    needs : mapping of str to sequence of str
        Id -> ids without which it must not be chosen (a chunk -> its header). A passage whose need is no
        candidate cannot be chosen.
    prices : mapping of str to float
        Kind of constraint -> price for every unit by which it is broken, in units of relevance: "passages"
        (min and max), "sources" (caps by count), "clusters", "conflicts", "needs". Kinds that are not named
        are hard.

    Raises
    ------
    InputError
        With every problem found.
    """

    max_source_share: float | None = None
    cover: str | None = None
    per_cluster: int = 1
    previous: Sequence[str] = ()
    max_changes: int | None = None
    change_price: float = 0.0
    max_similarity: float | None = None
    conflicts: Sequence[tuple[str, str]] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    needs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    prices: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        problems: list[str] = []
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
            number = isinstance(price, (int, float, np.number)) and not isinstance(price, bool)
            if not (number and np.isfinite(price) and price >= 0):
                problems.append(f"the price {name}={price!r} must be a finite number >= 0")
        if problems:
            raise InputError(problems)


@dataclass(frozen=True, eq=False)
class Side:
    """Side constraints of one pool: rows, prices, and what they add to the objective."""

    hard: tuple[LinearConstraint, ...]
    soft: tuple[SoftRow, ...]
    linear: NDArray[np.float64]
    pairwise: NDArray[np.float64] | None

    def applied(self, program: SelectionProgram) -> SelectionProgram:
        """The program with these constraints; items that buy broken rows stand behind its own."""
        if self.hard or self.pairwise is not None or np.any(self.linear):
            program = replace(
                program,
                linear=program.linear + self.linear,
                pairwise=program.pairwise if self.pairwise is None else program.pairwise + self.pairwise,
                rows=(*program.rows, *self.hard),
            )
        return with_soft_rows(program, self.soft)

    def notes(self, x: NDArray[np.int8]) -> list[str]:
        """What a decision broke, and what that cost."""
        broken = [(part, part.broken(x)) for part in self.soft]
        return [
            f"paid {part.price * excess:.3g}: {part.row.name}, broken by {excess:.10g}"
            for part, excess in broken
            if excess > 0
        ]

    def marginal(self, x: NDArray[np.int8]) -> NDArray[np.float64]:
        """What each passage adds to the price of broken rows: by coming in, or by being in."""
        n = self.linear.size
        change = np.zeros(n)
        for part in self.soft:
            activity, a = float(part.row.coefficients @ x[:n]), part.row.coefficients
            for i in np.flatnonzero(a):
                with_i, without = activity + (0 if x[i] else a[i]), activity - (a[i] if x[i] else 0)
                change[i] += part.price * (part.row.violation(with_i) - part.row.violation(without))
        return change


def side_of(selector: Selector, candidates: Candidates) -> Side:
    """What a selector's counts, caps and side constraints are for a pool.

    Raises
    ------
    InputError
        If the candidates lack what a constraint needs.
    """
    given, n = selector.side, len(candidates)
    ids, prices = candidates.ids, given.prices
    kinds: dict[str, list[LinearConstraint]] = {
        "passages": passage_count(n, selector.min_passages, selector.max_passages)
    }
    if selector.max_per_source is not None:
        kinds["sources"] = source_caps(_sources(candidates, "max_per_source"), selector.max_per_source)
    if given.cover is not None:
        labels = cluster_labels(candidates, given.cover, selector.options.seed)
        kinds["clusters"] = coverage_rows(labels, given.per_cluster)
    hard = [row for kind, rows in kinds.items() if kind not in prices for row in rows]
    soft = [SoftRow(row, prices[kind]) for kind, rows in kinds.items() if kind in prices for row in rows]
    if given.max_source_share is not None:
        hard += share_rows(_sources(candidates, "max_source_share"), given.max_source_share)
    linear, pairwise = np.zeros(n), np.zeros((n, n))
    if given.previous:
        if given.max_changes is not None:
            hard += change_rows(ids, given.previous, given.max_changes)
        kept = np.isin(np.array(ids, dtype=object), list(given.previous))
        linear += given.change_price * np.where(kept, 1.0, -1.0)
    pairs = _conflicts(given, candidates)
    if "conflicts" in prices:
        for i, j in pairs:
            pairwise[i, j] = pairwise[j, i] = prices["conflicts"]
    elif pairs:
        hard += conflict_rows(ids, pairs)
    needs = need_rows(ids, given.needs) if given.needs else []
    if "needs" in prices:  # x_i (1 - x_h) at a price is linear and pairwise
        for row in needs:
            child = int(np.argmax(row.coefficients))
            linear[child] -= prices["needs"]
            for parent in np.flatnonzero(row.coefficients < 0):
                pairwise[child, parent] -= prices["needs"]
                pairwise[parent, child] -= prices["needs"]
    else:
        hard += needs
    return Side(tuple(hard), tuple(soft), linear, pairwise if np.any(pairwise) else None)


def _sources(candidates: Candidates, what: str) -> Sequence[str]:
    if candidates.sources is None:
        raise InputError(f"{what} needs candidates with sources: pass sources, or leave it out")
    return candidates.sources


def _conflicts(given: SideConstraints, candidates: Candidates) -> list[tuple[int, int]]:
    """Pairs of candidates that must not both be chosen, each once."""
    if not (given.conflicts or given.versions) and given.max_similarity is None:
        return []
    at = {i: k for k, i in enumerate(candidates.ids)}
    pairs = {
        (min(at[a], at[b]), max(at[a], at[b])) for a, b in given.conflicts if a in at and b in at and a != b
    }
    if given.versions:
        groups: dict[str, list[int]] = {}
        for i, document in given.versions.items():
            if i in at:
                groups.setdefault(document, []).append(at[i])
        pairs |= {(a, b) for group in groups.values() for a in group for b in group if a < b}
    if given.max_similarity is not None:
        if candidates.embeddings is None:
            raise InputError("max_similarity needs candidates with embeddings")
        close = np.triu(candidates.embeddings @ candidates.embeddings.T > given.max_similarity, 1)
        pairs |= {(int(i), int(j)) for i, j in np.argwhere(close)}
    return sorted(pairs)
