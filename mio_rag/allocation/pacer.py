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

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from mio_rag.allocation.pacer_state import State, Store, Transaction
from mio_rag.context import TokenCounter
from mio_rag.errors import InputError, SpentError
from mio_rag.formulations import rows
from mio_rag.formulations.numbers import is_setting, plural
from mio_rag.pool import Candidates
from mio_rag.selection.result import Note, Selection
from mio_rag.selection.selector import Selector
from mio_rag.settings import Settings

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
_GUESS, _GUESS_TRUST = (
    100.0,
    10.0,
)  # questions of a window of which nothing is known; weight of that, in questions
_TRUST = 30.0  # weight of earlier windows, in questions
_WATCHED = 0.5  # a part that was watched for a smaller share says nothing

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

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return dataclasses.asdict(self)


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
        if not self.price:
            return FIRST_PRICE if self.price is None else _SMALLEST_PRICE
        if self.mean_tokens is None or self.horizon is None:
            return _kept(self.price)
        return _kept(self.price * (self.mean_tokens * self.horizon / self.total_tokens) ** (1 / _CAUTION))

    @property
    def guess(self) -> float:
        """Questions of a window, where no window was seen."""
        if self.horizon is not None:
            return float(self.horizon)
        return _GUESS if self.mean_tokens is None else max(1.0, self.total_tokens / self.mean_tokens)


class Pacer:
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
    path: file of the state, shared by threads and processes and kept over restarts; in memory without one.
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
        self.settings = made = PacerSettings(
            total_tokens=total_tokens, horizon=horizon, window=window, price=price, when_spent=when_spent,
            mean_tokens=mean_tokens, most=most, expires_seconds=expires_seconds,
        )  # fmt: skip
        self.total_tokens, self._seconds, self._clock = made.total_tokens, made.seconds, clock
        now = self._now()
        number, began = self._window(now)
        self._store = Store(
            None if path is None else Path(path),
            {
                "total tokens": str(made.total_tokens),
                "horizon": str(made.horizon),
                "window": "none" if math.isinf(self._seconds) else f"{self._seconds:g} s",
                "mean tokens": "none"
                if made.mean_tokens is None
                else f"{made.mean_tokens:g} at {made.price:g}",
            },
            State(number, began, made.first_price, opened=self._over(began, now)),
        )

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
        with self._store.transaction() as transaction:
            now = self._now()
            state = self._current(transaction, now)
            left = self._left(state)
            over = self._over(state.began, now)
            share = left / self._coming(state, over)
            allowed = min(wanted, left)
            if is_refused := left < least:
                state.refused += 1
                state.full = min(state.full, over)
            else:
                if math.isfinite(self._seconds) and over <= state.full:
                    came = _counts(state.came)
                    came[min(int(_PARTS * over), _PARTS - 1)] += 1
                    state.came = _written(came)
                state.asked += 1
                state.reserved += allowed
                state.logs += math.log(state.price)
                expires = now + self.settings.expires_seconds
                identity = transaction.reserve(state.window, allowed, share, expires)
            transaction.write(state)
        if is_refused:
            raise _refusal(left, self.total_tokens, state.reserved, least, self._ends_in(state.began, now))
        return Reservation(identity, state.price, allowed)

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
        with self._store.transaction() as transaction:
            state = self._current(transaction, self._now())
            held = transaction.taken(reservation.id)
            if held is None:
                raise InputError(
                    f"reservation {reservation.id} is not known: it was settled already, or is another's"
                )
            of = state if held.window == state.window else transaction.of(held.window)
            if of is not None:
                if held.expired:
                    of.settled += used - held.tokens
                    of.lost -= held.tokens
                else:
                    of.settled += used
                    of.reserved -= held.tokens
                if tokens is None:
                    of.asked -= 1
                    of.logs -= math.log(reservation.price)
                else:
                    of.finished += 1
                if of is not state:
                    transaction.write(of)
                elif tokens is not None and held.tokens:  # without tokens it shows nothing about the price
                    off = min(_MOST, (used - held.share) / held.share) if held.share > 0 else _MOST
                    questions = max(self._usual(of)[0].sum(), of.asked)
                    of.price = _kept(of.price * math.exp(_STEP / math.sqrt(questions) * off))
            transaction.write(state)  # what has expired meanwhile is marked, too

    def select(
        self,
        candidates: Candidates,
        selector: Selector,
        counter: TokenCounter | None = None,
        tokens: int | None = None,
    ) -> Selection:
        """Choose passages at the pacer's price, and settle what they take.

        selector: its `token_price` is replaced; its price of a passage stays.
        tokens: as in `ask`.

        Where nothing is left and questions are not refused, the selection is empty and a note says why.

        Raises `SpentError` as `ask`; `MioRagError` as `Selector.select`; then nothing is spent.
        """
        reservation = self.ask(tokens)
        try:
            priced = selector.replace(token_price=reservation.price)
            made = priced.select(candidates, reservation.allowed, counter)
        except BaseException:
            self.release(reservation)
            raise
        self.spent(reservation, made.tokens_used)
        if reservation.allowed:
            return made
        return dataclasses.replace(
            made, notes=(*made.notes, Note("spent", "no tokens are left: nothing is read"))
        )

    def account(self) -> Account:
        """Return where the open window stands."""
        with self._store.transaction() as transaction:
            now = self._now()
            state = self._current(transaction, now)
            transaction.write(state)
        return Account(
            self.total_tokens,
            state.settled,
            state.reserved,
            self._left(state),
            state.lost,
            state.price,
            state.asked,
            state.finished,
            state.refused,
            self._ends_in(state.began, now),
        )

    def close(self) -> None:
        """Close the file. A pacer in memory forgets."""
        self._store.close()

    def _left(self, state: State) -> int:
        return max(0, self.total_tokens - state.settled - state.reserved)

    def _current(self, transaction: Transaction, now: float) -> State:
        """The state of the window that the clock is in; what has expired is spent.

        A window is known by its number. One that the clock comes back to goes on where it was left, so that
        each spends its total once, and none is kept waiting for a time that a wrong clock has promised.
        """
        state = transaction.last()
        number, began = self._window(now)
        if number != state.window:
            state = transaction.of(number) or self._following(state, number, began, now)
            transaction.open(state)
        for window, tokens in transaction.expired(now):
            of = state if window == state.window else transaction.of(window)
            if of is not None:
                of.reserved -= tokens
                of.settled += tokens
                of.lost += tokens
                transaction.write(of)
        return state

    # Time

    def _now(self) -> float:
        now = self._clock()
        if not is_setting(now) or now > _LATEST:
            raise InputError(
                f"clock() gave {now!r}: it must be seconds since 1970, a number from 0 to {_LATEST:g}"
            )
        return float(now)

    def _window(self, now: float) -> tuple[int, float]:
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

    def _usual(self, state: State) -> tuple[NDArray[np.float64], NDArray[np.bool_], float]:
        """Questions that each part of a window should bring, whether earlier windows show it, its weight."""
        horizon, known = self.settings.horizon, _counts(state.usual)
        shown = known >= 0
        if not state.usual or not shown.any():
            everywhere = np.full(_PARTS, self.settings.guess / _PARTS)
            return everywhere, np.ones(_PARTS, dtype=bool), float(horizon or _GUESS_TRUST)
        known[~shown] = known[shown].mean()
        total = float(horizon or known.sum())
        return total * (known + 1) / (known + 1).sum(), shown, float(horizon or _TRUST)

    def _coming(self, state: State, over: float) -> float:
        """Questions that are still to come, with the one that asks: at least 1."""
        if math.isinf(self._seconds):
            return max(1.0, self.settings.guess - state.asked)
        usual, shown, trust = self._usual(state)
        expected = (usual * _lengths(state.opened, min(over, state.full)))[shown].sum()
        rest = usual @ _lengths(over, 1.0)
        return max(1.0, float(rest * (trust + _counts(state.came)[shown].sum()) / (trust + expected)))

    def _following(self, last: State, number: int, began: float, now: float) -> State:
        """A window that begins with what the last one has shown."""
        watched = _lengths(last.opened, last.full)
        seen, usual = watched >= _WATCHED, _counts(last.usual) if last.usual else np.full(_PARTS, -1.0)
        counts = _counts(last.came) / np.maximum(watched, _WATCHED)
        usual = np.where(seen, np.where(usual < 0, counts, (usual + counts) / 2), usual)
        return State(
            number,
            began,
            _kept(math.exp(last.logs / last.asked) if last.asked else last.price),
            # If it follows the last one, nobody asked until now; else nobody knows.
            opened=0.0 if number == last.window + 1 else self._over(began, now),
            usual=_written(usual),
        )


def _counts(text: str) -> NDArray[np.float64]:
    """The number of questions in each part of a window, as the state has it; empty: none."""
    return np.array(text.split(), dtype=np.float64) if text else np.zeros(_PARTS)


def _written(counts: NDArray[np.float64]) -> str:
    return " ".join(f"{count:.9g}" for count in counts)


def _lengths(begin: float, end: float) -> NDArray[np.float64]:
    """The share of each part of a window that lies between two points of the window."""
    lengths = np.minimum(_EDGES + 1 / _PARTS, end) - np.maximum(_EDGES, begin)
    return np.asarray(_PARTS * np.clip(lengths, 0.0, None))


def _kept(price: float) -> float:
    """A price within its bounds."""
    return min(LARGEST_PRICE, max(_SMALLEST_PRICE, price))


def _whole(name: str, value: Any, least: int) -> int:
    """The count; `InputError` if it is none, or below `least`."""
    if rows.count_problem(name, value) is not None or not least <= value <= _LARGEST_TOTAL:
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
