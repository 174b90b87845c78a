"""Readers without weights: by a script, by your own function, and one that copies out of the passages.

Every sentence of the context is a bag of stems, those of its title and heading included. With N sentences,
of which df(w) hold stem w, ``idf(w) = ln(1 + N / df(w))``. The support of a sentence for a question is the
sum of idf over the question's stems that it holds; a stem that stands only above it counts half. Of the
sentences with at least half the best support, the best one that has a span of the type asked for answers;
ties go to the earlier.

    yes/no ("is", "did", "were both ...")      yes, if a sentence holds at least half of the idf asked for
    comparison ("which is longer, A or B")     numbers or dates found about A and B, compared
    how many, how long, how tall ...           a number with its unit
    when, which year                           a date, or its year
    where, which city/country/...              a capitalised span after "in", "at", "from", ...
    who                                        a capitalised span, rather not one after "in", "of", ...
    otherwise, and where those find nothing    a capitalised span of the best sentence; without one, its
                                               shortest clause that tells something new

A capitalised span answers only if the question does not name it. Where a sentence begins with "He", "She",
"It" or "They", the title of its passage counts as such a span.

Within a sentence the span with the largest sum of idf(w) / distance to the question's words (in words) is
taken.

It has no synonyms and makes no inferences: for first steps, tests, and as a baseline for language models.
"""

from __future__ import annotations

import inspect
import json
import math
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from mio_rag.context import RegexCounter, TokenCounter
from mio_rag.documents.east_asian import NO_SPACES
from mio_rag.errors import InputError, MioRagError
from mio_rag.generation.base import BaseGenerator, Chosen
from mio_rag.generation.protocol import Prompt
from mio_rag.sentences import sentence_spans
from mio_rag.storage import read_json
from mio_rag.types import Answer, GenerationError, Passage

_MONTH = (
    r"(?:January|February|March|April|May|June|July|August|September|October|November|December"
    r"|Jan\.?|Feb\.?|Mar\.?|Apr\.?|Jun\.?|Jul\.?|Aug\.?|Sept?\.?|Oct\.?|Nov\.?|Dec\.?)"
)
_YEARS = r"(?:1[0-9]{3}|20[0-9]{2})"
_ERA = r"(?:\s?(?:BCE|BC|CE|AD)\b)"
_DATES = re.compile(
    rf"\b(?:[0-9]{{1,2}}(?:st|nd|rd|th)?\s+{_MONTH},?\s+{_YEARS}"
    rf"|{_MONTH}\s+[0-9]{{1,2}}(?:st|nd|rd|th)?,?\s+{_YEARS}"
    rf"|{_MONTH},?\s+{_YEARS}"
    rf"|[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}"
    rf"|[0-9]{{1,4}}{_ERA}|(?:AD\s)[0-9]{{1,4}}"
    rf"|(?:[0-9]{{1,2}}(?:st|nd|rd|th)|[a-z]+teenth|twentieth|twenty-first)\s+century{_ERA}?"
    # A bare number in the range of years is one unless it goes on, or counts something.
    rf"|{_YEARS}s|{_YEARS}(?![0-9.,]*[0-9])(?!\s?(?:%|percent\b|k?m\b|kg\b|(?:kilo)?met(?:re|er)|people\b)))"
)
_ONE_TO_NINETEEN = (
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_SMALL = {
    **{word: n for n, word in enumerate(_ONE_TO_NINETEEN.split(), start=1)},
    **{word: 10 * n for n, word in enumerate(_TENS.split(), start=2)},
    "hundred": 100,
    "dozen": 12,
}
_SCALE = {"hundred": 1e2, "thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}
# Kind -> units with their factor to the kind's base unit. Quantities of different kinds cannot be compared.
_KINDS = {
    "length": "mm .001 cm .01 centimetres .01 centimeters .01 inch .0254 inches .0254 ft .3048 feet .3048 "
    "foot .3048 yards .9144 m 1 metre 1 metres 1 meter 1 meters 1 km 1e3 kilometre 1e3 kilometres 1e3 "
    "kilometer 1e3 kilometers 1e3 mi 1609.344 mile 1609.344 miles 1609.344",
    "mass": "g 1 grams 1 kg 1e3 kilograms 1e3 lb 453.592 pounds 453.592 tonnes 1e6 tons 1e6",
    "time": "seconds 1 minutes 60 hours 3600 days 86400 weeks 604800 months 2.63e6 year 3.16e7 years 3.16e7",
    "speed": "km/h 1 mph 1.609344",
    "area": "acres 4047 hectares 1e4",
    "volume": "litres 1 liters 1",
    "share": "% 1 percent 1",
    "angle": "degrees 1 °C 1 °F 1",
    "count": "people 1 inhabitants 1",
    "money": "dollars 1 euros 1",
}
_UNIT = {
    unit.lower(): (kind, float(factor))
    for kind, table in _KINDS.items()
    for unit, factor in zip(table.split()[::2], table.split()[1::2], strict=True)
}
_UNITS = "|".join(re.escape(unit) for unit in sorted(_UNIT, key=len, reverse=True))
_NUMBER = re.compile(
    r"(?<![\w.])(?P<sign>[$€£]\s?)?"
    rf"(?P<value>[0-9]{{1,3}}(?:,[0-9]{{3}})+(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|\b(?:{'|'.join(_SMALL)})\b(?!\sof\b))"
    rf"(?P<scale>[\s-](?:{'|'.join(_SCALE)})\b)?"
    rf"(?P<unit>[\s-]?(?:(?:square|cubic)\s)?(?:{_UNITS})(?![\w]))?(?![0-9])",
    re.IGNORECASE,
)
_CAPITAL = r"(?:(?:[A-Z]\.\s?)+(?=[A-Z])|(?:St|Mt|Dr)\.\s|[A-ZÀ-ÖØ-Þ][\w’'&-]*)"
_LINK = r"(?:(?:of|de|van|von|der|da|la|le|di|del|du|al|bin|ibn)\s(?:(?:la|der)\s)?)"
_NAME = re.compile(rf"{_CAPITAL}(?:\s*(?<=[.\s])(?:{_LINK})?{_CAPITAL})*")
_HEAD = re.compile(r"[\w’'-]+(?:\s+|$)")
_STOP_WORDS = (
    "a an the this that these those it its he she they his her their we our you your i my in on at of to "
    "from by for with as and or but not no nor so if then than when where while which who whom whose what "
    "why how is are was were be been being am do does did has have had can could will would shall should may "
    "might must there here after before during since until although though because however also both all "
    "some many most more such other another each every one about into over under between through"
)
_STOP = frozenset(_STOP_WORDS.split())
_CALENDAR = re.compile(
    rf"^(?:{_MONTH}|Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday)$|^(?:BCE?|CE|AD)$"
)


@dataclass(frozen=True)
class Span:
    """Characters [start, end) of a sentence; `value`: year of a date, or amount in the unit of its kind."""

    start: int
    end: int
    text: str
    value: float | None = None
    kind: str = ""


_ALONE = re.compile(f"[{NO_SPACES}]{{2}}")
_WORDS_OF = re.compile(rf"[{NO_SPACES}]+|(?:(?![{NO_SPACES}])[^\W_])+")


def words(text: str) -> list[str]:
    """Words in lower case, stop words left out; of scripts without blanks, pairs of characters."""
    found = [word for word in _WORDS_OF.findall(text.lower()) if word not in _STOP and word != "s"]
    return [
        part for word in found for part in (map("".join, pairwise(word)) if _ALONE.match(word) else [word])
    ]


@cache
def _stemmer() -> type[Any]:
    # Its own class: the package's `stemmer()` takes PyStemmer where that is installed, of whatever version.
    from snowballstemmer.english_stemmer import EnglishStemmer

    return EnglishStemmer  # type: ignore[no-any-return]


@lru_cache(maxsize=65536)
def stem(word: str) -> str:
    """The stem of an English word in lower case, by Snowball's English stemmer ("Porter 2")."""
    return str(_stemmer()().stemWord(word))  # one a call: it keeps its place in the word


def stems(text: str) -> set[str]:
    """Stems of the words of a text."""
    return {stem(word) for word in words(text)}


def sentences(text: str) -> list[str]:
    """Sentences of a text, in order; initials and common abbreviations do not end one."""
    return [text[start:end] for start, end in sentence_spans(text)]


def year(text: str) -> float | None:
    """The year of a date (of a century its first), negative before the common era; None without one."""
    match = re.search(_YEARS, text) or re.search(r"[0-9]{1,4}", text)
    if match is None:
        return None
    number = float(match.group())
    if "century" in text:
        number = (number - 1) * 100
    return -number if re.search(r"BC", text) else number


def dates(sentence: str) -> list[Span]:
    """Dates, years, decades and centuries, in order."""
    return [Span(m.start(), m.end(), m.group(), year(m.group()), "date") for m in _DATES.finditer(sentence)]


def numbers(sentence: str) -> list[Span]:
    """Numbers with their scale and unit, in order; those inside dates are left out."""
    taken = [(d.start, d.end) for d in dates(sentence)]
    spans = []
    for m in _NUMBER.finditer(sentence):
        if any(m.start() < end and start < m.end() for start, end in taken):
            continue
        raw, scale = m["value"].lower(), (m["scale"] or "").strip(" -").lower()
        amount = float(_SMALL[raw]) if raw in _SMALL else float(raw.replace(",", ""))
        # "square km" and "km" are of different kinds; the word before the unit becomes part of the kind.
        power, _, base = (m["unit"] or "").strip(" -").lower().rpartition(" ")
        kind, factor = _UNIT.get(base, ("", 1.0))
        kind = "money" if m["sign"] else f"{power} {kind}".strip()
        value = amount * _SCALE.get(scale, 1) * factor
        spans.append(Span(m.start(), m.end(), m.group().strip(), value, kind))
    return spans


def names(sentence: str, ordinary: frozenset[str] = frozenset()) -> list[Span]:
    """Capitalised spans, in order.

    ordinary: words that the context also writes in lower case: no names at the start of a sentence.
    """
    spans = []
    for m in _NAME.finditer(sentence):
        start, text = m.start(), m.group()
        while (head := _HEAD.match(text)) and head.group().strip().lower() in _STOP:
            start, text = start + head.end(), text[head.end() :]
        text = re.sub(r"(?:['’]s?|[-&])$", "", text.strip())
        opening = not sentence[:start].strip(" \"'“‘([")
        usual = opening and text.lower() in ordinary
        if text and text[0].isupper() and not _CALENDAR.match(text) and not usual:
            spans.append(Span(start, start + len(text), text))
    return spans


# (compare dates?, take the larger?) -> words
_WORDS = {
    (
        False,
        True,
    ): "longer taller higher larger bigger greater deeper wider heavier faster more hotter farther "
    "further most",
    (False, False): "shorter smaller lower fewer less lighter slower shallower narrower closer nearer least",
    (True, True): "later younger newer last recently recent latest",
    (True, False): "earlier first older before earliest oldest",
}
_DIRECTION = {word: way for way, words in _WORDS.items() for word in words.split()}
_EITHER = re.compile(r"(?:^|[,:]|\bbetween\b)\s*(?P<a>[^,:]+?),?\s+(?:or|and)\s+(?P<b>[^,:]+?)\s*\?*$")
_INLINE = re.compile(r"^(?:is|are|was|were|did|does|do)\s+(?P<a>.+?)\s+or\s+(?P<b>.+)$", re.I)


def _options(question: str) -> tuple[str, str] | None:
    """The two things compared, as the question writes them, without a leading article."""
    if inline := _INLINE.match(question):
        named = names(inline["b"])
        if not named or named[0].start > 4:
            return None
        pair = inline["a"], named[0].text
    elif (match := _EITHER.search(question)) and (" or " in match.group() or "between" in match.group()):
        pair = match["a"], match["b"]
    else:
        return None
    a, b = (re.sub(r"^(?:the|a|an)\s+", "", option.strip(" ?."), flags=re.I) for option in pair)
    return (a, b) if a and b else None


def _quantity(option: str, asked: set[str], passages: Sequence[Passage], by_date: bool) -> Span | None:
    """The quantity that the sentence closest to the question states about an option."""
    own = stems(option)
    found: list[tuple[int, int, Span]] = []
    for passage in passages:
        title = stems(passage.title)
        for sentence in sentences(passage.text):
            held = stems(sentence)
            if not own or not own <= held | title:
                continue
            spans = dates(sentence) if by_date else numbers(sentence)
            # A number with a unit says more about what it measures than one without.
            stated = sorted((s for s in spans if s.value is not None), key=lambda s: not s.kind)
            # Sentences that share words with the question first, then those that name the option themselves.
            found += [(len(asked & held), len(own & held), span) for span in stated[:1]]
    return max(found, key=lambda one: one[:2])[2] if found else None


def compare(question: str, passages: Sequence[Passage]) -> str | None:
    """The option that wins a comparison of dates or numbers; None if it is none, or a quantity is missing."""
    pair = _options(question)
    cue = next((w for w in re.findall(r"[a-z]+", question.lower()) if w in _DIRECTION), None)
    if pair is None or cue is None:
        return None
    by_date, larger = _DIRECTION[cue]
    asked = stems(question) - stems(pair[0]) - stems(pair[1])
    a, b = (_quantity(option, asked, passages, by_date) for option in pair)
    if a is None or b is None or a.value is None or b.value is None or a.kind != b.kind:
        return None
    return pair[0] if a.value == b.value or (a.value > b.value) == larger else pair[1]


#: A line that is no sentence, item or row.
_HEADING = re.compile(r"\w[^|\n]{0,80}[^\W_]")


@dataclass(frozen=True)
class Evidence:
    """A sentence of the context, with its support for the question (>= 0) and whose passage it is from."""

    text: str
    support: float
    passage: int


class Reading:
    """The context of one question, weighed."""

    def __init__(self, question: str, passages: Sequence[Passage]) -> None:
        self.passages = passages
        found: list[tuple[str, int]] = []
        self.bags: list[tuple[set[str], set[str]]] = []  # stems of each sentence, and of what stands above it
        self.headers: dict[int, list[str]] = {}  # cells of the first row of the table that a row is of
        for i, passage in enumerate(passages):
            title, heading, header = stems(passage.title), set[str](), list[str]()
            for text in sentences(passage.text):
                cells = text.split(" | ") if " | " in text else []
                if header and cells:
                    self.headers[len(found)] = header
                header = (header or cells) if cells else []
                found.append((text, i))
                above = stems(" ".join(header)) if len(found) - 1 in self.headers else set[str]()
                self.bags.append((stems(text) | above, title | heading))
                heading = stems(text) if _HEADING.fullmatch(text) else heading
        held: Counter[str] = Counter()
        for own, title in self.bags:
            held.update(own | title)
        self.idf = {w: math.log(1 + len(found) / n) for w, n in held.items()}
        self.unseen = math.log(1 + len(found))
        self.asked = stems(question)
        self.sentences = [Evidence(text, self.support(k, self.asked), i) for k, (text, i) in enumerate(found)]
        self.ordinary = frozenset(re.findall(r"\b[a-z]+\b", " ".join(text for text, _ in found)))

    def support(self, k: int, asked: set[str]) -> float:
        """Idf of the stems of `asked` that sentence k holds; half where only its title does."""
        own, title = self.bags[k]
        whole = math.fsum([self.idf[w] for w in asked & own])
        return whole + 0.5 * math.fsum([self.idf[w] for w in asked & (title - own)])

    def cell(self, k: int) -> str:
        """Of a row of a table, the cell below words of the question; of several, each with its header."""
        cells, header = self.sentences[k].text.split(" | "), self.headers.get(k, [])

        def held(text: str) -> float:
            return math.fsum([self.idf.get(w, 0.0) for w in stems(text) & self.asked])

        open_ = [n for n, cell in enumerate(cells) if cell.strip() and not held(cell)]
        asked = {n: held(header[n]) for n in open_ if n < len(header)}
        best = max(asked.values(), default=0.0)
        told = [n for n in open_ if asked.get(n) == best] if best else open_
        if len(told) == 1:
            return cells[told[0]].strip()
        if len(header) < len(cells):
            return self.sentences[k].text
        return "; ".join(f"{header[n].strip()}: {cells[n].strip()}" for n in told)

    def covered(self, k: int, asked: set[str]) -> float:
        """Share of the idf of `asked` that sentence k and its title hold, in [0, 1]; 1 if none is asked."""
        total = math.fsum(self.idf.get(w, self.unseen) for w in asked)
        own, title = self.bags[k]
        return math.fsum(self.idf[w] for w in asked & (own | title)) / total if total else 1.0

    def ranked(self) -> list[Evidence]:
        """Sentences with at least half the best support, best first, ties in prompt order."""
        best = max(s.support for s in self.sentences)
        return sorted((s for s in self.sentences if s.support >= best / 2), key=lambda s: -s.support)

    def nearest(self, sentence: str, spans: Sequence[Span]) -> Span:
        """The span closest to the question's words; the earliest of equals."""
        tokens = list(re.finditer(r"[^\W_]+", sentence))
        marks = [(t, stem(t.group().lower())) for t in tokens]

        def closeness(span: Span) -> float:
            inside = [i for i, (t, _) in enumerate(marks) if t.start() < span.end and t.end() > span.start]
            if not inside:
                return 0.0
            return math.fsum(
                self.idf[w] / max(1, inside[0] - i, i - inside[-1])
                for i, (_, w) in enumerate(marks)
                if w in self.asked and w in self.idf and i not in inside
            )

        return max(spans, key=lambda span: (closeness(span), -span.start))


_YES_NO = re.compile(r"^(?:is|are|was|were|am|do|does|did|has|have|had|can|could|will|would|should)\b", re.I)
_QUANTITY = re.compile(
    r"\bhow (?:many|much|long|tall|high|far|old|deep|wide|large|big|heavy|fast|often)\b"
    r"|\bwhat (?:is|was|are) the (?:\w+ )?"
    r"(?:population|length|height|depth|area|distance|number|weight|percentage|size|age)\b"
    r"|\bwhat percentage\b",
    re.I,
)
_MANY = re.compile(r"\bhow many\b", re.I)
_DATE = re.compile(r"\bwhen\b|\b(?:what|which|in what|in which) (?:year|date|day|century|decade)\b", re.I)
_YEAR = re.compile(r"\b(?:what|which) year\b", re.I)
_PLACE = re.compile(
    r"\bwhere\b|\b(?:what|which) (?:city|town|country|place|state|continent|region|island|capital)\b", re.I
)
_NEGATION = re.compile(r"\b(?:not|never|no longer|neither|nor|cannot)\b|n't\b", re.I)
_WHO = re.compile(r"\b(?:who|whom|whose)\b", re.I)
_PRONOUN = re.compile(r"^(?:He|She|It|They)\b")
_LOCATIVE = re.compile(r"\b(?:in|at|near|from|to|on|into|through|of)\s+(?:the\s+)?$", re.I)
_CLAUSE = re.compile(r"\s*[;:()—–]\s*|\s*,\s+|\s+-\s+")
_COPULA = re.compile(r"\b(?:is|are|was|were)\s+(?:(?:a|an|the)\s+)?", re.I)


class ExtractiveGenerator(BaseGenerator):
    """Answers by copying, with the empty string where no passage shares a word with the question.

    context_window: in tokens of `RegexCounter`; None: unbounded.
    """

    def __init__(self, *, context_window: int | None = None) -> None:
        super().__init__("extractive", context_window, concurrency=64)

    def _generate(self, prompt: Prompt, max_tokens: int) -> Answer:
        start = time.perf_counter()
        words = self._answer(prompt).split(" ")
        while len(words) > 1 and self.count([" ".join(words)])[0] > max_tokens:
            words.pop()
        return self._said(" ".join(words), prompt, start)

    def _choose(self, prompt: Prompt, choices: Sequence[str]) -> Chosen:
        """The option whose words, with the question's, one sentence supports best."""
        reading = Reading(f"{prompt.question.text} {' '.join(choices)}", prompt.passages)
        asked = stems(prompt.question.text)

        def support(choice: str) -> float:
            own = stems(choice) - asked
            # An option is only as good as its own words: covered in part, it is supported in part.
            found = (
                reading.covered(k, own) * (1 + reading.support(k, asked | own))
                for k in range(len(reading.sentences))
            )
            return max(found, default=0.0) if own else 0.0

        scores = [support(choice) for choice in choices]
        return scores.index(max(scores)), None, None

    def _answer(self, prompt: Prompt) -> str:
        question = prompt.question.text.strip()
        if prompt.question.choices:
            return prompt.question.choices[self._choose(prompt, prompt.question.choices)[0]]
        reading = Reading(question, prompt.passages)
        if not reading.sentences or max(s.support for s in reading.sentences) == 0:
            return ""
        compared = compare(question, prompt.passages)
        if compared is not None:
            return compared
        if _YES_NO.match(question) and not re.search(r"\bor\b", question):
            return _yes_no(question, reading)
        return _span(question, reading)


def _yes_no(question: str, reading: Reading) -> str:
    """ "yes" if every subject of the question is supported by a sentence that does not deny it."""
    subjects: list[set[str]] = [set()]
    if both := re.search(r"\bboth\s+(?:the\s+)?(.+?)\s+and\s+(?:the\s+)?", question):
        subjects = [stems(both[1]), stems(next((s.text for s in names(question[both.end() :])), ""))]
    said = reading.asked - set().union(*subjects) - {"both"}
    for subject in subjects:
        asked = said | subject
        k = max(range(len(reading.sentences)), key=lambda k: (reading.covered(k, asked), -k))
        denied = bool(_NEGATION.search(reading.sentences[k].text)) != bool(_NEGATION.search(question))
        weak = min(reading.covered(k, said), reading.covered(k, asked)) < 0.5
        if denied or weak:
            return "no"
    return "yes"


def _span(question: str, reading: Reading) -> str:
    """A span of the type that the question asks for."""
    ranked = reading.ranked()
    if " | " in ranked[0].text:
        return reading.cell(reading.sentences.index(ranked[0]))

    def first(find: Callable[[Evidence], list[Span]], among: Sequence[Evidence] = ranked) -> str | None:
        for evidence in among:
            spans = find(evidence)
            if spans:
                return reading.nearest(evidence.text, spans).text
        return None

    def fresh(evidence: Evidence) -> list[Span]:
        named = names(evidence.text, reading.ordinary)
        title = reading.passages[evidence.passage].title.strip()
        if title and (pronoun := _PRONOUN.match(evidence.text)):
            # An opening "He" or "It" stands for what the passage is about.
            named = [Span(0, pronoun.end(), title), *named]
        return [span for span in named if not stems(span.text) <= reading.asked]

    def places(evidence: Evidence) -> list[Span]:
        return [span for span in fresh(evidence) if _LOCATIVE.search(evidence.text[: span.start])]

    def people(evidence: Evidence) -> list[Span]:
        located = places(evidence)
        return [span for span in fresh(evidence) if span not in located] or located

    found = None
    if _QUANTITY.search(question):
        found = first(lambda evidence: numbers(evidence.text))
        if found and _MANY.search(question):
            found = re.sub(r"\s(?:people|inhabitants)$", "", found)
    elif _DATE.search(question):
        found = first(lambda evidence: dates(evidence.text))
        if found and _YEAR.search(question) and (match := re.search(r"\b[0-9]{3,4}\b", found)):
            found = match.group()
    elif _PLACE.search(question):
        found = first(places)
    elif _WHO.search(question):
        found = first(people)
    return found or first(fresh, ranked[:1]) or _clause(ranked[0].text, reading)


def _clause(sentence: str, reading: Reading) -> str:
    """The shortest clause with a word that the question lacks, without copula and what precedes it."""
    clauses = [c.strip(" .!?\"'") for c in _CLAUSE.split(sentence)]
    telling = [c for c in clauses if stems(c) - reading.asked]
    clause = min(telling, key=len) if telling else sentence.strip(" .!?")
    match = _COPULA.search(clause)
    return clause[match.end() :] if match and clause[match.end() :].strip() else clause


class ScriptedGenerator(BaseGenerator):
    """Gives prepared answers; `prompts` has every prompt that reached it.

    answers: question id or question text -> answer (the id is looked up first); or a function of the prompt,
        which may raise `GenerationError` to play a failing model.
    window: in tokens of `counter`; None: unbounded.
    counter: None: `RegexCounter`.
    """

    def __init__(
        self,
        answers: Mapping[str, str] | Callable[[Prompt], str],
        window: int | None = None,
        counter: TokenCounter | None = None,
    ) -> None:
        super().__init__("scripted", window, concurrency=64)
        self._answers, self._counter = answers, counter or RegexCounter()
        self.prompts: list[Prompt] = []

    @property
    def content(self) -> str | None:
        """The script; None for a function. No `identity`: a reply goes by the question's id, too."""
        return None if callable(self._answers) else json.dumps(dict(self._answers), sort_keys=True)

    @classmethod
    def from_file(cls, path: str | Path, window: int | None = None) -> ScriptedGenerator:
        """Read the answers from a JSON object; raises `InputError` where there is none."""
        file = Path(path)
        if not file.is_file():
            raise InputError(
                f"scripted:{path}: no such file; give a JSON file of question id or text -> answer"
            )
        answers = read_json(file)
        if not isinstance(answers, dict) or not all(isinstance(value, str) for value in answers.values()):
            raise InputError(f"{path} is not an object of strings: write question id or text -> answer")
        return cls(answers, window)

    def _count(self, texts: list[str]) -> list[int]:
        return self._counter.count(texts)

    def _generate(self, prompt: Prompt, max_tokens: int) -> Answer:
        start = time.perf_counter()
        self.prompts.append(prompt)
        return self._said(self._lookup(prompt), prompt, start)

    def _lookup(self, prompt: Prompt) -> str:
        if callable(self._answers):
            return self._answers(prompt)
        for key in (prompt.question.id, prompt.question.text):
            if key in self._answers:
                return self._answers[key]
        raise GenerationError(
            f"the script has no answer for question '{prompt.question.id}' ({prompt.question.text[:60]!r}): "
            f"it holds {len(self._answers)}; add its id or its text"
        )


class FunctionGenerator(BaseGenerator):
    """A reader that is a function of a prompt and the longest answer in tokens, which are approximate; it may
    be asynchronous.
    """

    def __init__(self, function: Callable[[str, int], str | Awaitable[str]]) -> None:
        super().__init__(getattr(function, "__name__", "function"), concurrency=64)
        self._function = function

    def _generate(self, prompt: Prompt, max_tokens: int) -> Answer:
        start = time.perf_counter()
        try:
            text: Any = self._function("\n\n".join(prompt.texts), max_tokens)
            if inspect.iscoroutine(text):  # in a thread of its own: there may be a running loop here
                import asyncio
                from concurrent.futures import ThreadPoolExecutor

                with ThreadPoolExecutor(1) as thread:
                    text = thread.submit(asyncio.run, text).result()
        except MioRagError:
            raise
        except Exception as error:
            raise GenerationError(f"{self.name} failed: {type(error).__name__}: {error}") from error
        if not isinstance(text, str):
            raise GenerationError(f"{self.name} returned a {type(text).__name__}, expected a string")
        return self._said(text, prompt, start)
