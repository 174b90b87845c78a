"""Question -> Candidates: dense and lexical retrieval, fused by reciprocal rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mio_rag.context import RegexCounter, TokenCounter, by_itself, passage_tokens
from mio_rag.errors import InputError
from mio_rag.pool import Candidates
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.rerank import Reranker, make_rerankers, rescored
from mio_rag.retrieval.settings import Mode, RetrievalSettings
from mio_rag.types import is_text

#: Links are followed from so many of the best passages of a pool ...
LINK_SOURCES = 10
#: ... to at most so many passages outside it: in a large corpus ten passages may mention hundreds.
MOST_LINKED = 30


def reciprocal_rank_fusion(rankings: Sequence[Sequence[int]], k: int = 60) -> dict[int, float]:
    """Fuse rankings: each gives a row 1 / (k + rank), ranks from 1.

    Parameters
    ----------
    rankings : sequences of row numbers, best first
    k : int
        >= 0. Small: the first places decide; large: all rankings weigh alike.

    Source: Cormack, Clarke and Buettcher (SIGIR 2009).
    """
    if k < 0:
        raise InputError(f"k={k} must be >= 0")
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, row in enumerate(ranking, start=1):
            scores[row] = scores.get(row, 0.0) + 1.0 / (k + rank)
    return scores


class Retriever:
    """Finds the pool that selection chooses from.

    Parameters
    ----------
    index : CorpusIndex
    pool : int
        Candidates per question, >= 1.
    mode : {"fused", "dense", "bm25"}
        What ranks the pool. "fused" takes the best of dense and BM25 by reciprocal rank.
    counter : TokenCounter, optional
        The reader's tokenizer; an approximation (`RegexCounter`) where no reader is known.
    link_hops : int, optional
        Links in a row that are followed from the best passages of the pool to passages that retrieval missed.
        0: the pool is not expanded. None: one where the index has links.
    rerankers : sequence of str or Reranker
        Their scores are added to every pool; see `mio_rag.retrieval.rerank` for what the strings say. The
        order of the pool stays.

    Raises
    ------
    InputError
        For settings out of range, links asked of an index without them, or a re-ranker that cannot be had.
    """

    def __init__(
        self,
        index: CorpusIndex,
        *,
        pool: int = 50,
        mode: Mode = "fused",
        counter: TokenCounter | None = None,
        link_hops: int | None = None,
        rerankers: Sequence[str | Reranker] = (),
    ) -> None:
        specs = [given for given in rerankers if isinstance(given, str)]
        RetrievalSettings(pool, mode, link_hops, specs)  # raises for what is out of range
        self.index, self.pool, self.mode = index, pool, mode
        self.link_hops = int(index.links is not None) if link_hops is None else link_hops
        if link_hops:
            index.required_links()
        self.counter: TokenCounter = counter or RegexCounter()
        self.rerankers = make_rerankers(rerankers)

    @classmethod
    def of(
        cls, index: CorpusIndex, settings: RetrievalSettings, counter: TokenCounter | None = None
    ) -> Retriever:
        """The retriever that settings describe; parameters and errors as above."""
        return cls(
            index,
            pool=settings.pool,
            mode=settings.mode,
            counter=counter,
            link_hops=settings.link_hops,
            rerankers=settings.rerankers,
        )

    def retrieve(self, question: str) -> Candidates:
        """The pool for a question, best first; at its end what links lead to, where they are followed.

        ``relevance`` is the cosine between question and passage, whatever ranked the pool. ``scores`` holds
        "dense" (the same cosine), "bm25" (0 where no word is shared), "fused" (reciprocal rank; 0 where
        neither retriever listed the passage), and those of re-rankers by their names.
        """
        return self.retrieve_many([question])[0]

    def retrieve_many(
        self, questions: Sequence[str], progress: Callable[[int], None] | None = None
    ) -> list[Candidates]:
        """`retrieve` for each question; re-rankers then read every passage once for all of them.

        Parameters
        ----------
        progress : callable, optional
            Called with 1 as each pool is found; re-ranking, if any, comes after that.
        """
        pools = []
        for question in questions:
            pools.append(self._found(question))
            if progress:
                progress(1)
        for reranker in self.rerankers:
            pools = rescored(pools, reranker)
        return pools

    def ranked(self, text: str, words: str | None = None) -> list[int]:
        """Rows of the index for any text, best first; more than a pool has, so that they can be fused.

        Parameters
        ----------
        text : str
            What is embedded.
        words : str, optional
            What BM25 looks for; the same text by default.
        """
        query = self.index.embedder.encode([_asked(text)])[0]
        bm25_rows, _ = self.index.search_bm25(text if words is None else _asked(words), self._depth)
        return self._ranking(query, bm25_rows.tolist())[0]

    def pool_of(self, question: str, ranking: Sequence[int], fused: Mapping[int, float]) -> Candidates:
        """The pool for a question from rows that were found elsewhere; otherwise as `retrieve` makes it.

        Parameters
        ----------
        ranking : sequence of int
            Rows of the index, best first; what goes beyond the pool is left out.
        fused : mapping of int to float
            What ranked them, larger is better: the scores "fused".
        """
        return self.pools_of(question, [ranking], fused)[0]

    def pools_of(
        self, question: str, rankings: Sequence[Sequence[int]], fused: Mapping[int, float]
    ) -> tuple[Candidates, Candidates, list[list[str]]]:
        """The pool of the first of several rankings, and the pools that the others would have given.

        Parameters
        ----------
        rankings : sequence of sequences of int
            As in `pool_of`.
        fused : mapping of int to float
            What ranked the first.

        Returns
        -------
        pool, all : Candidates
            The pool of the first ranking; that pool and behind it whatever the others' hold besides.
        ids : list of lists of str
            Of each ranking's own pool.
        """
        query = self.index.embedder.encode([_asked(question)])[0]
        lexical = np.zeros(len(self.index))
        rows, scores = self.index.search_bm25(question, len(self.index))
        lexical[rows] = scores
        each = [self._expanded(list(ranking)[: self.pool], query) for ranking in rankings]
        every = list(dict.fromkeys(row for own in each for row in own))
        found = [self._pool(question, query, lexical, each[0], fused)]
        if len(every) > len(each[0]):
            found.append(self._pool(question, query, lexical, every, fused))
        for reranker in self.rerankers:
            found = rescored(found, reranker)
        return found[0], found[-1], [[self.index.passages[row].id for row in own] for own in each]

    @property
    def _depth(self) -> int:
        """Rows of each list that are fused."""
        return min(len(self.index), max(4 * self.pool, 100))

    def _ranking(
        self, query: NDArray[np.float32], bm25_rows: list[int]
    ) -> tuple[list[int], dict[int, float]]:
        """All rows that either list has, best first by the mode, and their reciprocal ranks added up."""
        dense_rows = self.index.search_dense(query, self._depth)[0].tolist()
        fused = reciprocal_rank_fusion([dense_rows, bm25_rows])
        if self.mode == "fused":
            return sorted(fused, key=lambda row: (-fused[row], row)), fused
        return (dense_rows if self.mode == "dense" else bm25_rows), fused

    def _found(self, question: str) -> Candidates:
        """The pool before any re-ranking."""
        query = self.index.embedder.encode([_asked(question)])[0]
        bm25_rows, bm25_scores = self.index.search_bm25(question, len(self.index))
        lexical = np.zeros(len(self.index))
        lexical[bm25_rows] = bm25_scores
        ranking, fused = self._ranking(query, bm25_rows[: self._depth].tolist())
        return self._pool(question, query, lexical, self._expanded(ranking[: self.pool], query), fused)

    def _pool(
        self,
        question: str,
        query: NDArray[np.float32],
        lexical: NDArray[np.float64],
        rows: list[int],
        fused: Mapping[int, float],
    ) -> Candidates:
        embeddings = self.index.embeddings(rows)
        cosine = (embeddings @ query).astype(np.float64)
        passages = [self.index.passages[r] for r in rows]
        repeated, dates = self.index.repetition, [p.date for p in passages]
        spans = None if repeated is None else repeated.spans_of(rows)
        # Where a place was given and is not known, another passage of the document contradicts this one.
        apart = [
            p.start is not None and repeated is not None and (spans is None or spans[k, 0] < 0)
            for k, p in enumerate(passages)
        ]
        return Candidates(
            ids=[p.id for p in passages],
            texts=[p.text for p in passages],
            relevance=cosine,
            tokens=passage_tokens(passages, self.counter),
            embeddings=embeddings,
            query_embedding=query,
            titles=[p.title for p in passages],
            sources=[p.source for p in passages],
            scores={
                "dense": cosine,
                "bm25": lexical[rows],
                "fused": np.array([fused.get(r, 0.0) for r in rows]),
            },
            question=question,
            links=None if self.index.links is None else self.index.links.among(rows),
            positions=np.array(rows, dtype=np.int64),
            embedder=self.index.embedder.fingerprint,
            spans=spans,
            dates=dates if any(dates) else None,
            duplicates=None if repeated is None else repeated.among(rows, passages),
            sentences=None if self.index.sentences is None else self.index.sentences.of(rows),
            documents=[by_itself(p.id) if alone else "" for p, alone in zip(passages, apart, strict=True)]
            if any(apart)
            else None,
        )

    def _expanded(self, rows: list[int], query: NDArray[np.float32]) -> list[int]:
        """The pool with what its best passages lead to, at its end; the nearest to the question first."""
        if not self.link_hops:
            return rows
        inside = set(rows)
        led = self.index.required_links().reached(rows[:LINK_SOURCES], self.link_hops)
        fresh = [row for row in led if row not in inside]
        if not fresh:
            return rows
        worth = (self.index.embeddings(fresh) @ query) * np.array([led[row] for row in fresh]) ** 0.5
        order = np.argsort(-worth, kind="stable")[:MOST_LINKED]
        return rows + [fresh[k] for k in order]


def _asked(question: str) -> str:
    """The text of a question, once it is found to be one."""
    if not question.strip():
        raise InputError("the question is empty")
    if not is_text(question):
        raise InputError("the question is not valid text: give it in UTF-8")
    return question
