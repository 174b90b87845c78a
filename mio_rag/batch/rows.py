"""Rows of a candidates file as `Candidates`, one by one; an invalid row becomes an error in its place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mio_rag.context import RegexCounter, text_tokens
from mio_rag.entries import unit_rows
from mio_rag.errors import InputError, require
from mio_rag.pool import Candidates
from mio_rag.selection.selector import Selector

#: Column -> kind.
COLUMNS = {
    "query_id": "text", "ids": "texts", "relevance": "numbers", "tokens": "numbers", "texts": "texts",
    "titles": "texts", "embeddings": "matrix", "query_embedding": "numbers", "similarity": "matrix",
    "sources": "texts", "clusters": "texts", "links": "matrix", "radius": "numbers", "positions": "numbers",
    "starts": "numbers", "dates": "texts", "duplicates": "matrix", "question": "text", "embedder": "text",
    "budget_tokens": "number", "weight": "number",
}  # fmt: skip
_MEANT = {
    "text": "a string (or a whole number)",
    "number": "a whole number",
    "texts": "a list of strings (or of whole numbers)",
    "numbers": "a list of numbers",
    "matrix": "a list of lists of numbers (or of their numbers, row by row)",
}
_SCORE = "score:"
_TEXTS = ("texts", "titles", "sources", "clusters", "dates")
_COUNTER = RegexCounter()

#: Tokens of a budget: exact in float64, and far within the 64 bits of a column.
MOST_BUDGET = 10**15


def _is_list(arrow: Any, given: Any) -> bool:
    types = arrow.types
    return bool(types.is_list(given) or types.is_large_list(given) or types.is_fixed_size_list(given))


def _fits(arrow: Any, given: Any, kind: str) -> bool:
    """Whether a column of this Arrow type can be of a kind."""
    types = arrow.types
    if kind in ("text", "number"):
        plain = given.value_type if types.is_dictionary(given) else given
        if kind == "number":
            return bool(types.is_integer(plain) or types.is_floating(plain))
        return bool(types.is_integer(plain) or types.is_string(plain) or types.is_large_string(plain))
    if not _is_list(arrow, given):
        return False
    inner = given.value_type
    if kind == "texts":
        return _fits(arrow, inner, "text")
    if kind == "matrix" and _is_list(arrow, inner):
        inner = inner.value_type
    return _fits(arrow, inner, "number") and not types.is_dictionary(inner)


def columns_of(
    schema: Any, selector: Selector, names: Mapping[str, str], *, weighted: bool = False
) -> dict[str, str]:
    """Return the columns that a run with this selector reads from files of this schema, with their kinds.

    names: column in the file, for each of ours that has another name there.
    weighted: whether weights of questions are read.

    Raises `InputError` with everything that is missing or of the wrong type.
    """
    problems = [
        f"'{ours}' is not a column of the candidates schema: rename one of {', '.join(COLUMNS)}, score:NAME"
        for ours in names
        if ours not in COLUMNS and not ours.startswith(_SCORE)
    ]
    if selector.units == "sentences":
        problems.append("a batch chooses passages: leave units='sentences' out")
    held = set(schema.names)
    problems += [
        f"column '{theirs}', given for '{ours}', is not in the file: it holds {', '.join(schema.names)}"
        for ours, theirs in names.items()
        if theirs not in held
    ]
    scores = sorted({name for name in [*schema.names, *names] if name.startswith(_SCORE)})
    there = {name for name in [*COLUMNS, *scores] if names.get(name, name) in held}
    there -= set() if weighted else {"weight"}
    problems += [
        f"column '{name}' is missing: give each row {what} (another name: --column {name}=YOURS)"
        for name, what in (("query_id", "its question's id"), ("ids", "the ids of its passages"))
        if name not in there
    ]
    if "relevance" not in there and not {"embeddings", "query_embedding"} <= there:
        problems.append(
            "relevance is unknown: give 'relevance', or 'embeddings' and 'query_embedding' for their cosine"
        )
    if not there & {"tokens", "texts"}:
        problems.append("token costs are unknown: give 'tokens', or 'texts' for an approximate count")
    if selector.redundancy_weight > 0 and not there & {"embeddings", "similarity"}:
        problems.append(
            f"redundancy_weight={selector.redundancy_weight:g} needs 'embeddings' or 'similarity': give one, "
            "or set it to 0"
        )
    if lacking := selector.side.lacking():
        problems.append(lacking)
    given = selector.uncertainty
    if selector.radius == 0 and not selector.passage_radii and "radius" not in there:
        if selector.counterpart == "joint" and given is None:
            problems.append("counterpart='joint' needs a radius: give one, a set, or a 'radius' column")
        if given is not None and given.deviations and given.is_exact:
            problems.append("deviations need a radius: give one, or a 'radius' column")
    if problems:
        raise InputError(problems)
    arrow: Any = require("pyarrow", "batch", "batches")
    needed = _needed(there, selector)
    kinds = {name: COLUMNS.get(name, "numbers") for name in [*COLUMNS, *scores] if name in needed}
    types = {name: schema.field(names.get(name, name)).type for name in kinds}
    problems = [
        f"column '{names.get(name, name)}' is {types[name]}, expected {_MEANT[kind]} for '{name}'"
        for name, kind in kinds.items()
        if not _fits(arrow, types[name], kind)
    ]
    if problems:
        raise InputError(problems)
    return kinds


def _needed(there: set[str], selector: Selector) -> set[str]:
    """Leave out what these settings do not use: embeddings are most of a file."""
    unused, scored = set[str](), {name for name in there if name.startswith(_SCORE)}
    model = selector.relevance_model != "given"
    if selector.relevance_model == "auto":  # without scores of a retriever it uses relevance alone
        model = {"question", "texts", *(f"{_SCORE}{name}" for name in ("dense", "bm25", "fused"))} <= there
    radii = selector.radius > 0 or bool(selector.passage_radii) or "radius" in there
    robust = radii or selector.uncertainty is not None
    by_vectors = robust or selector.side.max_similarity is not None or selector.side.cover is not None
    similar = "similarity" in there or selector.redundancy_weight == 0
    if "relevance" in there and not by_vectors and similar:
        unused |= {"embeddings"}
    if selector.redundancy_weight == 0:
        unused |= {"similarity"}
    if "embeddings" not in there - unused or not (robust or "relevance" not in there):
        unused |= {"query_embedding"}
    if not model:
        unused |= {"question", *scored, *(("texts", "titles") if "tokens" in there else ())}
    links = selector.link_benefit
    if not model and (links == 0 or (links == "auto" and selector.relevance_model == "given")):
        unused |= {"links"}
    if selector.prompt_order != "document":
        unused |= {"positions"}
    if selector.near_duplicates == "all" or "duplicates" not in there:
        unused |= {"duplicates", "dates"}
    if not (selector.merge and {"texts", "sources"} <= there) or "tokens" in there:
        unused |= {"starts"}
    return there - unused


class Row(NamedTuple):
    """One row of a file: its query id, its pool or what is wrong with it, its own budget, its weight."""

    label: str
    pool: Candidates | InputError
    budget: int | None = None
    weight: float = 1.0


def read_rows(batch: Any, kinds: Mapping[str, str], names: Mapping[str, str]) -> Iterator[Row]:
    """Yield the rows of a `pyarrow.RecordBatch`; kinds and names are those of `columns_of`."""
    arrow: Any = require("pyarrow", "batch", "batches")
    columns = {name: batch.column(names.get(name, name)) for name in kinds}
    for k in range(batch.num_rows):
        row = {name: _cell(arrow, column[k], kinds[name]) for name, column in columns.items()}
        label = row.pop("query_id") or ""
        if isinstance(label, bytes):
            yield Row(repr(label), InputError("query_id is not valid UTF-8 text"))
            continue
        budget, weight = row.pop("budget_tokens", None), row.pop("weight", 1.0)
        try:
            pool = _candidates(label, row)
            if budget is not None and not (abs(budget) <= MOST_BUDGET and budget == np.floor(budget)):
                raise InputError(
                    f"budget_tokens={budget!r} must be a whole number, at most {MOST_BUDGET:.0e}"
                )
            if weight is None or not 1e-9 <= weight <= 1e9:
                raise InputError(
                    f"weight={weight!r} must be a number from 1e-9 to 1e9: leave out what is worth nothing"
                )
            yield Row(label, pool, None if budget is None else int(budget), float(weight))
        except InputError as error:
            yield Row(label, error)
        except Exception as error:  # an unforeseen error fails its own row, not the batch
            yield Row(label, InputError(f"the row cannot be read ({type(error).__name__}: {error})"))


def _cell(arrow: Any, cell: Any, kind: str) -> Any:
    """A value of Arrow: a text, a number, a list of texts, an array, or None.

    Text that is not UTF-8, which Parquet does not check, stays bytes. A matrix whose rows are of different
    lengths is the reason, as a text.
    """
    if not cell.is_valid:
        return None
    if kind == "number":
        return float(cell.as_py())
    if kind == "text":
        return _texts(arrow, cell)
    inner = cell.values
    if kind == "texts":
        return _texts(arrow, inner)
    if kind == "numbers" or not _is_list(arrow, inner.type):
        return inner.to_numpy(zero_copy_only=False)  # null becomes NaN, which is refused
    if not len(inner):
        return "is empty"
    if inner.null_count:
        return f"holds null in row {inner.is_null().to_pylist().index(True)}"
    if arrow.types.is_fixed_size_list(inner.type):
        return np.reshape(inner.flatten().to_numpy(zero_copy_only=False), (len(inner), -1))
    offsets = inner.offsets.to_numpy()
    widths = np.diff(offsets)
    if widths.min() != widths.max():
        return f"holds rows of {widths.min()} and of {widths.max()} numbers: all must be of one length"
    values = inner.values.slice(offsets[0], offsets[-1] - offsets[0]).to_numpy(zero_copy_only=False)
    return np.reshape(values, (len(widths), int(widths[0])))


def _texts(arrow: Any, given: Any) -> Any:
    """A text, or a list of texts; whole numbers become texts, too."""
    try:
        found = given.as_py() if hasattr(given, "as_py") else given.to_pylist()
    except UnicodeDecodeError:
        found = given.cast(arrow.binary())
        found = found.as_py() if hasattr(found, "as_py") else found.to_pylist()
    return list(map(_text, found)) if isinstance(found, list) else _text(found)


def _text(value: Any) -> Any:
    try:
        if isinstance(value, int):
            return str(value)
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return value


def _candidates(label: str, row: dict[str, Any]) -> Candidates:
    """Make the pool of one row; `InputError` with every problem."""
    problems = ["query_id is null or empty"] if not label else []
    ids = row.pop("ids")
    if not ids:
        raise InputError([*problems, "ids is null or empty: a question needs at least one passage"])
    n = len(ids)
    read = {"ids": ids, "question": [row.get("question")], "embedder": [row.get("embedder")]}
    read |= {name: row.get(name) for name in _TEXTS}
    damaged = [name for name, given in read.items() if given and bytes in set(map(type, given))]
    if damaged:
        raise InputError([*problems, *(f"{name} is not valid UTF-8 text" for name in damaged)])
    for name in ("embeddings", "similarity", "links", "duplicates"):
        value = row.get(name)
        if isinstance(value, str):
            problems.append(f"{name} {value}")
        elif value is not None and value.ndim == 1:
            width = n if name != "embeddings" else value.size // n
            if value.size == n * width > 0:
                row[name] = value.reshape(n, width)
            else:
                problems.append(f"{name} holds {value.size} numbers, which is not {n} rows of one length")
    if problems:
        raise InputError(problems)
    vectors, query = (
        None if given is None else unit_rows(given)
        for given in (row.get("embeddings"), row.get("query_embedding"))
    )
    relevance = row.get("relevance")
    if relevance is None:
        if vectors is None or query is None or query.shape != vectors.shape[1:]:
            raise InputError("relevance is null, and there are no embeddings of one length to take it from")
        relevance = (vectors @ query).astype(np.float64)
    texts, tokens, titles = row.get("texts"), row.get("tokens"), row.get("titles")
    if texts is not None and tokens is None:
        heads = titles if titles is not None and len(titles) == n else [""] * n
        # The check of the pool reports a wrong number of texts, and one that is blank or null.
        known = [[one or "" for one in given] for given in (texts[:n], heads)]
        tokens = text_tokens(known[0], known[1], _COUNTER)
    if tokens is None:
        raise InputError("tokens is null: give the cost of each passage, or texts to count")
    scores = {name: value for name, value in row.items() if name.startswith(_SCORE) and value is not None}
    plain = ("sources", "clusters", "radius", "links", "positions", "similarity", "dates", "duplicates")
    return Candidates(
        ids=ids,
        texts=ids if texts is None else texts,
        relevance=relevance,
        tokens=tokens,
        embeddings=vectors,
        query_embedding=query,
        titles=titles,
        scores={name.removeprefix(_SCORE): value for name, value in scores.items()},
        question="" if texts is None else row.get("question") or "",  # ids hold none of its words
        embedder=row.get("embedder") or "",
        spans=_spans(row.get("starts"), texts),
        **{name: row.get(name) for name in plain},
    )


def _spans(starts: NDArray[Any] | None, texts: list[str] | None) -> Any:
    """Begin and end of the texts in their sources; None where they are unknown."""
    if starts is None or texts is None:
        return None
    if len(starts) != len(texts):
        raise InputError(f"starts has {len(starts)} values, expected {len(texts)}: one for each text")
    begin = np.asarray(starts, dtype=np.float64)
    lengths = np.array([len(text) for text in texts], dtype=np.float64)
    return np.stack([begin, np.where(begin == -1, -1, begin + lengths)], axis=1)
