"""The common interface of all solvers: `solve(program, solver="auto", options=SolveOptions(...))`.

Each back end declares what it supports. A program that it does not support is refused before anything is
built, with the name of a solver that does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mio_rag.errors import InputError, SolverError, choose
from mio_rag.formulations.linearize import Linearization, linearize
from mio_rag.formulations.program import SelectionProgram
from mio_rag.solvers.capabilities import check_installed, is_usable
from mio_rag.solvers.heuristics import HEURISTICS
from mio_rag.solvers.heuristics import solve as solve_heuristic
from mio_rag.solvers.result import SolveOptions, SolveResult


@dataclass(frozen=True)
class SolverInfo:
    """A solver and what it takes.

    exact: whether it proves optimality, given time. Heuristics prove only a bound.
    max_free: largest number of items that are not fixed.
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


_SOLVERS = tuple(
    SolverInfo(name, exact, description, tuple(modules.split()), 20 if name == "exhaustive" else None)
    for name, exact, description, modules in (
        ("branch_and_bound", True, "the exact kernel of mio-rag: milliseconds for dense programs", "numba"),
        ("exhaustive", True, "enumeration of every selection", ""),
        ("highs", True, "HiGHS on Fortet/McCormick products", "highspy"),
        ("highs-glover", True, "HiGHS on Glover's form: smaller, better for dense penalties", "highspy"),
        ("cpsat", True, "OR-Tools CP-SAT", "ortools"),
        (
            "pyomo",
            True,
            "HiGHS through Pyomo; pyomo:NAME for cbc, cplex, glpk, gurobi, scip, xpress",
            "pyomo highspy",
        ),
        ("topk", False, "best value first, fill the budget", ""),
        ("density", False, "best value per token first", ""),
        ("greedy", False, "best marginal gain first", ""),
        ("mmr", False, "maximal marginal relevance, fill the budget", ""),
        ("local_search", False, "greedy, then add/drop/swap to a local optimum", ""),
    )
)
_BY_NAME = {info.name: info for info in _SOLVERS}


def solvers() -> tuple[SolverInfo, ...]:
    """Every solver, exact ones first, installed or not."""
    return _SOLVERS


def resolve(program: SelectionProgram, solver: str = "auto") -> str:
    """The solver that `solver` stands for: "auto" enumerates up to 12 free items, without compiled code, and
    takes the kernel above.
    """
    few = program.free.size <= 12
    return solver if solver != "auto" else "exhaustive" if few else "branch_and_bound"


def check_name(solver: str) -> None:
    """Raise for a solver that is unknown or of an unusable version (InputError), or not installed."""
    if solver == "auto":
        return
    kind, _, backend = solver.partition(":")
    info = _BY_NAME.get(kind if kind == "pyomo" else solver)
    if info is None:
        raise InputError(f"solver '{solver}' is unknown: {choose(solver, ['auto', *_BY_NAME, 'pyomo:NAME'])}")
    for module in info.modules:
        if module != "highspy" or backend in (
            "",
            "highs",
            "appsi_highs",
        ):  # behind Pyomo, only its HiGHS needs it
            check_installed(module, f"solver '{solver}'")


def solve(
    program: SelectionProgram,
    solver: str | Callable[[SelectionProgram, SolveOptions], SolveResult] = "auto",
    options: SolveOptions | None = None,
) -> SolveResult:
    """Solve a selection program.

    solver: "auto", one of `solvers()`, or "pyomo:NAME": highs, cbc, cplex, glpk, gurobi, scip or xpress.
        Or your own, a function (program, options) -> SolveResult, whose selection is checked.
    options: limits and tolerances; by default ten seconds, exact, one thread.

    Infeasibility and limits are statuses of the result. Raises `InputError` if the solver is unknown, cannot
    take the program, or needs another version of a package, `MissingExtraError` if that is not installed.
    """
    options = SolveOptions() if options is None else options
    if not isinstance(options, SolveOptions):
        raise InputError(f"options is {options!r}, expected SolveOptions: SolveOptions(time_limit_seconds=5)")
    if not isinstance(program, SelectionProgram):
        raise InputError(
            f"program is a {type(program).__name__}, expected a SelectionProgram: "
            "SelectionProgram.from_dict(data) makes one of a dict"
        )
    if not isinstance(solver, str) and callable(solver):
        return _checked(program, solver(program, options))
    check_name(solver)
    name = resolve(program, solver)
    most, free = _BY_NAME[name.partition(":")[0]].max_free, int(program.free.size)
    if most is not None and free > most:
        raise InputError(
            f"{name} enumerates at most {most} free items, this program has {free}: use solver='highs'"
        )
    return _load(name)(program, options)


def _checked(program: SelectionProgram, result: SolveResult) -> SolveResult:
    """What a solver of one's own returned, if its selection is one and worth what it says."""
    if not isinstance(result, SolveResult):
        raise InputError(f"the solver returned a {type(result).__name__}, expected a SolveResult")
    if result.x is not None:
        broken, worth = program.violations(result.x), program.objective(result.x)
        if result.objective is None or abs(result.objective - worth) > 1e-6 * max(1.0, abs(worth)):
            broken = [*broken, f"it is worth {worth:.6g}, not {result.objective}"]
        if broken:
            raise SolverError(f"the solver's selection does not hold: {'; '.join(map(str, broken))}")
    return result


def _load(name: str) -> Callable[[SelectionProgram, SolveOptions], SolveResult]:
    """The solve function; imported here, so that only what the solver needs is loaded."""
    if name == "branch_and_bound":
        from mio_rag.solvers import branch_and_bound

        return branch_and_bound.solve
    if name in HEURISTICS:
        return lambda p, o: solve_heuristic(p, o, name)
    from mio_rag.solvers import backends

    kind, _, backend = name.partition(":")
    made: dict[str, Callable[[SelectionProgram, SolveOptions], SolveResult]] = {
        "exhaustive": backends.solve_exhaustive,
        "highs": backends.solve_highs,
        "highs-glover": lambda p, o: backends.solve_highs(p, o, "glover"),
        "cpsat": backends.solve_cpsat,
        "pyomo": lambda p, o: backends.solve_pyomo(p, o, backend or "highs"),
    }
    return made[kind]


def write_model(program: SelectionProgram, path: str | Path, form: Linearization = "mccormick") -> None:
    """Write the linearized program to a file for other solvers, in the format of its ending: .lp or .mps.

    The first n columns are the items, x0 to x(n - 1), the others helpers. Raises `InputError` if the file
    cannot be written.
    """
    import highspy

    from mio_rag.solvers.backends import model_of

    if Path(path).suffix not in (".lp", ".mps"):
        raise InputError(f"'{path}' ends neither in .lp nor in .mps, the formats that can be written")
    try:
        Path(path).touch()  # HiGHS crashes where it cannot write
    except OSError as error:
        raise InputError(f"'{path}' cannot be written: {error}") from error
    highs, model = highspy.Highs(), model_of(arrays := linearize(program, form))
    highs.setOptionValue("output_flag", False)
    model.col_names_ = [f"x{i}" if i < arrays.n else f"y{i - arrays.n}" for i in range(arrays.objective.size)]
    model.row_names_ = [f"row{i}" for i in range(arrays.row_lower.size)]
    highs.passModel(model)
    highs.writeModel(str(path))
