"""The common interface of all solvers: `solve(program, solver="auto", options=SolveOptions(...))`.

Each back end declares what it supports. A program that it does not support is refused before anything is
built, with the name of a solver that does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mio_rag.errors import InputError, choose
from mio_rag.solvers.capabilities import check_installed, is_usable
from mio_rag.solvers.heuristics import HEURISTICS
from mio_rag.solvers.heuristics import solve as solve_heuristic
from mio_rag.solvers.result import SolveOptions, SolveResult

if TYPE_CHECKING:
    from mio_rag.formulations.program import SelectionProgram


_Solve = Callable[["SelectionProgram", SolveOptions], SolveResult]


@dataclass(frozen=True)
class SolverInfo:
    """What a solver is and can take.

    Parameters
    ----------
    exact : bool
        Whether it proves optimality, given time. Heuristics prove only a bound.
    max_free : int or None
        Largest number of items that are not fixed.
    modules : tuple of str
        What must be installed; `mio_rag.solvers.capabilities` knows in which versions.
    """

    name: str
    exact: bool
    description: str
    modules: tuple[str, ...] = ()
    max_free: int | None = None

    @property
    def available(self) -> bool:
        """Whether its packages are installed, in versions that can be used."""
        return all(is_usable(module) for module in self.modules)

    def refusal(self, program: SelectionProgram) -> str | None:
        """Why it cannot take this program, or None."""
        free = int(program.free.size)
        if self.max_free is not None and free > self.max_free:
            return (
                f"{self.name} enumerates at most {self.max_free} free items, this program has {free}: "
                "use solver='highs'"
            )
        return None


_EXACT = (
    SolverInfo(
        "branch_and_bound", True, "the exact kernel of mio-rag: milliseconds for dense programs", ("numba",)
    ),
    SolverInfo("exhaustive", True, "enumeration of every selection", max_free=20),
    SolverInfo("highs", True, "HiGHS on Fortet/McCormick products", ("highspy",)),
    SolverInfo(
        "highs-glover", True, "HiGHS on Glover's form: smaller, better for dense penalties", ("highspy",)
    ),
    SolverInfo("cpsat", True, "OR-Tools CP-SAT", ("ortools",)),
    SolverInfo(
        "pyomo", True, "HiGHS through Pyomo; pyomo:NAME for any solver Pyomo knows", ("pyomo", "highspy")
    ),
)
_HEURISTIC = (
    SolverInfo("topk", False, "best value first, fill the budget"),
    SolverInfo("density", False, "best value per token first"),
    SolverInfo("greedy", False, "best marginal gain first"),
    SolverInfo("mmr", False, "maximal marginal relevance, fill the budget"),
    SolverInfo("local_search", False, "greedy, then add/drop/swap to a local optimum"),
)


def solvers() -> tuple[SolverInfo, ...]:
    """Every solver, exact ones first, installed or not."""
    return _EXACT + _HEURISTIC


def available_solvers() -> tuple[str, ...]:
    """Names of the solvers whose packages are installed, in versions that can be used."""
    return tuple(info.name for info in solvers() if info.available)


def resolve(program: SelectionProgram, solver: str = "auto") -> str:
    """The solver that `solver` stands for on this program.

    "auto" enumerates up to 12 free items, which needs no compiled code, and takes the kernel above.
    """
    if solver != "auto":
        return solver
    return "exhaustive" if program.free.size <= 12 else "branch_and_bound"


def _by_name(name: str) -> SolverInfo | None:
    plain = "pyomo" if name.startswith("pyomo:") else name
    return next((info for info in solvers() if info.name == plain), None)


def check_name(solver: str) -> None:
    """Raise for a solver that is unknown, or not installed.

    Raises
    ------
    InputError
        If it is unknown, or a package that it needs is of a version that cannot be used.
    MissingExtraError
        If such a package is not installed.
    """
    if solver == "auto":
        return
    info = _by_name(solver)
    if info is None:
        names = ["auto", *(i.name for i in solvers()), "pyomo:NAME"]
        raise InputError(f"solver '{solver}' is unknown: {choose(solver, names)}")
    backend = solver.partition(":")[2]
    # Behind Pyomo, HiGHS is needed by nobody else.
    spared = "highspy" if backend not in ("", "highs") else ""
    for module in info.modules:
        if module != spared:
            check_installed(module, f"solver '{solver}'")


def solve(
    program: SelectionProgram, solver: str = "auto", options: SolveOptions | None = None
) -> SolveResult:
    """Solve a selection program.

    Parameters
    ----------
    solver : str
        "auto", one of `solvers()`, or "pyomo:NAME" for any solver that Pyomo finds installed.
    options : SolveOptions, optional
        Limits and tolerances; by default ten seconds, exact, one thread.

    Returns
    -------
    SolveResult
        Infeasibility and limits are statuses of the result, not exceptions.

    Raises
    ------
    InputError
        If the solver is unknown, cannot take the program, or stands on a version of a package that cannot be
        used.
    MissingExtraError
        If its package is not installed.
    """
    options = SolveOptions() if options is None else options
    if not isinstance(options, SolveOptions):
        raise InputError(f"options is {options!r}, expected SolveOptions: SolveOptions(time_limit_seconds=5)")
    check_name(solver)
    name = resolve(program, solver)
    info = _by_name(name)
    assert info is not None
    refusal = info.refusal(program)
    if refusal:
        raise InputError(refusal)
    return _load(name)(program, options)


def _load(name: str) -> _Solve:
    """The solve function; imported here, so that only what the solver needs is loaded."""
    kind, _, backend = name.partition(":")
    if kind == "branch_and_bound":
        from mio_rag.solvers import branch_and_bound

        return branch_and_bound.solve
    if kind in HEURISTICS:
        return lambda p, o: solve_heuristic(p, o, kind)
    from mio_rag.solvers import backends

    return {
        "exhaustive": backends.solve_exhaustive,
        "highs": backends.solve_highs,
        "highs-glover": lambda p, o: backends.solve_highs(p, o, "glover"),
        "cpsat": backends.solve_cpsat,
        "pyomo": lambda p, o: backends.solve_pyomo(p, o, backend or "highs"),
    }[kind]
