"""What a whole pool tells: how far its rankings agree, how clearly they lead, what its question names.

None of these numbers has the scale of an embedder. One holds for all passages of a pool, so alone it orders
nothing; in a product with a passage's own feature it says how far to trust that feature on this question.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from mio_rag.candidates import Candidates

__all__ = [
    "GIVEN",
    "MADE",
    "asked_names",
    "asked_words",
    "best_fused",
    "given",
    "is_common",
    "log_rank",
    "pool_facts",
    "question_cover",
    "question_names",
    "spread",
]

FloatArray = NDArray[np.float64]

#: Where candidates keep the relevance that they came with, once a model has replaced it.
GIVEN = "relevance before the model"
#: What the model made of it: as long as that is the relevance, nobody has changed it since.
MADE = "relevance by the model"
_AGREEMENT = 10  # best passages of each ranking that are compared
_SMALLEST = 1e-290  # of a spread: what is divided by less is no number any more
_HEAD = 50  # passages that tell how far scores spread; links may have added more
_WORD = re.compile(r"\w+")
_NAME = re.compile(r"\b[A-Z]\w+|\d+")
_COMMON_WORDS = """
a an the of in on at to for and or is was were are be been by with from as that this which who whom whose what
when where why how did do does has have had it its his her their he she they into about between than not no
many much first
"""
_COMMON = frozenset(_COMMON_WORDS.split())


def given(candidates: Candidates) -> FloatArray:
    """The scores that the candidates came with, whatever a model has made of them since.

    A relevance that somebody put in place of the model's counts as what they came with.
    """
    made = candidates.scores.get(MADE)
    by_model = made is not None and np.array_equal(made, candidates.relevance)
    return np.asarray(candidates.scores[GIVEN] if by_model else candidates.relevance, dtype=np.float64)


def is_common(word: str) -> bool:
    """Whether a word, in lower case, is one that nearly every text holds, or a question."""
    return word in _COMMON


def log_rank(scores: FloatArray) -> FloatArray:
    """Log of each score's rank, 1 for the best; equal scores keep their order."""
    order = np.argsort(-scores, kind="stable")
    ranks = np.empty(scores.size)
    ranks[order] = np.arange(1, scores.size + 1)
    return np.asarray(np.log(ranks))


def spread(scores: FloatArray) -> float:
    """Standard deviation of the best scores of a pool; 0 where they are as good as equal."""
    best = np.sort(scores)[::-1][:_HEAD]
    scale = float(np.abs(best).max(initial=0.0))
    share = float((best / scale).std()) if scale else 0.0  # of the scale: squares of large scores overflow
    return share * scale if share > 1e-9 and share * scale > _SMALLEST else 0.0


def best_fused(candidates: Candidates) -> NDArray[np.int64]:
    """Places of the passages that retrieval ranked, best first, without what links led to."""
    fused = np.asarray(candidates.scores.get("fused", candidates.scores["dense"]), dtype=np.float64)
    return np.argsort(-fused, kind="stable")[:_HEAD]


@lru_cache(maxsize=4)
def pool_facts(candidates: Candidates) -> dict[str, float]:
    """The numbers of a pool by the names of `mio_rag.relevance.features`, each >= 0."""
    dense, bm25 = (np.asarray(candidates.scores[name], dtype=np.float64) for name in ("dense", "bm25"))
    head = best_fused(candidates)
    names = asked_names(candidates.question)
    facts = {
        "pool_agreement": _agreement(dense, bm25),
        "pool_correlation": _correlation(dense[head], bm25[head]),
        "pool_dense_lead": 0.0,
        "pool_bm25_lead": 0.0,
        "pool_question_words": min(len(asked_words(candidates.question)), 20) / 10,
        "pool_question_names": float(min(len(names), 5)),
    }
    if dense.size > 1:
        best, second = np.sort(dense)[::-1][:2]
        width = spread(dense)
        facts["pool_dense_lead"] = min(float(best - second) / width, 3.0) if width else 0.0
        best, second = np.sort(bm25)[::-1][:2]
        facts["pool_bm25_lead"] = float(best - second) / float(best) if best > 0 else 0.0
    return facts


def _agreement(one: FloatArray, other: FloatArray) -> float:
    """Share of the best passages that two scores have in common."""
    count = min(_AGREEMENT, one.size)
    best = [set(np.argsort(-scores, kind="stable")[:count].tolist()) for scores in (one, other)]
    return len(best[0] & best[1]) / count if count else 0.0


def _correlation(one: FloatArray, other: FloatArray) -> float:
    """Pearson's, 0 where it is negative or one of them does not vary."""
    if one.size < 4 or not spread(one) or not spread(other):
        return 0.0
    return max(0.0, float(np.corrcoef(one, other)[0, 1]))


def asked_words(question: str) -> list[str]:
    """The telling words of a question, in lower case, each once."""
    words = dict.fromkeys(_WORD.findall(question.lower()))
    return [word for word in words if word not in _COMMON]


def asked_names(question: str) -> list[str]:
    """Capitalised words and numbers, in lower case."""
    return [word.lower() for word in _NAME.findall(question) if word.lower() not in _COMMON]


def _titled(candidates: Candidates) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Titles and texts. What follows is kept by them: a pool is the same whatever a model made of it."""
    return tuple(candidates.titles or [""] * len(candidates)), tuple(candidates.texts)


@lru_cache(maxsize=4)  # two features of the same pool ask for them
def _lowered(titles: tuple[str, ...], texts: tuple[str, ...]) -> list[str]:
    return [f"{title} {text}".lower() for title, text in zip(titles, texts, strict=True)]


def _holding(lowered: list[str], words: list[str]) -> list[list[bool]]:
    """For every passage, which of these words it holds as whole words."""
    whole = [_WORD.fullmatch(word) is not None for word in words]  # a letter in lower case may be two
    asked = list(zip(words, whole, strict=True))
    return [[one and word in text and _holds(text, word) for word, one in asked] for text in lowered]


def _holds(text: str, word: str) -> bool:
    """Whether a word is one of `_WORD.findall(text)`, which takes ten times as long as looking for it."""
    at = text.find(word)
    while at >= 0:
        end = at + len(word)
        if not (at and _is_inner(text[at - 1])) and not (end < len(text) and _is_inner(text[end])):
            return True
        at = text.find(word, at + 1)
    return False


def _is_inner(letter: str) -> bool:
    """Whether a letter is part of a word, as in regular expressions."""
    return letter.isalnum() or letter == "_"


def question_cover(candidates: Candidates) -> FloatArray:
    """Share of the question's words that each passage holds; words that few passages hold weigh more."""
    return np.array(_cover(candidates.question, *_titled(candidates)))


@lru_cache(maxsize=4)
def _cover(question: str, titles: tuple[str, ...], texts: tuple[str, ...]) -> list[float]:
    passages = _holding(_lowered(titles, texts), asked_words(question))
    holding = [sum(held) for held in zip(*passages, strict=True)]
    weight = [math.log((len(passages) + 1) / (count + 0.5)) for count in holding]
    total = sum(weight)
    if total <= 0:
        return [0.0] * len(passages)
    return [sum(compress(weight, held)) / total for held in passages]


def question_names(candidates: Candidates) -> FloatArray:
    """Share of the question's capitalised words and numbers that each passage holds."""
    names = asked_names(candidates.question)
    if not names:
        return np.zeros(len(candidates))
    return np.array([sum(held) / len(names) for held in _holding(_lowered(*_titled(candidates)), names)])
