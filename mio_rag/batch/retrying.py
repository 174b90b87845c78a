"""A generator that tries again, for threads that share it: a failing server costs no question."""

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

_REMEMBERED = 256  # prompts: those under way


class Retrying(WrappedGenerator):
    """Asks again after a failure, and waits longer each time.

    Parameters
    ----------
    inner : Generator
        Should not repeat requests itself: what it hides nobody can count.
    retries : int
        Repetitions of one call, >= 0.
    untold : callable
        Told (prompt tokens, most tokens of the reply) of a call that the server may have charged although no
        reply came; says whether it may be repeated.
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
        """The same, with someone else who is told of calls: those of one question, by whatever thread.

        Parameters
        ----------
        barred : callable
            Says whether no call may be made any more.
        """
        other = copy.copy(self)
        other._untold, other._barred = untold, barred
        return other

    def count(self, texts: Sequence[str]) -> list[int]:
        """As the generator counts, one thread at a time, trying again."""
        with self._counting:
            return repeated(lambda: self._inner.count(texts), self._retries, wait=self._wait)

    def prompt_tokens(self, prompt: Prompt) -> int:
        """Likewise; of the same words the same, since a server may be asked for every count."""
        key = prompt.system, prompt.user
        with self._counting:
            if key not in self._counts:
                self._counts[key] = repeated(
                    lambda: self._inner.prompt_tokens(prompt), self._retries, wait=self._wait
                )
                while len(self._counts) > _REMEMBERED:
                    self._counts.popitem(last=False)
            return self._counts[key]

    def context_allowance(self, question: Question, *, max_tokens: int = 64) -> int | None:
        """Likewise."""
        with self._counting:
            return self._inner.context_allowance(question, max_tokens=max_tokens)

    def generate(self, prompt: Prompt, *, max_tokens: int = 64) -> Answer:
        """As the generator answers, trying again.

        Raises
        ------
        GenerationError
            If every attempt failed.
        """
        return self._tried(prompt, max_tokens, lambda: self._inner.generate(prompt, max_tokens=max_tokens))

    def choose_scored(self, prompt: Prompt, choices: Sequence[str]) -> Choice:
        """Likewise."""
        return self._tried(prompt, CHOICE_TOKENS, lambda: self._inner.choose_scored(prompt, choices))

    def _tried(self, prompt: Prompt, max_tokens: int, ask: Callable[[], T]) -> T:
        """What the model said; a call that may have been charged without a reply is told."""

        def allowed(error: GenerationError) -> bool:
            if not _untold(error):
                return error.spent is None  # a reply without use: it would come again
            lost = charged(error, self, prompt, max_tokens)
            assert lost is not None
            error.spent, error.untold = None, False  # counted here, and nowhere else
            error.__cause__ = None
            return self._untold(lost.prompt_tokens, lost.completion_tokens)

        if self._barred():
            raise GenerationError("the total allows no further call: one before never told what it took")
        return repeated(ask, self._retries, allowed, self._wait)


def _untold(error: GenerationError) -> bool:
    """Whether a call may have been charged; generators of others may say so by the cause alone."""
    return error.untold or isinstance(error.__cause__, (TimeoutError, ConnectionError))
