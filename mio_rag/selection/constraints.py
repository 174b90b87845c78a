"""Side constraints: what may be asked of a selection besides budget and counts, and the rows of a pool.

Each kind of constraint is hard, or may be broken at a price in units of relevance.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, model_validator

from mio_rag.errors import InputError, require
from mio_rag.formulations.numbers import LARGEST_SETTING
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
from mio_rag.pool import Candidates
from mio_rag.settings import Settings

if TYPE_CHECKING:
    from mio_rag.selection.selector import Selector

#: A weight, price or radius.
Amount = Annotated[float, Field(ge=0, le=LARGEST_SETTING)]
Count = Annotated[int, Field(ge=0, le=2**53)]
#: An id of a passage, or the name of a source; and a list of them, which any sequence may give.
if TYPE_CHECKING:
    Name = str
    Names = Sequence[str]
    Pairs = Sequence[tuple[str, str]]
else:
    Name = str | int | float
    Names = tuple[Name, ...]
    Pairs = tuple[tuple[Name, Name], ...]
#: Kinds of constraints that may be broken at a price.
Kind = Literal["passages", "sources", "clusters", "conflicts", "needs"]

_CLUSTERINGS = "labels, kmeans:K (K clusters) or agglomerative:S (merged down to a mean similarity of S)"


def check_clustering(how: str) -> tuple[str, float]:
    """Return kind and number of a way to cluster.

    Raises `InputError` if it is none.
    """
    if how == "labels":
        return how, 0.0
    match = re.fullmatch(r"(kmeans|agglomerative):(\d+\.?\d*|\.\d+)", how)
    number = float(match[2]) if match else 0.0
    is_kmeans = match is not None and match[1] == "kmeans"
    if match is None or not (number >= 1 and number % 1 == 0 if is_kmeans else number > 0):
        raise InputError(f"cover={how!r} is unknown: give {_CLUSTERINGS}")
    return match[1], number


class SideConstraints(Settings):
    """Constraints on a selection, besides budget and counts.

    Raises `InputError` with every problem found.
    """

    max_source_share: Annotated[float, Field(gt=0, le=1)] | None = None
    """Maximum share of the chosen passages from one source."""
    cover: Annotated[str, AfterValidator(lambda how: check_clustering(how) and how)] | None = None
    """At least `per_cluster` passages from every topic: labels (of the candidates), kmeans:K or
    agglomerative:SIMILARITY (of their embeddings)."""
    per_cluster: Annotated[int, Field(ge=1)] = 1
    """Minimum number of passages from every topic."""
    previous: Names | None = None
    """Ids of an earlier selection. None: not known; `Conversation` gives it turn by turn."""
    max_changes: Count | None = None
    """Maximum number of passages that come in or go, compared with `previous`. Those that are no candidates
    any more are not counted, since nothing could keep them."""
    change_price: Amount = 0.0
    """Price of each of these changes, in units of relevance."""
    max_similarity: Annotated[float, Field(ge=-1, le=1)] | None = None
    """Never choose two passages whose embeddings have a larger inner product."""
    conflicts: Pairs = ()
    """Pairs of ids that must not both be chosen."""
    versions: Mapping[Name, Name] = Field(default_factory=dict)
    """Id -> the document that it is a version of: at most one version of each."""
    needs: Mapping[Name, Names] = Field(default_factory=dict)
    """Id -> ids without which it must not be chosen. Where one of these is no candidate, it cannot be."""
    prices: Mapping[Kind, Amount] = Field(default_factory=dict)
    """Kind of constraint -> price for every unit by which it is broken, in units of relevance. Kinds that are
    not named are hard. What a selection breaks is in `Selection.notes`."""

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        problems = []
        if self.cover is None and self.per_cluster != 1:
            problems.append(f"per_cluster={self.per_cluster} needs clusters to cover: give cover too")
        if self.cover is None and "clusters" in self.prices:
            problems.append("prices: 'clusters' needs clusters to cover: give cover too, or leave it out")
        if problems:
            raise InputError(problems)
        return self

    @property
    def is_given(self) -> bool:
        """Whether there is any constraint, or price of changes."""
        known = (self.max_source_share, self.cover, self.max_changes, self.max_similarity)
        some = (self.change_price, self.conflicts, self.versions, self.needs, self.prices)
        return any(value is not None for value in known) or any(map(bool, some))

    def lacking(self) -> str | None:
        """Return what these settings need before anything can be selected, in a sentence; None if nothing."""
        names = ["max_changes"] if self.max_changes is not None else []
        names += ["change_price"] if self.change_price > 0 else []
        if self.previous is not None or not names:
            return None
        return (
            f"{' and '.join(names)} compare with the previous selection, which is not given: "
            "give previous=[ids], or let Conversation carry it from turn to turn"
        )

    def named(self) -> list[tuple[str, Any]]:
        """Return (setting, id) for every id that these name, each once."""
        given: list[tuple[str, Any]] = [("previous", i) for i in self.previous or ()]
        given += [("conflicts", i) for pair in self.conflicts for i in pair]
        given += [("versions", i) for i in self.versions]
        given += [("needs", i) for child, parents in self.needs.items() for i in (child, *parents)]
        return list(dict.fromkeys(given))


class Rule(NamedTuple):
    """A rule whose price is in the objective's terms: `first` never with, or never without, `second`.

    second: None: not in the pool, so that `first` always breaks the rule.
    together: whether it is broken with `second` (a conflict) or without it (a need).
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

    soft: each unit of violation is represented by a slack item.
    linear, pairwise: shape (n,) and (n, n); what changes, conflicts and needs at a price add to the
        objective's terms.
    constant: and to the objective itself.
    rules: conflicts and needs at a price.
    changes: (n,) bool; None where changes cost nothing.
    remarks: rules that name passages outside the pool, and what then holds.
    """

    hard: tuple[LinearConstraint, ...]
    soft: tuple[SoftRow, ...]
    linear: NDArray[np.float64]
    pairwise: NDArray[np.float64] | None
    constant: float = 0.0
    rules: tuple[Rule, ...] = ()
    changes: tuple[NDArray[np.bool_], float] | None = None
    remarks: tuple[str, ...] = ()

    @property
    def is_priced(self) -> bool:
        """Whether anything of it changes what a selection is worth."""
        return bool(self.soft or self.rules or self.changes)

    def applied(self, program: SelectionProgram) -> SelectionProgram:
        """Return the program with these constraints; items that carry prices stand behind its own."""
        if self.hard or self.pairwise is not None or np.any(self.linear):
            program = replace(
                program,
                linear=program.linear + self.linear,
                pairwise=program.pairwise if self.pairwise is None else program.pairwise + self.pairwise,
                rows=(*program.rows, *self.hard),
            )
        return with_constant(with_soft_rows(program, self.soft), self.constant)

    def without(self, program: SelectionProgram) -> SelectionProgram:
        """Return what `applied` made, without everything that has a price: passages and hard rows."""
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
        """Return what a decision on the passages pays for broken rules and changes."""
        total = sum(part.price * part.broken(x) for part in self.soft)
        total -= self.constant + float(self.linear @ x)
        return total if self.pairwise is None else total + 0.5 * float(x @ self.pairwise @ x)

    def marginal(self, x: NDArray[np.int8]) -> NDArray[np.float64]:
        """Return what each passage adds to that: by coming in, or by being in."""
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
        """Return what a decision broke, and at what price; then what holds for passages outside the pool."""
        if x is None:
            return list(self.remarks)
        broken = [(part.row.name, part.price, part.broken(x)) for part in self.soft]
        broken += [(rule.name, rule.price, 1.0) for rule in self.rules if rule.is_broken(x)]
        notes = [
            f"paid {price * excess:.3g}: {name}, broken by {excess:.10g}"
            for name, price, excess in broken
            if excess > 0
        ]
        if self.changes is not None:
            before, price = self.changes
            now = x[: before.size] > 0
            came, went = int((now & ~before).sum()), int((before & ~now).sum())
            if came + went:
                changed = f"{came} in and {went} out against the previous selection"
                notes.append(f"paid {price * (came + went):.3g}: {changed}")
        return [*notes, *self.remarks]


def side_of(settings: Selector, candidates: Candidates) -> Side:
    """Return what counts, caps and side constraints of settings are for a pool.

    Raises `InputError` if the candidates lack what a constraint needs, or changes are counted against
    nothing.
    """
    given, n = settings.side, len(candidates)
    if problem := given.lacking():
        raise InputError(problem)
    ids, prices = candidates.ids, given.prices
    kinds: dict[Kind, list[LinearConstraint]] = {
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
    linear, constant, changes = np.zeros(n), 0.0, None
    pairwise: NDArray[np.float64] | None = None
    if given.previous is not None:
        if given.max_changes is not None:
            hard += change_rows(ids, given.previous, given.max_changes)
        if given.change_price > 0:
            before = np.isin(np.array(ids, dtype=object), list(given.previous))
            linear += given.change_price * np.where(before, 1.0, -1.0)
            constant = -given.change_price * float(before.sum())
            changes = before, given.change_price
    rules: list[Rule] = []
    pairs = _conflicts(given, candidates)
    if (price := prices.get("conflicts")) is not None:
        pairwise = np.zeros((n, n))
        for i, j in pairs:
            pairwise[i, j] = pairwise[j, i] = price
            rules.append(Rule(i, j, True, price, f"not both of '{ids[i]}', '{ids[j]}'"))
    elif pairs:
        hard += conflict_rows(ids, pairs)
    if settings.near_duplicates == "one" and candidates.duplicates is not None:
        must = {k for k, name in enumerate(ids) if name in settings.must_include}
        alike = np.argwhere(np.triu(candidates.duplicates > 0, 1)).tolist()
        hard += conflict_rows(ids, [(i, j) for i, j in alike if not {i, j} <= must])
    needs = need_rows(ids, given.needs) if given.needs else []
    if (price := prices.get("needs")) is not None:  # x_i (1 - x_h) at a price is linear and pairwise
        pairwise = np.zeros((n, n)) if pairwise is None else pairwise
        for row in needs:
            child, parents = int(np.argmax(row.coefficients)), np.flatnonzero(row.coefficients < 0)
            linear[child] -= price
            pairwise[child, parents] -= price
            pairwise[parents, child] -= price
            rules.append(Rule(child, int(parents[0]) if parents.size else None, False, price, row.name))
    else:
        hard += needs
    if pairwise is not None and not pairwise.any():
        pairwise = None
    about_ids = given.conflicts or given.needs or given.previous
    remarks = tuple(_remarks(given, frozenset(ids))) if about_ids else ()
    return Side(tuple(hard), tuple(soft), linear, pairwise, constant, tuple(rules), changes, remarks)


def _remarks(given: SideConstraints, pool: frozenset[str]) -> list[str]:
    """Return what holds for rules that name passages outside the pool."""
    apart = [i for pair in given.conflicts if not pool.issuperset(pair) for i in pair if i not in pool]
    unread = [i for i, parents in given.needs.items() if i in pool and not pool.issuperset({*parents} - {i})]
    gone = [i for i in given.previous or () if i not in pool]
    cost = f"costs {given.prices['needs']:.3g} to read" if "needs" in given.prices else "cannot be read"
    texts: list[tuple[list[str], str]] = [
        (apart, "in a conflict, but not in this question's pool, so there is nothing to forbid"),
        (unread, f"{cost}, without a need that is not in this question's pool"),
        (gone, "of the previous selection, but not in this question's pool: dropped, and not counted"),
    ]
    return [f"{_listed(list(dict.fromkeys(ids)))}: {text}" for ids, text in texts if ids]


def _listed(ids: Sequence[Any]) -> str:
    more = f" and {len(ids) - 3} more" if len(ids) > 3 else ""
    return ", ".join(f"'{i}'" for i in ids[:3]) + more


def _sources(candidates: Candidates, what: str) -> Sequence[str]:
    if candidates.sources is None:
        raise InputError(f"{what} needs candidates with sources: pass sources, or leave it out")
    return candidates.sources


def _conflicts(given: SideConstraints, candidates: Candidates) -> list[tuple[int, int]]:
    """Return pairs of candidates that must not both be chosen, each once."""
    if not (given.conflicts or given.versions) and given.max_similarity is None:
        return []
    at: dict[Any, int] = {i: k for k, i in enumerate(candidates.ids)}
    pairs = {
        (min(at[a], at[b]), max(at[a], at[b])) for a, b in given.conflicts if a in at and b in at and a != b
    }
    groups: dict[Any, list[int]] = {}
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


def cluster_labels(candidates: Candidates, how: str, seed: int = 0) -> list[str]:
    """Return the topic of every candidate.

    how: "labels": `Candidates.clusters`; "kmeans:K": K clusters of the embeddings; "agglomerative:S": average
        linkage, merged while the mean cosine between clusters is at least S.
    seed: of k-means.

    Raises `InputError` if the candidates have no labels, or no embeddings.
    """
    kind, number = check_clustering(how)
    if kind == "labels":
        if candidates.clusters is None:
            raise InputError("cover='labels' needs candidates with clusters: pass them, or use kmeans:K")
        return [str(label) for label in candidates.clusters]
    if candidates.embeddings is None:
        raise InputError(f"cover={how!r} needs candidates with embeddings")
    vectors = candidates.embeddings.astype(np.float64)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    if len(candidates) < 2:
        return ["1"] * len(candidates)
    library = require("sklearn.cluster", "retrieval", f"cover={how!r}")
    if kind == "kmeans":
        most = min(int(number), len(np.unique(vectors, axis=0)))
        model = library.KMeans(n_clusters=most, n_init=4, random_state=seed)
    else:
        model = library.AgglomerativeClustering(
            n_clusters=None, distance_threshold=1 - number, metric="cosine", linkage="average"
        )
    labels = model.fit_predict(vectors).tolist()
    names = {label: str(k + 1) for k, label in enumerate(dict.fromkeys(labels))}
    return [names[label] for label in labels]
