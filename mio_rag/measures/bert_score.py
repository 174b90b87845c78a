"""BERTScore: how well the tokens of two texts match by their vectors in a language model.

The package bert-score computes the same, and needs pandas and matplotlib for it; tests compare the two.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import InputError, require
from mio_rag.retrieval.embedders import sampled_digest
from mio_rag.retrieval.minilm import packaged_minilm

_PACKAGED = "minilm"
_LONGEST = 512  # tokens; tokenizers without a limit name an absurd one


class TokenVectors:
    """Unit vectors of the tokens of a text, by a layer of a transformer.

    Parameters
    ----------
    model : str
        Folder or hub id of a transformers encoder; "minilm": the packaged all-MiniLM-L6-v2, which was trained
        to embed sentences and not for this: its scores are comparable with one another, not with published
        ones.
    layer : int or None
        Whose output is taken, from 1 to the number of layers; None: the last. Zhang et al. list the best one
        for each model they tried.

    Raises
    ------
    InputError
        If the model cannot be loaded, or has fewer layers.
    """

    def __init__(self, model: str = _PACKAGED, layer: int | None = None) -> None:
        transformers: Any = require("transformers", "retrieval", "BERTScore")
        self._torch: Any = require("torch", "retrieval", "BERTScore")
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
            raise InputError(
                f"layer {layer} of '{model}' is asked for BERTScore: it must be between 1 and {layers}"
            )
        called = "packaged all-MiniLM-L6-v2" if model == _PACKAGED else model
        self.name = f"{called}, layer {self._layer}"
        settings = f"{self._tokenizer.get_vocab()!r}"
        words = hashlib.sha256(settings.encode()).hexdigest()
        self.fingerprint = f"bert-score:{sampled_digest(self._model, words)}:{self._layer}"

    def of(self, text: str) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Unit rows, shape (tokens, d), and which of them are words, special tokens being none."""
        limit = min(int(self._tokenizer.model_max_length), _LONGEST)
        found = self._tokenizer(text.strip(), truncation=True, max_length=limit, return_tensors="pt")
        ids = found["input_ids"][0].tolist()
        with self._torch.no_grad():
            states = self._model(**found, output_hidden_states=True).hidden_states
        rows = states[self._layer][0].double().numpy()
        special = set(self._tokenizer.all_special_ids)
        unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        return unit, np.array([token not in special for token in ids])


def bert_score(vectors: TokenVectors, accepted: str, given: str) -> float:
    """F1 of matching each token with the most similar one of the other text; 0 where a text has no words.

    Zhang et al., BERTScore, ICLR 2020: without weights by rarity and without rescaling. As in the authors'
    package a token may match a special one, which itself does not count.
    """
    (one, words), (other, others) = vectors.of(accepted), vectors.of(given)
    if not words.any() or not others.any():
        return 0.0
    cosines = one @ other.T
    recall = float(cosines.max(axis=1)[words].mean())
    precision = float(cosines.max(axis=0)[others].mean())
    return 2 * precision * recall / (precision + recall) if precision + recall > 0 else 0.0
