"""Blocks of a document -> its text, and passages of units that are spans of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from mio_rag.documents.blocks import LEADS, MAX_WORDS, Block, Document, heads, is_generic, is_numbered, tidy
from mio_rag.documents.east_asian import NO_SPACES, PER_WORD, count_words
from mio_rag.sentences import leans, pattern, sentence_spans
from mio_rag.types import Line, Passage, Unit

_SMALL = 3  # a section of less than this part of a passage may join the next
_WHOLE_ITEM, _CODE, _LONGEST = 40, 40, 80  # words of a unit
_SHORT_ITEM = 8  # words: one that nested ones need, whether or not it says so
_LONGEST_HEADING = 16  # words of lines that become one
#: Says what numbers of a table count: "(in millions, except per share data)".
_SCALE = pattern(
    r"[(\uff08].{4,90}[)\uff09]|.{0,40}\b(?:thousands|millions|billions)\b.{0,40}", re.IGNORECASE
)
_OUTER_LINES = 4  # of code around a unit
_ALONE = pattern(f"[{NO_SPACES}]")
_PIECE = pattern(f"[{NO_SPACES}]|[^\\s{NO_SPACES}]{{1,120}}")
_BLANK_LINES = pattern(r"(?:[^\S\n]*\n)*")
#: Signs that a line says something by itself: a number within it, a sentence, many words.
TELLS = pattern(
    r"^\W|[^\W\d_].*\d|[.:;!?]\s|[.,;!?]$|\s(?:is|are|was|were|has|have|must|may)\s|(?:\S+\s+){8}"
)
_SITE = pattern(r"\s+[-|\u2013\u2014\u00b7\u00bb]\s+|:\s+")


def same_title(heading: str, title: str) -> bool:
    """Whether a heading says no more than the title, or the title without the name of its site."""
    said, title = tidy(heading).casefold(), title.casefold()
    return said in (title, _SITE.split(title)[0])


@dataclass(slots=True)
class Part:
    """A unit in the text of its document."""

    start: int
    end: int
    needs: tuple[Line, ...]
    words: float
    path: tuple[str, ...]
    page: int | None
    block: int
    row: bool
    heading: Line | None


def document_text(document: Document) -> tuple[str, list[int]]:
    """The text of a document, and where each block begins in it."""
    starts, lines, at = [], [], 0
    for block in document.blocks:
        line = "  " * block.level + block.text if block.kind == "item" else block.text
        starts.append(at)
        lines.append(line)
        at += len(line) + 1
    return "\n".join(lines), starts


def passages_of(document: Document, source: str, max_words: int = MAX_WORDS) -> list[Passage]:
    """Passages of a document, in order.

    source: its name, which passages and their ids carry.
    max_words: words of a passage, about; a longer unit is one by itself.
    """
    _settle(document)
    text, starts = document_text(document)
    parts = list(parts_of(document, text, starts))
    made = []
    for k, (group, path, start) in enumerate(_groups(parts, max_words)):
        units = [parts[i] for i in group]
        at = units[0].start if start is None else start
        lines = sorted({line for unit in units for line in unit.needs})
        places = {line: i for i, line in enumerate(lines)}
        made.append(
            Passage(
                id=f"{source}#{k}",
                text=text[at : units[-1].end],
                title=document.title,
                source=source,
                start=at,
                end=units[-1].end,
                date=document.date,
                section=path,
                page=units[0].page,
                lines=tuple(lines),
                units=tuple(
                    Unit(
                        u.start - at,
                        u.end - at,
                        tuple(sorted(places[n] for n in u.needs)),
                        u.path if u.path != path else (),
                    )
                    for u in units
                ),
                metadata=document.metadata,
            )
        )
    return made


def _settle(document: Document) -> None:
    """Join headings that only count with what follows.

    A heading with nothing below is no unit, unless there are headings alone, or it is one by its looks alone.
    """
    document.close()
    blocks: list[Block] = []
    for block in document.blocks:
        before = blocks[-1] if blocks else None
        if before is None or not (before.kind == block.kind == "heading") or before.page != block.page:
            blocks.append(block)
            continue
        counts = is_generic(before.text) and not is_generic(block.text)
        # Lines of a PDF that are headings one after the other are one: "3M Company", "Balance Sheet".
        lines = before.level == block.level and block.page is not None and not is_numbered(block.text)
        short = count_words(before.text) <= _LONGEST_HEADING and count_words(block.text) <= 12
        if counts or (lines and short and not same_title(before.text, document.title)):
            before.text = f"{before.text} {block.text}"
        else:
            blocks.append(block)
    document.blocks = blocks
    alone = all(block.kind == "heading" for block in blocks)
    for k, block in enumerate(blocks):
        following = blocks[k + 1] if k + 1 < len(blocks) else None
        bare = following is None or (following.kind == "heading" and following.level <= block.level)
        says = alone or block.looks or (block.page is not None and TELLS.search(block.text))
        repeats = len(blocks) > 1 and same_title(block.text, document.title)
        if block.kind == "heading" and bare and says and not repeats:
            block.kind, block.level = "paragraph", 0


def parts_of(
    document: Document, text: str, starts: Sequence[int], ends: Sequence[int] | None = None
) -> Iterator[Part]:
    """Units in order, with what each needs; the blocks lie at `starts`, as `document_text` has them."""
    headings: list[tuple[int, Line]] = []
    heading: Line | None = None
    leads: list[tuple[int, Line]] = []  # what leads into the list here, and how deep it stands
    header: list[Line] = []  # of the table here
    group: Line | None = None  # row that groups those below
    table, before = 0, None
    for k, (block, start) in enumerate(zip(document.blocks, starts, strict=True)):
        if block.kind == "heading":
            while headings and headings[-1][0] >= block.level:
                headings.pop()
            heading = None
            if same_title(block.text, document.title):
                headings.clear()
            else:
                heading = Line(start, block.text)
                headings.append((block.level, heading))
            leads, before = [], None
            continue
        path = tuple(line.text for _, line in headings)
        if block.kind == "row":
            if block.table != table:
                table, header, group = block.table, [], None
                leads = []
                if before is not None and (_leads(before) or _SCALE.fullmatch(before.text)):
                    leads = [(-1, before)]
            cells = block.text.split(" | ")
            if len(cells) > 1 and cells[0] and not any(map(str.strip, cells[1:])):  # it groups those below
                group = Line(start, block.text) if count_words(cells[0]) <= _SHORT_ITEM else None
                needs = [*(line for _, line in leads), *header]
            else:
                needs = [*(line for _, line in leads), *header, *([group] if group is not None else [])]
            if cells[0].lower().startswith("total"):
                group = None
            if block.header:
                needs, header = [], [*header, Line(start, block.text)]
        else:
            header = []
            if block.kind == "item":
                beside = k > 0 and document.blocks[k - 1].kind == "item"
                if not leads and before is not None and not beside and _leads(before):
                    leads = [(-1, before)]
                while leads and leads[-1][0] >= block.level:
                    leads.pop()
            elif block.kind == "paragraph":
                leads = []
            needs = [line for _, line in leads]
            if block.kind == "code":
                needs = [before] if before is not None and LEADS.search(before.text) else []
        if heading is not None:
            needs = [heading, *needs]
        indent = 2 * block.level if block.kind == "item" else 0
        end = start + indent + len(block.text) if ends is None else ends[k]
        last: Line | None = None
        if block.header and k + 1 < len(document.blocks) and document.blocks[k + 1].table == block.table:
            continue  # its rows are read with it
        for a, b, outer in _units(block, text, start, end):
            said = text[a:b]
            more = outer
            if last is not None and block.kind in ("paragraph", "item") and leans(said):
                more = (last,)
            last = Line(a, said)
            yield Part(
                a, b, tuple(dict.fromkeys([*needs, *more])), count_words(said), path, block.page, k,
                block.kind == "row", heading,
            )  # fmt: skip
        if block.kind == "item":
            whole = Line(start, text[start:end])
            words = count_words(block.text)
            if words <= _SHORT_ITEM or LEADS.search(block.text):
                leads.append((block.level, whole if words <= _WHOLE_ITEM or last is None else last))
        before = last if block.kind in ("paragraph", "item") else None


def _leads(before: Line) -> bool:
    """Whether a line says what the list or the table behind it is of."""
    return LEADS.search(before.text) is not None or heads(before.text)


def _units(block: Block, text: str, start: int, end: int) -> Iterator[tuple[int, int, tuple[Line, ...]]]:
    """Spans of a block's units, and the lines of code around each."""
    if block.kind == "code":
        yield from _code(text, start, end)
        return
    spans = [(start, end)]
    if block.kind == "paragraph" or (block.kind == "item" and count_words(block.text) > _WHOLE_ITEM):
        spans = [(start + a, start + b) for a, b in sentence_spans(text[start:end], wrapped=True)] or spans
        spans[0] = (start, spans[0][1])
    for a, b in spans:
        yield from ((x, y, ()) for x, y in _short(text, a, b))


def _short(text: str, start: int, end: int, longest: int = _LONGEST) -> Iterator[tuple[int, int]]:
    """A span in pieces of a length, cut where a blank or a comma is near, else between words."""
    total = count_words(text[start:end])
    if total <= longest:
        yield start, end
        return
    size = total / ceil(total / (0.6 * longest))
    words, begun, good = 0.0, start, 0
    for found in _PIECE.finditer(text, start, end):
        if words >= size:
            at = good if good > begun else found.start()
            yield begun, begun + len(text[begun:at].rstrip())
            while at < end and text[at].isspace():
                at += 1
            begun = at
            words = count_words(text[begun : found.start()])
            good = 0
        words += 1 / PER_WORD if _ALONE.match(found[0]) else max(1, len(found[0]) / 40)
        if words > 0.7 * size and (
            text[found.end() : found.end() + 1].isspace() or found[0][-1] in "\uff0c\u3001\uff1b;,"
        ):
            good = found.end()
    if text[begun:end].strip():
        yield begun, end


def _code(text: str, start: int, end: int) -> Iterator[tuple[int, int, tuple[Line, ...]]]:
    """Lines of code together, and those around them that they are indented below."""
    lines: list[tuple[int, int]] = []
    at = start
    for line in text[start:end].split("\n"):
        lines.append((at, at + len(line)))
        at += len(line) + 1
    first, words = 0, 0.0
    open_: list[tuple[int, Line]] = []  # lines around the one here, and how far they are indented
    outer: tuple[Line, ...] = ()  # of the first line of a unit
    for k, (a, b) in enumerate(lines):
        line = text[a:b]
        if line.strip():
            shown = line.expandtabs(4)
            depth = len(shown) - len(shown.lstrip())
            while open_ and open_[-1][0] >= depth:
                open_.pop()
            if not text[lines[first][0] : a].strip():
                outer = tuple(line for _, line in open_[-_OUTER_LINES:])
            if re.search(r"\w", line):
                open_.append((depth, Line(a, line.rstrip())))
        words += count_words(line)
        following = count_words(text[lines[k + 1][0] : lines[k + 1][1]]) if k + 1 < len(lines) else None
        if following is not None and words + following <= _CODE:
            continue
        begin = lines[first][0]
        said = text[begin:b]
        if said.strip():
            blank = _BLANK_LINES.match(said)
            for x, y in _short(text, begin + (blank.end() if blank else 0), begin + len(said.rstrip())):
                yield x, y, outer
        first, words = k + 1, 0.0


def _groups(parts: Sequence[Part], size: int) -> list[tuple[list[int], tuple[str, ...], int | None]]:
    """Units of each passage, its section, and where it begins if with a heading."""
    groups: list[list[int]] = []
    run: list[int] = []
    for k, part in enumerate(parts):
        if run and (part.heading, part.path, part.page) != _place(parts[run[0]]):
            groups += _packed(parts, run, size)
            run = []
        run.append(k)
    groups += _packed(parts, run, size)
    # Small sections join their neighbours.
    joined: list[list[int]] = []
    words = 0.0
    for group in groups:
        weight = sum(parts[k].words for k in group)
        first, here = parts[joined[-1][0]] if joined else parts[group[0]], parts[group[0]]
        near = (
            joined and first.page == here.page and first.path[:-1] == here.path[: max(0, len(first.path) - 1)]
        )
        if near and words * _SMALL < size and words + weight <= size:
            joined[-1] += group
            words += weight
        else:
            joined.append(list(group))
            words = weight
    made = []
    for k, group in enumerate(joined):
        first = parts[group[0]]
        path, start = first.path, None
        if any(parts[i].heading != first.heading for i in group):
            while any(parts[i].path[: len(path)] != path for i in group):
                path = path[:-1]
            before = parts[joined[k - 1][-1]].end if k else -1
            if first.heading is not None and first.heading.start > before and first.heading.text not in path:
                start = first.heading.start
        made.append((group, path, start))
    return made


def _place(part: Part) -> tuple[Line | None, tuple[str, ...], int | None]:
    return part.heading, part.path, part.page


def _packed(parts: Sequence[Part], run: Sequence[int], size: int) -> list[list[int]]:
    """Units of one section in passages of about the same length; blocks stay whole where they fit."""
    pieces: list[list[int]] = []
    for k in run:
        same = pieces and parts[pieces[-1][-1]].block == parts[k].block
        # What leads into others goes with the first of them.
        lead = pieces and any(need.start == parts[k - 1].start for need in parts[k].needs)
        if (same and not parts[k].row) or (lead and parts[pieces[-1][-1]].block != parts[k].block):
            pieces[-1].append(k)
        else:
            pieces.append([k])
    pieces = [
        part
        for piece in pieces
        for part in ([piece] if sum(parts[k].words for k in piece) <= size else [[k] for k in piece])
    ]
    groups: list[list[int]] = []
    words = 0.0
    for piece in pieces:
        weight = sum(parts[k].words for k in piece)
        if groups and words + weight <= size:
            groups[-1] += piece
            words += weight
        elif groups and words < 0.6 * size and len(piece) > 1:
            for k in piece:  # a long block fills the passage, and begins the next
                if words + parts[k].words <= size or not groups[-1]:
                    groups[-1].append(k)
                    words += parts[k].words
                else:
                    groups.append([k])
                    words = parts[k].words
        else:
            groups.append(list(piece))
            words = weight
    if len(groups) > 1 and words * _SMALL < size:
        _even_out(parts, groups, words)
    return groups


def _even_out(parts: Sequence[Part], groups: list[list[int]], words: float) -> None:
    """Let the last group, which is small, take from the one before."""
    before = groups[-2]
    rest = sum(parts[k].words for k in before)
    while len(before) > 1 and words + parts[before[-1]].words <= rest - parts[before[-1]].words:
        words += parts[before[-1]].words
        rest -= parts[before[-1]].words
        groups[-1].insert(0, before.pop())
