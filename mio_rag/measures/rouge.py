"""ROUGE-L of two texts.

The package rouge-score computes the same, and loads nltk, pandas and scikit-learn for it: that takes seconds.
"""

from __future__ import annotations

import re

_WORD = re.compile(r"[a-z0-9]+")


def rouge_l(accepted: str, prediction: str) -> float:
    """F-measure of the longest common subsequence of words, in [0, 1]; 0 where a text has no word.

    Words are runs of a to z and 0 to 9 in lower case, without stemming (Lin, ACL Workshop on Text
    Summarization 2004).
    """
    one, other = _WORD.findall(accepted.lower()), _WORD.findall(prediction.lower())
    common = _longest_common(one, other)
    return 2 * common / (len(one) + len(other)) if common else 0.0


def _longest_common(one: list[str], other: list[str]) -> int:
    """Length of the longest common subsequence."""
    before = [0] * (len(other) + 1)
    for word in one:
        row = [0]
        for k, candidate in enumerate(other):
            row.append(before[k] + 1 if word == candidate else max(row[k], before[k + 1]))
        before = row
    return before[-1]
