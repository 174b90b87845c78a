"""What an answer costs, before and after, for people who pay for it: from the results of the other studies.

Before is top-k by rank fusion; after is the exact program at one price. Both are held against each other
where they have all evidence for the same share of the questions, as `--part evidence` found it; between two
of its totals, tokens are taken in proportion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

BEFORE, AFTER = "fused", "price"
#: Dollars per million tokens into and out of a model: what hosted models of three sizes are sold at.
LIST = {
    "a small model": (0.15, 0.60),
    "a middling model": (0.80, 4.00),
    "a large model": (2.50, 10.00),
}
_ANSWER = 32  # tokens of the answer: the policies of the study allow so many


def costs_of(evidence: Mapping[str, Any], prices: Mapping[str, tuple[float, float]] = LIST) -> dict[str, Any]:
    """Tokens and dollars for a thousand answers, at the evidence that the ranking has at each total.

    Parameters
    ----------
    evidence : mapping
        "results" of `composed-evidence.json`.
    prices : mapping
        Model -> dollars per million tokens into and out of it.

    Returns
    -------
    dict
        ``levels``: for each total, the share of questions with all evidence, tokens before and after (None:
        more than was tried), and for each model dollars per thousand answers. ``curves``: both, as drawn.
    """
    curves = {name: _curve(evidence, name) for name in (BEFORE, AFTER)}
    levels = []
    for tokens, share in curves[BEFORE]:
        read = {"before": tokens, "after": _tokens_at(curves[AFTER], share)}
        dollars = {
            model: {when: None if count is None else _thousand(count, *price) for when, count in read.items()}
            for model, price in prices.items()
        }
        levels.append({"complete": share, "tokens": read, "dollars": dollars})
    return {
        "levels": levels,
        "curves": curves,
        "prices": {model: list(price) for model, price in prices.items()},
        "answer_tokens": _ANSWER,
    }


def _curve(evidence: Mapping[str, Any], name: str) -> list[tuple[float, float]]:
    """(tokens, share of questions with all evidence), rising."""
    found = {
        (float(here[name]["tokens"]), float(here[name]["complete"]))
        for here in evidence.values()
        if here[name]
    }
    return sorted(found)


def _tokens_at(curve: Sequence[tuple[float, float]], share: float) -> float | None:
    """Tokens at which a curve reaches a share; its least where that has more; None where it never does."""
    tokens, shares = zip(*curve, strict=True)
    if share > shares[-1]:
        return None
    return float(np.interp(share, shares, tokens))


def _thousand(tokens: float, into: float, out: float) -> float:
    return round((tokens * into + _ANSWER * out) / 1e3, 4)
