"""Question -> Candidates: dense and lexical retrieval, fused by reciprocal rank; in documents by scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.context import (
    RegexCounter,
    TokenCounter,
    by_itself,
    count_ahead,
    number_documents,
    passage_tokens,
)
from mio_rag.errors import InputError
from mio_rag.pool import Candidates
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.numbered import matches, parts_asked, without_numbers
from mio_rag.retrieval.rerank import Reranker, make_rerankers, rescored
from mio_rag.retrieval.settings import Mode, RetrievalSettings
from mio_rag.retrieval.texts import units_of
from mio_rag.sentences import Pieces, Sentences
from mio_rag.types import Passage, is_text

#: Links are followed from so many of the best passages of a pool ...
LINK_SOURCES = 10
#: ... to at most so many passages outside it: in a large corpus ten passages may mention hundreds.
MOST_LINKED = 30
#: Scores of a list are laid between its best and that of this rank, in documents.
FUSED_DEPTH = 50
#: Parts of a pool of documents, as shares of its size: the best of both lists together, of each alone and of
#: a document that the question names, and the units whose passages join them.
_TOGETHER, _ALONE, _UNITS = 1.2, 0.6, 0.8
_LOOKED_AT = 300  # passages that may have a number that is asked for


def reciprocal_rank_fusion(rankings: Sequence[Sequence[int]], k: int = 60) -> dict[int, float]:
    """Fuse rankings: each gives a row 1 / (k + rank), ranks from 1.

    k: >= 0. Small: the first places decide; large: all rankings weigh alike.

    Source: Cormack, Clarke and Buettcher (SIGIR 2009).
    """
    if k < 0:
        raise InputError(f"k={k} must be >= 0")
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, row in enumerate(ranking, start=1):
            scores[row] = scores.get(row, 0.0) + 1.0 / (k + rank)
    return scores


def score_fusion(
    rows: NDArray[np.int64], lists: Sequence[tuple[NDArray[np.int64], NDArray[np.float64]]]
) -> NDArray[np.float64]:
    """Fuse lists of some of the rows, best first, by their scores: 1 for the best of each, 0 for its last.

    rows: ascending.
    """
    fused = np.zeros(rows.size)
    for found, scores in lists:
        if found.size:
            span = scores[0] - scores[-1]
            fused[rows.searchsorted(found)] += (scores - scores[-1]) / span if span > 0 else 1.0
    return fused


@dataclass(frozen=True, eq=False)
class _Asked:
    """A question, and what search knows of it before there is a pool.

    lexical: what BM25 looks for.
    scope (documents,): see `mio_rag.retrieval.scope.Scope`; of an index of documents.
    rest: what is asked of the one document that it names.
    rest_query: embedding of the rest.
    bare_query: embedding of the question without names that many documents have.
    """

    text: str
    query: NDArray[np.float32]
    lexical: str
    scope: NDArray[np.float64] | None = None
    rest: str | None = None
    rest_query: NDArray[np.float32] | None = None
    bare_query: NDArray[np.float32] | None = None


class Retriever:
    """Finds the pool that selection chooses from.

    pool: candidates per question, >= 1. In documents, whose passages are short, about half as many again.
    mode ("fused", "dense", "bm25"): what ranks the pool. "fused" takes the best of dense and BM25 by
        reciprocal rank, in documents by their scores, between the best and that of rank 50.
    counter: the reader's tokenizer; an approximation (`RegexCounter`) where no reader is known.
    link_hops: links in a row that are followed from the best passages of the pool to passages that retrieval
        missed. 0: the pool is not expanded. None: one where the index has links.
    rerankers: their scores are added to every pool; see `mio_rag.retrieval.rerank` for what the strings say.
        The order of the pool stays.

    Raises `InputError` for settings out of range, links asked of an index without them, or a re-ranker that
    cannot be had.
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
        neither retriever listed the passage), and those of re-rankers by their names. In documents also
        "scope" (0 to 1: how far the question means the passage's document) and, where it names one of them or
        compares a few, "dense_rest" and "bm25_rest" by the rest of the question; ``sentences`` then has
        "dense" and "bm25" of each unit, and the two of the rest; and "number" where the question names a part
        by its number (0 to 1: how surely the unit is of it). "dense_bare" is the cosine with a question
        without names that many documents have, where it has any.
        """
        return self.retrieve_many([question])[0]

    def retrieve_many(
        self, questions: Sequence[str], progress: Callable[[int], None] | None = None
    ) -> list[Candidates]:
        """`retrieve` for each question; re-rankers then read every passage once for all of them.

        progress: called with 1 as each pool is found; re-ranking, if any, comes after that.
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

        text: what is embedded.
        words: what BM25 looks for; the same text by default.
        """
        index = self.index.hits(_checked(text), self.pool)
        if index is None:
            return []
        own = self if index is self.index else self._of(index)
        ranking = own._ranking(own._asked(text, None if words is None else _checked(words)))[0]
        if own is self:
            return ranking
        return self.index.rows_of([index.passages[row] for row in ranking], index.embeddings(ranking))

    def pool_of(self, question: str, ranking: Sequence[int], fused: Mapping[int, float]) -> Candidates:
        """The pool for a question from rows that were found elsewhere; otherwise as `retrieve` makes it.

        ranking: rows of the index, best first; what goes beyond the pool is left out.
        fused: what ranked them, larger is better: the scores "fused".
        """
        return self.pools_of(question, [ranking], fused)[0]

    def pools_of(
        self, question: str, rankings: Sequence[Sequence[int]], fused: Mapping[int, float]
    ) -> tuple[Candidates, Candidates, list[list[str]]]:
        """Return the pool of the first ranking, that pool with whatever the others' hold behind it, and ids
        of each pool.

        rankings: as in `pool_of`.
        fused: what ranked the first.
        """
        index, place = self.index.among([row for ranking in rankings for row in ranking])
        if index is not self.index:
            local = [[place[row] for row in ranking if row in place] for ranking in rankings]
            scores = {place[row]: score for row, score in fused.items() if row in place}
            number = np.array(list(place), dtype=np.int64)
            first, all_, ids = self._of(index).pools_of(question, local, scores)
            pool, whole = (replace(one, positions=number[one.positions]) for one in (first, all_))
            return pool, whole, ids
        asked = self._asked(_checked(question))
        each = [self._expanded(list(ranking)[: self.pool], asked.query) for ranking in rankings]
        every = list(dict.fromkeys(row for own in each for row in own))
        found = [self._pool(asked, each[0], fused)]
        if len(every) > len(each[0]):
            found.append(self._pool(asked, every, fused))
        for reranker in self.rerankers:
            found = rescored(found, reranker)
        return found[0], found[-1], [[self.index.passages[row].id for row in own] for own in each]

    def _of(self, index: CorpusIndex) -> Retriever:
        """The same retriever of what a store found, all of which is in the pool; it does not rerank."""
        size = max(len(index), self.pool)
        return Retriever(index, pool=size, mode=self.mode, counter=self.counter, link_hops=0)

    @property
    def _depth(self) -> int:
        """Rows of each list that are fused."""
        return min(len(self.index), max(4 * self.pool, 100))

    def _asked(self, text: str, words: str | None = None) -> _Asked:
        """A question with its embeddings, in one batch."""
        index, terms = self.index, self.index.terms
        lexical = text if words is None else words
        if terms is None or index.identities is None:
            return _Asked(text, index.embedder.encode([text])[0], lexical)
        scope, rest = index.identities.of(without_numbers(text), terms.words)
        bare = index.identities.without_names(text, terms.words) if rest is None else None
        queries = index.embedder.encode([text, *(part for part in (rest, bare) if part is not None)])
        of_rest, of_bare = (None if part is None else queries[1] for part in (rest, bare))  # never both
        return _Asked(text, queries[0], lexical, scope, rest, of_rest, of_bare)

    def _ranking(self, asked: _Asked, whole: bool = True) -> tuple[list[int], dict[int, float]]:
        """Rows that either list has, best first by the mode, and what fused them: all, or those of a pool."""
        dense_rows, dense_scores = self.index.search_dense(asked.query, self._depth)
        bm25_rows, bm25_scores = self.index.search_bm25(asked.lexical, self._depth)
        dense, bm25, terms = dense_rows.tolist(), bm25_rows.tolist(), self.index.terms
        if terms is None:
            fused = reciprocal_rank_fusion([dense, bm25])
            ranking = sorted(sorted(fused), key=fused.__getitem__, reverse=True)
        else:
            top = FUSED_DEPTH + 1
            rows = np.sort(np.concatenate([dense_rows, bm25_rows]))
            rows = rows[np.append(True, rows[1:] != rows[:-1])[: rows.size]]
            best = [(dense_rows[:top], dense_scores[:top]), (bm25_rows[:top], bm25_scores[:top])]
            worth, near = score_fusion(rows, best), np.full(rows.size, -1.0)
            near[rows.searchsorted(dense_rows)] = dense_scores.round(6)
            fused = dict(zip(rows.tolist(), worth.tolist(), strict=True))
            ranking = rows[np.lexsort((-near, -worth))].tolist()  # of equal ones the nearest first
        if self.mode != "fused":
            ranking = dense if self.mode == "dense" else bm25
        elif terms is not None and not whole:
            together, alone, units = (round(self.pool * share) for share in (_TOGETHER, _ALONE, _UNITS))
            of_units = terms.owners(terms.best_units(asked.text, units)).tolist()
            pool = [*ranking[:together], *dense[:alone], *bm25[:alone], *of_units]
            pool += [*self._named(asked, alone), *self._numbered(asked, alone)]
            return list(dict.fromkeys(pool)), fused
        return (ranking if whole else ranking[: self.pool]), fused

    def _named(self, asked: _Asked, k: int) -> list[int]:
        """Passages of the documents that a question names, the best by the rest of the question."""
        terms, identities = self.index.terms, self.index.identities
        if asked.rest is None or asked.rest_query is None or terms is None or identities is None:
            return []
        assert asked.scope is not None
        named = np.flatnonzero(asked.scope == asked.scope.max()).tolist()
        words, found = terms.scores(asked.rest, bare=True), list[int]()
        for document in named:
            rows = np.flatnonzero(identities.documents == document)
            cosine = self.index.embeddings(rows.tolist()) @ asked.rest_query
            lists = []
            for scores in (cosine, words[rows]):
                best = np.argsort(-scores, kind="stable")[: FUSED_DEPTH + 1]
                lists.append((rows[best], scores[best].astype(np.float64)))
            listed = np.unique(np.concatenate([one for one, _ in lists]))
            order = np.argsort(-score_fusion(listed, lists), kind="stable")
            found += listed[order[: k if len(named) == 1 else k // 2]].tolist()
        return found

    def _numbered(self, asked: _Asked, k: int) -> list[int]:
        """Passages of the parts that a question names by their numbers, as "clause 4.1"; best first."""
        if not (parts := parts_asked(asked.text)):
            return []
        index, found = self.index, dict[int, float]()
        held = np.zeros(len(index))
        for part in parts:
            for number in (".".join(part.numbers), part.numbers[0]):
                held = np.maximum(held, index.scores_bm25(number))
        words = index.scores_bm25(asked.lexical)
        held = np.where(held > 0, words, 0.0) if held.any() else words
        if asked.scope is not None and index.identities is not None:
            held = held * asked.scope[index.identities.documents]
        for row in np.argsort(-held, kind="stable")[:_LOOKED_AT].tolist():
            if held[row] > 0 and (fit := max(matches(index.passages[row], parts), default=0.0)):
                found[row] = fit
        return sorted(found, key=lambda row: -found[row])[:k]

    def _found(self, question: str) -> Candidates:
        """The pool before any re-ranking."""
        index = self.index.hits(_checked(question), self.pool)
        if index is None:
            return Candidates([], [], np.zeros(0), np.zeros(0, np.int64), question=question)
        if index is not self.index:
            return self._of(index)._found(question)
        asked = self._asked(question)
        ranking, fused = self._ranking(asked, whole=False)
        return self._pool(asked, self._expanded(ranking, asked.query), fused)

    def _units(
        self, asked: _Asked, rows: list[int], passages: list[Passage], pieces: Sequence[Pieces]
    ) -> Sentences | None:
        """The units of a pool; of documents with their scores."""
        held, terms = self.index.sentences, self.index.terms
        if held is None:
            return None
        if terms is None:
            return held.of(rows)

        def scores(at: NDArray[np.int64], vectors: NDArray[np.float32]) -> dict[str, NDArray[np.float64]]:
            found = {
                "dense": (vectors @ asked.query).astype(np.float64),
                "bm25": terms.of_units(asked.text, at),
            }
            if asked.rest is not None and asked.rest_query is not None:
                found["dense_rest"] = (vectors @ asked.rest_query).astype(np.float64)
                found["bm25_rest"] = terms.of_units(asked.rest, at, bare=True)
            if parts := parts_asked(asked.text):
                found["number"] = np.array([fit for p in passages for fit in matches(p, parts)])
            return found

        needs = list(chain.from_iterable([one.needs for one in pieces]))
        sections = list(chain.from_iterable([one.sections for one in pieces]))
        return held.of(rows, scores, needs=needs, sections=sections, pieces=pieces)

    def _pool(self, asked: _Asked, rows: list[int], fused: Mapping[int, float]) -> Candidates:
        if (allowed := self.index.allowed) is not None:  # whatever led to it
            rows = [row for row in rows if allowed[row]]
        embeddings = self.index.embeddings(rows)
        cosine = (embeddings @ asked.query).astype(np.float64)
        scores = {
            "dense": cosine,
            "bm25": self.index.scores_bm25(asked.lexical, rows),
            "fused": np.array([fused.get(r, 0.0) for r in rows]),
        }
        terms, identities = self.index.terms, self.index.identities
        if terms is not None and identities is not None and asked.scope is not None:
            scores["scope"] = asked.scope[identities.documents[rows]]
            if asked.rest is not None and asked.rest_query is not None:
                scores["dense_rest"] = (embeddings @ asked.rest_query).astype(np.float64)
                scores["bm25_rest"] = terms.scores(asked.rest, bare=True)[rows]
        if asked.bare_query is not None:
            scores["dense_bare"] = (embeddings @ asked.bare_query).astype(np.float64)
        passages = [self.index.passages[r] for r in rows]
        units = self.index.sentences
        pieces = [] if units is None or terms is None else units.pieces(rows, passages)
        if getattr(self.counter, "counts_afar", False):
            count_ahead(passages, list(map(units_of, passages)), self.counter)
        repeated, dates = self.index.repetition, [p.date for p in passages]
        spans = None if repeated is None else repeated.spans_of(rows)
        # Where a place was given and is not known, another passage of the document contradicts this one.
        apart = [
            p.start is not None and repeated is not None and (spans is None or spans[k, 0] < 0)
            for k, p in enumerate(passages)
        ]
        optional: dict[str, Any] = {}
        for name, of in (("sections", "section"), ("pages", "page"), ("metadata",) * 2, ("lines",) * 2):
            values = [getattr(p, of) for p in passages]
            # In documents a new line parts what does not touch, whether or not there are headings.
            optional[name] = values if any(values) or (name == "lines" and terms is not None) else None
        ids = [p.id for p in passages]
        # An index was checked when it was made or read; what may be wrong here is the question's embedding.
        fits = bool(np.isfinite(cosine).all()) and len(set(ids)) == len(ids)
        made = (Candidates.unchecked if fits else Candidates)(
            ids=ids,
            texts=[p.text for p in passages],
            relevance=cosine,
            tokens=np.array([one.tokens for one in pieces], dtype=np.int64)
            if pieces and type(self.counter) is RegexCounter
            else passage_tokens(passages, self.counter),
            embeddings=embeddings,
            query_embedding=asked.query,
            titles=[p.title for p in passages],
            sources=[p.source for p in passages],
            scores=scores,
            question=asked.text,
            links=None if self.index.links is None else self.index.links.among(rows),
            positions=np.array(rows, dtype=np.int64),
            embedder=self.index.embedder.fingerprint,
            spans=spans,
            dates=dates if any(dates) else None,
            duplicates=None if repeated is None else repeated.among(rows, passages, asked.text),
            sentences=self._units(asked, rows, passages, pieces),
            documents=[by_itself(p.id) if alone else "" for p, alone in zip(passages, apart, strict=True)]
            if any(apart)
            else None,
            **optional,
        )
        if repeated is not None and repeated.lines_agree and spans is not None:
            places = zip(passages, spans[:, 0].tolist(), strict=True)
            number_documents(made, ((p.source, p.title) if start >= 0 else None for p, start in places))
        return made

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


def _checked(question: str) -> str:
    """The text of a question, once it is found to be one."""
    if not question.strip():
        raise InputError("the question is empty")
    if not is_text(question):
        raise InputError("the question is not valid text: give it in UTF-8")
    return question
