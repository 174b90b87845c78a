"""What the package expects of something that reads a prompt and answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from mio_rag.errors import MioRagError
from mio_rag.generation.prompts import Prompt
from mio_rag.types import Answer, GenerationError, Question

#: Longest reply that a choice is read from, where a model cannot be held to a letter.
CHOICE_TOKENS = 16


@dataclass(frozen=True)
class Choice:
    """An option of a multiple-choice question, chosen.

    probability: of this option among all of them, in [0, 1]; None where the generator cannot say.
    answer: the option's text, with what choosing it cost: one token where the model was held to a letter,
        else all that it replied.
    """

    index: int
    probability: float | None
    answer: Answer


@runtime_checkable
class Generator(Protocol):
    """Anything that answers a `Prompt`; also a `TokenCounter` for its own tokens."""

    @property
    def name(self) -> str:
        """Which model answers, for ledgers and messages."""

    @property
    def identity(self) -> str | None:
        """All that a reply depends on besides the prompt and its length; None: replies must not be stored."""

    @property
    def context_window(self) -> int | None:
        """Tokens that prompt and completion share; None: unbounded or unknown."""

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text, >= 0, without begin-of-sequence or other special tokens."""

    def prompt_tokens(self, prompt: Prompt) -> int:
        """Tokens of the whole prompt, chat template included."""

    def generate(self, prompt: Prompt, *, max_tokens: int = 64) -> Answer:
        """Answer one prompt."""

    def generate_many(
        self, prompts: Sequence[Prompt], *, max_tokens: int = 64
    ) -> list[Answer | GenerationError]:
        """Answer many prompts, in order; a failure takes the place of its answer."""

    def context_allowance(self, question: Question, *, max_tokens: int = 64) -> int | None:
        """Tokens that the window leaves for the context block; None: unbounded."""

    def choose_scored(self, prompt: Prompt, choices: Sequence[str]) -> Choice:
        """The option that the generator holds to be right."""

    def close(self) -> None:
        """Release what the generator holds."""


@runtime_checkable
class ChoiceWeigher(Protocol):
    """A generator that reports how likely short replies are; not every back end can."""

    @property
    def name(self) -> str:
        """Which model it is."""

    def weigh(self, prompt: Prompt, options: Sequence[str]) -> tuple[float, ...]:
        """Natural-log probability that the reply begins with each option, upper and lower case alike.

        Raises `GenerationError` where the prompt does not fit the window or the back end fails.
        """


@runtime_checkable
class GrammarWriter(Protocol):
    """A generator that can be held to a grammar; not every back end can."""

    @property
    def name(self) -> str:
        """Which model it is."""

    def write(self, prompt: Prompt, grammar: str, *, max_tokens: int) -> Answer:
        """Answer one prompt in words of a grammar, in GBNF, the form of llama.cpp.

        Raises `GenerationError` as `Generator.generate`; also for a grammar that cannot be read.
        """


def content_of(generator: Generator) -> str:
    """What tells a generator from others, for caches and records of runs: its `content`, identity or name,
    and its window.
    """
    content = str(getattr(generator, "content", None) or generator.identity or generator.name)
    window = generator.context_window
    return content if window is None else f"{content} window={window}"


def window_room(
    generator: Generator,
    question: Question,
    *,
    max_tokens: int,
    error: type[MioRagError] = GenerationError,
) -> int | None:
    """Tokens that the window leaves for passages and notes, >= 1; None: unbounded or unknown.

    Raises `error` if there is no room: `GenerationError` where a question of a set fails, `InputError` where
    a person asks it.
    """
    room = generator.context_allowance(question, max_tokens=max_tokens)
    if room is not None and room < 1:
        raise error(
            f"question '{question.id}' leaves no room for context in the window of {generator.name}, beside "
            f"an answer of {max_tokens} tokens: shorten the question, lower max_tokens, or use a model with "
            "a larger window"
        )
    return room


def context_budget(
    generator: Generator,
    question: Question,
    budget_tokens: int,
    *,
    max_tokens: int,
    error: type[MioRagError] = GenerationError,
) -> int:
    """The token budget, or what the window leaves where that is less; raises as `window_room`."""
    room = window_room(generator, question, max_tokens=max_tokens, error=error)
    return budget_tokens if room is None else min(budget_tokens, room)
