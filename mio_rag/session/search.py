"""Several strategies search for one question side by side, and what they find becomes one pool.

    searched = search(question, retriever, generator, ["raw", "hyde", "grounded"])
    searched.pool                    # for `Selector.select`
    searched.found["p17"]            # {"raw": 3, "hyde": 1}: who found it, at which rank

The rankings are merged by weighted reciprocal rank fusion: a passage gets weight / (60 + rank) from each
strategy that found it (Cormack, Clarke and Buettcher, SIGIR 2009).
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from mio_rag.errors import InputError, MioRagError
from mio_rag.generation import Generator
from mio_rag.pool import Candidates
from mio_rag.retrieval.retriever import LINK_SOURCES, Retriever
from mio_rag.session.budget import Branch, LimitReached
from mio_rag.session.costs import Amount, Costs
from mio_rag.session.strategies import (
    Found,
    SearchTask,
    Strategy,
    StrategySettings,
    check_strategies,
    make_strategies,
)
from mio_rag.settings import Settings
from mio_rag.types import Question

#: The rank of a passage that none of a strategy's queries found, and to which its best passages link.
BY_LINK = 0

_SHARE = 0.7  # of the time that a question has left: the rest is for selection and answer
_LEAST_SECONDS = 0.05


class SearchSettings(Settings):
    """How strategies run side by side, and how their rankings are merged."""

    concurrency: Annotated[int, Field(ge=1)] = 4
    """Most strategies at a time."""
    deadline_seconds: Annotated[float, Field(gt=0)] = 30.0
    """For each strategy, from its own start: one that takes longer is left out. What it spent by then is
    charged, and of a reply under way all that it may still take."""
    constant: Annotated[int, Field(ge=0)] = 60
    """k of reciprocal rank fusion."""
    tokens: Annotated[int, Field(ge=1)] = 20_000
    """Most tokens into and out of the model for each strategy."""
    writing: StrategySettings = StrategySettings()

    def within(self, seconds: float) -> SearchSettings:
        """These where a question has so many seconds left: a strategy that would take most is left out."""
        left = max(_LEAST_SECONDS, _SHARE * seconds)
        return self.replace(deadline_seconds=min(self.deadline_seconds, left))


@dataclass(frozen=True, eq=False)
class Tried:
    """One strategy on one question.

    found: what it found; of one that was left out, why.
    failed: whether it failed or was late.
    seconds: from its start to its end.
    """

    strategy: str
    found: Found
    costs: Costs
    failed: bool
    seconds: float

    @property
    def amount(self) -> Amount:
        """What it spent."""
        return self.costs.total()


@dataclass(frozen=True, eq=False)
class Searched:
    """A pool, who found what in it, and what it cost.

    pool: relevance is the cosine between question and passage, whoever found it; ``scores["fused"]`` is the
        merged reciprocal rank.
    found: passage -> strategy -> rank in the strategy's own list, from 1, or 0 where only a link leads to it.
    tried: in the order in which the strategies were given.
    notes: who was left out, and why; what was dropped.
    alone: sets of strategies -> ids of the pool that the set alone would have given; empty unless asked for.
    every: the pool, and behind it what those pools hold besides; None unless asked for.
    """

    pool: Candidates
    found: Mapping[str, Mapping[str, int]]
    tried: tuple[Tried, ...]
    notes: tuple[str, ...]
    alone: Mapping[frozenset[str], frozenset[str]] = field(default_factory=dict)
    every: Candidates | None = None


def check_search(strategies: Sequence[Strategy], retriever: Retriever, generator: Generator | None) -> None:
    """Raise `InputError` where a strategy lacks what it needs; nothing is asked."""
    problems = []
    asking = [s.name for s in strategies if s.needs_model]
    if generator is None and asking:
        problems.append(f"{', '.join(asking)}: these strategies need a language model: give --model")
    linked = [s.name for s in strategies if s.needs_links]
    if linked and retriever.index.links is None:
        problems.append(
            f"{', '.join(linked)}: this strategy needs an index with evidence links: build it again with "
            "`mio-rag index DATA --out INDEX --overwrite`, or leave the strategy out"
        )
    if problems:
        raise InputError(problems)


def search(
    question: Question,
    retriever: Retriever,
    generator: Generator | None,
    strategies: Sequence[str | Strategy],
    settings: SearchSettings | None = None,
    *,
    weights: Mapping[str, float] | None = None,
    branch: Branch | None = None,
    alone: Iterable[frozenset[str]] = (),
) -> Searched:
    """Search by every strategy, side by side, and merge what they find.

    generator: None will do where no strategy needs a model.
    strategies: names of `mio_rag.session.strategies`, or anything that meets the protocol.
    weights: of a strategy in the merged ranking, > 0; 1 where nothing is said.
    branch: pays, each strategy as a part of its own name within "search"; without it, each strategy has
        `SearchSettings.tokens`.
    alone: sets of these strategies: `Searched.alone` is to tell what each would have found by itself. Nothing
        more is searched for.

    Returns: where no strategy found anything, the pool is that of the question itself, and a note says so.
    Raises `InputError` if a strategy is unknown or given twice, or lacks a model or links.
    """
    how = settings or SearchSettings()
    made = [m for s in strategies for m in (make_strategies([s], how.writing) if isinstance(s, str) else [s])]
    _check(made, weights or {})
    check_search(made, retriever, generator)
    account = Costs() if branch is None else branch.costs
    with account.part("search"):
        began = time.perf_counter()
        tried = _side_by_side(
            made,
            how,
            lambda: SearchTask(
                question,
                retriever,
                generator,
                tokens=how.tokens,
                branch=None if branch is None else branch.parallel(),
            ),
        )
        # While strategies ran side by side, this part did nothing else.
        account.include(Costs(), waited=time.perf_counter() - began)
        for one in tried:
            with account.part(one.strategy):
                account.include(one.costs, waited=one.seconds)
        if branch is not None:
            branch.joined()
    notes = [f"{one.strategy}: {one.found.note}" for one in tried if one.found.note]
    nothing = not any(one.found.rows for one in tried)  # then the question itself is searched for
    with account.part("retrieve", retrieval_calls=int(nothing)):
        return _merged(question, retriever, tried, notes, how, weights or {}, list(alone))


def _check(strategies: Sequence[Strategy], weights: Mapping[str, float]) -> None:
    names = [s.name for s in strategies]
    problems = [f"strategy '{n}' is given twice" for n in dict.fromkeys(names) if names.count(n) > 1]
    if not names:
        problems.append("no strategy is given")
    problems += [
        f"weight of '{name}' is {weight!r}: it must be finite and > 0"
        for name, weight in weights.items()
        if not 0 < weight < math.inf
    ]
    if problems:
        raise InputError(problems)


def _merged(
    question: Question,
    retriever: Retriever,
    tried: Sequence[Tried],
    notes: list[str],
    how: SearchSettings,
    weights: Mapping[str, float],
    alone: Sequence[frozenset[str]],
) -> Searched:
    """One pool of all rankings, and who found what."""
    rankings = {one.strategy: one.found.rows for one in tried if one.found.rows}
    if not rankings:
        notes.append("no strategy found anything: the pool is that of the question itself")
        pool = retriever.retrieve(question.text)
        same = dict.fromkeys(alone, frozenset(pool.ids))
        return Searched(pool, {i: {} for i in pool.ids}, tuple(tried), tuple(notes), same, pool)

    def fused_by(names: Collection[str]) -> tuple[list[int], dict[int, float]]:
        fused: dict[int, float] = {}
        for name in (n for n in rankings if n in names):
            for rank, row in enumerate(rankings[name], start=1):
                fused[row] = fused.get(row, 0.0) + weights.get(name, 1.0) / (how.constant + rank)
        return sorted(fused, key=lambda row: (-fused[row], row)), fused

    ranking, fused = fused_by(rankings)
    if alone:
        others = [fused_by(names)[0] for names in alone]
        pool, every, held = retriever.pools_of(question.text, [ranking, *others], fused)
        own = dict(zip(alone, map(frozenset, held[1:]), strict=True))
    else:
        pool, every, own = retriever.pool_of(question.text, ranking, fused), None, {}
    assert pool.positions is not None
    ranks = {
        name: {row: rank for rank, row in enumerate(rows[: retriever.pool], start=1)}
        for name, rows in rankings.items()
    }
    links = retriever.index.links
    led = {
        name: links.reached(rows[:LINK_SOURCES], retriever.link_hops)
        if links is not None and retriever.link_hops
        else {}
        for name, rows in rankings.items()
    }
    found: dict[str, dict[str, int]] = {}
    for identity, position in zip(pool.ids, pool.positions.tolist(), strict=True):
        of = {name: known[position] for name, known in ranks.items() if position in known}
        found[identity] = of or {name: BY_LINK for name, rows in led.items() if position in rows}
    return Searched(pool, found, tuple(tried), tuple(notes), own, every)


def _side_by_side(
    strategies: Sequence[Strategy], how: SearchSettings, task: Callable[[], SearchTask]
) -> tuple[Tried, ...]:
    """Every strategy in a thread of its own; a late one is waited for no longer, and takes no place."""
    waiting, running = deque(strategies), dict[str, tuple[float, SearchTask]]()
    done: queue.SimpleQueue[tuple[str, Found | BaseException]] = queue.SimpleQueue()
    ended: dict[str, Tried] = {}
    while waiting or running:
        while waiting and len(running) < how.concurrency:
            strategy, place = waiting.popleft(), task()
            running[strategy.name] = time.perf_counter(), place
            # A daemon: a model that never answers must not keep the process alive.
            threading.Thread(target=_run, args=(strategy, place, done), daemon=True).start()
        first = min(started for started, _ in running.values()) + how.deadline_seconds
        try:
            name, found = done.get(timeout=max(0.0, first - time.perf_counter()))
        except queue.Empty:
            for late in [
                n for n, (t, _) in running.items() if time.perf_counter() - t >= how.deadline_seconds
            ]:
                started, place = running.pop(late)
                took = time.perf_counter() - started
                said = Found(note=f"left out, it took longer than {how.deadline_seconds:g} s")
                ended[late] = Tried(late, said, place.abandoned(took), True, took)
            continue
        if name not in running:  # it was late
            continue
        started, place = running.pop(name)
        took = time.perf_counter() - started
        if isinstance(found, (MioRagError, LimitReached)):
            limit = "the limit of " if isinstance(found, LimitReached) else ""
            ended[name] = Tried(name, Found(note=f"left out, {limit}{found}"), place.costs, True, took)
        elif isinstance(found, BaseException):
            raise found
        else:
            ended[name] = Tried(name, found, place.costs, False, took)
    return tuple(ended[strategy.name] for strategy in strategies)


def _run(
    strategy: Strategy, task: SearchTask, done: queue.SimpleQueue[tuple[str, Found | BaseException]]
) -> None:
    try:
        done.put((strategy.name, strategy.find(task)))
    except BaseException as error:  # handed to the thread that waits
        done.put((strategy.name, error))


def listed(given: Any) -> tuple[str, ...]:
    """The strategies that a setting names: a list, or text with commas; "all" stands for every one.

    Raises `InputError` if it is neither, or names one that is unknown.
    """
    names = given.split(",") if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise InputError(f"{given!r:.60} is no list of strategies")
    return check_strategies(names)


def strategies_problem(value: Any) -> str | None:
    """What is wrong with such a setting, in words; None: nothing is."""
    try:
        listed(value)
    except InputError as error:
        return f"must be a list of strategies ({'; '.join(error.problems)})"
    return None


def asks_a_model(settings: Mapping[str, Any]) -> bool:
    """Whether one of the strategies in an executor's settings asks a language model."""
    return any(one.needs_model for one in _made(settings))


def needs_links(settings: Mapping[str, Any]) -> list[str]:
    """Strategies in an executor's settings that need an index with evidence links."""
    return [one.name for one in _made(settings) if one.needs_links]


def _made(settings: Mapping[str, Any]) -> Sequence[Any]:
    given = settings.get("strategies")
    return () if given is None or strategies_problem(given) else make_strategies(listed(given))
