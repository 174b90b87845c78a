"""Tiers: how much is read and answered, and how a tier reads a pool: re-rank, compress, choose."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, model_validator

from mio_rag.context import APART, SEPARATOR, TokenCounter, merged, passage_tokens, render_passage
from mio_rag.errors import InfeasibleError, InputError
from mio_rag.generation.extractive import sentences
from mio_rag.pool import Candidates
from mio_rag.retrieval.rerank import make_reranker, rescored, spec_problems
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.result import Selection
from mio_rag.selection.selector import Selector
from mio_rag.session.budget import Branch
from mio_rag.settings import Settings
from mio_rag.types import Passage

#: How much texts take, one number each: characters, or tokens of the reader.
Size = Callable[[Sequence[str]], Sequence[int]]

#: (passages in the order in which they will be read, the embedded question, most that all of it may take,
#: size, encoder of texts to unit rows) -> the text that is kept of each passage, "" where nothing is.
Compressor = Callable[
    [Sequence[Passage], NDArray[np.float32], int, Size, Callable[[Sequence[str]], NDArray[np.float32]]],
    list[str],
]


def _keep_sentences(
    passages: Sequence[Passage], query: NDArray[np.float32], room: int, size: Size, encode: Any
) -> list[str]:
    """The sentences nearest to the question, each passage's title paid once; the published rule."""
    parts = [(k, s) for k, passage in enumerate(passages) for s in sentences(passage.text)]
    texts = [text for _, text in parts]
    near = encode(texts) @ query if texts else np.zeros(0)
    heads = size([_head_of(passage) for passage in passages])
    takes = size([f"{text} " for text in texts])
    left, kept, opened = room, set[int](), set[int]()
    for place in np.argsort(-near, kind="stable").tolist():
        passage = parts[place][0]
        needed = takes[place] + (0 if passage in opened else heads[passage])
        if needed <= left:
            left -= needed
            kept.add(place)
            opened.add(passage)
    if not kept:
        return _cut_off(passages, room, size)
    return [
        " ".join(text for place, (k, text) in enumerate(parts) if k == number and place in kept)
        for number in range(len(passages))
    ]


def _keep_whole(
    passages: Sequence[Passage], query: NDArray[np.float32], room: int, size: Size, encode: Any
) -> list[str]:
    """Whole passages, as long as they fit."""
    left, kept = room, [""] * len(passages)
    for k, takes in enumerate(size([SEPARATOR + render_passage(passage) for passage in passages])):
        if takes <= left:
            left -= takes
            kept[k] = passages[k].text
    return kept if any(kept) else _cut_off(passages, room, size)


def _keep_chosen(head: Candidates, room: int, size: Size, selector: Selector) -> list[str]:
    """The sentences of passages that a program chooses, as `Compressor` returns them."""

    class Sizes:
        """A size as a counter of tokens."""

        name = "size"

        def count(self, texts: Sequence[str]) -> list[int]:
            return list(size(texts))

    apart = replace(head, sources=None, spans=None, positions=None)  # a text for each passage
    made = selector.choose(apart, room, Sizes())
    chosen = made.formulation.candidates
    passage = dict(zip(chosen.ids, chosen.passage_ids, strict=True))
    read = merged(chosen, made.chosen)
    kept = {passage[block.parts[0].id]: block.passage.text.replace(APART, " ") for block in read}
    if not kept:
        return _cut_off([head.passage(i) for i in range(len(head))], room, size)
    return [kept.get(name, "") for name in head.ids]


def _cut_off(passages: Sequence[Passage], room: int, size: Size) -> list[str]:
    """As much of the first passage's beginning as fits, at least one character; nothing of the others."""
    text, head = passages[0].text.lstrip(), _head_of(passages[0])
    low, high = 1, len(text)
    while low < high:  # size grows with the text
        middle = (low + high + 1) // 2
        low, high = (middle, high) if size([head + text[:middle]])[0] <= room else (low, middle - 1)
    return [text[:low], *[""] * (len(passages) - 1)]


def _head_of(passage: Passage) -> str:
    """What a passage takes beside its text."""
    title = passage.title.strip()
    return f"{SEPARATOR}{title}\n" if title else SEPARATOR


#: By the name that tiers give.
COMPRESSORS: Mapping[str, Compressor] = {"sentences": _keep_sentences, "none": _keep_whole}


def _named(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
        raise ValueError("must be letters, digits, '_', '.' and '-'")
    return name


def _reranked(spec: str) -> str:
    if spec and (problems := spec_problems([spec])):
        raise InputError(problems)
    return spec


class Tier(Settings):
    """How much a question gets."""

    name: Annotated[str, AfterValidator(_named)]
    """Letters, digits, ``_``, ``.`` and ``-``."""
    depth: Annotated[int, Field(ge=1)]
    """Passages that are read, in the order of the search; with a `token_price`, candidates."""
    context: Annotated[int, Field(ge=1)]
    """Most that is read, in `unit`; titles and what parts passages count."""
    new_tokens: Annotated[int, Field(ge=1)]
    """Longest answer."""
    unit: Literal["characters", "tokens"] = "characters"
    """Tokens are those of the reader."""
    rerank: Annotated[str, AfterValidator(_reranked)] = ""
    """Specification of a re-ranker that orders the passages; empty: the search's order."""
    compress: Literal["sentences", "none", "program"] = "sentences"
    """How passages are brought to the size of the context."""
    token_price: Annotated[float, Field(ge=0)] | None = None
    """None: the best passages are read. A number: the exact program chooses, and a token must be worth so
    much. It then reads whole passages, counts in tokens, and needs no re-ranker."""

    @model_validator(mode="after")
    def _reads_whole_passages(self) -> Self:
        if self.token_price is not None and (self.rerank or self.compress != "none" or self.unit != "tokens"):
            raise ValueError(
                f"tier '{self.name}': with a token_price the program reads whole passages and counts tokens: "
                'set compress = "none", unit = "tokens", and leave out rerank'
            )
        return self

    def to_dict(self, *, defaults: bool = True) -> dict[str, Any]:
        """Plain data; what is None is left out."""
        told = super().to_dict(defaults=defaults)
        return {name: value for name, value in told.items() if value is not None}


#: The three published tiers for small devices.
PUBLISHED = (
    Tier(name="easy", depth=2, context=600, new_tokens=64),
    Tier(name="medium", depth=5, context=1200, new_tokens=96, rerank="maxsim"),
    Tier(name="hard", depth=10, context=2000, new_tokens=128, rerank="maxsim"),
)


def check_tiers(tiers: Sequence[Tier]) -> None:
    """Raise `InputError` unless there are tiers of different names, each dearer than the one before.

    Depth, context and answer must not fall from one tier to the next, a price of tokens must not rise (none
    is a price of 0), and something must change.
    """
    problems = [] if tiers else ["there are no tiers: give at least one"]
    names = [tier.name for tier in tiers]
    problems += [f"tier '{n}' is there twice" for n in dict.fromkeys(names) if names.count(n) > 1]
    for one, other in pairwise(tiers):
        here = f"tier '{other.name}' stands behind '{one.name}'"
        changes = {n: getattr(other, n) - getattr(one, n) for n in ("depth", "context", "new_tokens")}
        changes["token_price"] = (one.token_price or 0.0) - (other.token_price or 0.0)
        if one.unit != other.unit:
            problems.append(f"{here}, and counts in {other.unit}, not in {one.unit}: use one unit in all")
        elif falls := [name for name, change in changes.items() if change < 0]:
            said = ", ".join(f"{n} ({getattr(other, n)} after {getattr(one, n)})" for n in falls)
            problems.append(f"{here} and is cheaper in {said}: order the tiers by cost, the cheapest first")
        elif not any(changes.values()):
            problems.append(f"{here} and costs the same: leave one of them out")
    if problems:
        raise InputError(problems)


class _Tiers(Settings):
    tier: tuple[Tier, ...] = ()

    @model_validator(mode="after")
    def _is_ordered(self) -> Self:
        check_tiers(self.tier)
        return self


def tiers_of(entries: Any, source: str) -> tuple[Tier, ...]:
    """Tiers from plain data, checked one by one and in their order; `source` begins messages.

    Raises `InputError` with every problem of every tier.
    """
    return _Tiers.from_dict({"tier": entries}, source).tier


def read_tiers(path: Path) -> tuple[Tier, ...]:
    """The tiers of a TOML file; raises as `tiers_of`, and where it cannot be read."""
    return _Tiers.from_toml(path).tier


_IN_ORDER = Selector.raw(redundancy_weight=0.0, passage_penalty=0.0, solver="topk")

_reranker = lru_cache(maxsize=4)(make_reranker)  # a model is loaded once a process


def top_score(pool: Candidates) -> float:
    """The largest cosine of a pool with its question; -1 for an empty pool."""
    return float(pool.scores["dense"].max()) if len(pool) else -1.0


@dataclass(frozen=True, eq=False)
class TierReader:
    """Reads at a tier.

    selector: the program of a tier with a price of tokens, or that compresses by it.
    """

    tier: Tier
    retriever: Retriever
    selector: Selector = field(default_factory=Selector)

    def __post_init__(self) -> None:
        if self.tier.token_price is None and self.retriever.pool < self.tier.depth:
            raise InputError(
                f"tier '{self.tier.name}' reads {self.tier.depth} passages, and a search brings "
                f"{self.retriever.pool}: raise search.pool, or lower the depth"
            )
        if self.tier.compress == "program":
            _ = self._by_sentences  # raises for settings that are about whole passages

    def read(
        self, pool: Candidates, budget_tokens: int, counter: TokenCounter, branch: Branch, more: int = 0
    ) -> Selection:
        """What is read of a pool.

        pool: as the search found it, best first.
        budget_tokens: most tokens of the block, >= 1, whatever the tier allows.
        branch: counts what it takes, as "rerank", "compress" and "select".
        more: passages that are read beside those of the tier, for a weak search.

        Raises `InputError` if the pool is empty; `InfeasibleError` if a program finds nothing that meets its
        constraints.
        """
        if len(pool) == 0:
            raise InputError("there are no candidates to read: the search found nothing")
        if self.tier.token_price is not None:
            with branch.timed("select"):  # candidates that links lead to take part
                depth = self.tier.depth + more
                size = len(pool) if depth >= self.retriever.pool else depth
                priced = self.selector.replace(token_price=self.tier.token_price)
                found = priced.select(_head(pool, size), min(budget_tokens, self.tier.context), counter)
            if found.result.x is None:
                raise InfeasibleError(found.explain())
            return found
        head = _head(pool, min(self.retriever.pool, self.tier.depth + more))
        if self.tier.rerank:
            with branch.timed("rerank"):
                head = _reordered(head, self.tier.rerank, self.retriever)
        room = self.tier.context
        while True:
            with branch.timed("compress"):
                kept, dropped = self._compressed(head, room, counter)
                block = int(kept.tokens[[i not in dropped for i in kept.ids]].sum())
            if block <= budget_tokens or room == 1:
                break
            room = max(1, min(room - 1, room * budget_tokens // block))
        with branch.timed("select"):
            return _IN_ORDER.replace(must_exclude=dropped).select(kept, budget_tokens, counter)

    def _compressed(
        self, head: Candidates, room: int, counter: TokenCounter
    ) -> tuple[Candidates, tuple[str, ...]]:
        """The passages with what is kept of their texts, and the ids of those of which nothing is."""
        passages = [head.passage(i) for i in range(len(head))]
        if head.query_embedding is None:
            raise InputError("the question is not embedded: search with a Retriever")
        size: Size = counter.count if self.tier.unit == "tokens" else lambda texts: list(map(len, texts))
        if self.tier.compress == "program":
            texts = _keep_chosen(head, room, size, self._by_sentences)
        else:
            encode = self.retriever.index.embedder.encode
            texts = COMPRESSORS[self.tier.compress](passages, head.query_embedding, room, size, encode)
        shorter = [
            replace(p, text=t, start=None, end=None) if t.strip() else p
            for p, t in zip(passages, texts, strict=True)
        ]
        kept = replace(
            head,
            texts=[p.text for p in shorter],
            tokens=passage_tokens(shorter, counter),
            relevance=1.0 / np.arange(1, len(head) + 1),  # read in this order, whatever the cosines are
            spans=None,  # of the whole texts, as all that follows
            sentences=None,
            duplicates=None,
        )
        return kept, tuple(p.id for p, t in zip(passages, texts, strict=True) if not t.strip())

    @property
    def _by_sentences(self) -> Selector:
        return self.selector.replace(units="sentences", token_price=0.0)


def _head(pool: Candidates, size: int) -> Candidates:
    """The first passages of a pool."""
    return pool if size >= len(pool) else pool.take(range(size))


def _reordered(head: Candidates, spec: str, retriever: Retriever) -> Candidates:
    """The passages ordered by a re-ranker, the search's own where it has that kind already."""
    kind = spec.strip().partition(":")[0]
    own = next((one for one in retriever.rerankers if one.name == kind), None)
    reranker = _reranker(spec) if own is None else own
    if reranker.name not in head.scores:  # anew: scores kept on disk would seem to cost nothing
        (head,) = rescored([head], reranker, cache=False)
    return head.take(np.argsort(-head.scores[reranker.name], kind="stable"))
