"""Old name of `mio_rag.retrieval.vectors`."""

from mio_rag.retrieval.vectors import *  # noqa: F403
