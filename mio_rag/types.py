"""Questions, passages and answers, and text that can be written as UTF-8.

Text that is whole: damaged JSON leaves halves of surrogate pairs, which UTF-8 cannot hold.

What is asked, what may be read, what was answered. Frozen, and checked at construction.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import lru_cache
from typing import Any, NamedTuple, TypeGuard

from mio_rag.errors import InputError, MioRagError


def clean(text: str) -> str:
    """The text with "?" for every lone surrogate.

    Those come out of damaged JSON; UTF-8 cannot hold them, so that tokenizers and HTTP clients would fail.
    """
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def one_line(name: str) -> str:
    """A name, without what would begin a line of its own, or turn the text around."""
    return " ".join("".join(one if one.isprintable() else " " for one in name).split())


def is_text(*parts: str) -> bool:
    """Whether the parts can be written as UTF-8: a damaged escape can leave half of a surrogate pair."""
    try:
        return all(part.isascii() or part.encode() for part in parts)
    except UnicodeEncodeError:
        return False


#: A day, or a moment of one; the day or the month may be left out.
_DATE = re.compile(r"\d{4}(-\d\d(-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?)?)?)?")
_FAREST = 2**53  # characters: places are whole numbers that float64 holds exactly, too


def check_date(given: str) -> str | None:
    """What is wrong with a date of a passage, in words; None where nothing is."""
    try:
        if isinstance(given, str):
            moment(given)
            return None
    except (ValueError, OverflowError):
        pass
    return f"date {given!r} is no date in the form YYYY-MM-DD (ISO 8601): write it so, or leave it out"


@lru_cache(maxsize=4096)  # versions are compared pair by pair
def moment(given: str) -> str:
    """Return a date in a form whose alphabetical order is that of time; blank for a blank one.

    Moments with a time zone are put into universal time, and those without are taken as universal. A day, a
    month or a year is before all that lies within it. ValueError or OverflowError for what is no date.
    """
    if not given:
        return ""
    if not _DATE.fullmatch(given):
        raise ValueError(given)
    if len(given) <= len("2024-05-01"):
        date.fromisoformat(given + "2024-01-01"[len(given) :])
        return given
    found = datetime.fromisoformat(given)
    return (found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)).isoformat(
        timespec="microseconds"
    )


class Line(NamedTuple):
    """A line of a document that other parts need to be understood: a heading, a table's header, a lead-in.

    start: place of its first character in the document.
    text: as the document has it.
    """

    start: int
    text: str


class Unit(NamedTuple):
    """The smallest piece of a passage that can be read alone: a sentence, a list item, a row, lines of code.

    start, end: characters [start, end) in the passage's text.
    needs: which of the passage's `lines` are read before it.
    section: headings above it, where these are not those of its passage.
    """

    start: int
    end: int
    needs: tuple[int, ...] = ()
    section: tuple[str, ...] = ()


@dataclass(frozen=True)
class Passage:
    """One retrievable piece of text.

    id: unique in its corpus.
    text: not blank.
    title, source: shown to the reader and used by per-source caps; may be empty.
    start, end: where the text lies in the document that `source` names: characters [start, end). Passages
        that overlap or touch are then read as one text. Without `end` it is start + len(text).
    date: of which day the text is, in the form YYYY-MM-DD (ISO 8601, also with a time); may be empty. Of
        near-duplicates the newest is read.
    section: headings above the text, outermost first, without the title.
    page: page on which the text starts, from 1.
    lines: lines of the same document that the text or its units need: read once before them, however many
        need them. Needs `start`.
    units: in order, without overlap. Empty: sentences are found in the text.
    metadata: plain data that filters and citations use.
    vector, score, tokens: of a retrieved passage: its embedding, its relevance (larger is better), and its
        cost in the prompt.

    Raises `InputError` for an empty id, a blank text, offsets without a source or that do not fit the text,
    or a date in another form.
    """

    id: str
    text: str
    title: str = ""
    source: str = ""
    # Where a text lies is not what it says: an index that was built without offsets is still of its corpus.
    start: int | None = field(default=None, compare=False)
    end: int | None = field(default=None, compare=False)
    date: str = field(default="", compare=False)
    section: tuple[str, ...] = field(default=(), compare=False)
    page: int | None = field(default=None, compare=False)
    lines: tuple[Line, ...] = field(default=(), compare=False)
    units: tuple[Unit, ...] = field(default=(), compare=False)
    metadata: Mapping[str, Any] = field(default_factory=dict, compare=False)
    vector: Any = field(default=None, compare=False, repr=False)
    score: float | None = field(default=None, compare=False)
    tokens: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not self.id:
            raise InputError("a passage has an empty id: give every passage a unique, non-empty id")
        if not self.text.strip():
            raise InputError(f"passage '{self.id}' has no text: drop it or fill it")
        if self.start is not None or self.end is not None:
            self._check_span()
        if self.date and (problem := check_date(self.date)):
            raise InputError(f"passage '{self.id}': {problem}")
        if self.units or self.lines:
            self._check_units()

    def _check_units(self) -> None:
        ends = [0, *(unit.end for unit in self.units)]
        in_order = all(
            end <= unit.start < unit.end for end, unit in zip(ends, self.units, strict=False)
        ) and ends[-1] <= len(self.text)
        needed = all(0 <= k < len(self.lines) for unit in self.units for k in unit.needs)
        placed = all(_is_place(line.start) and line.text.strip() for line in self.lines)
        if not (in_order and needed and placed) or (self.lines and self.start is None):
            raise InputError(
                f"passage '{self.id}' has units or lines that do not fit it: units must lie in its text, in "
                "order and apart, need only its lines, and lines need text, a place, and the passage's start"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the passage as plain data for JSON, without blank fields."""
        data: dict[str, Any] = {"id": self.id, "title": self.title, "text": self.text, "source": self.source}
        rest = {
            "start": self.start,
            "end": self.end,
            "date": self.date or None,
            "section": list(self.section) or None,
            "page": self.page,
            "lines": [list(line) for line in self.lines] or None,
            "units": [
                [unit.start, unit.end, list(unit.needs), *([list(unit.section)] if unit.section else [])]
                for unit in self.units
            ]
            or None,
            "metadata": dict(self.metadata) or None,
        }
        return data | {name: value for name, value in rest.items() if value is not None}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Passage:
        """Return the passage that `to_dict` wrote; TypeError, ValueError or InputError if it is none."""
        given = dict(data)
        given["section"] = tuple(given.get("section", ()))
        given["lines"] = tuple(Line(start, text) for start, text in given.get("lines", ()))
        given["units"] = tuple(
            Unit(a, b, *(tuple(each) for each in rest)) for a, b, *rest in given.get("units", ())
        )
        return cls(**given)

    def _check_span(self) -> None:
        start, end = self.start, self.end
        if end is None and _is_place(start):
            end = start + len(self.text)
        if not (_is_place(start) and _is_place(end)):
            raise InputError(
                f"passage '{self.id}' lies from start={self.start!r} to end={self.end!r}: give whole numbers "
                ">= 0 and below 2^53, or neither"
            )
        if end - start != len(self.text):
            raise InputError(
                f"passage '{self.id}' has {len(self.text)} characters, but lies from start={start} to "
                f"end={end}, which is {end - start}: give the characters of its text, or leave them out"
            )
        if not self.source:
            raise InputError(
                f"passage '{self.id}' has start={start} and no source: name the document that it counts in, "
                "or leave start and end out"
            )
        object.__setattr__(self, "end", end)


@dataclass(frozen=True)
class Question:
    """A question, with its gold answers and evidence where they are known.

    answers: accepted answers; empty when unknown or when the question is unanswerable.
    gold_ids, gold_sources: ids of the passages, or sources (documents), that hold the evidence; empty when
        not labelled so.
    choices: options of a multiple-choice question.
    evidence: texts that answer it, quoted from the documents.
    conversation: which one it is of; its questions follow each other in their order.
    """

    id: str
    text: str
    answers: tuple[str, ...] = ()
    gold_ids: tuple[str, ...] = ()
    gold_sources: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    type: str = ""
    evidence: tuple[str, ...] = ()
    conversation: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise InputError(f"question is {self.text!r}, expected a string")
        if not self.text.strip():
            raise InputError(f"question '{self.id}' is empty")


@dataclass(frozen=True)
class Answer:
    """What the generator said, and what it cost: tokens as it counts them, and seconds of the generation
    alone. `estimated`: the tokens are our own count, since an endpoint reported none that can be true.

    `logprobs` has the natural-log probability of each completion token, where the generator has them, and
    `selection` what was read, where that is known.
    """

    text: str
    prompt_tokens: int
    completion_tokens: int
    latency_seconds: float
    generator: str
    logprobs: tuple[float, ...] | None = None
    selection: Any = field(default=None, compare=False, repr=False)
    estimated: bool = False

    @property
    def refused(self) -> bool:
        """Whether there is no answer, as where nothing was selected."""
        return not self.text.strip()

    @property
    def citations(self) -> tuple[dict[str, Any], ...]:
        """The parts of the context that the answer cites, or that have its words; see `Selection.parts`."""
        if self.selection is None or self.refused:
            return ()
        cited = self.selection.cited(self.text)
        return tuple(part for part in self.selection.parts if part["n"] in cited)

    @property
    def usage(self) -> dict[str, int]:
        """Tokens of the prompt and of the answer."""
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.completion_tokens}


def _is_place(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _FAREST


class GenerationError(MioRagError, RuntimeError):
    """A generator could not produce an answer.

    spent: what the failed call cost, or may have cost. None: nothing, unless it is `untold`.
    untold: whether the request was sent and no usable reply says what it cost. The prompt and the longest
        reply are then charged.
    repeat: whether the same request may succeed later, after `retry_after` seconds if the server asked for
        it.
    """

    def __init__(
        self,
        message: str = "",
        spent: Answer | None = None,
        *,
        untold: bool = False,
        repeat: bool = True,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.spent, self.untold, self.repeat, self.retry_after = spent, untold, repeat, retry_after
