"""Why each candidate is in or out, from the program and the decision alone; and attacks on a selection."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mio_rag.context import documents
from mio_rag.errors import InputError, SolverError
from mio_rag.formulations.numbers import plural
from mio_rag.formulations.program import LinearConstraint, SelectionProgram
from mio_rag.formulations.robust import JointProblem
from mio_rag.pool import Candidates
from mio_rag.solvers.result import SolveResult, Status
from mio_rag.types import moment

FloatArray = NDArray[np.float64]
_NEARLY = 0.1  # of a text, within which its half is a half


@dataclass(frozen=True)
class Decision:
    """Why one candidate is in or out.

    value: marginal objective value given the other selected passages: what removing a selected passage loses,
        or what adding an unselected one would gain (possibly negative).
    reason: one sentence for a person.
    redundant_with: id of the selected passage that takes most of this one's value away.
    """

    id: str
    selected: bool
    tokens: int
    relevance: float
    value: float
    reason: str
    redundant_with: str | None = None


@dataclass(frozen=True, eq=False)
class Priced:
    """What a decision pays for rules that may be broken at a price.

    marginal: shape (n,); what each passage adds to that.
    paid: any decision -> what it pays.
    """

    marginal: NDArray[np.float64]
    paid: Callable[[NDArray[np.int8]], float]


def decisions(
    candidates: Candidates,
    program: SelectionProgram,
    result: SolveResult,
    priced: Priced | None = None,
    *,
    robust: bool = False,
    is_merged: bool = False,
    by_length: bool = False,
    outdated: Collection[int] = (),
) -> tuple[Decision, ...]:
    """One `Decision` for each candidate, in candidate order.

    program: without what `priced` counts.
    robust: whether relevance is also charged for embeddings that may be off.
    is_merged: whether text that passages share is read once.
    by_length: whether value is relevance times length, as in documents.
    outdated: candidates that must not be chosen because the pool holds a newer version.
    """
    x = np.zeros(program.n, dtype=np.int8) if result.x is None else result.x
    chosen = np.flatnonzero(x)
    # Marginal value of i beside the selected others: what it adds, or what its removal would lose.
    more = _more_costs(program, x)
    alone = program.linear - more.prices
    value = alone - program.pairwise[:, chosen].sum(axis=1)
    if priced is not None:
        value = value - priced.marginal
    charges = "penalties and the radius" if robust else "penalties"
    made, repeats = [], Repeats(candidates, chosen.tolist())
    company, spent = _companies(program, chosen), program.cost(x)
    assert program.fixed is not None
    barred = set(np.flatnonzero(program.fixed == 0).tolist()) - set(outdated)
    for i, beside in enumerate(company):
        rival = beside.rival
        worth = _Worth(
            relevance=float(candidates.relevance[i]),
            alone=float(alone[i]),
            value=float(value[i]),
            gain=beside.gain,
            pays=0.0 if priced is None else float(priced.marginal[i]),
            charges=charges,
            rival="" if rival is None else f"'{candidates.ids[rival]}'{_similarity(candidates, i, rival)}",
            partner="" if beside.partner is None else candidates.ids[beside.partner],
            repeats_several=beside.repeats > 1,
            in_company=beside.gains > 1,
            unit=candidates.unit,
            by_length=by_length,
        )
        reason = (
            _why_in(program, x, i, worth)
            if x[i]
            else _why_out(candidates, program, result, i, value, chosen, worth, priced, more.costs, spent)
        )
        if i in outdated:
            reason = repeats.newer(i, barred)
        said = [
            reason,
            repeats.read(i) if is_merged else "",
            "" if x[i] or i in outdated else repeats.copied(i),
        ]
        reason = "; ".join(filter(None, said))
        made.append(
            Decision(
                id=candidates.ids[i],
                selected=bool(x[i]),
                tokens=int(candidates.tokens[i]),
                relevance=float(candidates.relevance[i]),
                value=float(value[i]),
                reason=reason,
                redundant_with=None if rival is None else candidates.ids[rival],
            )
        )
    return tuple(made)


class _More(NamedTuple):
    """What each passage adds to tokens and to prices of tokens, by coming in or by being in."""

    costs: NDArray[np.float64]
    prices: NDArray[np.float64]


def _more_costs(program: SelectionProgram, x: NDArray[np.int8]) -> _More:
    """Without what is read with other passages anyway."""
    shared = program.segments
    if shared is None:
        return _More(program.costs, np.zeros(program.n))
    readers = shared.needs[x > 0].sum(axis=0)
    fresh = shared.needs & (readers - (shared.needs * x[:, None]) == 0)
    return _More(program.costs + fresh @ shared.costs, fresh @ shared.prices)


def _nothing(program: SelectionProgram) -> float:
    """The size below which a value is rounding."""
    return 1e-9 * min(1.0, program.value_scale)


def _amount(value: float) -> str:
    """A value in two digits or more, never a zero that it is not."""
    if not 0 < abs(value) < 1000:
        return f"{value:.4g}"
    return f"{value:.2f}" if abs(value) >= 0.0995 else f"{value:.2g}"


@dataclass(frozen=True, eq=False)
class _Worth:
    """What a passage is worth beside the chosen ones, and what that is made of.

    alone: relevance without what is charged for the passage itself.
    value: beside the others: `alone`, plus `gain` (from links, or unlike texts), less `overlap` and `pays`
        (below 0: saves).
    rival, partner: the other passage that most of the overlap, and of the gain, is with.
    repeats_several, in_company: whether there are more of them.
    """

    relevance: float
    alone: float
    value: float
    gain: float
    pays: float
    charges: str
    rival: str
    partner: str
    repeats_several: bool
    in_company: bool
    unit: str
    by_length: bool = False

    @property
    def overlap(self) -> float:
        return self.alone + self.gain - self.pays - self.value

    @property
    def price(self) -> float:
        """What is charged for the passage itself."""
        return self.relevance - self.alone

    def own(self, among: bool) -> str:
        """What the passage is worth, `among` others where these change that."""
        own = f"worth {_amount(self.alone)}{' on its own' if among else ''}"
        if self.by_length:
            return f"{own} (relevance {_amount(self.relevance)} times its length)"
        if abs(self.price) <= 5e-4 * abs(self.relevance):
            return f"{own}, its relevance"
        return f"{own} (relevance {_amount(self.relevance)} less {_amount(self.price)} for {self.charges})"

    def beside(self, would: bool, nothing: float) -> list[str]:
        """What the other passages make of that, clause by clause, without what is next to `nothing`."""
        is_, said = ("would be" if would else "is"), []
        if self.gain > nothing:
            others = f"other chosen {self.unit}s, most of all " if self.in_company else ""
            said.append(f"{_amount(self.gain)} {is_} gained beside {others}'{self.partner}'")
        if self.overlap > nothing and self.rival:
            others = f"other chosen {self.unit}s, most of all " if self.repeats_several else ""
            said.append(f"{_amount(self.overlap)} {is_} lost because it repeats {others}{self.rival}")
        if self.pays > nothing:
            said.append(f"{_amount(self.pays)} {is_} paid for what it breaks or changes")
        if self.pays < -nothing:
            said.append(f"{_amount(-self.pays)} {is_} saved: what would break or change without it")
        return said


class _Company(NamedTuple):
    """What a passage has to do with the chosen ones.

    rival, partner: the candidate that most of what is lost, or gained, is with.
    repeats, gains: how many chosen ones it loses or gains by.
    """

    rival: int | None
    partner: int | None
    gain: float
    repeats: int
    gains: int


def _companies(program: SelectionProgram, chosen: NDArray[np.int64]) -> list[_Company]:
    """For each candidate; the program has nothing on a passage beside itself."""
    if not chosen.size:
        return [_Company(None, None, 0.0, 0, 0)] * program.n
    losses = program.pairwise[:, chosen]
    gains = np.maximum(-losses, 0.0)
    repeats, gaining = (losses > 0).sum(axis=1), (gains > 0).sum(axis=1)
    rivals, partners = chosen[losses.argmax(axis=1)], chosen[gains.argmax(axis=1)]
    columns = (rivals, partners, gains.sum(axis=1), repeats, gaining)
    return [
        _Company(rival if loses else None, partner if wins else None, gain, loses, wins)
        for rival, partner, gain, loses, wins in zip(*(each.tolist() for each in columns), strict=True)
    ]


def _why_in(program: SelectionProgram, x: NDArray[np.int8], i: int, worth: _Worth) -> str:
    assert program.fixed is not None
    beside = worth.beside(False, 5e-4 * min(1.0, program.value_scale))
    total = f"adds {_amount(worth.value)}: " if beside else ""
    text = "; ".join([f"{total}{worth.own(bool(beside))}", *beside])
    if program.fixed[i] == 1:
        return f"required (must_include): {text}"
    if worth.value < 0 and (held := _broken_row(program, x, i)) is not None:
        return f"{text}; chosen because this has to hold: {held.name}"
    return text


def _why_out(
    candidates: Candidates,
    program: SelectionProgram,
    result: SolveResult,
    i: int,
    value: NDArray[np.float64],
    chosen: NDArray[np.int64],
    worth: _Worth,
    priced: Priced | None,
    costs: NDArray[np.float64],
    spent: float,
) -> str:
    assert program.fixed is not None
    if program.fixed[i] == 0:
        return "excluded (must_exclude)"
    if result.x is None:
        return {
            Status.INFEASIBLE: "no selection satisfies the constraints",
            Status.NO_SOLUTION: "the solver found no selection",
        }.get(result.status, "there is no selection")
    cost, whole = float(costs[i]), float(program.alone[i])
    if whole > program.most_cost:
        verb = "exceeds" if whole == 1 else "exceed"
        return f"its {plural(whole, 'token')} {verb} the whole budget of {program.budget:.10g}"
    for row in program.rows:
        least = float(np.minimum(row.coefficients, 0.0).sum() + max(row.coefficients[i], 0.0))
        if least > row.most:
            return f"cannot be chosen: {row.name}"
    nothing = _nothing(program)
    if worth.value <= nothing:  # an item worth nothing alone may still gain beside the chosen ones
        return _why_worthless(worth, nothing)
    adds = f"would add {_amount(worth.value)}"
    blocked = _broken_row(program, result.x, i)
    if blocked is not None:
        full = blocked.name.startswith("at most") and blocked.coefficients.min() >= 0
        return f"{adds}, but '{blocked.name}' is full" if full else f"{adds}, but: {blocked.name}"
    left_over = program.budget - spent
    if cost > program.most_cost - spent:
        swap = _best_swap(candidates, program, i, value, chosen, priced)
        left = f"{max(left_over, 0):.10g} {'is' if left_over == 1 else 'are'} left"
        return f"{adds}, but needs {plural(cost, 'token')} and {left}; {swap}"
    if result.status is Status.OPTIMAL:
        return f"{adds}, which is less than the proof tells apart"
    if result.limit:
        return f"{adds} and fits: the {result.limit} limit stopped the search before it was tried"
    return f"{adds} and fits: '{result.solver}' missed it, since it proves no optimum"


def _why_worthless(worth: _Worth, nothing: float) -> str:
    if worth.alone <= nothing:
        price = f", {worth.charges} {_amount(worth.price)}" if worth.price > nothing else ""
        beside = "".join(f"; {clause}" for clause in worth.beside(True, nothing)) if worth.gain else ""
        return f"not worth its price: relevance {_amount(worth.relevance)}{price}{beside}"
    return f"{worth.own(True)}, but {'; '.join(worth.beside(True, nothing))}"


def _similarity(candidates: Candidates, i: int, j: int) -> str:
    if candidates.embeddings is None:
        return ""
    return f" (similarity {float(candidates.embeddings[i] @ candidates.embeddings[j]):.2f})"


def _broken_row(program: SelectionProgram, x: NDArray[np.int8], i: int) -> LinearConstraint | None:
    """The first row that would be broken if passage i came in, or went."""
    for row in program.rows:
        activity = float(row.coefficients[x > 0].sum())
        after = activity + float(row.coefficients[i]) * (-1 if x[i] else 1)
        if row.violation(after) > row.violation(activity):
            return row
    return None


def _best_swap(
    candidates: Candidates,
    program: SelectionProgram,
    i: int,
    value: NDArray[np.float64],
    chosen: NDArray[np.int64],
    priced: Priced | None,
) -> str:
    """The one exchange that breaks nothing and loses least."""
    assert program.fixed is not None
    out = chosen[program.fixed[chosen] < 0]
    swapped = np.zeros((out.size, program.n), dtype=np.int8)
    swapped[:, chosen], swapped[:, i], swapped[np.arange(out.size), out] = 1, 1, 0
    if program.segments is None:
        fits = swapped @ program.costs <= program.most_cost
    else:
        fits = np.array([program.cost(x) <= program.most_cost for x in swapped], dtype=bool)
    out, swapped = out[fits], swapped[fits]
    change = value[i] + program.pairwise[i, out] - value[out]
    if program.segments is not None:  # what two share is not lost with one of them
        now = np.zeros(program.n, dtype=np.int8)
        now[chosen] = 1
        known = program.objective(now)
        change = np.array([program.objective(x) - known for x in swapped])
    if priced is not None:  # prices of two passages do not add up: each exchange pays as a whole
        now = np.isin(np.arange(program.n), chosen).astype(np.int8)
        change += priced.marginal[i] - priced.marginal[out] + priced.paid(now)
        change -= np.array([priced.paid(x) for x in swapped])
    for k in np.argsort(-change, kind="stable"):
        if program.rows and program.violations(swapped[k]):  # the budget has been looked at
            continue
        moves = "change nothing in total"
        if abs(change[k]) >= _nothing(program):
            verb = "gain" if change[k] > 0 else "lose"
            moves = f"{verb} {_amount(abs(float(change[k])))} in total"
        return f"read in place of '{candidates.ids[out[k]]}' it would {moves}"
    return f"no single {candidates.unit} could make room for it"


class Repeats:
    """Of one pool and what is chosen of it.

    chosen: candidates that are read.
    """

    def __init__(self, candidates: Candidates, chosen: Sequence[int]) -> None:
        self._candidates, self._chosen = candidates, list(chosen)
        self._document = documents(candidates)

    def read(self, i: int) -> str:
        """Which part of a passage's text is read with others; or "".

        "its second half is read with 'b'"; of a passage that is left out, "is already read with 'b'".
        """
        candidates, spans = self._candidates, self._candidates.spans
        if spans is None or self._document[i] < 0:
            return ""
        low, high = map(int, spans[i])
        held = np.zeros(high - low, dtype=bool)
        common: dict[str, int] = {}  # passages that hold some of it, and how much
        for j in self._chosen:
            if j == i or self._document[j] != self._document[i]:
                continue
            start, end = max(low, int(spans[j, 0])), min(high, int(spans[j, 1]))
            if end > start:
                held[start - low : end - low] = True
                common[f"'{candidates.ids[j]}'"] = end - start
        if not common:
            return ""
        said = np.array([not letter.isspace() for letter in candidates.texts[i]], dtype=bool)
        if not held[said].any():
            return ""
        most, *others = sorted(common, key=lambda name: -common[name])
        more = "" if not others else f" and {others[0] if len(others) == 1 else f'{len(others)} others'}"
        part, several = _part(held[said])
        verb = "are" if several else "is"
        already = "" if i in self._chosen else " already"
        return f"{part} {verb}{already} read with {most}{more}"

    def newer(self, i: int, barred: Collection[int] = ()) -> str:
        """Which document, or passage without one, is the newest version of one that is outdated.

        barred: candidates that must not be read, and so replace nothing.
        """
        alike, dates = self._candidates.duplicates, self._candidates.dates
        assert alike is not None
        assert dates is not None
        others = (k for k in np.flatnonzero(alike[i]).tolist() if k not in barred)
        j = max(others, key=lambda k: moment(dates[k]))
        source = self._candidates.sources[j] if self._candidates.sources else ""
        return f"not read: an older version of '{source or self._candidates.ids[j]}' ({dates[j]})"

    def copied(self, i: int) -> str:
        """Which passage that is read it is nearly a copy of: "a near-duplicate of 'b' ..."; or ""."""
        alike, dates = self._candidates.duplicates, self._candidates.dates
        others = [j for j in self._chosen if alike is not None and j != i and alike[i, j] > 0]
        if alike is None or not others:
            return ""
        j = max(others, key=lambda k: float(alike[i, k]))
        what = "a near-duplicate"
        if dates is not None and moment(dates[i]) > moment(dates[j]) != "":
            what = f"a newer version ({dates[i]})"
        return f"{what} of '{self._candidates.ids[j]}' ({_alike(alike[i, j])})"


def _alike(similarity: float) -> str:
    return f"Jaccard similarity {similarity:.2f}"


def _part(held: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> tuple[str, bool]:
    """The part of a text that is marked, in words; and whether these are plural."""
    share = float(held.mean())
    if share > 1 - 1e-9:
        return "all of it", False
    size = f"{max(1, min(99, round(100 * share)))} %"
    first, last = bool(held[0]), bool(held[-1])
    whole = int(np.count_nonzero(np.diff(held.astype(np.int8)))) == 1
    if whole and abs(share - 0.5) <= _NEARLY:
        return "its first half" if first else "its second half", False
    if whole:
        return f"its beginning ({size})" if first else f"its end ({size})", False
    if first and last:
        return f"its beginning and its end ({size})", True
    return f"{size} of it", False


@dataclass(frozen=True, eq=False)
class Attack:
    """What perturbations did to a selection.

    nominal: value of the selection as embedded.
    certified: value that no perturbation of the set can push it below.
    worst: smallest value that was reached; never below `certified`.
    delta: shape (n, d); the perturbations that reached it.
    random: shape (k,); values under random perturbations.
    """

    nominal: float
    certified: float
    worst: float
    delta: FloatArray
    random: FloatArray

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, without the perturbations."""
        return {
            "nominal": self.nominal,
            "certified": self.certified,
            "worst": self.worst,
            "random_mean": float(self.random.mean()) if self.random.size else None,
            "random_least": float(self.random.min()) if self.random.size else None,
        }


def attack(
    problem: JointProblem, x: NDArray[np.int8], *, restarts: int = 8, random: int = 100, seed: int = 0
) -> Attack:
    """Attack a decision: block-coordinate descent with restarts, and random perturbations.

    x: 0/1 decision of the problem's program.
    restarts, random: >= 0.

    Raises `SolverError` if an attack leaves the set or beats the certificate: one of them is then wrong.
    """
    for name, count in (("restarts", restarts), ("random", random)):
        if not isinstance(count, (int, np.integer)) or count < 0:
            raise InputError(f"{name}={count!r} must be a whole number >= 0")
    rng = np.random.default_rng(seed)
    chosen = np.flatnonzero(x[: problem.n])
    added = problem.added(x)
    certified = problem.lower(chosen) + added
    delta, worst = problem.worst(chosen, rng=rng, restarts=restarts)
    values = np.zeros(random)
    for k in range(random):
        candidate = problem.random(rng, chosen)
        values[k] = problem.objective(chosen, candidate)
        if values[k] < worst:
            delta, worst = candidate, float(values[k])
    tolerance = 1e-7 * max(1.0, abs(certified))
    if worst + added < certified - tolerance or not problem.uncertainty.contains(delta, 1e-7):
        raise SolverError(
            f"an attack reached {worst + added:.9g}, below the certified {certified:.9g}, or left its set: "
            "a custom support function or maximiser may be wrong"
        )
    return Attack(problem.objective(chosen) + added, certified, worst + added, delta, values + added)
