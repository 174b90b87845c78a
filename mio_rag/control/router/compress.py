"""Bring passages to the size of a context. A compressor keeps some of each passage's text, in its own words.

sentences   the published rule: sentences of all passages, nearest to the question first (cosine of the
            index's embedder), as long as they fit; those of a passage stay in their order. Where no sentence
            fits, the first passage is cut off at the size of the context
program     the sentences that the exact program chooses (`mio_rag.selection.units`), within the same size; by
            their words, where the index holds no vectors of them
none        whole passages in their order, as long as they fit; where none fits, the first is cut off
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mio_rag.candidates import Candidates
from mio_rag.context import SEPARATOR, render_passage
from mio_rag.generation._spans import sentences
from mio_rag.merging import APART, merged
from mio_rag.selection.selector import Selector
from mio_rag.types import Passage

__all__ = [
    "CHOSEN",
    "COMPRESSORS",
    "Compressor",
    "Encode",
    "Size",
    "cut_off",
    "keep_chosen",
    "keep_sentences",
    "keep_whole",
]

#: The name of the compressor that is a program: it needs more than passages and a query.
CHOSEN = "program"

#: How much texts take, one number each: characters, or tokens of the reader.
Size = Callable[[Sequence[str]], Sequence[int]]

#: Unit rows of texts, shape (n, d).
Encode = Callable[[Sequence[str]], NDArray[np.float32]]


class Compressor(Protocol):
    """Says what is kept of each passage."""

    def __call__(
        self,
        passages: Sequence[Passage],
        query: NDArray[np.float32],
        room: int,
        size: Size,
        encode: Encode,
    ) -> list[str]:
        """The text that is kept of each passage, "" where nothing is.

        Parameters
        ----------
        passages : sequence of Passage
            In the order in which they will be read; at least one.
        query : array, shape (d,)
            The question, embedded.
        room : int
            Most that all of it may take, titles and separators included, >= 1.
        """
        ...


def keep_sentences(
    passages: Sequence[Passage],
    query: NDArray[np.float32],
    room: int,
    size: Size,
    encode: Encode,
) -> list[str]:
    """The published rule; see `Compressor`."""
    parts = [(k, s) for k, passage in enumerate(passages) for s in sentences(passage.text)]
    texts = [text for _, text in parts]
    near = encode(texts) @ query if texts else np.zeros(0)
    heads = size([_head(passage) for passage in passages])
    takes = size([f"{text} " for text in texts])
    left, kept, opened = room, set[int](), set[int]()
    for place in np.argsort(-near, kind="stable"):
        passage = parts[place][0]
        needed = takes[place] + (0 if passage in opened else heads[passage])
        if needed <= left:
            left -= needed
            kept.add(int(place))
            opened.add(passage)
    if not kept:
        return cut_off(passages, room, size)
    return [
        " ".join(text for place, (k, text) in enumerate(parts) if k == number and place in kept)
        for number in range(len(passages))
    ]


def keep_whole(
    passages: Sequence[Passage],
    query: NDArray[np.float32],
    room: int,
    size: Size,
    encode: Encode,
) -> list[str]:
    """Whole passages; see `Compressor`."""
    left, kept = room, [""] * len(passages)
    for k, takes in enumerate(size([SEPARATOR + render_passage(passage) for passage in passages])):
        if takes <= left:
            left -= takes
            kept[k] = passages[k].text
    return kept if any(kept) else cut_off(passages, room, size)


@dataclass(frozen=True)
class _Sizes:
    """A size as a counter of tokens."""

    size: Size

    @property
    def name(self) -> str:
        return "size"

    def count(self, texts: Sequence[str]) -> list[int]:
        return list(self.size(texts))


def keep_chosen(head: Candidates, room: int, size: Size, selector: Selector) -> list[str]:
    """The sentences of passages that a program chooses, as `Compressor` returns them.

    Parameters
    ----------
    head : Candidates
    selector : Selector
        Of sentences.
    """
    apart = replace(head, sources=None, spans=None, positions=None)  # a text for each passage
    made = selector.choose(apart, room, _Sizes(size))
    chosen = made.formulation.candidates
    passage = dict(zip(chosen.ids, chosen.passage_ids, strict=True))
    read = merged(chosen, made.chosen)
    kept = {passage[block.parts[0].id]: block.passage.text.replace(APART, " ") for block in read}
    if not kept:
        return cut_off([head.passage(i) for i in range(len(head))], room, size)
    return [kept.get(name, "") for name in head.ids]


def cut_off(passages: Sequence[Passage], room: int, size: Size) -> list[str]:
    """As much of the first passage's beginning as fits, at least one character; nothing of the others."""
    text, head = passages[0].text.lstrip(), _head(passages[0])
    low, high = 1, len(text)
    while low < high:  # size grows with the text
        middle = (low + high + 1) // 2
        low, high = (middle, high) if size([head + text[:middle]])[0] <= room else (low, middle - 1)
    return [text[:low], *[""] * (len(passages) - 1)]


def _head(passage: Passage) -> str:
    """What a passage takes beside its text."""
    title = passage.title.strip()
    return f"{SEPARATOR}{title}\n" if title else SEPARATOR


#: By the name that tiers give.
COMPRESSORS: Mapping[str, Compressor] = MappingProxyType({"sentences": keep_sentences, "none": keep_whole})
