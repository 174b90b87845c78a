"""Why each candidate is in or out, from the program and the decision alone; and attacks on a selection."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.context import documents
from mio_rag.documents.dates import age_of, in_force
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

    marginal: FloatArray
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
    """Return one `Decision` for each candidate, in candidate order.

    program: without what `priced` counts.
    robust: whether relevance is also charged for embeddings that may be off.
    is_merged: whether text that passages share is read once.
    by_length: whether value is relevance times length, as in documents.
    outdated: candidates that must not be chosen because the pool holds a newer version.
    """
    charges = "penalties and the radius" if robust else "penalties"
    worth = _Worth(candidates, program, result, priced, charges, by_length)
    repeats = Repeats(candidates, worth.chosen.tolist())
    assert program.fixed is not None
    barred = set(np.flatnonzero(program.fixed == 0).tolist()) - set(outdated)
    made = []
    for i in range(program.n):
        if i in outdated:
            reasons = [repeats.newer(i, barred)]
        else:
            reasons = [worth.why_in(i) if worth.x[i] else worth.why_out(i)]
        reasons.append(repeats.read(i) if is_merged else "")
        reasons.append("" if worth.x[i] or i in outdated else repeats.copied(i))
        made.append(
            Decision(
                id=candidates.ids[i],
                selected=bool(worth.x[i]),
                tokens=int(candidates.tokens[i]),
                relevance=float(candidates.relevance[i]),
                value=float(worth.value[i]),
                reason="; ".join(filter(None, reasons)),
                redundant_with=candidates.ids[int(worth.rivals[i])] if worth.repeats[i] else None,
            )
        )
    return tuple(made)


def _amount(value: float) -> str:
    """A value in two digits or more, never a zero that it is not."""
    if not 0 < abs(value) < 1000:
        return f"{value:.4g}"
    return f"{value:.2f}" if abs(value) >= 0.0995 else f"{value:.2g}"


class _Worth:
    """What each passage is worth next to the chosen ones, and what that is made of; arrays of shape (n,).

    costs: tokens that a passage adds by coming in or by being in.
    alone: value without what is charged for the passage itself.
    value: next to the others: `alone`, plus `gain` (from links, or unlike texts), less `overlap` and `pays`
        (below 0: saves).
    rivals, partners: the chosen passage that most of the overlap, and of the gain, is with.
    repeats, company: how many chosen ones it loses or gains by.
    """

    def __init__(
        self,
        candidates: Candidates,
        program: SelectionProgram,
        result: SolveResult,
        priced: Priced | None,
        charges: str,
        by_length: bool,
    ) -> None:
        self.candidates, self.program, self.result, self.priced = candidates, program, result, priced
        self.charges, self.by_length = charges, by_length
        self.x = x = np.zeros(program.n, dtype=np.int8) if result.x is None else result.x
        self.chosen = chosen = np.flatnonzero(x)
        self.costs, self.alone, shared = program.costs, program.linear, program.segments
        if shared is not None:  # without what is read with other passages anyway
            readers = shared.needs[x > 0].sum(axis=0)
            fresh = shared.needs & (readers - (shared.needs * x[:, None]) == 0)
            self.costs, self.alone = self.costs + fresh @ shared.costs, self.alone - fresh @ shared.prices
        losses = program.pairwise[:, chosen] if chosen.size else np.zeros((program.n, 1))
        gains = np.maximum(-losses, 0.0)
        self.pays = np.zeros(program.n) if priced is None else priced.marginal
        self.value = self.alone - losses.sum(axis=1) - self.pays
        self.gain = gains.sum(axis=1)
        self.overlap = self.alone + self.gain - self.pays - self.value
        self.repeats, self.company = (losses > 0).sum(axis=1), (gains > 0).sum(axis=1)
        of = chosen if chosen.size else np.zeros(1, dtype=np.int64)
        self.rivals, self.partners = of[losses.argmax(axis=1)], of[gains.argmax(axis=1)]
        self.spent = program.cost(x)
        #: The size below which a value is rounding.
        self.nothing = 1e-9 * min(1.0, program.value_scale)

    def _own(self, i: int, among: bool) -> str:
        """What a passage is worth, `among` others where these change that."""
        relevance, alone = float(self.candidates.relevance[i]), self.alone[i]
        own = f"worth {_amount(alone)}{' on its own' if among else ''}"
        if self.by_length:
            return f"{own} (relevance {_amount(relevance)} times its length)"
        if abs(relevance - alone) <= 5e-4 * abs(relevance):
            return f"{own}, its relevance"
        return f"{own} (relevance {_amount(relevance)} less {_amount(relevance - alone)} for {self.charges})"

    def _beside(self, i: int, would: bool, nothing: float) -> list[str]:
        """What the other passages make of that, clause by clause, without what is next to `nothing`."""
        is_, clauses, ids = ("would be" if would else "is"), [], self.candidates.ids
        most = f"other chosen {self.candidates.unit}s, most of all "
        if self.gain[i] > nothing:
            others = most if self.company[i] > 1 else ""
            clauses.append(f"{_amount(self.gain[i])} {is_} gained beside {others}'{ids[self.partners[i]]}'")
        if self.overlap[i] > nothing and self.repeats[i]:
            others, rival = most if self.repeats[i] > 1 else "", int(self.rivals[i])
            vectors = self.candidates.embeddings
            alike = "" if vectors is None else f" (similarity {float(vectors[i] @ vectors[rival]):.2f})"
            clauses.append(
                f"{_amount(self.overlap[i])} {is_} lost because it repeats {others}'{ids[rival]}'{alike}"
            )
        if self.pays[i] > nothing:
            clauses.append(f"{_amount(self.pays[i])} {is_} paid for what it breaks or changes")
        if self.pays[i] < -nothing:
            clauses.append(f"{_amount(-self.pays[i])} {is_} saved: what would break or change without it")
        return clauses

    def why_in(self, i: int) -> str:
        """Why a chosen passage is in."""
        program = self.program
        assert program.fixed is not None
        beside = self._beside(i, False, 5e-4 * min(1.0, program.value_scale))
        total = f"adds {_amount(self.value[i])}: " if beside else ""
        text = "; ".join([f"{total}{self._own(i, bool(beside))}", *beside])
        if program.fixed[i] == 1:
            leads = self.by_length and self.candidates.relevance[i] == self.candidates.relevance.max()
            why = "the most likely, which is read if it fits" if leads else "required (must_include)"
            return f"{why}: {text}"
        if self.value[i] < 0 and (held := self._broken_row(i)) is not None:
            return f"{text}; chosen because this has to hold: {held.name}"
        return text

    def why_out(self, i: int) -> str:
        """Why a passage is left out."""
        program, result = self.program, self.result
        assert program.fixed is not None
        if program.fixed[i] == 0:
            return "excluded (must_exclude)"
        if result.x is None:
            return {
                Status.INFEASIBLE: "no selection satisfies the constraints",
                Status.NO_SOLUTION: "the solver found no selection",
            }.get(result.status, "there is no selection")
        cost, whole = float(self.costs[i]), float(program.alone[i])
        if whole > program.most_cost:
            verb = "exceeds" if whole == 1 else "exceed"
            return f"its {plural(whole, 'token')} {verb} the whole budget of {program.budget:.10g}"
        for row in program.rows:
            least = float(np.minimum(row.coefficients, 0.0).sum() + max(row.coefficients[i], 0.0))
            if least > row.most:
                return f"cannot be chosen: {row.name}"
        if self.value[i] <= self.nothing:  # an item worth nothing alone may still gain beside the chosen ones
            return self._why_worthless(i)
        adds = f"would add {_amount(self.value[i])}"
        if (blocked := self._broken_row(i)) is not None:
            full = blocked.name.startswith("at most") and blocked.coefficients.min() >= 0
            return f"{adds}, but '{blocked.name}' is full" if full else f"{adds}, but: {blocked.name}"
        if cost > program.most_cost - self.spent:
            left = program.budget - self.spent
            left_over = f"{max(left, 0):.10g} {'is' if left == 1 else 'are'} left"
            return f"{adds}, but needs {plural(cost, 'token')} and {left_over}; {self._best_swap(i)}"
        if result.status is Status.OPTIMAL:
            return f"{adds}, which is less than the proof tells apart"
        if result.limit:
            return f"{adds} and fits: the {result.limit} limit stopped the search before it was tried"
        return f"{adds} and fits: '{result.solver}' missed it, since it proves no optimum"

    def _why_worthless(self, i: int) -> str:
        beside = self._beside(i, True, self.nothing)
        if self.alone[i] > self.nothing:
            return f"{self._own(i, True)}, but {'; '.join(beside)}"
        relevance = float(self.candidates.relevance[i])
        price = relevance - self.alone[i]
        charged = f", {self.charges} {_amount(price)}" if price > self.nothing else ""
        others = "".join(f"; {clause}" for clause in beside) if self.gain[i] else ""
        return f"not worth its price: relevance {_amount(relevance)}{charged}{others}"

    def _broken_row(self, i: int) -> LinearConstraint | None:
        """The first row that would be broken if passage i came in, or went."""
        for row in self.program.rows:
            activity = float(row.coefficients[self.x > 0].sum())
            after = activity + float(row.coefficients[i]) * (-1 if self.x[i] else 1)
            if row.violation(after) > row.violation(activity):
                return row
        return None

    def _best_swap(self, i: int) -> str:
        """The one exchange that breaks nothing and loses least."""
        program, chosen = self.program, self.chosen
        assert program.fixed is not None
        out = chosen[program.fixed[chosen] < 0]
        swapped = np.zeros((out.size, program.n), dtype=np.int8)
        swapped[:, chosen], swapped[:, i], swapped[np.arange(out.size), out] = 1, 1, 0
        if program.segments is None:
            fits = swapped @ program.costs <= program.most_cost
        else:
            fits = np.array([program.cost(x) <= program.most_cost for x in swapped], dtype=bool)
        out, swapped = out[fits], swapped[fits]
        change = self.value[i] + program.pairwise[i, out] - self.value[out]
        if program.segments is not None:  # what two share is not lost with one of them
            known = program.objective(self.x)
            change = np.array([program.objective(x) - known for x in swapped])
        if (priced := self.priced) is not None:  # prices of two do not add up: each exchange pays as a whole
            change += priced.marginal[i] - priced.marginal[out] + priced.paid(self.x)
            change -= np.array([priced.paid(x) for x in swapped])
        for k in np.argsort(-change, kind="stable"):
            if program.rows and program.violations(swapped[k]):  # the budget has been looked at
                continue
            moves = "change nothing in total"
            if abs(change[k]) >= self.nothing:
                verb = "gain" if change[k] > 0 else "lose"
                moves = f"{verb} {_amount(abs(float(change[k])))} in total"
            return f"read in place of '{self.candidates.ids[out[k]]}' it would {moves}"
        return f"no single {self.candidates.unit} could make room for it"


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
        """Which document, or passage without one, is the version that is read of one that is outdated.

        barred: candidates that must not be read, and so replace nothing.
        """
        alike, names = self._candidates.duplicates, self._candidates.names
        assert alike is not None
        others = (k for k in np.flatnonzero(alike[i]).tolist() if k not in barred)
        j = max(others, key=lambda k: in_force(names[k], self._candidates.question))
        _, source, date = names[j]
        name = f"'{source or self._candidates.ids[j]}'" + f" ({date})" * bool(date)
        return f"not read: {age_of(names[i], names[j])} version of {name}"

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
