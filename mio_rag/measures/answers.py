"""Measures of an answer: SQuAD's, ROUGE-L, the accuracy of a choice; costs and proofs, which runs record."""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from mio_rag.documents.east_asian import NO_SPACES
from mio_rag.measures.measure import Column, Frontier, Measure, Page, Use, has_answer, has_key
from mio_rag.types import Question

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
#: Scripts without blanks between words, whose characters are words (as in MLQA), and forms of full width.
_WIDE, _ALONE = re.compile(f"[{NO_SPACES}\uff01-\uff9f]"), re.compile(f"([{NO_SPACES}])")
_WIDE_SIGNS = re.compile("[\u3001-\u3004\u3008-\u301f\u30fb]")
_WORD = re.compile(r"[a-z0-9]+")


def normalize_answer(text: str) -> str:
    """Return lower case without punctuation, articles and extra blanks, as the SQuAD evaluation does.

    Characters of scripts without blanks between words are words.
    """
    if _WIDE.search(text):
        text = _ALONE.sub(r" \1 ", _WIDE_SIGNS.sub(" ", unicodedata.normalize("NFKC", text)))
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


_NUMBER = re.compile(
    r"(?<![\w.,])(?:([1-9]\d{0,2}(?:,\d{3})+|\d+)(?:\.(\d+))?|(\d{1,3}(?:\.\d{3})+|\d+),(\d+))(?!\d|[.,]\d)"
)


def by_value(text: str) -> str:
    """Write numbers alike that have the same value: "178.00" as 178, "1.410,50" as 1410\u00b75.

    What may be thousands or a fraction, "1.410", stays.
    """

    def written(match: re.Match[str]) -> str:
        whole, part = match[1] or match[3], match[2] or match[4] or ""
        if match[2] and len(part) == 3 and whole.isdecimal() and 0 < int(whole) < 1000:
            return match[0]
        part = part.rstrip("0")
        return re.sub("[.,]", "", whole) + (f"\u00b7{part}" if part else "")

    return _NUMBER.sub(written, text)


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """1 if the normalised prediction equals an accepted answer; with no accepted answer, 1 if it is empty."""
    given = normalize_answer(prediction)
    return float(any(given == normalize_answer(a) for a in answers or ("",)))


def token_f1(prediction: str, answers: Sequence[str]) -> float:
    """Largest F1 of the bags of normalised words over the accepted answers.

    Where either side has no words, 1 if both have none and 0 otherwise.
    """
    given = normalize_answer(prediction).split()
    scores = []
    for answer in answers or ("",):
        gold = normalize_answer(answer).split()
        shared = sum((Counter(given) & Counter(gold)).values())
        scores.append(2 * shared / (len(given) + len(gold)) if given and gold else float(given == gold))
    return max(scores)


def rouge_l(accepted: str, prediction: str) -> float:
    """F-measure of the longest common subsequence of words, in [0, 1]; 0 where a text has no word.

    Words are runs of a to z and 0 to 9 in lower case, without stemming (Lin, 2004). The package rouge-score
    computes the same, but loads nltk, pandas and scikit-learn for it, which takes seconds.
    """
    one, other = _WORD.findall(accepted.lower()), _WORD.findall(prediction.lower())
    before = [0] * (len(other) + 1)  # longest common subsequences of the words so far
    for word in one:
        row = [0]
        for k, candidate in enumerate(other):
            row.append(before[k] + 1 if word == candidate else max(row[k], before[k + 1]))
        before = row
    return 2 * before[-1] / (len(one) + len(other)) if before[-1] else 0.0


_FIGURE = re.compile(r"(?<![\w.])(\d+(?:,\d{3})*(?:\.\d+)?|\.\d+)(?![\d,]*-?[a-z])\s?(%|[a-z]+)?", re.I)
_NO_FIGURE = re.compile(
    r"^\s*\d+[.)]\s|\b(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.? \d{1,2}\b", re.I | re.M
)  # places in a list, days
_SCALES = {"thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12, "bn": 1e9, "percent": 1e-2,
           "%": 1e-2}  # fmt: skip


def figures(text: str) -> list[float]:
    """Return the figures of a text, scaled by what follows them; years only where there is nothing else."""
    found, years = list[float](), list[float]()
    for digits, after in _FIGURE.findall(_NO_FIGURE.sub(" ", text)):
        scale = _SCALES.get(after.lower(), 1.0)
        is_year = scale == 1 and re.fullmatch(r"(19|20)\d\d", digits)
        (years if is_year else found).append(float(digits.replace(",", "")) * scale)
    return found or years


def figure_match(text: str, answers: Sequence[str]) -> float | None:
    """Largest share of the figures of an accepted answer that a text states; None where no answer has any."""
    stated, shares = figures(text), list[float]()
    for wanted in filter(None, map(figures, answers)):
        near = [any(abs(one - other) <= 1e-3 * one for other in stated) for one in wanted]
        shares.append(sum(near) / len(near))
    return max(shares, default=None)


def chosen_right(question: Question, choice: int) -> float:
    """1 if the chosen option is an accepted answer.

    Word for word if any option is one, since "1.5" and "15" are alike once normalised.
    """
    accepted = {a.strip() for a in question.answers}
    options = [k for k, option in enumerate(question.choices) if option.strip() in accepted]
    return float(choice in options) if options else exact_match(question.choices[choice], question.answers)


def right(row: Mapping[str, Any]) -> float | None:
    """Whether the answer of a row is right: the accuracy of a choice, otherwise the exact match."""
    value: float | None = row.get("exact_match") if row.get("accuracy") is None else row["accuracy"]
    return value


_SQUAD = "Rajpurkar et al., EMNLP 2016 and ACL 2018 (SQuAD 1.1 and 2.0)"
_answer = partial(Measure, of="answer", better="higher", unit="0 to 1")

#: In the order of the ledger.
ANSWERS = (
    _answer(
        "exact_match", "Exact match", "the answer equals a gold answer after normalisation",
        source=_SQUAD, compute=lambda question, text: exact_match(text, question.answers), labelled=has_key,
        place=40, console=Column("exact match", always=True),
        page=Page(50, core=True, headline=7), frontier=Frontier(Use.POINT, place=80),
    ),
    _answer(
        "token_f1", "Token F1", "word overlap of the answer with the best gold answer",
        source=_SQUAD, compute=lambda question, text: token_f1(text, question.answers), labelled=has_key,
        place=50, console=Column("F1", always=True),
        page=Page(40, core=True, headline=5), frontier=Frontier(Use.CONSOLE, "Answer F1", place=70),
    ),
    _answer(
        "rouge_l", "ROUGE-L", "longest common subsequence with the best gold answer",
        source="Lin, ACL Workshop on Text Summarization 2004 (F-measure, that of rouge-score)",
        compute=lambda question, text: max(rouge_l(answer, text) for answer in question.answers),
        labelled=has_answer, place=55, console=None, page=Page(90), frontier=Frontier(Use.NONE),
    ),
    _answer(
        "figure_match", "Figures stated", "share of the figures of a gold answer that it states",
        source="numbers with their scale (million, %), equal to .1 %; years where there are no others",
        compute=lambda question, text: figure_match(text, question.answers),
        labelled=lambda question: any(map(figures, question.answers)), compared=False, place=57, console=None,
        page=Page(93, judged=False), frontier=Frontier(Use.NONE),
    ),
    Measure(
        "accuracy", "Accuracy", "the right option was chosen", of="choice", better="higher", unit="0 to 1",
        source="share of right choices, as multiple-choice question sets report it", compute=chosen_right,
        labelled=lambda question: bool(question.choices and question.answers), place=60,
        console=Column(always=True), page=Page(55, core=True, headline=6),
        frontier=Frontier(Use.NONE),
    ),
)  # fmt: skip


_CLOCK = "wall clock of the machine that ran it"
_READER = "counted by the reader's tokenizer"
_RUN = "counted by the run"
_POINT = Frontier(Use.POINT)


def _recorded(name: str, label: str, meaning: str, unit: str, source: str, **more: Any) -> Measure:
    """Make a cost; it is shown only where `more` says so."""
    hidden: dict[str, Any] = {
        "of": "cost", "better": "lower", "compared": False, "console": None, "page": None,
        "frontier": Frontier(Use.NONE),
    }  # fmt: skip
    return Measure(name, label, meaning, unit=unit, source=source, **{**hidden, **more})


def _seconds(stage: str, doing: str, **more: Any) -> Measure:
    label = f"{stage.capitalize()} seconds"
    return _recorded(f"{stage}_seconds", label, f"wall time of {doing}", "seconds", _CLOCK, **more)


_page = partial(Page, judged=False, card=False)

#: In the order of the summary.
COSTS = (
    _recorded(
        "tokens_used", "Context tokens", "tokens of the selected passages, as the reader counts them",
        "tokens", _READER, whole=True, place=70, compared=True,
        console=Column("context tokens", always=True), page=_page(70, core=True), frontier=_POINT,
    ),
    _recorded(
        "passages_selected", "Passages", "passages selected", "passages", _RUN,
        better="none", whole=True, page=_page(170), frontier=_POINT,
    ),
    _recorded(
        "prompt_tokens", "Prompt tokens", "tokens into the model, over all calls", "tokens", _READER,
        whole=True, place=110, console=Column(), page=_page(180),
    ),
    _recorded(
        "completion_tokens", "Completion tokens", "tokens of the answer", "tokens", _READER,
        whole=True, page=_page(190),
    ),
    _recorded(
        "gap", "Certified gap", "distance from the proven bound, relative to the objective", "0 to 1",
        "bound of the solver over the objective that is recomputed from the decision", page=_page(195),
    ),
    _seconds("solve", "the solver", frontier=_POINT),
    _seconds("retrieve", "the retriever"),
    _seconds("select", "building and solving the program", place=150, console=Column("select s")),
    _seconds("generate", "writing the answer", place=160, console=Column("generate s")),
    _seconds("decompose", "asking for a query"),
    _seconds("reason", "reasoning steps"),
    _seconds("measure", "measuring uncertainty"),
    _recorded(
        "total_seconds", "Total time", "wall time of the question, all stages", "seconds", _CLOCK,
        place=120, console=Column("seconds", "{:.2f}"), page=_page(240),
    ),
    _recorded(
        "retrieval_calls", "Retrievals", "calls of the retriever", "calls", _RUN,
        whole=True, place=90, console=Column(), page=_page(220),
    ),
    _recorded(
        "lm_calls", "Model calls", "calls of the language model", "calls", _RUN,
        whole=True, place=100, console=Column("LM calls"), page=_page(210),
    ),
    _recorded(
        "steps", "Steps", "actions that a controller took before the answer", "steps", _RUN,
        whole=True, place=80, console=Column(always=True), page=_page(200),
    ),
    _recorded(
        "uncertainty", "Uncertainty", "of a controller when it stopped: 0 is certain", "0 to 1",
        "tracked or measured by the controller", better="none", page=_page(230),
    ),
    _recorded(
        "dollars", "Dollars", "price of the tokens in and out, where prices are given", "dollars",
        "tokens of each model times its price", console=Column(form="{:.3g}", always=True), page=_page(250),
    ),
    _recorded(
        "tokens_per_correct", "Tokens per correct", "tokens in and out per right answer", "tokens",
        "ratio of the sums over all questions with a known answer", of="run", place=130,
        console=Column("tokens / correct"), page=Page(80, core=True, card=False),
    ),
)  # fmt: skip
