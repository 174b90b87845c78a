"""Judges of support: whether the passages that were read support the answer.

    words                      every content word of the sentence occurs in the passages (by stems)
    embedding[:MODEL]          a sentence of the passages is close to it
    nli:MODEL                  a passage entails question and sentence, by a model of three classes
    yes-no:GENERATOR           a language model is asked; GENERATOR as elsewhere: yes-no:gguf:PATH

All but yes-no take a threshold at the end: embedding@0.7. The first two need no model but the packaged one.
They judge similarity, not truth: an answer in the negative is as close as the right one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np

from mio_rag.context import render_passage
from mio_rag.errors import InputError, require
from mio_rag.generation import make_generator
from mio_rag.generation.extractive import sentences, stems
from mio_rag.generation.protocol import ChoiceWeigher, Generator, support_prompt
from mio_rag.measures.instruments import Judge
from mio_rag.retrieval.embedders import Embedder, load_sentence_model, make_embedder, sampled_digest
from mio_rag.types import Passage


class WordJudge:
    """Supported if enough of its content words were read (K-Precision, Adlakha et al., TACL 2024)."""

    def __init__(self, threshold: float = 1.0) -> None:
        self._threshold = threshold
        self.name = f"words, at least {threshold:g} of them"
        self.fingerprint = f"words:{threshold:g}"

    def supports(self, question: str, sentence: str, passages: tuple[Passage, ...]) -> bool:
        """See `Judge`; a sentence without content words is not supported."""
        return self.score(sentence, passages) >= self._threshold - 1e-9

    def score(self, sentence: str, passages: tuple[Passage, ...]) -> float:
        """Return the share, in [0, 1]; 0 for a sentence without content words."""
        said = stems(sentence)
        read = set().union(*(stems(render_passage(p)) for p in passages))
        return len(said & read) / len(said) if said else 0.0


class EmbeddingJudge:
    """Supported if the cosine of the sentence with one that was read reaches a threshold.

    The default suits short answers and MiniLM: it separated gold answers from wrong ones best.
    """

    def __init__(self, embedder: Embedder, threshold: float = 0.35) -> None:
        self._embedder, self._threshold = embedder, threshold
        self.name = f"embedding entailment by {embedder.name}, cosine >= {threshold:g}"
        self.fingerprint = f"embedding:{embedder.fingerprint}:{threshold:g}"

    def supports(self, question: str, sentence: str, passages: tuple[Passage, ...]) -> bool:
        """See `Judge`."""
        return self.score(sentence, passages) >= self._threshold

    def score(self, sentence: str, passages: tuple[Passage, ...]) -> float:
        """Return the largest cosine, in [-1, 1]."""
        read = [part for p in passages for part in sentences(render_passage(p))]
        vectors = self._embedder.encode([sentence, *read])
        return float((vectors[1:] @ vectors[0]).max(initial=-1.0))


class EntailmentJudge:
    """Supported if a passage entails "question sentence" with a probability that reaches a threshold.

    Honovich et al. (TRUE, NAACL 2022); the largest over passages, as Laban et al. (SummaC, TACL 2022).

    model: a cross-encoder with a class "entailment", else `InputError`.
    """

    def __init__(self, model: str, threshold: float = 0.5) -> None:
        library = require("sentence_transformers", "torch", "judge 'nli'").CrossEncoder
        self._model = load_sentence_model("judge 'nli'", library, model)
        classes = {str(v).lower(): int(k) for k, v in (self._model.config.id2label or {}).items()}
        if "entailment" not in classes or len(classes) < 2:
            raise InputError(
                f"judge 'nli:{model}' has the classes {', '.join(classes)}: one of them must be 'entailment'"
            )
        self._place, self._threshold = classes["entailment"], threshold
        self.name = f"natural language inference by {model}, entailment >= {threshold:g}"
        self.fingerprint = f"nli:{sampled_digest(self._model, '')}:{threshold:g}"

    def supports(self, question: str, sentence: str, passages: tuple[Passage, ...]) -> bool:
        """See `Judge`."""
        pairs = [(render_passage(p), f"{question} {sentence}") for p in passages]
        softmax = require("torch", "torch", "judge 'nli'").nn.Softmax(dim=-1)
        found = np.asarray(self._model.predict(pairs, show_progress_bar=False, activation_fn=softmax))
        return bool(float(found[:, self._place].max()) >= self._threshold)


class YesNoJudge:
    """Supported if a language model that can weigh options (gguf, hf) finds Yes more likely than No.

    Es et al. (RAGAS, EACL 2024), with one question in place of a list of statements.
    """

    OPTIONS = ("Yes", "No")

    def __init__(self, generator: Generator) -> None:
        if not isinstance(generator, ChoiceWeigher):
            raise InputError(
                f"judge 'yes-no' needs a model that weighs options, and {generator.name} cannot: give "
                "yes-no:gguf:PATH or yes-no:hf:ID_OR_PATH"
            )
        self._weigher: ChoiceWeigher = generator
        self.writer = generator
        self.name = f"asked of {generator.name}"
        # Models of one name may have other weights: the reply to a fixed question identifies them.
        known = support_prompt("Who baked?", "Ada.", (Passage("known", "The bread was baked by Ada."),))
        said = generator.weigh(known, self.OPTIONS)
        digest = hashlib.sha256(f"{known.system}\0{known.user}\0{said}".encode()).hexdigest()[:16]
        self.fingerprint = f"yes-no:{generator.name}:{digest}"

    def supports(self, question: str, sentence: str, passages: tuple[Passage, ...]) -> bool:
        """See `Judge`."""
        yes, no = self._weigher.weigh(support_prompt(question, sentence, passages), self.OPTIONS)
        return yes > no


def _embedding(target: str, **threshold: float) -> Judge:
    return EmbeddingJudge(make_embedder(target or "minilm"), **threshold)


#: Kind -> how to make it from the target behind the colon, and whether a target is required.
_KINDS: dict[str, tuple[Callable[..., Judge], bool]] = {
    "words": (lambda target, **threshold: WordJudge(**threshold), False),
    "embedding": (_embedding, False),
    "nli": (EntailmentJudge, True),
    "yes-no": (lambda target: YesNoJudge(make_generator(target)), True),
}


def check_judge(spec: str) -> tuple[str, str, dict[str, float]]:
    """Return kind, target and threshold of a specification; no model is loaded.

    Raises `InputError` if it names no judge.
    """
    kind, _, target = spec.strip().partition(":")
    threshold: dict[str, Any] = {}
    if kind != "yes-no":  # whose target may hold any sign
        body, at, number = spec.strip().rpartition("@")
        if at:
            try:
                threshold = {"threshold": float(number)}
            except ValueError:
                raise InputError(f"judge '{spec}': '{number}' behind @ is no number") from None
            kind, _, target = body.partition(":")
    needed = _KINDS.get(kind, (None, False))[1]
    if kind not in _KINDS or (needed and not target.strip()) or (kind == "words" and target):
        raise InputError(
            f"judge '{spec}' is not known: give words, embedding, embedding:MODEL, nli:MODEL or "
            "yes-no:GENERATOR (for instance yes-no:gguf:model.gguf)"
        )
    if kind == "embedding" and target == "tfidf":
        raise InputError("judge 'embedding:tfidf': tfidf is fitted to a corpus, and judges have none")
    if threshold and not 0 < threshold["threshold"] <= 1:
        raise InputError(f"judge '{spec}': a threshold must be in (0, 1]")
    return kind, target.strip(), threshold


def make_judge(spec: str) -> Judge:
    """Return the judge of a specification; see the head of this module.

    Raises `InputError` if it names no judge, or its model cannot be loaded.
    """
    kind, target, threshold = check_judge(spec)
    return _KINDS[kind][0](target, **threshold)
