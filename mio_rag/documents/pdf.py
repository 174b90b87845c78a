"""PDF -> blocks: headings, paragraphs, tables, by place and size; what every page repeats goes."""

from __future__ import annotations

import ctypes
import math
import re
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from statistics import median
from typing import Any

from mio_rag.documents.blocks import (
    ITEM,
    Document,
    infer_headings,
    is_number,
    joined,
    nest_items,
    short_title,
    tidy,
    words_of,
)
from mio_rag.errors import DataError, require

_LOCK = threading.Lock()  # the library is not safe in threads
_BREAK = re.compile("\r?\n|[\ufffe\x02]")
_CUTS = "\ufffe\x02\u00ad"
_GAP = 0.9  # of a letter's height: white space that parts two cells
_EDGE = 0.12  # of a page: where headers and footers stand
_PAGE_NUMBER = re.compile(
    r"\W*(?:(?:page|seite|p\.)\s*)?(?:\d{1,4}|[ivxl]{1,6}|[A-Z]{1,2}-\d{1,3})(?:\s*(?:of|/|von)\s*\d{1,4})?\W*",
    re.IGNORECASE,
)
_LEADERS = re.compile(r"(?:\s*\.){4,}\s*|(?:\s*_){4,}\s*|\u2026{2,}")
_YEARS = re.compile(
    r"(?:\W*(?:(?:fy|q[1-4]|20\d\d|19\d\d|fiscal|year|ended|months|weeks|three|six|nine|twelve|january|february|march|april|may|june|july|august|september|october|november|december|change|%|as|of|the|vs|restated|unaudited|\d{1,2},)\W*))+",
    re.IGNORECASE,
)
_MARKS = re.compile(
    r"(?:\([a-z]\)[\s,]*){2,}|(?:(?:[*\u2020\u2021\u00ae\u2122]|TM|SM)\s*)+|[\W_]{3,}"
)  # that notes left behind
_DIGITS = re.compile(r"\d\S*")
_WORD = re.compile(r"\S+")
_UNREADABLE = re.compile("[\ufffd\ue000-\uf8ff]")


@dataclass(slots=True)
class _Line:
    """A line as it stands on its page; places in points from below and from the left."""

    text: str
    left: float
    right: float
    bottom: float
    top: float
    size: float
    bold: bool
    words: int
    cut: bool = False  # ends in a hyphen that may be of the line alone
    cells: list[tuple[float, float, str]] = field(default_factory=list)
    spots: list[tuple[float, float, str]] = field(default_factory=list)  # of words


def read_pdf(data: bytes) -> Document:
    """Pages of a PDF.

    Raises
    ------
    DataError
        Where it is locked, damaged, or holds pictures alone.
    """
    library = require("pypdfium2", "documents", "reading PDF files")
    document = Document()
    pages: list[tuple[float, list[_Line]]] = []
    with _LOCK:
        try:
            pdf = library.PdfDocument(data)
        except library.PdfiumError as error:
            if "assword" in str(error) or "ecurity" in str(error):
                raise DataError("is encrypted: save it without a password") from error
            raise DataError(f"cannot be read as a PDF ({error})") from error
        try:
            about = pdf.get_metadata_dict()
            for k in range(len(pdf)):
                try:
                    page = pdf[k]
                    pages.append(_page(library, page))
                    lines = pages[-1][1]
                    if not lines and library.raw.FPDFPage_CountObjects(page) > 0:
                        document.left_out.append((f"page {k + 1}", "holds no text (a picture needs OCR)"))
                    elif (
                        sum(len(_UNREADABLE.findall(line.text)) for line in lines) * 3
                        > sum(len(line.text) for line in lines)
                        > 0
                    ):
                        document.left_out.append(
                            (f"page {k + 1}", "its letters have no readable codes (it needs OCR)")
                        )
                        pages[-1] = (pages[-1][0], [])
                    page.close()
                except Exception as error:
                    document.left_out.append((f"page {k + 1}", f"cannot be read ({error})"))
                    pages.append((0.0, []))
        finally:
            pdf.close()
    if not any(lines for _, lines in pages):
        if document.left_out and any("cannot" in reason for _, reason in document.left_out):
            return document
        raise DataError("holds no text: its pages are pictures, which need text recognition (OCR) first")
    _drop_repeated(pages)
    _Layout(document, pages).read()
    infer_headings(document)
    nest_items(document)
    document.title = _title(about.get("Title", ""), document)
    known = {
        "author": about.get("Author", ""),
        "created": _when(about.get("CreationDate", "")),
        "modified": _when(about.get("ModDate", "")),
    }
    document.metadata = {name: tidy(value) for name, value in known.items() if value and tidy(value)}
    return document


def _when(given: str) -> str:
    found = re.match(r"(?:D:)?(\d{4})(\d\d)(\d\d)", given)
    return "-".join(found.groups()) if found else ""


def _title(given: str, document: Document) -> str:
    """The title that the file carries, if its first page says it, too."""
    title = tidy(given)
    words = set(re.findall(r"\w+", title.lower()))
    head = " ".join(b.text for b in document.blocks[:40]).lower()
    said = sum(word in head for word in words)
    if (
        len(words) < 2
        or said < 0.7 * len(words)
        or re.search(r"\.(docx?|pdf|qxd|indd|pptx?|xlsx?)\b", title.lower())
    ):
        return ""
    return short_title(re.sub(r"^Microsoft Word - ", "", title))


# Lines -----------------------------------------------------------------------------------------------------


def _page(library: Any, page: Any) -> tuple[float, list[_Line]]:
    """Height of a page, and its lines."""
    raw = library.raw
    text_page = page.get_textpage()
    count = text_page.count_chars()
    if count > 0 and page.get_rotation() and abs(raw.FPDFText_GetCharAngle(text_page, count // 2)) < 0.1:
        page.set_rotation(0)  # lines of upright text would come in the wrong order
        text_page.close()
        text_page = page.get_textpage()
        count = text_page.count_chars()
    height = float(page.get_height())
    text = text_page.get_text_range(0, count) if count > 0 else ""
    lines = list(_lines(raw, text_page, text)) if text.strip() else []
    text_page.close()
    return height, [line for line in lines if not _MARKS.fullmatch(line.text)] if len(lines) > 9 else lines


class _Place:
    """Where characters of a page stand."""

    def __init__(self, raw: Any, page: Any) -> None:
        self.raw, self.page = raw, page.raw
        self.box = [ctypes.c_double() for _ in range(4)]
        self.refs = [ctypes.byref(value) for value in self.box]
        self.fonts: dict[Any, bool] = {}
        self.matrix = raw.FS_MATRIX()
        self.matrix_ref = ctypes.byref(self.matrix)

    def of(self, k: int) -> tuple[float, float, float, float]:
        """Left, right, bottom, top of a character."""
        a, b, c, d = self.box
        self.raw.FPDFText_GetCharBox(self.page, k, *self.refs)
        return a.value, b.value, c.value, d.value

    def words(self, text: str, first: int, end: int) -> Iterator[tuple[float, float, str]]:
        """Left, right and text of each word."""
        box, page, refs = self.raw.FPDFText_GetCharBox, self.page, self.refs
        left, right = self.box[:2]
        for word in _WORD.finditer(text, first, end):
            a, b = word.span()
            box(page, a, *refs)
            begun = left.value
            if b - a > 1:
                box(page, b - 1, *refs)
            said = word[0]
            yield begun, right.value, said if said.isascii() else tidy(said)

    def size(self, k: int) -> float:
        """Height of a letter's font, as it is shown."""
        said = float(self.raw.FPDFText_GetFontSize(self.page, k))
        if self.raw.FPDFText_GetMatrix(self.page, k, self.matrix_ref):
            return said * (math.hypot(self.matrix.c, self.matrix.d) or 1.0)
        return said

    def bold(self, k: int) -> bool:
        """Whether a character is of a bold font."""
        thing = self.raw.FPDFText_GetTextObject(self.page, k)
        font = self.raw.FPDFTextObj_GetFont(thing) if thing else None
        if not font:
            return False
        key = ctypes.addressof(font.contents)
        if key not in self.fonts:
            name = ctypes.create_string_buffer(200)
            self.raw.FPDFFont_GetBaseFontName(font, name, 200)
            said = name.value.lower()
            self.fonts[key] = (
                any(w in said for w in (b"bold", b"black", b"heavy", b"demi"))
                or self.raw.FPDFFont_GetWeight(font) >= 600
            )
        return self.fonts[key]


def _lines(raw: Any, page: Any, text: str) -> Iterator[_Line]:
    place = _Place(raw, page)
    found: list[tuple[_Line, int, int]] = []
    at = 0
    for mark in [*_BREAK.finditer(text), None]:
        end = len(text) if mark is None else mark.start()
        piece = text[at:end]
        said = piece.strip()
        if said:
            first = at + len(piece) - len(piece.lstrip())
            last = first + len(said) - 1
            left, right, bottom, top = place.of(first)
            if last > first:
                _, right, low, high = place.of(last)
                bottom, top = min(bottom, low), max(top, high)
            size = place.size(first)
            if size < 3:  # not what is shown
                size = max(top - bottom, 3) / 0.72
            cut = mark is not None and mark[0] in _CUTS
            if said[-1] == "\u00ad":
                cut, said = True, said[:-1]
            said = tidy(said + "-" if cut else said)
            bold, words = place.bold(first), said.count(" ") + 1
            line = _Line(said, left, right, bottom, top, round(size, 1), bold, words, cut)
            found.append((line, first, last + 1))
        at = len(text) if mark is None else mark.end()
    rows = _in_rows(found)
    wide = median((x.right - x.left) / (len(x.text) * max(x.size, 1)) for x, *_ in found) if found else 1.0
    wanted = [
        _is_row(line.text) or line.right - line.left > 1.35 * wide * len(line.text) * line.size
        for line, _ in rows
    ]
    for k, (line, parts) in enumerate(rows):
        if len(parts) > 1 or wanted[k] or (line.words <= 14 and any(wanted[max(0, k - 1) : k + 5])):
            line.spots = [spot for _, first, end in parts for spot in place.words(text, first, end)]
            line.cells = _cells(line, [len(text[first:end].split()) for _, first, end in parts])
        if line.text:
            yield line


_Found = tuple[_Line, int, int]  # a line and where its characters are


def _in_rows(found: Sequence[_Found]) -> list[tuple[_Line, list[_Found]]]:
    """Lines of one height together: cells of a row come one by one, or column by column of a few lines."""
    groups: list[list[_Found]] = []
    for one in found:
        line = one[0]
        height = max(line.top - line.bottom, 4.0)
        group = groups[-1] if groups else [one]
        last = group[-1][0]
        up = line.bottom - last.bottom
        if groups and (up > -0.4 * height or len(group) > 1):
            first = max(x.top for x, *_ in group)
            # It goes up again, a few lines at most, and to the right: a cell of the same row.
            if (
                -0.4 * height < up < 6 * height
                and line.left > last.left
                and line.top < first + 0.6 * height
                and (line.left > last.right - 1 or up > 0.5 * height)
            ):
                group.append(one)
                continue
            # A further line of the cell, if what follows it goes up.
            below = last.bottom - line.top
            if (
                len(group) > 1
                and below < 0.8 * height
                and line.top < last.top
                and abs(line.left - last.left) < 20
                and line.bottom > min(x.bottom for x, *_ in group) - 0.4 * height
            ):
                group.append(one)
                continue
            back = 0
            if len(group) == 1 and 0.5 * height < up < 6 * height and line.left > last.right - 1:
                while (
                    back < min(5, len(groups) - 1)
                    and len(groups[-2 - back]) == 1
                    and groups[-2 - back][0][0].top <= line.top + 0.6 * height
                ):
                    back += 1
            if back:
                groups[-1 - back :] = [[x for g in groups[-1 - back :] for x in g]]
                groups[-1].append(one)
                continue
        groups.append([one])
    rows: list[tuple[_Line, list[_Found]]] = []
    for group in groups:
        if len(group) == 1:
            rows.append((group[0][0], group))
            continue
        levels: list[list[_Found]] = []
        for one in sorted(group, key=lambda one: -one[0].top):
            line = one[0]
            level = levels[-1][0][0] if levels else line
            over = min(level.top, line.top) - max(level.bottom, line.bottom)
            if levels and over > 0.5 * min(level.top - level.bottom, line.top - line.bottom):
                levels[-1].append(one)
            else:
                levels.append([one])
        for parts in levels:
            parts.sort(key=lambda one: one[0].left)
            line, last = parts[0][0], parts[-1][0]
            if len(parts) > 1:
                line.text = " ".join(x.text for x, *_ in parts)
                line.words = sum(x.words for x, *_ in parts)
                line.right, line.cut = last.right, last.cut
            rows.append((line, parts))
    return rows


def _is_row(text: str) -> bool:
    """Whether a line has numbers as rows of tables do."""
    digits = len(_DIGITS.findall(text))
    if not digits or (digits < 0.25 * (text.count(" ") + 1) and text.count(" ") > 7):
        return False
    words = text.split()
    count = sum(is_number(word) for word in words if _DIGITS.search(word))
    return (count >= 2 and count >= 0.25 * len(words)) or (
        count == 1 and 1 < len(words) <= 8 and is_number(words[-1])
    )


def _cells(line: _Line, counts: Sequence[int]) -> list[tuple[float, float, str]]:
    """Words of a row together where little white space is between them.

    Parameters
    ----------
    counts : sequence of int
        Words of each piece that the library gave.
    """
    cells: list[tuple[float, float, str]] = []
    scale = max(min(line.size, 1.6 * max(line.top - line.bottom, 4.0)), 4.0)
    fresh = set(accumulate(counts))
    for k, (left, right, said) in enumerate(line.spots):
        gap = (left - cells[-1][1]) / scale if cells else 0.0
        before = cells[-1][2].rsplit(" ", 1)[-1] if cells else ""
        if cells and gap <= (0.45 if k in fresh else _GAP) and not _apart(before, said, gap):
            cells[-1] = (cells[-1][0], right, f"{cells[-1][2]} {said}")
        elif said:
            cells.append((left, right, said))
    out: list[tuple[float, float, str]] = []
    for left, right, said in cells:  # signs belong to their numbers
        open_ = out and re.fullmatch(r"[$\u20ac\u00a3(]+|[$\u20ac\u00a3]\s*\(", out[-1][2])
        if out and (said in (")", "%", ")%", "pts", "*") or open_):
            out[-1] = (out[-1][0], right, f"{out[-1][2]}{'' if said[0] in ')%*' else ' '}{said}")
        else:
            out.append((left, right, said))
    return out


def _apart(before: str, word: str, gap: float) -> bool:
    """Whether two words are of two columns though little white space is between them: two numbers."""
    if gap >= 0.2 and word[0] in "$\u20ac\u00a3" and before[-1:] in "%)":
        return True
    if (
        gap < 0.2
        or before[-1:] == ","
        or not is_number(before)
        or not any(c.isdigit() or c in "-\u2013\u2014" for c in before)
    ):
        return False
    return word[0] in "$\u20ac\u00a3(" or (
        is_number(word) and word not in ("-", "\u2013", "\u2014", "%", ")")
    )


def _drop_repeated(pages: list[tuple[float, list[_Line]]]) -> None:
    """Take out headers, footers and page numbers."""

    def key(line: _Line) -> str:
        return re.sub(r"\d+", "#", line.text.lower())

    edges: list[list[bool]] = []
    for height, lines in pages:
        tops, bottoms = sorted((x.top for x in lines), reverse=True)[:2], sorted(x.bottom for x in lines)[:2]
        low, high = max([_EDGE * height, *bottoms]), min([(1 - _EDGE) * height, *tops])
        edges.append([x.top <= _EDGE * height or x.bottom <= low or x.top >= high for x in lines])
    seen = Counter(
        k
        for (_, lines), edge in zip(pages, edges, strict=True)
        for k in {key(line) for line, there in zip(lines, edge, strict=True) if there}
    )
    often = max(3, 0.2 * len(pages))
    for (height, lines), edge in zip(pages, edges, strict=True):
        kept = []
        for line, there in zip(lines, edge, strict=True):
            outside = line.top < _EDGE * height or line.bottom > (1 - _EDGE) * height
            number = outside and len(pages) > 1 and _PAGE_NUMBER.fullmatch(line.text)
            if not there or not (seen[key(line)] >= often or number):
                kept.append(line)
        lines[:] = kept


def _parted(line: _Line, columns: Sequence[Sequence[float]]) -> Iterator[tuple[float, float, str]]:
    """Cells of a row; one that stands above two columns in two, if there is a gap between them."""
    for a, b, said in line.cells:
        over = [c for c in columns if min(b, c[1]) - max(a, c[0]) > 0.3 * (c[1] - c[0])]
        spots = [spot for spot in line.spots if a - 0.1 <= spot[0] and spot[1] <= b + 0.1]
        if len(over) < 2 or len(spots) < 2:
            yield a, b, said
            continue
        gaps = [y[0] - x[1] for x, y in pairwise(spots)]
        part = [spots[0]]
        for gap, spot in zip(gaps, spots[1:], strict=True):
            between = any(
                x[1] - 4 <= spot[0] and part[-1][1] <= y[0] + 4 and part[-1][1] < y[0] and spot[0] > x[1] - 4
                for x, y in pairwise(over)
            )
            if between and gap > 1.2 * median(gaps):
                yield part[0][0], part[-1][1], " ".join(word for *_, word in part)
                part = []
            part.append(spot)
        yield part[0][0], part[-1][1], " ".join(word for *_, word in part)


class _Layout:
    """Lines -> blocks."""

    def __init__(self, document: Document, pages: list[tuple[float, list[_Line]]]) -> None:
        self.document, self.pages = document, pages
        sizes: Counter[float] = Counter()
        bold: Counter[bool] = Counter()
        for _, lines in pages:
            for line in lines:
                sizes[line.size] += len(line.text)
                bold[line.bold] += len(line.text)
        self.body = sizes.most_common(1)[0][0]
        self.bold_matters = bold[True] < 0.4 * sum(bold.values())
        larger = sorted({round(s) for s in sizes if s >= 1.12 * self.body}, reverse=True)[:4]
        self.levels = {size: k + 1 for k, size in enumerate(larger)}
        cut = any(line.cut or line.text[-1] == "-" for _, lines in pages for line in lines)
        self.words = words_of(" ".join(line.text for _, lines in pages for line in lines)) if cut else set()
        self.waiting: list[_Line] = []  # of the paragraph here

    def read(self) -> None:
        """Append the blocks of all pages."""
        for number, (_, lines) in enumerate(self.pages, 1):
            first = len(self.document.blocks)
            self.document.page = number
            self._page(lines)
            self._carry_over(first)

    def _page(self, lines: list[_Line]) -> None:
        gaps = [a.bottom - b.bottom for a, b in pairwise(lines) if 0 < a.bottom - b.bottom < 4 * self.body]
        leading = median(gaps) if gaps else 1.3 * self.body
        k = 0
        while k < len(lines):
            line = lines[k]
            before = lines[k - 1] if k else None
            gap = before is None or not -0.5 * leading < before.bottom - line.top < 0.75 * leading
            table = self._table_end(lines, k, leading)
            if table:
                start = self._header_start(lines, k)
                self._flush(lines)
                self._add_table(lines[start:table], k - start)
                k = table
                continue
            level = self._heading_level(lines, k, gap)
            if level:
                self._flush(lines)
                said = line.text
                k += 1
                while (
                    k < len(lines)
                    and self._same_heading(lines[k - 1], lines[k], leading)
                    and len(said.split()) < 20
                ):
                    said = (
                        joined(said, lines[k].text, self.words)
                        if lines[k - 1].cut
                        else f"{said} {lines[k].text}"
                    )
                    k += 1
                self.document.add("heading", _LEADERS.sub(" ", said), level)
                continue
            if self.waiting and (gap or self._begins(lines, k)):
                self._flush(lines)
            self.waiting.append(line)
            k += 1
        self._flush(lines)

    def _begins(self, lines: list[_Line], k: int) -> bool:
        """Whether a line begins a paragraph, by its sign or since the one before ends early."""
        line, before = lines[k], lines[k - 1]
        if before.cut:
            return False
        if abs(line.size - before.size) > 0.12 * before.size:
            return True
        ended = before.text[-1] in '.:;!?\u3002\uff01\uff1f\u201d"'
        if ITEM.match(line.text) and (
            ended
            or before.right < 0.75 * self._right(lines, k)
            or before.text.lower().endswith((" and", " or", ","))
        ):
            return True
        indented = line.left > before.left + 0.8 * self.body and (len(self.waiting) > 1)
        early = before.right < before.left + 0.8 * (self._right(lines, k) - before.left)
        if line.text[:1].islower():
            return False
        return (
            early and (ended or before.right < before.left + 0.6 * (self._right(lines, k) - before.left))
        ) or (indented and ended)

    def _right(self, lines: list[_Line], k: int) -> float:
        """Where the column ends."""
        left = lines[k].left
        return max([x.right for x in lines[max(0, k - 6) : k + 7] if -60 < x.left - left < 60])

    def _flush(self, lines: list[_Line]) -> None:
        """What waits is a paragraph, or an item."""
        if not self.waiting:
            return
        text = self.waiting[0].text
        for before, line in pairwise(self.waiting):
            cut = before.cut or (
                text[-1:] == "-" and len(text) > 1 and text[-2].isalpha() and line.text[:1].islower()
            )
            text = joined(text, line.text, self.words) if cut else f"{text} {line.text}"
        if ".." in text or ". ." in text or "__" in text:
            text = _LEADERS.sub(" \u2026 ", text)
        if "----" in text:
            text = tidy(re.sub(r"-{4,}", " ", text))
        self.document.add("item" if ITEM.match(text) else "paragraph", text)
        self.waiting = []

    def _heading_level(self, lines: list[_Line], k: int, gap: bool) -> int:
        """The level of a heading; 0 if the line is none."""
        line = lines[k]
        text = line.text
        if line.words > 16 or text[-1] in ",;" or not any(c.isalpha() for c in text) or line.cut:
            return 0
        large = line.size >= 1.12 * self.body
        bold = line.bold and self.bold_matters
        capitals = text.isupper() and len(text) > 4 and line.words > 1
        if not (large or bold or capitals) or _YEARS.fullmatch(text) or re.fullmatch(r"\(.*\)", text):
            return 0
        before = lines[k - 1] if k else None
        after = lines[k + 1] if k + 1 < len(lines) else None
        if not large:
            if text[-1] == "." and line.words > 4 and not capitals:
                return 0
            same = (
                before is not None
                and not gap
                and before.bold == line.bold
                and before.text.isupper() == text.isupper()
                and abs(before.size - line.size) < 0.5
            )
            if same and self.waiting:
                return 0  # within a paragraph that is bold
            goes_on = (
                after is not None and after.bold == line.bold and after.text[:1].islower() and not capitals
            )
            if goes_on:
                return 0
            full = line.right > line.left + 0.85 * (self._right(lines, k) - line.left) and line.words > 10
            if full:
                return 0
        if large and line.size < 1.3 * self.body and text[-1] == "." and line.words > 8:
            return 0
        numbered = re.match(r"(\d{1,2}(?:\.\d{1,2})*)\.?\s", text)
        deep = numbered[1].count(".") if numbered else 0
        base = self.levels.get(round(line.size), 0) if large else 0
        if base:
            return base
        first = capitals or re.match(r"(?:article|chapter|part|item|section)\s+[\dIVX]+", text, re.IGNORECASE)
        return len(self.levels) + (1 if first else 2) + deep

    def _same_heading(self, line: _Line, after: _Line, leading: float) -> bool:
        near = line.bottom - after.top < 0.7 * max(leading, line.size)
        alike = (
            abs(line.size - after.size) < 0.5
            and line.bold == after.bold
            and line.text.isupper() == after.text.isupper()
        )
        return (
            near
            and alike
            and not after.cells
            and not re.match(r"\d|[-\u2022]", after.text)
            and after.words <= 14
            and after.bottom < line.bottom
        )

    # Tables

    def _table_end(self, lines: list[_Line], k: int, leading: float) -> int:
        """Where the table that begins at a line ends; 0 if none begins there."""
        line = lines[k]
        if not (self._row(lines, k) or self._heads(lines, k)) or (line.words <= 3 and len(line.cells) < 2):
            return 0
        end, rows, k = k + 1, 1, k + 1
        misses = 0
        while k < len(lines):
            line, before = lines[k], lines[k - 1]
            if before.bottom - line.top > 3 * max(leading, self.body):
                break
            label = (
                k + 1 < len(lines) and line.words <= 30 and line.text[-1] != "." and self._row(lines, k + 1)
            )
            label = (
                label
                and before.bottom - line.top < leading
                and line.bottom - lines[k + 1].top < 0.6 * leading
            )
            if self._row(lines, k):
                rows += 1
                misses = 0
                end = k + 1
            elif not label and (
                line.words > 14
                or misses >= 3
                or before.bottom - line.top > 1.3 * leading
                or (line.text[-1] == "." and line.words > 6)
            ):
                break
            else:
                misses += 1
            k += 1
        return end if rows >= 2 else 0

    def _row(self, lines: list[_Line], k: int) -> bool:
        """Whether a line is of a table: numbers behind its first cell, or cells below or above others."""
        line = lines[k]
        numbers = sum(is_number(said) for *_, said in line.cells[1:])
        if numbers and all(re.fullmatch(r"\(\d\)", said) for *_, said in line.cells[1:] if is_number(said)):
            numbers = 0  # of a list within a sentence
        if numbers and 3 * numbers >= len(line.cells) - 1:
            longest = max(len(said.split()) for *_, said in line.cells)
            return longest <= 25
        if len(line.cells) < 2 or line.words > 40 or (len(line.cells) == 2 and ITEM.match(line.text)):
            return False
        for other in (*lines[max(0, k - 1) : k], *lines[k + 1 : k + 2]):
            same = sum(
                any(abs(x[0] - y[0]) < 3 for y in other.cells[1:]) and x[0] - before[1] > 1.6 * line.size
                for before, x in pairwise(line.cells)
            )
            if same >= 1 and len(other.cells) >= 2 and same >= len(line.cells) - 2:
                return True
        return False

    def _heads(self, lines: list[_Line], k: int) -> bool:
        """Whether a line names columns of numbers that stand below it, perhaps after some labels."""
        cells = lines[k].cells
        if len(cells) < 3 or lines[k].words > 16 or any(is_number(said) for *_, said in cells):
            return False
        for row in lines[k + 1 : k + 6]:
            if len(row.cells) >= len(cells) and sum(is_number(said) for *_, said in row.cells[1:]) >= 2:
                return all(any(x[0] < y[1] + 9 and y[0] < x[1] + 9 for y in row.cells[1:]) for x in cells[1:])
            if row.words > 30 or row.text[-1] == "." or len(row.cells) > 2:
                break
        return False

    def _header_start(self, lines: list[_Line], k: int) -> int:
        """First of the lines above a table that say what it holds: those that wait and are short."""
        right = max((x for x, *_ in lines[k].cells[1:]), default=0.0)
        start, at = k, k
        while (
            at > 0 and k - at < 7 and len(self.waiting) > k - at and self.waiting[at - k - 1] is lines[at - 1]
        ):
            line = lines[at - 1]
            over = len(line.cells) >= 2 or line.left > 0.5 * right or _YEARS.fullmatch(line.text) is not None
            small = re.fullmatch(r"\(.*\)", line.text) is not None
            label = line.words <= 30 and abs(line.left - lines[k].left) < 12
            if not (over or small or label) or (line.text[-1] == "." and line.words > 5) or line.words > 30:
                break
            at -= 1
            if (over or small) and line.words <= 16:
                start = at
        del self.waiting[len(self.waiting) - (k - start) :]
        return start

    def _add_table(self, lines: list[_Line], headers: int) -> None:
        """Append rows, with cells in the columns above which they stand."""
        lines = [line for line in lines if line.cells]
        rows_of = [k for k in range(len(lines)) if self._row(lines, k)]
        spans = sorted((a, b) for k in rows_of for a, b, _ in lines[k].cells[1:])
        columns: list[list[float]] = []
        for a, b in spans:
            if columns and a < columns[-1][1]:
                columns[-1][1] = max(columns[-1][1], b)
            else:
                columns.append([a, b])
        first = columns[0][0] if columns else 0.0
        rows: list[list[str]] = []
        whole: list[bool] = []
        for line in lines:
            row = [""] * (len(columns) + 1)
            for a, b, said in _parted(line, columns):
                near = [min(b, y) - max(a, x) for x, y in columns]
                label = a < first - 1 and b < first + 0.5 * (b - a)
                best = 0 if label or not near else 1 + max(range(len(near)), key=near.__getitem__)
                if a == line.cells[0][0] and a < first - 1 and len(line.cells) > 1:
                    best = 0
                row[best] = f"{row[best]} {_LEADERS.sub('', said)}".strip()
            alone = sum(map(bool, row)) == 1 and bool(row[0])
            # A label goes on in the next line.
            goes_on = rows and whole[-1] and len(rows) > headers and rows[-1][0][-1:] not in ":."
            if goes_on and (row[0][:1].islower() or (len(rows[-1][0].split()) > 7 and not alone)):
                row[0] = f"{rows[-1][0]} {row[0]}"
                rows[-1], whole[-1] = row, alone
                continue
            rows.append(row)
            whole.append(alone)
        count = min(headers, len(rows))
        while count < len(rows) - 1 and count < 5:
            numbers = [c for c in rows[count][1:] if is_number(c) and not _YEARS.fullmatch(c)]
            if numbers or sum(map(bool, rows[count])) < (1 if not rows[count][0] else 2):
                break
            count += 1
        self.document.add_table(rows, count)

    def _carry_over(self, first: int) -> None:
        """Give the end of a sentence to the page on which it begins."""
        blocks = self.document.blocks
        if not 0 < first < len(blocks):
            return
        before, after = blocks[first - 1], blocks[first]
        if (
            before.kind not in ("paragraph", "item")
            or after.kind != "paragraph"
            or not after.text[:1].islower()
        ):
            return
        if before.text[-1] in ".:;!?":
            return
        end = re.search(r"[.!?;](?=\s+[A-Z\"(\u201c])", after.text)
        said, rest = (after.text[: end.end()], after.text[end.end() :].strip()) if end else (after.text, "")
        cut = before.text[-1] == "-" and len(before.text) > 1 and before.text[-2].isalpha()
        before.text = joined(before.text, said, self.words) if cut else f"{before.text} {said}"
        if rest:
            after.text = rest
        else:
            del blocks[first]
