"""What a relevance model looks at: one number for each candidate and feature.

    cosine             inner product of question and passage
    cosine_gap         cosine minus the best cosine of the pool (<= 0)
    bm25               log(1 + BM25 score)
    bm25_share         BM25 score over the best of the pool
    log_rank_dense, log_rank_bm25, log_rank_fused   log of the rank in the pool by each score (1 is the best)
    title_share        share of the title's words that the question holds; without a title, of the name that
                       the passage opens with
    title_named        1 where the question holds all of it, word after word
    log_words          log of the passage's length in words
    spread_gap         cosine minus the best cosine of the pool, in standard deviations of the pool's cosines
    log_rank_best      the smaller of log_rank_dense and log_rank_bm25
    log_rank_given     log of the rank by the score that the candidates came with; equal scores share the mean
    given_gap          that score minus the best of the pool, in standard deviations of the pool's scores
    question_cover     share of the question's words that the passage holds; rare words weigh more
    question_names     share of the question's capitalised words and numbers that the passage holds
    score:NAME         `Candidates.scores[NAME]` as it is: a re-ranker's score, for instance
    gap:NAME           that score minus the best of the pool (<= 0)

The same for all passages of a pool, all >= 0; in a product "a*b" with a feature of the passage they say how
far to trust that feature on this question:

    pool_agreement     share of the ten best passages that cosine and BM25 have in common
    pool_correlation   of cosine and BM25; 0 where it is negative
    pool_dense_lead    best cosine minus the second, in standard deviations, at most 3
    pool_bm25_lead     best BM25 score minus the second, over the best
    pool_question_words   words of the question that are not common ones, over 10, at most 2
    pool_question_names   capitalised words and numbers of the question, at most 5

From the probabilities p of the stage before and the evidence links of the pool, of weight w <= 1:

    best_mentioning    largest w p among the passages that mention this one
    best_mentioned     largest w p among the passages that this one mentions
    mention_weight     largest w among the mentions of this passage: how rare its name is
    is_mentioned       1 where another passage mentions it
    does_mention       1 where it mentions another passage

Under embedding uncertainty the cosine of a passage may be lower by up to its loss h. `cosine` and
`cosine_gap` then fall by h, and gaps in standard deviations by h over one of these; the best cosine, the
spread, ranks and numbers of the pool stay as the search observed them. A model whose weights on these
features, their products, `best_mentioning` and `best_mentioned` are not negative is monotone in every cosine,
so that its value at the lowered cosines is its exact worst case.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import InputError
from mio_rag.pool import Candidates
from mio_rag.sentences import leading_name, name_key

# -- pool ------------------------------------------------------------------------------------------------

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


_BLANKS = {code: " " for code in range(128) if not _WORD.match(chr(code))}


@lru_cache(maxsize=4096)  # questions to one collection find the same passages again and again
def _all_words(title: str, text: str) -> frozenset[str]:
    """The words of a passage in lower case."""
    lowered = f"{title} {text}".lower()
    return frozenset(lowered.translate(_BLANKS).split() if lowered.isascii() else _WORD.findall(lowered))


def question_cover(candidates: Candidates) -> FloatArray:
    """Share of the question's words that each passage holds; words that few passages hold weigh more."""
    return _cover(candidates.question, *_titled(candidates)).copy()


@lru_cache(maxsize=4)
def _cover(question: str, titles: tuple[str, ...], texts: tuple[str, ...]) -> FloatArray:
    passages = list(map(_all_words, titles, texts))
    found, total = np.zeros(len(passages)), 0.0
    for word in asked_words(question):
        held = [word in words for words in passages]
        weight = math.log((len(passages) + 1) / (sum(held) + 0.5))
        found += weight * np.array(held)
        total += weight
    return found / total if total > 0 else np.zeros(len(passages))


def question_names(candidates: Candidates) -> FloatArray:
    """Share of the question's capitalised words and numbers that each passage holds."""
    names = asked_names(candidates.question)
    if not names:
        return np.zeros(len(candidates))
    passages = map(_all_words, *_titled(candidates))
    return np.array([sum([name in held for name in names]) / len(names) for held in passages])


# -- logistic --------------------------------------------------------------------------------------------


def logistic(score: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probabilities of scores, any shape: 1 / (1 + exp(-score)), 0 where that overflows."""
    with np.errstate(over="ignore"):
        return np.asarray(1.0 / (1.0 + np.exp(-score)))


def logit(probability: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scores of probabilities, any shape, within (0, 1)."""
    return np.asarray(np.log(probability) - np.log1p(-probability))


# -- features --------------------------------------------------------------------------------------------


LINK_FEATURES = ("best_mentioning", "best_mentioned", "mention_weight", "is_mentioned", "does_mention")
#: What falls with a passage's own cosine; a weight on it must not be negative, nor one on those links.
_BY_COSINE = ("cosine", "cosine_gap", "spread_gap", "given_gap")
_MONOTONE = (*_BY_COSINE, "best_mentioning", "best_mentioned")


def _score(candidates: Candidates, name: str) -> FloatArray:
    return np.asarray(candidates.scores[name], dtype=np.float64)


def _share_of_best(scores: FloatArray) -> FloatArray:
    best = float(scores.max(initial=0.0))
    return scores / best if best > 0 else np.zeros_like(scores)


@lru_cache(maxsize=1)  # two features of the same pool ask for them
def _names(candidates: Candidates) -> list[str]:
    titles = candidates.titles or [""] * len(candidates)
    pairs = zip(titles, candidates.texts, strict=True)
    return [name_key(title.strip() or leading_name(text)) for title, text in pairs]


def _gap_in_spreads(scores: FloatArray) -> FloatArray:
    width = spread(scores)
    return scores / width - scores.max() / width if width else np.zeros_like(scores)


def _shared_rank(scores: FloatArray) -> FloatArray:
    _, group = np.unique(scores, return_inverse=True)
    return np.asarray((np.bincount(group, log_rank(scores)) / np.bincount(group))[group])


def _best_rank(candidates: Candidates) -> FloatArray:
    return np.minimum(log_rank(_score(candidates, "dense")), log_rank(_score(candidates, "bm25")))


def _of_pool(candidates: Candidates, name: str) -> FloatArray:
    return np.full(len(candidates), pool_facts(candidates)[name])


def _title_share(candidates: Candidates) -> FloatArray:
    asked = set(name_key(candidates.question).split())
    words = [set(key.split()) for key in _names(candidates)]
    return np.array([len(w & asked) / len(w) if w else 0.0 for w in words])


def _title_named(candidates: Candidates) -> FloatArray:
    asked = f" {name_key(candidates.question)} "
    return np.array([float(bool(key) and f" {key} " in asked) for key in _names(candidates)])


def _log_words(candidates: Candidates) -> FloatArray:
    return np.log1p(list(map(_words_in, candidates.texts)))


@lru_cache(maxsize=4096)
def _words_in(text: str) -> int:
    return len(text.split())


#: name -> (what candidates must have, how it is made)
_BASE: dict[str, tuple[str, Callable[[Candidates], FloatArray]]] = {
    "cosine": ("scores['dense']", lambda c: _score(c, "dense")),
    "cosine_gap": ("scores['dense']", lambda c: _score(c, "dense") - _score(c, "dense").max()),
    "bm25": ("scores['bm25']", lambda c: np.log1p(np.maximum(_score(c, "bm25"), 0.0))),
    "bm25_share": ("scores['bm25']", lambda c: _share_of_best(_score(c, "bm25"))),
    "log_rank_dense": ("scores['dense']", lambda c: log_rank(_score(c, "dense"))),
    "log_rank_bm25": ("scores['bm25']", lambda c: log_rank(_score(c, "bm25"))),
    "log_rank_fused": ("scores['fused']", lambda c: log_rank(_score(c, "fused"))),
    "title_share": ("question", _title_share),
    "title_named": ("question", _title_named),
    "log_words": ("texts", _log_words),
}
#: What models are fitted on where nothing else is asked for.
BASE_FEATURES = tuple(_BASE)


_BASE |= {
    "spread_gap": ("scores['dense']", lambda c: _gap_in_spreads(_score(c, "dense"))),
    "log_rank_given": ("relevance", lambda c: _shared_rank(given(c))),
    "given_gap": ("relevance", lambda c: _gap_in_spreads(given(c))),
    "log_rank_best": ("pool", _best_rank),
    "question_cover": ("question", question_cover),
    "question_names": ("question", question_names),
}


_POOL = ("agreement", "correlation", "dense_lead", "bm25_lead", "question_words", "question_names")


_BASE |= {f"pool_{name}": ("pool", partial(_of_pool, name=f"pool_{name}")) for name in _POOL}


def is_monotone(name: str) -> bool:
    """Whether a weight on this feature must not be negative, so that worst cases pass through exactly."""
    return any(part in _MONOTONE for part in name.split("*"))


def product_problem(name: str) -> str | None:
    """Why a product of features is none that a model can use; None for a good one, and for no product."""
    parts = name.split("*")
    of_pool = [part.startswith("pool_") for part in parts]
    if len(parts) == 1 or (len(parts) == 2 and any(of_pool) and all(part in _BASE for part in parts)):
        return None
    return (
        f"'{name}' is no product of a feature of the passage and one of the pool (pool_...): scores of "
        "re-rankers and links cannot be multiplied"
    )


def cosine_slopes(candidates: Candidates, names: Sequence[str]) -> FloatArray:
    """By how much each feature falls with a passage's own cosine, as long as ranks stay; shape (k,)."""
    return np.array([_slope(candidates, name) for name in names])


def _slope(candidates: Candidates, name: str) -> float:
    first, _, second = name.partition("*")
    if second:  # of a passage's own feature and one that is the same for the pool
        own, pool = (first, second) if first in _BY_COSINE else (second, first)
        return _slope(candidates, own) * (pool_facts(candidates)[pool] if own in _BY_COSINE else 0.0)
    if name not in _BY_COSINE:
        return 0.0
    if name in ("cosine", "cosine_gap"):
        return 1.0
    width = spread(_score(candidates, "dense") if name == "spread_gap" else given(candidates))
    return 1.0 / width if width else 0.0


@lru_cache(maxsize=2 * len(_BASE))  # worst cases and attacks ask for the same pool at many losses
def _base_feature(candidates: Candidates, name: str) -> FloatArray:
    values = np.array(_BASE[name][1](candidates), dtype=np.float64)
    values.flags.writeable = False
    return values


@cache
def _needs(name: str) -> tuple[str, ...]:
    """Return what candidates must have for a feature."""
    if "*" in name:
        return tuple(need for part in name.split("*") for need in _needs(part))
    if name in LINK_FEATURES:
        return ("links",)
    if name.startswith(("score:", "gap:")):
        return (f"scores['{name.partition(':')[2]}']",)
    if name not in _BASE:
        return ("a feature of that name",)
    needed = _BASE[name][0]
    return ("scores['dense']", "scores['bm25']", "question") if needed == "pool" else (needed,)


def _has(candidates: Candidates, need: str) -> bool:
    if need.startswith("scores["):
        return need[8:-2] in candidates.scores
    if need == "links":
        return candidates.links is not None
    return need == "relevance" or (need in ("question", "texts") and bool(getattr(candidates, need)))


def missing(candidates: Candidates, name: str) -> str | None:
    """Return what candidates lack for a feature, or None where they have it all."""
    return next((need for need in _needs(name) if not _has(candidates, need)), None)


def lacking(candidates: Candidates, names: Iterable[str]) -> dict[str, str]:
    """Return the features that candidates cannot give -> what they lack for them."""
    names = tuple(names)
    needs = dict.fromkeys(need for name in names for need in _needs(name))
    absent = {need for need in needs if not _has(candidates, need)}
    if not absent:
        return {}
    return {name: need for name in names if (need := missing(candidates, name)) is not None}


def available_features(candidates: Candidates, *, links: bool = True) -> tuple[str, ...]:
    """Names of the features that these candidates can give, scores of re-rankers included."""
    added = [key for key in sorted(candidates.scores) if key not in ("dense", "bm25", "fused", GIVEN, MADE)]
    extra = [f"{kind}:{key}" for key in added for kind in ("score", "gap")]
    names = [*BASE_FEATURES, *extra, *(LINK_FEATURES if links else ())]
    return tuple(name for name in names if missing(candidates, name) is None)


def feature_matrix(
    candidates: Candidates,
    names: Sequence[str],
    *,
    before: FloatArray | None = None,
    cosine_loss: FloatArray | float = 0.0,
) -> FloatArray:
    """Return the features of a pool, shape (n, k).

    names: length k
    before: shape (n,); probabilities of the stage before; needed by the link features.
    cosine_loss: shape (n,); by how much each cosine may be lower than it looks; negative values raise it.

    Raises `InputError` naming every feature that cannot be made, and what it lacks.
    """
    if absent := lacking(candidates, names):
        listed = ", ".join(f"'{name}' (needs {need})" for name, need in absent.items())
        raise InputError(
            f"the relevance model cannot be used here: these candidates lack {listed}. Retrieve them with "
            "Retriever and an index that holds what is missing (scores of a re-ranker: "
            "search.rerank), pass it in "
            "Candidates, or fit a model without these features (mio-rag policy fit relevance)"
        )
    columns: list[FloatArray] = []
    is_lowered = np.any(cosine_loss)
    for name in names:
        if name in LINK_FEATURES:
            columns.append(_link_feature(candidates, name, before))
        elif name.startswith(("score:", "gap:")):
            kind, _, key = name.partition(":")
            values = _score(candidates, key)
            columns.append(values - values.max(initial=-np.inf) if kind == "gap" else values)
        else:
            values = np.ones(len(candidates))
            for part in name.split("*"):
                values = values * _base_feature(candidates, part)
            slope = _slope(candidates, name) if is_lowered else 0.0
            columns.append(values - slope * cosine_loss if slope else values)
    return np.stack(columns, axis=1) if columns else np.zeros((len(candidates), 0))


def _link_feature(candidates: Candidates, name: str, before: FloatArray | None) -> FloatArray:
    assert candidates.links is not None
    weights = candidates.links.astype(np.float64)
    if name == "mention_weight":
        return np.asarray(weights.max(axis=0, initial=0.0))
    if name in ("is_mentioned", "does_mention"):
        return np.asarray(np.any(weights > 0, axis=0 if name == "is_mentioned" else 1), dtype=np.float64)
    if before is None:
        raise InputError(f"feature '{name}' belongs to a later stage: the first has no probabilities to use")
    if name == "best_mentioning":
        return np.asarray((weights * before[:, None]).max(axis=0, initial=0.0))
    return np.asarray((weights * before[None, :]).max(axis=1, initial=0.0))
