"""Models that some measures need (an embedder, token vectors, a judge, a writer), and these measures."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import InputError, require
from mio_rag.generation.extractive import sentences
from mio_rag.generation.protocol import Generator, question_prompt
from mio_rag.measures.measure import Column, Frontier, Measure, Page, Use, always, has_answer
from mio_rag.retrieval.embedders import Embedder, sampled_digest
from mio_rag.retrieval.minilm import packaged_minilm
from mio_rag.types import Passage, Question

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


_QUESTION_TOKENS = 48  # longest question that a writer writes


def bert_score(vectors: TokenVectors, accepted: str, given: str) -> float:
    """F1 of matching each token with the most similar one of the other text; 0 where a text has no words.

    Zhang et al., BERTScore, ICLR 2020: without weights by rarity and without rescaling. As in the authors'
    package (which needs pandas and matplotlib) a token may match a special one, which itself does not count.
    """
    (one, words), (other, others) = vectors.of(accepted), vectors.of(given)
    if not words.any() or not others.any():
        return 0.0
    cosines = one @ other.T
    recall = float(cosines.max(axis=1)[words].mean())
    precision = float(cosines.max(axis=0)[others].mean())
    return 2 * precision * recall / (precision + recall) if precision + recall > 0 else 0.0


def _bert_score(question: Question, reading: Reading) -> float:
    vectors = reading.instruments.tokens
    assert vectors is not None
    found = (bert_score(vectors, accepted, reading.answer or "") for accepted in question.answers)
    return min(1.0, max(0.0, *found))


def _cosine(reading: Reading, text: str, others: Sequence[str]) -> float:
    """Largest cosine of a text with others, at least 0; 0 for a blank text."""
    assert reading.instruments.embedder is not None
    if not text.strip():
        return 0.0
    vectors = reading.instruments.embedder.encode([text, *others])
    return min(1.0, float((vectors[1:] @ vectors[0]).max(initial=0.0)))


def _supported(question: Question, text: str, reading: Reading) -> float | None:
    """Share of the sentences of a text that the judge finds supported by what was read; None without any."""
    judge = reading.instruments.judge
    assert judge is not None
    said = sentences(text)
    if not said or not reading.passages:
        return 0.0 if said else None
    key = ("support", question.text, text, reading.passages)
    if key not in reading.known:
        verdicts = [judge.supports(question.text, sentence, reading.passages) for sentence in said]
        reading.known[key] = sum(verdicts) / len(said)
    share = reading.known[key]
    assert isinstance(share, float)
    return share


def _context_recall(question: Question, reading: Reading) -> float | None:
    found = [_supported(question, answer, reading) for answer in question.answers]
    return max((share for share in found if share is not None), default=None)


def _answer_relevance(question: Question, reading: Reading) -> float:
    writer, answer = reading.instruments.writer, reading.answer or ""
    assert writer is not None
    if not answer.strip():
        return 0.0
    key = ("question", answer, reading.passages)
    if key not in reading.known:
        prompt = question_prompt(answer, reading.passages)
        reading.known[key] = writer.generate(prompt, max_tokens=_QUESTION_TOKENS).text
    return _cosine(reading, str(reading.known[key]), [question.text])


_RAGAS = "Es et al., RAGAS, EACL 2024"
_reading = partial(Measure, better="higher", unit="0 to 1", frontier=Frontier(Use.NONE))
_answer = partial(_reading, of="answer")

#: In the order of the ledger. Each is computed only where its instruments are given.
READINGS = (
    _answer(
        "answer_cosine", "Answer cosine", "cosine of the answer with the closest gold answer, below 0 as 0",
        source="Risch et al., Semantic Answer Similarity, MRQA 2021 (bi-encoder); embedder: run.json",
        compute=lambda question, reading: _cosine(reading, reading.answer or "", question.answers),
        needs=("embedder",), labelled=has_answer, place=61,
        console=Column("answer cosine"), page=Page(91),
    ),
    _answer(
        "bert_score", "BERTScore",
        "F1 of matching the tokens of the answer with those of the best gold answer by their vectors",
        source="Zhang et al., BERTScore, ICLR 2020 (neither weighted nor rescaled); "
        "model and layer: run.json",
        compute=_bert_score, needs=("tokens",), labelled=has_answer, place=62,
        console=Column("BERTScore"), page=Page(92),
    ),
    _answer(
        "faithfulness", "Faithfulness",
        "share of the answer's sentences that what was read supports, by a judge",
        source=f"{_RAGAS} (sentences in place of statements; judge: run.json)",
        compute=lambda question, reading: _supported(question, reading.answer or "", reading),
        needs=("judge",), labelled=always, place=63,
        console=Column("faithful"), page=Page(93, core=True),
    ),
    _answer(
        "answer_relevance", "Answer relevance",
        "cosine of the question with the one that a language model writes from answer and passages",
        source=f"{_RAGAS} (one question, written greedily; model and embedder: run.json)",
        compute=_answer_relevance, needs=("embedder", "writer"), labelled=always, place=64,
        console=Column("relevance"), page=Page(94),
    ),
    _answer(
        "question_cosine", "Question cosine",
        "cosine of the answer with the question, below 0 as 0: whether it keeps to the subject",
        source="answer relevance without a language model; embedder: run.json",
        compute=lambda question, reading: _cosine(reading, reading.answer or "", [question.text]),
        needs=("embedder",), labelled=always, place=65, compared=False, console=None,
        page=Page(95, judged=False),
    ),
    _reading(
        "context_recall", "Context recall",
        "share of the sentences of the best gold answer that what was read supports, by a judge",
        of="selection", source=f"{_RAGAS}, as its package defines it (sentences; judge: run.json)",
        compute=_context_recall, needs=("judge",), labelled=has_answer, place=66,
        console=Column("context recall"), page=Page(96, card=False),
    ),
)  # fmt: skip
