"""Lines of the pages of a PDF, with place, size and cells; what every page repeats goes."""

from __future__ import annotations

import ctypes
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, compress, repeat
from operator import attrgetter
from statistics import median
from typing import Any

from mio_rag.documents.blocks import is_number, tidy
from mio_rag.documents.east_asian import count_words, is_wide

_BREAK = re.compile("\r?\n|[\ufffe\x02]")
_CUTS = "\ufffe\x02\u00ad"
_GAP = 0.9  # of a letter's height: white space that parts two cells
_WIDE = 0.5  # of a letter's height: its width in text without much white space
_EDGE = 0.12  # of a page: where headers and footers stand
_PAGE_NUMBER = re.compile(
    r"\W*(?:(?:page|seite|p\.|第)\s*)?(?:\d{1,4}|[ivxl]{1,6}|[A-Z]{1,2}-\d{1,3})\s*[頁页]?"
    r"(?:\s*(?:of|[/\uff0f]|von|[,，、]?\s*共)\s*\d{1,4}\s*[頁页]?)?\W*",
    re.IGNORECASE,
)
#: What browsers print around a page.
_PRINTED = re.compile(
    r"(?:https?|file)://\S+(?:\s+\d{1,4}/\d{1,4})?"
    r"|\d{1,4}[/.]\d\d?[/.]\d{1,4},? \d\d?:\d\d(?: [AP]M)?(?:\s.*)?"
)
#: Marks of notes and trade marks, and rulers, alone on a line.
_MARKS = re.compile(r"(?:\([a-z]\)[\s,]*){2,}|(?:(?:[*\u2020\u2021\u00ae\u2122]|TM|SM)\s*)+|[\W_]{3,}")
_DIGITS = re.compile(r"\d\S*")
_WORD = re.compile(r"\S+")
#: Names of fonts whose letters are all of one width.
_MONO = (
    b"courier", b"mono", b"monl", b"consol", b"menlo", b"monaco", b"cmtt", b"lmtt", b"ectt", b"sftt",
    b"typewriter", b"sourcecode", b"firacode",
)  # fmt: skip
_LETTER, _MARK = re.compile(r"[^\W\d_]"), 8  # characters of a bullet or number before the text of an item
_Box = tuple[float, float, float, float, str]  # left, right, bottom, top and what stands there


@dataclass(slots=True)
class PageLine:
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
    mono: bool = False  # all letters of one width
    alone: bool = False  # a paragraph by itself
    cells: Sequence[tuple[float, float, str]] = ()
    spots: Sequence[tuple[float, float, str]] = ()  # of words

    def __reduce__(self) -> Any:
        """In a fifth of the time that Python takes to send it to another process."""
        return PageLine, _FIELDS(self)


_FIELDS = attrgetter(*PageLine.__slots__)


def page_lines(library: Any, page: Any, *, drawn: bool = False) -> tuple[float, list[PageLine]]:
    """Height of a page, and its lines.

    drawn: whether dots before items may be shapes, not letters; looking for them takes time.
    """
    raw = library.raw
    text_page = page.get_textpage()
    count = text_page.count_chars()
    turns = _turns(raw, text_page, count)
    if turns or (count > 0 and page.get_rotation()):  # lines would come in the wrong order, or as columns
        page.set_rotation(0)
        text_page.close()
        _set_upright(raw, page, turns)
        text_page = page.get_textpage()
        count = text_page.count_chars()
    height = float(page.get_width() if turns % 2 else page.get_height())
    text = text_page.get_text_range(0, count) if count > 0 else ""
    filled = _filled_in(raw, page) if page.formenv is not None and not turns else []
    dots = _dots(raw, page) if drawn else []
    lines = list(_lines(raw, text_page, text, filled, dots)) if text.strip() or filled else []
    text_page.close()
    return height, [line for line in lines if not _MARKS.fullmatch(line.text)] if len(lines) > 9 else lines


def _turns(raw: Any, text_page: Any, count: int) -> int:
    """Quarters of a turn by which most letters lean, against the clock."""
    leans = Counter(
        round(raw.FPDFText_GetCharAngle(text_page, count * k // 7) / (math.pi / 2)) % 4 for k in range(1, 7)
    )
    return leans.most_common(1)[0][0] if count > 6 else 0


def _set_upright(raw: Any, page: Any, turns: int) -> None:
    """Turn what a page shows, so that its letters stand upright."""
    if not turns:
        return
    width, height = page.get_size()
    turned = {1: (0, 1, -1, 0, height, 0), 2: (-1, 0, 0, -1, width, height), 3: (0, -1, 1, 0, 0, width)}[
        turns
    ]
    for k in range(raw.FPDFPage_CountObjects(page)):
        raw.FPDFPageObj_Transform(raw.FPDFPage_GetObject(page, k), *turned)


def _filled_in(raw: Any, page: Any) -> list[_Box]:
    """What is written into the fields of a form, and whether each box is ticked."""
    made = []
    for k in range(raw.FPDFPage_GetAnnotCount(page)):
        note = raw.FPDFPage_GetAnnot(page, k)
        kind = raw.FPDFAnnot_GetFormFieldType(page.formenv, note)
        said = ""
        if raw.FPDFAnnot_GetFlags(note) & (raw.FPDF_ANNOT_FLAG_HIDDEN | raw.FPDF_ANNOT_FLAG_NOVIEW):
            kind = raw.FPDF_FORMFIELD_UNKNOWN
        if kind in (raw.FPDF_FORMFIELD_CHECKBOX, raw.FPDF_FORMFIELD_RADIOBUTTON):
            said = "\u2611" if raw.FPDFAnnot_IsChecked(page.formenv, note) else "\u2610"
        elif kind in (raw.FPDF_FORMFIELD_TEXTFIELD, raw.FPDF_FORMFIELD_COMBOBOX, raw.FPDF_FORMFIELD_LISTBOX):
            size = raw.FPDFAnnot_GetFormFieldValue(page.formenv, note, None, 0)
            letters = ctypes.create_string_buffer(max(size, 2))
            wide = ctypes.cast(letters, ctypes.POINTER(raw.FPDF_WCHAR))
            raw.FPDFAnnot_GetFormFieldValue(page.formenv, note, wide, size)
            said = tidy(letters.raw.decode("utf-16-le", "replace").rstrip("\0"))
        place = raw.FS_RECTF()
        if said and raw.FPDFAnnot_GetRect(note, place):
            made.append((place.left, place.right, place.bottom, place.top, said))
        raw.FPDFPage_CloseAnnot(note)
    return made


def _dots(raw: Any, page: Any) -> list[_Box]:
    """Small shapes about as high as wide: the dots before items, where they are drawn."""
    made = []
    *_, object_at, kind_of, bounds_of = _functions(raw)
    shown, path = ctypes.cast(page.raw, ctypes.c_void_p).value, raw.FPDF_PAGEOBJ_PATH
    sides = (ctypes.c_float * 4)()
    places = [ctypes.addressof(sides) + 4 * k for k in range(4)]
    things = [*map(object_at, repeat(shown), range(raw.FPDFPage_CountObjects(page)))]
    for thing in compress(things, map(path.__eq__, map(kind_of, things))):
        bounds_of(thing, *places)
        left, low, right, high = sides
        if 1.5 < right - left < 8 and 0.7 < (right - left) / max(high - low, 0.1) < 1.4:
            made.append((left, right, low, high, "\u2022"))
    return made


@cache
def _functions(raw: Any) -> tuple[Any, ...]:
    """Functions of the library that take addresses as numbers, in half the time of its own.

    They keep the interpreter's lock: each takes less than a microsecond.
    """
    pointer = ctypes.c_void_p
    kinds = (
        ("FPDFText_GetCharBox", ctypes.c_int, pointer, ctypes.c_int, pointer, pointer, pointer, pointer),
        ("FPDFText_GetFontSize", ctypes.c_double, pointer, ctypes.c_int),
        ("FPDFText_GetMatrix", ctypes.c_int, pointer, ctypes.c_int, pointer),
        ("FPDFText_GetTextObject", pointer, pointer, ctypes.c_int),
        ("FPDFTextObj_GetFont", pointer, pointer),
        ("FPDFPage_GetObject", pointer, pointer, ctypes.c_int),
        ("FPDFPageObj_GetType", ctypes.c_int, pointer),
        ("FPDFPageObj_GetBounds", ctypes.c_int, pointer, pointer, pointer, pointer, pointer),
    )
    return tuple(
        ctypes.PYFUNCTYPE(*kind)(ctypes.cast(getattr(raw, name), pointer).value or 0) for name, *kind in kinds
    )


class _Place:
    """Where characters of a page stand."""

    def __init__(self, raw: Any, page: Any) -> None:
        self.raw = raw
        self.page = ctypes.cast(page.raw, ctypes.c_void_p).value
        self.char_box, self.font_size, self.get_matrix, self.text_object, self.font_of, *_ = _functions(raw)
        self.box = (ctypes.c_double * 4)()
        self.places = [ctypes.addressof(self.box) + 8 * k for k in range(4)]
        self.fonts: dict[Any, tuple[bool, bool]] = {}
        self.matrix = (ctypes.c_float * 6)()
        self.matrix_place = ctypes.addressof(self.matrix)

    def of(self, k: int) -> tuple[float, float, float, float]:
        """Left, right, bottom, top of a character."""
        self.char_box(self.page, k, *self.places)
        left, right, bottom, top = self.box
        return left, right, bottom, top

    def words(self, text: str, first: int, end: int) -> Iterator[tuple[float, float, str]]:
        """Left, right and text of each word."""
        char_box, page, box, (left, right, low, high) = self.char_box, self.page, self.box, self.places
        for word in _WORD.finditer(text, first, end):
            a, b = word.span()
            char_box(page, a, left, right, low, high)
            begun = box[0]
            if b - a > 1:
                char_box(page, b - 1, left, right, low, high)
            said = word[0]
            yield begun, box[1], said if said.isascii() else tidy(said)

    def size(self, k: int) -> float:
        """Height of a letter's font, as it is shown."""
        said = float(self.font_size(self.page, k))
        if self.get_matrix(self.page, k, self.matrix_place):
            return said * (math.hypot(self.matrix[2], self.matrix[3]) or 1.0)
        return said

    def font(self, k: int) -> tuple[bool, bool]:
        """Whether a character is of a bold font, and of one whose letters are all of one width."""
        thing = self.text_object(self.page, k)
        key = self.font_of(thing) if thing else None
        if not key:
            return False, False
        if key not in self.fonts:
            font = ctypes.cast(key, self.raw.FPDF_FONT)
            name = ctypes.create_string_buffer(200)
            self.raw.FPDFFont_GetBaseFontName(font, name, 200)
            said = name.value.lower()
            bold = any(w in said for w in (b"bold", b"black", b"heavy", b"demi"))
            mono = any(map(said.__contains__, _MONO))
            self.fonts[key] = (bold or self.raw.FPDFFont_GetWeight(font) >= 600, mono)
        return self.fonts[key]


def _lines(
    raw: Any, page: Any, text: str, filled: Sequence[_Box] = (), dots: Sequence[_Box] = ()
) -> Iterator[PageLine]:
    place = _Place(raw, page)
    found: list[tuple[PageLine, int, int]] = []
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
            letter = first if said[0].isalpha() else first + _to_letter(said)  # a bullet has its own font
            size = place.size(letter)
            if top - bottom < 0.1 * size:  # of a font that is neither in the file nor on this machine
                top = bottom + 0.7 * size
            cut = mark is not None and mark[0] in _CUTS
            if said[-1] == "\u00ad":
                cut, said = True, said[:-1]
            said = tidy(said + "-" if cut else said)
            words = said.count(" ") + 1 if said.isascii() else max(1, round(count_words(said)))
            bold, mono = place.font(letter)
            mono = mono and place.font(last)[1]
            line = PageLine(said, left, right, bottom, top, round(size, 1), bold, words, cut, mono)
            found.append((line, first, last + 1))
        at = len(text) if mark is None else mark.end()
    if strange := [line for line, *_ in found if line.size < 3]:  # not what is shown
        size = round(median(max(line.top - line.bottom, 3) for line in strange) / 0.8, 1)
        for line in strange:
            line.size = size
    for box in filled:
        _fill_in(found, box, place, text)
    for left, right, low, high, sign in dots:
        for line, *_ in found:
            beside = right <= line.left < left + 3 * line.size and line.text[0].isalnum()
            if beside and line.bottom < (low + high) / 2 < line.top:
                line.text = f"{sign} {line.text}"
    rows = _with_centred(_in_rows(_with_marks(found)))
    wide = median((x.right - x.left) / (len(x.text) * max(x.size, 1)) for x, *_ in found) if found else 1.0
    right = max((x.right for x, *_ in found), default=0.0)
    sure = [
        _is_row(line.text)
        or line.right - line.left > 1.35 * wide * len(line.text) * line.size
        or (" " in line.text and line.words <= 20 and is_wide(line.text))
        for line, _ in rows
    ]
    # Where most lines are rows, letters seem wide with the white space between cells.
    maybe = [
        line.right - line.left
        > (1.15 if line.right < 0.8 * right else 1.35) * min(wide, _WIDE) * len(line.text) * line.size
        for line, _ in rows
    ]
    for k, (line, parts) in enumerate(rows):
        if len(parts) == 2 and parts[1][1] < 0 <= parts[0][1]:
            line.alone = True  # a field with its label
            continue
        near = slice(max(0, k - 1), k + 5)
        surely = len(parts) > 1 or sure[k] or (line.words <= 14 and any(sure[near]))
        if surely or maybe[k] or (line.words <= 14 and (any(maybe[near]) or len(rows[k - 1][0].cells) > 1)):
            line.spots = [
                spot
                for part, first, end in parts
                for spot in (
                    place.words(text, first, end) if first >= 0 else [(part.left, part.right, part.text)]
                )
            ]
            counts = [len(text[first:end].split()) if first >= 0 else 1 for _, first, end in parts]
            cells = _cells(line, counts)
            line.cells = cells if surely or len(cells) > 1 else ()
    yield from (line for line, _ in rows if line.text)


def _to_letter(text: str) -> int:
    """How far it is to the first letter, if that is near; else 0."""
    found = _LETTER.search(text, 0, _MARK)
    return found.start() if found else 0


_Found = tuple[PageLine, int, int]  # a line and where its characters are; -1 for what a form is filled with


def _with_marks(found: Sequence[_Found]) -> list[_Found]:
    """Lines with the small marks of notes and exponents that stand beside them."""
    made: list[_Found] = []
    for one in found:
        line, first, end = one
        before, start, _ = made[-1] if made else one
        near = made and min(first, start) >= 0 and -1 < line.left - before.right < 0.5 * line.size
        over = min(line.top, before.top) - max(line.bottom, before.bottom)
        if not near or over < 0.1 * min(line.top - line.bottom, before.top - before.bottom):
            made.append(one)
        elif len(line.text) <= 2 and line.size < 0.9 * before.size:
            if before.text[-1] not in ".,;:!?)\u3002":  # behind these it is the mark of a note
                before.text, before.right = before.text + line.text, line.right
                made[-1] = before, start, end
        elif len(before.text) <= 2 and before.size < 0.9 * line.size:
            line.text, line.left = f"{before.text} {line.text}", before.left
            made[-1] = line, start, end
        else:
            made.append(one)
    return made


def _with_centred(rows: list[tuple[PageLine, list[_Found]]]) -> list[tuple[PageLine, list[_Found]]]:
    """Rows with the cells that stand before them at half the height of a few rows."""
    made: list[tuple[PageLine, list[_Found]]] = []
    for line, parts in rows:
        cell = made[-1][0] if made else line
        height = max(line.top - line.bottom, 4.0)
        if (
            0.5 * height < line.bottom - cell.bottom < 12 * height
            and line.left > cell.right + 0.5 * line.size
            and cell.words <= 12
            and (len(made) < 2 or made[-2][0].bottom > line.bottom + 0.5 * height)
        ):
            line.text, line.left = f"{cell.text} {line.text}", cell.left
            line.words += cell.words
            parts = [*made.pop()[1], *parts]
        made.append((line, parts))
    return made


def _fill_in(found: list[_Found], box: _Box, place: _Place, text: str) -> None:
    """Put what is written into a field where it stands: behind its label, before it, or by itself."""
    left, right, low, high, said = box
    tick = said in "\u2610\u2611"
    middle = (low + high) / 2 if tick or high - low < 30 else high - 8
    beside = [k for k, (line, *_) in enumerate(found) if line.bottom - 2 <= middle <= line.top + 2]
    across = [k for k in beside if found[k][0].left < left and found[k][0].right > right and found[k][1] >= 0]
    for k in across[:1]:  # within a line, which it parts
        line, first, end = found[k]
        at = next((at for at in range(first, end) if place.of(at)[0] >= left and text[at].strip()), end)
        if first < at < end:
            before, after = tidy(text[first:at]), tidy(text[at:end])
            split = (place.of(first + len(text[first:at].rstrip()) - 1)[1], place.of(at)[0])
            parts = [
                (replace(line, text=before, right=split[0], words=len(before.split())), first, at),
                (replace(line, text=after, left=split[1], words=len(after.split())), at, end),
            ]
            found[k : k + 1] = parts
            beside = [k, k + 1]
    ahead = [k for k in beside if found[k][0].right <= left + 3]
    behind = [k for k in beside if found[k][0].left >= right - 3]
    if ahead:
        near = max(ahead, key=lambda k: found[k][0].right)
        at = near + 1
    elif behind:
        near = at = min(behind, key=lambda k: found[k][0].left)
    else:
        above = [k for k, (line, *_) in enumerate(found) if line.bottom > middle]
        near = above[-1] if above else -1
        at = near + 1
    like = found[near][0] if found else None
    size = like.size if like else 10.0
    half = (like.top - like.bottom) / 2 if like else 0.35 * size
    if like and (ahead or behind):
        low, high = like.bottom, like.top
    else:
        low, high = middle - half, middle + half
    right = min(right, left + 0.5 * size * len(said))
    found.insert(at, (PageLine(said, left, right, low, high, size, False, said.count(" ") + 1), -1, -1))


def _in_rows(found: Sequence[_Found]) -> list[tuple[PageLine, list[_Found]]]:
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
            # Behind the first cells, which are of the lower of two rows.
            begun = group[0][0]
            beside = abs(line.bottom - begun.bottom) < 0.2 * height
            if len(group) > 1 and beside and line.left > begun.right:
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
    rows: list[tuple[PageLine, list[_Found]]] = []
    for group in groups:
        if len(group) == 1:
            rows.append((group[0][0], group))
            continue
        levels: list[list[_Found]] = []
        for one in sorted(group, key=lambda one: -one[0].top):
            line = one[0]
            other = levels[-1][0][0] if levels else line
            over = min(other.top, line.top) - max(other.bottom, line.bottom)
            if levels and over > 0.5 * min(other.top - other.bottom, line.top - line.bottom):
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


def _cells(line: PageLine, counts: Sequence[int]) -> list[tuple[float, float, str]]:
    """Words of a row together where little white space is between them.

    counts: words of each piece that the library gave.
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


def drop_repeated(pages: list[tuple[float, list[PageLine]]]) -> None:
    """Take out headers, footers and page numbers.

    What stands at the same place of a few pages is one of them where white space parts it from the text. A
    heading with a number of its own ("Chapter 2") stays, though other pages begin alike; so do the names of
    columns.
    """
    often = max(3, 0.2 * len(pages))
    few = len(pages) < 5
    edges = [list(_edge(height, lines, few)) for height, lines in pages]
    seen = Counter(key for edge in edges for key in {_DIGITS_OF.sub("#", x.text.lower()) for x, *_ in edge})
    wordings = Counter(_DIGITS_OF.sub("#", text) for text in {x.text.lower() for e in edges for x, *_ in e})
    texts = Counter(text for edge in edges for text in {_unnumbered(x.text) for x, *_ in edge})
    places = Counter(place for edge in edges for place in {_spot(x) for x, _, apart in edge if apart})
    # Numbers that count with the pages: running heads of chapters.
    shifts = Counter(
        shift
        for number, edge in enumerate(edges)
        for shift in {shift for x, outside, _ in edge if outside for shift in _shifts(x.text, number)}
    )
    for number, ((_, lines), edge) in enumerate(zip(pages, edges, strict=True)):
        gone = set[int]()
        sizes = defaultdict[float, int](int)
        for line in lines:
            sizes[line.size] += line.words
        body = max(sizes, key=sizes.__getitem__, default=0.0)
        for line, outside, _ in edge:
            text = line.text
            key = _DIGITS_OF.sub("#", text.lower())
            counts = outside and line.words < 14 and any(shifts[s] >= often for s in _shifts(text, number))
            large = line.size >= 1.12 * body
            bold = line.bold and sum(x.bold for x in lines) < 0.4 * len(lines)
            own = wordings[key] > 1 and _COUNTED.match(text) is not None
            own = own and ((large and text[0].isalpha()) or ((large or bold) and not counts))
            again = texts[_unnumbered(text)] > 1 or text[-1].isdigit() or line.size < 0.95 * body
            if (
                (outside and len(pages) > 1 and _PAGE_NUMBER.fullmatch(text))
                or (outside and line.size < 0.95 * body and _PRINTED.fullmatch(text))
                or (not own and (seen[key] >= often or (counts and again)))
                or places[_spot(line)] > 1
            ) and not _names_columns(line, lines):
                gone.add(id(line))
        lines[:] = [line for line in lines if id(line) not in gone]


def _names_columns(line: PageLine, lines: Sequence[PageLine]) -> bool:
    """Whether a line names columns of the rows right below it, as each page of a long table repeats."""
    if len(line.cells) < 2 or any(is_number(said) for *_, said in line.cells[1:]):
        return False
    at = next(k for k, other in enumerate(lines) if other is line)
    row = lines[at + 1] if at + 1 < len(lines) else line
    if not (0 < line.bottom - row.bottom < 3.5 * line.size and len(row.cells) >= len(line.cells)):
        return False
    ends = zip(line.cells, row.cells, strict=False)
    return all(min(abs(x[0] - y[0]), abs(x[1] - y[1]), abs(x[0] + x[1] - y[0] - y[1])) < 4 for x, y in ends)


#: A heading that counts, as "Chapter 2" and "2 Scope".
_COUNTED = re.compile(r"(?:(?!page)[^\W\d_]{3,}\s+\d{1,3}(?:\W|$)|\d{1,3}[.)]?\s+[^\W\d_]{3})", re.IGNORECASE)
_DIGITS_OF = re.compile(r"\d+")
_PAGE_OF = re.compile(r"\b(?:page|seite|p\.)\s*\d{1,4}\b", re.IGNORECASE)
_OWN_NUMBER = re.compile(r"^\d{1,4}\b(?![.):]?\d)(?![.)])|\b\d{1,4}$")


def _edge(height: float, lines: Sequence[PageLine], few: bool) -> Iterator[tuple[PageLine, bool, bool]]:
    """Lines at the ends of a page, whether each lies outside of the text's usual place, and stands apart.

    few: whether it is looked for what stands apart.
    """
    tops, bottoms = sorted((x.top for x in lines), reverse=True)[:2], sorted(x.bottom for x in lines)[:2]
    low, high = max([_EDGE * height, *bottoms]), min([(1 - _EDGE) * height, *tops])
    for line in lines:
        if line.top <= _EDGE * height or line.bottom <= low or line.top >= high:
            outside = line.top < _EDGE * height or line.bottom > (1 - _EDGE) * height
            others = [x for x in lines if x is not line] if few and outside else []
            gaps = [line.bottom - x.top if x.bottom < line.bottom else x.bottom - line.top for x in others]
            nearest = min((gap for gap in gaps if gap > -line.size), default=0.0)
            yield line, outside, nearest > 1.2 * line.size


def _spot(line: PageLine) -> tuple[str, int, int]:
    """What a line says, and about where it stands."""
    return _PAGE_OF.sub("#", line.text), round(line.bottom / 4), round(line.left / 4)


def _unnumbered(text: str) -> str:
    """A line without the number that it begins or ends with."""
    return _OWN_NUMBER.sub("", text.lower()).strip()


def _shifts(text: str, number: int) -> set[int]:
    """How far the numbers at the ends of a line are from that of its page."""
    return {int(found[0]) - number for found in _OWN_NUMBER.finditer(text)}
