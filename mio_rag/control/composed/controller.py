"""The controller that runs a policy: one way through all five decisions, at one price, on one ledger."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol

from mio_rag.allocation.pacer import FIRST_PRICE, Pacer
from mio_rag.allocation.pacer_account import Reservation
from mio_rag.control.bandit.chooser import Chooser, Fixed
from mio_rag.control.bandit.strategist import Strategist, open_strategist
from mio_rag.control.composed.again import LoopingWalk
from mio_rag.control.composed.parts import READER
from mio_rag.control.composed.policy import Policy
from mio_rag.control.composed.read import read_policy
from mio_rag.control.composed.states import States, alpha_of, read_states
from mio_rag.control.composed.trace import PolicyStep, PolicyTrace
from mio_rag.control.composed.walk import Equipment
from mio_rag.control.controller import Failure, Kind, Outcome, Setup
from mio_rag.control.meter import Limits, Replies, Reply
from mio_rag.control.planner.controller import attempted
from mio_rag.control.planner.planning import PlannerController
from mio_rag.control.planner.run import Kit, Run
from mio_rag.control.planner.settings import Models, WorkflowSettings
from mio_rag.control.planner.trace import PlanTrace
from mio_rag.control.planner.workflow import Workflow
from mio_rag.control.settings import ControlSettings
from mio_rag.control.steps.strategies import make_strategies
from mio_rag.errors import InputError
from mio_rag.generation import Generator, build_prompt
from mio_rag.generation.protocol import CHOICE_TOKENS
from mio_rag.learning.bandit import BanditSettings, StrategyOptions
from mio_rag.retrieval.retriever import Retriever
from mio_rag.types import Question

__all__ = ["KIND", "Composed", "Pacing", "compose", "pacer_of", "specs_of"]

_NOTES = 208  # tokens that the runner of workflows sets aside beside evidence and answer


class Pacing(Protocol):
    """Who keeps a total: a `Pacer`, or what speaks for one elsewhere."""

    def ask(self, tokens: int | None = None, least: int | None = None) -> Reservation:
        """As `Pacer.ask`."""
        ...

    def spent(self, reservation: Reservation, tokens: int) -> None:
        """As `Pacer.spent`."""
        ...

    def release(self, reservation: Reservation) -> None:
        """As `Pacer.release`."""
        ...

    def close(self) -> None:
        """As `Pacer.close`."""
        ...


@dataclass(frozen=True, eq=False)
class Composed:
    """Runs a policy on questions.

    Parameters
    ----------
    name : str
        As the ledger shows it.
    equipment : Equipment
    models : Models
        Generators that workflows name, opened when they are first asked.
    pacer : Pacing or None
        Sets the price where the policy has a total.
    limits : Limits
        Of one question.
    """

    name: str
    equipment: Equipment
    models: Models
    pacer: Pacing | None = None
    limits: Limits = field(default_factory=Limits)

    @property
    def policy(self) -> Policy:
        """Who decides what."""
        return self.equipment.policy

    @property
    def sha256(self) -> str:
        """Of the policy with everything that its files hold."""
        return self.equipment.states.sha256

    def close(self) -> None:
        """Close the files and models that were opened here."""
        self.models.close()
        if self.pacer is not None:
            self.pacer.close()
        if isinstance(self.equipment.chooser, Strategist):
            self.equipment.chooser.close()

    def take_up(self, spent: Sequence[int]) -> None:
        """Count questions that were asked before, where nothing but their rows tells of them.

        A total with a file (`[price] state`) has counted them there. Prices move as they did.
        """
        if self.pacer is None or self.policy.price.state is not None:
            return
        for tokens in spent:
            self.pacer.spent(self.pacer.ask(max(1, tokens)), tokens)

    def attempt(
        self, question: Question, generator: Generator, budget_tokens: int, replies: Replies | None = None
    ) -> Outcome | Failure:
        """As `Controller.attempt`; at most `budget_tokens` are read, whatever the policy allows."""
        if budget_tokens < 1:
            raise InputError(f"budget_tokens={budget_tokens} must be >= 1")
        budget = min(int(budget_tokens), self.policy.limits.evidence_tokens)
        run = Run(self._kit(), question, generator, budget, {} if replies is None else replies)
        walk = LoopingWalk(self.equipment, run, self.policy.fixed_price or 0.0)

        def answered() -> tuple[Reply, Workflow]:
            walk.narrow = run.budget_tokens < self.policy.limits.evidence_tokens
            return walk.answer()

        def act(run: Run) -> tuple[Reply, Workflow]:
            if self.pacer is None:
                return answered()
            with self._paced(self.pacer, run) as price:
                walk.price = price
                self._tell_bandit(price)
                return answered()

        return self._told(attempted(run, act, self.name, self._settings(), walk.worth), walk)

    def most_tokens(self, question: Question, generator: Generator) -> tuple[int, int]:
        """Most tokens that a question can take, into models and out of them.

        Where only answers ask a model, these are their prompts, with as much evidence as is allowed, and the
        longest answers, with the two that are still asked for where one came to nothing, the last of them
        from memory; otherwise the limit of the question, all of it in the dearer direction.
        """
        limit = self.limits.tokens
        if self._asks_more:
            return limit, limit
        asked, longest = self._one_answer(question, generator)
        workflows = self.equipment.states.workflows
        answers = 2 + max(sum(node.do == "answer" for node in workflow.nodes) for workflow in workflows)
        into = answers * asked + (answers - 1) * self.policy.limits.evidence_tokens + _NOTES
        return min(limit, into), min(limit, answers * longest)

    def least_tokens(self, question: Question, generator: Generator) -> int | None:
        """With how many tokens a question can still be asked, once and with one of evidence.

        None where more than the answer asks a model: nobody knows then.
        """
        return None if self._asks_more else sum(self._one_answer(question, generator)) + _NOTES + 1

    def _one_answer(self, question: Question, generator: Generator) -> tuple[int, int]:
        """Tokens of a prompt without evidence, and of the longest answer."""
        longest = max(self._kit().max_tokens, CHOICE_TOKENS if question.choices else 0)
        return generator.prompt_tokens(build_prompt(question)), longest

    def _kit(self) -> Kit:
        policy, equipment = self.policy, self.equipment
        prices = policy.prices.dollars
        longest = max(
            (tier.new_tokens for tier in equipment.states.tiers), default=policy.limits.answer_tokens
        )
        program = policy.selector(policy.fixed_price or 0.0, equipment.base)
        settings = WorkflowSettings(models=specs_of(policy), prices=prices)
        return Kit(equipment.retriever, program, self.models, settings, self.limits, longest)

    @contextmanager
    def _paced(self, pacer: Pacing, run: Run) -> Iterator[float]:
        """The price for a question; what it may spend is held, and what it spent is told in the end."""
        longest = max(run.kit.max_tokens, CHOICE_TOKENS if run.question.choices else 0)
        around = run.reader.prompt_tokens(build_prompt(run.question)) + _NOTES + longest
        most = self.limits.tokens
        if not self._asks_more:
            most = min(most, around + run.budget_tokens)
        held = pacer.ask(most, min(most, around + 1))
        run.budget_tokens = max(1, min(run.budget_tokens, held.allowed - around))
        run.kit = replace(
            run.kit,
            limits=replace(run.kit.limits, tokens=held.allowed),
            selector=self.policy.selector(held.price, self.equipment.base),
        )
        is_done = False
        try:
            yield held.price
            is_done = True
        finally:
            self._settle(pacer, held, run, is_done)

    @staticmethod
    def _settle(pacer: Pacing, held: Reservation, run: Run, is_done: bool) -> None:
        """Tell what was spent. Where nothing was worth its price that is nothing, and the price falls."""
        total = run.costs().total()
        spent = total.prompt_tokens + total.completion_tokens
        if total.lm_calls or spent or is_done:
            pacer.spent(held, spent)
        else:
            pacer.release(held)

    @property
    def _asks_more(self) -> bool:
        """Whether a question may ask a model for anything but its answer."""
        policy, states = self.policy, self.equipment.states
        steps = {node.do for workflow in states.workflows for node in workflow.nodes}
        searches = self.equipment.chooser is not None
        repeats = policy.repetition.by != "never" and policy.repetition.query == "model"
        thinks = policy.repetition.by not in ("never", "price", "process")
        return bool(steps - {"retrieve", "select", "answer"}) or searches or repeats or thinks

    def _tell_bandit(self, price: float) -> None:
        """A bandit weighs tokens at the price of the moment."""
        chooser = self.equipment.chooser
        if isinstance(chooser, Strategist):
            chooser.price_tokens(price)

    def _settings(self) -> dict[str, Any]:
        return {"policy": self.policy.to_dict(), "sha256": self.sha256, "seed": int(self.equipment.seed)}

    def _told(self, found: Outcome | Failure, walk: LoopingWalk) -> Outcome | Failure:
        """What came of it, with why at every step."""
        trace = found.trace
        assert isinstance(trace, PlanTrace)
        steps, level = [], None
        for step in trace.steps:
            level = walk.levels.get(step.node, level)
            told = {f.name: getattr(step, f.name) for f in fields(step)}
            inner = f"part of {step.node.split('/')[0]}: {step.action}{f', {step.note}' if step.note else ''}"
            if step.dropped is not None:
                inner = f"{step.action}: {step.dropped}"
            steps.append(PolicyStep(**told, why=walk.said.get(step.node, inner), complete=level))
        given = {f.name: getattr(trace, f.name) for f in fields(trace)} | {"steps": tuple(steps)}
        search = walk.search_told([passage["id"] for passage in trace.passages])
        last = PolicyTrace(**given, token_price=walk.price, complete=level, search=search, wanted=walk.wanted)
        return replace(found, trace=last)


def _planner(policy: Policy, setup: Setup, states: States) -> PlannerController | None:
    """Who chooses the workflow: the planner's own controller, of which only the choice is used."""
    if states.planner is None:
        return None
    encoder = None
    if states.planner.embedder and setup.retriever is not None:
        encoder = setup.retriever.index.embedder
    mu = policy.fixed_price if policy.fixed_price is not None else FIRST_PRICE
    alpha = alpha_of(policy, states.planner, mu)
    kit = Kit(None, setup.selector, Models({}), WorkflowSettings(), policy.ends, setup.max_tokens)
    return PlannerController("planner", states.planner, alpha, kit, encoder)


def pacer_of(policy: Policy) -> Pacer | None:
    """The pacer of a policy with a total; None: its price is fixed."""
    price = policy.price
    if price.total is None:
        return None
    path = None if price.state is None else Path(price.state)
    return Pacer(price.total, price.questions, price.per, path=path, most=policy.limits.tokens)


def compose(
    policy: Policy,
    setup: Setup,
    name: str | None = None,
    states: States | None = None,
    pacer: Pacing | None = None,
    models: Models | None = None,
) -> Composed:
    """The controller of a policy.

    Parameters
    ----------
    setup : Setup
        Its retriever gives the index and the tokenizer, its selector the solver and the time limit; its
        limits lower those of the policy, except where they are the defaults; the policy decides the rest.
    name : str, optional
        As the ledger shows it; by default that of the policy.
    states : States, optional
        What its files hold, where they have been read.
    pacer : Pacing, optional
        Who keeps the policy's total, where it is not to be opened here.
    models : Models, optional
        Those of `specs_of`, where they are not to be opened here.

    Raises
    ------
    InputError
        As `read_states`; also for an index that does not fit what was learned, or lacks links that a strategy
        needs.
    """
    found = read_states(policy, setup.retriever is None) if states is None else states
    models = Models(specs_of(policy)) if models is None else models
    retriever: Retriever | None = None
    chooser: Chooser | None = None
    mu = policy.fixed_price if policy.fixed_price is not None else FIRST_PRICE
    if setup.retriever is not None:
        index = setup.retriever.index
        found.check(index.embedder.fingerprint)
        retriever = Retriever(index, pool=policy.search.pool, counter=setup.retriever.counter)
        _check_links(policy, retriever)
        if policy.search.by == "bandit":
            learning = BanditSettings(token_price=mu, seed=setup.seed)
            options = StrategyOptions(policy.search.state, policy.search.strategies, bandit=learning)
            chooser = open_strategist(options, index)
        elif policy.search.strategies != ("raw",):
            chooser = Fixed(policy.search.strategies)
    equipment = Equipment(
        policy, found, retriever, chooser, _planner(policy, setup, found), setup.selector, setup.seed
    )
    limits = _lowered(policy.ends, setup.settings.limits)
    paced = pacer_of(policy) if pacer is None else pacer
    return Composed(name or f"policy:{policy.name}", equipment, models, paced, limits)


def specs_of(policy: Policy) -> dict[str, str]:
    """The generators that workflows of a policy may ask beside the reader."""
    return {key: str(model.spec) for key, model in policy.models.items() if key != READER}


def _lowered(own: Limits, given: Limits) -> Limits:
    """A policy's own limits, lowered by those of a caller; what is at its default nobody has asked for."""
    usual = Limits()
    return Limits(
        own.steps if given.steps == usual.steps else min(own.steps, given.steps),
        own.tokens if given.tokens == usual.tokens else min(own.tokens, given.tokens),
        own.seconds if given.seconds == usual.seconds else min(own.seconds, given.seconds),
    )


def _check_links(policy: Policy, retriever: Retriever) -> None:
    linked = [one.name for one in make_strategies(policy.search.strategies) if one.needs_links]
    if linked and retriever.index.links is None:
        raise InputError(
            f"search: {', '.join(linked)} needs an index with evidence links: build it again with `mio-rag "
            "index DATA --out INDEX --overwrite`, or leave it out"
        )


def _check(name: str, settings: ControlSettings, closed_book: bool) -> None:
    read_states(read_policy(_given(name)), closed_book)


def _make(name: str, setup: Setup) -> Composed:
    return compose(read_policy(_given(name)), setup, name)


def _given(name: str) -> str:
    stem, _, given = name.partition(":")
    if not given:
        raise InputError(f"controller '{name}' names no policy: for instance {stem}:balanced")
    return given


#: As `mio_rag.control.make` registers it.
KIND = Kind("policy", _make, _check, rival=False)
