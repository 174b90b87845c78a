"""The exact rival: quality and cost of every workflow regressed on what is seen; the best of Q - alpha C.

One model serves every alpha. For a question, the predicted cost of what is chosen can only fall as alpha
rises: a line in alpha for each workflow, and the upper envelope of lines is convex.

Outcomes of single questions are noisy, and some hundred of them hardly show which question needs what. Which
question set a question comes from is far easier to learn, and sets differ in what they need. So a gate names
the set that a question looks like, and workflows are judged by how they did on that set (a mixture of experts
with a hard gate; Jacobs and others, Neural Computation 3, 1991); what a regression foretells within sets is
added. A table of a single set is left with the regression.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mio_rag.control.planner.experience import Experience
from mio_rag.errors import InputError

__all__ = ["Regression", "fit_regression"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]

#: Ridge penalties, as multiples of the number of questions; the best of them is chosen out of fold.
_PENALTIES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
_FEW = 10  # questions; smaller sets count as one


@dataclass(frozen=True, eq=False)
class Regression:
    """Predictions of quality and cost of whole workflows, at every place where there is something to decide.

    Parameters
    ----------
    mean, scale : array, shape (p, d)
        Of what is seen at each place.
    weights : array, shape (2, p, d, m)
        Of quality and cost.
    bias : array, shape (2, p, m)
    gates : array, shape (p, d + 1, s)
        How much a question looks as if it came from each of s sets: weights, and a constant in the last row.
    experts : array, shape (p, s, m)
        What is added to the quality of every workflow for questions that look like those of a set.
    mask : array of bool, shape (p, m)
        Workflows that can still be reached.
    """

    mean: FloatArray
    scale: FloatArray
    weights: FloatArray
    bias: FloatArray
    gates: FloatArray
    experts: FloatArray
    mask: NDArray[np.bool_]
    report: dict[str, float] = field(default_factory=dict)

    def predicted(self, observed: FloatArray, place: int) -> tuple[FloatArray, FloatArray]:
        """Quality and cost of every workflow, each of shape (..., m)."""
        x = (observed - self.mean[place]) / self.scale[place]
        quality, cost = (x @ self.weights[k, place] + self.bias[k, place] for k in (0, 1))
        likely = np.argmax(x @ self.gates[place, :-1] + self.gates[place, -1], axis=-1)
        return quality + self.experts[place, likely], np.maximum(cost, 0.0)

    def worth(self, observed: FloatArray, place: int, alpha: float) -> FloatArray:
        """Predicted quality less alpha times cost, shape (..., m); -inf for what can no longer be reached."""
        quality, cost = self.predicted(observed, place)
        return np.where(self.mask[place], quality - alpha * cost, -np.inf)


def fit_regression(experience: Experience, *, folds: int = 5, seed: int = 0) -> Regression:
    """Fit by ridge regression, shrunk by what predictions are worth out of fold.

    At every place all workflows that can still be reached are predicted from what is seen there: what they
    have in common (how hard the question is), and how each differs from that, since only differences decide.
    How they differ is first of all what it is on average on the question's set; a gate, fitted by least
    squares, names the set of a new question. Sets of fewer than 10 questions count as one. What is left is
    regressed. A slope in [0, 1], the same for all workflows of a place, scales each regression so that it is
    calibrated on questions that it was not fitted on.

    Of workflows whose mean quality on a set lies within a standard error of the best the cheapest is the one
    to beat: every other one is worth less by the standard error of its difference to that one, so that
    nothing is paid for what may be chance (the one-standard-error rule of Breiman and others, 1984).

    Raises
    ------
    InputError
        For fewer than 10 questions.
    """
    n, tree = len(experience), experience.tree
    if n < 10:
        raise InputError(f"{n} questions are too few to learn from: give at least 10")
    p, m, d = len(tree.branches), len(tree.workflows), experience.observed.shape[2]
    fold = np.random.default_rng(seed).permutation(n) % min(folds, n)
    member = _members(experience.sets, n)
    mean, scale = np.zeros((p, d)), np.ones((p, d))
    weights, bias = np.zeros((2, p, d, m)), np.zeros((2, p, m))
    gates, experts = np.zeros((p, d + 1, member.max() + 1)), np.zeros((p, member.max() + 1, m))
    slopes, right = [], []
    for place in tree.decisions:
        x = experience.observed[:, place]
        mean[place], spread = x.mean(axis=0), x.std(axis=0)
        scale[place] = np.where(spread > 1e-9, spread, 1.0)
        z = (x - mean[place]) / scale[place]
        reached = tree.branches[place].leaves
        gates[place], told = _gate(z, member, fold)
        right.append(told)
        quality, cost = experience.quality[:, reached], experience.cost[:, reached]
        differs, doubts = _by_set(quality, cost, member)
        experts[place][:, reached] = differs - doubts
        for k, y in enumerate((quality, cost)):
            common = np.broadcast_to(y.mean(axis=1, keepdims=True), y.shape)
            rest = y - common - (differs[member] if k == 0 else 0.0)
            (alike, first, _), (apart, second, slope) = (
                _best_ridge(z, part, fold) for part in (common, rest)
            )
            weights[k, place][:, reached], bias[k, place, reached] = alike + apart, first + second
            slopes.append(slope)
    report = {"sets": float(member.max() + 1)}
    if slopes:
        report |= {"slope": float(np.mean(slopes)), "sets_told": float(np.mean(right))}
    return Regression(mean, scale, weights, bias, gates, experts, tree.mask(), report)


def _members(sets: Sequence[str], n: int) -> IntArray:
    """The number of each question's set, shape (n,): 0, 1, ..."""
    names, place, count = np.unique(np.array(sets or ("",) * n), return_inverse=True, return_counts=True)
    small = count < _FEW
    if count[small].sum() < _FEW:
        kept = np.where(small, np.argmax(count), np.arange(len(names)))
    else:
        kept = np.where(small, len(names), np.arange(len(names)))
    return np.asarray(np.unique(kept[place], return_inverse=True)[1], dtype=np.intp)


def _gate(z: FloatArray, member: IntArray, fold: IntArray) -> tuple[FloatArray, float]:
    """Weights and constants, shape (d + 1, s); and the share of sets that are named rightly out of fold."""
    belongs = np.eye(member.max() + 1)[member]
    best = (-1.0, _PENALTIES[-1])
    for penalty in _PENALTIES:
        found = np.zeros_like(belongs)
        for k in np.unique(fold):
            weights, offset = _ridge(z[fold != k], belongs[fold != k], penalty * len(z))
            found[fold == k] = z[fold == k] @ weights + offset
        best = max(best, (float((found.argmax(axis=1) == member).mean()), penalty))
    fitted, offset = _ridge(z, belongs, best[1] * len(z))
    return np.vstack([fitted, offset]), best[0]


def _by_set(quality: FloatArray, cost: FloatArray, member: IntArray) -> tuple[FloatArray, FloatArray]:
    """How workflows differ on each set from what they have in common, and the doubt; each of shape (s, m)."""
    differs, doubts = np.zeros((2, member.max() + 1, quality.shape[1]))
    for k in range(len(differs)):
        of_set = member == k
        differs[k] = (quality[of_set] - quality[of_set].mean(axis=1, keepdims=True)).mean(axis=0)
        doubts[k] = _doubt(quality[of_set], cost[of_set])
    return differs, doubts


def _best_ridge(z: FloatArray, y: FloatArray, fold: IntArray) -> tuple[FloatArray, FloatArray, float]:
    """Weights, already scaled, and means of the penalty that is best out of fold; and the slope."""
    best: tuple[float, float, float] = (np.inf, _PENALTIES[-1], 0.0)
    for penalty in _PENALTIES:
        predicted = _out_of_fold(z, y, fold, penalty * len(y))
        error, slope = _calibrated(predicted, y, fold)
        best = min(best, (error, penalty, slope))
    _, penalty, slope = best
    fitted, offset = _ridge(z, y, penalty * len(y))
    return slope * fitted, offset, slope


def _doubt(quality: FloatArray, cost: FloatArray) -> FloatArray:
    """Standard error of each workflow's difference to the one to beat, shape (m,); 0 for that one."""
    means = quality.mean(axis=0)

    def errors(place: int) -> FloatArray:
        spread = (quality - quality[:, [place]]).std(axis=0, ddof=1)
        return np.asarray(spread / np.sqrt(len(quality)), dtype=np.float64)

    best = int(np.argmax(means))
    alike = np.flatnonzero(means >= means[best] - errors(best))
    return errors(int(alike[np.argmin(cost.mean(axis=0)[alike])]))


def _ridge(z: FloatArray, y: FloatArray, penalty: float) -> tuple[FloatArray, FloatArray]:
    """Weights and means; the columns of z are centred."""
    center, offset = z.mean(axis=0), y.mean(axis=0)
    zc = z - center
    weights = np.linalg.solve(zc.T @ zc + penalty * np.eye(z.shape[1]), zc.T @ (y - offset))
    return weights, offset - center @ weights


def _out_of_fold(z: FloatArray, y: FloatArray, fold: IntArray, penalty: float) -> FloatArray:
    """Predictions for the questions of each fold, less the mean of what they were fitted on."""
    found = np.zeros_like(y)
    for k in np.unique(fold):
        train = fold != k
        weights, offset = _ridge(z[train], y[train], penalty)
        found[~train] = z[~train] @ weights + offset - y[train].mean(axis=0)
    return found


def _calibrated(predicted: FloatArray, y: FloatArray, fold: IntArray) -> tuple[float, float]:
    """Squared error out of fold after scaling, and the slope in [0, 1] that makes it least."""
    rest = np.zeros_like(y)
    for k in np.unique(fold):
        rest[fold == k] = y[fold == k] - y[fold != k].mean(axis=0)
    power = float((predicted**2).sum())
    slope = float(np.clip((predicted * rest).sum() / power, 0, 1)) if power > 1e-12 else 0.0
    return float(((rest - slope * predicted) ** 2).sum()), slope
