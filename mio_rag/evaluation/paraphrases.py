"""What a cache by meaning does with paraphrases: how often they are served, and how often wrongly.

Paraphrases come from two sources. A set may hold some: questions with the same gold passages and an accepted
answer in common (`held`). Or a language model words questions anew (`written`). A rewording that lost a name
or a number of its question asks something else and is left out; what else a small model gets wrong stays, so
that some of what counts as served right is not.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import scipy  # loads scipy.stats, a second, where it is first used
from numpy.typing import NDArray

from mio_rag.answer_cache import normal_question
from mio_rag.control.steps.strategy import lines_of, strategy_prompt
from mio_rag.errors import InputError
from mio_rag.evaluation.false_hits import COSINES
from mio_rag.generation import Generator
from mio_rag.measures import normalize_answer
from mio_rag.retrieval.embedders import Embedder
from mio_rag.types import Question

__all__ = ["Paraphrase", "ParaphraseHits", "held", "lost", "paraphrase_hits", "written"]

_WORDINGS, _TOKENS = 3, 96  # asked for at once, since small models begin with the question as it is
_WORD = re.compile(r"\w+")
_STANCE = {"yes", "no", "maybe"}  # answers that questions share for no reason


@dataclass(frozen=True)
class Paraphrase:
    """A question in other words.

    Parameters
    ----------
    text : str
    of : Question
        Whose accepted answers are right for it.
    alike : tuple of str
        Ids of kept questions that mean the same.
    """

    text: str
    of: Question
    alike: tuple[str, ...]


@dataclass(frozen=True)
class ParaphraseHits:
    """What a cache would do with paraphrases from a cosine on.

    Parameters
    ----------
    cosine : float
    asked : int
    hits, false : int
        Where what means the same is kept: how many get an answer, and how many of these a wrong one.
    served, served_low, served_high : float
        Right answers among all that were asked, with the exact 95 % interval (Clopper and Pearson, 1934).
    rate, low, high : float or None
        Wrong ones among the hits; None without hits.
    new_hits, new_false : int
        Where nothing that means the same is kept, and the rest of the set is.
    examples : tuple of (str, str)
        Some false hits, the closest first: what is asked, and what would answer it.
    """

    cosine: float
    asked: int
    hits: int
    false: int
    served: float
    served_low: float
    served_high: float
    rate: float | None
    low: float | None
    high: float | None
    new_hits: int
    new_false: int
    examples: tuple[tuple[str, str], ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def held(questions: Sequence[Question]) -> list[Paraphrase]:
    """The questions of a set that another one could have answered: same gold passages, an answer in common.

    Questions that are answered by yes, no or maybe are left out: they share that for no reason.
    """
    groups: defaultdict[frozenset[str], list[tuple[Question, set[str]]]] = defaultdict(list)
    for question in _different(questions):
        accepted = {normalize_answer(a) for a in question.answers} - {""}
        if question.gold_ids and accepted and not accepted & _STANCE:
            groups[frozenset(question.gold_ids)].append((question, accepted))
    found = []
    for group in groups.values():
        for one, accepted in group:
            alike = tuple(other.id for other, theirs in group if other is not one and accepted & theirs)
            if alike:
                found.append(Paraphrase(one.text, one, alike))
    return found


def lost(question: str, text: str) -> str | None:
    """Why a rewording is left out: "same", "blank", or a name or number that it lacks; None: it stays.

    Punctuation, case and articles make no difference. Names are words with a capital that do not begin the
    question.
    """
    if not text.strip():
        return "blank"
    if normalize_answer(question) in normalize_answer(text):  # small models say it twice, too
        return "same"
    kept = {word.casefold() for word in _WORD.findall(text)}
    for k, match in enumerate(_WORD.finditer(question)):
        word = match.group()
        named = any(c.isdigit() for c in word) or (k > 0 and word[0].isupper())
        if named and word.casefold() not in kept:
            return word
    return None


def written(
    questions: Sequence[Question], generator: Generator, progress: Callable[[int], None] | None = None
) -> tuple[list[Paraphrase], Counter[str]]:
    """A rewording of each question by a language model: of three the first that is none of what `lost` tells.

    Returns
    -------
    list of Paraphrase
    Counter
        Questions left out, by what the first one is: "same", "blank", or "lost" for a name or a number.
    """
    found, dropped = [], Counter[str]()
    for k, question in enumerate(questions, start=1):
        prompt = strategy_prompt("variations", question, {"count": str(_WORDINGS)})
        lines = lines_of(generator.generate(prompt, max_tokens=_TOKENS).text)[:_WORDINGS] or [""]
        if good := [line for line in lines if lost(question.text, line) is None]:
            found.append(Paraphrase(good[0], question, (question.id,)))
        else:
            reason = lost(question.text, lines[0])
            dropped[reason if reason in ("same", "blank") else "lost"] += 1
        if progress is not None:
            progress(k)
    return found, dropped


def paraphrase_hits(
    kept: Sequence[Question],
    asked: Sequence[Paraphrase],
    embedder: Embedder,
    cosines: Sequence[float] = COSINES,
    examples: int = 3,
) -> list[ParaphraseHits]:
    """Hits and false hits of paraphrases by cosine, where a cache keeps the answers to all questions.

    A paraphrase gets the answer to the closest kept question. That is false where none of that question's
    accepted answers is one of its own. A question in its own words is never kept.

    Parameters
    ----------
    kept : sequence of Question
        Of the set; those without a key are left out.
    cosines : sequence of float
        Each in (0, 1].

    Raises
    ------
    InputError
        Without paraphrases, with cosines out of range, or with fewer than two kept questions that have a key.
    """
    if bad := [c for c in cosines if not 0 < c <= 1]:
        raise InputError(f"cosines={', '.join(f'{c:g}' for c in bad)} must be in (0, 1]")
    keyed = _different(kept)
    if len(keyed) < 2 or not asked:
        raise InputError(
            f"{len(asked)} paraphrases and {len(keyed)} different questions with an accepted answer: at "
            "least 1 and 2 are needed"
        )
    place = {q.id: k for k, q in enumerate(keyed)}
    vectors = embedder.encode([q.text for q in keyed])
    near = np.asarray(embedder.encode([p.text for p in asked]) @ vectors.T, dtype=np.float64)
    words = [normal_question(q.text) for q in keyed]
    for row, one in zip(near, asked, strict=True):
        row[[text == normal_question(one.text) for text in words]] = -np.inf
    new = near.copy()
    for row, one in zip(new, asked, strict=True):
        row[[place[i] for i in one.alike if i in place]] = -np.inf
    accepted = [_accepted(q) for q in keyed]
    known, unknown = (_closest(table, asked, accepted) for table in (near, new))
    return [_at(float(c), keyed, asked, known, unknown, examples) for c in sorted(cosines)]


_Found = tuple[NDArray[np.intp], NDArray[np.float64], NDArray[np.bool_]]


def _closest(near: NDArray[np.float64], asked: Sequence[Paraphrase], accepted: Sequence[set[str]]) -> _Found:
    """The closest kept question of each paraphrase, its cosine, and whether its answer is wrong."""
    closest = near.argmax(axis=1)
    wrong = [not _accepted(p.of) & accepted[int(k)] for p, k in zip(asked, closest, strict=True)]
    return closest, near[np.arange(len(near)), closest], np.array(wrong)


def _at(
    cosine: float,
    kept: Sequence[Question],
    asked: Sequence[Paraphrase],
    known: _Found,
    unknown: _Found,
    examples: int,
) -> ParaphraseHits:
    closest, near, wrong = known
    hit, n = near >= cosine, len(asked)
    hits, false = int(hit.sum()), int((hit & wrong).sum())
    served = scipy.stats.binomtest(hits - false, n).proportion_ci(0.95, "exact")
    among = scipy.stats.binomtest(false, hits).proportion_ci(0.95, "exact") if hits else None
    shown = [int(k) for k in np.argsort(-near, kind="stable") if hit[k] and wrong[k]][:examples]
    new = unknown[1] >= cosine
    return ParaphraseHits(
        cosine,
        n,
        hits,
        false,
        (hits - false) / n,
        float(served.low),
        float(served.high),
        false / hits if hits else None,
        None if among is None else float(among.low),
        None if among is None else float(among.high),
        int(new.sum()),
        int((new & unknown[2]).sum()),
        tuple((asked[k].text, kept[int(closest[k])].text) for k in shown),
    )


def _accepted(question: Question) -> set[str]:
    return {normalize_answer(a) for a in question.answers} or {""}


def _different(questions: Sequence[Question]) -> list[Question]:
    """Those with a key, once where they are the same word for word."""
    found: dict[str, Question] = {}
    for question in questions:
        if question.answers or question.type == "unanswerable":
            found.setdefault(normal_question(question.text), question)
    return list(found.values())
