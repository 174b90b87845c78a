"""What all adapters do: documents of a framework -> `mio_rag.select` -> what was chosen, with its notes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mio_rag.context import TokenCounter
from mio_rag.errors import InfeasibleError, InputError
from mio_rag.formulations.constraints import count_problem
from mio_rag.plain import select
from mio_rag.selector import Selector
from mio_rag.types import Decision, Selection

if TYPE_CHECKING:
    from mio_rag.retrieval.embedders import Embedder

__all__ = ["NOTES", "Choice", "Counter", "Item", "Vectors", "as_counter", "check_budget", "choose", "number"]

#: Where the notes stand in the metadata of what is chosen.
NOTES = "mio_rag"

_FLOAT = np.dtype(np.float32)

#: Vectors that a `Vectors` remembers at most; the oldest are forgotten first.
REMEMBERED = 20_000

#: A `TokenCounter`, or a function that counts the tokens of one text.
Counter = TokenCounter | Callable[[str], int]


class Item(NamedTuple):
    """One document, as an adapter hands it over.

    Parameters
    ----------
    text : str
        What the reader will see of it; its tokens are counted.
    id : str
        Blank where it has none.
    source : str
        What `max_per_source` goes by; blank: a source of its own.
    score : float or None
        Relevance; None where unknown.
    embedding : sequence of float or None
    embed_text : str or None
        What is embedded, where that is not `text`.
    """

    text: str
    id: str = ""
    source: str = ""
    score: float | None = None
    embedding: Sequence[float] | None = None
    embed_text: str | None = None


class Vectors:
    """Embeds passages and questions; a passage's vector is remembered by its text.

    Frameworks hand out documents without their vectors. The same documents come up again and again, so that
    remembering saves most of the work; nothing is written to disk.

    Parameters
    ----------
    passages : callable
        Texts -> one row each.
    query : callable
        Question -> its vector.
    owner : object
        What these belong to, for comparison.
    """

    def __init__(
        self,
        passages: Callable[[list[str]], ArrayLike],
        query: Callable[[str], ArrayLike],
        owner: object = None,
    ) -> None:
        self._passages, self._query, self.owner = passages, query, owner
        self._known: dict[str, NDArray[np.float32]] = {}

    @classmethod
    def of(cls, embedder: Embedder | str) -> Vectors:
        """Those of an embedder of mio-rag, or of its name: "minilm", or a sentence-transformers id or folder.

        A model that is named is loaded when it is first needed.

        Raises
        ------
        InputError
            For "tfidf", which has to be fitted on a corpus.
        """
        if embedder == "tfidf":
            raise InputError(
                "embedder 'tfidf' must be fitted on a corpus: fit a TfidfEmbedder and give that, or 'minilm'"
            )
        loaded: list[Embedder] = [] if isinstance(embedder, str) else [embedder]

        def encode(texts: list[str]) -> NDArray[np.float32]:
            from mio_rag.retrieval.embedders import make_embedder

            if not loaded:
                loaded.append(make_embedder(str(embedder)))
            return loaded[0].encode(texts)

        return cls(encode, lambda text: encode([text])[0], embedder)

    def __deepcopy__(self, memo: dict[int, Any]) -> Vectors:
        return self  # DSPy's optimizers copy whole programs; a model and what it made are not settings

    def passages(self, texts: Sequence[str]) -> list[NDArray[np.float32]]:
        """The vector of each text."""
        try:
            return list(map(self._known.__getitem__, texts))
        except KeyError:
            pass  # some are new
        new = list(dict.fromkeys(text for text in texts if text not in self._known))
        made: dict[str, NDArray[np.float32]] = {}
        if new:
            rows = matrix("the embedder", self._passages(new))
            if len(rows) != len(new):
                raise InputError(f"the embedder made {len(rows)} vectors of {len(new)} texts")
            made = dict(zip(new, rows, strict=True))
        found = [made[text] if text in made else self._known[text] for text in texts]
        for text, row in made.items():
            self._known[text] = row
            if len(self._known) > REMEMBERED:
                self._known.pop(next(iter(self._known)), None)
        return found

    def query(self, text: str) -> NDArray[np.float32]:
        """The vector of a question."""
        return np.asarray(self._query(text), dtype=np.float32)


@dataclass(frozen=True, eq=False)
class Choice:
    """What was chosen among items, in prompt order.

    Parameters
    ----------
    indices : tuple of int
        Into the items.
    notes : tuple of dict
        For each of them, plain data: ``rank`` (from 1), ``reason``, ``value``, ``relevance``, ``tokens`` and
        the ``certificate``.
    """

    selection: Selection | None
    indices: tuple[int, ...] = ()
    notes: tuple[dict[str, Any], ...] = ()

    def report(self) -> dict[str, Any]:
        """Plain data about the whole choice: its certificate, its tokens, and why the rest was left out."""
        if self.selection is None:
            return {"certificate": None, "tokens_used": 0, "budget_tokens": None, "left_out": {}}
        return {
            "certificate": _certificate(self.selection),
            "tokens_used": self.selection.tokens_used,
            "budget_tokens": self.selection.budget_tokens,
            "left_out": {d.id: d.reason for d in self.selection.decisions if not d.selected},
        }


def choose(
    query: str,
    items: Sequence[Item],
    *,
    budget_tokens: int,
    selector: Selector,
    vectors: Callable[[], Vectors | None] = lambda: None,
    counter: Counter | None = None,
    query_embedding: ArrayLike | None = None,
) -> Choice:
    """Choose among documents.

    Relevance is their score where all have one, and the cosine with the question where none has. Nothing is
    embedded that the settings do not need: `vectors` is called where something has to be. Ids that repeat are
    told apart by "#2", "#3" and so on; an item without id goes by its place, from 0. With
    ``prompt_order="document"`` the order of the items is kept.

    Returns
    -------
    Choice
        Empty where there are no items.

    Raises
    ------
    InputError
        If scores or vectors are missing where they are needed, or the selector refuses what it is given.
    InfeasibleError
        If no selection satisfies the constraints, or the solver found none: an empty context would make a
        reader invent its answer.
    """
    check_budget(budget_tokens)
    if not items:
        return Choice(None)
    scores = [item.score for item in items if item.score is not None]
    if 0 < len(scores) < len(items):
        raise InputError(
            f"{len(items) - len(scores)} of {len(items)} documents have no score: give all one, or none"
        )
    cosine = not scores
    rows = _rows(items, vectors) if cosine or _needs_passages(selector) else None
    if (cosine or _needs_query(selector)) and query_embedding is None:
        embedder = vectors()
        if embedder is None:
            raise InputError("the question has no embedding: give embedder=, or documents with scores")
        query_embedding = embedder.query(query)
    ids = _ids(items)
    selection = select(
        query,
        [item.text for item in items],
        budget_tokens=budget_tokens,
        embeddings=rows,
        query_embedding=query_embedding,
        scores=None if cosine else scores,
        ids=ids,
        sources=[item.source or f"no source: {i}" for i, item in zip(ids, items, strict=True)]
        if any(item.source for item in items)
        else None,
        counter=None if counter is None else as_counter(counter),
        selector=selector,
    )
    if selection.result.x is None:
        raise InfeasibleError(selection.explain())
    proof = _certificate(selection)
    return Choice(
        selection,
        selection.chosen,
        tuple(
            {**_notes(selection.decisions[i], rank), "certificate": dict(proof)}
            for rank, i in enumerate(selection.chosen, start=1)
        ),
    )


def _needs_passages(selector: Selector) -> bool:
    clustered = selector.side.cover is not None and selector.side.cover != "labels"
    similar = selector.redundancy_weight > 0 or selector.side.max_similarity is not None
    return similar or clustered or _needs_query(selector)


def _needs_query(selector: Selector) -> bool:
    robust = selector.radius > 0 or selector.uncertainty is not None
    return robust or bool(selector.passage_radii) or selector.relevance_model is not None


def _rows(items: Sequence[Item], vectors: Callable[[], Vectors | None]) -> NDArray[np.float32]:
    """One row for each item: its own vector, or one that is made."""
    given = [item.embedding for item in items]
    missing = [k for k, row in enumerate(given) if row is None]
    if not missing:
        return matrix("the documents", given)
    embedder = vectors()
    if embedder is None:
        raise InputError(
            f"{len(missing)} of {len(items)} documents have no embedding: give embedder=, or set "
            "redundancy_weight=0 and give documents with scores"
        )
    texts = (items[k] for k in missing)
    made = embedder.passages([item.text if item.embed_text is None else item.embed_text for item in texts])
    if len(missing) == len(items):
        return matrix("the embedder", made)
    rows: list[Any] = given
    for k, row in zip(missing, made, strict=True):
        rows[k] = row
    return matrix("the embedder and the documents", rows)


def matrix(whose: str, rows: ArrayLike | Sequence[Any]) -> NDArray[np.float32]:
    """Rows of one length as an array.

    Raises
    ------
    InputError
        If they are not.
    """
    try:
        found = _packed(rows) if isinstance(rows, list) else np.asarray(rows, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise InputError(f"{whose}: vectors are not rows of numbers of one length ({error})") from error
    if found.ndim != 2:
        raise InputError(f"{whose}: vectors have shape {found.shape}, expected one row for each text")
    return found


def _packed(rows: list[Any]) -> NDArray[np.float32]:
    """Rows as an array.

    Arrays are joined and lists of floats packed, which takes a quarter of what NumPy takes to look at
    each.
    """
    kinds = set(map(type, rows))
    if kinds == {np.ndarray} and {(row.dtype, row.shape) for row in rows} == {(_FLOAT, rows[0].shape)}:
        return np.concatenate(rows).reshape(len(rows), *rows[0].shape)
    if kinds != {list} or len(set(map(len, rows))) > 1:
        return np.asarray(rows, dtype=np.float32)
    form = struct.Struct(f"{len(rows[0])}f")
    try:
        packed = b"".join(form.pack(*row) for row in rows)
    except (struct.error, OverflowError):  # no numbers, or too large ones: NumPy says which
        return np.asarray(rows, dtype=np.float32)
    return np.frombuffer(packed, dtype=np.float32).reshape(len(rows), -1)


def _ids(items: Sequence[Item]) -> list[str]:
    plain_ids = [item.id or str(k) for k, item in enumerate(items)]
    if len(set(plain_ids)) == len(plain_ids):
        return plain_ids
    taken: set[str] = set()
    ids = []
    for plain in plain_ids:
        name = plain
        count = 1
        while name in taken:
            count += 1
            name = f"{plain}#{count}"
        taken.add(name)
        ids.append(name)
    return ids


def _certificate(selection: Selection) -> dict[str, Any]:
    result = selection.result
    return {
        "status": result.status.value,
        "objective": result.objective,
        "bound": result.bound,
        "gap": result.gap,
        "solver": result.solver,
        "text": result.certificate(),
    }


def _notes(decision: Decision, rank: int) -> dict[str, Any]:
    return {
        "rank": rank,
        "reason": decision.reason,
        "relevance": decision.relevance,
        "value": decision.value,
        "tokens": decision.tokens,
    }


class _FunctionCounter:
    def __init__(self, function: Callable[[str], int]) -> None:
        self._function = function

    @property
    def name(self) -> str:
        return getattr(self._function, "__name__", "counter")

    def count(self, texts: Sequence[str]) -> list[int]:
        return [int(self._function(text)) for text in texts]


def as_counter(counter: Counter) -> TokenCounter:
    """A counter of many texts, of one that counts a single text.

    Raises
    ------
    InputError
        If it is neither.
    """
    if isinstance(counter, TokenCounter):
        return counter
    if callable(counter):
        return _FunctionCounter(counter)
    raise InputError(
        f"counter={counter!r} counts nothing: give a function from a text to its tokens, or a TokenCounter"
    )


def check_budget(budget_tokens: int) -> None:
    """Refuse a budget that is no whole number >= 1.

    Raises
    ------
    InputError
        If it is not.
    """
    if problem := count_problem("budget_tokens", budget_tokens):
        raise InputError(problem)
    if budget_tokens < 1:
        raise InputError(f"budget_tokens={budget_tokens} must be >= 1")


def number(metadata: Mapping[str, Any], key: str | None, where: str) -> float | None:
    """The number under a key of a document's metadata; None without key, or where it is missing.

    Raises
    ------
    InputError
        If something else stands there.
    """
    value = None if key is None else metadata.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
        raise InputError(f"{where}: '{key}' is {value!r}, expected a number")
    return float(value)
