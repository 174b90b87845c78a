"""The bandit at work: it chooses strategies for a question, and learns from what came of it.

State lies in a file (`mio_rag.learning.bandit_log`). Before each choice, what other processes have added is
folded in; an outcome is an event, and known to all from then on. A process that is killed loses at most the
question that it was at.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from mio_rag.control.bandit.chooser import Choice, Seen
from mio_rag.control.bandit.context import Context, context_of
from mio_rag.control.bandit.policy import draw, mixture
from mio_rag.control.bandit.programme import every_set, worths
from mio_rag.errors import InputError, StateError, choose
from mio_rag.learning.bandit import BanditSettings, Learned, StrategyOptions
from mio_rag.learning.bandit_log import EventLog, Events
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.retriever import Retriever
from mio_rag.session.strategies import STRATEGIES, names_of
from mio_rag.types import Question

__all__ = ["Strategist", "admit", "folded", "known_settings", "open_strategist"]

_SNAPSHOT_EVERY = 1000
_MOST_WAITING = 10_000
_LEAST_WEIGHT = 0.1


class Strategist:
    """A chooser that learns.

    Parameters
    ----------
    path : Path
        The log; made where it is missing.
    possible : sequence of str
        Strategies that may run; those of ``settings.base`` always do.
    embedder : str
        Fingerprint of the index's embedder: contexts of another one mean something else.
    now : callable
        Seconds since 1970.

    Raises
    ------
    InputError
        If the file belongs to other strategies, another embedder or a later release, or is of something
        else.
    """

    def __init__(
        self,
        path: Path,
        possible: Sequence[str],
        settings: BanditSettings,
        embedder: str,
        now: Callable[[], float] = time.time,
    ) -> None:
        base = tuple(name for name in possible if name in settings.base)
        others = tuple(name for name in possible if name not in settings.base)
        if not others:
            raise InputError("a bandit needs strategies to choose among, beside those that always run")
        about = {
            "strategies": "+".join(others),
            "base": "+".join(base),
            "embedder": embedder,
            "dimensions": str(settings.dimensions),
        }
        self.log = EventLog(path, about)
        self._others = tuple(self.log.about["strategies"].split("+"))
        self.settings, self.base, self._now = settings, base, now
        self.learned = Learned(settings, self._others)
        with self.log.transaction() as events:
            _note_settings(events, settings, now())
        # Reading alone: where there is no snapshot that fits, this takes long, and others go on meanwhile.
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
    def name(self) -> str:
        """Always "bandit"."""
        return "bandit"

    @property
    def possible(self) -> tuple[str, ...]:
        """All strategies that may run."""
        return (*self.base, *self._others)

    @property
    def learns(self) -> bool:
        """Yes."""
        return True

    def price_tokens(self, price: float) -> None:
        """From now on, choose at this price of a token."""
        with self._lock:
            self.learned.token_price = price

    def choose(self, question: Question, retriever: Retriever) -> Choice:
        """Strategies for a question, by what is known of questions like it."""
        index = retriever.index
        embedding = index.embedder.encode([question.text])[0]
        known = 0 if index.links is None else len(names_of(index).mentioned(question.text))
        return self.choose_by(question.text, embedding, known)

    def choose_by(self, text: str, embedding: Any, known_names: int, identity: str | None = None) -> Choice:
        """As `choose`, of what it looks at."""
        with self._lock:
            return self._chosen(text, embedding, known_names, identity)

    def _chosen(self, text: str, embedding: Any, known_names: int, identity: str | None) -> Choice:
        self.refresh()
        learned = self.learned
        bare = context_of(text, embedding, known_names, self.settings.dimensions)
        context = bare.with_past(learned.similar(bare.place))
        identity = uuid.uuid4().hex if identity is None else identity
        found = mixture(learned, context.x, context.type, identity, self._others)
        drawn = draw(found, self.settings.seed, identity)
        names = tuple(n for n, inside in zip(learned.strategies, drawn.members, strict=True) if inside)
        program = found.program
        means = np.array([learned.models[name].mean(context.x) for name in learned.strategies])
        worth = worths(means[None, :], program.overlap, program.cost)[0]
        place = int(np.flatnonzero((every_set(means.size) == np.array(drawn.members)).all(axis=1))[0])
        about = {
            "type": context.type,
            "mode": drawn.mode,
            "propensity": drawn.propensity,
            "each": dict(zip(learned.strategies, found.each.tolist(), strict=True)),
            "expected": {n: float(m) for n, m in zip(learned.strategies, means, strict=True)},
            "expected_worth": float(worth[place]),
            "regret": float(worth.max() - worth[place]),
            "token_price": learned.token_price,
            "state": learned.seq,
        }
        self._waiting[identity] = context, about
        while len(self._waiting) > _MOST_WAITING:  # questions that failed on the way
            del self._waiting[next(iter(self._waiting))]
        weights = self._weights(means) if self.settings.weighted else {}
        return Choice(identity, (*self.base, *names), weights, self.base, f"{drawn.mode}: {found.why}", about)

    def _weights(self, means: Any) -> dict[str, float]:
        """Of each strategy in the merged ranking; in questions where nothing is expected, all alike."""
        most = float(means.max())
        if most <= 0:
            return {}
        shares = np.clip(means / most, _LEAST_WEIGHT, 1.0)
        return dict(zip(self.learned.strategies, shares.tolist(), strict=True))

    def learn(self, choice: Choice, seen: Seen) -> None:
        """Write down what came of a choice, and learn from it.

        Where contributions cannot be had (no selection satisfies the constraints), nothing is learned and
        nothing is written.
        """
        if seen.contributions is None:
            self._waiting.pop(choice.id, None)
            return
        added = seen.contributions
        self.record(
            choice,
            {
                "own": dict(added.own),
                "overlap": [[a, b, value] for (a, b), value in added.overlap.items()],
                "last": dict(added.last),
                "base": added.base,
                "total": added.total,
                "tokens": {
                    n: amount.prompt_tokens + amount.completion_tokens for n, amount in seen.costs.items()
                },
                "seconds": {n: amount.seconds for n, amount in seen.costs.items()},
                "credit": _credit(seen),
                "read": [] if seen.selection is None else list(seen.selection.ids),
            },
        )

    def record(self, choice: Choice, outcome: dict[str, Any]) -> bool:
        """Add the event of a question that is finished; False where it is in the log already."""
        with self._lock:
            waited = self._waiting.pop(choice.id, None)
        if waited is None:
            return False
        context, about = waited
        data = {**about, "strategies": list(choice.strategies), **outcome}
        with self._lock:
            before = self.learned.seq
            with self.log.transaction() as events:
                new = events.append(
                    "question", choice.id, self._now(), data, context.x.astype(np.float32).tobytes()
                )
            self.refresh()  # only what is written for good is learned from
            if self.learned.seq // _SNAPSHOT_EVERY > before // _SNAPSHOT_EVERY:
                with suppress(StateError), self.log.transaction() as events:  # it is a cache
                    events.keep_snapshot(self.learned.seq, self.learned.dump())
        return new

    def feedback(self, identity: str, value: int) -> bool:
        """Rate the answer to a question; False where it was rated before, and nothing changes.

        Parameters
        ----------
        identity : str
            As `Choice.id`.
        value : {1, -1}
            Helpful, or not.

        Raises
        ------
        InputError
            If there is no such question.
        """
        new = rate(self.log, identity, value, self._now())
        self.refresh()
        return new

    def add_strategy(self, strategy: str) -> bool:
        """Choose among one strategy more; False where it is so already.

        What was learned of the others stays. Nothing is known of the new one: it is tried where nothing else
        is sure, and when exploring. Other processes that have the file open go on with what they know.

        Raises
        ------
        InputError
            For a strategy that there is none of, or that always runs here.
        """
        new = admit(self.log, strategy, self._now())
        with self._lock:
            self.refresh()
            self._others = tuple(dict.fromkeys((*self._others, strategy)))
        return new

    def refresh(self) -> None:
        """Take in what others have added."""
        with self._lock, self.log.reading() as events:
            for event in events.after(self.learned.seq):
                self.learned.fold(event, events.find)

    @contextmanager
    def settled(self) -> Iterator[Learned]:
        """What is known by now, which does not change meanwhile."""
        with self._lock:
            self.refresh()
            yield self.learned

    def close(self) -> None:
        """Close the file."""
        self.log.close()


def rate(log: EventLog, identity: str, value: int, now: float) -> bool:
    """Add feedback to a log; as `Strategist.feedback`."""
    if value not in (1, -1):
        raise InputError(f"feedback is {value!r}: give 1 (helpful) or -1 (not helpful)")
    with log.transaction() as events:
        if events.find("question", identity) is None:
            raise InputError(
                f"question '{identity}' is not in the log: give the id that select, ask or serve showed"
            )
        return events.append("feedback", identity, now, {"value": value})


def admit(log: EventLog, strategy: str, now: float) -> bool:
    """Let a log choose among one strategy more; as `Strategist.add_strategy`."""
    if strategy not in STRATEGIES:
        raise InputError(f"strategy '{strategy}' is unknown: {choose(strategy, STRATEGIES)}")
    if strategy in log.about["base"].split("+"):
        raise InputError(f"'{strategy}' always runs there: it is not chosen")
    with log.transaction() as events:
        known = events.declared("strategies").split("+")  # another process may have added some
        if strategy in known:
            return False
        events.declare("strategies", "+".join([*known, strategy]))
        return events.append("strategy", strategy, now, {})


def folded(learned: Learned, events: Events, *, afresh: bool = False) -> Learned:
    """Fold a whole log.

    Parameters
    ----------
    afresh : bool
        Do not begin with the snapshot.
    """
    kept = None if afresh else events.snapshot()
    if kept is not None:
        learned.load(kept[1])
    for event in events.after(learned.seq):
        learned.fold(event, events.find)
    return learned


def known_settings(log: EventLog, settings: BanditSettings | None = None) -> tuple[BanditSettings, list[str]]:
    """Settings that fit a log, and the strategies that it chooses among.

    Parameters
    ----------
    settings : BanditSettings, optional
        By default those that the log was last opened with.
    """
    with log.reading() as events:
        last = events.latest("settings")
    given = settings.to_dict() if settings is not None else dict(last.data) if last else {}
    given = {name: value for name, value in given.items() if name in BanditSettings.model_fields} | {
        "dimensions": int(log.about["dimensions"]),
        "base": tuple(filter(None, log.about["base"].split("+"))),
    }
    return BanditSettings(**given), log.about["strategies"].split("+")


def open_strategist(options: StrategyOptions, index: CorpusIndex) -> Strategist:
    """The bandit that options describe, for an index.

    Raises
    ------
    InputError
        Without a file, or as `Strategist`.
    """
    if options.state is None:
        raise InputError("the bandit needs a file for what it learns: give --strategy-state FILE.sqlite")
    return Strategist(
        Path(options.state).expanduser(), options.possible, options.bandit, index.embedder.fingerprint
    )


def _note_settings(events: Events, settings: BanditSettings, now: float) -> None:
    """Settings are part of the log: who looks at it later reads it as it was written."""
    said = settings.to_dict()
    last = events.latest("settings")
    if last is None or last.data != said:
        events.append("settings", str(events.last() + 1), now, said)


def _credit(seen: Seen) -> dict[str, float]:
    """Shares of what was read, by who found it; a passage of several is shared among them."""
    shares: dict[str, float] = {}
    read = () if seen.selection is None else seen.selection.ids
    for identity in read:
        finders = seen.searched.found.get(identity, {})
        for name in finders:
            shares[name] = shares.get(name, 0.0) + 1 / (len(finders) * len(read))
    return shares
