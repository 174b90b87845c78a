"""Generators that answer from a script, for tests and dry runs, or by a function of your own."""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from mio_rag.context import RegexCounter, TokenCounter
from mio_rag.errors import InputError, MioRagError
from mio_rag.generation.base import BaseGenerator
from mio_rag.generation.prompts import Prompt
from mio_rag.storage import read_json
from mio_rag.types import Answer, GenerationError


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
