"""What a controller did on one question: written as one JSON line, and read back.

A trace holds everything that decisions rest on, so that they can be made again. A kind of controller that
knows more than every other does writes it into fields of its own: a subclass of `Trace`, and of `Step`.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from mio_rag.control.costs import Call, totals
from mio_rag.errors import DataError, InputError
from mio_rag.formulations.numbers import plural
from mio_rag.lines import append_lines
from mio_rag.reading import parse_json, read_text
from mio_rag.selection.result import Selection

__all__ = [
    "Step",
    "Trace",
    "append_traces",
    "is_between",
    "read_passages",
    "read_traces",
    "wrong_totals",
]

VERSION = 1
_OPENING = '{"version": '  # of every line
_UNNAMED = "mdp"  # the kind of a line that names none: all did, while there was one kind


@dataclass(frozen=True)
class Step:
    """One action.

    Parameters
    ----------
    query, note : str
        What was searched for, or thought; an empty note repeated an earlier one.
    new_ids, selected_ids : tuple of str
        Passages that are read since this action; all that are read.
    calls : tuple of Call
        What it took.
    """

    step: int
    action: str
    query: str
    note: str
    new_ids: tuple[str, ...]
    selected_ids: tuple[str, ...]
    calls: tuple[Call, ...]


@dataclass(frozen=True)
class Trace:
    """All of one question.

    Parameters
    ----------
    controller : str
        Its name.
    settings : dict
        What its decisions depend on, as plain data.
    ended : str
        "stop", or the limit that came first, or "error" where a part failed and there is no answer.
    passages : tuple of dict
        id, title, text and tokens of what was read in the end.
    opening, closing : tuple of Call
        What was spent before the first action; on the answer, after what an action took that was cut off.
    parts : dict
        All calls, added up by part.
    error : str or None
        What failed.
    """

    #: Which controllers write such traces.
    kind: ClassVar[str] = "steps"
    step_type: ClassVar[type[Step]] = Step

    question_id: str
    question: str
    choices: tuple[str, ...]
    controller: str
    budget_tokens: int
    settings: dict[str, Any]
    steps: tuple[Step, ...]
    ended: str
    passages: tuple[dict[str, Any], ...]
    answer: str
    choice: int | None
    generator: str
    opening: tuple[Call, ...] = ()
    closing: tuple[Call, ...] = ()
    parts: dict[str, Call] = field(default_factory=dict)
    error: str | None = None

    @property
    def calls(self) -> tuple[Call, ...]:
        """Every use of a part, in order."""
        return (*self.opening, *(call for step in self.steps for call in step.calls), *self.closing)

    def spent(self) -> str:
        """Which reader, how many tokens and calls, for people."""
        parts = self.parts.values()
        read, said = sum(call.prompt_tokens for call in parts), sum(call.completion_tokens for call in parts)
        calls = plural(sum(call.lm_calls for call in parts), "call")
        return f"{self.generator}: {read} prompt and {plural(said, 'answer token')} in {calls}"

    def columns(self) -> dict[str, Any]:
        """What a ledger says of it, costs and answer apart."""
        return {"steps": len(self.steps), "ended": self.ended}

    def problems(self) -> list[str]:
        """What no controller of this kind writes."""
        problems = []
        for call in (*self.calls, *self.parts.values()):
            amounts = dataclasses.astuple(call)[1:]
            if not all(is_between(amount, 0, math.inf) for amount in amounts):
                problems.append(f"a call of {call.part} took {amounts}: finite numbers >= 0 are wanted")
        if (self.ended == "error") != isinstance(self.error, str):
            problems.append(f"ended is {self.ended!r}, but error is {self.error!r}")
        return problems

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        kind = {} if self.kind == _UNNAMED else {"kind": self.kind}
        return {"version": VERSION, **kind, **dataclasses.asdict(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The trace of plain data; `Trace` itself reads that of any kind, without what only that kind has.

        Raises
        ------
        DataError
            If it is none, or of another version or kind.
        """
        if data.get("version") != VERSION:
            raise DataError(f"version {data.get('version')!r} of the format is not known, only {VERSION}")
        if cls is not Trace and _kind(data) != cls.kind:
            raise DataError(f"this trace is of the kind {_kind(data)!r}, not {cls.kind!r}")
        try:
            given = _known(cls, {k: v for k, v in data.items() if k not in ("version", "kind")})
            for name in ("opening", "closing"):
                given[name] = _calls(given[name])
            given["parts"] = {part: Call(**call) for part, call in given["parts"].items()}
            given["steps"] = tuple(cls._step(step) for step in given["steps"])
            given |= {name: tuple(given[name]) for name in ("choices", "passages")}
            trace = cls(**cls._read(given))
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(f"this is not a trace ({type(error).__name__}: {error})") from error
        if problems := trace.problems():
            raise DataError(f"this is not a trace: {'; '.join(problems[:3])}")
        return trace

    @classmethod
    def _step(cls, data: Mapping[str, Any]) -> Step:
        given = _known(cls, data, cls.step_type)
        given |= {name: tuple(given[name]) for name in ("new_ids", "selected_ids")}
        return cls.step_type(**cls._read_step({**given, "calls": _calls(given["calls"])}))

    @classmethod
    def _read(cls, given: dict[str, Any]) -> dict[str, Any]:
        """The fields of a kind of its own, as they are in memory."""
        return given

    @classmethod
    def _read_step(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Likewise, of a step."""
        return given


T = TypeVar("T", bound=Trace)


def _kind(data: Mapping[str, Any]) -> str:
    return str(data.get("kind", _UNNAMED))


def _known(reader: type[Trace], data: Mapping[str, Any], form: type[Any] | None = None) -> dict[str, Any]:
    """The data; for `Trace`, which reads every kind, without fields that it does not know."""
    names = {f.name for f in dataclasses.fields(form or reader)}
    return {k: v for k, v in data.items() if reader is not Trace or k in names}


def is_between(value: Any, low: float, high: float) -> bool:
    """Whether this is a finite number in a range; a truth value is none."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and math.isfinite(value) and low <= value <= high


def read_passages(selection: Selection | None) -> tuple[dict[str, Any], ...]:
    """What was read in the end, as a trace holds it."""
    if selection is None:
        return ()
    tokens = selection.candidates.tokens
    return tuple(
        {"id": p.id, "title": p.title, "text": p.text, "tokens": int(tokens[i])}
        for i, p in ((i, selection.candidates.passage(i)) for i in selection.chosen)
    )


def wrong_totals(trace: Trace) -> list[str]:
    """Parts whose totals are not the sum of their calls, in words."""
    wrong = []
    for part, call in totals(trace.calls).items():
        told = trace.parts.get(part)
        if told is None or any(
            abs(a - b) > 1e-6
            for a, b in zip(dataclasses.astuple(call)[1:], dataclasses.astuple(told)[1:], strict=True)
        ):
            wrong.append(f"the totals of {part} do not add up")
    return wrong


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


def read_traces(source: Path, form: type[T]) -> list[T]:
    """The traces of a file, or of ``traces.jsonl`` in a folder; of runs that were repeated alike the last.

    Parameters
    ----------
    form : type
        A kind of traces, and others are passed over; `Trace`: all, with what they have in common.

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
    found: dict[tuple[object, ...], T] = {}
    others: set[str] = set()
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            data = parse_json(line, f"{path}, line {number}", own=True)
        except InputError as error:
            cut = isinstance(error.__cause__, json.JSONDecodeError)
            if cut and (line.startswith(_OPENING) or _OPENING.startswith(line.strip())):
                continue  # cut short, or empty
            raise DataError(f"{error}: remove the line") from error
        given = data if isinstance(data, dict) else {}
        if form is not Trace and _kind(given) != form.kind:
            others.add(_kind(given))
            continue
        try:
            trace = form.from_dict(given)
        except DataError as error:
            raise DataError(f"{path}, line {number}: {error}") from error
        settings = json.dumps(trace.settings, sort_keys=True)
        run = trace.question_id, trace.question, trace.controller, trace.budget_tokens
        found[(*run, trace.generator, settings)] = trace
    if not found and others:
        raise InputError(f"'{path}' holds no traces of {form.kind}, only of {', '.join(sorted(others))}")
    if not found:
        raise InputError(f"'{path}' holds no traces: run evaluate with --controllers, or ask with --trace")
    return list(found.values())
