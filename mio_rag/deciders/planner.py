"""Planner: a learned policy chooses the workflow, once or after every step; or the model writes it.

A language model writes workflows under a grammar that lists every chain of steps that makes one, or freely.
The published way [1] is free text with a penalty for what is no workflow; it is here as a rival: what cannot
be read becomes `plain`, and the trace says so.

[1] MAO-ARAG: multi-agent orchestration for adaptive retrieval-augmented generation, arXiv 2508.01005.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mio_rag.deciders.steps import Order, Planning, action_of
from mio_rag.errors import InputError
from mio_rag.learning.planner import NO_PRICE, Branch, Decision, Encoder, Ran
from mio_rag.learning.planner import Planner as Learned
from mio_rag.session.budget import Prices
from mio_rag.session.state import Action, Result, State, signals
from mio_rag.session.tools import TOOLS
from mio_rag.session.trace import per_token, share
from mio_rag.session.workflow import NAMED, Workflow, chain


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
            branch, decisions, _ = state.once("plan", lambda: self._place(state))
            assert branch.ends is not None
            actions = Order(self.planner.tree.workflows[branch.ends]).decide(state, ())
            if not state.results and decisions:
                actions = tuple(replace(one, why=self._why(decisions[0], state.price)) for one in actions)
            return (*proposed, *actions)
        if state.running:
            return proposed
        action = self._place(state)[2]
        return proposed if action is None else (*proposed, action)

    def described(self, state: State) -> dict[str, Any]:
        """Return the workflow that was chosen, or come to; empty before that."""
        branch = self._so_far(state)[0]
        return {} if branch is None or branch.ends is None else self._workflow(branch).to_dict()

    def scores(self, state: State) -> dict[str, float]:
        """Return what the policy saw in the workflows, or in what it chose at each decision."""
        return self.planner.scores(self._so_far(state)[1])

    def _workflow(self, branch: Branch) -> Workflow:
        return self.planner.tree.workflows[branch.leaves[0]]

    def _so_far(self, state: State) -> tuple[Branch | None, list[Decision]]:
        try:
            if self.planner.tree.mode == "once":
                return state.once("plan", lambda: self._place(state))[:2]
            return self._place(state)[:2]
        except InputError:  # it failed before it came to a workflow, for the same reason
            return None, []

    def _place(self, state: State) -> tuple[Branch, list[Decision], Action | None]:
        """Go down the tree by what has ended: where the question is, the decisions, and the next action."""
        tree, done, actions = self.planner.tree, dict[str, str](), list[Action]()

        def ran(branch: Branch) -> Ran | None:
            assert branch.node is not None
            leaf, depth = branch.node
            workflow, signed = tree.workflows[leaf], tree.signatures[leaf]
            node = workflow.nodes[depth]
            id = node.id if node.id not in done.values() else f"{node.id}-{len(done) + 1}"
            if (result := state.results.get(id)) is None:
                places = {one.id: k for k, one in enumerate(workflow.nodes)}
                inputs = tuple(done[signed[places[name]]] for name in node.takes)
                leaves = [tree.workflows[k] for k in branch.leaves]
                final = any(one.nodes[depth].id == one.answer for one in leaves)
                actions.append(action_of(node, final=final, id=id, inputs=inputs))
                return None
            done[signed[depth]] = id
            # A loop of searches after a selection belongs to it.
            loop = [other for other in state.results.values() if other.action.settings.get("loop") == id]
            given = {} if result.value is None else signals(result.value)
            return node.do, given, result.dropped is not None, sum(map(self._cost, [result, *loop]))

        question = state.once(
            "plan features", lambda: self.planner.question(state.question.text, self.encoder)
        )
        branch, decisions = self.planner.walk(question, self.alpha(state.price), ran)
        if not actions:
            return branch, decisions, None
        parted = decisions and decisions[-1].chosen == branch.place
        why = self._why(decisions[-1], state.price) if parted else ""
        return branch, decisions, replace(actions[0], why=why)

    def _cost(self, result: Result) -> float:
        calls, turns = sum(call.retrieval_calls for call in result.costs.calls), 0.0
        for child in result.children:
            calls += sum(call.retrieval_calls for one in child.results.values() for call in one.costs.calls)
        if result.value is not None:
            turns = signals(result.value).get("turns", 0.0)
        return self.planner.weights.total(self._spent(result), turns, calls, self.planner.unit)

    def _spent(self, result: Result) -> float:
        if self.planner.cost == "tokens":
            return float(result.tokens)
        each = [
            self.prices.of(result.action.model or "reader", call.prompt_tokens, call.completion_tokens)
            for call in result.costs.calls
        ]
        inside = [self._spent(one) for child in result.children for one in child.results.values()]
        if None in each:
            raise InputError(NO_PRICE)
        return sum(cost for cost in each if cost is not None) + sum(inside)

    def _why(self, decision: Decision, price: float) -> str:
        tree, once = self.planner.tree, self.planner.tree.mode == "once"
        children = tree.branches[decision.place].children
        names = {
            child: tree.names(child)[0] if once else _way(tree.branches[child], tree.workflows)
            for child in children
        }
        scores = dict(zip(children, map(float, decision.scores), strict=True))
        best = decision.chosen
        other = max((child for child in children if names[child] != names[best]), key=lambda c: scores[c])
        at = f" at {per_token(price)} a token" if price else ""
        chosen, second = f"{names[best]} next", names[other]
        if once:
            chosen, second = names[best], f"next {names[other]}"
        worth = f"worth {share(scores[best])} after its costs{at}"
        return f"planned {chosen}: {worth}, {second} {share(scores[other])}"


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


# -- plans that a language model writes --------------------------------------------------------------------

#: What may be written, and which step it is.
STEPS: dict[str, dict[str, Any]] = {
    "rewrite": {"do": "rewrite"},
    "decompose-serial": {"do": "decompose", "order": "serial"},
    "decompose-parallel": {"do": "decompose", "order": "parallel"},
    "each": {"do": "each", "workflow": "plain"},
    "retrieve": {"do": "retrieve"},
    "select": {"do": "select"},
    "choose": {"do": "select", "by": "model"},
    "answer": {"do": "answer"},
    "summarise": {"do": "summarise"},
    "verify": {"do": "verify", "otherwise": "search-parts"},
}
_ARROW = " > "
_LONGEST = 6


@functools.cache
def plans() -> tuple[tuple[str, ...], ...]:
    """Every chain of at most six different steps that is a workflow."""
    found: list[tuple[str, ...]] = []

    def grow(path: tuple[str, ...], types: frozenset[str]) -> None:
        if path and "answer" in types and _workflow(path) is not None:
            found.append(path)
        if len(path) == _LONGEST:
            return
        for name, step in STEPS.items():
            tool = TOOLS[step["do"]]
            again = any(STEPS[before]["do"] == step["do"] for before in path)
            if not again and all(kind in types for kind, (least, _) in tool.takes.items() if least):
                grow((*path, name), types | {tool.gives})

    grow((), frozenset())
    return tuple(found)


def _workflow(path: Sequence[str]) -> Workflow | None:
    try:
        return chain(_ARROW.join(path), *(STEPS[name] for name in path))
    except InputError:
        return None


@functools.cache
def grammar() -> str:
    """The plans as GBNF, for llama.cpp."""
    tree: dict[str, Any] = {}
    for path in plans():
        at = tree
        for name in path:
            at = at.setdefault(name, {})
        at[""] = {}
    rules: list[str] = []

    def rule(node: dict[str, Any]) -> str:
        options = []
        for name, below in node.items():
            if not name:
                options.append('""')
                continue
            ends = "" in below
            on = {key: value for key, value in below.items() if key}
            rest = f' (" > " {rule(on)})' + "?" * ends if on else ""
            options.append(f'"{name}"{rest}')
        rules.append(" | ".join(options))
        return f"r{len(rules)}"

    root = rule(tree)
    return "\n".join([f"root ::= {root}", *(f"r{k} ::= {text}" for k, text in enumerate(rules, 1))])


def parse_plan(text: str) -> Workflow:
    """The workflow that was written: names of steps with anything between them.

    Raises `InputError` if it names no step, unknown ones, or none that make a workflow.
    """
    names = re.findall(r"[a-z]+(?:-[a-z]+)?", text.strip().splitlines()[0].lower()) if text.strip() else []
    if unknown := [name for name in names if name not in STEPS]:
        raise InputError(f"the plan names {', '.join(unknown[:3])}: steps are {', '.join(STEPS)}")
    if not names:
        raise InputError("the plan is empty")
    return chain(_ARROW.join(names), *(STEPS[name] for name in names))
