"""The bandit at work: what it chooses for a question, what each strategy added, and what it learns from that.

Before each choice, what other processes have added to the log is replayed; an outcome is an event, too. A
process that is killed loses at most the question that it was at.
"""

from __future__ import annotations

import hashlib
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.context import TokenCounter
from mio_rag.errors import InputError, SolverError, StateError
from mio_rag.learning.bandit import BanditSettings, Context, Learned, context_of
from mio_rag.learning.bandit_log import EventLog, Events
from mio_rag.pool import Candidates
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.program import Formulation
from mio_rag.selection.result import Selection
from mio_rag.selection.selector import Selector
from mio_rag.session.search import Searched, check_strategies, names_of
from mio_rag.session.state import State
from mio_rag.session.trace import Outcome
from mio_rag.solvers.registry import solve
from mio_rag.solvers.result import Status
from mio_rag.types import Question

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

_SNAPSHOT_EVERY = 1000
_MOST_WAITING = 10_000
_LEAST_WEIGHT = 0.01  # of a strategy that is expected to bring nothing
_DRAWS = 128  # of the posterior: Thompson's distribution over sets is that of so many draws

# -- choice -------------------------------------------------------------------------------------------------


@lru_cache(maxsize=16)
def every_set(k: int) -> BoolArray:
    """Return all sets of k strategies, shape (2^k, k); the empty one first."""
    made = np.array(list(product((False, True), repeat=k)), dtype=bool).reshape(2**k, k)
    made.setflags(write=False)
    return made


def worths(values: FloatArray, overlap: FloatArray, cost: FloatArray) -> FloatArray:
    """Return the net value of every set under every draw, shape (draws, 2^k).

    values: shape (draws, k); what each strategy adds, at a `cost` of shape (k,).
    overlap: shape (k, k); what two add twice; symmetric, the diagonal is ignored.
    """
    sets = every_set(cost.size).astype(np.float64)
    pairs = np.triu(overlap, 1)
    return np.asarray((values - cost) @ sets.T - ((sets @ pairs) * sets).sum(axis=1))


@dataclass(frozen=True, eq=False)
class Mixture:
    """A distribution over all sets of strategies, in the order of `every_set`.

    mode: cold, all, or mixed.
    share: probability of exploring.
    explored, greedy: shape (2^k,); probability of each set when exploring, and when not.
    expected: shape (2^k,); net value of each set.
    """

    mode: str
    share: float
    explored: FloatArray
    greedy: FloatArray
    expected: FloatArray
    why: str

    @property
    def chances(self) -> FloatArray:
        """The probability of each set, shape (2^k,)."""
        return np.asarray(self.share * self.explored + (1 - self.share) * self.greedy)

    def draw(self, one: float, other: float) -> tuple[int, str]:
        """Return the place of the set that two uniform numbers in [0, 1) give, and how it was drawn."""
        explores = one < self.share
        reached = np.cumsum(self.explored if explores else self.greedy)
        place = int(np.searchsorted(reached, other * reached[-1], side="right"))
        return place, self.mode if self.mode != "mixed" else "explore" if explores else "exploit"


def uniform(seed: int, *parts: str) -> np.random.Generator:
    """Return a generator that depends on these alone."""
    digest = hashlib.sha256("\0".join((str(seed), *parts)).encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))


def mixture(
    learned: Learned,
    x: FloatArray,
    kind: str,
    identity: str,
    runnable: Collection[str] | None = None,
    *,
    scheduled: bool = True,
) -> Mixture:
    """Return with which probability each set is run for a question of this context, type and id.

    runnable: strategies that can run here; by default all.
    scheduled: whether the cold start and the questions on which all run are kept.
    """
    settings, names = learned.settings, learned.strategies
    models, sets = [learned.models[name] for name in names], every_set(len(names))
    means = np.array([model.mean(x) for model in models])
    cost, overlap = learned.costs(), learned.overlap(means)
    expected = worths(means[None], overlap, cost)[0]
    may = np.array([runnable is None or name in runnable for name in names], dtype=bool)

    def alone(members: BoolArray) -> FloatArray:
        return np.asarray((sets == members).all(axis=1), dtype=np.float64)

    def apart(chances: FloatArray | float) -> FloatArray:
        """Each strategy by itself, with its probability; none at all only where others always run."""
        found = np.where(sets, chances * may, 1 - chances * may).prod(axis=1)
        if not settings.base and (found[1:] > 0).any():
            found[0] = 0.0
            found /= found.sum()
        return np.asarray(found)

    begun = learned.questions - learned.since
    after = begun - settings.cold_start
    if names and after < 0 and scheduled:
        why = f"question {begun + 1} of {settings.cold_start} at the start"
        why += " after a change" if learned.changes else ""
        return Mixture("cold", 1.0, apart(settings.cold_share), alone(may), expected, why)
    if names and scheduled and settings.all_every and (after + 1) % settings.all_every == 0:
        every = f"every {settings.all_every}th: all run"
        return Mixture("all", 0.0, alone(may), alone(may), expected, every)
    if settings.policy == "uniform":
        return Mixture("mixed", 1.0, apart(0.5), alone(may), expected, "drawn at random")
    pruned, noise = learned.pruned(kind), np.array([model.noise for model in models])
    widths = np.array([model.width(x) for model in models])
    widest = np.sqrt([(x * x / model.penalty).sum() for model in models])  # before anything was seen
    confidence = float(1 - np.mean(widths / np.maximum(widest, 1e-12))) if names else 1.0
    share = settings.share_exploring(max(0, after), confidence)
    allowed, wide = may & ~pruned, settings.alpha * widths
    if not settings.base and not allowed.any():
        allowed = may
    if settings.alpha_unit == "deviation":
        wide = wide * noise
    if settings.policy == "thompson" and names:
        draws = uniform(settings.seed, identity, "posterior").standard_normal((len(names), _DRAWS)).T
        values = means + wide * draws
    else:
        values = (means + (wide if settings.policy == "linucb" else 0.0))[None]
    if settings.rule == "threshold" and settings.policy != "thompson":
        scores = np.where(allowed, values[0] - cost, -np.inf)
        chosen = threshold_set(scores, settings.threshold)
        if not settings.base and not chosen.any():
            chosen = np.arange(len(names)) == np.argmax(scores)  # something must run
        greedy = alone(chosen)
        why = f"at least {settings.threshold:g} of the best score"
    else:
        closed = np.asarray((sets & ~allowed).any(axis=1))
        closed[0] = not settings.base and bool(allowed.any())
        best = np.argmax(np.where(closed, -np.inf, worths(values, overlap, cost)), axis=1)
        greedy = np.bincount(best, minlength=len(sets)) / len(best)
        why = f"best in {greedy.max():.0%} of the draws of what is known"
        if len(best) == 1:
            why = f"proven optimal: best of all {int((~closed).sum())} sets"
    return Mixture("mixed", share, apart(np.where(pruned, settings.retrial, 0.5)), greedy, expected, why)


def threshold_set(scores: FloatArray, threshold: float) -> BoolArray:
    """Return the set of the published rule, shape (k,): scores of at least a share of the best.

    Where all scores are negative that is no strategy. Scores of -inf are those that may not run.
    """
    return np.asarray(np.isfinite(scores) & (scores >= threshold * scores.max(initial=-np.inf)))


# -- contributions ------------------------------------------------------------------------------------------


def sets_to_compare(ran: Iterable[str], base: Collection[str]) -> list[frozenset[str]]:
    """Return the sets that `contributions` compares: what to ask `search` for as ``alone``."""
    ran = list(ran)
    ground, others = frozenset(n for n in ran if n in base), [name for name in ran if name not in base]
    pairs = map(set, combinations(others, 2))
    return list(dict.fromkeys(ground.union(more) for more in ([], *([a] for a in others), *pairs, others)))


def contributions(
    selector: Selector,
    pool: Candidates,
    alone: Mapping[frozenset[str], Collection[str]],
    ran: Iterable[str],
    base: Collection[str],
    budget_tokens: int,
    counter: TokenCounter | None = None,
) -> dict[str, Any] | None:
    """Return what each strategy added, in units of the program's value; None where constraints cannot be met.

    With V(S) the best value of the program when only passages may be chosen of the pool that the strategies
    in S alone would have given, and B the strategies that always run:

        own(a)        = V(B + a) - V(B)                               what a adds to the base
        overlap(a, b) = own(a) + own(b) - (V(B + a + b) - V(B))       what two of them add twice

    A pool takes a limited number of passages; what a strategy displaces counts against it. Neither depends on
    which others ran, so both can be learned from questions on which different strategies ran.

    pool: everything that any of the pools holds: `Searched.every`.
    alone: strategies -> ids of the pool that they alone would have given: `Searched.alone`.
    ran: strategies that were run, also those that found nothing.
    base: those that always run.

    Returns base and total (V of the base, and of all that ran), own by name, and overlap as (a, b, value).
    """
    if selector.units == "auto":  # of what is read, passages or sentences
        formulation = selector.choose(pool, budget_tokens, counter).formulation
    else:
        formulation = Formulation(selector, selector.valued(pool), counter)
    program, items = formulation.program(budget_tokens), formulation.candidates.passage_ids
    ran = list(ran)
    ground, others = frozenset(n for n in ran if n in base), [name for name in ran if name not in base]
    values: dict[frozenset[str], float] = {}
    for names in sets_to_compare(ran, base):
        assert program.fixed is not None
        may, fixed = frozenset(alone[names]), program.fixed.copy()
        fixed[[p for p, name in enumerate(items) if name not in may and fixed[p] < 0]] = 0
        result = solve(replace(program, fixed=fixed), selector.solver, selector.options)
        if result.status is Status.ERROR:
            raise SolverError(result.message)
        if result.objective is None:
            return None
        values[names] = float(result.objective)
    start = values[ground]
    own = {a: values[ground | {a}] - start for a in others}
    overlap = [
        (a, b, own[a] + own[b] - (values[ground | {a, b}] - start)) for a, b in combinations(others, 2)
    ]
    return {"base": start, "total": values[ground.union(others)], "own": own, "overlap": overlap}


# -- choosers -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """Strategies for one question.

    id: by which feedback names the question; blank where nothing is learned.
    base: those that always run.
    about: for the trace. Plain data.
    weights: of strategies in the merged ranking; 1 where nothing is said.
    """

    id: str
    strategies: tuple[str, ...]
    base: tuple[str, ...] = ()
    why: str = ""
    about: dict[str, Any] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)


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
    graph: file of the names that questions are looked through for; None: those of the index.

    Raises `InputError` as `EventLog`.
    """

    learns = True

    def __init__(
        self,
        path: Path,
        possible: Sequence[str],
        settings: BanditSettings,
        embedder: str,
        now: Callable[[], float] = time.time,
        graph: str | None = None,
    ) -> None:
        self.base = tuple(name for name in possible if name in settings.base)
        others = [name for name in possible if name not in settings.base]
        if len(others) + bool(self.base) < 2:
            raise InputError("a bandit needs strategies to choose among, besides those that always run")
        about = {
            "strategies": "+".join(others),
            "base": "+".join(self.base),
            "embedder": embedder,
            "dimensions": str(settings.dimensions),
        }
        self.log = EventLog(path.expanduser(), about)
        self._others = tuple(self.log.about["strategies"].split("+"))
        self.settings, self._now, self.graph = settings, now, graph
        self.learned = Learned(settings, self._others)
        with self.log.transaction() as events:  # settings are part of the log, for replays
            last = events.latest("settings")
            if last is None or last.data != settings.to_dict():
                events.append("settings", str(events.last() + 1), now(), settings.to_dict())
        # Reading alone: without a snapshot that fits, this takes long, and others go on meanwhile.
        with self.log.reading() as events:
            begun = replayed(self.learned, events, snapshot=True)
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
        names = names_of(index, self.graph) if self.graph or index.links is not None else None
        known = 0 if names is None else len(names.mentioned(question.text))
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
            about = {
                "type": context.type,
                "mode": mode,
                "propensity": float(chances[place]),
                "each": dict(zip(names, (chances @ sets).tolist(), strict=True)),
                "expected": {name: learned.models[name].mean(context.x) for name in names},
                "expected_worth": float(found.expected[place]),
                "regret": float(found.expected.max() - found.expected[place]),
                "token_price": learned.token_price,
                "state": learned.seq,
            }
            self._waiting[identity] = context, about
            while len(self._waiting) > _MOST_WAITING:  # questions that failed on the way
                del self._waiting[next(iter(self._waiting))]
            run = [name for name, inside in zip(names, sets[place], strict=True) if inside]
        chosen = run if settings.weighted else ()
        weights = {n: max(_LEAST_WEIGHT, learned.models[n].mean(context.x)) for n in chosen}
        return Choice(identity, (*self.base, *run), self.base, f"{mode}: {found.why}", about, weights)

    def forget(self, choice: Choice) -> None:
        """Drop a choice of which nothing can be learned."""
        with self._lock:
            self._waiting.pop(choice.id, None)

    def record(self, choice: Choice, outcome: Mapping[str, Any]) -> bool:
        """Add the event of a question that is finished; False where it is in the log already.

        outcome: what `contributions` returns, and by strategy tokens, seconds, credit for what was read, and
            the share of it that it found.
        """
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

    def refresh(self) -> None:
        """Replay what others have added."""
        with self._lock, self.log.reading() as events:
            replayed(self.learned, events)

    @contextmanager
    def settled(self) -> Iterator[Learned]:
        """Give the current state, which does not change meanwhile."""
        with self._lock:
            self.refresh()
            yield self.learned


Chooser = Fixed | Strategist


# -- the log ------------------------------------------------------------------------------------------------


def replayed(learned: Learned, events: Events, *, snapshot: bool = False) -> int:
    """Replay the events that a state lacks; return the place that it began from.

    snapshot: begin with the stored one, where it fits.
    """
    kept = events.snapshot() if snapshot else None
    if kept is not None:
        learned.load(kept[1])
    begun = learned.seq
    for event in events.after(begun):
        learned.fold(event, events.find)
    return begun


def rate(log: EventLog, identity: str, value: int, now: float) -> bool:
    """Rate the answer to a question by 1 (helpful) or -1; False where it was rated before.

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


def known_settings(log: EventLog, settings: BanditSettings | None = None) -> tuple[BanditSettings, list[str]]:
    """Return settings (by default the last ones) that fit a log, and the strategies that it chooses among."""
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
            selector = self.selector.replace(token_price=max(state.price, self.selector.token_price))
            pool = searched.pool if searched.every is None else searched.every
            ran = choice.strategies
            added = contributions(selector, pool, searched.alone, ran, choice.base, state.budget, counter)
        if added is None:
            self.chooser.forget(choice)
            return
        ids, credit, shares = read.ids, dict[str, float](), dict[str, float]()
        for identity in ids:  # the credit for a passage of several finders is shared
            finders = searched.found.get(identity, {})
            for name in finders:
                credit[name] = credit.get(name, 0.0) + 1 / (len(finders) * len(ids))
                shares[name] = shares.get(name, 0.0) + 1 / len(ids)
        spent = {one.strategy: one.amount for one in searched.tried}
        tokens = {name: one.prompt_tokens + one.completion_tokens for name, one in spent.items()}
        seconds = {name: one.seconds for name, one in spent.items()}
        said = {"tokens": tokens, "seconds": seconds, "credit": credit, "found": shares}
        self.chooser.record(choice, {**added, **said})

    def close(self) -> None:
        """Close the log of the bandit."""
        self.chooser.log.close()
