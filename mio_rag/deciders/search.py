"""Search: by which strategies; always the same ones, or those that a bandit chooses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from mio_rag.learning.strategist import Choice, Chooser, sets_to_compare
from mio_rag.session.state import Action, State


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
