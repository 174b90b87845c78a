"""Language models behind any endpoint that speaks OpenAI's chat-completions protocol.

llama.cpp, vLLM, Ollama, LM Studio and hosted services alike. Lost connections and the statuses 408, 409, 429
and 5xx are repeated with exponential back-off. Every attempt that the server may have charged is counted.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeGuard, TypeVar
from urllib.parse import urlsplit

from mio_rag.errors import InputError, MioRagError
from mio_rag.generation.base import (
    BaseGenerator,
    Pieces,
    Replies,
    may_repeat,
    most_tokens,
    one_by_one,
    repeated,
    spoken,
    told_pieces,
)
from mio_rag.generation.counters import (
    HuggingFaceCounter,
    PromptCounter,
    TiktokenCounter,
    find_counter,
    named_counter,
)
from mio_rag.generation.http import HttpFailure, JsonClient
from mio_rag.generation.protocol import Prompt
from mio_rag.types import Answer, GenerationError

T = TypeVar("T")

#: The longest reply, by its names: OpenAI's own models have renamed it.
_LIMITS = ("max_tokens", "max_completion_tokens")
#: How servers refuse a parameter.
_UNSUPPORTED = re.compile(
    r"support|only the default|not (?:allowed|permitted)|unknown|unrecogni|unexpected|extra|deprecated"
    r"|invalid",
    re.IGNORECASE,
)
_MOST_CONCURRENCY, _MOST_RETRIES = 1000, 100
_REMEMBERED = 256  # prompts whose tokens are known: those in progress
_HIDDEN_TOKENS = 65_536  # that a server may put around a prompt or think, where no window is known
_LONGEST_TOKEN = 32  # characters, on average over a text
_USAGE = ("prompt_tokens", "completion_tokens")
_THOUGHTS = ("reasoning_content", "reasoning")


class OpenAIGenerator(BaseGenerator):
    """A model behind an endpoint.

    The key is taken from the environment variable ``OPENAI_API_KEY``; without one "none" is sent, as local
    servers expect.

    base_url: up to and with ``/v1``, for instance ``http://127.0.0.1:8080/v1``.
    model: as the endpoint names it.
    tokenizer: what counts tokens: a folder or hub id for transformers, or ``tiktoken:ENCODING``. None: see
        `mio_rag.generation.counters`.
    window: context window in tokens that prompt and completion share; None: unknown, nothing is refused here.
    concurrency: requests at a time in `generate_many`, from 1 to 1000.
    timeout_seconds: for one whole reply, > 0. After two that took longer, none is asked for.
    retries: repetitions of a failed request, from 0 to 100.
    logprobs: ask for log-probabilities; some endpoints refuse such a request.
    seed: sent with every request.

    Raises `InputError` if the address, or a parameter, is malformed; `MissingExtraError` without the extra
    ``openai``.

    Tokens are those that the server reports, where they can be true: whole, not below what the texts take by
    our own count, and not beyond the window. Otherwise our own count holds. An `Answer` also includes the
    tokens of earlier attempts that may have been charged.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        tokenizer: str | None = None,
        window: int | None = None,
        concurrency: int = 4,
        timeout_seconds: float = 60.0,
        retries: int = 3,
        logprobs: bool = False,
        seed: int = 0,
    ) -> None:
        try:
            address = urlsplit(base_url)
            address.port  # noqa: B018 (raises for a port that is none)
        except ValueError as error:
            raise InputError(f"openai: '{base_url}' is not an address ({error})") from error
        if address.scheme not in ("http", "https") or not address.hostname:
            raise InputError(
                f"openai: '{base_url}' is not an address: give one such as http://127.0.0.1:8080/v1"
            )
        if not model:
            raise InputError(f"openai: no model is named: write openai:MODEL@{base_url}")
        counts = 1 <= concurrency <= _MOST_CONCURRENCY and 0 <= retries <= _MOST_RETRIES
        if not counts or not 0 < timeout_seconds < math.inf:
            raise InputError(
                f"openai: concurrency={concurrency} must be from 1 to {_MOST_CONCURRENCY}, "
                f"timeout_seconds={timeout_seconds} a number > 0 and retries={retries} from 0 to "
                f"{_MOST_RETRIES}"
            )
        super().__init__(f"openai:{model}", window, concurrency)
        self._url, self._model, self._tokenizer = base_url.rstrip("/"), model, tokenizer
        self._timeout, self._retries = timeout_seconds, retries
        self._logprobs, self._seed = logprobs, seed
        key = os.environ.get("OPENAI_API_KEY") or "none"
        self._client = JsonClient(self._url.removesuffix("/v1"), key, timeout_seconds)
        self._chat = ("/v1" if self._url.endswith("/v1") else "") + "/chat/completions"
        # A tokenizer that the user names is loaded now: a wrong name is reported before any work is done.
        self._counter: PromptCounter | None = named_counter(tokenizer) if tokenizer else None
        self._is_hosted = address.hostname == "api.openai.com"
        self._prompts: OrderedDict[tuple[str, ...], int] = OrderedDict()
        self._limit = _LIMITS[self._is_hosted]
        self._refused: set[str] = set()  # parameters that the server does not take

    @property
    def identity(self) -> str:
        """Address and name of the model; what the server does behind them cannot be seen."""
        asked = {"url": self._url, "model": self._model, "temperature": 0, "seed": self._seed}
        return json.dumps(asked | {"logprobs": self._logprobs}, sort_keys=True)

    @property
    def content(self) -> str:
        """Its identity, and the tokenizer, which decides what it reads."""
        return f"{self.identity} {json.dumps({'tokenizer': self._tokenizer})}"

    # -- tokens

    def prompt_tokens(self, prompt: Prompt) -> int:
        """Tokens of the whole prompt under the model's chat template, as far as the counter knows it.

        Raises `GenerationError` if the server that should count is down.
        """
        self._check_open()
        key = tuple(prompt.texts)
        with self._lock:
            known = self._prompts.get(key)
        if known is None:
            known = self._counted(lambda counter: counter.prompt(prompt.messages, self.count))
            with self._lock:
                self._prompts[key] = known
                while len(self._prompts) > _REMEMBERED:
                    self._prompts.popitem(last=False)
        return known

    @property
    def counts_afar(self) -> bool:
        """Whether every count of new texts is a request."""
        return not self._is_hosted and not isinstance(self._counter, (HuggingFaceCounter, TiktokenCounter))

    def _count(self, texts: list[str]) -> list[int]:
        return self._counted(lambda counter: counter.count(texts))

    def _counted(self, job: Callable[[PromptCounter], T]) -> T:
        try:
            if self._counter is None:
                self._counter = find_counter(None if self._is_hosted else self._post, self._model)
            return job(self._counter)
        except HttpFailure as failure:
            raise GenerationError(
                f"the tokens of '{self._model}' cannot be counted: {self._failure(failure)} "
                "(with tokenizer=PATH they are counted here)"
            ) from failure

    def _post(self, path: str, body: Any, once: bool = False) -> Any:
        """Ask for a count, which is not charged."""
        return repeated(lambda: self._client.request("POST", path, body), 0 if once else self._retries)

    # -- replies

    def _asked(self, prompt: Prompt, max_tokens: int) -> Any:
        """The reply to a request, which is put in the server's terms where it refuses a parameter."""
        tell = told_pieces()
        plain: dict[str, Any] = {"temperature": prompt.temperature, "seed": self._seed}
        if tell is not None:
            plain["stream_options"] = {"include_usage": True}
        while True:
            limit = self._limit  # another thread may change it meanwhile
            request = {
                "model": self._model,
                "messages": prompt.messages,
                **{name: value for name, value in plain.items() if name not in self._refused},
                limit: max_tokens,
                **({"logprobs": True} if self._logprobs else {}),
                **({} if tell is None else {"stream": True}),
            }
            pieces = None if tell is None else Pieces(tell)
            try:
                if pieces is None:
                    return self._client.request("POST", self._chat, request)
                reply = self._client.request("POST", self._chat, request, pieces.hear)
                if reply is None and not pieces.ended:
                    raise HttpFailure("the reply ends in the middle")
                return pieces.reply if reply is None else reply
            except HttpFailure as failure:
                if pieces is not None and pieces.told:
                    failure.repeat = False
                    raise
                said = str(failure)
                if failure.status not in (400, 422) or not _UNSUPPORTED.search(said):
                    raise
                other = _LIMITS[limit == _LIMITS[0]]
                refused = {name for name in plain if name in said and name in request}
                if limit in said and other not in self._refused:
                    self._refused.add(limit)
                    self._limit = other
                elif refused:
                    self._refused |= refused
                else:
                    raise

    def _generate(self, prompt: Prompt, max_tokens: int) -> Answer:
        """Ask until a usable reply comes. All that may have been charged is part of the answer, or error."""
        start, into, out, late = time.perf_counter(), 0, 0, list[bool]()

        def lost(error: GenerationError) -> bool:
            nonlocal into, out
            attempt = error.spent
            if attempt is not None:
                into, out = into + attempt.prompt_tokens, out + attempt.completion_tokens
            if into or out:
                error.spent = Answer("", into, out, time.perf_counter() - start, self.name)
            cause = error.__cause__
            late.append(isinstance(cause, HttpFailure) and self._client.is_timeout(cause))
            return sum(late) < 2 and (attempt is None or may_repeat(attempt))

        answer = repeated(lambda: self._once(prompt, max_tokens), self._retries, lost)
        return replace(
            answer,
            prompt_tokens=answer.prompt_tokens + into,
            completion_tokens=answer.completion_tokens + out,
            latency_seconds=time.perf_counter() - start,
        )

    def _once(self, prompt: Prompt, max_tokens: int) -> Answer:
        """Send one request. Whatever fails once it was sent counts with the prompt and the longest reply."""
        start = time.perf_counter()
        try:
            reply = self._asked(prompt, max_tokens)
            return self._answer(reply, prompt, max_tokens, time.perf_counter() - start)
        except GenerationError as failure:
            error = failure
            if isinstance(failure, HttpFailure):
                error = self._failure(failure)
                error.__cause__ = failure
        if error.untold:
            seconds = time.perf_counter() - start
            error.spent = Answer("", most_tokens(self, prompt), max_tokens, seconds, self.name)
        raise error

    def _generate_many(self, prompts: list[Prompt], max_tokens: int) -> Replies:
        with ThreadPoolExecutor(max_workers=min(self.concurrency, len(prompts))) as pool:
            done = pool.map(lambda one: one_by_one(lambda p: self._generate(p, max_tokens), [one]), prompts)
            return [reply for replies in done for reply in replies]

    def _answer(self, reply: Any, prompt: Prompt, max_tokens: int, seconds: float) -> Answer:
        try:
            choice = reply["choices"][0]
            message = choice["message"]
            thought = next(filter(None, (message.get(name) for name in _THOUGHTS)), None)
            said = message.get("content") if thought else message["content"]
            thoughts = [str(one["message"].get(name) or "") for one in reply["choices"] for name in _THOUGHTS]
            others = [_joined(one["message"].get("content")) or "" for one in reply["choices"][1:]]
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise self._foreign("without choices") from error
        whole = _joined(said)
        if whole is None:
            raise self._foreign(f"with a content that is no text but a {type(said).__name__}")
        whole = whole.strip()
        told = reply.get("usage")
        into, out = self._believed(told, prompt, [whole, *others, *thoughts], max_tokens)
        believed = isinstance(told, dict) and (into, out) == tuple(map(told.get, _USAGE))
        answer = Answer(whole, into, out, seconds, self.name, _logprobs(choice), estimated=not believed)
        if not whole and (choice.get("finish_reason") == "content_filter" or message.get("refusal")):
            said = message.get("refusal") or "its content filter removed the answer"
            raise GenerationError(f"{self._url} refuses to answer: {said}", spent=answer, repeat=False)
        return spoken(answer, bool(thought) or choice.get("finish_reason") == "length")

    def _believed(self, usage: Any, prompt: Prompt, texts: Sequence[str], max_tokens: int) -> tuple[int, int]:
        """Tokens of prompt and reply, as the server reports them where that can be true, else our count.

        texts: all that it replied, thoughts included.
        """
        told = usage if isinstance(usage, dict) else {}
        into, out = map(told.get, _USAGE)
        written, asked = "".join(texts), sum(len(text) for text in prompt.texts)
        window, least = self.context_window, 1 if written else 0
        with self._lock:
            known = sum(self._counts.get(one, 0) for one in prompt.texts)  # exact
        if isinstance(self._counter, (HuggingFaceCounter, TiktokenCounter)):
            known, least = sum(self.count(prompt.texts)), self.count([written])[0]
        known = max(1, known, asked // _LONGEST_TOKEN)
        if not _is_count(into, known, window or 4 * asked + _HIDDEN_TOKENS):
            into = most_tokens(self, prompt)
        # A server that ignores the limit charges for what it wrote.
        least = max(least, len(written) // _LONGEST_TOKEN)
        if not _is_count(out, least, window or max_tokens + _HIDDEN_TOKENS):
            try:
                said = self.count([written])[0]
            except MioRagError:
                said = min(max_tokens, len(written.encode("utf-8", "replace")))
            out = said if out is None else max(said, max_tokens)
        return into, out

    def _foreign(self, what: str) -> GenerationError:
        why = f"{self._url} replied {what}: it may not speak the chat-completions protocol"
        return GenerationError(why, untold=True, repeat=False)

    def _failure(self, failure: HttpFailure) -> GenerationError:
        if self._client.is_timeout(failure):
            why = (
                f"{self._url} did not answer within {self._timeout:g} s: raise timeout_seconds, or what "
                "lowers it (limits.timeout), or lower concurrency if the server is overloaded"
            )
        elif failure.status is None:
            why = f"{self._url} cannot be reached ({failure}): is it running?"
        elif failure.status in (401, 403):
            why = f"{self._url} refuses the key ({failure}): set OPENAI_API_KEY"
        else:
            why = f"{self._url} failed for model '{self._model}': {failure}"
        return GenerationError(
            why, untold=failure.untold, repeat=failure.repeat, retry_after=failure.retry_after
        )

    def _close(self) -> None:
        self._client.close()


def _joined(content: Any) -> str | None:
    """The text of a reply, of a list of parts without those that hold thinking; None for no text."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list) or not all(isinstance(part, (str, dict)) for part in content):
        return None
    parts = [{"text": part} if isinstance(part, str) else part for part in content]
    texts = [part.get("text") for part in parts if part.get("type") in (None, "text", "output_text")]
    return "".join(text for text in texts if isinstance(text, str))


def _is_count(value: Any, least: int, most: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _logprobs(choice: Any) -> tuple[float, ...] | None:
    """Of each token of the reply; None where they are not there, or not whole."""
    try:
        scored = tuple(float(token["logprob"]) for token in choice["logprobs"]["content"])
    except (KeyError, TypeError, ValueError):
        return None
    return scored if scored and all(map(math.isfinite, scored)) else None
