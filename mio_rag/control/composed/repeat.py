"""Search again, or stop: by the price, by the decision process at that price, or by a published rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from mio_rag.control.composed.parts import Repetition
from mio_rag.control.composed.trace import per_token, share
from mio_rag.control.mdp.policies import Decision, Policy, State, make_policy
from mio_rag.formulations.mdp import RetrievalMDP

__all__ = ["Looked", "Rule", "rule_of"]

_AHEAD = 64  # searches whose worth is reckoned; those that come later change no decision


@dataclass(frozen=True)
class Looked:
    """What another search would take, and may bring.

    Parameters
    ----------
    gain : float
        Expected rise of the probability that the evidence is complete.
    tokens : int
        Expected: to word the query, and to read what is found.
    price : float
        mu.
    """

    gain: float
    tokens: int
    price: float

    @property
    def cost(self) -> float:
        """What these tokens must add."""
        return self.tokens * self.price


class Rule(Protocol):
    """Decides what to do next, and says why."""

    def decide(self, state: State, looked: Looked) -> Decision:
        """The next action."""
        ...

    def why(self, decision: Decision, state: State, looked: Looked) -> str:
        """The decision in a sentence."""
        ...


def _sentence(action: str, gain: float, looked: Looked, at: str = "") -> str:
    """What decided: a gain, `at` which U it was expected, and the cost that it was held against."""
    digits = 2
    # Rounded, close ones could contradict the action.
    while (round(gain, digits) > looked.cost) != (gain > looked.cost):
        digits += 1
    expected = f"+{share(gain, digits)}{at} for {looked.tokens} tokens at {per_token(looked.price)}"
    if action == "retrieve":
        return f"retrieved again: expected {expected}"
    cost = share(looked.cost, digits)
    return f"stopped: another search was expected to bring {expected}, which would cost {cost}"


@dataclass(frozen=True)
class ByPrice:
    """One step ahead: search while what it is expected to add is more than its tokens cost."""

    def decide(self, state: State, looked: Looked) -> Decision:
        """By the difference."""
        worth = {"stop": 0.0, "retrieve": looked.gain - looked.cost}
        possible = "retrieve" in state.open and worth["retrieve"] > 0
        return Decision("retrieve" if possible else "stop", worth)

    def why(self, decision: Decision, state: State, looked: Looked) -> str:
        """What was expected, and what it cost."""
        return _stopped(state) or _sentence(decision.action, looked.gain, looked)


@dataclass(frozen=True)
class ByProcess:
    """The optimal policy of the decision process whose costs are the price times tokens.

    Every search is expected to find the same share of what is missing by then, at the same cost. None is thus
    worth more than the one before it, and a sum solves the process at any U: where the next search does not
    pay, no number of searches does.

    Parameters
    ----------
    finds : float
        Share of U that a search is expected to take away.
    most : int
        Searches beside the first.
    signal : str
        How U is known; "complete": as the gain that every rule is told.
    """

    finds: float
    most: int
    signal: str = "complete"

    def decide(self, state: State, looked: Looked) -> Decision:
        """By the worth of the best number of searches."""
        gain, cost = self.finds * state.doubt, looked.cost
        worth = gain - cost
        for _ in range(state.step, min(self.most, state.step + _AHEAD)):
            gain *= 1 - self.finds
            worth += max(0.0, gain - cost)
        possible = "retrieve" in state.open and worth > 0
        return Decision("retrieve" if possible else "stop", {"stop": 0.0, "retrieve": worth})

    def why(self, decision: Decision, state: State, looked: Looked) -> str:
        """What was expected at the U that decided, and what it cost."""
        at = "" if self.signal == "complete" else f" at U = {share(state.doubt)} ({self.signal})"
        return _stopped(state) or _sentence(decision.action, self.finds * state.doubt, looked, at)


@dataclass(frozen=True)
class Published:
    """A rule with constants of its own; the price is not asked."""

    policy: Policy

    def decide(self, state: State, looked: Looked) -> Decision:
        """As the rule does."""
        return self.policy.decide(state)

    def why(self, decision: Decision, state: State, looked: Looked) -> str:
        """What it looked at."""
        said = {"retrieve": "retrieved again", "reason": "thought", "stop": "stopped"}[decision.action]
        return f"{said}: {self.policy.name} at U = {share(state.doubt)}"


def _stopped(state: State) -> str | None:
    return None if "retrieve" in state.open else "stopped: no further search would bring anything new"


def rule_of(repetition: Repetition, seed: int = 0) -> Rule | None:
    """The rule of a policy; None: one search, and never another."""
    made: dict[str, Callable[[], Rule | None]] = {
        "never": lambda: None,
        "price": ByPrice,
        "process": lambda: ByProcess(repetition.finds, repetition.most, repetition.signal),
    }
    if repetition.by in made:
        return made[repetition.by]()
    return Published(make_policy(repetition.by, RetrievalMDP(), seed=seed))
