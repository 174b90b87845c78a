"""What an index knows about the names in a question: who bears them, and what those passages mention."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

from mio_rag.names import NameDictionary, name_key
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.links import passage_names

__all__ = ["Grounds", "IndexNames", "names_of"]

_BEARERS = 3  # passages of one name that are looked at
_NEIGHBOURS = 16  # names that the model may choose from


@dataclass(frozen=True)
class Grounds:
    """Names that a question may be expanded by.

    Parameters
    ----------
    entities : tuple of str
        Names of the index in the question, in its order.
    neighbours : tuple of str
        Names that passages about them mention, by the weight of the link; none of `entities` among them.
    """

    entities: tuple[str, ...]
    neighbours: tuple[str, ...]

    def kept(self, named: list[str]) -> tuple[tuple[str, ...], int]:
        """Those of the names that are in the context, as it spells them; how many are not.

        A name is known if its words are a run of words in one of the given names.
        """
        known = {name_key(name): name for name in (*self.entities, *self.neighbours)}
        kept: dict[str, None] = {}
        dropped = 0
        for name in named:
            key = name_key(name)
            whole = known.get(key) or next(
                (n for k, n in known.items() if key and f" {key} " in f" {k} "), None
            )
            if whole is None:
                dropped += 1
            else:
                kept[whole] = None
        return tuple(kept), dropped


class IndexNames:
    """The names of an index, found once.

    Parameters
    ----------
    index : CorpusIndex
        With evidence links.

    Raises
    ------
    InputError
        If it has none.
    """

    def __init__(self, index: CorpusIndex) -> None:
        self._links = index.required_links()
        self._names, _ = passage_names(index.passages)
        self._dictionary = NameDictionary(self._names)

    def mentioned(self, text: str) -> tuple[str, ...]:
        """Names of the index in a text, each once, in its order."""
        return tuple(self._names[self._dictionary.bearers[key][0]] for key in self._keys(text))

    def _keys(self, text: str) -> dict[str, None]:
        # Names are told by their capitals; who types none means them all the same.
        return dict.fromkeys(self._dictionary.mentions(text.title() if text == text.lower() else text))

    def grounds(self, question: str) -> Grounds:
        """What the index knows about the names in a question."""
        keys = self._keys(question)
        rows = [row for key in keys for row in self._dictionary.bearers[key][:_BEARERS]]
        entities = tuple(self._names[self._dictionary.bearers[key][0]] for key in keys)
        near: dict[str, str] = {}
        if rows:
            reached = self._links.reached(rows)
            for row in sorted(reached, key=lambda r: (-reached[r], r)):
                key = name_key(self._names[row])
                if key and key not in keys:
                    near.setdefault(key, self._names[row])
                if len(near) == _NEIGHBOURS:
                    break
        return Grounds(entities, tuple(near.values()))


_KNOWN: WeakKeyDictionary[CorpusIndex, IndexNames] = WeakKeyDictionary()


def names_of(index: CorpusIndex) -> IndexNames:
    """The names of an index, kept as long as the index is.

    Raises
    ------
    InputError
        If it was built without evidence links.
    """
    known = _KNOWN.get(index)
    if known is None:
        known = _KNOWN[index] = IndexNames(index)
    return known
