"""The parts of the conic method that no result shows: a wrong one would only make it slow."""

import numpy as np
import pytest

from mio_rag.formulations.program import SelectionProgram
from mio_rag.solvers import relaxation
from mio_rag.solvers.presolve import Problem, presolve
from mio_rag.solvers.relaxation import dominated, first_matrix, shifted


def _symmetric(rng: np.random.Generator, m: int, positive: int) -> tuple[np.ndarray, np.ndarray]:
    """A matrix with so many positive eigenvalues, and its eigenvectors."""
    vectors = np.linalg.qr(rng.normal(size=(m, m)))[0]
    values = np.concatenate([-rng.uniform(0.2, 1, m - positive), rng.uniform(0.2, 1, positive)])
    half = 0.5 * (vectors * values) @ vectors.T
    return half + half.T, vectors


@pytest.mark.parametrize("positive", [0, 4, 10, 17, 20])
def test_parts_near_known_eigenvectors_are_right_to_first_order(positive: int) -> None:
    rng = np.random.default_rng(positive)
    target, vectors = _symmetric(rng, 20, positive)
    change = rng.normal(size=(20, 20))
    change = change + change.T
    errors = []
    for size in (0.0, 1e-4, 1e-3):
        moved = target + size * change
        exact, negative, _ = relaxation._split(moved)
        near, nearly_negative = relaxation._nearly_split(moved, vectors)
        for part in (near, nearly_negative):
            assert np.array_equal(part, part.T)
        assert np.allclose(near - nearly_negative, moved, atol=1e-14)
        assert np.allclose(exact - negative, moved, atol=1e-13)
        errors.append(float(np.abs(near - exact).max()))
    assert errors[0] < 1e-13
    assert errors[1] < 1e-4 * np.abs(change).max() / 20  # to order zero it would be about that change
    if 0 < positive < 20:
        assert 30 < errors[2] / errors[1] < 300  # ten times the change, a hundred times the error
    else:
        assert errors[2] < 1e-13


def test_between_eigendecompositions_the_method_loses_little(monkeypatch: pytest.MonkeyPatch) -> None:
    def steps_and_matrix(every: int, problem: Problem) -> tuple[int, np.ndarray]:
        counted = []
        real = np.linalg.eigh
        with monkeypatch.context() as patch:
            patch.setattr(relaxation, "_EXACT_EVERY", every)
            patch.setattr(np.linalg, "eigh", lambda M: (counted.append(1), real(M))[1])
            start = relaxation.Splitting.of(problem, np.full(problem.m, 0.3), first_matrix(problem.A))
            matrix = relaxation.relaxation_matrix(problem, np.zeros(0), 60, np.inf, start)
        assert matrix is not None
        return len(counted), matrix

    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(40, 8)) + 0.6
    vectors /= np.linalg.norm(vectors, axis=1)[:, None]
    pairwise = 0.5 * np.maximum(vectors @ vectors.T, 0)
    np.fill_diagonal(pairwise, 0.0)
    problem = presolve(SelectionProgram(rng.uniform(0.3, 1, 40), pairwise, rng.integers(50, 200, 40), 700))
    assert problem is not None
    all_exact, exact = steps_and_matrix(1, problem)
    seldom, near = steps_and_matrix(5, problem)
    assert all_exact == 60
    assert seldom < 25
    # Half the trace is what the matrix charges at x = 1/2: the bound moves with it.
    assert np.trace(near) < 1.02 * np.trace(exact)


@pytest.mark.parametrize("links", [0.01, 0.1, 1.0, 3.0])
@pytest.mark.parametrize("pairs", [1, 30])
def test_the_first_matrix_is_the_better_of_two(links: float, pairs: int) -> None:
    rng = np.random.default_rng(pairs)
    vectors = rng.normal(size=(40, 6)) + 0.5
    A = 0.1 * np.maximum(vectors @ vectors.T, 0)
    for _ in range(pairs):
        i, j = rng.choice(40, 2, replace=False)
        A[i, j] = A[j, i] = -links
    np.fill_diagonal(A, 0.0)
    negative = np.minimum(A, 0.0)
    both = shifted(A), shifted(A - negative) + dominated(negative)
    assert np.isclose(np.trace(first_matrix(A)), min(np.trace(M) for M in both), rtol=1e-9)
