"""A learned planner: what it chooses between, what it sees, how it decides; its file; its replay on a table.

Deciding takes numpy alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import DataError, InputError
from mio_rag.learning.experience import SEEN, Experience, Regression
from mio_rag.learning.planner_tree import WORDING, QuestionFeatures, Tree
from mio_rag.learning.weights import Weights, read_weights, write_weights
from mio_rag.session.workflow import Workflow, inner_hashes

__all__ = [
    "DEFAULT_ALPHA",
    "KIND",
    "VERSION",
    "Network",
    "Planner",
    "planner_about",
    "read_planner",
    "write_planner",
]

KIND, VERSION = "planner", 2

#: The price where nobody says one: a plain answer's cost must bring a tenth of a point of F1 or more.
DEFAULT_ALPHA = 0.1
_FITTED = ("mean", "scale", "weights", "bias", "gates", "experts")
_SHARPNESS = 20.0  # logits for a predicted utility of 1: of two steps .05 apart the better is taken by 73 %

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]


class Scorer(Protocol):
    """What decides."""

    def scores(self, tree: Tree, observed: FloatArray, place: int, alpha: float) -> FloatArray:
        """How much is to be said for every child of a place, shape (n, children)."""
        ...


@dataclass(frozen=True, eq=False)
class RegressionScorer:
    """Scores of a `Regression`: a child is worth as much as the best workflow behind it."""

    regression: Regression

    def scores(self, tree: Tree, observed: FloatArray, place: int, alpha: float) -> FloatArray:
        """Predicted utility of every child, shape (n, children)."""
        worth = self.regression.worth(observed, place, alpha)
        children = [tree.branches[child].leaves for child in tree.branches[place].children]
        return np.stack([worth[:, leaves].max(axis=1) for leaves in children], axis=1)


@dataclass(frozen=True, eq=False)
class Network:
    """A small network with tanh layers; its outputs are places of the tree.

    layers: of shapes (d_in, d_out) and (d_out,); the first takes what is seen, the place and alpha.
    prior: what the outputs are a correction of.
    """

    layers: Sequence[tuple[FloatArray, FloatArray]]
    prior: RegressionScorer | None = None

    def logits(self, x: FloatArray) -> FloatArray:
        """Outputs, shape (n, places)."""
        for weights, bias in self.layers[:-1]:
            x = np.tanh(x @ weights + bias)
        weights, bias = self.layers[-1]
        return x @ weights + bias

    def scores(self, tree: Tree, observed: FloatArray, place: int, alpha: float) -> FloatArray:
        """Probabilities of the children of a place, shape (n, children)."""
        logits = self.logits(network_input(tree, observed, np.full(len(observed), place), alpha))
        chosen = logits[:, tree.branches[place].children]
        chosen = chosen + self.prior_logits(tree, observed, place, alpha)
        powers = np.exp(chosen - chosen.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True), dtype=np.float64)

    def prior_logits(self, tree: Tree, observed: FloatArray, place: int, alpha: float) -> FloatArray | float:
        """What is added to the outputs for the children of a place; without a prior 0."""
        return 0.0 if self.prior is None else _SHARPNESS * self.prior.scores(tree, observed, place, alpha)


def network_input(
    tree: Tree, observed: FloatArray, places: IntArray, alpha: float | FloatArray
) -> FloatArray:
    """What a network is given: what is seen, where in the tree, and the price."""
    where = np.zeros((len(observed), len(tree.branches)))
    where[np.arange(len(observed)), places] = 1.0
    price = np.broadcast_to(np.asarray(alpha, dtype=np.float64), (len(observed),))
    return np.hstack([observed, where, np.sqrt(price)[:, None] * 2])


@dataclass(frozen=True, eq=False)
class Planner:
    """A policy over workflows.

    alphas: prices that it was trained for, rising; between them it may be asked too. Empty: any price.
    unit: how much of `cost` counts as 1.
    cost: what is counted.
    embedder: fingerprint of what embeds questions; blank: none is needed.
    about: where it comes from.
    """

    tree: Tree
    features: QuestionFeatures
    scorer: Scorer
    method: str
    unit: float
    alphas: tuple[float, ...] = ()
    embedder: str = ""
    cost: str = "tokens"
    about: Mapping[str, Any] = field(default_factory=dict)

    def checked_alpha(self, alpha: float | None) -> float:
        """The price to decide at; by default the one it was trained for, or `DEFAULT_ALPHA` where it can.

        Raises `InputError` for a price that is none, or that it was not trained for.
        """
        if alpha is None:
            if len(self.alphas) == 1:
                return self.alphas[0]
            if not self.alphas or self.alphas[0] <= DEFAULT_ALPHA <= self.alphas[-1]:
                return DEFAULT_ALPHA
            span = f"{self.alphas[0]:g} to {self.alphas[-1]:g}"
            raise InputError(f"this planner was trained for prices from {span}: say --alpha")
        if not 0 <= alpha < math.inf:
            raise InputError(f"alpha={alpha!r} must be finite and >= 0")
        if self.alphas and not self.alphas[0] - 1e-9 <= alpha <= self.alphas[-1] + 1e-9:
            span = " to ".join(f"{a:g}" for a in dict.fromkeys((self.alphas[0], self.alphas[-1])))
            raise InputError(f"alpha={alpha:g}: this planner was trained for {span}; train one for it")
        return float(alpha)

    def choose(self, observed: FloatArray, place: int, alpha: float) -> tuple[int, FloatArray]:
        """The child to go to from a place, and the scores of all children."""
        children = self.tree.branches[place].children
        if len(children) == 1:
            return children[0], np.ones(1)
        scores = self.scorer.scores(self.tree, observed[None, :], place, alpha)[0]
        return children[int(np.argmax(scores))], scores

    def replay(self, experience: Experience, alpha: float) -> IntArray:
        """The workflow that it comes to on each question of a table, shape (n,).

        Raises `InputError` if the table is of other workflows.
        """
        if [w.sha256 for w in experience.tree.workflows] != [w.sha256 for w in self.tree.workflows]:
            raise InputError(
                "this planner was trained for other workflows "
                f"({', '.join(w.name for w in self.tree.workflows)}): train it on this table"
            )
        n = len(experience)
        at, ended = np.zeros(n, dtype=np.intp), np.full(n, -1, dtype=np.intp)
        for branch in self.tree.branches:  # parents come before their children
            here = np.flatnonzero(at == branch.place)
            if branch.ends is not None:
                ended[here] = branch.ends
            elif len(branch.children) == 1:
                at[here] = branch.children[0]
            elif len(here):
                observed = experience.observed[here, branch.place]
                scores = self.scorer.scores(self.tree, observed, branch.place, alpha)
                at[here] = np.array(branch.children)[np.argmax(scores, axis=1)]
        return ended


def planner_about(planner: Planner) -> dict[str, Any]:
    """What a planner is and what it learned from, as plain data."""
    about = {name: value for name, value in planner.about.items() if name != "learned_from"}
    network = planner.scorer if isinstance(planner.scorer, Network) else None
    return {
        "method": planner.method,
        "mode": planner.tree.mode,
        "workflows": [workflow.name for workflow in planner.tree.workflows],
        "alphas": list(planner.alphas),
        "cost": planner.cost,
        "unit": planner.unit,
        "embedder": planner.embedder,
        "network": network is not None,
        "corrects_a_regression": network is not None and network.prior is not None,
        **about,
    }


def write_planner(planner: Planner, path: Path) -> None:
    """Write a planner to a file, whole or not at all.

    Raises `InputError` if it cannot be written.
    """
    arrays: dict[str, NDArray[Any]] = dict(planner.features.arrays())
    scorer: Scorer | None = planner.scorer
    if isinstance(scorer, Network):
        for k, (weights, bias) in enumerate(scorer.layers):
            arrays[f"network.{k}.weights"], arrays[f"network.{k}.bias"] = weights, bias
        scorer = scorer.prior
    if isinstance(scorer, RegressionScorer):
        for name in _FITTED:
            arrays[f"regression.{name}"] = getattr(scorer.regression, name)
    elif scorer is not None:
        raise InputError(f"a planner that decides by {type(scorer).__name__} cannot be kept")
    about = {
        "method": planner.method,
        "mode": planner.tree.mode,
        "workflows": [workflow.to_dict() for workflow in planner.tree.workflows],
        "inner": inner_hashes(planner.tree.workflows),
        "alphas": list(planner.alphas),
        "unit": planner.unit,
        "cost": planner.cost,
        "embedder": planner.embedder,
        "seen": list(SEEN),
        "wording": list(WORDING),
    }
    write_weights(Weights(KIND, VERSION, arrays, about, dict(planner.about)), path)


def read_planner(path: str | Path) -> Planner:
    """Read what `write_planner` wrote.

    Raises `DataError` if there is no such file, it is none of a planner or damaged, or what it was trained
    for has changed.
    """
    given = read_weights(path, KIND, VERSION)
    about = given.about
    try:
        workflows = [Workflow.from_dict(data) for data in about["workflows"]]
        tree = Tree(workflows, about["mode"])
        features = QuestionFeatures.of_arrays(given.arrays)
        prior = None
        if about["method"] == "regression" or "regression.bias" in given.arrays:
            mean, scale, weights, bias, *by_set = (given.arrays[f"regression.{name}"] for name in _FITTED)
            gates, experts = by_set
            prior = RegressionScorer(Regression(mean, scale, weights, bias, gates, experts, tree.mask()))
        scorer: Scorer
        if about["method"] == "regression":
            if prior is None:
                raise DataError(f"'{path}' is damaged: its regression is missing")
            scorer = prior
        else:
            depth = sum(name.endswith(".weights") and name.startswith("network.") for name in given.arrays)
            names = [f"network.{k}" for k in range(depth)]
            scorer = Network(
                [(given.arrays[f"{n}.weights"], given.arrays[f"{n}.bias"]) for n in names], prior
            )
        changed = [
            name for name, digest in about["inner"].items() if inner_hashes(workflows).get(name) != digest
        ]
        if changed or about["seen"] != list(SEEN) or about["wording"] != list(WORDING):
            raise DataError(
                f"'{path}' was trained for other workflows or signals ({', '.join(changed) or 'signals'} "
                "changed since): train it anew"
            )
        planner = Planner(
            tree,
            features,
            scorer,
            str(about["method"]),
            float(about["unit"]),
            tuple(float(alpha) for alpha in about["alphas"]),
            str(about["embedder"]),
            str(about["cost"]),
            given.provenance,
        )
        _try(planner)
        return planner
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"'{path}' is damaged: {error}") from error


def _try(planner: Planner) -> None:
    """Decide once at every place, so that arrays that do not fit together are found when they are read."""
    rising = list(planner.alphas) == sorted(planner.alphas) and all(0 <= a < math.inf for a in planner.alphas)
    if not 0 < planner.unit < math.inf or planner.cost not in ("tokens", "dollars") or not rising:
        raise ValueError(f"unit {planner.unit}, cost '{planner.cost}' or alphas {planner.alphas} cannot be")
    features = planner.features
    question = features.of(["?"], np.zeros((1, len(features.center))))
    observed = np.hstack([question, np.zeros((1, len(SEEN) + 2))])
    for place in planner.tree.decisions:
        scores = planner.scorer.scores(planner.tree, observed, place, 0.1)
        children = len(planner.tree.branches[place].children)
        if scores.shape != (1, children) or np.isnan(scores).any():
            raise ValueError(f"scores of place {place} have shape {scores.shape}, not (1, {children})")
