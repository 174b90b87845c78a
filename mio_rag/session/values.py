"""What flows between actions, and what the language model is told of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from mio_rag.context import SEPARATOR, render_context
from mio_rag.generation import Prompt
from mio_rag.generation.prompts import LETTERS
from mio_rag.pool import Candidates
from mio_rag.selection.result import Selection
from mio_rag.session.budget import Branch, Reply
from mio_rag.types import Passage, Question, clean

NOTES_ID = "notes"

_FIELD = re.compile(r"\{(\w+)\}")
_QUERY_TOKENS = 32
_LONGEST_QUERY = 200  # characters
_FEEDBACK_WORDS = 40  # of the passage: a longer query drowns the question


@dataclass(frozen=True)
class Fact:
    """A sub-question and its answer."""

    question: str
    answer: str


@dataclass(frozen=True)
class Queries:
    """Sub-questions; in a series, later ones name the answers to earlier ones as #1, #2, ..."""

    texts: tuple[str, ...]
    serial: bool = False


@dataclass(frozen=True)
class Facts:
    """Answers to sub-questions, in order."""

    found: tuple[Fact, ...]


#: What an action may give; the question itself is known everywhere.
Value = str | Queries | Candidates | Selection | Facts | Reply

TYPES: Mapping[str, type[Any]] = {
    "question": str,
    "questions": Queries,
    "pool": Candidates,
    "passages": Selection,
    "facts": Facts,
    "answer": Reply,
}


@dataclass
class Memory:
    """What is known of a question in a loop of searches and notes.

    pool: what all queries so far have found.
    selection: what is read of it.
    queries, notes: what was searched for, and the model's notes.
    """

    question: Question
    pool: Candidates | None = None
    selection: Selection | None = None
    queries: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def has_query(self, query: str) -> bool:
        """Whether it was searched for before."""
        return query.lower() in {known.lower() for known in self.queries}

    def last_notes(self, most: int) -> list[str]:
        """The last notes, at most so many."""
        return self.notes[max(0, len(self.notes) - most) :]

    def passages(self, max_notes: int) -> tuple[Passage, ...]:
        """The evidence, then the last notes as one more passage."""
        read = () if self.selection is None else self.selection.passages
        kept = self.last_notes(max_notes)
        return (*read, Passage(NOTES_ID, "\n".join(kept), "Notes")) if kept else read


@cache
def _template(name: str) -> str:
    return (Path(__file__).parent / "prompts" / f"{name}.txt").read_text(encoding="utf-8").rstrip("\n")


def filled(name: str, fields: Mapping[str, str]) -> str:
    """A template of `prompts/`, filled in one pass, so that braces in texts are never looked at."""
    return _FIELD.sub(lambda found: fields.get(found.group(1), found.group(0)), _template(name))


def _context(passages: Sequence[Passage]) -> str:
    return f"Passages:\n\n{render_context(passages)}{SEPARATOR}" if passages else ""


def _lines(facts: Sequence[Fact]) -> str:
    return "\n".join(f"- {clean(fact.question).strip()} {clean(fact.answer).strip()}" for fact in facts)


def fact_passage(facts: Sequence[Fact]) -> tuple[Passage, ...]:
    """Facts as one more passage to read; none where there are none."""
    return (Passage(NOTES_ID, _lines(facts), "Notes"),) if facts else ()


def short_prompt(
    name: str,
    question: Question,
    text: str,
    facts: Sequence[Fact] = (),
    passages: Sequence[Passage] = (),
    **fields: str,
) -> Prompt:
    """The prompt `prompts/NAME_system.txt` and `prompts/NAME_user.txt`.

    text: what is asked, which may be another wording of the question.
    """
    known = {
        "context": _context(passages),
        "question": clean(text).strip(),
        "facts": f"Known:\n{_lines(facts)}\n" if facts else "",
        **{key: clean(value) for key, value in fields.items()},
    }
    # Without the options: a generator that is given them would choose one instead of writing.
    asked = replace(question, choices=())
    return Prompt(asked, tuple(passages), filled(f"{name}_system", known), filled(f"{name}_user", known))


def _memory_prompt(memory: Memory, name: str, max_notes: int, history: str, uncertainty: float) -> Prompt:
    options = [f"{a}. {clean(c)}" for a, c in zip(LETTERS, memory.question.choices, strict=False)]
    fields = {
        "context": _context(memory.passages(0)),
        "question": "\n".join([clean(memory.question.text).strip(), *options]),
        "history": history,
        "uncertainty": f"{uncertainty:.2f}",
    }
    asked = replace(memory.question, choices=())
    return Prompt(
        asked, memory.passages(max_notes), _template(f"{name}_system"), filled(f"{name}_user", fields)
    )


def _listed(title: str, items: Sequence[str]) -> str:
    return "".join([f"{title}:\n", *(f"- {clean(item)}\n" for item in items)]) if items else ""


def model_query(memory: Memory, uncertainty: float, max_notes: int, branch: Branch) -> str:
    """The model's next query; the first one is the question itself, which costs nothing.

    A reply that is empty or was searched for before is replaced by the question with the last note.
    """
    if not memory.queries:
        return memory.question.text
    history = _listed("Earlier queries", memory.queries)
    history += _listed("Notes", memory.last_notes(max_notes))
    prompt = _memory_prompt(memory, "decompose", max_notes, history, uncertainty)
    said = branch.generate("decompose", prompt, _QUERY_TOKENS).text
    query = said.strip().split("\n", 1)[0].strip(" \"'`-*")[:_LONGEST_QUERY]
    if not re.search(r"\w", query) or memory.has_query(query):
        query = " ".join([memory.question.text, *memory.notes[-1:]])
    return query


def feedback_query(memory: Memory) -> str:
    """The question with the first words of the best passage that is read and was not used for it yet.

    Pseudo-relevance feedback; no model is asked. Without such a passage, the question itself.
    """
    question = memory.question.text
    if not memory.queries or memory.selection is None:
        return question
    pool = memory.selection.candidates
    for place in sorted(memory.selection.chosen, key=lambda i: -float(np.asarray(pool.relevance)[i])):
        passage = pool.passage(place)
        words = " ".join([question, passage.title, *passage.text.split()[:_FEEDBACK_WORDS]])
        if words not in set(memory.queries):
            return words
    return question


def new_note(memory: Memory, note_tokens: int, max_notes: int, branch: Branch) -> str:
    """One more sentence by the model; empty where it says nothing new."""
    history = _listed("Notes so far", memory.last_notes(max_notes))
    prompt = _memory_prompt(memory, "reason", max_notes, history, 1.0)
    said = " ".join(branch.generate("reason", prompt, note_tokens).text.split())
    return "" if said in memory.notes else said
