"""What is known of a question before anything is searched for: the context of the bandit.

Always of the same length: a constant, what the words show, the question's type, names that the index knows,
the embedding in fewer dimensions, and what strategies added to the most similar past questions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

TYPES = ("who", "when", "where", "which", "what", "how", "why", "yes-no", "other")
#: Strategies whose past contributions are part of the context; further ones do without.
SLOTS = 8

_WORD = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")
_VAGUE = frozenset(
    [
        "it",
        "its",
        "he",
        "she",
        "they",
        "them",
        "his",
        "her",
        "their",
        "this",
        "that",
        "these",
        "those",
        "one",
        "former",
        "latter",
    ]
)
_COMPARED = frozenset(
    [
        "both",
        "between",
        "older",
        "younger",
        "longer",
        "larger",
        "more",
        "less",
        "first",
        "earlier",
        "later",
        "same",
        "than",
        "or",
        "either",
    ]
)
_ASKED = {"who": "who", "whom": "who", "whose": "who", "when": "when", "where": "where", "which": "which",
          "what": "what", "how": "how", "why": "why"}  # fmt: skip
_POLAR = frozenset(
    [
        "is",
        "are",
        "was",
        "were",
        "do",
        "does",
        "did",
        "can",
        "could",
        "has",
        "have",
        "had",
        "will",
        "would",
        "should",
    ]
)
_SHOWN = 8  # numbers that the words give, the constant among them


@dataclass(frozen=True, eq=False)
class Context:
    """A question as the bandit sees it.

    x: shape (d,); Float32 numbers in float64: what the log holds is exactly what was learned from.
    type: one of `TYPES`: the region in which strategies are pruned.
    """

    x: FloatArray
    type: str

    def with_past(self, past: FloatArray) -> Context:
        """The same with what strategies added to similar questions, shape (SLOTS,)."""
        x = self.x.copy()
        first = _SHOWN + len(TYPES)
        x[first : first + SLOTS] = past.astype(np.float32)
        return Context(x, self.type)

    @property
    def place(self) -> FloatArray:
        """The part that similar questions share: what comes of the embedding."""
        return self.x[_SHOWN + len(TYPES) + SLOTS :]


def question_type(text: str) -> str:
    """The kind of a question by its words: the first question word, else yes-no, else other."""
    words = [word.lower() for word in _WORD.findall(text)]
    asked = next((_ASKED[word] for word in words if word in _ASKED), None)
    if asked:
        return asked
    return "yes-no" if words and words[0] in _POLAR else "other"


def context_of(text: str, embedding: NDArray[np.float32], known_names: int, dimensions: int) -> Context:
    """The context of a question, without what is known of similar ones: see `Context.with_past`.

    embedding: shape (e,); of the question, a unit vector.
    known_names: names of the index in the question.
    dimensions: length of the context.
    """
    words = [word.lower() for word in _WORD.findall(text)]
    capitals = sum(word[0].isupper() for word in _WORD.findall(text)[1:])
    kind = question_type(text)
    shown = [
        1.0,
        min(len(words), 40) / 40,
        min(len(text), 240) / 240,
        min(capitals, 6) / 6,
        min(known_names, 4) / 4,
        float(any(character.isdigit() for character in text)),
        float(bool(_VAGUE.intersection(words))),
        float(bool(_COMPARED.intersection(words))),
    ]
    types = [float(kind == known) for known in TYPES]
    rest = dimensions - len(shown) - len(types) - SLOTS
    reduced = _projection(embedding.size, rest) @ embedding.astype(np.float64)
    x = np.concatenate([shown, types, np.zeros(SLOTS), reduced])
    return Context(x.astype(np.float32).astype(np.float64), kind)


def ridges(dimensions: int, shown: float, rest: float) -> FloatArray:
    """Penalties of a context's dimensions: those that words show, type included, and the others."""
    first = _SHOWN + len(TYPES)
    return np.concatenate([np.full(first, float(shown)), np.full(dimensions - first, float(rest))])


@lru_cache(maxsize=8)
def _projection(size: int, kept: int) -> FloatArray:
    """A random projection that keeps lengths in expectation, the same everywhere (Johnson, Lindenstrauss)."""
    rng = np.random.Generator(np.random.PCG64(24))
    return np.asarray(rng.standard_normal((kept, size)) / np.sqrt(kept), dtype=np.float64)
