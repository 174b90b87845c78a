"""Files of learned controllers, made by hand: small, and sure of what they say."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from mio_rag.learning.experience import fit_regression, observation, seen
from mio_rag.learning.planner import Planner, RegressionScorer, write_planner
from mio_rag.learning.planner_tree import QuestionFeatures
from mio_rag.learning.router_model import Router
from mio_rag.learning.weights import write_weights
from mio_rag.session.tiers import Tier
from tests.learning.plans import table

TIERS = (
    Tier("small", 2, 30, 8, unit="tokens", compress="none"),
    Tier("large", 6, 90, 16, unit="tokens", compress="none"),
)


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


def planner_file(path: Path, mode: str = "once", embedder: str = "", alphas: tuple[float, ...] = ()) -> Path:
    """A planner that chooses among no-retrieval, plain and decompose-serial; a cost of 1 is 300 tokens."""
    known = table(60, mode)
    features = QuestionFeatures.fit(["Who?", "What is it?"], np.eye(2), axes=0)
    seen_ = observation(features.of(["Who?"], np.zeros((1, 2)))[0], seen([]), 0.0)
    shape = (*known.observed.shape[:2], seen_.size)
    known = replace(known, observed=np.random.default_rng(0).normal(size=shape))
    scorer = RegressionScorer(fit_regression(known))
    made = Planner(known.tree, features, scorer, "regression", 300.0, alphas, embedder)
    write_planner(made, path)
    return path
