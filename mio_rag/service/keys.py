"""API keys: what each may read, and what it may spend in every day, week and month.

    timezone = "Europe/Berlin"
    [keys.support]
    sha256 = "..."                       # printed by mio-rag serve --new-key support
    where = "tenant = 'support'"
    tokens = { day = 200_000, month = 3_000_000 }
    dollars = { week = 5.0 }
    per_user = { tokens = { day = 20_000 } }
    when_spent = "refuse"                # or "shrink": read less as the window runs out

Windows follow the calendar of the time zone: a day begins at midnight, a week on Monday, a month on the 1st.
All limits hold together. What a request may spend is reserved before it starts, and counts in full until it
is settled: a process that is killed in between never overspends.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import math
import secrets
import sqlite3
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from datetime import time as clock_time
from pathlib import Path
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field, field_validator

from mio_rag.allocation.money import Rate
from mio_rag.errors import InputError, MioRagError, SpentError, StateError
from mio_rag.filters import Filter
from mio_rag.settings import Settings
from mio_rag.storage import SharedFile

Window = Literal["day", "week", "month"]
WINDOWS: tuple[Window, ...] = ("day", "week", "month")
_NANO = 1e9  # dollars are counted in whole billionths: sums of fractions would drift
_LEAST_KEY = 16
_KEPT_DAYS = 62
_LONGEST_SECONDS = 600.0  # of a request: what is reserved for longer is of a process that was killed
_LEAST_TOKENS = 32  # of a context: with fewer left, hardly any passage could be read
_LOG = logging.getLogger("mio_rag.service")


# -- settings ---------------------------------------------------------------------------------------------

_Tokens = Annotated[int, Field(ge=1, le=10**15)]
_Dollars = Annotated[float, Field(gt=0, le=1e9)]


class Limited(Settings):
    """What may be spent in each window."""

    tokens: dict[Window, _Tokens] = Field(default_factory=dict)
    dollars: dict[Window, _Dollars] = Field(default_factory=dict)


class Key(Limited):
    """One key."""

    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    """SHA-256 of the key, in hexadecimal digits. The account belongs to it, so that a key can be renamed."""
    where: str | tuple[str, ...] | dict[str, Any] | None = None
    """Condition on the passages that the key may read."""
    per_user: Limited | None = None
    """Limits of each user, who is named in the header X-User."""
    when_spent: Literal["refuse", "shrink"] = "refuse"
    """refuse: status 429 where the request may take more than is left; shrink: read less as the window runs
    out."""

    @property
    def needs_rates(self) -> bool:
        """Whether dollars are limited."""
        return any(one.dollars for one in (self, self.per_user or Limited()))


class KeyFile(Settings):
    """A file of keys."""

    timezone: str = "UTC"
    """Name in the IANA database, such as Europe/Berlin."""
    keys: dict[str, Key]

    @field_validator("timezone")
    @classmethod
    def _known(cls, given: str) -> str:
        try:
            ZoneInfo(given)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ValueError(
                f"must be a name of the IANA database such as Europe/Berlin, got {given!r}"
            ) from error
        return given


def new_key(name: str) -> tuple[str, str]:
    """Return a new key, and its table for a file of keys."""
    key = f"mio-{secrets.token_urlsafe(32)}"
    quoted = name if name.replace("-", "").replace("_", "").isalnum() and name.isascii() else f'"{name}"'
    return key, f'[keys.{quoted}]\nsha256 = "{_digest(key)}"\n'


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


# -- windows of the calendar ------------------------------------------------------------------------------


def begins(window: Window, day: date) -> date:
    """Return the first day of the window that a day is in."""
    if window == "week":
        return day - timedelta(days=day.weekday())
    return day.replace(day=1) if window == "month" else day


def ends(window: Window, day: date) -> date:
    """Return the day after the window that a day is in."""
    days = {"day": 1, "week": 7, "month": 31}[window]
    after = begins(window, day) + timedelta(days=days)
    return after.replace(day=1) if window == "month" else after


def midnight(day: date, zone: ZoneInfo) -> float:
    """Return the beginning of a day, in seconds since 1970."""
    return datetime.combine(day, clock_time.min, zone).timestamp()


# -- accounts ---------------------------------------------------------------------------------------------


class BudgetSpentError(SpentError):
    """A budget of a key is spent; `resets_at` is the end of the window that blocks, in UTC."""

    def __init__(self, message: str, window: Window, resets: float, retry_after: float) -> None:
        super().__init__(message, retry_after)
        self.window = window
        self.resets_at = datetime.fromtimestamp(resets, UTC).isoformat().replace("+00:00", "Z")


class BudgetHeldError(SpentError):
    """Requests in progress hold what is left of a budget for a moment."""


@dataclass
class Held:
    """What a request may spend; `settle` reports what it spent. One that is not settled counts in full."""

    allowed: int = 10**15
    _settle: Callable[[int, int], None] | None = None

    def settle(self, tokens: int, dollars: float = 0.0) -> None:
        """Report what was spent, once; where the file cannot be written, the reservation counts in full."""
        settle, self._settle = self._settle, None
        if settle is not None:
            with suppress(StateError):
                settle(tokens, math.ceil(dollars * _NANO - 1e-6))


@dataclass(frozen=True)
class _Limit:
    """A limit that applies to a request; what of it is spent or reserved, and by requests in progress."""

    what: Literal["tokens", "dollars"]
    window: Window
    user: str | None
    most: int
    used: int
    held: int

    @property
    def left(self) -> int:
        return max(0, self.most - self.used)

    def fitting(self, most: tuple[int, int], rate: Rate | None) -> int:
        """Tokens that what is left allows."""
        return self.left if self.what == "tokens" else _affordable(self.left, most, rate)


class Accounts(SharedFile):
    """What keys have spent: one SQLite file, shared by threads and processes; in memory without one.

    Raises `InputError` for a file of something else, or one that cannot be used.
    """

    application, what, advice = 0x6D696F6B, "the accounts of keys", "give the file of keys another name"
    version = 2
    tables = """
        CREATE TABLE spent (account TEXT, user TEXT, day TEXT, tokens INTEGER NOT NULL,
            nanos INTEGER NOT NULL, PRIMARY KEY (account, user, day)) WITHOUT ROWID;
        CREATE TABLE reserved (id INTEGER PRIMARY KEY AUTOINCREMENT, account TEXT NOT NULL,
            user TEXT NOT NULL, day TEXT NOT NULL, tokens INTEGER NOT NULL, nanos INTEGER NOT NULL,
            at REAL NOT NULL);
        CREATE INDEX reserved_by_account ON reserved (account, day)"""

    def __init__(self, file: Path | None, zone: ZoneInfo, clock: Callable[[], float] = time.time) -> None:
        super().__init__(file)
        self.zone, self._clock = zone, clock
        with self._lock:
            self._connected()

    def _today(self) -> tuple[float, date]:
        now = self._clock()
        return now, datetime.fromtimestamp(now, self.zone).date()

    def _limits(self, connection: sqlite3.Connection, key: Key, user: str, today: date) -> list[_Limit]:
        """Every limit of a key, and of its user, with what is spent and reserved."""
        found, since = [], self._clock() - _LONGEST_SECONDS
        scopes: list[tuple[Limited, str | None]] = [(key, None)]
        if key.per_user is not None:
            scopes.append((key.per_user, user))
        for limited, of in scopes:
            for window in WINDOWS:
                tokens, dollars = limited.tokens.get(window), limited.dollars.get(window)
                if tokens is None and dollars is None:
                    continue
                given = [key.sha256, begins(window, today).isoformat(), *([] if of is None else [of])]
                rows = "WHERE account = ? AND day >= ?" + ("" if of is None else " AND user = ?")
                used = connection.execute(
                    "SELECT coalesce(sum(tokens), 0), coalesce(sum(nanos), 0), "
                    "coalesce(sum(tokens * live), 0), coalesce(sum(nanos * live), 0) FROM "
                    f"(SELECT tokens, nanos, 0 AS live FROM spent {rows} "
                    f"UNION ALL SELECT tokens, nanos, at > ? AS live FROM reserved {rows})",
                    [*given, since, *given],
                ).fetchone()
                if tokens is not None:
                    found.append(_Limit("tokens", window, of, tokens, used[0], used[2]))
                if dollars is not None:
                    found.append(_Limit("dollars", window, of, round(dollars * _NANO), used[1], used[3]))
        return found

    def reserve(
        self,
        key: Key,
        user: str,
        most: tuple[int, int],
        least: int,
        rate: Rate | None,
        smaller: str = "budget_tokens, max_tokens",
        total: int = 10**15,
    ) -> Held:
        """Reserve what a request may spend, in one transaction.

        most: tokens into models and out of them, at most.
        least: tokens without which the request is of no use.
        smaller: fields by which a request asks for less.
        total: tokens into models and out of them together, at most.

        Raises `BudgetSpentError` if less is left, `BudgetHeldError` if only requests in progress hold it;
        `StateError` if the file cannot be read or written.
        """
        wanted = max(1, min(sum(most), total))
        least = min(max(1, least), wanted)
        with self.alone(self.what) as connection:
            now, today = self._today()
            fits = {one: one.fitting(most, rate) for one in self._limits(connection, key, user, today)}
            if blocking := [one for one, tokens in fits.items() if tokens < least]:
                spent = [o for o in blocking if replace(o, used=o.used - o.held).fitting(most, rate) < least]
                one = max(spent or blocking, key=lambda one: ends(one.window, today))
                raise self._refusal(one, least, smaller, now, today, is_held=not spent)
            allowed = min([wanted, *fits.values()])
            row = (key.sha256, user, today.isoformat(), allowed, _nanos(allowed, most, rate), now)
            identity = connection.execute(
                "INSERT INTO reserved (account, user, day, tokens, nanos, at) VALUES (?, ?, ?, ?, ?, ?)", row
            ).lastrowid
            oldest = (today - timedelta(days=_KEPT_DAYS)).isoformat()
            connection.execute("DELETE FROM spent WHERE account = ? AND day < ?", (key.sha256, oldest))
        return Held(allowed, lambda tokens, nanos: self._settle(identity, tokens, nanos))

    def _settle(self, identity: int | None, tokens: int, nanos: int) -> None:
        with self.alone(self.what) as connection:
            row = connection.execute(
                "DELETE FROM reserved WHERE id = ? RETURNING account, user, day", (identity,)
            ).fetchone()
            if row is not None and (tokens or nanos):
                connection.execute(
                    "INSERT INTO spent VALUES (?, ?, ?, ?, ?) ON CONFLICT (account, user, day) "
                    "DO UPDATE SET tokens = tokens + excluded.tokens, nanos = nanos + excluded.nanos",
                    (*row, tokens, nanos),
                )

    def _refusal(
        self, one: _Limit, least: int, smaller: str, now: float, today: date, is_held: bool
    ) -> SpentError:
        resets = midnight(ends(one.window, today), self.zone)
        whose = "of this key" if one.user is None else "of this user"
        amount, left = f"{one.most:,} tokens", f"{one.left:,} tokens are left"
        if one.what == "dollars":
            amount, left = f"${one.most / _NANO:g}", f"${one.left / _NANO:.3g} is left"
        at = f"at {datetime.fromtimestamp(resets, self.zone).isoformat()}"
        if is_held:
            left, at = f"{left} while requests in progress hold more", "in a second"
        message = (
            f"the budget {whose} is {amount} a {one.window}: {left}, the request takes {least:,} or more; "
            f"ask for less ({smaller}), or again {at}"
        )
        if is_held:
            return BudgetHeldError(message, 1.0)
        return BudgetSpentError(message, one.window, resets, max(1.0, resets - now))

    def share(self, key: Key, user: str) -> float:
        """Return the share of its usual budget that a question may read, in (0, 1]; 1 unless it shrinks.

        What is left of a limit, as a share of it, is compared with what is left of the window.
        """
        shares = [1.0]
        if key.when_spent == "shrink":
            with self.alone(self.what) as connection:
                now, today = self._today()
                limits = self._limits(connection, key, user, today)
            for one in limits:
                start, end = (midnight(f(one.window, today), self.zone) for f in (begins, ends))
                shares.append((one.left / one.most) / max(1e-3, (end - now) / (end - start)))
        return max(0.01, min(shares))

    def spent(self, key: Key) -> dict[tuple[str, Window], tuple[float, float]]:
        """Return ("tokens" or "dollars", window) -> (spent or reserved, limit) of a key."""
        with self.alone(self.what) as connection:
            limits = self._limits(connection, key.replace(per_user=None), "", self._today()[1])
        scale = {"tokens": 1, "dollars": _NANO}
        return {(o.what, o.window): (o.used / scale[o.what], o.most / scale[o.what]) for o in limits}


def _nanos(tokens: int, most: tuple[int, int], rate: Rate | None) -> int:
    """What tokens cost at most, in billionths of a dollar: those at the higher price come first."""
    if rate is None:
        return 0
    total = 0.0
    for price, count in sorted([(rate.into, most[0]), (rate.out, most[1])], reverse=True):
        total += price * min(tokens, count)
        tokens -= min(tokens, count)
    return math.ceil(total * _NANO / 1e6 - 1e-6)


def _affordable(nanos: int, most: tuple[int, int], rate: Rate | None) -> int:
    """The most tokens whose highest cost is within an amount."""
    counts = range(sum(most) + 1)
    return bisect_right(counts, nanos, key=lambda tokens: _nanos(tokens, most, rate)) - 1


@dataclass(frozen=True)
class Caller:
    """Who sends a request.

    smaller: fields by which the request asks for less.
    """

    key: Key | None = None
    user: str = ""
    accounts: Accounts | None = None
    where: Filter = field(default_factory=Filter)
    smaller: str = "budget_tokens, max_tokens"

    def of_user(self, user: str) -> Caller:
        """Return the same for a user; `InputError` where the key needs one, and none is named."""
        if self.key is not None and self.key.per_user is not None and not user:
            raise InputError("this key has limits for each user: name yours in the header X-User")
        return replace(self, user=user[:200])

    def share(self) -> float:
        """Return the share of its usual budget that a question may read, in (0, 1]."""
        return 1.0 if self.key is None or self.accounts is None else self.accounts.share(self.key, self.user)

    def needed(self, budget: int) -> int:
        """Return the tokens of a context without which a request is refused: all, unless the key shrinks."""
        shrinks = self.key is not None and self.key.when_spent == "shrink"
        return min(budget, _LEAST_TOKENS) if shrinks else budget

    def reserve(self, most: tuple[int, int], least: int, rate: Rate | None, total: int = 10**15) -> Held:
        """Reserve tokens for a request; as `Accounts.reserve`."""
        if self.key is None or self.accounts is None:
            return Held()
        return self.accounts.reserve(self.key, self.user, most, least, rate, self.smaller, total)


#: Where no key is asked for.
FREE = Caller()


class Keys:
    """The keys of a service. A changed file is taken over; a wrong one changes nothing, and is logged.

    file: TOML, see the module. Its accounts are next to it, with the ending ``.sqlite``.
    single: one more key, without limits.

    `check` is called when another file is in force.

    Raises `InputError` with everything that is wrong with the file.
    """

    def __init__(
        self,
        file: str | Path | None = None,
        single: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._file = None if file is None else Path(file).expanduser()
        self._single = None if single is None else _digest(single)
        self._known: Mapping[str, Key] = {}
        self.check: Callable[[], None] = lambda: None
        self.accounts: Accounts | None = None
        self._stamp = self._stamped()
        if self._file is not None:
            settings = read_keys(self._file)
            self._known = settings.keys
            self.accounts = Accounts(self._file.with_suffix(".sqlite"), ZoneInfo(settings.timezone), clock)

    def __iter__(self) -> Iterator[tuple[str, Key]]:
        return iter(self._known.items())

    def caller(self, given: str) -> Caller | None:
        """Return who sends a key, in time that does not depend on the key; None: it is unknown."""
        self._refresh()
        digest, found = _digest(given), None
        for key in self._known.values():
            if hmac.compare_digest(digest, key.sha256):
                found = key
        if found is not None:
            return Caller(found, "", self.accounts, Filter(found.where))
        return FREE if self._single is not None and hmac.compare_digest(digest, self._single) else None

    def close(self) -> None:
        """Close the accounts."""
        if self.accounts is not None:
            self.accounts.close()

    def _stamped(self) -> tuple[int, int] | None:
        with suppress(OSError):
            if self._file is not None:
                stat = self._file.stat()
                return stat.st_mtime_ns, stat.st_size
        return None

    def _refresh(self) -> None:
        stamp = self._stamped()
        if self._file is None or self.accounts is None or stamp in (None, self._stamp):
            return
        self._stamp = stamp
        try:
            settings = read_keys(self._file)
            self._known, self.accounts.zone = settings.keys, ZoneInfo(settings.timezone)
            self.check()
        except MioRagError as error:
            _LOG.warning("changed keys are not in force: %s", error)


def read_keys(file: str | Path) -> KeyFile:
    """Read a file of keys; raises `InputError` with everything that is wrong with it."""
    settings = KeyFile.from_toml(file)
    problems = [] if settings.keys else [f"'{file}' has no key: print one with mio-rag serve --new-key NAME"]
    known: dict[str, str] = {}
    for name, key in settings.keys.items():
        try:
            Filter(key.where)
        except InputError as error:
            problems += [f"'{file}': keys.{name}.where: {problem}" for problem in error.problems]
        if key.sha256 in known:
            problems.append(f"'{file}': keys.{name} and keys.{known[key.sha256]} have the same sha256")
        known[key.sha256] = name
    if problems:
        raise InputError(problems)
    return settings


def key_problem(key: str | None) -> str | None:
    """Return what is wrong with a single key."""
    if key is None or len(key) >= _LEAST_KEY:
        return None
    return f"the API key has {len(key)} characters: make it {_LEAST_KEY} or more"
