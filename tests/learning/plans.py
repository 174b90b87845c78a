"""Tables with a known optimum."""

import numpy as np

from mio_rag.learning.experience import SEEN, Experience, Regression
from mio_rag.learning.planner import Planner, RegressionScorer
from mio_rag.learning.planner_tree import QuestionFeatures, Tree
from mio_rag.session.workflow import NAMED


def table(n: int, mode: str = "once", seed: int = 0, noise: float = 0.1, told: float = 1.0) -> Experience:
    """Questions of two kinds, which the first feature tells: easy ones need no retrieval, hard ones a chain.

    The optimum at alpha = .1: easy -> no-retrieval (.8 - .02), hard -> decompose-serial (.8 - .3).
    """
    names = ("no-retrieval", "plain", "decompose-serial")
    tree = Tree([NAMED[name] for name in names], mode)
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


def best(experience: Experience, alpha: float) -> float:
    """The reward of whoever knows the kind of every question."""
    hard = experience.quality[:, 2] - experience.quality[:, 0] > 0.3
    chosen = np.where(hard, 2, 0)
    return float(experience.reward(chosen, alpha).mean())


def sure_planner(
    quality: dict[str, float], cost: dict[str, float], mode: str = "once", tells: bool = False
) -> Planner:
    """A planner of no embedder that believes in a quality and a cost of each named workflow.

    Parameters
    ----------
    tells : bool
        Whether what is seen on the way moves its mind: the better the best passage looks, the more the first
        workflow is worth.
    """
    tree = Tree([NAMED[name] for name in quality], mode)
    features = QuestionFeatures.fit(["Who?", "What is it?"], np.eye(2), axes=0)
    d, p, m = len(features) + len(SEEN) + 2, len(tree.branches), len(quality)
    weights, bias = np.zeros((2, p, d, m)), np.zeros((2, p, m))
    bias[0], bias[1] = list(quality.values()), list(cost.values())
    if tells:
        weights[0, :, len(features) + list(SEEN).index("retrieve.top"), 0] = 2.0
    gates, experts = np.zeros((p, d + 1, 1)), np.zeros((p, 1, m))
    fitted = Regression(np.zeros((p, d)), np.ones((p, d)), weights, bias, gates, experts, tree.mask())
    return Planner(tree, features, RegressionScorer(fitted), "regression", 100.0)
