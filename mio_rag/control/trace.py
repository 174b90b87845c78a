"""What an agent did on one question: written as one JSON line, read back, and replayed.

A trace holds everything that decisions depend on, so `replay` can recompute them: every action from the
state, the model and the seed; every tracked U from the action before; the totals from the calls. The language
model is not called again.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mio_rag.control.mdp.gauges import draw, tracked_next
from mio_rag.control.mdp.plan import model_from_mapping
from mio_rag.control.mdp.policies import State, make_controller
from mio_rag.control.memory import Call, totals
from mio_rag.errors import DataError, InputError
from mio_rag.formulations.retrieval_mdp import ACTIONS
from mio_rag.lines import append_lines
from mio_rag.reading import parse_json, read_text

__all__ = ["Step", "Trace", "append_traces", "open_actions", "read_traces", "replay"]

VERSION = 1
_SAME = 1e-9
_OPENING = '{"version": '  # of every line


@dataclass(frozen=True)
class Step:
    """One action.

    Parameters
    ----------
    uncertainty, next_uncertainty : float
        U before and after.
    q_values : dict or None
        Worth of every action, where the controller knows it.
    query, note : str
        What was searched for, or thought; an empty note repeated an earlier one.
    new_ids, selected_ids : tuple of str
        Passages that are read since this action; all that are read.
    calls : tuple of Call
        What it took, measuring U included.
    """

    step: int
    uncertainty: float
    action: str
    q_values: dict[str, float] | None
    query: str
    note: str
    new_ids: tuple[str, ...]
    selected_ids: tuple[str, ...]
    next_uncertainty: float
    calls: tuple[Call, ...]


@dataclass(frozen=True)
class Trace:
    """All of one question.

    Parameters
    ----------
    settings : dict
        model, stop_at, seed, closed_book, limits: what decisions depend on.
    ended : str
        "stop", or the limit that came first, or "error" where a part failed and there is no answer.
    passages : tuple of dict
        id, title, text and tokens of what was read in the end.
    opening, closing : tuple of Call
        Measuring U before the first action; the answer, after what an action took that was cut off.
    error : str or None
        What failed.
    """

    question_id: str
    question: str
    choices: tuple[str, ...]
    controller: str
    gauge: str
    budget_tokens: int
    settings: dict[str, Any]
    steps: tuple[Step, ...]
    ended: str
    uncertainty: float
    last_q_values: dict[str, float] | None
    passages: tuple[dict[str, Any], ...]
    answer: str
    choice: int | None
    generator: str
    opening: tuple[Call, ...]
    closing: tuple[Call, ...]
    parts: dict[str, Call] = field(default_factory=dict)
    error: str | None = None

    @property
    def calls(self) -> tuple[Call, ...]:
        """Every use of a part, in order."""
        return (*self.opening, *(call for step in self.steps for call in step.calls), *self.closing)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"version": VERSION, **dataclasses.asdict(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Trace:
        """The trace of plain data.

        Raises
        ------
        DataError
            If it is none, or of another version.
        """
        if data.get("version") != VERSION:
            raise DataError(f"version {data.get('version')!r} of the format is not known, only {VERSION}")
        try:
            given = {k: v for k, v in data.items() if k != "version"}
            for name in ("opening", "closing"):
                given[name] = _calls(given[name])
            given["parts"] = {part: Call(**call) for part, call in given["parts"].items()}
            given["steps"] = tuple(
                Step(
                    **{
                        **step,
                        "calls": _calls(step["calls"]),
                        "new_ids": tuple(step["new_ids"]),
                        "selected_ids": tuple(step["selected_ids"]),
                    }
                )
                for step in given["steps"]
            )
            trace = cls(**{**given, "choices": tuple(given["choices"]), "passages": tuple(given["passages"])})
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(f"this is not a trace ({type(error).__name__}: {error})") from error
        if problems := _problems(trace):
            raise DataError(f"this is not a trace: {'; '.join(problems[:3])}")
        return trace


def _problems(trace: Trace) -> list[str]:
    """What no agent writes."""
    levels = [("uncertainty", trace.uncertainty)]
    problems = []
    for k, step in enumerate(trace.steps):
        levels += [(f"steps[{k}].uncertainty", step.uncertainty)]
        levels += [(f"steps[{k}].next_uncertainty", step.next_uncertainty)]
        if step.action not in ACTIONS[1:]:
            problems.append(f"steps[{k}].action is {step.action!r}, not reason or retrieve")
    problems += [f"{name} is {u!r}, not in [0, 1]" for name, u in levels if not _between(u, 0, 1)]
    for call in (*trace.calls, *trace.parts.values()):
        amounts = dataclasses.astuple(call)[1:]
        if not all(_between(amount, 0, math.inf) for amount in amounts):
            problems.append(f"a call of {call.part} took {amounts}: expected finite numbers >= 0")
    if (trace.ended == "error") != isinstance(trace.error, str):
        problems.append(f"ended is {trace.ended!r}, but error is {trace.error!r}")
    settings = trace.settings
    if not isinstance(settings, dict) or not isinstance(settings.get("model"), dict):
        return [*problems, "settings hold no model"]
    if not (isinstance(settings.get("seed"), int) and settings["seed"] >= 0):
        problems.append(f"settings.seed is {settings.get('seed')!r}, not a whole number >= 0")
    if not _between(settings.get("stop_at"), 0, 1):
        problems.append(f"settings.stop_at is {settings.get('stop_at')!r}, not in [0, 1]")
    if not isinstance(settings.get("closed_book"), bool):
        problems.append(f"settings.closed_book is {settings.get('closed_book')!r}, not true or false")
    return problems


def _between(value: Any, low: float, high: float) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and math.isfinite(value) and low <= value <= high


def open_actions(steps: Sequence[Step], closed_book: bool) -> tuple[str, ...]:
    """What can bring something new after these steps.

    Models decode greedily and retrieval is deterministic, so a query that was searched for brings nothing
    again, and a prompt that brought no new note brings none again: until a note changes what is asked for, or
    new passages what is thought about.
    """
    closed: set[str] = set()
    queries: set[str] = set()
    for step in steps:
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
    if closed_book:
        closed.add("retrieve")
    return tuple(action for action in ACTIONS if action not in closed)


def _calls(rows: Iterable[Mapping[str, Any]]) -> tuple[Call, ...]:
    return tuple(Call(**row) for row in rows)


def append_traces(path: Path, traces: Iterable[Trace]) -> None:
    """Add lines to a file; they are on disk when this returns. Several runs may write to one file.

    Raises
    ------
    InputError
        If it cannot be written.
    """
    append_lines(path, (json.dumps(trace.to_dict()) for trace in traces))


def read_traces(source: Path) -> list[Trace]:
    """The traces of a file, or of ``traces.jsonl`` in a folder; of runs that were repeated alike the last.

    Raises
    ------
    InputError
        If there are none.
    DataError
        If a line is no trace; a trace cut short by an interruption is passed over.
    """
    path = source / "traces.jsonl" if source.is_dir() else source
    try:
        text = read_text(path)
    except InputError as error:
        raise InputError(f"{error}: give traces.jsonl, or its folder") from error
    found: dict[tuple[object, ...], Trace] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            data = parse_json(line, f"{path}, line {number}", own=True)
        except InputError as error:
            cut = isinstance(error.__cause__, json.JSONDecodeError)
            if cut and (line.startswith(_OPENING) or _OPENING.startswith(line.strip())):
                continue  # cut short, or empty
            raise DataError(f"{error}: remove the line") from error
        try:
            trace = Trace.from_dict(data if isinstance(data, dict) else {})
        except DataError as error:
            raise DataError(f"{path}, line {number}: {error}") from error
        settings = json.dumps(trace.settings, sort_keys=True)
        run = trace.question_id, trace.question, trace.controller, trace.budget_tokens
        found[(*run, trace.generator, settings)] = trace
    if not found:
        raise InputError(f"'{path}' holds no traces: run evaluate with --controllers, or ask with --trace")
    return list(found.values())


def replay(trace: Trace) -> list[str]:
    """Recompute every decision; returns the differences (none if all is well).

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
    controller = make_controller(name, model, stop_at=settings["stop_at"], seed=seed, closed_book=closed)
    wrong = []
    level = trace.steps[0].uncertainty if trace.steps else trace.uncertainty
    for k, step in enumerate(trace.steps):
        where = f"step {k}"
        if step.step != k or abs(step.uncertainty - level) > _SAME:
            wrong.append(f"{where}: U is {step.uncertainty}, after the step before it was {level}")
        possible = open_actions(trace.steps[:k], closed)
        decision = controller.decide(State(trace.question_id, k, step.uncertainty, possible))
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
        possible = open_actions(trace.steps, closed)
        last = controller.decide(State(trace.question_id, len(trace.steps), trace.uncertainty, possible))
        if trace.ended == "stop" and last.action != "stop":
            wrong.append(f"the end: it stopped, the controller says {last.action}")
        if not _same_q(last.q_values, trace.last_q_values):
            wrong.append(f"the end: Q was {trace.last_q_values}, the model says {last.q_values}")
    for part, call in totals(trace.calls).items():
        told = trace.parts.get(part)
        if told is None or any(
            abs(a - b) > 1e-6
            for a, b in zip(dataclasses.astuple(call)[1:], dataclasses.astuple(told)[1:], strict=True)
        ):
            wrong.append(f"the totals of {part} do not add up")
    return wrong


def _same_q(one: Mapping[str, float] | None, other: Mapping[str, float] | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.keys() == other.keys() and all(abs(one[a] - other[a]) <= 1e-7 for a in one)
