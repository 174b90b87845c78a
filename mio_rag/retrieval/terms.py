"""TF-IDF weights by a known vocabulary: those of scikit-learn's TfidfVectorizer, without loading it."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

import numpy as np
import scipy  # loads scipy.sparse, a tenth of a second, where it is first used
from numpy.typing import NDArray

__all__ = ["TermWeights"]

_TERM = re.compile(r"\b\w\w+\b")


class TermWeights:
    """A vocabulary with its inverse document frequencies.

    Parameters
    ----------
    vocabulary : dict
        Term -> its column. Terms are lower case and without accents.
    idf : ndarray, shape (terms,)
        Inverse document frequencies.
    """

    def __init__(self, vocabulary: dict[str, int], idf: NDArray[np.float64]) -> None:
        self.vocabulary = vocabulary
        self.idf = np.asarray(idf, dtype=np.float64)

    def matrix(self, texts: Sequence[str]) -> scipy.sparse.csr_array:
        """Weights (1 + log count) * idf with rows of length 1, shape (len(texts), terms).

        A text without a known term has a row of zeros.
        """
        columns: list[int] = []
        counts: list[int] = []
        ends = [0]
        for text in texts:
            known = (self.vocabulary.get(term) for term in _terms(text))
            found = sorted(Counter(column for column in known if column is not None).items())
            columns += (column for column, _ in found)
            counts += (count for _, count in found)
            ends.append(len(columns))
        at = np.array(columns, dtype=np.int64)
        weights = (1.0 + np.log(np.array(counts, dtype=np.float64))) * self.idf[at]
        rows = np.repeat(np.arange(len(texts)), np.diff(ends))
        length = np.sqrt(np.bincount(rows, weights**2, len(texts)))
        return scipy.sparse.csr_array((weights / length[rows], at, ends), (len(texts), len(self.idf)))


def _terms(text: str) -> list[str]:
    """Words of two characters and more, in lower case and without accents."""
    lower = text.lower()
    if not lower.isascii():
        lower = "".join(c for c in unicodedata.normalize("NFKD", lower) if not unicodedata.combining(c))
    return _TERM.findall(lower)
