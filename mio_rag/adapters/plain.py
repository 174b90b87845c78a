"""Select among texts and vectors, with a selector's settings as keywords.

A selector's settings: as keywords with types, and as plain data that YAML and JSON can hold.

`select`: choose among texts that you already retrieved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mio_rag.context import PromptOrder, RegexCounter, TokenCounter, text_tokens
from mio_rag.entries import listed, no_names, no_strings, not_numbers, unit_rows
from mio_rag.errors import InputError, choose
from mio_rag.formulations.numbers import plural
from mio_rag.formulations.uncertainty import Norm, UncertaintySet
from mio_rag.pool import Candidates
from mio_rag.relevance.model import Relevance, RelevanceModel
from mio_rag.selection.constraints import SideConstraints
from mio_rag.selection.result import Selection
from mio_rag.selection.selector import Counterpart, NearDuplicates, Penalty, Selector, Units
from mio_rag.settings import Settings
from mio_rag.solvers.result import SolveOptions

if TYPE_CHECKING:
    from mio_rag.retrieval.embedders import Embedder


class SelectorSettings(TypedDict, total=False):
    """The settings of a `Selector`, as keywords of whatever makes one. None: as in the selector given.

    `preset` names what to start from instead of a selector; see `mio_rag.selection.selector`.
    """

    preset: str | None
    redundancy_weight: float | None
    passage_penalty: Penalty | None
    token_price: float | None
    radius: float | None
    norm: Norm | None
    min_passages: int | None
    max_passages: int | None
    max_per_source: int | Mapping[str, int] | None
    must_include: Sequence[str] | None
    must_exclude: Sequence[str] | None
    solver: str | None
    options: SolveOptions | None
    relevance_model: Relevance
    link_benefit: float | Literal["auto"] | None
    redundancy_by_relevance: bool | None
    prompt_order: PromptOrder | None
    uncertainty: UncertaintySet | None
    counterpart: Counterpart | None
    side: SideConstraints | None
    passage_radii: Mapping[str, float] | None
    merge: bool | None
    shared_text_weight: float | None
    near_duplicates: NearDuplicates | None
    units: Units | None


_NAMES = tuple(Selector.model_fields)
_DEFAULT = Selector()  # checking one takes longer than many a call


def make_selector(base: Selector | None, settings: Mapping[str, Any]) -> Selector:
    """The selector given (the default one where there is none), with the settings that are not None.

    Raises
    ------
    InputError
        For a setting that does not exist, or that `Selector` refuses.
    """
    if base is not None and not isinstance(base, Selector):
        raise InputError(f"selector is {base!r}, expected a Selector")
    check_names("setting", settings, ("preset", *_NAMES))
    changes = {name: value for name, value in settings.items() if value is not None}
    preset = changes.pop("preset", None)
    if preset is not None:
        if base is not None:
            raise InputError("selector and preset exclude each other: both are what settings start from")
        return Selector.preset(preset, **changes)
    if not changes:
        return base or _DEFAULT
    return (base or _DEFAULT).replace(**changes)


def to_plain(selector: Selector) -> dict[str, Any]:
    """What differs from the default selector, as numbers, strings, lists and dicts; see `from_plain`.

    Raises
    ------
    InputError
        If an uncertainty set is a function of its own.
    """
    return Settings.to_dict(selector, defaults=False)  # not the digests of records


def from_plain(data: Mapping[str, Any]) -> Selector:
    """The selector of what `to_plain` wrote.

    Raises
    ------
    InputError
        For a setting that does not exist or cannot be read.
    """
    model = data.get("relevance_model") if isinstance(data, Mapping) else None
    given = (
        {**data, "relevance_model": RelevanceModel.from_dict(model)} if isinstance(model, Mapping) else data
    )
    return Selector.from_dict(given, "selector")


def check_names(what: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Raise `InputError` for names that are not known, with the one that was probably meant."""
    unknown = [name for name in given if name not in known]
    if unknown:
        raise InputError([f"{what} '{name}' is unknown: {choose(name, known)}" for name in unknown])


def select(
    query: str,
    texts: Sequence[str],
    *,
    budget_tokens: int,
    embeddings: ArrayLike | None = None,
    query_embedding: ArrayLike | None = None,
    scores: ArrayLike | None = None,
    tokens: ArrayLike | None = None,
    ids: Sequence[str] | None = None,
    titles: Sequence[str] | None = None,
    sources: Sequence[str] | None = None,
    clusters: Sequence[str] | None = None,
    links: ArrayLike | None = None,
    spans: ArrayLike | Sequence[tuple[int, int] | None] | None = None,
    documents: Sequence[str] | None = None,
    dates: Sequence[str] | None = None,
    duplicates: ArrayLike | None = None,
    embedder: Embedder | str | None = None,
    counter: TokenCounter | None = None,
    selector: Selector | None = None,
    **settings: Unpack[SelectorSettings],
) -> Selection:
    """Choose among texts that you already retrieved.

    Parameters
    ----------
    query : str
    texts : sequence of str, length n
    budget_tokens : int
        Largest total of `tokens`.
    embeddings : array_like, shape (n, d), optional
        One row per text; scaled to unit length here. Or give `embedder`.
    query_embedding : array_like, shape (d,), optional
        With `embeddings`, relevance is the cosine with it, unless `scores` are given.
    scores : array_like, shape (n,), optional
        Relevance of each text, larger is better: a re-ranker's, a retriever's, a probability.
    tokens : array_like of int, shape (n,), optional
        Cost of each text as your model counts it. Otherwise `counter` counts them, by default `RegexCounter`,
        an approximation.
    counter : TokenCounter, optional
        Your model's tokenizer. Where it prices the passages, `tokens_used` is its count of the whole block
        (titles, texts and a blank line between passages), and that block keeps the budget.
    titles, sources, clusters : sequence of str, length n, optional
        Titles are part of what a passage costs; sources and clusters are what caps and coverage go by.
    links : array_like, shape (n, n), optional
        Evidence links, as in `Candidates`.
    spans : array_like of int, shape (n, 2), or sequence with None, optional
        Characters [start, end) of each text in the document that its source names; (-1, -1) or None where
        unknown.
        Texts of one source that overlap or touch are then read as one, unless ``merge=False``.
    documents : sequence of str, length n, optional
        What `spans` count in where that is not the source, as a page; blank: the source.
    dates : sequence of str, length n, optional
        Days of the texts (ISO 8601); of near-duplicates the newest is read.
    duplicates : array_like, shape (n, n), optional
        Jaccard similarity of near-duplicates, as in `Candidates`. By default texts that are equal are
        duplicates, of which one is read; ``near_duplicates="all"`` reads them all.
    embedder : Embedder or str, optional
        Embeds query and texts where no embeddings are given: "minilm", or a sentence-transformers id or
        folder. None is chosen for you.
    selector : Selector, optional
        Settings to start from.
    **settings
        Any parameter of `Selector`, which see: ``redundancy_weight=0.3``, ``max_per_source=2`` and so on.
        Those that are not None override `selector`. With ``prompt_order="document"`` what is chosen keeps
        the order of `texts`.

    Returns
    -------
    Selection
        `.texts` as they are to be read, `.ids`, `.tokens_used`, `.result` (the certificate), `.explain()`.

    Examples
    --------
    >>> chosen = select("who?", ["a b c", "d e", "f"], scores=[0.9, 0.8, 0.1], budget_tokens=4,
    ...                 redundancy_weight=0, passage_penalty=0)
    >>> chosen.ids, chosen.tokens_used
    (('0', '2'), 4)
    """
    if not isinstance(query, str):
        raise InputError(f"query is {query!r}, expected a string")
    texts = listed("texts", texts)
    n = len(texts)
    columns = {"ids": ids, "titles": titles, "sources": sources, "clusters": clusters}
    columns |= {"documents": documents, "dates": dates}
    ids, titles, sources, clusters, documents, dates = (
        None if given is None else listed(name, given) for name, given in columns.items()
    )
    if (
        problems := no_strings("texts", texts)
        + no_strings("titles", titles or ())
        + no_names("ids", ids or ())
    ):
        raise InputError(problems)
    if counter is not None and not isinstance(counter, TokenCounter):
        raise InputError(
            f"counter={counter!r} is not a TokenCounter: give an object with name and count(texts)"
        )
    if embedder is not None and embeddings is None:
        from mio_rag.retrieval.embedders import make_embedder

        model = make_embedder(embedder) if isinstance(embedder, str) else embedder
        if not (isinstance(getattr(model, "name", None), str) and callable(getattr(model, "encode", None))):
            raise InputError(
                f"embedder={embedder!r} is not an Embedder: give a name, or an object with encode(texts)"
            )
        if model.name == "tfidf":
            model.fit(texts)
        vectors: NDArray[np.float32] | None = _encoded(model, texts)
        query_vector: NDArray[np.float32] | None = _encoded(model, (query,))[0]
    else:
        vectors = None if embeddings is None else _unit_rows("embeddings", embeddings)
        query_vector = None if query_embedding is None else _unit_rows("query_embedding", query_embedding)
    if scores is not None:
        if (found := not_numbers(scores)) is not None:
            raise InputError(f"scores holds {found}: give numbers, larger is better")
        try:
            given = np.asarray(scores)
        except ValueError as error:  # lists of different lengths
            raise InputError(
                f"scores is not an array of numbers ({error}): give one number for each text"
            ) from error
        if given.ndim == 1 and len(given) != n:
            raise InputError(
                f"scores has {plural(len(given), 'value')}, texts {n}: give one score for each text"
            )
        if given.dtype.kind == "f" and not np.isfinite(given).all():
            bad = int(np.flatnonzero(~np.isfinite(given))[0])
            raise InputError(f"scores[{bad}] is {given.flat[bad]}: scores must be finite, larger is better")
    else:
        if vectors is None or query_vector is None:
            raise InputError(
                "relevance is unknown: give scores=, or embeddings= with query_embedding=, or embedder= "
                '("minilm", or a sentence-transformers id or folder)'
            )
        if vectors.ndim == 2 and query_vector.shape == (vectors.shape[1],):
            scores = vectors @ query_vector
        else:
            scores = np.zeros(n)  # Candidates reports the wrong shape
    # Only a counter that priced the passages can check the block that they make together.
    checked = (counter if spans is None else counter or RegexCounter()) if tokens is None else None
    labels = [str(k) for k in range(n)] if ids is None else list(map(str, ids))
    if tokens is None:
        heads = titles if titles is not None and len(titles) == n else [""] * n
        tokens = text_tokens(texts, heads, counter or RegexCounter())
    pool = Candidates(
        ids=labels,
        texts=texts,
        relevance=scores,  # type: ignore[arg-type]
        tokens=tokens,  # type: ignore[arg-type]
        embeddings=vectors,
        query_embedding=query_vector,
        titles=titles,
        sources=sources,
        clusters=clusters,
        question=query,
        links=links,  # type: ignore[arg-type]
        positions=np.arange(n),
        spans=_known(spans),
        documents=documents,
        dates=dates,
        duplicates=_equal(texts) if duplicates is None else duplicates,  # type: ignore[arg-type]
    )
    return make_selector(selector, settings).select(pool, budget_tokens, checked)


def _known(spans: ArrayLike | Sequence[tuple[int, int] | None] | None) -> Any:
    """Spans as numbers, where a list says None for some."""
    if not isinstance(spans, (list, tuple)):
        return spans
    return [(-1, -1) if span is None else span for span in spans]


def _equal(texts: Sequence[str]) -> NDArray[np.float32] | None:
    """1 between texts that are the same; None where none are."""
    first: dict[str, int] = {}
    group = np.array([first.setdefault(text.strip(), k) for k, text in enumerate(texts)])
    if len(first) == len(texts):
        return None
    alike: NDArray[np.float32] = (group[:, None] == group[None, :]).astype(np.float32)
    np.fill_diagonal(alike, 0)
    return alike


def _encoded(model: Embedder, texts: Sequence[str]) -> NDArray[np.float32]:
    """What an embedder gives, one row a text."""
    given = model.encode(list(texts))
    shape = given.shape if isinstance(given, np.ndarray) and given.dtype.kind == "f" else None
    if shape is None or len(shape) != 2 or shape[0] != len(texts):
        found = type(given).__name__ if shape is None else f"an array of shape {shape}"
        raise InputError(
            f"embedder '{model.name}' gives {found} for {len(texts)} texts: one row of floats each"
        )
    return given


def _unit_rows(name: str, vectors: ArrayLike) -> NDArray[np.float32]:
    if isinstance(vectors, np.ndarray) and vectors.dtype.kind == "c":
        raise InputError(f"{name} holds complex numbers, expected real ones")
    try:
        unit = unit_rows(vectors)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name} is not an array of numbers ({error})") from error
    if unit.ndim == 0:
        raise InputError(f"{name} has shape (), expected one vector or one row per text")
    return unit
