"""Vector stores as collections: the protocol, and an adapter for each engine, opened by URL."""

from mio_rag.stores.base import Store, StoreIndex

__all__ = ["Store", "StoreIndex"]
