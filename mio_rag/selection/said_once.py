"""Sentences that are read once: those that overlapping passages share, and those that documents repeat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mio_rag.candidates import Candidates
from mio_rag.types import moment

__all__ = ["Unit", "label", "placed_once", "said_once"]


class Unit(NamedTuple):
    """A sentence of a passage, with the one before it if it leans on that."""

    passage: int
    number: int  # in its passage, from 1
    start: int  # of what is read: the sentence, or the one before it, in the passage's text
    core: int  # where the sentence itself starts
    end: int
    row: int  # of the pool's sentences
    worth: float
    required: bool


def said_once(candidates: Candidates, units: list[Unit]) -> list[Unit]:
    """One of those that say the same word for word under the same title.

    Required ones stay, and no other beside them.
    """
    best: dict[tuple[str, str], Unit] = {}
    for unit in units:
        other = best.setdefault(_said(candidates, unit), unit)
        if _standing(candidates, unit) > _standing(candidates, other):
            best[_said(candidates, unit)] = unit
    return [unit for unit in units if unit.required or unit is best[_said(candidates, unit)]]


def _said(candidates: Candidates, unit: Unit) -> tuple[str, str]:
    """Title and text of it, however they are spaced."""
    read = label(candidates.titles, unit.passage), candidates.texts[unit.passage][unit.start : unit.end]
    title, text = (" ".join(part.casefold().split()) for part in read)
    return title, text


def _standing(candidates: Candidates, unit: Unit) -> tuple[bool, str, float]:
    return unit.required, moment(label(candidates.dates, unit.passage)), unit.worth


def placed_once(candidates: Candidates, units: list[Unit]) -> list[Unit]:
    """Without sentences that lie within one of another passage, which is then worth the larger of the two.

    Required ones stay, so that their passage is read by its name.
    """
    if candidates.spans is None:
        return units
    documents: dict[str, list[tuple[int, int, Unit]]] = {}
    kept: list[Unit] = []
    for unit in units:
        at = int(candidates.spans[unit.passage, 0])
        if at < 0:
            kept.append(unit)
        else:
            source = label(candidates.sources, unit.passage)
            documents.setdefault(source, []).append((at + unit.core, at + unit.end, unit))
    for placed in documents.values():
        placed.sort(key=lambda one: (one[0], -one[1], not one[2].required, one[2].start - one[2].core))
        inside: list[tuple[int, int, Unit]] = []
        for start, end, unit in placed:
            places = () if unit.required else range(len(inside) - 1, -1, -1)
            k = next((k for k in places if end <= inside[k][1]), None)
            if k is not None and _text(candidates, unit) in _text(candidates, inside[k][2]):
                low, high, other = inside[k]
                inside[k] = low, high, other._replace(worth=max(other.worth, unit.worth))
            else:
                inside.append((start, end, unit))
        kept += [unit for _, _, unit in inside]
    return kept


def _text(candidates: Candidates, unit: Unit) -> str:
    return candidates.texts[unit.passage][unit.core : unit.end]


def label(labels: Sequence[str] | None, i: int) -> str:
    """The i-th of labels, which may be unknown: then blank."""
    return "" if labels is None else labels[i]
