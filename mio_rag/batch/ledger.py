"""What a batch of questions has answered and spent: one SQLite file, of which no kill can make a liar.

Before a question is asked, the most that it may cost is held; when it is answered, the answer and what it
cost are written, and what was held is free again, in one transaction. What is still held when a run begins
was held by one that was killed: nobody knows what it spent, so all of it counts as spent.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mio_rag.errors import InputError, StateError
from mio_rag.types import Question

T = TypeVar("T")

_PATIENCE_SECONDS = 30.0
_APPLICATION = 0x6D696F61  # "mioa": how the file is known as a batch of answers
_CREATE = (
    "CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE questions (number INTEGER PRIMARY KEY, id TEXT NOT NULL, question TEXT NOT NULL, "
    "choices TEXT NOT NULL, state TEXT NOT NULL DEFAULT 'open', attempts INTEGER NOT NULL DEFAULT 0, "
    "held INTEGER NOT NULL DEFAULT 0, cost INTEGER NOT NULL DEFAULT 0, told TEXT)",
    "CREATE INDEX questions_by_state ON questions (state)",
    "CREATE TABLE account (one INTEGER PRIMARY KEY CHECK (one = 1), spent INTEGER NOT NULL, "
    "held INTEGER NOT NULL, lost INTEGER NOT NULL)",
    "INSERT INTO account VALUES (1, 0, 0, 0)",
)


@dataclass(frozen=True)
class Account:
    """Where a batch stands, in the unit of its costs.

    Parameters
    ----------
    spent, held, lost : int
        On answers; for questions under way; on calls that never told, such as those of killed runs.
    states : mapping of str to int
        open, answered, failed, unread: questions.
    """

    spent: int
    held: int
    lost: int
    states: Mapping[str, int]


@dataclass(frozen=True)
class Claim:
    """A question that is being asked.

    Parameters
    ----------
    held : int
        The most that it may cost, in the unit of the batch.
    """

    number: int
    question: Question
    held: int = 0


class Ledger:
    """The file; threads may share it.

    Raises
    ------
    InputError
        If the file is of something else.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        try:
            self._connection = sqlite3.connect(
                path, timeout=_PATIENCE_SECONDS, isolation_level=None, check_same_thread=False
            )
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")  # an answer that was paid for stays
            with self._transaction() as connection:
                if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
                    connection.execute(f"PRAGMA application_id = {_APPLICATION}")
                    for statement in _CREATE:
                        connection.execute(statement)
                elif connection.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION:
                    raise InputError(f"'{path}' is no ledger of answers: choose another folder")
        except sqlite3.Error as error:
            raise InputError(
                f"'{path}' cannot be used as a ledger ({error}): choose another folder"
            ) from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                try:
                    yield self._connection
                    self._connection.execute("COMMIT")
                except BaseException:
                    self._connection.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise StateError(f"'{self.path}' cannot be read or written: {error}") from error

    def begin(self, about: Mapping[str, str], questions: Iterable[Question]) -> None:
        """Make the file this run's, or find that it is; what a killed run held is lost, and asked again.

        Parameters
        ----------
        about : mapping of str to str
            What the answers depend on.

        Raises
        ------
        InputError
            Where the file was begun with something else.
        """
        with self._transaction() as connection:
            known = dict(connection.execute("SELECT name, value FROM about").fetchall())
            if not known:
                connection.executemany("INSERT INTO about VALUES (?, ?)", about.items())
                rows = ((k, q.id, q.text, json.dumps(list(q.choices))) for k, q in enumerate(questions))
                connection.executemany(
                    "INSERT INTO questions (number, id, question, choices) VALUES (?, ?, ?, ?)", rows
                )
            else:
                self._compare(known, about)
            connection.execute("UPDATE account SET lost = lost + held, held = 0")
            connection.execute(
                "UPDATE questions SET state = 'open', held = 0 WHERE state IN ('held', 'failed', 'unread')"
            )

    def confirm(self, about: Mapping[str, str]) -> None:
        """Hold what is known by now, too, against what the file was begun with.

        Raises
        ------
        InputError
            As `begin`.
        """
        with self._transaction() as connection:
            known = dict(connection.execute("SELECT name, value FROM about").fetchall())
            new = {name: value for name, value in about.items() if name not in known}
            connection.executemany("INSERT INTO about VALUES (?, ?)", new.items())
            self._compare({**known, **new}, about)

    def _compare(self, known: Mapping[str, str], about: Mapping[str, str]) -> None:
        if changed := [name for name, value in about.items() if known.get(name) != value]:
            raise InputError(
                f"the answers in '{self.path.parent}' were begun with another {', '.join(changed)}: they "
                "cannot be mixed with these; use the same, or a new folder"
            )

    def next_open(self, behind: int) -> tuple[int, Question] | None:
        """The first open question behind a number; None: there is none."""
        with self._transaction() as connection:
            row = connection.execute(
                "SELECT number, id, question, choices FROM questions WHERE state = 'open' AND number > ? "
                "ORDER BY number LIMIT 1",
                (behind,),
            ).fetchone()
        if row is None:
            return None
        choices = self._read(row[0], row[3], list)
        if not all(isinstance(choice, str) for choice in choices):
            raise self._damaged(row[0], "choices that are no texts")
        try:
            return int(row[0]), Question(str(row[1]), str(row[2]), choices=tuple(choices))
        except InputError as error:
            raise self._damaged(row[0], str(error)) from error

    def _read(self, number: int, text: Any, kind: type[T]) -> T:
        """JSON of a row."""
        try:
            found = json.loads(text)
        except (ValueError, TypeError, RecursionError) as error:
            raise self._damaged(number, str(error)) from error
        if not isinstance(found, kind):
            raise self._damaged(number, f"no {kind.__name__}")
        return found

    def _damaged(self, number: int, why: str) -> StateError:
        return StateError(
            f"'{self.path}' is damaged: row {number} of questions holds {why}. Restore the file, or begin in "
            "another folder"
        )

    def _counts(self, connection: sqlite3.Connection) -> tuple[int, int, int]:
        """Spent, held and lost."""
        row = connection.execute("SELECT spent, held, lost FROM account").fetchone() or (-1, -1, -1)
        if not all(isinstance(count, int) and count >= 0 for count in row):
            raise StateError(
                f"'{self.path}' is damaged: row 1 of account holds {row!r}, expected three counts >= 0. "
                "Restore the file, or begin in another folder"
            )
        spent, held, lost = row
        return spent, held, lost

    def hold(self, number: int, cost: int, total: int | None, least: int | None = None) -> int:
        """Hold the most that a question may cost; 0 where the total does not allow it now.

        Parameters
        ----------
        least : int, optional
            With how much less it can be asked: then all that is left is held, where that is enough.
        """
        with self._transaction() as connection:
            spent, held, lost = self._counts(connection)
            if total is not None and spent + held + lost + cost > total:
                cost = total - spent - held - lost
                if least is None or cost < least:
                    return 0
            connection.execute("UPDATE account SET held = held + ?", (cost,))
            connection.execute(
                "UPDATE questions SET state = 'held', held = ?, attempts = attempts + 1 WHERE number = ?",
                (cost, number),
            )
        return cost

    def lose(self, claim: Claim, cost: int, total: int | None) -> bool:
        """Count a call of a question that was made and never told what it took.

        Returns
        -------
        bool
            Whether the total allows another one. If not, what was lost comes out of what is held, and the
            question must not be asked again.
        """
        with self._transaction() as connection:
            spent, held, lost = self._counts(connection)
            connection.execute("UPDATE account SET lost = lost + ?", (cost,))
            if total is None or spent + held + lost + cost <= total:
                return True
            (mine,) = connection.execute(
                "SELECT held FROM questions WHERE number = ?", (claim.number,)
            ).fetchone()
            taken = min(cost, mine)
            connection.execute("UPDATE account SET held = held - ?", (taken,))
            connection.execute("UPDATE questions SET held = held - ? WHERE number = ?", (taken, claim.number))
        return False

    def abandon(self, claim: Claim, *, again: bool) -> None:
        """Count all that a question holds as lost: whoever asked it is gone.

        Parameters
        ----------
        again : bool
            Whether it is open again; else it is still to be settled.
        """
        with self._transaction() as connection:
            (held,) = connection.execute(
                "SELECT held FROM questions WHERE number = ?", (claim.number,)
            ).fetchone()
            connection.execute("UPDATE account SET held = held - ?, lost = lost + ?", (held, held))
            connection.execute(
                "UPDATE questions SET held = 0, state = ? WHERE number = ?",
                ("open" if again else "held", claim.number),
            )

    def settle(
        self,
        claim: Claim,
        cost: int,
        told: Mapping[str, Any],
        *,
        failed: bool = False,
        unread: bool = False,
        short: bool = False,
    ) -> None:
        """Write down what came of a question and what it cost; what was held is free.

        Parameters
        ----------
        failed, unread : bool
            Whether it failed, or nothing was worth reading: the next run asks it again.
        short : bool
            Whether what was worth reading had no room in the total: it is open again.

        Raises
        ------
        StateError
            If it is not held: nobody is charged twice.
        """
        state = "failed" if failed else "open" if short else "unread" if unread else "answered"
        with self._transaction() as connection:
            row = connection.execute(
                "SELECT held FROM questions WHERE number = ? AND state = 'held'", (claim.number,)
            ).fetchone()
            if row is None:
                raise StateError(f"question {claim.number} is not under way: it was settled already")
            connection.execute(
                "UPDATE questions SET state = ?, held = 0, cost = cost + ?, told = ? WHERE number = ?",
                (state, cost, json.dumps(dict(told)), claim.number),
            )
            connection.execute("UPDATE account SET held = held - ?, spent = spent + ?", (row[0], cost))

    def reopen(self) -> None:
        """Ask again what nothing was read for."""
        with self._transaction() as connection:
            connection.execute("UPDATE questions SET state = 'open' WHERE state = 'unread'")

    def account(self) -> Account:
        """Where the batch stands."""
        with self._transaction() as connection:
            spent, held, lost = self._counts(connection)
            states = connection.execute("SELECT state, count(*) FROM questions GROUP BY state").fetchall()
        return Account(spent, held, lost, {str(state): int(count) for state, count in states})

    def last_price(self) -> float | None:
        """The price of a token of the last question that was answered; None: there is none."""
        with self._transaction() as connection:
            row = connection.execute(
                "SELECT number, told FROM questions WHERE state = 'answered' ORDER BY number DESC LIMIT 1"
            ).fetchone()
        if row is None:
            return None
        price = self._read(row[0], row[1], dict).get("token_price")
        if not isinstance(price, (int, float)):
            raise self._damaged(row[0], "no token_price")
        return float(price)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Every question in order, with its answer where there is one."""
        behind = -1
        while True:
            with self._transaction() as connection:
                part = connection.execute(
                    "SELECT number, id, question, state, attempts, told FROM questions WHERE number > ? "
                    "ORDER BY number LIMIT 1000",
                    (behind,),
                ).fetchall()
            if not part:
                return
            for number, identity, question, state, attempts, told in part:
                yield {
                    "row": number,
                    "query_id": identity,
                    "question": question,
                    "state": state,
                    "attempts": attempts,
                    **(self._read(number, told, dict) if told else {}),
                }
            behind = part[-1][0]

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()
