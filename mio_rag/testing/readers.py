"""A reader that needs no model, counts what it is asked, and breaks when it is told to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from mio_rag.generation.extractive import ExtractiveGenerator
from mio_rag.generation.prompts import Prompt
from mio_rag.generation.protocol import Choice
from mio_rag.types import Answer, GenerationError

T = TypeVar("T")


class CountingReader(ExtractiveGenerator):
    """The extractive reader, with a record of what it was asked and what it said.

    Parameters
    ----------
    fails_at : int or None
        The reply, counted from 0, at which it raises `error` instead; None: never.
    """

    def __init__(self, fails_at: int | None = None, error: Exception | None = None) -> None:
        super().__init__()
        self._fails_at, self._error = fails_at, error or GenerationError("told to fail")
        self.prompts: list[Prompt] = []
        self.said: list[Answer] = []
        self.failed = False

    def generate(self, prompt: Prompt, *, max_tokens: int = 64) -> Answer:
        """As the extractive reader does."""
        answer = self._turn(
            prompt, lambda: super(CountingReader, self).generate(prompt, max_tokens=max_tokens)
        )
        self.said.append(answer)
        return answer

    def generate_many(
        self, prompts: Sequence[Prompt], *, max_tokens: int = 64
    ) -> list[Answer | GenerationError]:
        """One after another."""
        replies: list[Answer | GenerationError] = []
        for prompt in prompts:
            try:
                replies.append(self.generate(prompt, max_tokens=max_tokens))
            except GenerationError as error:
                replies.append(error)
        return replies

    def choose_scored(self, prompt: Prompt, choices: Sequence[str]) -> Choice:
        """As the extractive reader does."""
        chosen = self._turn(prompt, lambda: super(CountingReader, self).choose_scored(prompt, choices))
        self.said.append(chosen.answer)
        return chosen

    def _turn(self, prompt: Prompt, reply: Callable[[], T]) -> T:
        self.prompts.append(prompt)
        if self._fails_at is not None and len(self.prompts) > self._fails_at:
            self.failed = True
            raise self._error
        return reply()
