"""Text that is whole: damaged JSON leaves halves of surrogate pairs, which UTF-8 cannot hold."""

from __future__ import annotations

__all__ = ["clean", "is_text"]


def clean(text: str) -> str:
    """The text with "?" for every lone surrogate.

    Those come out of damaged JSON; UTF-8 cannot hold them, so that tokenizers and HTTP clients would fail.
    """
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def is_text(*parts: str) -> bool:
    """Whether the parts can be written as UTF-8: a damaged escape can leave half of a surrogate pair."""
    try:
        return all(part.isascii() or part.encode() for part in parts)
    except UnicodeEncodeError:
        return False
