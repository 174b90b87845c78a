"""Open what a person has: documents, passages, an index or a question set, by a path or a name.

    folder with manifest.json      an index, as it is; a note where its documents changed since
    folder with corpus.jsonl       passages
    other folder, other file       documents
    FILE.jsonl[.gz]                passages: one object a line, "text" and perhaps id, title, source, date
    demo, hf:NAME, FORMAT:PATH     a question set with its passages
    qdrant://..., lancedb:..., ... a vector store; see `mio_rag.stores`

What is no index is indexed on first use, and again when a file changed; embeddings come from the cache by
text. Such indexes lie in ``indexes`` of the cache folder, under a name made of the source and of how it is
indexed.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import shutil
import time
import warnings
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from mio_rag.corpora.dataset import Dataset, load_folder
from mio_rag.corpora.load import check_source as check_set
from mio_rag.corpora.load import load_dataset, load_passages
from mio_rag.corpora.published import is_published
from mio_rag.defaults import DEFAULTS
from mio_rag.documents.files import (
    KINDS,
    MAX_BYTES,
    NOT_MISSED,
    TOOL_FOLDERS,
    LeftOut,
    Read,
    passed_over,
    read_folder,
)
from mio_rag.errors import DataError, IndexFormatError, InputError, Notice
from mio_rag.filters import Unread
from mio_rag.retrieval.cached import cache_folder
from mio_rag.retrieval.embedders import Embedder, check_embedder, make_embedder
from mio_rag.retrieval.index import VERSION, CorpusIndex, check_index, check_target, is_index
from mio_rag.retrieval.layers import changed
from mio_rag.retrieval.links import entity_names
from mio_rag.retrieval.vectors import check_vectors
from mio_rag.storage import parse_json, read_text, sha256_of, write_atomically
from mio_rag.stores import is_store, open_store, shown_url
from mio_rag.types import Passage

Kind = Literal["index", "set", "layout", "passages", "documents", "file", "store"]
#: What reports how far something has come: (what, total) -> a context with a function for the steps done.
Progress = Callable[[str, int], AbstractContextManager[Callable[..., None]]]

_SPLITTER = 16  # version of how documents become passages
_RECORD = "source.json"
_FEW = 0.05  # of the files: where more changed, all is written anew
_YOUNG = 2_000_000_000  # nanoseconds: as coarse as times of files are
_PASSAGES = (".jsonl", ".jsonl.gz")


@dataclass(frozen=True)
class Building:
    """How a source is indexed.

    embedder: see `make_embedder`.
    vectors: one of exact, 8bit, pq
    sentences: embed every sentence, too.
    entities: "spacy:MODEL": link passages by the named entities of this model.
    follow_links: of folders of documents: follow symbolic links out of them.
    max_bytes: of folders of documents: largest file that is read.
    """

    embedder: str = DEFAULTS.embedder
    vectors: str = "exact"
    sentences: bool = False
    entities: str | None = None
    follow_links: bool = False
    max_bytes: int | None = None

    def check(self) -> None:
        """Raise `InputError` for what is unknown; nothing is loaded."""
        check_embedder(self.embedder)
        check_vectors(self.vectors)


@dataclass(frozen=True)
class Changes:
    """What changed in a source since it was indexed: files by their names below it."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed)

    @property
    def all(self) -> tuple[str, ...]:
        """Every file."""
        return (*self.changed, *self.added, *self.removed)


@dataclass(frozen=True, eq=False)
class Opened:
    """A source, and its index on disk.

    folder: of the index.
    files: name below the source -> size, time of change and SHA-256.
    left_out: what could not be read.
    built: whether the index is new, or was built again.
    notes: what a user should know.
    """

    source: str
    kind: Kind
    folder: Path
    files: dict[str, list[Any]] = field(default_factory=dict)
    changes: Changes = Changes()
    left_out: tuple[LeftOut, ...] = ()
    built: bool = False
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    loaded: CorpusIndex | None = None

    @property
    def unread(self) -> tuple[Unread, ...]:
        """Files that could not be read, or parts of them; not what is read in another place."""
        missed = (one for one in self.left_out if not one.reason.startswith(NOT_MISSED))
        if self.kind in ("set", "layout", "passages"):
            return ()
        return tuple(
            Unread(_file_of(one.path, self.files) or one.path, one.path, one.reason) for one in missed
        )

    @property
    def files_read(self) -> int:
        """How many files were read, at least in part."""
        return len(self.files) - sum(one.path in self.files for one in self.left_out)

    @property
    def index(self) -> CorpusIndex:
        """The index."""
        assert self.loaded is not None
        return self.loaded


def kind_of(source: str | Path) -> Kind:
    """Return what a path or name stands for; `DataError` where there is nothing. Nothing is read."""
    text, path = str(source), Path(source)
    if text == "demo" or text.startswith("hf:") or is_published(text):
        check_set(text)
        return "set"
    if is_store(text):
        return "store"
    if path.is_dir():
        if is_index(path):
            check_index(path)
            return "index"
        return "layout" if _corpus(path) is not None else "documents"
    if path.is_file():
        return "passages" if path.name.endswith(_PASSAGES) else "file"
    with suppress(OSError):
        beside = [one.name for one in path.absolute().parent.iterdir()]
        if near := difflib.get_close_matches(path.name, beside, 1):
            raise DataError(f"{text} does not exist. Did you mean {path.parent / near[0]}?")
    raise DataError(
        f"{text} does not exist: give a folder or file of documents, an index, a JSONL file of passages, or "
        "a question set (demo, hf:NAME, FORMAT:PATH), or the URL of a store (qdrant://HOST/COLLECTION, ...)"
    )


def open_source(
    source: str | Path,
    building: Building | None = None,
    *,
    out: Path | None = None,
    overwrite: bool = False,
    refresh: bool = True,
    mapped: bool = False,
    load: bool = True,
    progress: Progress | None = None,
    embedder: Embedder | None = None,
) -> Opened:
    """Open a source, and index it where that is needed.

    building: None: the defaults, and whatever an index was built with.
    out: folder of the index; by default one of the cache.
    overwrite: whether an index of something else may be replaced there.
    refresh: whether changed files are read again.
    mapped: as in `CorpusIndex.load`.
    load: whether the index is loaded, too.
    embedder: in place of the one that `building` names.

    Raises `DataError` if there is nothing, or nothing of it can be read; `IndexFormatError` for an index that
    cannot be used; `InputError` for settings that are unknown or exclude each other, and where the index
    cannot be written.
    """
    kind, text = kind_of(source), str(source)
    if kind == "store":
        if out is not None:
            raise InputError(f"{shown_url(text)} is a store, which is searched as it is: leave out --out")
        from mio_rag.stores.base import StoreIndex

        model = embedder or make_embedder((building or Building()).embedder)
        name = shown_url(text)
        return Opened(name, kind, Path(), loaded=StoreIndex.of(open_store(text), model, name))
    if kind == "index":
        if building is not None and building != Building():
            raise InputError(f"{text} is an index, with an embedder of its own: leave out how to build one")
        found = _stored(text, Path(source))
        if load:
            index = replace(CorpusIndex.load(source, embedder, mapped=mapped), unread=found.unread)
            found = replace(found, loaded=index)
        return found
    how = building or Building()
    how.check()
    if embedder is not None:
        how = replace(how, embedder=embedder.fingerprint)
    folder = out or index_folder(source, how)
    known = _record(folder)
    if out is not None and not (known and known["source"] == _named(source, kind)):
        check_target(out, overwrite)
    unchanged = _unchanged(text, kind, folder, how, refresh)
    with nullcontext() if unchanged else _alone(folder):
        found = unchanged or _indexed(text, kind, folder, how, refresh, progress, embedder)
    if load and found.loaded is None:
        try:
            found = replace(found, loaded=CorpusIndex.load(folder, embedder, mapped=mapped))
        except IndexFormatError:
            if out is not None and not overwrite:
                raise
            with _alone(folder):  # damaged, or of another release
                shutil.rmtree(folder, ignore_errors=True)
                found = _indexed(text, kind, folder, how, refresh, progress, embedder)
    if found.loaded is not None and found.unread:
        found = replace(found, loaded=replace(found.loaded, unread=found.unread))
    return found


def index_folder(source: str | Path, building: Building | None = None) -> Path:
    """Return the folder in the cache for the index of a source."""
    told = [_named(source, kind_of(source)), asdict(building or Building()), _SPLITTER, VERSION]
    return cache_folder() / "indexes" / hashlib.sha256(json.dumps(told).encode()).hexdigest()[:12]


def changes_of(source: str | Path, building: Building | None = None, out: Path | None = None) -> Opened:
    """Return what changed since a source was indexed, everything without an index; nothing is written."""
    kind, how = kind_of(source), building or Building()
    if kind == "store":
        return Opened(shown_url(str(source)), kind, Path())
    if kind == "index":
        return _stored(str(source), Path(source))
    folder = out or index_folder(source, how)
    files, changes = _compared(_files(source, kind, how.follow_links), _known_files(folder))
    found = Opened(str(source), kind, folder, files, changes, _left_out(_record(folder)))
    return replace(found, left_out=left_out_now(found, how))


def _file_of(path: str, files: Container[str]) -> str:
    """The file that a path names, perhaps with a part of it ("may.pdf, page 3"); "" for none of the files."""
    while path and path not in files:
        path = path.rpartition(", ")[0]
    return path


def left_out_now(found: Opened, building: Building) -> tuple[LeftOut, ...]:
    """What is not read of an unchanged source: files that no reader is for may come and go unnoticed."""
    if found.kind != "documents":
        return found.left_out
    read = [one for one in found.left_out if _file_of(one.path, found.files)]
    others = passed_over(found.source, follow_links=building.follow_links)
    return tuple(sorted([*read, *others], key=lambda one: one.path))


def cached_indexes() -> list[dict[str, Any]]:
    """Return the indexes of the cache, and whether their sources are gone."""
    found = []
    for path in sorted((cache_folder() / "indexes").glob("*/")):
        record = _record(path)
        if record is None:
            continue
        source = record["source"]
        is_path = source.startswith("/") or Path(source).is_absolute()
        found.append(
            {
                "index": str(path),
                "source": source,
                "embedder": record["building"]["embedder"],
                "files": len(record["files"]),
                "gone": is_path and not Path(source).exists(),
            }
        )
    return found


def prune() -> list[dict[str, Any]]:
    """Remove the indexes of the cache whose source is gone; return them."""
    gone = [one for one in cached_indexes() if one["gone"]]
    for one in gone:
        shutil.rmtree(one["index"], ignore_errors=True)
        Path(f"{one['index']}.lock").unlink(missing_ok=True)
    return gone


# -- parts ------------------------------------------------------------------------------------------------


def _corpus(folder: Path) -> Path | None:
    return next((p for p in (folder / f"corpus{end}" for end in _PASSAGES) if p.is_file()), None)


def _named(source: str | Path, kind: Kind) -> str:
    """A source by a name that does not depend on the current folder."""
    text = str(source)
    if kind != "set":
        return str(Path(source).absolute().resolve())
    form, colon, path = text.partition(":")
    return text if not colon or form == "hf" else f"{form}:{Path(path).absolute().resolve()}"


def _files(source: str | Path, kind: Kind, follow: bool) -> dict[str, Path]:
    """The files that passages come from, by their names below the source."""
    path = Path(source)
    if kind == "set":
        form, _, rest = str(source).partition(":")
        path = Path(__file__).parent / "data" / "demo" / "corpus.jsonl" if form == "demo" else Path(rest)
        if form == "hf":
            return {}
    if kind == "layout":
        path = _corpus(path) or path
    if path.is_file():
        return {path.name: path}
    found, seen = {}, {os.path.realpath(path)}
    for place, folders, names in os.walk(path, followlinks=follow):
        real = {one: os.path.realpath(Path(place) / one) for one in folders if one not in TOOL_FOLDERS}
        folders[:] = sorted(one for one, target in real.items() if target not in seen)  # links may loop
        seen.update(real.values())
        for name in names:
            if kind == "set" or Path(name).suffix.lower() in KINDS:
                one = Path(place) / name
                found[one.relative_to(path).as_posix().encode("utf-8", "backslashreplace").decode()] = one
    return dict(sorted(found.items()))


def _compared(files: dict[str, Path], known: dict[str, list[Any]]) -> tuple[dict[str, list[Any]], Changes]:
    """Size, time and hash of each file, hashed only where size or time differ; and what changed."""
    now: dict[str, list[Any]] = {}
    changed: list[str] = []
    for name, path in files.items():
        with suppress(OSError):  # what cannot be opened is reported where it is read
            stat = path.stat()
            written = max(stat.st_mtime_ns, stat.st_ctime_ns)  # tools may set the first one back
            size, time_before, digest = known.get(name, [None, None, None])
            if (size, time_before) != (stat.st_size, written):
                before, digest = digest, sha256_of(path)
                if before is not None and digest != before:
                    changed.append(name)
            # A file written just now may be written again within the same tick: hash it the next time, too.
            young = time.time_ns() - written < _YOUNG
            now[name] = [stat.st_size, None if young else written, digest]
    added, removed = (tuple(n for n in one if n not in other) for one, other in ((now, known), (known, now)))
    return now, Changes(added, tuple(changed), removed)


def _record(folder: Path) -> dict[str, Any] | None:
    """What an index was built from; None where that is not known."""
    try:
        found = parse_json(read_text(folder / _RECORD), _RECORD, own=True)
        ok = is_index(folder) and found["splitter"] and found["building"]["embedder"] and found["source"]
        return found if ok and isinstance(found["files"], dict) else None
    except (InputError, KeyError, TypeError):
        return None


def _known_files(folder: Path) -> dict[str, list[Any]]:
    return dict((_record(folder) or {}).get("files", {}))


def _left_out(record: dict[str, Any] | None) -> tuple[LeftOut, ...]:
    return tuple(LeftOut(*one) for one in (record or {}).get("left_out", ()))


def _stored(text: str, folder: Path) -> Opened:
    """An index as it is, with a note where its documents are not what they were."""
    record = _record(folder)
    if record is None:
        return Opened(text, "index", folder)
    source, how = record["source"], Building(**record["building"])
    try:
        files, changes = _compared(_files(source, kind_of(source), how.follow_links), record["files"])
    except InputError:  # the documents are gone, and the index is all there is
        return Opened(text, "index", folder, record["files"], left_out=_left_out(record))
    notes: tuple[str, ...] = ()
    if changes:
        few = ", ".join(changes.all[:3]) + (
            f" and {len(changes.all) - 3} more" if len(changes.all) > 3 else ""
        )
        notes = (f"{source} changed since {text} was built ({few}): run mio-rag index {source} --out {text}",)
    return Opened(text, "index", folder, files, changes, _left_out(record), notes=notes)


_PATIENCE = 1.0  # seconds


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until nobody else builds this index."""
    from filelock import FileLock, Timeout

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(f"{folder}.lock", timeout=3600)
        try:
            lock.acquire(timeout=_PATIENCE)
        except Timeout:
            warnings.warn(f"another command builds the index {folder}: waiting for it", Notice, stacklevel=4)
            lock.acquire()
    except OSError as error:
        raise InputError(f"'{folder.parent}' cannot be written: {error}") from error
    try:
        yield
    finally:
        lock.release()
        if folder.parent.name != "indexes":
            Path(f"{folder}.lock").unlink(missing_ok=True)


def _unchanged(text: str, kind: Kind, folder: Path, how: Building, refresh: bool) -> Opened | None:
    """The index of a source in a folder; None where there is none, or files changed."""
    record = _record(folder)
    if record is None or record["building"] != asdict(how) or record["splitter"] != _SPLITTER:
        return None
    found = Opened(text, kind, folder, record["files"], left_out=_left_out(record))
    if not refresh:
        return found
    files, changes = _compared(_files(text, kind, how.follow_links), record["files"])
    if changes:
        return None
    if files != record["files"]:  # only times differ
        write_atomically(folder / _RECORD, json.dumps({**record, "files": files}))
    return replace(found, files=files)


def _indexed(
    text: str,
    kind: Kind,
    folder: Path,
    how: Building,
    refresh: bool,
    progress: Progress | None,
    embedder: Embedder | None = None,
) -> Opened:
    """The index of a source in a folder, built where there is none or files changed."""
    start = time.perf_counter()
    if (found := _unchanged(text, kind, folder, how, refresh)) is not None:
        return found
    record = _record(folder)
    if record is not None and (record["building"] != asdict(how) or record["splitter"] != _SPLITTER):
        record = None
    files, changes = _compared(_files(text, kind, how.follow_links), record["files"] if record else {})
    old = index = None
    if record is not None and kind == "documents":
        with suppress(IndexFormatError):
            old = CorpusIndex.load(folder, embedder)
    unchanged = set(files) - {*changes.changed, *changes.added}
    several = progress is not None and kind == "documents"
    with (
        progress("reading files", len(files) - (old is not None) * len(unchanged))
        if several and progress
        else nullcontext() as more
    ):
        each = None if more is None else lambda done, of: more(1)
        if old is not None and changes and len(changes.all) <= _FEW * len(files):
            read = read_folder(
                text,
                follow_links=how.follow_links,
                max_bytes=how.max_bytes or MAX_BYTES,
                progress=each,
                known=_known((), unchanged, _left_out(record)),
            )
            embed = embedder or old.embedder
            index, left_out = changed(old, folder, changes.all, read.passages, embed), read.left_out
        if index is None:
            if old is not None:
                old = replace(old, passages=tuple(old.passages))  # the same objects from now on
            known = {} if old is None else _known(old.passages, unchanged, _left_out(record))
            dataset = read_dataset(text, how, known, each)
            left_out = dataset.left_out
    if index is None:
        index = _built(dataset, how, progress, old, embedder)
    told = {
        "version": 1,
        "source": _named(text, kind),
        "building": asdict(how),
        "splitter": _SPLITTER,
        "files": files,
        "left_out": [[one.path, one.reason] for one in left_out],
    }
    index.save(folder, overwrite=True, record={_RECORD: json.dumps(told)})
    seconds = time.perf_counter() - start
    from mio_rag.retrieval.notes import mixed  # here: what is indexed already needs no selection to be opened

    same = old is not None and set(old.languages) == set(index.languages)
    notes = () if same or index.layers else mixed(index)
    return Opened(text, kind, folder, files, changes, left_out, True, seconds, notes, index)


def _known(held: Iterable[Passage], names: set[str], left_out: Sequence[LeftOut]) -> dict[str, Read]:
    """What an index holds of some files, and what was left out of them."""
    passages: dict[str, list[Passage]] = {name: [] for name in names}
    for passage in held:
        if passage.source in passages:
            passages[passage.source].append(passage)
    without: dict[str, list[LeftOut]] = {name: [] for name in names}
    for one in left_out:
        if name := _file_of(one.path, names):
            without[name].append(one)
    return {name: Read(tuple(passages[name]), tuple(without[name])) for name in names}


def read_dataset(
    source: str | Path,
    building: Building | None = None,
    known: Mapping[str, Read] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Dataset:
    """Return the passages of a source that is no index; its questions are not read.

    known: of a folder of documents: what is known of unchanged files, which are not read again.
    progress: of a folder of documents: told how many files are done, of how many.
    """
    kind, how = kind_of(source), building or Building()
    if kind == "passages":
        return load_passages(source)
    if kind == "documents":
        follow = how.follow_links or None
        return load_dataset(
            source,
            follow_links=follow,
            max_bytes=how.max_bytes,
            known=known,
            progress=progress,
            questions=False,
        )
    if kind == "file":
        return load_folder(source, max_bytes=how.max_bytes or MAX_BYTES)
    return load_dataset(source, questions=False)


def _built(
    dataset: Dataset,
    how: Building,
    progress: Progress | None,
    old: CorpusIndex | None = None,
    embedder: Embedder | None = None,
) -> CorpusIndex:
    if embedder is None:
        embedder = make_embedder(how.embedder) if old is None or how.embedder == "tfidf" else old.embedder
    name_of = None if how.entities is None else entity_names(how.entities)
    sentences = how.sentences or None  # those of documents are embedded anyway
    before = set() if old is None else set(map(id, old.passages))
    fresh = [passage for passage in dataset.passages if id(passage) not in before]
    total = CorpusIndex.texts_to_embed(fresh, sentences)
    shown = nullcontext(None) if progress is None else progress(f"embedding with {embedder.name}", total)
    with shown as advance:
        return CorpusIndex.build(
            dataset.passages, embedder, dataset.name, advance, name_of, how.vectors, sentences, old
        )
