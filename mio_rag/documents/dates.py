"""Days, months and years in texts, titles, names of files and questions."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from mio_rag.documents import east_asian
from mio_rag.documents.east_asian import narrow_digits
from mio_rag.sentences import asks_for_changes, is_replaced_kind, is_series, pattern
from mio_rag.types import check_date, moment

_MONTHS = {
    name: k + 1
    for k, names in enumerate(
        [
            "january jan janvier januar enero",
            "february feb février februar febrero",
            "march mar mars märz marzo",
            "april apr avril abril",
            "may mai mayo",
            "june jun juin juni junio",
            "july jul juillet juli julio",
            "august aug août agosto",
            "september sep sept septembre septiembre",
            "october oct octobre oktober octubre",
            "november nov novembre noviembre",
            "december dec décembre dezember diciembre",
        ]
    )
    for name in names.split()
}
_DAY = pattern(
    r"\b(?:(?P<y>(?:19|20)\d\d)[-/._](?P<m>\d\d?)[-/._](?P<d>\d\d?)(?!\d)|(?P<d2>\d\d?)\.\s?(?P<m2>\d\d?)\.\s?(?P<y2>(?:19|20)\d\d)"
    r"|(?P<w3>[^\W\d_]{3,9})\.?\s(?P<d3>\d\d?)(?:st|nd|rd|th)?,?\s(?P<y3>(?:19|20)\d\d)"
    r"|(?P<d4>\d\d?)(?:st|nd|rd|th|er|\.)?\s(?:de\s)?(?P<w4>[^\W\d_]{3,9})\.?,?\s(?:de\s)?(?P<y4>(?:19|20)\d\d)"
    r"|(?P<w5>[^\W\d_]{3,9})\s(?P<y5>(?:19|20)\d\d))\b"
    rf"|{east_asian.DAY}"
)
STATED = pattern(
    r"(?:\b(?:last\s+)?(?:updated|modified|revised|revision|reviewed|effective|published|issued|amended)\b"
    r"|\b(?:dated|date:|version of|valid|appl(?:ies|icable)|in (?:force|effect|kraft)|inkrafttreten|stand"
    r"|fassung vom|g\u00fcltig|rev(?:ision)?\.? ?\d{1,3},|mis \u00e0 jour|en vigueur|actualizado|vigente)"
    rf"|{east_asian.STATED})"
    r"[\s:\uff1a(\uff08]*(?:(?:on|date|as of|from|of|le|el|am|since|ab dem|ab|seit dem|seit)[\s:]*)?",
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


_PERIOD = pattern(
    r"(?<![\d.,])(?:(?P<y1>Y)[-._]?(?P<m1>0[1-9]|1[0-2])(?!\w|[-._]\d)"
    r"|(?P<m2>0[1-9]|1[0-2])[-._/](?P<y2>Y)(?!\d)|(?P<y5>Y)[-_ /]*q(?P<q5>[1-4])(?!\w)"
    r"|(?<![^\W_])(?:[qt](?P<q3>[1-4])|(?P<q4>[1-4])(?:\W|st|nd|rd|th|er?)*(?:quart\w+|trimestre))"
    r"[-_ /]*(?:fy)?(?P<y3>Y)|(?<![^\W_])fy[-_ ]?(?P<f6>(?:20)?\d\d)(?!\d))".replace("Y", r"(?:19|20)\d\d"),
    re.IGNORECASE,
)
_YEAR_AT_END = pattern(r"(?:^|(?<=[\s(-]))(?P<y1>(?:19|20)\d\d)(?=\W*$)|^(?P<y2>(?:19|20)\d\d)(?=\W)")


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

    A year alone counts where the name says that documents of its kind come out again and again.
    """
    found = re.search(r"(?<!\d)((?:19|20)\d\d)(\d\d)(\d\d)(?!\d)", name)
    spaced, dashed = re.sub(r"[-_]", " ", name), re.sub(r"[_ ]", "-", name)
    year = is_series("", name) or is_replaced_kind("", name)
    days = [day_in("-".join(found.groups())) if found else "", day_in(dashed, whole=True)]
    return next(filter(None, (*days, period_of(dashed), period_of(spaced, year=year))), "")


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
    r"|spring|autumn|first|second|half|of|dem|den|der|des|das|zum|jahre?s?|anfang|ende|mitte|le|la|l['’]ann\u00e9e|l['’]an"
    r"|fin|d\u00e9but|de|del|el|a\u00f1o|finales)[\s-]+)*)",
    re.IGNORECASE,
)
_YEAR_ALONE = pattern(r"((?:19|20)\d\d)(?![\d/]|-\d)")
_YEAR_HAN = pattern(r"(?<!\d)((?:19|20)\d\d)\s?年")
_BEFORE_HAN = pattern(r"(?:より|的|の)?(?:以前|之前|前)")


@lru_cache(maxsize=256)
def time_asked(question: str) -> Asked | None:
    """The one year, month or day in, before or until which a question asks how things were, if any."""
    text = narrow_digits(question)
    if len(set(re.findall(r"(?<!\d)(?:19|20)\d\d(?!\d)", text))) != 1 or asks_for_changes(question):
        return None
    for found in (*_AT.finditer(text), *_YEAR_HAN.finditer(text)):
        is_han = "before" not in found.re.groupindex
        year, at = _YEAR_ALONE.match(text, found.end()), found.start() if is_han else found.end()
        day = day_in(text, at) or (found[1] if is_han else year[1] if year else "")
        if not day:
            continue
        written = _DAY.match(text, at) or (found if is_han else year)
        assert written is not None
        if is_han:
            behind = _BEFORE_HAN.match(text, written.end())
            before = behind is not None
            first, last = at, behind.end() if behind else written.end()
        else:
            ends = re.search(r"\b(?:end|ende|fin|finales)\b", found["part"], re.IGNORECASE)
            before = bool(found["before"]) and not ends
            first, last = found.start(), written.end()
        if before:
            return Asked(day, day, f"{text[:first]} {text[last:]}")
        return Asked(day + "2000-01-01"[len(day) :], f"{day}~", f"{text[:first]} {day[:4]} {text[last:]}")
    return None


def in_force(date: str, question: str) -> tuple[bool, str]:
    """What a version of a date is ranked by: whether there was any at the time asked of, then its date."""
    asked, when = time_asked(question), moment(date)
    return asked is None or when < asked.end, when
