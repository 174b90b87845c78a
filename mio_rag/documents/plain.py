"""Text files, tables of values and code -> blocks."""

from __future__ import annotations

import csv
import email
import email.policy
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

from mio_rag.documents import east_asian
from mio_rag.documents.blocks import (
    ITEM,
    LEADS,
    LONGEST_TITLE,
    Document,
    heads,
    is_generic,
    is_heading,
    is_numbered,
    keeps_lines,
    mark_kind,
    nest_items,
    plain,
    short_title,
    tidy,
    unwrapped,
    words_of,
)
from mio_rag.documents.dates import last_day
from mio_rag.documents.east_asian import count_words
from mio_rag.sentences import pattern

_WIKI = re.compile(r"\s*((?:=\s?)+)\s*([^=\n]+?)\s*((?:\s?=)+)\s*")
_UNDERLINE = re.compile(r"\s*(={3,}|-{3,}|~{3,}|\^{3,})\s*")
_HASHES = re.compile(r"(#{1,6})\s+(\S.*?)\s*#*\s*")
_RULER = re.compile(r"[\s|:+=_*~\u2013\u2014-]+")
_SENTENCE = re.compile(r"[.!?](?:\s|$)")
_STAMPED = pattern(
    r"\s*[\[(]?(?:\d{4}-\d\d?-\d\d?|\d\d?[./]\d\d?[./]\d{2,4}|\d\d?:\d\d)(?!\d)(?:\W|\d|T|[AP]M)*[^\W\d_]\w*(?:\W+\w+){2}"
)
_LABELLED = pattern(r"\s*([^\W\d_][^:.;|]{0,30}):\s+(?=\S.{0,80}$)")
_RECORD = 40  # words of a record that is one unit
_WRAPPED = 50  # characters: a shorter line was not cut for its length
#: A line of a text file that reads as its title: alone, short, before more text; no list, no setting.
_TITLE_LINE = re.compile(r"\s*([^\W\d_][^\r\n=]{0,98}[\w)])[ \t]*\r?\n[ \t]*\r?\n\s*(?=\S)")


def read_text(text: str) -> Document:
    """A plain text: paragraphs between blank lines, items, rows with "|", and lines that read as headings.

    A short first line that stands alone is the title.
    """
    document = Document()
    text = plain(text.replace("\r\n", "\n").replace("\r", "\n"))
    found = _TITLE_LINE.match(text)
    if (
        found
        and count_words(found[1]) <= LONGEST_TITLE
        and not (is_generic(found[1]) or east_asian.heading_level(found[1]))
    ):
        document.title = short_title(found[1])
    add_lines(document, text)
    blocks = document.blocks
    if len(blocks) > 1 and blocks[0].text == document.title and blocks[1].kind == "item":
        level = _level(document.title)
        if any(block.kind == "heading" and block.level == level for block in blocks):
            document.title, blocks[0].level = "", level  # one of several lines over lists
    if not any(block.level for block in document.blocks if block.kind == "item"):
        nest_items(document)
    return document


def read_log(text: str) -> Document:
    """A log: each line that does not go on with the one before is a paragraph."""
    document = Document()
    current: list[str] = []
    for line in plain(text.replace("\r\n", "\n").replace("\r", "\n")).split("\n"):
        if current and line.strip() and not line[0].isspace():
            document.add("paragraph", tidy(" ".join(current)))
            current = []
        current.append(line)
    document.add("paragraph", tidy(" ".join(current)))
    return document


def add_lines(document: Document, text: str, *, headings: bool = True) -> None:
    """Append the blocks of a plain text.

    headings: whether a short line that stands alone may be a heading.
    """
    words = words_of(text) if "-\n" in text else ()
    paragraphs = [
        [line for line in p.split("\n") if line.strip()] for p in re.split(r"\n[^\S\n]*(?=\n)", text)
    ]
    paragraphs = [lines for lines in paragraphs if lines]
    firsts = Counter(found[1] for lines in paragraphs if (found := _LABELLED.match(lines[0])))
    for k, lines in enumerate(paragraphs):
        if sum("|" in line for line in lines) >= max(2, 0.6 * len(lines)):
            rows = [line.strip().strip("|").split("|") for line in lines if not _RULER.fullmatch(line)]
            ruled = len(lines) > 1 and _RULER.fullmatch(lines[1]) is not None
            document.add_table(rows, 1 if ruled else None)
            continue
        code = "\n".join(map(str.rstrip, lines))
        if document.blocks and document.blocks[-1].kind == "code" and lines[0][0].isspace():
            document.blocks[-1].text += f"\n\n{code}"  # it goes on behind a blank line
            continue
        if entries := _entries(lines, firsts):
            document.date = max(document.date, last_day(entries))
            for entry in entries:
                document.add("item", entry)
            continue
        if keeps_lines(lines):
            document.add("code", code)
            continue
        first = lines[0].strip()
        alone = headings and len(lines) == 1 and k + 1 < len(paragraphs) and not _WIKI.fullmatch(first)
        if alone and mark_kind(first) and mark_kind(first) == mark_kind(paragraphs[k + 1][0].strip()):
            alone = False  # of a list with blank lines
        after = paragraphs[k + 1][0].strip() if k + 1 < len(paragraphs) else ""
        over = heads(first) and not LEADS.search(first) and after != "" and ITEM.match(after) is not None
        if alone and (over or is_heading(first, after) or (k == 0 and first == document.title)):
            document.add("heading", tidy(first), 1 if k == 0 else _level(first, after), looks=True)
            continue
        _add_paragraph(document, lines, words, headings)


def _entries(lines: Sequence[str], firsts: Mapping[str, int]) -> list[str]:
    """Entries of a log or chat, each from one stamp to the next; the lines of a record ("Name: ...") as one.

    firsts: how many paragraphs begin with each label.
    """
    stamps = [k for k, line in enumerate(lines) if _STAMPED.match(line)]
    if len(stamps) >= max(2, 0.4 * len(lines)) and stamps[0] == 0:
        return [tidy(" ".join(lines[a:b])) for a, b in pairwise([*stamps, len(lines)])]
    labels = [found[1] for line in lines if (found := _LABELLED.match(line))]
    if len(labels) < max(2, len(lines)):
        return []
    said = [*map(tidy, lines)]
    return ["\n".join(said)] if firsts[labels[0]] > 1 and sum(map(count_words, said)) <= _RECORD else said


def _level(line: str, after: str = "") -> int:
    """The level of a heading by its looks: one in capitals, or with a number, is above others."""
    return east_asian.heading_level(line, after) or (2 if line.isupper() or is_numbered(line) else 3)


def _add_paragraph(document: Document, lines: list[str], words: object, headings: bool) -> None:
    """Lines without a blank one between them: wrapped text, items, headings that say so."""
    current: list[str] = []
    kind, depth = "paragraph", 0
    indents: list[int] = []
    width = max(map(len, lines))

    def flush() -> None:
        nonlocal kind, depth
        if current:
            document.add(kind, unwrapped(current, words), depth)  # type: ignore[arg-type]
        current.clear()
        kind, depth = "paragraph", 0

    for k, line in enumerate(lines):
        said = tidy(line)
        after = tidy(lines[k + 1]) if k + 1 < len(lines) else ""
        wiki, hashes = _WIKI.fullmatch(line), _HASHES.fullmatch(line.strip())
        ruled = (
            k + 1 < len(lines)
            and _UNDERLINE.fullmatch(lines[k + 1])
            and len(lines[k + 1].strip()) >= len(said)
        )
        if wiki and wiki[1].count("=") == wiki[3].count("="):
            flush()
            document.add("heading", tidy(wiki[2]), wiki[1].count("="))
        elif headings and hashes and len(said.split()) <= 16:
            flush()
            document.add("heading", tidy(hashes[2]), len(hashes[1]))
        elif headings and ruled and len(said.split()) <= 16:
            flush()
            document.add("heading", said, 1 if "=" in lines[k + 1] else 2)
        elif headings and (level := east_asian.heading_level(said, after, tidy(lines[k - 1]) if k else "")):
            flush()
            document.add("heading", said, level, looks=True)
        elif _UNDERLINE.fullmatch(line):
            flush()
        elif headings and _stands_over(lines, k):
            flush()
            if LEADS.search(said):
                document.add("paragraph", said)
            else:
                document.add("heading", said, _level(said), looks=True)
        elif ITEM.match(line):
            flush()
            indent = len(line.expandtabs(4)) - len(line.expandtabs(4).lstrip())
            while indents and indents[-1] >= indent:
                indents.pop()
            kind, depth = "item", len(indents)
            indents.append(indent)
            current.append(said)
        else:
            # A line that ends well before the others, before one that begins like a sentence, is a paragraph.
            short = current and kind == "paragraph" and len(lines[k - 1]) < 0.7 * width
            # So is a Chinese or Japanese one that is indented, or stands behind the end of a sentence.
            ended = lines[k - 1].rstrip()[-1:] in "\u3002\uff01\uff1f"
            early = ended or len(lines[k - 1]) < 0.7 * width
            day = east_asian.is_day(said) or (current and east_asian.is_day(current[-1]))
            apart = east_asian.is_wide(said) and (line[0] == "\u3000" or early or day)
            if current and ((short and not said[:1].islower()) or apart or len(lines[k - 1]) > 200):
                flush()
            current.append(said)
    flush()


def _stands_over(lines: Sequence[str], k: int) -> bool:
    """Whether a line is the heading of the lines behind it: a list, or, below a blank line, sentences."""
    if k + 1 == len(lines) or not heads(lines[k].strip()):
        return False
    after, first = lines[k + 1], k == 0
    if ITEM.match(after):
        return first or (len(lines[k - 1]) < _WRAPPED and not lines[k][0].isspace())
    if not first or not after[0].isupper():
        return False
    text = " ".join(lines[1:])
    return count_words(text) > 2 * count_words(lines[0]) and bool(_SENTENCE.search(text))


def read_csv(text: str) -> Document:
    """A table of values, the first row its header unless it holds values as those below."""
    document = Document()
    text = plain(text)
    head = text[:20_000].split("\n")[:20]
    delimiter = max(
        ",;\t|",
        key=lambda sign: (min((line.count(sign) for line in head if line), default=0), head[0].count(sign)),
    )
    try:
        csv.field_size_limit(10_000_000)
        lines = text.splitlines(keepends=True)
        if delimiter == "\t" and text.count('"') % 2:
            raise csv.Error("a quote that nothing closes")
        rows = list(csv.reader(lines, delimiter=delimiter, strict=True))
    except csv.Error:  # as a quote that nothing closes
        rows = [line.split(delimiter) for line in text.splitlines()]
    while rows and sum(map(bool, rows[0])) == 1 and len(rows[0]) == 1 and len(rows) > 1 and len(rows[1]) > 1:
        document.add("paragraph", tidy(rows.pop(0)[0]))  # what stands above the table
    document.add_table(rows, usual=True)
    return document


def read_mail(data: bytes) -> Document:
    """A saved e-mail: its subject is the title, its date that of the document; attachments are named."""
    mail = email.message_from_bytes(data, policy=email.policy.default)
    body = mail.get_body(("plain", "html"))
    text = "" if body is None else str(body.get_content())
    if body is not None and body.get_content_subtype() == "html":
        from mio_rag.documents.html import read_html

        document = read_html(text)
    else:
        document = read_text(text)
    document.title = short_title(tidy(str(mail["subject"] or "")))
    when = getattr(mail["date"], "datetime", None)
    document.date = when.date().isoformat() if when else ""
    heads = Document()
    said = [f"{name}: {tidy(str(mail[name]))}" for name in ("From", "To", "Cc", "Date") if mail[name]]
    heads.add("paragraph", "\n".join(said))
    document.blocks[:0] = heads.blocks
    for part in mail.iter_attachments():
        document.left_out.append((f"attachment {part.get_filename() or 'without a name'}", "is not read"))
    return document


def read_jsonl(text: str) -> Document:
    """One JSON object a line: rows of a table; a long "text" is a paragraph under its title."""
    document, records = Document(), list[dict[str, object]]()
    for number, line in enumerate(plain(text).splitlines(), 1):
        try:
            record = json.loads(line) if line.strip() else {}
        except (ValueError, RecursionError):
            document.left_out.append((f"line {number}", "is not JSON"))
            continue
        record = record if isinstance(record, dict) else {"value": record}
        if isinstance(body := record.get("text"), str) and count_words(body) > _RECORD:
            _add_records(document, records)
            records = []
            document.add("heading", str(record.get("title") or ""), 1)
            document.add("paragraph", body)
        elif record:
            records.append(record)
    _add_records(document, records)
    return document


def _add_records(document: Document, records: Sequence[Mapping[str, object]]) -> None:
    header = list(dict.fromkeys(key for record in records for key in record))
    rows = [[_cell(record.get(key)) for key in header] for record in records]
    document.add_table([header, *rows] if rows else [], 1)


def _cell(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(_cell, value))
    if value is None or isinstance(value, str):
        return tidy(value or "")
    return json.dumps(value, ensure_ascii=False)


def read_code(text: str) -> Document:
    """Code: lines between blank ones that are not indented are a block."""
    document = Document()
    current: list[str] = []
    text = plain(text.replace("\r\n", "\n").replace("\r", "\n"))
    for line in text.split("\n"):
        if current and line.strip() and not line[0].isspace() and not current[-1].strip():
            document.add("code", "\n".join(current).strip("\n"))
            current = []
        current.append(line.rstrip())
    document.add("code", "\n".join(current).strip("\n"))
    return document
