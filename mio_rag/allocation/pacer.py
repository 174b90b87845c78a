"""A total of tokens for questions that come one by one: a price that rises and falls with what is spent.

After each question the price of a token is multiplied by exp(step * (spent - share) / share), where the share
is what is left divided by the questions that are still expected. This is dual mirror descent with the entropy
as its mirror map (Balseiro, Lu and Mirrokni, "The best of many worlds: dual mirror descent for online
allocation problems", Operations Research, 2023), with the share taken anew for every question.

How many questions a window of time still brings is forecast from the windows before, hour by hour, and
corrected by those that came so far: the mean of a Poisson rate with a gamma prior. Whatever the forecast, the
total is never exceeded: a question reserves what it may spend before it spends it.
`python -m benchmarks run pacing` measures what the price reaches.
"""

from __future__ import annotations

import math
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from mio_rag.allocation.workload import usual_weight
from mio_rag.context import TokenCounter
from mio_rag.errors import InputError, SpentError, StateError
from mio_rag.formulations.numbers import is_setting, plural
from mio_rag.formulations.rows import count_problem
from mio_rag.pool import Candidates
from mio_rag.selection.result import Note, Selection
from mio_rag.selection.selector import Selector
from mio_rag.settings import Settings
from mio_rag.storage import SharedFile

Window = Literal["hour", "day"]
WhenSpent = Literal["rest", "refuse"]

#: Where nothing is known yet: a passage of 100 tokens is read if it is needed with more than 10 %.
FIRST_PRICE = 1e-3
#: No token is worth more than all of the evidence, and a price of 0 could never rise again.
LARGEST_PRICE, _SMALLEST_PRICE = 1.0, 1e-7

_LARGEST_TOTAL = 10**15  # SQLite adds in 64 bits
_SECONDS = {"hour": 3600.0, "day": 86400.0}
_LATEST = 1e12  # seconds since 1970
_STEP = 1.5  # over the square root of the questions; `python -m benchmarks run pacing` measures it
_MOST = 3.0  # a question that takes more than four shares moves the price as one of four does
_CAUTION = 1.5  # tokens of a question are taken to fall with this power of the price
_PARTS = 24  # of a window: its hours
_EDGES = np.arange(_PARTS) / _PARTS
_GUESS, _GUESS_TRUST = 100.0, 10.0  # questions of a window that nothing is known of; weight, in questions
_TRUST = 30.0  # weight of earlier windows, in questions
_WATCHED = 0.5  # a part that was watched for a smaller share says nothing
_KEPT_WINDOWS = 1000  # in the order in which they were left, which is not theirs where the clock jumps
_NAME = "the count of tokens"

_Count = Annotated[int, Field(ge=1, le=_LARGEST_TOTAL)]


@dataclass(frozen=True)
class Reservation:
    """What one question may spend; unpacks into price and allowed tokens.

    id: by which `Pacer.spent` knows it.
    price: what a token must be worth, in units of relevance: `token_price` of a `Selector`.
    allowed: tokens it may spend at most; 0 where nothing is left.
    """

    id: int
    price: float
    allowed: int

    def __iter__(self) -> Iterator[Any]:
        yield self.price
        yield self.allowed


@dataclass(frozen=True)
class Account:
    """Where a window stands.

    total, spent, reserved, left: tokens; total = spent + reserved + left, unless more was spent than allowed.
    lost: tokens of reservations that were never settled; part of `spent`.
    price: of the next token.
    asked, finished, refused: questions.
    ends_in: seconds until the next window; None: there is none.
    """

    total: int
    spent: int
    reserved: int
    left: int
    lost: int
    price: float
    asked: int
    finished: int
    refused: int
    ends_in: float | None


class PacerSettings(Settings):
    """The settings of a `Pacer`, as described there."""

    total_tokens: _Count
    horizon: _Count | None = None
    window: Window | Annotated[float, Field(ge=1)] | None = None
    price: Annotated[float, Field(ge=0, le=LARGEST_PRICE)] | None = None
    when_spent: WhenSpent = "rest"
    mean_tokens: Annotated[float, Field(ge=1e-6, le=1e12)] | None = None
    most: _Count = 2048
    expires_seconds: Annotated[float, Field(gt=0)] = 600.0

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if self.horizon is None and self.window is None:
            raise ValueError("horizon is missing: say how many questions are expected, or give a window")
        if self.mean_tokens is not None and not self.price:
            raise ValueError(
                "mean_tokens goes with the price at which questions take so many: give price > 0 as well"
            )
        return self

    @property
    def seconds(self) -> float:
        """The length of a window; infinite: there is only one."""
        if isinstance(self.window, str):
            return _SECONDS[self.window]
        return math.inf if self.window is None else self.window

    @property
    def first_price(self) -> float:
        """The price to begin with."""
        price = FIRST_PRICE if self.price is None else self.price
        if self.mean_tokens is not None and self.horizon is not None:
            price *= (self.mean_tokens * self.horizon / self.total_tokens) ** (1 / _CAUTION)
        return _kept(price)

    @property
    def guess(self) -> float:
        """Questions of a window, where no window was seen."""
        if self.horizon is not None:
            return float(self.horizon)
        return _GUESS if self.mean_tokens is None else max(1.0, self.total_tokens / self.mean_tokens)

    @property
    def about(self) -> dict[str, str]:
        """What the totals of a file mean."""
        window = "none" if self.window is None else f"{self.seconds:g} s"
        mean = "none" if self.mean_tokens is None else f"{self.mean_tokens:g} at {self.price:g}"
        told = {"total tokens": str(self.total_tokens), "horizon": str(self.horizon)}
        return {**told, "window": window, "mean tokens": mean}


class _State(BaseModel):
    """A window; the last one that was opened is the one that the clock is in.

    window, began: its number; when it began, in seconds since 1970.
    settled, reserved: tokens that were spent in it; that questions under way may still spend.
    lost: tokens of reservations that expired; part of `settled`.
    asked, finished, refused: questions that got a price; whose spending is known; that were turned away.
    price: of the next token.
    logs: sum of the logarithms of the prices that were asked.
    opened, full: shares of the window that were over when it was first watched, and when a question was
        first turned away: after that their number says nothing.
    usual, came: questions that windows before had in each part, below 0 where none was watched, and those of
        this one; empty: none was seen.
    """

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    window: int
    began: float
    price: float
    settled: int = 0
    reserved: int = 0
    lost: int = 0
    asked: int = 0
    finished: int = 0
    refused: int = 0
    logs: float = 0.0
    opened: float = 0.0
    full: float = 1.0
    usual: tuple[float, ...] = ()
    came: tuple[float, ...] = ()


class Pacer(SharedFile):
    """Spends a total of tokens where it brings most, over questions that come one by one.

    Threads and processes may share it. A reservation and its price are one transaction, and what is reserved
    counts as spent until it is settled: the total is never exceeded as long as each question keeps to what it
    was allowed. The price of the next question follows what was settled before it was asked.

    total_tokens: that may be spent, in every window.
    horizon: questions that are expected, in every window; may be left out where there are windows. More
        questions than expected are served too, as long as tokens are left.
    window: "hour", "day" or seconds, after which the total starts anew, by the clock in UTC; None: never.
    price: to begin with, in units of relevance per token, up to 1. A file that exists has its own; a new
        window begins with the mean price of the last.
    path: SQLite file of the state, shared by threads and processes and kept over restarts and kills; after a
        loss of power the last decisions may be missing. In memory without one.
    when_spent: what a question gets that wants more than is left: "rest" gives it what is left, if only 0
        tokens; "refuse" raises `SpentError`.
    mean_tokens: what questions take on average at `price`, as `price_for` finds it: sets the first price, or
        without a horizon the number of questions that the first window is expected to bring.
    most: tokens that one question may spend at most, unless it asks for another number.
    expires_seconds: after which a reservation that is not settled counts in full.
    clock: seconds since 1970. It may jump: each window spends its total once, however often the clock comes
        back to it (of the last thousand that it left).

    Raises `InputError` for values out of range, and for a file of another pacer, another version, or
    something else.
    """

    application, version, what = 0x6D696F70, 9, "a pacer's file"
    advice = "choose another path, or remove the file"
    tables = """
        CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
        CREATE TABLE windows (opened_as INTEGER PRIMARY KEY AUTOINCREMENT, window INTEGER NOT NULL UNIQUE,
            state TEXT NOT NULL);
        CREATE TABLE reservations (id INTEGER PRIMARY KEY AUTOINCREMENT, window INTEGER NOT NULL,
            tokens INTEGER NOT NULL, share REAL NOT NULL, expires REAL);
        CREATE INDEX reservations_by_end ON reservations (expires) WHERE expires IS NOT NULL"""

    def __init__(
        self,
        total_tokens: int,
        horizon: int | None = None,
        window: Window | float | None = None,
        price: float | None = None,
        path: str | Path | None = None,
        when_spent: WhenSpent = "rest",
        *,
        mean_tokens: float | None = None,
        most: int = 2048,
        expires_seconds: float = 600.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.settings = PacerSettings(
            total_tokens=total_tokens, horizon=horizon, window=window, price=price, when_spent=when_spent,
            mean_tokens=mean_tokens, most=most, expires_seconds=expires_seconds,
        )  # fmt: skip
        super().__init__(None if path is None else Path(path))
        self.total_tokens, self._seconds = self.settings.total_tokens, self.settings.seconds
        self._clock = clock
        self._named = "the pacer in memory" if path is None else f"the pacer's file '{path}'"
        self._now()
        with self._lock:
            self._connected()

    def ask(self, tokens: int | None = None, least: int | None = None) -> Reservation:
        """Reserve tokens for the next question, at the price of the moment, in one transaction.

        tokens: most that the question may want, >= 1; `most` by default.
        least: where fewer are left, it is refused; 0 by default, or `tokens` where `when_spent` is "refuse".

        Raises `SpentError` if too little is left; `InputError` if `tokens` or `least` is out of range, or the
        clock gives no time; `StateError` if the file cannot be read or written; then nothing is reserved.
        """
        wanted = _whole("tokens", self.settings.most if tokens is None else tokens, 1)
        if least is None and self.settings.when_spent == "refuse":
            least = wanted
        least = _whole("least", least or 0, 0)
        with self.alone(_NAME) as connection:
            now = self._now()
            state = self._current(connection, now)
            left, over = self._left(state), self._over(state.began, now)
            allowed = min(wanted, left)
            if is_refused := left < least:
                state.refused += 1
                state.full = min(state.full, over)
            else:
                share = left / self._coming(state, over)
                if math.isfinite(self._seconds) and over <= state.full:
                    came = _counts(state.came)
                    came[min(int(_PARTS * over), _PARTS - 1)] += 1
                    state.came = tuple(came.tolist())
                state.asked += 1
                state.reserved += allowed
                state.logs += math.log(state.price)
                made = connection.execute(
                    "INSERT INTO reservations (window, tokens, share, expires) VALUES (?, ?, ?, ?)",
                    (state.window, allowed, share, now + self.settings.expires_seconds),
                ).lastrowid
            _write(connection, state)
        if is_refused:
            raise _refusal(left, self.total_tokens, state.reserved, least, self._ends_in(state.began, now))
        assert made is not None
        return Reservation(made, state.price, allowed)

    def spent(self, reservation: Reservation, tokens: int) -> None:
        """Settle a reservation: what was really spent, by the reader's own count.

        tokens: >= 0. What is not spent is free again. More than was allowed is counted as it is, since it is
            gone: the total holds only as far as everybody keeps to what is allowed.

        Raises `InputError` if the reservation is not known, or was settled before; `StateError` if the file
        cannot be written, for instance on a full disk. The reservation then holds its tokens as before:
        settle it again once there is room, or it counts in full when it expires.
        """
        self._settle(reservation, _whole("tokens", tokens, 0))

    def release(self, reservation: Reservation) -> None:
        """Give a reservation back: its question failed before it spent anything. Raises as `spent`."""
        self._settle(reservation, None)

    def _settle(self, reservation: Reservation, tokens: int | None) -> None:
        used = tokens or 0
        with self.alone(_NAME) as connection:
            state = self._current(connection, self._now())
            taken = connection.execute(
                "DELETE FROM reservations WHERE id = ? RETURNING window, tokens, share, expires IS NULL",
                (reservation.id,),
            ).fetchall()
            if not taken:
                raise InputError(
                    f"reservation {reservation.id} is not known: it was settled already, or is another's"
                )
            window, held, share, has_expired = taken[0]
            of = state if window == state.window else self._window(connection, window)
            if of is not None:
                if has_expired:
                    of.settled += used - held
                    of.lost -= held
                else:
                    of.settled += used
                    of.reserved -= held
                if tokens is None:
                    of.asked -= 1
                    of.logs -= math.log(reservation.price)
                else:
                    of.finished += 1
                if of is not state:
                    _write(connection, of)
                elif tokens is not None and held:  # without tokens it shows nothing about the price
                    off = min(_MOST, (used - share) / share) if share > 0 else _MOST
                    questions = max(self._usual(of)[0].sum(), of.asked)
                    of.price = _kept(of.price * math.exp(_STEP / math.sqrt(questions) * off))
            _write(connection, state)  # what has expired meanwhile is marked, too

    def select(
        self,
        candidates: Candidates,
        selector: Selector,
        counter: TokenCounter | None = None,
        tokens: int | None = None,
    ) -> Selection:
        """Choose passages at the pacer's price, and settle what they take.

        selector: its `token_price` is replaced, over documents by what `usual_weight` makes of the pacer's
            price; its price of a passage stays.
        tokens: as in `ask`.

        Where nothing is left and questions are not refused, the selection is empty and a note says why.

        Raises `SpentError` as `ask`; `MioRagError` as `Selector.select`; then nothing is spent.
        """
        reservation = self.ask(tokens)
        try:
            weight = usual_weight(selector, candidates)
            priced = selector.replace(token_price=reservation.price / weight)
            made = priced.select(candidates, reservation.allowed, counter)
        except BaseException:
            self.release(reservation)
            raise
        self.spent(reservation, made.tokens_used)
        if reservation.allowed:
            return made
        return made.with_notes(Note("spent", "no tokens are left: nothing is read"))

    def account(self) -> Account:
        """Return where the open window stands."""
        with self.alone(_NAME) as connection:
            now = self._now()
            state = self._current(connection, now)
            _write(connection, state)
        return Account(
            self.total_tokens,
            state.settled,
            left=self._left(state),
            ends_in=self._ends_in(state.began, now),
            **state.model_dump(include={"reserved", "lost", "price", "asked", "finished", "refused"}),
        )

    def _left(self, state: _State) -> int:
        return max(0, self.total_tokens - state.settled - state.reserved)

    # The file

    def _connected(self) -> sqlite3.Connection:
        if self._file is None and self._connection is not None and self._process != os.getpid():
            raise InputError("a pacer in memory belongs to one process: give it a path to share it")
        return super()._connected()

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Make the tables of a new file; refuse one that means something else."""
        super()._prepare(connection)
        about = self.settings.about
        known = dict(connection.execute("SELECT name, value FROM settings").fetchall())
        if not known and self._window(connection, None) is None:
            connection.executemany("INSERT INTO settings VALUES (?, ?)", about.items())
            number, began = self._place(now := self._now())
            price = self.settings.first_price
            _open(connection, _State(window=number, began=began, price=price, opened=self._over(began, now)))
        elif known != about:
            other = "; ".join(
                f"{name} {known.get(name, 'missing')} there, {value} here"
                for name, value in about.items()
                if known.get(name) != value
            )
            raise InputError(
                f"'{self._file}' is the state of another pacer ({other}): give the same settings, or another "
                f"path with price={self._last(connection).price:.3g}, its last price"
            )

    def _last(self, connection: sqlite3.Connection) -> _State:
        """The window that was opened last."""
        state = self._window(connection, None)
        if state is None:
            raise StateError(f"{self._named} is damaged: it holds no window. Remove it to begin anew")
        return state

    def _window(self, connection: sqlite3.Connection, number: int | None) -> _State | None:
        """A window, None: the last one; None where it was never opened, or is not kept."""
        which = "WHERE window = ?" if number is not None else "ORDER BY opened_as DESC LIMIT 1"
        given = () if number is None else (number,)
        row = connection.execute(f"SELECT opened_as, state FROM windows {which}", given).fetchone()
        if row is None:
            return None
        try:
            return _State.model_validate_json(row[1])
        except ValidationError as error:
            wrong = error.errors()[0]
            where = ".".join(map(str, wrong["loc"])) or "state"
            raise StateError(
                f"{self._named} is damaged: row {row[0]} of windows holds {where}={wrong['input']!r:.40}. "
                "Restore the file, or remove it to begin anew"
            ) from error

    def _current(self, connection: sqlite3.Connection, now: float) -> _State:
        """The state of the window that the clock is in; what has expired is spent.

        A window is known by its number. One that the clock comes back to goes on where it was left, so that
        each spends its total once, and none is kept waiting for a time that a wrong clock has promised.
        """
        state = self._last(connection)
        number, began = self._place(now)
        if number != state.window:
            state = self._window(connection, number) or self._following(state, number, began, now)
            _open(connection, state)
        expired = connection.execute(
            "UPDATE reservations SET expires = NULL WHERE expires <= ? RETURNING window, tokens", (now,)
        ).fetchall()
        for window, tokens in expired:
            of = state if window == state.window else self._window(connection, window)
            if of is not None:
                of.reserved -= tokens
                of.settled += tokens
                of.lost += tokens
                _write(connection, of)
        return state

    # Time

    def _now(self) -> float:
        now = self._clock()
        if not is_setting(now) or now > _LATEST:
            raise InputError(
                f"clock() gave {now!r}: it must be seconds since 1970, a number from 0 to {_LATEST:g}"
            )
        return float(now)

    def _place(self, now: float) -> tuple[int, float]:
        """The number of the window at a time, counted from 1970 on, and when it began."""
        if math.isinf(self._seconds):
            return 0, now
        number = int(now // self._seconds)
        return number, number * self._seconds

    def _ends_in(self, began: float, now: float) -> float | None:
        if math.isinf(self._seconds):
            return None
        return min(max(0.0, began + self._seconds - now), self._seconds)

    def _over(self, began: float, now: float) -> float:
        """The share of a window that is over; 0 where there is only one."""
        left = self._ends_in(began, now)
        return 0.0 if left is None else 1 - left / self._seconds

    # The questions to come

    def _usual(self, state: _State) -> tuple[NDArray[np.float64], NDArray[np.bool_], float]:
        """Questions that each part of a window should bring, whether earlier windows show it, its weight."""
        horizon, known = self.settings.horizon, _counts(state.usual)
        shown = known >= 0
        if not state.usual or not shown.any():
            everywhere = np.full(_PARTS, self.settings.guess / _PARTS)
            return everywhere, np.ones(_PARTS, dtype=bool), float(horizon or _GUESS_TRUST)
        known[~shown] = known[shown].mean()
        total = float(horizon or known.sum())
        return total * (known + 1) / (known + 1).sum(), shown, float(horizon or _TRUST)

    def _coming(self, state: _State, over: float) -> float:
        """Questions that are still to come, with the one that asks: at least 1."""
        if math.isinf(self._seconds):
            return max(1.0, self.settings.guess - state.asked)
        usual, shown, trust = self._usual(state)
        expected = (usual * _lengths(state.opened, min(over, state.full)))[shown].sum()
        rest = usual @ _lengths(over, 1.0)
        return max(1.0, float(rest * (trust + _counts(state.came)[shown].sum()) / (trust + expected)))

    def _following(self, last: _State, number: int, began: float, now: float) -> _State:
        """A window that begins with what the last one has shown."""
        watched = _lengths(last.opened, last.full)
        usual = _counts(last.usual) if last.usual else np.full(_PARTS, -1.0)
        counts = _counts(last.came) / np.maximum(watched, _WATCHED)
        seen = np.where(usual < 0, counts, (usual + counts) / 2)
        return _State(
            window=number,
            began=began,
            price=_kept(math.exp(last.logs / last.asked) if last.asked else last.price),
            # If it follows the last one, nobody asked until now; else nobody knows.
            opened=0.0 if number == last.window + 1 else self._over(began, now),
            usual=tuple(np.where(watched >= _WATCHED, seen, usual).tolist()),
        )


def _open(connection: sqlite3.Connection, state: _State) -> None:
    """Make a window the last one, new or not; of those before, only a thousand are kept."""
    made = "INSERT OR REPLACE INTO windows (window, state) VALUES (?, ?)"
    last = connection.execute(made, (state.window, state.model_dump_json())).lastrowid
    assert last is not None
    connection.execute("DELETE FROM windows WHERE opened_as < ?", (last - _KEPT_WINDOWS,))
    connection.execute("DELETE FROM reservations WHERE window NOT IN (SELECT window FROM windows)")


def _write(connection: sqlite3.Connection, state: _State) -> None:
    """Replace a window, in its place."""
    written = (state.model_dump_json(), state.window)
    connection.execute("UPDATE windows SET state = ? WHERE window = ?", written)


def _counts(given: tuple[float, ...]) -> NDArray[np.float64]:
    """The number of questions in each part of a window; empty: none."""
    return np.array(given) if given else np.zeros(_PARTS)


def _lengths(begin: float, end: float) -> NDArray[np.float64]:
    """The share of each part of a window that lies between two points of the window."""
    lengths = np.minimum(_EDGES + 1 / _PARTS, end) - np.maximum(_EDGES, begin)
    return np.asarray(_PARTS * np.clip(lengths, 0.0, None))


def _kept(price: float) -> float:
    """A price within its bounds."""
    return min(LARGEST_PRICE, max(_SMALLEST_PRICE, price))


def _whole(name: str, value: Any, least: int) -> int:
    """The count; `InputError` if it is none, or below `least`."""
    if count_problem(name, value) is not None or not least <= value <= _LARGEST_TOTAL:
        raise InputError(f"{name}={value!r} must be a whole number from {least} to {_LARGEST_TOTAL:g}")
    return int(value)


def _refusal(left: int, total: int, reserved: int, wanted: int, wait: float | None) -> SpentError:
    """Why a question is turned away, and when to come back; `wait` in seconds, None: never."""
    if wait is None and left + reserved >= wanted:  # what questions under way do not use is free again
        wait = 1.0
    when = "there will be no more" if wait is None else f"there are more in {math.ceil(wait)} s"
    held = f", {plural(reserved, 'token')} reserved by questions under way" if reserved else ""
    return SpentError(
        f"{plural(left, 'token')} of {total} left{held}, and {wanted} wanted: {when}; ask for fewer, or "
        "start a pacer with a higher total",
        wait,
    )
