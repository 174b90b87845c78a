"""Old name of `mio_rag.corpora.folder`, for one release."""

from mio_rag.corpora.folder import load_folder as load_folder
