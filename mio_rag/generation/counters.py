"""Token counts for a model behind an endpoint.

The model's tokenizer is on another machine, so its counts come from the first of: a tokenizer that the user
names; the server's own ``/tokenize`` (llama.cpp and vLLM have one); tiktoken for model names that it knows;
an approximation, with a warning.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from mio_rag.context import RegexCounter
from mio_rag.errors import InputError, MissingExtraError, Notice, require
from mio_rag.generation.http import HttpFailure
from mio_rag.generation.protocol import Message

Post = Callable[..., Any]  # (path, body, once=False) -> JSON; once: without repetitions
Count = Callable[[Sequence[str]], list[int]]

_FRAME = 4  # tokens around a message, where nothing counts them
_APART = -1  # between texts that are counted together: no token has this number
_ONCE = 1_000_000  # characters in one request


class PromptCounter(Protocol):
    """Counts texts, and prompts with their chat template."""

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text, without special tokens."""

    def prompt(self, messages: Sequence[Message], count: Count) -> int:
        """Tokens of the messages as the model receives them.

        count: counts as this one does, and may know some texts already.
        """


def first_line(error: BaseException) -> str:
    """The first line of an error; libraries append pages of advice."""
    return (str(error).strip() or type(error).__name__).split("\n", 1)[0]


def load_tokenizer(name: str, what: str = "hf") -> Any:
    """The tokenizer of a hub id or a local folder.

    Raises `InputError` if it cannot be loaded: no such folder, no such id, or no network.
    """
    transformers = require("transformers", "torch", "reading a Hugging Face tokenizer")
    # A hub id has at most one slash; asking the hub for a mistyped path would end in a confusing message.
    looks_local = name.startswith((".", "/", "~", "\\")) or name.count("/") > 1
    if looks_local and not Path(name).expanduser().is_dir():
        raise InputError(
            f"{what}: there is no folder '{name}': give a model folder or a hub id such as 'org/name'"
        )
    try:
        return transformers.AutoTokenizer.from_pretrained(expanded(name))
    except (OSError, ValueError) as error:
        raise InputError(f"{what}: no tokenizer can be loaded from '{name}' ({first_line(error)})") from error


def expanded(name: str) -> str:
    """A leading ~ resolved; hub ids stay as they are."""
    return str(Path(name).expanduser()) if name.startswith("~") else name


def chat_text(tokenizer: Any, messages: Sequence[Message]) -> tuple[str, bool]:
    """The text that the model continues, and whether special tokens are still to be added to it."""
    if getattr(tokenizer, "chat_template", None) is None:
        return "\n\n".join(one["content"] for one in messages), True
    jinja2 = require("jinja2", "torch", "applying a chat template")
    options = {"tokenize": False, "add_generation_prompt": True}
    try:
        return str(tokenizer.apply_chat_template(list(messages), **options)), False
    except jinja2.TemplateError:
        # Some templates (Gemma's, early Mistral's) refuse a system message.
        first = {"role": "user", "content": "\n\n".join(one["content"] for one in messages[:2])}
        return str(tokenizer.apply_chat_template([first, *messages[2:]], **options)), False


class HuggingFaceCounter:
    """A transformers tokenizer, by hub id or folder; its own chat template frames the prompt."""

    def __init__(self, name: str) -> None:
        self._tokenizer = load_tokenizer(name, "tokenizer")

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text."""
        ids = self._tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
        return [len(one) for one in ids]

    def prompt(self, messages: Sequence[Message], count: Count) -> int:
        """Tokens of the templated messages."""
        text, special = chat_text(self._tokenizer, messages)
        return len(self._tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"])


class _Framed:
    """Frames messages as OpenAI does: three tokens and the role for each, and three that prime the reply."""

    def prompt(self: PromptCounter, messages: Sequence[Message], count: Count) -> int:
        """Tokens of the messages; counted here, since what `count` knows is held for exact."""
        return sum(self.count([one["content"] for one in messages])) + _FRAME * len(messages) + 3


class TiktokenCounter(_Framed):
    """An encoding of tiktoken."""

    def __init__(self, encoding: str) -> None:
        tiktoken = require("tiktoken", "openai", "counting tokens")
        try:
            self._encoding = tiktoken.get_encoding(encoding)
        except ValueError as error:
            known = ", ".join(tiktoken.list_encoding_names())
            raise InputError(f"tokenizer 'tiktoken:{encoding}' is not known: tiktoken has {known}") from error
        except Exception as error:  # its download raises whatever its HTTP library raises
            raise InputError(
                f"tiktoken cannot fetch its encoding '{encoding}' ({type(error).__name__}): without a "
                "network give tokenizer=PATH, a folder with the model's tokenizer"
            ) from error

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text; control tokens spelled out in a text count as the text they are."""
        return [len(self._encoding.encode(text, disallowed_special=())) for text in texts]


class ApproximateCounter(_Framed):
    """Counts by a regular expression, and warns once.

    total: text -> its tokens, where the server counts one text a request: then it counts all texts together,
        and each gets its share, rounded up.
    """

    def __init__(self, why: str, total: Callable[[str], int] | None = None) -> None:
        self._why, self._total, self._regex = why, total, RegexCounter()

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text."""
        if self._why:
            warnings.warn(
                f"tokens are counted approximately: {self._why}. For exact counts give "
                "tokenizer=PATH_OR_HUB_ID (transformers) or tokenizer=tiktoken:ENCODING",
                Notice,
                stacklevel=2,
            )
            self._why = ""
        counts = self._regex.count(texts)
        if self._total is None or not sum(counts):
            return counts
        share = self._total("\n\n".join(texts)) / sum(counts)
        return [math.ceil(share * count) for count in counts]


class ServerCounter:
    """The ``/tokenize`` of llama.cpp, which counts all texts in one request.

    post: (path, body) -> the server's JSON; raises `HttpFailure`. Paths start at the server's root, not at
        ``/v1``.
    """

    def __init__(self, post: Post, model: str) -> None:
        self._post, self._model = post, model
        self._frames: dict[tuple[str, ...], int] = {}

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text."""
        counts: list[int] = []
        batch, size = list[str](), 0
        for text in texts:
            if batch and size + len(text) > _ONCE:
                counts += self._together(batch)
                batch, size = [], 0
            batch.append(text)
            size += len(text)
        return counts + (self._together(batch) if batch else [])

    def _together(self, texts: Sequence[str]) -> list[int]:
        content = [part for text in texts for part in (_APART, text)][1:]
        counts = [0]
        for token in tokens_of(self._post("/tokenize", {"content": content, "add_special": False})):
            if token == _APART:
                counts.append(0)
            else:
                counts[-1] += 1
        if len(counts) != len(texts):
            raise HttpFailure(f"/tokenize counted {len(counts)} texts of {len(texts)}", 200)
        return counts

    def prompt(self, messages: Sequence[Message], count: Count) -> int:
        """Tokens of the messages; what the server's chat template adds is measured once."""
        roles = tuple(one["role"] for one in messages)
        if roles not in self._frames:
            probes = [{"role": role, "content": "x"} for role in roles]
            reply = self._post("/apply-template", {"model": self._model, "messages": probes})
            if not isinstance(reply, dict) or not isinstance(reply.get("prompt"), str):
                raise HttpFailure("the reply of /apply-template holds no prompt", 200)
            templated = self._post("/tokenize", {"content": reply["prompt"], "add_special": True})
            self._frames[roles] = len(tokens_of(templated)) - sum(self.count(["x"] * len(roles)))
        return self._frames[roles] + sum(count([one["content"] for one in messages]))


def tokens_of(reply: Any) -> list[Any]:
    """The tokens of a reply of /tokenize; raises `HttpFailure` for anything else."""
    tokens = reply.get("tokens") if isinstance(reply, dict) else None
    if not isinstance(tokens, list):
        raise HttpFailure("the reply of /tokenize holds no list of tokens", 200)
    return tokens


def find_counter(post: Post | None, model: str) -> PromptCounter:
    """The server's own ``/tokenize``, tiktoken for a model name that it knows, or an approximation.

    post: None: the server has no ``/tokenize``.

    Raises `HttpFailure` if the server does not answer, or is overloaded: whether it can count is then not
    known, and another counter must not take its place until the next call.
    """

    def asked(body: Any, once: bool = False) -> list[Any]:
        try:
            return tokens_of(post("/tokenize", body, once)) if post else []
        except HttpFailure as failure:
            if not once and (failure.status is None or failure.status == 429 or failure.status >= 500):
                raise
            return []

    # llama.cpp answers a body that it does not know with no tokens, so only a positive count tells.
    alone = "the server's /tokenize counts one text a request"
    if post and asked({"content": "one two three", "add_special": False}):
        if asked({"content": ["one two", _APART, "three"], "add_special": False}, True).count(_APART) == 1:
            return ServerCounter(post, model)
        return ApproximateCounter(alone, lambda text: len(asked({"content": text, "add_special": False})))
    if asked({"prompt": "one two three", "model": model}):
        plain = {"model": model, "add_special_tokens": False}
        return ApproximateCounter(alone, lambda text: len(asked({"prompt": text, **plain})))
    try:
        tiktoken = require("tiktoken", "openai", "counting tokens")
        return TiktokenCounter(str(tiktoken.encoding_name_for_model(model)))
    except (MissingExtraError, KeyError, InputError) as error:
        return ApproximateCounter(f"nothing counts those of '{model}' ({first_line(error)})")


def named_counter(name: str) -> PromptCounter:
    """The counter for ``tokenizer=``: "tiktoken:ENCODING", or a folder or hub id for transformers."""
    encoding = name.removeprefix("tiktoken:")
    return TiktokenCounter(encoding) if encoding != name else HuggingFaceCounter(name)
