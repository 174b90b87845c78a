"""Token counting: the protocol that every generator meets, and an approximation that needs no model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

__all__ = ["RegexCounter", "TokenCounter"]


@runtime_checkable
class TokenCounter(Protocol):
    """Counts what a text costs in a prompt.

    Every `Generator` is one, so that a budget is counted by the tokenizer of the model that will read the text.
    """

    @property
    def name(self) -> str:
        """Whose tokens these are."""
        ...

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text, >= 0, without begin-of-sequence or other special tokens."""
        ...


# Alternatives, in order: up to six letters of a script in which tokenizers merge letters into word pieces; up to
# three digits; one character of any other script (CJK and the like take about one token a character); one
# character of punctuation. Together they match every character that is not white space.
_PIECE = re.compile(r"[A-Za-z\u00c0-\u024f]{1,6}|[0-9]{1,3}|\w|[^\w\s]")


class RegexCounter:
    """An approximation of a byte-pair tokenizer by one regular expression.

    Words count one token for each six letters begun, numbers one for each three digits begun, punctuation and
    characters of other scripts one each; white space is free. On English prose this is usually within some 15 %
    of the tokenizer of a language model, but it is *not* that tokenizer: it stands in only where no language
    model reads the text (the extractive and scripted generators), and no back end with a model falls back to it.

    Counts are additive over concatenation at white space: ``count(a + "\\n\\n" + b) = count(a) + count(b)``.
    Any text that is not blank counts at least 1, blank text counts 0.
    """

    @property
    def name(self) -> str:
        """Always ``"regex"``."""
        return "regex"

    def count(self, texts: Sequence[str]) -> list[int]:
        """Approximate tokens of each text, >= 0."""
        return [sum(1 for _ in _PIECE.finditer(text)) for text in texts]
