"""For authors of back ends, methods and controllers: suites that check what mio-rag promises.

`check_solver` holds a solver against enumeration and known answers. The programs that it draws are there for
tests of one's own: `random_program`, `random_shared_program`, `at_scale`, `hard_program`, `known_cases`.
`check_store` holds a vector store against the protocol.
`check_method` runs a selection method on random pools, `check_controller` a controller on the bundled demo.
"""

from mio_rag.testing.controllers import check_controller
from mio_rag.testing.methods import check_method
from mio_rag.testing.programs import (
    SCALES,
    at_scale,
    hard_program,
    known_cases,
    random_program,
    random_shared_program,
)
from mio_rag.testing.solvers import check_solver, disagreement
from mio_rag.testing.stores import check_store

__all__ = [
    "SCALES",
    "at_scale",
    "check_controller",
    "check_method",
    "check_solver",
    "check_store",
    "disagreement",
    "hard_program",
    "known_cases",
    "random_program",
    "random_shared_program",
]
