"""Parts of documents that a question names by their number: "clause 4.1", "§ 12", "Annex B", "step 5".

The number of a part stands at the head of it, or of what it stands under: a heading, or the line that leads
into its list. "Article 7(2)" is the part "(2)" under the heading "Article 7".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from mio_rag.documents.east_asian import plain_numbers
from mio_rag.retrieval.texts import units_of
from mio_rag.sentences import pattern
from mio_rag.types import Passage

#: Kinds of parts, and what they are called. A part that is only numbered may be of any kind.
_CALLED = {
    "clause": "clauses? sections? sec articles? art paragraphs? paras? rules? items? points? abschnitt absatz"
    " abs artikel punkte? regel ziffer klausel paragraf alin\u00e9a r\u00e8gle secci\u00f3n"
    " art\u00edculo cl\u00e1usula apartado punto regla §+",
    "annex": "annex(?:es)? appendix appendices schedules? exhibits? attachments? anhang anlagen? anexo",
    "chapter": "chapters? parts? kapitel teil chapitre partie cap\u00edtulo",
    "step": "steps? schritte? \u00e9tape paso",
    "row": "rows? lines? zeile",
    "question": "questions? frage pregunta",
    "table": "tables? tab tabelle tableau tabla",
    "figure": "figures? fig abbildung abb figura",
}
_LISTED = ("", "step", "row", "question")  # kinds that items are of, too, which have a number alone
_KINDS = "|".join(f"(?P<{kind}>{'|'.join(names.split())})" for kind, names in _CALLED.items())
_BASE = (
    r"(?:\d{1,3}(?:\.\d{1,3})*[a-z]?(?![\w%]|[.,]\d)|(?!I\s+[a-z])(?:[IVXL]{1,6}(?!\w)|[A-Z](?![\w'\u2019])))"
)
_NUMBER = rf"{_BASE}(?:\s?\((?:\d{{1,3}}|[a-z]{{1,4}})\))*"
_HAN = (
    r"第\s?(?P<{0}>\d{{1,3}}\s?[条條章項项号號节節款](?:の\d{{1,2}})?(?:\s?第\s?\d{{1,3}}\s?[項项号號款])*)"
)
_ASKED = pattern(rf"(?i:(?<![^\W_])(?:{_KINDS})\.?)\s{{0,2}}(?P<number>{_NUMBER})|{_HAN.format('han')}")
_DOTTED = pattern(  # a number alone, unless a name stands before it
    r"(?:^|\b(?:in|under|of|by|see|does|do|per|is|and|nach|laut|gem\u00e4\u00df|unter|aus|selon|dans|seg\u00fan|en)\s)"
    r"(?P<number>\d{1,2}(?:\.\d{1,2}){1,3})(?![\w%]|[.,]\d|\s?[%€$]|\s(?:per|million|billion|Mio))",
    re.IGNORECASE,
)
_WITHIN = pattern(r"\s*(?:of|in|from|der|des|von|de|del|du)\s*(?:the\s+)?", re.IGNORECASE)
_DEEPER = pattern(r"[\s,]{0,2}")
_FURTHER = pattern(
    r"[\s,]*(?i:nr|no|lit|buchstabe|(?P<sentence>satz))\.?\s?(?P<deeper>\d{1,3}|[a-z])(?!\w)"
    rf"|\s*(?:,|and|or|und|oder|et|ou|y|e|&)\s*(?P<other>{_NUMBER})"
)
#: What stands at the head of a part.
_LABEL = pattern(
    rf"[^\w§(第]{{0,4}}(?:(?i:(?:{_KINDS})\.?)\s{{0,2}}(?P<named>{_NUMBER})|{_HAN.format('han')}"
    rf"|(?P<plain>{_NUMBER})(?=(?P<end>\s?[.):|]|\s|$))|\((?P<item>\d{{1,3}}|[a-z]{{1,4}})\)|(?P<letter>[a-z])\))"
)


class Part(NamedTuple):
    """The number of a part, or of one that is asked for.

    kind: in `_CALLED`; blank where it is only numbered.
    numbers: from the outermost in.
    sure: whether it is that of a part wherever it stands, not only of an item or heading.
    """

    kind: str
    numbers: tuple[str, ...]
    sure: bool


def _part(found: re.Match[str], number: str, sure: bool = True) -> Part:
    kind = next((kind for kind in _CALLED if found.groupdict().get(kind)), "")
    if found.groupdict().get("han"):
        kind = "chapter" if "章" in number else "clause"
        number = re.sub(r"[^\d]+", " ", number)
    return Part(kind, tuple(re.findall(r"\w+", number.casefold())), sure)


@lru_cache(maxsize=256)
def parts_asked(question: str) -> tuple[Part, ...]:
    """The parts that a question names by their numbers, as "clause 4.1" or "paragraph 2 of Article 7"."""
    text, made, end = plain_numbers(question), list[Part](), -1
    for found in _ASKED.finditer(text):
        part, between = _part(found, found["number"] or found["han"]), text[end : found.start()]
        if made and end >= 0 and _WITHIN.fullmatch(between) and not _DEEPER.fullmatch(between):
            made[-1] = Part(part.kind, part.numbers + made[-1].numbers, True)
        elif made and end >= 0 and _DEEPER.fullmatch(between):
            made[-1] = made[-1]._replace(numbers=made[-1].numbers + part.numbers)
        else:
            made.append(part)
        end = found.end()
        while further := _FURTHER.match(text, end):
            if further["deeper"] and not further["sentence"]:
                made[-1] = made[-1]._replace(numbers=(*made[-1].numbers, further["deeper"].casefold()))
            elif further["other"]:
                made.append(_part(found, further["other"]))
            end = further.end()
    return tuple(made) or tuple(
        Part("", tuple(one["number"].split(".")), True) for one in _DOTTED.finditer(text)
    )


def without_numbers(question: str) -> str:
    """The question without the numbers of parts, which name no document."""
    if not parts_asked(question):
        return question
    text = plain_numbers(question)
    for found in reversed([*_ASKED.finditer(text)] or [*_DOTTED.finditer(text)]):
        start, end = found.span("number") if found["number"] else found.span("han")
        text = f"{text[:start]} {text[end:]}"
    return text.strip() or question


@lru_cache(maxsize=8192)
def _label(head: str, is_heading: bool) -> Part | None:
    """The number at the head of a line, if any."""
    found = _LABEL.match(plain_numbers(head))
    if found is None:
        return None
    if number := found["named"] or found["han"]:
        return _part(found, number)
    if number := found["item"] or found["letter"]:
        return _part(found, number, False)
    number, end = found["plain"], found["end"].strip()
    dotted = bool(re.search(r"\d\.\d", number))
    if not (dotted or end or (is_heading and number[0].isdigit())):
        return None
    return _part(found, number, dotted or is_heading)


def matches(passage: Passage, asked: Sequence[Part]) -> list[float]:
    """How surely each unit of a passage is of a part that is asked for: 0 for none, up to 1."""
    found, end = list[float](), 0
    before: tuple[str, ...] | None = None
    under: Part | None = None  # what is numbered by itself here
    last: Part | None = None
    for unit in units_of(passage):
        section = unit.section or passage.section
        if section != before:
            before, under = section, None
        headings = [_label(heading[:40], True) for heading in section]
        lines = [passage.lines[k].text for k in unit.needs]
        leads = [_label(line[:40], False) for line in lines if line not in section]
        own = _label(passage.text[unit.start : unit.start + 40], False)
        if own is not None and own.sure:
            under = own
        elif own is None and under is None and "\n" not in passage.text[end : unit.start]:
            own = last
        last, end = own, unit.end
        address = [(part, True) for part in headings if part is not None]
        address += [(part, False) for part in (*leads, under, own) if part is not None]
        found.append(max((_fit(address, part) for part in asked), default=0.0))
    return found


def _fit(address: Sequence[tuple[Part, bool]], asked: Part) -> float:
    """How well a part fits the numbers of what it stands under, and its own."""
    best = 0.0
    for k, (first, is_heading) in enumerate(address):
        if first.kind and asked.kind and first.kind != asked.kind:
            continue
        numbers = first.numbers
        for part, _ in address[k + 1 :]:
            deeper = len(part.numbers) > len(numbers) and part.numbers[: len(numbers)] == numbers
            numbers = part.numbers if deeper else numbers + part.numbers
        if numbers[: len(asked.numbers)] == asked.numbers:
            whole = first.numbers[: len(asked.numbers)] == asked.numbers
            named = bool(first.kind) or (asked.kind in _LISTED and not (is_heading and asked.kind))
            rest = 0.2 * (is_heading or first.sure) + (0.15 if whole else 0.1)
            best = max(best, 0.25 + 0.4 * named + rest)
        elif asked.numbers[: len(numbers)] == numbers:  # what is asked for may not be numbered there
            best = max(best, 0.1 * len(numbers) / len(asked.numbers))
    return best
