"""Old name of `mio_rag.testing.solvers`."""

from mio_rag.testing.solvers import *  # noqa: F403
