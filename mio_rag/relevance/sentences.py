"""Relevance of sentences: which of a passage's sentences hold what the passage is needed for.

A sentence is needed with the probability of its passage times the probability that it is needed if the
passage is. The second one is a logistic model on features without a scale, fitted on the supporting sentences
that HotpotQA names and on those that hold the answer in NQ open (`sentences.json`).

| feature | of a sentence |
|---|---|
| log_count | log of the number of sentences in its passage |
| lead | its cosine with the question less the best of the other sentences of its passage, in spreads |
| pool_gap | its cosine less the best of the pool, in spreads |
| cover | share of the question's words in it; words in few sentences weigh more |
| cover_lead | that less the best of the other sentences of its passage |
| names | share of the question's capitalised words and numbers in it |
| mentions | the largest relevance of another passage of the pool whose title it names |
| number | 1 where the question asks for a number or a date, and it holds a digit |
| log_words | log of its number of words |
| amount | 1 where the question asks for an amount (`mio_rag.relevance.sentences`), and it holds one |
| no_amount | 1 where the question asks for one, and it holds none |

Weights that are fitted on questions of one's own (`mio-rag policy fit relevance --sentences`) also weigh the
log-odds of the passage's probability, and give the probability of the sentence itself: passages are then
believed only as far as they were right.

A spread is the standard deviation of the cosines of the best sentences of the pool. Where nobody embedded the
sentences, the two features by cosine are 0, and weights apply that were fitted without them.

Amounts: which questions ask for one, and which texts hold one.

A question asks for an amount with "how much" and the like, or with a word that names something measured or
counted in money: a price, revenue, a population. Which words these are was decided by hand. What a sentence
with an amount is then worth was fitted. Years and days are no amounts.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import InputError
from mio_rag.pool import Candidates
from mio_rag.relevance.features import asked_names, asked_words, logistic, logit, spread
from mio_rag.sentences import pattern
from mio_rag.types import Question

# -- sentences -------------------------------------------------------------------------------------------

FloatArray = NDArray[np.float64]
SENTENCE_FEATURES = (
    *("log_count", "lead", "pool_gap", "cover", "cover_lead", "names", "mentions", "number", "log_words"),
    *("amount", "no_amount"),
)
_WORDS = "words"  # the name of the weights for sentences that nobody embedded
_SURE = 1e-6  # a probability that is not told from 0
_FURTHEST = 4.0  # spreads: what lies further apart is apart
_WORD = pattern(r"\w+")
_ASKS_NUMBER = pattern(
    r"\b(?:when|how (?:many|much|long|old|far|tall|large|big|high|often)|(?:what|which|in what|in which) "
    r"(?:year|date|day|century|decade|percentage|number|age)|percent)\b",
    re.IGNORECASE,
)
_ASIDE = pattern(r"\s*\([^)]*\)\s*$")  # "Mercury (planet)" is named "Mercury"


@dataclass(frozen=True)
class SentenceModel:
    """Sentences -> probability that each is needed if its passage is.

    weights: of `SENTENCE_FEATURES`, all of them.
    chance: >= 0: weight of the log-odds of the passage's probability, for weights that give the probability
        of a sentence itself. None: they give the probability that it is needed if its passage is.
    provenance: what the numbers were fitted on, for people.
    embedder: beginning of the fingerprint of the embedder that they are for; blank for any.
    measures: what was measured while fitting; plain data.

    Raises `InputError` for other features, or weights that are no finite numbers.
    """

    weights: Mapping[str, float]
    intercept: float
    name: str = "sentences"
    provenance: str = ""
    embedder: str = ""
    measures: Mapping[str, Any] = field(default_factory=dict)
    chance: float | None = None

    def __post_init__(self) -> None:
        if tuple(self.weights) != SENTENCE_FEATURES:
            raise InputError(f"weights of sentences are for {', '.join(SENTENCE_FEATURES)}, in this order")
        if not all(math.isfinite(value) for value in (*self.weights.values(), self.intercept)):
            raise InputError("weights and intercept must be finite")
        if self.chance is not None and not (math.isfinite(self.chance) and self.chance >= 0):
            raise InputError(f"the weight of a passage's log-odds is {self.chance!r}: it must be >= 0")

    def worth(self, candidates: Candidates) -> FloatArray:
        """The probability that each of ``candidates.sentences`` is needed, shape (m,).

        candidates: with sentences, a question, and probabilities as relevance.
        """
        score = sentence_features(candidates) @ np.array(list(self.weights.values())) + self.intercept
        assert candidates.sentences is not None
        passage = candidates.relevance[candidates.sentences.owners]
        if self.chance is None:
            return np.asarray(passage * logistic(score))
        return logistic(score + self.chance * log_odds(passage))

    def to_dict(self) -> dict[str, Any]:
        """Return the model as plain data for JSON."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SentenceModel:
        """Return the model that `to_dict` wrote; KeyError, TypeError or ValueError if it is not one."""
        weights = {str(name): float(weight) for name, weight in data["weights"].items()}
        return cls(**{**data, "weights": weights, "intercept": float(data["intercept"])})


def log_odds(probability: FloatArray) -> FloatArray:
    """Log-odds of probabilities, which are kept away from 0 and 1."""
    return logit(np.clip(probability, _SURE, 1.0 - _SURE))


@functools.cache
def _shipped() -> tuple[SentenceModel, ...]:
    """The weights that ship: for one embedder each, for any, and at last for words alone."""
    text = Path(__file__).with_name("sentences.json").read_text(encoding="utf-8")
    return tuple(SentenceModel.from_dict(data) for data in json.loads(text)["models"])


def shipped_sentences(fingerprint: str | None) -> SentenceModel:
    """The weights that ship for an embedder.

    fingerprint: of the embedder; blank where it is not known. None: nobody embedded the sentences.
    """
    if fingerprint is None:
        return next(model for model in _shipped() if model.name == _WORDS)
    return next(m for m in _shipped() if m.name != _WORDS and fingerprint.startswith(m.embedder))


def sentence_model(own: SentenceModel | None, candidates: Candidates) -> SentenceModel:
    """The weights for the sentences of a pool: one's own, or those that ship for what is known of them.

    Raises `InputError` if one's own were fitted on embedded sentences, and nobody embedded these.
    """
    embedded = candidates.sentences is not None and candidates.sentences.embeddings is not None
    if own is not None:
        if own.embedder and not embedded:
            raise InputError(
                f"the weights of sentences '{own.name}' were fitted on embedded sentences, "
                "and these are not: build the index with --sentences, or fit the weights again on this one"
            )
        return own
    return shipped_sentences(candidates.embedder if embedded else None)


def sentence_features(candidates: Candidates) -> FloatArray:
    """The features of the sentences of a pool, shape (m, len(SENTENCE_FEATURES)).

    Raises `InputError` if the pool has no sentences, or embedded ones and its question is not.
    """
    sentences, query = candidates.sentences, candidates.query_embedding
    if sentences is None:
        raise InputError("the candidates do not know their sentences: mio_rag.sentences.cut finds them")
    if sentences.embeddings is not None and query is None:
        raise InputError("the sentences are embedded, and the question is not: pass query_embedding")
    owners = sentences.owners
    places = zip(owners.tolist(), sentences.spans.tolist(), strict=True)
    texts = [candidates.texts[i][a:b] for i, (a, b) in places]
    words, amounts, digits = zip(*map(_said, texts), strict=True) if texts else ((), (), ())
    vectors = sentences.embeddings
    cosine = (
        np.zeros(owners.size) if vectors is None or query is None else (vectors @ query).astype(np.float64)
    )
    width = spread(cosine)
    cover = _cover(asked_words(candidates.question), words)
    names = asked_names(candidates.question)
    asks = _ASKS_NUMBER.search(candidates.question) is not None
    amount = np.array(amounts, dtype=np.float64)
    in_amounts = float(asks_amount(candidates.question))
    count = np.bincount(owners, minlength=len(candidates))[owners]
    columns = {
        "log_count": np.log(count),
        "lead": np.clip(_lead(cosine, owners) / width, -_FURTHEST, _FURTHEST) if width else 0 * cosine,
        "pool_gap": np.maximum((cosine - cosine.max(initial=-1)) / width, -_FURTHEST)
        if width
        else 0 * cosine,
        "cover": cover,
        "cover_lead": _lead(cover, owners),
        "names": np.array([sum([name in held for name in names]) for held in words]) / len(names)
        if names
        else np.zeros(len(texts)),
        "mentions": _mentions(candidates, owners, texts),
        "number": np.array([float(asks and has) for has in digits]),
        "log_words": np.log([1 + len(held) for held in words]),
        "amount": in_amounts * amount,
        "no_amount": in_amounts * (1.0 - amount),
    }
    return np.column_stack([columns[name] for name in SENTENCE_FEATURES]).reshape(len(texts), -1)


@functools.lru_cache(maxsize=4096)  # questions to one collection find the same sentences again and again
def _said(text: str) -> tuple[frozenset[str], bool, bool]:
    """The words of a sentence, whether it holds an amount, and whether a digit."""
    return frozenset(_WORD.findall(text.lower())), holds_amount(text), any(map(str.isdigit, text))


def _lead(scores: FloatArray, owners: NDArray[np.int64]) -> FloatArray:
    """Each score less the best of the others of its passage; 0 for a sentence that is alone."""
    if not scores.size:
        return np.zeros(0)
    first = np.flatnonzero(np.concatenate([[True], owners[1:] != owners[:-1]]))
    size = np.diff(np.append(first, owners.size))
    best = np.repeat(np.maximum.reduceat(scores, first), size)
    leads = scores == best
    second = np.repeat(np.maximum.reduceat(np.where(leads, -np.inf, scores), first), size)
    tied = np.repeat(np.add.reduceat(leads.astype(np.int64), first), size) > 1
    others = np.where(leads & ~tied, second, best)
    return np.where(np.repeat(size, size) > 1, scores - others, 0.0)


def _cover(asked: list[str], words: Sequence[frozenset[str]]) -> FloatArray:
    """Share of the question's words in each sentence, by how few sentences hold them."""
    weight = {
        word: math.log((len(words) + 1) / (sum([word in held for held in words]) + 0.5)) for word in asked
    }
    total = sum(weight.values())
    if total <= 0:
        return np.zeros(len(words))
    return np.array([sum([weight[word] for word in asked if word in held]) for held in words]) / total


def _mentions(candidates: Candidates, owners: NDArray[np.int64], texts: list[str]) -> FloatArray:
    """The largest relevance of another passage whose title a sentence names, as far as links tell."""
    found = np.zeros(len(texts))
    if candidates.links is None or candidates.titles is None:
        return found
    rows: dict[int, list[tuple[int, str]]] = {}
    linked = np.asarray(candidates.links.any(axis=1))
    for row in np.flatnonzero(linked[owners]).tolist():
        rows.setdefault(int(owners[row]), []).append((row, texts[row].casefold()))
    titles = list(map(_folded, candidates.titles))
    for passage, other in zip(*(at.tolist() for at in np.nonzero(candidates.links)), strict=True):
        if titles[other] and titles[other] != titles[passage]:
            for row, said in rows.get(passage, ()):
                if titles[other] in said:
                    found[row] = max(found[row], float(candidates.relevance[other]))
    return np.clip(found, 0.0, 1.0)


@functools.lru_cache(maxsize=4096)
def _folded(title: str) -> str:
    return _ASIDE.sub("", title).casefold()


# -- amounts ---------------------------------------------------------------------------------------------

_MEASURED = """
amount area capacity density depth distance growth height length mass number percent percentage population
proportion rate ratio size speed sum temperature total value weight width
"""
_MONEY = """
asset budget cash cost debt dividend earnings expense expenditure fee income inventory liability loan loss
margin pay price profit revenue salary sales spending tax wage
"""
_UNITS = "thousand|million|billion|trillion|percent|per cent"


def _either_number(word: str) -> str:
    """The word, and its plural."""
    if word.endswith("y") and word != "pay":
        return f"{word[:-1]}(?:y|ies)"
    return f"{word}(?:es|s)?" if word.endswith(("s", "x")) and word != "sales" else f"{word}s?"


_ASKS = pattern(
    r"\bhow (?:many|much|long|old|far|tall|large|big|high|deep|fast|heavy|often)\b|\b(?:"
    + "|".join(map(_either_number, (*_MEASURED.split(), *_MONEY.split())))
    + r")\b",
    re.IGNORECASE,
)
_HOLDS = pattern(
    rf"[$€£¥]\s*\d|\d[\d,]*\.\d|\d{{1,3}}(?:,\d{{3}})+|\d\s*%|\b\d+\s*(?:{_UNITS})\b", re.IGNORECASE
)


def asks_amount(question: str) -> bool:
    """Whether a question asks for an amount, or is about something that is told in amounts."""
    return _ASKS.search(question) is not None


def holds_amount(text: str) -> bool:
    """Whether a text holds a sum of money, a share in percent, a decimal or a number of thousands or more."""
    return _HOLDS.search(text) is not None


_FIGURE = pattern(r"\d[\d,]*(?:\.\d+)?")
_OF_A_DATE = pattern(r"[12]?\d|3[01]|(?:19|20)\d\d")


def figures(text: str) -> frozenset[str]:
    """The numbers of a text, as they are written."""
    return frozenset(figure.rstrip(",") for figure in _FIGURE.findall(text))


def answer_figures(question: Question) -> frozenset[str]:
    """The numbers of two digits or more in a question's answers that it does not name itself.

    Days and years are none: every page of a report holds some of them.
    """
    found = frozenset().union(*map(figures, question.answers)) - set(_FIGURE.findall(question.text))
    told = {figure for figure in found if not _OF_A_DATE.fullmatch(figure)}
    return frozenset(figure for figure in told if sum(map(str.isdigit, figure)) > 1)
