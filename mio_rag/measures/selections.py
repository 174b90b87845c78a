"""Measures of a selection: against the labels of the question, of its variety, and of what was retrieved."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from mio_rag.errors import InputError, require
from mio_rag.measures.answers import by_value, normalize_answer
from mio_rag.measures.measure import Column, Frontier, Measure, Page, Use, has_gold
from mio_rag.pool import Pool
from mio_rag.selection.result import Selection
from mio_rag.types import Question, moment


class _Same:
    """A pool as a key: equal to itself alone."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.pool.embeddings is other.pool.embeddings

    def __hash__(self) -> int:
        return id(self.pool.embeddings)


# Twins -----------------------------------------------------------------------------------------------------


def _twins(pool: Pool, row: int) -> list[int]:
    """Near-duplicates of a passage that may stand for it: all but older versions."""
    if pool.duplicates is None:
        return []
    dates = pool.dates or [""] * len(pool)
    near = np.flatnonzero(pool.duplicates[row] > 0).tolist()
    return [k for k in near if not dates[row] or not dates[k] or moment(dates[k]) >= moment(dates[row])]


def credited(question: Question, pool: Pool, ids: Sequence[str]) -> list[str]:
    """Names of passages that were read, those of twins replaced by the gold passage that each stands for."""
    names, missing = list(ids), set(question.gold_ids) - set(ids)
    if pool.duplicates is None or not missing:
        return names
    for row, gold in enumerate(pool.passage_ids):
        if gold in missing:
            twins = {pool.passage_ids[k] for k in _twins(pool, row)} - set(question.gold_ids)
            if (k := next((k for k, name in enumerate(names) if name in twins), None)) is not None:
                names[k] = gold
                missing.discard(gold)
    return names


# Text of the evidence ---------------------------------------------------------------------------------------

_RUN = 4  # words that must stand together to count as read
_TOPICS = 8
_ALONE = re.compile(r"[\u2e80-\u9fff\uf900-\ufaff\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]")
_WORD = re.compile(r"\w+")
_TAG = re.compile(r"</?[a-zA-Z][^<>\n]{0,300}>")
_LINK = re.compile(r"\]\([^()\s]*\)")
_JOIN = re.compile(r"(?<=\w)[-\u00ad\u2010\u2011]\s*(?=\w)|(?<=\d)[,.](?=\d)|['\u2019]")


@lru_cache(maxsize=4096)
def words_of(text: str) -> tuple[str, ...]:
    """Words of a text, characters where a script has no spaces; markup and punctuation play no part."""
    text = _LINK.sub("] ", _TAG.sub(" ", text))
    text = _JOIN.sub("", unicodedata.normalize("NFKC", text).casefold()).replace("_", " ")
    return tuple(_WORD.findall(_ALONE.sub(lambda found: f" {found[0]} ", text)))


def _runs(words: Sequence[str], length: int) -> Iterable[tuple[str, ...]]:
    return zip(*(words[k:] for k in range(length)), strict=False)


def coverage(evidence: Sequence[str], texts: Sequence[str]) -> float:
    """Share of the words of the evidence that texts hold, in runs of four; of all, where there are fewer."""
    read = [words_of(text) for text in texts]
    covered = total = 0
    for text in evidence:
        words = words_of(text)
        length = min(_RUN, len(words))
        known = {run for part in read for run in _runs(part, length)} if length else set()
        marks = np.zeros(len(words), dtype=bool)
        for k, run in enumerate(_runs(words, length)):
            if run in known:
                marks[k : k + length] = True
        covered, total = covered + int(marks.sum()), total + len(words)
    return covered / total if total else 0.0


def _evidence_covered(question: Question, selection: Selection) -> float:
    read = [f"{p.title} {p.text}" for p in selection.passages]
    if question.evidence:
        return coverage(question.evidence, read)
    pool, shares = selection.pool, dict.fromkeys(question.gold_ids, 0.0)  # what was not retrieved counts as 0
    for row, name in enumerate(pool.passage_ids):
        if name in shares:
            same = (row, *_twins(pool, row))
            shares[name] = max(shares[name], *(coverage([pool.texts[k]], read) for k in same))
    return float(np.mean(list(shares.values())))


# Of the selection -------------------------------------------------------------------------------------------


def evidence_found(question: Question, pool: Pool, chosen: Sequence[int]) -> float:
    """Recall of the gold passages, or twins of them; of the gold documents where only these are known.

    In [0, 1].

    chosen: positions in the pool.

    Raises `InputError` without gold labels, or with gold documents only and a pool that names no sources.
    """
    gold = set(question.gold_ids or question.gold_sources)
    names = pool.passage_ids if question.gold_ids else pool.sources
    if not gold or names is None:
        missing = "only gold documents are known, and the pool names no sources"
        if not gold:
            missing = "the question has no gold passages and no gold documents"
        raise InputError(f"recall of question '{question.id}' is undefined: {missing}")
    read = list(dict.fromkeys(names[i] for i in chosen))
    return len(gold & set(credited(question, pool, read) if question.gold_ids else read)) / len(gold)


def _unit(vectors: NDArray[Any]) -> NDArray[np.float64]:
    """Vectors of length 1; those of length 0 stay."""
    exact = vectors.astype(np.float64)
    unit: NDArray[np.float64] = exact / np.maximum(np.linalg.norm(exact, axis=1, keepdims=True), 1e-12)
    return unit


def diversity(pool: Pool, chosen: Sequence[int]) -> float | None:
    """1 - mean pairwise cosine of the chosen passages; None for fewer than two, or without embeddings."""
    if pool.embeddings is None or len(chosen) < 2:
        return None
    unit = _unit(pool.embeddings[list(chosen)])
    k = len(chosen)
    return float(1 - (np.square(unit.sum(axis=0)).sum() - np.square(unit).sum()) / (k * (k - 1)))


def _read(question: Question, selection: Selection) -> list[str]:
    """Passages read, in prompt order, with twins of gold ones by these' names."""
    return credited(question, selection.pool, list(dict.fromkeys(selection.ids)))


def _found(question: Question, selection: Selection) -> set[str]:
    return set(question.gold_ids) & set(_read(question, selection))


def _gold_recall(question: Question, selection: Selection) -> float:
    return len(_found(question, selection)) / len(set(question.gold_ids))


def _all_gold(question: Question, selection: Selection) -> float:
    return float(_found(question, selection) == set(question.gold_ids))


def _gold_precision(question: Question, selection: Selection) -> float:
    return len(_found(question, selection)) / len(selection.ids) if selection.ids else 0.0


def _source_recall(question: Question, selection: Selection) -> float | None:
    sources = selection.candidates.sources
    if sources is None or selection.pool.sources is None:
        return None
    gold = set(question.gold_sources)
    return len({sources[i] for i in selection.chosen} & gold) / len(gold)


@lru_cache(maxsize=1)  # the two measures of one ranking are computed together
def _ranked(ids: tuple[str, ...], gold: frozenset[str]) -> tuple[float, float]:
    """Reciprocal rank and nDCG."""
    library: Any = require("ir_measures", "evaluation", "the measures reciprocal_rank and ndcg")
    if not ids:
        return 0.0, 0.0
    run = [library.ScoredDoc("q", i, float(len(ids) - k)) for k, i in enumerate(ids)]
    found = library.calc_aggregate([library.RR, library.nDCG], [library.Qrel("q", g, 1) for g in gold], run)
    return float(found[library.RR]), float(found[library.nDCG])


def _ranking(place: int, question: Question, selection: Selection) -> float:
    return _ranked(tuple(_read(question, selection)), frozenset(question.gold_ids))[place]


def _places(question: Question, ids: Sequence[str]) -> list[int]:
    """Places of gold passages in a ranking, from 1."""
    gold = set(question.gold_ids)
    return [k for k, i in enumerate(ids, start=1) if i in gold]


def _context_precision(question: Question, selection: Selection) -> float:
    places = _places(question, _read(question, selection))
    return sum(n / k for n, k in enumerate(places, start=1)) / len(places) if places else 0.0


def _answer_in_context(question: Question, selection: Selection) -> float:
    said = " ".join(f"{p.title} {p.text}" for p in selection.passages)
    context, *answers = (f" {normalize_answer(by_value(text))} " for text in (said, *question.answers))
    return float(any(answer in context for answer in answers if answer.strip()))


def _has_words(question: Question) -> bool:
    """Whether it means something if an answer occurs in a text: not for yes and no."""
    return any(normalize_answer(a) not in {"yes", "no", "maybe"} for a in question.answers)


@lru_cache(maxsize=1)  # methods share a pool
def _topics(of: _Same) -> NDArray[np.int64]:
    """Topic of each candidate: eight at most, by average linkage of the cosines."""
    vectors = of.pool.embeddings
    if vectors is None or len(vectors) < 2:
        return np.zeros(len(of.pool), dtype=np.int64)
    tree = scipy.cluster.hierarchy.linkage(_unit(vectors), "average")
    return scipy.cluster.hierarchy.fcluster(tree, _TOPICS, "maxclust").astype(np.int64)


def topic_coverage(question: Question, selection: Selection) -> float | None:
    """Share of the topics of the candidates that a passage was read of."""
    pool, read = selection.pool, set(selection.ids)
    if pool.embeddings is None or not len(pool):
        return None
    topics = _topics(_Same(pool))
    return len({topics[k] for k, name in enumerate(pool.passage_ids) if name in read}) / len({*topics})


def _first(question: Question, selection: Selection, depth: int, whole: bool) -> float:
    """Precision (of `depth`) or recall of the first so many passages of the prompt."""
    found = len(set(question.gold_ids) & set(_read(question, selection)[:depth]))
    return found / (len(set(question.gold_ids)) if whole else depth)


def _source_entropy(question: Question, selection: Selection) -> float | None:
    sources = selection.candidates.sources
    if sources is None or not selection.chosen:
        return None
    counts = np.array(list(Counter(sources[i] for i in selection.chosen).values()), dtype=float)
    share = counts / counts.sum()
    return float(abs(-(share * np.log2(share)).sum()))


# Of the retrieved ranking, before anything is selected.


def _retrieved_precision(question: Question, selection: Selection, depth: int) -> float:
    return len(_places(question, selection.pool.ids[:depth])) / depth


def _retrieved_recall(question: Question, selection: Selection, depth: int | None = None) -> float:
    gold = set(question.gold_ids)
    return len(gold & set(selection.pool.ids[:depth])) / len(gold)


def _retrieved_reciprocal_rank(question: Question, selection: Selection) -> float:
    places = _places(question, selection.pool.ids)
    return 1 / places[0] if places else 0.0


_BOOK = "Manning, Raghavan and Schütze, Introduction to Information Retrieval, 2008, chapter 8"
_ROW, _NONE = Frontier(Use.ROW), Frontier(Use.NONE)
_measure = partial(Measure, of="selection", better="higher")
_share = partial(_measure, unit="0 to 1")
_gold = partial(_share, labelled=has_gold)
_ranked_gold = partial(_gold, compared=False, console=None, frontier=_NONE)

#: In the order of the ledger. All methods share the retrieved ranking: it is neither compared nor judged.
SELECTIONS = (
    _share(
        "answer_in_context", "Answer in context",
        "a gold answer occurs in the selected text, a number by its value",
        source="Karpukhin et al., EMNLP 2020 (retrieval accuracy); by whole normalised words",
        compute=_answer_in_context, labelled=_has_words, place=5,
        console=Column(always=True), page=Page(5, core=True, headline=0, card=False),
        frontier=_NONE,
    ),
    _share(
        "evidence_covered", "Evidence text covered",
        "share of the words in the selected text: the mean over gold passages, or of all quoted evidence",
        source="words in runs of four; every gold passage counts alike, long or short, itself or as a "
        "near-duplicate that is no older",
        compute=_evidence_covered, labelled=lambda question: bool(question.gold_ids or question.evidence),
        place=7, console=Column(always=True), page=Page(7, core=True, headline=1),
        frontier=_NONE,
    ),
    _gold(
        "gold_recall", "Evidence found", "share of the gold passages that were selected (gold recall)",
        source=_BOOK, compute=_gold_recall, place=10, console=Column(always=True),
        page=Page(10, headline=2), frontier=Frontier(Use.EVIDENCE, place=10),
    ),
    _gold(
        "all_gold", "All evidence found", "every gold passage was selected",
        source="evidence found of 1; for questions that need all of their evidence", compute=_all_gold,
        place=20, console=Column(), page=Page(20, headline=3, card=False),
        frontier=Frontier(Use.POINT, place=20),
    ),
    _gold(
        "gold_precision", "Gold precision", "share of the selected passages that are gold",
        source=_BOOK, compute=_gold_precision, compared=False, console=None, page=Page(110, card=False),
        frontier=_ROW,
    ),
    _ranked_gold(
        "reciprocal_rank", "Reciprocal rank", "one over the place of the first gold passage",
        source="Voorhees, TREC-8 Question Answering Track, 1999 (in prompt order, by ir-measures)",
        compute=partial(_ranking, 0),
        page=Page(120, card=False),
    ),
    _ranked_gold(
        "ndcg", "nDCG", "ranking quality of the selected passages in prompt order",
        source="Järvelin and Kekäläinen, ACM TOIS 20(4), 2002 (binary gains, by ir-measures)",
        compute=partial(_ranking, 1),
        page=Page(130, card=False),
    ),
    _ranked_gold(
        "context_precision", "Context precision",
        "mean precision of the prompt down to each gold passage in it",
        source="Es et al., RAGAS, as its package defines it (gold passages are the relevant ones)",
        compute=_context_precision, page=Page(135, card=False),
    ),
    _gold(
        "pool_recall", "Evidence in the pool",
        "share of the gold passages that were retrieved: no method can find more",
        source="recall of the retriever at the size of the pool", compute=_retrieved_recall, place=30,
        compared=False, console=Column("evidence in pool", always=True),
        page=Page(140, judged=False, card=False), frontier=_ROW,
    ),
    _share(
        "source_recall", "Documents found",
        "share of the gold documents that passages were selected from",
        source=f"{_BOOK}; for data labelled by document", compute=_source_recall,
        labelled=lambda question: bool(question.gold_sources), compared=False, console=None,
        page=Page(30, headline=4, card=False), frontier=Frontier(Use.EVIDENCE, place=30),
    ),
    _measure(
        "diversity", "Diversity", "1 minus the mean pairwise cosine of the selected passages",
        unit="0 to 2", source="Smyth and McClave, ICCBR 2001 (mean pairwise dissimilarity)",
        compute=lambda question, selection: diversity(selection.candidates, selection.chosen),
        place=140, console=Column(form="{:.2f}"), page=Page(150, judged=False, card=False),
        frontier=Frontier(Use.DOMINANCE, "Diversity (1 − mean cosine, of two or more)", place=40),
    ),
    _share(
        "topic_coverage", "Topic coverage", "share of the topics of the candidates that were selected from",
        source="topics: average linkage of the cosines, eight at most (Manning et al., chapter 17)",
        compute=topic_coverage, compared=False, console=None, page=Page(155, judged=False, card=False),
        frontier=Frontier(Use.POINT, "Topic coverage", place=45),
    ),
    *(
        _ranked_gold(
            f"{what}_{k}", f"{what.capitalize()} at {k}", f"{says} among the first {k} of the prompt",
            source=_BOOK, compute=partial(_first, depth=k, whole=what == "recall"), page=None,
        )
        for k in (5, 10)
        for what, says in (
            ("precision", "share of gold passages"), ("recall", "share of the gold passages that are")
        )
    ),
    _share(
        "smoothness", "Smoothness",
        "share of the selection that is the same as for the question before, of a conversation",
        source="Jaccard, 1901; questions with the same conversation, in their order",
        compared=False, console=Column(), page=None, frontier=_NONE,
    ),
    Measure(
        "source_entropy", "Source entropy", "entropy of the selected sources, in bits",
        of="selection", better="none", unit="bits", source="Shannon, Bell System Technical Journal 27, 1948",
        compute=_source_entropy, compared=False, console=None, page=Page(160, card=False), frontier=_NONE,
    ),
    _share(
        "stability", "Stability",
        "share of the selection that stays when the embeddings are off by the reference radius",
        source="Jaccard, 1901 (mean index over random errors); recorded by `mio-rag lab frontier`, and with "
        "--measure stability=RADIUS",
        compared=False, console=Column(), page=None,
        frontier=Frontier(Use.DOMINANCE, "Stability (Jaccard under random error)", place=50),
    ),
    _measure(
        "guaranteed", "Guaranteed value",
        "smallest value of the selection while the embeddings are off by the reference radius at most",
        unit="relevance",
        source="Ben-Tal, El Ghaoui and Nemirovski, Robust Optimization, 2009; recorded by "
        "`mio-rag lab frontier`",
        compared=False, console=None, page=None,
        frontier=Frontier(Use.PLOT, "Guaranteed value at the reference radius", place=60),
    ),
    *(
        _ranked_gold(
            f"retrieved_precision_{k}", f"Retrieved precision at {k}",
            f"share of gold passages among the first {k} that were retrieved; fewer count as {k}",
            source=f"{_BOOK} (a short list divided by {k}, as by trec_eval)",
            compute=partial(_retrieved_precision, depth=k), page=Page(300 + k, judged=False, card=False),
        )
        for k in (5, 10)
    ),
    *(
        _ranked_gold(
            f"retrieved_recall_{k}", f"Retrieved recall at {k}",
            f"share of the gold passages that are among the first {k} that were retrieved",
            source=_BOOK, compute=partial(_retrieved_recall, depth=k),
            page=Page(320 + k, judged=False, card=False),
        )
        for k in (5, 10)
    ),
    _ranked_gold(
        "retrieved_reciprocal_rank", "Retrieved reciprocal rank",
        "one over the place of the first gold passage in the pool; its mean is MRR",
        source="Voorhees, TREC-8 Question Answering Track, 1999 (in the order of retrieval)",
        compute=_retrieved_reciprocal_rank, page=Page(340, judged=False, card=False),
    ),
)  # fmt: skip
