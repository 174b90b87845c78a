"""Side constraints of one pool: rows, prices, what they add to the objective, and what a decision broke."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mio_rag.candidates import Candidates
from mio_rag.errors import InputError
from mio_rag.formulations.program import LinearConstraint, SelectionProgram
from mio_rag.formulations.rows import (
    SoftRow,
    change_rows,
    conflict_rows,
    coverage_rows,
    need_rows,
    passage_count,
    share_rows,
    source_caps,
    with_constant,
    with_soft_rows,
)
from mio_rag.selection.clusters import cluster_labels
from mio_rag.selection.constraints import SideConstraints
from mio_rag.selection.near_duplicates import duplicate_pairs
from mio_rag.selection.settings import Settings

__all__ = ["Side", "side_of"]


class Folded(NamedTuple):
    """A rule whose price is in the objective's terms: `first` never with, or never without, `second`.

    Parameters
    ----------
    second : int or None
        None: not in the pool, so that `first` always breaks the rule.
    together : bool
        Whether it is broken with `second` (a conflict) or without it (a need).
    """

    first: int
    second: int | None
    together: bool
    price: float
    name: str

    def is_broken(self, x: NDArray[np.int8]) -> bool:
        """Whether a decision breaks it."""
        return bool(x[self.first]) and (self.second is None or bool(x[self.second]) == self.together)


@dataclass(frozen=True, eq=False)
class Side:
    """Side constraints of one pool.

    Parameters
    ----------
    hard : tuple of LinearConstraint
    soft : tuple of SoftRow
        Each unit of violation is represented by a slack item.
    linear, pairwise : ndarray of shape (n,) and (n, n)
        What changes, conflicts and needs at a price add to the objective's terms.
    constant : float
        And to the objective itself.
    folded : tuple of Folded
        Conflicts and needs at a price.
    changes : (previous passages in the pool, price)
        (n,) bool; None where changes cost nothing.
    remarks : tuple of str
        Rules that name passages outside the pool, and what then holds.
    """

    hard: tuple[LinearConstraint, ...]
    soft: tuple[SoftRow, ...]
    linear: NDArray[np.float64]
    pairwise: NDArray[np.float64] | None
    constant: float = 0.0
    folded: tuple[Folded, ...] = ()
    changes: tuple[NDArray[np.bool_], float] | None = None
    remarks: tuple[str, ...] = ()

    @property
    def is_priced(self) -> bool:
        """Whether anything of it changes what a selection is worth."""
        return bool(self.soft or self.folded or self.changes)

    def applied(self, program: SelectionProgram) -> SelectionProgram:
        """The program with these constraints; items that carry prices stand behind its own."""
        if self.hard or self.pairwise is not None or np.any(self.linear):
            program = replace(
                program,
                linear=program.linear + self.linear,
                pairwise=program.pairwise if self.pairwise is None else program.pairwise + self.pairwise,
                rows=(*program.rows, *self.hard),
            )
        return with_constant(with_soft_rows(program, self.soft), self.constant)

    def without(self, program: SelectionProgram) -> SelectionProgram:
        """What `applied` made, without everything that has a price: passages alone, and hard rows."""
        if not self.is_priced:
            return program
        assert program.fixed is not None
        n = self.linear.size
        pairwise = program.pairwise[:n, :n]
        return SelectionProgram(
            program.linear[:n] - self.linear,
            pairwise if self.pairwise is None else pairwise - self.pairwise,
            program.costs[:n],
            program.budget,
            tuple(
                replace(row, coefficients=row.coefficients[:n])
                for row in program.rows[: len(program.rows) - len(self.soft)]
            ),
            program.fixed[:n],
            program.segments and program.segments.of_items(np.arange(n)),
        )

    def paid(self, x: NDArray[np.int8]) -> float:
        """What a decision on the passages pays for broken rules and changes."""
        total = sum(part.price * part.broken(x) for part in self.soft)
        total -= self.constant + float(self.linear @ x)
        return total if self.pairwise is None else total + 0.5 * float(x @ self.pairwise @ x)

    def marginal(self, x: NDArray[np.int8]) -> NDArray[np.float64]:
        """What each passage adds to that: by coming in, or by being in."""
        n = self.linear.size
        change = -self.linear
        if self.pairwise is not None:
            change = change + self.pairwise @ x[:n]
        for part in self.soft:
            activity, a = float(part.row.coefficients @ x[:n]), part.row.coefficients
            for i in np.flatnonzero(a):
                with_i, without = activity + (0 if x[i] else a[i]), activity - (a[i] if x[i] else 0)
                change[i] += part.price * (part.row.violation(with_i) - part.row.violation(without))
        return change

    def notes(self, x: NDArray[np.int8] | None) -> list[str]:
        """What a decision broke, and what that cost; then what holds for passages outside the pool."""
        if x is None:
            return list(self.remarks)
        broken = [(part.row.name, part.price, part.broken(x)) for part in self.soft]
        broken += [(rule.name, rule.price, 1.0) for rule in self.folded if rule.is_broken(x)]
        said = [
            f"paid {price * excess:.3g}: {name}, broken by {excess:.10g}"
            for name, price, excess in broken
            if excess > 0
        ]
        if self.changes is not None:
            kept, price = self.changes
            now = x[: kept.size] > 0
            came, went = int((now & ~kept).sum()), int((kept & ~now).sum())
            if came + went:
                changed = f"{came} in and {went} out against the previous selection"
                said.append(f"paid {price * (came + went):.3g}: {changed}")
        return [*said, *self.remarks]


def side_of(settings: Settings, candidates: Candidates) -> Side:
    """What the counts, caps and side constraints of settings are for a pool.

    Raises
    ------
    InputError
        If the candidates lack what a constraint needs, or changes are counted against nothing.
    """
    given, n = settings.side, len(candidates)
    if problem := given.lacking():
        raise InputError(problem)
    ids, prices = candidates.ids, given.prices
    kinds: dict[str, list[LinearConstraint]] = {
        "passages": passage_count(n, settings.min_passages, settings.max_passages)
    }
    if settings.max_per_source is not None:
        kinds["sources"] = source_caps(_sources(candidates, "max_per_source"), settings.max_per_source)
    if given.cover is not None:
        labels = cluster_labels(candidates, given.cover, settings.options.seed)
        kinds["clusters"] = coverage_rows(labels, given.per_cluster)
    hard = [row for kind, rows in kinds.items() if kind not in prices for row in rows]
    soft = [SoftRow(row, prices[kind]) for kind, rows in kinds.items() if kind in prices for row in rows]
    if given.max_source_share is not None:
        hard += share_rows(_sources(candidates, "max_source_share"), given.max_source_share)
    linear, pairwise, constant, changes = np.zeros(n), np.zeros((n, n)), 0.0, None
    if given.previous is not None:
        if given.max_changes is not None:
            hard += change_rows(ids, given.previous, given.max_changes)
        if given.change_price > 0:
            kept = np.isin(np.array(ids, dtype=object), list(given.previous))
            linear += given.change_price * np.where(kept, 1.0, -1.0)
            constant = -given.change_price * float(kept.sum())
            changes = kept, given.change_price
    folded: list[Folded] = []
    pairs = _conflicts(given, candidates)
    if "conflicts" in prices:
        price = prices["conflicts"]
        for i, j in pairs:
            pairwise[i, j] = pairwise[j, i] = price
            folded.append(Folded(i, j, True, price, f"not both of '{ids[i]}', '{ids[j]}'"))
    elif pairs:
        hard += conflict_rows(ids, pairs)
    if settings.near_duplicates == "one":
        hard += conflict_rows(ids, duplicate_pairs(candidates, settings.must_include))
    needs = need_rows(ids, given.needs) if given.needs else []
    if "needs" in prices:  # x_i (1 - x_h) at a price is linear and pairwise
        price = prices["needs"]
        for row in needs:
            child, parents = int(np.argmax(row.coefficients)), np.flatnonzero(row.coefficients < 0)
            linear[child] -= price
            pairwise[child, parents] -= price
            pairwise[parents, child] -= price
            parent = int(parents[0]) if parents.size else None
            folded.append(Folded(child, parent, False, price, row.name))
    else:
        hard += needs
    return Side(
        tuple(hard),
        tuple(soft),
        linear,
        pairwise if np.any(pairwise) else None,
        constant,
        tuple(folded),
        changes,
        tuple(_remarks(given, frozenset(ids))),
    )


def _remarks(given: SideConstraints, pool: frozenset[str]) -> list[str]:
    """What holds for rules that name passages outside the pool."""
    apart = [i for pair in given.conflicts if not pool.issuperset(pair) for i in pair if i not in pool]
    unread = [i for i, parents in given.needs.items() if i in pool and not pool.issuperset({*parents} - {i})]
    gone = [i for i in given.previous or () if i not in pool]
    cost = f"costs {given.prices['needs']:.3g} to read" if "needs" in given.prices else "cannot be read"
    what = [
        (apart, "in a conflict, but not in this question's pool, so there is nothing to forbid"),
        (unread, f"{cost}, without a need that is not in this question's pool"),
        (gone, "of the previous selection, but not in this question's pool: dropped, and not counted"),
    ]
    return [f"{_listed(list(dict.fromkeys(ids)))}: {text}" for ids, text in what if ids]


def _listed(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - 3} more" if len(ids) > 3 else ""
    return ", ".join(f"'{i}'" for i in ids[:3]) + more


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
