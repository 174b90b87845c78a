"""Old name of `mio_rag.testing.programs`."""

from mio_rag.testing.programs import *  # noqa: F403
