"""Names in running text: the dictionary of a corpus's titles, and capitalised spans where there are none.

A mention is a run of words that equals a name, word for word and whatever the case, provided that one of its
words is written with a capital or begins with a digit (names are; "it" and "water" in running text are not).
At each position the longest name wins. One pass over the words of a text, with a lookup by the first and the
second word.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

_WORD = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")
_PUNCTUATION = frozenset(".,;:!?()\n\u2013\u2014")
_QUALIFIER = re.compile(r"\s*\([^()]*\)\s*$")
_LONGEST = 12  # words of a name
_JOINS = frozenset(("of", "the", "de", "la", "du", "von", "van", "and", "for", "in"))
_COMMON_WORDS = """
a an the this that these those it its he she they we you i his her their our my in on at by for from of
to with as and or but if when while after before during since until although because however there here
what which who where why how is are was were be been has have had do does did not no yes one two three
first second new other some many most all both each also more january february march april may june july
august september october november december monday tuesday wednesday thursday friday saturday sunday
"""
_COMMON = frozenset(_COMMON_WORDS.split())


@lru_cache(maxsize=4096)  # pools of one corpus hold the same titles again and again
def name_key(name: str) -> str:
    """A name as it is looked up: its words in lower case, without a qualifier in brackets at the end."""
    plain = _QUALIFIER.sub("", name)
    return " ".join(word.lower() for word in _WORD.findall(plain or name))


class NameDictionary:
    """Names and who bears them: name k is borne by passage k; blank for none. Single very common words are
    left out.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.bearers: dict[str, list[int]] = {}
        found: dict[str, dict[str, set[int]]] = {}
        for k, name in enumerate(names):
            key = name_key(name)
            words = key.split(" ")
            if not key or len(words) > _LONGEST or (len(words) == 1 and (key in _COMMON or len(key) < 2)):
                continue
            self.bearers.setdefault(key, []).append(k)
            second = words[1] if len(words) > 1 else ""
            found.setdefault(words[0], {}).setdefault(second, set()).add(len(words))
        # first word -> second word -> lengths, longest first; under "" where the first word is a name
        self._lengths = {
            first: {second: sorted(lengths, reverse=True) for second, lengths in rest.items()}
            for first, rest in found.items()
        }

    def __len__(self) -> int:
        return len(self.bearers)

    def mentions(self, text: str) -> list[str]:
        """Keys of the names that a text mentions, in the order of the text, repeats included."""
        words = _WORD.findall(text)
        lower = " ".join(words).lower().split(" ")
        known, bearers = self._lengths, self.bearers
        found: list[str] = []
        free = 0  # words before this one belong to the last name
        for position, first in enumerate(lower):
            rest = known.get(first)
            if rest is None or position < free:
                continue
            second = lower[position + 1] if position + 1 < len(lower) else ""
            for length in (*rest.get(second, ()), *rest.get("", ())):
                key = first if length == 1 else " ".join(lower[position : position + length])
                if key in bearers and any(not w[0].islower() for w in words[position : position + length]):
                    found.append(key)
                    free = position + length
                    break
        return found


def leading_name(text: str, within: int = 80) -> str:
    """What a text without a title is about: the capitalised run within its first characters; blank without
    one.

    A single word is a name only where the sentence goes on as after a name ("Lima is", "Lima, the"); in
    "American painters of" it is none.
    """
    words: list[str] = []
    before, closed = 0, False
    for found in _WORD.finditer(text[:within]):
        word, gap = found.group(), text[before : found.start()]
        before = found.end()
        if not words and word.lower() in _COMMON:
            continue
        if words and set(gap) & _PUNCTUATION:
            closed = True
            break
        if word[0].isupper() or word[0].isdigit() or (words and word.lower() in _JOINS):
            words.append(word)
        else:
            closed = word.lower() in _COMMON
            break
    while words and words[-1].lower() in _JOINS:
        words.pop()
        closed = True
    return " ".join(words) if len(words) > 1 or closed else ""
