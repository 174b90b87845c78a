"""The context block: how passages are laid out, merged and counted.

A token budget bounds this block, counted by the tokenizer of the model that reads it. Retrieval, selection
and generation use this one rendering.

Chosen passages whose spans are known are laid out by document: its title once, their texts in document order.
What overlaps is written once, and what touches goes on. Where one or two characters lie between passages, the
next one begins a line: mostly a splitter stripped white space there, but it may have been a comma in a
number, so nothing is put in its place. Between sentences it is the white space of their passage. What lies
further apart is parted by a line with an ellipsis. Every passage's text is in the result word for word. Where
two texts say different things at the same place, all of that document are read by themselves, as are those
without a span.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from mio_rag.entries import not_numbers
from mio_rag.errors import InputError
from mio_rag.pool import Candidates
from mio_rag.sentences import bare_name, marks_of
from mio_rag.types import Line, Passage, Unit, clean

#: best_first: by relevance. document: as the corpus has them.
PromptOrder = Literal["best_first", "document"]

#: What stands between two passages of a context block.
SEPARATOR = "\n\n"


@runtime_checkable
class TokenCounter(Protocol):
    """Counts what a text costs in a prompt; every generator is one."""

    @property
    def name(self) -> str:
        """Whose tokens these are."""
        ...

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text, >= 0, without begin-of-sequence or other special tokens."""
        ...


# Alternatives, in order: up to six Latin letters, three Cyrillic, Armenian or Georgian, two Hebrew or
# Arabic, as many as tokenizers merge; up to three digits; one character of any other script (Greek, CJK and
# the like take about one token a character); one character of punctuation. Together they match every
# character that is not white space.
_PIECE = re.compile(
    r"[A-Za-z\u00c0-\u024f]{1,6}|[\u0400-\u052f\u0530-\u058f\u10a0-\u10ff]{1,3}"
    r"|[\u0590-\u06ff\u0750-\u077f]{1,2}|[0-9]{1,3}|\w|[^\w\s]"
)


class RegexCounter:
    """An approximation of a byte-pair tokenizer by one regular expression.

    Words count one token for each six letters begun (three where they are Cyrillic, two where Hebrew or
    Arabic), numbers one for each three digits begun, punctuation and characters of other scripts one each;
    white space is free. On prose in ten languages it lies within 30 % of the mean of what cl100k and Qwen2.5
    count. It is used only where no language model reads the text. Counts are additive over concatenation at
    white space; a text that is not blank counts at least 1.
    """

    @property
    def name(self) -> str:
        """Always ``"regex"``."""
        return "regex"

    def count(self, texts: Sequence[str]) -> list[int]:
        """Approximate tokens of each text, >= 0."""
        return [_pieces(text) for text in texts]


@lru_cache(maxsize=16_384)  # the passages of a corpus come up again with every question
def _pieces(text: str) -> int:
    return len(_PIECE.findall(text))


def lines_between(text: str, start: int, count: int) -> tuple[str, int, int, int]:
    """Return the whole lines of a text from the token `start` on, in at most `count` approximate tokens.

    A line that is longer is cut, and goes on inside.

    Returns: the lines, the tokens where they begin and end, and how many the text has.
    """
    places = [found.start() for found in _PIECE.finditer(text)]
    total = len(places)
    if start >= total:
        return "", total, total, total
    begins = [k for k, place in enumerate(places) if not k or "\n" in text[places[k - 1] : place]] + [total]
    at = bisect_right(begins, start)
    if begins[at] - begins[at - 1] <= count:
        start = begins[at - 1]
    end = begins[bisect_right(begins, start + count) - 1]
    end = end if end > start else start + count
    return text[places[start] : places[end] if end < total else len(text)].rstrip(), start, end, total


def render_passage(passage: Passage) -> str:
    """``title``, a newline and ``text``; the text alone where there is no title."""
    return _rendered(passage.title, passage.text)


def _rendered(title: str, text: str) -> str:
    title, text = clean(title).strip(), clean(text).strip()
    return f"{title}\n{text}" if title else text


@lru_cache(maxsize=16_384)  # the same object each time: its hash is known
def _behind_separator(title: str, text: str) -> str:
    return SEPARATOR + _rendered(title, text)


def render_context(passages: Iterable[Passage]) -> str:
    """All passages in the given order, parted by `SEPARATOR`; empty for none."""
    return SEPARATOR.join(render_passage(p) for p in passages)


def passage_tokens(passages: Sequence[Passage], counter: TokenCounter) -> NDArray[np.int64]:
    """Token cost of each passage in the prompt: its title, text and the separator before it, at least 1.

    A block costs no more than the sum over its passages. The separator is counted in front, since many byte-
    pair tokenizers merge a blank line at the end of a text into one token but split it before a word.
    """
    return text_tokens(_with_all_lines(passages), [p.title for p in passages], counter)


def _with_all_lines(passages: Sequence[Passage]) -> list[str]:
    return [
        p.text if not p.lines or p.start is None else _with_lines(p.text, p.start, p.lines) for p in passages
    ]


def count_ahead(passages: Sequence[Passage], units: Sequence[Sequence[Unit]], counter: TokenCounter) -> None:
    """Have a counter that remembers texts, and asks a server, count in one request what a selection among
    passages and their units may ask for; only a whole block, which nobody knows yet, is then left.
    """
    texts = list(map(_behind_separator, [p.title for p in passages], _with_all_lines(passages)))
    for passage, own in zip(passages, units, strict=True):
        title, at = clean(passage.title).strip(), passage.start or 0
        pieces = [line.text for line in passage.lines]
        lines = [place - at for line in passage.lines for place in (line.start, line.start + len(line.text))]
        for unit in own:  # shared text is cut where lines begin and end
            borders = sorted({unit.start, unit.end, *(k for k in lines if unit.start < k < unit.end)})
            pieces += [passage.text[low:high] for low, high in pairwise(borders)]
            pieces.append(passage.text[unit.start : unit.end])
        if not passage.units:  # a sentence may lean on the one before it
            pieces += [passage.text[a.start : b.end] for a, b in pairwise(own)]
            texts += [passage.text[a.end : k] for a, b in pairwise(own) for k in (b.start, b.end)]
        texts += [text for piece in pieces for text in (piece, f"{piece}\n", _behind_separator(title, piece))]
        texts.append(f"{SEPARATOR}{title}\n" if title else SEPARATOR)
    counted(counter, [*dict.fromkeys(texts), APART, "\n"])


@lru_cache(maxsize=4096)
def _with_lines(text: str, start: int, lines: tuple[Line, ...]) -> str:
    """A text behind the lines that it needs and does not hold itself."""
    before = sorted({line for line in lines if line.start < start})
    return "\n".join([*(line.text for line in before), text])


def text_tokens(texts: Sequence[str], titles: Sequence[str], counter: TokenCounter) -> NDArray[np.int64]:
    """`passage_tokens` of passages that are texts and titles so far."""
    return np.maximum(1, counted(counter, list(map(_behind_separator, titles, texts))))


def counted(counter: TokenCounter, texts: Sequence[str]) -> NDArray[np.int64]:
    """Return what a counter counts, shape (len(texts),); `InputError` unless that is a whole number >= 0
    for each.
    """
    if type(counter) is RegexCounter:
        return np.array(list(map(_pieces, texts)), dtype=np.int64)
    given = counter.count(texts)
    if (found := not_numbers(given)) is not None:
        raise InputError(f"counter '{counter.name}' gives {found}: it must give whole numbers >= 0")
    try:
        counts = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"counter '{counter.name}' gives no numbers ({error})") from error
    if counts.shape != (len(texts),):
        raise InputError(
            f"counter '{counter.name}' gives counts of shape {counts.shape} for {len(texts)} texts: it must "
            "give one for each"
        )
    wrong = ~((counts >= 0) & (counts < 2**53) & (counts == np.floor(counts)))
    if wrong.any():
        raise InputError(
            f"counter '{counter.name}' counts {counts[wrong][0]:g} tokens in a text: it must be a whole "
            "number >= 0"
        )
    return counts.astype(np.int64)


def in_prompt_order(candidates: Candidates, chosen: Iterable[int], order: PromptOrder) -> tuple[int, ...]:
    """Return chosen candidates in the order in which they are laid out ("document" needs positions)."""
    picked = list(chosen)
    worth = candidates.relevance[picked].tolist()
    best_first = [i for _, i in sorted((-value, i) for value, i in zip(worth, picked, strict=True))]
    if order == "best_first":
        return tuple(best_first)
    if order != "document":
        raise InputError(f"prompt order {order!r} is unknown: choose {', '.join(get_args(PromptOrder))}")
    positions = candidates.positions
    if positions is None:
        raise InputError(
            "prompt order 'document' needs candidates with positions: retrieve them with Retriever, pass "
            "positions, or choose best_first"
        )
    return tuple(sorted(best_first, key=lambda i: int(positions[i])))


#: Between texts of one document that do not touch.
APART = "\n\u2026\n"

#: Characters between two passages -> what is read for them; and between sentences, where it is white space.
_SEAMS = {0: "", 1: "\n", 2: "\n"}
_SENTENCE_SEAMS = {0: "", 1: " ", 2: "\n"}


@dataclass(frozen=True)
class Part:
    """Where a passage's text lies in the block that it is read in: characters [start, end).

    page: of its document, from 1.
    section: headings above it, outermost first, without the title.
    """

    id: str
    start: int
    end: int
    page: int | None = None
    section: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the part as plain data for JSON, without what is unknown."""
        data: dict[str, Any] = {"id": self.id, "start": self.start, "end": self.end}
        if self.page is not None:
            data["page"] = self.page
        return data | ({"section": list(self.section)} if self.section else {})


def _part(candidates: Candidates, i: int, start: int) -> Part:
    page = None if candidates.pages is None else candidates.pages[i]
    section = () if candidates.sections is None else tuple(candidates.sections[i])
    return Part(candidates.ids[i], start, start + len(candidates.texts[i]), page, section)


@dataclass(frozen=True)
class Block:
    """One text as the reader gets it.

    passage: its id joins those of the parts by "+".
    parts: the passages in it, by where they begin. One: the passage as it is.
    """

    passage: Passage
    parts: tuple[Part, ...]


_LEAST_OVERLAP = 20  # characters: fewer are the same by chance
#: Where a pool keeps `documents`; pools do not change.
_NUMBERS = "_document_numbers"


def by_itself(name: str) -> str:
    """The name of a document that is one passage alone, which no source has."""
    return f"\0{name}"


def documents(candidates: Candidates) -> NDArray[np.int64]:
    """Which candidates are read together, shape (n,): the number of their document; -1 for one by itself.

    Those of one number have the same source and title, and texts that agree wherever their spans overlap.
    Where two of them contradict each other, every one of that source and title is by itself.
    """
    if (known := candidates.__dict__.get(_NUMBERS)) is None:  # asked for with every program and block
        known = _numbers(candidates)
        known.flags.writeable = False
        candidates.__dict__[_NUMBERS] = known
    return known


def number_documents(candidates: Candidates, names: Iterable[Any]) -> None:
    """Set what `documents` returns, for texts that are known to agree; None names one by itself."""
    place: dict[Any, int] = {}
    known = np.array([-1 if name is None else place.setdefault(name, len(place)) for name in names])
    known.flags.writeable = False
    candidates.__dict__[_NUMBERS] = known


def _numbers(candidates: Candidates) -> NDArray[np.int64]:
    blank = [""] * len(candidates)
    if candidates.spans is None:
        return np.full(len(candidates), -1, dtype=np.int64)
    named = zip(candidates.documents or blank, candidates.sources or blank, strict=True)
    names = [document or source for document, source in named]
    titles = candidates.titles or blank
    return numbered(candidates.spans, names, titles, candidates.texts, candidates.lines)


def numbered(
    spans: NDArray[np.int64],
    sources: Sequence[str],
    titles: Sequence[str],
    texts: Sequence[str],
    lines: Sequence[Sequence[Line]] | None = None,
) -> NDArray[np.int64]:
    """`documents` of texts that lie at `spans` of their sources; (-1, -1) where that is unknown."""
    number = np.full(len(texts), -1, dtype=np.int64)
    groups: dict[tuple[str, str], list[int]] = {}
    starts = spans[:, 0].tolist()
    for i, start in enumerate(starts):
        if start >= 0:
            groups.setdefault((sources[i], titles[i]), []).append(i)
    for k, group in enumerate(groups.values()):
        if len(group) == 1 and (lines is None or not lines[group[0]]):
            number[group] = k
            continue
        placed = {(starts[i], texts[i]) for i in group}
        if lines is not None:
            placed.update(*[lines[i] for i in group])
        if agree(placed):
            number[group] = k
    return number


def agree(placed: Iterable[tuple[int, str]]) -> bool:
    """Whether texts of one document say the same wherever they overlap."""
    start, text = 0, ""  # what is known of the document around here
    for at, own in sorted(placed):
        if at >= start + len(text):
            start, text = at, own
            continue
        known = text[at - start : at - start + len(own)]
        if not own.startswith(known):
            return False
        text += own[len(known) :]
    return True


def overlap_at(first: str, second: str) -> int | None:
    """Where in the first text the second begins, so that they agree from there on; None if nowhere."""
    head = second[:_LEAST_OVERLAP]
    at = first.find(head) if len(head) == _LEAST_OVERLAP else -1
    while at >= 0:
        if second.startswith(first[at:]) or first.startswith(second, at):
            return at
        at = first.find(head, at + 1)
    return None


def merged(candidates: Candidates, chosen: Sequence[int]) -> tuple[Block, ...]:
    """The chosen passages as they are read.

    chosen: candidates, in prompt order. A document stands where the first of its passages would. Titles of
        versions of one document have their dates.
    """
    number = documents(candidates) if len(chosen) > 1 else np.full(len(candidates), -1)
    together: dict[int, list[int]] = {}
    for i in chosen:
        together.setdefault(int(number[i]) if number[i] >= 0 else -1 - i, []).append(i)
    blocks = [_read(candidates, rows) for rows in together.values()]
    dates = [block.passage.date or _year(block.passage.source) for block in blocks]
    if len(set(dates)) < 2:
        return tuple(blocks)
    named = [(date, _names(block.passage)) for date, block in zip(dates, blocks, strict=True)]
    return tuple(
        _dated(block, date) if any(names & own and date != other for other, own in named) else block
        for block, (date, names) in zip(blocks, named, strict=True)
    )


def _names(passage: Passage) -> set[tuple[str, frozenset[str]]]:
    """Title and name of the file, without dates and marks of a version."""
    file = re.sub(r"\.\w{1,5}$", "", re.split(r"[/\\]", passage.source)[-1])
    pairs = {("title", bare_name(passage.title)), ("file", bare_name(file))}
    return {(kind, words) for kind, words in pairs if words}


def _year(source: str) -> str:
    """The years, or the number of a version, that the name of a file names."""
    return ", ".join(sorted(marks_of(re.split(r"[/\\]", source)[-1])))


def _dated(block: Block, date: str) -> Block:
    title = block.passage.title
    if not date or date in title:
        return block
    return replace(block, passage=replace(block.passage, title=f"{title} ({date})" if title else date))


def block_tokens(candidates: Candidates, chosen: Sequence[int], counter: TokenCounter, merge: bool) -> int:
    """Tokens of the context block of the chosen passages; with `merge`, passages of one document are one
    text.
    """
    if not chosen:
        return 0
    blocks = merged(candidates, chosen) if merge else ()
    read = [block.passage for block in blocks] or map(candidates.passage, chosen)
    return int(counted(counter, [render_context(read)])[0])


def _read(candidates: Candidates, rows: Sequence[int]) -> Block:
    """Return candidates of one document, and the lines that they need, as one text in document order."""
    spans, lines, i = candidates.spans, candidates.lines, rows[0]
    if spans is None or (len(rows) == 1 and (spans[i, 0] < 0 or lines is None or not lines[i])):
        return Block(candidates.passage(i), (_part(candidates, i, 0),))
    placed = [(int(spans[i, 0]), candidates.texts[i], i) for i in rows]
    if lines is not None:
        placed += [(*line, -1) for line in {line for i in rows for line in lines[i]}]
    placed.sort(key=lambda one: (one[0], -len(one[1]), one[2]))
    first = {start: i for start, _, i in reversed(placed) if i >= 0}
    text, parts, end, shift = "", list[Part](), -1, 0
    for start, own, i in placed:
        if start > end:
            text += _seam(candidates, text, own, first.get(start), start - end) if end >= 0 else ""
            shift, end = len(text) - start, start
        if i >= 0:
            parts.append(_part(candidates, i, shift + start))
        text += own[end - start :]
        end = max(end, start + len(own))
    about = candidates.passage(rows[0])
    name = "+".join(str(part.id) for part in parts)
    return Block(Passage(name, text, about.title, about.source, date=about.date), tuple(parts))


def apart(candidates: Candidates) -> str:
    """What parts texts of one document that do not touch; a new line where headings say where they stand."""
    return APART if candidates.lines is None else "\n"


def _seam(candidates: Candidates, before: str, after: str, first: int | None, gap: int) -> str:
    """What stands between two texts: white space only where both ends are as a splitter leaves them.

    first: candidate that the second text begins with. gap: characters between the two in the document.
    """
    if before[-1].isspace() or after[0].isspace():
        return apart(candidates)
    seams = _SEAMS if candidates.cut_from is None or candidates.lines is not None else _SENTENCE_SEAMS
    if candidates.gaps is not None and first is not None:
        seams = {**seams, len(candidates.gaps[first]): candidates.gaps[first]}
    return seams.get(gap, apart(candidates))


def shared_characters(candidates: Candidates) -> NDArray[np.int64]:
    """Characters of the document that two candidates have in common, shape (n, n), zero diagonal."""
    n = len(candidates)
    shared = np.zeros((n, n), dtype=np.int64)
    number, spans = documents(candidates), candidates.spans
    if spans is None:
        return shared
    for k in range(int(number.max(initial=-1)) + 1):
        rows = np.flatnonzero(number == k)
        low = np.maximum.outer(spans[rows, 0], spans[rows, 0])
        high = np.minimum.outer(spans[rows, 1], spans[rows, 1])
        shared[np.ix_(rows, rows)] = np.maximum(high - low, 0)
    np.fill_diagonal(shared, 0)
    return shared
