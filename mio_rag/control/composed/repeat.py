"""Search again, or stop: by the price, by the decision process at that price, or by a published rule."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from mio_rag.control.composed.parts import Repetition
from mio_rag.control.composed.trace import per_token, share
from mio_rag.control.mdp.plan import Plan, solve_plan
from mio_rag.control.mdp.policies import Decision, Policy, State, make_policy
from mio_rag.formulations.retrieval_mdp import RetrievalMDP

__all__ = ["Looked", "Rule", "rule_of"]

_BINS = 20


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


def _sentence(action: str, looked: Looked) -> str:
    expected = f"+{share(looked.gain)} for {looked.tokens} tokens at {per_token(looked.price)}"
    if action == "retrieve":
        return f"retrieved again: expected {expected}"
    return f"stopped: another search was expected to bring {expected}, which would cost {share(looked.cost)}"


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
        return _stopped(state) or _sentence(decision.action, looked)


@functools.lru_cache(maxsize=256)
def _plan(finds: float, cost: float, horizon: int) -> Plan:
    levels = (np.arange(_BINS) + 0.5) / _BINS
    model = RetrievalMDP(
        retrieve_drop=tuple((finds * levels).tolist()),
        success=1.0,
        retrieve_cost=cost,
        reason_drop=0.0,
        reason_cost=1.0,
        discount=1.0,
        horizon=horizon,
        grid=201,
    )
    return solve_plan(model, bounded=False)


@dataclass(frozen=True)
class ByProcess:
    """The optimal policy of the decision process whose costs are the price times tokens."""

    finds: float
    most: int

    def decide(self, state: State, looked: Looked) -> Decision:
        """By the values of the solved process."""
        plan = _plan(self.finds, float(f"{looked.cost:.2g}"), self.most + 1)
        q = plan.q_at(min(state.step - 1, self.most), state.doubt)
        worth = {action: worth for action, worth in q.items() if action != "reason"}
        better = "retrieve" in state.open and worth["retrieve"] > worth["stop"]
        return Decision("retrieve" if better else "stop", worth)

    def why(self, decision: Decision, state: State, looked: Looked) -> str:
        """What was expected, and what it cost."""
        return _stopped(state) or _sentence(decision.action, looked)


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
        "process": lambda: ByProcess(repetition.finds, repetition.most),
    }
    if repetition.by in made:
        return made[repetition.by]()
    return Published(make_policy(repetition.by, RetrievalMDP(), seed=seed))
