"""What every document consists of, whatever its format, and the signs by which plain lines are told apart."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from statistics import median
from typing import Any, Literal

from mio_rag.documents import east_asian
from mio_rag.documents.dates import OTHER_DATE, STATED, day_in
from mio_rag.documents.east_asian import count_words, without_line_ends
from mio_rag.sentences import pattern
from mio_rag.types import clean

#: Levels of headings that are none by their format: bold lines, lines in title case.
BOLD_LEVEL, COUNTED_LEVEL, CASE_LEVEL = 7, 8, 9
#: Words of a passage, about.
MAX_WORDS = 100
#: Words of a title, at most.
LONGEST_TITLE = 12
_WIDE_TITLE = 60  # characters of one in a script without blanks
_LOOKED_AT = 1000  # rows of a table that say whether its first one is a header
_MOST_CELLS = 5_000_000  # of a table whose rows are made equally long
_DEEPEST = 12  # level of an item: each line of it is indented
_LONG_CELL = 12  # words of a merged cell that every row may repeat


@dataclass
class Block:
    """One line of a document, or the lines of a paragraph or of code.

    text: not blank. White space matters in code alone.
    level: of a heading from 1, outermost; of an item how deep it is nested, from 0.
    page: from 1.
    table: rows of one number are of one table.
    header: whether a row says what the others of its table hold.
    looks: whether a heading is one by its looks alone.
    """

    kind: Literal["heading", "paragraph", "item", "row", "code"]
    text: str
    level: int = 0
    page: int | None = None
    table: int = 0
    header: bool = False
    looks: bool = False


@dataclass
class Document:
    """The blocks of a file, and what it says of itself.

    title: blank where it names none.
    printed: what its first page prints above all else; blank where it has no pages, or prints no title.
    date: ISO 8601; blank where it states none.
    left_out: parts that could not be read ("page 3"), and why.
    """

    blocks: list[Block] = field(default_factory=list)
    title: str = ""
    printed: str = ""
    date: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    left_out: list[tuple[str, str]] = field(default_factory=list)
    page: int | None = None
    _tables: int = 0
    _label: str = ""  # "Note" and the like, which the next block says

    def add(
        self,
        kind: Literal["heading", "paragraph", "item", "code"],
        text: str,
        level: int = 0,
        *,
        looks: bool = False,
    ) -> None:
        """Append a block of the current page, unless it is blank.

        A heading that is one by its looks alone is a paragraph if it says a date; "Note" belongs to what
        follows.
        """
        text = text.rstrip() if kind == "code" else text.strip()
        if not text.strip():
            return
        bold = kind == "heading" and level >= BOLD_LEVEL
        if bold and _LABEL.fullmatch(text):
            self._label = text.rstrip(":.!")
            return
        if bold and (stated := STATED.match(text)) and day_in(text, stated.end()):
            kind, level = "paragraph", 0
        if self._label and kind in ("paragraph", "item"):
            mark = _MARKS.match(text) if kind == "item" else None
            at = mark.end() if mark else 0
            text = f"{text[:at]}{self._label}: {text[at:]}"
            self._label = ""
        self.close()
        level = min(level, _DEEPEST) if kind == "item" else level
        self.blocks.append(Block(kind, text, level, self.page, looks=looks or bold))

    def close(self) -> None:
        """Append what waits for a block to belong to, since none comes."""
        if self._label:
            self.blocks.append(Block("paragraph", self._label, 0, self.page))
        self._label = ""

    def add_table(
        self,
        rows: Iterable[Sequence[str]],
        headers: int | None = None,
        *,
        usual: bool | None = None,
        goes_on: bool = False,
    ) -> None:
        """Append the rows of a table; blank ones are dropped.

        headers: how many rows at the head say what the columns hold; None: guess.
        usual: what to guess where the cells do not decide; None: a header above three columns or more.
        goes_on: they are of the table before, which has said what its columns hold.
        """
        given = [*spread([*rows])]
        kept = [[tidy(cell) for cell in row] for row in given]
        dropped = sum(not any(row) for row in kept[:headers]) if headers else 0
        kept = [row for row in kept if any(row)]
        width = max((k + 1 for row in kept for k, cell in enumerate(row) if cell), default=0)
        if width * len(kept) < _MOST_CELLS:  # else one long row would widen all others
            kept = [[*row, *[""] * width][:width] for row in kept]
        first = next((row for row in given if any(row)), [])
        if headers is None and (parts := _tables_in(kept)):
            for caption, rows in parts:
                self.add("heading", caption, BOLD_LEVEL)
                self.add_table(rows, usual=usual, goes_on=goes_on and not caption)
            return
        if headers is not None:
            count = headers - dropped
        elif (
            len(kept) > 2
            and kept[0][0] in ("", kept[1][0])
            and any(isinstance(c, Repeated) for c in first if c)
        ):
            count = 2  # names of groups of columns stand above those of the columns
        else:
            count = headers_of(kept, usual)
        self._tables += not goes_on
        self.close()
        for k, row in enumerate(kept):
            text = " | ".join(row)
            self.blocks.append(Block("row", text, 0, self.page, self._tables, k < count))


def _tables_in(rows: Sequence[Sequence[str]]) -> list[tuple[str, Sequence[Sequence[str]]]]:
    """Tables on one sheet, each with its caption: a row with one cell, above one that names columns. Empty
    where there is no such row.
    """
    starts = [
        k
        for k, (one, head, below) in enumerate(zip(rows, rows[1:], rows[2:], strict=False))
        if len(one) > 2 and one[0] and not any(one[1:]) and all(head) and any(map(is_number, below))
        if not any(is_number(cell) and not _YEAR.fullmatch(cell) for cell in head)
    ]
    found = [(rows[a][0], rows[a + 1 : b]) for a, b in pairwise([*starts, len(rows)])]
    return [("", rows[: starts[0]]), *found] if starts and starts[0] else found


class Repeated(str):
    """The text of a merged cell, in a column behind its first."""


def spread(rows: Sequence[Sequence[str]]) -> Iterator[list[str]]:
    """Rows without what a merged cell repeats where no cell has a column to itself, or it is a title."""
    own = {k for row in rows for k, cell in enumerate(row) if cell and not isinstance(cell, Repeated)}
    for row in rows:
        filled = [k for k, cell in enumerate(row) if cell and not isinstance(cell, Repeated)]
        columns = own if filled != [0] else {0}
        yield [cell if k in columns else "" for k, cell in enumerate(row)]


def headers_of(rows: Sequence[Sequence[str]], usual: bool | None) -> int:
    """1 if the first row names the columns: it is of other kinds than what stands below it, 0 if it is alike.

    Two columns of which the second holds words and numbers in turn are names with their values.
    """
    width = len(rows[0]) if rows else 0
    if len(rows) < 2 or width < 2 or not (all(rows[0][1:]) or usual):
        return 0
    below = [[row[k] for row in rows[1:_LOOKED_AT] if k < len(row) and row[k]] for k in range(width)]
    names = False
    for k, cells in enumerate(below):
        head, kinds = rows[0][k], Counter(map(_kind, cells))
        kind, count = kinds.most_common(1)[0] if kinds else ("words", 0)
        if _YEAR.fullmatch(head) and k:
            if all(map(_YEAR.fullmatch, cells)):
                return 0
            names = True
        elif len(head.split()) > 8 or (k and _kind(head) == "number"):
            return 0
        elif kind != "words" and 3 * count >= 2 * len(cells):
            if _kind(head) == kind:
                return 0
            names = names or width > 2 or (count == len(cells) and len(rows) > 2)
        elif head in cells:
            return 0
    return int(names or (width > 2 if usual is None else usual))


_YEAR = pattern(r"(?:fy\s?)?(?:19|20)\d\d(?:[/-]\d\d)?", re.IGNORECASE)
_ORDINAL = pattern(r"\d{1,2}(?:st|nd|rd|th)")
_FORMS = (
    ("date", re.compile(r"\d{1,4}([-./])\d\d?\1\d{1,4}(?:[ T]\d.*)?|\d\d?:\d\d(?::\d\d)?")),
    ("address", re.compile(r"\S+@\S+|(?:https?://|www\.)\S+|\+?[\d\s()/-]{7,}")),
    ("code", re.compile(r"(?=\S*\d)(?=\S*[^\W\d_])\S+")),
)


def _kind(cell: str) -> str:
    """What a cell holds, by its form: a number, a date, an address, a code, or words."""
    if is_number(cell):
        return "words" if _ORDINAL.fullmatch(cell) else "number"
    return next((name for name, form in _FORMS if form.fullmatch(cell)), "words")


#: Says nothing of what follows but how it is meant.
_LABEL = pattern(
    r"(?:note|notes|important|warning|caution|tip|tips|hint|example|examples|remark|info|attention|hinweis"
    r"|achtung|wichtig|beispiel|remarque|exemple|nota|ejemplo)\s*\d*[:.!]?",
    re.IGNORECASE,
)

_SIGNS: dict[int, str | None] = {
    **{ord(sign): None for sign in "\u00ad\u200b\u2060\ufeff"},
    **{code: None for code in (*range(9), 11, *range(14, 32), 127) if code != 11},
    11: " ",
    0xF0B7: "\u2022", 0xF0A7: "\u25aa", 0xF0D8: "\u27a2", 0xF0FC: "\u2713", 0xF0A8: "\u2610",
    0xF06F: "\u2610",    0xF0FE: "\u2611", 0xF076: "\u2756", 0xF0E0: "\u2192",
    0xFB00: "ff", 0xFB01: "fi", 0xFB02: "fl", 0xFB03: "ffi", 0xFB04: "ffl", 0xFB05: "st", 0xFB06: "st",
}  # fmt: skip


_ODD = pattern(f"[{''.join(map(chr, _SIGNS))}\ud800-\udfff]")


def tidy(text: str) -> str:
    """One line, with single blanks, whole ligatures, without soft hyphens and other signs nobody sees."""
    return " ".join(without_line_ends(plain(text)).split())


def on_one_line(text: str, line: str) -> str:
    """Two tidy lines as one, with a blank between them unless their script has none."""
    between = "\n" if text and line else ""
    return text[:-1] + without_line_ends(text[-1:] + between + line[:1]).replace("\n", " ") + line[1:]


def plain(text: str) -> str:
    """The text as `tidy` has it, with its white space."""
    if text.isascii() and text.isprintable():
        return text
    return clean(text.translate(_SIGNS)) if _ODD.search(text) else text


ITEM = pattern(
    r"\s*(?:[-*+\u2022\u25cf\u25aa\u25e6\u2023\u00b7\uf0b7\u2013\u2014]\s+(?=\S)|[\u2610-\u2612]\s*(?=\S)|\(?\d{1,3}[.)]\s+(?=\S)"
    r"|\d{1,2}(?:\.\d{1,2}){1,4}\.?\s+(?=\S)|\([a-zA-Z]{1,4}\)\s*(?=\S)|[a-z]\)\s+(?=\S)"
    f"|{east_asian.ITEM_MARKS})"
)
_NUMBER = pattern(
    r"[(\[<>~+\-\u2013\u2212$\u20ac\u00a3\u00a5\u25b2\u25b3\s]*\d[\d,.\s\u2019']*[)\]%x\u20ac\s]*(?:\w{1,3}\.?)?"
)
_STAND_IN = pattern(r"[-\u2013\u2014*]+|\(?n/?[am]\.?\)?", re.IGNORECASE)
_NUMBERED = pattern(
    r"(?:\d{1,2}(?:\.\d{1,2})*\.?|[IVXLC]+\.|[A-Z]\.|(?:item|note|part|section|article|chapter|appendix|annex"
    r"|schedule|exhibit)\s+[\w.]+[.:]?)\s+[^\W\d_]",
    re.IGNORECASE,
)
#: A number that is raised, or the mark of a note.
POWER = pattern(r"\s*[-\u2212+]?\d")
#: Ends of what leads into a list.
LEADS = pattern(rf"[:\uff1a]$|\b(?:as follows|the following)[.]?$|{east_asian.LEADS}$")


@lru_cache(maxsize=20_000)
def is_number(cell: str) -> bool:
    """Whether a cell holds a number, an amount, or what stands for none."""
    return (len(cell) < 60 and _NUMBER.fullmatch(cell) is not None) or _STAND_IN.fullmatch(cell) is not None


def is_heading(line: str, after: str = "") -> bool:
    """Whether a line that stands alone reads as a heading: short, in capitals or title case, or numbered.

    after: what stands behind it, where that is known.
    """
    if east_asian.is_wide(line):
        return east_asian.heading_level(line, after) > 0 or east_asian.may_head(line, after)
    words = line.split()
    if line[:1] in "([" and line[-1:] in ")]":
        return False
    if (
        not 1 <= len(words) <= LONGEST_TITLE
        or line[-1] in ".,;:?!\u3002\uff1a|"
        or (ITEM.match(line) and len(words) < 2)
    ):
        return False
    if re.search(r"(?:\u2026|\.{3})\s*\w+$|[={}<>\\]", line):
        return False  # of a list of contents, of code
    if STATED.match(line) and day_in(line, whole=True):
        return False
    letters = [word for word in words if any(c.isalpha() for c in word)]
    if not letters or sum(any(c.isdigit() for c in word) for word in words) > 2:
        return False
    if line.isupper() and len(line) > 3:
        return True
    if _NUMBERED.match(line):
        return (
            letters[-1][0].isupper()
            or line.split()[0][-1] in ".:"
            or not words[0][0].isdigit()
            or len(words) < 8
        )
    long = [word for word in letters if len(word) > 3 and word[0].isalpha()]
    return bool(long) and all(word[0].isupper() for word in long) and len(words) <= 9


def heads(line: str) -> bool:
    """Whether a line over a list or a table says what that is: few words, no end of a sentence."""
    short = count_words(line) <= LONGEST_TITLE and line[-1:] not in (*".,;!|", *"\u3002\uff0c\u3001\uff1b")
    return short and any(map(str.isalpha, line)) and not ITEM.match(line)


_OPENS = pattern(r"[:{(\[]\s*$")
_SETS = pattern(r"\s*(?:[\w.\[\]\"'-]+\s*[:+]?=\s*\S.*|\[[^\]]+\]|.*[;{}]|[\])}]+,?)\s*")
_GAP = pattern(r"\S(?: {3,}| ?\t\s*)\S")
_PROSE = 8  # words of a line


def keeps_lines(lines: Sequence[str]) -> bool:
    """Whether each of some lines without a blank one between them stands for itself, as in code, settings, a
    log, and columns that are parted by blanks: joined, "limit: 40" would stand before the next one's name.
    """
    if len(lines) < 2 or any(map(ITEM.match, lines)):
        return False
    words = [line.split() for line in lines]
    first, count = Counter(re.sub(r"\d+", "0", one[0]) for one in words).most_common(1)[0]
    is_stamp = first.count("0") > 1  # a date or a time; what follows the line of a log may begin otherwise
    if count >= (max(2, 0.4 * len(lines)) if is_stamp else max(3, 0.8 * len(lines))):
        return True
    if 3 * sum(_GAP.search(line) is not None for line in lines) >= 2 * len(lines):
        return True
    if median(map(len, words)) > _PROSE:
        return False
    depths = [len(line.expandtabs(4)) - len(line.expandtabs(4).lstrip()) for line in lines]
    nested = any(
        deeper > depth and _OPENS.search(line) and len(inner) <= _PROSE
        for line, inner, (depth, deeper) in zip(lines, words[1:], pairwise(depths), strict=False)
    )
    return nested or 3 * sum(_SETS.fullmatch(line) is not None for line in lines) >= 2 * len(lines)


def infer_headings(document: Document) -> None:
    """Make short paragraphs in title case before longer text headings, as pages on the web write them."""
    blocks = document.blocks
    for k in range(len(blocks) - 2, -1, -1):
        block, after = blocks[k], blocks[k + 1]
        if block.kind not in ("paragraph", "item") or not is_heading(block.text, after.text):
            continue
        before = blocks[k - 1].text if k and blocks[k - 1].kind == "item" else ""
        wide = east_asian.heading_level(block.text, after.text, before)
        if block.kind == "item" and not wide:
            continue
        longer = after.kind in ("item", "code") or (after.kind == "paragraph" and count_words(after.text) > 8)
        longer = longer or (wide > 0 and after.kind in ("row", "heading"))
        counted = wide > 0 or _NUMBERED.match(block.text) is not None
        if longer or (counted and after.kind == "heading" and after.level == CASE_LEVEL):
            block.kind, block.level = "heading", COUNTED_LEVEL if counted else CASE_LEVEL
            block.looks = True


#: First halves of words that keep a hyphen, and second ones.
_BEFORE = frozenset((
    "well", "self", "non", "co", "pre", "post", "long", "short", "high", "low", "full", "part", "cross",
    "multi", "semi", "anti", "mid", "ex", "all", "half", "so", "one", "two", "three", "four", "five",
    "six", "seven", "eight", "nine", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy",
    "eighty", "ninety", "year", "first", "second", "third", "follow", "third-party", "re-elect",
))  # fmt: skip
_BEHIND = frozenset((
    "based", "known", "related", "owned", "driven", "making", "term", "party", "wide", "specific",
    "free", "like", "backed", "only", "time", "date", "line", "to", "up", "off", "end", "quarter",
    "year", "month", "day", "level", "looking", "going", "held", "called", "rated", "defined", "funded",
    "bearing", "sponsored", "year-old", "sharing", "saving", "sale", "use", "risk", "rate", "cost",
    "fifth", "fourth", "third",
))  # fmt: skip


def joined(before: str, after: str, words: Collection[str]) -> str:
    """Two lines as one, where the first ends in a hyphen that may be of the word or of the line.

    words: of the document, lower case, with their hyphens: what it writes in one word elsewhere is one.
    """
    left = re.search(r"[^\W_][\w-]*$", before[-60:-1])
    right = re.match(r"[^\W_]+", after)
    if left is None or right is None:
        return f"{before} {after}"
    a, b = left[0].lower(), right[0].lower()
    part = a.rsplit("-", 1)[-1]
    if f"{part}{b}" in words and f"{a}-{b}" not in words and right[0][0].islower():
        return before[:-1] + after
    kept = f"{a}-{b}" in words or "-" in a or not right[0][0].islower() or not part[-1].isalpha()
    if kept or part in _BEFORE or (b in _BEHIND and len(part) > 2):
        return before + after
    return before[:-1] + after


_NO_LETTERS = str.maketrans(
    dict.fromkeys((*range(45), *range(46, 65), *range(91, 97), *range(123, 192), *range(0x2000, 0x2070)), " ")
)


def words_of(text: str) -> set[str]:
    """Words as `joined` looks for them."""
    once = " ".join(set(text.split()))
    return {word.strip("-") for word in once.lower().translate(_NO_LETTERS).split()}


def unwrapped(lines: Iterable[str], words: Collection[str] = (), cuts: Collection[int] = ()) -> str:
    """Wrapped lines, which are tidy, as one, words that were cut at their ends whole again.

    cuts: lines that end within a word, whatever their last sign.
    """
    done, text = list[str](), ""
    for k, line in enumerate(lines):
        cut = len(text) > 2 and text[-1] in "-\u2010" and text[-2].isalpha() and line[:1].islower()
        text = joined(text, line, words) if cut or k - 1 in cuts else on_one_line(text, line)
        if len(text) > 400:  # time would grow with the square of a long text
            done.append(text[:-200])
            text = text[-200:]
    return "".join(done) + text


#: Kinds of marks of items, by what they look like.
_MARKS = pattern(
    rf"{east_asian.MARK_KINDS}|"
    r"(?P<bullet>[^\w\s(]\s)|(?P<one>\d{1,3}[.)]\s)|(?P<two>\d+\.\d+\.?\s)|(?P<more>\d+(?:\.\d+){2,}\.?\s)"
    r"|(?P<roman>\(?[ivx]{1,5}[.)])|(?P<letter>\(?[a-z]{1,2}[.)])|(?P<capital>\(?[A-Z]{1,2}[.)])|(?P<digit>\(\d{1,3}\))"
)
_GENERIC = pattern(
    r"(?:article|section|chapter|part|item|exhibit|appendix|annex|schedule)\s+[\w.-]+[.:]?", re.IGNORECASE
)


def mark_kind(text: str) -> str:
    """What kind of mark an item begins with; blank for none."""
    found = _MARKS.match(text)
    return (found.lastgroup or "") if found else ""


def is_generic(line: str) -> bool:
    """Whether a heading only counts ("ARTICLE 4"): what it is about follows."""
    return _GENERIC.fullmatch(line) is not None


def is_numbered(line: str) -> bool:
    """Whether a heading begins with a number, as "2.1 Scope"."""
    return _NUMBERED.match(line) is not None


def nest_items(document: Document) -> None:
    """Find how deep items stand by the kinds of their marks, where the format does not say.

    A short line with a number is the heading of the items that go on with it: "3. Term" of "3.1 It ends ...".
    """
    open_: list[str] = []
    letter, one = "", ""
    after = {id(block): behind.text for block, behind in pairwise(document.blocks) if behind.kind == "item"}
    for block in document.blocks:
        if block.kind != "item":
            if block.kind == "heading" or not open_ or count_words(block.text) > 60:
                open_ = []
            continue
        found = _MARKS.match(block.text)
        kind = mark_kind(block.text)
        mark = found[0].strip("(). ") if found else ""
        if kind == "one":
            one = mark
            if after.get(id(block), "").startswith(f"{mark}.1") and _heads_items(block.text):
                block.kind, block.level, block.looks, open_ = "heading", COUNTED_LEVEL, True, []
                continue
        elif kind == "two" and mark.split(".")[0] != one:
            open_ = []
        # "(i)" after "(h)" is a letter.
        if (
            kind == "roman"
            and "letter" in open_
            and len(mark) == 1
            and letter
            and ord(mark) == ord(letter[-1]) + 1
        ):
            kind = "letter"
        if kind == "letter":
            letter = mark
        if kind in open_:
            del open_[open_.index(kind) + 1 :]
        elif kind in ("one", "two"):
            open_ = [k for k in open_ if k == "one" and kind == "two"] + [kind]
        else:
            open_.append(kind)
        block.level = min(len(open_) - 1, 4)


def _heads_items(line: str) -> bool:
    return 1 < count_words(line) <= LONGEST_TITLE and line[-1] not in ".,;:?!"


def merged(cell: str) -> str:
    """What the other rows and columns of a merged cell repeat of it."""
    return cell if len(cell.split()) <= _LONG_CELL else ""


def about(values: Mapping[str, Any]) -> dict[str, Any]:
    """What a file says of itself, as metadata: no blanks, days without their time, keywords as a list."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if hasattr(value, "isoformat"):
            value = value.isoformat()[:10]
        said = plain(value).strip() if isinstance(value, str) else value
        if name == "keywords" and isinstance(said, str):
            said = [word for word in map(tidy, re.split("[,;]", said)) if word]
        elif isinstance(said, str):
            said = tidy(said)
        if said:
            found[name] = said
    return found


def short_title(text: str) -> str:
    """The first words of a title."""
    title = " ".join(tidy(text).split()[:LONGEST_TITLE])
    return title[:_WIDE_TITLE] if east_asian.is_wide(title) else title


# Dates -----------------------------------------------------------------------------------------------------


def stated_date(blocks: Sequence[Block]) -> str:
    """The date that the head of a document gives itself ("Last updated: 3 May 2024"); blank if none."""
    for block in blocks[:8]:
        for mark in STATED.finditer(block.text[:300]):
            if count_words(block.text) > 20 and mark.start() > 30:
                break  # it tells of something else
            if OTHER_DATE.search(block.text[: mark.start()]):
                continue
            # "2024年4月1日改定" says the day first.
            behind = east_asian.is_wide(mark[0]) and count_words(block.text) <= 20
            if day := day_in(block.text, mark.end()) or (day_in(block.text, whole=True) if behind else ""):
                return day
    return next((day_in(block.text, whole=True) for block in blocks[:5] if east_asian.is_day(block.text)), "")
