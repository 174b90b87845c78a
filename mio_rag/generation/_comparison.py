"""Comparison questions: "which is longer, A or B", "who was born first, A or B"."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mio_rag.generation import _spans
from mio_rag.generation._spans import Span
from mio_rag.types import Passage

__all__ = ["compare"]

_LARGEST = (
    "longer taller higher larger bigger greater deeper wider heavier faster more hotter farther further most"
)
_SMALLEST = "shorter smaller lower fewer less lighter slower shallower narrower closer nearer least"
_LATEST = "later younger newer last recently recent latest"
_EARLIEST = "earlier first older before earliest oldest"
# word -> (compare dates?, take the larger?)
_DIRECTION: dict[str, tuple[bool, bool]] = {
    **dict.fromkeys(_LARGEST.split(), (False, True)),
    **dict.fromkeys(_SMALLEST.split(), (False, False)),
    **dict.fromkeys(_LATEST.split(), (True, True)),
    **dict.fromkeys(_EARLIEST.split(), (True, False)),
}
_EITHER = re.compile(r"(?:^|[,:]|\bbetween\b)\s*(?P<a>[^,:]+?),?\s+(?:or|and)\s+(?P<b>[^,:]+?)\s*\?*$")
_INLINE = re.compile(r"^(?:is|are|was|were|did|does|do)\s+(?P<a>.+?)\s+or\s+(?P<b>.+)$", re.I)


def _options(question: str) -> tuple[str, str] | None:
    """The two things compared, as the question writes them, without a leading article."""
    inline = _INLINE.match(question)
    if inline:
        named = _spans.names(inline["b"])
        pair = (inline["a"], named[0].text) if named and named[0].start <= 4 else None
    elif (match := _EITHER.search(question)) and (" or " in match.group() or "between" in match.group()):
        pair = (match["a"], match["b"])
    else:
        pair = None
    if pair is None:
        return None
    a, b = (re.sub(r"^(?:the|a|an)\s+", "", option.strip(" ?."), flags=re.I) for option in pair)
    return (a, b) if a and b else None


def _quantity(option: str, asked: set[str], passages: Sequence[Passage], by_date: bool) -> Span | None:
    """The quantity that the sentence closest to the question states about an option."""
    own = _spans.stems(option)
    best: tuple[tuple[int, int, int], Span] | None = None
    order = 0
    for passage in passages:
        title = _spans.stems(passage.title)
        for sentence in _spans.sentences(passage.text):
            order += 1
            held = _spans.stems(sentence)
            if not own or not own <= held | title:
                continue
            found: list[Span] = _spans.dates(sentence) if by_date else _spans.numbers(sentence)
            # A number with a unit says more about what it measures than one without.
            stated = sorted((s for s in found if s.value is not None), key=lambda s: not s.kind)
            if not stated:
                continue
            # Sentences that share words with the question first, then those that name the option themselves.
            rank = (len(asked & held), len(own & held), -order)
            if best is None or rank > best[0]:
                best = (rank, stated[0])
    return None if best is None else best[1]


def compare(question: str, passages: Sequence[Passage]) -> str | None:
    """The option that wins a comparison; None if it is none, or the passages lack one of the two quantities.

    Dates are compared for words such as "first", "older", "later", numbers (brought to one unit) for words
    such as "longer", "smaller". Of equal quantities the first option is given.
    """
    pair = _options(question)
    if pair is None:
        return None
    cue = next((w for w in re.findall(r"[a-z]+", question.lower()) if w in _DIRECTION), None)
    if cue is None:
        return None
    by_date, larger = _DIRECTION[cue]
    asked = _spans.stems(question) - _spans.stems(pair[0]) - _spans.stems(pair[1])
    a, b = (_quantity(option, asked, passages, by_date) for option in pair)
    if a is None or b is None or a.value is None or b.value is None or a.kind != b.kind:
        return None
    return pair[0] if a.value == b.value or (a.value > b.value) == larger else pair[1]
