"""Where retrieved texts lie: in which page or section of which document, and at which character of it.

Splitters count characters anew in each text that they are given, and some write wrong places. So texts of
different pages, sections, slides, sheets or files are never laid out by each other's places, and what has no
place, or one that contradicts the texts, is placed by what it shares with others of the same part.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    """The page, section, slide, sheet, row or file that metadata name; also one level down."""
    return tuple(sorted(_parts(metadata)))


def _parts(metadata: Mapping[str, Any], depth: int = 0) -> Iterator[tuple[str, str]]:
    for key, value in metadata.items():
        if value is not None and _PART.fullmatch(_CAMEL.sub("_", str(key)).strip("_").lower()):
            yield str(key), repr(value)
        elif isinstance(value, Mapping) and not depth:
            yield from _parts(value, 1)


def rooted(sources: Sequence[str], ids: Sequence[str]) -> list[str]:
    """The sources, where one is itself among the documents (a parent of theirs) its own source instead."""
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
    spans, spaces, notes = [(-1, -1)] * len(texts), [""] * len(texts), []
    parts: list[Part] = [part_of(one) for one in metadata] if metadata else [()] * len(texts)
    starts = list(starts)
    for row, container in _contained(texts, sources, parts).items():
        parts[row], starts[row] = parts[container], None
    groups: dict[tuple[str, Part], list[int]] = {}
    for row, source in enumerate(sources):
        if source:
            groups.setdefault((source, parts[row]), []).append(row)
    wrong: dict[str, int] = {}
    for k, ((source, part), rows) in enumerate(groups.items()):
        placed = {row: at for row in rows if (at := starts[row]) is not None}
        if bad := _contradicting(placed, texts):
            wrong[source] = wrong.get(source, 0) + len(bad)
            placed = {row: at for row, at in placed.items() if row not in bad}
        is_of_source = not part
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
                    if not (is_of_source and given == len(placed)):
                        spaces[row] = f"{source}\0{k}.{len(loose)}"
            placed = {}
    for source, count in wrong.items():
        notes.append(
            f"places given in '{source}' contradict its texts ({count} left out): what those share "
            "was looked for in the texts themselves"
        )
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
            if not _fits(texts[a], texts[b], placed[b] - placed[a]):
                against.setdefault(a, set()).add(b)
                against.setdefault(b, set()).add(a)
    left_out: set[int] = set()
    while any(against.values()):
        worst = max(against, key=lambda row: len(against[row]))
        left_out.add(worst)
        for other in against.pop(worst):
            against[other].discard(worst)
    return left_out


def _fits(first: str, second: str, shift: int) -> bool:
    """Whether texts say the same where they overlap, if the second begins `shift` >= 0 behind the first."""
    return agree((Line(0, first), Line(shift, second)))


def _attach(placed: dict[int, int], loose: list[int], texts: Sequence[str]) -> None:
    """Move texts from `loose` to `placed` that overlap those there, and contradict none."""
    fresh: Iterable[int] = list(placed)
    while fresh and loose:
        found = []
        for known in fresh:
            for row in list(loose):
                if (shift := overlap_at(texts[known], texts[row])) is None:
                    back = overlap_at(texts[row], texts[known])
                    shift = None if back is None else -back
                if shift is None:
                    continue
                at = placed[known] + shift
                first = min(at, *placed.values())
                lines = [Line(a - first, texts[i]) for i, a in (*placed.items(), (row, at))]
                if agree(lines):
                    placed[row] = at
                    loose.remove(row)
                    found.append(row)
        fresh = found
