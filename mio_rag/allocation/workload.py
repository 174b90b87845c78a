"""A workload: questions that share tokens, solved at one price after the other, and the price in between.

For every price mu >= 0 the sum of phi_q(mu), and mu T, bounds what any allocation of T tokens can reach
(Lagrangian duality). What is spent falls as mu rises, so a bracket of two prices closes in on the total.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from mio_rag.context import RegexCounter, TokenCounter, block_tokens, in_prompt_order
from mio_rag.errors import InputError, SolverError, collect
from mio_rag.formulations.numbers import plural
from mio_rag.formulations.program import LinearConstraint, SelectionProgram, with_token_price
from mio_rag.pool import Candidates
from mio_rag.relevance.documents import is_document_pool
from mio_rag.selection.program import Formulation
from mio_rag.selection.selector import Selector
from mio_rag.selection.solving import Choice, Solved
from mio_rag.selection.units import units_for
from mio_rag.settings import Settings
from mio_rag.solvers.capabilities import one_blas_thread
from mio_rag.solvers.many import solve_as_completed
from mio_rag.solvers.registry import solve
from mio_rag.solvers.result import SolveResult, Status, conclude, relative_gap

#: Told in words what was found at each price.
Told = Callable[[str], None]

#: Solvers to which tokens are a limit, and never a price.
_RANKINGS = ("topk", "mmr", "density")
#: Passages that are tried as the one less, or the one more, where side rows forbid the best.
_FLIPS = 4
_ROUNDS = 100
_NAMED = 5
_LONG = 10**12  # tokens, beyond any pool
_USUAL = 1000.0  # characters, weighed by their worth, of a question over documents that counts 1
_SAME_PRICE = 1e-12
_PART, _ENOUGH = 8, 64  # a price is sought among every eighth question first, where so many are left
_PART_CLOSENESS = 0.01  # of that price
_STEPS, _STEP = 7, 1.02  # away from it, each the square of the one before


@dataclass(frozen=True, eq=False)
class Decided:
    """A decision, and the program that it comes from.

    x: none: nothing is feasible, or nothing was found.
    value: w V(x), recomputed from the decision; 0 without one.
    price: price of a token at which it was solved.
    budget: most tokens that the program allowed.
    result: of that program.
    """

    x: NDArray[np.int8] | None
    tokens: int
    value: float
    price: float
    budget: int
    result: SolveResult


@dataclass(frozen=True, eq=False)
class Probe:
    """What is known at one price.

    price: mu >= 0.
    decided: the best decision that is known at this price.
    bound: proven: phi(mu) is no larger. Infinite where nothing was proven.
    """

    price: float
    decided: Decided
    bound: float


class PricedQuestion:
    """The program of one pool, for every price of a token.

    Of documents it chooses units, as `Selector.select` does, where settings and floor allow it; elsewhere
    whole passages.

    selector: without a token price of its own; see `selector_problems`.
    weight: w > 0.
    floor, ceiling: fewest and most tokens.
    counter: the reader's tokenizer: with it, text that passages share is paid once (`Formulation`).

    Raises `InputError` if the pool is empty, lacks what the settings need, or shares text where there is a
    floor.
    """

    def __init__(
        self,
        selector: Selector,
        candidates: Candidates,
        weight: float,
        floor: int,
        ceiling: int,
        counter: TokenCounter | None = None,
    ) -> None:
        if len(candidates) == 0:
            raise InputError("there are no candidates to select from: retrieve a pool first")
        self._pool = selector.read(candidates)
        if is_document_pool(candidates) and floor == 0:
            if counter is None and selector.units != "passages":
                counter = RegexCounter()  # units share lines, whose tokens nobody counted
            units = units_for(selector, self._pool.candidates, self._pool.model, ceiling, counter)
            selector = selector.replace(units=units)
        selector = selector.whole()
        self.selector, self.weight, self.floor, self.ceiling = selector, weight, floor, ceiling
        formulation = Formulation(selector, self._pool, counter, leads=False)
        self.candidates, self._counter = formulation.candidates, counter
        base, self._penalty = formulation.program(ceiling), formulation.penalty(ceiling)
        # Parts may count more than the passages that they are of.
        self.ceiling = min(ceiling, max(1, math.ceil(base.all_costs.sum())))
        base = replace(base, budget=self.ceiling)
        self._base = self._with_floor(base)
        self._built: tuple[tuple[float, int], SelectionProgram] | None = None
        #: Everything that is known, by rising price.
        self.probes: list[Probe] = []

    def _with_floor(self, program: SelectionProgram) -> SelectionProgram:
        if self.floor == 0:
            return program
        if program.segments is not None:
            raise InputError(
                f"floor={self.floor} is for passages that are each read by themselves, and some here share "
                "text that is paid once: read them apart (merge=False), or leave the floor out"
            )
        row = LinearConstraint(program.costs, lower=self.floor, name=f"at least {self.floor} tokens")
        return replace(program, rows=(*program.rows, row))

    def program(self, price: float, budget: int | None = None) -> SelectionProgram:
        """The program at a price of a token, in units of V."""
        base, asked = self._base, (price, self.ceiling if budget is None else budget)
        if self._built is None or self._built[0] != asked:
            priced = base if price == 0 else with_token_price(base, price / self.weight)
            same = asked[1] == base.budget
            self._built = asked, priced if same else replace(priced, budget=asked[1])
        return self._built[1]

    def steep_price(self) -> float:
        """A price above which no passage is worth its tokens, unless a row asks for it."""
        base, shared = self._base, self._base.segments
        gains = np.maximum(-base.pairwise, 0.0).sum(axis=1) + base.linear
        costs = base.costs
        if shared is not None:
            # Split among all that share it, so that no selection costs less than its parts.
            costs = costs + shared.needs @ (shared.costs / np.maximum(shared.needs.sum(axis=0), 1))
        paid = costs > 0
        steepest = float(np.max(gains[paid] / costs[paid], initial=0.0))
        return self.weight * max(steepest, 0.0)

    def forcing_price(self) -> float:
        """A price above which fewer tokens are always better, whatever rows ask for: tokens are whole."""
        base = self._base
        return self.weight * float(2 * np.abs(base.linear).sum() + np.abs(base.pairwise).sum())

    def known(self, price: float) -> Probe | None:
        """What is known at a price, if it is proven there or follows from neighbours; kept from then on."""
        probes, place = self.probes, bisect.bisect_left(self.probes, price, key=_price)
        if place < len(probes) and probes[place].price == price:
            return probes[place]
        if place == 0:
            return None
        below = probes[place - 1]
        bound = below.bound  # phi falls
        if place < len(probes):
            above = probes[place]
            share = (price - below.price) / (above.price - below.price)
            bound = min(bound, (1 - share) * below.bound + share * above.bound)
        if not math.isfinite(bound):
            return None
        best = max(
            (probe.decided for probe in probes if probe.decided.x is not None),
            key=lambda decided: (decided.value - price * decided.tokens, -decided.tokens),
            default=below.decided,  # infeasible at one price is infeasible at all
        )
        reached = best.value - price * best.tokens
        scale = self._base.value_scale
        if bound - reached > self.weight * self.selector.options.tolerance(reached / self.weight, scale):
            return None
        return self._keep(Probe(price, best, max(bound, reached)))

    def learn(self, price: float, result: SolveResult) -> Probe:
        """What a solve of `program(price)` has shown; `SolverError` if the solver broke."""
        bound = math.inf if result.bound is None else self.weight * result.bound
        if result.status is Status.INFEASIBLE:
            bound = 0.0
        return self._keep(Probe(price, self.decided(price, self.ceiling, result), bound))

    def _keep(self, probe: Probe) -> Probe:
        bisect.insort_left(self.probes, probe, key=_price)
        return probe

    def decided(self, price: float, budget: int, result: SolveResult) -> Decided:
        """The decision of a result, with value and tokens recomputed from it.

        Raises `SolverError` if the solver broke.
        """
        if result.status is Status.ERROR:
            raise SolverError(result.message)
        if result.x is None:
            return Decided(None, 0, 0.0, price, budget, result)
        tokens = round(self._base.cost(result.x))
        return Decided(result.x, tokens, self.weight * self._base.objective(result.x), price, budget, result)

    def smallest_missing(self, decided: Decided) -> float:
        """Fewest tokens that one passage more would take; infinite where a decision leaves none out."""
        assert self._base.fixed is not None
        n = len(self.candidates)
        left, costs = self._base.fixed[:n] < 0, self._base.costs
        if decided.x is not None:
            left &= decided.x[:n] == 0
            costs = self._steps(decided.x)
        return float(np.min(costs[:n][left], initial=np.inf))

    def _steps(self, x: NDArray[np.int8]) -> NDArray[np.float64]:
        """Tokens that each item saves by going alone, or takes by coming; shape (items,)."""
        shared = self._base.segments
        if shared is None:
            return self._base.costs
        readers = shared.needs[x > 0].sum(axis=0)
        alone = shared.needs & np.where(x[:, None] > 0, readers == 1, readers == 0)
        return np.asarray(self._base.costs + alone @ shared.costs)

    def neighbours(self, probe: Probe) -> list[Decided]:
        """The decision of one passage less that loses least a token, and that of one more that gains most.

        They cost no solve: next to an optimum, values of single passages follow from one product with the
        matrix of pairs. Each is feasible, with its own value and tokens, and the bound at the probe's price;
        left out where no passage can go, or come and add something.
        """
        found = probe.decided
        if found.x is None:
            return []
        base, n = self._base, len(self.candidates)
        assert base.fixed is not None
        marginal = (base.linear - base.pairwise @ found.x)[:n]
        costs, chosen = self._steps(found.x)[:n], found.x[:n] > 0
        free = (base.fixed[:n] < 0) & (costs > 0)
        fewer = np.flatnonzero(free & chosen)
        more = np.flatnonzero(free & ~chosen & (marginal > 0) & (costs <= self.ceiling - found.tokens))
        made = (
            self._flipped(probe, fewer, -marginal[fewer], -costs[fewer]),
            self._flipped(probe, more, marginal[more], costs[more]),
        )
        return [one for one in made if one is not None]

    def _flipped(
        self, probe: Probe, places: NDArray[np.int64], gains: NDArray[np.float64], costs: NDArray[np.float64]
    ) -> Decided | None:
        """The decision with one of these passages changed: the best of the first few that may be.

        gains, costs: what each change adds to V and to the tokens; both below 0 where passages go.
        """
        found = probe.decided
        assert found.x is not None
        program = self.program(probe.price)
        for k in np.argsort(-gains / np.abs(costs), kind="stable")[: _FLIPS if program.rows else 1].tolist():
            x = found.x.copy()
            x[places[k]] = 1 - x[places[k]]
            if program.rows and program.violations(x):  # else it keeps what there is to keep: the ceiling
                continue
            tokens = found.tokens + round(float(costs[k]))
            value = found.value / self.weight + float(gains[k])
            objective = value - probe.price / self.weight * tokens
            bound = max(probe.bound / self.weight, objective)
            proven = bound - objective <= self.selector.options.tolerance(objective, program.value_scale)
            known = math.isfinite(bound)
            result = SolveResult(
                Status.OPTIMAL if proven else Status.FEASIBLE,
                found.result.solver,
                x,
                objective,
                bound if known else None,
                relative_gap(objective, bound, program.value_scale) if known else None,
                version=found.result.version,
            )
            return Decided(x, tokens, self.weight * value, probe.price, self.ceiling, result)
        return None

    def choice(self, decided: Decided) -> Choice:
        """The choice that a decision is, of at most so many tokens as it sums up to.

        Where a counter counts more for the assembled block than that, the program is solved again within
        less, until the block keeps the tokens that the question was given.
        """
        price, counter = decided.price / self.weight, self._counter
        selector = self.selector.replace(token_price=price)
        formulation = Formulation(selector, self._pool, counter, self._penalty, leads=False)
        program = self._with_floor(formulation.program(decided.budget))
        result = decided.result
        if result.x is not None:  # held against the program as it is shown
            result = conclude(
                program,
                selector.options,
                result.solver,
                x=result.x,
                bound=result.bound,
                limit=result.limit,
                wall_seconds=result.wall_seconds,
                nodes=result.nodes,
                version=result.version,
                message=result.message,
            )
        allowed, allotted, merge = decided.budget, decided.tokens, formulation.is_merged
        while True:
            picked = [i for i in result.selected if i < len(self.candidates)]
            chosen = in_prompt_order(self.candidates, picked, selector.prompt_order)
            used = summed = round(program.cost(result.x)) if result.x is not None else 0
            if counter is not None:
                used = block_tokens(self.candidates, chosen, counter, merge)
            if used <= allotted:
                break
            # In proportion, but by no more than one passage, as `Selector.choose` does it.
            optional = [round(program.alone[i]) for i in chosen if i in program.free]
            allowed = max(summed * allotted // used, summed - max(optional, default=summed))
            program = replace(program, budget=allowed)
            result = solve(program, selector.solver, selector.options)
            if result.status is Status.ERROR:
                raise SolverError(result.message)
        return Choice(
            formulation,
            Solved(program, result),
            result,
            chosen,
            used,
            self.ceiling,
            allowed,
            merge,
            counter="" if counter is None else counter.name,
        )

    def value_of(self, choice: Choice) -> float:
        """w V of a choice, from the choice itself."""
        x = choice.result.x
        return 0.0 if x is None else self.weight * self._base.objective(x)


def _price(probe: Probe) -> float:
    return probe.price


def selector_problems(selector: Selector) -> list[str]:
    """What of a selector's settings has no place in a workload under one price, in words."""
    problems = []
    if selector.token_price > 0:
        problems.append(f"token_price={selector.token_price:g} is what is looked for here: leave it at 0")
    if selector.counterpart == "joint":
        problems.append("counterpart='joint' has no bound over prices: use counterpart='termwise'")
    if selector.units == "sentences":
        problems.append(
            "units='sentences' has no place in a workload: leave units open, which reads those of documents"
        )
    if selector.solver in _RANKINGS:
        problems.append(f"solver '{selector.solver}' ranks without looking at a price: use auto")
    return problems


def usual_weight(selector: Selector, pool: Candidates) -> float:
    """Return what a question counts beside others under one total: 1, except over documents.

    There values are shares of the best unit of a pool. Where many units are nearly as likely as the best, all
    of them would be bought, although that is where little is known: such a question counts less, by the root
    of the characters in its units, each weighed by its share of the best.
    """
    units = selector.read(pool).units if len(pool) and is_document_pool(pool) else None
    if units is None or pool.sentences is None or not units.size or not units.max() > 0:
        return 1.0
    lengths = pool.sentences.spans[:, 1] - pool.sentences.spans[:, 0]
    return math.sqrt(_USUAL / max(1.0, float(lengths @ units) / float(units.max())))


@dataclass(frozen=True)
class Totals:
    """What a workload spends and reaches at one price.

    value: sum of w V over the questions.
    relaxed: sum of the proven bounds on phi: with mu times a total, an upper bound on what that total can
        reach.
    """

    price: float
    tokens: int
    value: float
    relaxed: float

    def bound(self, total_tokens: int) -> float:
        """No allocation of so many tokens is worth more."""
        return self.relaxed + self.price * total_tokens


class Workload:
    """Questions under one price.

    selector: whose solver and options are used; a time limit is one for each program.
    workers: threads.
    told: told one line for each price.
    """

    def __init__(
        self,
        questions: Sequence[PricedQuestion],
        selector: Selector,
        *,
        workers: int = 1,
        told: Told | None = None,
    ) -> None:
        self.questions = tuple(questions)
        self.programs = 0
        self.tried: dict[float, Totals] = {}
        self._selector, self._workers, self._told = selector, workers, told

    def at(self, price: float) -> Totals:
        """Every question solved at a price, those left out that are known there.

        Raises `SolverError` if the solver broke; it says on which question.
        """
        if price in self.tried:
            return self.tried[price]
        found: list[Probe | None] = [question.known(price) for question in self.questions]
        before = self.programs
        tasks = (
            (k, question.program(price)) for k, question in enumerate(self.questions) if found[k] is None
        )
        with one_blas_thread():  # once for all of them
            for k, result in solve_as_completed(
                tasks, self._selector.solver, self._selector.options, workers=self._workers
            ):
                self.programs += 1
                try:
                    found[k] = self.questions[k].learn(price, result)
                except SolverError as error:
                    raise SolverError(f"question {k}: {error}") from error
        probes = [probe for probe in found if probe is not None]
        totals = self.tried[price] = Totals(
            price,
            sum(probe.decided.tokens for probe in probes),
            math.fsum(probe.decided.value for probe in probes),
            math.fsum(probe.bound for probe in probes),
        )
        if self._told is not None:
            self._told(
                f"price {price:.6g}: {plural(totals.tokens, 'token')}, value {totals.value:.6g} "
                f"({plural(self.programs - before, 'program')} solved)"
            )
        return totals

    def decisions(self, price: float) -> list[Decided]:
        """The decision of each question at a price that was tried."""
        found = [question.known(price) for question in self.questions]
        return [probe.decided for probe in found if probe is not None]

    def bracket(
        self, total_tokens: int, closeness: float = 0.0, near: float | None = None
    ) -> tuple[Totals | None, Totals]:
        """The prices next to the one at which so many tokens are spent.

        closeness: stop where the prices differ by no more than this share.
        near: where to look first: `roughly` finds it with fewer solves.

        Returns: where more is spent than that, None where 0 suffices; and where no more is.
        Raises `InputError` if even the fewest tokens that the constraints allow are too many.
        """
        low, high = self._ends(total_tokens, near)
        slopes = True
        for _ in range(_ROUNDS):
            if low is None or high.price <= low.price * (1 + max(closeness, _SAME_PRICE)):
                break
            middle = self._between(low, high, slopes)
            if middle is None:
                break
            at = self.at(middle)
            lines = low.value - middle * low.tokens
            reached = at.value - middle * at.tokens
            low, high = (low, at) if at.tokens <= total_tokens else (at, high)
            if slopes and closeness == 0 and reached <= lines + 1e-12 * max(1.0, abs(lines)):
                break  # nothing lies above the line through both ends: no price has a better bound
            slopes = not slopes
        return low, high

    def _ends(self, total_tokens: int, near: float | None) -> tuple[Totals | None, Totals]:
        """A price at which more is spent, None where not even 0 is, and one at which no more is."""
        if near:
            at, step = self.at(near), _STEP
            for _ in range(_STEPS):
                over = at.tokens > total_tokens
                other = self.at(at.price * step if over else at.price / step)
                if over != (other.tokens > total_tokens):
                    return (at, other) if over else (other, at)
                at, step = other, step**2
        free = self.at(0.0)
        if free.tokens <= total_tokens:
            return None, free
        steep = max(question.steep_price() for question in self.questions)
        high = self.at(1.01 * steep)
        if high.tokens > total_tokens:
            high = self.at(1.01 * max(question.forcing_price() for question in self.questions))
        if high.tokens > total_tokens:
            raise InputError(
                f"total_tokens={total_tokens} is too little: what must be chosen (must_include, "
                f"min_passages, floors) takes {high.tokens} tokens at least; raise it, or ask for less"
            )
        return free, high

    def roughly(self, total_tokens: int) -> float | None:
        """The price at which an eighth of the questions spends an eighth; None where that says nothing."""
        part = self.questions[::_PART]
        if len(part) < _ENOUGH:
            return None
        few = Workload(part, self._selector, workers=self._workers)
        try:
            found = few.bracket(total_tokens * len(part) // len(self.questions), _PART_CLOSENESS)
        except InputError:
            return None
        finally:
            self.programs += few.programs
        return found[1].price or None

    def _between(self, low: Totals, high: Totals, slopes: bool) -> float | None:
        """The price where both ends are worth the same, or the geometric middle; None where they are one."""
        if low.tokens == high.tokens:
            return None
        same = (low.value - high.value) / (low.tokens - high.tokens)
        inside = low.price < same < high.price
        if low.price > 0 and not (slopes and inside):
            middle = math.sqrt(low.price * high.price)
        elif inside:
            middle = same
        else:
            middle = 0.5 * (low.price + high.price)
        return middle if low.price < middle < high.price else None

    def bound(self, total_tokens: int) -> float:
        """The smallest proven bound of all prices tried."""
        return min(totals.bound(total_tokens) for totals in self.tried.values())


class _Shares(Settings):
    """What each question counts, and the tokens that it may take; one for each, or for all."""

    workers: Annotated[int, Field(ge=1)]
    weights: tuple[Annotated[float, Field(ge=1e-9, le=1e9)], ...]
    floors: tuple[Annotated[int, Field(ge=0)], ...]
    ceilings: tuple[Annotated[int, Field(ge=1)], ...]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        count = len(self.weights)
        for name in ("floors", "ceilings"):
            if (given := len(getattr(self, name))) != count:
                raise ValueError(f"{name} has {given} values, expected one, or {count}")
        for k, (low, high) in enumerate(zip(self.floors, self.ceilings, strict=True)):
            if low > high:
                raise ValueError(
                    f"floors[{k}]={low} is above ceilings[{k}]={high}: lower the floor or raise the ceiling"
                )
        return self


def workload_of(
    pools: Sequence[Candidates],
    selector: Selector,
    *,
    weights: Sequence[float] | None = None,
    floors: int | Sequence[int] | None = None,
    ceilings: int | Sequence[int] | None = None,
    counter: TokenCounter | None = None,
    most: int | None = None,
    workers: int = 1,
    told: Told | None = None,
) -> Workload:
    """The workload of pools, checked.

    counter: the reader's tokenizer: with it, text that passages share is paid once.
    most: of any question, whatever its ceiling.

    Raises `InputError` with every problem found.
    """
    count = len(pools)
    _, given = collect(lambda: _check(selector, count, weights), lambda: _Shares(
        workers=workers,
        weights=tuple(weights or (1.0,) * count),
        floors=_each(0 if floors is None else floors, count),
        ceilings=_each(_LONG if ceilings is None else ceilings, count),
    ))  # fmt: skip
    questions, problems = [], []
    for k, pool in enumerate(pools):
        ceiling = max(1, min(given.ceilings[k], _LONG if most is None else most))
        try:
            question = PricedQuestion(selector, pool, given.weights[k], given.floors[k], ceiling, counter)
            questions.append(question)
        except InputError as error:
            problems += [f"question {k}: {problem}" for problem in error.problems]
    if problems:
        if len(problems) > _NAMED:
            more = plural(len(problems) - _NAMED, "problem")
            problems[_NAMED:] = [f"and {more} more, of other questions"]
        raise InputError(problems)
    return Workload(questions, selector, workers=workers, told=told)


def _check(selector: Selector, count: int, weights: Sequence[float] | None) -> None:
    problems = selector_problems(selector)
    if count == 0:
        problems.append("there are no pools: give one for each question")
    if weights is not None and len(weights) != count:
        problems.append(f"weights has {len(weights)} values, expected {count}: one for each question")
    if problems:
        raise InputError(problems)


def _each(given: int | Sequence[int], count: int) -> tuple[Any, ...]:
    return (given,) * count if isinstance(given, (int, float, np.number)) else tuple(given)
