"""Old name of `mio_rag.pool`."""

from mio_rag.pool import *  # noqa: F403
