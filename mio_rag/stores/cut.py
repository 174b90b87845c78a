"""Hits of a store that read like pieces of documents -> passages with units, as readers make them.

Pieces of one source are put in order and laid side by side first: by the places that they bring, by the text
that they share, or by the number in their ids. So a row finds the header that stands in the piece before.

Splitters count characters anew in each text that they are given, and some write wrong places. So texts of
different pages, sections, slides, sheets or files are never laid out by each other's places.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from mio_rag.context import agree, overlap_at
from mio_rag.documents.blocks import Block, stated_date
from mio_rag.documents.dates import day_in_name
from mio_rag.documents.excerpts import read_excerpt
from mio_rag.types import Line, Passage, Unit

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


_STRUCTURED = 0.2  # share of hits with several lines from which they are read as documents
_HEAD = 300  # characters of a document that may state its date
_FAR = 1000  # characters between pieces whose distance nobody knows
_NUMBER = re.compile(r"(.*?)(?<![0-9A-Za-z])((?:[A-Za-z]{1,10})?)(\d{1,7})")
_NUMBERED_BY = (
    "chunk", "chunk_index", "chunk_id", "chunk_number", "chunk_no", "chunk_idx", "seq", "seq_num", "index",
    "position", "split_id", "part", "n",
)  # fmt: skip


def dated(hits: Sequence[Passage]) -> Sequence[Passage]:
    """Return hits with the date that their document states in one of them, or in its name, as readers find
    it; of documents of which no hit has one.
    """
    pieces: dict[str, list[Passage]] = {}
    for one in hits:
        if one.source:
            pieces.setdefault(one.source, []).append(one)
    days = {source: _day(source, found) for source, found in pieces.items() if not any(p.date for p in found)}
    if not any(days.values()):
        return hits
    return [replace(one, date=days.get(one.source) or one.date) for one in hits]


def _day(source: str, pieces: Sequence[Passage]) -> str:
    heads = [one.text.splitlines()[:8] for one in pieces if (one.start or 0) < _HEAD]
    stated = (stated_date([Block("paragraph", line) for line in lines if line.strip()]) for lines in heads)
    name = re.sub(r"\.\w{1,5}$", "", re.split(r"[/\\]", source)[-1])
    return next(filter(None, stated), "") or day_in_name(name)


def are_pieces(texts: Sequence[str], brought: int = 0) -> bool:
    """Whether enough of some texts have several lines that they are read as pieces of documents.

    brought: how many of further ones bring their units.
    """
    several = brought + sum("\n" in text.strip() for text in texts)
    return several >= max(1, _STRUCTURED * (len(texts) + brought))


def as_documents(hits: Sequence[Passage]) -> Sequence[Passage]:
    """Return hits with units where enough of them have several lines, or bring units; else as they are."""
    bare = [one.text for one in hits if not one.units]
    if not are_pieces(bare, len(hits) - len(bare)):
        return hits
    made = list(hits)
    groups: dict[str, list[int]] = {}
    for row, one in enumerate(hits):
        if not one.units:
            groups.setdefault(one.source or one.id, []).append(row)
    for name, rows in groups.items():
        for row, cut in zip(rows, _cut(name, [hits[row] for row in rows]), strict=True):
            made[row] = cut
    return made


def _cut(name: str, hits: Sequence[Passage]) -> list[Passage]:
    """Pieces of one source with their units. name: of the source, where a piece names none."""
    hits = [  # where its place is known, each character counts
        replace(one, text=one.text.replace("\r\n", "\n")) if one.start is None and "\r" in one.text else one
        for one in hits
    ]
    made = list(hits)
    for stretch in _stretches(name, hits):
        base = min(start for _, start in stretch)
        text = ""
        for row, start in stretch:
            at, own = start - base, hits[row].text
            text += "\n" * (at - len(text)) + own[max(0, len(text) - at) :]
        first = hits[stretch[0][0]]
        text, parts = read_excerpt(text, first.title)
        within = [(row, start - base, start - base + len(hits[row].text)) for row, start in stretch]
        for row, a, b in within:
            one = hits[row]
            inside = [part for part in parts if part.start < b and part.end > a]
            kept = []
            for part in inside:
                whole = any(c <= part.start and part.end <= d for _, c, d in within)
                begin, end = max(a, part.start), min(b, part.end)
                if (begin, end) != (part.start, part.end) and whole:
                    continue  # another piece has all of it
                piece = text[begin:end]
                begin, end = begin + len(piece) - len(piece.lstrip()), begin + len(piece.rstrip())
                if begin < end:
                    kept.append((begin, end, part))
            path = kept[0][2].path if kept else ()
            lines = sorted({Line(base + line.start, line.text) for *_, part in kept for line in part.needs})
            place = {line: k for k, line in enumerate(lines)}
            made[row] = replace(
                one,
                text=text[a:b],
                source=one.source or name,
                start=base + a,
                end=base + b,
                section=one.section + path,
                lines=tuple(lines),
                units=tuple(
                    Unit(
                        begin - a,
                        end - a,
                        tuple(sorted(place[Line(base + line.start, line.text)] for line in part.needs)),
                        one.section + part.path if part.path != path else (),
                    )
                    for begin, end, part in kept
                ),
            )
    return made


def _stretches(name: str, hits: Sequence[Passage]) -> list[list[tuple[int, int]]]:
    """Pieces that touch or overlap, each with its start, in order; starts of all stretches are apart."""
    layout = lay_out(
        [one.text for one in hits], [name] * len(hits), [one.start for one in hits],
        [one.metadata for one in hits],
    )  # fmt: skip
    groups: dict[object, list[int]] = {}
    for row, (start, _) in enumerate(layout.spans):
        groups.setdefault(layout.spaces[row] if start >= 0 else row, []).append(row)
    numbers = _numbers(hits)

    def order(rows: list[int]) -> tuple[float, float, int]:
        page = hits[rows[0]].page
        return (page or 0, min(numbers[row] for row in rows) if numbers else 0, min(rows))

    placed = groups.pop("", [])  # by the places of the source itself
    made: list[list[tuple[int, int]]] = []
    for row in sorted(placed, key=lambda row: layout.spans[row]):
        start = layout.spans[row][0]
        if made and start <= (last := made[-1][-1])[1] + len(hits[last[0]].text) + 1:
            made[-1].append((row, start))
        else:
            made.append([(row, start)])
    before: int | None = None
    for rows in sorted(groups.values(), key=order):
        behind = max((start + len(hits[row].text) for one in made for row, start in one), default=-_FAR)
        lowest, highest = (
            (min(numbers[row] for row in rows), max(numbers[row] for row in rows)) if numbers else (0, 0)
        )
        goes_on = bool(numbers) and before is not None and lowest == before + 1
        base = behind + (1 if goes_on else _FAR)
        low = min(max(0, layout.spans[row][0]) for row in rows)
        stretch = sorted(
            ((row, base + max(0, layout.spans[row][0]) - low) for row in rows), key=lambda one: one[1]
        )
        if goes_on:
            made[-1] += stretch
        else:
            made.append(stretch)
        before = highest
    return made


def _numbers(hits: Sequence[Passage]) -> list[int]:
    """The number of each piece, by its metadata or at the end of its id; empty where one lacks it."""
    for key in _NUMBERED_BY:
        given = [one.metadata.get(key) for one in hits]
        if all(str(value).isdecimal() for value in given) and len({*map(str, given)}) == len(hits):
            return [int(str(value)) for value in given]
    found = [_NUMBER.fullmatch(one.id) for one in hits]
    if all(found) and len({match[1] for match in found if match}) == 1:
        numbers = [int(match[3]) for match in found if match]
        return numbers if len({*numbers}) == len(numbers) else []
    return []
