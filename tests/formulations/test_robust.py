from __future__ import annotations

import numpy as np
import pytest

from mio_rag.errors import InputError
from mio_rag.formulations import NormBall, nominal_program, termwise_program
from mio_rag.solvers import solve

NORMS = {"l2": 2, "l1": 1, "linf": np.inf}
WEIGHTS = {"redundancy_weight": 0.4, "passage_penalty": 0.05, "token_price": 0.001}


def unit(rng: np.random.Generator, *shape: int) -> np.ndarray:
    raw = rng.normal(size=shape)
    return raw / np.linalg.norm(raw, axis=-1, keepdims=True)


def true_objective(mu, q, costs, x) -> float:
    """The objective with embeddings mu, by its formula."""
    chosen = np.flatnonzero(x)
    value = sum(mu[i] @ q - WEIGHTS["passage_penalty"] - WEIGHTS["token_price"] * costs[i] for i in chosen)
    return value - WEIGHTS["redundancy_weight"] * sum(mu[i] @ mu[j] for i in chosen for j in chosen if i < j)


def worst_direction(g: np.ndarray, norm: str) -> np.ndarray:
    """The perturbation of norm 1 that lowers a linear function with gradients g (rows) most."""
    if norm == "l2":
        return -g / np.maximum(np.linalg.norm(g, axis=1, keepdims=True), 1e-12)
    if norm == "linf":
        return -np.sign(g)
    delta = np.zeros_like(g)
    k = np.argmax(np.abs(g), axis=1)
    rows = np.arange(len(g))
    delta[rows, k] = -np.sign(g[rows, k])
    return delta


def attack(mu, q, x, radii, norm: str, rng: np.random.Generator) -> np.ndarray:
    """Block-coordinate descent on the perturbations of the chosen passages, from a random start."""
    raw = rng.normal(size=mu.shape)
    delta = radii[:, None] * raw / np.linalg.norm(raw, ord=NORMS[norm], axis=1, keepdims=True)
    on = np.asarray(x, dtype=bool)
    for _ in range(4):
        for i in np.flatnonzero(on):
            others = on.copy()
            others[i] = False
            gradient = q - WEIGHTS["redundancy_weight"] * (mu + delta)[others].sum(axis=0)
            delta[i] = radii[i] * worst_direction(gradient[None], norm)[0]
    return delta


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("per_passage", [False, True])
def test_no_perturbation_beats_the_certificate(norm: str, per_passage: bool) -> None:
    rng = np.random.default_rng(3)
    closest = np.inf
    for _ in range(8):
        n, d = 6, int(rng.integers(2, 6))
        mu, q, costs = unit(rng, n, d), unit(rng, d), rng.integers(5, 90, n)
        radius = rng.uniform(0, 0.4, n) if per_passage else 0.15
        radii = np.broadcast_to(radius, (n,))
        program = termwise_program(mu @ q, mu, q, costs, 1000, NormBall(radius, norm), **WEIGHTS)
        for _ in range(8):
            x = (rng.random(n) < 0.6).astype(int)
            certificate = program.objective(x)
            for _ in range(30):
                raw = rng.normal(size=mu.shape) ** 3
                length = np.linalg.norm(raw, ord=NORMS[norm], axis=1, keepdims=True)
                assert true_objective(mu + radii[:, None] * raw / length, q, costs, x) >= certificate - 1e-9
            for _ in range(3):
                attacked = true_objective(mu + attack(mu, q, x, radii, norm, rng), q, costs, x)
                assert attacked >= certificate - 1e-9
                closest = min(closest, attacked - certificate)
    assert closest < 0.05  # the attack is a real one: it comes close to the bound somewhere


def test_two_passages_by_hand() -> None:
    """mu_1 = (1, 0), mu_2 = (0.6, 0.8), q = (1, 0), l2 radius 0.1 and 0.2."""
    program = termwise_program(
        [1.0, 0.6], [[1, 0], [0.6, 0.8]], [1, 0], [3, 4], 10, NormBall([0.1, 0.2]), redundancy_weight=0.5
    )
    assert program.linear == pytest.approx([1 - 0.1, 0.6 - 0.2])
    # s = 0.6, plus h_1(mu_2) = 0.1, plus h_2(mu_1) = 0.2, plus 0.1 * 0.2
    assert program.pairwise[0, 1] == pytest.approx(0.5 * (0.6 + 0.1 + 0.2 + 0.02))
    assert program.objective([1, 1]) == pytest.approx(0.9 + 0.4 - 0.46)


@pytest.mark.parametrize("norm", NORMS)
def test_radius_zero_is_nominal_and_any_other_is_below(norm: str) -> None:
    rng = np.random.default_rng(5)
    mu, q, costs = unit(rng, 9, 6), unit(rng, 6), rng.integers(10, 60, 9)
    nominal = nominal_program(mu @ q, mu @ mu.T, costs, 150, **WEIGHTS)
    last = np.inf
    for radius in (0.0, 0.05, 0.2):
        robust = termwise_program(mu @ q, mu, q, costs, 150, NormBall(radius, norm), **WEIGHTS)
        if radius == 0:
            assert robust.linear == pytest.approx(nominal.linear)
            assert robust.pairwise == pytest.approx(nominal.pairwise)
        assert np.all(robust.linear <= nominal.linear + 1e-12)
        assert np.all(robust.pairwise >= nominal.pairwise - 1e-12)
        optimum = solve(robust).objective
        assert optimum <= last + 1e-9
        last = optimum


def test_rounding_of_float32_products_is_not_asymmetry() -> None:
    vectors = unit(np.random.default_rng(6), 5, 64).astype(np.float32)
    noisy = (vectors @ vectors.T).astype(np.float64)
    noisy[0, 1] += 1e-7
    program = nominal_program(np.ones(5), noisy, np.ones(5), 3, redundancy_weight=0.5)
    assert np.array_equal(program.pairwise, program.pairwise.T)


@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        (([1.0], None, [1]), {"redundancy_weight": 0.1}, "redundancy_weight=0.1 needs embeddings"),
        (([1.0], None, [1]), {"passage_penalty": -1}, "passage_penalty=-1 must be a number from 0 to"),
        (([1.0], None, [1]), {"token_price": float("nan")}, "token_price=nan"),
        (([1.0], None, [1, 2]), {}, r"relevance has shape \(1,\) and costs \(2,\)"),
        (([1.0, 1.0], [[0, 0.9], [0.1, 0]], [1, 2]), {"redundancy_weight": 1}, "not symmetric"),
        (([1.0, 1.0], [[0.0]], [1, 2]), {"redundancy_weight": 1}, "pairwise has shape"),
    ],
)
def test_nominal_refuses(arguments, settings, message: str) -> None:
    with pytest.raises(InputError, match=message):
        nominal_program(*arguments, 5, **settings)


@pytest.mark.parametrize(
    ("relevance", "mu", "q", "message"),
    [
        ([1.0], [[1.0], [2.0]], [1.0], r"embeddings has shape \(2, 1\), expected \(1, d\)"),
        ([1.0], [[1.0, 0.0]], [1.0], r"query_embedding has shape \(1,\), expected \(2,\)"),
        ([[1.0]], [[1.0]], [1.0], r"relevance has shape \(1, 1\)"),
    ],
)
def test_termwise_refuses(relevance, mu, q, message: str) -> None:
    with pytest.raises(InputError, match=message):
        termwise_program(relevance, mu, q, [1], 5, NormBall(0.1))
