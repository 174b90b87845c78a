"""The rules of the decision process, and traces whose decisions are made again.

mdp               the policy of the process
always-reason     reason until U is at most `stop_at`
always-retrieve   retrieve until then
threshold[:X]     retrieve at U >= X (default .5), reason below it, until then
random            stop, reason or retrieve, each with the same chance
fixed-N           N actions, retrieve and reason in turns; fixed-0 answers at once

The step limit binds all of them. An action that can bring nothing new is no longer open: mdp then takes the
best of what is open, always-reason and always-retrieve stop, the others take the other action. Any name may
end with @tracked, @confidence, @evidence or @complete: how U is known.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from mio_rag.errors import InputError, choose
from mio_rag.formulations.mdp import ACTIONS, RetrievalMDP
from mio_rag.learning.mdp import TIE, model_from_mapping, solve_plan
from mio_rag.session.budget import Call
from mio_rag.session.trace import Trace, wrong_totals

#: How U, the uncertainty, may be known; see `mio_rag.deciders.repeat`.
GAUGES = ("tracked", "confidence", "evidence", "complete")
POLICIES = ("mdp", "always-reason", "always-retrieve", "threshold", "random", "fixed-N")
_ABOVE = {"always-reason": 2.0, "always-retrieve": 0.0, "threshold": 0.5}
_SAME = 1e-9


@dataclass(frozen=True)
class ProcessStep:
    """An action of the decision process, as rules look back at it.

    new_ids: passages that are read since it.
    closed: actions that were chosen first and could not change anything.
    """

    action: str
    query: str = ""
    note: str = ""
    new_ids: tuple[str, ...] = ()
    selected_ids: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()


def draw(seed: int, question_id: str, step: int, what: int) -> float:
    """Return a number in [0, 1) that depends on these alone, so that a run can be replayed."""
    return float(np.random.default_rng([seed, zlib.crc32(question_id.encode()), step, what]).random())


def tracked_next(model: RetrievalMDP, action: str, uncertainty: float, new: int, chance: float) -> float:
    """Return U after an action by the model's dynamics; `chance` in [0, 1) below p_s is a success."""
    if new == 0 or (action == "retrieve" and chance >= float(model.at("success", uncertainty))):
        return uncertainty
    return float(model.lowered(action, uncertainty))


def open_actions(
    steps: Sequence[ProcessStep], closed_book: bool, tried: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return what can bring something new after these steps.

    Models decode greedily and retrieval is deterministic, so a query that was searched for brings nothing
    again, and a prompt that brought no new note brings none again: until a note changes what is asked for, or
    new passages what is thought about.

    tried: actions that were chosen since the last step and could not change anything.
    """
    closed: set[str] = set()
    queries: set[str] = set()
    for step in steps:
        closed.update(step.closed)
        if step.action == "retrieve":
            if step.query.lower() in queries:
                closed.add("retrieve")
            queries.add(step.query.lower())
            if step.new_ids:
                closed.discard("reason")
        elif step.note:
            closed.discard("retrieve")
        else:
            closed.add("reason")
    closed.update(tried, ["retrieve"] if closed_book else [])
    return tuple(action for action in ACTIONS if action not in closed)


# -- rules --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class State:
    """What a rule sees.

    step: actions so far.
    doubt: U in [0, 1].
    open: actions that can bring something new; stop always can.
    """

    question_id: str
    step: int
    doubt: float
    open: tuple[str, ...] = ACTIONS


@dataclass(frozen=True)
class Decision:
    """An action, the values of all actions where they are known, and a reason in words."""

    action: str
    q_values: dict[str, float] | None = None
    why: str = ""


@dataclass(frozen=True, eq=False)
class Policy:
    """Chooses stop, reason or retrieve by a state."""

    name: str
    decide: Callable[[State], Decision]


def split_name(name: str, gauge: str) -> tuple[str, str]:
    """Return rule and gauge of a name such as ``mdp@confidence``; without a gauge the one given."""
    controller, at, own = name.partition("@")
    if at and own not in GAUGES:
        raise InputError(
            f"controller '{name}': '{own}' is not a way to measure U: choose {', '.join(GAUGES)}"
        )
    return controller, own if at else gauge


def make_policy(
    name: str, model: RetrievalMDP, *, stop_at: float = 0.05, seed: int = 0, closed_book: bool = False
) -> Policy:
    """Return the rule of that name (without a gauge).

    stop_at: U in [0, 1] at which always-reason, always-retrieve and threshold stop.
    closed_book: there is nothing to retrieve from: the process is solved with a retrieval that never
        succeeds.

    Raises `InputError` for an unknown name, or one that makes no sense.
    """
    threshold, fixed = re.fullmatch(r"threshold:(0?\.\d+|0|1)", name), re.fullmatch(r"fixed-(\d{1,3})", name)
    if not 0 <= stop_at <= 1:
        raise InputError(f"stop_at={stop_at!r} must be in [0, 1]")
    if name == "always-retrieve" and closed_book:
        raise InputError("controller 'always-retrieve' needs a corpus: leave it out, or give one")
    plan = cache(lambda: solve_plan(replace(model, success=0.0) if closed_book else model, bounded=False))
    level = float(threshold[1]) if threshold else _ABOVE.get(name, 0.0)
    steps = int(fixed[1]) if fixed else 0

    def optimal(state: State) -> Decision:
        """The best open action, the cheapest of equal ones; without a horizon it stops at U = 0."""
        q = plan().q_at(state.step, state.doubt)
        worth = {action: q[action] for action in q if action in state.open}
        if not worth or (model.horizon is None and state.doubt <= 0):
            return Decision("stop", q)
        best = max(worth.values())
        return Decision(next(action for action in worth if worth[action] >= best - TIE), q)

    def until_sure(state: State) -> Decision:
        if state.doubt <= stop_at:
            return Decision("stop")
        wanted = "retrieve" if state.doubt >= level else "reason"
        if name.startswith("always"):
            return Decision(wanted if wanted in state.open else "stop")
        return open_one(wanted, state)

    def at_random(state: State) -> Decision:
        return Decision(state.open[int(len(state.open) * draw(seed, state.question_id, state.step, 2))])

    def in_turns(state: State) -> Decision:
        if state.step >= steps:
            return Decision("stop")
        return open_one("reason" if state.step % 2 else "retrieve", state)

    def open_one(wanted: str, state: State) -> Decision:
        """The action wanted, else the other one, else stop."""
        other = "reason" if wanted == "retrieve" else "retrieve"
        return Decision(next(action for action in (wanted, other, "stop") if action in state.open))

    if name == "mdp":
        return Policy(name, optimal)
    if name in _ABOVE or threshold:
        return Policy(name, until_sure)
    if name == "random":
        return Policy(name, at_random)
    if fixed:
        return Policy(f"fixed-{steps}", in_turns)
    raise InputError(
        f"controller '{name}' is unknown: {choose(name, POLICIES)} (for instance fixed-3, threshold:.4)"
    )


# -- traces -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Decided:
    """An action of a decision process, with U before and after it.

    calls: what it took, with the measuring of U after it and queries that were known before it.
    """

    step: ProcessStep
    uncertainty: float
    next_uncertainty: float
    q_values: Mapping[str, float] | None
    calls: tuple[Call, ...]


def decided(trace: Trace) -> list[Decided]:
    """Return the actions of a trace whose policy follows a decision process, or a rule of that kind."""
    found: list[Decided] = []
    waiting: tuple[Call, ...] = ()
    for step in trace.steps:
        if step.do == "search_again" and not step.selected_ids and not step.output:
            waiting += step.calls  # its query was known: it changed nothing
            continue
        is_action = step.do in ("retrieve", "reason", "search_again") and "uncertainty" in step.about
        if not is_action or step.dropped is not None:
            if step.do == "draft" and found:
                found[-1] = replace(found[-1], calls=(*found[-1].calls, *step.calls))
            continue
        action = "reason" if step.do == "reason" else "retrieve"
        closed = tuple(step.about.get("closed") or ())
        seen = ProcessStep(action, step.query, step.note, step.new_ids, step.selected_ids, closed)
        level = float(step.about["uncertainty"])
        found.append(Decided(seen, level, level, step.about.get("q_values"), (*waiting, *step.calls)))
        waiting = ()
    # U after an action is U before the next.
    levels = [one.uncertainty for one in found[1:]] + [float(trace.about.get("uncertainty", 1.0))]
    return [replace(one, next_uncertainty=after) for one, after in zip(found, levels, strict=False)]


def replay(trace: Trace) -> list[str]:
    """Make every decision of a trace again; return what comes out differently.

    Raises `InputError` if the trace's own settings cannot be used.
    """
    settings = trace.settings
    model = model_from_mapping(dict(settings["model"]), "the trace")
    name, signal = split_name(
        settings.get("rule", trace.policy), str(settings.get("gauge", trace.about.get("signal")))
    )
    closed, seed = bool(settings["closed_book"]), int(settings["seed"])
    policy = make_policy(name, model, stop_at=settings["stop_at"], seed=seed, closed_book=closed)
    steps, wrong = decided(trace), list[str]()
    end = float(trace.about.get("uncertainty", 1.0))

    def decide_again(k: int, level: float, tried: Sequence[str], said: Mapping[str, float] | None) -> str:
        possible = open_actions([one.step for one in steps[:k]], closed, tried)
        found = policy.decide(State(trace.question_id, k, level, possible))
        if not _same_q(found.q_values, said):
            where = f"step {k}" if k < len(steps) else "the end"
            wrong.append(f"{where}: Q was {said}, the model gives {found.q_values}")
        return found.action

    for k, one in enumerate(steps):
        action = decide_again(k, one.uncertainty, one.step.closed, one.q_values)
        if action != one.step.action:
            wrong.append(f"step {k}: {one.step.action} was chosen, the controller gives {action}")
        if signal == "tracked":
            new, chance = len(one.step.new_ids) + bool(one.step.note), draw(seed, trace.question_id, k, 1)
            found = tracked_next(model, one.step.action, one.uncertainty, new, chance)
            if abs(found - one.next_uncertainty) > _SAME:
                wrong.append(f"step {k}: U became {one.next_uncertainty}, the model gives {found}")
    last_q = trace.about.get("q_values")
    if trace.ended == "stop" or steps or last_q:  # else a limit came before any decision
        action = decide_again(len(steps), end, tuple(trace.about.get("closed") or ()), last_q)
        if trace.ended == "stop" and action != "stop":
            wrong.append(f"the end: it stopped, the controller gives {action}")
    return wrong + wrong_totals(trace)


def _same_q(one: Mapping[str, float] | None, other: Mapping[str, float] | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.keys() == other.keys() and all(abs(one[a] - other[a]) <= 1e-7 for a in one)
