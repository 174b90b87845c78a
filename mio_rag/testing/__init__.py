"""Suites for authors: `check_solver`, `check_method`, `check_store`, `check_controller`.

The programs that `check_solver` draws can be used in other tests: `random_program`, `random_shared_program`,
`at_scale`, `hard_program`, `known_cases`.
"""

from mio_rag.testing.controllers import check_controller
from mio_rag.testing.programs import (
    SCALES,
    at_scale,
    hard_program,
    known_cases,
    random_program,
    random_shared_program,
)
from mio_rag.testing.retrieval import check_method, check_store
from mio_rag.testing.solvers import check_solver, disagreement

__all__ = [
    "SCALES", "at_scale", "check_controller", "check_method", "check_solver", "check_store", "disagreement",
    "hard_program", "known_cases", "random_program", "random_shared_program",
]  # fmt: skip
