"""The loop: look at U, decide, act, look again; in the end answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mio_rag.control.controller import Failure, Outcome, Setup, answered
from mio_rag.control.costs import Call, Costs, totals
from mio_rag.control.mdp.gauges import Gauge, make_gauge
from mio_rag.control.mdp.policies import Policy, State, make_policy, open_actions, split_name
from mio_rag.control.mdp.trace import ProcessStep, ProcessTrace
from mio_rag.control.memory import Memory
from mio_rag.control.meter import LimitReached, Meter, Replies, Reply
from mio_rag.control.settings import ControlSettings
from mio_rag.control.steps.base import EvidenceFinder, Parts
from mio_rag.control.steps.find import SelectingFinder
from mio_rag.control.steps.write import LmDecomposer, LmReasoner, LmSynthesizer
from mio_rag.control.trace import read_passages
from mio_rag.errors import InputError, MioRagError
from mio_rag.generation import Generator
from mio_rag.generation.protocol import CHOICE_TOKENS
from mio_rag.generation.window import window_room
from mio_rag.types import GenerationError, Question

__all__ = ["Agent", "check_agent", "make_agent"]


@dataclass(frozen=True, eq=False)
class Agent:
    """A controller: a policy, with the steps that it decides about.

    Parameters
    ----------
    name : str
        As the ledger shows it.
    seed : int
        Of tracked successes and of the random controller.
    """

    name: str
    policy: Policy
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
        return answered(self.attempt(question, generator, budget_tokens, replies))

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
            return Failure(error, run.memory.selection, run.trace(None, error), run.costs)
        return Outcome(reply, run.memory.selection, run.trace(reply), run.costs)


@dataclass(eq=False)
class _Run:
    """One question on its way; its trace can be told at any time."""

    agent: Agent
    question: Question
    generator: Generator
    memory: Memory
    costs: Costs = field(default_factory=Costs)
    meter: Meter | None = None
    steps: list[ProcessStep] = field(default_factory=list)
    opening: tuple[Call, ...] = ()
    ended: str = "stop"
    level: float = 1.0
    q: dict[str, float] | None = None
    closed: tuple[str, ...] = ()

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
        """The window shared out between evidence, notes and answer, and the answer's tokens set aside."""
        agent, settings, memory = self.agent, self.agent.settings, self.memory
        notes = settings.kept_notes * (settings.note_tokens + 4)
        window = window_room(self.generator, self.question, max_tokens=agent.max_tokens)
        if window is not None:
            notes = min(notes, window // 2)
            memory.budget_tokens = min(memory.budget_tokens, window - notes)
        longest = max(agent.max_tokens, CHOICE_TOKENS) if self.question.choices else agent.max_tokens
        asked = self.generator.prompt_tokens(agent.parts.synthesizer.prompt(memory))
        reserve = asked + memory.budget_tokens + notes + longest
        return Meter(self.generator, settings.limits, reserve, replies, self.costs)

    def _act_until_stop(self, meter: Meter) -> None:
        agent, limits = self.agent, self.agent.settings.limits
        self.level = agent.gauge.start(self.memory, meter)
        self.opening = meter.take()
        while True:
            step = len(self.steps)
            possible = open_actions(self.steps, agent.parts.finder is None, self.closed)
            decision = agent.policy.decide(State(self.question.id, step, self.level, possible))
            self.q = decision.q_values
            if decision.action == "stop":
                return
            if step >= limits.steps:
                raise LimitReached(f"{limits.steps} steps")
            meter.check()
            query = ""
            if decision.action == "retrieve":
                query = agent.parts.decomposer.next_query(self.memory, self.level, meter)
                if self._searched(query) and not self.closed:
                    self.closed = ("retrieve",)  # it would change nothing: no step, decide again without it
                    continue
            self.steps.append(self._act(decision.action, query, step, self.memory, meter))
            self.level, self.closed = self.steps[-1].next_uncertainty, ()

    def _searched(self, query: str) -> bool:
        return query.lower() in {q.lower() for q in self.memory.queries}

    def _act(self, action: str, query: str, step: int, memory: Memory, meter: Meter) -> ProcessStep:
        """Carry an action out, and see what it did to U."""
        note, level = "", self.level
        new: tuple[str, ...] = ()
        if action == "retrieve":
            assert self.agent.parts.finder is not None
            if not self._searched(query):  # a policy of one's own may insist
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
        return ProcessStep(
            step=step,
            uncertainty=level,
            action=action,
            q_values=self.q,
            query=query,
            note=note,
            new_ids=new,
            selected_ids=_ids(memory),
            next_uncertainty=after,
            closed=self.closed,
            calls=meter.take(),
        )

    def trace(self, reply: Reply | None, error: MioRagError | None = None) -> ProcessTrace:
        """All that was done; what an action took that a limit or an error cut off counts with the answer."""
        closing = () if self.meter is None else self.meter.take()
        calls = (*self.opening, *(call for step in self.steps for call in step.calls), *closing)
        return ProcessTrace(
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
            last_closed=self.closed,
            passages=read_passages(self.memory.selection),
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


def check_agent(name: str, settings: ControlSettings, closed_book: bool) -> None:
    """Raise `InputError` for a name that `make_agent` does not know, or that makes no sense here."""
    policy, _ = split_name(name, settings.gauge)
    make_policy(policy, settings.model, stop_at=settings.stop_at, closed_book=closed_book)


def make_agent(name: str, setup: Setup) -> Agent:
    """The agent with the built-in parts.

    Parameters
    ----------
    name : str
        A policy, with a gauge (@tracked, @confidence, @evidence, @complete) or without; see
        `mio_rag.control.mdp.policies`.

    Raises
    ------
    InputError
        For a name that is not known.
    """
    settings, seed, retriever = setup.settings, setup.seed, setup.retriever
    policy, gauge = split_name(name, settings.gauge)
    finder: EvidenceFinder | None = None if retriever is None else SelectingFinder(retriever, setup.selector)
    synthesizer = LmSynthesizer(setup.max_tokens, settings.kept_notes)
    parts = Parts(
        LmDecomposer(settings.kept_notes),
        finder,
        LmReasoner(settings.note_tokens, settings.kept_notes),
        synthesizer,
    )
    return Agent(
        name,
        make_policy(
            policy, settings.model, stop_at=settings.stop_at, seed=seed, closed_book=retriever is None
        ),
        make_gauge(gauge, settings.model, synthesizer, seed, setup.max_tokens),
        parts,
        settings,
        setup.max_tokens,
        seed,
    )
