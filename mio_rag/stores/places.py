"""Where retrieved texts lie: in which page or section of which document, and at which character of it.

Splitters count characters anew in each text that they are given, and some write wrong places. So texts of
different pages, sections, slides, sheets or files are never laid out by each other's places, and what has no
place, or one that contradicts the texts, is placed by what it shares with others of the same part.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mio_rag.context import agree, overlap_at
from mio_rag.types import Line

#: Names of metadata that tell parts of a document apart, in snake case: header_1, page_number, sheet_name.
_PART = re.compile(
    r"((parent|current|sub|source|original|start)_?)*"
    r"(page|slide|sheet|worksheet|tab|row|record|seq|section|chapter|heading|header|h[1-6]|title|part|article|"
    r"clause|paragraph|message|file|url|doc|document)s?"
    r"(_?(no|nr|num|number|label|name|idx|index|id|title|path|text|\d+))*"
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+")


#: What metadata say of the part of its source that a text is of.
Part = tuple[tuple[str, str], ...]


def part_of(metadata: Mapping[str, Any]) -> Part:
    """Return the page, section, slide, sheet, row or file that metadata name; also one level down."""
    pairs = list(metadata.items())
    inner = [value for key, value in pairs if isinstance(value, Mapping) and not _names_part(key)]
    pairs += [pair for mapping in inner for pair in mapping.items()]
    return tuple(
        sorted((str(key), repr(value)) for key, value in pairs if value is not None and _names_part(key))
    )


def _names_part(key: Any) -> bool:
    return _PART.fullmatch(_CAMEL.sub("_", str(key)).strip("_").lower()) is not None


def rooted(sources: Sequence[str], ids: Sequence[str]) -> list[str]:
    """Return the sources; of one that is itself among the documents (a parent), its own source instead."""
    above = {name: source for name, source in zip(ids, sources, strict=True) if source and source != name}
    found = []
    for name, given in zip(ids, sources, strict=True):
        source = given or (name if name in sources else "")
        seen = {source}
        while (higher := above.get(source)) is not None and higher not in seen:
            seen.add(source := higher)
        found.append(source)
    return found


class Layout(NamedTuple):
    """Where texts lie.

    spans: (-1, -1) where unknown.
    spaces: what they count in, where that is not the source.
    notes: about places that are wrong.
    """

    spans: list[tuple[int, int]]
    spaces: list[str]
    notes: list[str]


def lay_out(
    texts: Sequence[str],
    sources: Sequence[str],
    starts: Sequence[int | None],
    metadata: Sequence[Mapping[str, Any]] | None,
) -> Layout:
    """Place texts in their documents.

    sources: blank where unknown: then the text has no place.
    starts: counted in the part of the source that the metadata name.
    """
    spans, spaces, starts = [(-1, -1)] * len(texts), [""] * len(texts), list(starts)
    parts: list[Part] = [part_of(one) for one in metadata] if metadata else [()] * len(texts)
    for row, container in _contained(texts, sources, parts).items():
        parts[row], starts[row] = parts[container], None
    groups: dict[tuple[str, Part], list[int]] = {}
    for row, source in enumerate(sources):
        if source:
            groups.setdefault((source, parts[row]), []).append(row)
    wrong: Counter[str] = Counter()
    for k, ((source, part), rows) in enumerate(groups.items()):
        placed = {row: at for row in rows if (at := starts[row]) is not None}
        bad = _contradicting(placed, texts)
        wrong[source] += len(bad)
        placed = {row: at for row, at in placed.items() if row not in bad}
        loose = [row for row in rows if row not in placed]
        while placed or loose:
            given = len(placed)
            if not placed:
                placed[loose.pop(0)] = 0
            _attach(placed, loose, texts)
            if given or len(placed) > 1:
                first = min(0, *placed.values())
                for row, at in placed.items():
                    spans[row] = at - first, at - first + len(texts[row])
                    if part or given < len(placed):  # not the places of the source itself
                        spaces[row] = f"{source}\0{k}.{len(loose)}"
            placed = {}
    notes = [
        f"places given in '{source}' contradict its texts ({count} left out): what those share was looked "
        "for in the texts themselves"
        for source, count in wrong.items()
        if count
    ]
    return Layout(spans, spaces, notes)


def _contained(texts: Sequence[str], sources: Sequence[str], parts: Sequence[Part]) -> dict[int, int]:
    """Texts that lie in a longer one of another part of their source, as children in parents; in which."""
    by_source: dict[str, list[int]] = {}
    for row in sorted(range(len(texts)), key=lambda row: -len(texts[row])):
        by_source.setdefault(sources[row], []).append(row)
    found: dict[int, int] = {}
    for source, rows in by_source.items():
        if not source or len({parts[row] for row in rows}) == 1:
            continue
        for k, row in enumerate(rows):
            around = (a for a in rows[:k] if overlap_at(texts[a], texts[row]) is not None)
            container = next((a for a in around if texts[row] in texts[a] and texts[a] != texts[row]), None)
            if container is not None and parts[container] != parts[row]:
                found[row] = found.get(container, container)
    return found


def _contradicting(placed: Mapping[int, int], texts: Sequence[str]) -> set[int]:
    """The texts to leave out so that the others say the same wherever they overlap."""
    order = sorted(placed, key=lambda row: placed[row])
    against: dict[int, set[int]] = {}
    for k, a in enumerate(order):
        end = placed[a] + len(texts[a])
        for b in order[k + 1 :]:
            if placed[b] >= end:
                break
            if not agree((Line(0, texts[a]), Line(placed[b] - placed[a], texts[b]))):
                against.setdefault(a, set()).add(b)
                against.setdefault(b, set()).add(a)
    left_out: set[int] = set()
    while any(against.values()):
        worst = max(against, key=lambda row: len(against[row]))
        left_out.add(worst)
        for other in against.pop(worst):
            against[other].discard(worst)
    return left_out


def _attach(placed: dict[int, int], loose: list[int], texts: Sequence[str]) -> None:
    """Move texts from `loose` to `placed` that overlap those there, and contradict none."""
    fresh = list(placed)
    while fresh and loose:
        found = []
        for known in fresh:
            for row in list(loose):
                shift = overlap_at(texts[known], texts[row])
                if shift is None:
                    back = overlap_at(texts[row], texts[known])
                    if back is None:
                        continue
                    shift = -back
                at = placed[known] + shift
                first = min(at, *placed.values())
                if agree([Line(a - first, texts[i]) for i, a in (*placed.items(), (row, at))]):
                    placed[row] = at
                    loose.remove(row)
                    found.append(row)
        fresh = found
