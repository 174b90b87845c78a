"""Embeddings of a model behind an endpoint that speaks OpenAI's protocol: hosted, Ollama, vLLM, llama.cpp."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import InputError
from mio_rag.generation.base import repeated
from mio_rag.generation.http import HttpFailure, JsonClient
from mio_rag.retrieval.cached import CachedEmbedder
from mio_rag.types import GenerationError

_BATCH, _AT_A_TIME = 64, 4  # texts of a request, requests
_SECONDS, _RETRIES = 60.0, 3


class EndpointEmbedder(CachedEmbedder):
    """An embedding model behind an endpoint; vectors are kept on disk, so that no text is paid for twice.

    spec: ``NAME[@URL]``; the URL, up to and with ``/v1``, is ``$OPENAI_BASE_URL`` or OpenAI's own by default.
        ``$OPENAI_API_KEY`` is sent to these and to this machine alone.
    stored: an index names the model, and not the user: other addresses are refused, which would be sent every
        question.
    cache: keep the vectors; what a server changes behind the same name cannot be seen.

    Raises `InputError` for a specification of another form.
    """

    is_paid = True

    def __init__(self, spec: str, *, cache: bool = True, stored: bool = False) -> None:
        self._model, _, url = spec.partition("@")
        usual = (os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1").rstrip("/")
        self._url = url.rstrip("/") or usual
        if (
            not self._model.strip()
            or "://" in self._model
            or not self._url.startswith(("http://", "https://"))
        ):
            raise InputError(
                f"embedder 'openai:{spec}' names no model at an address: write openai:NAME@http://HOST:PORT/v1"
            )
        host: str | None = None
        with suppress(ValueError):
            host = urlsplit(self._url).hostname
        trusted = self._url == usual or host in ("localhost", "127.0.0.1", "::1")
        if stored and not trusted:
            raise InputError(
                f"the index asks for embeddings of '{self._model}' from {self._url}, which would be sent "
                f"every question: set OPENAI_BASE_URL={self._url} to allow it"
            )
        super().__init__(f"openai:{self._model}@{self._url}", cache=cache, batch_size=_BATCH)
        key = (os.environ.get("OPENAI_API_KEY") if trusted else None) or "none"
        self._client = JsonClient(self._url, key, _SECONDS)

    @property
    def fingerprint(self) -> str:
        """Address and name of the model."""
        return self.name

    @cached_property
    def dimensions(self) -> int:
        """Length of a vector, as the server tells it."""
        return len(self.encode(["length"])[0])

    def _embed(self, texts: Sequence[str]) -> NDArray[Any]:
        return repeated(lambda: self._asked(texts), _RETRIES)

    def _embedded(self, texts: Sequence[str]) -> Iterator[tuple[Sequence[str], NDArray[Any]]]:
        parts = [texts[at : at + _BATCH] for at in range(0, len(texts), _BATCH)]
        width, error = 0, None
        with ThreadPoolExecutor(_AT_A_TIME) as pool:
            asked = {pool.submit(self._embed, part): part for part in parts}
            for one in as_completed(asked):
                if one.cancelled():
                    continue
                if (failed := one.exception()) is not None:
                    error = error or failed
                    pool.shutdown(wait=False, cancel_futures=True)  # those under way are paid, and kept
                    continue
                rows = one.result()
                width = width or rows.shape[1]
                if rows.shape[1] != width:
                    raise GenerationError(
                        f"{self._url} gave vectors of different lengths for '{self._model}'"
                    )
                yield asked[one], rows
        if error is not None:
            raise error

    def _asked(self, texts: Sequence[str]) -> NDArray[np.float32]:
        # No server embeds an empty text.
        body = {"model": self._model, "input": [text or " " for text in texts], "encoding_format": "float"}
        try:
            reply = self._client.request("POST", "/embeddings", body)
        except HttpFailure as failure:
            why = "set OPENAI_API_KEY" if failure.status in (401, 403) else "is it running, with that model?"
            raise GenerationError(
                f"no embeddings of '{self._model}' from {self._url} ({failure}): {why}",
                repeat=failure.repeat, retry_after=failure.retry_after,
            ) from failure  # fmt: skip
        try:
            data = sorted(reply["data"], key=lambda row: int(row["index"]))
            rows = np.array([row["embedding"] for row in data], dtype=np.float32)
        except (LookupError, TypeError, ValueError) as error:
            raise GenerationError(
                f"{self._url} sent no embeddings for '{self._model}': {str(reply)[:200]}", repeat=False
            ) from error
        if rows.ndim != 2 or len(rows) != len(texts) or not np.isfinite(rows).all():
            raise GenerationError(
                f"{self._url} sent an array of shape {rows.shape} for {len(texts)} texts: one vector of "
                "finite numbers for each was expected",
                repeat=False,
            )
        return rows
