"""What was done for one question: one form for every policy, written as one JSON line, and read back.

A trace holds everything that decisions rest on, so that they can be made again.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from mio_rag.errors import DataError, InputError, MioRagError
from mio_rag.formulations.numbers import plural
from mio_rag.selection.result import Selection
from mio_rag.session.budget import Call, Costs, Reply, totals
from mio_rag.session.state import Queries, Result, State, describe, signals
from mio_rag.settings import explain
from mio_rag.storage import append_lines, parse_json, read_text
from mio_rag.types import Answer, GenerationError

VERSION = 2
_OPENING = '{"version": '  # of every line
_SHOWN = 160  # characters of what an action gave
_FORMAT = ConfigDict(extra="forbid")
_Level = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True)
class Step:
    """One action.

    id: of the action; "facts/2/answer" is the action "answer" for the second sub-question of "facts".
    why: the decision and its result in a sentence; about: what the decision rests on.
    query, note: what was searched for; what the tool reports.
    new_ids, selected_ids: passages that are read since this action; all that are read.
    output, signals: what it gave, in a line; what a planner sees of that.
    model: which model was asked; None: the reader. failed: whether a model failed.
    dropped: why nothing of it was used.
    complete: probability that the evidence is complete, after it.
    """

    id: str
    do: str
    why: str = ""
    query: str = ""
    note: str = ""
    new_ids: tuple[str, ...] = ()
    selected_ids: tuple[str, ...] = ()
    output: str = ""
    model: str | None = None
    signals: dict[str, float] = field(default_factory=dict)
    calls: tuple[Call, ...] = ()
    dropped: str | None = None
    failed: bool = False
    complete: _Level | None = None
    about: dict[str, Any] = field(default_factory=dict)
    __pydantic_config__ = _FORMAT

    @property
    def tokens(self) -> int:
        """Into and out of models, without what ran inside it."""
        return sum(call.tokens for call in self.calls)


@dataclass(frozen=True)
class Trace:
    """All of one question.

    budget: largest block of evidence, in tokens. settings: what decisions depend on, as plain data.
    ended: "stop", or the limit that came first, or "error" where there is no answer.
    passages: id, title, text and tokens of what was read in the end.
    opening, closing: what was spent outside the steps; parts: all calls, added up by part.
    workflow: the steps that were planned, if any. scores: what was chosen among -> its score.
    seconds: from beginning to end; parallel steps add up to more.
    fallback: why the planned answer was not given, where another one was.
    complete: probability that the evidence is complete, in the end; None: unknown.
    search: where strategies search: id (for ratings), strategies, why, notes, queries: strategy -> what it
        searched for, and found_by: passage -> strategy -> rank, 0 where only a link leads to it.
    wanted: tokens of what was worth reading, where the rest of a total had no room for any of it.
    about: what the last decision rests on: tier, uncertainty and others.
    """

    question_id: str
    question: str
    choices: tuple[str, ...]
    policy: str
    budget: int
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
    workflow: dict[str, Any] = field(default_factory=dict)
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    scores: dict[str, float] = field(default_factory=dict)
    fallback: str | None = None
    token_price: Annotated[float, Field(ge=0, le=1e12)] = 0.0
    complete: _Level | None = None
    search: dict[str, Any] = field(default_factory=dict)
    wanted: int = 0
    about: dict[str, Any] = field(default_factory=dict)
    __pydantic_config__ = _FORMAT

    @property
    def calls(self) -> tuple[Call, ...]:
        """Every use of a part, in order."""
        return (*self.opening, *(call for step in self.steps for call in step.calls), *self.closing)

    @property
    def dropped(self) -> tuple[Step, ...]:
        """Steps of which nothing was used."""
        return tuple(step for step in self.steps if step.dropped is not None)

    def by_step(self) -> dict[str, Call]:
        """What each step cost with everything inside it, by its id."""
        found: dict[str, Call] = {}
        for step in self.steps:
            path = ""
            for part in step.id.split("/"):
                path = f"{path}/{part}" if path else part
                found[path] = sum(step.calls, found.get(path, Call(path, 0.0)))
        return found

    def spent(self) -> str:
        """Which reader, how many tokens and calls, for people."""
        parts = self.parts.values()
        read, said = sum(call.prompt_tokens for call in parts), sum(call.completion_tokens for call in parts)
        calls = plural(sum(call.lm_calls for call in parts), "call")
        return f"{self.generator}: {read} prompt and {plural(said, 'answer token')} in {calls}"

    def explain(self) -> str:
        """A line for each step."""
        costs, lines = self.by_step(), []
        for place, step in enumerate(self.steps, 1):
            tokens = costs[step.id].tokens
            lines.append(f"{place}. {step.why or step.do}{f' [{tokens} tokens]' if tokens else ''}")
        return "\n".join(lines)

    def columns(self) -> dict[str, Any]:
        """What a ledger says of it, costs and answer apart."""
        about, steps = self.about, len(self.steps)
        if "signal" in about:  # of a decision process: its actions, without queries that were known
            did = [s for s in self.steps if s.do != "search_again" or s.output]
            steps = sum(s.do in ("reason", "search_again", "retrieve") for s in did)
        found: dict[str, Any] = {"steps": steps, "ended": self.ended, "elapsed": self.seconds}
        found["dropped"] = len(self.dropped)
        if self.workflow:
            found["workflow"] = str(self.workflow.get("name", ""))
        if any(step.do == "write_workflow" for step in self.steps):
            found["invalid_plans"] = float((self.fallback or "").startswith("format:"))
        if self.complete is not None or "policy" in self.settings:
            found |= {"token_price": self.token_price, "complete": self.complete or 0.0}
        if "tier" in about:
            unsure, corrected = (float(bool(about.get(name))) for name in ("unsure", "corrected"))
            found |= {"tier": about["tier"], "tier_unsure": unsure, "corrected": corrected}
        if "uncertainty" in about:
            found["uncertainty"] = about["uncertainty"]
        if self.search:
            found["strategies"] = "+".join(self.search.get("strategies", ()))
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"version": VERSION, **dataclasses.asdict(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Trace:
        """The trace of plain data.

        Raises `DataError` if it is none, or of another version.
        """
        if data.get("version") != VERSION:
            raise DataError(f"version {data.get('version')!r} of the format is not known, only {VERSION}")
        try:
            trace = _reader().validate_python({k: v for k, v in data.items() if k != "version"})
        except ValidationError as error:
            raise DataError(f"this is not a trace: {'; '.join(explain(error)[:3])}") from error
        if (trace.ended == "error") != (trace.error is not None):
            raise DataError(f"this is not a trace: ended is {trace.ended!r}, but error is {trace.error!r}")
        unsure = (step.about.get("uncertainty") for step in trace.steps)
        if not all(u is None or (isinstance(u, (int, float)) and 0 <= u <= 1) for u in unsure):
            raise DataError("this is not a trace: an uncertainty is not in [0, 1]")
        return trace


@cache
def _reader() -> TypeAdapter[Trace]:
    return TypeAdapter(Trace)


@dataclass(frozen=True, eq=False)
class Outcome:
    """What came of a question: the reply or the error, what was read, the trace, and the costs."""

    reply: Reply | None
    selection: Selection | None
    trace: Trace
    costs: Costs
    error: MioRagError | None = None
    results: Mapping[str, Result] = field(default_factory=dict)  # by id of the action

    def check(self) -> Outcome:
        """Return this outcome, or raise its error, with all that the question cost."""
        if isinstance(self.error, GenerationError) and (total := self.costs.total()).lm_calls:
            tokens = (total.prompt_tokens, total.completion_tokens)
            self.error.spent = Answer("", *tokens, self.trace.seconds, self.trace.generator)
        if self.error is not None:
            raise self.error
        return self


def trace_of(
    state: State,
    costs: Costs,
    *,
    reply: Reply | None,
    error: MioRagError | None,
    scores: dict[str, float],
    fallback: str | None,
    more: Mapping[str, Any],
    **known: Any,
) -> Trace:
    """The trace of a question that has ended; `more` goes into `about`."""
    steps, level = [], None
    search: dict[str, Any] = {}
    about: dict[str, Any] = {}
    for result in state.results.values():
        # None where it cannot be known whether the evidence is complete.
        level = None if result.facts.get("is_unsure") else result.facts.get("complete", level)
        steps += _steps(result, result.action.id, state, level)
        about |= {k: v for k, v in result.action.about.items() if k != "search"}
        if "searched" in result.facts and not search:
            tried = result.facts["searched"].tried
            search = dict(result.action.about.get("search", {}))
            search.setdefault("strategies", [one.strategy for one in tried])
            search["queries"] = {one.strategy: list(one.found.queries) for one in tried}
    selection = state.read_for(reply)
    if search:
        search |= _search(state, selection)
    read = () if selection is None else ((i, selection.candidates.passage(i)) for i in selection.chosen)
    return Trace(
        question_id=state.question.id,
        question=state.question.text,
        choices=tuple(state.question.choices),
        steps=tuple(steps),
        ended="error" if error is not None else about.pop("ended", state.limit_reached or "stop"),
        passages=tuple(
            {"id": p.id, "title": p.title, "text": p.text, "tokens": int(selection.candidates.tokens[i])}
            for i, p in read
            if selection is not None
        ),
        answer="" if reply is None else reply.answer.text,
        choice=None if reply is None else reply.choice,
        parts=totals(costs.calls),
        error=None if error is None else f"{type(error).__name__}: {error}",
        scores=scores or dict(about.get("scores") or {}),
        fallback=fallback or about.pop("fallback", None),
        token_price=state.price,
        complete=level,
        search=search,
        wanted=_wanted(reversed(state.results.values())),
        about={**about, **more},
        **known,
    )


def _wanted(results: Iterable[Result]) -> int:
    return next((r.facts["wanted"] for r in results if "wanted" in r.facts), 0)


def _search(state: State, selection: Selection | None) -> dict[str, Any]:
    """Who found what was read, and what was left out."""
    found_by: dict[str, dict[str, int]] = {}
    left_out: list[str] = []
    for result in state.results.values():
        for identity, ranks in result.facts.get("found_by", {}).items():
            found_by[identity] = {**ranks, **found_by.get(identity, {})}
        left_out += result.facts.get("left_out", ())

    def finders(identity: str) -> dict[str, int]:
        """Which strategies found what was read: a passage, its sentences, or merged texts."""
        if identity in found_by:
            return found_by[identity]
        parts = [re.sub(r"#s\d+$", "", part) for part in identity.split("+")]
        return {name: rank for part in parts for name, rank in found_by.get(part, {}).items()}

    read = () if selection is None else (*selection.ids, *(passage.id for passage in selection.passages))
    return {"notes": list(dict.fromkeys(left_out)), "found_by": {name: finders(name) for name in read}}


def _steps(result: Result, path: str, state: State, level: float | None) -> list[Step]:
    """A step, then all that ran inside it."""
    action, value, facts = result.action, result.value, result.facts
    ids = value.ids if isinstance(value, Selection) else ()
    queries = value.texts if isinstance(value, Queries) else (value,) if isinstance(value, str) else ()
    is_note = action.do == "reason"
    steps = [
        Step(
            id=path,
            do=action.do,
            why=action.why if action.do == "stop" else _sentence(result, state, path),
            query=str(facts.get("query", "" if is_note else " | ".join(queries))),
            note=str(value or "") if is_note else "; ".join(facts.get("notes", ())),
            new_ids=tuple(facts.get("new", ids)),
            selected_ids=ids,
            output="" if value is None else describe(value)[:_SHOWN],
            model=action.model,
            signals={} if value is None else signals(value),
            calls=result.costs.calls,
            dropped=result.dropped,
            failed=result.failed,
            complete=level if state.parent is None else None,
            about={k: v for k, v in action.about.items() if k not in ("search", "ended")},
        )
    ]
    for place, child in enumerate(result.children, 1):
        for part in child.results.values():
            steps += _steps(part, f"{path}/{place}/{part.action.id}", child, None)
    return steps


def share(value: float, digits: int = 2) -> str:
    """A probability, or a difference of two, as sentences hold it: .21, +.21 is made of it, 1.00."""
    said = f"{value:.{digits}f}"
    return said.replace("0.", ".", 1) if abs(value) < 1 and said.lstrip("-").startswith("0.") else said


def per_token(price: float) -> str:
    """A price of a token, in four digits or as many as bring it within 2 %: .0005, .00015, .000020."""
    digits = 4 if price == 0 or price >= 1e-4 else 1 - math.floor(math.log10(price))
    # Multiplied by a number of tokens, it must give the amount that stands next to it.
    while abs(round(price, digits) - price) > 0.02 * price:
        digits += 1
    return share(price, digits)


_DONE = {
    "retrieve": "searched for the question",
    "rewrite": "put the question in other words",
    "decompose": "broke the question into parts",
    "each": "answered every part",
    "answer": "answered",
    "summarise": "answered from the answers to its parts",
    "verify": "checked the answer",
}


def _sentence(result: Result, state: State, path: str) -> str:
    """What an action did, and why."""
    action, value, facts = result.action, result.value, result.facts
    if result.dropped is not None:
        return f"{action.do}: {result.dropped}"
    if state.parent is not None:
        notes = "; ".join(facts.get("notes", ()))
        return f"part of {path.split('/')[0]}: {action.do}{f', {notes}' if notes else ''}"
    tokens = result.tokens
    worth = f", {share(tokens * state.price)} at {per_token(state.price)} each" if state.price else ""
    cost = f": {tokens} tokens{worth}" if tokens else ""
    lead = f"{action.why}; " if action.why else ""
    if action.do == "retrieve" and (chosen := action.about.get("search")) is not None:
        why = f" ({chosen['why']})" if chosen.get("why") else ""
        return f"{lead}searched by {' + '.join(chosen['strategies'])}{cost}{why}"
    if action.do == "select" and isinstance(value, Selection):
        return f"{lead}{_tier(action.about)}{_read(value, facts, state.price)}"
    if action.do == "search_again":
        if not isinstance(value, Selection):
            return "wanted to search again, and had no new query"
        new = plural(len(facts["new"]), "new passage")
        return f"{lead}found {new}, and {_read(value, facts, state.price)}"
    if action.do == "reason":
        said = f"{action.why}: " if action.why else ""
        return f"{said}{value}" if value else f"{action.why}, and nothing new came of it"
    if action.final and isinstance(value, Reply):
        if not value.answer.text and not result.costs.calls and value.choice is None:
            room = any(r.facts.get("wanted") for r in (result, *state.results.values()))
            fits = f"nothing worth reading fits in {plural(state.budget, 'token')}"
            return f"{lead}no model was asked: {fits if room else 'nothing was worth reading'}"
        longest = action.settings.get("max_tokens", state.max_tokens)
        said = f"; with the prompt {cost.removeprefix(': ')}" if cost else ""
        return f"{lead}answered in at most {longest} tokens{said}"
    return f"{lead}{_DONE.get(action.do, f'did the step {action.id}, {action.do}')}{cost}"


def _tier(about: Mapping[str, Any]) -> str:
    if "tier" not in about:
        return ""
    scores = ", ".join(f"{name} {share(score)}" for name, score in (about.get("scores") or {}).items())
    said = f" ({scores}{', one up: unsure' if about.get('unsure') else ''})" if scores else ""
    weak = ", more since the search was weak" if about.get("corrected") else ""
    return f"tier {about['tier']}{said}{weak}; "


def _read(selection: Selection, facts: Mapping[str, Any], price: float) -> str:
    """What is read, in words."""
    read = plural(len(selection.ids), "passage")
    if selection.unit == "sentence":
        read = f"{plural(len(selection.chosen), 'sentence')} of {read}"
    known = "complete" in facts and not facts.get("is_unsure")
    level = f": the evidence is complete with {share(facts['complete'])}" if known else ""
    priced = f"; a token had to add {per_token(price)}" if "priced" in facts else ""
    return f"read {read}, {selection.tokens_used} tokens{level}{priced}"


def wrong_totals(trace: Trace) -> list[str]:
    """Parts whose totals are not the sum of their calls, in words."""
    wrong = []
    for part, call in totals(trace.calls).items():
        here = dataclasses.astuple(call)[1:]
        there = dataclasses.astuple(trace.parts.get(part, Call(part, math.inf)))[1:]
        if any(abs(a - b) > 1e-6 for a, b in zip(here, there, strict=True)):
            wrong.append(f"the totals of {part} do not add up")
    return wrong


def asked_by_model(trace: Trace) -> dict[str, tuple[int, int]]:
    """Tokens into and out of every model that was asked; the reader is "reader"."""
    found: dict[str, tuple[int, int]] = {"reader": (0, 0)}
    for step in (Step("", "", calls=(*trace.opening, *trace.closing)), *trace.steps):
        model = step.model or "reader"
        whole = sum(step.calls, Call("", 0.0))
        into, out = found.get(model, (0, 0))
        found[model] = into + whole.prompt_tokens, out + whole.completion_tokens
    return {model: both for model, both in found.items() if model == "reader" or any(both)}


def append_traces(path: Path, traces: Iterable[Trace]) -> None:
    """Add lines to a file, which several runs may share; on disk when this returns, or `InputError`."""
    append_lines(path, (json.dumps(trace.to_dict()) for trace in traces))


def read_traces(source: Path, has: Sequence[str] = (), what: str = "") -> list[Trace]:
    """The traces of a file, or of ``traces.jsonl`` in a folder; of runs that were repeated alike the last.

    has: only traces with one of these in `about` or `settings`, or with a workflow where "workflow" is given.
    what: what such traces are called in messages.

    Raises `InputError` if there are none; `DataError` if a line is no trace; a trace cut short by an
    interruption is passed over.
    """
    path = source / "traces.jsonl" if source.is_dir() else source
    try:
        text = read_text(path)
    except InputError as error:
        raise InputError(f"{error}: give traces.jsonl, or its folder") from error
    found: dict[tuple[object, ...], Trace] = {}
    others: set[str] = set()
    for number, line in enumerate(text.splitlines(), start=1):
        where = f"{path}, line {number}"
        try:
            data = parse_json(line, where, own=True)
        except InputError as error:
            cut = isinstance(error.__cause__, json.JSONDecodeError)
            if cut and (line.startswith(_OPENING) or _OPENING.startswith(line.strip())):
                continue  # cut short, or empty
            raise DataError(f"{error}: remove the line") from error
        try:
            trace = Trace.from_dict(data if isinstance(data, dict) else {})
        except DataError as error:
            raise DataError(f"{where}: {error}") from error
        held = {*trace.about, *trace.settings, *(["workflow"] if trace.workflow else [])}
        if has and held.isdisjoint(has):
            others.add(trace.policy)
            continue
        settings = json.dumps(trace.settings, sort_keys=True)
        run = trace.question_id, trace.question, trace.policy, trace.budget
        found[(*run, trace.generator, settings)] = trace
    if not found and others:
        raise InputError(f"'{path}' holds no traces of {what}, only of {', '.join(sorted(others))}")
    if not found:
        raise InputError(f"'{path}' holds no traces: run evaluate with policies, or ask with --trace")
    return list(found.values())
