"""What a selector's settings make of a pool: terms, programs, and the robust counterpart that is solved."""

from __future__ import annotations

import functools
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from mio_rag.candidates import Candidates
from mio_rag.errors import InputError
from mio_rag.formulations.constraints import fixed_values
from mio_rag.formulations.joint import JointProblem
from mio_rag.formulations.program import SelectionProgram
from mio_rag.formulations.relevance_value import CurveValue, InnerProductValue, ItemValue
from mio_rag.formulations.robust import nominal_program, worst_similarity
from mio_rag.formulations.uncertainty import NormBall, ScaledSet, UncertaintySet
from mio_rag.formulations.uncertainty_sets import DeviationBudget
from mio_rag.selection.explain import Priced, decisions
from mio_rag.selection.pool_constraints import Side, side_of
from mio_rag.selection.result import Selection, WorstCase
from mio_rag.solvers.cuts import joint_steps
from mio_rag.solvers.infeasibility import find_conflict
from mio_rag.solvers.result import SolveResult, Status

if TYPE_CHECKING:
    from mio_rag.selection.selector import Selector

__all__ = ["Choice", "Counterpart", "Solved", "concluded", "joint_problem", "program_of", "solved"]

FloatArray = NDArray[np.float64]
#: termwise: each term at its own worst (closed, conservative). joint: one perturbation for all, by cuts.
Counterpart = Literal["termwise", "joint"]


@dataclass(frozen=True, eq=False)
class Solved:
    """The program whose result stands, that result, and what is known of its worst case."""

    program: SelectionProgram
    result: SolveResult
    side: Side
    worst_case: WorstCase | None = None


def uncertainty_of(selector: Selector, candidates: Candidates) -> UncertaintySet | None:
    """The set that a selector's settings and a pool's radii make; None where nothing can deviate."""
    given = selector.uncertainty
    if given is None:
        if not _can_deviate(selector, candidates):
            return None
        given = NormBall(selector.radius, selector.norm)
    radius = candidates.radius
    if radius is None and selector.passage_radii:
        radius = _radii(selector, candidates)
    if radius is not None:
        if isinstance(given, ScaledSet):
            given = replace(given, radius=np.asarray(radius))
        elif isinstance(given, DeviationBudget) and isinstance(given.base, ScaledSet):
            given = replace(given, base=replace(given.base, radius=np.asarray(radius)))
        else:
            raise InputError(
                f"{type(given).__name__} has no radius that those of single passages could replace: leave "
                "passage_radii and Candidates.radius out, or give a set that has one"
            )
    return None if given.is_exact else given


def _can_deviate(selector: Selector, candidates: Candidates) -> bool:
    """Whether anything says how far embeddings may be off, be it 0."""
    given = selector.uncertainty is not None or selector.radius > 0 or bool(selector.passage_radii)
    return given or candidates.radius is not None


@dataclass(frozen=True, eq=False)
class Choice:
    """What was decided, and by which program, before reasons are looked for.

    Parameters
    ----------
    candidates : Candidates
        With the relevance that the selector gave them.
    chosen : tuple of int
        Indices into them, in prompt order.
    used, budget_tokens, allowed : int
        Tokens used; the budget; what of it the program was given, where the assembled block counts more.
    """

    candidates: Candidates
    found: Solved
    result: SolveResult
    chosen: tuple[int, ...]
    used: int
    budget_tokens: int
    allowed: int


def _radii(selector: Selector, candidates: Candidates) -> FloatArray:
    """The radius of each candidate by its id."""
    known = selector.passage_radii
    missing = [i for i in candidates.ids if i not in known]
    if missing:
        raise InputError(
            f"passage_radii lacks {len(missing)} of {len(candidates)} candidates ('{missing[0]}' is one): "
            "measure every passage (mio-rag radius INDEX --method sq8 or pq:M), or give one radius for all"
        )
    return np.array([known[i] for i in candidates.ids], dtype=np.float64)


def _benefit_weights(selector: Selector, candidates: Candidates) -> FloatArray | None:
    """w * weight of the link, for every pair of which one mentions the other."""
    if selector.link_benefit == 0:
        return None
    if candidates.links is None:
        raise InputError(
            f"link_benefit={selector.link_benefit:g} needs candidates with evidence links: retrieve them "
            "from an index that holds links, pass links, or set link_benefit=0"
        )
    either = np.maximum(candidates.links, candidates.links.T).astype(np.float64)
    return np.asarray(selector.link_benefit * either)


def _terms(
    selector: Selector, candidates: Candidates, uncertainty: UncertaintySet | None
) -> tuple[FloatArray, FloatArray | None]:
    """Relevance and similarity as the program charges them: nominal, or each at its own worst."""
    n, model = len(candidates), selector.relevance_model
    vectors, query = candidates.embeddings, candidates.query_embedding
    if uncertainty is None:
        value = candidates.relevance
        if selector.redundancy_weight > 0 and candidates.similarity is not None:
            return value, _weighed(selector, candidates.similarity, value, value)
        if selector.redundancy_weight == 0 or vectors is None:
            return value, None
        mu = vectors.astype(np.float64)
        return value, _weighed(selector, mu @ mu.T, value, value)
    if vectors is None or query is None:
        raise InputError("radius > 0 needs embeddings and query_embedding: pass them, or set radius=0")
    loss = uncertainty.support(query, n)
    if model is None:
        low, high = candidates.relevance - loss, candidates.relevance + loss
    else:
        low, high = (model.probabilities(candidates, sign * loss) for sign in (1, -1))
    if selector.redundancy_weight == 0:
        return low, None
    return low, _weighed(selector, worst_similarity(vectors, uncertainty), low, high)


def _weighed(selector: Selector, similarity: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
    """Similarity by sqrt(r_i r_j), at whichever end of the relevances costs most."""
    if not selector.redundancy_by_relevance:
        return similarity
    least, most = (np.sqrt(np.maximum(r, 0.0)) for r in (low, high))
    return np.where(similarity >= 0, np.outer(most, most), np.outer(least, least)) * similarity


def program_of(
    selector: Selector, candidates: Candidates, budget_tokens: int, side: Side | None = None
) -> SelectionProgram:
    """See `Selector.program`."""
    side = side or side_of(selector, candidates)
    value, similarity = _terms(selector, candidates, uncertainty_of(selector, candidates))
    weights = _benefit_weights(selector, candidates)
    worth = np.maximum(value, 0.0)
    program = nominal_program(
        value,
        similarity,
        candidates.tokens,
        budget_tokens,
        redundancy_weight=selector.redundancy_weight,
        passage_penalty=selector.penalty(candidates),
        token_price=selector.token_price,
        benefit=None if weights is None else weights * np.maximum.outer(worth, worth),
        fixed=fixed_values(candidates.ids, selector.must_include, selector.must_exclude),
    )
    return side.applied(program)


def joint_problem(
    selector: Selector,
    candidates: Candidates,
    budget_tokens: int,
    uncertainty: UncertaintySet | None = None,
    side: Side | None = None,
) -> JointProblem:
    """The robust problem of a pool, in which one perturbation serves all terms.

    Parameters
    ----------
    uncertainty : UncertaintySet, optional
        Instead of the selector's own.

    Raises
    ------
    InputError
        Without embeddings, or where redundancy is weighed by relevance.
    """
    vectors, query = candidates.embeddings, candidates.query_embedding
    if vectors is None or query is None:
        raise InputError("a worst case needs candidates with embeddings and query_embedding: pass them")
    if selector.redundancy_by_relevance:
        raise InputError(
            "redundancy weighed by relevance has no joint worst case here: use counterpart='termwise', or "
            "redundancy_by_relevance=False"
        )
    parts = side or side_of(selector, candidates)
    given = uncertainty or uncertainty_of(selector, candidates) or NormBall(0.0)
    model, n = selector.relevance_model, len(candidates)
    value: ItemValue = InnerProductValue(candidates.relevance)
    if model is not None:
        value = CurveValue(
            lambda loss: model.probabilities(candidates, loss),
            model.alone(candidates, given.support(query, n)),
        )
    fixed = fixed_values(candidates.ids, selector.must_include, selector.must_exclude)
    costs = candidates.tokens.astype(np.float64)
    return JointProblem(
        value=value,
        rest=-selector.penalty(candidates) - selector.token_price * costs,
        embeddings=vectors.astype(np.float64),
        query=query.astype(np.float64),
        uncertainty=given,
        redundancy_weight=selector.redundancy_weight,
        benefit=_benefit_weights(selector, candidates),
        assemble=lambda linear, pairwise: parts.applied(
            SelectionProgram(linear, pairwise, costs, budget_tokens, fixed=fixed)
        ),
    )


def solved(
    selector: Selector, candidates: Candidates, budget_tokens: int
) -> Generator[SelectionProgram, SolveResult, Solved]:
    """Hands out what is to be solved, is sent the results, and returns what stands."""
    side = side_of(selector, candidates)
    uncertainty = uncertainty_of(selector, candidates)
    program = program_of(selector, candidates, budget_tokens, side)
    if uncertainty is None:
        if selector.counterpart == "joint" and not _can_deviate(selector, candidates):
            raise InputError(
                "counterpart='joint' is about embeddings that may be off, and none may: give radius > 0, "
                "uncertainty or passage_radii, or leave it at 'termwise'"
            )
        return Solved(program, (yield program), side)
    if selector.counterpart == "termwise":
        result = yield program
        if result.x is None or result.objective is None:
            return Solved(program, result, side)
        worst = WorstCase("termwise", result.objective, None)
        if not selector.redundancy_by_relevance and uncertainty.has_points:
            problem = joint_problem(selector, candidates, budget_tokens, side=side)
            ends = problem.interval(result.x)
            worst = WorstCase("termwise", max(result.objective, ends[0]), ends[1])
        return Solved(program, result, side, worst)
    problem = joint_problem(selector, candidates, budget_tokens, side=side)
    outcome = yield from joint_steps(problem, selector.options, (program, problem.scenario()))
    known = None
    if outcome.result.objective is not None and outcome.result.x is not None:
        known = WorstCase("joint", outcome.result.objective, outcome.upper, outcome.cuts)
    return Solved(outcome.program, outcome.result, side, known)


def concluded(selector: Selector, choice: Choice) -> Selection:
    """The selection that people see: without the items that buy broken rows, with what is known about it."""
    candidates, found, result = choice.candidates, choice.found, choice.result
    n, program, side = len(candidates), found.program, found.side
    bare, visible, priced = side.without(program), result, None
    conflict = find_conflict(bare, candidates.ids) if result.status is Status.INFEASIBLE else None
    if result.x is not None and side.is_priced:
        visible = replace(result, x=result.x[:n])
        priced = Priced(side.marginal(result.x), side.paid)
    return Selection(
        candidates,
        choice.chosen,
        choice.used,
        choice.budget_tokens,
        result,
        program,
        decisions(candidates, bare, visible, priced),
        worst_case=found.worst_case,
        notes=tuple(side.notes(result.x)),
        conflict=conflict,
        problem=functools.partial(joint_problem, selector, candidates, choice.allowed),
    )
