"""The loop: look at U, decide, act, look again; in the end answer."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

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
from mio_rag.control.parts import (
    EvidenceFinder,
    LmDecomposer,
    LmReasoner,
    LmSynthesizer,
    Parts,
    SelectingFinder,
)
from mio_rag.control.plan import model_to_dict
from mio_rag.control.policies import Controller, State, make_controller, split_name
from mio_rag.control.trace import Step, Trace, open_actions
from mio_rag.control.uncertainty import Gauge, make_gauge
from mio_rag.errors import InputError
from mio_rag.formulations.retrieval_mdp import RetrievalMDP
from mio_rag.generation import Generator
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selector import Selector
from mio_rag.types import Question, Selection

__all__ = ["Agent", "ControlSettings", "Outcome", "make_agent"]


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
            As retrieval, selection and generation do.
        """
        if budget_tokens < 1:
            raise InputError(f"budget_tokens={budget_tokens} must be >= 1")
        settings = self.settings
        notes = settings.kept_notes * (settings.note_tokens + 4)
        window = require_answerable(generator, question, self.max_tokens)
        if window is not None:
            notes = min(notes, window // 2)
            budget_tokens = min(budget_tokens, window - notes)
        memory = Memory(question, budget_tokens)
        asked = generator.prompt_tokens(self.parts.synthesizer.prompt(memory))
        meter = Meter(generator, settings.limits, asked + budget_tokens + notes + self.max_tokens, replies)
        steps: list[Step] = []
        opening: tuple[Call, ...] = ()
        ended, level, q = "stop", 1.0, None
        try:
            level = self.gauge.start(memory, meter)
            opening = meter.take()
            while True:
                possible = open_actions(steps, self.parts.finder is None)
                decision = self.controller.decide(State(question.id, len(steps), level, possible))
                q = decision.q_values
                if decision.action == "stop":
                    break
                if len(steps) >= settings.limits.steps:
                    raise LimitReached(f"{settings.limits.steps} steps")
                meter.check()
                steps.append(self._act(decision.action, q, level, len(steps), memory, meter))
                level = steps[-1].next_uncertainty
        except LimitReached as limit:
            ended = str(limit)
        wasted = meter.take()  # of an action that a limit cut off
        reply = self.parts.synthesizer.answer(memory, meter)
        closing = (*wasted, *meter.take())
        calls = (*opening, *(call for step in steps for call in step.calls), *closing)
        trace = Trace(
            question_id=question.id,
            question=question.text,
            choices=question.choices,
            controller=self.name,
            gauge=self.gauge.name,
            budget_tokens=budget_tokens,
            settings=self._described(),
            steps=tuple(steps),
            ended=ended,
            uncertainty=level,
            last_q_values=q,
            passages=_read(memory.selection),
            answer=reply.answer.text,
            choice=reply.choice,
            generator=generator.name,
            opening=opening,
            closing=closing,
            parts=totals(calls),
        )
        return Outcome(reply, memory.selection, trace)

    def _act(
        self, action: str, q: dict[str, float] | None, level: float, step: int, memory: Memory, meter: Meter
    ) -> Step:
        """Carry an action out, and see what it did to U."""
        query = note = ""
        new: tuple[str, ...] = ()
        if action == "retrieve":
            assert self.parts.finder is not None
            query = self.parts.decomposer.next_query(memory, level, meter)
            if query.lower() not in {q.lower() for q in memory.queries}:
                read = _ids(memory)
                new = self.parts.finder.find(memory, query, meter)
                memory.draft = memory.draft if _ids(memory) == read else None
            memory.queries.append(query)
        else:
            note = self.parts.reasoner.reason(memory, meter)
            if note:
                memory.draft = None
                memory.notes.append(note)
        after = self.gauge.after(action, level, len(new) + bool(note), step, memory, meter)
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

    def _described(self) -> dict[str, Any]:
        return {
            **self.settings.to_dict(),
            "seed": self.seed,
            "closed_book": self.parts.finder is None,
            "max_tokens": self.max_tokens,
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
        A controller, with @tracked, @confidence or @evidence or without; see `mio_rag.control.policies`.
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
