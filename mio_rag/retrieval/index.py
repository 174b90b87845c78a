"""A corpus that can be searched: FAISS vectors, BM25, texts and metadata in one folder.

    manifest.json     format, version, embedder, counts, the sha256 of every other file, and its own
    passages.npy      where its lines begin
    passages.jsonl    what `Passage.to_dict` gives, one passage a line, in row order
    dense.faiss       inner-product index over unit vectors (exact, or compressed)
    nearest.faiss     short codes of vectors (of large ones); see `mio_rag.retrieval.nearest`
    bm25/             the lexical index; see `mio_rag.retrieval.lexical`, of documents
                      `mio_rag.retrieval.unit_terms`
    scope.npz         the words that name documents (of documents); see `mio_rag.retrieval.scope`
    sentences.*       where units lie in their passages, and their vectors (of documents, or where asked for)
    links.npz         which passage mentions what another one is about (of other passages, or where asked for)
    repetition.npz    where passages lie in their sources, and near-duplicates
    tfidf*            the fitted embedder, where the corpus taught it
    base/, more/      of large ones that changed; see `mio_rag.retrieval.layers`

An index is "of documents" where passages bring units, as readers of documents find them. A folder is written
whole or not at all. Reading checks format, version, checksums and counts, so that a damaged or foreign folder
is refused rather than searched.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import IndexFormatError, InputError, require
from mio_rag.filters import Filter, Lacking, Unread
from mio_rag.retrieval.cached import CachedEmbedder, Progress
from mio_rag.retrieval.embedders import GIVEN, Embedder, as_embedder, make_embedder
from mio_rag.retrieval.layers import LAYERS_FILE, Layers
from mio_rag.retrieval.lexical import LexicalIndex, best_rows, words_of
from mio_rag.retrieval.links import LinkIndex
from mio_rag.retrieval.nearest import LARGE, Nearest
from mio_rag.retrieval.repetition import Repetition
from mio_rag.retrieval.scope import Identities
from mio_rag.retrieval.sentences import SentenceIndex
from mio_rag.retrieval.texts import embedded_text, units_of
from mio_rag.retrieval.unit_terms import PARAMETERS_FILE, UnitTerms
from mio_rag.retrieval.vectors import (
    MappedPassages,
    MappedVectors,
    PassageIds,
    make_dense,
    open_vectors,
    vectors_kind,
)
from mio_rag.retrieval.words import language_of
from mio_rag.storage import parse_json, read_text, replaced_folder, sha256_of
from mio_rag.types import Passage

FORMAT = "mio-rag-index"
_READ = 1 << 20  # bytes of a file that is read whenever the index is opened, to see that it is whole
_SAMPLE = 500  # passages that languages are told by
_AT_ONCE = 1 << 16  # vectors that are compared together
VERSION = 3


@dataclass(frozen=True, eq=False)
class CorpusIndex:
    """A searchable corpus.

    Build one with `build`, or read one with `load`. The embedder is kept with it, so that questions are
    embedded by the model that embedded the passages.
    """

    passages: Sequence[Passage]
    embedder: Embedder
    name: str
    _dense: Any
    _bm25: LexicalIndex | UnitTerms
    links: LinkIndex | None = None
    repetition: Repetition | None = None
    sentences: SentenceIndex | None = None
    identities: Identities | None = None
    nearest: Nearest | None = None
    layers: Layers | None = None
    allowed: NDArray[np.bool_] | None = None
    lacking: tuple[Lacking, ...] = ()
    unread: tuple[Unread, ...] = ()
    is_store = False  # whether passages are in a store, and known by its hits alone

    @classmethod
    def build(
        cls,
        passages: Sequence[Passage],
        embedder: Embedder | str,
        name: str = "corpus",
        progress: Progress | None = None,
        name_of: Callable[[Passage], str] | None = None,
        vectors: str = "exact",
        sentences: bool | None = None,
        old: CorpusIndex | None = None,
    ) -> CorpusIndex:
        """Index passages.

        passages: at least one, with unique ids.
        embedder: a name, see `make_embedder`; an object with ``encode(texts) -> array``, or such a function.
        progress: called with the number of passages, and of sentences, just embedded.
        name_of: what a passage is about, for its evidence links: see `mio_rag.retrieval.links`. By default
            titles, or the names that texts open with; of documents there are then no links.
        vectors ("exact", "8bit", "pq"): how they are held; see `mio_rag.retrieval.vectors`.
        sentences: embed every unit, too, which takes about as long again as the passages. By default those of
            documents, whose passages bring units; False: documents are then searched as other passages are.
        old: an earlier state. What it has of passages that are the very same objects as its own is used
            again; what is built answers as one that is built from nothing.

        Raises `DataError` for an empty corpus or repeated ids.
        Raises `InputError` if the embedder returns vectors of a wrong shape, or NaN.
        """
        checked = Dataset(name, tuple(passages), ()).passages
        embedder = make_embedder(embedder) if isinstance(embedder, str) else as_embedder(embedder)
        places = {} if old is None else {id(p): k for k, p in enumerate(old.passages)}
        kept = np.array([places.get(id(p), -1) for p in checked], dtype=np.int64)
        documents = _of_documents(checked, sentences)
        same = (
            old is not None
            and documents
            and isinstance(embedder, CachedEmbedder)
            and old.sentences is not None
            and embedder.fingerprint == old.embedder.fingerprint
            and vectors == vectors_kind(old._dense) == "exact"  # others learn from all vectors
        )
        fresh = np.flatnonzero(kept < 0) if same else np.arange(len(checked))
        texts = [embedded_text(checked[k]) for k in fresh]
        embedder.fit(texts)
        encoded = np.ascontiguousarray(embedder.encode(texts, progress), dtype=np.float32)
        if encoded.ndim != 2 or encoded.shape[0] != len(texts):
            raise InputError(
                f"embedder '{embedder.name}' returned shape {encoded.shape}, expected ({len(texts)}, d)"
            )
        if not np.all(np.isfinite(encoded)):
            row = int(fresh[np.flatnonzero(~np.isfinite(encoded).all(axis=1))[0]])
            raise InputError(
                f"embedder '{embedder.name}' returned NaN or infinity for passage '{checked[row].id}'"
            )
        if old is not None and same:
            every = np.empty((len(checked), encoded.shape[1]), dtype=np.float32)
            every[fresh], every[kept >= 0] = encoded, old.embeddings(kept[kept >= 0].tolist())
            encoded = every
        is_large = len(checked) >= LARGE
        exact = is_large and vectors == "exact"  # FAISS would copy them
        dense = MappedVectors.exact(encoded) if exact else make_dense(encoded, vectors)
        nearest = Nearest.build(encoded) if is_large else None
        del encoded
        known = (None, None) if old is None else (old.repetition, kept)
        repetition = Repetition.build(checked, *known)
        units = (old.sentences, kept) if old is not None and same else (None, None)
        cut = SentenceIndex.build(checked, embedder, progress, *units) if documents or sentences else None
        if not documents:
            lexical = LexicalIndex.build(texts)
            del texts
            links = LinkIndex.build(checked, name_of)
            return cls(checked, embedder, name, dense, lexical, links, repetition, cut, nearest=nearest)
        terms = UnitTerms.build(checked, None, *((None, None) if old is None else (old.terms, kept)))
        named = None if name_of is None else LinkIndex.build(checked, name_of)
        identities = Identities.build(checked, terms)
        return cls(checked, embedder, name, dense, terms, named, repetition, cut, identities, nearest)

    @staticmethod
    def texts_to_embed(passages: Sequence[Passage], sentences: bool | None = None) -> int:
        """How many texts `build` embeds: passages, and their units where these are embedded, too."""
        units = sentences or _of_documents(passages, sentences)
        return len(passages) + (sum(len(units_of(passage)) for passage in passages) if units else 0)

    @property
    def terms(self) -> UnitTerms | None:
        """The words of passages and units of an index of documents; None for others."""
        return self._bm25 if isinstance(self._bm25, UnitTerms) else None

    @property
    def words(self) -> Callable[[str], list[str]]:
        """What cuts texts and questions into words."""
        found: Callable[[str], list[str]] = getattr(self._bm25, "words", None) or words_of
        return found

    @cached_property
    def languages(self) -> Counter[str]:
        """How many documents are in each language, those of some passages: all where there are few."""
        texts: dict[str, str] = {}
        for k in range(0, len(self.passages), 1 + len(self.passages) // _SAMPLE):
            one = self.passages[k]
            name = one.source or one.id
            texts[name] = f"{texts.get(name, '')}\n{one.text}"
        return Counter(filter(None, (language_of(text, "english", 5) for text in texts.values())))

    def __len__(self) -> int:
        return len(self.passages)

    @property
    def ids(self) -> Sequence[str]:
        """Ids of the passages, in order."""
        return PassageIds(self.passages)

    @property
    def dimensions(self) -> int:
        """Dimensions of the embeddings."""
        return int(self._dense.d)

    def digest(self) -> str:
        """SHA-256 over what a search, and a choice among what it finds, depend on.

        That is every passage with its place and date, the embedder, the form of the vectors, the links, the
        near-duplicates and the cut into sentences; not the name, nor whether the files are mapped.
        """
        parts = [self.embedder.fingerprint, vectors_kind(self._dense), self.sentences is not None]
        digest = hashlib.sha256(json.dumps(parts).encode())
        for p in self.passages:
            digest.update(json.dumps(p.to_dict()).encode())
        arrays: list[Any] = []
        if self.links is not None:
            matrix = self.links.matrix
            arrays += [matrix.indptr, matrix.indices, matrix.data]
        if self.repetition is not None:
            arrays += [self.repetition.spans, self.repetition.groups]
        if self.sentences is not None:
            arrays.append(self.sentences.spans)
        if self.allowed is not None:
            arrays.append(self.allowed)
        for array in arrays:
            found = np.ascontiguousarray(array)
            digest.update(f"{found.dtype}{found.shape}".encode() + found.tobytes())
        return digest.hexdigest()

    @property
    def has_places(self) -> bool:
        """Whether it is known of passages, or of sentences, where they lie, so that they may share text."""
        known = self.repetition is not None and self.repetition.overlapping > 0
        return known or self.sentences is not None

    @property
    def vectors(self) -> NDArray[np.float32]:
        """All vectors, as they are held where they are exact."""
        rows = self._dense.rows if isinstance(self._dense, MappedVectors) else None
        return self.embeddings(range(len(self))) if rows is None else rows  # type: ignore[return-value]

    def embeddings(self, rows: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float32]:
        """The vectors of the given rows, shape (len(rows), d)."""
        if not len(rows):
            return np.zeros((0, self.dimensions), dtype=np.float32)
        return np.asarray(self._dense.reconstruct_batch(np.asarray(rows, dtype=np.int64)), dtype=np.float32)

    def only(self, where: Filter | Mapping[str, Any] | Sequence[str] | str | None) -> CorpusIndex:
        """Return the index for questions that may be answered from some passages alone.

        where: see `mio_rag.filters`. What an index was restricted to before stays so, and what lies outside
            is not looked at. Documents that lack a key are counted in `lacking`. Of unread files only those
            stay whose names meet it.

        Raises `InputError` for a condition that is none, a key that no passage has, or if no passage meets
        all.
        """
        conditions = where if isinstance(where, Filter) else Filter(where)
        if not conditions:
            return self
        among = np.arange(len(self)) if self.allowed is None else np.flatnonzero(self.allowed)
        rows, lacking = conditions.applied(self.passages[k] for k in among.tolist())
        allowed = np.zeros(len(self), dtype=bool)
        allowed[among[rows]] = True
        if not allowed.any():
            advice = conditions.advice(self.passages[k].source for k in among.tolist())
            raise InputError(f"no passage of '{self.name}' meets the filter: {advice}")
        allowed.flags.writeable = False
        unread = tuple(
            one for one in self.unread if conditions.holds(Passage(one.path, one.path, source=one.source))
        )
        return replace(self, allowed=allowed, lacking=(*self.lacking, *lacking), unread=unread)

    def search_dense(
        self, query: NDArray[np.float32], k: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The k rows of largest inner product with a query vector, best first, and those products."""
        if self.allowed is not None:
            open_ = np.flatnonzero(self.allowed)
            parts = np.array_split(open_, 1 + len(open_) // _AT_ONCE)
            products = np.concatenate([self.embeddings(part.tolist()) @ query for part in parts])
            best = np.argsort(-products, kind="stable")[:k]
            return open_[best], products[best].astype(np.float64)
        if self.nearest is not None:
            near = self.nearest.candidates(query)
            if len(near) >= k:
                products = self.embeddings(near) @ query
                best = np.argpartition(-products, k - 1)[:k]
                best = best[np.lexsort((best, -products[best]))]
                return near[best], products[best].astype(np.float64)
        scores, rows = self._dense.search(
            np.ascontiguousarray(query[None, :], dtype=np.float32), min(k, len(self))
        )
        return rows[0].astype(np.int64), scores[0].astype(np.float64)

    def share_with(self, word: str) -> float:
        """The share of passages that have a word of a short text; those that are not allowed have none."""
        if self.allowed is None and len(words := set(self.words(word))) < 2:
            return sum(map(self._bm25.holding, words)) / len(self)
        return float((self.scores_bm25(word) > 0).mean())

    def search_bm25(self, question: str, k: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The k rows of best BM25 score, best first, and the scores; rows that share no word are left out."""
        if self.allowed is None and isinstance(self._bm25, LexicalIndex):
            return self._bm25.best(question, k)
        scores = self.scores_bm25(question)
        rows = best_rows(scores, k)
        return rows, scores[rows]

    def scores_bm25(self, question: str, rows: Sequence[int] | None = None) -> NDArray[np.float64]:
        """The BM25 score of every row, or of the given ones; 0 for those that share no word, or are not
        allowed.
        """
        if rows is not None and self.allowed is None and isinstance(self._bm25, LexicalIndex):
            return self._bm25.of(question, np.asarray(rows, dtype=np.int64))
        scores = self._bm25.scores(question)
        scores = scores if self.allowed is None else np.where(self.allowed, scores, 0.0)
        return scores if rows is None else scores[np.asarray(rows, dtype=np.int64)]

    # --- on disk -----------------------------------------------------------------------------------------

    def save(
        self, folder: str | Path, overwrite: bool = False, record: Mapping[str, str] | None = None
    ) -> Path:
        """Write the index as one folder, all or nothing.

        record: files beside those of the index: name -> text.

        Raises `InputError` if the folder exists and is not to be replaced, or cannot be written.
        """
        target = Path(folder)
        check_target(target, overwrite)
        with replaced_folder(target) as work:
            if self.layers is None:
                self._save_rows(work)
            else:
                self.layers.save(work)
            for part in (self.links, self.repetition, self.identities):
                if part is not None:
                    part.save(work)
            self.embedder.save(work)
            files = sorted(p for p in work.rglob("*") if p.is_file())
            if self.layers is not None:  # the manifests below tell of what lies beside them
                files = [p for p in files if p.name == "manifest.json" or p.parent in (work, work / "gone")]
            manifest = {
                "format": FORMAT,
                "version": VERSION,
                "name": self.name,
                "embedder": self.embedder.name,
                "fingerprint": self.embedder.fingerprint,
                "passages": len(self),
                "dimensions": self.dimensions,
                "nearest": self.nearest.wide if self.nearest else 0,
                "sha256": {p.relative_to(work).as_posix(): sha256_of(p) for p in files},
                "stamps": {p.relative_to(work).as_posix(): _stamp(p) for p in files},
            }
            manifest["checksum"] = _manifest_checksum(manifest)
            (work / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
            for name, text in (record or {}).items():
                (work / name).write_text(text, encoding="utf-8")
        return target

    def _save_rows(self, work: Path) -> None:
        """Write passages, vectors and words."""
        starts = np.zeros(len(self) + 1, dtype=np.int64)
        with (work / "passages.jsonl").open("wb") as lines:
            for k, p in enumerate(self.passages, 1):
                starts[k] = starts[k - 1] + lines.write(json.dumps(p.to_dict()).encode() + b"\n")
        np.save(work / "passages.npy", starts)
        if isinstance(self._dense, MappedVectors):
            self._dense.save(work / "dense.faiss")
        else:
            # Through Python: faiss's own writer does not notice when the end meets a full disk.
            faiss = require("faiss", "retrieval", "dense retrieval")
            (work / "dense.faiss").write_bytes(faiss.serialize_index(self._dense).tobytes())
        self._bm25.save(work / "bm25")
        for part in (self.sentences, self.nearest):
            if part is not None:
                part.save(work)

    @classmethod
    def load(
        cls, folder: str | Path, embedder: Embedder | None = None, *, mapped: bool = False
    ) -> CorpusIndex:
        """Read an index that `save` wrote.

        embedder: a loaded embedder to reuse; it must be the one that built the index.
        mapped: leave vectors, texts and the lexical index on disk, read of them what a question needs, and
            give back the memory. Product codes, which are small, stay in memory. The folder must not be
            replaced meanwhile. Large indexes stay on disk in any case; their memory is the system's.

        Raises `IndexFormatError` if the folder is not an index, of another version, damaged, or built by
        another embedder.
        """
        path = Path(folder)
        manifest = _checked_manifest(path)
        # Large ones stay in their files, which Windows then lets nobody replace.
        gives_back, mapped = mapped, mapped or (manifest["passages"] >= LARGE and os.name != "nt")
        count, name = manifest["passages"], manifest["name"]
        if (path / LAYERS_FILE).is_file():
            held = Layers.load(path, _embedder_of(manifest, path, embedder), cls)
            return held.joined(
                repetition=Repetition.load(path, count),
                identities=Identities.load(path, count),
            )
        try:
            passages: Sequence[Passage]
            if mapped:
                starts = np.load(path / "passages.npy", mmap_mode="r", allow_pickle=False)
                passages = MappedPassages(path / "passages.jsonl", starts)
            else:
                with (path / "passages.jsonl").open(encoding="utf-8") as lines:
                    passages = tuple(Passage.from_dict(json.loads(line)) for line in lines)
            dense: Any = open_vectors(path / "dense.faiss", mapped, gives_back)
            if dense is None:
                faiss = require("faiss", "retrieval", "dense retrieval")
                dense = faiss.read_index(str(path / "dense.faiss"))
            bm25: LexicalIndex | UnitTerms
            if (path / "bm25" / PARAMETERS_FILE).is_file():
                bm25 = UnitTerms.load(path / "bm25", mapped=mapped)
            else:
                bm25 = LexicalIndex.load(path / "bm25", mapped=mapped)
        except (OSError, RuntimeError, ValueError, TypeError, KeyError, InputError) as error:
            raise IndexFormatError(f"the index '{path}' cannot be read ({error}): build it again") from error
        if not len(passages) == dense.ntotal == len(bm25) == count or dense.d != manifest["dimensions"]:
            raise IndexFormatError(
                f"the index '{path}' is inconsistent: {len(passages)} texts, {dense.ntotal} vectors of "
                f"{dense.d} "
                f"dimensions, manifest says {manifest['passages']} of {manifest['dimensions']}: build it "
                "again"
            )
        embedder = _embedder_of(manifest, path, embedder)
        links = LinkIndex.load(path, count, mapped=mapped)
        repetition, identities = Repetition.load(path, count), Identities.load(path, count)
        nearest = Nearest.load(path, manifest.get("nearest", 0))
        cut = SentenceIndex.load(path, len(passages), dense.d, mapped=mapped or os.name != "nt")
        if isinstance(bm25, UnitTerms) and (cut is None or identities is None or bm25.units != len(cut)):
            raise IndexFormatError(f"the index '{path}' lacks parts of its documents: build it again")
        return cls(passages, embedder, name, dense, bm25, links, repetition, cut, identities, nearest)

    # --- of stores ---------------------------------------------------------------------------------------

    def hits(self, question: str, k: int) -> CorpusIndex | None:
        """Return what is searched for a question: the index itself; of a store what it finds, or None."""
        return self

    def rows_of(self, passages: Sequence[Passage], vectors: NDArray[np.float32]) -> list[int]:
        """Return the numbers of passages that `hits` found; of a store only."""
        raise NotImplementedError

    def among(self, rows: Sequence[int]) -> tuple[CorpusIndex, dict[int, int]]:
        """Return an index of the passages with these numbers, and where each stands in it."""
        return self, {}

    def required_links(self) -> LinkIndex:
        """The evidence links.

        Raises `InputError` if it has none, as those of documents.
        """
        if self.links is None:
            raise InputError(
                f"the index of '{self.name}' has no evidence links: leave link_hops out, or build it with "
                "names for its passages (`mio-rag index DATA --out INDEX --entities MODEL`)"
            )
        return self.links


def _embedder_of(manifest: dict[str, Any], path: Path, embedder: Embedder | None) -> Embedder:
    """The embedder that built an index, given or by its name."""
    if embedder is None and manifest["fingerprint"].startswith(GIVEN):
        raise IndexFormatError(
            f"the index '{path}' was built by an embedder object, '{manifest['embedder']}': give it, as "
            f"in Collection('{path}', embedder=...) or CorpusIndex.load('{path}', embedder)"
        )
    embedder = make_embedder(manifest["embedder"], path) if embedder is None else as_embedder(embedder)
    if embedder.fingerprint != manifest["fingerprint"]:
        raise IndexFormatError(
            f"the index '{path}' was built by '{manifest['embedder']}' ({manifest['fingerprint']}), "
            "and the embedder "
            f"here is {embedder.fingerprint}: vectors of two models cannot be compared; build the "
            "index again"
        )
    return embedder


def _of_documents(passages: Sequence[Passage], sentences: bool | None) -> bool:
    return sentences is not False and any(passage.units for passage in passages)


def is_index(folder: Path) -> bool:
    """Whether a folder claims to be an index of this format (of any version)."""
    try:
        return bool(
            parse_json(read_text(folder / "manifest.json"), "the manifest", own=True).get("format") == FORMAT
        )
    except (InputError, AttributeError):
        return False


def check_target(target: Path, overwrite: bool = False) -> None:
    """Raise `InputError` if an index must not be written there."""
    if not target.exists() or (overwrite and is_index(target)):
        return
    hint = "pass overwrite (--overwrite) to replace it" if is_index(target) else "choose another path"
    raise InputError(f"'{target}' exists already: {hint}")


def _manifest_checksum(manifest: dict[str, Any]) -> str:
    content = {key: value for key, value in manifest.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def check_index(folder: str | Path) -> None:
    """Raise `IndexFormatError` where a folder is plainly no index of this format; nothing is loaded."""
    _manifest(Path(folder))


def _manifest(path: Path) -> dict[str, Any]:
    if path.is_file():
        raise IndexFormatError(
            f"'{path}' is a file, not an index: give the folder that `mio-rag index` wrote"
        )
    if not path.is_dir():
        raise IndexFormatError(
            f"'{path}' is not an index: no such folder; build one with `mio-rag index DATA --out {path}`"
        )
    if not is_index(path):
        raise IndexFormatError(
            f"'{path}' is not a mio-rag index (no manifest.json of this format): build one with `mio-rag "
            "index`"
        )
    manifest: dict[str, Any] = parse_json(read_text(path / "manifest.json"), "the manifest", own=True)
    if manifest.get("version") != VERSION:
        raise IndexFormatError(
            f"the index '{path}' has format version {manifest.get('version')}, this release reads "
            f"{VERSION}: build it again with `mio-rag index DATA --out {path} --overwrite` (cached "
            "embeddings are reused)"
        )
    if manifest.get("checksum") != _manifest_checksum(manifest):
        raise IndexFormatError(
            f"'{path / 'manifest.json'}' is damaged (its checksum does not match): build the index again"
        )
    return manifest


def _stamp(path: Path) -> list[int] | None:
    """What tells that a large file is as it was written; small ones are read to know it."""
    found = path.stat()
    return [found.st_size, found.st_mtime_ns] if found.st_size >= _READ else None


def _checked_manifest(path: Path) -> dict[str, Any]:
    manifest = _manifest(path)
    damaged = []
    for relative, digest in manifest["sha256"].items():
        file = path / relative
        if not file.is_file():
            damaged.append(f"'{file}' is missing")
        elif ((now := _stamp(file)) is None or now != manifest["stamps"].get(relative)) and sha256_of(
            file
        ) != digest:
            damaged.append(f"'{file}' is damaged (its checksum does not match)")
    if damaged:
        raise IndexFormatError([*damaged, "build the index again"])
    return manifest
