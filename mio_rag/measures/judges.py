"""Judges of support: whether what was read says what was answered.

    words                      every content word of the sentence occurs in what was read (by stems)
    embedding[:MODEL]          a sentence of what was read is close to it
    nli:MODEL                  a passage entails question and sentence, by a model of three classes
    yes-no:GENERATOR           a language model is asked; GENERATOR as elsewhere: yes-no:gguf:PATH

All but yes-no take a threshold at the end: embedding@0.7. The first two need no model but the packaged one.
They judge likeness, and likeness is not truth: an answer in the negative is as close as the right one.
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
from mio_rag.generation.prompts import support_prompt
from mio_rag.generation.protocol import ChoiceWeigher, Generator
from mio_rag.measures.instruments import Judge
from mio_rag.retrieval.embedders import Embedder, make_embedder, sampled_digest
from mio_rag.retrieval.rerank import load_sentence_model
from mio_rag.types import Passage

__all__ = ["EmbeddingJudge", "EntailmentJudge", "WordJudge", "YesNoJudge", "check_judge", "make_judge"]


class WordJudge:
    """Supported where the share of the sentence's content words that were read reaches a threshold.

    Parameters
    ----------
    threshold : float
        In (0, 1].

    Notes
    -----
    Adlakha et al. (TACL 2024) call the share K-Precision; of lexical measures it was closest to people's
    verdicts.
    """

    def __init__(self, threshold: float = 1.0) -> None:
        self._threshold = threshold
        self.name = f"words, at least {threshold:g} of them"
        self.fingerprint = f"words:{threshold:g}"

    def supports(self, question: str, sentence: str, passages: tuple[Passage, ...]) -> bool:
        """See `Judge`; a sentence without content words is not supported."""
        return self.score(sentence, passages) >= self._threshold - 1e-9

    def score(self, sentence: str, passages: tuple[Passage, ...]) -> float:
        """The share, in [0, 1]; 0 for a sentence without content words."""
        said = stems(sentence)
        read = set().union(*(stems(render_passage(p)) for p in passages))
        return len(said & read) / len(said) if said else 0.0


class EmbeddingJudge:
    """Supported where the cosine of the sentence with one that was read reaches a threshold.

    Parameters
    ----------
    threshold : float
        In (0, 1]. The default suits short answers and MiniLM: there it told gold answers with their passages
        from wrong ones best. Together with the question, sentences were told apart worse.
    """

    def __init__(self, embedder: Embedder, threshold: float = 0.35) -> None:
        self._embedder, self._threshold = embedder, threshold
        self.name = f"embedding entailment by {embedder.name}, cosine >= {threshold:g}"
        self.fingerprint = f"embedding:{embedder.fingerprint}:{threshold:g}"

    def supports(self, question: str, sentence: str, passages: tuple[Passage, ...]) -> bool:
        """See `Judge`."""
        return self.score(sentence, passages) >= self._threshold

    def score(self, sentence: str, passages: tuple[Passage, ...]) -> float:
        """The largest cosine, in [-1, 1]."""
        read = [part for p in passages for part in sentences(render_passage(p))]
        vectors = self._embedder.encode([sentence, *read])
        return float((vectors[1:] @ vectors[0]).max(initial=-1.0))


class EntailmentJudge:
    """Supported where a passage entails "question sentence" with a probability that reaches a threshold.

    Parameters
    ----------
    model : str
        Hub id or folder of a cross-encoder for natural language inference, one of whose classes is named
        "entailment".
    threshold : float
        In (0, 1].

    Raises
    ------
    InputError
        If it cannot be loaded, or has no such class.

    Notes
    -----
    Honovich et al. (TRUE, NAACL 2022); the largest over passages, as Laban et al. (SummaC, TACL 2022).
    """

    def __init__(self, model: str, threshold: float = 0.5) -> None:
        library = require("sentence_transformers", "retrieval", "judge 'nli'").CrossEncoder
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
        softmax = require("torch", "retrieval", "judge 'nli'").nn.Softmax(dim=-1)
        found = np.asarray(self._model.predict(pairs, show_progress_bar=False, activation_fn=softmax))
        return bool(float(found[:, self._place].max()) >= self._threshold)


class YesNoJudge:
    """Supported where a language model holds Yes for likelier than No.

    Parameters
    ----------
    generator : Generator
        One that can weigh options: gguf and hf.

    Notes
    -----
    A language model as a judge of support: Es et al. (RAGAS, EACL 2024), with one question in place of a
    list of statements.
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
        # A name is no proof of the weights behind it; what they say to a fixed question is.
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


#: Kind -> how it is made of what stands behind the colon, and whether something must stand there.
_KINDS: dict[str, tuple[Callable[..., Judge], bool]] = {
    "words": (lambda target, **threshold: WordJudge(**threshold), False),
    "embedding": (_embedding, False),
    "nli": (EntailmentJudge, True),
    "yes-no": (lambda target: YesNoJudge(make_generator(target)), True),
}


def _parts(spec: str) -> tuple[str, str, dict[str, float]]:
    """Kind, target and threshold of a specification."""
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


def check_judge(spec: str) -> None:
    """Raise `InputError` where a specification plainly names no judge; no model is loaded."""
    _parts(spec)


def make_judge(spec: str) -> Judge:
    """The judge of a specification; see the head of this module.

    Raises
    ------
    InputError
        For another form, or a model that cannot be loaded.
    """
    kind, target, threshold = _parts(spec)
    return _KINDS[kind][0](target, **threshold)
