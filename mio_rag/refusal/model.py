"""How probable it is that the passages do not answer a question, and from which probability on to refuse.

Signs are computed from a selection and an answer; no model is asked.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.context import render_passage
from mio_rag.errors import DataError, InputError
from mio_rag.generation.extractive import sentences, stems
from mio_rag.selection.result import Selection
from mio_rag.storage import read_json, write_atomically
from mio_rag.types import Answer

#: Names, in the order of the numbers of `signs_of`.
SIGNS = ("best_cosine", "mean_cosine", "lexical", "best_relevance", "sentence_cover", "answer_cover", "said")
_FORMAT = "mio-rag refusal 1"


def signs_of(question: str, selection: Selection, answer: Answer) -> NDArray[np.float64]:
    """Compute the signs, shape (7,): the larger, the likelier there is an answer.

    Cosines are of question and selected passages; lexical is their largest BM25 score over the best of the
    pool. sentence_cover: largest share of the question's content words in one sentence that was read;
    answer_cover: in one that holds all words of the answer. said: whether the answer has any words.
    """
    pool, chosen = selection.pool, list(selection.places)
    if not chosen:
        return np.zeros(len(SIGNS))
    cosines = np.zeros(1)
    if pool.embeddings is not None and pool.query_embedding is not None:
        cosines = pool.embeddings[chosen].astype(np.float64) @ pool.query_embedding.astype(np.float64)
    lexical = 0.0
    if "bm25" in pool.scores:
        scores = pool.scores["bm25"]
        lexical = float(scores[chosen].max() / max(float(scores.max()), 1e-12))
    asked, said = stems(question), stems(answer.text)
    read = [stems(part) for p in selection.passages for part in sentences(render_passage(p))]
    covers = [len(asked & part) / max(1, len(asked)) for part in read]
    holding = [cover for cover, part in zip(covers, read, strict=True) if said and said <= part]
    found = [cosines.max(), cosines.mean(), lexical, pool.relevance[chosen].max()]
    found += [max(covers, default=0.0), max(holding, default=0.0), float(bool(said))]
    return np.array(found, dtype=np.float64)


@dataclass(frozen=True)
class Verdict:
    """Whether an answer is refused: the probability of no answer, in (0, 1), against a threshold."""

    probability: float
    threshold: float

    @property
    def refused(self) -> bool:
        """Whether the probability is above the threshold."""
        return self.probability > self.threshold

    def explain(self) -> str:
        """Return the verdict in words."""
        there = f"probability {self.probability:.2f} that they do not answer it"
        if self.refused:
            return f"not in these passages: {there}, above the threshold of {self.threshold:.2f}"
        return f"answered: {there}, not above the threshold of {self.threshold:.2f}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {**asdict(self), "refused": self.refused}


@dataclass(frozen=True)
class Refusal:
    """A logistic model of the signs, for the embedder and the reader of its fit.

    provenance: data, counts, seed, versions, and the scores on the other half.
    """

    weights: tuple[float, ...]
    constant: float
    threshold: float
    embedder: str
    reader: str
    provenance: dict[str, Any]

    def __post_init__(self) -> None:
        problems = []
        if len(self.weights) != len(SIGNS):
            problems.append(f"it has {len(self.weights)} weights, expected {len(SIGNS)}: one for each sign")
        if not all(map(math.isfinite, (*self.weights, self.constant))):
            problems.append("its weights must be finite")
        if not 0 <= self.threshold <= 1:
            problems.append(f"threshold={self.threshold} must be between 0 and 1")
        if problems:
            raise InputError(problems)

    def judge(self, question: str, selection: Selection, answer: Answer) -> Verdict:
        """Return the verdict on an answer from a selection."""
        value = self.constant + float(np.dot(self.weights, signs_of(question, selection, answer)))
        return Verdict(0.5 * (1 + math.tanh(value / 2)), self.threshold)

    def check_fits(self, embedder: str, reader: str) -> None:
        """Raise `InputError` where index or reader are others than those of the fit."""
        problems = []
        if embedder != self.embedder:
            problems.append(
                "the refusal model was fitted with another embedder than that of this index: cosines of one "
                "mean nothing for the other; fit it on this index (mio-rag policy fit refusal)"
            )
        if reader != self.reader:
            problems.append(
                f"the refusal model was fitted with the reader {self.reader}, and this one is {reader}: fit "
                "it with this one (mio-rag policy fit refusal)"
            )
        if problems:
            raise InputError(problems)

    @property
    def digest(self) -> str:
        """Digest of everything that decides verdicts."""
        parts = [self.weights, self.constant, self.threshold, self.embedder, self.reader]
        return sha256(json.dumps(parts).encode()).hexdigest()

    def save(self, path: Path) -> None:
        """Write the JSON file."""
        data = {"format": _FORMAT, "signs": list(SIGNS), **asdict(self)}
        write_atomically(path, json.dumps(data, indent=1, allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Refusal:
        """Read a file of `save`; `DataError` for anything else, another version or damage."""
        data = read_json(path, DataError)
        if not isinstance(data, dict) or not str(data.get("format", "")).startswith("mio-rag refusal"):
            raise DataError(f"'{path}' is no refusal model: write one with `mio-rag policy fit refusal`")
        if data["format"] != _FORMAT or data.get("signs") != list(SIGNS):
            raise DataError(f"'{path}' is of another version ({data['format']}, not {_FORMAT}): fit it again")
        try:
            numbers = (float(data["constant"]), float(data["threshold"]))
            names = (str(data["embedder"]), str(data["reader"]))
            return cls(tuple(map(float, data["weights"])), *numbers, *names, dict(data["provenance"]))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"'{path}' is a damaged refusal model ({error}): fit it again") from error
