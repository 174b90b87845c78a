"""Five ways to search for a question.

raw           the question itself
hyde          a passage that might answer it, written by the model, is embedded instead of the question (Gao
              and others, "Precise zero-shot dense retrieval without relevance labels", ACL 2023)
query2doc     the question together with what the model writes about it (Wang and others, "Query2doc:
              query expansion with large language models", EMNLP 2023)
grounded      the question with names that the index links to the names in it; the model chooses among them,
              and a name that it was not given is dropped
multi-query   the question and rewordings of it, fused by reciprocal rank
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Annotated, Protocol
from weakref import WeakKeyDictionary

from pydantic import Field

from mio_rag.errors import InputError, choose
from mio_rag.generation import Generator, Prompt
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.links import passage_names
from mio_rag.retrieval.retriever import Retriever, reciprocal_rank_fusion
from mio_rag.sentences import NameDictionary, name_key
from mio_rag.session.budget import Branch, Budget, Limits
from mio_rag.session.costs import Call, Costs
from mio_rag.session.values import filled
from mio_rag.settings import Settings
from mio_rag.types import Question, clean

_BULLET = re.compile(
    r"^\s*(?:[-*\u2022]|\(?\d{1,2}[.):]|(?:question|query|rewording)\s*\d*:)\s*", re.IGNORECASE
)


@dataclass(frozen=True)
class Found:
    """What one strategy found.

    rows: rows of the index, best first; may go deeper than a pool. Empty: it has nothing to say, see `note`.
    queries: what was searched for, in order.
    dropped: names that the model gave and that are not in what it was given: nothing was searched for by
        them.
    note: why there is nothing, or what was left out; empty where there is nothing to say.
    """

    rows: tuple[int, ...] = ()
    queries: tuple[str, ...] = ()
    dropped: int = 0
    note: str = ""


class SearchTask:
    """Where one strategy works: the index, the model, and an account of its own.

    generator: None: strategies that need a model cannot be used.
    tokens: most tokens into and out of the model.
    branch: pays instead of one with `tokens` that is made here.
    """

    def __init__(
        self,
        question: Question,
        retriever: Retriever,
        generator: Generator | None,
        *,
        tokens: int = 20_000,
        branch: Branch | None = None,
    ) -> None:
        self.question, self.retriever = question, retriever
        if branch is None and generator is not None:
            branch = Budget(generator, Limits(tokens=tokens)).branch()
        self.costs = Costs() if branch is None else branch.costs
        self._branch = branch

    def write(self, template: str, max_tokens: int, fields: Mapping[str, str] | None = None) -> str:
        """What the model replies to a prompt of `prompts/`, without white space around it.

        Raises `InputError` without a model; `GenerationError` as the model does; `LimitReached` where the
        reply could go beyond the limit on tokens; it is then not asked for.
        """
        if self._branch is None:
            raise InputError("this strategy needs a language model: give --model")
        prompt = strategy_prompt(template, self.question, fields or {})
        return self._branch.generate("decompose", prompt, max_tokens).text.strip()

    def searching(self) -> AbstractContextManager[None]:
        """Count what happens inside as one retrieval call."""
        return self.costs.part("retrieve", retrieval_calls=1)

    def abandoned(self, seconds: float) -> Costs:
        """What is to be charged where nobody waits any longer.

        What was spent so far, and of a reply that is under way all that it may still take: nobody will hear
        what it took.
        """
        spent = Costs()
        known = list(self.costs.spent)
        pending = () if self._branch is None else self._branch.unfinished()
        spent.spent += [*known, *pending]
        if not pending:
            left = max(0.0, seconds - sum(one.call.seconds for one in known))
            spent.add(Call("decompose", left))
        return spent


class Strategy(Protocol):
    """A way to search for a question.

    `needs_model` and `needs_links` say what it cannot do without: `mio_rag.session.search` refuses it
    before anything is done.
    """

    @property
    def name(self) -> str:
        """As it is called on the command line."""
        ...

    @property
    def needs_model(self) -> bool:
        """Whether it asks a language model."""
        ...

    @property
    def needs_links(self) -> bool:
        """Whether it follows the evidence links of the index."""
        ...

    def find(self, task: SearchTask) -> Found:
        """Search for the question of a task; what it takes is counted on the task, also where it fails.

        Raises `MioRagError` as model and index do.
        """
        ...


def strategy_prompt(name: str, question: Question, fields: Mapping[str, str]) -> Prompt:
    """The prompt of `prompts/NAME_system.txt` and `prompts/NAME_user.txt`."""
    known = {"question": clean(question.text).strip(), **fields}
    # Without options and labels: a generator that is given options would choose one instead of writing.
    asked = Question(question.id, question.text)
    return Prompt(asked, (), filled(f"{name}_system", known), filled(f"{name}_user", known))


def lines_of(reply: str) -> list[str]:
    """The lines of a list that a model wrote, without bullets, numbers and quotation marks."""
    lines = (_BULLET.sub("", line).strip().strip("\"'`*").strip() for line in reply.splitlines())
    return [line for line in lines if re.search(r"\w", line)]


_BEARERS = 3  # passages of one name that are looked at
_NEIGHBOURS = 16  # names that the model may choose from


@dataclass(frozen=True)
class Grounds:
    """Names that a question may be expanded by.

    entities: names of the index in the question, in its order.
    neighbours: names that passages about them mention, by the weight of the link; none of `entities` among
        them.
    """

    entities: tuple[str, ...]
    neighbours: tuple[str, ...]

    def kept(self, named: list[str]) -> tuple[tuple[str, ...], int]:
        """Those of the names that are in the context, as it spells them; how many are not.

        A name is known if its words are a run of words in one of the given names.
        """
        known = {name_key(name): name for name in (*self.entities, *self.neighbours)}
        kept: dict[str, None] = {}
        dropped = 0
        for name in named:
            key = name_key(name)
            whole = known.get(key) or next(
                (n for k, n in known.items() if key and f" {key} " in f" {k} "), None
            )
            if whole is None:
                dropped += 1
            else:
                kept[whole] = None
        return tuple(kept), dropped


class IndexNames:
    """The names of an index, found once.

    index: with evidence links.

    Raises `InputError` if it has none.
    """

    def __init__(self, index: CorpusIndex) -> None:
        self._links = index.required_links()
        self._names, _ = passage_names(index.passages)
        self._dictionary = NameDictionary(self._names)

    def mentioned(self, text: str) -> tuple[str, ...]:
        """Names of the index in a text, each once, in its order."""
        return tuple(self._names[self._dictionary.bearers[key][0]] for key in self._keys(text))

    def _keys(self, text: str) -> dict[str, None]:
        # Names are told by their capitals; who types none means them all the same.
        return dict.fromkeys(self._dictionary.mentions(text.title() if text == text.lower() else text))

    def grounds(self, question: str) -> Grounds:
        """What the index knows about the names in a question."""
        keys = self._keys(question)
        rows = [row for key in keys for row in self._dictionary.bearers[key][:_BEARERS]]
        entities = tuple(self._names[self._dictionary.bearers[key][0]] for key in keys)
        near: dict[str, str] = {}
        if rows:
            reached = self._links.reached(rows)
            for row in sorted(reached, key=lambda r: (-reached[r], r)):
                key = name_key(self._names[row])
                if key and key not in keys:
                    near.setdefault(key, self._names[row])
                if len(near) == _NEIGHBOURS:
                    break
        return Grounds(entities, tuple(near.values()))


_KNOWN: WeakKeyDictionary[CorpusIndex, IndexNames] = WeakKeyDictionary()


def names_of(index: CorpusIndex) -> IndexNames:
    """The names of an index, kept as long as the index is.

    Raises `InputError` if it was built without evidence links.
    """
    known = _KNOWN.get(index)
    if known is None:
        known = _KNOWN[index] = IndexNames(index)
    return known


_LONGEST_QUERY = 1000  # characters: what embedders and BM25 make use of
_REPEATS = 5  # of the question before its expansion, for BM25; as published for sparse retrieval


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


@dataclass(frozen=True)
class _Raw:
    name: str = "raw"
    needs_model: bool = False
    needs_links: bool = False

    def find(self, task: SearchTask) -> Found:
        text = task.question.text
        with task.searching():
            return Found(tuple(task.retriever.ranked(text)), (text,))


@dataclass(frozen=True)
class _Written:
    """What the model writes is searched for: instead of the question, or with it."""

    settings: StrategySettings
    name: str
    what: str
    with_question: bool
    needs_model: bool = True
    needs_links: bool = False

    def find(self, task: SearchTask) -> Found:
        text = task.question.text
        said = task.write(self.name, self.settings.passage_tokens)[:_LONGEST_QUERY]
        if not said:
            return Found(note=f"the model wrote no {self.what}")
        query, words = said, text
        if self.with_question:
            query, words = f"{text} {said}", " ".join([*[text] * _REPEATS, said])
        with task.searching():
            return Found(tuple(task.retriever.ranked(query, words)), (query,))


@dataclass(frozen=True)
class _Grounded:
    settings: StrategySettings
    name: str = "grounded"
    needs_model: bool = True
    needs_links: bool = True

    def find(self, task: SearchTask) -> Found:
        text = task.question.text
        with task.costs.part("retrieve"):
            grounds = names_of(task.retriever.index).grounds(text)
        if not grounds.entities:
            return Found(note="no name of the index is in the question")
        if not grounds.neighbours:
            return Found(note="the index links the names in the question to nothing")
        listed = "\n".join(f"- {name}" for name in grounds.neighbours)
        fields = {"entities": ", ".join(grounds.entities), "neighbours": listed}
        named = [
            name
            for line in lines_of(task.write("grounded", self.settings.names_tokens, fields))
            for name in ([line] if len(grounds.kept([line])[0]) else line.split(","))
            if name.strip()
        ]
        kept, dropped = grounds.kept(named)
        new = [name for name in kept if name not in grounds.entities][: self.settings.names]
        words = "1 name that is not" if dropped == 1 else f"{dropped} names that are not"
        note = f"dropped {words} in the context" if dropped else ""
        if not new:
            return Found(dropped=dropped, note=note or "the model named nothing that is new")
        query = f"{text} {', '.join(new)}"
        with task.searching():
            return Found(tuple(task.retriever.ranked(query)), (query,), dropped, note)


@dataclass(frozen=True)
class _MultiQuery:
    settings: StrategySettings
    name: str = "multi-query"
    needs_model: bool = True
    needs_links: bool = False

    def find(self, task: SearchTask) -> Found:
        text, count = task.question.text, self.settings.variations
        said = task.write("variations", self.settings.variations_tokens, {"count": str(count)})
        others = [line[:_LONGEST_QUERY] for line in lines_of(said) if line.lower() != text.lower().strip()]
        variations = list(dict.fromkeys(others))[:count]
        if not variations:
            return Found(note="the model wrote no rewording")
        rankings = []
        for query in (text, *variations):
            with task.searching():
                rankings.append(task.retriever.ranked(query))
        fused = reciprocal_rank_fusion(rankings)
        return Found(tuple(sorted(fused, key=lambda row: (-fused[row], row))), (text, *variations))


def _all(settings: StrategySettings) -> dict[str, Strategy]:
    made: list[Strategy] = [
        _Raw(),
        _Written(settings, "hyde", "passage", False),
        _Written(settings, "query2doc", "expansion", True),
        _Grounded(settings),
        _MultiQuery(settings),
    ]
    return {strategy.name: strategy for strategy in made}


#: In the order in which they are listed.
STRATEGIES = tuple(_all(StrategySettings()))


def check_strategies(names: Sequence[str]) -> tuple[str, ...]:
    """The names of strategies, in the order given; "all" stands for every one.

    Raises `InputError` with every name that is unknown or given twice; for none.
    """
    given = [name.strip() for name in names if name.strip()]
    if given == ["all"]:
        return STRATEGIES
    problems = [
        f"strategy '{name}' is unknown: {choose(name, STRATEGIES, more=', or all')}"
        for name in dict.fromkeys(given)
        if name not in STRATEGIES
    ]
    problems += [
        f"strategy '{name}' is given twice" for name in dict.fromkeys(given) if given.count(name) > 1
    ]
    if not given:
        problems.append(f"no strategy is given: choose from {', '.join(STRATEGIES)}, or all")
    if problems:
        raise InputError(problems)
    return tuple(given)


def make_strategies(names: Sequence[str], settings: StrategySettings | None = None) -> tuple[Strategy, ...]:
    """The strategies of these names; errors as `check_strategies`."""
    kinds = _all(settings or StrategySettings())
    return tuple(kinds[name] for name in check_strategies(names))
