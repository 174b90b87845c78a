"""A generator that repeats failed calls, for threads that share it."""

from __future__ import annotations

import copy
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TypeVar

from mio_rag.generation import Generator, Prompt
from mio_rag.generation.base import WrappedGenerator, charged, repeated
from mio_rag.generation.protocol import CHOICE_TOKENS, Choice
from mio_rag.types import Answer, GenerationError, Question

T = TypeVar("T")

_CACHED = 256  # prompts: those in progress


class Retrying(WrappedGenerator):
    """Repeats a call after a failure, and waits longer each time.

    inner: should not repeat requests itself, since such calls cannot be counted.
    retries: repetitions of one call, >= 0.
    untold: called with (prompt tokens, most tokens of the reply) of a call that the server may have charged
        although no reply came; returns whether it may be repeated.
    """

    def __init__(
        self,
        inner: Generator,
        retries: int,
        untold: Callable[[int, int], bool],
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(inner)
        self._retries, self._untold, self._wait = retries, untold, wait
        self._barred: Callable[[], bool] = lambda: False
        self._counting = threading.Lock()  # fast tokenizers fail when two threads use them at once
        self._counts: OrderedDict[tuple[str, str], int] = OrderedDict()

    def telling(self, untold: Callable[[int, int], bool], barred: Callable[[], bool]) -> Retrying:
        """Return a copy for one question, with its own `untold`; `barred`: whether calls are forbidden."""
        other = copy.copy(self)
        other._untold, other._barred = untold, barred
        return other

    def count(self, texts: Sequence[str]) -> list[int]:
        """Count tokens, one thread at a time."""
        with self._counting:
            return repeated(lambda: self._inner.count(texts), self._retries, wait=self._wait)

    def prompt_tokens(self, prompt: Prompt) -> int:
        """Count a prompt, one thread at a time; cached, since counting may ask a server."""
        key = prompt.system, prompt.user
        with self._counting:
            if key not in self._counts:
                self._counts[key] = repeated(
                    lambda: self._inner.prompt_tokens(prompt), self._retries, wait=self._wait
                )
                while len(self._counts) > _CACHED:
                    self._counts.popitem(last=False)
            return self._counts[key]

    def context_allowance(self, question: Question, *, max_tokens: int = 64) -> int | None:
        """As that of the inner generator, one thread at a time."""
        with self._counting:
            return self._inner.context_allowance(question, max_tokens=max_tokens)

    def generate(self, prompt: Prompt, *, max_tokens: int = 64) -> Answer:
        """Answer; `GenerationError` if every attempt failed."""
        return self._tried(prompt, max_tokens, lambda: self._inner.generate(prompt, max_tokens=max_tokens))

    def choose_scored(self, prompt: Prompt, choices: Sequence[str]) -> Choice:
        """Choose; `GenerationError` if every attempt failed."""
        return self._tried(prompt, CHOICE_TOKENS, lambda: self._inner.choose_scored(prompt, choices))

    def _tried(self, prompt: Prompt, max_tokens: int, ask: Callable[[], T]) -> T:
        def allowed(error: GenerationError) -> bool:
            # Generators of others may say so by the cause alone.
            if not (error.untold or isinstance(error.__cause__, (TimeoutError, ConnectionError))):
                return error.spent is None  # an unusable reply would come again
            lost = charged(error, self, prompt, max_tokens)
            assert lost is not None
            error.spent, error.untold = None, False  # counted here, and nowhere else
            error.__cause__ = None
            return self._untold(lost.prompt_tokens, lost.completion_tokens)

        if self._barred():
            raise GenerationError("the total allows no further call: an earlier one never reported its cost")
        return repeated(ask, self._retries, allowed, self._wait)
