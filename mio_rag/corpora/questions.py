"""Old name of `mio_rag.corpora.load`."""

from mio_rag.corpora.load import *  # noqa: F403
