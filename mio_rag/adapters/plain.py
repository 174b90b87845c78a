"""Passages retrieved elsewhere -> a pool; a selector's settings as keywords and as plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mio_rag.context import RegexCounter, TokenCounter, passage_tokens
from mio_rag.defaults import DEFAULTS
from mio_rag.entries import listed, not_numbers, unit_rows
from mio_rag.errors import InputError, choose
from mio_rag.formulations.numbers import plural
from mio_rag.formulations.rows import count_problem
from mio_rag.pool import Candidates
from mio_rag.relevance.model import RelevanceModel
from mio_rag.retrieval.embedders import Embedder, make_embedder
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.repetition import Repetition
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.selector import Selector
from mio_rag.settings import Settings
from mio_rag.solvers.result import SolveOptions
from mio_rag.types import Passage

#: What a door selects by where nothing else is said.
DEFAULT = Selector(
    units=DEFAULTS.units,  # type: ignore[arg-type]
    options=SolveOptions(time_limit_seconds=DEFAULTS.seconds, relative_gap=DEFAULTS.gap),
)


def make_selector(base: Selector | None, settings: Mapping[str, Any]) -> Selector:
    """Return the selector given, or the default one, with the settings that are not None.

    Raises `InputError` for a setting that does not exist, or that `Selector` refuses.
    """
    if base is not None and not isinstance(base, Selector):
        raise InputError(f"selector is {base!r}, expected a Selector")
    check_names("setting", settings, ("preset", *Selector.model_fields))
    changes = {name: value for name, value in settings.items() if value is not None}
    preset = changes.pop("preset", None)
    if preset is not None:
        if base is not None:
            raise InputError("selector and preset exclude each other: both are what settings start from")
        return Selector.preset(preset, **{"options": DEFAULT.options, **changes})
    return (base or DEFAULT).replace(**changes) if changes else base or DEFAULT


def to_plain(selector: Selector) -> dict[str, Any]:
    """Return what differs from the default selector as plain data; see `from_plain`.

    Raises `InputError` if an uncertainty set is a function of its own.
    """
    return Settings.to_dict(selector, defaults=False)  # not the digests of records


def from_plain(data: Mapping[str, Any]) -> Selector:
    """Make the selector of what `to_plain` wrote; `InputError` for a setting that cannot be read."""
    if isinstance(data, Mapping) and isinstance(model := data.get("relevance_model"), Mapping):
        data = {**data, "relevance_model": RelevanceModel.from_dict(model)}
    return Selector.from_dict(data, "selector")


def check_names(what: str, given: Iterable[str], known: Sequence[str], also: Sequence[str] = ()) -> None:
    """Raise `InputError` for names that are not known, with the one that was probably meant."""
    unknown = [name for name in given if name not in known]
    if unknown:
        raise InputError([f"{what} '{name}' is unknown: {choose(name, [*also, *known])}" for name in unknown])


#: A `TokenCounter`, or a function that counts the tokens of one text.
Counter = TokenCounter | Callable[[str], int]


class _FunctionCounter:
    def __init__(self, function: Callable[[str], int]) -> None:
        self._function = function

    @property
    def name(self) -> str:
        return getattr(self._function, "__name__", "counter")

    def count(self, texts: Sequence[str]) -> list[int]:
        counts = [self._function(text) for text in texts]
        for text, count in zip(texts, counts, strict=True):
            if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 0:
                raise InputError(
                    f"counter {self.name} made {count!r} of {text[:40]!r}, expected a whole number >= 0"
                )
        return [int(count) for count in counts]


def as_counter(counter: Counter) -> TokenCounter:
    """Return a counter of many texts; `InputError` for what is neither one nor a function of a text."""
    if isinstance(counter, TokenCounter):
        return counter
    if callable(counter):
        return _FunctionCounter(counter)
    raise InputError(
        f"counter={counter!r} counts nothing: give a function from a text to its tokens, or a TokenCounter"
    )


def check_budget(budget: Any) -> int:
    """Return a budget; `InputError` for what is no whole number >= 1."""
    if isinstance(budget, (int, float, np.integer)) and not isinstance(budget, bool) and budget < 1:
        raise InputError(f"budget must be >= 1, got {budget}.")
    if problem := count_problem("budget", budget, 1):
        raise InputError(problem)
    return int(budget)


class Asked:
    """The embedder of a pool whose question has a vector already."""

    def __init__(self, question: str, query: NDArray[np.float32], embedder: Embedder | None = None) -> None:
        self._question, self._query, self._embedder = question, query, embedder
        self.name: str = getattr(embedder, "name", "given")
        self.fingerprint: str = getattr(embedder, "fingerprint", "")

    def encode(self, texts: Sequence[str], progress: Any = None) -> NDArray[np.float32]:
        """Return the question's vector, and of other texts what the embedder makes."""
        if list(texts) == [self._question]:
            return self._query[None]
        if self._embedder is None:
            raise InputError("texts have no embedding: give embedder=, or embeddings for all of them")
        return encoded(self._embedder, texts)


def pool_of(
    question: str,
    passages: Sequence[Passage],
    counter: TokenCounter | None = None,
    *,
    query: ArrayLike | None = None,
    embedder: Embedder | None = None,
    scores: Sequence[float] | NDArray[Any] | None = None,
    whole: bool = False,
) -> tuple[Candidates, CorpusIndex | None]:
    """Return the pool of passages that were retrieved elsewhere, and the index that ranked them, if one did.

    query: the question's embedding; otherwise `embedder` makes it, and the vectors that passages lack; by
        default the packaged one, where no passage has a vector.
    scores: relevance, larger is better. Without it the passages are ranked as those of an index: by vectors,
        words, and the names by which they mention each other. Pieces of documents are then cut into their
        units, where an embedder is there for these.
    whole: pieces of documents are read as they are.
    """
    from mio_rag.stores.base import index_of, vectors_of
    from mio_rag.stores.cut import as_documents, dated

    counter, passages = counter or RegexCounter(), dated(passages)
    if scores is None:
        if query is None and embedder is None:
            if any(one.vector is not None for one in passages):
                raise InputError(
                    "relevance is unknown: give question_embedding= beside embeddings, scores=, distances= "
                    'or embedder= ("minilm", or a sentence-transformers id or folder)'
                )
            embedder = make_embedder("minilm")
        row = encoded(embedder, [question])[0] if query is None else query  # type: ignore[arg-type]
        asked = Asked(question, unit_vectors("question_embedding", row), embedder)
        rows = vectors_of(passages, asked)  # type: ignore[arg-type]
        if rows.shape[1:] != asked._query.shape:
            raise InputError(
                f"the question's embedding has shape {asked._query.shape}, the passages' {rows.shape[1:]}: "
                "embed both with the same model"
            )
        if embedder is not None and not whole:
            passages = as_documents(passages)
        index = index_of(passages, rows, asked)  # type: ignore[arg-type]
        retriever = Retriever(index, pool=len(passages), counter=counter, link_hops=0)
        return retriever.retrieve(question), index
    vectors = [passage.vector for passage in passages]
    repeated, every = Repetition.build(passages), list(range(len(passages)))
    columns: dict[str, Any] = {
        name: values if any(values := [getattr(passage, of) for passage in passages]) else None
        for name, of in (
            ("sources", "source"), ("dates", "date"), ("sections", "section"), ("pages", "page"),
            ("metadata", "metadata"), ("lines", "lines"),
        )
    }  # fmt: skip
    pool = Candidates(
        ids=[passage.id for passage in passages],
        texts=[passage.text for passage in passages],
        relevance=scores,  # type: ignore[arg-type]
        tokens=passage_tokens(passages, counter),
        embeddings=None if any(row is None for row in vectors) else unit_vectors("embeddings", vectors),
        query_embedding=None if query is None else unit_vectors("question_embedding", query),
        titles=[passage.title for passage in passages],
        question=question,
        positions=np.arange(len(passages)),
        spans=repeated.spans_of(every),
        duplicates=repeated.among(every, passages, question),
        **columns,
    )
    return pool, None


def checked_scores(scores: ArrayLike, n: int, name: str = "scores") -> NDArray[np.float64]:
    """Return a finite number for each of n passages; `InputError` for anything else."""
    if (found := not_numbers(scores)) is not None:
        raise InputError(f"{name} holds {found}: give numbers")
    try:
        given = np.asarray(scores, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name} is not an array of numbers ({error}): give one for each passage") from error
    if given.shape != (n,):
        raise InputError(
            f"{name} has shape {given.shape}, expected one number for each of {plural(n, 'passage')}"
        )
    if not np.isfinite(given).all():
        bad = int(np.flatnonzero(~np.isfinite(given))[0])
        raise InputError(f"{name}[{bad}] is {given[bad]}: every value must be finite")
    return given


def encoded(model: Embedder, texts: Sequence[str]) -> NDArray[np.float32]:
    """Return what an embedder makes, one row a text; `InputError` if it is none, or makes something else."""
    given = model.encode(list(texts))
    shape = given.shape if isinstance(given, np.ndarray) and given.dtype.kind == "f" else None
    if shape is None or len(shape) != 2 or shape[0] != len(texts):
        found = type(given).__name__ if shape is None else f"an array of shape {shape}"
        raise InputError(
            f"embedder '{model.name}' gives {found} for {len(texts)} texts: one row of floats each"
        )
    return given


def unit_vectors(name: str, vectors: Any) -> NDArray[np.float32]:
    """Return one vector, or one a row, at unit length; `InputError` for what is none."""
    if isinstance(vectors, np.ndarray) and vectors.dtype.kind == "c":
        raise InputError(f"{name} holds complex numbers, expected real ones")
    try:
        unit = unit_rows(vectors)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name} is not an array of numbers ({error})") from error
    if unit.ndim == 0:
        raise InputError(f"{name} has shape (), expected one vector or one row per text")
    if not np.isfinite(unit).all():
        raise InputError(f"{name} holds NaN or infinity: embed again")
    return unit


_FIELDS = tuple(one.name for one in fields(Passage))


def as_passages(given: Any) -> list[Passage]:
    """Return passages of strings, `Passage` objects or mappings; further keys of a mapping are its metadata.

    What has no id gets its position, from 0. `InputError` with every entry that is none of these.
    """
    found: list[Passage] = []
    problems = []
    for k, one in enumerate(listed("passages", given)):
        try:
            if isinstance(one, str):
                one = Passage(str(k), one)
            elif isinstance(one, Mapping):
                own = {name: value for name, value in one.items() if name in _FIELDS and value is not None}
                own["metadata"] = {
                    **own.get("metadata", {}), **{n: v for n, v in one.items() if n not in _FIELDS},
                }  # fmt: skip
                own["section"] = tuple(own.get("section", ()))
                one = Passage(**{"id": str(k), **own})
            if not isinstance(one, Passage):
                raise InputError(f"a {type(one).__name__} is no passage")
        except (InputError, TypeError) as error:
            problems.append(f"passages[{k}]: {error}: give a string, a Passage, or a mapping with text")
            continue
        found.append(one)
    if not problems and len({one.id for one in found}) < len(found):
        taken = [one.id for one in found]
        twice = next(name for name in taken if taken.count(name) > 1)
        problems.append(f"id '{twice}' is there twice: each passage needs its own id")
    if problems:
        raise InputError(problems)
    return found
