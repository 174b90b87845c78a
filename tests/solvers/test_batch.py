"""Many programs at once."""

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from mio_rag.errors import InputError
from mio_rag.formulations import SelectionProgram
from mio_rag.solvers import Status, solve, solve_many
from mio_rag.solvers.capabilities import one_blas_thread
from mio_rag.solvers.many import solve_as_completed
from mio_rag.testing.programs import random_program


def test_results_come_in_order_and_equal_single_solves() -> None:
    programs = [random_program(np.random.default_rng(seed), n_max=16) for seed in range(12)]
    seen: list[int] = []
    results = solve_many(programs, workers=2, progress=seen.append)
    assert sum(seen) == len(programs)
    for program, result in zip(programs, results, strict=True):
        alone = solve(program)
        assert (result.status, result.objective, result.selected) == (
            alone.status,
            alone.objective,
            alone.selected,
        )


@pytest.mark.parametrize("workers", [1, 3])
def test_one_bad_program_is_reported_and_not_fatal(workers: int) -> None:
    small = SelectionProgram(np.ones(3), np.zeros((3, 3)), np.ones(3), 2)
    large = SelectionProgram(np.ones(25), np.zeros((25, 25)), np.ones(25), 2)
    results = solve_many([small, large, small], "exhaustive", workers=workers)
    assert [r.status for r in results] == [Status.OPTIMAL, Status.ERROR, Status.OPTIMAL]
    assert "25" in results[1].message


def test_what_would_fail_for_all_is_raised_at_once() -> None:
    with pytest.raises(InputError, match="unknown"):
        solve_many([], "no-such-solver")
    with pytest.raises(InputError, match="workers"):
        solve_many([], workers=0)


def _blas_threads() -> list[int]:
    """Threads of the library behind numpy; others may be loaded after the first solver ran."""
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    return [int(pool["num_threads"]) for pool in pools if "numpy" in str(pool["filepath"])]


def test_the_blas_limit_is_given_back_when_the_last_solver_leaves() -> None:
    before = _blas_threads()
    with one_blas_thread():
        with one_blas_thread():
            assert set(_blas_threads()) <= {1}
        assert set(_blas_threads()) <= {1}  # the other one is still at work
    assert _blas_threads() == before


def test_programs_are_built_as_they_are_needed() -> None:
    built: list[int] = []

    def tasks():
        for k in range(50):
            built.append(k)
            yield k, SelectionProgram([1.0], [[0.0]], [1], 1)

    solved = solve_as_completed(tasks(), "exhaustive", workers=3)
    next(solved)
    assert len(built) <= 3 * 2 + 1
    assert len(list(solved)) == 49
