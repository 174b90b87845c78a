"""The three re-rankers that come with mio-rag; `mio_rag.retrieval.rerank` says how they are used."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mio_rag.errors import InputError, require
from mio_rag.generation.prompts import relevance_prompt
from mio_rag.generation.protocol import ChoiceWeigher, Generator
from mio_rag.retrieval.embedders import packaged_minilm, sampled_digest
from mio_rag.retrieval.reranker import FloatArray, Pair, Progress

__all__ = ["CrossEncoderReranker", "MaxSim", "YesNo", "load_sentence_model"]

_LONGEST_FIRST = 64  # passages embedded together


def load_sentence_model(kind: str, library: Any, model: str) -> Any:
    """A model of sentence-transformers, by hub id or folder."""
    local = Path(model).is_dir()
    if not local and (model.startswith((".", "~", "/")) or model.count("/") > 1):
        raise InputError(f"{kind} '{model}' is no folder: give the folder of a sentence-transformers model")
    require("transformers", "retrieval", kind).utils.logging.disable_progress_bar()
    logging.getLogger("sentence_transformers").setLevel(logging.ERROR)
    try:
        return library(model, device="cpu", local_files_only=local)
    except Exception as error:  # the library raises OSError, ValueError and hub errors alike
        reason = next(iter(str(error)[:200].splitlines()), "no reason given")
        raise InputError(
            f"{kind} '{model}' could not be loaded ({type(error).__name__}: {reason}): give a folder, or the "
            "id of a model on a hub that can be reached from here"
        ) from error


class MaxSim:
    """Late interaction: the mean over the question's tokens of the best cosine with a token of the passage.

    Parameters
    ----------
    model : str or None
        A sentence-transformers model by hub id or folder; None: the packaged MiniLM. Its token embeddings
        serve as they are; a model trained for late interaction is better at it.

    Notes
    -----
    Khattab and Zaharia (ColBERT, SIGIR 2020), with the mean in place of the sum, so that scores of long and
    short questions are alike. Special tokens do not take part. In [-1, 1].
    """

    name = "maxsim"

    def __init__(self, model: str | None = None) -> None:
        library = require("sentence_transformers", "retrieval", "re-ranker 'maxsim'").SentenceTransformer
        folder = str(packaged_minilm()) if model is None else model
        self._model = load_sentence_model("re-ranker 'maxsim'", library, folder)
        self._digest = sampled_digest(self._model, str(self._model.max_seq_length))

    @property
    def fingerprint(self) -> str:
        """Method and weights."""
        return f"maxsim-mean:{self._digest}"

    def score(self, pairs: Sequence[Pair], progress: Progress | None = None) -> FloatArray:
        """See `Reranker`; every text is embedded once."""
        questions = list(dict.fromkeys(question for question, _ in pairs))
        asked = dict(zip(questions, self._tokens(questions), strict=True))
        by_passage: dict[str, list[int]] = {}
        for k, (_, passage) in enumerate(pairs):
            by_passage.setdefault(passage, []).append(k)
        found = np.zeros(len(pairs))
        order = sorted(by_passage, key=len, reverse=True)  # batches of like length
        for first in range(0, len(order), _LONGEST_FIRST):
            part = order[first : first + _LONGEST_FIRST]
            for passage, tokens in zip(part, self._tokens(part), strict=True):
                for k in by_passage[passage]:
                    query = asked[pairs[k][0]]
                    if len(query) and len(tokens):
                        found[k] = float((query @ tokens.T).max(axis=1).mean())
                if progress:
                    progress(len(by_passage[passage]))
        return found

    def _tokens(self, texts: Sequence[str]) -> list[Any]:
        """Unit rows of the tokens of each text, without special ones."""
        encoded = self._model.encode(
            list(texts), output_value=None, batch_size=32, show_progress_bar=False, convert_to_numpy=False
        )
        special = set(self._model.tokenizer.all_special_ids)
        rows = []
        for one in encoded:
            kept = [k for k, token in enumerate(one["input_ids"].tolist()) if token not in special]
            matrix = one["token_embeddings"][kept].float().cpu().numpy()
            rows.append(matrix / np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), 1e-12))
        return rows


class CrossEncoderReranker:
    """A sentence-transformers CrossEncoder with one output; its raw score (a logit, for most models).

    Parameters
    ----------
    model : str
        Hub id ("cross-encoder/ms-marco-MiniLM-L6-v2") or folder.

    Raises
    ------
    InputError
        If it cannot be loaded, or has several outputs.
    """

    name = "cross-encoder"

    def __init__(self, model: str) -> None:
        library = require("sentence_transformers", "retrieval", "re-ranker 'cross-encoder'").CrossEncoder
        self._model = load_sentence_model("re-ranker 'cross-encoder'", library, model)
        if self._model.num_labels != 1:
            raise InputError(
                f"cross-encoder '{model}' has {self._model.num_labels} outputs: a re-ranker has one"
            )
        self._identity = require("torch", "retrieval", "re-ranker 'cross-encoder'").nn.Identity()
        longest = getattr(self._model, "max_seq_length", None) or self._model.max_length  # its older name
        self._digest = sampled_digest(self._model, str(longest))

    @property
    def fingerprint(self) -> str:
        """Method and weights."""
        return f"cross-encoder:{self._digest}"

    def score(self, pairs: Sequence[Pair], progress: Progress | None = None) -> FloatArray:
        """See `Reranker`."""
        if not pairs:
            return np.zeros(0)
        scores = self._model.predict(
            list(pairs), batch_size=32, show_progress_bar=False, activation_fn=self._identity
        )
        if progress:
            progress(len(pairs))
        return np.asarray(scores, dtype=np.float64)


class YesNo:
    """A language model is asked whether the passage helps to answer; log-odds of Yes against No.

    Parameters
    ----------
    generator : Generator
        One that can weigh options (`ChoiceWeigher`): gguf and hf.

    Raises
    ------
    InputError
        If it cannot.

    Notes
    -----
    Nogueira et al. (2020) rank by such a probability.
    """

    name = "yes-no"
    OPTIONS = ("Yes", "No")

    def __init__(self, generator: Generator) -> None:
        if not isinstance(generator, ChoiceWeigher):
            raise InputError(
                f"re-ranker 'yes-no' needs a model that weighs options, and {generator.name} cannot: "
                "give yes-no:gguf:PATH or yes-no:hf:ID_OR_PATH"
            )
        self._generator: ChoiceWeigher = generator
        # A name is no proof of the weights behind it; what they say to a fixed question is.
        wording = relevance_prompt("Who baked the bread?", "The bread was baked by Ada.")
        said = generator.weigh(wording, self.OPTIONS)
        digest = hashlib.sha256(f"{wording.system}\0{wording.user}\0{said}".encode()).hexdigest()[:16]
        self._fingerprint = f"yes-no:{generator.name}:{digest}"

    @property
    def fingerprint(self) -> str:
        """The generator's name, the wording, and what the model says to a fixed question."""
        return self._fingerprint

    def score(self, pairs: Sequence[Pair], progress: Progress | None = None) -> FloatArray:
        """See `Reranker`; one prompt a pair."""
        scores = []
        for question, passage in pairs:
            yes, no = self._generator.weigh(relevance_prompt(question, passage), self.OPTIONS)
            scores.append(float(np.clip(yes - no, -50.0, 50.0)) if math.isfinite(yes - no) else 0.0)
            if progress:
                progress(1)
        return np.array(scores)
