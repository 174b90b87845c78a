"""The context block: how chosen passages are laid out for the reader, and what they cost in tokens.

A token budget bounds this block, counted by the tokenizer of the model that reads it. Retrieval prices single
passages with it, selection checks the assembled block, generation puts it in the prompt: all three use this
one rendering.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Literal, Protocol, get_args, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from mio_rag.candidates import Candidates
from mio_rag.entries import not_numbers
from mio_rag.errors import InputError
from mio_rag.text import clean
from mio_rag.types import Passage

__all__ = [
    "SEPARATOR",
    "PromptOrder",
    "RegexCounter",
    "TokenCounter",
    "counted",
    "in_prompt_order",
    "passage_tokens",
    "render_context",
    "render_passage",
    "text_tokens",
]

#: best_first: by relevance. document: as the corpus has them.
PromptOrder = Literal["best_first", "document"]

#: What stands between two passages of a context block.
SEPARATOR = "\n\n"


@runtime_checkable
class TokenCounter(Protocol):
    """Counts what a text costs in a prompt.

    Every generator is one, so that a budget is counted by the tokenizer of the model that will read the text.
    """

    @property
    def name(self) -> str:
        """Whose tokens these are."""
        ...

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text, >= 0, without begin-of-sequence or other special tokens."""
        ...


# Alternatives, in order: up to six letters of a script in which tokenizers merge letters into word pieces; up
# to three digits; one character of any other script (CJK and the like take about one token a character); one
# character of punctuation. Together they match every character that is not white space.
_PIECE = re.compile(r"[A-Za-z\u00c0-\u024f]{1,6}|[0-9]{1,3}|\w|[^\w\s]")


class RegexCounter:
    """An approximation of a byte-pair tokenizer by one regular expression.

    Words count one token for each six letters begun, numbers one for each three digits begun, punctuation and
    characters of other scripts one each; white space is free. On English prose this is usually near the count
    of a language model's tokenizer, but it is *not* that tokenizer: it stands in only where no language model
    reads the text (the extractive and scripted generators, and `select` without a counter).

    Counts are additive over concatenation at white space. Any text that is not blank counts at least 1.
    """

    @property
    def name(self) -> str:
        """Always ``"regex"``."""
        return "regex"

    def count(self, texts: Sequence[str]) -> list[int]:
        """Approximate tokens of each text, >= 0."""
        return [_pieces(text) for text in texts]


@lru_cache(maxsize=16_384)  # the passages of a corpus come up again with every question
def _pieces(text: str) -> int:
    return len(_PIECE.findall(text))


@lru_cache(maxsize=16_384)
def _cost(title: str, text: str) -> int:
    """What `passage_tokens` makes of `RegexCounter`: neither rendered nor joined again to be looked up."""
    return max(1, len(_PIECE.findall(SEPARATOR + _rendered(title, text))))


def render_passage(passage: Passage) -> str:
    """``title``, a newline and ``text``; the text alone where there is no title."""
    return _rendered(passage.title, passage.text)


def _rendered(title: str, text: str) -> str:
    title, text = clean(title).strip(), clean(text).strip()
    return f"{title}\n{text}" if title else text


def render_context(passages: Iterable[Passage]) -> str:
    """All passages in the given order, parted by `SEPARATOR`; empty for none."""
    return SEPARATOR.join(render_passage(p) for p in passages)


def passage_tokens(passages: Sequence[Passage], counter: TokenCounter) -> NDArray[np.int64]:
    """Token cost of each passage in the prompt: its title, text and the separator before it, at least 1.

    A block costs no more than the sum over its passages. The separator is counted in front: many byte-pair
    tokenizers merge a blank line at the end of a text into one token but split it before a word, so that a
    separator counted alone, or behind the passage, comes out too cheap.
    """
    return text_tokens([p.text for p in passages], [p.title for p in passages], counter)


def text_tokens(texts: Sequence[str], titles: Sequence[str], counter: TokenCounter) -> NDArray[np.int64]:
    """`passage_tokens` of passages that are texts and titles so far."""
    if type(counter) is RegexCounter:
        return np.array(list(map(_cost, titles, texts)), dtype=np.int64)
    counts = counted(counter, [SEPARATOR + _rendered(h, t) for h, t in zip(titles, texts, strict=True)])
    return np.maximum(1, counts)


def counted(counter: TokenCounter, texts: Sequence[str]) -> NDArray[np.int64]:
    """What a counter counts, shape (len(texts),), once it is found to be counts.

    Raises
    ------
    InputError
        If it gives anything but a whole number >= 0 for each text.
    """
    given = counter.count(texts)
    if (found := not_numbers(given)) is not None:
        raise InputError(f"counter '{counter.name}' gives {found}: it must give whole numbers >= 0")
    try:
        counts = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"counter '{counter.name}' gives no numbers ({error})") from error
    if counts.shape != (len(texts),):
        raise InputError(
            f"counter '{counter.name}' gives counts of shape {counts.shape} for {len(texts)} texts: it must "
            "give one for each"
        )
    wrong = ~((counts >= 0) & (counts < 2**53) & (counts == np.floor(counts)))
    if wrong.any():
        raise InputError(
            f"counter '{counter.name}' counts {counts[wrong][0]:g} tokens in a text: it must be a whole "
            "number >= 0"
        )
    return counts.astype(np.int64)


def in_prompt_order(candidates: Candidates, chosen: Iterable[int], order: PromptOrder) -> tuple[int, ...]:
    """Chosen candidates in the order in which they are laid out.

    Parameters
    ----------
    chosen : iterable of int
        Indices of candidates.

    Raises
    ------
    InputError
        For an unknown order, or order "document" where candidates have no positions.
    """
    picked = list(chosen)
    worth = candidates.relevance[picked].tolist()
    best_first = [i for _, i in sorted((-value, i) for value, i in zip(worth, picked, strict=True))]
    if order == "best_first":
        return tuple(best_first)
    if order != "document":
        raise InputError(f"prompt order {order!r} is unknown: choose {', '.join(get_args(PromptOrder))}")
    positions = candidates.positions
    if positions is None:
        raise InputError(
            "prompt order 'document' needs candidates with positions: retrieve them with Retriever, pass "
            "positions, or choose best_first"
        )
    return tuple(sorted(best_first, key=lambda i: int(positions[i])))
