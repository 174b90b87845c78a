"""The probability that the evidence is complete: that all passages which the answer needs are read.

A logistic regression on what the chosen passages' probabilities cover, and on how many passages such a
question tends to need. From the probabilities r of a pool, the chosen passages, and the question:

    missing    sum over the passages left out of log(1 - r)
    best       the largest r that was chosen, as a logit
    covered    log of the share of the sum of r that was chosen
    expected   log(1 + the sum of r over the pool)
    left       the largest r that was left out, as a logit
    second     the second largest r of the pool, as a logit
    spread     entropy of r as shares of their sum
    read       log of the number chosen
    words, names, compared, nested, yes_no     of the question: its length, capitalised words, comparisons,
               relative clauses and genitives, and whether it begins like one of yes or no

``complete.json`` holds its weights and their measured errors. `adapt` moves them towards your own questions,
`fit` makes new ones; `python -m benchmarks run complete` measures those that ship.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mio_rag.errors import DataError, InputError, require
from mio_rag.storage import read_json

__all__ = ["SIGNALS", "Completeness", "adapt", "complete", "fit", "read", "shipped", "signals"]
FloatArray = NDArray[np.float64]
#: Names of the numbers, in order.
SIGNALS = (
    *("missing", "best", "covered", "expected", "left", "second", "spread", "read"),
    *("words", "names", "compared", "nested", "yes_no"),
)
_FILE = Path(__file__).parent / "complete.json"
_EDGE = 1e-3  # probabilities are held so far from 0 and 1, where logarithms are taken
_LEAST = 50  # selections to fit on
_LEAST_MOVED = 30  # selections to adapt to
_YES_NO = re.compile(r"^(?:is|are|was|were|do|does|did|has|have|had|can|could|will|would|should)\b", re.I)
_COMPARED = re.compile(
    r"\b(?:both|either|same|older|younger|earlier|later|longer|larger|more|less|first|than|between)\b", re.I
)
_NESTED = re.compile(r"\bof\b|'s\b|\bthat\b|\bwho\b|\bwhose\b|\bwhere\b|\bin which\b", re.I)


def _logit(p: float) -> float:
    held = min(1.0 - _EDGE, max(_EDGE, p))
    return math.log(held / (1.0 - held))


def signals(relevance: ArrayLike, chosen: Sequence[int], question: str = "") -> FloatArray:
    """What the regression sees, shape (len(SIGNALS),).

    relevance: shape (n,); probability that each passage of the pool is needed.
    chosen: places in the pool of those that are read, at least one.
    question: its text.
    """
    r = np.clip(np.asarray(relevance, dtype=np.float64), 0.0, 1.0 - _EDGE)
    inside = np.zeros(r.size, dtype=bool)
    inside[list(chosen)] = True
    left, total = r[~inside], max(float(r.sum()), 1e-12)
    shares = r / total
    second = float(np.partition(r, -2)[-2]) if r.size > 1 else 0.0
    words = question.split()
    return np.array(
        [
            float(np.log1p(-left).sum()),
            _logit(float(r[inside].max())),
            math.log(max(float(r[inside].sum()) / total, _EDGE)),
            math.log1p(total),
            _logit(float(left.max(initial=0.0))),
            _logit(second),
            float(-(shares * np.log(shares + 1e-12)).sum()),
            math.log(int(inside.sum())),
            len(words) / 10,
            sum(word[:1].isupper() for word in words[1:]) / 3,
            float(bool(_COMPARED.search(question))),
            len(_NESTED.findall(question)) / 2,
            float(bool(_YES_NO.match(question))),
        ]
    )


@dataclass(frozen=True)
class Completeness:
    """The regression.

    weights: length len(SIGNALS)
    about: where it comes from, and how far off it was. Plain data.
    """

    weights: tuple[float, ...]
    intercept: float
    about: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        numbers = (*self.weights, self.intercept)
        if len(self.weights) != len(SIGNALS) or not all(map(math.isfinite, numbers)):
            raise InputError(f"completeness: {len(SIGNALS)} finite weights are wanted, not {self.weights}")

    def probability(self, relevance: ArrayLike, chosen: Sequence[int], question: str = "") -> float:
        """The probability that the evidence is complete, in [0, 1]; 0 where nothing is read."""
        if not len(chosen):
            return 0.0
        z = float(signals(relevance, chosen, question) @ np.array(self.weights)) + self.intercept
        return 1.0 / (1.0 + math.exp(-max(-500.0, min(500.0, z))))

    def of(self, seen: FloatArray) -> FloatArray:
        """The probabilities of rows of `signals`, shape (n,)."""
        z = np.clip(seen @ np.array(self.weights) + self.intercept, -500, 500)
        return np.asarray(1.0 / (1.0 + np.exp(-z)), dtype=np.float64)

    def to_json(self) -> str:
        """As the file holds it."""
        said = {"signals": list(SIGNALS), "weights": list(self.weights), "intercept": self.intercept}
        return json.dumps({**said, "about": self.about}, indent=1) + "\n"


def read(path: str | Path) -> Completeness:
    """The regression of a file.

    Raises `DataError` if there is none, it is damaged, or it goes by other signals.
    """
    data = read_json(path, DataError)
    try:
        if list(data["signals"]) != list(SIGNALS):
            raise DataError(f"'{path}' goes by other signals than this release has: fit it anew")
        return Completeness(tuple(map(float, data["weights"])), float(data["intercept"]), data["about"])
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"'{path}' is damaged: {error}") from error


@functools.cache
def shipped() -> Completeness:
    """The regression that ships."""
    return read(_FILE)


def complete(relevance: ArrayLike, chosen: Sequence[int], question: str = "") -> float:
    """`Completeness.probability` of the regression that ships."""
    return shipped().probability(relevance, chosen, question)


def fit(seen: FloatArray, done: FloatArray, about: dict[str, Any] | None = None) -> Completeness:
    """Fit a regression of your own.

    seen: shape (n, len(SIGNALS)); rows of `signals`, of selections of several sizes.
    done: shape (n,); 1 where all passages that were needed are among the chosen.
    about: where the rows come from.

    Raises `InputError` for too few rows, or where all came out alike; `MissingExtraError` without
    scikit-learn.
    """
    require("sklearn", "evaluation", "fitting whether the evidence is complete")
    from sklearn.linear_model import LogisticRegression

    if len(done) < _LEAST or len(np.unique(done)) < 2:
        raise InputError(
            f"{len(done)} selections, of which {int(np.sum(done))} are complete, are too few to tell one "
            f"from the other: at least {_LEAST} are needed, and some of each kind"
        )
    center, scale = seen.mean(axis=0), seen.std(axis=0) + 1e-9
    model = LogisticRegression(max_iter=2000).fit((seen - center) / scale, done)
    weights = model.coef_[0] / scale
    intercept = float(model.intercept_[0] - (weights * center).sum())
    return Completeness(tuple(map(float, weights)), intercept, dict(about or {}))


def adapt(
    model: Completeness,
    seen: FloatArray,
    done: FloatArray,
    about: dict[str, Any] | None = None,
    *,
    firm: float = 30.0,
    loose: float = 0.3,
) -> Completeness:
    """Move a regression towards your own questions, as far as these say something.

    The weights have a normal prior around those of the model, and the intercept a wide one.

    seen, done, about: as in `fit`; all may have come out alike.
    firm, loose: precision of the prior of each weight, of signals with a variance of 1; of the intercept's.

    Raises `InputError` for too few rows.
    """
    if len(done) < _LEAST_MOVED:
        raise InputError(
            f"{len(done)} selections are too few to move towards: at least {_LEAST_MOVED} are needed, six of "
            "each question"
        )
    center, scale = seen.mean(axis=0), seen.std(axis=0) + 1e-9
    x = np.column_stack([(seen - center) / scale, np.ones(len(seen))])
    given = np.array(model.weights)
    prior = np.append(given * scale, model.intercept + float(given @ center))
    precision = np.append(np.full(len(SIGNALS), firm), loose)

    def loss(w: FloatArray) -> tuple[float, FloatArray]:
        z, away = x @ w, w - prior
        value = float((np.logaddexp(0.0, z) - y * z).sum() + (precision * away**2).sum() / 2)
        return value, x.T @ (1.0 / (1.0 + np.exp(-np.clip(z, -500, 500))) - y) + precision * away

    y = np.asarray(done, dtype=np.float64)
    import scipy

    found = scipy.optimize.minimize(loss, prior, jac=True, method="BFGS", options={"gtol": 1e-6}).x
    weights = found[:-1] / scale
    intercept = float(found[-1] - weights @ center)
    return Completeness(tuple(map(float, weights)), intercept, dict(about or {}))
