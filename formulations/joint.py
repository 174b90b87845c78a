"""The joint robust counterpart: one perturbation of each embedding serves all terms of the objective.

For a selection S and perturbations delta the objective is

    f(S, delta) = sum_{i in S} (value_i(-q . delta_i) + rest_i) + benefits
                  - lambda_1 sum_{i<j in S} (mu_i + delta_i) . (mu_j + delta_j)

and the counterpart maximises W(S) = min_delta f(S, delta). W has no closed form, but bounds on both sides:

- any perturbations in the sets are a *scenario* s: f_s is a selection program, and f_s(S) >= W(S) for
  every S. So is any convex combination of scenarios, again a selection program (`mio_rag.solvers.cuts`).
- for a given S, with a line alpha_i - beta_i loss below each value (`relevance_value`) and
  m_i = lambda_1 sum_{j in S, j != i} mu_j,

      W(S) >= sum_i (rest_i + alpha_i - h_i(m_i - beta_i q)) - lambda_1 sum_{i<j} mu_i . mu_j
              - lambda_1 sum_{i<j} max delta_i . delta_j + benefits at the lowest values.

  The first-order part is exact for inner products. The product of two perturbations can help or hurt: this
  bound charges its maximum, and the scenario found for S shows how much of that is attained.

With a budget of Gamma deviations only the Gamma largest losses and the largest Gamma (Gamma - 1) / 2 products
count.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import InputError
from mio_rag.formulations.program import SelectionProgram
from mio_rag.formulations.relevance_value import ItemValue
from mio_rag.formulations.uncertainty import UncertaintySet

__all__ = ["JointProblem"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_SWEEPS = 12


@dataclass(frozen=True, eq=False)
class JointProblem:
    """A robust selection problem whose perturbations act on all terms at once.

    Parameters
    ----------
    value : InnerProductValue or CurveValue
        What each item is worth on its own.
    rest : ndarray, shape (n,)
        What does not move: penalties and prices, negative where they cost.
    embeddings : ndarray, shape (n, d)
    query : ndarray, shape (d,)
        Taken as exact.
    uncertainty : UncertaintySet
    redundancy_weight : float
        lambda_1 >= 0.
    benefit : ndarray, shape (n, n), or None
        Symmetric weights >= 0: choosing both i and j gains weight * max(value_i, value_j, 0).
    assemble : callable
        (linear (n,), pairwise (n, n)) -> SelectionProgram with budget and rows; items that it adds behind the
        first n are not perturbed.

    Raises
    ------
    InputError
        If shapes do not fit.
    """

    value: ItemValue
    rest: FloatArray
    embeddings: FloatArray
    query: FloatArray
    uncertainty: UncertaintySet
    redundancy_weight: float
    benefit: FloatArray | None
    assemble: Callable[[FloatArray, FloatArray], SelectionProgram]
    similarity: FloatArray = field(init=False)
    _alpha: FloatArray = field(init=False, repr=False)
    _beta: FloatArray = field(init=False, repr=False)
    _product: FloatArray = field(init=False, repr=False)
    _lowest: FloatArray = field(init=False, repr=False)
    _bare: SelectionProgram = field(init=False, repr=False)

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "embeddings", np.asarray(self.embeddings, dtype=np.float64))
        put(self, "query", np.asarray(self.query, dtype=np.float64))
        n = self.n
        if self.embeddings.ndim != 2 or self.embeddings.shape[0] != n:
            raise InputError(f"embeddings has shape {self.embeddings.shape}, expected ({n}, d)")
        if self.query.shape != (self.embeddings.shape[1],):
            raise InputError(f"query has shape {self.query.shape}, expected ({self.embeddings.shape[1]},)")
        reach = self.uncertainty.support(self.query, n)
        alpha, beta = self.value.lines(reach)
        put(self, "_alpha", alpha)
        put(self, "_beta", beta)
        put(self, "_product", self.uncertainty.bilinear(n, self.query.size))
        put(self, "_lowest", self.value.at(reach))
        put(self, "_bare", self.assemble(np.zeros(n), np.zeros((n, n))))
        put(self, "similarity", self.embeddings @ self.embeddings.T)

    def reassembled(self, assemble: Callable[[FloatArray, FloatArray], SelectionProgram]) -> JointProblem:
        """The same problem with another budget or other rows; what does not depend on them is kept."""
        other = copy.copy(self)
        object.__setattr__(other, "assemble", assemble)
        object.__setattr__(other, "_bare", assemble(np.zeros(self.n), np.zeros((self.n, self.n))))
        return other

    @property
    def n(self) -> int:
        """Number of items that can be perturbed."""
        return int(self.rest.size)

    def _gain(self, value: FloatArray) -> FloatArray:
        """Benefit of every pair."""
        if self.benefit is None:
            return np.zeros((self.n, self.n))
        worth = np.maximum(value, 0.0)
        return np.asarray(self.benefit * np.maximum.outer(worth, worth))

    def scenario(self, delta: FloatArray | None = None) -> SelectionProgram:
        """The program under given perturbations, shape (n, d); without them the nominal one."""
        mu = self.embeddings if delta is None else self.embeddings + delta
        loss = np.zeros(self.n) if delta is None else -(delta @ self.query)
        value = self.value.at(loss)
        product = self.similarity if delta is None else mu @ mu.T
        pairwise = self.redundancy_weight * product - self._gain(value)
        pairwise = (pairwise + pairwise.T) / 2
        np.fill_diagonal(pairwise, 0.0)
        return self.assemble(value + self.rest, pairwise)

    def objective(self, chosen: IntArray, delta: FloatArray | None = None) -> float:
        """f(S, delta) for the chosen items, what `assemble` adds apart."""
        loss = np.zeros(self.n) if delta is None else -(delta @ self.query)
        mu = self.embeddings[chosen] if delta is None else self.embeddings[chosen] + delta[chosen]
        value = self.value.at(loss)
        total = mu.sum(axis=0)
        pairs = 0.5 * (float(total @ total) - float(np.einsum("ij,ij->", mu, mu)))
        gain = 0.0
        if self.benefit is not None and chosen.size:
            gain = 0.5 * float(self._gain(value)[np.ix_(chosen, chosen)].sum())
        return float((value + self.rest)[chosen].sum()) - self.redundancy_weight * pairs + gain

    def lower(self, chosen: IntArray) -> float:
        """A certified lower bound on W(S), what `assemble` adds apart."""
        if not chosen.size:
            return 0.0
        mu = self.embeddings[chosen]
        cross = self.redundancy_weight * (mu.sum(axis=0) - mu)
        radii = self.uncertainty.radii(self.n)[chosen]
        best = np.full(chosen.size, -np.inf)
        for alpha, beta in zip(self._alpha[:, chosen], self._beta[:, chosen], strict=True):
            away = self.uncertainty.unit_support(cross - np.outer(beta, self.query)) * radii
            best = np.maximum(best, alpha - away)
        product = self._product[np.ix_(chosen, chosen)]
        products = product[np.triu_indices(chosen.size, 1)]
        limit = self.uncertainty.deviations
        if limit is not None and limit < chosen.size:
            # An item that does not deviate has its value at loss 0; others may still lower it through links.
            still = self._still()[chosen]
            losses = np.sort(np.maximum(still - best, 0.0))[::-1]
            best = np.append(still, -losses[:limit])
            products = np.sort(products)[::-1][: limit * (limit - 1) // 2]
        gain = 0.0
        if self.benefit is not None:
            gain = 0.5 * float(self._gain(self._lowest)[np.ix_(chosen, chosen)].sum())
        pairs = 0.5 * float(
            self.similarity[np.ix_(chosen, chosen)].sum() - self.similarity[chosen, chosen].sum()
        )
        return (
            float(best.sum())
            + float(self.rest[chosen].sum())
            - self.redundancy_weight * (pairs + float(products.sum()))
            + gain
        )

    def added(self, x: NDArray[np.int8]) -> float:
        """What `assemble` adds to the objective of a decision: prices that no perturbation moves."""
        return self._bare.objective(x)

    def interval(self, x: NDArray[np.int8]) -> tuple[float, float]:
        """Certified lower and upper bounds on the worst case of a decision of the program."""
        chosen, added = np.flatnonzero(x[: self.n]), self.added(x)
        return self.lower(chosen) + added, self.worst(chosen)[1] + added

    def _still(self) -> FloatArray:
        """Values of items that do not deviate, with all other items at their worst."""
        return self.value.apart(np.zeros(self.n))

    def worst(
        self, chosen: IntArray, *, rng: np.random.Generator | None = None, restarts: int = 0
    ) -> tuple[FloatArray, float]:
        """Perturbations that make a selection bad, by block-coordinate descent, and f there.

        Starts from the first-order worst case, and from `restarts` random points of the sets. Each block is
        minimised exactly for inner products, over the slopes of the lines for curves. Items that are not
        chosen move to where they would be worth least in this company.

        Returns
        -------
        (delta, value) : ndarray of shape (n, d), float
        """
        found = self._descend(chosen, np.zeros_like(self.embeddings))
        value = self.objective(chosen, found)
        for _ in range(restarts):
            assert rng is not None
            start = self.random(rng, chosen)
            for candidate in (start, self._descend(chosen, start)):
                reached = self.objective(chosen, candidate)
                if reached < value:
                    found, value = candidate, reached
        return found, value

    def random(self, rng: np.random.Generator, chosen: IntArray) -> FloatArray:
        """Random perturbations from the sets, most of them on their boundary."""
        delta = self.uncertainty.points(rng.normal(size=self.embeddings.shape))
        if rng.random() < 0.5:
            delta *= rng.random((self.n, 1))
        limit = self.uncertainty.deviations
        if limit is not None:
            keep = rng.permutation(chosen)[:limit]
            delta[np.setdiff1d(np.arange(self.n), keep)] = 0.0
        return delta

    def _descend(self, chosen: IntArray, delta: FloatArray) -> FloatArray:
        """Block-coordinate descent from a point."""
        delta = delta.copy()
        limit = self.uncertainty.deviations
        total = (self.embeddings[chosen] + delta[chosen]).sum(axis=0)
        others = np.setdiff1d(np.arange(self.n), chosen)
        if limit is None:
            delta[others] = self._move(others, np.broadcast_to(total, (others.size, total.size)))
        losses = np.zeros(chosen.size)
        last = np.inf
        for _ in range(_SWEEPS):
            for k, i in enumerate(chosen):
                company = total - self.embeddings[i] - delta[i]
                one = np.array([i])
                moved = self._move(one, company[None, :])[0]
                losses[k] = self._loss(int(i), company, moved)
                total += moved - delta[i]
                delta[i] = moved
            if limit is not None and limit < chosen.size:
                still = chosen[np.argsort(-losses, kind="stable")[limit:]]
                total -= delta[still].sum(axis=0)
                delta[still] = 0.0
            value = self.objective(chosen, delta)
            if value > last - 1e-12:
                break
            last = value
        return delta

    def _loss(self, i: int, company: FloatArray, delta: FloatArray) -> float:
        """What moving item i alone takes away, curves by their chord."""
        return float((self.redundancy_weight * company - self._beta[-1, i] * self.query) @ delta)

    def _move(self, items: IntArray, company: FloatArray) -> FloatArray:
        """The worst perturbation of each item, given the sum of the other chosen items' embeddings."""
        cross = self.redundancy_weight * company
        radii = self.uncertainty.radii(self.n)[items, None]
        found = np.zeros_like(cross)
        least = np.full(items.size, np.inf)
        slopes = self._beta if self._beta.shape[0] == 1 else self._beta[:: max(1, self._beta.shape[0] // 6)]
        for beta in slopes[:, items]:
            delta = radii * self.uncertainty.unit_point(cross - np.outer(beta, self.query))
            loss = np.zeros(self.n)
            loss[items] = -(delta @ self.query)
            value = self.value.apart(loss)[items] - np.einsum("ij,ij->i", cross, delta)
            better = value < least
            found[better], least[better] = delta[better], value[better]
        return found
