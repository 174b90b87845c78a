"""Relevance of units of documents: sentences, list items, rows of tables, lines of code.

One fixed formula, for every kind of document. The log score of a unit is

    z = 12 u + 4 n + 12 p + 2 w + 5 v + 3 (s - 1)

    u   cosine of the unit, less the best of the pool
    n   the larger cosine of the units before and behind it in its section, less the same best
    p   cosine of its passage, less the best of the pool
    w   BM25 of the unit with the headings above it, as a share of the best of the pool
    v   BM25 of its passage, as a share of the best of the pool
    s   scope of its document, in [0, 1]: how far the question names it; of more than three named documents,
        1 - s is divided by a third of their number; of one that is clearly named, it counts 2.5 times

Where the embedder does not read the script of the question, w and v weigh 6 each, and cosines nothing.
Where the question names one document, the rest of the question says what is looked for: z is then .3 of the
formula and .7 of the same by the rest of the question, with the best of the named document in place of the
best of the pool, and shares of at most 1. Where it asks the same of up to four documents, as in "Compare the
revenue of A and B", each is measured against its own best, so that none is forgotten for another. Where it
compares up to four versions of one document, what they say in other words gains 2, and the best of each 3; of
two sentences on the same each is worth the better, so that both sides of a change are read. Where it names a
part by its number ("clause 4.1"), the units of that part stand above all others. Of six or more rows of a
table that have the same words of the question and match alike, but weakly, each loses the log of their
number: the question may mean any of them. The relevance of a unit is the probability that it holds evidence,

    1 / (1 + exp(1.4 - .4 (z - max z)))

and that of a passage the largest of its units. The weights in z are not fitted: logistic regression on the
same signals, leaving one question set out, was level with them. That of v was chosen of 2 to 8; from 4 on
they read nearly the same. The two numbers of the probability are rounded from fits on five sets of documents,
where they lay at .8 to 2.4 and .24 to .60: it is a rough one.
`python -m benchmarks run documents` measures what is read by it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mio_rag.documents.dates import in_force, time_asked
from mio_rag.errors import InputError
from mio_rag.pool import Pool
from mio_rag.relevance.features import asked_words, logistic
from mio_rag.sentences import (
    Names,
    are_versions,
    asks_for_older,
    bare_name,
    called_alike,
    marks_of,
    may_compare,
    names_time,
    pattern,
    same_name,
    versions_asked,
)

FloatArray = NDArray[np.float64]
#: Scores of passages beside those that every pool has.
DOCUMENT_SCORES = frozenset(("dense_rest", "bm25_rest", "dense_bare", "scope"))
#: What the log score of a unit is made of: u, n, p, w, v and s - 1 of the formula.
TERMS = ("unit_cosine", "neighbour_cosine", "passage_cosine", "unit_words", "passage_words", "scope")
_WORDS_ALONE = np.array([[3.0], [1.2]])  # times as much do w and v weigh where cosines say nothing
_REST = 0.7  # weight of the rest of the question, where the question names one document
_SURELY_THERE = 0.55  # fit of a number from which a part is there that is asked for
_SURELY_NOT = 0.02  # below the smallest of 214 questions asked of their own documents, which was .6
_CLEAR = 2.5  # times as much does the scope weigh there
_COMPARED = 3.0  # log score that the best unit of each of compared versions gains ...
_CHANGED = 2.0  # ... and what one of them says in other words than another
_ALIKE = 0.3  # Jaccard similarity of what two versions say of the same
_REPEATED, _FAR_BELOW = (
    0.4,
    8.0,
)  # Jaccard similarity of the same said of another day; log scores below the best
#: A code that names one thing, as "AC-021" or "E17"; how many units may have it, how far these stand above.
_CODE = pattern(
    r"(?<![^\W_]|[-./])(?!(?i:fy|cy|q|h|v)[-./]?\d)"
    r"[^\W\d_]{1,6}(?:[-./]\d{1,7}|\d{2,7})(?:[-./]\d{1,7})*(?![^\W_]|[-./]\w)"
)
_RARE, _CODED = 3, 0.5
_NUMBERED = 6.0  # log score by which units of a part that is named by its number stand above all others
_WEAK, _LEAST = (
    1.5,
    10.0,
)  # log scores below the best from which rows that match alike are looked for, and to which
_SAME, _MANY = 0.3, 6  # log score by which they differ at most, and how many they are at least
_FEW = 3  # documents; where a question names more, that says less of where to look
_NAMED = 0.999  # scope from which a document is the one that the question names
#: Fingerprints of embedders that read English only: their cosines say nothing of questions in other scripts.
_ENGLISH = ("sentence-transformers:72362722b466552f",)  # minilm
#: Words that ask for changes, and name none.
_OF_CHANGES = frozenset((
    "added", "alike", "amended", "between", "both", "change", "changed", "changes", "clause", "clauses",
    "compare", "compared", "comparison", "differ", "difference", "differences", "differs", "edition", "list",
    "lists", "new", "old", "removed", "rules", "same", "section", "sections", "since", "summarise",
    "summarize", "terms", "update", "updated", "updates", "version", "versions", "year", "years",
))  # fmt: skip
_LATIN = re.compile(r"[A-Za-z\u00c0-\u024f]")
_WORD = pattern(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W\d_]+")
_DIGITS, _FIGURE = re.compile(r"\d+"), pattern(r"(?<![\d.,])(?!(?:19|20)\d\d\b)\d[\d.,]*\b")  # no year
_LETTER = re.compile(r"[^\W\d_]")


@dataclass(frozen=True)
class DocumentModel:
    """Weights of the formula.

    weights: length 6, of `TERMS`, each >= 0.
    level, slope: the probability of a unit is logistic(level + slope (z - max z)).
    name, provenance: for people; where the numbers come from.
    measures: what was measured while fitting; plain data.

    Raises `InputError` for numbers that are not finite, or negative weights.
    """

    weights: tuple[float, ...] = (12.0, 4.0, 12.0, 2.0, 5.0, 3.0)
    level: float = -1.4
    slope: float = 0.4
    name: str = "documents"
    provenance: str = "fixed"
    measures: Mapping[str, Any] = field(default_factory=dict)
    FORMAT: ClassVar[str] = "mio-rag-document-relevance"

    def __post_init__(self) -> None:
        numbers = np.array([*self.weights, self.slope])
        if (
            len(self.weights) != len(TERMS)
            or not np.isfinite([*numbers, self.level]).all()
            or numbers.min() < 0
        ):
            raise InputError(f"weights must be {len(TERMS)} numbers >= 0, of {', '.join(TERMS)}; slope >= 0")

    def unit_relevance(self, pool: Pool) -> FloatArray:
        """Return the probability that each of ``pool.sentences`` holds evidence, shape (m,)."""
        z = np.asarray(terms(pool) @ np.array(self.weights))
        if not z.size:
            return z
        z = _with_rows(pool, _newest_first(pool, _with_versions(pool, z)))
        if (coded := _with_code(pool)).any():
            z[coded] = np.maximum(z[coded], z.max() + _CODED)
        if (own := _of_number(pool)).any():
            z[own] = z.max() + _NUMBERED + (z[own] - z[own].max()) / 4
        return logistic(self.level + self.slope * (z - z.max()))

    def valued(self, pool: Pool, units: FloatArray | None = None) -> Pool:
        """Return the pool with the relevance of its best unit for each passage; 0 for one without a unit.

        units: `unit_relevance`, where it is known.
        """
        assert pool.sentences is not None
        best = np.zeros(len(pool))
        np.maximum.at(best, pool.sentences.owners, self.unit_relevance(pool) if units is None else units)
        return pool.with_relevance(best, pool.scores)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        data = {**asdict(self), "weights": dict(zip(TERMS, self.weights, strict=True))}
        return {"format": self.FORMAT, "version": 1, **data}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DocumentModel:
        """Return the model that `to_dict` wrote; `InputError` if it is none."""
        given = {key: value for key, value in data.items() if key not in ("format", "version")}
        try:
            own = given.pop("weights")
            return cls(tuple(float(own[term]) for term in TERMS), **given)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"the relevance model is malformed ({type(error).__name__}: {error})") from error


def is_document_pool(pool: Pool) -> bool:
    """Whether search scored the units of the pool's passages, so that the formula applies."""
    return pool.sentences is not None and pool.sentences.are_scored and {"dense", "bm25"} <= set(pool.scores)


def terms(pool: Pool) -> FloatArray:
    """Return `TERMS` of each of ``pool.sentences``, shape (m, 6).

    pool: of passages; see `is_document_pool`.
    """
    units = pool.sentences
    assert units is not None
    if not len(units.owners):
        return np.zeros((0, len(TERMS)))
    beside = _neighbours(pool)
    by_cosine, by_words = (1.0, np.ones((2, 1))) if is_read(pool) else (0.0, _WORDS_ALONE)
    apart: list[NDArray[np.bool_]] = []  # units of each of several documents that the question names

    def signals(ending: str, among: NDArray[np.bool_], apart: Sequence[NDArray[np.bool_]] = ()) -> FloatArray:
        cosine, words = units.scores["dense" + ending], units.scores["bm25" + ending]
        of_passage = pool.scores["dense" + ending][units.owners]
        words_of_passage = pool.scores["bm25" + ending][units.owners]
        near = np.maximum(cosine[beside[:, 0]], cosine[beside[:, 1]])
        best, best_passage = (_best(x, among, apart) for x in (cosine, of_passage))
        gaps = by_cosine * np.array([cosine - best, near - best, of_passage - best_passage])
        shares = by_words * np.array([_share(x, _best(x, among, apart)) for x in (words, words_of_passage)])
        return np.concatenate([gaps, shares])

    everywhere = np.ones(len(units.owners), dtype=bool)
    found, own = signals("", everywhere), np.ones(len(units.owners))
    many = 1.0  # what scope is divided by
    if (scope := pool.scores.get("scope")) is not None:
        where = pool.sources or pool.ids
        in_scope = {where[i]: k for k, i in enumerate(np.flatnonzero(scope >= _NAMED).tolist())}
        many = max(1.0, len(in_scope) / _FEW)
        own = scope[units.owners]
        if "dense_rest" in units.scores:
            many = 1 / _CLEAR
            named = own >= _NAMED
            if len(in_scope) > 1:  # compared with each other: each has its own best
                document = np.array([in_scope.get(name, -1) for name in where])[units.owners]
                apart = [document == k for k in np.unique(document[named])]
                found = signals("", everywhere, apart)
            rest = signals("_rest", named if named.any() else own >= own.max(), apart)
            found = (1 - _REST) * found + _REST * rest
    return np.concatenate([found, [(own - 1.0) / many]]).T


def _with_versions(pool: Pool, z: FloatArray) -> FloatArray:
    """The log scores, with what units of a few versions gain that the question compares.

    That is `_CHANGED` for what another version does not say word for word, then `_COMPARED` for the best unit
    of all and what each other version says of it. What two versions say of the same is worth the better.
    Where it asks for the old one alone, the newest loses `_COMPARED`; where it asks of a time or a version
    that did hold, each that did not loses twice that.
    """
    units, question = pool.sentences, pool.question
    if units is None or not (may_compare(question) or time_asked(question) or marks_of(question)):
        return z
    names, made = [pool.names[i] for i in units.owners.tolist()], z.copy()
    if not may_compare(question):
        held = {name: in_force(name, question)[0] for name in {*names}}
        then = [name for name in held if held[name]]
        gone = {
            one for one in held if not held[one] and any(are_versions(*one[:2], *name[:2]) for name in then)
        }
        made[np.array([name in gone for name in names], dtype=bool)] -= 2 * _COMPARED
        return made
    asked = versions_asked(pool.question, names[int(z.argmax())], names)
    if not 1 < len(asked) <= _FEW + 1:
        return z
    versions = {one: [k for k, name in enumerate(names) if name == one] for one in asked}
    if asks_for_older(pool.question):
        made[versions[max(asked, key=lambda name: (name[2], name[1]))]] -= _COMPARED
        return made
    said = dict[int, tuple[str, tuple[frozenset[str], ...], frozenset[str]]]()
    for k in (k for rows in versions.values() for k in rows):
        i, (start, end) = int(units.owners[k]), units.spans[k].tolist()
        text, path = pool.texts[i][start:end].casefold(), () if units.sections is None else units.sections[k]
        said[k] = text, tuple(map(bare_name, path)), frozenset(_WORD.findall(text))

    def nearest(k: int, rows: Sequence[int]) -> int | None:
        """What a version says of the same under the same heading, in nearly the same words."""
        text, path, words = said[k]
        same = {
            j: len(said[j][2] & words) / max(1, len(said[j][2] | words)) for j in rows if said[j][1] == path
        }
        best = max(same, key=lambda j: (said[j][0] == text, same[j], z[j]), default=-1)
        return best if best >= 0 and (same[best] >= _ALIKE or said[best][0] == text) else None

    for name, rows in versions.items():
        for k in rows:
            pairs = [nearest(k, there) for other, there in versions.items() if other != name]
            made[k] = max([z[k], *(z[j] for j in pairs if j is not None)])
            made[k] += _CHANGED * any(j is None or said[j][0] != said[k][0] for j in pairs)
    first = max(said, key=made.__getitem__)
    top = made.max() + _COMPARED
    if asks_for_changes_alone(pool.question, asked):
        others = {one: [j for other in versions if other != one for j in versions[other]] for one in versions}
        for name, rows in versions.items():
            changed = [k for k in rows if all(said[j][:2] != said[k][:2] for j in others[name])]
            made[changed] = top
        return made
    for rows in versions.values():
        found = nearest(first, rows)
        made[max(rows, key=z.__getitem__) if found is None else found] = top
    return made


def _newest_first(pool: Pool, z: FloatArray) -> FloatArray:
    """The log scores, with the newest above the best where both say the same with other figures.

    That is of documents of one name, as minutes, and the newest at the time asked of; not where the question
    has a word that only the document of the best has: "What is Ann's dose?"
    """
    units, question, first = pool.sentences, pool.question, int(z.argmax())
    if units is None or may_compare(question) or (names_time(question) and time_asked(question) is None):
        return z

    def said(k: int) -> tuple[object, set[str], list[str]]:
        i, (start, end) = int(units.owners[k]), units.spans[k].tolist()
        text, path = pool.texts[i][start:end].casefold(), () if units.sections is None else units.sections[k]
        return tuple(map(bare_name, path)), set(_WORD.findall(text)), _FIGURE.findall(text)

    def known(name: Names) -> set[str]:
        texts = [text for text, other in zip(pool.texts, names, strict=True) if other == name]
        return asked.intersection(_WORD.findall(" ".join((name[0], *texts)).casefold()))

    names, asked = pool.names, set(_WORD.findall(" ".join(asked_words(question)).casefold()))
    own, (path, words, figures) = names[int(units.owners[first])], said(first)
    bare = _DIGITS.sub("", own[1])  # "news-03.md" and "news-09.md" are of one series
    ranks = {
        name: in_force(name, question)
        for name in {*names}
        if name[2] > ""
        and (called_alike(name, own) or same_name(name[0], _DIGITS.sub("", name[1]), own[0], bare))
    }
    best, rank = first, ranks.get(own, ())
    for k in np.flatnonzero(z > z[first] - _FAR_BELOW).tolist() if figures and len(ranks) > 1 else ():
        name = names[int(units.owners[k])]
        if ranks.get(name, ()) > rank > ():
            there, others, numbers = said(k)
            same = there == path and len(words & others) >= _REPEATED * len(words | others)
            same = same and numbers not in ([], figures)
            if same and (ranks[name][0] != ranks[own][0] or known(own) <= known(name)):
                best, rank = k, ranks[name]
    made = z.copy()
    made[best] = z[first] + (best != first) / 2
    return made


def asks_for_changes_alone(question: str, names: Sequence[tuple[str, str, str]]) -> bool:
    """Whether a question about versions names nothing else: "What changed in the contract?"."""
    known = {
        word for name in names for word in _WORD.findall(" ".join(name[:2]).casefold().replace("_", " "))
    }
    return all(
        word.isdigit()
        or word in _OF_CHANGES
        or any(word.startswith(one) or one.startswith(word) for one in known)
        for word in asked_words(question)
    )


def is_known(pool: Pool) -> bool:
    """Whether the pool has what the question names: a part by its number, or versions that it compares."""
    numbers = None if pool.sentences is None else pool.sentences.scores.get("number")
    if numbers is not None and numbers.max(initial=0.0) >= _SURELY_THERE:
        return True
    scope = pool.scores.get("scope")
    if scope is None or not may_compare(pool.question) or (scope >= _NAMED).all():
        return False
    names = [name for name, own in zip(pool.names, scope.tolist(), strict=True) if own >= _NAMED]
    return any(len(versions_asked(pool.question, name, names)) > 1 for name in dict.fromkeys(names))


def _with_rows(pool: Pool, z: FloatArray) -> FloatArray:
    """The log scores, without what rows of a table lose that only share some words with the question."""
    units, lines = pool.sentences, pool.lines
    if units is None or units.needs is None or lines is None:
        return z
    gap, tables = z.max() - z, dict[tuple[object, ...], list[int]]()
    asked, names = frozenset(asked_words(pool.question)), pool.names
    looked_at = ((gap > _WEAK) & (gap < _LEAST)).tolist()
    borders = units.owners.searchsorted(np.arange(len(pool) + 1)).tolist()
    for i in [i for i, text in enumerate(pool.texts) if " | " in text]:
        first = borders[i]
        for k, words in _rows_of(pool.texts[i], units.spans[first : borders[i + 1]].tobytes()):
            if looked_at[first + k] and (shared := asked & words):
                heads = tuple(lines[i][n] for n in units.needs[first + k])
                tables.setdefault((names[i], heads, shared), []).append(first + k)
    made = z.copy()
    for rows in tables.values():
        held = np.sort(z[rows])
        alike = held.searchsorted(z[rows] + _SAME, "right") - held.searchsorted(z[rows] - _SAME)
        made[rows] -= np.where(alike < _MANY, 0.0, np.log(alike))
    return made


@lru_cache(maxsize=1024)  # questions to one collection find the same tables again and again
def _rows_of(text: str, spans: bytes) -> list[tuple[int, frozenset[str]]]:
    """Which units of a passage are rows of tables, and their words; spans as bytes of int64."""
    units = [text[a:b] for a, b in np.frombuffer(spans, dtype=np.int64).reshape(-1, 2).tolist()]
    rows = [(k, one.lower()) for k, one in enumerate(units) if " | " in one]
    return [(k, frozenset(_WORD.findall(one))) for k, one in rows]


def _with_code(pool: Pool) -> NDArray[np.bool_]:
    """Which units have a code of the question, as "AC-021", that hardly any other has."""
    units = pool.sentences
    assert units is not None
    found = np.zeros(len(units.owners), dtype=bool)
    for code in {one[0] for one in _CODE.finditer(pool.question)}:
        word = re.compile(rf"(?<![^\W_]){re.escape(code)}(?![^\W_]|[-./]\w)", re.IGNORECASE)
        rows = [i for i, text in enumerate(pool.texts) if word.search(text)]
        held = [
            k
            for k in np.flatnonzero(np.isin(units.owners, rows)).tolist()
            if word.search(pool.texts[units.owners[k]][slice(*units.spans[k].tolist())])
        ]
        if len(held) <= _RARE:
            found[held] = True
    return found


def _of_number(pool: Pool) -> NDArray[np.bool_]:
    """Which units are of a part that the question names by its number, first of documents that it names."""
    assert pool.sentences is not None
    fit = pool.sentences.scores.get("number", np.zeros(len(pool.sentences.owners)))
    if (scope := pool.scores.get("scope")) is not None:
        named = np.where(scope[pool.sentences.owners] >= _NAMED, fit, 0.0)
        fit = named if named.max(initial=0.0) > 0 else fit
    return np.asarray((fit > 0) & (fit == fit.max(initial=0.0)))


def _share(scores: FloatArray, best: FloatArray) -> FloatArray:
    """Scores as shares of the best, at most 1; 0 where that is none."""
    return np.where(best > 1e-6, np.minimum(scores / np.maximum(best, 1e-6), 1.0), 0.0)


def _best(scores: FloatArray, among: NDArray[np.bool_], apart: Sequence[NDArray[np.bool_]]) -> FloatArray:
    """What each score is measured against: the best `among`, and of those that stand apart their own best."""
    best = np.full(len(scores), scores[among].max())
    for own in apart:
        best[own] = scores[own].max()
    return best


def surely_elsewhere(pool: Pool, likely: float | None) -> bool:
    """Whether documents surely do not answer, by the probability that they do; None: unknown.

    That probability goes by cosines, so it says nothing where the embedder does not read the question.
    """
    return likely is not None and likely < _SURELY_NOT and is_read(pool)


def is_read(pool: Pool) -> bool:
    """Whether the embedder of a pool reads the script of its question."""
    if pool.embedder not in _ENGLISH:
        return True
    letters = len(_LETTER.findall(pool.question))
    return 2 * len(_LATIN.findall(pool.question)) >= letters


def _neighbours(pool: Pool) -> NDArray[np.int64]:
    """Rows of the units before and behind each in its section, shape (m, 2); its own where there is none."""
    units = pool.sentences
    assert units is not None
    own = np.arange(len(units.owners))
    same = units.owners[1:] == units.owners[:-1]
    before, behind = own.copy(), own.copy()
    before[1:][same] -= 1
    behind[:-1][same] += 1
    if pool.positions is not None and pool.sections is not None and pool.sources is not None:
        borders = units.owners.searchsorted(np.arange(len(pool) + 1)).tolist()
        order = np.argsort(pool.positions, kind="stable")
        follows = np.flatnonzero(pool.positions[order[1:]] - pool.positions[order[:-1]] == 1)
        for i, j in zip(order[follows].tolist(), order[follows + 1].tolist(), strict=True):
            last, first = borders[i + 1] - 1, borders[j]
            if borders[i] > last or first == borders[j + 1] or pool.sources[i] != pool.sources[j]:
                continue
            if pool.sections[i] == pool.sections[j]:
                behind[last], before[first] = first, last
    return np.stack([before, behind], axis=1)
