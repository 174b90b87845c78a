"""What deciders read and return: actions, results, and the state of a question."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from mio_rag.pool import Candidates
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.result import Selection
from mio_rag.session.budget import Branch, Costs, Limits, Reply
from mio_rag.types import Passage, Question

T = TypeVar("T")

NOTES_ID = "notes"  # of the passage that holds notes and facts
_UNKNOWN = re.compile(r"unknown|not (?:mention|provid|state|specif|found|enough)|cannot|no information", re.I)


@dataclass(frozen=True)
class Fact:
    """A sub-question and its answer."""

    question: str
    answer: str


@dataclass(frozen=True)
class Queries:
    """Sub-questions; in a series, later ones name the answers to earlier ones as #1, #2, ..."""

    texts: tuple[str, ...]
    serial: bool = False


@dataclass(frozen=True)
class Facts:
    """Answers to sub-questions, in order, and how many had to wait for each other."""

    found: tuple[Fact, ...]
    turns: int = 1


#: What an action may give; the question itself is known everywhere.
Value = str | Queries | Candidates | Selection | Facts | Reply

TYPES: Mapping[str, type[Any]] = {
    "question": str,
    "questions": Queries,
    "pool": Candidates,
    "passages": Selection,
    "facts": Facts,
    "answer": Reply,
}


@dataclass
class Memory:
    """What is known of a question in a loop of searches and notes: what all queries found and is read."""

    question: Question
    pool: Candidates | None = None
    selection: Selection | None = None
    queries: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def has_query(self, query: str) -> bool:
        """Whether it was searched for before."""
        return query.lower() in {known.lower() for known in self.queries}

    def last_notes(self, most: int) -> list[str]:
        """The last notes, at most so many."""
        return self.notes[-most:] if most else []

    def passages(self, max_notes: int) -> tuple[Passage, ...]:
        """The evidence, then the last notes as one more passage."""
        read = () if self.selection is None else self.selection.passages
        kept = self.last_notes(max_notes)
        return (*read, Passage(NOTES_ID, "\n".join(kept), "Notes")) if kept else read


@dataclass(frozen=True)
class Action:
    """One step to run.

    id: unique within the question; do: name of a tool; settings: of the tool.
    inputs: ids of the results that it takes.
    model: which generator is asked; None: the reader.
    seconds: the action is abandoned after so long; None: the session's own limit, if any.
    final: whether its reply is the answer, which may use the reserved tokens.
    why, about: the decision in a sentence; what it rests on, as plain data for the trace.
    """

    id: str
    do: str
    inputs: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    model: str | None = None
    seconds: float | None = None
    final: bool = False
    why: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(eq=False)
class Result:
    """What came of an action.

    value: None: there is none, and `dropped` may say why.
    facts: what the tool reports: pool, query, complete, tier, notes and others.
    failed: whether a model failed, so that the answer rests on less than it should.
    error: what it raised; children: of the sub-questions that it answered.
    """

    action: Action
    value: Value | None = None
    costs: Costs = field(default_factory=Costs)
    facts: dict[str, Any] = field(default_factory=dict)
    dropped: str | None = None
    failed: bool = False
    error: Exception | None = None
    children: list[State] = field(default_factory=list)
    branch: Branch | None = None
    begun: float | None = None
    release: Callable[[], None] | None = None

    @property
    def tokens(self) -> int:
        """Into and out of all models, with all that ran inside it."""
        inside = (result.tokens for child in self.children for result in child.results.values())
        return sum(call.tokens for call in self.costs.calls) + sum(inside)


@dataclass(eq=False)
class State:
    """A question on its way. Deciders only read it.

    id: unique; learners use it as the id for ratings.
    price: of a token: what one more token must add to the probability that the evidence is complete.
    budget: largest block of evidence, in tokens; allowed: the policy's, where a total does not say less.
    known: answers to earlier sub-questions.
    temperatures: of answers, by name of a model; 0 where there is none.
    results: by id of the action, in the order in which they ended.
    is_closed: whether nobody waits for it any longer.
    parent: of a sub-question: the state of the question.
    deciding: seconds that deciders took.
    """

    id: str
    question: Question
    limits: Limits
    price: float = 0.0
    budget: int = 256
    allowed: int = 256
    max_tokens: int = 32
    retriever: Retriever | None = None
    known: tuple[Fact, ...] = ()
    temperatures: Mapping[str, float] = field(default_factory=dict)
    results: dict[str, Result] = field(default_factory=dict)
    running: dict[str, Result] = field(default_factory=dict)
    is_closed: bool = False
    parent: State | None = None
    deciding: float = 0.0
    _memo: dict[str, Any] = field(default_factory=dict)
    _making: threading.RLock = field(default_factory=threading.RLock)

    def once(self, key: str, make: Callable[[], T]) -> T:
        """A pure function of the question, computed once for all deciders and sub-questions."""
        if self.parent is not None:
            return self.parent.once(key, make)
        with self._making:  # sub-questions run side by side
            if key not in self._memo:
                self._memo[key] = make()
            found: T = self._memo[key]
        return found

    def has_started(self, id: str) -> bool:
        """Whether the action runs or has ended."""
        return id in self.results or id in self.running

    def has_ended(self, *ids: str) -> bool:
        """Whether all these actions have ended."""
        return all(id in self.results for id in ids)

    def values(self, ids: Sequence[str]) -> list[Value]:
        """The values of these actions, in that order; of dropped ones there is none."""
        found = [self.results[id].value for id in ids]
        return [value for value in found if value is not None]

    def last(self, kind: type[T]) -> T | None:
        """The last value of a type."""
        return next((r.value for r in reversed(self.results.values()) if isinstance(r.value, kind)), None)

    @property
    def selection(self) -> Selection | None:
        """What was read last; of sub-questions only where nothing was read for the question itself."""
        if (own := self.last(Selection)) is not None:
            return own
        inner = [c.selection for r in self.results.values() for c in r.children]
        return next((one for one in reversed(inner) if one is not None), None)

    def read_for(self, reply: Reply | None) -> Selection | None:
        """What a reply rests on; None: on memory. Without a reply, what was read last."""
        made = self._giver(reply)
        if made is None:
            return self.selection
        source = self.source_of(made)
        return source.value if source is not None and isinstance(source.value, Selection) else None

    def source_of(self, result: Result) -> Result | None:
        """The action that read what a result rests on: itself, or one that its inputs lead to."""
        value, settings = result.value, result.action.settings
        if isinstance(value, Selection):
            return result
        for child in reversed(result.children):
            given = child._giver(child.last(Reply) if isinstance(value, Facts) else value)
            source = None if given is None else child.source_of(given)
            if source is not None or (given is not None and not isinstance(value, Facts)):
                return source
        if "loop" in settings:
            earlier = list(self.results.values())[: list(self.results).index(result.action.id)]
            own = [r for r in earlier if settings["loop"] in (r.action.id, r.action.settings.get("loop"))]
            return next((r for r in reversed(own) if isinstance(r.value, Selection)), None)
        taken = [self.results[id] for id in reversed(result.action.inputs) if id in self.results]
        # What was read for the question itself, before what was read for its parts.
        taken.sort(key=lambda one: (not isinstance(one.value, Selection), isinstance(one.value, Facts)))
        return next(filter(None, map(self.source_of, taken)), None)

    def _giver(self, value: Value | None) -> Result | None:
        """The last action that gave a value."""
        results = () if value is None else reversed(self.results.values())
        return next((result for result in results if result.value is value), None)

    @property
    def limit_reached(self) -> str | None:
        """The limit that dropped an action, if any."""
        dropped = (result.dropped or "" for result in self.results.values())
        return next((why.removeprefix("limit of ") for why in dropped if why.startswith("limit of ")), None)


class Decider(Protocol):
    """Chooses the next actions. Implementations are frozen: they keep nothing between calls."""

    def decide(self, state: State, proposed: tuple[Action, ...]) -> tuple[Action, ...]:
        """Return the proposed actions unchanged, changed, replaced, or none.

        Must do no I/O. Called again after every result; an action whose id has started is not started again.
        """


class Learner(Protocol):
    """Learns from outcomes. Called by the session after a question, never by the loop."""

    def learn(self, state: State) -> None:
        """Record what came of a question."""


def describe(value: Value) -> str:
    """A value in a line, for people."""
    if isinstance(value, str):
        return value
    if isinstance(value, Queries):
        return " | ".join(value.texts)
    if isinstance(value, Candidates):
        return f"{len(value)} passages found"
    if isinstance(value, Selection):
        return f"{len(value.chosen)} passages, {value.tokens_used} tokens"
    if isinstance(value, Facts):
        return " | ".join(f"{fact.question} {fact.answer}" for fact in value.found)
    return value.answer.text


def signals(value: Value) -> dict[str, float]:
    """What a planner sees of a value: finite numbers by name."""
    if isinstance(value, str):
        return {"words": float(len(value.split()))}
    if isinstance(value, Queries):
        return {"parts": float(len(value.texts))}
    if isinstance(value, Candidates):
        best = sorted(map(float, value.relevance), reverse=True)
        return {
            "top": best[0],
            "gap": best[0] - best[min(1, len(best) - 1)],
            "fall": best[0] - best[min(9, len(best) - 1)],
            "found": float(len(best)),
        }
    if isinstance(value, Selection):
        scores = [float(value.candidates.relevance[i]) for i in value.chosen]
        return {
            "read": float(len(scores)),
            "tokens": float(value.tokens_used),
            "best": max(scores, default=0.0),
            "expected": sum(scores),
        }
    if isinstance(value, Facts):
        unknown = [bool(_UNKNOWN.search(fact.answer)) for fact in value.found]
        share = sum(unknown) / len(unknown)
        return {"facts": float(len(unknown)), "unknown": share, "turns": float(value.turns)}
    logs, text = value.answer.logprobs, value.answer.text
    found = {"words": float(len(text.split())), "unknown": float(bool(_UNKNOWN.search(text)))}
    if value.probability is not None:
        found["probability"] = float(value.probability)
    if logs:
        found |= {"logprob": sum(logs) / len(logs), "lowest": min(logs), "first": logs[0]}
    return found
