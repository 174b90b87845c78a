"""Make the decisions of a trace again.

Every action follows from the state, the model and the seed; every tracked U from the action before; the
totals from the calls. What the language model said is not asked for again.
"""

from __future__ import annotations

from collections.abc import Mapping

from mio_rag.control.mdp.gauges import draw, tracked_next
from mio_rag.control.mdp.policies import State, make_policy, open_actions
from mio_rag.control.mdp.trace import ProcessTrace
from mio_rag.control.trace import wrong_totals
from mio_rag.learning.mdp import model_from_mapping

__all__ = ["replay"]

_SAME = 1e-9


def replay(trace: ProcessTrace) -> list[str]:
    """Make every decision again; what comes out differently (nothing, if all is well).

    Raises
    ------
    InputError
        If the trace's own settings cannot be used.
    """
    settings = trace.settings
    model = model_from_mapping(dict(settings["model"]), "the trace")
    name = trace.controller.partition("@")[0]
    closed = bool(settings["closed_book"])
    seed = int(settings["seed"])
    policy = make_policy(name, model, stop_at=settings["stop_at"], seed=seed, closed_book=closed)
    wrong = []
    level = trace.steps[0].uncertainty if trace.steps else trace.uncertainty
    for k, step in enumerate(trace.steps):
        where = f"step {k}"
        if step.step != k or abs(step.uncertainty - level) > _SAME:
            wrong.append(f"{where}: U is {step.uncertainty}, after the step before it was {level}")
        possible = open_actions(trace.steps[:k], closed, step.closed)
        decision = policy.decide(State(trace.question_id, k, step.uncertainty, possible))
        if decision.action != step.action:
            wrong.append(f"{where}: {step.action} was chosen, the controller says {decision.action}")
        if not _same_q(decision.q_values, step.q_values):
            wrong.append(f"{where}: Q was {step.q_values}, the model says {decision.q_values}")
        level = step.next_uncertainty
        if trace.gauge == "tracked":
            luck = draw(seed, trace.question_id, k, 1)
            said = tracked_next(
                model, step.action, step.uncertainty, len(step.new_ids) + bool(step.note), luck
            )
            if abs(said - level) > _SAME:
                wrong.append(f"{where}: U became {level}, the model says {said}")
    if abs(level - trace.uncertainty) > _SAME:
        wrong.append(f"the end: U is {trace.uncertainty}, after the last step it was {level}")
    if trace.ended == "stop" or trace.steps or trace.last_q_values:  # else a limit came before any decision
        possible = open_actions(trace.steps, closed, trace.last_closed)
        last = policy.decide(State(trace.question_id, len(trace.steps), trace.uncertainty, possible))
        if trace.ended == "stop" and last.action != "stop":
            wrong.append(f"the end: it stopped, the controller says {last.action}")
        if not _same_q(last.q_values, trace.last_q_values):
            wrong.append(f"the end: Q was {trace.last_q_values}, the model says {last.q_values}")
    return wrong + wrong_totals(trace)


def _same_q(one: Mapping[str, float] | None, other: Mapping[str, float] | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.keys() == other.keys() and all(abs(one[a] - other[a]) <= 1e-7 for a in one)
