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

from collections.abc import Sequence
from dataclasses import dataclass, field

from mio_rag.control.steps.grounding import names_of
from mio_rag.control.steps.strategy import Found, SearchTask, Strategy, lines_of
from mio_rag.errors import InputError, choose
from mio_rag.retrieval.retriever import reciprocal_rank_fusion

__all__ = ["STRATEGIES", "StrategySettings", "check_strategies", "make_strategies"]

_LONGEST_QUERY = 1000  # characters: what embedders and BM25 make use of
_REPEATS = 5  # of the question before its expansion, for BM25; as published for sparse retrieval


@dataclass(frozen=True)
class StrategySettings:
    """How much strategies write.

    Parameters
    ----------
    passage_tokens : int
        Longest hypothetical passage or expansion, >= 1. The published 512 and 128 are for large models on
        servers; the first sentences carry the words that are searched for.
    names_tokens, variations_tokens : int
        Longest list of names, of rewordings.
    names : int
        Most names that a question is expanded by.
    variations : int
        Rewordings that are searched for, >= 1.

    Raises
    ------
    InputError
        With every problem found.
    """

    passage_tokens: int = 48
    names_tokens: int = 32
    variations_tokens: int = 64
    names: int = 5
    variations: int = 3

    def __post_init__(self) -> None:
        problems = [
            f"strategies: {name}={value!r} must be a whole number >= 1"
            for name, value in vars(self).items()
            if isinstance(value, bool) or not isinstance(value, int) or value < 1
        ]
        if problems:
            raise InputError(problems)


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
class _Hyde:
    settings: StrategySettings
    name: str = "hyde"
    needs_model: bool = True
    needs_links: bool = False

    def find(self, task: SearchTask) -> Found:
        passage = task.write("hyde", self.settings.passage_tokens)[:_LONGEST_QUERY]
        if not passage:
            return Found(note="the model wrote no passage")
        with task.searching():
            return Found(tuple(task.retriever.ranked(passage, task.question.text)), (passage,))


@dataclass(frozen=True)
class _Query2Doc:
    settings: StrategySettings
    name: str = "query2doc"
    needs_model: bool = True
    needs_links: bool = False

    def find(self, task: SearchTask) -> Found:
        text = task.question.text
        said = task.write("query2doc", self.settings.passage_tokens)[:_LONGEST_QUERY]
        if not said:
            return Found(note="the model wrote no expansion")
        words = " ".join([*[text] * _REPEATS, said])
        with task.searching():
            return Found(tuple(task.retriever.ranked(f"{text} {said}", words)), (f"{text} {said}",))


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


@dataclass(frozen=True)
class _Kinds:
    """The strategies by name, made when they are asked for."""

    settings: StrategySettings = field(default_factory=StrategySettings)

    def all(self) -> dict[str, Strategy]:
        made: list[Strategy] = [
            _Raw(),
            _Hyde(self.settings),
            _Query2Doc(self.settings),
            _Grounded(self.settings),
            _MultiQuery(self.settings),
        ]
        return {strategy.name: strategy for strategy in made}


#: In the order in which they are listed.
STRATEGIES = tuple(_Kinds().all())


def check_strategies(names: Sequence[str]) -> tuple[str, ...]:
    """The names of strategies, in the order given; "all" stands for every one.

    Raises
    ------
    InputError
        With every name that is unknown or given twice; for none.
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
    kinds = _Kinds(settings or StrategySettings()).all()
    return tuple(kinds[name] for name in check_strategies(names))
