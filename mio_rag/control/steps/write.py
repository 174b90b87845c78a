"""The steps that a language model takes: the next query, a note, the answer.

What it is told lies in ``prompts/*.txt``; the answer is asked for with the same prompt as everywhere else in
the package.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from mio_rag.context import SEPARATOR, render_context
from mio_rag.control.memory import Memory
from mio_rag.control.meter import Meter, Reply
from mio_rag.generation import Prompt, build_prompt
from mio_rag.generation.prompts import LETTERS
from mio_rag.text import clean

__all__ = ["LmDecomposer", "LmReasoner", "LmSynthesizer"]

_FIELD = re.compile(r"\{(context|question|history|uncertainty)\}")
_QUERY_TOKENS = 32
_LONGEST_QUERY = 200  # characters


@cache
def _template(name: str) -> str:
    return (Path(__file__).parent / "prompts" / f"{name}.txt").read_text(encoding="utf-8").rstrip("\n")


def _prompt(memory: Memory, name: str, kept_notes: int, history: str, doubt: float = 1.0) -> Prompt:
    """A prompt from the files; one pass over the template, so that braces in texts are never looked at."""
    read = memory.passages(0)
    question = memory.question
    options = [f"{a}. {clean(c)}" for a, c in zip(LETTERS, question.choices, strict=False)]
    fields = {
        "context": f"Passages:\n\n{render_context(read)}{SEPARATOR}" if read else "",
        "question": "\n".join([clean(question.text).strip(), *options]),
        "history": history,
        "uncertainty": f"{doubt:.2f}",
    }
    user = _FIELD.sub(lambda match: fields[match.group(1)], _template(f"{name}_user"))
    # Without the options: a generator that is given them would choose one instead of writing.
    return Prompt(
        replace(question, choices=()), memory.passages(kept_notes), _template(f"{name}_system"), user
    )


def _listed(title: str, items: list[str]) -> str:
    return "".join([f"{title}:\n", *(f"- {clean(item)}\n" for item in items)]) if items else ""


@dataclass(frozen=True)
class LmDecomposer:
    """Asks the model for the next query; the first one is the question itself, which costs nothing.

    A reply that is empty, or was searched for already, is replaced by the question together with the last
    note.
    """

    kept_notes: int = 4

    def next_query(self, memory: Memory, doubt: float, meter: Meter) -> str:
        """A query from the question, the history and U."""
        if not memory.queries:
            return memory.question.text
        history = _listed("Earlier queries", memory.queries)
        history += _listed("Notes", memory.last_notes(self.kept_notes))
        prompt = _prompt(memory, "decompose", self.kept_notes, history, doubt)
        said = meter.generate("decompose", prompt, _QUERY_TOKENS).text
        query = said.strip().split("\n", 1)[0].strip(" \"'`-*")[:_LONGEST_QUERY]
        if not re.search(r"\w", query) or query.lower() in {q.lower() for q in memory.queries}:
            query = " ".join([memory.question.text, *memory.notes[-1:]])
        return query


@dataclass(frozen=True)
class LmReasoner:
    """Asks the model for one more sentence."""

    note_tokens: int = 48
    kept_notes: int = 4

    def reason(self, memory: Memory, meter: Meter) -> str:
        """A note; a reply that is empty or repeats a note is none."""
        history = _listed("Notes so far", memory.last_notes(self.kept_notes))
        prompt = _prompt(memory, "reason", self.kept_notes, history)
        said = " ".join(meter.generate("reason", prompt, self.note_tokens).text.split())
        return "" if said in memory.notes else said


@dataclass(frozen=True)
class LmSynthesizer:
    """Asks the model for the answer; a draft from exactly this state is the answer already."""

    max_tokens: int = 32
    kept_notes: int = 4

    def prompt(self, memory: Memory) -> Prompt:
        """Evidence and notes, with the prompt that every method of the package uses."""
        return build_prompt(memory.question, memory.passages(self.kept_notes))

    def answer(self, memory: Memory, meter: Meter) -> Reply:
        """The answer, or the choice."""
        if memory.draft is not None:
            return memory.draft
        prompt = self.prompt(memory)
        if memory.question.choices:
            return meter.choose("answer", prompt, final=True)
        return Reply(meter.generate("answer", prompt, self.max_tokens, final=True))
