"""HTML -> blocks."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from mio_rag.documents.blocks import (
    BOLD_LEVEL,
    POWER,
    Document,
    Repeated,
    about,
    infer_headings,
    is_heading,
    merged,
    plain,
    short_title,
    spread,
    stated_date,
    tidy,
)
from mio_rag.documents.dates import day_in
from mio_rag.documents.east_asian import count_words
from mio_rag.documents.formulas import closed
from mio_rag.errors import DataError, require

#: What a page shows beside its text: code, navigation, controls, and what stands in for media.
_NOT_TEXT = frozenset((
    "script", "style", "noscript", "nav", "svg", "iframe", "template", "button", "datalist", "canvas",
    "audio", "video", "object", "head", "title", "annotation", "annotation-xml", "s", "del", "strike",
    "rt", "rp",
))  # fmt: skip
_BLOCKS = frozenset((
    "html", "body", "main", "article", "section", "aside", "header", "footer", "div", "address",
    "hgroup", "p", "blockquote", "figure", "figcaption", "ul", "ol", "li", "dl", "dt", "dd", "details",
    "summary", "form", "fieldset", "legend", "table", "caption", "thead", "tbody", "tfoot", "tr", "td",
    "th", "center", "label",
))  # fmt: skip
_HEADINGS = frozenset(("h1", "h2", "h3", "h4", "h5", "h6"))
_HIDDEN = re.compile(r"(?:^|;)\s*(?:display\s*:\s*none|visibility\s*:\s*hidden)", re.IGNORECASE)
#: Names of classes and ids of what stands beside the text, on every page of a site.
_BESIDE = re.compile(
    r"(?:^|[\s_-])(?:footer|nav|navbar|navigation|menu|sidebar|breadcrumbs?|toolbar)(?=\s|$)", re.IGNORECASE
)
_BESIDE_TAGS, _MOST_BESIDE = frozenset(("div", "ul", "ol", "section", "aside")), 40  # words
#: What pages fold away.
_FOLDED = frozenset(("div", "section", "article", "dd", "p"))
_LONG_PROSE = 40  # words
_LONG_CELL = 80  # words: a table with longer ones lays out a page
#: Labels that only say that there is more.
_FOLD = re.compile(
    r"(?:(?:show|hide|view|expand|collapse|toggle|click)\b(?:\W+\w+){0,2}|(?:read |see )?more|details)\W*",
    re.I,
)
#: What pages say of themselves -> its name here.
_META = {
    **dict.fromkeys(("author", "description", "keywords", "category"), ""),
    **dict.fromkeys(("article:author", "dc.creator", "dcterms.creator"), "author"),
    **dict.fromkeys(("og:description", "dc.description"), "description"),
    **dict.fromkeys(("article:section", "dc.subject"), "category"),
    **dict.fromkeys(
        ("article:published_time", "date", "dc.date", "dcterms.created", "datepublished", "pubdate"),
        "published",
    ),
    **dict.fromkeys(
        ("article:modified_time", "og:updated_time", "last-modified", "dcterms.modified", "datemodified"),
        "modified",
    ),
}
_META |= {name: name for name, value in _META.items() if not value}
#: Notices that ask for consent.
_CONSENT = ", ".join(
    f"[{where}*='{what}' i]"
    for where in ("id", "class")
    for what in (
        "cookie-banner", "cookie-consent", "cookie-notice", "cookie-bar", "cookie-popup", "cookiebanner",
        "cookieconsent", "cookiebot", "onetrust", "gdpr-banner", "consent-banner",
    )
)  # fmt: skip
_NO_SCRIPT = re.compile(r"</?noscript\b[^>]*>", re.IGNORECASE)
#: Kinds of input whose value people typed.
_FILLED = (None, "text", "date", "email", "month", "number", "tel", "time", "url", "week")
_MOST_ROWS, _MOST_MAINS, _MOST_LOOKS, _DEEPEST, _MOST_OPTIONS = 20_000, 9, 500, 20_000, 2000
#: Options that are not shown.
_NOT_CHOSEN = re.compile(r"<option\b(?![^>]{0,999}\bselected)[^>]*>[^<]*", re.IGNORECASE)
#: Tags that are closed by others of their kind, or hold nothing, do not nest.
_TAG = re.compile(
    r"<(/?)(?!(?:p|li|dt|dd|t[rdh]|option|br|hr|img|input|meta|link|col|wbr|source)\b)[a-z]", re.IGNORECASE
)


def read_html(text: str) -> Document:
    """What a page shows, without navigation; its title is what the page calls itself."""
    document = Document()
    tree = _parsed(text)
    heads = [tidy(node.text()) for node in tree.css("h1")[:_MOST_MAINS]]
    for node in tree.css("head > title, h1"):
        if said := tidy(node.text()):
            document.title = short_title(next(filter(partial(_is_part, said), heads), said))
            break
    document.metadata = _about(tree)
    _Blocks(document, _aside(tree)).through(tree.body or tree.root)
    infer_headings(document)
    published = document.metadata.get("modified") or document.metadata.get("published", "")
    document.date = stated_date(document.blocks) or published
    return document


def _is_part(title: str, heading: str) -> bool:
    """Whether a heading is a title without the name of its site, before or behind it."""
    sign = r"\s+[-|\u2013\u2014\u00b7\u00bb\u00ab]\s+"
    rest = rf"{re.escape(heading)}{sign}.*|.*{sign}{re.escape(heading)}(?:{sign}.*)?"
    return bool(heading) and re.fullmatch(rest, title, re.IGNORECASE) is not None


def add_html(document: Document, text: str) -> None:
    """Append the blocks of a piece of HTML."""
    tree = _parsed(text)
    _Blocks(document).through(tree.body or tree.root)


def _parsed(text: str) -> Any:
    if text.count("<") > _DEEPEST:
        depth = 0
        for tag in _TAG.finditer(text):  # the parser takes minutes over what is nested so deep
            depth = max(0, depth - 1) if tag[1] else depth + 1
            if depth > _DEEPEST:
                raise DataError(f"is nested more than {_DEEPEST:,} deep: no page is")
    if text.count("<option") + text.count("<OPTION") > _MOST_OPTIONS:  # it compares each with all others
        text = _NOT_CHOSEN.sub("", text)
        if text.lower().count("<option") > _DEEPEST:
            raise DataError(f"has more than {_DEEPEST:,} options that are chosen: no page has")
    require("selectolax", "documents", "reading HTML files")
    lexbor = require("selectolax.lexbor", "documents", "reading HTML files")
    return lexbor.LexborHTMLParser(_without_noscript(text))


def _about(tree: Any) -> dict[str, Any]:
    """Author, description, keywords, days and language of a page, as its head states them."""
    found: dict[str, Any] = {}
    for node in tree.css("meta[content]"):
        given = node.attributes
        said = given.get("name") or given.get("property") or given.get("itemprop") or ""
        name = _META.get(said.lower())
        if name and not found.get(name):
            value = given["content"] or ""
            dated = name in ("published", "modified")
            found[name] = (day_in(value[:10]) or day_in(value, whole=True)) if dated else value
    if tree.root is not None:
        found["language"] = (tree.root.attributes.get("lang") or "").lower()
    return about(found)


def _aside(tree: Any) -> frozenset[int]:
    """Parts of a page beside its main part, which hold menus and notices; without such a part, the notices.

    A main part that holds less than a third of the words is not believed.
    """
    mains = [node for node in tree.css("main, [role=main]")[:_MOST_MAINS] if not _Visibility().hides(node)]
    words = sum(count_words(node.text(separator=" ")) for node in mains)
    if not words or 3 * words < count_words(tree.body.text(separator=" ")):
        chosen = tree.css(_CONSENT)
        return frozenset(node.mem_id for node in chosen if node.css_first("h1") is None)
    kept = [*mains, *([] if any(node.css_first("h1") for node in mains) else tree.css("h1"))]
    above: dict[int, Any] = {}
    for node in kept:
        parent = node.parent
        while parent is not None and parent.mem_id not in above:
            above[parent.mem_id] = parent
            parent = parent.parent
    shown = {*above, *(node.mem_id for node in kept)}
    inside = (child.mem_id for node in above.values() for child in node.iter(include_text=True))
    return frozenset(child for child in inside if child not in shown)


def _without_noscript(text: str) -> str:
    """A page without what browsers show only where they run no scripts; the parser makes text of it."""
    kept, at, inside = [], 0, False
    for mark in _NO_SCRIPT.finditer(text):
        if not inside:
            kept.append(text[at : mark.start()])
        inside, at = mark[0][1] != "/", mark.end()
    return "".join(kept) + ("" if inside else text[at:])


class _Visibility:
    """Says what of a page is hidden, but for long prose, which pages fold away until a reader opens it."""

    def __init__(self) -> None:
        self.looked = 0  # how often it was looked for prose or links: each time reads all that is below

    def hides(self, node: Any) -> bool:
        """Whether a node is hidden."""
        given = node.attributes
        self.looked += node.tag == "footer"
        if node.tag in ("footer", "ul", "ol") and self.looked < _MOST_LOOKS and _is_menu(node):
            return True
        if not given:
            return False
        if given.get("role") in ("navigation", "menu", "menubar", "search", "dialog") or _is_beside(node):
            return True
        closed = "hidden" in given or _HIDDEN.search(given.get("style") or "") is not None
        closed = closed or (
            given.get("aria-hidden") == "true" and node.tag not in ("div", "section", "main", "body")
        )
        return closed and not self._unfolds(node)

    def _unfolds(self, node: Any) -> bool:
        self.looked += 1
        if node.tag not in _FOLDED or self.looked > _MOST_LOOKS:
            return False
        text = node.text()
        return count_words(text) >= _LONG_PROSE and (". " in text or "\u3002" in text)


def _is_beside(node: Any) -> bool:
    """Whether a node is called a menu or a footer, and holds no more: few words, no sentence, no price."""
    given = node.attributes
    named = " ".join(given.get(k) or "" for k in ("class", "id"))
    if node.tag not in _BESIDE_TAGS or not _BESIDE.search(named):
        return False
    words = node.text(separator=" ").split()
    told = any(word[-1] in ".!?:" and word[:-1].isalpha() for word in words)
    told = told or ("footer" not in named.lower() and any(word[0].isdigit() for word in words))
    return len(words) <= _MOST_BESIDE and not told and node.css_first("table, h1, h2, dl, pre") is None


def _is_menu(node: Any) -> bool:
    """Whether a footer, or the list that ends a page behind its article, holds links alone."""
    if node.tag != "footer" and (
        node.parent is None or node.parent.tag != "body" or _tag(node, "next") not in ("", "footer")
        or _tag(node, "prev") not in ("article", "main")
    ):  # fmt: skip
        return False
    if node.css_first("a[href^='tel:'], a[href^='mailto:']") is not None:
        return False
    words = len(re.findall(r"\w+", text := node.text(separator=" ")))
    linked = len(re.findall(r"\w+", " ".join(one.text(separator=" ") for one in node.css("a"))))
    return linked > 0 and words - linked <= (8 if "\u00a9" in text else 0)


def _tag(node: Any, way: str) -> str:
    """The tag of what stands before or after a node, but for blanks; else blank."""
    other = getattr(node, way)
    while other is not None and (other.tag[0] in "_!" or (other.tag == "-text" and not other.text().strip())):
        other = getattr(other, way)
    return "" if other is None else str(other.tag)


def _walk(root: Any, enter: Callable[[Any], bool], leave: Callable[[Any], None]) -> None:
    """Enter and leave every node below one, without recursion, however deep they are nested.

    enter: returns whether what is below the node is done with; such a node is not left.
    """
    node, opened = root.child, list[Any]()
    while node is not None or opened:
        if node is None:
            node = opened.pop()
            leave(node)
            node = node.next
        elif enter(node):
            node = node.next
        elif (child := node.child) is not None:
            opened.append(node)
            node = child
        else:
            leave(node)
            node = node.next


class _Blocks:
    """Text between the borders of blocks, as it is met."""

    def __init__(self, document: Document, aside: Collection[int] = ()) -> None:
        self.document, self.aside = document, aside
        self.hides = _Visibility().hides
        self.text: list[tuple[str, bool]] = []  # and whether it is bold
        self.inside = 0  # elements that are bold
        self.lists: list[list[Any]] = []  # [kind, next number, type, step] of each list that is open
        self.marker = ""
        self.term = ""

    def through(self, root: Any) -> None:
        """Append the blocks below a node."""
        if root is not None:
            _walk(root, self.open, self.close)
        self.flush()

    def open(self, node: Any) -> bool:
        """Enter a node; whether what is below it is done with."""
        tag = node.tag
        if self.aside and node.mem_id in self.aside:
            return True
        if tag == "-text":
            self.text.append((node.text_content or "", self.inside > 0))
            return True
        if tag in _NOT_TEXT or tag.startswith(("-", "_", "!")) or self.hides(node):
            return True
        if tag == "br":
            self.text.append(("\0", True))
        elif _raised(node):
            self.text.append(("^", self.inside > 0))
        elif tag in ("b", "strong"):
            self.inside += 1
        elif (value := _value(node)) is not None:
            self.text.append((f" {value} ", False))
            return True
        elif tag in _HEADINGS:
            self.flush()
            self.document.add("heading", tidy(_text(node, self.hides)), int(tag[1]))
            return True
        elif tag == "pre":
            self.flush()
            self.document.add("code", plain(_text(node, self.hides, breaks="\n")).strip("\n"))
            return True
        elif tag == "table" and (rows := _rows(node, self.hides)) is not None:
            self.flush()
            caption = node.css_first("caption")
            if caption is not None:
                self.document.add("paragraph", tidy(_text(caption, self.hides)))
            self.document.add_table(*rows)
            return True
        elif tag == "summary" and not self.lists and _heads(node):
            self.flush()
            said, blocks = tidy(_text(node, self.hides)), self.document.blocks
            if not (blocks and blocks[-1].kind == "heading" and _FOLD.fullmatch(said)):
                self.document.add("heading", said, BOLD_LEVEL)
            return True
        elif tag in _BLOCKS:
            self.flush()
            if tag in ("ul", "ol", "menu", "dl"):
                start = str(node.attributes.get("start") or "1")
                first = int(start) if re.fullmatch(r"-?\d{1,6}", start) else 1
                step = -1 if "reversed" in node.attributes else 1
                if step < 0 and "start" not in node.attributes:
                    first = sum(child.tag == "li" for child in node.iter())
                self.lists.append([tag, first, node.attributes.get("type") or "1", step])
            elif tag == "li":
                self.marker = self._mark(node)
            elif tag == "dd" and self.term:
                self.marker, self.term = f"{self.term}: ", ""
        return False

    def _mark(self, node: Any) -> str:
        if not self.lists or self.lists[-1][0] != "ol":
            return "- "
        value = str(node.attributes.get("value") or "")
        number = int(value) if re.fullmatch(r"-?\d{1,6}", value) else self.lists[-1][1]
        self.lists[-1][1] = number + self.lists[-1][3]
        return f"{numeral(number, self.lists[-1][2])}. "

    def close(self, node: Any) -> None:
        """Leave a node."""
        tag = node.tag
        if tag in ("b", "strong"):
            self.inside -= 1
        elif tag == "dt":
            said = tidy("".join(said for said, _ in self.text)).rstrip(":")
            self.text = []
            self.term = f"{self.term}; {said}" if self.term and said else self.term or said
        elif tag in _BLOCKS:
            self.flush()
            if tag in ("ul", "ol", "menu", "dl") and self.lists:
                if self.term:
                    self.document.add("item", self.term, len(self.lists) - 1)
                self.lists.pop()
                self.term = ""
            elif tag in ("li", "dd"):
                self.marker = ""

    def flush(self) -> None:
        """What was met since the last border is a block, or some where two line breaks part it."""
        lines: list[tuple[str, bool]] = [("", True)]  # and whether all of it is bold
        for said, bold in self.text:
            for k, part in enumerate(said.split("\0")):
                if k:
                    lines.append(("", True))
                before, all_bold = lines[-1]
                lines[-1] = (before + part, all_bold and (bold or not part.strip()))
        self.text = []
        lines = [(tidy(said), bold) for said, bold in lines]
        while lines and not lines[-1][0]:
            lines.pop()
        if self.lists and lines:
            depth = len(self.lists) - (1 if self.marker else 0)
            self.document.add("item", self.marker + tidy(" ".join(said for said, _ in lines)), depth)
            self.marker = ""
            return
        waiting: list[str] = []
        for k, (said, bold) in enumerate(lines):
            after = lines[k + 1][0] if k + 1 < len(lines) else ""
            alone = bold or (len(lines) > k + 1 and is_heading(said, after) if said else False)
            if not said or (alone and count_words(said) <= 14 and said[-1] not in ".,;\u3002\u3001"):
                self.document.add("paragraph", "\n".join(waiting))
                waiting = []
                self.document.add("heading", said.rstrip(":"), BOLD_LEVEL)
            else:
                waiting.append(said)
        self.document.add("paragraph", "\n".join(waiting))


def _heads(summary: Any) -> bool:
    """Whether a summary is the heading of all that follows up to the next one, and holds none itself."""
    after = "" if summary.parent is None else _tag(summary.parent, "next")
    return after in ("", "details", "hr", *_HEADINGS) and summary.css_first(", ".join(_HEADINGS)) is None


def _value(node: Any) -> str | None:
    """What people ticked, typed or chose in a form, words for a picture or a formula; else None."""
    given = node.attributes
    if node.tag == "input":
        kind = given.get("type")
        if kind in ("checkbox", "radio"):
            return "\u2612" if "checked" in given else "\u2610"
        return given.get("value") or "" if kind in _FILLED else ""
    if node.tag == "select":
        return ", ".join(tidy(one.text()) for one in node.css("option[selected]"))
    if node.tag == "img":
        return given.get("alt") or ""
    return _formula(node) if node.tag == "math" else None


def _formula(root: Any) -> str:
    """A formula on one line: fractions with "/", powers with "^", indices with "_"."""

    def said(node: Any, depth: int = 0) -> str:
        if node.tag == "-text":
            return tidy(node.text_content or "")
        if node.tag in _NOT_TEXT or depth > 60:
            return ""
        parts = [said(one, depth + 1) for one in node.iter(include_text=True) if one.tag not in _NOT_TEXT]
        if node.tag in _SCRIPTS:
            parts = list(filter(None, parts))
            ends = zip(_SCRIPTS[node.tag], map(closed, parts[1:]), strict=False)
            return closed("".join(parts[:1])) + "".join(sign + end for sign, end in ends)
        if node.tag == "msqrt":
            return f"\u221a({''.join(parts)})"
        return "".join(parts)

    return said(root)


_SCRIPTS = {
    "mfrac": "/", "msup": "^", "msub": "_", "msubsup": "_^", "munder": "_", "mover": "^", "munderover": "_^",
}  # fmt: skip


def _raised(node: Any) -> bool:
    """Whether a node is a raised number: 10^6, or a note's mark, is not 106."""
    if node.tag != "sup":
        return False
    first = node.child
    for _ in range(5):
        first = first if first is None or first.tag == "-text" else first.child
    return first is not None and POWER.match(first.text_content or "") is not None


def _text(root: Any, hides: Callable[[Any], bool], breaks: str = " ") -> str:
    """The text below a node, of what is shown."""
    out: list[str] = []

    def enter(node: Any) -> bool:
        tag = node.tag
        if tag == "-text":
            out.append(node.text_content or "")
        elif tag == "br" or tag in _BLOCKS:
            out.append(breaks)
        elif _raised(node):
            out.append("^")
        elif tag not in _NOT_TEXT and not hides(node) and (value := _value(node)) is not None:
            out.append(f" {value} ")
            return True
        return tag == "-text" or tag in _NOT_TEXT or hides(node)

    def leave(node: Any) -> None:
        if node.tag in _BLOCKS:
            out.append(breaks)

    _walk(root, enter, leave)
    return "".join(out)


def _rows(table: Any, hides: Callable[[Any], bool]) -> tuple[list[list[str]], int | None] | None:
    """The rows of a table and how many are its header; None if it only lays out a page."""
    if (
        table.attributes.get("role") in ("presentation", "none")
        or table.css_first("table table, table h1, table h2, table ul") is not None
    ):
        return None
    found = table.css("tr")[:_MOST_ROWS]
    if len(found) < 2:
        return None
    rows: list[list[str]] = []
    heads: list[bool] = []
    named = 0  # rows whose first cell says what the others are
    below: dict[int, tuple[int, str]] = {}  # column -> how many rows on a merged cell goes, and its text
    for tr in found:
        if hides(tr):
            continue
        row: list[str] = []
        cells = [cell for cell in tr.css("td, th") if not hides(cell)]
        kinds = {cell.tag for cell in cells}
        heads.append(kinds == {"th"} or (tr.parent is not None and tr.parent.tag == "thead"))
        named += kinds == {"th", "td"} and cells[0].tag == "th"
        for cell in [*cells, None]:
            while len(row) in below:
                more, said = below.pop(len(row))
                if more > 1:
                    below[len(row)] = (more - 1, said)
                row.append(said)
            if cell is None:
                break
            said = tidy(_text(cell, hides))
            if count_words(said) > _LONG_CELL:
                return None
            wide, deep = (_span(cell, name) for name in ("colspan", "rowspan"))
            for k in range(wide):
                again = merged(said) if k == 0 else Repeated(merged(said))
                if deep > 1:
                    below[len(row)] = (deep - 1, again)
                row.append(said if k == 0 else again)
        rows.append(row)
    if max((sum(map(bool, row)) for row in spread(rows)), default=0) < 2:
        return None
    count = next((k for k, head in enumerate(heads) if not head), len(heads))
    if 0 < count < len(rows) or (named and heads and named == len(rows)):
        return rows, count
    return rows, None


def _span(cell: Any, name: str) -> int:
    given = str(cell.attributes.get(name) or "1")
    return min(int(given), 200) if re.fullmatch(r"\d{1,4}", given) and int(given) else 1


def numeral(number: int, kind: str) -> str:
    """A number as lists write it: 1, a, A, i or I."""
    if kind in ("a", "A") and number > 0:
        said = ""
        while number:
            number, rest = divmod(number - 1, 26)
            said = chr(97 + rest) + said
        return said.upper() if kind == "A" else said
    if kind in ("i", "I") and 0 < number < 4000:
        said = ""
        for value, sign in zip(
            (1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1),
            ["m", "cm", "d", "cd", "c", "xc", "l", "xl", "x", "ix", "v", "iv", "i"],
            strict=True,
        ):
            said += sign * (number // value)
            number %= value
        return said.upper() if kind == "I" else said
    return str(number)
