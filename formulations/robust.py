"""From relevance and embeddings to programs: nominal, and robust in two ways.

For items with relevance r_i, embedding mu_i and token cost c_i, a query embedding q and similarity
s_ij = mu_i . mu_j, the nominal program is

    max  sum_i (r_i - lambda_2 - lambda_3 c_i) x_i  -  lambda_1 sum_{i<j} s_ij x_i x_j

**Termwise**: every term is charged its own worst perturbation, with h the support function of the uncertainty
set (`mio_rag.formulations.uncertainty`):

    r_i  <-  r_i - h_i(q)                                    (relevance is q . mu_i, which can fall by h_i(q))
    s_ij <-  s_ij + h_i(mu_j) + h_j(mu_i) + max delta_i . delta_j

The sum is a lower bound on the worst case, in which one delta_i must serve all terms at once. With a budget
of deviations, every passage is taken to deviate here.

**Joint**: one perturbation of each embedding serves all terms. For a selection S

    f(S, delta) = sum_{i in S} (value_i(-q . delta_i) + rest_i) + benefits
                  - lambda_1 sum_{i<j in S} (mu_i + delta_i) . (mu_j + delta_j),

and the value is W(S) = min_delta f(S, delta), which has bounds on both sides. Any perturbations in the sets
are a *scenario* s: f_s is a selection program with f_s(S) >= W(S), and so is any convex combination of
scenarios (`mio_rag.solvers.paths`). With a line alpha_i - beta_i loss below each value and m_i = lambda_1
sum_{j in S, j != i} mu_j,

    W(S) >= sum_i (rest_i + alpha_i - h_i(m_i - beta_i q)) - lambda_1 sum_{i<j} mu_i . mu_j
            - lambda_1 sum_{i<j} max delta_i . delta_j + benefits at the lowest values.

The first-order part is exact for inner products; the product of two perturbations is charged its maximum.
With a budget of Gamma deviations only the Gamma largest losses and the largest Gamma (Gamma - 1) / 2 products
count.

The *loss* of an item is the fall of its inner product with the query, -q . delta_i. A value is an inner
product, r_i - loss_i, or a curve that falls as losses rise (a calibrated probability). Lines replace a curve
from below: with samples t_0 < ... < t_K of the loss the curve is at least its value at t_k+1 on [t_k, t_k+1],
so alpha = min_k value(t_k+1) + beta t_k.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mio_rag.errors import InputError
from mio_rag.formulations.numbers import LARGEST_SETTING, is_setting
from mio_rag.formulations.program import LinearConstraint, Segments, SelectionProgram, no_pairs
from mio_rag.formulations.uncertainty import UncertaintySet

FloatArray = NDArray[np.float64]


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
    segments: Segments | None = None,
) -> SelectionProgram:
    """Return the program that trusts the embeddings.

    relevance, costs (n,): r_i: value of reading each item; c_i: tokens.
    similarity (n, n): s_ij; the diagonal is ignored. None is allowed only when `redundancy_weight` is 0.
    budget: B, in tokens.
    redundancy_weight: lambda_1 >= 0. 0: passages do not compete; large: only mutually dissimilar passages.
    passage_penalty: lambda_2 >= 0, in units of relevance: what one more passage must be worth. Decides how
        many.
    token_price: lambda_3 >= 0, in units of relevance per token.
    benefit (n, n): symmetric, >= 0, in units of relevance: what two items gain when both are chosen.
    """
    weights = {"redundancy_weight": redundancy_weight, "passage_penalty": passage_penalty}
    problems = [
        f"{name}={weight!r} must be a number from 0 to {LARGEST_SETTING:g}"
        for name, weight in {**weights, "token_price": token_price}.items()
        if not is_setting(weight)
    ]
    if problems:
        raise InputError(problems)
    value = np.asarray(relevance, dtype=np.float64)
    cost = np.asarray(costs, dtype=np.float64)
    n = value.size
    if value.shape != cost.shape or value.ndim != 1:
        raise InputError(f"relevance has shape {value.shape} and costs {cost.shape}, expected (n,) for both")
    pairwise = no_pairs(n)
    if redundancy_weight > 0:
        if similarity is None:
            raise InputError(
                f"redundancy_weight={redundancy_weight:g} needs embeddings to compare passages: pass "
                "embeddings or set it to 0"
            )
        pairwise = redundancy_weight * np.asarray(similarity, dtype=np.float64)
        if pairwise.shape == (n, n):
            np.fill_diagonal(pairwise, 0.0)
            # Products of float32 rows differ in the last bits across the diagonal; the program refuses more.
            mean = (pairwise + pairwise.T) / 2
            if np.all(np.abs(pairwise - mean) <= 1e-5 * (redundancy_weight + np.abs(mean))):
                pairwise = mean
    if benefit is not None:
        gain = np.array(benefit, dtype=np.float64)
        if gain.shape != (n, n) or not np.all(gain >= 0):
            raise InputError(f"benefit has shape {gain.shape}, expected ({n}, {n}) without negative entries")
        np.fill_diagonal(gain, 0.0)
        pairwise = pairwise - gain
    if pairwise.shape == (n, n):
        pairwise.flags.writeable = False  # nobody else's: the program need not copy it
    marks = None if fixed is None else np.asarray(fixed)
    values = value - passage_penalty - token_price * cost
    return SelectionProgram(values, pairwise, cost, budget, tuple(rows), marks, segments)


def worst_similarity(embeddings: ArrayLike, uncertainty: UncertaintySet) -> FloatArray:
    """Return the largest value of each inner product mu_i . mu_j over the uncertainty set, shape (n, n)."""
    mu = np.asarray(embeddings, dtype=np.float64)
    n = mu.shape[0]
    loss = uncertainty.support(mu, n)  # loss[j, i] = h_i(mu_j)
    if uncertainty.deviations == 1:  # one of the two stays where it is
        return np.asarray(mu @ mu.T + np.maximum(loss, loss.T))
    return np.asarray(mu @ mu.T + loss + loss.T + uncertainty.bilinear(n, mu.shape[1]))


def termwise_program(
    relevance: ArrayLike,
    embeddings: ArrayLike,
    query_embedding: ArrayLike,
    costs: ArrayLike,
    budget: float,
    uncertainty: UncertaintySet,
    **settings: Any,
) -> SelectionProgram:
    """Return the termwise robust counterpart: safe against every perturbation in the set.

    relevance (n,): q . mu_i, or any score that falls by at most the fall of that inner product.
    embeddings (n, d): mu_i, which may really lie anywhere in the uncertainty set around it.
    query_embedding (d,): q, taken as exact.
    costs, budget, settings: as in `nominal_program` (without `benefit`); with radius 0 both are the same.
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
    worst = value - uncertainty.support(q, n), worst_similarity(mu, uncertainty)
    return nominal_program(*worst, costs, budget, **settings)


_SAMPLES = 513
_SLOPES = 24


@dataclass(frozen=True, eq=False)
class InnerProductValue:
    """Values that fall by exactly the loss."""

    nominal: FloatArray

    def at(self, loss: FloatArray) -> FloatArray:
        """Value of every item, all losses at once."""
        return self.nominal - loss

    apart = at  # others at their worst: they do not matter

    def lines(self, reach: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(alpha, beta), shapes (1, n): the value itself."""
        return self.nominal[None, :], np.ones((1, self.nominal.size))


@dataclass(frozen=True, eq=False)
class CurveValue:
    """Values that fall as losses rise.

    `function` maps losses (n,) to values (n,). `alone` maps losses (K, n) of items, all others at their
    worst, to lower bounds (K, n) on their values, which fall as the losses rise.
    """

    function: Callable[[FloatArray], FloatArray]
    alone: Callable[[FloatArray], FloatArray]

    def at(self, loss: FloatArray) -> FloatArray:
        """Value of every item, all losses at once."""
        return self.function(loss)

    def apart(self, loss: FloatArray) -> FloatArray:
        """Value of every item, others at their worst."""
        return np.asarray(self.alone(loss[None, :])[0])

    def lines(self, reach: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(alpha, beta), shapes (K, n): lines below the curve wherever |loss| <= reach, shape (n,)."""
        t = np.linspace(-1.0, 1.0, _SAMPLES)[:, None] * reach
        value = self.alone(t)
        left, floor = np.vstack([t[:-1], t[-1:]]), np.vstack([value[1:], value[-1:]])
        # A reach that underflows when it is shared out is as good as none: the curve is flat there.
        width = 2 * reach / (_SAMPLES - 1)
        width = np.where(width > 0, width, 1.0)
        steep = (value[:-1] - value[1:]) / width
        share = np.linspace(0.0, 1.0, _SLOPES - 1)[:, None]
        beta = steep.min(axis=0) + share * (steep.max(axis=0) - steep.min(axis=0))
        chord = (value[0] - value[-1]) / np.where(reach > 0, 2 * reach, 1.0)
        beta = np.maximum(np.vstack([beta, chord[None, :]]), 0.0)
        alpha = np.stack([(floor + slope * left).min(axis=0) for slope in beta])
        return alpha, beta


ItemValue = InnerProductValue | CurveValue
IntArray = NDArray[np.int64]
_SWEEPS = 12


@dataclass(frozen=True, eq=False)
class JointProblem:
    """A robust selection problem whose perturbations act on all terms at once.

    rest (n,): what does not move of the items' values: penalties and prices, negative where they cost.
    embeddings, query (n, d) and (d,): the query is taken as exact.
    redundancy_weight: lambda_1 >= 0.
    benefit (n, n): symmetric weights >= 0: choosing both i and j gains weight * max(value_i, value_j, 0).
    assemble: (linear (n,), pairwise (n, n)) -> SelectionProgram with budget and rows; items that it adds
        behind the first n are not perturbed.
    """

    value: ItemValue
    rest: FloatArray
    embeddings: FloatArray
    query: FloatArray
    uncertainty: UncertaintySet
    redundancy_weight: float
    benefit: FloatArray | None
    assemble: Callable[[FloatArray, FloatArray], SelectionProgram]

    def __post_init__(self) -> None:
        mu, q = (np.asarray(given, dtype=np.float64) for given in (self.embeddings, self.query))
        n = self.n
        if mu.ndim != 2 or mu.shape[0] != n:
            raise InputError(f"embeddings has shape {mu.shape}, expected ({n}, d)")
        if q.shape != (mu.shape[1],):
            raise InputError(f"query has shape {q.shape}, expected ({mu.shape[1]},)")
        self.__dict__.update(embeddings=mu, query=q)

    @cached_property
    def similarity(self) -> FloatArray:
        """Inner products of the embeddings."""
        return np.asarray(self.embeddings @ self.embeddings.T)

    @cached_property
    def _lines(self) -> tuple[FloatArray, FloatArray]:
        return self.value.lines(self.uncertainty.support(self.query, self.n))

    @cached_property
    def _product(self) -> FloatArray:
        return self.uncertainty.bilinear(self.n, self.query.size)

    @cached_property
    def _lowest(self) -> FloatArray:
        return self.value.at(self.uncertainty.support(self.query, self.n))

    @cached_property
    def _bare(self) -> SelectionProgram:
        return self.assemble(np.zeros(self.n), np.zeros((self.n, self.n)))

    def reassembled(self, assemble: Callable[[FloatArray, FloatArray], SelectionProgram]) -> JointProblem:
        """The same problem with another budget or other rows; what does not depend on them is kept."""
        for name in ("similarity", "_lines", "_product", "_lowest"):
            getattr(self, name)
        other = copy.copy(self)
        other.__dict__["assemble"] = assemble
        other.__dict__.pop("_bare", None)
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
        if delta is None:
            value, product = self.value.at(np.zeros(self.n)), self.similarity
        else:
            mu = self.embeddings + delta
            value, product = self.value.at(-(delta @ self.query)), mu @ mu.T
        pairwise = self.redundancy_weight * product - self._gain(value)
        pairwise = (pairwise + pairwise.T) / 2
        np.fill_diagonal(pairwise, 0.0)
        return self.assemble(value + self.rest, pairwise)

    def objective(self, chosen: IntArray, delta: FloatArray | None = None) -> float:
        """f(S, delta) for the chosen items, what `assemble` adds apart."""
        delta = np.zeros_like(self.embeddings) if delta is None else delta
        mu = self.embeddings[chosen] + delta[chosen]
        value = self.value.at(-(delta @ self.query))
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
        for alpha, beta in zip(*(lines[:, chosen] for lines in self._lines), strict=True):
            away = self.uncertainty.unit_support(cross - np.outer(beta, self.query)) * radii
            best = np.maximum(best, alpha - away)
        product = self._product[np.ix_(chosen, chosen)]
        products = product[np.triu_indices(chosen.size, 1)]
        limit = self.uncertainty.deviations
        if limit is not None and limit < chosen.size:
            # An item that does not deviate has its value at loss 0; others may still lower it through links.
            still = self.value.apart(np.zeros(self.n))[chosen]
            losses = np.sort(np.maximum(still - best, 0.0))[::-1]
            best = np.append(still, -losses[:limit])
            products = np.sort(products)[::-1][: limit * (limit - 1) // 2]
        gain = 0.0
        if self.benefit is not None:
            gain = 0.5 * float(self._gain(self._lowest)[np.ix_(chosen, chosen)].sum())
        pairs = 0.5 * float(
            self.similarity[np.ix_(chosen, chosen)].sum() - self.similarity[chosen, chosen].sum()
        )
        values = float(best.sum()) + float(self.rest[chosen].sum())
        return values - self.redundancy_weight * (pairs + float(products.sum())) + gain

    def added(self, x: NDArray[np.int8]) -> float:
        """What `assemble` adds to the objective of a decision: prices that no perturbation moves."""
        return self._bare.objective(x)

    def interval(self, x: NDArray[np.int8]) -> tuple[float, float]:
        """Certified lower and upper bounds on the worst case of a decision of the program."""
        chosen, added = np.flatnonzero(x[: self.n]), self.added(x)
        return self.lower(chosen) + added, self.worst(chosen)[1] + added

    def worst(
        self, chosen: IntArray, *, rng: np.random.Generator | None = None, restarts: int = 0
    ) -> tuple[FloatArray, float]:
        """Return perturbations (n, d) that make a selection bad, by block-coordinate descent, and f there.

        Starts from the first-order worst case, and from `restarts` random points. Each block is minimised
        exactly for inner products, over the slopes of the lines for curves. Items that are not chosen move to
        where they would be worth least in this company.
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
                # what moving this item alone takes away, curves by their chord
                chord = self.redundancy_weight * company - self._lines[1][-1, i] * self.query
                losses[k] = float(chord @ moved)
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

    def _move(self, items: IntArray, company: FloatArray) -> FloatArray:
        """The worst perturbation of each item, given the sum of the other chosen items' embeddings."""
        cross = self.redundancy_weight * company
        radii = self.uncertainty.radii(self.n)[items, None]
        found = np.zeros_like(cross)
        least = np.full(items.size, np.inf)
        slopes = self._lines[1]
        for beta in slopes[:: max(1, slopes.shape[0] // 6), items]:
            delta = radii * self.uncertainty.unit_point(cross - np.outer(beta, self.query))
            loss = np.zeros(self.n)
            loss[items] = -(delta @ self.query)
            value = self.value.apart(loss)[items] - np.einsum("ij,ij->i", cross, delta)
            better = value < least
            found[better], least[better] = delta[better], value[better]
        return found
