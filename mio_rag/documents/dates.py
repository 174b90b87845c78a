"""Days, months and years in texts, titles, names of files and questions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from functools import lru_cache
from typing import Any, NamedTuple

from mio_rag.documents import east_asian
from mio_rag.documents.east_asian import narrow_digits
from mio_rag.sentences import Names, asks_for_changes, edition, is_replaced_kind, is_series, pattern
from mio_rag.types import check_date, moment

_MONTHS = {
    name: k + 1
    for k, names in enumerate(
        [
            "january jan janvier januar enero gennaio janeiro januari января январь stycznia",
            "february feb février februar febrero febbraio fevereiro februari февраля февраль lutego",
            "march mar mars märz marzo março maart марта март marca",
            "april apr avril abril aprile апреля апрель kwietnia",
            "may mai mayo maggio maio mei мая май maja",
            "june jun juin juni junio giugno junho июня июнь czerwca",
            "july jul juillet juli julio luglio julho июля июль lipca",
            "august aug août agosto augustus августа август sierpnia",
            "september sep sept septembre septiembre settembre setembro сентября сентябрь września",
            "october oct octobre oktober octubre ottobre outubro октября октябрь października",
            "november nov novembre noviembre novembro ноября ноябрь listopada",
            "december dec décembre dezember diciembre dicembre dezembro декабря декабрь grudnia",
        ]
    )
    for name in names.split()
}
_DAY = pattern(
    r"\b(?:(?P<y>(?:19|20)\d\d)[-/._](?P<m>\d\d?)[-/._](?P<d>\d\d?)(?!\d)|(?P<d2>\d\d?)\.\s?(?P<m2>\d\d?)\.\s?(?P<y2>(?:19|20)\d\d)"
    r"|(?P<w3>[^\W\d_]{3,12})\.?\s(?P<d3>\d\d?)(?:st|nd|rd|th)?,?\s(?P<y3>(?:19|20)\d\d)"
    r"|(?P<d4>\d\d?)(?:st|nd|rd|th|er|\.)?\s(?:de\s)?(?P<w4>[^\W\d_]{3,12})\.?,?\s(?:de\s)?(?P<y4>(?:19|20)\d\d)"
    r"|(?P<w5>[^\W\d_]{3,12})\s(?P<y5>(?:19|20)\d\d))\b"
    rf"|{east_asian.DAY}"
)
STATED = pattern(
    r"(?:\b(?:last\s+)?(?:updated|modified|revised|revision|reviewed|effective|published|issued|amended"
    r"|approved|adopted|signed|aktualisiert|veröffentlicht|genehmigt|beschlossen|publié|approuvé|aprobado"
    r"|publicado|aggiornato|approvato|pubblicato|atualizado|aprovado|bijgewerkt|zaktualizowano|обновлено"
    r"|утвержден[оаы]?|опубликовано|действует)\b"
    r"|\b(?:dated|(?:date|datum|fecha|data|дата(?: обновления| публикации)?) ?:|version of|valid"
    r"|appl(?:ies|icable)|in (?:force|effect|kraft)|inkrafttreten|stand"
    r"|fassung vom|g\u00fcltig|rev(?:ision)?\.? ?\d{1,3},|mis \u00e0 jour|en vigueur|vigente)"
    rf"|{east_asian.STATED})"
    r"(?: by (?:[\w.]+ ){1,6}?(?=on ))?[\s:\uff1a(\uff08]*"
    r"(?:(?:on|date|as of|from|of|le|el|il|em|op|am|vom|since|ab dem"
    r"|ab|seit dem|seit|с|от)[\s:]+)?(?:[^\W\d_]{2,10}\.?, )?",
    re.IGNORECASE,
)

#: What before "date:" makes it no date of the document.
OTHER_DATE = pattern(
    r"\b(?:application|arrival|birth|closing|completion|delivery|departure|due|end|expir(?:y|ation)|next"
    r"|renewal|review|start|submission|target|travel)\s*$",
    re.IGNORECASE,
)


def day_in(text: str, at: int = 0, *, whole: bool = False) -> str:
    """The day or month that a text names from a place on, ISO 8601; blank if it names none there.

    whole: look for it anywhere behind that place.
    """
    text = text[:at] + narrow_digits(text[at:])
    found = _DAY.search(text, at) if whole else _DAY.match(text, at)
    if found is None:
        return ""
    parts = {name[0]: value for name, value in found.groupdict().items() if value}
    if found["era"]:
        parts["y"] = str(east_asian.ERAS[found["era"]] + (1 if found["n"] == "\u5143" else int(found["n"])))
    month = _MONTHS.get(parts.get("w", "").lower()) or int(parts.get("m", 0))
    day = f"{parts['y']}-{month:02}" + (f"-{int(parts['d']):02}" if "d" in parts else "")
    return day if month and check_date(day) is None else ""


#: What before a day makes it a deadline, or the end of a range or period; what behind it does.
_NOT_OF = pattern(
    r"(?:\d\.?(?:\s*[^\W\d_]+\.?)?\s*(?:[-–—/&〜～至]|to|and|bis|und|et|au|al|a|y)|\b(?:by|until|till|to|before|after"
    r"|since|due|end(?:ed|ing)|bis(?: zum)?|vor(?: dem)?|nach|seit|fällig|avant(?: le)?|jusqu['’]au|depuis"
    r"|hasta(?: el)?|antes del?|desde(?: el)?))\s*(?:the\s+)?$",
    re.IGNORECASE,
)
_GOES_ON = pattern(
    r"\s*(?:[-–—〜～至]\s*\d|(?:to|bis|au|al?)\s+\d|まで|以前|前|迄|から|起|之前)", re.IGNORECASE
)


_LONG_NAME = 6  # words from which a name tells something

_PERIOD = pattern(
    r"(?<![\d.,])(?:(?P<y1>Y)[-._]?(?P<m1>0[1-9]|1[0-2])(?!\w|[-._]\d)"
    r"|(?P<m2>0[1-9]|1[0-2])[-._/](?P<y2>Y)(?!\d)|(?P<y5>Y)[-_ /]*q(?P<q5>[1-4])(?!\w)"
    r"|(?<![^\W_])(?:[qt](?P<q3>[1-4])|(?P<q4>[1-4])(?:\W|st|nd|rd|th|er?)*(?:quart\w+|trimestre))"
    r"[-_ /]*(?:fy)?(?P<y3>Y)|(?<![^\W_])fy[-_ ]?(?P<f6>(?:20)?\d\d)(?!\d))".replace("Y", r"(?:19|20)\d\d"),
    re.IGNORECASE,
)
_YEAR_AT_END = pattern(r"(?:^|(?<=[\s(-]))(?P<y1>(?:19|20)\d\d)(?=\W*$)|^(?P<y2>(?:19|20)\d\d)(?=\W[^\W\d])")


def period_of(text: str, *, year: bool = False) -> str:
    """The one day, else month, quarter (by its last month) or business year that a name states as its own.

    year: also the one year at its beginning or end. Blank for none, several, a deadline, a bound or a range.
    """
    text = narrow_digits(text)
    days = [(found, day_in(found[0])) for found in _DAY.finditer(text)]
    found = [one for one in days if len(one[1]) == len("2025-09-23")] or [one for one in days if one[1]]
    if not found:
        one_year = year and len(re.findall(r"(?<!\d)(?:19|20)\d\d(?!\d)", text)) == 1
        for one in [*_PERIOD.finditer(text)] or [*_YEAR_AT_END.finditer(text)] * one_year:
            parts = {name[0]: value for name, value in one.groupdict().items() if value}
            month = int(parts.get("m", 0)) or 3 * int(parts.get("q", 0))
            named = parts.get("y") or f"20{parts['f'][-2:]}"
            if not month or named[2:] != f"{month - 1:02}":  # 2010-11 may be two years
                found.append((one, f"{named}-{month:02}" if month else named))
    if len({day for _, day in found}) != 1:
        return ""
    (one, day), *_ = found
    return "" if _NOT_OF.search(text[: one.start()]) or _GOES_ON.match(text[one.end() :]) else day


def day_in_name(name: str) -> str:
    """When a document was made, by the name of its file, without its ending; blank where it is unsaid.

    A year alone counts at the beginning or end of a short name, unless it is of what is told or aimed at.
    """
    found = re.search(r"(?<!\d)((?:19|20)\d\d)(\d\d)(\d\d)(?!\d)", name)
    spaced, dashed = re.sub(r"[-_]", " ", name), re.sub(r"[_ ]", "-", name)
    days = [day_in("-".join(found.groups())) if found else "", day_in(dashed, whole=True)]
    return next(filter(None, (*days, period_of(dashed), period_of(spaced), year_of(spaced))), "")


#: The year of these is that of an aim, or of what is told.
_NO_YEAR_OF_ITS_OWN = pattern(
    r"\b(?:vision|agenda|horizon|targets?|goals?|ziele?|towards?|roadmap|strategy|iso|din|en)\b"
    r"|\b(?:of|in|from|since|about|the|von|vom|aus|im|de|del|des|du|en|di|da) (?:19|20)\d\d|\b19\d\d\b",
    re.IGNORECASE,
)


def year_of(name: str) -> str:
    """The year at the beginning or end of a name of a few words, such as "Opening hours 2025"."""
    is_told = len(name.split()) > _LONG_NAME or _NO_YEAR_OF_ITS_OWN.search(name)
    year = period_of(name, year=is_series("", name) or is_replaced_kind("", name) or not is_told)
    return year if len(year) == 4 and int(year) <= date.today().year + 1 else ""


_STAMP = pattern(r"\s*[\[(]?(\d{1,4})([-./])(\d\d?)\2(\d{2,4})(?!\d)")


def last_day(entries: Sequence[str]) -> str:
    """The latest day that the stamps of entries say; blank where days and months cannot be told apart."""
    found = [one.group(1, 3, 4) for entry in entries if (one := _STAMP.match(entry))]
    if any(len(first) < 3 for first, _, _ in found):
        first, second = ({int(one[k]) for one in found} for k in (0, 1))
        if max(first) <= 12 < max(second) or (max(first) <= 12 and len(second) > len(first)):
            found = [(year, month, day) for month, day, year in found]
        elif max(first) > 12 or len(first) > len(second) or "." in entries[0][:12]:
            found = [(year, month, day) for day, month, year in found]
        else:
            return ""
    return max((day_in(f"20{year[-2:]}-{m}-{d}") for year, m, d in found), default="")


class Asked(NamedTuple):
    """The time that a question asks of: what is dated before `end` was known then, and held from its date on.

    start: what is dated later than it came within that time.
    rest: the question with the year alone, or without a time that only bounds it, as "before 2025".
    """

    start: str
    end: str
    rest: str


_AT = pattern(
    r"\b(?:(?P<before>before|prior to|earlier than|vor|avant|antes)|until|till|up to|through|by|in|during|on"
    r"|at|as (?:of|at)|im|bis|zum|am|ende|anfang|mitte|während|en|au|pendant|durant|jusqu['’](?:en|au|à)"
    r"|hasta|durante)"
    r"\b\s+(?P<part>(?:(?:the|early|late|mid|end|start|beginning|middle|course|year|financial|fiscal|summer|winter"
    r"|spring|autumn|fall|first|second|third|fourth|quarter|q[1-4]|half|of|frühjahr|frühling|sommers?|herbst|printemps"
    r"|été|automne|primavera|verano|otoño|dem|den|der|des|das|zum|jahre?s?|anfang|ende|mitte|le|la|l['’]ann\u00e9e|l['’]an"
    r"|fin|d\u00e9but|de|del|el|a\u00f1o|finales)[\s-]+)*)(?P<event>(?(before)(?:[^\W\d_]+\s+){1,4}(?:of|vom|von|de)\s+)?)",
    re.IGNORECASE,
)
_YEAR_ALONE = pattern(r"((?:19|20)\d\d)(?![\d/]|-\d)")
#: Behind "before the contract of 2026": that the time is meant, and not what the contract is to do.
_IS_TIME = pattern(r"\W*$|\s*[,;:?)]|\s+(?:was|were|came|took)\b", re.IGNORECASE)
_BEFORE_VERSION = pattern(
    r"\b(?:before|prior to|earlier than|older than|vor|avant|antes de)(?: (?:the|la))?"
    r" (?:v|version|revision)\s?\d[\d.]*(?: of (?:the|our)(?: [^\W\d_]+){1,3})?"
    r"(?=\W*$|\s*[,;:?)]|\s(?:was|came)\b)",
    re.IGNORECASE,
)
_BACKWARDS = str.maketrans("0123456789", "9876543210")
_LAST_YEAR = pattern(
    r"(?<!the )\blast year\b|\b(?:im )?(?:letzten jahr|vorjahr)\b|\bl['’](?:an dernier|année dernière)\b"
    r"|\bel año pasado\b|去年|昨年",
    re.IGNORECASE,
)
_YEAR_HAN = pattern(r"(?<!\d)((?:19|20)\d\d)\s?年")
_BEFORE_HAN = pattern(r"(?:より|的|の)?(?:以前|之前|前)")


#: Parts of a year, their first and their last month.
_PARTS = (
    ("spring|frühjahr|frühling|printemps|primavera", 3, 5),
    ("summer|sommers?|été|verano", 6, 8),
    ("autumn|fall|herbst|automne|otoño", 9, 11),
    ("q1|first quarter|early|start|beginning|anfang|début", 1, 3),
    ("q2|second quarter", 4, 6),
    ("q3|third quarter", 7, 9),
    ("q4|fourth quarter|late|end|ende|fin|finales", 10, 12),
    ("first half", 1, 6),
    ("second half", 7, 12),
)


@lru_cache(maxsize=256)
def time_asked(question: str) -> Asked | None:
    """The one year, month or day in, before or until which a question asks how things were, if any."""
    text = _LAST_YEAR.sub(f"in {date.today().year - 1}", narrow_digits(question))
    if len(set(re.findall(r"(?<!\d)(?:19|20)\d\d(?!\d)", text))) != 1 or asks_for_changes(question):
        return None
    for found in (*_AT.finditer(text), *_YEAR_HAN.finditer(text)):
        is_han = "before" not in found.re.groupindex
        year, at = _YEAR_ALONE.match(text, found.end()), found.start() if is_han else found.end()
        day = day_in(text, at) or (found[1] if is_han else year[1] if year else "")
        if not day:
            continue
        part = "" if is_han else found["part"]
        months = [pair for words, *pair in _PARTS if re.search(rf"\b(?:{words})\b", part, re.IGNORECASE)]
        written = _DAY.match(text, at) or (found if is_han else year)
        assert written is not None
        if not is_han and found["event"] and not _IS_TIME.match(text, written.end()):
            continue
        if is_han:
            behind = _BEFORE_HAN.match(text, written.end())
            before = behind is not None
            first, last = at, behind.end() if behind else written.end()
        else:
            ends = re.search(r"\b(?:end|ende|fin|finales)\b", part, re.IGNORECASE)
            months *= not (found["before"] and ends)
            before = bool(found["before"]) and not ends
            first, last = found.start(), written.end()
        start, end = (f"{day}-{k:02}" for k in months[0]) if months and len(day) == 4 else (day, day)
        if before:
            event = "" if is_han else found["event"]
            return Asked(start, start, f"{text[:first]} {event} {text[last:]}")
        return Asked(start + "2000-01-01"[len(start) :], f"{end}~", f"{text[:first]} {day[:4]} {text[last:]}")
    return None


@lru_cache(maxsize=4096)
def age(names: Names) -> tuple[bool, str, bool, tuple[int, ...]]:
    """What grows from version to version: whether it holds by its name, its date, its mark, its number.

    names: title, source and date.
    """
    is_past, is_new, number = edition(*names[:2])
    return not is_past, moment(names[2]), is_new, number


def age_of(one: Names, other: Names) -> str:
    """Which of two versions the first one is, by dates, else by names; a draft may be the newer."""
    return "a newer" if age(one)[1:] > age(other)[1:] else "an older"


def is_ordered(one: Names, other: Names) -> bool:
    """Whether it is known which of two versions is the newer: by their dates, else by their names."""
    a, b = age(one), age(other)
    return a[0] != b[0] or (a != b and bool(a[1]) == bool(b[1]))


def in_force(names: Names, question: str) -> tuple[Any, ...]:
    """What a version is ranked by: whether it held when asked of, or is the one asked for, then its `age`.

    What came after the time asked of is the likelier to have held then, the older it is.
    """
    asked, own, number = time_asked(question), age(names), edition("", question)[2]
    if asked is not None and own[1] >= asked.end:
        return False, own[1].translate(_BACKWARDS), *own
    before = number and _BEFORE_VERSION.search(question)
    return (own[3] < number if before else number in ((), own[3])), "", *own
