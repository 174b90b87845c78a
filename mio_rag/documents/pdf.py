"""PDF -> blocks: headings, paragraphs and tables, by place and size."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, pairwise
from statistics import median
from typing import Any

from mio_rag.documents import processes
from mio_rag.documents.blocks import (
    ITEM,
    Document,
    about,
    heads,
    infer_headings,
    is_number,
    is_numbered,
    joined,
    nest_items,
    on_one_line,
    short_title,
    tidy,
    unwrapped,
    words_of,
)
from mio_rag.documents.dates import day_in
from mio_rag.documents.east_asian import heading_level, is_wide
from mio_rag.documents.pdf_lines import PageLine, drop_repeated, page_lines
from mio_rag.errors import DataError, require

_LOCK = threading.Lock()  # the library is not safe in threads
_PART = 40  # pages, at least, that a further process is started for
_Part = tuple[bytes, range]
_Page = tuple[float, list[PageLine], str]
_LEADERS = re.compile(r"(?:\s*\.){4,}\s*|(?:\s*_){4,}\s*|\u2026{2,}")
_BARE = re.compile(r"(\d{1,2}) [^\W\d_]")
_WRAPPED = 3  # lines of an item
_ENTRY = re.compile(r"(?:\.\s*){4,}\s*[\divxl]+$")  # of a list of contents
#: Times, as they stand above columns.
_YEARS = re.compile(
    r"\W*+(?:(?:fy|q[1-4]|20\d\d|19\d\d|fiscal|years?|ended|ending|months|weeks|quarter|three|six|nine|twelve"
    r"|january|february|march|april|may|june|july|august|september|october|november|december|change|as|of|the|at"
    r"|vs|restated|unaudited|\d{1,2}(?=,))\b\W*+)+",
    re.IGNORECASE,
)
_COUNTS = re.compile(
    r"(?:(?:article|chapter|part|item|section|note|annex|appendix)\s+)?[\dIVX]+(?:\.\d{1,2})*\b",
    re.IGNORECASE,
)
_NO_HEADING = re.compile(r"[$\u20ac\u00a3=]|^\(.*\)$")
#: Signs that begin an item wherever they begin a line, and boxes of a form.
_MARKED = re.compile("[\u2022\u25cf\u25aa\u25e6\u2023\uf0b7\u2610\u2611\u2612](?=.)")
_ARTICLE = re.compile("\u7b2c\\s?[\\d\u4e00-\u9fff]{1,5}\\s?[\u689d\u6761\u9805\u9879\u6b3e]")
_WITHIN = re.compile("[\u3001\uff0c\u3005-\u3007\u3040-\u9fff]")  # a sentence of Chinese or Japanese
_UNREADABLE = re.compile("[\ufffd\ue000-\uf8ff]")


def read_pdf(data: bytes) -> Document:
    """Pages of a PDF. Those of a large one are read in several processes.

    Raises `DataError` where it is locked, damaged, or holds pictures alone.
    """
    library = require("pypdfium2", "documents", "reading PDF files")
    with _LOCK, _opened(library, data) as pdf:
        given, count = pdf.get_metadata_dict(), len(pdf)
    document = Document()
    pages: list[tuple[float, list[PageLine]]] = []
    for number, (height, lines, problem) in enumerate(_read(data, count), 1):
        pages.append((height, lines))
        if problem:
            document.left_out.append((f"page {number}", problem))
    if not any(lines for _, lines in pages):
        if document.left_out and any(
            "be read" in reason or "codes" in reason for _, reason in document.left_out
        ):
            return document
        raise DataError("holds no text: its pages are pictures, which need text recognition (OCR) first")
    printed = _printed(pages)
    whole = [(height, [*lines]) for height, lines in pages]
    drop_repeated(pages)
    if not any(lines for _, lines in pages):  # every page says the same
        pages = whole
    _Layout(document, pages).read()
    infer_headings(document)
    nest_items(document)
    document.title, document.printed = _title(given.get("Title", ""), document), printed
    known = {name.lower(): given.get(name, "") for name in ("Author", "Subject", "Keywords")}
    known["created"], known["modified"] = (_when(given.get(n, "")) for n in ("CreationDate", "ModDate"))
    document.metadata = about(known)
    return document


@contextmanager
def _opened(library: Any, data: bytes) -> Iterator[Any]:
    try:
        pdf = library.PdfDocument(data)
    except library.PdfiumError as error:
        if "assword" in str(error) or "ecurity" in str(error):
            raise DataError("is encrypted: save it without a password") from error
        raise DataError(f"cannot be read as a PDF ({error})") from error
    try:
        yield pdf
    finally:
        pdf.close()


def _read(data: bytes, count: int) -> list[_Page]:
    """All pages; of a large file each of several processes reads every n-th one."""
    cores = processes.cores() if len(data) >= processes.MUCH else 1
    parts = max(1, min(cores, count // _PART))
    jobs = [(data, range(k, count, parts)) for k in range(parts)]
    if parts == 1:
        return _read_part(jobs[0])
    pages: list[_Page] = [(0.0, [], "")] * count
    for k, read in processes.side_by_side(_read_part, jobs, range(parts), parts, _broken):
        pages[k::parts] = read
    return pages


def _broken(job: _Part) -> list[_Page]:
    raise DataError("broke its reader, which ended")


def _read_part(job: _Part) -> list[_Page]:
    """Height, lines and problem of each page of these numbers from 0."""
    import pypdfium2 as library

    data, numbers = job
    pages: list[_Page] = []
    with _LOCK, _opened(library, data) as pdf:
        producer = pdf.get_metadata_dict().get("Producer", "")
        drawn = re.search("Skia|Qt|wkhtml|Quartz", producer) is not None  # by browsers
        if pdf.get_formtype():
            pdf.init_forms()
        for k in numbers:
            height, lines, problem = 0.0, list[PageLine](), ""
            try:
                page = pdf[k]
                height, lines = page_lines(library, page, drawn=drawn)
                strange = sum(len(_UNREADABLE.findall(x.text)) for x in lines if not x.text.isascii())
                if not lines and library.raw.FPDFPage_CountObjects(page) > 0:
                    problem = "holds no text (a picture needs OCR)"
                elif 3 * strange > sum(len(line.text) for line in lines):
                    lines, problem = [], "its letters have no readable codes (it needs OCR)"
                page.close()
            except Exception as error:
                problem = f"cannot be read ({error})"
            pages.append((height, lines, problem))
    return pages


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
        or re.search(r"\.(docx?|html?|pdf|qxd|indd|pptx?|xlsx?)\b", title.lower())
    ):
        return ""
    return short_title(re.sub(r"^Microsoft Word - ", "", title))


def _printed(pages: Sequence[tuple[float, Sequence[PageLine]]]) -> str:
    """The title that the first page prints: its largest lines, above its text; "" if none are."""
    lines = pages[0][1]
    size = max((round(line.size) for line in lines), default=0)
    large = [k for k, line in enumerate(lines) if round(line.size) == size]
    sizes = Counter[int]()
    for line in chain.from_iterable(page for _, page in pages):
        sizes[round(line.size)] += line.words
    if not large or large[0] > 4 or size < 1.25 * sizes.most_common(1)[0][0]:
        return ""
    title = [lines[large[0]]]
    for k, line in enumerate(lines[large[0] + 1 :][:2], large[0] + 1):
        if k in large and title[-1].bottom - line.top < 0.5 * size and not is_numbered(line.text):
            title.append(line)
    text = " ".join(line.text for line in title)
    return short_title(text) if heads(text) and not is_numbered(text) and not day_in(text) else ""


def _parted(line: PageLine, columns: Sequence[Sequence[float]]) -> Iterator[tuple[float, float, str]]:
    """Cells of a row; one that stands above two columns in two, if there is a gap between them."""
    for a, b, said in line.cells:
        near = [c for c in columns if c[0] < b and a < c[1]]
        over = [c for c in near if min(b, c[1]) - max(a, c[0]) > 0.3 * (c[1] - c[0])] if near[1:] else near
        spots = [spot for spot in line.spots if a - 0.1 <= spot[0] and spot[1] <= b + 0.1] if over[1:] else []
        if len(spots) < 2:
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

    def __init__(self, document: Document, pages: list[tuple[float, list[PageLine]]]) -> None:
        self.document, self.pages = document, pages
        sizes: Counter[float] = Counter()
        bold: Counter[bool] = Counter()
        for _, lines in pages:
            for line in lines:
                sizes[line.size] += len(line.text)
                bold[line.bold] += len(line.text)
        self.body = sizes.most_common(1)[0][0]
        self.bold_matters = bold[True] < 0.4 * sum(bold.values())
        # What is large on the cover alone heads no chapters.
        later = Counter(size for _, lines in pages[1:] for size in {round(line.size) for line in lines})
        large = {round(s) for s in sizes if s >= 1.12 * self.body}
        larger = sorted((s for s in large if len(pages) < 6 or later[s] > 1), reverse=True)[:4]
        self.levels = {size: k + 1 for k, size in enumerate(larger)}
        mono = sum(len(line.text) for _, lines in pages for line in lines if line.mono)
        self.mono_matters = mono < 0.4 * sum(bold.values())
        cut = any(line.cut or line.text[-1] == "-" for _, lines in pages for line in lines)
        self.words = words_of(" ".join(line.text for _, lines in pages for line in lines)) if cut else set()
        self.waiting: list[PageLine] = []  # of the paragraph here
        self.header: list[list[str]] = []  # of the last table ...
        self.columns: list[list[float]] = []  # ... and where its columns behind the first stand
        self.group = ""  # of the last of its rows
        self.rows: dict[int, bool] = {}  # of the page here: whether its lines are rows of tables
        self._mark_items([line for _, lines in pages for line in lines])

    def _mark_items(self, lines: list[PageLine]) -> None:
        """Tell lists whose numbers have no dot, "1 ... 2 ... 3", from headings: little lies between them."""
        run: list[int] = []
        for k, line in enumerate([*lines, None]):
            found = None if line is None else _BARE.match(line.text)
            number = int(found[1]) if found else 0
            near = line is not None and bool(run) and k - run[-1] <= _WRAPPED
            if number == len(run) + 1 and (near or not run):
                run.append(k)
            elif number or not near:
                for at in run if len(run) > 2 else ():
                    item = lines[at]
                    item.text = item.text.replace(" ", ". ", 1)
                    item.size, item.bold = self.body, False
                run = [k] if number == 1 else []

    def read(self) -> None:
        """Append the blocks of all pages."""
        for number, (_, lines) in enumerate(self.pages, 1):
            first = len(self.document.blocks)
            self.document.page = number
            self._page(lines)
            self._carry_over(first)

    def _page(self, lines: list[PageLine]) -> None:
        self.rows.clear()
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
            code = self._code_end(lines, k, leading)
            if code:
                self._flush(lines)
                self._add_code(lines[k:code], leading)
                k = code
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
                    cut = lines[k - 1].cut
                    said = (
                        joined(said, lines[k].text, self.words) if cut else on_one_line(said, lines[k].text)
                    )
                    k += 1
                self.document.add("heading", _LEADERS.sub(" ", said), level, looks=level > len(self.levels))
                continue
            if self.waiting and (gap or self._begins(lines, k)):
                self._flush(lines)
            self.waiting.append(line)
            k += 1
        self._flush(lines)

    def _begins(self, lines: list[PageLine], k: int) -> bool:
        """Whether a line begins a paragraph, by its sign or since the one before ends early."""
        line, before = lines[k], lines[k - 1]
        if before.cut:
            return False
        if abs(line.size - before.size) > 0.12 * before.size:
            return True
        if ".." in before.text[-40:].replace(" ", "") and _ENTRY.search(before.text):
            return True
        ended = before.text[-1] in '.:;!?\u3002\uff01\uff1f\uff1a\uff1b\u201d"'
        item = ITEM.match(line.text)
        if line.alone or before.alone or _MARKED.match(line.text):
            return True
        if item and (ended or before.text.lower().endswith((" and", " or", ","))):
            return True
        right = self._right(lines, k)
        if item and before.right < 0.75 * right:
            return True
        # Chinese and Japanese lines are filled to the last letter or two.
        wide = (item or _ARTICLE.match(line.text)) and is_wide(line.text)
        if wide and before.right < right - 2.5 * before.size:
            return True
        if line.text[:1].islower():
            return False
        early = before.right < before.left + (0.8 if ended else 0.6) * (right - before.left)
        indented = line.left > before.left + 0.8 * self.body and len(self.waiting) > 1
        return early or (indented and ended)

    def _right(self, lines: list[PageLine], k: int) -> float:
        """Where the column ends."""
        low, high = lines[k].left - 60, lines[k].left + 60
        return max([x.right for x in lines[max(0, k - 6) : k + 7] if low < x.left < high])

    def _flush(self, lines: list[PageLine]) -> None:
        """What waits is a paragraph, or an item."""
        if not self.waiting:
            return
        cuts = {k for k, line in enumerate(self.waiting) if line.cut}
        text = unwrapped([line.text for line in self.waiting], self.words, cuts)
        if ".." in text or ". ." in text or "__" in text:
            text = _LEADERS.sub(" \u2026 ", text)
        if "----" in text:
            text = tidy(re.sub(r"-{4,}", " ", text))
        self.document.add("item" if ITEM.match(text) else "paragraph", text)
        self.waiting = []

    def _heading_level(self, lines: list[PageLine], k: int, gap: bool) -> int:
        """The level of a heading; 0 if the line is none."""
        line, text = lines[k], lines[k].text
        large = line.size >= 1.12 * self.body
        capitals = text.isupper() and len(text) > 4 and line.words > 1
        if not (large or capitals or (line.bold and self.bold_matters)) or line.words > 16 or line.cut:
            return 0
        numbered = _COUNTS.match(text) or heading_level(text)
        sentence = text[-1] in ".\u3002" and line.words > 4
        if (
            (text[0].islower() or text[-1] in ",;\u3001\uff0c" or not any(c.isalpha() for c in text))
            or (_NO_HEADING.search(text) or _YEARS.fullmatch(text))
            or (not (numbered or is_numbered(text)) and len(line.cells) > 1)
            or (not numbered and capitals and sentence)
            or (large and sentence and line.words > 8)
        ):
            return 0
        if not large:
            after = lines[k + 1] if k + 1 < len(lines) else None
            goes_on = after is not None and after.bold == line.bold and after.text[:1].islower()
            within = k > 0 and not gap and bool(self.waiting) and _alike(lines[k - 1], line)  # all is bold
            if ((sentence or goes_on) and not capitals) or within:
                return 0
            if line.words > 10 and line.right > line.left + 0.85 * (self._right(lines, k) - line.left):
                return 0
        if large and (level := self.levels.get(round(line.size), 0)):
            return level
        counted = re.match(r"(\d{1,2}(?:\.\d{1,2})*)\.?\s", text)
        first = capitals or re.match(r"(?:article|chapter|part|item|section)\s+[\dIVX]+", text, re.IGNORECASE)
        return len(self.levels) + (1 if first else 2) + (counted[1].count(".") if counted else 0)

    def _same_heading(self, line: PageLine, after: PageLine, leading: float) -> bool:
        near = line.bottom - after.top < 0.7 * max(leading, line.size) and after.bottom < line.bottom
        fits = not after.cells and after.words <= 14 and not re.match(r"\d|[-\u2022]", after.text)
        return near and fits and _alike(line, after)

    def _code_end(self, lines: list[PageLine], k: int, leading: float) -> int:
        """Where lines of code that begin here end; 0 if there are none."""
        end = k
        while end < len(lines) and self.mono_matters and lines[end].mono:
            if end > k and not 0 < lines[end - 1].bottom - lines[end].bottom < 3 * leading:
                break
            end += 1
        return end if end - k > 1 or (end > k and not self.waiting) else 0

    def _add_code(self, lines: list[PageLine], leading: float) -> None:
        """Append lines of code, indented as they stand."""
        left = min(line.left for line in lines)
        width = median((line.right - line.left) / len(line.text) for line in lines) or 1.0
        text = [" " * round((line.left - left) / width) + line.text for line in lines]
        for i in range(len(lines) - 1, 0, -1):
            if lines[i - 1].bottom - lines[i].bottom > 1.7 * min(leading, 1.4 * lines[i].size):
                text.insert(i, "")
        self.document.add("code", "\n".join(text))

    # Tables

    def _table_end(self, lines: list[PageLine], k: int, leading: float) -> int:
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
            elif self._parts(lines, k, end - 1) or (
                not (label or self._goes_on(lines, end - 1, k, leading))
                and (
                    line.words > 14
                    or misses >= 3
                    or before.bottom - line.top > 1.3 * leading
                    or (line.text[-1] == "." and line.words > 6)
                )
            ):
                break
            else:
                misses += 1
            k += 1
        return end if rows >= 2 else 0

    def _parts(self, lines: list[PageLine], k: int, last: int) -> bool:
        """Whether a line is a heading that stands out from the row above it, so that no table goes on."""
        line, row = lines[k], lines[last]
        large = line.size >= 1.12 * max(self.body, row.size)
        counts = line.bold and not row.bold and is_numbered(line.text)
        return (large or counts) and self._heading_level(lines, k, True) > 0

    def _goes_on(self, lines: list[PageLine], last: int, k: int, leading: float) -> bool:
        """Whether a label parts rows of one table: soon behind it a row has the columns of the last one."""
        columns = lines[last].cells[1:]
        for at in range(k, min(k + 6, len(lines))):
            line, before = lines[at], lines[at - 1]
            if not columns or not 0 < before.bottom - line.bottom < 3.5 * max(leading, self.body):
                return False
            if at > k and self._row(lines, at):
                ends = zip(line.cells[1:], columns, strict=False)
                return len(line.cells) == 1 + len(columns) and all(
                    min(abs(x[0] - y[0]), abs(x[1] - y[1])) < 8 for x, y in ends
                )
            if (
                line.words > 14
                or len(line.cells) > 1
                or line.size >= 1.12 * self.body
                or line.text[-1] == "."
            ):
                return False
        return False

    def _row(self, lines: list[PageLine], k: int) -> bool:
        """Whether a line is of a table: numbers behind its first cell, or cells below or above others."""
        if k not in self.rows:
            self.rows[k] = len(lines[k].cells) > 1 and _is_row(lines, k)
        return self.rows[k]

    def _heads(self, lines: list[PageLine], k: int) -> bool:
        """Whether a line names columns of numbers that stand below it, perhaps after some labels."""
        cells = lines[k].cells
        if len(cells) < 3 or lines[k].words > 16 or any(is_number(said) for *_, said in cells):
            return False
        for row in lines[k + 1 : k + 6]:
            if len(row.cells) >= len(cells) and sum(is_number(said) for *_, said in row.cells[1:]) >= 2:
                return all(any(x[0] < y[1] + 9 and y[0] < x[1] + 9 for y in row.cells[1:]) for x in cells[1:])
            if row.words > 30 or row.text[-1] == "." or (len(row.cells) > 2 and row is not lines[k + 1]):
                break
        return False

    def _header_start(self, lines: list[PageLine], k: int) -> int:
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

    def _add_table(self, lines: list[PageLine], headers: int) -> None:
        """Append rows, with cells in the columns above which they stand."""
        lines = [line for line in lines if line.cells]
        rows_of = [k for k in range(len(lines)) if _is_row(lines, k)]
        full = [k for k in rows_of if any(is_number(said) for *_, said in lines[k].cells[1:])]
        rows_of = full if len(full) > 1 else rows_of
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
                best = 0
                begins = a == line.cells[0][0] and len(line.cells) > 1
                if columns and (a >= first - 1 or not (begins or b < first + 0.5 * (b - a))):
                    shared = [min(b, y) - max(a, x) for x, y in columns]
                    best = 1 + shared.index(max(shared))
                clean = _LEADERS.sub("", said) if "." in said or "_" in said or "\u2026" in said else said
                row[best] = f"{row[best]} {clean}".strip()
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
            above = count > 0 and all(rows[count - 1])
            if numbers or above or sum(map(bool, rows[count])) < (1 if not rows[count][0] else 2):
                break
            count += 1
        # On the next page a table has the same names, or none and the same columns.
        before = self.document.blocks[-1] if self.document.blocks else None
        goes_on = before is not None and before.kind == "row" and before.page == (self.document.page or 0) - 1
        if goes_on and self.header and rows[:count] != self.header:
            pairs = zip(columns, self.columns, strict=False)
            same = len(columns) == len(self.columns) and all(x[0] < y[1] and y[0] < x[1] for x, y in pairs)
            goes_on = not count and same
        named, self.columns = self.header, columns
        self._fill_down(rows, count)
        if goes_on and named:
            self.header, rows, count = named, rows[count:], 0
        self.document.add_table(rows, count, goes_on=goes_on and bool(named))

    def _fill_down(self, rows: list[list[str]], count: int) -> None:
        """Give the name of a group of rows, which stands in the first of them, to all of them."""
        body = [row for row in rows[count:] if sum(map(bool, row)) > 1]
        blank = [row for row in body if not row[0]]
        known = self.group if rows[:count] and rows[:count] == self.header else ""
        self.header, self.group = rows[:count], ""
        named = all(any(c.isalpha() for c in row[1]) and any(map(is_number, row[2:])) for row in body)
        if len(blank) < 2 or not named or not (body[0][0] or known):  # the names may stand at half the height
            return
        for row in body:
            known = row[0] = row[0] or known
        self.group = known

    def _carry_over(self, first: int) -> None:
        """Give the end of a sentence to the page on which it begins."""
        blocks = self.document.blocks
        if not 0 < first < len(blocks):
            return
        before, after = blocks[first - 1], blocks[first]
        if (
            before.kind not in ("paragraph", "item")
            or after.kind != "paragraph"
            or not (after.text[:1].islower() or (is_wide(after.text[:1]) and _WITHIN.match(before.text[-1])))
        ):
            return
        if before.text[-1] in ".:;!?":
            return
        end = re.search(r"[.!?;](?=\s+[A-Z\"(\u201c])|\u3002(?=.)", after.text)
        said, rest = (after.text[: end.end()], after.text[end.end() :].strip()) if end else (after.text, "")
        cut = before.text[-1] == "-" and len(before.text) > 1 and before.text[-2].isalpha()
        before.text = joined(before.text, said, self.words) if cut else on_one_line(before.text, said)
        if rest:
            after.text = rest
        else:
            del blocks[first]


def _alike(one: PageLine, other: PageLine) -> bool:
    """Whether two lines are of one size and weight, and both in capitals or neither."""
    same = one.bold == other.bold and one.text.isupper() == other.text.isupper()
    return same and abs(one.size - other.size) < 0.5


def _is_row(lines: Sequence[PageLine], k: int) -> bool:
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
