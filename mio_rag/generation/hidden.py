"""The last hidden state of a language model as a vector of a text, by llama.cpp; nothing is generated.

The state after the last token, from which the model would go on, at unit length. Weights stay as they are.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.entries import unit_rows
from mio_rag.errors import require
from mio_rag.generation.gguf import has_devices, model_file
from mio_rag.storage import known_sha256_of
from mio_rag.types import GenerationError, clean

#: What names of such vectors begin with.
PREFIX = "hidden:"
_SILENT = -1
_ONCE = 16  # texts of a call


class HiddenStates:
    """Vectors of texts from a frozen GGUF model.

    path: a ``.gguf`` file.
    n_ctx: longest text in tokens; longer ones are refused by llama.cpp.

    Raises `InputError` if the file is missing or is not GGUF; `GenerationError` if llama.cpp cannot load the
    model; `MissingExtraError` without the extra ``gguf``.
    """

    def __init__(self, path: str | Path, n_ctx: int = 512) -> None:
        file = model_file(path)
        xllamacpp: Any = require("xllamacpp", "gguf", "running a GGUF model")
        digest = known_sha256_of(file)
        self.name = f"{PREFIX}{file.name}"
        self._fingerprint = f"{PREFIX}{digest[:16]}"
        params = xllamacpp.CommonParams()
        params.model.path = str(file)
        params.n_ctx = params.n_batch = params.n_ubatch = n_ctx
        params.n_parallel = 1
        params.embedding = True
        params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_LAST
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
        params.verbosity = _SILENT
        params.api_keys = [secrets.token_urlsafe(24)]
        params.ui = False
        params.fit_params = has_devices(xllamacpp)
        try:
            self._server: Any = xllamacpp.Server(params)
        except RuntimeError as error:
            raise GenerationError(f"llama.cpp cannot load {file}: {error}") from error
        self.encode(["."])  # a server that is dropped before it has served anything never ends

    @property
    def fingerprint(self) -> str:
        """The model's file by its content."""
        return self._fingerprint

    def encode(
        self, texts: Sequence[str], progress: Callable[[int], None] | None = None
    ) -> NDArray[np.float32]:
        """Unit rows, shape (len(texts), d), float32.

        Raises `GenerationError` if the model refuses a text, for instance one that is too long.
        """
        rows: list[Any] = []
        for start in range(0, len(texts), _ONCE):
            given = [clean(text).strip() or " " for text in texts[start : start + _ONCE]]
            reply = self._server.handle_embeddings({"input": given})
            if "error" in reply:
                raise GenerationError(f"{self.name}: {reply['error'].get('message', reply['error'])}")
            rows += [entry["embedding"] for entry in sorted(reply["data"], key=lambda entry: entry["index"])]
            if progress is not None:
                progress(len(given))
        return np.asarray(unit_rows(rows), dtype=np.float32)
