"""The documents that are served: reloaded when they change, and restricted by filters."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

from mio_rag.errors import InputError, MioRagError
from mio_rag.filters import Filter
from mio_rag.retrieval.cached import CachedEmbedder
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.sources import Building, Opened, changes_of, kind_of, open_source

_CHECK_SECONDS = 5.0  # between two looks at the files
_PATIENCE_SECONDS = 0.3  # small folders are indexed again in less
_FILTERS = 64  # whose matches are cached
_LOG = logging.getLogger("mio_rag.service")

Stamp = tuple[int, int, int]


class Documents:
    """An index, or what one is made of.

    source: path or name as `mio_rag.sources.open_source` takes it; None: `index` never changes.
    building: how it is indexed.
    index: where it is loaded already.
    mapped: leave the index on disk; its folder must not be replaced, so that changes are not taken over.
    where: condition on everything that is served.
    seconds: least time between two looks at the files.

    Raises as `open_source`, and `InputError` where no passage meets `where`.
    """

    def __init__(
        self,
        source: str | None,
        building: Building | None = None,
        index: CorpusIndex | None = None,
        *,
        mapped: bool = False,
        where: Filter | None = None,
        seconds: float = _CHECK_SECONDS,
    ) -> None:
        self.source, self._building, self._mapped = source, building, mapped
        self._where, self._seconds = where or Filter(), seconds
        self._lock, self._looked, self._looking = threading.Lock(), time.monotonic(), False
        self.problem: str | None = None
        self._folder: Path | None = None
        if index is None:
            index = self._opened()
        self._stamp = self._stamped()
        self._index = replace(index.only(self._where), lacking=())
        self._matching: OrderedDict[str, tuple[CorpusIndex, CorpusIndex]] = OrderedDict()

    def index(self, where: Filter | None = None, locked: Filter | None = None) -> CorpusIndex:
        """Return the index as it is now, restricted to what meets a filter.

        locked: condition on what may be looked at: nothing is told of other documents.

        Raises `InputError` for a key that no passage has, or if no passage meets the filter.
        """
        self._look()
        index = self._index
        if not where and not locked:
            return index
        filters = [one or Filter() for one in (locked, where)]
        key = json.dumps([one.to_dict() for one in filters], sort_keys=True, default=str)
        with self._lock:
            whole, found = self._matching.get(key, (None, index))
            if whole is index:
                self._matching.move_to_end(key)
                return found
        found = replace(index.only(filters[0]), lacking=()).only(filters[1])
        with self._lock:
            self._matching[key] = index, found
            while len(self._matching) > _FILTERS:
                self._matching.popitem(last=False)
        return found

    def _look(self) -> None:
        """Look at the files in another thread: a request waits only a moment."""
        if self.source is None or self._mapped:
            return
        with self._lock:
            if self._looking or time.monotonic() - self._looked < self._seconds:
                return
            self._looking = True
        thread = threading.Thread(target=self.refresh, daemon=True)
        thread.start()
        thread.join(_PATIENCE_SECONDS)

    def refresh(self) -> None:
        """Load what has changed; where that fails, the index stays, and `problem` reports why."""
        try:
            index = self._changed()
            if index is not None:
                if index.embedder.name != self._index.embedder.name:
                    raise InputError("the new index has another embedder: start the service again")
                index = replace(index.only(self._where), lacking=())
                with self._lock:
                    self._index = index
                    self._matching.clear()
            self.problem = None
        except Exception as error:  # whatever is wrong with the documents, requests go on with the old ones
            known = isinstance(error, MioRagError)
            problem = str(error) if known else f"{type(error).__name__}: {error}"
            if problem != self.problem:
                _LOG.warning("changed documents are not served: %s", problem, exc_info=not known)
            self.problem = problem
        finally:
            with self._lock:
                self._looked, self._looking = time.monotonic(), False

    def _changed(self) -> CorpusIndex | None:
        assert self.source is not None
        if kind_of(self.source) == "index":
            stamp = self._stamped()
            if stamp == self._stamp:
                return None
        elif not changes_of(self.source, self._building).changes and self._stamped() == self._stamp:
            return None
        index = self._opened()
        self._stamp = self._stamped()
        return index

    def _opened(self) -> CorpusIndex:
        assert self.source is not None
        opened: Opened = open_source(self.source, self._building, mapped=self._mapped)
        self._folder = opened.folder
        if isinstance(opened.index.embedder, CachedEmbedder):
            opened.index.embedder.stop_caching()
        return opened.index

    def _stamped(self) -> Stamp | None:
        """What tells an index on disk from another one there."""
        folder = self._folder
        if folder is None and self.source is not None and Path(self.source).is_dir():
            folder = Path(self.source)
        try:
            stat = None if folder is None else (folder / "manifest.json").stat()
        except OSError:
            return None
        return None if stat is None else (stat.st_mtime_ns, stat.st_size, stat.st_ino)

    def state(self) -> dict[str, Any]:
        """Return what /health reports of it."""
        self._look()
        index = self._index
        return {"index": index.name, "passages": len(index), "problem": self.problem}
