"""Whether a tier did for a question, and which tier a question needs: the oracle's label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mio_rag.errors import InputError, choose
from mio_rag.measures.answers import chosen_right, exact_match, token_f1
from mio_rag.types import Question

#: Token F1 from which an answer counts as right, beside exact matches; as published.
F1_ENOUGH = 0.6

By = Literal["answers", "evidence"]
BY = ("answers", "evidence")

#: Which tier a question needs that none answers.
Unanswered = Literal["published", "cheapest", "dearest"]
UNANSWERED = ("published", "cheapest", "dearest")


def answer_worked(question: Question, text: str, choice: int | None) -> bool:
    """Whether an answer is right: the option chosen; else an exact match, or a token F1 of at least .6.

    Raises `InputError` if no right answer is known.
    """
    if not question.answers and question.type != "unanswerable":
        raise InputError(f"question '{question.id}' has no answers: nothing can be held against them")
    if question.choices and choice is not None:
        return bool(chosen_right(question, choice))
    return bool(exact_match(text, question.answers)) or token_f1(text, question.answers) >= F1_ENOUGH


def row_worked(row: Mapping[str, Any], by: By) -> float | None:
    """Whether the row of a ledger did for its question; None where that cannot be known.

    by: "answers": an exact match, or a token F1 of at least .6; of options, the right one. "evidence": all
        gold passages are read (gold documents, where only these are known), and the answer stands in what was
        read, where it is a text that can stand there.
    """
    if by == "answers":
        if row.get("accuracy") is not None:
            return float(row["accuracy"])
        if row.get("exact_match") is None:
            return None
        return float(row["exact_match"] == 1 or row["token_f1"] >= F1_ENOUGH)
    found = row.get("gold_recall") if row.get("gold_recall") is not None else row.get("source_recall")
    if found is None:
        return None
    inside = row.get("answer_in_context")
    return float(found == 1 and inside in (None, 1.0))


def labels(
    worked: ArrayLike, several_hops: Sequence[bool], unanswered: Unanswered = "published"
) -> NDArray[np.intp]:
    """The cheapest tier that does for each question, shape (n,).

    worked: shape (n, m); 1 where a tier did; tiers in the order of their cost.
    several_hops: length n; whether a question takes several passages together.
    unanswered: of a question for which no tier does. "published": the dearest tier where it takes several
        passages, otherwise the middle one (of an even number the dearer of the two in the middle);
        "cheapest": nothing helps, so that nothing is spent; "dearest".

    Raises `InputError` for an unknown rule, or lengths that differ.
    """
    table = np.asarray(worked, dtype=np.float64) > 0
    n, m = table.shape
    if unanswered not in UNANSWERED:
        raise InputError(f"unanswered={unanswered!r} is unknown: {choose(unanswered, UNANSWERED)}")
    if len(several_hops) != n:
        raise InputError(f"several_hops has {len(several_hops)} entries for {n} questions")
    rest = {
        "cheapest": np.zeros(n, dtype=np.intp),
        "dearest": np.full(n, m - 1, dtype=np.intp),
        "published": np.where(np.asarray(several_hops, dtype=bool), m - 1, m // 2).astype(np.intp),
    }[unanswered]
    return np.asarray(np.where(table.any(axis=1), table.argmax(axis=1), rest), dtype=np.intp)
