"""What planners learn from, and the regression: quality and cost of every workflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy  # loads scipy.stats, a second, where it is first used
from numpy.typing import ArrayLike

from mio_rag.errors import DataError, InputError
from mio_rag.learning.planner import (
    SEEN,
    CostWeights,
    FloatArray,
    IntArray,
    Ran,
    Regression,
    Tree,
    observation,
)

LEAST = 10  # questions to learn from
#: Ridge penalties, as multiples of the number of questions; the best of them is chosen out of fold.
_PENALTIES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
_FEW = 10  # questions; smaller sets count as one
_FOLDS = 5
#: With which workflows must differ on the whole, or from set to set, or they count as alike: so low, since
#: what is lost where they do differ is more than what is paid where they do not.
_SURE = 0.75


# -- what is learned from -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Experience:
    """n questions in a tree of p places and m workflows: what is seen at every place, and what it cost.

    Decoding is greedy, so rows of whole workflows give exactly what would be seen and spent at every place.

    observed: shape (n, p, d).
    step_cost: shape (n, p); what coming to a place from the one above costs, in the unit of `cost`.
    quality, cost: shape (n, m); of whole workflows.
    sets: length n or 0; the question set of each; empty: all are of one.
    """

    tree: Tree
    observed: FloatArray
    step_cost: FloatArray
    quality: FloatArray
    cost: FloatArray
    sets: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.quality)

    def where(self, kept: ArrayLike) -> Experience:
        """Return the experience of some questions."""
        rows = np.arange(len(self))[np.asarray(kept)]
        names = ("observed", "step_cost", "quality", "cost")
        sets = tuple(self.sets[row] for row in rows) if self.sets else ()
        return replace(self, sets=sets, **{name: getattr(self, name)[rows] for name in names})

    def reward(self, chosen: IntArray, alpha: float) -> FloatArray:
        """Return quality less alpha times cost of a workflow each, shape (n,)."""
        rows = np.arange(len(self))
        return np.asarray(self.quality[rows, chosen] - alpha * self.cost[rows, chosen], dtype=np.float64)


def experience_of(
    tree: Tree,
    rows: Sequence[Mapping[str, Any]],
    ids: Sequence[str],
    features: FloatArray,
    *,
    cost: str = "tokens",
    unit: float,
    weights: CostWeights | None = None,
) -> Experience:
    """Return the experience in rows that `collect_outcomes` wrote, of questions with these features, (n, k).

    unit: how much of `cost`, tokens or dollars, counts as a cost of 1; weights: what else a cost is made of.

    Raises `DataError` if rows are missing, damaged, or were made by other workflows.
    """
    cells = {(row["question_id"], row["action"]): row for row in rows}
    names = [workflow.name for workflow in tree.workflows]
    n, p, by = len(ids), len(tree.branches), weights or CostWeights()

    def priced(row: Mapping[str, Any]) -> float:
        if row[cost] is None:
            raise ValueError(f"there is no {cost}: set the prices of models, or count tokens")
        turns = sum(float(step["signals"].get("turns", 0.0)) for step in row.get("steps", [row]))
        return by.total(float(row[cost]), turns, float(row["retrieval_calls"]), unit)

    observed, spent = np.zeros((n, p, features.shape[1] + len(SEEN) + 2)), np.zeros((n, p))
    quality, costs = np.zeros((2, n, len(names)))
    for i, name in enumerate(ids):
        try:
            each = [cells[name, action] for action in names]
            quality[i] = [row["token_f1"] or 0.0 for row in each]
            costs[i] = [priced(row) / unit for row in each]
            ways: list[list[Ran]] = []  # steps on the way to each place; parents come first
            for branch in tree.branches:
                ways.append(list(ways[branch.parent]) if branch.parent >= 0 else [])
                if branch.node is not None:
                    leaf, depth = branch.node
                    found = each[leaf]["steps"][depth]
                    if found["signature"] != tree.signatures[leaf][depth]:
                        raise ValueError(f"it was answered by another workflow named '{names[leaf]}'")
                    dropped = found["dropped"] is not None
                    ways[-1].append((found["do"], found["signals"], dropped, priced(found)))
                observed[i, branch.place] = observation(features[i], ways[-1], unit)
                # The cost of a whole workflow includes a fallback, if there was one.
                so_far = sum(one[3] for one in ways[-1]) / unit
                spent[i, branch.place] = so_far if branch.ends is None else costs[i, branch.ends]
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise DataError(
                f"the outcomes of question '{name}' are damaged or incomplete ({error}): run `mio-rag policy "
                "fit planner` again, in a new folder"
            ) from error
    sets = tuple(str(cells[i, names[0]]["set"]) for i in ids)
    step_cost = spent - spent[:, [max(branch.parent, 0) for branch in tree.branches]]
    return Experience(tree, observed, step_cost, quality, costs, sets)


# -- regression of quality and cost -------------------------------------------------------------------------


def fit_regression(experience: Experience) -> Regression:
    """Fit by ridge regression, shrunk by how well predictions do out of fold.

    Outcomes of single questions are noisy; which question set a question comes from is far easier to learn,
    and sets differ in what they need. So a gate, fitted by least squares, names the set that a question looks
    like, and workflows are judged by how they did on that set (a mixture of experts with a hard gate; Jacobs
    and others, Neural Computation 3, 1991), drawn towards how they did on all sets as far as sets hardly
    differ (empirical Bayes; DerSimonian and Laird, Controlled Clinical Trials 7, 1986). Where workflows
    differ no more than in three of four tables of chance alone, they count as alike, and the cheapest is
    chosen. Sets of fewer than 10 questions count as one.

    At every place the workflows that can still be reached are predicted from what is seen there: what they
    have in common (how hard the question is), and how each differs from that. A slope in [0, 1], the same for
    all workflows of a place, calibrates each regression on questions that it was not fitted on.

    Raises `InputError` for fewer than 10 questions.
    """
    n, tree = len(experience), experience.tree
    if n < LEAST:
        raise InputError(f"{n} questions are too few to learn from: give at least {LEAST}")
    p, m, d = len(tree.branches), len(tree.workflows), experience.observed.shape[2]
    fold = np.random.default_rng(0).permutation(n) % _FOLDS
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
        gates[place], share = _gate(z, member, fold)
        right.append(share)
        quality, cost = experience.quality[:, reached], experience.cost[:, reached]
        differs, likely = _by_set(quality, member)
        experts[place][:, reached] = likely
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


def no_regression(experience: Experience) -> Regression:
    """Return one that thinks the same of everything."""
    tree = experience.tree
    p, m, d = len(tree.branches), len(tree.workflows), experience.observed.shape[2]
    zeros = np.zeros((2, p, d, m)), np.zeros((2, p, m)), np.zeros((p, d + 1, 1)), np.zeros((p, 1, m))
    return Regression(np.zeros((p, d)), np.ones((p, d)), *zeros, tree.mask())


def _members(sets: Sequence[str], n: int) -> IntArray:
    """The number of each question's set, shape (n,): 0, 1, ..."""
    names, place, count = np.unique(np.array(sets or ("",) * n), return_inverse=True, return_counts=True)
    small = count < _FEW
    joins = len(names) if count[small].sum() >= _FEW else np.argmax(count)
    kept = np.where(small, joins, np.arange(len(names)))
    return np.asarray(np.unique(kept[place], return_inverse=True)[1], dtype=np.intp)


def _gate(z: FloatArray, member: IntArray, fold: IntArray) -> tuple[FloatArray, float]:
    """Weights and constants, shape (d + 1, s); and the share of sets that are named rightly out of fold."""
    belongs, tried = np.eye(member.max() + 1)[member], list[tuple[float, float]]()
    for penalty in _PENALTIES:
        found, _ = _out_of_fold(z, belongs, fold, penalty * len(z))
        tried.append((float((found.argmax(axis=1) == member).mean()), penalty))
    share, penalty = max(tried)
    fitted, offset = _ridge(z, belongs, penalty * len(z))
    return np.vstack([fitted, offset]), share


def _by_set(quality: FloatArray, member: IntArray) -> tuple[FloatArray, FloatArray]:
    """How workflows differ on each set from what they have in common: measured, and likely; (s, m) each."""
    apart = quality - quality.mean(axis=1, keepdims=True)
    measured, count = _means(apart, member), np.bincount(member)[:, None]
    if _alike(apart, member) and _alike(apart, np.zeros_like(member)):
        return measured, np.zeros_like(measured)
    scatter = ((apart - measured[member]) ** 2).sum(axis=0) / (len(apart) - len(count))
    error = np.maximum(scatter / count, 1e-12)
    spread = np.zeros(measured.shape[1])  # the variance of means beyond that of their errors
    if len(measured) > 1:
        weight, total = 1 / error, (1 / error).sum(axis=0)
        center = (weight * measured).sum(axis=0) / total
        excess = (weight * (measured - center) ** 2).sum(axis=0) - (len(measured) - 1)
        spread = np.maximum(0.0, excess / (total - (weight**2).sum(axis=0) / total))
    weight = 1 / (spread + error)
    overall = (weight * measured).sum(axis=0) / weight.sum(axis=0)
    return measured, overall + spread / (spread + error) * (measured - overall)


def _means(values: FloatArray, member: IntArray) -> FloatArray:
    return np.stack([values[member == k].mean(axis=0) for k in range(member.max() + 1)])


def _alike(apart: FloatArray, member: IntArray) -> bool:
    """Whether chance explains how workflows differ, on all sets together.

    By the Hotelling-Lawley trace and its F approximation (McKeon, Biometrika 61, 1974). False where questions
    are too few to tell.
    """
    count, measured = np.bincount(member), _means(apart, member)
    rest = apart - measured[member]
    scatter = rest.T @ rest
    n, p, q = len(apart) - len(count), int(np.linalg.matrix_rank(scatter, hermitian=True)), len(count)
    if p == 0:
        return not np.abs(measured).max() > 1e-12
    if n < p + 4:
        return False
    inverse = np.linalg.pinv(scatter, hermitian=True)
    trace = float((count * np.einsum("kj,jl,kl->k", measured, inverse, measured)).sum())
    b = (n + q - p - 1) * (n - 1) / ((n - p - 3) * (n - p))
    d = 4 + (p * q + 2) / (b - 1)
    return trace < p * q * (d - 2) / (d * (n - p - 1)) * scipy.stats.f.ppf(_SURE, p * q, d)


def _best_ridge(z: FloatArray, y: FloatArray, fold: IntArray) -> tuple[FloatArray, FloatArray, float]:
    """Weights, already scaled, and means of the penalty that is best out of fold; and the slope in [0, 1].

    The slope is 0 where the errors out of fold are not smaller than without weights by a standard error:
    among several penalties one does better by chance.
    """
    tried = []
    for penalty in _PENALTIES:
        predicted, means = _out_of_fold(z, y, fold, penalty * len(z))
        change, rest = predicted - means, y - means
        power = float((change**2).sum())
        slope = float(np.clip((change * rest).sum() / power, 0, 1)) if power > 1e-12 else 0.0
        error = ((rest - slope * change) ** 2).sum(axis=1)
        tried.append((float(error.sum()), penalty, slope, (rest**2).sum(axis=1) - error))
    _, penalty, slope, saved = min(tried, key=lambda one: one[:3])
    fitted, offset = _ridge(z, y, penalty * len(z))
    if slope == 0.0 or saved.mean() <= saved.std(ddof=1) / np.sqrt(len(saved)):
        return np.zeros_like(fitted), y.mean(axis=0), 0.0
    return slope * fitted, offset, slope


def _ridge(z: FloatArray, y: FloatArray, penalty: float) -> tuple[FloatArray, FloatArray]:
    """Weights and means; the columns of z are centred."""
    center, offset = z.mean(axis=0), y.mean(axis=0)
    zc = z - center
    weights = np.linalg.solve(zc.T @ zc + penalty * np.eye(z.shape[1]), zc.T @ (y - offset))
    return weights, offset - center @ weights


def _out_of_fold(
    z: FloatArray, y: FloatArray, fold: IntArray, penalty: float
) -> tuple[FloatArray, FloatArray]:
    """Predictions for the questions of each fold, and the means of what they were fitted on."""
    found, means = np.zeros((2, *y.shape))
    for k in np.unique(fold):
        train = fold != k
        weights, offset = _ridge(z[train], y[train], penalty)
        found[~train], means[~train] = z[~train] @ weights + offset, y[train].mean(axis=0)
    return found, means
