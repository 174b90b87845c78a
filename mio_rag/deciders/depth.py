"""Depth: how much is read and answered, by one tier for all questions, or the one that a router chooses."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from mio_rag.learning.router_model import Correction, TierChoice
from mio_rag.pool import Candidates
from mio_rag.session.state import Action, State
from mio_rag.session.tiers import Tier, top_score
from mio_rag.types import Question


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
