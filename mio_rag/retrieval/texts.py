"""What is embedded and searched of passages and of their units: their text, and what it stands under."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import PurePosixPath

from mio_rag.sentences import sentence_spans
from mio_rag.types import Passage, Unit

_MOST = 8  # words of a file's name
_SAYS_NOTHING = frozenset({"index", "readme", "default", "main", "document", "untitled"})
_CAPITAL = re.compile(r"(?<=[a-z]{2})(?=[A-Z])")  # within "AlderSoftware"
_NAME = re.compile(r"[^\W\d_]{2,}|(?<!\d)(?:19|20)\d\d(?!\d)|(?<!\w)v\d+(?:\.\d+)*")


def headings_of(passage: Passage) -> tuple[str, ...]:
    """Title and headings above a passage, outermost first, each once; of documents the file's name, too.

    Pages of many sites call themselves "Privacy Policy"; then only the file's name says whose it is.
    """
    name = file_name(passage.source, passage.title) if passage.units else ""
    return tuple(dict.fromkeys(part for part in (name, passage.title, *passage.section) if part))


@lru_cache(maxsize=4096)
def file_name(source: str, title: str) -> str:
    """The words of a file's name, or of its folder's where that says nothing; blank where the title has all.

    Numbers are left out, but for years and versions.
    """
    path = PurePosixPath(source)
    for part in (path.stem if path.suffix else path.name, path.parent.name):
        words = list(dict.fromkeys(_NAME.findall(_CAPITAL.sub(" ", part))))
        if any(word.isalpha() and word.lower() not in _SAYS_NOTHING for word in words):
            known = title.casefold()
            return "" if all(word.casefold() in known for word in words) else " ".join(words[:_MOST])
    return ""


def embedded_text(passage: Passage) -> str:
    """What is embedded and searched of a passage: title and headings, what its rows need, its text."""
    context = context_of(passage, sorted({k for unit in passage.units for k in unit.needs}), outside=True)
    return f"{context}\n{passage.text}" if context else passage.text


def unit_text(passage: Passage, unit: Unit) -> str:
    """What is embedded and searched of a unit: title and headings, the lines it needs, its text."""
    context = context_of(passage, unit.needs)
    text = passage.text[unit.start : unit.end]
    return f"{context}\n{text}" if context else text


def context_of(passage: Passage, needs: Sequence[int], outside: bool = False) -> str:
    """Title and headings on one line, and below them the lines of a passage that are no such heading.

    needs: which of the passage's lines.
    outside: leave out those that lie in the passage's text.
    """
    path = headings_of(passage)
    lines = [passage.lines[k] for k in needs]
    if outside and passage.start is not None and passage.end is not None:
        lines = [line for line in lines if not passage.start <= line.start < passage.end]
    return "\n".join([*filter(None, [" > ".join(path)]), *(a.text for a in lines if a.text not in path)])


def units_of(passage: Passage) -> tuple[Unit, ...]:
    """The units of a passage; its sentences where it has none."""
    if passage.units:
        return passage.units
    return tuple(Unit(a, b) for a, b in sentence_spans(passage.text, wrapped=True))


def between_units(passage: Passage) -> str:
    """What stands in a passage and in no unit of it, such as headings."""
    ends = [0, *(unit.end for unit in passage.units)]
    starts = [*(unit.start for unit in passage.units), len(passage.text)]
    return "\n".join(passage.text[a:b] for a, b in zip(ends, starts, strict=True))
