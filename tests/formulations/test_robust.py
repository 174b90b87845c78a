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
