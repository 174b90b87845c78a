"""Old name of `mio_rag.context`."""

from mio_rag.context import *  # noqa: F403
