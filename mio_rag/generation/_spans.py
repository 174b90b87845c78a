"""Finding typed spans in plain English: sentences, names, dates, numbers with units.

Regular expressions only, so that the extractive generator is deterministic and needs no weights. They know
the usual forms, not all of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from mio_rag.sentences import sentence_spans

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
    rf"|(?:[0-9]{{1,2}}(?:st|nd|rd|th)|[a-z]+teenth|twentieth|twenty-first)\s+century{_ERA}?"
    # A bare number in the range of years is one unless it goes on, or counts something.
    rf"|{_YEAR}s|{_YEAR}(?![0-9.,]*[0-9])(?!\s?(?:%|percent\b|k?m\b|kg\b|(?:kilo)?met(?:re|er)|people\b)))"
)
_WORD_NUMBER = (
    r"(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen"
    r"|seventeen|eighteen|nineteen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|hundred|dozen)"
)
_SCALE = {"hundred": 1e2, "thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}
# Kind -> units with their factor to the kind's base unit. Quantities of different kinds cannot be compared.
_KINDS = {
    "length": "mm .001 cm .01 centimetres .01 centimeters .01 inch .0254 inches .0254 ft .3048 feet .3048 "
    "foot .3048 yards .9144 m 1 metre 1 metres 1 meter 1 meters 1 km 1e3 kilometre 1e3 kilometres 1e3 "
    "kilometer 1e3 kilometers 1e3 mi 1609.344 mile 1609.344 miles 1609.344",
    "mass": "g 1 grams 1 kg 1e3 kilograms 1e3 lb 453.592 pounds 453.592 tonnes 1e6 tons 1e6",
    "time": "seconds 1 minutes 60 hours 3600 days 86400 weeks 604800 months 2.63e6 year 3.16e7 years 3.16e7",
    "speed": "km/h 1 mph 1.609344",
    "area": "acres 4047 hectares 1e4",
    "volume": "litres 1 liters 1",
    "share": "% 1 percent 1",
    "angle": "degrees 1 °C 1 °F 1",
    "count": "people 1 inhabitants 1",
    "money": "dollars 1 euros 1",
}
_UNIT = {
    unit.lower(): (kind, float(factor))
    for kind, table in _KINDS.items()
    for unit, factor in zip(table.split()[::2], table.split()[1::2], strict=True)
}
_UNITS = "|".join(re.escape(unit) for unit in sorted(_UNIT, key=len, reverse=True))
_NUMBER = re.compile(
    r"(?<![\w.])(?P<sign>[$€£]\s?)?"
    rf"(?P<value>[0-9]{{1,3}}(?:,[0-9]{{3}})+(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|\b{_WORD_NUMBER}\b(?!\sof\b))"
    rf"(?P<scale>[\s-](?:{'|'.join(_SCALE)})\b)?"
    rf"(?P<unit>[\s-]?(?:(?:square|cubic)\s)?(?:{_UNITS})(?![\w]))?(?![0-9])",
    re.IGNORECASE,
)
_ONE_TO_NINETEEN = (
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_SMALL = {
    **{word: n for n, word in enumerate(_ONE_TO_NINETEEN.split(), start=1)},
    **{word: 10 * n for n, word in enumerate(_TENS.split(), start=2)},
    "hundred": 100,
    "dozen": 12,
}

_CAPITAL = r"(?:(?:[A-Z]\.\s?)+(?=[A-Z])|(?:St|Mt|Dr)\.\s|[A-ZÀ-ÖØ-Þ][\w’'&-]*)"
_LINK = r"(?:(?:of|de|van|von|der|da|la|le|di|del|du|al|bin|ibn)\s(?:(?:la|der)\s)?)"
_NAME = re.compile(rf"{_CAPITAL}(?:\s*(?<=[.\s])(?:{_LINK})?{_CAPITAL})*")
_HEAD = re.compile(r"[\w’'-]+(?:\s+|$)")
_STOP_WORDS = (
    "a an the this that these those it its he she they his her their we our you your i my in on at of to "
    "from by for with as and or but not no nor so if then than when where while which who whom whose what "
    "why how is are was were be been being am do does did has have had can could will would shall should may "
    "might must there here after before during since until although though because however also both all "
    "some many most more such other another each every one about into over under between through"
)
_STOP = frozenset(_STOP_WORDS.split())
_CALENDAR = re.compile(
    rf"^(?:{_MONTH}|Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday)$|^(?:BCE?|CE|AD)$"
)


@dataclass(frozen=True)
class Span:
    """A piece of a sentence: characters [start, end), its text, and its value where it is a quantity.

    Dates have the year as value (negative before the common era) and kind "date"; numbers have their amount
    in the base unit of their kind, for instance metres for "length", and kind "" without a unit.
    """

    start: int
    end: int
    text: str
    value: float | None = None
    kind: str = ""


def words(text: str) -> list[str]:
    """Words in lower case, stop words left out."""
    return [word for word in re.findall(r"[^\W_]+", text.lower()) if word not in _STOP and word != "s"]


@cache
def _stemmer() -> type[Any]:
    # Its own class: the package's `stemmer()` takes PyStemmer where that is installed, of whatever version.
    from snowballstemmer.english_stemmer import EnglishStemmer

    return EnglishStemmer  # type: ignore[no-any-return]


@lru_cache(maxsize=65536)
def stem(word: str) -> str:
    """The stem of an English word in lower case, by Snowball's English stemmer ("Porter 2")."""
    return str(
        _stemmer()().stemWord(word)
    )  # one a call: it keeps its place in the word, and threads share it


def stems(text: str) -> set[str]:
    """Stems of the words of a text."""
    return {stem(word) for word in words(text)}


def sentences(text: str) -> list[str]:
    """Sentences of a text, in order; initials and common abbreviations do not end one."""
    return [text[start:end] for start, end in sentence_spans(text)]


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
    return [Span(m.start(), m.end(), m.group(), year(m.group()), "date") for m in _DATE.finditer(sentence)]


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
        # "square km" and "km" are of different kinds; the word before the unit becomes part of the kind.
        power, _, base = unit.lower().rpartition(" ")
        kind, factor = _UNIT.get(base, ("", 1.0))
        kind = "money" if m["sign"] else f"{power} {kind}".strip()
        spans.append(
            Span(m.start(), m.end(), m.group().strip(), amount * _SCALE.get(scale, 1) * factor, kind)
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
        while (head := _HEAD.match(text)) and head.group().strip().lower() in _STOP:
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
