"""Price: one price of a token for everything that is read."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mio_rag.session.state import Action, State


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
