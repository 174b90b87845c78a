"""For authors of back ends and controllers: suites that tell whether theirs keep what mio-rag promises.

`check_solver` holds a solver against enumeration and known answers. The programs that it draws are there for
tests of one's own: `random_program`, `random_shared_program`, `at_scale`, `hard_program`, `known_cases`.
`check_controller` runs a controller on the bundled demo.
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
from mio_rag.testing.solvers import check_solver, disagreement

__all__ = [
    "SCALES",
    "at_scale",
    "check_controller",
    "check_solver",
    "disagreement",
    "hard_program",
    "known_cases",
    "random_program",
    "random_shared_program",
]
