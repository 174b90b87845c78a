"""A cache of replies on disk, so that no model is asked the same thing twice.

The key is the generator's `identity`, the messages and the longest answer; decoding is greedy. A stored reply
is charged the tokens and seconds that it took, unless they are `paid`. A file that cannot be read or written
causes a warning.

Of an endpoint only address and model name are known: if another model is served under them, use another file.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import warnings
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from mio_rag.errors import InputError, Notice
from mio_rag.generation.base import Replies, WrappedGenerator, with_choices
from mio_rag.generation.protocol import Choice, ChoiceWeigher, Generator, GrammarWriter, Prompt
from mio_rag.types import Answer

_ANSWER = TypeAdapter(Answer)


class ReplyFile:
    """Replies by key, in one SQLite file, made when the first one is stored; processes may share it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def _connect(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self.path, timeout=30)
        connection.execute("CREATE TABLE IF NOT EXISTS replies (key BLOB PRIMARY KEY, reply TEXT)")
        return connection

    def get(self, key: bytes) -> dict[str, Any]:
        """What is stored under a key; empty: nothing, or nothing that can be read."""
        try:
            with closing(self._connect()) as connection:
                row = connection.execute("SELECT reply FROM replies WHERE key = ?", (key,)).fetchone()
                found = None if row is None else json.loads(row[0])
        except (OSError, sqlite3.Error, ValueError) as error:
            self._warn("read", error)
            return {}
        return found if isinstance(found, dict) else {}

    def put(self, key: bytes, reply: dict[str, Any]) -> None:
        """Store a reply."""
        try:
            with closing(self._connect()) as connection, connection:
                row = (key, json.dumps(reply, allow_nan=False))
                connection.execute("INSERT OR REPLACE INTO replies VALUES (?, ?)", row)
        except (OSError, sqlite3.Error, ValueError) as error:
            self._warn("written", error)

    def _warn(self, what: str, error: Exception) -> None:
        warnings.warn(
            f"the replies in {self.path} cannot be {what} ({error}): continuing without them",
            Notice,
            stacklevel=4,
        )


class RememberingGenerator(WrappedGenerator):
    """A generator that first looks whether the same was asked before.

    It is a `ChoiceWeigher` or a `GrammarWriter` where the generator behind it is one.

    generator: with an `identity`.
    path: the SQLite file.
    paid: who asks has paid for what is stored, so that it is charged no tokens.

    Raises `InputError` if the generator's replies depend on more than it can name, or the path is a folder.
    """

    def __init__(self, generator: Generator, path: str | Path | ReplyFile, paid: bool = False) -> None:
        identity = generator.identity
        if identity is None:
            raise InputError(
                f"replies of {generator.name} cannot be stored: only generators that identify their model "
                "and settings completely can do that (gguf: and openai:)"
            )
        file = path if isinstance(path, ReplyFile) else ReplyFile(Path(path).expanduser())
        if file.path.is_dir():
            raise InputError(
                f"replies={path} is a folder: give the path of a file, for instance replies.sqlite"
            )
        super().__init__(generator)
        self._identity, self.file, self._paid = identity, file, paid
        if isinstance(generator, ChoiceWeigher):
            self.weigh = self._weigh
        if isinstance(generator, GrammarWriter):
            self.write = self._write

    def generate(self, prompt: Prompt, *, max_tokens: int = 64) -> Answer:
        """The stored answer, or a new one, which is stored."""
        key = self._key("generate", prompt, max_tokens)
        return self._known(key) or self._stored(key, self._inner.generate(prompt, max_tokens=max_tokens))

    def generate_many(self, prompts: Sequence[Prompt], *, max_tokens: int = 64) -> Replies:
        """The stored answers, and new ones where there are none; failures are not stored."""
        keys = [self._key("generate", prompt, max_tokens) for prompt in prompts]
        found: list[Any] = [self._known(key) for key in keys]
        missing = [i for i, answer in enumerate(found) if answer is None]
        asked = [prompts[i] for i in missing]
        fresh = self._inner.generate_many(asked, max_tokens=max_tokens) if asked else []
        for i, answer in zip(missing, fresh, strict=True):
            found[i] = self._stored(keys[i], answer) if isinstance(answer, Answer) else answer
        return found

    def choose_scored(self, prompt: Prompt, choices: Sequence[str]) -> Choice:
        """The stored choice, or a new one, which is stored."""
        key = self._key("choose", with_choices(prompt, choices), 1)
        stored = self.file.get(key)
        answer, index = self._answer(stored.get("answer")), stored.get("index")
        if answer is None or not isinstance(index, int) or not 0 <= index < len(choices):
            choice = self._inner.choose_scored(prompt, choices)
            self.file.put(key, asdict(choice))
            return choice
        return Choice(index, stored.get("probability"), answer)

    def _weigh(self, prompt: Prompt, options: Sequence[str]) -> tuple[float, ...]:
        key = self._key("weigh", prompt, 1, options)
        stored = self.file.get(key).get("logprobs")
        if isinstance(stored, list) and [type(value) for value in stored] == [float] * len(options):
            return tuple(stored)
        weights = tuple(map(float, self._inner.weigh(prompt, options)))  # type: ignore[attr-defined]
        self.file.put(key, {"logprobs": weights})
        return weights

    def _write(self, prompt: Prompt, grammar: str, *, max_tokens: int) -> Answer:
        key = self._key("write", prompt, max_tokens, [grammar])
        write: Any = self._inner.write  # type: ignore[attr-defined]
        return self._known(key) or self._stored(key, write(prompt, grammar, max_tokens=max_tokens))

    def _key(self, kind: str, prompt: Prompt, max_tokens: int, options: Sequence[str] | None = None) -> bytes:
        among = list(prompt.question.choices if options is None else options)
        asked = [self._identity, kind, *prompt.texts, among, max_tokens]
        asked += [prompt.temperature] if prompt.temperature else []
        return hashlib.sha256(json.dumps(asked).encode()).digest()

    def _known(self, key: bytes) -> Answer | None:
        return self._answer(self.file.get(key))

    def _stored(self, key: bytes, answer: Answer) -> Answer:
        self.file.put(key, asdict(answer))
        return answer

    def _answer(self, stored: Any) -> Answer | None:
        """An answer as it was stored; None for anything else."""
        try:
            answer = _ANSWER.validate_python(stored)
        except ValidationError:
            return None
        if min(answer.prompt_tokens, answer.completion_tokens, answer.latency_seconds) < 0:
            return None
        return replace(answer, prompt_tokens=0, completion_tokens=0) if self._paid else answer
