"""Search strategies: five ways to search for a question, side by side, and one pool of what they find.

raw           the question itself
hyde          a passage that might answer it, written by the model, is embedded instead of the question (Gao
              and others, "Precise zero-shot dense retrieval without relevance labels", ACL 2023)
query2doc     the question together with what the model writes about it (Wang and others, "Query2doc:
              query expansion with large language models", EMNLP 2023)
grounded      the question with names that the index, or a graph of your own, links to the names in it; the
              model chooses among them, and a name that it was not given is dropped
multi-query   the question and rewordings of it, fused by reciprocal rank

    searched = search(question, retriever, generator, ["raw", "hyde", "grounded"])
    searched.pool                    # for `Selector.select`
    searched.found["p17"]            # {"raw": 3, "hyde": 1}: who found it, at which rank

The rankings are merged by weighted reciprocal rank fusion: a passage gets weight / (60 + rank) from each
strategy that found it (Cormack, Clarke and Buettcher, SIGIR 2009).
"""

from __future__ import annotations

import csv
import io
import math
import queue
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Annotated, Any
from weakref import WeakKeyDictionary

from pydantic import Field

from mio_rag.errors import InputError, MioRagError, choose
from mio_rag.generation import Generator, Prompt
from mio_rag.pool import Candidates
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.links import passage_names
from mio_rag.retrieval.retriever import LINK_SOURCES, Retriever, reciprocal_rank_fusion
from mio_rag.sentences import NameDictionary, name_key
from mio_rag.session.budget import Amount, Branch, Budget, Call, Costs, LimitReached, Limits
from mio_rag.settings import Settings
from mio_rag.storage import read_text
from mio_rag.types import Question, clean

_BY_LINK = 0  # the rank of a passage that none of a strategy's queries found, and to which its best link
_BEARERS = 3  # passages of one name that are looked at
_NEIGHBOURS = 16  # names that the model may choose from
_LONGEST_QUERY = 1000  # characters: what embedders and BM25 make use of
_REPEATS = 5  # of the question before its expansion, for BM25; as published for sparse retrieval
_SHARE = 0.7  # of the time that a question has left: the rest is for selection and answer
_LEAST_SECONDS = 0.05
_FIELD = re.compile(r"\{(\w+)\}")
_BULLET = re.compile(
    r"^\s*(?:[-*\u2022]|\(?\d{1,2}[.):]|(?:question|query|rewording)\s*\d*:)\s*", re.IGNORECASE
)


@cache
def template(name: str) -> str:
    """A template of `prompts/`."""
    return (Path(__file__).parent / "prompts" / f"{name}.txt").read_text(encoding="utf-8").rstrip("\n")


def filled(name: str, fields: Mapping[str, str]) -> str:
    """A template of `prompts/`, filled in one pass, so that braces in texts are never looked at."""
    return _FIELD.sub(lambda found: fields.get(found.group(1), found.group(0)), template(name))


def strategy_prompt(name: str, question: Question, fields: Mapping[str, str]) -> Prompt:
    """The prompt of `prompts/NAME_system.txt` and `prompts/NAME_user.txt`."""
    known = {"question": clean(question.text).strip(), **fields}
    # Without options and labels: a generator that is given options would choose one instead of writing.
    asked = Question(question.id, question.text)
    return Prompt(asked, (), filled(f"{name}_system", known), filled(f"{name}_user", known))


def _lines(reply: str) -> list[str]:
    """The lines of a list that a model wrote, without bullets, numbers and quotation marks."""
    lines = (_BULLET.sub("", line).strip().strip("\"'`*").strip() for line in reply.splitlines())
    return [line for line in lines if re.search(r"\w", line)]


@dataclass(frozen=True)
class Found:
    """What one strategy found.

    rows: rows of the index, best first; may go deeper than a pool. Empty: nothing, see `note`.
    queries: what was searched for, in order.
    dropped: names that the model gave and that are not in what it was given: nothing was searched for by
        them.
    note: why there is nothing, or what was left out.
    """

    rows: tuple[int, ...] = ()
    queries: tuple[str, ...] = ()
    dropped: int = 0
    note: str = ""


class SearchTask:
    """Where one strategy works: the index, and the branch that asks the model and pays."""

    def __init__(self, question: Question, retriever: Retriever, branch: Branch) -> None:
        self.question, self.retriever, self._branch = question, retriever, branch
        self.costs = branch.costs

    def write(self, name: str, max_tokens: int, fields: Mapping[str, str] | None = None) -> str:
        """What the model replies to a prompt of `prompts/`, without white space around it.

        Raises `GenerationError` as the model does; `LimitReached` where the reply could go beyond the limit
        on tokens; it is then not asked for.
        """
        prompt = strategy_prompt(name, self.question, fields or {})
        return self._branch.generate("decompose", prompt, max_tokens).text.strip()

    def searching(self) -> AbstractContextManager[None]:
        """Count what happens inside as one retrieval call."""
        return self.costs.part("retrieve", retrieval_calls=1)

    def abandoned(self, seconds: float) -> Costs:
        """What was spent so far, and of a reply that is under way all that it may still take."""
        spent, known, pending = Costs(), list(self.costs.spent), self._branch.unfinished()
        spent.spent = [*known, *pending]
        if not pending:
            spent.add(Call("decompose", max(0.0, seconds - sum(one.call.seconds for one in known))))
        return spent


@dataclass(frozen=True)
class Strategy:
    """A way to search for a question.

    find: searches for the question of a task; what it takes is counted on the task, also where it fails.
        Raises `MioRagError` as model and index do.
    needs_model, needs_links: whether it asks a language model, and follows the evidence links of the index:
        `search` refuses it before anything is done where these are missing.
    """

    name: str
    find: Callable[[SearchTask], Found]
    needs_model: bool = True
    needs_links: bool = False


@dataclass(frozen=True)
class Grounds:
    """Names that a question may be expanded by.

    entities: names of the index in the question, in its order.
    neighbours: other names that passages about them mention, by the weight of the link.
    """

    entities: tuple[str, ...]
    neighbours: tuple[str, ...]

    def kept(self, named: list[str]) -> tuple[tuple[str, ...], int]:
        """Those of the names that are in the context, as it spells them; how many are not.

        A name is known if its words are a run of words in one of the given names.
        """
        known = {name_key(name): name for name in (*self.entities, *self.neighbours)}
        keys = [name_key(name) for name in named]
        whole = [
            known.get(key) or next((n for k, n in known.items() if key and f" {key} " in f" {k} "), None)
            for key in keys
        ]
        return tuple(dict.fromkeys(name for name in whole if name is not None)), whole.count(None)


class Names:
    """Names, and which of them are linked.

    reached: places of names -> places that links lead to, with the weights of the links.
    any_case: whether names also count where a question writes them small: names that were listed on purpose.
    """

    def __init__(
        self,
        names: Sequence[str],
        reached: Callable[[Sequence[int]], Mapping[int, float]],
        any_case: bool = False,
    ) -> None:
        self._names, self._reached, self._any_case = names, reached, any_case
        self._dictionary = NameDictionary(names)

    @classmethod
    def of_index(cls, index: CorpusIndex) -> Names:
        """The names of an index; `InputError` if it has no evidence links."""
        return cls(passage_names(index.passages)[0], index.required_links().reached)

    @classmethod
    def of_graph(cls, path: str) -> Names:
        """The names of a CSV file with the columns name, neighbour and, if links differ, weight (above 0).

        Raises `InputError` if it cannot be read, or a line is none.
        """
        rows, problems = csv.DictReader(io.StringIO(read_text(Path(path)))), list[str]()
        if missing := {"name", "neighbour"} - set(rows.fieldnames or ()):
            raise InputError(f"graph '{path}' lacks the column {', '.join(sorted(missing))}")
        places, links = dict[str, int](), dict[int, dict[int, float]]()
        for number, row in enumerate(rows, start=2):
            ends = [(row[end] or "").strip() for end in ("name", "neighbour")]
            try:
                weight = float(row.get("weight") or 1.0)
            except ValueError:
                weight = math.nan
            if not all(ends) or not 0 < weight < math.inf:
                problems.append(f"graph '{path}', line {number}: give name, neighbour, and a weight above 0")
                continue
            one, other = (places.setdefault(end, len(places)) for end in ends)
            links.setdefault(one, {})[other] = links.setdefault(other, {})[one] = weight
        if problems or not places:
            raise InputError(problems[:5] or f"graph '{path}' is empty")

        def reached(rows: Sequence[int]) -> dict[int, float]:
            found = dict[int, float]()
            for row in rows:
                for other, weight in links[row].items():
                    found[other] = found.get(other, 0.0) + weight
            return found

        return cls(list(places), reached, any_case=True)

    def mentioned(self, text: str) -> tuple[str, ...]:
        """Names in a text, each once, in its order."""
        return tuple(self._names[self._dictionary.bearers[key][0]] for key in self._keys(text))

    def _keys(self, text: str) -> dict[str, None]:
        # Names are told by their capitals; who types none means them all the same.
        told = self._any_case or text == text.lower()
        return dict.fromkeys(self._dictionary.mentions(text.title() if told else text))

    def grounds(self, question: str) -> Grounds:
        """What is known about the names in a question."""
        keys = self._keys(question)
        rows = [row for key in keys for row in self._dictionary.bearers[key][:_BEARERS]]
        reached = self._reached(rows) if rows else {}
        near: dict[str, str] = {}
        for row in sorted(reached, key=lambda r: (-reached[r], r)):
            key = name_key(self._names[row])
            if key and key not in keys:
                near.setdefault(key, self._names[row])
            if len(near) == _NEIGHBOURS:
                break
        return Grounds(self.mentioned(question), tuple(near.values()))


_KNOWN: WeakKeyDictionary[CorpusIndex, Names] = WeakKeyDictionary()
_of_graph = lru_cache(maxsize=4)(Names.of_graph)


def names_of(index: CorpusIndex, graph: str | None = None) -> Names:
    """The names of a graph's file, else of the index, kept; raises as `Names.of_graph` and `of_index`."""
    if graph is not None:
        return _of_graph(graph)
    known = _KNOWN.get(index)
    if known is None:
        known = _KNOWN[index] = Names.of_index(index)
    return known


_Most = Annotated[int, Field(ge=1)]


class StrategySettings(Settings):
    """How much strategies write."""

    passage_tokens: _Most = 48
    """Longest hypothetical passage or expansion. The published 512 and 128 are for large models on servers;
    the first sentences carry the words that are searched for."""
    names_tokens: _Most = 32
    """Longest list of names."""
    variations_tokens: _Most = 64
    """Longest list of rewordings."""
    names: _Most = 5
    """Most names that a question is expanded by."""
    variations: _Most = 3
    """Rewordings that are searched for."""
    graph: str | None = None
    """CSV file of names and their neighbours, for grounded; None: the evidence links of the index."""


def _ranked(task: SearchTask, query: str, words: str | None = None, **more: Any) -> Found:
    """Search once. `words`: what BM25 looks for instead."""
    with task.searching():
        return Found(tuple(task.retriever.ranked(query, words)), (query,), **more)


def _raw(settings: StrategySettings, task: SearchTask) -> Found:
    return _ranked(task, task.question.text)


def _hyde(settings: StrategySettings, task: SearchTask) -> Found:
    said = task.write("hyde", settings.passage_tokens)[:_LONGEST_QUERY]
    return _ranked(task, said, task.question.text) if said else Found(note="the model wrote no passage")


def _query2doc(settings: StrategySettings, task: SearchTask) -> Found:
    text = task.question.text
    said = task.write("query2doc", settings.passage_tokens)[:_LONGEST_QUERY]
    if not said:
        return Found(note="the model wrote no expansion")
    return _ranked(task, f"{text} {said}", " ".join([*[text] * _REPEATS, said]))


def _grounded(settings: StrategySettings, task: SearchTask) -> Found:
    text = task.question.text
    with task.costs.part("retrieve"):
        grounds = names_of(task.retriever.index, settings.graph).grounds(text)
    what = "index" if settings.graph is None else "graph"
    if not grounds.entities:
        return Found(note=f"no name of the {what} is in the question")
    if not grounds.neighbours:
        return Found(note=f"the {what} links the names in the question to nothing")
    listed = "\n".join(f"- {name}" for name in grounds.neighbours)
    fields = {"entities": ", ".join(grounds.entities), "neighbours": listed}
    named = [
        name
        for line in _lines(task.write("grounded", settings.names_tokens, fields))
        for name in ([line] if len(grounds.kept([line])[0]) else line.split(","))
        if name.strip()
    ]
    kept, dropped = grounds.kept(named)
    new = [name for name in kept if name not in grounds.entities][: settings.names]
    words = "1 name that is not" if dropped == 1 else f"{dropped} names that are not"
    note = f"dropped {words} in the context" if dropped else ""
    if not new:
        return Found(dropped=dropped, note=note or "the model named nothing that is new")
    return _ranked(task, f"{text} {', '.join(new)}", dropped=dropped, note=note)


def _multi_query(settings: StrategySettings, task: SearchTask) -> Found:
    text, count = task.question.text, settings.variations
    said = task.write("variations", settings.variations_tokens, {"count": str(count)})
    others = [line[:_LONGEST_QUERY] for line in _lines(said) if line.lower() != text.lower().strip()]
    variations = list(dict.fromkeys(others))[:count]
    if not variations:
        return Found(note="the model wrote no rewording")
    found = [_ranked(task, query) for query in (text, *variations)]
    fused = reciprocal_rank_fusion([one.rows for one in found])
    return Found(tuple(sorted(fused, key=lambda row: (-fused[row], row))), (text, *variations))


_FINDERS = {
    "raw": _raw, "hyde": _hyde, "query2doc": _query2doc, "grounded": _grounded, "multi-query": _multi_query
}  # fmt: skip
#: In the order in which they are listed.
STRATEGIES = tuple(_FINDERS)


def check_strategies(names: Any) -> tuple[str, ...]:
    """The names of strategies, a list or text with commas, in the order given; "all" stands for every one.

    Raises `InputError` with every name that is unknown or given twice; for none.
    """
    given = names.split(",") if isinstance(names, str) else names
    if not isinstance(given, Sequence) or not all(isinstance(name, str) for name in given):
        raise InputError(f"{names!r:.60} is no list of strategies")
    given = [name.strip() for name in given if name.strip()]
    if given == ["all"]:
        return STRATEGIES
    each = dict.fromkeys(given)
    problems = [
        f"strategy '{name}' is unknown: {choose(name, STRATEGIES, more=', or all')}"
        for name in each
        if name not in STRATEGIES
    ]
    problems += [f"strategy '{name}' is given twice" for name in each if given.count(name) > 1]
    if not given:
        problems.append(f"no strategy is given: choose from {', '.join(STRATEGIES)}, or all")
    if problems:
        raise InputError(problems)
    return tuple(given)


def strategies_problem(value: Any) -> str | None:
    """What is wrong with a setting that names strategies, in words; None: nothing is."""
    try:
        check_strategies(value)
    except InputError as error:
        return f"must be a list of strategies ({'; '.join(error.problems)})"
    return None


def make_strategies(names: Any, settings: StrategySettings | None = None) -> tuple[Strategy, ...]:
    """The strategies of these names; errors as `check_strategies`."""
    how = settings or StrategySettings()
    return tuple(
        Strategy(name, partial(_FINDERS[name], how), name != "raw", name == "grounded" and not how.graph)
        for name in check_strategies(names)
    )


def strategies_of(settings: Mapping[str, Any]) -> Sequence[Strategy]:
    """The strategies in a step's settings; none where they name none, or wrong ones."""
    given = settings.get("strategies")
    return () if given is None or strategies_problem(given) else make_strategies(given)


# Side by side --------------------------------------------------------------------------------------------


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
    """Most tokens into and out of the model, where nothing else limits them."""
    writing: StrategySettings = StrategySettings()

    def within(self, seconds: float) -> SearchSettings:
        """These where a question has so many seconds left: a strategy that would take most is left out."""
        left = max(_LEAST_SECONDS, _SHARE * seconds)
        return self.replace(deadline_seconds=min(self.deadline_seconds, left))


@dataclass(frozen=True, eq=False)
class Tried:
    """One strategy on one question: what it found, or why it was left out since it failed or was late."""

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


def _check_search(
    strategies: Sequence[Strategy],
    retriever: Retriever,
    generator: Generator | None,
    weights: Mapping[str, float] | None = None,
) -> None:
    """Raise `InputError` for strategies that are given twice or lack what they need, and wrong weights."""
    names = [strategy.name for strategy in strategies]
    problems = [f"strategy '{n}' is given twice" for n in dict.fromkeys(names) if names.count(n) > 1]
    if not names:
        problems.append("no strategy is given")
    problems += [
        f"weight of '{name}' is {weight!r}: it must be finite and > 0"
        for name, weight in (weights or {}).items()
        if not 0 < weight < math.inf
    ]
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
    strategies: names of `mio_rag.session.search`, or anything that meets the protocol.
    weights: of a strategy in the merged ranking, > 0; 1 where nothing is said.
    branch: pays, each strategy as a part of its own name within "search"; without it, all of them together
        have `SearchSettings.tokens`.
    alone: sets of these strategies: `Searched.alone` is to tell what each would have found by itself. Nothing
        more is searched for.

    Returns: where no strategy found anything, the pool is that of the question itself, and a note says so.
    Raises `InputError` if a strategy is unknown or given twice, or lacks a model or links.
    """
    how = settings or SearchSettings()
    made = [m for s in strategies for m in (make_strategies([s], how.writing) if isinstance(s, str) else [s])]
    _check_search(made, retriever, generator, weights)
    if branch is None:
        reader: Any = generator
        branch = Budget(reader, Limits(tokens=how.tokens)).branch()
    account, payer = branch.costs, branch
    with account.part("search"):
        began = time.perf_counter()
        tried = _side_by_side(made, how, lambda: SearchTask(question, retriever, payer.parallel()))
        # While strategies ran side by side, this part did nothing else.
        account.include(Costs(), waited=time.perf_counter() - began)
        for one in tried:
            with account.part(one.strategy):
                account.include(one.costs, waited=one.seconds)
        branch.joined()
    notes = [f"{one.strategy}: {one.found.note}" for one in tried if one.found.note]
    nothing = not any(one.found.rows for one in tried)  # then the question itself is searched for
    with account.part("retrieve", retrieval_calls=int(nothing)):
        return _merged(question, retriever, tried, notes, how, weights or {}, list(alone))


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
        found[identity] = of or {name: _BY_LINK for name, rows in led.items() if position in rows}
    return Searched(pool, found, tuple(tried), tuple(notes), own, every)


def _side_by_side(
    strategies: Sequence[Strategy], how: SearchSettings, task: Callable[[], SearchTask]
) -> tuple[Tried, ...]:
    """Every strategy in a thread of its own; a late one is waited for no longer, and takes no place."""
    waiting, running = deque(strategies), dict[str, tuple[float, SearchTask]]()
    done: queue.SimpleQueue[tuple[str, Found | BaseException]] = queue.SimpleQueue()
    ended: dict[str, Tried] = {}

    def run(strategy: Strategy, place: SearchTask) -> None:
        try:
            done.put((strategy.name, strategy.find(place)))
        except BaseException as error:  # for the thread that waits
            done.put((strategy.name, error))

    while waiting or running:
        while waiting and len(running) < how.concurrency:
            strategy, place = waiting.popleft(), task()
            running[strategy.name] = time.perf_counter(), place
            # A daemon: a model that never answers must not keep the process alive.
            threading.Thread(target=run, args=(strategy, place), daemon=True).start()
        first = min(started for started, _ in running.values()) + how.deadline_seconds
        try:
            name, found = done.get(timeout=max(0.0, first - time.perf_counter()))
        except queue.Empty:
            now = time.perf_counter()
            for late in [n for n, (since, _) in running.items() if now - since >= how.deadline_seconds]:
                started, place = running.pop(late)
                said = Found(note=f"left out, it took longer than {how.deadline_seconds:g} s")
                ended[late] = Tried(late, said, place.abandoned(now - started), True, now - started)
            continue
        if name not in running:  # it was late
            continue
        started, place = running.pop(name)
        failed = isinstance(found, BaseException)
        if isinstance(found, (MioRagError, LimitReached)):
            limit = "the limit of " if isinstance(found, LimitReached) else ""
            found = Found(note=f"left out, {limit}{found}")
        elif isinstance(found, BaseException):
            raise found
        ended[name] = Tried(name, found, place.costs, failed, time.perf_counter() - started)
    return tuple(ended[strategy.name] for strategy in strategies)
