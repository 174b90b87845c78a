"""A reader without weights: it copies its answer out of the passages.

How it reads
------------
Every sentence of the context is a bag of stems, the stems of its passage's title included. With N sentences,
of which df(w) hold stem w, ``idf(w) = ln(1 + N / df(w))``. The support of a sentence for a question is the
sum of idf over the question's stems that it holds; a stem that only the title holds counts half. Of the
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

It knows no synonyms and makes no inferences. It is meant for running everything without a language model
(first steps, tests, continuous integration), and as a baseline for language models.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence

from mio_rag.context import RegexCounter
from mio_rag.generation import _spans
from mio_rag.generation._comparison import compare
from mio_rag.generation._reading import Evidence, Reading
from mio_rag.generation._spans import Span
from mio_rag.generation.base import BaseGenerator, Chosen
from mio_rag.generation.prompts import Prompt
from mio_rag.types import Answer

__all__ = ["ExtractiveGenerator"]

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
    """Answers by copying; see the module docstring for how.

    Without passages, or when no passage shares a word with the question, there is nothing to copy: the answer
    is then the empty string. `choose` without passages returns 0, the first option, since it must return one.

    Parameters
    ----------
    context_window : int or None
        In tokens of `RegexCounter`; None: unbounded.
    """

    def __init__(self, *, context_window: int | None = None) -> None:
        super().__init__("extractive", context_window, concurrency=64)
        self._counter = RegexCounter()

    def _count(self, texts: list[str]) -> list[int]:
        return self._counter.count(texts)

    def _generate(self, prompt: Prompt, max_tokens: int) -> Answer:
        start = time.perf_counter()
        text = self._cut(self._answer(prompt), max_tokens)
        return Answer(
            text=text,
            prompt_tokens=self.prompt_tokens(prompt),
            completion_tokens=self.count([text])[0],
            latency_seconds=time.perf_counter() - start,
            generator=self.name,
        )

    def _choose(self, prompt: Prompt, choices: Sequence[str]) -> Chosen:
        """The option whose words, with the question's, one sentence supports best."""
        reading = Reading(f"{prompt.question.text} {' '.join(choices)}", prompt.passages)
        asked = _spans.stems(prompt.question.text)

        def support(choice: str) -> float:
            own = _spans.stems(choice) - asked
            # An option is only as good as its own words: covered in part, it is supported in part.
            return (
                max(
                    (
                        reading.covered(k, own) * (1 + reading.support(k, asked | own))
                        for k in range(len(reading.sentences))
                    ),
                    default=0.0,
                )
                if own
                else 0.0
            )

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

    def _cut(self, text: str, max_tokens: int) -> str:
        words = text.split(" ")
        while len(words) > 1 and self._counter.count([" ".join(words)])[0] > max_tokens:
            words.pop()
        return " ".join(words)


def _yes_no(question: str, reading: Reading) -> str:
    """ "yes" if every subject of the question is supported by a sentence that does not deny it."""
    both = re.search(r"\bboth\s+(?:the\s+)?(.+?)\s+and\s+(?:the\s+)?", question)
    subjects: list[set[str]] = [set()]
    if both:
        first = both.group(1)
        second = next((s.text for s in _spans.names(question[both.end() :])), "")
        subjects = [_spans.stems(first), _spans.stems(second)]
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

    def first(find: Callable[[Evidence], list[Span]], among: Sequence[Evidence] = ranked) -> str | None:
        for evidence in among:
            spans = find(evidence)
            if spans:
                return reading.nearest(evidence.text, spans).text
        return None

    def fresh(evidence: Evidence) -> list[Span]:
        named = _spans.names(evidence.text, reading.ordinary)
        title = reading.passages[evidence.passage].title.strip()
        if title and (pronoun := _PRONOUN.match(evidence.text)):
            # An opening "He" or "It" stands for what the passage is about.
            named = [Span(0, pronoun.end(), title), *named]
        return [span for span in named if not _spans.stems(span.text) <= reading.asked]

    def places(evidence: Evidence) -> list[Span]:
        return [span for span in fresh(evidence) if _LOCATIVE.search(evidence.text[: span.start])]

    def people(evidence: Evidence) -> list[Span]:
        located = places(evidence)
        return [span for span in fresh(evidence) if span not in located] or located

    found: str | None = None
    if _QUANTITY.search(question):
        found = first(lambda evidence: _spans.numbers(evidence.text))
        if found and _MANY.search(question):
            found = re.sub(r"\s(?:people|inhabitants)$", "", found)
    elif _DATE.search(question):
        found = first(lambda evidence: _spans.dates(evidence.text))
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
    telling = [c for c in clauses if _spans.stems(c) - reading.asked]
    clause = min(telling, key=len) if telling else sentence.strip(" .!?")
    match = _COPULA.search(clause)
    return clause[match.end() :] if match and clause[match.end() :].strip() else clause
