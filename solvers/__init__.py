"""Solvers for selection programs. They know arrays, and nothing of retrieval."""

from mio_rag.solvers.batch import solve_many
from mio_rag.solvers.registry import SolverInfo, available_solvers, resolve, solve, solvers
from mio_rag.solvers.result import SolveOptions, SolveResult, Status
from mio_rag.solvers.sweep import solve_path

__all__ = [
    "SolveOptions",
    "SolveResult",
    "SolverInfo",
    "Status",
    "available_solvers",
    "resolve",
    "solve",
    "solve_many",
    "solve_path",
    "solvers",
]
