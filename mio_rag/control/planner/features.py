"""What a policy sees of a question: its wording, and its embedding on a few principal axes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mio_rag.errors import InputError

__all__ = ["WORDING", "Encoder", "QuestionFeatures", "wording"]

FloatArray = NDArray[np.float64]

_KINDS = ("who", "what", "when", "where", "which", "how many", "how", "why")
_YES_NO = re.compile(r"^(?:is|are|was|were|do|does|did|has|have|had|can|could|will|would|should)\b", re.I)
_COMPARED = re.compile(
    r"\b(?:both|either|same|older|younger|earlier|later|longer|larger|more|less|first|than|between)\b", re.I
)
_NESTED = re.compile(r"\bof\b|'s\b|\bthat\b|\bwho\b|\bwhose\b|\bwhere\b|\bin which\b", re.I)

#: Names of what `wording` counts, in order.
WORDING = (
    "words",
    "names",
    "digits",
    "commas",
    "quotes",
    "compared",
    "nested",
    "yes_no",
    *(f"asks {kind}" for kind in _KINDS),
)


def wording(question: str) -> FloatArray:
    """Cheap signals of a question's text, shape (len(WORDING),), each roughly in [0, 3]."""
    words = question.split()
    lower = question.lower()
    names = sum(word[:1].isupper() for word in words[1:])
    first = next((kind for kind in _KINDS if re.search(rf"\b{kind}\b", lower)), None)
    return np.array(
        [
            len(words) / 10,
            names / 3,
            sum(any(c.isdigit() for c in word) for word in words) / 2,
            question.count(",") / 2,
            (question.count('"') + question.count("\u201c")) / 2,
            float(bool(_COMPARED.search(lower))),
            len(_NESTED.findall(lower)) / 2,
            float(bool(_YES_NO.search(lower))),
            *(float(kind == first) for kind in _KINDS),
        ]
    )


class Encoder(Protocol):
    """What makes vectors of questions: an index's embedder, or `mio_rag.generation.hidden.HiddenStates`."""

    @property
    def fingerprint(self) -> str:
        """Changes whenever the vectors could."""
        ...

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit rows, shape (len(texts), d)."""
        ...


@dataclass(frozen=True, eq=False)
class QuestionFeatures:
    """From a question to numbers of mean 0 and deviation 1 over the questions that it was fitted on.

    Parameters
    ----------
    center : array, shape (d,)
        Mean embedding.
    axes : array, shape (d, k)
        Principal axes of embeddings; k may be 0.
    mean, scale : array, shape (len(WORDING) + k,)
        Of the raw features.
    """

    center: FloatArray
    axes: FloatArray
    mean: FloatArray
    scale: FloatArray

    @classmethod
    def fit(cls, texts: Sequence[str], vectors: ArrayLike, axes: int = 16) -> QuestionFeatures:
        """Fit on training questions.

        Parameters
        ----------
        vectors : array, shape (n, d)
            Their embeddings.
        axes : int
            Most principal axes that are kept; never more than a quarter of the questions.

        Raises
        ------
        InputError
            If texts and vectors do not fit together.
        """
        given = np.asarray(vectors, dtype=np.float64)
        if given.ndim != 2 or len(given) != len(texts) or not len(texts):
            raise InputError(
                f"{len(texts)} questions have embeddings of shape {given.shape}: give one row each"
            )
        center = given.mean(axis=0)
        _, _, rows = np.linalg.svd(given - center, full_matrices=False)
        kept = max(0, min(axes, len(texts) // 4, len(rows)))
        directions = rows[:kept].T
        raw = np.hstack([np.array([wording(text) for text in texts]), (given - center) @ directions])
        scale = raw.std(axis=0)
        return cls(center, directions, raw.mean(axis=0), np.where(scale > 1e-9, scale, 1.0))

    def __len__(self) -> int:
        return len(self.mean)

    def of(self, texts: Sequence[str], vectors: ArrayLike) -> FloatArray:
        """Features, shape (n, len(self)), cut at four deviations."""
        given = np.asarray(vectors, dtype=np.float64)
        raw = np.hstack([np.array([wording(text) for text in texts]), (given - self.center) @ self.axes])
        return np.asarray(np.clip((raw - self.mean) / self.scale, -4, 4), dtype=np.float64)

    def arrays(self) -> dict[str, FloatArray]:
        """As a file holds it."""
        return {
            "features.center": self.center,
            "features.axes": self.axes,
            "features.mean": self.mean,
            "features.scale": self.scale,
        }

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[np.float64]]) -> QuestionFeatures:
        """What `arrays` gave."""
        names = ("center", "axes", "mean", "scale")
        return cls(*(np.asarray(arrays[f"features.{name}"], dtype=np.float64) for name in names))
