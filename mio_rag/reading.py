"""Old name of `mio_rag.storage`."""

from mio_rag.storage import *  # noqa: F403
