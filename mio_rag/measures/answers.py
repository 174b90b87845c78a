"""Measures of an answer: SQuAD's, ROUGE-L, and the accuracy of a choice."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from mio_rag.measures.measure import Column, Frontier, Measure, Page, Use
from mio_rag.measures.rouge import rouge_l
from mio_rag.types import Question

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Lower case, without punctuation, articles and extra blanks (the SQuAD evaluation's rule)."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """1 if the normalised prediction equals an accepted answer; with no accepted answer, 1 if it is empty."""
    given = normalize_answer(prediction)
    return float(any(given == normalize_answer(a) for a in answers or ("",)))


def token_f1(prediction: str, answers: Sequence[str]) -> float:
    """Largest F1 of the bags of normalised words over the accepted answers.

    Where either side has no words, 1 if both have none and 0 otherwise.
    """
    return max(
        _f1(normalize_answer(prediction).split(), normalize_answer(a).split()) for a in answers or ("",)
    )


def _f1(given: list[str], gold: list[str]) -> float:
    if not given or not gold:
        return float(given == gold)
    shared = sum((Counter(given) & Counter(gold)).values())
    return 2 * shared / (len(given) + len(gold))


def _rouge_l(question: Question, prediction: str) -> float:
    return max(rouge_l(answer, prediction) for answer in question.answers)


def chosen_right(question: Question, choice: int) -> float:
    """1 if the chosen option is an accepted answer.

    Word for word if any option is one, since "1.5" and "15" are alike once normalised.
    """
    accepted = {a.strip() for a in question.answers}
    options = [k for k, option in enumerate(question.choices) if option.strip() in accepted]
    return float(choice in options) if options else exact_match(question.choices[choice], question.answers)


def _answerable(question: Question) -> bool:
    return bool(question.answers)


def _has_key(question: Question) -> bool:
    return bool(question.answers) or question.type == "unanswerable"


def right(row: Mapping[str, Any]) -> float | None:
    """Whether the answer of a row is right: of a choice its accuracy, otherwise its exact match."""
    value: float | None = row.get("exact_match") if row.get("accuracy") is None else row["accuracy"]
    return value


_SQUAD = "Rajpurkar et al., EMNLP 2016 and ACL 2018 (SQuAD 1.1 and 2.0)"

#: In the order of the ledger.
ANSWERS = (
    Measure(
        "exact_match",
        "Exact match",
        "the answer equals a gold answer after normalisation",
        of="answer",
        better="higher",
        unit="0 to 1",
        source=_SQUAD,
        compute=lambda question, text: exact_match(text, question.answers),
        labelled=_has_key,
        place=40,
        console=Column("exact match", interval=True, always=True),
        page=Page(50, core=True, headline=6),
        frontier=Frontier(Use.POINT, place=80),
    ),
    Measure(
        "token_f1",
        "Token F1",
        "word overlap of the answer with the best gold answer",
        of="answer",
        better="higher",
        unit="0 to 1",
        source=_SQUAD,
        compute=lambda question, text: token_f1(text, question.answers),
        labelled=_has_key,
        place=50,
        console=Column("F1", interval=True, always=True),
        page=Page(40, core=True, headline=4),
        frontier=Frontier(Use.CONSOLE, "Answer F1", place=70),
    ),
    Measure(
        "rouge_l",
        "ROUGE-L",
        "longest common subsequence with the best gold answer",
        of="answer",
        better="higher",
        unit="0 to 1",
        source="Lin, ACL Workshop on Text Summarization 2004 (F-measure, that of rouge-score)",
        compute=_rouge_l,
        labelled=_answerable,
        place=55,
        console=None,
        page=Page(90),
        frontier=Frontier(Use.NONE),
    ),
    Measure(
        "accuracy",
        "Accuracy",
        "the right option was chosen",
        of="choice",
        better="higher",
        unit="0 to 1",
        source="share of right choices, as multiple-choice question sets report it",
        compute=chosen_right,
        labelled=lambda question: bool(question.choices and question.answers),
        place=60,
        console=Column(interval=True, always=True),
        page=Page(55, core=True, headline=5),
        frontier=Frontier(Use.NONE),
    ),
)
