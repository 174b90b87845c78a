"""Retrieval: embedders, the index on disk, BM25, fusion, and the Retriever that yields candidates."""

from mio_rag.retrieval.embedders import Embedder, SentenceTransformerEmbedder, TfidfEmbedder, make_embedder
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.retriever import Retriever, reciprocal_rank_fusion
from mio_rag.retrieval.settings import RetrievalSettings

__all__ = [
    "CorpusIndex",
    "Embedder",
    "RetrievalSettings",
    "Retriever",
    "SentenceTransformerEmbedder",
    "TfidfEmbedder",
    "make_embedder",
    "reciprocal_rank_fusion",
]
