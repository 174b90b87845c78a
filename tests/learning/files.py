"""Tables with a known optimum, and small files of learned controllers, made by hand or changed."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mio_rag.learning.planner import (
    SEEN,
    Planner,
    QuestionFeatures,
    Regression,
    Tree,
    write_planner,
)
from mio_rag.learning.planner_regression import Experience, fit_regression
from mio_rag.learning.router_model import Router
from mio_rag.learning.weights import read_weights, write_weights
from mio_rag.session.tiers import Tier
from mio_rag.session.workflow import NAMED

FEATURES = QuestionFeatures.fit(["Who?", "What is it?"], np.eye(2), axes=0)
TIERS = (
    Tier(name="small", depth=2, context=30, new_tokens=8, unit="tokens", compress="none"),
    Tier(name="large", depth=6, context=90, new_tokens=16, unit="tokens", compress="none"),
)


def outcomes(n: int, mode: str = "once", seed: int = 0, noise: float = 0.1, told: float = 1.0) -> Experience:
    """Questions of two kinds, which the first feature tells: easy ones need no retrieval, hard ones a chain.

    The optimum at alpha = .1: easy -> no-retrieval (.8 - .02), hard -> decompose-serial (.8 - .3).
    """
    tree = Tree([NAMED[name] for name in ("no-retrieval", "plain", "decompose-serial")], mode)
    rng = np.random.default_rng(seed)
    hard = rng.random(n) < 0.5
    quality = np.where(hard[:, None], [0.1, 0.4, 0.8], [0.8, 0.8, 0.7]) + noise * rng.normal(size=(n, 3))
    cost = np.tile([0.2, 1.0, 3.0], (n, 1))
    observed = rng.normal(size=(n, len(tree.branches), 6))
    observed[:, :, 0] = told * np.where(hard, 1.0, -1.0)[:, None] + 0.3 * observed[:, :, 0]
    step_cost = np.zeros((n, len(tree.branches)))
    for branch in tree.branches:
        if branch.ends is not None:
            above, place = 0.0, branch.parent
            while place >= 0:
                above += step_cost[0, place]
                place = tree.branches[place].parent
            step_cost[:, branch.place] = cost[0, branch.ends] - above
    return Experience(tree, observed, step_cost, quality, cost)


def as_wide_as_features(experience: Experience) -> Experience:
    """What is seen padded with zeros, as a planner in a file needs it."""
    n, p, d = experience.observed.shape
    padding = np.zeros((n, p, len(FEATURES) + len(SEEN) + 2 - d))
    return replace(experience, observed=np.concatenate([experience.observed, padding], axis=2))


def regressed(experience: Experience) -> Planner:
    scorer = fit_regression(experience)
    return Planner(experience.tree, FEATURES, scorer, "regression", 300.0)


def sure_planner(
    quality: dict[str, float], cost: dict[str, float], mode: str = "once", tells: bool = False
) -> Planner:
    """A planner of no embedder that believes in a quality and a cost of each named workflow.

    tells: whether what is seen on the way changes its decision: the better the best passage looks, the more
        the first workflow is worth.
    """
    tree = Tree([NAMED[name] for name in quality], mode)
    d, p, m = len(FEATURES) + len(SEEN) + 2, len(tree.branches), len(quality)
    weights, bias = np.zeros((2, p, d, m)), np.zeros((2, p, m))
    bias[0], bias[1] = list(quality.values()), list(cost.values())
    if tells:
        weights[0, :, len(FEATURES) + list(SEEN).index("retrieve.top"), 0] = 2.0
    gates, experts = np.zeros((p, d + 1, 1)), np.zeros((p, 1, m))
    fitted = Regression(np.zeros((p, d)), np.ones((p, d)), weights, bias, gates, experts, tree.mask())
    return Planner(tree, FEATURES, fitted, "regression", 100.0)


def planner_file(path: Path, mode: str = "once", embedder: str = "", alphas: tuple[float, ...] = ()) -> Path:
    """A planner that chooses among no-retrieval, plain and decompose-serial; a cost of 1 is 300 tokens."""
    known = as_wide_as_features(outcomes(60, mode))
    known = replace(known, observed=np.random.default_rng(0).normal(size=known.observed.shape))
    write_planner(replace(regressed(known), alphas=alphas, embedder=embedder), path)
    return path


def router_file(path: Path, embedder: str, size: int, tiers: tuple[Tier, ...] = TIERS) -> Path:
    """A router that gives the first tier a success of .5 and the last .8, whatever is asked."""
    m = len(tiers)
    arrays = {
        "weights": np.zeros((size, m)),
        "bias": np.linspace(0.0, np.log(4.0), m),
        "slope": np.ones(m),
        "shift": np.zeros(m),
    }
    costs = np.column_stack([np.linspace(100, 300, m), np.full(m, 0.1), np.full(m, 10.0)])
    shares = (1.0,) + (0.0,) * (m - 1)
    made = Router("utility", tiers, "question", embedder, arrays, costs, shares, 0.1, 0.9)
    write_weights(made.weights(), path)
    return path


def rewritten(
    path: Path, kind: str, version: int, change: Callable[[dict[str, Any], dict[str, Any]], object]
) -> None:
    """Change the data and arrays of a file."""
    held = read_weights(path, kind, version)
    about, arrays = json.loads(json.dumps(dict(held.about))), dict(held.arrays)
    change(about, arrays)
    write_weights(replace(held, about=about, arrays=arrays), path)
