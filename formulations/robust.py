"""From relevance and embeddings to a deterministic program.

For items with relevance r_i, embedding mu_i and token cost c_i, a query embedding q and similarity
s_ij = mu_i . mu_j, the nominal program is

    max  sum_i (r_i - lambda_2 - lambda_3 c_i) x_i  -  lambda_1 sum_{i<j} s_ij x_i x_j

and the *termwise* robust counterpart charges every term its own worst perturbation of the embeddings:

    r_i  <-  r_i - h_i(q)                                    (relevance is q . mu_i, which can fall by h_i(q))
    s_ij <-  s_ij + h_i(mu_j) + h_j(mu_i) + max delta_i . delta_j

with h the support function of the uncertainty set (`mio_rag.formulations.uncertainty`). Each term is exact on
its own; the sum is a lower bound on the true worst case, in which one delta_i must serve all terms at once,
so the counterpart is safe and conservative. With a budget of deviations, every passage is taken to deviate
here; the joint counterpart (`mio_rag.formulations.joint`) uses it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mio_rag.errors import InputError
from mio_rag.formulations.numbers import LARGEST_SETTING, is_setting
from mio_rag.formulations.program import LinearConstraint, SelectionProgram
from mio_rag.formulations.uncertainty import UncertaintySet

__all__ = ["nominal_program", "termwise_program", "worst_similarity"]

FloatArray = NDArray[np.float64]


def _nonnegative(**weights: float) -> None:
    problems = [
        f"{name}={value!r} must be a number from 0 to {LARGEST_SETTING:g}"
        for name, value in weights.items()
        if not is_setting(value)
    ]
    if problems:
        raise InputError(problems)


def nominal_program(
    relevance: ArrayLike,
    similarity: ArrayLike | None,
    costs: ArrayLike,
    budget: float,
    *,
    redundancy_weight: float = 0.0,
    passage_penalty: float = 0.0,
    token_price: float = 0.0,
    benefit: ArrayLike | None = None,
    rows: Sequence[LinearConstraint] = (),
    fixed: Sequence[int] | NDArray[np.int8] | None = None,
) -> SelectionProgram:
    """The program that trusts the embeddings.

    Parameters
    ----------
    relevance : array_like, shape (n,)
        r_i: value of reading each item.
    similarity : array_like, shape (n, n), or None
        s_ij; the diagonal is ignored. None is allowed only when `redundancy_weight` is 0.
    costs : array_like, shape (n,)
        c_i, in tokens.
    budget : float
        B, in tokens.
    redundancy_weight : float
        lambda_1 >= 0. 0: passages do not compete; large: only mutually dissimilar passages.
    passage_penalty : float
        lambda_2 >= 0, in units of relevance: what one more passage must be worth. Decides how many.
    token_price : float
        lambda_3 >= 0, in units of relevance per token.
    benefit : array_like, shape (n, n), optional
        Symmetric, >= 0, in units of relevance: what two items gain when both are chosen.
    rows, fixed
        Side rows and decided items, see `SelectionProgram`.

    Raises
    ------
    InputError
        For negative weights or benefits, or redundancy without similarity.
    """
    _nonnegative(
        redundancy_weight=redundancy_weight, passage_penalty=passage_penalty, token_price=token_price
    )
    value = np.asarray(relevance, dtype=np.float64)
    cost = np.asarray(costs, dtype=np.float64)
    n = value.size
    if value.shape != cost.shape or value.ndim != 1:
        raise InputError(f"relevance has shape {value.shape} and costs {cost.shape}, expected (n,) for both")
    if redundancy_weight > 0:
        if similarity is None:
            raise InputError(
                f"redundancy_weight={redundancy_weight:g} needs embeddings to compare passages: pass "
                "embeddings or set it to 0"
            )
        pairwise = redundancy_weight * np.asarray(similarity, dtype=np.float64)
        if pairwise.shape == (n, n):
            np.fill_diagonal(pairwise, 0.0)
            if not (pairwise == pairwise.T).all():
                # Products of float32 rows differ in the last bits across the diagonal; the program refuses
                # more.
                mean = (pairwise + pairwise.T) / 2
                skew = np.abs(pairwise - mean)
                if np.all(skew <= 1e-5 * (redundancy_weight + np.abs(mean))):  # not where there is a NaN
                    pairwise = mean
    else:
        pairwise = np.zeros((n, n))
    if benefit is not None:
        gain = np.array(benefit, dtype=np.float64)
        if gain.shape != (n, n) or not np.all(gain >= 0):
            raise InputError(f"benefit has shape {gain.shape}, expected ({n}, {n}) without negative entries")
        np.fill_diagonal(gain, 0.0)
        pairwise = pairwise - gain
    if pairwise.shape == (n, n):
        pairwise.flags.writeable = False  # nobody else's: the program need not copy it
    return SelectionProgram(
        linear=value - passage_penalty - token_price * cost,
        pairwise=pairwise,
        costs=cost,
        budget=budget,
        rows=tuple(rows),
        fixed=None if fixed is None else np.asarray(fixed),
    )


def worst_similarity(embeddings: ArrayLike, uncertainty: UncertaintySet) -> FloatArray:
    """Largest value of each inner product mu_i . mu_j over the uncertainty set, shape (n, n).

    h_i(mu_j) + h_j(mu_i) + max delta_i . delta_j above the nominal one.

    Parameters
    ----------
    embeddings : array_like, shape (n, d)
    """
    mu = np.asarray(embeddings, dtype=np.float64)
    n = mu.shape[0]
    loss = uncertainty.support(mu, n)  # loss[j, i] = h_i(mu_j)
    return np.asarray(mu @ mu.T + loss + loss.T + uncertainty.bilinear(n, mu.shape[1]))


def termwise_program(
    relevance: ArrayLike,
    embeddings: ArrayLike,
    query_embedding: ArrayLike,
    costs: ArrayLike,
    budget: float,
    uncertainty: UncertaintySet,
    *,
    redundancy_weight: float = 0.0,
    passage_penalty: float = 0.0,
    token_price: float = 0.0,
    rows: Sequence[LinearConstraint] = (),
    fixed: Sequence[int] | NDArray[np.int8] | None = None,
) -> SelectionProgram:
    """The termwise robust counterpart: safe against every perturbation in the set.

    Parameters
    ----------
    relevance : array_like, shape (n,)
        q . mu_i, or any score that falls by at most the fall of that inner product.
    embeddings : array_like, shape (n, d)
        mu_i, one row per item.
    query_embedding : array_like, shape (d,)
        q, taken as exact.
    uncertainty : UncertaintySet
        Where each mu_i may really lie.
    costs, budget, redundancy_weight, passage_penalty, token_price, rows, fixed
        As in `nominal_program`; with radius 0 both programs are the same.

    Raises
    ------
    InputError
        For shapes that do not fit, or weights below 0.
    """
    mu = np.asarray(embeddings, dtype=np.float64)
    q = np.asarray(query_embedding, dtype=np.float64)
    value = np.asarray(relevance, dtype=np.float64)
    n = value.size
    if value.ndim != 1:
        raise InputError(f"relevance has shape {value.shape}, expected (n,)")
    if mu.ndim != 2 or mu.shape[0] != n:
        raise InputError(f"embeddings has shape {mu.shape}, expected ({n}, d)")
    if q.shape != (mu.shape[1],):
        raise InputError(f"query_embedding has shape {q.shape}, expected ({mu.shape[1]},)")
    return nominal_program(
        value - uncertainty.support(q, n),
        worst_similarity(mu, uncertainty),
        costs,
        budget,
        redundancy_weight=redundancy_weight,
        passage_penalty=passage_penalty,
        token_price=token_price,
        rows=rows,
        fixed=fixed,
    )
