"""What a tier reads: of the pool of a search its best passages, brought to the size of the context."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from mio_rag.candidates import Candidates
from mio_rag.context import TokenCounter, passage_tokens
from mio_rag.control.costs import Call
from mio_rag.control.meter import Meter
from mio_rag.control.router.compress import CHOSEN, COMPRESSORS, Size, keep_chosen
from mio_rag.control.router.tier import Tier
from mio_rag.errors import InfeasibleError, InputError
from mio_rag.retrieval.rerank import make_reranker, rescored
from mio_rag.retrieval.reranker import Reranker
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.result import Selection
from mio_rag.selection.selector import Selector

__all__ = ["TierReader", "search", "top_score"]

_IN_ORDER = Selector.raw(redundancy_weight=0.0, passage_penalty=0.0, solver="topk")

_reranker = lru_cache(maxsize=4)(make_reranker)  # a model is loaded once a process


#: The last question that each retriever searched for: text, pool, seconds.
_last: WeakKeyDictionary[Retriever, tuple[str, Candidates, float]] = WeakKeyDictionary()


def search(retriever: Retriever, question: str, meter: Meter) -> Candidates:
    """The pool of a question. Tiers that are asked the same in a row share one search; each is charged it."""
    found = _last.get(retriever)
    started = time.perf_counter()
    if found is None or found[0] != question:
        with meter.timed("retrieve", retrieval_calls=1):
            pool = retriever.retrieve(question)
        _last[retriever] = question, pool, time.perf_counter() - started
        return pool
    meter.costs.add(Call("retrieve", found[2], retrieval_calls=1))
    return found[1]


def top_score(pool: Candidates) -> float:
    """The largest cosine of a pool with its question; -1 for an empty pool."""
    return float(pool.scores["dense"].max()) if len(pool) else -1.0


@dataclass(frozen=True, eq=False)
class TierReader:
    """Reads at a tier.

    Parameters
    ----------
    selector : Selector
        The program of a tier with a price of tokens, or that compresses by it.
    """

    tier: Tier
    retriever: Retriever
    selector: Selector = field(default_factory=Selector)

    def __post_init__(self) -> None:
        if self.tier.token_price is None and self.retriever.pool < self.tier.depth:
            raise InputError(
                f"tier '{self.tier.name}' reads {self.tier.depth} passages, and a search brings "
                f"{self.retriever.pool}: raise --pool, or lower the depth"
            )
        if self.tier.compress == CHOSEN:
            _ = self._by_sentences  # raises for settings that are about whole passages

    def read(
        self, pool: Candidates, budget_tokens: int, counter: TokenCounter, meter: Meter, more: int = 0
    ) -> Selection:
        """What is read of a pool.

        Parameters
        ----------
        pool : Candidates
            As the search found it, best first.
        budget_tokens : int
            Most tokens of the block, >= 1, whatever the tier allows.
        meter : Meter
            Counts what it takes, as "rerank", "compress" and "select".
        more : int
            Passages that are read beside those of the tier, for a weak search.

        Raises
        ------
        InputError
            If the pool is empty.
        InfeasibleError
            If a program finds nothing that meets its constraints.
        """
        if len(pool) == 0:
            raise InputError("there are no candidates to read: the search found nothing")
        if self.tier.token_price is not None:
            return self._programmed(pool, budget_tokens, counter, meter, more)
        head = _head(pool, min(len(pool), self.retriever.pool, self.tier.depth + more))
        if self.tier.rerank:
            with meter.timed("rerank"):
                head = _by_score(head, _reranker_for(self.tier.rerank, self.retriever))
        room = self.tier.context
        while True:
            with meter.timed("compress"):
                kept, dropped = self._compressed(head, room, counter)
                block = int(kept.tokens[[i not in dropped for i in kept.ids]].sum())
            if block <= budget_tokens or room == 1:
                break
            room = max(1, min(room - 1, room * budget_tokens // block))
        with meter.timed("select"):
            return _IN_ORDER.replace(must_exclude=dropped).select(kept, budget_tokens, counter)

    def _programmed(
        self, pool: Candidates, budget_tokens: int, counter: TokenCounter, meter: Meter, more: int
    ) -> Selection:
        """What the program chooses at the tier's price; candidates that links lead to take part."""
        with meter.timed("select"):
            depth = self.tier.depth + more
            size = len(pool) if depth >= self.retriever.pool else min(len(pool), depth)
            priced = self.selector.replace(token_price=float(self.tier.token_price or 0.0))
            found = priced.select(_head(pool, size), min(budget_tokens, self.tier.context), counter)
        if found.result.x is None:
            raise InfeasibleError(found.explain())
        return found

    def _compressed(
        self, head: Candidates, room: int, counter: TokenCounter
    ) -> tuple[Candidates, tuple[str, ...]]:
        """The passages with what is kept of their texts, and the ids of those of which nothing is."""
        passages = [head.passage(i) for i in range(len(head))]
        if head.query_embedding is None:
            raise InputError("the question is not embedded: search with a Retriever")
        size, embedder = self._size(counter), self.retriever.index.embedder
        if self.tier.compress == CHOSEN:
            texts = keep_chosen(head, room, size, self._by_sentences)
        else:
            compress = COMPRESSORS[self.tier.compress]
            texts = compress(passages, head.query_embedding, room, size, embedder.encode)
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

    def _size(self, counter: TokenCounter) -> Size:
        return counter.count if self.tier.unit == "tokens" else lambda texts: list(map(len, texts))


def _head(pool: Candidates, size: int) -> Candidates:
    """The first passages of a pool."""
    return pool if size == len(pool) else _rows(pool, range(size))


def _rows(pool: Candidates, rows: Any) -> Candidates:
    """Some passages of a pool, in the order given."""
    at = np.array(list(rows), dtype=np.int64)

    def of(values: Any) -> Any:
        return None if values is None else [values[i] for i in at]

    def rows_of(values: Any) -> Any:
        return None if values is None else values[at]

    return Candidates(
        ids=of(pool.ids),
        texts=of(pool.texts),
        relevance=pool.relevance[at],
        tokens=pool.tokens[at],
        embeddings=rows_of(pool.embeddings),
        query_embedding=pool.query_embedding,
        titles=of(pool.titles),
        sources=of(pool.sources),
        clusters=of(pool.clusters),
        radius=rows_of(pool.radius),
        scores={name: values[at] for name, values in pool.scores.items()},
        question=pool.question,
        links=None if pool.links is None else pool.links[np.ix_(at, at)],
        positions=rows_of(pool.positions),
        embedder=pool.embedder,
        spans=rows_of(pool.spans),
        dates=of(pool.dates),
        duplicates=None if pool.duplicates is None else pool.duplicates[np.ix_(at, at)],
        sentences=None if pool.sentences is None else pool.sentences.among(at),
    )


def _by_score(head: Candidates, reranker: Reranker) -> Candidates:
    """The passages ordered by a re-ranker. It works anew: scores kept on disk would seem to cost nothing."""
    if reranker.name not in head.scores:
        (head,) = rescored([head], reranker, cache=False)
    return _rows(head, np.argsort(-head.scores[reranker.name], kind="stable"))


def _reranker_for(spec: str, retriever: Retriever) -> Reranker:
    """The search's own, where it has that kind already."""
    kind = spec.strip().partition(":")[0]
    own = next((one for one in retriever.rerankers if one.name == kind), None)
    return _reranker(spec) if own is None else own
