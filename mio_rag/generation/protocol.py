"""The protocol that the rest of the package relies on when it needs something that reads and answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from mio_rag.generation.prompts import Prompt
from mio_rag.types import Answer, GenerationError, Question

#: Longest reply that a choice is read from, where a model cannot be held to a letter.
CHOICE_TOKENS = 16


@dataclass(frozen=True)
class Choice:
    """An option of a multiple-choice question, chosen.

    index: position among the options.
    probability: of this option among all of them, in [0, 1]; None where the generator cannot say.
    answer: the option's text, with what choosing it cost: one token where the model was held to a letter,
        else all that it said.
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
        ...

    @property
    def identity(self) -> str | None:
        """All that a reply depends on besides the prompt and its length; None: replies must not be kept."""
        ...

    @property
    def context_window(self) -> int | None:
        """Tokens that prompt and completion share; None: unbounded or unknown."""
        ...

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text, without special tokens."""
        ...

    def prompt_tokens(self, prompt: Prompt) -> int:
        """Tokens of the whole prompt, chat template included."""
        ...

    def generate(self, prompt: Prompt, *, max_tokens: int = 64) -> Answer:
        """Answer one prompt."""
        ...

    def generate_many(
        self, prompts: Sequence[Prompt], *, max_tokens: int = 64
    ) -> list[Answer | GenerationError]:
        """Answer many prompts, in order; a failure takes the place of its answer."""
        ...

    def stream(self, prompt: Prompt, *, max_tokens: int = 64) -> Iterator[str]:
        """Answer one prompt piece by piece."""
        ...

    def context_allowance(self, question: Question, *, max_tokens: int = 64) -> int | None:
        """Tokens that the window leaves for the context block; None: unbounded."""
        ...

    def choose(self, prompt: Prompt, choices: Sequence[str]) -> int:
        """Index of the option that the generator holds to be right."""
        ...

    def choose_scored(self, prompt: Prompt, choices: Sequence[str]) -> Choice:
        """The option, how probable it is among all, and what it cost to choose."""
        ...

    def close(self) -> None:
        """Give back what the generator holds."""
        ...


@runtime_checkable
class ChoiceWeigher(Protocol):
    """A generator that says how likely short replies are; not every back end can."""

    @property
    def name(self) -> str:
        """Which model it is."""
        ...

    def weigh(self, prompt: Prompt, options: Sequence[str]) -> tuple[float, ...]:
        """Natural-log probability that the reply begins with each option, upper and lower case alike.

        Raises `GenerationError` where the prompt does not fit the window or the back end fails.
        """
        ...


@runtime_checkable
class GrammarWriter(Protocol):
    """A generator that can be held to a grammar; not every back end can."""

    @property
    def name(self) -> str:
        """Which model it is."""
        ...

    def write(self, prompt: Prompt, grammar: str, *, max_tokens: int) -> Answer:
        """Answer one prompt in words of a grammar.

        grammar: in GBNF, the form of llama.cpp.

        Raises `GenerationError` as `Generator.generate`; also for a grammar that cannot be read.
        """
        ...


def content_of(generator: Generator) -> str:
    """What a generator is, and what it can read, by which caches and records of runs go.

    Its `content`, if it has one (those of this package do); else its `identity`, else its name; and its
    window, where it has one.
    """
    content = str(getattr(generator, "content", None) or generator.identity or generator.name)
    window = generator.context_window
    return content if window is None else f"{content} window={window}"
