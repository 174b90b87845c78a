"""A cache of replies on disk, so that no model is asked the same thing twice.

The key is the generator's `identity`, the messages and the longest answer; decoding is greedy. A stored reply
is charged the tokens and seconds that it took. A file that cannot be read or written causes a warning.

Of an endpoint only address and model name are known: if another model is served under them, use another file.
"""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
import warnings
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from mio_rag.errors import InputError, Notice
from mio_rag.generation.base import WrappedGenerator
from mio_rag.generation.prompts import Prompt, build_prompt
from mio_rag.generation.protocol import Choice, ChoiceWeigher, Generator, GrammarWriter
from mio_rag.types import Answer, GenerationError


class ReplyFile:
    """Replies by key, in one SQLite file; several processes may share it.

    path: made when the first reply is kept.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def _connect(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self.path, timeout=30)
        connection.execute("CREATE TABLE IF NOT EXISTS replies (key BLOB PRIMARY KEY, reply TEXT)")
        return connection

    def get(self, key: bytes) -> dict[str, Any] | None:
        """What is kept under a key; None: nothing, or nothing that can be read."""
        try:
            with closing(self._connect()) as connection:
                row = connection.execute("SELECT reply FROM replies WHERE key = ?", (key,)).fetchone()
                found = None if row is None else json.loads(row[0])
        except (OSError, sqlite3.Error, ValueError) as error:
            self._warn("read", error)
            return None
        return found if isinstance(found, dict) else None

    def put(self, key: bytes, reply: dict[str, Any]) -> None:
        """Keep a reply."""
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
    """A generator that looks first whether the same was asked before.

    It can do what the generator behind it can: where that is a `ChoiceWeigher`, so is this, and where it is a
    `GrammarWriter` too, likewise.

    generator: with an `identity`.
    path: the SQLite file.

    Raises `InputError` if the generator's replies depend on more than it can name, or the path is a folder.
    """

    def __new__(cls, generator: Generator, path: str | Path | ReplyFile) -> RememberingGenerator:
        """That of a generator which weighs options is one itself."""
        if cls is RememberingGenerator and isinstance(generator, ChoiceWeigher):
            writes = isinstance(generator, GrammarWriter)
            return super().__new__(_RememberingWriter if writes else _RememberingWeigher)
        return super().__new__(cls)

    def __init__(self, generator: Generator, path: str | Path | ReplyFile) -> None:
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
        self._identity, self.file = identity, file

    def generate(self, prompt: Prompt, *, max_tokens: int = 64) -> Answer:
        """The kept answer, or a new one, which is kept."""
        key = self._key("generate", prompt, max_tokens)
        found = self._answer(self.file.get(key))
        if found is None:
            found = self._inner.generate(prompt, max_tokens=max_tokens)
            self.file.put(key, asdict(found))
        return found

    def generate_many(
        self, prompts: Sequence[Prompt], *, max_tokens: int = 64
    ) -> list[Answer | GenerationError]:
        """The kept answers, and new ones where there are none; failures are not kept."""
        keys = [self._key("generate", prompt, max_tokens) for prompt in prompts]
        found: list[Answer | GenerationError | None] = [self._answer(self.file.get(key)) for key in keys]
        open_ = [i for i, answer in enumerate(found) if answer is None]
        fresh = self._inner.generate_many([prompts[i] for i in open_], max_tokens=max_tokens) if open_ else []
        for i, answer in zip(open_, fresh, strict=True):
            found[i] = answer
            if isinstance(answer, Answer):
                self.file.put(keys[i], asdict(answer))
        return [answer for answer in found if answer is not None]

    def choose_scored(self, prompt: Prompt, choices: Sequence[str]) -> Choice:
        """The kept choice, or a new one, which is kept."""
        if prompt.question.choices != tuple(choices):  # as the generator does: the key needs what is asked
            question = replace(prompt.question, choices=tuple(choices))
            prompt = build_prompt(question, prompt.passages)
        key = self._key("choose", prompt, 1)
        kept = self.file.get(key) or {}
        answer, index = self._answer(kept.get("answer")), kept.get("index")
        if answer is None or not isinstance(index, int) or not 0 <= index < len(choices):
            choice = self._inner.choose_scored(prompt, choices)
            self.file.put(key, asdict(choice))
            return choice
        return Choice(index, kept.get("probability"), answer)

    def _key(self, kind: str, prompt: Prompt, max_tokens: int, options: Sequence[str] | None = None) -> bytes:
        among = list(prompt.question.choices if options is None else options)
        asked = [self._identity, kind, *prompt.texts, among, max_tokens]
        return hashlib.sha256(json.dumps(asked).encode()).digest()

    def _answer(self, kept: Any) -> Answer | None:
        """An answer as it was kept; None for anything else."""
        if not isinstance(kept, dict):
            return None
        try:
            scored = kept["logprobs"]
            found = Answer(**(kept | {"logprobs": None if scored is None else tuple(map(float, scored))}))
        except (KeyError, TypeError, ValueError):
            return None
        counts = (found.prompt_tokens, found.completion_tokens)
        whole = all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in counts)
        is_time = isinstance(found.latency_seconds, (int, float)) and 0 <= found.latency_seconds < math.inf
        texts = isinstance(found.text, str) and isinstance(found.generator, str)
        return found if whole and is_time and texts else None


class _RememberingWeigher(RememberingGenerator):
    """One whose generator says how likely short replies are."""

    def weigh(self, prompt: Prompt, options: Sequence[str]) -> tuple[float, ...]:
        """The kept log-probabilities of the options, or new ones, which are kept."""
        key = self._key("weigh", prompt, 1, options)
        kept = (self.file.get(key) or {}).get("logprobs")
        if isinstance(kept, list) and len(kept) == len(options) and all(isinstance(p, float) for p in kept):
            return tuple(kept)
        assert isinstance(self._inner, ChoiceWeigher)
        weights = tuple(map(float, self._inner.weigh(prompt, options)))
        self.file.put(key, {"logprobs": weights})
        return weights


class _RememberingWriter(_RememberingWeigher):
    """One whose generator can be held to a grammar, too."""

    def write(self, prompt: Prompt, grammar: str, *, max_tokens: int) -> Answer:
        """The kept answer in words of the grammar, or a new one, which is kept."""
        key = self._key("write", prompt, max_tokens, [grammar])
        found = self._answer(self.file.get(key))
        if found is None:
            assert isinstance(self._inner, GrammarWriter)
            found = self._inner.write(prompt, grammar, max_tokens=max_tokens)
            self.file.put(key, asdict(found))
        return found
