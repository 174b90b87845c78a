"""What is learned from: for every question and place in the tree, what is seen there and what it cost.

Decoding is greedy, so what an executor gave on a question it gives again: rows of whole workflows tell what
would be seen and spent at every place, exactly, and policies can be trained and replayed on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mio_rag.control.planner.tree import Tree
from mio_rag.errors import DataError, InputError

__all__ = ["SEEN", "Experience", "experience_of", "observation", "seen"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]

#: What is seen of the executors so far: executor.signal -> divided by.
SEEN: Mapping[str, float] = {
    "retrieve.top": 1.0,
    "retrieve.gap": 0.2,
    "retrieve.fall": 0.5,
    "select.best": 1.0,
    "select.expected": 2.0,
    "select.read": 4.0,
    "answer.logprob": 1.0,
    "answer.lowest": 3.0,
    "answer.first": 1.0,
    "answer.unknown": 1.0,
    "answer.words": 10.0,
    "decompose.parts": 3.0,
    "each.unknown": 1.0,
    "summarise.logprob": 1.0,
}


def seen(steps: Sequence[tuple[str, Mapping[str, float], bool]]) -> FloatArray:
    """What is seen of executors so far, shape (len(SEEN) + 1,): of equal ones the last; and how many failed.

    Parameters
    ----------
    steps : sequence of (executor, signals, dropped)
    """
    found = {f"{do}.{name}": value for do, signals, _ in steps for name, value in signals.items()}
    values = [float(np.clip(found.get(name, 0.0) / unit, -4, 4)) for name, unit in SEEN.items()]
    return np.array([*values, float(sum(dropped for *_, dropped in steps))])


def observation(question: FloatArray, seen_: FloatArray, spent: float) -> FloatArray:
    """What a policy is given, the price apart: the question, what was seen, what it has cost so far."""
    return np.concatenate([question, seen_, [min(spent, 8.0) / 2]])


@dataclass(frozen=True, eq=False)
class Experience:
    """n questions in a tree of p places and m workflows.

    Parameters
    ----------
    observed : array, shape (n, p, d)
        What is seen at each place.
    step_cost : array, shape (n, p)
        What coming to a place from the one above costs, in units of what `plain` costs on average.
    quality, cost : array, shape (n, m)
        Of whole workflows.
    sets : tuple of str, length n or 0
        The question set of each; empty: all are of one.
    """

    tree: Tree
    observed: FloatArray
    step_cost: FloatArray
    quality: FloatArray
    cost: FloatArray
    sets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        n, p, m = len(self.quality), len(self.tree.branches), len(self.tree.workflows)
        wanted = {"observed": (n, p), "step_cost": (n, p), "quality": (n, m), "cost": (n, m)}
        problems = [
            f"{name} has shape {getattr(self, name).shape}, not {shape}"
            for name, shape in wanted.items()
            if getattr(self, name).shape[:2] != shape
        ]
        problems += [f"{name} holds values that are not finite" for name in wanted
                     if not np.isfinite(getattr(self, name)).all()]  # fmt: skip
        if len(self.sets) not in (0, n):
            problems.append(f"{len(self.sets)} sets are named for {n} questions: give one each")
        if problems or not n:
            raise InputError(problems or ["there are no questions to learn from"])

    def __len__(self) -> int:
        return len(self.quality)

    def where(self, kept: ArrayLike) -> Experience:
        """That of some questions."""
        rows = np.arange(len(self))[np.asarray(kept)]
        sets = tuple(self.sets[row] for row in rows) if self.sets else ()
        return Experience(
            self.tree, self.observed[rows], self.step_cost[rows], self.quality[rows], self.cost[rows], sets
        )

    def reward(self, chosen: IntArray, alpha: float) -> FloatArray:
        """Quality less alpha times cost of a workflow each, shape (n,)."""
        rows = np.arange(len(self))
        return np.asarray(self.quality[rows, chosen] - alpha * self.cost[rows, chosen], dtype=np.float64)


def experience_of(
    tree: Tree,
    rows: Sequence[Mapping[str, Any]],
    ids: Sequence[str],
    features: FloatArray,
    *,
    quality: str = "token_f1",
    cost: str = "tokens",
    unit: float,
) -> Experience:
    """The experience in rows that `collect_outcomes` wrote.

    Parameters
    ----------
    ids : sequence of str
        Questions to take, in this order.
    features : array, shape (n, k)
        Of these questions.
    cost : str
        "tokens" or "dollars".
    unit : float
        How much of it counts as a cost of 1.

    Raises
    ------
    DataError
        If rows are missing, or were made by other workflows.
    """
    cells = {(row["question_id"], row["action"]): row for row in rows}
    names = [workflow.name for workflow in tree.workflows]
    missing = [(i, name) for i in ids for name in names if (i, name) not in cells]
    if missing:
        raise DataError(f"{len(missing)} outcomes are missing, for instance {missing[0]}: run plan outcomes")
    n, p = len(ids), len(tree.branches)
    width = features.shape[1] + len(SEEN) + 2
    observed, step_cost = np.zeros((n, p, width)), np.zeros((n, p))
    quality_, costs = np.zeros((n, len(names))), np.zeros((n, len(names)))
    for i, name in enumerate(ids):
        steps = [cells[name, action]["steps"] for action in names]
        for leaf, action in enumerate(names):
            quality_[i, leaf] = float(cells[name, action][quality] or 0.0)
            costs[i, leaf] = _number(cells[name, action].get(cost), cost) / unit
        for branch in tree.branches:
            path = _path(tree, branch.place)
            told = [_step(steps, tree, leaf, depth, name) for leaf, depth in path]
            spent = sum(_number(step.get(cost), cost) for step in told) / unit
            signals = [(s["do"], s["signals"], s["dropped"] is not None) for s in told]
            observed[i, branch.place] = observation(features[i], seen(signals), spent)
            if branch.ends is not None:  # with what a fallback took, if there was one
                spent = costs[i, branch.ends]
            step_cost[i, branch.place] = spent - spent_until(step_cost[i], tree, branch.parent)
    sets = tuple(str(cells[name, names[0]]["set"]) for name in ids)
    return Experience(tree, observed, step_cost, quality_, costs, sets)


def _number(value: Any, name: str) -> float:
    if value is None:
        raise DataError(f"the outcomes hold no {name}: give prices to plan outcomes, or count tokens")
    return float(value)


def spent_until(step_cost: FloatArray, tree: Tree, place: int) -> float:
    """What coming to a place has cost altogether."""
    total = 0.0
    while place >= 0:
        total += float(step_cost[place])
        place = tree.branches[place].parent
    return total


def _path(tree: Tree, place: int) -> list[tuple[int, int]]:
    """Nodes on the way to a place, as (workflow, position)."""
    path = []
    while place >= 0:
        if (node := tree.branches[place].node) is not None:
            path.append(node)
        place = tree.branches[place].parent
    return path[::-1]


def _step(steps: Sequence[Any], tree: Tree, leaf: int, depth: int, question: str) -> Mapping[str, Any]:
    told = steps[leaf]
    if depth >= len(told) or told[depth]["signature"] != tree.signatures[leaf][depth]:
        raise DataError(
            f"question '{question}' was answered by another workflow named '{tree.workflows[leaf].name}': "
            "run plan outcomes again, in a new folder"
        )
    found: Mapping[str, Any] = told[depth]
    return found
