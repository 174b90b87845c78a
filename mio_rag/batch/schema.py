"""What a candidates file holds: one row a question, its pool in lists.

    column            Arrow type                    meaning
    query_id          string or integer             names the question in the output; need not be unique
    ids               list of strings or integers   the passages; unique within a row
    relevance         list of numbers               value of reading each passage; larger is better
    tokens            list of whole numbers         cost of each passage, as the reader's tokenizer counts it
    texts, titles     lists of strings              counted by an approximation where there are no tokens
    embeddings        list (of lists) of numbers    one vector a passage, scaled to unit length here
    query_embedding   list of numbers               the question's, by the same model
    similarity        list (of lists) of numbers    n x n, row by row; instead of embeddings
    sources, clusters lists of strings              for caps, shares and coverage
    links             list (of lists) of numbers    n x n evidence links in [0, 1]
    radius            list of numbers               how far each embedding may be off
    positions         list of whole numbers         place of each passage in its corpus
    starts            list of whole numbers         where each text begins in its source; -1 where unknown
    dates             lists of strings              ISO 8601; of near-duplicates the newest is read
    duplicates        list (of lists) of numbers    n x n Jaccard similarities of near-duplicates, else 0
    question          string                        for relevance models; without texts it does not count
    embedder          string                        fingerprint of the embeddings' model
    score:NAME        list of numbers               scores of a retriever, for relevance models
    budget_tokens     whole number                  of this question, instead of the run's
    weight            number                        what this question counts, where a total is shared

With `starts`, `texts`, `sources` and no `tokens`, texts of one source that overlap or touch are read as one,
as in the output's `read`, which `tokens_used` counts.

`query_id` and `ids` are required; so are `relevance`, or both kinds of embeddings (then relevance is their
cosine); so are `tokens`, or `texts`. Other columns are not read. float16 embeddings are fine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mio_rag.errors import InputError, require
from mio_rag.selection.selector import Selector

__all__ = ["COLUMNS", "MOST_BUDGET", "columns_read", "is_list", "kinds_of"]

#: Kind of each column.
COLUMNS = {
    "query_id": "text",
    "ids": "texts",
    "relevance": "numbers",
    "tokens": "numbers",
    "texts": "texts",
    "titles": "texts",
    "embeddings": "matrix",
    "query_embedding": "numbers",
    "similarity": "matrix",
    "sources": "texts",
    "clusters": "texts",
    "links": "matrix",
    "radius": "numbers",
    "positions": "numbers",
    "starts": "numbers",
    "dates": "texts",
    "duplicates": "matrix",
    "question": "text",
    "embedder": "text",
    "budget_tokens": "number",
    "weight": "number",
}
_SCORE = "score:"

#: Tokens of a budget: exact in float64, and far within the 64 bits of a column.
MOST_BUDGET = 10**15


def is_list(arrow: Any, given: Any) -> bool:
    """Whether an Arrow type is a list of any sort."""
    types = arrow.types
    return bool(types.is_list(given) or types.is_large_list(given) or types.is_fixed_size_list(given))


def _fits(arrow: Any, given: Any, kind: str) -> bool:
    """Whether a column of this Arrow type can be of a kind."""
    types = arrow.types
    if kind in ("text", "number"):
        plain = given.value_type if types.is_dictionary(given) else given
        whole = types.is_integer(plain)
        if kind == "number":
            return bool(whole or types.is_floating(plain))
        return bool(whole or types.is_string(plain) or types.is_large_string(plain))
    if not is_list(arrow, given):
        return False
    inner = given.value_type
    if kind == "matrix" and is_list(arrow, inner):
        inner = inner.value_type
    return _fits(arrow, inner, "text" if kind == "texts" else "number") and (
        kind == "texts" or not types.is_dictionary(inner)
    )


_MEANT = {
    "text": "a string (or a whole number)",
    "number": "a whole number",
    "texts": "a list of strings (or of whole numbers)",
    "numbers": "a list of numbers",
    "matrix": "a list of lists of numbers (or of their numbers, row by row)",
}


def kinds_of(schema: Any, wanted: Sequence[str], names: Mapping[str, str]) -> dict[str, str]:
    """What each column that is read holds.

    Raises
    ------
    InputError
        With every column whose type cannot be what it should.
    """
    arrow: Any = require("pyarrow", "batch", "batches")
    kinds = {name: COLUMNS.get(name, "numbers") for name in wanted}
    given = {name: schema.field(names.get(name, name)).type for name in wanted}
    problems = [
        f"column '{names.get(name, name)}' is {given[name]}, expected {_MEANT[kind]} for '{name}'"
        for name, kind in kinds.items()
        if not _fits(arrow, given[name], kind)
    ]
    if problems:
        raise InputError(problems)
    return kinds


def columns_read(
    schema: Any, selector: Selector, names: Mapping[str, str], *, weighted: bool = False
) -> tuple[str, ...]:
    """The columns that a run with this selector reads from files of this schema.

    Parameters
    ----------
    names : mapping
        Column in the file, for each of ours that is called otherwise there.
    weighted : bool
        Whether weights of questions are read.

    Raises
    ------
    InputError
        With everything that is missing.
    """
    problems = [
        f"'{ours}' is not a column of the candidates schema: rename one of {', '.join(COLUMNS)}, score:NAME"
        for ours in names
        if ours not in COLUMNS and not ours.startswith(_SCORE)
    ]
    if selector.units != "passages":
        problems.append(f"a batch chooses passages: leave units='{selector.units}' out")
    held = set(schema.names)
    problems += [
        f"column '{theirs}', given for '{ours}', is not in the file: it holds {', '.join(schema.names)}"
        for ours, theirs in names.items()
        if theirs not in held
    ]
    scores = {name for name in [*schema.names, *names] if name.startswith(_SCORE)}
    there = {name for name in [*COLUMNS, *sorted(scores)] if names.get(name, name) in held}
    if not weighted:
        there -= {"weight"}
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
    return tuple(name for name in [*COLUMNS, *sorted(scores)] if name in _needed(there, selector))


def _needed(there: set[str], selector: Selector) -> set[str]:
    """What there is, without what these settings have no use for: embeddings are most of a file."""
    needed = set(there)
    model = selector.relevance_model != "given"
    if selector.relevance_model == "auto":  # without scores of a retriever, relevance is all that it looks at
        model = {"question", "texts", *(f"{_SCORE}{name}" for name in ("dense", "bm25", "fused"))} <= there
    robust = selector.radius > 0 or selector.uncertainty is not None
    robust = robust or bool(selector.passage_radii) or "radius" in there
    side = selector.side
    by_vectors = robust or side.max_similarity is not None or side.cover is not None
    if "similarity" in there and not by_vectors and "relevance" in there:
        needed -= {"embeddings"}
    if selector.redundancy_weight == 0:
        needed -= {"similarity"}
        if not by_vectors and "relevance" in there:
            needed -= {"embeddings"}
    if "embeddings" not in needed or not (robust or "relevance" not in there):
        needed -= {"query_embedding"}
    if not model:
        needed -= {"question", *(name for name in there if name.startswith(_SCORE))}
        if "tokens" in there:
            needed -= {"texts", "titles"}
    valued = selector.relevance_model != "given"
    if (selector.link_benefit == 0 or (selector.link_benefit == "auto" and not valued)) and not model:
        needed -= {"links"}
    if selector.prompt_order != "document":
        needed -= {"positions"}
    if selector.near_duplicates == "all" or "duplicates" not in there:
        needed -= {"duplicates", "dates"}
    if not (selector.merge and {"texts", "sources"} <= there) or "tokens" in there:
        needed -= {"starts"}
    return needed
