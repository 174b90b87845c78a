"""Sentences and names in running text.

A mention is a run of words that equals a name, word for word and whatever the case, provided that one of its
words is written with a capital or begins with a digit. At each position the longest name wins.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import InputError

if TYPE_CHECKING:
    from mio_rag.types import Line


class _Pattern:
    """A regular expression that is compiled when it is first used: a command uses few of them."""

    def __init__(self, *given: Any) -> None:
        self._given = given

    def __getattr__(self, name: str) -> Any:
        compiled = self.__dict__.get("_compiled") or self.__dict__.setdefault(
            "_compiled", re.compile(*self._given)
        )
        self.__dict__[name] = getattr(compiled, name)
        return self.__dict__[name]


def pattern(text: str, flags: int = 0) -> re.Pattern[str]:
    """Return what has the methods of `re.compile(text, flags)`, compiled when one is first used."""
    return cast("re.Pattern[str]", _Pattern(text, flags))


_ABBREVIATION = pattern(
    r"\b(?:[A-ZÀ-ÖØ-Þ\u0100-\u017fΑ-ΩА-Я]|Mr|Mrs|Ms|Mme|Dr|Prof|Rev|Hon|Gov|Sen|Gen|Col|Maj|Capt|Lt|Sgt|St|Mt|Ft|Jr|Sr|Ph|Inc|Ltd|Co|Bros|"
    r"v|vs|ca|cf|approx)\.$"
)
#: These end no sentence where a number follows: a page, a year, a house.
_BEFORE_NUMBER = pattern(r"\b(?:c|ch|d|p|pp|ext|[Nn]os?|Nr|[Aa]rt|[Ff]igs?|[Ee]qs?|[Vv]ol|[Ss]ec)\.$")
#: Nor does a German ordinal: "am 6. Januar", "der 2. Weltkrieg".
_ORDINAL = pattern(r"\b(?:vom|zum|bis|seit|der|den|am) \d{1,2}\.$", re.IGNORECASE)
_CLOSING, _OPENING = "\"'”’»)\\]」』）", "\"'“‘„«(\\[¿¡"
#: A full stop, white space and what may begin a sentence; a full-width full stop; or the end of a line. All
#: begin with one of a few characters, which is what makes it quick.
_BREAK = pattern(
    rf"[.!?؟۔।。！？．\n](?:(?<=[.!?؟۔।])[{_CLOSING}]*\s+(?=[{_OPENING}]?([^\W_]))"
    rf"|(?:(?<=[。！？])|(?<=．)(?!\d))\s*(?=[^\s{_CLOSING}])|(?<=\n)\s*)"
)
_SHORT = 40  # characters of a piece that may say nothing alone
_LONGEST_ABBREVIATION = 10  # characters, with the one before it
#: Also four characters of Chinese or Japanese, which put no white space between words.
_TWO_WORDS = pattern(r"[^\W\d_]{2,}[\W\d_].*?[^\W\d_]{2,}|[\u3040-\u30ff\u3400-\u9fff]{4}", re.DOTALL)
_RULER = pattern(r"[-–—=_*~:+|\s]+")
_PRONOUN = pattern(
    r"[\"'“‘(\[]*(?:he|she|it|they|his|her|hers|its|their|theirs|him|them|this|these|those|such|both|"
    r"the (?:former|latter|same))\b",
    re.IGNORECASE,
)


def sentence_spans(text: str, *, wrapped: bool = False) -> list[tuple[int, int]]:
    """Characters [start, end) of each sentence, in order, without the white space around them.

    In any script, a full stop, question or exclamation mark ends a sentence unless a lower-case letter
    follows; full-width ones do without white space, too. Initials and common abbreviations end none; the end
    of a line does. A piece of fewer than two words ("1.", "Term.") belongs to the one before it on its line,
    at the start of a line to the one after. A ruler (``|---|---|``) belongs to the line above.

    With `wrapped`, as in text from PDF files, a line that goes on in lower case belongs to the sentence
    before, unless a blank line lies between. Rows of a table stay sentences.
    """
    ends: list[int] = []
    for match in _BREAK.finditer(text):
        lines = match.group().count("\n")
        if lines:
            goes_on = wrapped and lines == 1 and text[match.end() : match.end() + 1].islower()
        else:
            goes_on = _goes_on(text, ends[-1] if ends else 0, match)
        if not goes_on:
            ends.append(match.end())
    spans: list[tuple[int, int]] = []
    waits = False  # whether the last span is too short to stand alone, and stands at the start of its line
    for a, b in zip([0, *ends], [*ends, len(text)], strict=True):
        piece = text[a:b]
        start, end = a + len(piece) - len(piece.lstrip()), a + len(piece.rstrip())
        if start >= end:
            continue
        lines = text.count("\n", spans[-1][1], start) if spans else 2
        short = end - start <= _SHORT and _TWO_WORDS.search(text, start, end) is None
        ruler = lines == 1 and _RULER.fullmatch(text, start, end) is not None
        if ruler or (lines == 0 and (waits or short)):
            spans[-1] = (spans[-1][0], end)
            waits = waits and short and lines == 0
        else:
            spans.append((start, end))
            waits = short
    return spans


def _goes_on(text: str, start: int, match: re.Match[str]) -> bool:
    """Whether a full stop within a line ends no sentence, of one that starts at `start`."""
    following = match[1]  # None after a full-width stop
    if following is None:
        return False
    end = match.start() + 1
    before = text[max(start, end - _LONGEST_ABBREVIATION) : end]
    if following.islower() or _ABBREVIATION.search(before) or _ORDINAL.search(before):
        return True
    if before.endswith("al.") and text[end : end + 3].lstrip()[:1] in ("(", "["):  # et al. (2023)
        return True
    return following.isdigit() and _BEFORE_NUMBER.search(before) is not None


def leans(sentence: str) -> bool:
    """Whether a sentence starts with a pronoun, so that the one before says what it is about."""
    return _PRONOUN.match(sentence) is not None


@dataclass(frozen=True, eq=False)
class Sentences:
    """The units of the passages of a pool: sentences, list items, rows of tables.

    owners: shape (m,); candidate that each is of, ascending.
    spans: shape (m, 2); characters [start, end) in the candidate's text; those of a candidate in order, none
        in two.
    embeddings: shape (m, d); by the pool's embedder. None: nobody embedded them.
    needs: length m; which of its candidate's `lines` each is read with. None: of none.
    sections: length m; headings above each. None: those of its candidate.
    scores: shape (m,); what search found of each: see `mio_rag.relevance.documents`.
    pieces: what is read of those of each candidate, where it is known.

    Raises `InputError` with every problem found.
    """

    owners: NDArray[np.int64]
    spans: NDArray[np.int64]
    embeddings: NDArray[np.float32] | None = None
    needs: Sequence[tuple[int, ...]] | None = None
    sections: Sequence[tuple[str, ...]] | None = None
    scores: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    pieces: Sequence[Pieces] | None = None

    def __post_init__(self) -> None:
        m = len(self.owners)
        problems = []
        if self.owners.shape != (m,) or self.spans.shape != (m, 2):
            problems.append(f"sentences: owners has shape {self.owners.shape}, spans {self.spans.shape}")
        elif np.any(np.diff(self.owners) < 0) or np.any(self.spans[:, 0] >= self.spans[:, 1]):
            problems.append("sentences: owners must ascend, and every span must hold a character")
        elif np.any((np.diff(self.owners) == 0) & (self.spans[1:, 0] < self.spans[:-1, 1])):
            problems.append("sentences: those of one passage must stand in order, without overlap")
        if self.needs is not None and len(self.needs) != m:
            problems.append(f"sentences: needs has {len(self.needs)} entries, expected {m}")
        for name, values in self.scores.items():
            if np.shape(values) != (m,) or not np.isfinite(values).all():
                problems.append(f"sentences: scores['{name}'] must hold {m} finite numbers")
        if self.embeddings is None:
            pass
        elif self.embeddings.ndim != 2 or len(self.embeddings) != m:
            problems.append(f"sentences: embeddings has shape {self.embeddings.shape}, expected ({m}, d)")
        elif not np.isfinite(self.embeddings).all():
            problems.append("sentences: embeddings hold NaN or infinity: embed them again")
        if problems:
            raise InputError(problems)

    @classmethod
    def unchecked(cls, **columns: Any) -> Sentences:
        """Return units that fit each other, as those of an index."""
        made = object.__new__(cls)
        made.__dict__.update(
            {"embeddings": None, "needs": None, "sections": None, "scores": {}, "pieces": None, **columns}
        )
        return made

    @property
    def are_scored(self) -> bool:
        """Whether search scored the units themselves, by their vectors and by their words."""
        return "dense" in self.scores and "bm25" in self.scores

    def among(self, rows: NDArray[np.int64]) -> Sentences:
        """Those of some candidates, by their places in `rows`."""
        at = [np.flatnonzero(self.owners == row) for row in rows]
        kept = np.concatenate(at) if at else np.zeros(0, dtype=np.int64)
        return Sentences(
            np.repeat(np.arange(len(at)), [len(found) for found in at]),
            self.spans[kept],
            None if self.embeddings is None else self.embeddings[kept],
            None if self.needs is None else [self.needs[k] for k in kept],
            None if self.sections is None else [self.sections[k] for k in kept],
            {name: values[kept] for name, values in self.scores.items()},
        )

    @classmethod
    def joined(cls, parts: Sequence[Sentences]) -> Sentences:
        """Those of candidates one after another; scores that one of them lacks are left out."""
        vectors = [part.embeddings for part in parts if part.embeddings is not None]
        needs = [part.needs for part in parts if part.needs is not None]
        sections = [part.sections for part in parts if part.sections is not None]
        names = set.intersection(*(set(part.scores) for part in parts)) if parts else set()
        return cls(
            np.repeat(np.arange(len(parts)), [len(part.owners) for part in parts]),
            np.concatenate([part.spans for part in parts]),
            np.concatenate(vectors) if len(vectors) == len(parts) else None,
            [each for part in needs for each in part] if len(needs) == len(parts) else None,
            [each for part in sections for each in part] if len(sections) == len(parts) else None,
            {name: np.concatenate([part.scores[name] for part in parts]) for name in sorted(names)},
        )

    def problems(self, texts: Sequence[str], dimensions: int | None) -> list[str]:
        """What does not fit the texts of a pool, and the length of its question's embedding."""
        found = []
        lengths = np.array([len(text) for text in texts], dtype=np.int64)
        if self.owners.size and not 0 <= self.owners[0] <= self.owners[-1] < len(texts):
            found.append(f"sentences are of candidates up to {self.owners.max()}, of {len(texts)}")
        elif np.any(self.spans[:, 0] < 0) or np.any(self.spans[:, 1] > lengths[self.owners]):
            found.append("sentences lie beyond the text of their passage: cut them from the same text")
        vectors = self.embeddings
        if dimensions is not None and vectors is not None and vectors.shape[1] != dimensions:
            found.append(
                f"sentences have {vectors.shape[1]} dimensions, the question {dimensions}: embed "
                "both with the same model"
            )
        return found


@lru_cache(maxsize=4096)  # questions to one collection find the same passages again and again
def _wrapped_spans(text: str) -> tuple[tuple[int, int], ...]:
    return tuple(sentence_spans(text, wrapped=True))


class Piece(NamedTuple):
    """What is read of a unit: its text, or with the one before it if it leans on that.

    start: in the passage's text.
    gap: the white space before it in its passage, "" at its start.
    section: headings above it. lines: those that it needs. Empty where the pool says it.
    size, tokens: approximate tokens of its text, and of what is read of it alone; 0 where nobody counted.
    """

    text: str
    start: int
    gap: str
    section: tuple[str, ...] = ()
    lines: tuple[Line, ...] = ()
    size: int = 0
    tokens: int = 0


class Pieces(NamedTuple):
    """What is read of the units of a passage.

    title, passage: its title and text; no title where the pool says it.
    keys: texts in lower case, however they are spaced. hashes: theirs.
    needs, sections: which lines of the passage each needs, and headings above it; empty where the pool says
        it.
    tokens: of the passage, approximately; 0 where the pool says it.
    """

    passage: str
    units: Sequence[Piece]
    keys: Sequence[str]
    hashes: NDArray[np.int64]
    needs: Sequence[tuple[int, ...]] = ()
    sections: Sequence[tuple[str, ...]] = ()
    tokens: int = 0
    title: str | None = None


@lru_cache(maxsize=4096)  # questions to one collection find the same passages again and again
def pieces_of(text: str, spans: bytes, leaning: bool) -> Pieces:
    """Return the pieces of one passage, by its text alone.

    spans: of its units, as bytes of int64.
    leaning: whether a unit may lean on the one before it.
    """
    cores = np.frombuffer(spans, dtype=np.int64).reshape(-1, 2).tolist()
    starts = [a for a, _ in cores]
    if leaning:
        before = [starts[0], *starts[:-1]] if starts else []
        starts = [b if leans(text[a:end]) else a for b, (a, end) in zip(before, cores, strict=True)]
    texts = [text[a:end] for a, (_, end) in zip(starts, cores, strict=True)]
    keys = [" ".join(piece.casefold().split()) for piece in texts]
    units = [Piece(one, a, text[len(text[:a].rstrip()) : a]) for one, a in zip(texts, starts, strict=True)]
    return Pieces(text, units, keys, np.array(list(map(hash, keys)), dtype=np.int64))


def cut(texts: Sequence[str]) -> Sentences:
    """The sentences of texts whose lines may be wrapped; nobody embedded them."""
    found = list(map(_wrapped_spans, texts))
    owners = np.repeat(np.arange(len(found), dtype=np.int64), [len(spans) for spans in found])
    return Sentences(owners, np.array([s for spans in found for s in spans], dtype=np.int64).reshape(-1, 2))


_WORD = pattern(r"[^\W_]+(?:['\u2019][^\W_]+)*")
_PUNCTUATION = frozenset(".,;:!?()\n\u2013\u2014")
_QUALIFIER = pattern(r"\s*\([^()]*\)\s*$")
_LONGEST = 12  # words of a name
_JOINS = frozenset(("of", "the", "de", "la", "du", "von", "van", "and", "for", "in"))
_COMMON_WORDS = """
a an the this that these those it its he she they we you i his her their our my in on at by for from of
to with as and or but if when while after before during since until although because however there here
what which who where why how is are was were be been has have had do does did not no yes one two three
first second new other some many most all both each also more january february march april may june july
august september october november december monday tuesday wednesday thursday friday saturday sunday
"""
_COMMON = frozenset(_COMMON_WORDS.split())


@lru_cache(maxsize=4096)  # pools of one corpus hold the same titles again and again
def name_key(name: str) -> str:
    """A name as it is looked up: its words in lower case, without a qualifier in brackets at the end."""
    plain = _QUALIFIER.sub("", name)
    return " ".join(word.lower() for word in _WORD.findall(plain or name))


class NameDictionary:
    """Names and who bears them: name k is borne by passage k; blank for none. Single very common words are
    left out.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.bearers: dict[str, list[int]] = {}
        found: dict[str, dict[str, set[int]]] = {}
        for k, name in enumerate(names):
            key = name_key(name)
            words = key.split(" ")
            if not key or len(words) > _LONGEST or (len(words) == 1 and (key in _COMMON or len(key) < 2)):
                continue
            self.bearers.setdefault(key, []).append(k)
            second = words[1] if len(words) > 1 else ""
            found.setdefault(words[0], {}).setdefault(second, set()).add(len(words))
        # first word -> second word -> lengths, longest first; under "" where the first word is a name
        self._lengths = {
            first: {second: sorted(lengths, reverse=True) for second, lengths in rest.items()}
            for first, rest in found.items()
        }

    def __len__(self) -> int:
        return len(self.bearers)

    def mentions(self, text: str) -> list[str]:
        """Keys of the names that a text mentions, in the order of the text, repeats included."""
        words = _WORD.findall(text)
        lower = " ".join(words).lower().split(" ")
        known, bearers = self._lengths, self.bearers
        found: list[str] = []
        free = 0  # words before this one belong to the last name
        for position, first in enumerate(lower):
            rest = known.get(first)
            if rest is None or position < free:
                continue
            second = lower[position + 1] if position + 1 < len(lower) else ""
            for length in (*rest.get(second, ()), *rest.get("", ())):
                key = first if length == 1 else " ".join(lower[position : position + length])
                if key in bearers and any(not w[0].islower() for w in words[position : position + length]):
                    found.append(key)
                    free = position + length
                    break
        return found


def leading_name(text: str, within: int = 80) -> str:
    """What a text without a title is about: the capitalised run within its first characters; blank without
    one.

    A single word is a name only where the sentence goes on as after a name ("Lima is", "Lima, the"); in
    "American painters of" it is none.
    """
    words: list[str] = []
    before, closed = 0, False
    for found in _WORD.finditer(text[:within]):
        word, gap = found.group(), text[before : found.start()]
        before = found.end()
        if not words and word.lower() in _COMMON:
            continue
        if words and set(gap) & _PUNCTUATION:
            closed = True
            break
        if word[0].isupper() or word[0].isdigit() or (words and word.lower() in _JOINS):
            words.append(word)
        else:
            closed = word.lower() in _COMMON
            break
    while words and words[-1].lower() in _JOINS:
        words.pop()
        closed = True
    return " ".join(words) if len(words) > 1 or closed else ""


_MONTHS = "|".join(name for k in range(1, 13) for name in (calendar.month_name[k], calendar.month_abbr[k]))
_YEAR = r"(?:19|20)\d\d"
_PAST = "archived?|draft|former|obsolete|old|outdated|previous|superseded"  # also what is not yet in force
_PRESENT = "current|final|latest|new|revised|updated"
#: What tells versions of a document apart in its title, its name or a heading.
_MARK = pattern(
    rf"(?<![^\W_])(?:(?:\d{{1,2}}[-/. _]+)?(?:{_MONTHS})[-/., _]+(?:\d{{1,2}}[-/., _]+)?{_YEAR}"
    rf"|\d{{1,2}}([-/._])\d{{1,2}}\1{_YEAR}|{_YEAR}([-/._])\d{{1,2}}\2\d{{1,2}}|(?:0?[1-9]|1[0-2])[-/._]{_YEAR}"
    rf"|{_YEAR}(?:[-/_]\d\d)?|{_YEAR}[01]\d[0-3]\d|fy ?(?:\d\d)?\d\d"
    r"|(?:v|ver|version|rev|revision|r|edition|ed)[-. _]*\d+(?:[._]\d+)*|\(\d+\)"
    rf"|{_PAST}|{_PRESENT}|copy|version|revision)(?![^\W_])",
    re.IGNORECASE,
)


Names = tuple[str, str, str]  # title, source and date of a document


@lru_cache(maxsize=4096)
def bare_name(text: str) -> frozenset[str]:
    """The words of a name but for dates, years and marks of a version."""
    return frozenset(re.findall(r"[^\W_]+", _MARK.sub(" ", text.casefold())))


#: What asks how something was before; "How do I change my order?" does not.
_CHANGE = pattern(
    r"\b(?:changed|changes (?:since|between|from|over)|used to|no longer|any ?more|over (?:time|the years)"
    r"|previous(?:ly)?(?! (?:\w+ ){0,2}(?:experience|employ|job))|former(?:ly)?|earlier (?:version|edition)"
    r"|(?:the|an?) old(?:er)?|before and after"
    r"|than before|trend|evolved|evolution of|history of|(?:is|are|what['\u2019]?s|anything) new in"
    r"|differences? (?:between|from|to)|differs?"
    r"|compar(?:e[ds]?|ing|ison)|(?:each|every|all|both|two|across|which) (?:of )?(?:the )?"
    r"(?:versions?|editions?|years)|so far|vergleich\w*"
    r"|(?:has|have|did|was|were)\b.{3,80}\b(?:changed?|ris(?:en|e)|raised?|fall(?:en)?|grown?|increased?|decreased?"
    r"|reduced?|dropped?|gone (?:up|down))"
    r"|ge\u00e4ndert|\u00c4nderungen? seit|fr\u00fcher\w*|vorher|bisher\w*|gestiegen|gesunken"
    r"|a (?:chang\u00e9|\u00e9volu\u00e9)|auparavant|ancienne?|ha cambiado|anterior)\b"
    "|比較|比较|変わっ|変わり|変更され|変更点|推移|(?<![年月日])以前|従来|改定前|變更為|有何變|改變了|变化|有何变|改变了|(?<![年月日])之前|原先|原本|以往",
    re.IGNORECASE,
)


_BOTH_OF = pattern(
    r"\b(?:both|beide[nr]?|les deux|ambos|ambas)(?: of)?(?: the| our)?((?: [^\W\d_]+){1,2})", re.IGNORECASE
)


@lru_cache(maxsize=256)
def asks_for_changes(question: str) -> bool:
    """Whether a question asks how something was before, or compares versions, as "both contracts" does."""
    both = _BOTH_OF.search(question)
    return _CHANGE.search(question) is not None or (both is not None and _kind(both[1], "") == "version")


_OLDER = pattern(
    r"\b(?:the|an?|our|their) (?:old(?:er)?|former|previous|superseded|outdated)\b"
    r"|\b(?:die|der|das|dem|den|des) (?:alte|bisherige|fr\u00fchere)[nrs]?\b|\bl['\u2019]ancien(?:ne)?\b",
    re.IGNORECASE,
)
_BOTH = pattern(
    r"\b(?:and|new(?:er|est)?|current|latest|both|compar\w*|chang\w*|differ\w*|than|vs|versus|und|neue\w*|et)\b",
    re.IGNORECASE,
)


@lru_cache(maxsize=256)
def asks_for_older(question: str) -> bool:
    """Whether a question is about an older version alone: "in the old contract"."""
    return _OLDER.search(question) is not None and _BOTH.search(question) is None


def may_compare(question: str) -> bool:
    """Whether a question may be about versions: it asks for changes, or names several years or versions."""
    return asks_for_changes(question) or len(marks_of(question)) > 1


def compares(question: str, one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether a question is about two documents of one name: it asks for changes, or names each by its year.

    one, other: title, source and date of each.
    """
    if one[1:] == other[1:] or not may_compare(question) or not same_name(*one[:2], *other[:2]):
        return False
    changes, asked = asks_for_changes(question), marks_of(question)
    mine, others = (marks_of(" ".join(names)) for names in (one, other))
    return changes or bool(asked & mine - others and asked & others - mine)


def versions_asked(question: str, one: Names, others: Iterable[Names]) -> list[Names]:
    """A document and those of its versions that a question compares.

    Where it names years, these are those that held then, and the newest.

    one, others: title, source and date of each.
    """
    found = [one, *(other for other in dict.fromkeys(others) if compares(question, other, one))]
    named = [names for names in found if named_years(question, names)]
    if len(found) < 3 or len(named) > 1:
        return named if len(found) > 2 else found
    kept = [*named, max(found, key=lambda names: names[2])]
    for year in marks_of(question):
        kept += sorted((names for names in found if "" < names[2] < f"{year}~"), key=lambda names: names[2])[
            -1:
        ]
    kept = [*dict.fromkeys(kept)]
    return kept if len(kept) > 1 else found


def named_years(question: str, names: Sequence[str]) -> int:
    """How many of the years and numbers of versions that a question names a document has in its names."""
    return len(marks_of(question) & marks_of(" ".join(names)))


_A_MONTH = pattern(rf"\b(?:{_MONTHS})\b")


def names_time(question: str) -> bool:
    """Whether a question names a year, a month or versions, so that it may not be about what holds now."""
    return may_compare(question) or bool(marks_of(question)) or _A_MONTH.search(question) is not None


@lru_cache(maxsize=4096)
def marks_of(text: str) -> frozenset[str]:
    """Years, and numbers of versions as "v2"."""
    found = re.finditer(
        rf"(?<!\d)({_YEAR})(?!\d)|(?<![^\W_])(?:v|version|rev|revision)[-. _]*(\d+(?:\.\d+)*)",
        text.casefold(),
    )
    return frozenset(mark[1] or f"v{mark[2]}" for mark in found)


def are_versions(title: str, source: str, other_title: str, other_source: str) -> bool:
    """Whether two documents are versions of one, by their names; also where they have none.

    Instances of a series (invoices, minutes, monthly reports) are none, unless a mark of a version tells two
    of the same period apart.
    """
    if not (title or source) or not (other_title or other_source):
        return True
    if not same_name(title, source, other_title, other_source):
        return False
    names = [(title, source), (other_title, other_source)]
    kinds = {_kind(*name) for name in names}
    is_marked = any(map(is_marked_version, *zip(*names, strict=True)))
    periods = [_periods(f"{one} {path}") for one, path in names]
    if "series" in kinds:
        return is_marked and (periods[0] == periods[1] or not all(periods))
    months = [{n for n in period if n % 100} for period in periods]
    if "version" in kinds or is_marked or not all(months):
        return True
    # Of no known kind: what comes out more than once a year is counted by its dates.
    return all(
        abs(a // 100 * 12 + a % 100 - b // 100 * 12 - b % 100) > 11 for a in months[0] for b in months[1]
    )


def names_of(title: str, source: str) -> list[frozenset[str]]:
    """The words of title and of file name, one of which the versions of a document have in common."""
    return [words for words in (bare_name(title), _file(source)) if words]


def same_name(title: str, source: str, other_title: str, other_source: str) -> bool:
    """Whether two documents are called the same but for dates and marks of a version."""
    pairs = [(bare_name(title), bare_name(other_title)), (_file(source), _file(other_source))]
    return any(a == b != frozenset() for a, b in pairs) and all(a <= b or b <= a for a, b in pairs)


def called_alike(one: Names, other: Names) -> bool:
    """Whether two documents have the same name, or are of a series by their titles: "Minutes of 12 March"."""
    alike = is_series(one[0], "") and bare_name(one[0]) == bare_name(other[0])
    return alike or same_name(*one[:2], *other[:2])


def is_marked_version(title: str, source: str) -> bool:
    """Whether names say that this is a version: "v2", "old", or a kind that is replaced, such as a policy."""
    return any(edition(title, source))


@lru_cache(maxsize=4096)
def edition(title: str, source: str) -> tuple[bool, bool, tuple[int, ...]]:
    """Whether names say that it is a draft or no longer in force, that it is the new one; its number."""
    text = f"{title} / {source}".casefold()
    past, new = (
        re.search(rf"(?<![^\W_])(?:{words})(?![^\W_])", text) is not None for words in (_PAST, _PRESENT)
    )
    number = re.search(r"(?<![^\W_])(?:v|ver|version|rev|revision)[-. _]*(\d+(?:[._]\d+)*)(?![^\W_])", text)
    return past, new, tuple(map(int, re.split("[._]", number[1]))) if number else ()


def is_replaced_kind(title: str, source: str) -> bool:
    """Whether names say that a newer document replaces it, as with policies, manuals and price lists."""
    return _kind(title, source) == "version" or is_marked_version(title, source)


def is_series(title: str, name: str) -> bool:
    """Whether a title, else the name of a file, says that a document is one of a series, such as minutes."""
    return _kind(title, name) == "series"


@lru_cache(maxsize=4096)
def _kind(title: str, source: str) -> str:
    """ "series", "version" or "": of the head of the title, else of the file's name, else of its folders."""
    *folders, name = re.sub(r"\.\w{1,5}$", "", source).replace("\\", "/").split("/")
    for text in (title, name, *reversed(folders)):
        text = re.sub(r"[_\W]+", " ", text.casefold())
        for part in (_OF.split(text)[0], text):
            last = [max((m.end() for m in kind.finditer(part)), default=0) for kind in (_SERIES, _REPLACED)]
            if any(last):
                return "series" if last[0] > last[1] else "version"
    return ""


def _periods(text: str) -> frozenset[int]:
    """Years and months that the dates in a name state, as 202601; 202600 for a year alone."""
    found = set()
    for mark in (m[0] for m in _MARK.finditer(text.casefold())):
        year = re.search(_YEAR, mark[-4:]) or re.search(_YEAR, mark)
        if year is None:
            continue
        month = re.search(_MONTHS.casefold(), mark)
        numbers = re.fullmatch(
            rf"{_YEAR}[-./_]?(\d\d)(?:[-./_]?\d\d)?|(?:\d\d?(?=[-./_]\d\d?[-./_]))?[-./_]?(\d\d?)[-./_]{_YEAR}",
            mark,
        )
        k = 0
        if month is not None:
            k = [name.casefold()[:3] for name in calendar.month_abbr].index(month[0][:3])
        elif numbers is not None:
            k = int(numbers[1] or numbers[2])
        found.add(int(year[0]) * 100 + (k if k <= 12 else 0))
    return frozenset(found)


#: Documents of which each is about its own case or period, and those that a newer one replaces.
_SERIES = pattern(
    r"\b(?:invoices?|bills?|receipts?|statements?|minutes|reports?|results|accounts|payslips?|pay ?slips?"
    r"|timesheets?|newsletters?|bulletins?|agendas?|transcripts?|orders?|delivery notes?|credit notes?"
    r"|logs?|diary|diaries|journals?|incidents?|post ?mortems?|meetings?|budgets?|forecasts?|surveys?"
    r"|quotes?|tickets?|letters?|e?mails?|reviews?|audits?|inspections?|notes"
    r"|\w*(?:rechnung|gutschrift|auszug|bericht|protokoll|lieferschein|quittung|beleg|rundschreiben)(?:e|en|s)?"
    r"|\w*(?:sitzung|abschluss)|factures?|relev\u00e9s?|comptes? rendus?|proc\u00e8s verba(?:l|ux)|rapports?"
    r"|facturas?|extractos?|actas?|informes?|fatture?|fattura|verbal[ei]|faturas?|relat\u00f3rios?|notulen"
    r"|facturen|factuur|verslag(?:en)?)\b"
    "|請求書|議事録|報告書?|明細|領収書|納品書|日誌"
    "|发票|發票|纪要|紀要|会议记录|會議紀錄|报告|账单|帳單|对账单"
)
_REPLACED = pattern(
    r"\b(?:polic(?:y|ies)|handbooks?|manuals?|guides?|guidelines?|(?:price|rate|fee) ?(?:list|sheet)s?|prices"
    r"|tariffs?|rates|rules?|regulations?|terms|conditions|procedures?|standards?|specifications?|specs?|plans?"
    r"|agreements?|contracts?|templates?|catalog(?:ue)?s?|faqs?|charters?|codes?|directives?|laws?|acts?|sops?"
    r"|runbooks?|playbooks?|instructions?"
    r"|\w*(?:richtlinie|ordnung|regelung|regeln|handbuch|leitfaden|preisliste|satzung|vertrag|vereinbarung"
    r"|anleitung|anweisung|vorschrift|gesetz|merkblatt)(?:e|n|en)?|agb|politiques?|r\u00e8glements?|tarifs?|manuels?"
    r"|pol\u00edticas?|reglamentos?|tarifas?|listino|regolament[oi]|manuale)\b"
    "|規程|規定|規則|方針|手順書|マニュアル|価格表|料金表|手册|手冊"
    "|政策|制度|条款|條款|价目表|價目表|规定|规程"
)
#: What stands before it says what a document is: "minutes of the policy committee", "guide for reports".
_OF = pattern(
    r" (?:of|for|on|about|to|from|der|des|die|zu|zur|zum|f\u00fcr|von|de|du|des|del|d|di|da|van|voor) "
)


@lru_cache(maxsize=4096)
def _file(source: str) -> frozenset[str]:
    return bare_name(re.sub(r"\.\w{1,5}$", "", source))
