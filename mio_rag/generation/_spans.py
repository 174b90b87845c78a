"""Finding typed spans in plain English: sentences, names, dates, numbers with units.

Regular expressions only, so that the extractive generator is deterministic and needs no weights. They know the
usual forms, not all of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Span", "dates", "names", "numbers", "sentences", "stem", "stems", "words", "year"]

_MONTH = (
    r"(?:January|February|March|April|May|June|July|August|September|October|November|December"
    r"|Jan\.?|Feb\.?|Mar\.?|Apr\.?|Jun\.?|Jul\.?|Aug\.?|Sept?\.?|Oct\.?|Nov\.?|Dec\.?)"
)
_YEAR = r"(?:1[0-9]{3}|20[0-9]{2})"
_ERA = r"(?:\s?(?:BCE|BC|CE|AD)\b)"
_DATE = re.compile(
    rf"\b(?:[0-9]{{1,2}}(?:st|nd|rd|th)?\s+{_MONTH},?\s+{_YEAR}"
    rf"|{_MONTH}\s+[0-9]{{1,2}}(?:st|nd|rd|th)?,?\s+{_YEAR}"
    rf"|{_MONTH},?\s+{_YEAR}"
    rf"|[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}"
    rf"|[0-9]{{1,4}}{_ERA}|(?:AD\s)[0-9]{{1,4}}"
    rf"|(?:[0-9]{{1,2}}(?:st|nd|rd|th)|first|second|third|[a-z]+teenth|twentieth|twenty-first)\s+century{_ERA}?"
    rf"|{_YEAR}s|{_YEAR}(?![0-9.,]*[0-9])(?!\s?(?:%|percent\b|k?m\b|kg\b|(?:kilo)?met(?:re|er)s?\b|people\b)))",
)
_WORD_NUMBER = (
    r"(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen"
    r"|seventeen|eighteen|nineteen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|hundred|dozen)"
)
_SCALE = {"hundred": 1e2, "thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}
# Unit -> factor to the base unit of its kind; only ratios within one kind matter.
_UNIT = {
    "km/h": 1, "mph": 1.609344,
    "mm": 1e-3, "cm": 1e-2, "m": 1, "km": 1e3, "ft": 0.3048, "feet": 0.3048, "foot": 0.3048, "inch": 0.0254,
    "inches": 0.0254, "mile": 1609.344, "miles": 1609.344, "mi": 1609.344, "yards": 0.9144,
    "metre": 1, "metres": 1, "meter": 1, "meters": 1, "kilometre": 1e3, "kilometres": 1e3, "kilometer": 1e3,
    "kilometers": 1e3, "centimetres": 1e-2, "centimeters": 1e-2, "millimetres": 1e-3, "millimeters": 1e-3,
    "g": 1, "kg": 1e3, "kilograms": 1e3, "grams": 1, "tonnes": 1e6, "tons": 1e6, "pounds": 453.592, "lb": 453.592,
    "seconds": 1, "minutes": 60, "hours": 3600, "days": 86400, "weeks": 604800, "months": 2.63e6, "years": 3.156e7,
    "year": 3.156e7, "hectares": 1e4, "acres": 4047, "litres": 1, "liters": 1, "percent": 1, "%": 1,
    "degrees": 1, "°C": 1, "°F": 1, "people": 1, "inhabitants": 1, "dollars": 1, "euros": 1,
}  # fmt: skip
_UNITS = "|".join(re.escape(unit) for unit in sorted(_UNIT, key=len, reverse=True))
_NUMBER = re.compile(
    r"(?<![\w.])(?P<sign>[$€£]\s?)?"
    rf"(?P<value>[0-9]{{1,3}}(?:,[0-9]{{3}})+(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|\b{_WORD_NUMBER}\b(?!\sof\b))"
    rf"(?P<scale>[\s-](?:{'|'.join(_SCALE)})\b)?"
    rf"(?P<unit>[\s-]?(?:(?:square|cubic)\s)?(?:{_UNITS})(?![\w]))?(?![0-9])",
    re.IGNORECASE,
)
_SMALL = {
    word: value
    for value, word in enumerate(
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
        "seventeen eighteen nineteen".split()
    )
} | {"twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90,
     "hundred": 100, "dozen": 12}  # fmt: skip

_CAPITAL = r"(?:(?:[A-Z]\.\s?)+(?=[A-Z])|(?:St|Mt|Dr)\.\s|[A-ZÀ-ÖØ-Þ][\w’'&-]*)"
_LINK = r"(?:(?:of|de|van|von|der|da|la|le|di|del|du|al|bin|ibn)\s(?:(?:la|der)\s)?)"
_NAME = re.compile(rf"{_CAPITAL}(?:\s*(?<=[.\s])(?:{_LINK})?{_CAPITAL})*")
_ABBREVIATION = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|St|Mt|Prof|Jr|Sr|vs|ca|No|Inc|Ltd|Co|approx)|\b[A-Z])\.$")
_BREAK = re.compile(r"(?<=[.!?])[\"'”’)\]]*\s+(?=[\"'“‘(\[]?[A-Z0-9À-ÖØ-Þ])|\n+")
_STOP = frozenset(
    "a an the this that these those it its he she they his her their we our you your i my in on at of to from by for "
    "with as and or but not no nor so if then than when where while which who whom whose what why how is are was were "
    "be been being am do does did has have had can could will would shall should may might must there here after "
    "before during since until although though because however also both all some many most more such other another "
    "each every one about into over under between through".split()
)
_CALENDAR = re.compile(
    rf"^(?:{_MONTH}|Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday)$|^(?:BCE?|CE|AD)$"
)


@dataclass(frozen=True)
class Span:
    """A piece of a sentence: characters [start, end), its text, and its value where it is a quantity.

    Dates have the year as value (negative before the common era); numbers have their amount in base units.
    """

    start: int
    end: int
    text: str
    value: float | None = None
    unit: str = ""


def words(text: str) -> list[str]:
    """Words in lower case, stop words left out."""
    return [word for word in re.findall(r"[^\W_]+", text.lower()) if word not in _STOP and word != "s"]


def stem(word: str) -> str:
    """A light English stem: -s, -ed, -ing and a last -e are cut from words long enough to bear it."""
    if word.endswith("ies") and len(word) >= 5:
        return word[:-3] + "y"
    for ending, least in (("ing", 6), ("ed", 5), ("es", 5), ("s", 4)):
        if word.endswith(ending) and len(word) >= least and not word.endswith("ss"):
            return word[: -len(ending)]
    return word[:-1] if word.endswith("e") and len(word) >= 4 else word


def stems(text: str) -> set[str]:
    """Stems of the words of a text."""
    return {stem(word) for word in words(text)}


def sentences(text: str) -> list[str]:
    """Sentences of a text, in order; initials and common abbreviations do not end one."""
    parts: list[str] = []
    start = 0
    for match in _BREAK.finditer(text):
        if "\n" not in match.group() and _ABBREVIATION.search(text[start : match.start()]):
            continue
        parts.append(text[start : match.end()].strip())
        start = match.end()
    parts.append(text[start:].strip())
    return [part for part in parts if part]


def year(text: str) -> float | None:
    """The year of a date (of a century its first), negative before the common era; None without one."""
    match = re.search(_YEAR, text)
    if match is None:
        match = re.search(r"[0-9]{1,4}", text)
    if match is None:
        return None
    number = float(match.group())
    if "century" in text:
        number = (number - 1) * 100
    return -number if re.search(r"BC", text) else number


def dates(sentence: str) -> list[Span]:
    """Dates, years, decades and centuries, in order."""
    return [Span(m.start(), m.end(), m.group(), year(m.group())) for m in _DATE.finditer(sentence)]


def numbers(sentence: str) -> list[Span]:
    """Numbers with their scale and unit, in order; those inside dates are left out."""
    taken = [(d.start, d.end) for d in dates(sentence)]
    spans = []
    for m in _NUMBER.finditer(sentence):
        if any(m.start() < end and start < m.end() for start, end in taken):
            continue
        raw, scale, unit = (
            m["value"].lower(),
            (m["scale"] or "").strip(" -").lower(),
            (m["unit"] or "").strip(" -"),
        )
        amount = float(_SMALL[raw]) if raw in _SMALL else float(raw.replace(",", ""))
        factor = _UNIT.get(unit.lower(), _UNIT.get(unit, 1)) if unit else 1
        spans.append(
            Span(m.start(), m.end(), m.group().strip(), amount * _SCALE.get(scale, 1) * factor, unit)
        )
    return spans


def names(sentence: str, ordinary: frozenset[str] = frozenset()) -> list[Span]:
    """Capitalised spans, in order: names of people, places and things.

    Parameters
    ----------
    ordinary : frozenset of str
        Words that the context also writes in lower case: alone at the start of a sentence they are no name.
    """
    spans = []
    for m in _NAME.finditer(sentence):
        start, text = m.start(), m.group()
        while (head := re.match(r"[\w’'-]+\s+|[\w’'-]+$", text)) and head.group().strip().lower() in _STOP:
            start, text = start + head.end(), text[head.end() :]
        text = re.sub(r"(?:['’]s?|[-&])$", "", text.strip())
        opening = not sentence[:start].strip(" \"'“‘([")
        if (
            not text
            or not text[0].isupper()
            or _CALENDAR.match(text)
            or (opening and text.lower() in ordinary)
        ):
            continue
        spans.append(Span(start, start + len(text), text))
    return spans
