"""The exact rival: quality and cost of every workflow regressed on what is seen; the best of Q - alpha C.

One model serves every alpha. For a question, the predicted cost of what is chosen can only fall as alpha
rises: a line in alpha for each workflow, and the upper envelope of lines is convex.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mio_rag.control.planner.experience import Experience
from mio_rag.errors import InputError

__all__ = ["Regression", "fit_regression"]

FloatArray = NDArray[np.float64]

#: Ridge penalties, as multiples of the number of questions; the best of them is chosen out of fold.
_PENALTIES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)


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
    mask : array of bool, shape (p, m)
        Workflows that can still be reached.
    """

    mean: FloatArray
    scale: FloatArray
    weights: FloatArray
    bias: FloatArray
    mask: NDArray[np.bool_]
    report: dict[str, float] = field(default_factory=dict)

    def predicted(self, observed: FloatArray, place: int) -> tuple[FloatArray, FloatArray]:
        """Quality and cost of every workflow, each of shape (..., m)."""
        x = (observed - self.mean[place]) / self.scale[place]
        quality, cost = (x @ self.weights[k, place] + self.bias[k, place] for k in (0, 1))
        return quality, np.maximum(cost, 0.0)

    def worth(self, observed: FloatArray, place: int, alpha: float) -> FloatArray:
        """Predicted quality less alpha times cost, shape (..., m); -inf for what can no longer be reached."""
        quality, cost = self.predicted(observed, place)
        return np.where(self.mask[place], quality - alpha * cost, -np.inf)


def fit_regression(experience: Experience, *, folds: int = 5, seed: int = 0) -> Regression:
    """Fit by ridge regression, shrunk by what predictions are worth out of fold.

    At every place all workflows that can still be reached are predicted from what is seen there: what they
    have in common (how hard the question is), and how each differs from that, since only differences decide.
    A slope in [0, 1], the same for all workflows of a place, scales each of the two so that it is calibrated
    on questions that it was not fitted on; 0 for the differences leaves the best fixed workflow.

    Of workflows whose mean quality lies within a standard error of the best the cheapest is the one to beat:
    every other one is worth less by the standard error of its difference to that one, so that nothing is paid
    for what may be chance (the one-standard-error rule of Breiman and others, 1984).

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
    mean, scale = np.zeros((p, d)), np.ones((p, d))
    weights, bias = np.zeros((2, p, d, m)), np.zeros((2, p, m))
    slopes = []
    for place in tree.decisions:
        x = experience.observed[:, place]
        mean[place], spread = x.mean(axis=0), x.std(axis=0)
        scale[place] = np.where(spread > 1e-9, spread, 1.0)
        z = (x - mean[place]) / scale[place]
        reached = tree.branches[place].leaves
        for k, y in enumerate((experience.quality, experience.cost)):
            common = np.broadcast_to(y[:, reached].mean(axis=1, keepdims=True), (n, len(reached)))
            (alike, first, _), (apart, second, slope) = (
                _best_ridge(z, part, fold) for part in (common, y[:, reached] - common)
            )
            offset = first + second
            if k == 0:
                offset = offset - _doubt(y[:, reached], experience.cost[:, reached])
            weights[k, place][:, reached], bias[k, place, reached] = alike + apart, offset
            slopes.append(slope)
    report = {"slope": float(np.mean(slopes)) if slopes else 0.0}
    return Regression(mean, scale, weights, bias, tree.mask(), report)


def _best_ridge(z: FloatArray, y: FloatArray, fold: NDArray[np.intp]) -> tuple[FloatArray, FloatArray, float]:
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


def _out_of_fold(z: FloatArray, y: FloatArray, fold: NDArray[np.intp], penalty: float) -> FloatArray:
    """Predictions for the questions of each fold, less the mean of what they were fitted on."""
    found = np.zeros_like(y)
    for k in np.unique(fold):
        train = fold != k
        weights, offset = _ridge(z[train], y[train], penalty)
        found[~train] = z[~train] @ weights + offset - y[train].mean(axis=0)
    return found


def _calibrated(predicted: FloatArray, y: FloatArray, fold: NDArray[np.intp]) -> tuple[float, float]:
    """Squared error out of fold after scaling, and the slope in [0, 1] that makes it least."""
    rest = np.zeros_like(y)
    for k in np.unique(fold):
        rest[fold == k] = y[fold == k] - y[fold != k].mean(axis=0)
    power = float((predicted**2).sum())
    slope = float(np.clip((predicted * rest).sum() / power, 0, 1)) if power > 1e-12 else 0.0
    return float(((rest - slope * predicted) ** 2).sum()), slope
