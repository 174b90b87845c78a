"""One document of any kind that is read -> its text, or the reason why there is none."""

from __future__ import annotations

import codecs
import io
import re
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from mio_rag.errors import DataError, require

#: Endings of the files that are read.
KINDS = (".txt", ".md", ".pdf", ".docx", ".html", ".htm")

#: What a page shows beside its text: code, navigation, controls, and what stands in for media.
_NOT_TEXT = (
    "script, style, template, noscript, nav, [role=navigation], svg, iframe, canvas, audio, video, "
    "button, select, datalist, textarea"
)
_BLOCKS = frozenset(
    (
        *("html", "body", "main", "article", "section", "aside", "header", "footer", "div", "address"),
        *("h1", "h2", "h3", "h4", "h5", "h6", "hgroup", "p", "pre", "blockquote", "figure", "figcaption"),
        *("ul", "ol", "li", "dl", "dt", "dd", "details", "summary", "form", "fieldset"),
        *("table", "caption", "thead", "tbody", "tfoot", "tr"),
    )
)
_WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
#: Deleted and moved text, and the second copy of a text box for old readers.
_NOT_SHOWN = {
    f"{_WORD}del",
    f"{_WORD}moveFrom",
    "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback",
}
#: A line of a text file that reads as its title: alone, short, before more text; no list, no setting.
_TITLE_LINE = re.compile(r"\s*([^\W\d_][^\r\n=]{0,98}[\w)])[ \t]*\r?\n[ \t]*\r?\n\s*(?=\S)")
#: What stands between the title of a page and the name of its site.
_SITE = re.compile(r"\s+[-|\u2013\u2014\u00b7\u00bb]\s+|:\s+")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_HEADING = re.compile(r" {0,3}#[ \t]+(.+?)(?:[ \t]+#+)?[ \t]*$")
_UNDERLINE = re.compile(r" {0,3}=+[ \t]*$")
_BLOCK = re.compile(r"\s{0,3}([-+*>]|\d+[.)])\s")  # of a list or a quotation
_OLE = b"\xd0\xcf\x11\xe0"  # what Word wraps an encrypted document in, and what .doc files are


@dataclass(frozen=True)
class Document:
    """The text of a file.

    Parameters
    ----------
    title : str
        What the document calls itself, or its file name without the ending.
    parts : tuple of (str, str)
        Where a part stands ("3." is the third page, "" the whole file), and its text; without the title at
        its head, unless that is all there is.
    left_out : tuple of (str, str)
        Parts that could not be read, and why.
    """

    title: str
    parts: tuple[tuple[str, str], ...]
    left_out: tuple[tuple[str, str], ...] = ()


def read_document(path: Path, max_bytes: int) -> Document:
    """Read a file by its ending, one of `KINDS`.

    Text is UTF-8, or what a byte order mark says; an HTML file may declare another encoding. Nothing is
    guessed.

    Parameters
    ----------
    max_bytes : int
        Largest size of the file, and of what a DOCX file unpacks to.

    Raises
    ------
    DataError
        With why it cannot be read, without its name.
    MissingExtraError
        If the package that reads files of this kind is not installed.
    """
    try:
        size = path.stat().st_size
        if size > max_bytes:
            raise DataError(f"holds {_megabytes(size)}, more than the limit of {_megabytes(max_bytes)}")
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot be opened: {error.strerror or error}") from error
    if not data:
        raise DataError("is empty")
    kind = path.suffix.lower()
    if kind == ".pdf":
        return _pdf(data, path.stem)
    if kind == ".docx":
        return _docx(data, path.stem, max_bytes)
    if kind in (".html", ".htm"):
        return _html(data, path.stem)
    text = _decoded(data)
    return _markdown(text, path.stem) if kind == ".md" else _plain(text, path.stem)


def _plain(text: str, name: str) -> Document:
    """A short first line that stands alone is the title; without one it is the name.

    The line stays in the text: what looks like a title may be a fact, and must be read with the rest.
    """
    found = _TITLE_LINE.match(text)
    return Document(name if found is None else " ".join(found[1].split()), (("", text),))


def _titled(title: str, paragraphs: list[str]) -> Document:
    """The document; a first paragraph that says no more than the title is left to the title."""
    head = " ".join(paragraphs[0].split()).casefold() if len(paragraphs) > 1 else ""
    if head and head in (title.casefold(), _SITE.split(title.casefold())[0]):
        paragraphs = paragraphs[1:]
    return Document(title, (("", "\n\n".join(paragraphs)),))


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


def _unreadable(kind: str, error: Exception) -> DataError:
    """What a parser stumbled over; on damaged files it may be anything."""
    said = " ".join(str(error).split())
    return DataError(f"cannot be read as {kind} ({type(error).__name__}{': ' if said else ''}{said})")


def _decoded(data: bytes, declared: str | None = None) -> str:
    if data.startswith(codecs.BOM_UTF8):
        encoding = "utf-8-sig"
    elif data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    else:
        encoding = declared or "utf-8"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise DataError(
            f"is not {encoding.upper()} text (at byte {error.start}): save it as UTF-8, or as UTF-16 with a "
            "byte order mark"
        ) from error
    except LookupError as error:
        raise DataError(f"declares the encoding '{declared}', which is unknown: save it as UTF-8") from error
    if "\0" in text:
        raise DataError("holds NUL characters: it is not text, or it is UTF-16 without a byte order mark")
    return text


def _pdf(data: bytes, name: str) -> Document:
    pypdf = require("pypdf", "documents", "reading PDF files")
    try:
        reader = pypdf.PdfReader(io.BytesIO(data))
        locked = reader.is_encrypted and not reader.decrypt("")
        pages = [] if locked else list(reader.pages)
    except Exception as error:
        raise _unreadable("a PDF", error) from error
    if locked:
        raise DataError("is encrypted: save it without a password")
    parts, left_out = [], []
    for number, page in enumerate(pages, start=1):
        try:
            text = page.extract_text()
        except Exception as error:
            left_out.append((f"page {number}", str(_unreadable("a page", error))))
            continue
        # Fonts without a proper map yield halves of surrogate pairs.
        parts.append((f"{number}.", text.encode("utf-8", "replace").decode()))
    if not left_out and not any(text.strip() for _, text in parts):
        raise DataError("holds no text: its pages are pictures, which need text recognition (OCR) first")
    return Document(name, tuple(parts), tuple(left_out))


# Markdown --------------------------------------------------------------------------------------------------


def _markdown(text: str, name: str) -> Document:
    """The first heading of the first level is the title; neither code nor front matter holds headings."""
    lines = text.splitlines()
    start, fence = _front_matter(lines), ""
    for k in range(start, len(lines)):
        mark = _FENCE.match(lines[k])
        if mark and (not fence or (mark[1].startswith(fence) and not lines[k][mark.end() :].strip())):
            fence = "" if fence else mark[1]
        elif not fence and (found := _heading(lines, k)):
            title, end, whole = found
            # A heading of which the title leaves something out stays in the text: nothing is lost.
            if whole and not "".join(lines[:k]).strip() and "".join(lines[end:]).strip():
                text = "\n".join(lines[end:])
            return Document(title, (("", text),))
    return Document(name, (("", text),))


def _front_matter(lines: list[str]) -> int:
    """How many lines of settings stand at the head, between two lines of three dashes."""
    if lines and lines[0].rstrip() == "---":
        return next((k + 1 for k, line in enumerate(lines[1:], 1) if line.rstrip() in ("---", "...")), 0)
    return 0


def _heading(lines: list[str], k: int) -> tuple[str, int, bool] | None:
    """A heading of the first level in line k: its text, the line after it, whether that is all of it."""
    end = k + 1
    if found := _HEADING.match(lines[k]):
        text = found[1]
    elif (
        end < len(lines)
        and _UNDERLINE.match(lines[end])
        and (k == 0 or not lines[k - 1].strip())
        and not _BLOCK.match(lines[k])
    ):
        text, end = lines[k], end + 1
    else:
        return None
    plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)  # links and pictures
    plain = re.sub(r"`([^`]+)`", r"\1", plain)
    for mark in (r"\*\*", "__", r"\*", "_"):  # around words, not within them or between spaces
        plain = re.sub(rf"(?<![\w*]){mark}(?=[^\s*_])(.+?)(?<=[^\s*_]){mark}(?![\w*])", r"\1", plain)
    title = " ".join(plain.split())
    raw = " ".join(text.split())
    return (title, end, title in (raw, re.sub("[*`]", "", raw))) if title else None


# Pages -----------------------------------------------------------------------------------------------------


def _html(data: bytes, name: str) -> Document:
    bs4 = require("bs4", "documents", "reading HTML files")
    text = _decoded(data, _declared(bs4, data))
    try:
        page = bs4.BeautifulSoup(text, "html.parser")
        for node in page.select(_NOT_TEXT):
            if not node.decomposed:  # with one around it
                node.decompose()
        titles = [page.title, page.find("h1")]
        title = next((t for t in (" ".join(n.get_text().split()) for n in titles if n) if t), name)
        for node in page.find_all("title"):
            node.decompose()
        return _titled(title, list(_paragraphs(bs4, page)))
    except Exception as error:
        raise _unreadable("HTML", error) from error


def _declared(bs4: Any, data: bytes) -> str | None:
    """The encoding that a page says it has, read as browsers read it."""
    declared: str | None = bs4.dammit.EncodingDetector.find_declared_encoding(data, is_html=True)
    if declared is None:
        return None
    try:
        known = codecs.lookup(declared).name
    except LookupError:
        return declared
    if known in ("iso8859-1", "ascii"):
        return "cp1252"
    return "utf-8" if known.startswith("utf-16") else known  # without a mark it could not have said so


def _paragraphs(bs4: Any, page: Any) -> Iterator[str]:
    """Text between the borders of blocks; a row of a table is one paragraph, " | " between its cells."""
    for node in page.find_all("br"):
        node.replace_with(" ")
    shown = (bs4.NavigableString, bs4.CData)  # not comments and declarations, which are of classes below
    around: dict[int, tuple[int, int]] = {id(page): (0, 0)}  # element -> its block, its cell of a plain row
    texts: list[tuple[tuple[int, int], str]] = []
    for node in page.descendants:
        place = around[id(node.parent)]
        if isinstance(node, bs4.Tag):
            if node.name in _BLOCKS:
                place = (id(node), 0)
            elif node.name in ("td", "th"):
                place = (place[0], id(node))
            around[id(node)] = place
        elif type(node) in shown:
            texts.append((place, node))
    for _, block in groupby(texts, lambda text: text[0][0]):
        cells = (_joined(text for _, text in cell) for _, cell in groupby(block, lambda text: text[0][1]))
        yield from filter(None, [" | ".join(filter(None, cells))])


def _joined(pieces: Iterable[str]) -> str:
    return " ".join("".join(pieces).split())


# Word ------------------------------------------------------------------------------------------------------


def _docx(data: bytes, name: str, max_bytes: int) -> Document:
    """Paragraphs, rows of tables, text boxes, footnotes; not what is repeated at the ends of every page."""
    docx = require("docx", "documents", "reading DOCX files")
    if data.startswith(_OLE):
        raise DataError("is encrypted, or an old .doc file: save it as .docx, without a password")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size <= max_bytes:
            document = docx.Document(io.BytesIO(data))
            bodies = [document.element.body]
            for link in document.part.rels.values():
                if not link.is_external and link.reltype.endswith(("/footnotes", "/endnotes")):
                    bodies.append(docx.oxml.parse_xml(link.target_part.blob))
            paragraphs = [block for body in bodies for block in _blocks(body)]
            top = islice(document.paragraphs, 30)
            titles = (p.text for p in top if p.style is not None and p.style.name == "Title")
            title = next(filter(str.strip, titles), document.core_properties.title or "")
    except Exception as error:
        raise _unreadable("a DOCX", error) from error
    if size > max_bytes:
        raise DataError(f"unpacks to {_megabytes(size)}, more than the limit of {_megabytes(max_bytes)}")
    return _titled(" ".join(title.split()) or name, paragraphs)


def _blocks(element: Any) -> Iterator[str]:
    """Text of paragraphs and rows, also inside content controls and insertions, in their order."""
    for child in element:
        if child.tag in _NOT_SHOWN:
            continue
        if child.tag == f"{_WORD}p":
            yield from filter(None, [_joined(_runs(child))])
            for box in _nearest(child, "txbxContent"):
                yield from _blocks(box)
        elif child.tag == f"{_WORD}tr":
            cells = (" ".join(_blocks(cell)) for cell in _nearest(child, "tc"))
            yield from filter(None, [" | ".join(filter(None, cells))])
        else:
            yield from _blocks(child)


def _runs(element: Any) -> Iterator[str]:
    for child in element:
        if child.tag == f"{_WORD}t":
            yield child.text or ""
        elif child.tag in (f"{_WORD}tab", f"{_WORD}br", f"{_WORD}cr"):
            yield " "
        elif child.tag == f"{_WORD}noBreakHyphen":
            yield "-"
        elif child.tag not in _NOT_SHOWN and child.tag != f"{_WORD}txbxContent":
            yield from _runs(child)


def _nearest(element: Any, name: str) -> Iterator[Any]:
    """Descendants of a name that have none of it above them."""
    for child in element:
        if child.tag == _WORD + name:
            yield child
        elif child.tag not in _NOT_SHOWN:
            yield from _nearest(child, name)
