"""Vector stores as the source of passages: the protocol, and an index of what a store finds for a question.

A store answers one question with its nearest passages. Everything else happens here, among these hits: BM25,
evidence links, near-duplicates, overlaps, a second search for the names that they mention, and the filter.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from mio_rag.entries import unit_rows
from mio_rag.errors import InputError, MioRagError, Notice, StoreError, choose
from mio_rag.filters import KEYS, Filter
from mio_rag.retrieval.embedders import Embedder
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.lexical import LexicalIndex
from mio_rag.retrieval.links import LinkIndex, passage_names
from mio_rag.retrieval.repetition import Repetition
from mio_rag.retrieval.scope import Identities
from mio_rag.retrieval.sentences import SentenceIndex
from mio_rag.retrieval.texts import embedded_text
from mio_rag.retrieval.unit_terms import UnitTerms
from mio_rag.sentences import name_key
from mio_rag.stores.cut import as_documents, dated
from mio_rag.types import Passage

_MOST_HITS = 4096  # that are fetched for one question, where a filter leaves too few of them
_REMEMBERED = 20_000  # passages whose rows are known, for searches by several queries
_NAMED_BY, _MOST_NAMES = 10, 20  # hits whose names are looked up, and how many names
_NAME = re.compile(
    r"[A-Z][\w'’-]*(?:\s+(?:(?:of|the|de|la|du|von|van|and|for)\s+)?[A-Z][\w'’-]*)+|[A-Z][\w-]{3,}"
)
_SAME_MODEL = 0.5  # cosine of a hit's vector with that of its text; another model's lies near 0


@runtime_checkable
class Store(Protocol):
    """What finds passages for a question: a vector store, a search engine, a database.

    It may also have ``by_title(names)``, which returns the passages with one of these titles, ``keys()``, the
    metadata that a filter may name, and ``count(where)``, how many passages it holds.
    """

    def search(
        self, question: str, vector: NDArray[np.float32], k: int, where: Mapping[str, Any] | None
    ) -> Sequence[Passage]:
        """Return the k passages nearest to a question, best first.

        vector: the question's embedding, at unit length.
        where: A filter as in `mio_rag.filters`. The hits are filtered again, so that a store may ignore what
            it cannot express.

        Returns: with `vector` where the store has it, else the text is embedded; with `score`, larger is
        better.
        """
        ...


class _Exact:
    """Vectors of a few passages, as the index of a corpus searches them."""

    def __init__(self, rows: NDArray[np.float32]) -> None:
        self._rows = rows
        self.d = rows.shape[1]

    def search(self, queries: NDArray[np.float32], k: int) -> tuple[NDArray[Any], NDArray[Any]]:
        products = self._rows @ queries[0]
        best = np.argsort(-products, kind="stable")[:k]
        return products[best][None], best[None]

    def reconstruct_batch(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        return self._rows[rows]


def index_of(
    passages: Sequence[Passage], vectors: NDArray[np.float32], embedder: Embedder, name: str = "passages"
) -> CorpusIndex:
    """Return an index in memory of some passages whose vectors are known; units of documents are embedded."""
    rows = _Exact(unit_rows(vectors))
    repetition = Repetition.build(passages)
    if any(passage.units for passage in passages):
        terms = UnitTerms.build(passages)
        cut, identities = SentenceIndex.build(passages, embedder), Identities.build(passages, terms)
        return CorpusIndex(passages, embedder, name, rows, terms, None, repetition, cut, identities)
    words = LexicalIndex.build([embedded_text(passage) for passage in passages])
    return CorpusIndex(passages, embedder, name, rows, words, LinkIndex.build(passages), repetition)


def vectors_of(passages: Sequence[Passage], embedder: Embedder) -> NDArray[np.float32]:
    """Return a vector for each passage: its own, else that of its title and text."""
    missing = [k for k, passage in enumerate(passages) if passage.vector is None]
    made: Any = embedder.encode([embedded_text(passages[k]) for k in missing]) if missing else []
    rows: list[Any] = [passage.vector for passage in passages]
    for k, row in zip(missing, made, strict=True):
        rows[k] = row
    lengths = {len(row) for row in rows}
    if len(lengths) > 1:
        raise InputError(
            f"passages have vectors of {' and '.join(map(str, sorted(lengths)))} dimensions: the embedder "
            f"'{embedder.name}' is not the one that made them"
        )
    found = np.asarray(rows, dtype=np.float32)
    if not np.isfinite(found).all():
        bad = int(np.flatnonzero(~np.isfinite(found).all(axis=1))[0])
        raise InputError(f"the vector of passage '{passages[bad].id}' holds NaN or infinity: embed it again")
    return found


class _Any(Collection[str]):
    """Ids of a store, which nobody lists: any may be there."""

    def __contains__(self, one: object) -> bool:
        return True

    def __iter__(self) -> Any:
        return iter(())

    def __len__(self) -> int:
        return 0


@dataclass(frozen=True, eq=False)
class StoreIndex(CorpusIndex):
    """A store, for whatever works with an index: a question is answered from the store's hits for it."""

    is_store = True
    store: Any = None
    where: Filter = field(default_factory=Filter)
    _state: dict[str, Any] = field(default_factory=lambda: {"lock": Lock(), "rows": {}, "next": 0})

    @classmethod
    def of(cls, store: Store, embedder: Embedder, name: str = "store") -> StoreIndex:
        """Return the index of a store whose vectors this embedder made."""
        if not callable(getattr(store, "search", None)):
            raise InputError(
                f"{type(store).__name__} is not a store: it needs search(question, vector, k, where)"
            )
        return cls((), embedder, name, None, None, store=store)  # type: ignore[arg-type]

    def __len__(self) -> int:
        count = getattr(self.store, "count", None)
        return int(count(None)) if callable(count) else 0

    @property
    def ids(self) -> Any:
        """Whatever is asked for may be there."""
        return _Any()

    @property
    def dimensions(self) -> int:
        """Dimensions of the embedder's vectors."""
        return int(self.embedder.encode(["x"]).shape[1])

    @property
    def has_places(self) -> bool:
        """Hits may bring places."""
        return True

    def digest(self) -> str:
        """SHA-256 over the store's name, the embedder and the filter; what the store holds may change."""
        told = [self.name, self.embedder.fingerprint, self.where.to_dict()]
        return hashlib.sha256(json.dumps(told, default=str).encode()).hexdigest()

    def only(self, where: Filter | Mapping[str, Any] | Sequence[str] | str | None) -> StoreIndex:
        """Return the index for questions that may be answered from some passages alone; see `Filter`.

        Raises `InputError` for a key that the store does not have, where it lists them.
        """
        conditions = where if isinstance(where, Filter) else Filter(where)
        keys = getattr(self.store, "keys", None)
        if conditions and callable(keys):
            known = sorted({*KEYS, *keys()})
            strange = sorted({one.key for one in conditions.conditions} - set(known))
            if strange:
                raise InputError(
                    [f"no passage has '{key}' to filter by: {choose(key, known[:12])}" for key in strange]
                )
        return replace(self, where=self.where & conditions) if conditions else self

    def hits(self, question: str, k: int) -> CorpusIndex | None:
        """Return an index of what the store finds for a question; None where it finds nothing.

        Raises `InputError` for hits that are no passages, or whose vectors another embedder made, and for a
        filter that none meets.
        """
        vector = unit_rows(self.embedder.encode([question]))[0]
        found = self._filtered(question, vector, k)
        if not found:
            return None
        rows = vectors_of(found, self.embedder)
        if rows.shape[1] != len(vector):
            raise InputError(
                f"'{self.name}' holds vectors of {rows.shape[1]} dimensions, and the embedder "
                f"'{self.embedder.name}' makes {len(vector)}: name the embedder that made the collection"
            )
        self._check(found, rows, vector)
        named = self._named(found)
        if named:
            found, rows = (
                [*found, *named],
                np.concatenate([unit_rows(rows), unit_rows(vectors_of(named, self.embedder))]),
            )
        return self._index_of(found, rows)

    def _index_of(self, found: Sequence[Passage], rows: NDArray[np.float32]) -> CorpusIndex:
        made = as_documents(found := dated(found))
        if made is not found:
            with self._state["lock"]:
                kept = self._state.setdefault("uncut", {})
                kept.update({one.id: one for one in found})
                while len(kept) > _REMEMBERED:
                    del kept[next(iter(kept))]
        return index_of(made, rows, self.embedder, self.name)

    def rows_of(self, passages: Iterable[Passage], vectors: NDArray[np.float32]) -> list[int]:
        """Return a number for each passage that stays the same from search to search."""
        state = self._state
        with state["lock"]:
            by_id, found = state["rows"], []
            for passage, vector in zip(passages, vectors, strict=True):
                row = by_id.pop(passage.id, (state["next"],))[0]
                state["next"] = max(state["next"], row + 1)
                by_id[passage.id] = (row, passage, vector)
                found.append(row)
            while len(by_id) > _REMEMBERED:
                del by_id[next(iter(by_id))]
            return found

    def among(self, rows: Sequence[int]) -> tuple[CorpusIndex, dict[int, int]]:
        """Return an index of the passages with these numbers, and the place of each number in it."""
        with self._state["lock"]:
            uncut = self._state.get("uncut", {})
            known = {
                row: (uncut.get(passage.id, passage), vector)
                for row, passage, vector in self._state["rows"].values()
            }
        kept = [row for row in dict.fromkeys(rows) if row in known]
        passages = [known[row][0] for row in kept]
        vectors = np.array([known[row][1] for row in kept], dtype=np.float32)
        return self._index_of(passages, vectors), {row: place for place, row in enumerate(kept)}

    def _search(self, question: str, vector: NDArray[np.float32], k: int) -> list[Passage]:
        where = self.where.to_mapping() if self.where else None
        try:
            found = list(self.store.search(question, vector, k, where))
        except MioRagError:
            raise
        except Exception as error:
            raise StoreError(f"'{self.name}' failed: {type(error).__name__}: {error}") from error
        for one in found:
            if not isinstance(one, Passage):
                raise InputError(f"'{self.name}' returned a {type(one).__name__}, expected Passage objects")
        return self._told_apart(found)

    def _told_apart(self, found: Sequence[Passage]) -> list[Passage]:
        """Each hit once; an id that several texts have, as that of a document, gets a hash of each text."""
        with self._state["lock"]:
            texts = self._state.setdefault("texts", {})  # of an id; None: several
            for one in found:
                if texts.setdefault(one.id, one.text) != one.text:
                    texts[one.id] = None
            named = [
                one
                if texts[one.id] is not None
                else replace(one, id=f"{one.id}#{hashlib.sha256(one.text.encode()).hexdigest()[:8]}")
                for one in found
            ]
            while len(texts) > _REMEMBERED:
                del texts[next(iter(texts))]
        return list({one.id: one for one in reversed(named)}.values())[::-1]

    def _filtered(self, question: str, vector: NDArray[np.float32], k: int) -> list[Passage]:
        """The k nearest that meet the filter; more are fetched where the store leaves that to us."""
        if not self.where:
            return self._search(question, vector, k)
        asked = k
        while True:
            found = self._search(question, vector, asked)
            kept = [one for one in found if self.where.holds(one)]
            if len(kept) >= k or len(found) < asked or asked >= _MOST_HITS:
                break
            asked = min(4 * asked, _MOST_HITS)
        if found and not kept and len(found) < asked:
            self.where.rows(found)  # refuses a key that nothing has
        count = getattr(self.store, "count", None)
        more = asked >= _MOST_HITS or (callable(count) and count(self.where.to_mapping()) > len(found))
        if not kept and not more:
            raise InputError(f"no passage of '{self.name}' meets the filter: loosen it")
        if len(kept) < k and more:
            warnings.warn(
                f"'{self.name}' returned {len(kept)} passages under the filter and may hold more: index the "
                "filtered field, or search exactly",
                Notice,
                stacklevel=2,
            )
        return kept[:k]

    def _check(
        self, found: Sequence[Passage], rows: NDArray[np.float32], vector: NDArray[np.float32]
    ) -> None:
        """Compare vectors and scores of the first hits once with what the embedder makes of them."""
        if self._state.get("checked"):
            return
        own = [k for k, passage in enumerate(found) if passage.vector is not None][:3]
        if own:
            made = unit_rows(self.embedder.encode([embedded_text(found[k]) for k in own]))
            alike = (made * unit_rows(rows[own])).sum(axis=1)
            if float(alike.max()) < _SAME_MODEL:
                raise InputError(
                    f"'{self.name}' was embedded by another model than '{self.embedder.name}' (cosine "
                    f"{float(alike.max()):.2f} between a stored vector and that of its text): name the "
                    "embedder that made the collection"
                )
        scores = np.array([np.nan if one.score is None else one.score for one in found], dtype=float)
        if len(found) >= 5 and np.isfinite(scores).all() and np.ptp(scores) > 0:
            cosine = unit_rows(rows) @ vector
            if np.ptp(cosine) > 0 and np.corrcoef(scores, cosine)[0, 1] < -0.5:
                raise InputError(
                    f"the scores of '{self.name}' grow with the distance: return similarities, larger is "
                    "better (1 - distance for cosine distances)"
                )
        self._state["checked"] = True

    def _named(self, found: Sequence[Passage]) -> list[Passage]:
        """Passages whose title is a name that the best hits mention, where titles are names."""
        names, kind = passage_names(found)
        if kind != "titles":
            return []
        known = {name_key(name) for name in names}
        wanted: dict[str, str] = {}
        for passage in found[:_NAMED_BY]:
            for name in _NAME.findall(passage.text):
                if (key := name_key(name)) and key not in known:
                    wanted.setdefault(key, " ".join(name.split()))
        texts = list(wanted.values())[:_MOST_NAMES]
        if not texts:
            return []
        by_title = getattr(self.store, "by_title", None)
        if callable(by_title):
            more = list(by_title(texts))
        else:
            vectors = unit_rows(self.embedder.encode(texts))
            more = [
                one for text, row in zip(texts, vectors, strict=True) for one in self._search(text, row, 2)
            ]
        ids = {passage.id for passage in found}
        kept: dict[str, Passage] = {}
        for one in more:
            if one.id not in ids and name_key(one.title) in wanted and self.where.holds(one):
                kept.setdefault(one.id, one)
        return list(kept.values())
