"""Solvers for selection programs and Markov decision processes; they work on arrays alone."""

from mio_rag.solvers.many import solve_many
from mio_rag.solvers.mdp import MDPSolution, solve_mdp
from mio_rag.solvers.paths import Conflict, find_conflict, solve_path
from mio_rag.solvers.registry import SolverInfo, resolve, solve, solvers, write_model
from mio_rag.solvers.result import SolveOptions, SolveResult, Status

__all__ = [
    "Conflict",
    "MDPSolution",
    "SolveOptions",
    "SolveResult",
    "SolverInfo",
    "Status",
    "find_conflict",
    "resolve",
    "solve",
    "solve_many",
    "solve_mdp",
    "solve_path",
    "solvers",
    "write_model",
]
