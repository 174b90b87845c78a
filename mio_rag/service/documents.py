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
_MOST_NAMED = 20  # files that cannot be read
_LOG = logging.getLogger("mio_rag.service")


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
        self._unread = 0
        if index is None:
            index = self._opened()
        self._stamp = self._stamped()
        self._index = self._restricted(index)
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
        found = replace(index.only(filters[0]), lacking=()).only(filters[1])  # nothing is told of others
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
        thread = threading.Thread(target=self._refresh, daemon=True)
        thread.start()
        thread.join(_PATIENCE_SECONDS)

    def _refresh(self) -> None:
        """Load what has changed; where that fails, the index stays, and `problem` reports why."""
        try:
            if (index := self._changed()) is not None:
                if index.embedder.name != self._index.embedder.name:
                    raise InputError("the new index has another embedder: start the service again")
                index = self._restricted(index)
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
        """The documents as they are now; None if they have not changed."""
        assert self.source is not None
        stamp, is_index = self._stamped(), kind_of(self.source) == "index"
        if stamp == self._stamp and (is_index or not changes_of(self.source, self._building).changes):
            return None
        index = self._opened()
        self._stamp = self._stamped()
        return index

    def _opened(self) -> CorpusIndex:
        assert self.source is not None
        opened: Opened = open_source(self.source, self._building, mapped=self._mapped)
        self._folder = opened.folder
        for one in opened.unread[:_MOST_NAMED]:
            _LOG.warning("%s is not served: %s", one.path, one.reason)
        if (more := len(opened.unread) - _MOST_NAMED) > 0:
            _LOG.warning("%d more files are not served: mio-rag index PATH lists them", more)
        self._unread = len(opened.unread)
        if isinstance(opened.index.embedder, CachedEmbedder):
            opened.index.embedder.stop_caching()
        return opened.index

    def _restricted(self, index: CorpusIndex) -> CorpusIndex:
        return replace(index.only(self._where), lacking=())

    def _stamped(self) -> tuple[int, int, int] | None:
        """What tells an index on disk from another one there."""
        folder = self._folder or Path(self.source or "")
        try:
            stat = (folder / "manifest.json").stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    def state(self) -> dict[str, Any]:
        """Return what /health reports of it."""
        self._look()
        index = self._index
        served = {"index": index.name, "passages": len(index), "unread": self._unread}
        return {**served, "problem": self.problem}
