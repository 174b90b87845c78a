"""Planner: a learned policy chooses the workflow, once or after every step; or the model writes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mio_rag.deciders.order import Order, Planning, action_of
from mio_rag.deciders.plans import grammar, parse_plan
from mio_rag.errors import InputError
from mio_rag.learning.planner import Branch, Encoder, FloatArray, observation, seen
from mio_rag.learning.planner import Planner as Learned
from mio_rag.session.costs import Prices
from mio_rag.session.state import Action, Result, State, signals
from mio_rag.session.trace import per_token, share
from mio_rag.session.workflow import NAMED, Workflow


@dataclass(frozen=True)
class _Place:
    """Where a question stands in the tree of decisions.

    action: next to run; None: one is running, or a workflow has ended.
    workflow: the one that has ended.
    scores: of every decision until here, what the best of it was.
    """

    action: Action | None
    workflow: Workflow | None
    scores: dict[str, float]


@dataclass(frozen=True, eq=False)
class Planner(Planning):
    """Propose the steps that a learned policy expects most of, after their costs.

    alpha: price of a token -> what a cost of 1 must be worth in quality.
    encoder: makes the vectors of questions; None: none are looked at.
    prices: dollars by model; for policies that count dollars.
    """

    planner: Learned
    alpha: Callable[[float], float]
    encoder: Encoder | None = None
    prices: Prices = field(default_factory=lambda: Prices({}))

    def decide(self, state: State, proposed: tuple[Action, ...]) -> tuple[Action, ...]:
        """Add the next steps."""
        if self.planner.tree.mode == "once":
            workflow, _, why = state.once("plan", lambda: self._whole(state))
            actions = Order(workflow).decide(state, ())
            if not state.results:
                actions = tuple(replace(one, why=why) for one in actions)
            return (*proposed, *actions)
        if state.running:
            return proposed
        place = self._place(state)
        return proposed if place.action is None else (*proposed, place.action)

    def described(self, state: State) -> dict[str, Any]:
        """The workflow that was chosen, or come to; empty before that."""
        try:
            found: Workflow | None
            if self.planner.tree.mode == "once":
                found = state.once("plan", lambda: self._whole(state))[0]
            else:
                found = self._place(state).workflow
        except InputError:  # it failed before it came to a workflow, for the same reason
            return {}
        return {} if found is None else found.to_dict()

    def scores(self, state: State) -> dict[str, float]:
        """What the policy saw in the workflows, or in the ways at each decision."""
        try:
            if self.planner.tree.mode == "once":
                return dict(state.once("plan", lambda: self._whole(state))[1])
            return self._place(state).scores
        except InputError:
            return {}

    def features(self, question: str) -> FloatArray:
        """What the policy sees of a question, shape (k,)."""
        vectors = np.zeros((1, len(self.planner.features.center)))
        if self.encoder is not None:
            vectors = np.asarray(self.encoder.encode([question]), dtype=np.float64)
        return np.asarray(self.planner.features.of([question], vectors)[0], dtype=np.float64)

    def _seen(self, state: State) -> FloatArray:
        return state.once("plan features", lambda: self.features(state.question.text))

    def _whole(self, state: State) -> tuple[Workflow, dict[str, float], str]:
        tree = self.planner.tree
        looked = observation(self._seen(state), seen([]), 0.0)
        child, scores = self.planner.choose(looked, 0, self.alpha(state.price))
        chosen = tree.workflows[tree.branches[child].leaves[0]]
        found = {
            tree.workflows[tree.branches[place].leaves[0]].name: float(score)
            for place, score in zip(tree.branches[0].children, scores, strict=True)
        }
        others = sorted((name for name in found if name != chosen.name), key=lambda name: -found[name])[:1]
        second = "".join(f", next {name} {share(found[name])}" for name in others)
        at = f" at {per_token(state.price)} a token" if state.price else ""
        why = f"planned {chosen.name}: worth {share(found[chosen.name])} after its costs{at}{second}"
        return chosen, found, why

    def _place(self, state: State) -> _Place:
        """Go down the tree by what has ended; decide where it parts."""
        tree = self.planner.tree
        done: dict[str, str] = {}
        told: list[tuple[str, dict[str, float], bool]] = []
        branch, spent, taken, scores = tree.branches[0], 0.0, set[str](), dict[str, float]()
        while branch.ends is None:
            why = ""
            chosen = branch.children[0]
            if len(branch.children) > 1:
                looked = observation(self._seen(state), seen(told), spent / self.planner.unit)
                chosen, found = self.planner.choose(looked, branch.place, self.alpha(state.price))
                names = sorted({tree.workflows[leaf].name for leaf in tree.branches[chosen].leaves})
                scores[f"{len(done)}: {', '.join(names)}"] = float(np.max(found))
                why = self._why(branch, found, chosen, state.price)
            branch = tree.branches[chosen]
            if branch.node is None:
                continue
            leaf, depth = branch.node
            workflow, signed = tree.workflows[leaf], tree.signatures[leaf]
            node = workflow.nodes[depth]
            id = node.id if node.id not in taken else f"{node.id}-{len(done) + 1}"
            taken.add(id)
            if id not in state.results:
                places = {one.id: k for k, one in enumerate(workflow.nodes)}
                inputs = tuple(done[signed[places[name]]] for name in node.takes)
                leaves = [tree.workflows[k] for k in branch.leaves]
                final = any(one.nodes[depth].id == one.answer for one in leaves)
                action = action_of(node, final=final, id=id, inputs=inputs)
                return _Place(replace(action, why=why), None, scores)
            result = state.results[id]
            done[signed[depth]] = id
            spent += self._cost(result)
            given = {} if result.value is None else signals(result.value)
            told.append((node.do, given, result.dropped is not None))
            # A loop of searches after a selection belongs to it.
            for other in state.results.values():
                if other.action.settings.get("loop") == id:
                    spent += self._cost(other)
        return _Place(None, tree.workflows[branch.ends], scores)

    def _cost(self, result: Result) -> float:
        if self.planner.cost == "tokens":
            return float(result.tokens)
        return _dollars(result, self.prices)

    def _why(self, branch: Branch, found: FloatArray, chosen: int, price: float) -> str:
        tree = self.planner.tree
        ways = [_way(tree.branches[child], tree.workflows) for child in branch.children]
        scores = dict(zip(ways, map(float, found), strict=True))
        best = ways[branch.children.index(chosen)]
        other = max((way for way in ways if way != best), key=lambda way: scores[way])
        at = f" at {per_token(price)} a token" if price else ""
        return (
            f"planned {best} next: worth {share(scores[best])} after its costs{at}, "
            f"{other} {share(scores[other])}"
        )


def _way(branch: Branch, workflows: tuple[Workflow, ...]) -> str:
    """A way as sentences name it: the tool, and where others begin alike, its settings."""
    if branch.node is None:
        return "to end here"
    leaf, depth = branch.node
    node = workflows[leaf].nodes[depth]
    set_ = ", ".join(f"{key} {value}" for key, value in node.settings.items())
    named = [workflows[k].name for k in branch.leaves]
    more = " or others" if named[2:] else ""
    return f"{node.do}{f' ({set_})' if set_ else ''} of {' or '.join(named[:2])}{more}"


def _dollars(result: Result, prices: Prices) -> float:
    """What an action and all inside it cost; `InputError` where a model has no price."""
    found = 0.0
    for call in result.costs.calls:
        cost = prices.of(result.action.model or "reader", call.prompt_tokens, call.completion_tokens)
        if cost is None:
            raise InputError(
                "a model that was asked has no price: set models.NAME.input and output for each, and "
                "for reader"
            )
        found += cost
    return found + sum(_dollars(r, prices) for child in result.children for r in child.results.values())


@dataclass(frozen=True)
class LanguagePlanner(Planning):
    """Let the reader write the workflow before it answers.

    free: without a grammar; what is no workflow becomes `plain`.
    """

    free: bool = False

    def decide(self, state: State, proposed: tuple[Action, ...]) -> tuple[Action, ...]:
        """Ask for the plan first, then follow it.

        Raises `InputError` if what was written under the grammar is no workflow.
        """
        if not state.has_started("plan"):
            return (*proposed, Action("plan", "write_workflow", settings={"grammar": self._grammar}))
        if not state.has_ended("plan"):
            return proposed
        workflow, problem = self._written(state)
        actions = Order(workflow).decide(state, ())
        if problem is not None:
            actions = tuple(replace(one, about={"fallback": problem}) for one in actions)
        return (*proposed, *actions)

    @property
    def _grammar(self) -> str | None:
        return None if self.free else grammar()

    def _written(self, state: State) -> tuple[Workflow, str | None]:
        result = state.results["plan"]
        if result.dropped is not None:
            return NAMED["plain"], f"plan: {result.dropped}"
        try:
            return parse_plan(str(result.value or "")), None
        except InputError as error:
            if not self.free:
                raise
            return NAMED["plain"], f"format: {error}"

    def described(self, state: State) -> dict[str, Any]:
        """The workflow that was written; empty before that."""
        try:
            return self._written(state)[0].to_dict() if state.has_ended("plan") else {}
        except InputError:
            return {}
