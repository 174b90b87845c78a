"""The pool that retrieval hands to selection: one table of columns, checked as a whole.

`COLUMNS` declares each column once. `Pool.take` and `Pool.merge` follow from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mio_rag.entries import listed, no_names, no_strings, not_numbers
from mio_rag.errors import InputError
from mio_rag.sentences import Sentences
from mio_rag.types import Line, Passage, check_date

FloatArray = NDArray[np.float64]

#: Of one passage: sums over a pool then stay exact in float64.
_MOST_TOKENS = 10**12


def _frozen_array(value: ArrayLike, dtype: Any) -> NDArray[Any]:
    if (
        type(value) is np.ndarray
        and value.dtype == dtype
        and value.flags.owndata
        and not value.flags.writeable
    ):
        return value
    if np.iscomplexobj(value):
        raise TypeError("complex numbers")
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # infinite in float32: refused as that
            array = np.array(value, dtype=dtype)
    except OverflowError as error:  # a whole number that no float64 holds
        raise ValueError(str(error)) from error
    array.flags.writeable = False
    return array


def _array(name: str, value: Any, dtype: Any, problems: list[str]) -> NDArray[Any] | None:
    """A read-only array, or None with the problem noted."""
    try:
        return _frozen_array(value, dtype)
    except (TypeError, ValueError) as error:
        problems.append(f"{name} is not an array of numbers ({error})")
        return None


def _vector(name: str, value: Any, n: int, dtype: Any, problems: list[str]) -> NDArray[Any] | None:
    """A read-only vector of length n, or None with the problem noted."""
    if (found := not_numbers(value)) is not None:
        problems.append(f"{name} holds {found}: give numbers")
        return None
    array = _array(name, value, dtype, problems)
    if array is None:
        return None
    if array.shape != (n,):
        problems.append(
            f"{name} has shape {array.shape}, expected ({n},): one value for each of the {n} passages"
        )
    elif array.dtype.kind == "f" and not np.isfinite(array).all():
        bad = int(np.flatnonzero(~np.isfinite(array))[0])
        problems.append(f"{name}[{bad}] is {array[bad]}: every value must be finite")
    else:
        return array
    return None


def _square(column: Column, value: Any, n: int, problems: list[str]) -> NDArray[Any] | None:
    """A read-only matrix of a value for each pair, its problems noted."""
    name = column.name
    matrix = _array(name, value, column.dtype, problems)
    if matrix is None:
        return None
    if matrix.shape != (n, n):
        problems.append(f"{name} has shape {matrix.shape}, expected ({n}, {n}): one row per passage")
    elif not np.isfinite(matrix).all():
        i, j = (int(k) for k in np.argwhere(~np.isfinite(matrix))[0])
        problems.append(f"{name}[{i}, {j}] is {matrix[i, j]}: every value must be finite")
    elif column.merge == "pairs" and (
        not np.all((matrix >= 0) & (matrix <= 1)) or np.any(np.diagonal(matrix) != 0)
    ):
        problems.append(f"{name} must lie in [0, 1], with a zero diagonal: they are between two passages")
    elif name != "links" and not np.allclose(matrix, matrix.T, rtol=0, atol=1e-6):
        problems.append(f"{name} is not symmetric: how alike two passages are has no direction")
    return matrix


Axis = Literal["n", "n,n", "n,k", "one", "own"]
Merge = Literal["first", "larger", "both", "either", "pairs", "equal", "none"]


class Column(NamedTuple):
    """A column of a pool.

    axis: "n": a value for each passage; "n,k": a row for each passage; "n,n": a value for each pair; "one": a
        value of the whole pool; "own": a type with rules of its own.
    merge: values of two pools as one. "first": those of the first pool that has the passage. "larger": the
        larger of the two. "both": as "first", and None unless both pools have the column. "either": as
        "first", with `blank` where a pool lacks the column. "pairs": the larger within each pool, 0 between
        passages that were never in one pool. "equal": the value that both have, else blank. "none": None.
    blank: stands for "unknown". A "pairs" column with a blank needs one pool that has it, otherwise both.
    """

    name: str
    axis: Axis
    dtype: Any
    merge: Merge
    blank: Any = None


#: Every column, in the order of `Pool`'s fields.
COLUMNS = (
    Column("ids", "n", str, "first"),
    Column("texts", "n", str, "first"),
    Column("relevance", "n", np.float64, "larger"),
    Column("tokens", "n", np.int64, "first"),
    Column("embeddings", "n,k", np.float32, "both"),
    Column("query_embedding", "one", np.float32, "first"),
    Column("titles", "n", str, "either", ""),
    Column("sources", "n", str, "both"),
    Column("clusters", "n", str, "both"),
    Column("radius", "n", np.float64, "both"),
    Column("scores", "own", dict, "larger"),
    Column("question", "one", str, "first"),
    Column("links", "n,n", np.float32, "pairs"),
    Column("positions", "n", np.int64, "both"),
    Column("similarity", "n,n", np.float64, "none"),
    Column("embedder", "one", str, "equal", ""),
    Column("spans", "n,k", np.int64, "either", (-1, -1)),
    Column("dates", "n", str, "either", ""),
    Column("duplicates", "n,n", np.float32, "pairs", 0.0),
    Column("sentences", "own", Sentences, "both"),
    Column("cut_from", "n", str, "both"),
    Column("documents", "n", str, "either", ""),
    Column("gaps", "n", str, "both"),
    Column("sections", "n", tuple, "either", ()),
    Column("pages", "n", int, "either", None),
    Column("metadata", "n", dict, "either", {}),
    Column("lines", "n", tuple, "either", ()),
)
#: Columns of text, and those whose entries may be numbers, too.
_TEXTS = tuple(c.name for c in COLUMNS if c.axis == "n" and c.dtype is str)
_NAMES = ("ids", "sources", "clusters", "cut_from")
#: Columns of any plain values that a pool may lack.
_PLAIN = ("sections", "pages", "metadata", "lines")


@dataclass(frozen=True, eq=False)
class Pool:
    """The pool that retrieval hands to selection, best first.

    ids, texts: length n; unique ids and the passages' texts.
    relevance: shape (n,); value of reading each passage; any finite scale on which more is better (cosine,
        probability, ...).
    tokens: shape (n,); token cost of each passage in the prompt, from 1 to 1e12, as the reader's own
        tokenizer counts it.
    embeddings: shape (n, d); passage embeddings; unit rows give cosine similarity. Without them redundancy
        cannot be priced.
    query_embedding: shape (d,); embedding of the question; needed for embedding uncertainty.
    titles, sources, clusters: length n; labels for the prompt, per-source caps and topical coverage.
    radius: shape (n,); uncertainty radius of each embedding, >= 0. None: the selector's own setting applies.
    scores: shape (n,); scores of single retrievers ("dense", "bm25", "fused") or of a re-ranker, for
        baselines and features.
    question: what was asked, for features that compare it with a passage; blank where unknown.
    links: shape (n, n); evidence links: entry (i, j) > 0 where passage i mentions what passage j is about, at
        most 1. None: not looked for.
    positions: shape (n,); place of each passage in its corpus, whose passages stand in document order.
    similarity: shape (n, n); symmetric; what redundancy is priced by, instead of the embeddings' inner
        products. The diagonal is ignored. Under embedding uncertainty it cannot stand in for embeddings.
    embedder: fingerprint of the model that made the embeddings; blank where unknown.
    spans: shape (n, 2); characters [start, end) of each text in the document that its source names; (-1, -1)
        where unknown. Where they are known, passages of one source and title are read as one text.
    dates: length n; days or moments (ISO 8601); blank where unknown.
    duplicates: shape (n, n); Jaccard similarity of near-duplicates, in (0, 1]; 0 for all other pairs.
        Symmetric, zero diagonal.
    sentences: where the passages' sentences lie, and their embeddings; for units smaller than a passage.
    cut_from: length n; where the candidates are sentences: ids of the passages that they are of.
    documents: length n; what spans count in where that is not the source itself: passages of one such name
        are read as one text, and where they lie in their source is not known. Blank: the source.
    gaps: length n; where the candidates are sentences: the white space before each in its passage, "" at its
        start.
    sections: length n; headings above each text, outermost first, without the title.
    pages: length n; page that each text starts on, from 1.
    metadata: length n; plain data of each passage.
    lines: length n; lines of the same document, as headings, that are read before each text, once however
        many need them. Where the candidates are passages with `sentences.needs`, those of any of its units.

    Raises `InputError` with every problem found, not only the first.
    """

    ids: Sequence[str]
    texts: Sequence[str]
    relevance: FloatArray
    tokens: NDArray[np.int64]
    embeddings: NDArray[np.float32] | None = None
    query_embedding: NDArray[np.float32] | None = None
    titles: Sequence[str] | None = None
    sources: Sequence[str] | None = None
    clusters: Sequence[str] | None = None
    radius: float | FloatArray | None = None
    scores: Mapping[str, FloatArray] = field(default_factory=dict)
    question: str = ""
    links: NDArray[np.float32] | None = None
    positions: NDArray[np.int64] | None = None
    similarity: FloatArray | None = None
    embedder: str = ""
    spans: NDArray[np.int64] | None = None
    dates: Sequence[str] | None = None
    duplicates: NDArray[np.float32] | None = None
    sentences: Sentences | None = None
    cut_from: Sequence[str] | None = None
    documents: Sequence[str] | None = None
    gaps: Sequence[str] | None = None
    sections: Sequence[tuple[str, ...]] | None = None
    pages: Sequence[int | None] | None = None
    metadata: Sequence[Mapping[str, Any]] | None = None
    lines: Sequence[tuple[Line, ...]] | None = None

    def __post_init__(self) -> None:
        problems: list[str] = []
        put = object.__setattr__
        for name in _TEXTS:
            if (value := getattr(self, name)) is not None or name in ("ids", "texts"):
                put(self, name, entries := listed(name, value))
                problems += (no_names if name in _NAMES else no_strings)(name, entries)
        if problems:
            raise InputError(problems)
        n = len(self.ids)
        if len(set(self.ids)) < n:
            repeated = sorted({i for i, count in Counter(self.ids).items() if count > 1})
            problems.append(
                f"ids repeat ({', '.join(map(str, repeated[:5]))}): each passage needs its own id"
            )
        for name in _TEXTS:
            value = getattr(self, name)
            if value is not None and len(value) != n:
                problems.append(f"{name} has {len(value)} entries, expected {n}")
        if not all(map(str.strip, self.texts)):
            blank = [str(i) for i, text in zip(self.ids, self.texts, strict=False) if not text.strip()]
            problems.append(f"passages without text ({', '.join(blank[:5])}): drop them or fill them")
        put(self, "relevance", _vector("relevance", self.relevance, n, np.float64, problems))
        put(self, "tokens", self._whole_tokens(n, problems))
        self._check_embeddings(n, problems)
        if self.radius is not None:
            one = isinstance(self.radius, (int, float, np.number))
            checked = _vector("radius", [self.radius] * n if one else self.radius, n, np.float64, problems)
            if checked is not None and np.any(checked < 0):
                problems.append("radius must be >= 0: it is the norm of the largest embedding error")
            put(self, "radius", checked)
        scores = {k: _vector(f"scores['{k}']", v, n, np.float64, problems) for k, v in self.scores.items()}
        put(self, "scores", scores)
        if self.positions is not None:
            put(self, "positions", _vector("positions", self.positions, n, np.int64, problems))
        for column in COLUMNS:
            if column.axis == "n,n" and (value := getattr(self, column.name)) is not None:
                put(self, column.name, _square(column, value, n, problems))
        if self.dates is not None:
            problems += list(filter(None, map(check_date, self.dates)))[:1]
        if self.spans is not None:
            put(self, "spans", self._checked_spans(self.spans, n, problems))
        if self.sentences is not None:
            query = self.query_embedding
            problems += self.sentences.problems(self.texts, None if query is None else query.size)
        if problems:
            raise InputError(problems)

    def with_relevance(self, relevance: ArrayLike, scores: Mapping[str, ArrayLike]) -> Pool:
        """Return the pool with other relevance and scores; the rest is not checked again."""
        problems: list[str] = []
        n = len(self.ids)
        checked: dict[str, Any] = dict(scores)
        if scores is not self.scores:
            checked = {k: _vector(f"scores['{k}']", v, n, np.float64, problems) for k, v in scores.items()}
        new = {"relevance": _vector("relevance", relevance, n, np.float64, problems), "scores": checked}
        if problems:
            raise InputError(problems)
        made = object.__new__(Pool)
        made.__dict__.update(self.__dict__, **new)
        return made

    @classmethod
    def unchecked(cls, **columns: Any) -> Pool:
        """Return a pool of columns that fit each other, since they were made of a pool."""
        made = object.__new__(cls)
        for name, value in columns.items():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False
            elif type(value) is list:
                columns[name] = tuple(value)
        made.__dict__.update({**_BLANK, "scores": {}, **columns})
        return made

    def take(self, rows: Sequence[int] | NDArray[np.int64]) -> Pool:
        """Return some passages, in the order of `rows`: places in this pool, each at most once."""
        at = np.array(rows, dtype=np.int64)
        taken: dict[str, Any] = {}
        for column in COLUMNS:
            value = getattr(self, column.name)
            if value is None or column.axis == "one":
                taken[column.name] = value
            elif column.name == "scores":
                taken["scores"] = {name: score[at] for name, score in value.items()}
            elif column.name == "sentences":
                taken["sentences"] = value.among(at)
            elif column.axis == "n,n":
                taken[column.name] = value[np.ix_(at, at)]
            else:
                taken[column.name] = value[at] if isinstance(value, np.ndarray) else [value[i] for i in at]
        return Pool(**taken)

    def merge(self, other: Pool, size: int, keep: Set[str] = frozenset()) -> Pool:
        """Return two pools of one index as one: the `size` most relevant passages, best first, and those of
        `keep`.

        Relevance and scores are the larger of the two, on their own scale (a logit may be below 0). Scores
        that only one pool has are left out. `COLUMNS` says what becomes of every other column.
        """
        pools, place = (self, other), {passage: i for i, passage in enumerate(self.ids)}
        at = np.array([place.setdefault(passage, len(place)) for passage in other.ids], dtype=np.int64)
        known, back = list(place), {i: k for k, i in enumerate(at.tolist())}

        def larger(first: FloatArray, second: FloatArray) -> FloatArray:
            column = np.full(len(known), -np.inf)
            column[: len(self)] = first
            column[at] = np.maximum(column[at], second)
            return column

        relevance = larger(self.relevance, other.relevance)
        best = np.argsort(-relevance, kind="stable").tolist()
        kept = [i for rank, i in enumerate(best) if rank < size or known[i] in keep]
        cells = [(self, i) if i < len(self) else (other, back[i]) for i in kept]
        ids = [known[i] for i in kept]
        made = {c.name: _merged(c, pools, cells, ids) for c in COLUMNS if c.merge != "larger"}
        made["relevance"] = relevance[kept]
        made["scores"] = {
            name: larger(self.scores[name], other.scores[name])[kept]
            for name in self.scores
            if name in other.scores
        }
        if made["sources"] is None:  # spans count in them
            made["spans"] = None
        return Pool(**made)

    def _whole_tokens(self, n: int, problems: list[str]) -> NDArray[np.int64] | None:
        given: Any = self.tokens
        whole = isinstance(given, np.ndarray) and given.dtype == np.int64
        tokens = _vector("tokens", given, n, np.int64 if whole else np.float64, problems)
        if tokens is None:
            return None
        if (tokens < 1).any() or not (whole or (tokens == np.floor(tokens)).all()):
            problems.append(
                "tokens must be whole numbers >= 1: count each passage with the reader's tokenizer"
            )
            return None
        if (tokens > _MOST_TOKENS).any():
            problems.append(f"tokens must be at most {_MOST_TOKENS:.0e}, given {float(tokens.max()):.3g}")
            return None
        return _frozen_array(tokens, np.int64)

    def _checked_spans(self, given: ArrayLike, n: int, problems: list[str]) -> NDArray[np.int64] | None:
        exact = _array("spans", given, np.float64, problems)
        if exact is None:
            return None
        if exact.shape != (n, 2):
            problems.append(f"spans has shape {exact.shape}, expected ({n}, 2): a start and an end for each")
            return None
        unknown = (exact == -1).all(axis=1)
        lengths = np.fromiter(map(len, self.texts), dtype=np.float64, count=len(self.texts))
        if lengths.size == n:
            whole = ((exact >= 0) & (exact == np.floor(exact)) & (exact < 2**53)).all(axis=1)
            fit = whole & (exact[:, 1] - exact[:, 0] == lengths)
            for i in np.flatnonzero(~fit & ~unknown)[:3]:
                problems.append(
                    f"spans[{i}] is ({exact[i, 0]:g}, {exact[i, 1]:g}), and passage '{self.ids[i]}' has "
                    f"{lengths[i]:g} characters: give the start and end of its text, or -1 for both"
                )
        named = zip(self.sources or [""] * n, self.documents or [""] * n, unknown, strict=False)
        if any(not (source or document or skip) for source, document, skip in named):
            problems.append("spans need sources: name the document that each passage lies in")
        return _frozen_array(np.where(np.isfinite(exact), exact, -1), np.int64)

    def _check_embeddings(self, n: int, problems: list[str]) -> None:
        for name in ("embeddings", "query_embedding"):
            value = getattr(self, name)
            array = None if value is None else _array(name, value, np.float32, problems)
            object.__setattr__(self, name, array)
        matrix, query = self.embeddings, self.query_embedding
        if matrix is not None:
            if matrix.ndim != 2 or matrix.shape[0] != n:
                problems.append(
                    f"embeddings has shape {matrix.shape}, expected ({n}, d): one row per passage"
                )
            elif not np.isfinite(matrix).all():
                row = int(np.flatnonzero(~np.isfinite(matrix).all(axis=1))[0])
                problems.append(
                    f"embeddings row {row} (passage '{self.ids[row]}') holds NaN or infinity: embed it again"
                )
        if query is None:
            return
        if query.ndim != 1 or not np.all(np.isfinite(query)):
            problems.append(
                f"query_embedding has shape {query.shape} or is not finite, expected a finite vector (d,)"
            )
        elif matrix is not None and matrix.ndim == 2 and query.shape[0] != matrix.shape[1]:
            problems.append(
                f"query_embedding has {query.shape[0]} dimensions, the passages {matrix.shape[1]}: embed "
                "both with the same model"
            )

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def passage_ids(self) -> Sequence[str]:
        """Ids of the passages: the candidates' own, or where they are sentences, those they are of."""
        return self.ids if self.cut_from is None else self.cut_from

    @property
    def unit(self) -> Literal["passage", "sentence"]:
        """What the candidates are."""
        return "passage" if self.cut_from is None else "sentence"

    @property
    def names(self) -> list[tuple[str, str, str]]:
        """Title, source and date of each candidate, blank where unknown."""
        blank = [""] * len(self.ids)
        return list(zip(self.titles or blank, self.sources or blank, self.dates or blank, strict=True))

    def passage(self, i: int) -> Passage:
        """The i-th candidate as a `Passage`."""
        is_placed = self.spans is not None and not (self.documents and self.documents[i])
        start, end = map(int, self.spans[i]) if is_placed and self.spans is not None else (-1, -1)
        return Passage(
            id=self.ids[i],
            text=self.texts[i],
            title=self.titles[i] if self.titles is not None else "",
            source=self.sources[i] if self.sources is not None else "",
            start=None if start < 0 else start,
            end=None if start < 0 else end,
            date=self.dates[i] if self.dates is not None else "",
            section=self.sections[i] if self.sections is not None else (),
            page=self.pages[i] if self.pages is not None else None,
            metadata=self.metadata[i] if self.metadata is not None else {},
        )


_BLANK = {one.name: None if one.default is MISSING else one.default for one in fields(Pool)}


def _merged(
    column: Column, pools: tuple[Pool, Pool], cells: Sequence[tuple[Pool, int]], ids: list[str]
) -> Any:
    """One column of two pools; `cells` says which pool and row each passage comes from."""
    values = [getattr(pool, column.name) for pool in pools]
    missing = [value is None for value in values]
    if column.merge == "none":
        return None
    if column.axis == "one":
        return values[0] if column.merge == "first" or values[0] == values[1] else column.blank
    if column.name == "sentences":
        return _merged_sentences(cells)
    if all(missing) or (
        any(missing) and (column.merge == "both" or (column.merge == "pairs" and column.blank is None))
    ):
        return None
    if column.merge == "pairs":
        return _merged_pairs(column, pools, ids)
    read = [(getattr(pool, column.name), i) for pool, i in cells]
    found = [column.blank if value is None else value[i] for value, i in read]
    if column.dtype is str or column.name in _PLAIN:
        return found
    width = [value.shape[1:] for value in values if value is not None]
    return np.array(found, dtype=column.dtype).reshape(len(found), *width[0])  # also without passages


def _merged_pairs(column: Column, pools: tuple[Pool, Pool], ids: list[str]) -> NDArray[np.float32]:
    place = {passage: k for k, passage in enumerate(ids)}
    merged = np.zeros((len(ids), len(ids)), dtype=column.dtype)
    for pool in pools:
        if (known := getattr(pool, column.name)) is None:
            continue
        rows = [i for i, passage in enumerate(pool.ids) if passage in place]
        at = [place[pool.ids[i]] for i in rows]
        merged[np.ix_(at, at)] = np.maximum(merged[np.ix_(at, at)], known[np.ix_(rows, rows)])
    return merged


def _merged_sentences(cells: Sequence[tuple[Pool, int]]) -> Sentences | None:
    """Sentences of the passages; None where those of a passage are unknown."""
    own = [p.sentences.among(np.array([i], dtype=np.int64)) for p, i in cells if p.sentences is not None]
    return Sentences.joined(own) if own and len(own) == len(cells) else None


#: Name of `Pool` in 0.1.
Candidates = Pool
