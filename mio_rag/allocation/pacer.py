"""A total of tokens for questions that come one by one: a price that rises and falls with what is spent.

Nobody knows the questions to come, so the price of a token is learned on the way: after each question it is
multiplied by exp(step * (spent - share) / share), where the share is what is left divided by the questions
that are still expected. This is dual mirror descent with the entropy as its mirror map (Balseiro, Lu and
Mirrokni, "The best of many worlds: dual mirror descent for online allocation problems", Operations Research,
2023), with the share taken anew for every question. Who knows what a day's questions take, if not in which
order, can say so; where there are windows, each tells the next (`mio_rag.allocation.pacer_forecast`). The
total is never exceeded, whatever the price does: a question reserves what it may spend before it spends it.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from mio_rag.allocation.pacer_forecast import GUESS, Arrivals, Forecast, Seen, forecast_problem, written
from mio_rag.allocation.pacer_state import State, Store, Transaction
from mio_rag.context import TokenCounter
from mio_rag.errors import InputError, SpentError
from mio_rag.formulations import rows
from mio_rag.formulations.numbers import is_setting, plural
from mio_rag.pool import Candidates
from mio_rag.selection.result import Selection
from mio_rag.selection.selector import Selector


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


def refusal(left: int, total: int, reserved: int, wanted: int, wait: float | None) -> SpentError:
    """Return why a question is turned away, and when to come back; `wait` in seconds, None: never."""
    if wait is None and left + reserved >= wanted:  # what questions under way do not use is free again
        wait = 1.0
    when = "there will be no more" if wait is None else f"there are more in {math.ceil(wait)} s"
    held = f", {plural(reserved, 'token')} reserved by questions under way" if reserved else ""
    return SpentError(
        f"{plural(left, 'token')} of {total} left{held}, and {wanted} wanted: {when}; ask for fewer, or "
        "start a pacer with a higher total",
        wait,
    )


Window = Literal["hour", "day"]
WhenSpent = Literal["rest", "refuse"]

_LARGEST_TOTAL = 10**15  # SQLite adds in 64 bits
_SECONDS = {"hour": 3600.0, "day": 86400.0}
_LATEST = 1e12  # seconds since 1970: what is beyond is no time


def count_problem(name: str, value: Any, least: int) -> str | None:
    """Return what is wrong with a count, in words."""
    wrong = rows.count_problem(name, value) is not None or not least <= value <= _LARGEST_TOTAL
    return f"{name}={value!r} must be a whole number from {least} to {_LARGEST_TOTAL:g}" if wrong else None


def whole(name: str, value: Any, least: int) -> int:
    """Return the count; `InputError` if it is none, or below `least`."""
    if problem := count_problem(name, value, least):
        raise InputError(problem)
    return int(value)


def window_seconds(window: Any) -> float | None:
    """Return its length; infinite without one, None where it is no window."""
    if window is None:
        return math.inf
    if isinstance(window, str):
        return _SECONDS.get(window)
    return float(window) if is_setting(window) and window >= 1 else None


@dataclass(frozen=True)
class Windows:
    """Windows of time, numbered from 1970 on.

    seconds: length; infinite: there is only one, number 0.
    clock: seconds since 1970.
    """

    seconds: float
    clock: Callable[[], float]

    def now(self) -> float:
        """Return the time; `InputError` if the clock gives none."""
        now = self.clock()
        if not is_setting(now) or now > _LATEST:
            raise InputError(
                f"clock() gave {now!r}: it must be seconds since 1970, a number from 0 to {_LATEST:g}"
            )
        return float(now)

    def at(self, now: float) -> tuple[int, float]:
        """Return the number of the window at a time, and when it began."""
        if math.isinf(self.seconds):
            return 0, now
        number = int(now // self.seconds)
        return number, number * self.seconds

    def left(self, began: float, now: float) -> float | None:
        """Return seconds until a window ends, from 0 to its length; None: never."""
        if math.isinf(self.seconds):
            return None
        return min(max(0.0, began + self.seconds - now), self.seconds)

    def over(self, began: float, now: float) -> float:
        """Return the share of a window that is over; 0 where there is only one."""
        left = self.left(began, now)
        return 0.0 if left is None else 1 - left / self.seconds

    def __str__(self) -> str:
        return "none" if math.isinf(self.seconds) else f"{self.seconds:g} s"


#: No token is worth more than all of the evidence, and a price of 0 could never rise again.
LARGEST_PRICE, _SMALLEST_PRICE = 1.0, 1e-7


def expected(state: State) -> Forecast:
    """Return the forecast of a window; without one, questions are taken to be like those so far."""
    return Forecast(state.reference, state.usual or state.effort / max(1, state.finished - 1))


def count(state: State, price: float, tokens: int | None, allowed: int) -> None:
    """Count a question of a window that spent so many tokens at a price; None: it was released."""
    if tokens is None:
        state.asked -= 1
        state.logs -= expected(state).counted(price)
        return
    state.finished += 1
    effort = expected(state).effort(price, tokens, allowed)
    state.effort += effort
    state.course += (state.finished - 1) * effort
    state.squares += effort * effort


def arrivals(state: State) -> Arrivals:
    """Return when the questions of a window come."""
    return Arrivals.read(state.usually, state.came, state.opened)


def following(last: State, number: int, began: float, over: float) -> State:
    """Return a window that begins with what the last one has shown.

    over: share of it that is over. If it follows the last one, nobody asked in that; else nobody knows.
    """
    price = kept(math.exp(last.logs / last.asked) if last.asked else last.price)
    told = Forecast.learned(last.reference, last.effort, last.finished, price)
    if told is None:
        told = Forecast(last.reference, last.usual)
    return State(
        number,
        began,
        price,
        opened=0.0 if number == last.window + 1 else over,
        usually=written(arrivals(last).taught()),
        reference=told.price,
        usual=told.mean_tokens,
    )


def kept(price: float) -> float:
    """Return a price within its bounds."""
    return min(LARGEST_PRICE, max(_SMALLEST_PRICE, price))


#: Where nothing is known yet: a passage of 100 tokens is read if it is needed with more than 10 %.
FIRST_PRICE = 1e-3

_STEP = 1.5  # over the square root of the questions; `python -m benchmarks pacing` measures it
_MOST = 3.0  # a question that takes more than four shares moves the price as one of four does


class Pacer:
    """Spends a total of tokens where it brings most, over questions that come one by one.

    Threads and processes may share it. A reservation and its price are one transaction, and what is reserved
    counts as spent until it is settled: the total is never exceeded as long as each question keeps to what it
    was allowed. The price of the next question follows what was settled before it was asked.

    total_tokens: that may be spent, in every window.
    horizon: questions that are expected, in every window. May be left out where there are windows: then those
        before and the clock tell; see `Arrivals`. More questions than expected are served too, as long
        as tokens are left.
    window: after how many seconds the total starts anew, by the clock in UTC; None: never.
    price: price to begin with, in units of relevance per token, up to 1. A file that exists knows its own; a
        new window begins with the mean price of the last.
    mean_tokens: what questions take on average at `price`, as `price_for` finds it. The pacer believes that
        of the first window as a whole, whatever its order. Of the next ones it believes what the last window
        has shown, if that had 50 questions; see `pacer_forecast`. What a window refutes it drops.
    path: file of the state, shared by threads and processes and kept over restarts; in memory without one.
    when_spent: what a question gets that wants more than is left: "rest" gives it what is left, if only 0
        tokens; "refuse" raises `SpentError`.
    most: tokens that one question may spend at most, unless it asks for another number.
    expires_seconds: after which a reservation that is not settled counts in full.
    clock: seconds since 1970, for instance of a recording that is played again. It may jump: each window
        spends its total once, however often the clock comes back to it (of the last thousand that it left).

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
        seconds = window_seconds(window)
        problems = [
            problem
            for name, count in (("total_tokens", total_tokens), ("most", most), ("horizon", horizon))
            if not (name == "horizon" and count is None) and (problem := count_problem(name, count, 1))
        ]
        if horizon is None and window is None:
            problems.append("horizon is missing: say how many questions are expected, or give a window")
        if seconds is None:
            problems.append(f"window={window!r} must be day, hour, a number of seconds >= 1, or None")
        if price is not None and not (is_setting(price) and price <= LARGEST_PRICE):
            problems.append(f"price={price!r} must be a number from 0 to {LARGEST_PRICE:g}, per token")
        if when_spent not in get_args(WhenSpent):
            problems.append(f"when_spent={when_spent!r} must be rest or refuse")
        if not is_setting(expires_seconds) or expires_seconds <= 0:
            problems.append(f"expires_seconds={expires_seconds!r} must be a number > 0")
        if mean_tokens is not None and (problem := forecast_problem(price, mean_tokens)):
            problems.append(problem)
        if problems:
            raise InputError(problems)
        self.total_tokens, self.horizon = int(total_tokens), None if horizon is None else int(horizon)
        self.most, self.when_spent, self.expires_seconds = int(most), when_spent, float(expires_seconds)
        assert seconds is not None
        self.window_seconds, self._windows = seconds, Windows(seconds, clock)
        now = self._windows.now()
        number, began = self._windows.at(now)
        first = kept(FIRST_PRICE if price is None else float(price))
        self._store = Store(
            None if path is None else Path(path),
            {
                "total tokens": str(self.total_tokens),
                "horizon": str(self.horizon),
                "window": str(self._windows),
                "mean tokens": "none" if mean_tokens is None else f"{mean_tokens:g} at {price:g}",
            },
            State(
                number,
                began,
                first,
                opened=self._windows.over(began, now),
                reference=first if price else FIRST_PRICE,
                usual=0.0 if mean_tokens is None else float(mean_tokens),
            ),
        )

    def ask(self, tokens: int | None = None, least: int | None = None) -> Reservation:
        """Reserve tokens for the next question, at the price of the moment, in one transaction.

        tokens: most that the question may want, >= 1; `most` by default.
        least: where fewer are left, it is refused; 0 by default, or `tokens` where `when_spent` is "refuse".

        Raises `SpentError` if too little is left; `InputError` if `tokens` or `least` is out of range, or the
        clock gives no time; `StateError` if the file cannot be read or written; then nothing is reserved.
        """
        wanted = whole("tokens", self.most if tokens is None else tokens, 1)
        least = wanted if least is None and self.when_spent == "refuse" else whole("least", least or 0, 0)
        with self._store.transaction() as transaction:
            now = self._windows.now()
            state = self._current(transaction, now)
            left = max(0, self.total_tokens - state.settled - state.reserved)
            coming = self._expected(state, now)
            if math.isfinite(self._windows.seconds):
                over = self._windows.over(state.began, now)
                state.came = written(arrivals(state).came(over, turned_away=left < least))
            if left < least:
                state.refused += 1
                transaction.write(state)
                wait = self._windows.left(state.began, now)
                refused = refusal(left, self.total_tokens, state.reserved, least, wait)
            else:
                refused, allowed = None, min(wanted, left)
                share = left / coming
                if state.usual:
                    unsettled = coming + transaction.under_way(state.window)
                    state.price = self._forecasted(state, unsettled)
                state.asked += 1
                state.reserved += allowed
                state.logs += expected(state).counted(state.price)
                identity = transaction.reserve(state.window, allowed, share, now + self.expires_seconds)
                transaction.write(state)
        if refused is not None:
            raise refused
        return Reservation(identity, state.price, allowed)

    def spent(self, reservation: Reservation, tokens: int) -> None:
        """Settle a reservation: what was really spent, by the reader's own count.

        tokens: >= 0. What is not spent is free again. More than was allowed is counted as it is, since it is
            gone: the total holds only as far as everybody keeps to what is allowed.

        Raises `InputError` if the reservation is not known, or was settled before; `StateError` if the file
        cannot be written, for instance on a full disk. The reservation then holds its tokens as before:
        settle it again once there is room, or it counts in full when it expires.
        """
        self._settle(reservation, whole("tokens", tokens, 0))

    def release(self, reservation: Reservation) -> None:
        """Give a reservation back: its question failed before it spent anything. Raises as `spent`."""
        self._settle(reservation, None)

    def _settle(self, reservation: Reservation, tokens: int | None) -> None:
        used = tokens or 0
        with self._store.transaction() as transaction:
            state = self._current(transaction, self._windows.now())
            held = transaction.taken(reservation.id)
            if held is None:
                raise InputError(
                    f"reservation {reservation.id} is not known: it was settled already, or is another's"
                )
            # What was under way when its window ended counts there as spent in full.
            is_past = held.window != state.window
            of = transaction.past_state(held.window) if is_past else state
            if of is not None:
                if is_past or held.expired:
                    of.settled += used - held.tokens
                    of.lost -= held.tokens
                else:
                    of.reserved -= held.tokens
                    of.settled += used
                count(of, reservation.price, tokens, held.tokens)
                if is_past:
                    transaction.write_past(of)
                elif tokens is not None and held.tokens:  # without tokens it shows nothing about the price
                    of.price = self._moved(of, held.share, used)
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
        return dataclasses.replace(made, notes=(*made.notes, "no tokens are left: nothing is read"))

    def account(self) -> Account:
        """Return where the open window stands."""
        with self._store.transaction() as transaction:
            now = self._windows.now()
            state = self._current(transaction, now)
            transaction.write(state)
        return Account(
            self.total_tokens,
            state.settled,
            state.reserved,
            max(0, self.total_tokens - state.settled - state.reserved),
            state.lost,
            state.price,
            state.asked,
            state.finished,
            state.refused,
            self._windows.left(state.began, now),
        )

    def windows(self) -> list[dict[str, Any]]:
        """Return windows that are not open, oldest first: beginning, tokens spent, lost and refused."""
        names = ("window", "began", "price", "spent", "lost", "asked", "refused")
        with self._store.transaction() as transaction:
            return [dict(zip(names, row, strict=True)) for row in transaction.past()]

    def close(self) -> None:
        """Close the file. A pacer in memory forgets."""
        self._store.close()

    def _current(self, transaction: Transaction, now: float) -> State:
        """The state of the window that the clock is in; what has expired is spent.

        A window is known by its number. One that the clock comes back to goes on where it was left, so that
        each spends its total once, and none is kept waiting for a time that a wrong clock has promised.
        """
        state = transaction.state()
        number, began = self._windows.at(now)
        if number != state.window:
            transaction.close_window(state)
            state = transaction.reopened(number) or following(
                state, number, began, self._windows.over(began, now)
            )
            transaction.write(state)
        for window, tokens in transaction.expired(now):
            if window == state.window:  # those of a window that has ended count in it already
                state.reserved -= tokens
                state.settled += tokens
                state.lost += tokens
        return state

    def _expected(self, state: State, now: float) -> float:
        """Questions that are still to come, with the one that asks: at least 1."""
        if math.isinf(self._windows.seconds):
            assert self.horizon is not None
            return max(1.0, float(self.horizon - state.asked))
        return max(1.0, arrivals(state).coming(self._windows.over(state.began, now), self.horizon))

    def _moved(self, state: State, share: float, used: int) -> float:
        """The price after a question that was to spend about `share` and spent `used`."""
        questions = self.horizon or max(arrivals(state).known or GUESS, state.asked)
        off = min(_MOST, (used - share) / share) if share > 0 else _MOST
        return kept(state.price * math.exp(_STEP / math.sqrt(questions) * off))

    def _forecasted(self, state: State, unsettled: float) -> float:
        """The price for the next question of a window; those under way count as still to come."""
        seen, forecast = Seen(state.finished, state.effort, state.course, state.squares), expected(state)
        if forecast.refuted(seen, unsettled):
            state.usual = 0.0  # for the rest of the window
            return state.price
        return kept(forecast.price_for(seen, unsettled, self.total_tokens - state.settled, state.price))
