"""Old name of `mio_rag.retrieval.cached`."""

from mio_rag.retrieval.cached import *  # noqa: F403
