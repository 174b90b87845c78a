"""Old name of `mio_rag.retrieval.rerank`."""

from mio_rag.retrieval.rerank import *  # noqa: F403
