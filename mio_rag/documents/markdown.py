"""Markdown -> blocks."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from typing import Any

from mio_rag.documents.blocks import (
    BOLD_LEVEL,
    LONGEST_TITLE,
    Document,
    plain,
    short_title,
    tidy,
)
from mio_rag.documents.dates import day_in, period_of
from mio_rag.documents.east_asian import ITEM_MARKS, count_words
from mio_rag.documents.html import add_html
from mio_rag.documents.plain import add_lines
from mio_rag.errors import require

_TAG = re.compile(
    r"<[!?]|</?(?:a|abbr|b|bdi|bdo|big|br|center|cite|code|col|colgroup|dd|del|details|dfn|div|dl|dt|em|figcaption"
    r"|figure|font|footer|h[1-6]|header|hr|i|img|input|ins|kbd|label|li|link|main|mark|meta|nav|ol|p|picture|pre|q"
    r"|s|samp|script|section|small|source|span|strike|strong|style|sub|summary|sup|svg|table|tbody|td|tfoot|th"
    r"|thead|time|tr|tt|u|ul|var|video|wbr)(?=[\s/>])",
    re.IGNORECASE,
)
_FRONT = re.compile(r"\ufeff?(---|\+\+\+)[ \t]*\n(.*?\n)?(?:\1|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)
_KEY = re.compile(r"([\w][\w .-]*?)\s*:(?:\s+(.*))?")
_RAISED = re.compile(r"<sup\b", re.IGNORECASE)
_STRUCK = re.compile(r"<(/?)(?:del|s|strike)\b", re.IGNORECASE)
_MEANING = re.compile(r":\s+(?=\S)")
_WIDE_ITEM = re.compile(ITEM_MARKS)  # which Markdown does not know
_DATES = (
    "updated",
    "last_updated",
    "last-updated",
    "lastmod",
    "last_modified",
    "modified",
    "date",
    "effective",
    "effective_date",
    "published",
)


def read_markdown(text: str) -> Document:
    """Headings, paragraphs, lists, tables and code; settings at the head become metadata.

    The title is the first heading of the first level, or the one in the settings where that says more.
    """
    document = Document()
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if front := _FRONT.match(text):
        settings = _settings(front[1], front[2] or "")
        if settings is not None:
            text = text[front.end() :]
            document.metadata = settings
            document.title = short_title(str(settings.get("title", "")))
            given = {name.lower(): str(value) for name, value in settings.items()}
            named = [given[name] for name in _DATES if name in given]
            days = (day_in(one) or period_of(one, year=True) for one in named)
            document.date = next(filter(None, days), "")
    if "[" * 300 in text:  # the library takes minutes over it
        add_lines(document, plain(text))
        return document
    library = require("markdown_it", "documents", "reading Markdown files")
    parser = library.MarkdownIt("commonmark", {"maxNesting": 60}).enable(["table", "strikethrough"])
    parser.inline.ruler.before("escape", "formula", _formula)
    _add(document, parser.parse(plain(text)))
    heading = next((b.text for b in document.blocks if b.kind == "heading" and b.level == 1), "")
    own = heading.casefold().split()  # "Leave regulation 2025" says more than "Leave regulation"
    if not document.title or (
        len(own) <= LONGEST_TITLE and set(document.title.casefold().split()) < set(own)
    ):
        document.title = short_title(heading)
    return document


def _settings(mark: str, text: str) -> dict[str, Any] | None:
    """Front matter as plain data; None if it is none."""
    if mark == "+++":
        try:
            return {
                name: value
                for name, value in tomllib.loads(text).items()
                if isinstance(value, (str, int, float, list))
            } | {
                name: value.isoformat()
                for name, value in tomllib.loads(text).items()
                if hasattr(value, "isoformat")
            }
        except tomllib.TOMLDecodeError:
            return None
    settings: dict[str, Any] = {}
    name = None
    for line in text.split("\n"):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found = _KEY.fullmatch(line)
        if found:
            name, value = found[1], (found[2] or "").strip()
            if value.startswith("[") and value.endswith("]"):
                settings[name] = [_bare(part) for part in value[1:-1].split(",") if part.strip()]
            elif value not in ("", "|", ">", "|-", ">-"):
                settings[name] = _bare(value)
        elif name is not None and line.lstrip().startswith("- "):
            known = settings.setdefault(name, [])
            if isinstance(known, list):
                known.append(_bare(line.lstrip()[2:]))
        elif name is not None and line[0].isspace():
            if isinstance(settings.get(name, ""), str):
                settings[name] = f"{settings.get(name, '')} {line.strip()}".strip()
        else:
            return None
    return settings


def _bare(value: str) -> str:
    value = value.strip()
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value


_FORMULA = re.compile(r"\$\$[^$]+\$\$|\$(?=[^\s$])[^$\n]*?(?<=[^\s\\])\$(?!\d)")


def _formula(state: Any, silent: bool) -> bool:
    """Formulas between dollar signs hold no signs of emphasis."""
    found = _FORMULA.match(state.src, state.pos) if state.src[state.pos] == "$" else None
    if found is None or not re.search(r"[\\_^{}*]", found[0]):
        return False
    if not silent:
        state.push("text", "", 0).content = found[0]
    state.pos = found.end()
    return True


def _add(document: Document, tokens: Sequence[Any]) -> None:
    lists: list[int | None] = []  # the next number of each list that is open; None: bullets
    marker = ""
    markup = ""  # HTML, which blank lines part
    k = 0
    while k < len(tokens):
        token = tokens[k]
        kind = token.type
        if kind != "html_block" and markup:
            add_html(document, markup)
            markup = ""
        if kind == "heading_open":
            document.add("heading", _said(tokens[k + 1].children), int(token.tag[1]))
            k += 2
        elif kind == "bullet_list_open":
            lists.append(None)
        elif kind == "ordered_list_open":
            lists.append(int(token.attrGet("start") or 1) if token.attrGet("start") != 0 else 0)
        elif kind in ("bullet_list_close", "ordered_list_close"):
            lists.pop()
        elif kind == "list_item_open":
            number = lists[-1]
            marker = "- " if number is None else f"{number}{token.markup or '.'} "
            lists[-1] = None if number is None else number + 1
        elif kind == "inline" and tokens[k - 1].type == "paragraph_open":
            if lists:
                depth = len(lists) - 1 if marker else len(lists)
                for line in _lines(token.children):
                    document.add("item", marker + line, depth)
                    depth, marker = (depth + 1 if marker else depth), ""
            else:
                _add_paragraph(document, token)
        elif kind == "table_open":
            k = _add_table(document, tokens, k)
        elif kind in ("fence", "code_block"):
            if marker:
                marker = ""
            if kind == "code_block" and "|" not in token.content and _is_prose(token.content):
                add_lines(document, token.content, headings=False)
            else:
                document.add("code", token.content.strip("\n"))
        elif kind == "html_block":
            markup += token.content + "\n"
        k += 1
    if markup:
        add_html(document, markup)


def _is_prose(text: str) -> bool:
    lines = [line for line in text.split("\n") if line.strip()]
    return sum(len(line) > 160 for line in lines) * 2 > len(lines)


def _add_paragraph(document: Document, token: Any) -> None:
    """A paragraph; one that is bold is a heading, and so is a bold line at its head."""
    children = token.children
    lines = token.content.split("\n")
    if len(lines) > 1 and sum("|" in line for line in lines) >= max(2, 0.6 * len(lines)):
        add_lines(document, token.content)  # a table without the line below its header
        return
    meanings = [_MEANING.match(line) for line in lines]
    if len(lines) > 1 and not meanings[0] and all(meanings[1:]):  # a term and what it means
        said = [line.strip() for line in _said(children, breaks="\n").split("\n")]
        document.add("item", f"{said[0].rstrip(':')}: {said[1][1:].strip()}")
        for line in said[2:]:
            document.add("item", line[1:].strip(), 1)
        return
    if len(lines) > 1 and any(_WIDE_ITEM.match(line) for line in lines):
        add_lines(document, _said(children, breaks="\n"), headings=False)
        return
    if any(
        line.strip().startswith("=") and line.strip().endswith("=") and len(line.split()) > 2
        for line in lines
    ):
        add_lines(document, _said(children, breaks="\n"))
        return
    kept = [c for c in children if c.type != "html_inline" and (c.type != "text" or c.content.strip())]
    if kept and kept[0].type == "strong_open":
        close = next(
            (i for i, c in enumerate(kept) if c.type == "strong_close" and c.level == kept[0].level), None
        )
        if close is not None and (close + 1 == len(kept) or kept[close + 1].type == "hardbreak"):
            head = _said(kept[: close + 1]).rstrip(":").strip()
            if head and count_words(head) <= 14 and head[-1] not in ".,;\u3002\u3001":
                document.add("heading", head, BOLD_LEVEL)
                children = kept[close + 2 :]
    for line in _lines(children):
        document.add("paragraph", line)


def _lines(children: Sequence[Any]) -> list[str]:
    """Pieces of a paragraph between hard line breaks; those that go on in lower case are one."""
    lines: list[str] = []
    for line in _said(children, hard="\n").split("\n"):
        if lines and (line[:1].islower() or not lines[-1]):
            lines[-1] = f"{lines[-1]} {line}".strip()
        else:
            lines.append(line.strip())
    return [line for line in lines if line]


def _add_table(document: Document, tokens: Sequence[Any], k: int) -> int:
    """Append a table that opens at token k; where it closes."""
    rows: list[list[str]] = []
    while tokens[k].type != "table_close":
        if tokens[k].type == "tr_open":
            rows.append([])
        elif tokens[k].type == "inline":
            rows[-1].append(_said(tokens[k].children))
        k += 1
    document.add_table(rows, 1)
    return k


def _said(children: Sequence[Any] | None, *, hard: str = " ", breaks: str = " ") -> str:
    """Text without signs of emphasis; short addresses on the web stay, in brackets."""
    out: list[str] = []
    links: list[tuple[str, int]] = []
    struck = 0  # how deep in text that is struck out, which holds no more
    for child in children or ():
        kind = child.type
        mark = _STRUCK.match(child.content) if kind == "html_inline" else None
        if kind == "s_open" or (mark and not mark[1]):
            struck += 1
        elif kind == "s_close" or mark:
            struck = max(0, struck - 1)
        elif struck:
            continue
        elif kind in ("text", "text_special"):
            out.append(child.content)
        elif kind == "code_inline":
            out.append(f"`{child.content}`")
        elif kind == "softbreak":
            out.append("\0" if breaks == " " else breaks)  # in some scripts no blank stands there
        elif kind == "hardbreak":
            out.append(hard)
        elif kind == "image":
            out.append(child.content)
        elif kind == "link_open":
            links.append((str(child.attrGet("href") or ""), len(out)))
        elif kind == "link_close" and links:
            address, at = links.pop()
            said = "".join(out[at:])
            if (
                re.match(r"(?:https?://|mailto:|ftp://).{1,50}\Z", address)
                and address.removeprefix("mailto:") not in said
            ):
                out.append(f" ({address.removeprefix('mailto:')})")
        elif kind == "html_inline" and _RAISED.match(child.content):
            out.append("^")
        elif kind == "html_inline" and not _TAG.match(child.content):
            out.append(child.content)  # what stands for something, as "<name>"
        elif kind == "html_inline" and re.match(r"<br\b", child.content, re.IGNORECASE):
            out.append(hard)
    text = "".join(out)
    lines = text.split("\n") if "\n" in (hard, breaks) else [text]
    return "\n".join(filter(None, (tidy(line.replace("\0", "\n")) for line in lines)))
