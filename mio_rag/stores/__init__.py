"""Vector stores as collections: the protocol, and an adapter for each engine, opened by URL.

    qdrant://HOST[:PORT]/COLLECTION      qdrant:FOLDER/COLLECTION
    postgresql://USER@HOST/DATABASE/TABLE
    lancedb:FOLDER/TABLE
    chroma://HOST[:PORT]/COLLECTION      chroma:FOLDER/COLLECTION
    sqlite:FILE/TABLE

Options name the fields of passages where they are not the usual ones: ?text=body&title=name&source=url.
"""

from __future__ import annotations

import importlib
from dataclasses import fields
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from mio_rag.errors import InputError
from mio_rag.stores.rows import Fields

if TYPE_CHECKING:
    from mio_rag.stores.base import Store, StoreIndex

#: Scheme of a URL -> module and class.
SCHEMES = {
    "qdrant": ("engines", "QdrantStore"),
    "postgresql": ("sql", "PostgresStore"),
    "postgres": ("sql", "PostgresStore"),
    "lancedb": ("engines", "LanceStore"),
    "chroma": ("engines", "ChromaStore"),
    "sqlite": ("sql", "SqliteStore"),
}


def is_store(text: str) -> bool:
    """Return whether a text is the URL of a store."""
    return text.partition(":")[0] in SCHEMES and ":" in text


def shown_url(text: str) -> str:
    """Return a URL without its password, for messages and records."""
    head, at, rest = text.partition("?")[0].rpartition("@")
    user, colon, _ = head.rpartition(":")
    return f"{user}@{rest}" if at and colon and "//" in user else f"{head}{at}{rest}"


def open_store(text: str) -> Store:
    """Open a store by its URL.

    Raises `InputError` for a URL of another form, and where there is no such store; `MissingExtraError` if
    the package of its engine is not installed.
    """
    scheme, _, rest = text.partition(":")
    if scheme not in SCHEMES:
        raise InputError(f"{shown_url(text)} is no store: its URL begins with {', '.join(SCHEMES)}")
    place, _, query = rest.partition("?")
    base, slash, collection = place.rpartition("/")
    if not (slash and collection and base.strip("/")):
        raise InputError(f"{shown_url(text)} names no collection: write {scheme}:PLACE/COLLECTION")
    options = dict(parse_qsl(query))
    own = Fields(**{one.name: options.pop(one.name) for one in fields(Fields) if one.name in options})
    module, name = SCHEMES[scheme]
    found = importlib.import_module(f"mio_rag.stores.{module}")
    made: Store = getattr(found, name).open(base, collection, own, options)
    return made


__all__ = ["Fields", "Store", "StoreIndex", "is_store", "open_store", "shown_url"]


def __getattr__(name: str) -> Any:  # few commands open a store
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module("mio_rag.stores.base"), name)
