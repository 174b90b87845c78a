"""Scope: which documents a question names, and what it asks of them.

"In the lease between Alder and Birch: who pays for repairs?" says where to look before it says what for. If
the name is searched, too, title pages win. So words that stand in the identity of a document (its title, its
file's name, its first words) and in hardly any other document *name* it; documents that are not named count
for less, and where one document alone is clearly named, the rest of the question is searched as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mio_rag.documents.dates import time_asked
from mio_rag.errors import IndexFormatError
from mio_rag.retrieval.hashed import word_hash
from mio_rag.retrieval.texts import units_of
from mio_rag.retrieval.unit_terms import UnitTerms
from mio_rag.retrieval.vectors import read_arrays, unfit
from mio_rag.retrieval.words import Words
from mio_rag.types import Passage

SCOPE_FILE = "scope.npz"
_OPENING = 80  # words of a document that say what it is
_FEWEST = 3  # documents: among fewer nothing is looked for
_SHARE = 0.03  # of the documents, and one more: a word that stands in more names none
_ENOUGH = 0.6  # of the best document's weight, or of a title's words: such a document is in scope, too
_LEAST = 4  # words of a question that stand in the identity of a document which it names clearly ...
_LEAST_NAMES = 3  # ... and so many of them that name it, unless they are half of its title or before a colon
_OTHER_NUMBER = 0.5  # scope of what bears the name that is asked for, and another year or model
_INSIDE = 0.999  # least scope of what is meant
_OTHERS = 0.998  # largest scope of others, where documents are clearly named
_COMPARED = 4  # documents at most that a question asks the same of
_QUOTED = re.compile(r'["“„«]([^"”“»]{15,})["”“»]')
_HEAD = re.compile(r"^[^?]{15,}?[:：]\s+(?=\S.{12,})")
_OFTEN, _OFTEN_TITLED = (
    0.2,
    0.02,
)  # of documents, and of their titles: a name there says nothing of what is asked
_DANGLING = re.compile(r"\b(?:of|at|by|for|in|from|with|to|on)(?=\W*$)", re.IGNORECASE)
_CAPITALS = re.compile(r"\b[A-Z][\w&.]*(?:[ \t,-]+(?:[A-Z]|\d+[A-Z])[\w&.]*)*")
_LEFT_OVER = re.compile(r"^\W*(?:in|for|according to|of|on)?\W+", re.IGNORECASE)


class Scope(NamedTuple):
    """What a question says about where to look.

    documents (documents,): how far each document is meant, 0 to 1; 1 for all where the question names none.
    rest: what is asked of the document that is clearly named, or of each of a few that are compared, whose
        scope is 1; None where there is none.
    """

    documents: NDArray[np.float64]
    rest: str | None


@dataclass(frozen=True, eq=False)
class Identities:
    """The words by which the documents of an index are named.

    documents (n,): number of the document of each passage.
    hashes (t,): of the words that stand in an identity, ascending.
    spread (t,): in how many documents each word stands.
    first (t + 1,): where the documents of each word begin in `holders`.
    holders: documents whose identity has the word.
    titled: whether it stands in the title or the file's name of that document.
    numbers (t,): whether a word is a number.
    """

    documents: NDArray[np.int32]
    hashes: NDArray[np.uint64]
    spread: NDArray[np.int32]
    first: NDArray[np.int64]
    holders: NDArray[np.int32]
    titled: NDArray[np.bool_]
    numbers: NDArray[np.bool_]
    _count: int = field(init=False, repr=False)  # of documents
    _in_titles: NDArray[np.int64] = field(init=False, repr=False)  # how many titles have each word
    _names: NDArray[np.bool_] = field(init=False, repr=False)  # whether each word names documents
    _title_words: NDArray[np.int64] = field(init=False, repr=False)  # of each title, without numbers
    _title_names: NDArray[np.int64] = field(init=False, repr=False)  # those among them that name documents

    @classmethod
    def build(cls, passages: Sequence[Passage], terms: UnitTerms) -> Identities:
        """Find the words that name documents; a document is what passages of one source are of."""
        number: dict[str, int] = {}
        documents = np.array([number.setdefault(p.source or p.title or p.id, len(number)) for p in passages])
        titles: list[set[str]] = [set() for _ in number]
        openings: list[list[str]] = [[] for _ in number]
        seen: set[int] = set()
        for passage, k in zip(passages, documents.tolist(), strict=True):
            if k not in seen:
                seen.add(k)
                name = re.sub(r"[-_.]+", " ", PurePath(passage.source).stem)
                titles[k].update(terms.words(" ".join([name, passage.title, *passage.section[:1]])))
            if len(openings[k]) < _OPENING:
                for unit in units_of(passage):
                    openings[k] += terms.words(passage.text[unit.start : unit.end])
        spread_of = terms.spread(documents.astype(np.int64))
        known: dict[str, tuple[int, int]] = {}  # hash of a word, and in how many documents it stands
        rows = []
        for k, title in enumerate(titles):
            for word in title | set(openings[k][:_OPENING]):
                if word not in known:
                    column = terms.column(word)
                    known[word] = word_hash(word), 0 if column is None else int(spread_of[column])
                hashed, df = known[word]
                rows.append((hashed, k, df, word in title, word.isdigit()))
        table = np.sort(np.array(rows, dtype=_ROW), order=["hash", "k"])
        hashes, first = np.unique(table["hash"], return_index=True)
        return cls(
            documents.astype(np.int32),
            hashes,
            table["df"][first],
            np.append(first, len(table)).astype(np.int64),
            table["k"].copy(),
            table["titled"].copy(),
            table["number"][first],
        )

    def changed(
        self,
        terms: UnitTerms,
        kept: NDArray[np.int64],
        fresh: Identities,
        more: UnitTerms,
        gone: UnitTerms | None,
        lost: NDArray[np.int64],
    ) -> Identities:
        """The words that name documents after some changed; whole ones are gone, and new.

        terms: of all before.
        kept (n,): row of each passage before, -1 for new ones.
        fresh, more: of the new ones.
        gone, lost: words of the passages that are gone, and the rows of these before.
        """
        place = np.where(kept < 0, np.cumsum(kept < 0) - 1, kept)
        both = np.where(
            kept < 0, len(self) + fresh.documents[place * (kept < 0)], self.documents[place * (kept >= 0)]
        )
        used, first, documents = np.unique(both, return_index=True, return_inverse=True)
        number = np.full(len(self) + len(fresh), -1, dtype=np.int32)
        number[used[np.argsort(first)]] = np.arange(len(used))
        tables = []
        for one, begin in ((self, 0), (fresh, len(self))):
            word = np.repeat(np.arange(len(one.hashes)), np.diff(one.first))
            table = np.empty(len(word), dtype=_ROW)
            table["hash"], table["k"] = one.hashes[word], number[one.holders + begin]
            table["titled"], table["number"] = one.titled, one.numbers[word]
            tables.append(table[table["k"] >= 0])
        table = np.concatenate(tables)
        table = table[np.argsort(table["hash"], kind="stable")]
        column = table["hash"]
        begin_of = np.flatnonzero(np.diff(column, prepend=column[:1] ^ np.uint64(1)))
        hashes = column[begin_of]
        at = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        known = self.hashes[at] == hashes
        spread = np.where(known, self.spread[at], 0).astype(np.int64)
        for k in np.flatnonzero(~known).tolist():  # so far no document's identity had it
            spread[k] = len(np.unique(self.documents[terms.passages_with(hashes[k])]))
        spread += more.spread_of(hashes, fresh.documents.astype(np.int64))
        if gone is not None:
            _, groups = np.unique(self.documents[lost], return_inverse=True)
            spread -= gone.spread_of(hashes, groups)
        return Identities(
            number[used][documents].astype(np.int32),
            hashes,
            spread.astype(np.int32),
            np.append(begin_of, len(table)).astype(np.int64),
            table["k"].copy(),
            table["titled"].copy(),
            table["number"][begin_of],
        )

    def __len__(self) -> int:
        return self._count

    def of(self, question: str, words: Words) -> Scope:
        """The scope of a question.

        words: those that cut the documents.
        """
        n = len(self)
        if n < _FEWEST:
            return Scope(np.ones(n), None)
        if (asked := time_asked(question)) and asked.start == asked.end:
            question = asked.rest  # "before 2025" names no document of 2025
        known, inside, titled = self._known(dict.fromkeys(words(question)))
        if not known:
            return Scope(self._by_names(question, words, np.zeros(n)), None)
        rows = np.array([k for _, k in known])
        named = inside & self._names[rows]
        weight = named @ self._rarity(rows)
        scope = np.ones(n)
        if weight.max() > 0:
            own = (titled & self._names[rows] & ~self.numbers[rows]).sum(axis=1)
            whole = (self._title_names > 0) & (own >= _ENOUGH * self._title_names)
            scope = np.where(whole, 1.0, np.minimum(1.0, weight / (_ENOUGH * weight.max())))
        if len(several := self._compared(question, words, known, titled)) > 1:
            hit = {word for j, (word, _) in enumerate(known) if titled[several, j].any()}
            rest = _without(question, hit, words)
            if rest != question and words(rest):
                scope = np.minimum(scope, _OTHERS)
                scope[several] = 1.0
                return Scope(scope, rest)
        by_title = titled @ np.log1p(n / np.maximum(1, self._in_titles[rows]))
        best = int(np.argmax(by_title))
        found = int(titled[best].sum())
        clear = (
            found >= _LEAST
            and found >= 0.5 * self._title_words[best]
            and (by_title >= _ENOUGH * by_title[best]).sum() == 1
        )
        if not clear and weight.max() > 0 and (scope >= 0.999).sum() == 1:
            best = int(np.argmax(weight))
            clear = bool(named[best].sum() >= _LEAST_NAMES and inside[best].sum() >= _LEAST)
            if not clear and (head := _HEAD.match(question)):  # "In the lease of A and B: ..." says it itself
                before = set(words(head[0]))
                names = {word for j, (word, _) in enumerate(known) if named[best, j]}
                own = {word for j, (word, _) in enumerate(known) if inside[best, j]} & before
                clear = names <= before and len(own) >= _LEAST
        if not clear:
            scope = self._by_names(question, words, weight, scope)
            # Of models and years in titles, those that are asked for.
            counts, meant = (titled & self.numbers[rows]).sum(axis=1), scope >= _INSIDE
            other = meant & (counts < counts[meant].max(initial=0)) & ~meant.all()
            return Scope(np.where(other, _OTHER_NUMBER, scope), None)
        hit = {word for j, (word, _) in enumerate(known) if named[best, j] or titled[best, j]}
        rest = _without(question, hit, words)
        scope = np.where(np.arange(n) == best, 1.0, np.minimum(scope, _OTHERS))
        return Scope(scope, rest if rest != question and words(rest) else None)

    def _compared(
        self, question: str, words: Words, known: list[tuple[str, int]], titled: NDArray[np.bool_]
    ) -> list[int]:
        """Documents that a question names by most of their titles, each by words of its own; none of many."""
        rows = np.array([k for _, k in known])
        proper = _proper_names(question, words)
        capital = titled & np.array([word in proper for word, _ in known]) & ~self.numbers[rows]
        names = titled & self._names[rows] & ~self.numbers[rows]
        whole = (self._title_names > 0) & (names.sum(axis=1) >= _ENOUGH * self._title_names)
        whole |= (self._title_words > 1) & (capital.sum(axis=1) >= self._title_words)
        rarity = np.log1p(len(self) / np.maximum(1, self._in_titles[rows]))
        own, weight = (names | capital), (names | capital) @ rarity
        found, claimed = list[int](), np.zeros(len(known), dtype=bool)
        for k in sorted(np.flatnonzero(whole).tolist(), key=lambda k: -weight[k]):
            if (own[k] & ~claimed) @ rarity >= 0.5 * weight[k]:
                found.append(k)
                claimed |= own[k]
        return found if len(found) <= _COMPARED else []

    def without_names(self, question: str, words: Words) -> str | None:
        """The question without names that many documents or their titles have, as that of the company.

        None where it has none, where nothing else is asked, and where capitals tell no names: in German, and
        where nearly every word has one.

        words: those that cut the documents.
        """
        pieces = question.split()
        capital = [bool(re.search(r"\w[.]\w", piece)) or piece != piece.lower() for piece in pieces]
        if "german" in words.languages or 3 * sum(capital[1:]) > 2 * len(capital[1:]):
            return None
        known, _, _ = self._known(dict.fromkeys(words(question)))
        n, names = len(self), set()
        for word, k in known:
            if self.spread[k] >= max(2.0, _OFTEN * n) or self._in_titles[k] >= max(1.0, _OFTEN_TITLED * n):
                names.add(word)
        kept = [
            piece
            for k, (piece, has_capital) in enumerate(zip(pieces, capital, strict=True))
            if not (k and has_capital and (own := set(words(piece))) and own <= names)
        ]
        if len(kept) == len(pieces) or not words(" ".join(kept)):
            return None
        return _DANGLING.sub("", " ".join(kept)).strip()

    def having(self, words: Iterable[str], rows: NDArray[np.int64]) -> set[str]:
        """Those of some words that stand in the identity of the document of one of these passages."""
        known, inside, _ = self._known(dict.fromkeys(words))
        held = np.asarray(inside[np.unique(self.documents[rows])].any(axis=0))
        return {word for (word, _), one in zip(known, held, strict=True) if one}

    def _known(
        self, asked: Iterable[str]
    ) -> tuple[list[tuple[str, int]], NDArray[np.bool_], NDArray[np.bool_]]:
        """Words that stand in identities, and their rows; which documents have each there, and in titles."""
        listed = tuple(asked)
        last: dict[tuple[str, ...], Any] = self.__dict__.get("_last", {})
        if (found_before := last.get(listed)) is not None:  # a question is looked at twice
            return found_before  # type: ignore[no-any-return]
        wanted = np.array(list(map(word_hash, listed)), dtype=np.uint64)
        at = self.hashes.searchsorted(wanted)
        hits = self.hashes.take(at, mode="clip") == wanted if len(self.hashes) else at < 0
        found = zip(listed, at.tolist(), hits.tolist(), strict=True)
        known = [(word, k) for word, k, is_known in found if is_known]
        inside = np.zeros((len(self), len(known)), dtype=bool)
        titled = np.zeros((len(self), len(known)), dtype=bool)
        for j, (_, k) in enumerate(known):
            part = slice(int(self.first[k]), int(self.first[k + 1]))
            inside[self.holders[part], j] = True
            titled[self.holders[part], j] = self.titled[part]
        self.__dict__["_last"] = {**dict(list(last.items())[-1:]), listed: (known, inside, titled)}
        return known, inside, titled

    def _rarity(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.asarray(np.log1p(len(self) / np.maximum(1, self.spread[rows])))

    def _by_names(
        self,
        question: str,
        words: Words,
        weight: NDArray[np.float64],
        scope: NDArray[np.float64] | None = None,
    ) -> NDArray[np.float64]:
        """The scope by names that several documents share, too, as the filings of a company.

        Such a name has capitals, stands in titles of at most half of the documents, and hardly in others.
        """
        known, _, titled = self._known(_proper_names(question, words))
        rows = np.array([k for _, k in known], dtype=np.int64)
        titles = self._in_titles[rows]
        shared = ~self._names[rows] & ~self.numbers[rows] & (2 * titles <= len(self))
        shared &= (titles > 0) & (self.spread[rows] <= titles + np.maximum(1, titles // 4))
        # Names written as one word are new here; others that name documents are known already.
        asked = set(words(question))
        fresh = np.array([word not in asked for word, _ in known], dtype=bool)
        used = shared | (fresh & self._names[rows])
        weight = weight + (titled & used) @ self._rarity(rows)
        if not used.any() or not weight.max() > 0:
            return np.ones(len(self)) if scope is None else scope
        return np.asarray(np.minimum(1.0, weight / (_ENOUGH * weight.max())))

    def __post_init__(self) -> None:
        n = int(self.documents.max(initial=-1)) + 1
        word = np.repeat(np.arange(len(self.hashes)), np.diff(self.first))
        in_titles = np.bincount(word[self.titled], minlength=len(self.hashes))
        names = np.maximum(self.spread, in_titles) <= max(1.0, _SHARE * n) + (n > _FEWEST)
        counted = self.titled & ~self.numbers[word]
        put = object.__setattr__
        put(self, "_count", n)
        put(self, "_in_titles", in_titles)
        put(self, "_names", names)
        put(self, "_title_words", np.bincount(self.holders[counted], minlength=n))
        put(self, "_title_names", np.bincount(self.holders[counted & names[word]], minlength=n))

    def save(self, folder: Path) -> None:
        """Write `SCOPE_FILE`."""
        with (folder / SCOPE_FILE).open("wb") as file:
            np.savez(file, **{name: getattr(self, name) for name in _COLUMNS})

    @classmethod
    def load(cls, folder: Path, passages: int) -> Identities | None:
        """What `save` wrote; None where the index is of no documents.

        Raises `IndexFormatError` if it belongs to another number of passages, or cannot be read.
        """
        path = folder / SCOPE_FILE
        data = read_arrays(path, *_COLUMNS)
        if data is None:
            return None
        try:
            found = cls(**data)
        except (ValueError, TypeError, IndexError) as error:
            raise IndexFormatError(f"'{path}' cannot be read ({error}): build the index again") from error
        if len(found.documents) != passages:
            raise unfit(path)
        return found


_ROW = np.dtype([("hash", "<u8"), ("k", "<i4"), ("df", "<i4"), ("titled", "?"), ("number", "?")])
_COLUMNS = ("documents", "hashes", "spread", "first", "holders", "titled", "numbers")


def _proper_names(question: str, words: Words) -> dict[str, None]:
    """Words of a question that begin with a capital, and rows of them as one word, as in names of files.

    "Best Buy" is BESTBUY there. The first word of a sentence is one only as a part of a row.
    """
    found: dict[str, None] = {}
    for run in _CAPITALS.finditer(question):
        pieces = re.findall(r"[^\W_]+", run[0])
        first = 1 if re.search(r"(?:^|[.?!:]\s+)$", question[: run.start()]) else 0
        for piece in pieces[first:]:
            found.update(dict.fromkeys(words(piece)))
        for size in (2, 3, 4):
            for k in range(len(pieces) - size + 1):
                if len(made := words("".join(pieces[k : k + size]))) == 1:
                    found[made[0]] = None
    return found


def _without(question: str, hit: set[str], words: Words) -> str:
    """A question without the words that name a document: its quoted title, what stands before a colon, or
    the words themselves."""
    enough = 0.7 * len(hit)
    if (quoted := _QUOTED.search(question)) and len(set(words(quoted[1])) & hit) >= enough:
        rest = question.replace(quoted[0], " ")
    elif (head := _HEAD.match(question)) and len(set(words(head[0])) & hit) >= enough:
        rest = question[head.end() :]
    else:
        pieces = ((piece, set(words(piece))) for piece in question.split())
        rest = " ".join(piece for piece, own in pieces if not own or not own <= hit)
    return _LEFT_OVER.sub("", rest.strip()) or question
