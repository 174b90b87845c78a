"""The agent loop: measure U, decide, act, repeat; finally answer."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from mio_rag.control.mdp.gauges import Gauge, make_gauge
from mio_rag.control.mdp.plan import model_to_dict
from mio_rag.control.mdp.policies import Controller, State, make_controller, split_name
from mio_rag.control.memory import (
    Call,
    LimitReached,
    Limits,
    Memory,
    Meter,
    Replies,
    Reply,
    require_answerable,
    totals,
)
from mio_rag.control.steps.base import (
    EvidenceFinder,
    LmDecomposer,
    LmReasoner,
    LmSynthesizer,
    Parts,
    SelectingFinder,
)
from mio_rag.control.trace import Step, Trace, open_actions
from mio_rag.errors import InputError, MioRagError
from mio_rag.formulations.retrieval_mdp import RetrievalMDP
from mio_rag.generation import Generator
from mio_rag.generation.protocol import CHOICE_TOKENS
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.result import Selection
from mio_rag.selection.selector import Selector
from mio_rag.types import GenerationError, Question

__all__ = ["Agent", "ControlSettings", "Failure", "Outcome", "make_agent"]


@dataclass(frozen=True)
class ControlSettings:
    """How agents decide and where they end.

    Parameters
    ----------
    gauge : str
        How U is known where a controller's name does not say: tracked, confidence or evidence.
    stop_at : float
        U at which always-reason, always-retrieve and threshold stop.
    note_tokens : int
        Longest note, >= 1.
    kept_notes : int
        How many of the last notes the model sees, >= 0.
    """

    model: RetrievalMDP = field(default_factory=RetrievalMDP)
    gauge: str = "tracked"
    limits: Limits = field(default_factory=Limits)
    stop_at: float = 0.05
    note_tokens: int = 48
    kept_notes: int = 4

    def __post_init__(self) -> None:
        problems = []
        if self.note_tokens < 1:
            problems.append(f"note_tokens={self.note_tokens} must be >= 1")
        if self.kept_notes < 0:
            problems.append(f"kept_notes={self.kept_notes} must be >= 0")
        if not 0 <= self.stop_at <= 1:
            problems.append(f"stop_at={self.stop_at!r} must be in [0, 1]")
        if problems:
            raise InputError(problems)
        split_name(f"mdp@{self.gauge}", self.gauge)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for run records and traces."""
        return asdict(self) | {"model": model_to_dict(self.model)}


@dataclass(frozen=True, eq=False)
class Outcome:
    """The answer, what was read for it, and how it came about."""

    reply: Reply
    selection: Selection | None
    trace: Trace


@dataclass(frozen=True, eq=False)
class Failure:
    """Why there is no answer, and what was read, done and spent before the failure."""

    error: MioRagError
    selection: Selection | None
    trace: Trace


@dataclass(frozen=True, eq=False)
class Agent:
    """One controller with its parts.

    Parameters
    ----------
    name : str
        As the ledger shows it.
    seed : int
        Of tracked successes and of the random controller.
    """

    name: str
    controller: Controller
    gauge: Gauge
    parts: Parts
    settings: ControlSettings
    max_tokens: int = 32
    seed: int = 0

    def run(
        self, question: Question, generator: Generator, budget_tokens: int, replies: Replies | None = None
    ) -> Outcome:
        """Answer a question.

        Parameters
        ----------
        budget_tokens : int
            Largest block of evidence, >= 1; notes come on top of it.
        replies : dict, optional
            What the generator said to other runs on this question; it is taken from there, and added to.

        Raises
        ------
        MioRagError
            As retrieval, selection and generation do; `attempt` also tells what was done and spent by then.
        """
        found = self.attempt(question, generator, budget_tokens, replies)
        if isinstance(found, Failure):
            raise found.error
        return found

    def attempt(
        self, question: Question, generator: Generator, budget_tokens: int, replies: Replies | None = None
    ) -> Outcome | Failure:
        """As `run`, but a part that fails with a `MioRagError` makes a `Failure`; all else is passed on."""
        if budget_tokens < 1:
            raise InputError(f"budget_tokens={budget_tokens} must be >= 1")
        run = _Run(self, question, generator, Memory(question, int(budget_tokens)))
        try:
            reply = run.answer(replies)
        except MioRagError as error:
            return Failure(error, run.memory.selection, run.trace(None, error))
        return Outcome(reply, run.memory.selection, run.trace(reply))


@dataclass(eq=False)
class _Run:
    """One question in progress; its trace is available at any time."""

    agent: Agent
    question: Question
    generator: Generator
    memory: Memory
    meter: Meter | None = None
    steps: list[Step] = field(default_factory=list)
    opening: tuple[Call, ...] = ()
    ended: str = "stop"
    level: float = 1.0
    q: dict[str, float] | None = None

    def answer(self, replies: Replies | None) -> Reply:
        """Act until the controller stops or a limit comes, then answer."""
        meter = self.meter = self._meter(replies)
        try:
            self._act_until_stop(meter)
        except LimitReached as limit:
            self.ended = str(limit)
        try:
            return self.agent.parts.synthesizer.answer(self.memory, meter)
        except LimitReached as limit:  # a synthesizer of one's own that does not ask for the final answer
            raise GenerationError(f"the answer would go beyond the limit of {limit}: raise it") from limit

    def _meter(self, replies: Replies | None) -> Meter:
        """Divide the context window between evidence, notes and answer, and reserve the answer's tokens."""
        agent, settings, memory = self.agent, self.agent.settings, self.memory
        notes = settings.kept_notes * (settings.note_tokens + 4)
        window = require_answerable(self.generator, self.question, agent.max_tokens)
        if window is not None:
            notes = min(notes, window // 2)
            memory.budget_tokens = min(memory.budget_tokens, window - notes)
        longest = max(agent.max_tokens, CHOICE_TOKENS) if self.question.choices else agent.max_tokens
        asked = self.generator.prompt_tokens(agent.parts.synthesizer.prompt(memory))
        return Meter(self.generator, settings.limits, asked + memory.budget_tokens + notes + longest, replies)

    def _act_until_stop(self, meter: Meter) -> None:
        agent, limits = self.agent, self.agent.settings.limits
        self.level = agent.gauge.start(self.memory, meter)
        self.opening = meter.take()
        while True:
            step = len(self.steps)
            possible = open_actions(self.steps, agent.parts.finder is None)
            decision = agent.controller.decide(State(self.question.id, step, self.level, possible))
            self.q = decision.q_values
            if decision.action == "stop":
                return
            if step >= limits.steps:
                raise LimitReached(f"{limits.steps} steps")
            meter.check()
            self.steps.append(self._act(decision.action, self.q, self.level, step, self.memory, meter))
            self.level = self.steps[-1].next_uncertainty

    def _act(
        self, action: str, q: dict[str, float] | None, level: float, step: int, memory: Memory, meter: Meter
    ) -> Step:
        """Carry an action out, and see what it did to U."""
        query = note = ""
        new: tuple[str, ...] = ()
        if action == "retrieve":
            assert self.agent.parts.finder is not None
            query = self.agent.parts.decomposer.next_query(memory, level, meter)
            if query.lower() not in {q.lower() for q in memory.queries}:
                read = _ids(memory)
                new = self.agent.parts.finder.find(memory, query, meter)
                memory.draft = memory.draft if _ids(memory) == read else None
            memory.queries.append(query)
        else:
            note = self.agent.parts.reasoner.reason(memory, meter)
            if note:
                memory.draft = None
                memory.notes.append(note)
        after = self.agent.gauge.after(action, level, len(new) + bool(note), step, memory, meter)
        return Step(
            step=step,
            uncertainty=level,
            action=action,
            q_values=q,
            query=query,
            note=note,
            new_ids=new,
            selected_ids=_ids(memory),
            next_uncertainty=after,
            calls=meter.take(),
        )

    def trace(self, reply: Reply | None, error: MioRagError | None = None) -> Trace:
        """All that was done; what an action took that a limit or an error cut off counts with the answer."""
        closing = () if self.meter is None else self.meter.take()
        calls = (*self.opening, *(call for step in self.steps for call in step.calls), *closing)
        return Trace(
            question_id=self.question.id,
            question=self.question.text,
            choices=self.question.choices,
            controller=self.agent.name,
            gauge=self.agent.gauge.name,
            budget_tokens=self.memory.budget_tokens,
            settings=self._described(),
            steps=tuple(self.steps),
            ended=self.ended if error is None else "error",
            uncertainty=self.level,
            last_q_values=self.q,
            passages=_read(self.memory.selection),
            answer="" if reply is None else reply.answer.text,
            choice=None if reply is None else reply.choice,
            generator=self.generator.name,
            opening=self.opening,
            closing=closing,
            parts=totals(calls),
            error=None if error is None else f"{type(error).__name__}: {error}",
        )

    def _described(self) -> dict[str, Any]:
        agent = self.agent
        return {
            **agent.settings.to_dict(),
            "seed": int(agent.seed),
            "closed_book": agent.parts.finder is None,
            "max_tokens": int(agent.max_tokens),
        }


def _ids(memory: Memory) -> tuple[str, ...]:
    return () if memory.selection is None else memory.selection.ids


def _read(selection: Selection | None) -> tuple[dict[str, Any], ...]:
    if selection is None:
        return ()
    tokens = selection.candidates.tokens
    return tuple(
        {"id": p.id, "title": p.title, "text": p.text, "tokens": int(tokens[i])}
        for i, p in zip(selection.chosen, selection.passages, strict=True)
    )


def make_agent(
    name: str,
    settings: ControlSettings,
    retriever: Retriever | None,
    selector: Selector,
    *,
    max_tokens: int = 32,
    seed: int = 0,
) -> Agent:
    """The agent with the built-in parts.

    Parameters
    ----------
    name : str
        A controller, with @tracked, @confidence or @evidence or without; see `mio_rag.control.mdp.policies`.
    retriever : Retriever or None
        None: closed book, nothing is retrieved.

    Raises
    ------
    InputError
        For a name that is not known.
    """
    controller, gauge = split_name(name, settings.gauge)
    finder: EvidenceFinder | None = None if retriever is None else SelectingFinder(retriever, selector)
    synthesizer = LmSynthesizer(max_tokens, settings.kept_notes)
    parts = Parts(
        LmDecomposer(settings.kept_notes),
        finder,
        LmReasoner(settings.note_tokens, settings.kept_notes),
        synthesizer,
    )
    return Agent(
        name,
        make_controller(
            controller, settings.model, stop_at=settings.stop_at, seed=seed, closed_book=retriever is None
        ),
        make_gauge(gauge, settings.model, synthesizer, seed, max_tokens),
        parts,
        settings,
        max_tokens,
        seed,
    )
