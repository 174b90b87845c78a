from __future__ import annotations

import math

import numpy as np
import pytest

from mio_rag.errors import InputError
from mio_rag.formulations import NormBall

NORMS = {"l2": 2, "l1": 1, "linf": np.inf}


def sample(rng: np.random.Generator, norm: str, d: int, count: int) -> np.ndarray:
    """Perturbations on the surface of the unit ball."""
    raw = rng.normal(size=(count, d)) ** 3
    return raw / np.linalg.norm(raw, ord=NORMS[norm], axis=1, keepdims=True)


def maximiser(a: np.ndarray, norm: str) -> np.ndarray:
    """A perturbation of norm 1 that attains the support function."""
    if norm == "l2":
        return a / np.linalg.norm(a)
    if norm == "linf":
        return np.sign(a)
    delta = np.zeros_like(a)
    k = int(np.argmax(np.abs(a)))
    delta[k] = np.sign(a[k])
    return delta


@pytest.mark.parametrize("norm", NORMS)
def test_support_is_the_maximum_over_the_ball(norm: str) -> None:
    rng = np.random.default_rng(1)
    for d in (1, 3, 8):
        a, radii = rng.normal(size=d), np.array([0.0, 0.3, 2.0])
        h = NormBall(radii, norm).support(a, 3)
        reached = float((sample(rng, norm, d, 4000) @ a).max())
        for radius, bound in zip(radii, h, strict=True):
            assert radius * reached <= bound + 1e-12
            assert bound == pytest.approx(radius * float(maximiser(a, norm) @ a))


@pytest.mark.parametrize(("norm", "expected"), [("l2", 5.0), ("l1", 4.0), ("linf", 7.0)])
def test_support_by_hand(norm: str, expected: float) -> None:
    assert NormBall(2.0, norm).support([3.0, -4.0], 2).tolist() == [2 * expected] * 2


def test_support_of_rows() -> None:
    h = NormBall([1.0, 2.0]).support([[3.0, 4.0], [0.0, 1.0], [0.0, 0.0]], 2)
    assert h.tolist() == [[5.0, 10.0], [1.0, 2.0], [0.0, 0.0]]


@pytest.mark.parametrize("norm", NORMS)
def test_bilinear_bound_holds_and_is_attained(norm: str) -> None:
    rng, d = np.random.default_rng(2), 4
    ball = NormBall([0.5, 3.0], norm)
    bound = ball.bilinear(2, d)[0, 1]
    left, right = 0.5 * sample(rng, norm, d, 3000), 3.0 * sample(rng, norm, d, 3000)
    assert float((left * right).sum(axis=1).max()) <= bound + 1e-12
    worst = maximiser(np.array([1.0, 1.0, 1.0, 1.0]), norm)
    assert 0.5 * 3.0 * float(worst @ worst) == pytest.approx(bound)


@pytest.mark.parametrize(
    ("radius", "norm", "message"),
    [
        (-0.1, "l2", "must be from 0 to"),
        (math.nan, "l2", "must be from 0 to"),
        ([0.1, math.inf], "l2", "must be from 0 to"),
        ([[0.1]], "l2", r"radius has shape \(1, 1\)"),
        (0.1, "l3", "norm='l3' is unknown"),
    ],
)
def test_bad_sets_are_refused(radius, norm, message: str) -> None:
    with pytest.raises(InputError, match=message):
        NormBall(radius, norm)


def test_radii_are_one_or_one_per_passage() -> None:
    assert NormBall(0.2).radii(3).tolist() == [0.2] * 3
    with pytest.raises(InputError, match="radius has 2 values, expected one number or 3"):
        NormBall([0.1, 0.2]).radii(3)
