"""The bandit at work: it chooses strategies for a question, and learns from what came of it.

The state lies in a file (`mio_rag.learning.bandit_log`). Before each choice, what other processes have added
is replayed; an outcome is an event, and known to all from then on. A process that is killed loses at most the
question that it was at.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mio_rag.errors import InputError, StateError, choose
from mio_rag.learning.bandit import BanditSettings, Context, Learned, StrategyOptions, context_of
from mio_rag.learning.bandit_choice import Contributions, Values, contributions, every_set, mixture, uniform
from mio_rag.learning.bandit_log import EventLog, Events
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.result import Selection
from mio_rag.selection.selector import Selector
from mio_rag.session.search import STRATEGIES, Searched, check_strategies, names_of
from mio_rag.session.state import State
from mio_rag.session.trace import Outcome
from mio_rag.types import Question

_SNAPSHOT_EVERY = 1000
_MOST_WAITING = 10_000
_LEAST_WEIGHT = 0.1

# -- choosers -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """Strategies for one question.

    id: by which feedback names the question; blank where nothing is learned.
    weights: of strategies in the merged ranking.
    base: those that always run.
    about: for the trace: propensity, certificate, kind of the round. Plain data.
    """

    id: str
    strategies: tuple[str, ...]
    weights: Mapping[str, float] = field(default_factory=dict)
    base: tuple[str, ...] = ()
    why: str = ""
    about: dict[str, Any] = field(default_factory=dict)


class Fixed:
    """The same strategies for every question."""

    learns = False

    def __init__(self, strategies: Sequence[str]) -> None:
        self.possible = check_strategies(strategies)

    def choose(self, question: Question, retriever: Retriever, price: float | None = None) -> Choice:
        """Return the strategies."""
        return Choice("", self.possible)


class Strategist:
    """A chooser that learns. Threads and processes may share its file.

    path: the log; created if it is missing.
    possible: strategies that may run; those of ``settings.base`` always do.
    embedder: fingerprint of the index's embedder: contexts of another one mean something else.
    now: seconds since 1970.

    Raises `InputError` if the file belongs to other strategies, another embedder or a later release, or is of
    something else.
    """

    learns = True

    def __init__(
        self,
        path: Path,
        possible: Sequence[str],
        settings: BanditSettings,
        embedder: str,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.base = tuple(name for name in possible if name in settings.base)
        others = [name for name in possible if name not in settings.base]
        if not others:
            raise InputError("a bandit needs strategies to choose among, besides those that always run")
        about = {
            "strategies": "+".join(others),
            "base": "+".join(self.base),
            "embedder": embedder,
            "dimensions": str(settings.dimensions),
        }
        self.log = EventLog(path, about)
        self._others = tuple(self.log.about["strategies"].split("+"))
        self.settings, self._now = settings, now
        self.learned = Learned(settings, self._others)
        with self.log.transaction() as events:  # settings are part of the log, for replays
            last = events.latest("settings")
            if last is None or last.data != settings.to_dict():
                events.append("settings", str(events.last() + 1), now(), settings.to_dict())
        # Reading alone: without a snapshot that fits, this takes long, and others go on meanwhile.
        with self.log.reading() as events:
            kept = events.snapshot()
            begun = kept[0] if kept is not None and self.learned.load(kept[1]) else 0
            folded(self.learned, events, afresh=True)  # on from there
        if self.learned.seq >= begun + _SNAPSHOT_EVERY:
            with self.log.transaction() as events:
                events.keep_snapshot(self.learned.seq, self.learned.dump())
        self._waiting: dict[str, tuple[Context, dict[str, Any]]] = {}
        self._lock = threading.RLock()

    @property
    def possible(self) -> tuple[str, ...]:
        """All strategies that may run."""
        return (*self.base, *self._others)

    def choose(self, question: Question, retriever: Retriever, price: float | None = None) -> Choice:
        """Return strategies for a question, by what is known of questions like it.

        price: of a token; None: that of the settings.
        """
        index = retriever.index
        embedding = index.embedder.encode([question.text])[0]
        known = 0 if index.links is None else len(names_of(index).mentioned(question.text))
        return self.choose_by(question.text, embedding, known, price=price)

    def choose_by(
        self,
        text: str,
        embedding: Any,
        known_names: int,
        identity: str | None = None,
        price: float | None = None,
    ) -> Choice:
        """Choose as `choose`, by a question's text, embedding and number of names that the index knows.

        The price and the choice are one step: threads with other prices wait.
        """
        identity = uuid.uuid4().hex if identity is None else identity
        with self._lock:
            self.refresh()
            learned, settings = self.learned, self.settings
            learned.token_price = settings.token_price if price is None else price
            context = context_of(text, embedding, known_names, settings.dimensions)
            context = context.with_past(learned.similar(context.place))
            names = learned.strategies
            found = mixture(learned, context.x, context.type, identity, self._others)
            place, mode = found.draw(*uniform(settings.seed, identity, "draw").random(2))
            sets, chances = every_set(len(names)), found.chances
            means = np.array([learned.models[name].mean(context.x) for name in names])
            about = {
                "type": context.type,
                "mode": mode,
                "propensity": float(chances[place]),
                "each": dict(zip(names, (chances @ sets).tolist(), strict=True)),
                "expected": dict(zip(names, means.tolist(), strict=True)),
                "expected_worth": float(found.expected[place]),
                "regret": float(found.expected.max() - found.expected[place]),
                "token_price": learned.token_price,
                "state": learned.seq,
            }
            self._waiting[identity] = context, about
            while len(self._waiting) > _MOST_WAITING:  # questions that failed on the way
                del self._waiting[next(iter(self._waiting))]
            weights = {}
            if settings.weighted and means.max() > 0:
                shares = np.clip(means / means.max(), _LEAST_WEIGHT, 1.0)
                weights = dict(zip(names, shares.tolist(), strict=True))
            run = [name for name, inside in zip(names, sets[place], strict=True) if inside]
        return Choice(identity, (*self.base, *run), weights, self.base, f"{mode}: {found.why}", about)

    def learn(
        self, choice: Choice, searched: Searched, read: Selection | None, added: Contributions | None
    ) -> None:
        """Write what came of a choice, and learn from it; nothing without contributions.

        read: None where nothing could be.
        """
        if added is None:
            self._waiting.pop(choice.id, None)
            return
        spent = {one.strategy: one.amount for one in searched.tried}
        ids = [] if read is None else list(read.ids)
        credit: dict[str, float] = {}  # shares of what was read; a passage of several finders is shared
        for identity in ids:
            finders = searched.found.get(identity, {})
            for name in finders:
                credit[name] = credit.get(name, 0.0) + 1 / (len(finders) * len(ids))
        outcome = {
            "own": dict(added.own),
            "overlap": [[a, b, value] for (a, b), value in added.overlap.items()],
            "last": dict(added.last),
            "base": added.base,
            "total": added.total,
            "tokens": {name: one.prompt_tokens + one.completion_tokens for name, one in spent.items()},
            "seconds": {name: one.seconds for name, one in spent.items()},
            "credit": credit,
            "read": ids,
        }
        self.record(choice, outcome)

    def record(self, choice: Choice, outcome: dict[str, Any]) -> bool:
        """Add the event of a question that is finished; False where it is in the log already."""
        with self._lock:
            waited = self._waiting.pop(choice.id, None)
            if waited is None:
                return False
            context, about = waited
            data = {**about, "strategies": list(choice.strategies), **outcome}
            before = self.learned.seq
            with self.log.transaction() as events:
                x = context.x.astype(np.float32).tobytes()
                is_new = events.append("question", choice.id, self._now(), data, x)
            self.refresh()  # only what is written for good is learned from
            if self.learned.seq // _SNAPSHOT_EVERY > before // _SNAPSHOT_EVERY:
                with suppress(StateError), self.log.transaction() as events:  # it is a cache
                    events.keep_snapshot(self.learned.seq, self.learned.dump())
        return is_new

    def feedback(self, identity: str, value: int) -> bool:
        """Rate the answer to a question; as `rate`."""
        is_new = rate(self.log, identity, value, self._now())
        self.refresh()
        return is_new

    def refresh(self) -> None:
        """Replay what others have added."""
        with self._lock, self.log.reading() as events:
            folded(self.learned, events, afresh=True)

    @contextmanager
    def settled(self) -> Iterator[Learned]:
        """Give the current state, which does not change meanwhile."""
        with self._lock:
            self.refresh()
            yield self.learned


Chooser = Fixed | Strategist


def open_strategist(options: StrategyOptions, index: CorpusIndex) -> Strategist:
    """Return the bandit that options describe, for an index; raises as `Strategist`, and without a file."""
    if options.state is None:
        raise InputError("the bandit needs a file for what it learns: set search.state")
    path = Path(options.state).expanduser()
    return Strategist(path, options.possible, options.bandit, index.embedder.fingerprint)


# -- the log ------------------------------------------------------------------------------------------------


def rate(log: EventLog, identity: str, value: int, now: float) -> bool:
    """Rate the answer to a question; False where it was rated before, and nothing changes.

    identity: as `Choice.id`.
    value: 1 (helpful) or -1.

    Raises `InputError` if there is no such question.
    """
    if value not in (1, -1):
        raise InputError(f"feedback is {value!r}: give 1 (helpful) or -1 (not helpful)")
    with log.transaction() as events:
        if events.find("question", identity) is None:
            raise InputError(
                f"question '{identity}' is not in the log: give the id that select, ask or serve showed"
            )
        return events.append("feedback", identity, now, {"value": value})


def admit(log: EventLog, strategy: str, now: float) -> bool:
    """Let a log choose among one strategy more; False where it is so already.

    What was learned of the others stays. Nothing is known of the new one: it is tried where nothing else is
    sure, and when exploring. Processes that have the file open go on with what they have.

    Raises `InputError` for an unknown strategy, or one that always runs there.
    """
    if strategy not in STRATEGIES:
        raise InputError(f"strategy '{strategy}' is unknown: {choose(strategy, STRATEGIES)}")
    if strategy in log.about["base"].split("+"):
        raise InputError(f"'{strategy}' always runs there: it is not chosen")
    with log.transaction() as events:
        return events.declare_strategy(strategy) and events.append("strategy", strategy, now, {})


def folded(learned: Learned, events: Events, *, afresh: bool = False) -> Learned:
    """Replay the events that a state lacks.

    afresh: do not begin with the snapshot.
    """
    kept = None if afresh else events.snapshot()
    if kept is not None:
        learned.load(kept[1])
    for event in events.after(learned.seq):
        learned.fold(event, events.find)
    return learned


def known_settings(log: EventLog, settings: BanditSettings | None = None) -> tuple[BanditSettings, list[str]]:
    """Return settings that fit a log, and the strategies that it chooses among.

    settings: by default those that the log was last opened with.
    """
    with log.reading() as events:
        last = events.latest("settings")
    given = settings.to_dict() if settings is not None else dict(last.data) if last else {}
    given = {name: value for name, value in given.items() if name in BanditSettings.model_fields} | {
        "dimensions": int(log.about["dimensions"]),
        "base": tuple(filter(None, log.about["base"].split("+"))),
    }
    return BanditSettings(**given), log.about["strategies"].split("+")


# -- search and selection -----------------------------------------------------------------------------------


def searched_json(outcome: Outcome) -> dict[str, Any]:
    """Return what each strategy did, and who found what is read, as plain data; empty without strategies."""
    result = next((one for one in outcome.results.values() if "searched" in one.facts), None)
    if result is None:
        return {}
    searched: Searched = result.facts["searched"]
    read = () if outcome.selection is None else outcome.selection.ids
    spent = ("prompt_tokens", "completion_tokens", "lm_calls", "retrieval_calls", "seconds")
    return {
        "strategies": [
            {
                "strategy": one.strategy,
                "queries": list(one.found.queries),
                "found": len(one.found.rows),
                "dropped_names": one.found.dropped,
                "note": one.found.note,
                "failed": one.failed,
                **{name: getattr(one.amount, name) for name in spent},
            }
            for one in searched.tried
        ],
        "found_by": {i: dict(searched.found.get(i, {})) for i in read},
        "choice": {k: v for k, v in result.action.about["search"].items() if k != "strategies"},
        "search_notes": list(searched.notes),
    }


@dataclass(frozen=True, eq=False)
class StrategyLearner:
    """Reports to a bandit what came of its choices; a `mio_rag.session.state.Learner`."""

    chooser: Strategist
    selector: Selector

    def learn(self, state: State) -> None:
        """Record what each strategy added to what was read, once a question."""
        found = next((r for r in state.results.values() if "searched" in r.facts), None)
        read = next((r.value for r in state.results.values() if r.action.do == "select"), None)
        if found is None or not isinstance(read, Selection):
            return
        choice: Choice = state.once("search", lambda: Choice("", ()))
        searched: Searched = found.facts["searched"]
        added = None
        if not any(one.failed and one.strategy in choice.base for one in searched.tried):
            counter = None if state.retriever is None else state.retriever.counter
            program = self.selector.replace(token_price=max(state.price, self.selector.token_price))
            pool = searched.pool if searched.every is None else searched.every
            values = Values(program, pool, searched.alone, state.budget, counter)
            added = contributions(values, choice.strategies, choice.base)
        self.chooser.learn(choice, searched, read, added)

    def close(self) -> None:
        """Close the log of the bandit."""
        self.chooser.log.close()
