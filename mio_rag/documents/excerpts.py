"""A piece of a document, as a splitter left it -> its blocks, each a span of that text.

Readers of files rebuild their text; here every character keeps its place. Only line ends within a paragraph
become blanks. The piece may begin and end anywhere: within a table, below a heading that is not there.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from mio_rag.documents import east_asian
from mio_rag.documents.blocks import (
    CASE_LEVEL,
    COUNTED_LEVEL,
    ITEM,
    Block,
    Document,
    headers_of,
    is_heading,
    is_numbered,
    keeps_lines,
    nest_items,
)
from mio_rag.documents.east_asian import count_words
from mio_rag.documents.passages import TELLS, Part, parts_of

_HASHES = re.compile(r"#{1,6}\s+(?=\S)")
_FENCE = re.compile(r"(?:```|~~~)")
_RULER = re.compile(r"[\s|:+=_*~\u2013\u2014-]+")
_UNDERLINE = re.compile(r"(={3,}|-{3,})")
_ENDED = re.compile(r"[.!?:;\u3002\uff01\uff1f\uff1a][\"'\u201d\u2019)\]]*$")
_SHORT_HEADING, _LONGER = 6, 8  # words of a line that heads by its looks alone, and of what it heads
_LONG_CELL = 8  # words: a line with more between two commas is prose
_CELL, _CELL_LENGTH, _COLUMNS = 6, 40, 12  # words and characters of a cell; columns, where each is a line
_ABBREVIATED = 5  # characters
_AMOUNT = re.compile(r"(?:[^\W\d_]{1,3}\s)?[^\w\s]{0,3}\d[\d.,:/\u2019'-]*(?:\s?[^\s\d]{1,6}\d?){0,2}")
_FULL_LINE, _LONG_LINE = 0.7, 200  # share of the longest line, and characters, from which lines are wrapped


@dataclass
class _Reader:
    """Lines of a text, without the white space around them: characters [start, end)."""

    text: str
    lines: list[tuple[int, int]]
    document: Document = field(default_factory=Document)
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    joins: list[int] = field(default_factory=list)  # lines that the one before goes on with
    #: Line -> first row, number of columns and end of a table that begins there, each cell a line.
    columns: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    cells: list[int] = field(default_factory=list)  # cells of the row that the line before is of
    tables: int = 0

    def said(self, k: int) -> str:
        return self.text[slice(*self.lines[k])] if 0 <= k < len(self.lines) else ""

    def after(self, k: int) -> str:
        return next(filter(None, map(self.said, range(k + 1, len(self.lines)))), "")

    def add(self, kind: str, start: int, end: int, level: int = 0, **more: object) -> None:
        self.document.blocks.append(Block(kind, self.text[start:end], level, **more))  # type: ignore[arg-type]
        self.starts.append(start)
        self.ends.append(end)

    def read(self) -> None:
        self._find_columns()
        k = 0
        while k < len(self.lines):
            k = self._next(k)

    def _next(self, k: int) -> int:
        """Add what begins at a line; return the first line behind it."""
        start, end = self.lines[k]
        said = self.text[start:end]
        if not said:
            return k + 1
        if _FENCE.match(said):
            return self._code(k)
        if last := self._rows(k):
            return last
        if k in self.columns:
            return self._add_columns(k)
        if found := _HASHES.match(said):
            inner = said[found.end() :].rstrip("# ") or said[found.end() :]
            at = start + found.end()
            self.add("heading", at, at + len(inner), found[0].count("#"))
            return k + 1
        if _RULER.fullmatch(said):
            return k + 1
        if (ruled := _UNDERLINE.fullmatch(self.said(k + 1))) and len(said.split()) <= 16:
            self.add("heading", start, end, 1 if ruled[0][0] == "=" else 2)
            return k + 2
        return self._item(k) if ITEM.match(said) else self._paragraphs(k)

    def _begins(self, k: int) -> bool:
        """Whether a line is blank, or begins something other than a paragraph."""
        said = self.said(k)
        told = _FENCE.match(said) or _HASHES.match(said) or _RULER.fullmatch(said) or ITEM.match(said)
        return not said or bool(told) or k in self.columns or self._delimiter(k) is not None or bool(
            _UNDERLINE.fullmatch(self.said(k + 1))
        )  # fmt: skip

    def _code(self, k: int) -> int:
        last = k + 1
        while last < len(self.lines) and not _FENCE.match(self.said(last)):
            last += 1
        inside = [j for j in range(k + 1, last) if self.said(j)]
        if inside:
            begin = self.text.rfind("\n", 0, self.lines[inside[0]][0]) + 1
            self.add("code", begin, self.lines[inside[-1]][1])
        return last + 1

    def _delimiter(self, k: int) -> str | None:
        """What parts the cells of a row; commas and the like only where several rows have as many."""
        said = self.said(k)
        if said.startswith("|") or " | " in said:
            return "|"
        for sign, fewest in (("\t", 1), (";", 2), (",", 2)):
            if said.count(sign) < fewest:
                continue
            cells = _cells(said, sign)
            if any(count_words(cell) > _LONG_CELL for cell in cells):
                continue
            alike = [len(_cells(self.said(j), sign)) == len(cells) for j in range(k - 2, k + 3)]
            run = "".join("x" if one else " " for one in alike)
            if ("xx" if sign == "\t" else "xxx") in run:
                return sign
        return None

    def _rows(self, k: int) -> int | None:
        sign = self._delimiter(k)
        if sign is None:
            return None
        last = k + 1
        while last < len(self.lines) and (
            self._delimiter(last) == sign
            or (sign == "|" and self.said(last) and _RULER.fullmatch(self.said(last)))
        ):
            last += 1
        kept = [j for j in range(k, last) if not _RULER.fullmatch(self.said(j))]
        rows = [_cells(self.said(j), sign) for j in kept]
        if last > k + 1 and kept[:1] == [k] and _RULER.fullmatch(self.said(k + 1)):
            count = 1
        else:
            guess = None if self.document.blocks else False  # the header may be in the piece before
            groups = len(rows) > 2 and rows[0][0] == rows[1][0] and len({*rows[0]}) < len(rows[0])
            rows = rows[groups:]  # names of groups of columns stand above those of the columns
            count = headers_of(rows, guess) if rows else 0
            count += groups and count > 0
        self.tables += 1
        for n, j in enumerate(kept):
            start, end = self.lines[j]
            if sign == "|":
                said = self.text[start:end]
                start += len(said) - len(said.lstrip("| \t"))
                end -= len(said) - len(said.rstrip("| \t"))
            if start < end:
                self.add("row", start, end, table=self.tables, header=n < count)
        return last

    def _find_columns(self) -> None:
        """Find tables whose cells stand one below the other, as some readers of PDFs leave them."""
        k = 0
        while k < len(self.lines):
            last = k
            while last < len(self.lines) and self._is_cell(last):
                last += 1
            while k < last and (found := _columns([self.said(j) for j in range(k, last)])):
                begin, first, width, rows = found
                self.columns[k + begin] = k + first, width, k + first + rows
                k += first + rows
            k = last + 1

    def _is_cell(self, k: int) -> bool:
        start, end = self.lines[k]
        said = self.text[start:end]
        ended = _ENDED.search(said) and end - start > _ABBREVIATED  # not "No."
        return 0 < end - start <= _CELL_LENGTH and count_words(said) <= _CELL and not ended

    def _add_columns(self, k: int) -> int:
        first, width, end = self.columns[k]
        self.tables += 1
        starts = [*([k] if k < first else []), *range(first, end, width), end]
        rows = [[self.said(j) for j in range(a, b)] for a, b in pairwise(starts)]
        headers = first - k == width or headers_of(rows, None if self.document.blocks else False)
        for n, (a, b) in enumerate(pairwise(starts)):
            self.cells += range(a + 1, b)
            self.add("row", self.lines[a][0], self.lines[b - 1][1], table=self.tables, header=n < headers)
            block = self.document.blocks[-1]
            block.text = block.text.replace("\n", "|").replace("\r", " ")
        return end

    def _item(self, k: int) -> int:
        start, end = self.lines[k]
        margin = start - (self.text.rfind("\n", 0, start) + 1)
        last = k + 1
        while last < len(self.lines) and not self._begins(last):
            inner = self.lines[last][0]
            deeper = inner - (self.text.rfind("\n", 0, inner) + 1) > margin
            if not (deeper or (self.said(last)[0].islower() and not _ENDED.search(self.said(last - 1)))):
                break
            self.joins.append(last)
            end = self.lines[last][1]
            last += 1
        self.add("item", start, end, self._depth(start, margin))
        return last

    def _depth(self, start: int, margin: int) -> int:
        """How deep an item stands, by the items before it."""
        outer, deepest = 0, margin
        for block, at in zip(reversed(self.document.blocks), reversed(self.starts), strict=True):
            before = at - (self.text.rfind("\n", 0, at) + 1)
            if block.kind != "item" or not deepest:
                break
            if before < deepest:
                outer, deepest = outer + 1, before
        return outer

    def _paragraphs(self, k: int) -> int:
        last = k + 1
        while last < len(self.lines) and not self._begins(last):
            last += 1
        begin = self.text.rfind("\n", 0, self.lines[k][0]) + 1
        end = self.lines[last - 1][1]
        code = self.document.blocks and self.document.blocks[-1].kind == "code"
        if code and self.text[begin].isspace() and not self.text[self.ends[-1] : begin].strip():
            begin = self.starts.pop()  # it goes on behind a blank line
            del self.document.blocks[-1], self.ends[-1]
            self.add("code", begin, end)
            return last
        if keeps_lines(self.text[begin:end].split("\n")):
            self.add("code", begin, end)
            return last
        width = max(end - start for start, end in self.lines[k:last])
        begun = k
        for j in range(k, last):
            said, before = self.said(j), self.said(j - 1) if j > begun else ""
            short = len(before) < _FULL_LINE * width and not said[:1].islower()
            ended = short or _ENDED.search(before) is not None
            if ended and (level := self._level(j)):
                self._paragraph(begun, j)
                self.add("heading", *self.lines[j], level, looks=level == CASE_LEVEL)
                begun = j + 1
            elif before and (ended or len(before) > _LONG_LINE):
                self._paragraph(begun, j)
                begun = j
        self._paragraph(begun, last)
        return last

    def _paragraph(self, first: int, behind: int) -> None:
        if first < behind:
            self.joins += range(first + 1, behind)
            self.add("paragraph", self.lines[first][0], self.lines[behind - 1][1])

    def _level(self, k: int) -> int:
        """The level of a line that reads as a heading; 0 for others."""
        said, after = self.said(k), self.after(k)
        if level := east_asian.heading_level(said, after, self.said(k - 1)):
            return level
        counted = is_numbered(said) and is_heading(said, after)
        if counted:
            return COUNTED_LEVEL
        listed = after.endswith(":") or ITEM.match(after) is not None
        if (
            not after
            or (count_words(after) <= _LONGER and not listed)
            or after[0].islower()
            or _ENDED.search(said)
        ):
            return 0
        plain = said[0].isupper() and count_words(said) <= _SHORT_HEADING and not TELLS.search(said)
        return CASE_LEVEL if plain or is_heading(said, after) else 0


def _columns(lines: Sequence[str]) -> tuple[int, int, int, int] | None:
    """Where the table of some lines begins, where its first row, of how many columns, and over how many lines
    its rows go: amounts and words stand alike in three rows or more. None if there is no table.

    The table may begin with its header, or within a row; and end within one.
    """
    amounts = [_AMOUNT.fullmatch(line) is not None for line in lines]
    best, n = (0, False, False, 0, 0, 0), len(lines)
    for width in range(2, min(_COLUMNS, n // 3) + 1):
        for first in range(n - 3 * width + 1):
            row, end = amounts[first : first + width], first + width
            if all(row) or not any(row) or (first >= width and amounts[first - width : first] == row):
                continue
            while amounts[end : end + width] == row:
                end += width
            counted = _counts([lines[k] for k in range(first, end, width)])
            if row[0] and not counted:
                continue
            headed = first >= width and not any(amounts[first - width : first])
            names = len({lines[k] for k in range(first, end, width)})
            if end >= first + 3 * width:
                best = max(best, (end - first, headed, counted, names, -width, -first))
    covered, headed, width, first = best[0], best[1], -best[4], -best[5]
    if not covered:
        return None
    row, begin = amounts[first : first + width], first - width if headed else first
    while (
        not headed
        and begin > 0
        and begin > first - width + 1
        and amounts[begin - 1] == row[begin - 1 - first]
    ):
        begin -= 1
    if not headed and not any(amounts[begin:first]):
        begin = first
    rest = amounts[first + covered : first + covered + width - 1]
    if any(rest) and rest == row[: len(rest)]:
        covered += len(rest)
    return begin, first, width, covered


def _counts(numbers: Sequence[str]) -> bool:
    """Whether some lines count on by one."""
    given = [int(one.rstrip(".")) if one.rstrip(".").isdecimal() else -1 for one in numbers]
    return min(given) >= 0 and all(b == a + 1 for a, b in pairwise(given))


def _cells(line: str, sign: str) -> list[str]:
    if sign == "|":
        return [cell.strip() for cell in line.strip().strip("|").split("|")]
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=sign), [])]
    except csv.Error:
        return [cell.strip() for cell in line.split(sign)]


def read_excerpt(text: str, title: str = "") -> tuple[str, Sequence[Part]]:
    """Return a text of the same length, with line ends within paragraphs as blanks, and its units.

    title: of its document; a heading that repeats it says nothing.
    """
    lines, at = [], 0
    for line in text.split("\n"):
        start = at + len(line) - len(line.lstrip())
        lines.append((start, max(start, at + len(line.rstrip()))) if line.strip() else (at, at))
        at += len(line) + 1
    reader = _Reader(text, lines)
    reader.read()
    document = reader.document
    document.title = title
    if not any(block.level for block in document.blocks if block.kind == "item"):
        nest_items(document)
    shown = list(text.replace("\r", " "))
    for sign, joined in ((" ", reader.joins), ("|", reader.cells)):
        for k in joined:
            shown[text.rfind("\n", 0, lines[k][0])] = sign
    blocks = document.blocks
    for k, block in enumerate(blocks):  # headings with nothing below are units only where nothing else is
        if all(one.kind == "heading" for one in blocks) or (block.looks and k + 1 == len(blocks)):
            block.kind, block.level = "paragraph", 0
    text = "".join(shown)
    return text, list(parts_of(document, text, reader.starts, reader.ends))
