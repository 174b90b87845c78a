"""From a pool's program to a selection: what is solved, what stands, and what people see of it."""

from __future__ import annotations

import functools
from collections.abc import Generator
from dataclasses import dataclass, replace

from mio_rag.candidates import Candidates
from mio_rag.errors import InputError
from mio_rag.formulations.program import SelectionProgram
from mio_rag.selection.explain import Priced, decisions
from mio_rag.selection.pool_constraints import Side, side_of
from mio_rag.selection.program import can_deviate, joint_problem, program_of, uncertainty_of
from mio_rag.selection.result import Selection, WorstCase
from mio_rag.selection.settings import Settings
from mio_rag.solvers.cuts import joint_steps
from mio_rag.solvers.infeasibility import find_conflict
from mio_rag.solvers.result import SolveResult, Status

__all__ = ["Choice", "Solved", "concluded", "solved"]


@dataclass(frozen=True, eq=False)
class Solved:
    """The program whose result stands, that result, and what is known of its worst case."""

    program: SelectionProgram
    result: SolveResult
    side: Side
    worst_case: WorstCase | None = None


@dataclass(frozen=True, eq=False)
class Choice:
    """What was decided, and by which program, before reasons are looked for.

    Parameters
    ----------
    candidates : Candidates
        With the relevance that the settings gave them.
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


def solved(
    settings: Settings, candidates: Candidates, budget_tokens: int
) -> Generator[SelectionProgram, SolveResult, Solved]:
    """Hands out what is to be solved, is sent the results, and returns what stands."""
    side = side_of(settings, candidates)
    uncertainty = uncertainty_of(settings, candidates)
    program = program_of(settings, candidates, budget_tokens, side)
    if uncertainty is None:
        if settings.counterpart == "joint" and not can_deviate(settings, candidates):
            raise InputError(
                "counterpart='joint' is about embeddings that may be off, and none may: give radius > 0, "
                "uncertainty or passage_radii, or leave it at 'termwise'"
            )
        return Solved(program, (yield program), side)
    if settings.counterpart == "termwise":
        result = yield program
        if result.x is None or result.objective is None:
            return Solved(program, result, side)
        worst = WorstCase("termwise", result.objective, None)
        if not settings.redundancy_by_relevance and uncertainty.has_points:
            problem = joint_problem(settings, candidates, budget_tokens, side=side)
            ends = problem.interval(result.x)
            worst = WorstCase("termwise", max(result.objective, ends[0]), ends[1])
        return Solved(program, result, side, worst)
    problem = joint_problem(settings, candidates, budget_tokens, side=side)
    outcome = yield from joint_steps(problem, settings.options, (program, problem.scenario()))
    known = None
    if outcome.result.objective is not None and outcome.result.x is not None:
        known = WorstCase("joint", outcome.result.objective, outcome.upper, outcome.cuts)
    return Solved(outcome.program, outcome.result, side, known)


def concluded(settings: Settings, choice: Choice) -> Selection:
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
        problem=functools.partial(joint_problem, settings, candidates, choice.allowed),
    )
