"""Ratings under a policy that may change: each goes to the log of the bandit that gave its id."""

from __future__ import annotations

import os
import sqlite3
import time
from hashlib import sha256
from pathlib import Path

from mio_rag.control.bandit.strategist import rate
from mio_rag.errors import InputError, StateError
from mio_rag.files import write_atomically
from mio_rag.learning.bandit_log import EventLog

__all__ = ["Logs"]

_SHARED = "PROMETHEUS_MULTIPROC_DIR"  # a folder of all workers, as long as the service runs
_NOTE = "strategy-log-"


class Logs:
    """The logs that a service has searched with since it began; several workers tell each other of them."""

    def __init__(self) -> None:
        self._paths: list[Path] = []
        shared = os.environ.get(_SHARED)
        self._shared = None if shared is None else Path(shared)

    def add(self, path: Path) -> None:
        """Take in a log that is searched with from now on."""
        here = path.absolute()
        self._paths = [here, *(other for other in self._paths if other != here)]
        if self._shared is not None:
            name = sha256(os.fsencode(here)).hexdigest()[:32]
            write_atomically(self._shared / f"{_NOTE}{name}.txt", str(here))

    def rate(self, identity: str, helpful: bool) -> bool:
        """Take in a rating; False where the question was rated before.

        Where logs are copies of each other, it goes to the one that was taken up last.

        Raises
        ------
        InputError
            If no log has the question.
        StateError
            If its log, or the one that may be its log, cannot be read or written.
        """
        known, unread = self._known(), None
        for path in known:
            try:
                log = EventLog(path)  # one that is gone is not made anew
            except InputError as error:
                # Unlike a file of something else it may hold the question.
                if isinstance(error.__cause__, (sqlite3.OperationalError, OSError)):
                    unread = StateError(str(error))
                continue
            try:
                with log.reading() as events:
                    is_here = events.find("question", identity) is not None
                if is_here:
                    return rate(log, identity, 1 if helpful else -1, time.time())
            finally:
                log.close()
        if unread is not None:
            raise unread
        if not known:
            raise InputError("this service learns nothing from ratings: the policy searches by no bandit")
        raise InputError(
            f"question '{identity}' is not in the log of any policy of this service: give search.id of a "
            "response; of a question for which nothing could be learned there is nothing to rate"
        )

    def _known(self) -> list[Path]:
        """Those of this worker, the last first, then those of others."""
        notes = [] if self._shared is None else sorted(self._shared.glob(f"{_NOTE}*.txt"))
        others = [Path(note.read_text(encoding="utf-8")) for note in notes]
        return list(dict.fromkeys([*self._paths, *others]))
