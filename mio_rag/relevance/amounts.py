"""Amounts: which questions ask for one, and which texts hold one.

A question asks for an amount with "how much" and the like, or with a word that names something measured or
counted in money: a price, revenue, a population. Which words these are was decided by hand. What a sentence
with an amount is then worth was fitted (`python -m benchmarks sentences`). Years and days are no amounts.
"""

from __future__ import annotations

import re

from mio_rag.types import Question

__all__ = ["answer_figures", "asks_amount", "figures", "holds_amount"]

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


_ASKS = re.compile(
    r"\bhow (?:many|much|long|old|far|tall|large|big|high|deep|fast|heavy|often)\b|\b(?:"
    + "|".join(map(_either_number, (*_MEASURED.split(), *_MONEY.split())))
    + r")\b",
    re.IGNORECASE,
)
_HOLDS = re.compile(
    rf"[$€£¥]\s*\d|\d[\d,]*\.\d|\d{{1,3}}(?:,\d{{3}})+|\d\s*%|\b\d+\s*(?:{_UNITS})\b", re.IGNORECASE
)


def asks_amount(question: str) -> bool:
    """Whether a question asks for an amount, or is about something that is told in amounts."""
    return _ASKS.search(question) is not None


def holds_amount(text: str) -> bool:
    """Whether a text holds a sum of money, a share in percent, a decimal or a number of thousands or more."""
    return _HOLDS.search(text) is not None


_FIGURE = re.compile(r"\d[\d,]*(?:\.\d+)?")
_OF_A_DATE = re.compile(r"[12]?\d|3[01]|(?:19|20)\d\d")


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
