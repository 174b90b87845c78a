"""The bandit at work: it chooses strategies for a question, and learns from what came of it.

State lies in a file (`mio_rag.learning.bandit_log`). Before each choice, what other processes have added is
replayed; an outcome is an event, and known to all from then on. A process that is killed loses at most the
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
from typing import Any, Protocol

import numpy as np

from mio_rag.context import TokenCounter
from mio_rag.errors import InfeasibleError, InputError, StateError, choose
from mio_rag.generation import Generator
from mio_rag.learning.bandit import BanditSettings, Learned, StrategyOptions
from mio_rag.learning.bandit_choice import draw, every_set, mixture, worths
from mio_rag.learning.bandit_context import Context, context_of
from mio_rag.learning.bandit_log import EventLog, Events
from mio_rag.learning.contribution import Contributions, Values, contributions, sets_to_compare
from mio_rag.pool import Candidates
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.result import Selection
from mio_rag.selection.selector import Selector
from mio_rag.session.budget import Budget, Limits
from mio_rag.session.costs import Amount, Costs
from mio_rag.session.search import Searched, SearchSettings, check_search, search
from mio_rag.session.state import State
from mio_rag.session.strategies import STRATEGIES, check_strategies, make_strategies, names_of
from mio_rag.types import Question


@dataclass(frozen=True)
class Choice:
    """Strategies for one question.

    id: by which feedback names the question; blank where nobody learns.
    weights: in the merged ranking.
    base: those that always run.
    why: in words.
    about: what a trace keeps of it: propensity, certificate, kind of the round. Plain data.
    """

    id: str
    strategies: tuple[str, ...]
    weights: Mapping[str, float] = field(default_factory=dict)
    base: tuple[str, ...] = ()
    why: str = ""
    about: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Seen:
    """What came of a choice.

    selection: what was read; None where nothing could be.
    contributions: None where they cannot be had.
    costs: what each strategy spent.
    """

    searched: Searched
    selection: Selection | None
    contributions: Contributions | None
    costs: Mapping[str, Amount]

    @property
    def pool(self) -> Candidates:
        """What was found."""
        return self.searched.pool


class Chooser(Protocol):
    """Chooses strategies, and hears what came of it."""

    @property
    def name(self) -> str:
        """As ledgers and traces show it."""
        ...

    @property
    def possible(self) -> tuple[str, ...]:
        """Strategies that it may choose; all that these need must be there."""
        ...

    @property
    def learns(self) -> bool:
        """Whether it wants to know contributions, which take programs to solve."""
        ...

    def choose(self, question: Question, retriever: Retriever) -> Choice:
        """Strategies for a question."""
        ...

    def learn(self, choice: Choice, seen: Seen) -> None:
        """Take in what came of it; to be called once for a choice."""
        ...

    def price_tokens(self, price: float) -> None:
        """From now on, choose at this price of a token."""
        ...


@dataclass(frozen=True)
class Fixed:
    """The same strategies for every question."""

    strategies: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "strategies", check_strategies(self.strategies))

    @property
    def name(self) -> str:
        """Their names, joined by "+"."""
        return "+".join(self.strategies)

    @property
    def possible(self) -> tuple[str, ...]:
        """Those."""
        return self.strategies

    @property
    def learns(self) -> bool:
        """No."""
        return False

    def choose(self, question: Question, retriever: Retriever) -> Choice:
        """Those."""
        return Choice("", self.strategies)

    def learn(self, choice: Choice, seen: Seen) -> None:
        """Nothing."""

    def price_tokens(self, price: float) -> None:
        """Nothing."""


_SNAPSHOT_EVERY = 1000
_MOST_WAITING = 10_000
_LEAST_WEIGHT = 0.1


class Strategist:
    """A chooser that learns.

    path: the log; made where it is missing.
    possible: strategies that may run; those of ``settings.base`` always do.
    embedder: fingerprint of the index's embedder: contexts of another one mean something else.
    now: seconds since 1970.

    Raises `InputError` if the file belongs to other strategies, another embedder or a later release, or is of
    something else.
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

        identity: as `Choice.id`.
        value: helpful, or not.

        Raises `InputError` if there is no such question.
        """
        new = rate(self.log, identity, value, self._now())
        self.refresh()
        return new

    def add_strategy(self, strategy: str) -> bool:
        """Choose among one strategy more; False where it is so already.

        What was learned of the others stays. Nothing is known of the new one: it is tried where nothing else
        is sure, and when exploring. Other processes that have the file open go on with what they know.

        Raises `InputError` for a strategy that there is none of, or that always runs here.
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

    afresh: do not begin with the snapshot.
    """
    kept = None if afresh else events.snapshot()
    if kept is not None:
        learned.load(kept[1])
    for event in events.after(learned.seq):
        learned.fold(event, events.find)
    return learned


def known_settings(log: EventLog, settings: BanditSettings | None = None) -> tuple[BanditSettings, list[str]]:
    """Settings that fit a log, and the strategies that it chooses among.

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


def open_strategist(options: StrategyOptions, index: CorpusIndex) -> Strategist:
    """The bandit that options describe, for an index.

    Raises `InputError` without a file, or as `Strategist`.
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


@dataclass(frozen=True, eq=False)
class PipelineResult:
    """What was chosen, found and selected."""

    choice: Choice
    searched: Searched
    selection: Selection

    def found_by(self, identity: str) -> dict[str, int]:
        """Strategy -> rank, for a passage; rank 0 where only a link leads to it."""
        return dict(self.searched.found.get(identity, {}))


@dataclass(frozen=True, eq=False)
class SearchPipeline:
    """Chooses strategies, searches by them, and selects from what they find.

    Raises `InputError` if a strategy that may be chosen lacks a model, or links.
    """

    chooser: Chooser
    retriever: Retriever
    generator: Generator | None
    selector: Selector
    settings: SearchSettings = field(default_factory=SearchSettings)

    def __post_init__(self) -> None:
        made = make_strategies(self.chooser.possible, self.settings.writing)
        check_search(made, self.retriever, self.generator)

    def run(
        self,
        question: Question,
        budget_tokens: int,
        counter: TokenCounter | None = None,
        *,
        costs: Costs | None = None,
    ) -> PipelineResult:
        """Take a question to its selection.

        What was spent is in `costs`, also where this fails.

        Raises `InfeasibleError` if no selection satisfies the constraints; `MioRagError` as search and
        selection do.
        """
        account = Costs() if costs is None else costs
        with account.part("plan"):
            choice = self.chooser.choose(question, self.retriever)
        branch = None
        if self.generator is not None:
            limits = Limits(tokens=self.settings.tokens * len(choice.strategies))
            branch = Budget(self.generator, limits).branch()
            branch.costs = account
        searched = search(
            question,
            self.retriever,
            self.generator,
            choice.strategies,
            self.settings,
            weights=choice.weights,
            branch=branch,
            alone=sets_to_compare(choice.strategies, choice.base) if self.chooser.learns else (),
        )
        with account.part("select"):
            selection = self.selector.select(searched.pool, budget_tokens, counter)
        if self.chooser.learns:
            with account.part("learn"):
                added = None
                if selection.result.x is not None:
                    added = measured(self.selector, searched, choice, budget_tokens, counter)
                read = None if selection.result.x is None else selection
                spent = {one.strategy: one.amount for one in searched.tried}
                self.chooser.learn(choice, Seen(searched, read, added, spent))
        if selection.result.x is None:
            raise InfeasibleError(selection.explain())
        return PipelineResult(choice, searched, selection)


def measured(
    selector: Selector,
    searched: Searched,
    choice: Choice,
    budget_tokens: int,
    counter: TokenCounter | None = None,
) -> Contributions | None:
    """What each strategy of a choice added: `contributions` of a search that was asked for its sets.

    None where one that always runs has failed: there is nothing to hold the others against.
    """
    if any(one.failed and one.strategy in choice.base for one in searched.tried):
        return None
    pool = searched.pool if searched.every is None else searched.every
    values = Values(selector, pool, searched.alone, budget_tokens, counter)
    return contributions(values, choice.strategies, choice.base)


def searched_json(result: PipelineResult) -> dict[str, Any]:
    """Plain data of a search: what each strategy did, and who found what is read."""
    choice, searched = result.choice, result.searched
    return {
        "strategies": [
            {
                "strategy": one.strategy,
                "queries": list(one.found.queries),
                "found": len(one.found.rows),
                "dropped_names": one.found.dropped,
                "note": one.found.note,
                "failed": one.failed,
                "prompt_tokens": one.amount.prompt_tokens,
                "completion_tokens": one.amount.completion_tokens,
                "lm_calls": one.amount.lm_calls,
                "retrieval_calls": one.amount.retrieval_calls,
                "seconds": one.amount.seconds,
            }
            for one in searched.tried
        ],
        "found_by": {i: result.found_by(i) for i in result.selection.ids},
        "choice": {"id": choice.id, "why": choice.why, **choice.about},
        "search_notes": list(searched.notes),
    }


@dataclass(frozen=True, eq=False)
class StrategyLearner:
    """Tells a bandit what came of the strategies that it chose; as `mio_rag.session.state.Learner`."""

    chooser: Chooser
    selector: Selector

    def learn(self, state: State) -> None:
        """Record what each strategy added to what was read, once a question."""
        found = next((r for r in state.results.values() if "searched" in r.facts), None)
        read = next((r.value for r in state.results.values() if r.action.do == "select"), None)
        if found is None or not isinstance(read, Selection):
            return
        choice: Choice = state.once("search", lambda: Choice("", ()))
        searched: Searched = found.facts["searched"]
        counter = None if state.retriever is None else state.retriever.counter
        program = self.selector.replace(token_price=max(state.price, self.selector.token_price))
        added = measured(program, searched, choice, state.budget, counter)
        spent = {one.strategy: one.amount for one in searched.tried}
        self.chooser.learn(choice, Seen(searched, read, added, spent))

    def close(self) -> None:
        """Close the log of the bandit."""
        close = getattr(self.chooser, "close", None)
        if close is not None:
            close()
