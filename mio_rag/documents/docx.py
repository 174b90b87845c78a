"""Word files -> blocks: with the numbers that Word counts, formulas, ticked boxes, and changes as shown."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import Any

from mio_rag.documents.blocks import (
    BOLD_LEVEL,
    ITEM,
    POWER,
    Document,
    Repeated,
    about,
    infer_headings,
    is_numbered,
    merged,
    short_title,
    tidy,
)
from mio_rag.documents.east_asian import count_words
from mio_rag.documents.formulas import formula
from mio_rag.documents.html import numeral
from mio_rag.errors import require

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_W14 = "{http://schemas.microsoft.com/office/word/2010/wordml}"
_M = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
#: Deleted and moved text, and the second copy of a text box for old readers.
_NOT_SHOWN = {
    f"{_W}del", f"{_W}moveFrom", f"{_W}instrText", f"{_W}delText",
    "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback",
}  # fmt: skip
_NO_MORE = ("vanish", "strike", "dstrike")  # hidden, or struck out
_TICKED, _OPEN = "\u2612", "\u2610"
#: Signs of the fonts Wingdings, Wingdings 2 and Symbol that stand for themselves.
_SIGNS = {
    "wingdings": {
        0xFE: "\u2611", 0xFD: "\u2612", 0xA8: "\u2610", 0x6F: "\u2610", 0x71: "\u2610", 0x72: "\u2610",
        0xFC: "\u2713", 0xFB: "\u2717", 0xA7: "\u25aa", 0x6C: "\u25cf", 0x6E: "\u25a0", 0xD8: "\u27a2",
        0xE0: "\u2192", 0xDF: "\u2190", 0xE8: "\u2192", 0x4A: "\u263a", 0x28: "\u260e", 0x2A: "\u2709",
        0x76: "\u2756", 0xA1: "\u25cb", 0xA4: "\u25c9",
    },
    "wingdings 2": {
        0x52: "\u2611", 0x51: "\u2612", 0x53: "\u2612", 0x54: "\u2612", 0x50: "\u2713", 0x4F: "\u2717",
        0xA3: "\u2610", 0x2A: "\u2610", 0x97: "\u25cf",
    },
    "wingdings 3": {
        0x7D: "\u25b6",
    },
    "symbol": {
        0x61: "\u03b1", 0x62: "\u03b2", 0x63: "\u03c7", 0x64: "\u03b4", 0x65: "\u03b5", 0x66: "\u03c6",
        0x67: "\u03b3", 0x68: "\u03b7", 0x69: "\u03b9", 0x6A: "\u03d5", 0x6B: "\u03ba", 0x6C: "\u03bb",
        0x6D: "\u03bc", 0x6E: "\u03bd", 0x6F: "\u03bf", 0x70: "\u03c0", 0x71: "\u03b8", 0x72: "\u03c1",
        0x73: "\u03c3", 0x74: "\u03c4", 0x75: "\u03c5", 0x76: "\u03d6", 0x77: "\u03c9", 0x78: "\u03be",
        0x79: "\u03c8", 0x7A: "\u03b6", 0x44: "\u0394", 0x46: "\u03a6", 0x47: "\u0393", 0x4C: "\u039b",
        0x50: "\u03a0", 0x51: "\u0398", 0x53: "\u03a3", 0x57: "\u03a9", 0xA3: "\u2264", 0xB3: "\u2265",
        0xB1: "\xb1", 0xB4: "\xd7", 0xB8: "\xf7", 0xB9: "\u2260", 0xBB: "\u2248", 0xA5: "\u221e", 0xB0:
        "\xb0", 0xB7: "\u2022", 0xAE: "\u2192", 0xAC: "\u2190", 0xDE: "\u21d2", 0xD7: "\xb7", 0xD6:
        "\u221a", 0xE5: "\u2211", 0x2D: "\u2212", 0xB6: "\u2202", 0xF2: "\u222b", 0xCE: "\u2208", 0xD2:
        "\xae", 0xD3: "\xa9", 0xD4: "\u2122", 0xBC: "\u2026",
    },
}  # fmt: skip
_LONG_CELL = 80  # words: a table with longer ones lays out a page


def read_docx(data: bytes) -> Document:
    """Paragraphs, lists, tables, text boxes, footnotes; not what is repeated at the ends of every page."""
    library = require("docx", "documents", "reading DOCX files")
    file = library.Document(io.BytesIO(data))
    document = Document()
    reader = _Reader(document, file)
    reader.blocks(file.element.body)
    for link in file.part.rels.values():
        if not link.is_external and link.reltype.endswith(("/footnotes", "/endnotes")):
            for note in library.oxml.parse_xml(link.target_part.blob):
                if note.get(f"{_W}type") is None:
                    said = tidy(" ".join("".join(reader.said(p)) for p in note.iter(f"{_W}p")))
                    document.add("item", f"[{note.get(f'{_W}id')}] {said}" if said else "")
    infer_headings(document)
    given = file.core_properties
    title = reader.title or _sensible(given.title or "", document) or _first_heading(document)
    document.title = short_title(title)
    document.metadata = core_properties(given)
    return document


def core_properties(given: Any) -> dict[str, Any]:
    """What an Office file says of itself, as metadata."""
    names = ("author", "created", "modified", "subject", "keywords", "category", "language", "content_status")
    found = about({name.removeprefix("content_"): getattr(given, name, None) for name in names})
    if found.get("author") in ("python-docx", "openpyxl"):
        del found["author"]
    return found


def _part(file: Any, name: str, document: Document, without: str) -> Any:
    """The root of a part that a document refers to, empty where there is none or it is damaged."""
    etree = require("lxml.etree", "documents", "reading DOCX files")
    for link in file.part.rels.values():
        if not link.is_external and link.reltype.endswith(f"/{name}"):
            try:
                return etree.fromstring(link.target_part.blob, etree.XMLParser(resolve_entities=False))
            except etree.XMLSyntaxError as error:
                document.left_out.append((name, f"cannot be read ({error}): {without}"))
    return etree.Element("none")


def _sensible(title: str, document: Document) -> str:
    """A title that the file carries, unless it is a name of a file or a template."""
    plain = tidy(title)
    if re.search(r"\.(docx?|dotx?|pdf)\b|^(?:microsoft )?word\b|^document\d*$|^untitled", plain.lower()):
        return ""
    head = {word for block in document.blocks[:20] for word in block.text.casefold().split()}
    return plain if len(plain.split()) > 1 or plain.casefold() in head else ""


def _first_heading(document: Document) -> str:
    """The heading that a document begins with, if none stands above it and it is not that of a part."""
    for k, block in enumerate(document.blocks[:4]):
        if block.kind == "heading" and block.level < BOLD_LEVEL:
            least = min(other.level for other in document.blocks if other.kind == "heading")
            fine = block.level == least and not is_numbered(block.text) and not _PART.fullmatch(block.text)
            return block.text if fine else ""
        if k > 2 or count_words(block.text) > 12:
            break
    return ""


_PART = re.compile(
    r"(?:introduction|summary|abstract|overview|contents|preface|foreword|background|scope|purpose|general"
    r"|definitions|einleitung|zusammenfassung|inhalt|vorwort|\W*\d.*)",
    re.IGNORECASE,
)


class _Styles:
    """What the styles of a document say: names, levels of headings, lists, bold."""

    def __init__(self, root: Any) -> None:
        self.by_id = {style.get(f"{_W}styleId", ""): style for style in root.iter(f"{_W}style")}

    def chain(self, name: str | None) -> Iterator[Any]:
        """A style and those that it is based on."""
        seen: set[str] = set()
        while name and name in self.by_id and name not in seen:
            seen.add(name)
            style = self.by_id[name]
            yield style
            base = style.find(f"{_W}basedOn")
            name = None if base is None else base.get(f"{_W}val")


class _Reader:
    def __init__(self, document: Document, file: Any) -> None:
        self.document = document
        self.styles = _Styles(_part(file, "styles", document, "headings are known by their looks alone"))
        self.numbers = _Numbers(
            _part(file, "numbering", document, "numbers of paragraphs are missing"), self.styles
        )
        self.title = ""
        self.tops = 0

    def blocks(self, element: Any) -> None:
        """Append the blocks below an element, also inside content controls and insertions."""
        for child in element:
            if child.tag in _NOT_SHOWN or not isinstance(child.tag, str):
                continue
            if child.tag == f"{_W}p":
                self.paragraph(child)
            elif child.tag == f"{_W}tbl":
                self.table(child)
            elif child.tag == f"{_W}sdt" and (tick := _tick(child)):
                self.document.add("paragraph", tick)
            else:
                self.blocks(child)

    def paragraph(self, element: Any) -> None:
        """Append a paragraph, and the text boxes that hang on it."""
        style_id = _style(element)
        names = [
            (s.find(f"{_W}name").get(f"{_W}val") or "").lower()
            for s in self.styles.chain(style_id)
            if s.find(f"{_W}name") is not None
        ]
        lines = [line for line in map(tidy, "".join(self.said(element)).split("\n")) if line]
        text = " ".join(lines)
        number, depth = (
            self.numbers.next(element, style_id)
            if text or element.find(f"{_W}pPr/{_W}numPr") is not None
            else ("", -1)
        )
        level = self._level(element, style_id, names)
        if not text or any(
            re.match(r"toc \d|table of (?:contents|figures)|toc heading", name) for name in names[:1]
        ):
            pass  # a list of contents repeats the headings
        elif "title" in names[:2] and not self.title and len(self.document.blocks) < 30:
            self.title = text
            self.document.add("heading", text, 0)
        elif level:
            self.document.add("heading", f"{number} {text}".strip() if depth >= 0 else text, level)
        elif depth >= 0 and number:
            self.document.add("item", f"{number} {text}", depth)
        elif ITEM.match(text):
            self.document.add("item", text)
        elif (
            len(lines) == 1
            and count_words(text) <= 14
            and text[-1] not in ".,;\u3002\u3001"
            and self._bold(element, style_id)
        ):
            self.document.add("heading", text.rstrip(":"), BOLD_LEVEL)
        elif any(name.startswith("list") for name in names) and "list paragraph" not in names[:1]:
            self.document.add("item", text, max(0, depth))
        else:
            self.document.add("paragraph", "\n".join(lines))
        for box in _nearest(element, "txbxContent"):
            self.blocks(box)

    def _level(self, element: Any, style_id: str | None, names: list[str]) -> int:
        """Of a heading, from 1; 0 if the paragraph is none."""
        for name in names:
            if found := re.fullmatch(r"heading (\d)", name):
                return int(found[1])
        for owner in (element, *self.styles.chain(style_id)):
            outline = owner.find(f"{_W}pPr/{_W}outlineLvl")
            if outline is not None:
                given = int(outline.get(f"{_W}val") or 9)
                return given + 1 if given < 9 else 0
        return 0

    def _bold(self, element: Any, style_id: str | None) -> bool:
        """Whether all the letters of a paragraph are bold."""
        base = any(_on(style.find(f"{_W}rPr/{_W}b")) for style in self.styles.chain(style_id))
        runs = [
            run for run in element.iter(f"{_W}r") if any((t.text or "").strip() for t in run.iter(f"{_W}t"))
        ]
        return bool(runs) and all(
            base if (b := run.find(f"{_W}rPr/{_W}b")) is None else _on(b) for run in runs
        )

    def said(self, element: Any) -> Iterator[str]:
        """Text below an element as it is shown, without text boxes; raised numbers with "^" before them."""
        raised = ""  # of the runs before
        for child in element:
            tag = child.tag
            if tag == f"{_W}r" and self._raised(child):
                raised += "".join(self.said(child))
                continue
            yield _power(raised)
            raised = ""
            if tag in _NOT_SHOWN or not isinstance(tag, str) or tag == f"{_W}txbxContent":
                continue
            if tag == f"{_W}t":
                yield _signs(child)
            elif tag in (f"{_W}tab", f"{_W}ptab"):
                yield " "
            elif tag in (f"{_W}br", f"{_W}cr"):
                yield "\n"
            elif tag == f"{_W}noBreakHyphen":
                yield "-"
            elif tag == f"{_W}sym":
                yield _sign(child.get(f"{_W}font") or "", int(child.get(f"{_W}char") or "0", 16))
            elif tag in (f"{_M}oMath", f"{_M}oMathPara"):
                yield f" {formula(child)} "
            elif tag == f"{_W}sdt" and (tick := _tick(child)):
                yield tick
            elif tag == f"{_W}checkBox":
                given = child.find(f"{_W}checked")
                given = child.find(f"{_W}default") if given is None else given
                yield f" {_TICKED if _on(given) else _OPEN} "
            elif tag in (f"{_W}footnoteReference", f"{_W}endnoteReference"):
                yield f" [{child.get(f'{_W}id')}]"
            elif tag == f"{_W}r" and any(_on(child.find(f"{_W}rPr/{_W}{how}")) for how in _NO_MORE):
                continue
            elif tag == f"{_W}p":
                yield from self.said(child)
                yield " "
            elif tag not in (f"{_W}pPr", f"{_W}rPr", f"{_W}tcPr", f"{_W}trPr"):
                yield from self.said(child)
        yield _power(raised)

    def _raised(self, run: Any) -> bool:
        """Whether a run stands above the line, by itself or by its style."""
        name = run.find(f"{_W}rPr/{_W}rStyle")
        chain = self.styles.chain(None if name is None else name.get(f"{_W}val"))
        for owner in (run, *chain):
            if (given := owner.find(f"{_W}rPr/{_W}vertAlign")) is not None:
                return bool(given.get(f"{_W}val") == "superscript")
        return False

    def table(self, element: Any) -> None:
        """Append the rows of a table; one that lays out the page is read as paragraphs."""
        found = [(tr, list(_nearest(tr, "tc"))) for tr in _nearest(element, "tr")]
        words = [
            [len("".join(t.text or "" for t in cell.iter(f"{_W}t")).split()) for cell in c] for _, c in found
        ]
        nested = any(cell.find(f".//{_W}tbl") is not None for _, cells in found for cell in cells)
        filled = max((sum(map(bool, row)) for row in words), default=0)
        if nested or filled < 2 or max(max(row, default=0) for row in words) > _LONG_CELL:
            for _, cells in found:
                for cell in cells:
                    self.blocks(cell)
            return
        rows: list[list[str]] = []
        below: dict[int, str] = {}  # column -> text of the merged cell that goes on there
        heads = 0
        for tr, cells in found:
            row = [""] * _number(tr.find(f"{_W}trPr/{_W}gridBefore"))
            for cell in cells:
                settings = cell.find(f"{_W}tcPr")
                wide = 1 if settings is None else max(1, _number(settings.find(f"{_W}gridSpan")))
                goes_on = None if settings is None else settings.find(f"{_W}vMerge")
                if goes_on is not None and goes_on.get(f"{_W}val") != "restart":
                    text = below.get(len(row), "")
                else:
                    parts = [p for p in cell.iter(f"{_W}p") if p.getparent().tag != f"{_W}txbxContent"]
                    text = tidy(" ".join(map(self._numbered, parts)))
                    below.pop(len(row), None)
                    if goes_on is not None:
                        below[len(row)] = merged(text)
                row += [text, *[Repeated(merged(text))] * (wide - 1)]
            if _on(tr.find(f"{_W}trPr/{_W}tblHeader")) and heads == len(rows):
                heads += 1
            rows.append(row)
        known: int | None = heads
        if not 0 < heads < len(rows):
            bold = [[self._cell_is_bold(cell) for cell in cells] for _, cells in found if len(cells) > 1]
            if len(bold) > 1 and all(row[0] and not any(row[1:]) for row in bold):
                known = 0  # names, each with its values
            else:
                known = 1 if len(bold) > 1 and all(bold[0]) and not any(map(all, bold[1:])) else None
        self.document.add_table(rows, known)

    def _cell_is_bold(self, cell: Any) -> bool:
        """Whether all the letters of a cell are bold."""
        said = [p for p in cell.iter(f"{_W}p") if any((t.text or "").strip() for t in p.iter(f"{_W}t"))]
        return bool(said) and all(self._bold(p, _style(p)) for p in said)

    def _numbered(self, paragraph: Any) -> str:
        number, depth = self.numbers.next(paragraph, _style(paragraph))
        text = "".join(self.said(paragraph))
        boxes = " ".join("".join(self.said(box)) for box in _nearest(paragraph, "txbxContent"))
        return f"{number if depth >= 0 else ''} {text} {boxes}"


def _style(paragraph: Any) -> str | None:
    """The id of a paragraph's style."""
    style = paragraph.find(f"{_W}pPr/{_W}pStyle")
    return None if style is None else style.get(f"{_W}val")


def _on(setting: Any) -> bool:
    return setting is not None and setting.get(f"{_W}val") not in ("0", "false", "off", "none")


def _number(setting: Any) -> int:
    given = "0" if setting is None else str(setting.get(f"{_W}val") or "0")
    return min(int(given), 200) if given.isdigit() else 0


def _tick(control: Any) -> str:
    """The sign of a content control that is a box to tick; blank for others."""
    box = control.find(f"{_W}sdtPr/{_W14}checkbox")
    if box is None:
        return ""
    given = box.find(f"{_W14}checked")
    on = given is not None and given.get(f"{_W14}val") not in ("0", "false", "off")
    return f" {_TICKED if on else _OPEN} "


def _power(raised: str) -> str:
    """Raised text, with a sign before it if it is a number: 10^6, or a note's mark, is not 106."""
    return f"^{raised.lstrip()}" if POWER.match(raised) else raised


def _sign(font: str, code: int) -> str:
    known = _SIGNS.get(font.lower())
    if known is None:
        return chr(code) if code < 0xD800 else "[sign]"
    return known.get(code - 0xF000 if code >= 0xF000 else code, "[sign]")


def _signs(element: Any) -> str:
    """Text, with letters of sign fonts as the signs they show."""
    text = element.text or ""
    if not any("\uf020" <= c <= "\uf0ff" for c in text):
        return text
    fonts = element.getparent().find(f"{_W}rPr/{_W}rFonts")
    font = "" if fonts is None else fonts.get(f"{_W}ascii") or fonts.get(f"{_W}hAnsi") or ""
    return "".join(_sign(font or "wingdings", ord(c)) if "\uf020" <= c <= "\uf0ff" else c for c in text)


def _nearest(element: Any, name: str) -> Iterator[Any]:
    """Descendants of a name that have none of it above them."""
    for child in element:
        if child.tag == _W + name:
            yield child
        elif child.tag not in _NOT_SHOWN:
            yield from _nearest(child, name)


class _Numbers:
    """Counts numbered paragraphs as Word does: nothing of it is in their text."""

    def __init__(self, root: Any, styles: _Styles) -> None:
        self.styles = styles
        self.levels: dict[str, dict[int, Any]] = {}  # abstract list -> its levels
        self.lists: dict[
            str, tuple[str, dict[int, Any], dict[int, int]]
        ] = {}  # list -> abstract, own levels, starts
        self.counts: dict[str, dict[int, int]] = {}  # abstract list -> number of each level
        self.started: set[tuple[str, int]] = set()
        linked: dict[str, str] = {}
        for abstract in root.findall(f"{_W}abstractNum"):
            key = abstract.get(f"{_W}abstractNumId")
            self.levels[key] = {int(x.get(f"{_W}ilvl") or 0): x for x in abstract.findall(f"{_W}lvl")}
            link = abstract.find(f"{_W}numStyleLink")
            if link is not None:
                linked[key] = link.get(f"{_W}val")
        for num in root.findall(f"{_W}num"):
            own, starts = {}, {}
            for over in num.findall(f"{_W}lvlOverride"):
                at = int(over.get(f"{_W}ilvl") or 0)
                if over.find(f"{_W}lvl") is not None:
                    own[at] = over.find(f"{_W}lvl")
                if over.find(f"{_W}startOverride") is not None:
                    starts[at] = _number(over.find(f"{_W}startOverride"))
            target = num.find(f"{_W}abstractNumId")
            if target is not None:
                self.lists[num.get(f"{_W}numId")] = (target.get(f"{_W}val"), own, starts)
        for key, style in linked.items():
            for one in styles.chain(style):
                given = one.find(f"{_W}pPr/{_W}numPr/{_W}numId")
                if given is not None and given.get(f"{_W}val") in self.lists:
                    self.levels[key] = self.levels.get(self.lists[given.get(f"{_W}val")][0], {})

    def next(self, paragraph: Any, style_id: str | None) -> tuple[str, int]:
        """The number or bullet of a paragraph, and how deep it stands; ("", -1) if it is in no list."""
        key, level = None, None
        for owner in (paragraph, *self.styles.chain(style_id)):
            given = owner.find(f"{_W}pPr/{_W}numPr")
            if given is None:
                continue
            if key is None and given.find(f"{_W}numId") is not None:
                key = given.find(f"{_W}numId").get(f"{_W}val")
            if level is None and given.find(f"{_W}ilvl") is not None:
                level = _number(given.find(f"{_W}ilvl"))
        if key is None or key == "0" or key not in self.lists:
            return "", -1
        abstract, own, starts = self.lists[key]
        if level is None:
            level = next(
                (
                    k
                    for k, x in self.levels.get(abstract, {}).items()
                    if x.find(f"{_W}pStyle") is not None and x.find(f"{_W}pStyle").get(f"{_W}val") == style_id
                ),
                0,
            )
        levels = {**self.levels.get(abstract, {}), **own}
        counts = self.counts.setdefault(abstract, {})
        for k in (*range(level), level):
            if k in starts and (key, k) not in self.started and k == level:
                self.started.add((key, k))
                counts[k] = starts[k] - 1
            if k not in counts:
                counts[k] = _start(levels.get(k)) - (1 if k == level else 0)
        counts[level] += 1
        for deeper in [k for k in counts if k > level]:
            restart = levels[deeper].find(f"{_W}lvlRestart") if deeper in levels else None
            if restart is None or _number(restart) > level:
                del counts[deeper]
        given = levels.get(level)
        kind = _value(given, "numFmt", "decimal")
        pattern = _value(given, "lvlText", f"%{level + 1}.")
        if kind in ("bullet", "none") and "%" not in pattern:
            return ("-" if kind == "bullet" else tidy(pattern)), level
        legal = given is not None and _on(given.find(f"{_W}isLgl"))
        said = re.sub(
            r"%(\d)",
            lambda m: _numeral(
                counts.get(int(m[1]) - 1, 1),
                "decimal" if legal else _value(levels.get(int(m[1]) - 1), "numFmt", "decimal"),
            ),
            pattern,
        )
        return tidy(said), level


def _start(level: Any) -> int:
    given = None if level is None else level.find(f"{_W}start")
    return 1 if given is None else _number(given)


def _value(level: Any, name: str, otherwise: str) -> str:
    found = None if level is None else level.find(_W + name)
    return otherwise if found is None else str(found.get(f"{_W}val") or "")


def _numeral(number: int, kind: str) -> str:
    known = {"upperLetter": "A", "lowerLetter": "a", "upperRoman": "I", "lowerRoman": "i"}
    if kind == "decimalZero":
        return f"{number:02}"
    if kind == "ordinal":
        ends = {1: "st", 2: "nd", 3: "rd"}
        return f"{number}{'th' if 10 < number % 100 < 14 else ends.get(number % 10, 'th')}"
    return numeral(number, known.get(kind, "1"))
