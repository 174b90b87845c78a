"""The answers and costs of a batch of questions: one SQLite file, crash-safe.

Before a question is asked, the most that it may cost is reserved. Its answer, its cost and the release of the
reservation are written in one transaction. A reservation that a run finds at its start belongs to a killed
run: all of it counts as lost, since what was spent is unknown.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mio_rag.errors import InputError, StateError
from mio_rag.storage import SharedFile
from mio_rag.types import Question


@dataclass(frozen=True)
class Account:
    """The state of a batch, in the unit of its costs.

    spent, held, lost: on answers; reserved for questions in progress; on calls that never reported a cost.
    states: number of questions that are open, held, answered, failed, unread.
    """

    spent: int
    held: int
    lost: int
    states: Mapping[str, int]


@dataclass(frozen=True)
class Claim:
    """A question in progress, and the most that it may cost, as reserved."""

    number: int
    question: Question
    held: int = 0


class Ledger(SharedFile):
    """The file; threads may share it. Raises `InputError` if it is something else."""

    application, what, advice = 0x6D696F61, "a ledger of answers", "choose another folder"
    synchronous = "FULL"  # an answer that was paid for stays
    tables = """
        CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL);
        CREATE TABLE questions (number INTEGER PRIMARY KEY, state TEXT NOT NULL DEFAULT 'open',
            attempts INTEGER NOT NULL DEFAULT 0, held INTEGER NOT NULL DEFAULT 0,
            cost INTEGER NOT NULL DEFAULT 0, told TEXT);
        CREATE INDEX questions_by_state ON questions (state);
        CREATE TABLE account (one INTEGER PRIMARY KEY CHECK (one = 1), spent INTEGER NOT NULL,
            held INTEGER NOT NULL, lost INTEGER NOT NULL);
        INSERT INTO account VALUES (1, 0, 0, 0)"""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path = path
        with self._lock:
            self._connected()

    def _transaction(self) -> AbstractContextManager[sqlite3.Connection]:
        return self.alone(f"'{self.path}'")

    def begin(self, about: Mapping[str, str], count: int) -> None:
        """Start a new batch of so many questions, or resume one: what a killed run had reserved is lost.

        about: what the answers depend on; `InputError` if the file was begun with something else.
        """
        with self._transaction() as connection:
            if connection.execute("SELECT count(*) FROM about").fetchone()[0] == 0:
                numbers = ((number,) for number in range(count))
                connection.executemany("INSERT INTO questions (number) VALUES (?)", numbers)
            self._compare(connection, about)
            connection.execute("UPDATE account SET lost = lost + held, held = 0")
            connection.execute(
                "UPDATE questions SET state = 'open', held = 0 WHERE state IN ('held', 'failed', 'unread')"
            )

    def confirm(self, about: Mapping[str, str]) -> None:
        """Record, or compare, further things that the answers depend on; raises as `begin`."""
        with self._transaction() as connection:
            self._compare(connection, about)

    def _compare(self, connection: sqlite3.Connection, about: Mapping[str, str]) -> None:
        known = dict(connection.execute("SELECT name, value FROM about").fetchall())
        if changed := [name for name, value in about.items() if known.get(name, value) != value]:
            raise InputError(
                f"the answers in '{self.path.parent}' were begun with another {', '.join(changed)}: they "
                "cannot be mixed with these; use the same, or a new folder"
            )
        connection.executemany("INSERT OR IGNORE INTO about VALUES (?, ?)", about.items())

    def next_open(self, behind: int) -> int | None:
        """Return the first open question with a larger number; None: there is none."""
        with self._transaction() as connection:
            row = connection.execute(
                "SELECT min(number) FROM questions WHERE state = 'open' AND number > ?", (behind,)
            ).fetchone()
        return None if row[0] is None else int(row[0])

    def _told(self, number: int, text: Any) -> dict[str, Any]:
        """The line of a question."""
        try:
            found = json.loads(text or "{}")
        except (ValueError, TypeError, RecursionError) as error:
            raise self._damaged(f"row {number} of questions holds {error}") from error
        if not isinstance(found, dict):
            raise self._damaged(f"row {number} of questions holds {found!r:.40}")
        return found

    def _damaged(self, why: str) -> StateError:
        return StateError(f"'{self.path}' is damaged: {why}. Restore the file, or begin in another folder")

    def _counts(self, connection: sqlite3.Connection) -> tuple[int, int, int]:
        """Spent, reserved and lost."""
        row = connection.execute("SELECT spent, held, lost FROM account").fetchone() or (-1, -1, -1)
        if not all(isinstance(count, int) and count >= 0 for count in row):
            raise self._damaged(f"row 1 of account holds {row!r}, expected three counts >= 0")
        return row[0], row[1], row[2]

    def hold(self, number: int, cost: int, total: int | None, least: int | None = None) -> int:
        """Reserve the most that a question may cost, and return it; 0 where the total does not allow it now.

        least: with how much less the question can be asked. Then all that is left is reserved, if that is
            enough.
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
        """Count a call of a question that never reported its cost; return whether another one is allowed.

        If not, the loss is taken from the question's reservation, and it must not be asked again.
        """
        with self._transaction() as connection:
            spent, held, lost = self._counts(connection)
            connection.execute("UPDATE account SET lost = lost + ?", (cost,))
            if total is None or spent + held + lost + cost <= total:
                return True
            (held,) = connection.execute(
                "SELECT held FROM questions WHERE number = ?", (claim.number,)
            ).fetchone()
            taken = min(cost, held)
            connection.execute("UPDATE account SET held = held - ?", (taken,))
            connection.execute("UPDATE questions SET held = held - ? WHERE number = ?", (taken, claim.number))
        return False

    def _held(self, connection: sqlite3.Connection, claim: Claim) -> int:
        """What is reserved for a question in progress; `StateError` if it is none: it is charged once."""
        row = connection.execute(
            "SELECT held FROM questions WHERE number = ? AND state = 'held'", (claim.number,)
        ).fetchone()
        if row is None:
            raise StateError(f"question {claim.number} is not in progress: it was settled already")
        return int(row[0])

    def abandon(self, claim: Claim, *, again: bool) -> None:
        """Count the whole reservation of a question as lost, since its worker died.

        again: whether the question is open again; else it is still to be settled.
        """
        with self._transaction() as connection:
            held = self._held(connection, claim)
            connection.execute("UPDATE account SET held = held - ?, lost = lost + ?", (held, held))
            connection.execute(
                "UPDATE questions SET held = 0, state = ? WHERE number = ?",
                ("open" if again else "held", claim.number),
            )

    def settle(self, claim: Claim, cost: int, told: Mapping[str, Any], state: str = "answered") -> None:
        """Write the result of a question and its cost, and release its reservation.

        told: the line of the output.
        state: "answered", "failed", "unread" (nothing was worth reading) or "open" (what was worth reading
            did not fit the rest of the total).
        """
        with self._transaction() as connection:
            held = self._held(connection, claim)
            connection.execute(
                "UPDATE questions SET state = ?, held = 0, cost = cost + ?, told = ? WHERE number = ?",
                (state, cost, json.dumps(dict(told)), claim.number),
            )
            connection.execute("UPDATE account SET held = held - ?, spent = spent + ?", (held, cost))

    def reopen(self) -> None:
        """Open the questions again for which nothing was read."""
        with self._transaction() as connection:
            connection.execute("UPDATE questions SET state = 'open' WHERE state = 'unread'")

    def account(self) -> Account:
        """Return the state of the batch."""
        with self._transaction() as connection:
            spent, held, lost = self._counts(connection)
            states = connection.execute("SELECT state, count(*) FROM questions GROUP BY state").fetchall()
        return Account(spent, held, lost, {str(state): int(count) for state, count in states})

    def last_price(self) -> float | None:
        """Return the token price of the last question that was answered; None: there is none."""
        with self._transaction() as connection:
            row = connection.execute(
                "SELECT number, told FROM questions WHERE state = 'answered' ORDER BY number DESC LIMIT 1"
            ).fetchone()
        if row is None:
            return None
        price = self._told(*row).get("token_price")
        if not isinstance(price, (int, float)):
            raise self._damaged(f"row {row[0]} of questions holds no token_price")
        return float(price)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield state, attempts and line of every question, in order."""
        behind = -1
        while True:
            with self._transaction() as connection:
                part = connection.execute(
                    "SELECT number, state, attempts, told FROM questions WHERE number > ? "
                    "ORDER BY number LIMIT 1000",
                    (behind,),
                ).fetchall()
            if not part:
                return
            for number, state, attempts, told in part:
                yield {"state": state, "attempts": attempts, **self._told(number, told)}
            behind = part[-1][0]
