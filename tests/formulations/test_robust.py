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


NOMINAL = (nominal_program, termwise_program)


@pytest.mark.parametrize(
    ("make", "arguments", "settings", "message"),
    [
        (0, ([1.0], None, [1], 5), {"redundancy_weight": 0.1}, "redundancy_weight=0.1 needs embeddings"),
        (0, ([1.0], None, [1], 5), {"passage_penalty": -1}, "passage_penalty=-1 must be a number from 0 to"),
        (0, ([1.0], None, [1], 5), {"token_price": float("nan")}, "token_price=nan"),
        (0, ([1.0], None, [1, 2], 5), {}, r"relevance has shape \(1,\) and costs \(2,\)"),
        (0, ([1.0, 1.0], [[0, 0.9], [0.1, 0]], [1, 2], 5), {"redundancy_weight": 1}, "not symmetric"),
        (0, ([1.0, 1.0], [[0.0]], [1, 2], 5), {"redundancy_weight": 1}, "pairwise has shape"),
        (1, ([1.0], [[1.0], [2.0]], [1.0], [1], 5, NormBall(0.1)), {}, r"embeddings .* expected \(1, d\)"),
        (1, ([1.0], [[1.0, 0.0]], [1.0], [1], 5, NormBall(0.1)), {}, r"shape \(1,\), expected \(2,\)"),
        (1, ([[1.0]], [[1.0]], [1.0], [1], 5, NormBall(0.1)), {}, r"relevance has shape \(1, 1\)"),
    ],
)
def test_malformed_input_is_refused(make: int, arguments, settings, message: str) -> None:
    with pytest.raises(InputError, match=message):
        NOMINAL[make](*arguments, **settings)
