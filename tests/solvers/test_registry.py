"""Which solvers there are, what their packages must be, and how they are interrupted."""

from __future__ import annotations

import importlib.util
import os
import signal
import threading
import tomllib
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import highspy
import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from mio_rag.errors import InputError, MissingExtraError, SolverError
from mio_rag.formulations import SelectionProgram
from mio_rag.solvers import SolveOptions, capabilities, resolve, solve, solvers, write_model
from mio_rag.solvers.registry import check_name
from mio_rag.testing.programs import hard_program


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


def available() -> set[str]:
    return {info.name for info in solvers() if info.available}


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
        assert 'pip install -c constraints.txt -e ".[solvers]"' in str(caught.value)
    assert "cpsat" not in available()
    assert {"exhaustive", "highs", "local_search"} <= available()


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment into which something put a newer HiGHS."""
    monkeypatch.setattr(
        capabilities, "_installed", lambda module: "1.14.0" if module == "highspy" else "99.0"
    )


@pytest.mark.usefixtures("newer")
def test_a_version_that_cannot_be_trusted_is_refused_with_what_to_install() -> None:
    for name in ("highs", "highs-glover", "pyomo", "pyomo:highs"):
        with pytest.raises(InputError) as caught:
            solve(program(3, 0.0), name)
        said = str(caught.value)
        assert f"solver '{name}' cannot be used: highspy 1.14.0 is installed" in said
        assert 'pip install "highspy>=1.12,<1.14"' in said
    assert not {"highs", "highs-glover", "pyomo"} & available()
    assert {"auto", "branch_and_bound", "cpsat"} & available() == {"branch_and_bound", "cpsat"}
    check_name("pyomo:gurobi")  # needs no HiGHS
    assert solve(program(16, 0.0)).is_optimal


def test_what_is_no_program_is_named() -> None:
    with pytest.raises(InputError, match=r"program is a dict, expected a SelectionProgram"):
        solve({"linear": [1.0]})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="has no 'budgte': did you mean 'budget'"):
        SelectionProgram([1.0], [[0.0]], [1], budgte=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("back_end", ["highs", "pyomo"])
def test_back_ends_ask_the_library_that_is_loaded(back_end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the installer noted: what counts is what solves."""
    pytest.importorskip("pyomo")
    import highspy

    monkeypatch.setattr(highspy.Highs, "version", lambda self: "1.15.1")
    with pytest.raises(InputError, match=r"highspy 1\.15\.1 is installed, and >=1\.12,<1\.14 is needed"):
        solve(program(3, 0.5), back_end)


def test_ranges_are_those_that_pip_is_told_and_hold_what_is_installed() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    told = [*project["dependencies"], *project["optional-dependencies"]["solvers"]]
    ranges = {Requirement(line).name: Requirement(line).specifier for line in told}
    for package in capabilities.PACKAGES.values():
        if package.versions:
            assert ranges[package.module] == SpecifierSet(package.versions)
        assert capabilities.refusal(package.module) is None
        assert (package.extra == "solvers") == (package.module in ("ortools", "pyomo"))
    assert version("numba") in ranges["numba"]


@pytest.fixture
def interruptible():
    """Python's own handler, also where the tests run in the background of a shell that ignores interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_is_not_swallowed() -> None:
    """Otherwise Ctrl-C in a long run would end one solve, record it as out of time, and go on."""
    program = hard_program(np.random.default_rng(0), 60)
    solve(program, "cpsat", SolveOptions(time_limit_seconds=0.2))  # the import is not what is interrupted
    timer = threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        solve(program, "cpsat", SolveOptions(time_limit_seconds=2))
    timer.join()


@pytest.mark.parametrize("name", ["highs", "highs-glover", "cpsat", "pyomo", "pyomo:appsi_highs"])
def test_a_limit_leaves_a_selection_and_a_bound(name: str) -> None:
    result = solve(hard_program(np.random.default_rng(0)), name, SolveOptions(time_limit_seconds=0.01))
    assert result.limit == "time"
    assert result.x is not None
    assert result.bound > result.objective > 0


@pytest.mark.parametrize("form", ["mccormick", "glover"])
@pytest.mark.parametrize("ending", ["lp", "mps"])
def test_models_are_written_for_other_solvers(form, ending: str, tmp_path: Path) -> None:
    given, path = hard_program(np.random.default_rng(0), 10), tmp_path / f"model.{ending}"
    write_model(given, path, form)
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    highs.readModel(str(path))
    highs.run()
    assert highs.getInfo().objective_function_value == pytest.approx(solve(given).objective)
    for wrong in (tmp_path / "model.txt", tmp_path / "none" / "model.lp"):
        with pytest.raises(InputError, match="be written"):
            write_model(given, wrong)


def test_a_solver_of_ones_own_is_asked_and_checked() -> None:
    program = SelectionProgram([0.9, 0.8], [[0, 0.1], [0.1, 0]], [60, 50], 80)
    right = solve(program, lambda p, o: solve(p, "highs", o))
    assert right.objective == pytest.approx(0.9)
    with pytest.raises(SolverError, match=r"it is worth 0\.9, not 2"):
        solve(program, lambda p, o: replace(right, objective=2.0))
    with pytest.raises(SolverError, match="does not hold"):
        solve(program, lambda p, o: replace(right, x=np.ones(2, dtype=np.int8)))
