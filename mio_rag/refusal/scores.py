"""The measures of SQuAD 2.0, where a reader may also say that there is no answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import InputError
from mio_rag.measures import exact_match, token_f1

__all__ = ["Scores", "best_threshold", "squad_scores"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scores:
    """Exact match and F1, each between 0 and 1; of answerable and of unanswerable questions apart.

    Parameters
    ----------
    has_answer_exact, has_answer_f1 : float or None
        HasAns: an answerable question that is refused scores 0. None without such questions.
    no_answer : float or None
        NoAns: share of unanswerable questions that are refused; exact match and F1 are the same there.
    best_f1, best_threshold : float
        The largest F1 that a threshold reaches on these questions, known only with their key, and that
        threshold.
    """

    questions: int
    threshold: float
    exact: float
    f1: float
    has_answer: int
    has_answer_exact: float | None
    has_answer_f1: float | None
    no_answers: int
    no_answer: float | None
    refused: float
    best_f1: float
    best_threshold: float

    def to_dict(self) -> dict[str, float | int | None]:
        """Plain data for JSON."""
        return asdict(self)


def squad_scores(
    accepted: Sequence[Sequence[str]],
    answers: Sequence[str],
    no_answer: Sequence[float],
    threshold: float,
) -> Scores:
    """The measures at a threshold.

    Parameters
    ----------
    accepted : sequence of sequences of str
        Accepted answers; empty where the question is unanswerable.
    answers : sequence of str
        What the reader said; a blank answer is a refusal.
    no_answer : sequence of float
        Probability that there is no answer, in [0, 1].
    threshold : float
        Above it a question is refused.

    Raises
    ------
    InputError
        Without questions, with lengths that differ, or with probabilities out of range.

    Notes
    -----
    Rajpurkar et al., ACL 2018; as their evaluation script 2.0, in shares instead of percent.
    """
    chances = _checked(accepted, answers, no_answer)
    answerable = np.array([bool(a) for a in accepted])
    refused = (chances > threshold) | np.array([not a.strip() for a in answers])
    exact, f1 = _as_said(accepted, answers)
    exact_now = np.where(refused, ~answerable, exact)
    f1_now = np.where(refused, ~answerable, f1)
    best, at = best_threshold(accepted, answers, no_answer)

    def mean(values: Floats, rows: Floats) -> float | None:
        return float(values[rows].mean()) if rows.any() else None

    return Scores(
        len(answers),
        threshold,
        float(exact_now.mean()),
        float(f1_now.mean()),
        int(answerable.sum()),
        mean(exact_now, answerable),
        mean(f1_now, answerable),
        int((~answerable).sum()),
        mean(f1_now, ~answerable),
        float(refused.mean()),
        best,
        at,
    )


def best_threshold(
    accepted: Sequence[Sequence[str]], answers: Sequence[str], no_answer: Sequence[float]
) -> tuple[float, float]:
    """The largest F1 over all thresholds, and the smallest threshold that reaches it.

    Parameters and errors are those of `squad_scores`. A threshold is 0, at which everything with a positive
    probability is refused, or one of the probabilities.
    """
    chances = _checked(accepted, answers, no_answer)
    answerable = np.array([bool(a) for a in accepted])
    _, f1 = _as_said(accepted, answers)
    if_refused = (~answerable).astype(float)
    order = np.argsort(chances, kind="stable")
    gained = np.concatenate([[0.0], np.cumsum((f1 - if_refused)[order])]) + if_refused.sum()
    # Questions of the same probability are refused or answered together.
    ends = np.flatnonzero(np.append(np.diff(chances[order]) > 0, True)) + 1
    thresholds = np.concatenate([[0.0], chances[order][ends - 1]])
    answered = np.concatenate([[int((chances <= 0).sum())], ends])
    totals = gained[answered]
    k = int(np.flatnonzero(totals >= totals.max() - 1e-12)[0])
    return float(totals[k] / len(answers)), float(thresholds[k])


def _as_said(accepted: Sequence[Sequence[str]], answers: Sequence[str]) -> tuple[Floats, Floats]:
    """Exact match and F1 were nothing refused; a blank answer is a refusal all the same."""
    pairs = list(zip(answers, accepted, strict=True))
    return (
        np.array([exact_match(said, keys) for said, keys in pairs]),
        np.array([token_f1(said, keys) for said, keys in pairs]),
    )


def _checked(accepted: Sequence[Sequence[str]], answers: Sequence[str], no_answer: Sequence[float]) -> Floats:
    if not answers or not len(accepted) == len(answers) == len(no_answer):
        raise InputError(
            f"{len(accepted)} questions, {len(answers)} answers and {len(no_answer)} probabilities: give one "
            "of each for every question, and at least one question"
        )
    chances = np.asarray(no_answer, dtype=np.float64)
    if not np.all((chances >= 0) & (chances <= 1)):
        raise InputError("probabilities that there is no answer must be between 0 and 1")
    return chances
