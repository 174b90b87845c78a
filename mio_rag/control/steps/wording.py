"""The words of executors: prompts from ``prompts/*.txt``, and answers to sub-questions as a passage."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from mio_rag.context import SEPARATOR, render_context
from mio_rag.control.memory import NOTES_ID
from mio_rag.generation import Prompt
from mio_rag.text import clean
from mio_rag.types import Passage, Question

__all__ = ["Fact", "fact_passage", "short_prompt"]

_FIELD = re.compile(r"\{(context|question|facts|most|answer)\}")


@dataclass(frozen=True)
class Fact:
    """A sub-question and its answer."""

    question: str
    answer: str


@cache
def _template(name: str) -> str:
    return (Path(__file__).parent / "prompts" / f"{name}.txt").read_text(encoding="utf-8").rstrip("\n")


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
    """The prompt of a name, filled in one pass, so that braces in texts are never looked at.

    Parameters
    ----------
    text : str
        What is asked, which may be another wording of the question.
    """
    filled = {
        "context": f"Passages:\n\n{render_context(passages)}{SEPARATOR}" if passages else "",
        "question": clean(text).strip(),
        "facts": f"Known:\n{_lines(facts)}\n" if facts else "",
        **{key: clean(value) for key, value in fields.items()},
    }

    def fill(template: str) -> str:
        return _FIELD.sub(lambda match: filled.get(match.group(1), match.group(0)), template)

    # Without the options: a generator that is given them would choose one instead of writing.
    return Prompt(
        replace(question, choices=()),
        tuple(passages),
        fill(_template(f"{name}_system")),
        fill(_template(f"{name}_user")),
    )
