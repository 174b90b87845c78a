"""Make the decisions of a trace again.

Every action follows from the state, the model and the seed; every tracked U from the action before; the
totals from the calls. What the language model said is not asked for again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mio_rag.control.mdp.policies import (
    ProcessStep,
    State,
    draw,
    make_policy,
    open_actions,
    tracked_next,
)
from mio_rag.learning.mdp import model_from_mapping
from mio_rag.session.costs import Call
from mio_rag.session.trace import Trace, wrong_totals

_SAME = 1e-9


@dataclass(frozen=True)
class Decided:
    """An action of a decision process, with U before and after it.

    Parameters
    ----------
    calls : tuple of Call
        What it took, with the measuring of U after it and queries that were known before it.
    """

    step: ProcessStep
    uncertainty: float
    next_uncertainty: float
    q_values: Mapping[str, float] | None
    calls: tuple[Call, ...]


def decided(trace: Trace) -> list[Decided]:
    """The actions of a trace whose policy follows a decision process, or a rule of that kind."""
    found: list[Decided] = []
    waiting: tuple[Call, ...] = ()
    for step in trace.steps:
        is_action = step.do in ("retrieve", "reason", "search_again") and "uncertainty" in step.about
        if step.do == "search_again" and not step.selected_ids and not step.output:
            waiting += step.calls  # its query was known: it changed nothing
            continue
        if not is_action or step.dropped is not None:
            if step.do == "draft" and found:
                found[-1] = replace(found[-1], calls=(*found[-1].calls, *step.calls))
            continue
        action = "reason" if step.do == "reason" else "retrieve"
        closed = tuple(step.about.get("closed") or ())
        seen = ProcessStep(action, step.query, step.note, step.new_ids, step.selected_ids, closed)
        level = float(step.about["uncertainty"])
        after = float(step.about.get("next_uncertainty", level))
        found.append(Decided(seen, level, after, step.about.get("q_values"), (*waiting, *step.calls)))
        waiting = ()
    if found and "next_uncertainty" not in trace.steps[0].about:  # version 2: U after is U before the next
        levels = [one.uncertainty for one in found[1:]] + [float(trace.about.get("uncertainty", 1.0))]
        found = [replace(one, next_uncertainty=after) for one, after in zip(found, levels, strict=True)]
    return found


def replay(trace: Trace) -> list[str]:
    """Make every decision again; what comes out differently (nothing, if all is well).

    Raises
    ------
    InputError
        If the trace's own settings cannot be used.
    """
    settings = trace.settings
    model = model_from_mapping(dict(settings["model"]), "the trace")
    name = trace.policy.partition("@")[0]
    closed = bool(settings["closed_book"])
    seed = int(settings["seed"])
    policy = make_policy(name, model, stop_at=settings["stop_at"], seed=seed, closed_book=closed)
    wrong = []
    steps = decided(trace)
    end = float(trace.about.get("uncertainty", 1.0))
    level = steps[0].uncertainty if steps else end
    for k, one in enumerate(steps):
        where = f"step {k}"
        if abs(one.uncertainty - level) > _SAME:
            wrong.append(f"{where}: U is {one.uncertainty}, after the step before it was {level}")
        possible = open_actions([s.step for s in steps[:k]], closed, one.step.closed)
        decision = policy.decide(State(trace.question_id, k, one.uncertainty, possible))
        if decision.action != one.step.action:
            wrong.append(f"{where}: {one.step.action} was chosen, the controller says {decision.action}")
        if not _same_q(decision.q_values, one.q_values):
            wrong.append(f"{where}: Q was {one.q_values}, the model says {decision.q_values}")
        level = one.next_uncertainty
        if trace.about.get("signal") == "tracked":
            new = len(one.step.new_ids) + bool(one.step.note)
            chance = draw(seed, trace.question_id, k, 1)
            said = tracked_next(model, one.step.action, one.uncertainty, new, chance)
            if abs(said - level) > _SAME:
                wrong.append(f"{where}: U became {level}, the model says {said}")
    if abs(level - end) > _SAME:
        wrong.append(f"the end: U is {end}, after the last step it was {level}")
    last_q = trace.about.get("q_values")
    if trace.ended == "stop" or steps or last_q:  # else a limit came before any decision
        possible = open_actions([s.step for s in steps], closed, tuple(trace.about.get("closed") or ()))
        last = policy.decide(State(trace.question_id, len(steps), end, possible))
        if trace.ended == "stop" and last.action != "stop":
            wrong.append(f"the end: it stopped, the controller says {last.action}")
        if not _same_q(last.q_values, last_q):
            wrong.append(f"the end: Q was {last_q}, the model says {last.q_values}")
    return wrong + wrong_totals(trace)


def _same_q(one: Mapping[str, float] | None, other: Mapping[str, float] | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.keys() == other.keys() and all(abs(one[a] - other[a]) <= 1e-7 for a in one)


def signals_of(traces: Sequence[Trace]) -> set[str]:
    """How U was known in these traces."""
    return {str(trace.about["signal"]) for trace in traces if "signal" in trace.about}
