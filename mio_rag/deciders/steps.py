"""Which steps, by which searches, at which depth, at which price."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from mio_rag.learning.router_model import Correction, TierChoice
from mio_rag.learning.strategist import Choice, Chooser, sets_to_compare
from mio_rag.pool import Candidates
from mio_rag.session.state import Action, State
from mio_rag.session.tiers import Tier, top_score
from mio_rag.session.workflow import Node, Workflow, find_workflow
from mio_rag.types import Question


class Planning:
    """What deciders of steps have in common; as `mio_rag.session.loop.Plan`."""

    def inner(self, workflow: Any) -> Order:
        """Return the order of the steps for a sub-question: its own workflow."""
        return Order(inner_workflow(workflow), final=False)

    def scores(self, state: State) -> dict[str, float]:
        """Return what was chosen among; empty where nothing is scored."""
        return {}


@dataclass(frozen=True)
class Order(Planning):
    """Propose every step of a workflow whose inputs have ended.

    final: whether its answer is the answer to the question; not so for sub-questions.
    """

    workflow: Workflow
    final: bool = True

    def decide(self, state: State, proposed: tuple[Action, ...]) -> tuple[Action, ...]:
        """Add the steps that can begin."""
        ready = [
            action_of(node, final=self.final and node.id == self.workflow.answer)
            for node in self.workflow.nodes
            if not state.has_started(node.id) and state.has_ended(*node.takes, *node.after)
        ]
        return (*proposed, *ready)

    def described(self, state: State) -> dict[str, Any]:
        """Return the workflow, as plain data."""
        return self.workflow.to_dict()


def action_of(
    node: Node, *, final: bool, id: str | None = None, inputs: tuple[str, ...] | None = None
) -> Action:
    """The action of a step of a workflow."""
    return Action(
        node.id if id is None else id,
        node.do,
        node.takes if inputs is None else inputs,
        dict(node.settings),
        node.model,
        node.seconds,
        final,
    )


def inner_workflow(given: str | Workflow | Mapping[str, Any]) -> Workflow:
    """The workflow that a step names or holds."""
    return given if isinstance(given, Workflow) else find_workflow(str(given))


@dataclass(frozen=True, eq=False)
class Search:
    """Let every search that names no strategies use those that were chosen for the question.

    chooser: fixed strategies, or a bandit. A choice depends on the question and on what the bandit knew when
        the question began.
    """

    chooser: Chooser

    serves_parts = True

    def decide(self, state: State, proposed: tuple[Action, ...]) -> tuple[Action, ...]:
        """Set the strategies of searches."""
        if not any(action.do == "retrieve" and "strategies" not in action.settings for action in proposed):
            return proposed
        choice = self.choice(state)
        if choice.strategies == ("raw",) and not self.chooser.learns:
            return proposed
        return tuple(self._searching(state, action, choice) for action in proposed)

    def choice(self, state: State) -> Choice:
        """The strategies of the question, chosen once; sub-questions use the same."""
        top = state
        while top.parent is not None:
            top = top.parent
        assert top.retriever is not None
        retriever = top.retriever

        return state.once("search", lambda: self.chooser.choose(top.question, retriever, top.price or None))

    def _searching(self, state: State, action: Action, choice: Choice) -> Action:
        if action.do != "retrieve" or "strategies" in action.settings:
            return action
        settings: dict[str, Any] = {"strategies": choice.strategies}
        about: dict[str, Any] = {}
        if state.parent is None:
            told = {"id": choice.id, "strategies": list(choice.strategies), "why": choice.why, **choice.about}
            about = {"search": told}
            if choice.weights:
                settings["weights"] = dict(choice.weights)
            if self.chooser.learns:
                settings["alone"] = sets_to_compare(choice.strategies, choice.base)
        return replace(action, settings={**action.settings, **settings}, about={**action.about, **about})


class TierChooser(Protocol):
    """Chooses a tier from the question, what the search found, and the price of a token."""

    def choose(self, question: Question, pool: Candidates, price: float) -> TierChoice:
        """The tier of a question."""
        ...


@dataclass(frozen=True)
class OneTier:
    """The first tier for all questions."""

    def choose(self, question: Question, pool: Candidates, price: float) -> TierChoice:
        """That tier."""
        return TierChoice(0)


@dataclass(frozen=True)
class RandomTier:
    """A random tier, the same for a question in every run.

    shares: of the tiers; >= 0, adding up to 1.
    """

    shares: tuple[float, ...]
    seed: int = 0

    def choose(self, question: Question, pool: Candidates, price: float) -> TierChoice:
        """The tier that was drawn."""
        rng = np.random.default_rng([self.seed, zlib.crc32(question.id.encode())])
        place = int(np.searchsorted(np.cumsum(self.shares), rng.random(), side="right"))
        return TierChoice(min(place, len(self.shares) - 1))


@dataclass(frozen=True, eq=False)
class Depth:
    """Let what is selected, and how long the answer may be, follow a tier.

    tiers: from the cheapest.
    correction: none: a weak search is taken as it is.
    by_program: whether the selection program reads at the price of the question, within the tier's limits.
    """

    tiers: tuple[Tier, ...]
    chooser: TierChooser
    correction: Correction | None = None
    by_program: bool = False

    def decide(self, state: State, proposed: tuple[Action, ...]) -> tuple[Action, ...]:
        """Set tiers once the first pool is there."""
        return tuple(self._at_tier(state, action) for action in proposed)

    def _at_tier(self, state: State, action: Action) -> Action:
        if action.do not in ("select", "search_again", "answer", "summarise"):
            return action
        pool = state.last(Candidates)
        if pool is None:
            return action
        choice, top = state.once("depth", lambda: self._chosen(state, pool))
        tier = self.tiers[choice.place]
        if action.do in ("answer", "summarise"):
            return replace(action, settings={**action.settings, "max_tokens": tier.new_tokens})
        is_last = choice.place == len(self.tiers) - 1
        weak = self.correction is not None and top < self.correction.below
        assert state.retriever is not None
        corrected = weak and not is_last and (self.by_program or tier.depth < state.retriever.pool)
        if self.by_program or tier.token_price is not None:
            own = tier.token_price or 0.0
            price = max(float(action.settings.get("token_price", 0.0)), state.price, own)
            tier = tier.replace(token_price=price)
        more = self.correction.more if self.correction is not None and corrected else 0
        about: dict[str, Any] = {
            "tier": tier.name,
            "scores": None if choice.scores is None else {n: float(s) for n, s in choice.scores.items()},
            "unsure": choice.unsure,
            "corrected": corrected,
            "top_score": top,
        }
        return replace(
            action,
            settings={**action.settings, "tier": tier, "more": more},
            about={**action.about, **about},
        )

    def _chosen(self, state: State, pool: Candidates) -> tuple[TierChoice, float]:
        return self.chooser.choose(state.question, pool, state.price), top_score(pool)


@dataclass(frozen=True)
class Price:
    """Let every selection weigh tokens at the price of the question, or at its own where that is higher."""

    serves_parts = True

    def decide(self, state: State, proposed: tuple[Action, ...]) -> tuple[Action, ...]:
        """Set the price of what is selected."""
        return tuple(
            replace(action, settings={**action.settings, "token_price": self._price(state, action)})
            if action.do in ("select", "search_again")
            else action
            for action in proposed
        )

    def _price(self, state: State, action: Action) -> float:
        return max(state.price, float(action.settings.get("token_price", 0.0)))
