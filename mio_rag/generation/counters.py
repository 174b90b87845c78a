"""Exact token counts for a model behind an endpoint.

The model's tokenizer is on another machine, so its counts come from the first of: a tokenizer that the user
names; the server's own ``/tokenize`` (llama.cpp and vLLM have one); tiktoken for model names that it knows.
There is no approximation at the end of that list: a budget counted by the wrong tokenizer would be wrong
without a sign.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from mio_rag.errors import InputError, require
from mio_rag.generation.http import HttpFailure
from mio_rag.generation.prompts import Prompt
from mio_rag.types import GenerationError


def load_tokenizer(name: str, what: str = "hf") -> Any:
    """The tokenizer of a hub id or a local folder.

    Raises `InputError` if it cannot be loaded: no such folder, no such id, or no network.
    """
    transformers = require("transformers", "retrieval", "reading a Hugging Face tokenizer")
    _check_path(name, what)
    try:
        return transformers.AutoTokenizer.from_pretrained(expanded(name))
    except (OSError, ValueError) as error:
        raise InputError(f"{what}: no tokenizer can be loaded from '{name}' ({first_line(error)})") from error


def chat_text(tokenizer: Any, prompt: Prompt) -> tuple[str, bool]:
    """The text that the model continues, and whether special tokens are still to be added to it."""
    if getattr(tokenizer, "chat_template", None) is None:
        return f"{prompt.system}\n\n{prompt.user}", True
    jinja2 = require("jinja2", "retrieval", "applying a chat template")
    merged = {"role": "user", "content": f"{prompt.system}\n\n{prompt.user}"}
    try:
        text = tokenizer.apply_chat_template(prompt.messages, tokenize=False, add_generation_prompt=True)
    except jinja2.TemplateError:
        # Some templates (Gemma's, early Mistral's) refuse a system message.
        text = tokenizer.apply_chat_template([merged], tokenize=False, add_generation_prompt=True)
    return str(text), False


def expanded(name: str) -> str:
    """A leading ~ resolved; hub ids stay as they are."""
    return str(Path(name).expanduser()) if name.startswith("~") else name


def _check_path(name: str, what: str) -> None:
    # A hub id has at most one slash; asking the hub for a mistyped path would end in a confusing message.
    looks_local = name.startswith((".", "/", "~", "\\")) or name.count("/") > 1
    if looks_local and not Path(name).expanduser().is_dir():
        raise InputError(
            f"{what}: there is no folder '{name}': give a model folder or a hub id such as 'org/name'"
        )


def first_line(error: BaseException) -> str:
    """What an error says first; libraries append pages of advice."""
    return (str(error).strip() or type(error).__name__).split("\n", 1)[0]


Post = Callable[[str, Any], Any]


class PromptCounter(Protocol):
    """Counts texts, and prompts with their chat template."""

    def count(self, texts: list[str]) -> list[int]:
        """Tokens of each text, without special tokens."""
        ...

    def prompt(self, prompt: Prompt) -> int:
        """Tokens of the prompt as the model receives it."""
        ...


class HuggingFaceCounter:
    """A transformers tokenizer, by hub id or folder; its own chat template frames the prompt."""

    def __init__(self, name: str) -> None:
        self._tokenizer = load_tokenizer(name, "tokenizer")

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text."""
        return [
            len(ids)
            for ids in self._tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
        ]

    def prompt(self, prompt: Prompt) -> int:
        """Tokens of the templated prompt."""
        text, special = chat_text(self._tokenizer, prompt)
        return len(self._tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"])


class TiktokenCounter:
    """An encoding of tiktoken.

    OpenAI frames a message with three tokens and its role, and primes the reply with three more; the prompt's
    count adds these to the texts.
    """

    _PER_MESSAGE, _PRIMING = 4, 3

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

    def count(self, texts: list[str]) -> list[int]:
        """Tokens of each text; control tokens spelled out in a text count as the text they are."""
        return [len(self._encoding.encode(text, disallowed_special=())) for text in texts]

    def prompt(self, prompt: Prompt) -> int:
        """Tokens of both messages with OpenAI's framing."""
        return sum(self.count([prompt.system, prompt.user])) + 2 * self._PER_MESSAGE + self._PRIMING


class ServerCounter:
    """The ``/tokenize`` of the server that runs the model.

    post: (path, body) -> the server's JSON; raises `HttpFailure`. Paths start at the server's root, not at
        ``/v1``.
    model: as the server names it.
    concurrency: requests at a time, >= 1.
    dialect: "llama.cpp" or "vllm": the two word their requests differently.
    """

    def __init__(self, post: Post, model: str, concurrency: int, dialect: str) -> None:
        self._post, self._model, self._concurrency, self.dialect = post, model, concurrency, dialect

    def count(self, texts: list[str]) -> list[int]:
        """Tokens of each text; several requests at a time."""
        with ThreadPoolExecutor(max_workers=self._concurrency) as pool:
            return list(pool.map(lambda text: self.one(text, special=False), texts))

    def one(self, text: str, *, special: bool) -> int:
        """Tokens of one text."""
        if self.dialect == "vllm":
            return self._tokenize({"model": self._model, "prompt": text, "add_special_tokens": special})
        return self._tokenize({"content": text, "add_special": special})

    def prompt(self, prompt: Prompt) -> int:
        """Tokens of the prompt under the server's chat template."""
        messages = prompt.messages
        if self.dialect == "vllm":
            return self._tokenize({"model": self._model, "messages": messages})
        reply = self._post("/apply-template", {"model": self._model, "messages": messages})
        if not isinstance(reply, dict) or not isinstance(reply.get("prompt"), str):
            raise HttpFailure("the reply of /apply-template holds no prompt", 200)
        return self.one(reply["prompt"], special=True)

    def _tokenize(self, body: Any) -> int:
        reply = self._post("/tokenize", body)
        tokens = reply.get("tokens") if isinstance(reply, dict) else None
        if not isinstance(tokens, list):
            raise HttpFailure("the reply of /tokenize holds no list of tokens", 200)
        return len(tokens)


def find_counter(post: Post, model: str, concurrency: int) -> PromptCounter:
    """The server's own ``/tokenize``, or tiktoken for a model name that it knows.

    Raises `HttpFailure` if the server does not answer, or is overloaded: whether it can count is then not
    known, and another counter must not take its place until the next call; `GenerationError` if the server
    has no ``/tokenize`` and tiktoken does not know the name.
    """
    for dialect in ("llama.cpp", "vllm"):
        counter = ServerCounter(post, model, concurrency, dialect)
        try:
            # llama.cpp answers a body that it does not know with no tokens, so only a positive count tells.
            if counter.one("one two three", special=False) > 0:
                return counter
        except HttpFailure as failure:
            if failure.status is None or failure.status == 429 or failure.status >= 500:
                raise
    try:
        tiktoken = require("tiktoken", "openai", "counting tokens")
        return TiktokenCounter(str(tiktoken.encoding_name_for_model(model)))
    except (ImportError, KeyError) as error:
        raise GenerationError(
            f"nothing counts the tokens of '{model}': the server has no /tokenize, and tiktoken does not "
            "know the name. Give tokenizer=PATH_OR_HUB_ID (transformers) or tokenizer=tiktoken:ENCODING"
        ) from error


def named_counter(name: str) -> PromptCounter:
    """The counter for ``tokenizer=``: "tiktoken:ENCODING", or a folder or hub id for transformers."""
    return (
        TiktokenCounter(name.removeprefix("tiktoken:"))
        if name.startswith("tiktoken:")
        else HuggingFaceCounter(name)
    )
