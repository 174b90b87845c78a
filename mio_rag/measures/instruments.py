"""Models that some measures need: an embedder, token vectors, a judge, a writer of questions."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import InputError, require
from mio_rag.generation.protocol import Generator
from mio_rag.retrieval.embedders import Embedder, sampled_digest
from mio_rag.retrieval.minilm import packaged_minilm
from mio_rag.types import Passage

_PACKAGED = "minilm"
_LONGEST = 512  # tokens; tokenizers without a limit report an absurd one


class Judge(Protocol):
    """Decides whether passages support a sentence of an answer.

    name, fingerprint: for the record of a run; the latter changes whenever a verdict could.
    """

    name: str
    fingerprint: str

    def supports(self, question: str, sentence: str, passages: tuple[Passage, ...]) -> bool:
        """Return the verdict; never called without passages."""
        ...


class TokenVectors:
    """Unit vectors of the tokens of a text, by a layer of a transformer.

    model: folder or hub id of a transformers encoder; "minilm": the packaged all-MiniLM-L6-v2. That one was
        trained to embed sentences: its scores compare with one another, not with published ones.
    layer: from 1 to the number of layers; None: the last. Zhang et al. list the best one of many models.

    Raises `InputError` if the model cannot be loaded, or has fewer layers.
    """

    def __init__(self, model: str = _PACKAGED, layer: int | None = None) -> None:
        transformers: Any = require("transformers", "torch", "BERTScore")
        self._torch: Any = require("torch", "torch", "BERTScore")
        folder = str(packaged_minilm()) if model == _PACKAGED else model
        local = Path(folder).is_dir()
        transformers.utils.logging.disable_progress_bar()
        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=local)
            self._model = transformers.AutoModel.from_pretrained(folder, local_files_only=local).eval()
        except Exception as error:  # the library raises OSError, ValueError and hub errors alike
            reason = next(iter(str(error)[:200].splitlines()), "no reason given")
            raise InputError(
                f"the model '{model}' of BERTScore could not be loaded ({type(error).__name__}: {reason}): "
                f"give the folder or hub id of a transformers encoder, or '{_PACKAGED}'"
            ) from error
        layers = int(self._model.config.num_hidden_layers)
        self._layer = layers if layer is None else layer
        if not 1 <= self._layer <= layers:
            raise InputError(f"layer={layer} of '{model}' for BERTScore must be between 1 and {layers}")
        called = "packaged all-MiniLM-L6-v2" if model == _PACKAGED else model
        self.name = f"{called}, layer {self._layer}"
        words = hashlib.sha256(f"{self._tokenizer.get_vocab()!r}".encode()).hexdigest()
        self.fingerprint = f"bert-score:{sampled_digest(self._model, words)}:{self._layer}"

    def of(self, text: str) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return unit rows, shape (tokens, d), and which of them are no special tokens."""
        limit = min(int(self._tokenizer.model_max_length), _LONGEST)
        found = self._tokenizer(text.strip(), truncation=True, max_length=limit, return_tensors="pt")
        with self._torch.no_grad():
            states = self._model(**found, output_hidden_states=True).hidden_states
        rows = states[self._layer][0].double().numpy()
        special = set(self._tokenizer.all_special_ids)
        unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        return unit, np.array([token not in special for token in found["input_ids"][0].tolist()])


@dataclass(frozen=True, eq=False)
class Instruments:
    """Further models of a run: for cosines, BERTScore, support by passages, and written questions.

    A measure whose instrument is missing is not computed.
    """

    embedder: Embedder | None = None
    tokens: TokenVectors | None = None
    judge: Judge | None = None
    writer: Generator | None = None

    @property
    def given(self) -> frozenset[str]:
        """Names of the instruments that are there."""
        names = ("embedder", "tokens", "judge", "writer")
        return frozenset(name for name in names if getattr(self, name) is not None)

    def record(self) -> dict[str, dict[str, str]] | None:
        """Return names and fingerprints for the record of a run; None without instruments."""
        found: dict[str, dict[str, str]] = {}
        for name in ("embedder", "tokens", "judge"):
            if (one := getattr(self, name)) is not None:
                found[name] = {"name": one.name, "fingerprint": one.fingerprint}
        if self.writer is not None:
            found["writer"] = {"name": self.writer.name, "fingerprint": self.writer.identity or ""}
        return found or None


@dataclass(frozen=True, eq=False)
class Reading:
    """What was read and answered, and the instruments to measure it.

    passages: in the order of the prompt; empty if nothing was read.
    answer: None: there is none.
    known: cache of results for this question: methods often read and answer the same.
    """

    instruments: Instruments
    passages: tuple[Passage, ...] = ()
    answer: str | None = None
    known: dict[object, object] = field(default_factory=dict)
