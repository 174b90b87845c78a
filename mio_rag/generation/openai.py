"""Language models behind any endpoint that speaks OpenAI's chat-completions protocol.

llama.cpp, vLLM, Ollama, LM Studio and hosted services alike. `generate_many` sends several requests at a
time; the client repeats a request after 408, 409, 429, 5xx and lost connections, with exponential back-off.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import urlsplit

from mio_rag.errors import InputError, require
from mio_rag.generation._counters import PromptCounter, find_counter, named_counter
from mio_rag.generation._http import HttpFailure
from mio_rag.generation.base import BaseGenerator
from mio_rag.generation.prompts import Prompt
from mio_rag.types import Answer, GenerationError

__all__ = ["OpenAIGenerator"]

T = TypeVar("T")


class OpenAIGenerator(BaseGenerator):
    """A model behind an endpoint.

    The key is taken from the environment variable ``OPENAI_API_KEY``; without one "none" is sent, as local
    servers expect.

    Parameters
    ----------
    base_url : str
        Up to and with ``/v1``, for instance ``http://127.0.0.1:8080/v1``.
    model : str
        As the endpoint names it.
    tokenizer : str or None
        What counts tokens: a folder or hub id for transformers, or ``tiktoken:ENCODING``. None: the server's
        own ``/tokenize`` (llama.cpp, vLLM), else tiktoken if it knows the model's name, else an error, when
        the first count is asked for.
    window : int or None
        Context window in tokens that prompt and completion share; None: unknown, nothing is refused here.
    concurrency : int
        Requests at a time in `generate_many`, >= 1.
    timeout_seconds : float
        For one request, > 0.
    retries : int
        Repetitions of a failed request, >= 0.
    logprobs : bool
        Ask for log-probabilities; some endpoints refuse such a request.
    seed : int
        Sent with every request, where the endpoint is not OpenAI's reasoning family it makes replies
        repeatable.

    Raises
    ------
    InputError
        If the address, or a parameter, is malformed.
    MissingExtraError
        Without the extra ``openai``.
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
        address = urlsplit(base_url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise InputError(
                f"openai: '{base_url}' is not an address: give one such as http://127.0.0.1:8080/v1"
            )
        if not model:
            raise InputError(f"openai: no model is named: write openai:{base_url}#MODEL")
        if concurrency < 1 or timeout_seconds <= 0 or retries < 0:
            raise InputError(
                f"openai: concurrency={concurrency} must be >= 1, timeout_seconds={timeout_seconds} > 0 and "
                f"retries={retries} >= 0"
            )
        super().__init__(f"openai:{model}", window, concurrency)
        self._openai = require("openai", "openai", "calling an OpenAI-compatible endpoint")
        self._httpx = require("httpx", "openai", "calling an OpenAI-compatible endpoint")
        self._url, self._model = base_url.rstrip("/"), model
        self._timeout = timeout_seconds
        self._logprobs, self._seed = logprobs, seed
        self._settings: dict[str, Any] = {
            "base_url": self._url,
            "api_key": os.environ.get("OPENAI_API_KEY") or "none",
            "timeout": timeout_seconds,
            "max_retries": retries,
        }
        self._client: Any = self._openai.OpenAI(**self._settings)
        # A tokenizer that the user names is loaded now: a wrong name is reported before any work is done.
        self._counter: PromptCounter | None = named_counter(tokenizer) if tokenizer else None
        # OpenAI's own models have renamed the parameter; compatible servers know the old name.
        self._limit = "max_completion_tokens" if address.hostname == "api.openai.com" else "max_tokens"

    @property
    def identity(self) -> str:
        """Address and name of the model; what the server does behind them it cannot see."""
        told = {"url": self._url, "model": self._model, "temperature": 0, "seed": self._seed}
        return json.dumps(told | {"logprobs": self._logprobs}, sort_keys=True)

    def prompt_tokens(self, prompt: Prompt) -> int:
        """Tokens of the whole prompt under the model's chat template, as far as the counter knows it.

        Raises
        ------
        GenerationError
            If nothing can count this model's tokens, or the server that should is down.
        """
        self._check_open()
        return self._counted(lambda counter: counter.prompt(prompt))

    def _count(self, texts: list[str]) -> list[int]:
        return self._counted(lambda counter: counter.count(texts))

    def _counted(self, job: Callable[[PromptCounter], T]) -> T:
        try:
            if self._counter is None:
                self._counter = find_counter(self._post, self._model, self._concurrency)
            return job(self._counter)
        except HttpFailure as failure:
            raise GenerationError(
                f"the tokens of '{self._model}' cannot be counted: {failure} "
                "(with tokenizer=PATH they are counted here)"
            ) from failure

    def _post(self, path: str, body: Any) -> Any:
        try:
            return self._client.post(self._url.removesuffix("/v1") + path, body=body, cast_to=object)
        except self._openai.OpenAIError as error:
            raise HttpFailure(str(self._failure(error)), getattr(error, "status_code", None)) from error

    def _request(self, prompt: Prompt, max_tokens: int) -> dict[str, Any]:
        return {
            "model": self._model,
            "messages": [
                {"role": "system", "content": prompt.system},
                {"role": "user", "content": prompt.user},
            ],
            "temperature": 0,
            "seed": self._seed,
            self._limit: max_tokens,
            **({"logprobs": True} if self._logprobs else {}),
        }

    def _generate(self, prompt: Prompt, max_tokens: int) -> Answer:
        start = time.perf_counter()
        try:
            reply = self._client.chat.completions.create(**self._request(prompt, max_tokens))
        except self._openai.OpenAIError as error:
            raise self._failure(error) from error
        return self._answer(reply, prompt, time.perf_counter() - start)

    def _generate_many(self, prompts: list[Prompt], max_tokens: int) -> list[Answer | GenerationError]:
        # A thread of its own, since a notebook already runs an event loop in this one.
        with ThreadPoolExecutor(max_workers=1) as pool:
            return pool.submit(asyncio.run, self._gather(prompts, max_tokens)).result()

    async def _gather(self, prompts: list[Prompt], max_tokens: int) -> list[Answer | GenerationError]:
        gate = asyncio.Semaphore(self._concurrency)

        async def one(client: Any, prompt: Prompt) -> Answer | GenerationError:
            async with gate:
                start = time.perf_counter()
                try:
                    reply = await client.chat.completions.create(**self._request(prompt, max_tokens))
                    return self._answer(reply, prompt, time.perf_counter() - start)
                except self._openai.OpenAIError as error:
                    return self._failure(error)
                except GenerationError as error:
                    return error

        async with self._openai.AsyncOpenAI(**self._settings) as client:
            return list(await asyncio.gather(*(one(client, prompt) for prompt in prompts)))

    def _stream(self, prompt: Prompt, max_tokens: int) -> Iterator[str]:
        try:
            with self._client.chat.completions.create(
                **self._request(prompt, max_tokens), stream=True
            ) as chunks:
                for chunk in chunks:
                    if chunk.choices and chunk.choices[0].delta.content:
                        yield chunk.choices[0].delta.content
        except self._openai.OpenAIError as error:
            raise self._failure(error) from error

    def _answer(self, reply: Any, prompt: Prompt, seconds: float) -> Answer:
        if not getattr(reply, "choices", None):
            raise GenerationError(
                f"{self._url} replied without choices: it may not speak the chat-completions protocol"
            )
        choice, usage = reply.choices[0], getattr(reply, "usage", None)
        text = (choice.message.content or "").strip()
        scored = choice.logprobs.content if getattr(choice, "logprobs", None) else None
        return Answer(
            text=text,
            prompt_tokens=usage.prompt_tokens if usage else self.prompt_tokens(prompt),
            completion_tokens=usage.completion_tokens if usage else self.count([text])[0],
            latency_seconds=seconds,
            generator=self.name,
            logprobs=tuple(float(token.logprob) for token in scored) if scored else None,
        )

    def _failure(self, error: Exception) -> GenerationError:
        tried = f"after {self._settings['max_retries'] + 1} attempts"
        if isinstance(error, self._openai.APITimeoutError):
            return GenerationError(
                f"{self._url} did not answer within {self._timeout:g} s, {tried}: raise timeout_seconds, or "
                "lower concurrency if the server is overloaded",
                untold=True,
            )
        if isinstance(error, self._openai.APIConnectionError):
            return GenerationError(
                f"{self._url} cannot be reached ({error.__cause__ or error}), {tried}: is it running?",
                # A connection that never came about has charged nothing.
                untold=not isinstance(error.__cause__, self._httpx.ConnectError),
            )
        if isinstance(error, self._openai.AuthenticationError):
            return GenerationError(f"{self._url} refuses the key: set OPENAI_API_KEY")
        return GenerationError(f"{self._url} failed for model '{self._model}': {str(error)[:300]}")

    def _close(self) -> None:
        self._client.close()
