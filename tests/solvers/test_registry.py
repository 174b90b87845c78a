from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from mio_rag.errors import MissingExtraError
from mio_rag.formulations import SelectionProgram
from mio_rag.solvers import available_solvers, resolve, solve, solvers


def program(n: int, pairs: float, free: int | None = None) -> SelectionProgram:
    """n items of which `free` are free, every pair with the same weight."""
    matrix = np.full((n, n), pairs)
    np.fill_diagonal(matrix, 0)
    fixed = [-1] * (n if free is None else free) + [0] * (0 if free is None else n - free)
    return SelectionProgram(np.ones(n), matrix, np.ones(n), 3, fixed=fixed)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (program(12, 1.0), "exhaustive"),
        (program(30, 1.0, free=12), "exhaustive"),
        (program(13, 0.0), "branch_and_bound"),
        (program(30, 1.0, free=13), "branch_and_bound"),
    ],
)
def test_auto(given: SelectionProgram, expected: str) -> None:
    assert resolve(given) == expected
    assert resolve(given, "topk") == "topk"


def test_the_result_names_the_solver_that_auto_took() -> None:
    assert solve(program(4, 0.0)).solver == "exhaustive"
    assert solve(program(16, 0.0)).solver == "branch_and_bound"


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment without the optional solvers."""
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name in ("ortools", "pyomo") else real(name, *a)
    )


@pytest.mark.usefixtures("bare")
def test_a_missing_package_is_answered_with_the_install_command() -> None:
    for name, package in (("cpsat", "ortools"), ("pyomo", "pyomo"), ("pyomo:gurobi", "pyomo")):
        with pytest.raises(MissingExtraError) as caught:
            solve(program(3, 0.0), name)
        assert f"solver '{name}' needs the package '{package}'" in str(caught.value)
        assert 'pip install "mio-rag[solvers]"' in str(caught.value)
    assert "cpsat" not in available_solvers()
    assert {"exhaustive", "highs", "local_search"} <= set(available_solvers())


def test_every_solver_is_described_and_exact_ones_come_first() -> None:
    infos = solvers()
    assert len({info.name for info in infos}) == len(infos)
    assert all(info.description for info in infos)
    assert [info.exact for info in infos] == sorted((info.exact for info in infos), reverse=True)
