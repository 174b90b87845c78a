"""Old name of `mio_rag.corpora.dataset`, for one release."""

from mio_rag.corpora.dataset import load_folder as load_folder
