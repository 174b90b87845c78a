"""What the adapters share: documents of a framework -> `mio_rag.select` -> chosen documents, with notes.

Documents that come without vectors are embedded once and cached by text.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict, Field, InstanceOf, PrivateAttr, field_serializer

from mio_rag.adapters.places import lay_out, rooted
from mio_rag.adapters.plain import (
    DEFAULT,
    Counter,
    as_counter,
    check_budget,
    check_names,
    checked_scores,
    from_plain,
    make_selector,
    pool_of,
    to_plain,
)
from mio_rag.context import RegexCounter
from mio_rag.defaults import DEFAULTS
from mio_rag.errors import InfeasibleError, InputError
from mio_rag.filters import Filter
from mio_rag.relevance.model import RelevanceModel
from mio_rag.selection.result import Note, Selection
from mio_rag.selection.selector import Selector
from mio_rag.types import Passage, check_date

if TYPE_CHECKING:
    from mio_rag.retrieval.embedders import Embedder


def place(value: Any) -> int | None:
    """Where a text begins, as it stands in metadata; None for what is no place."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    return int(value) if whole and value >= 0 else None


def label(value: Any) -> str:
    """What stands in metadata as a text; blank for nothing."""
    return "" if value is None else str(value)


#: Vectors that a `Vectors` remembers at most; the oldest are forgotten first.
REMEMBERED = 20_000


class Vectors:
    """Embeds passages and questions; passage vectors are cached in memory by text.

    Frameworks return documents without their vectors, and the same documents come up again and again.

    passages: texts -> one row each.
    query: question -> its vector.
    owner: what these belong to, for comparison.
    """

    def __init__(
        self,
        passages: Callable[[list[str]], ArrayLike],
        query: Callable[[str], ArrayLike],
        owner: object = None,
    ) -> None:
        self._passages, self._query, self.owner = passages, query, owner
        self._rows: OrderedDict[str, NDArray[np.float32]] = OrderedDict()
        self._lock = Lock()  # frameworks call from many threads

    @classmethod
    def of(cls, embedder: Embedder | str) -> Vectors:
        """Those of an embedder of mio-rag, or of its name: "minilm", or a sentence-transformers id or folder.

        A model that is named is loaded when it is first needed.

        Raises `InputError` for "tfidf", which has to be fitted on a corpus.
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

    def __getstate__(self) -> dict[str, Any]:
        """Everything but what is remembered, for pickling."""
        return {"_passages": self._passages, "_query": self._query, "owner": self.owner}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Vectors.__init__(self, state["_passages"], state["_query"], state["owner"])

    def __deepcopy__(self, memo: dict[int, Any]) -> Vectors:
        return self  # DSPy's optimizers copy whole programs; a model and what it made are not settings

    def passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """The vector of each text, a row each."""
        with self._lock:
            rows = {text: self._rows[text] for text in texts if text in self._rows}
        new = [text for text in dict.fromkeys(texts) if text not in rows]
        if new:
            made = matrix("the embedder", self._passages(new))
            if len(made) != len(new):
                raise InputError(f"the embedder returned {len(made)} vectors for {len(new)} texts")
            known = next(iter(rows.values()), made[0])
            if known.shape != made[0].shape:
                raise InputError(
                    f"the embedder made vectors of {made.shape[1]} dimensions, earlier of {known.size}"
                )
            with self._lock:
                for text, row in zip(new, made, strict=True):
                    rows[text] = row
                    if np.isfinite(row).all():  # an embedder may fail once only
                        self._rows[text] = row.copy()
                while len(self._rows) > REMEMBERED:
                    self._rows.popitem(last=False)
        return np.array([rows[text] for text in texts], dtype=np.float32)

    def query(self, text: str) -> NDArray[np.float32]:
        """The vector of a question."""
        made = self._query(text)
        try:
            return np.asarray(made, dtype=np.float32)
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(f"the embedder returned no vector for the question ({error})") from error


def matrix(whose: str, rows: ArrayLike | Sequence[Any]) -> NDArray[np.float32]:
    """Rows of one length as an array; raises `InputError` if they are not."""
    try:
        found = np.asarray(rows, dtype=np.float32)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{whose}: vectors are not rows of numbers of one length ({error})") from error
    if found.ndim != 2:
        raise InputError(f"{whose}: vectors have shape {found.shape}, expected one row for each text")
    return found


_LOG = logging.getLogger("mio_rag.adapters")

#: Where the notes stand in the metadata of what is chosen.
NOTES = "mio_rag"
_NOTED = ("reason", "relevance", "value", "tokens")


@dataclass(frozen=True, eq=False, slots=True)
class Documents:
    """What an adapter hands over, a column for each part: one entry for each document, or no column at all.

    texts: what the reader will see; its tokens are counted.
    ids: blank where a document has none.
    sources: what `max_per_source` goes by; blank: a source of its own.
    scores: relevance; None where unknown.
    embed_texts: what is embedded, where that is not `texts`.
    starts: where each text begins in the document that its source names, or in its part of it (see
        `mio_rag.adapters.places.part_of`); None where unknown.
    places: of each in what the framework handed over, where some were left out.
    metadata: says what page, section, sheet or the like a text is of; handed back with every part.
    """

    texts: Sequence[str]
    ids: Sequence[str] | None = None
    sources: Sequence[str] | None = None
    scores: Sequence[float | None] | None = None
    embeddings: Sequence[Any] | None = None
    embed_texts: Sequence[str] | None = None
    starts: Sequence[int | None] | None = None
    metadata: Sequence[Mapping[str, Any]] | None = None
    places: Sequence[int] = ()

    def __post_init__(self) -> None:
        n = len(self.texts)
        if not self.places:
            object.__setattr__(self, "places", range(n))
        for name in ("ids", "sources", "scores", "embeddings", "embed_texts", "starts", "metadata"):
            column = getattr(self, name)
            if column is not None and len(column) != n:
                raise InputError(f"{name} has {len(column)} entries, expected {n}: one per document")

    def __len__(self) -> int:
        return len(self.texts)

    def only(self, where: Any) -> Documents:
        """Return those that meet a filter; `InputError` for a key that no document has."""
        conditions = Filter(where)
        if not conditions or not self.texts:
            return self
        n = len(self)
        data, sources = self.metadata or [{}] * n, self.sources or [""] * n
        kept = conditions.rows(Passage(str(k), "x", source=sources[k], metadata=data[k]) for k in range(n))
        columns = {one.name: getattr(self, one.name) for one in fields(self)}
        return Documents(
            **{k: None if v is None else [v[i] for i in kept] for k, v in columns.items()}
            | {"places": kept.tolist()}
        )


@dataclass(frozen=True, eq=False)
class Read:
    """One text that is read.

    indices: of the documents in it, by where they begin.
    text: where there are several, what they make together; of sentences, these; otherwise the document's own.
    notes: as in `Choice`; for several, or sentences: ``rank``, ``certificate``, and the ``parts`` with their
        notes, ids, places in the text, and the metadata of their documents.
    is_whole: whether it is one document as it was.
    """

    indices: tuple[int, ...]
    text: str
    notes: dict[str, Any]
    is_whole: bool


@dataclass(frozen=True, eq=False)
class Choice:
    """What was chosen among documents, in prompt order.

    indices: into the documents; of sentences, one of theirs for each.
    notes: for each of them, plain data: ``rank`` (from 1), ``reason``, ``value``, ``relevance``, ``tokens``
        and the ``certificate``, whose own notes tell what constraints were broken at their price.
    read: what is to be read, in prompt order: documents of one source that overlap or touch as one text.
    """

    selection: Selection | None
    indices: tuple[int, ...] = ()
    notes: tuple[dict[str, Any], ...] = ()
    read: tuple[Read, ...] = ()

    def report(self) -> dict[str, Any]:
        """Plain data about the whole choice: its certificate, its tokens, and why the rest was left out."""
        if self.selection is None:
            return {"certificate": None, "tokens_used": 0, "budget": None, "left_out": {}}
        return {
            "certificate": _certificate(self.selection),
            "tokens_used": self.selection.tokens_used,
            "budget": self.selection.budget_tokens,
            "left_out": {d.id: d.reason for d in self.selection.decisions if not d.selected},
        }


def choose(
    query: str,
    documents: Documents,
    *,
    budget: int = DEFAULTS.budget,
    selector: Selector = DEFAULT,
    vectors: Callable[[], Vectors | None] = lambda: None,
    counter: Counter | None = None,
    query_embedding: ArrayLike | None = None,
    where: Any = None,
) -> Choice:
    """Choose among documents.

    Relevance is the score if all documents have one. If none has, documents are ranked as those of an index:
    by vectors, words and names. `vectors` is called only if the settings need embeddings. Repeated ids get
    the suffixes "#2", "#3" and so on; a document without id gets its position, from 0.
    With ``prompt_order="document"`` the order of the documents is kept.

    where: only documents whose metadata meet it; see `mio_rag.filters`.

    Returns: empty where there are no documents.

    Raises `InputError` if scores or vectors are missing where they are needed, or the selector refuses what
    it is given.
    Raises `InfeasibleError` if no selection satisfies the constraints, or the solver found none: an empty
    context would make a reader invent its answer.
    """
    check_budget(budget)
    documents = documents.only(where)
    n = len(documents)
    if not n:
        return Choice(None)
    scores = documents.scores
    missing = n if scores is None else _missing_scores(scores)
    if 0 < missing < n:
        raise InputError(f"{missing} of {n} documents have no score: score all of them, or none")
    is_scored = missing == 0
    rows = _rows(documents, vectors) if not is_scored or _needs_passages(selector) else None
    if (not is_scored or _needs_query(selector)) and query_embedding is None:
        embedder = vectors()
        if embedder is None:
            raise InputError("the question has no embedding: give embedder=, or documents with scores")
        query_embedding = embedder.query(query)
    ids = _ids(documents)
    sources, columns, notes = _laid_out(documents, ids, selector)
    said = [*_ascending(scores), *notes]
    data = documents.metadata or [{}] * n
    passages = [
        Passage(
            ids[k],
            documents.texts[k],
            source=sources[k],
            date=date if isinstance(date := data[k].get("date"), str) and not check_date(date) else "",
            metadata=data[k],
            vector=None if rows is None else rows[k],
        )
        for k in range(n)
    ]
    tokens = RegexCounter() if counter is None else as_counter(counter)
    given = checked_scores(scores, n) if is_scored else None  # type: ignore[arg-type]
    pool = replace(pool_of(query, passages, tokens, query=query_embedding, scores=given), **columns)
    selection = selector.select(pool, budget, tokens)
    if said:
        _LOG.warning("%s", "; ".join(said))
        selection = replace(selection, notes=(*selection.notes, *(Note("places", one) for one in said)))
    if selection.result.x is None:
        raise InfeasibleError(selection.explain())
    if not selection.chosen:  # no document is there to carry the notes
        _LOG.warning("%s", "; ".join(selection.notes) or selection.explain())
    proof = _certificate(selection)
    noted = tuple(
        {
            "rank": rank,
            **{name: getattr(selection.decisions[i], name) for name in _NOTED},
            "certificate": {**proof, "notes": list(proof["notes"])},
        }
        for rank, i in enumerate(selection.chosen, start=1)
    )
    place = {name: k for k, name in enumerate(ids)}
    chosen = tuple(place[selection.candidates.passage_ids[i]] for i in selection.chosen)
    read = tuple(_read(selection, chosen, noted, documents.metadata))
    at = documents.places
    return Choice(
        selection,
        tuple(at[k] for k in chosen),
        noted,
        tuple(replace(one, indices=tuple(at[k] for k in one.indices)) for one in read),
    )


def _laid_out(
    documents: Documents, ids: Sequence[str], selector: Selector
) -> tuple[Sequence[str], dict[str, Any], list[str]]:
    """Sources, the columns that say where texts lie in them, and notes about wrong places."""
    n, unplaced = len(documents), {"spans": None, "documents": None}
    if documents.sources is None:
        return [""] * n, unplaced, []
    sources = rooted(documents.sources, ids)
    if not any(sources):
        if selector.max_per_source is not None or selector.side.max_source_share is not None:
            raise InputError(
                "no document has a source, which max_per_source and max_source_share need: name the metadata "
                "field that holds it (source_key), or leave them out"
            )
        return sources, unplaced, []
    starts = [
        None if source != given else start
        for source, given, start in zip(
            sources, documents.sources, documents.starts or [None] * n, strict=True
        )
    ]
    laid = lay_out(documents.texts, sources, starts, documents.metadata)
    names = [source or f"no source: {i}" for i, source in zip(ids, sources, strict=True)]
    return names, {"spans": laid.spans, "documents": laid.spaces}, laid.notes


def _ascending(scores: Sequence[float | None] | None) -> Iterator[str]:
    """A note where scores rise from the first document to the last, as distances do."""
    if scores is None or len(scores) < 3 or None in scores:
        return
    rising = all(a <= b for a, b in pairwise(scores))  # type: ignore[operator]
    if rising and scores[0] < scores[-1]:  # type: ignore[operator]
        yield (
            f"scores ascend along the ranks ({scores[0]:g} to {scores[-1]:g}), as distances do, and the "
            "largest was taken for the most relevant: give similarities for distances, or no scores"
        )


def _read(
    selection: Selection,
    rows: Sequence[int],
    notes: Sequence[dict[str, Any]],
    metadata: Sequence[Mapping[str, Any]] | None,
) -> Iterator[Read]:
    """What is to be read, of which documents `rows` says for each that is chosen."""
    of_sentences = selection.candidates.cut_from is not None
    at = {selection.candidates.ids[i]: k for k, i in enumerate(selection.chosen)}
    for rank, block in enumerate(selection.blocks, start=1):
        places = [at[part.id] for part in block.parts]
        said = {**notes[places[0]], "rank": rank}
        is_whole = len(places) == 1 and not of_sentences
        if not is_whole:
            parts = [
                {
                    **{name: notes[k][name] for name in _NOTED},
                    "id": part.id,
                    "start": part.start,
                    "end": part.end,
                    **({} if metadata is None else {"metadata": dict(metadata[rows[k]])}),
                }
                for k, part in zip(places, block.parts, strict=True)
            ]
            reasons = "; ".join(dict.fromkeys(part["reason"] for part in parts))
            said = {"rank": rank, "reason": reasons, "parts": parts, "certificate": said["certificate"]}
        yield Read(tuple(dict.fromkeys(rows[k] for k in places)), block.passage.text, said, is_whole)


def _missing_scores(scores: Sequence[Any]) -> int:
    """How many are None; the others must be numbers."""
    if set(map(type, scores)) == {float}:
        return 0
    for k, score in enumerate(scores):
        if score is not None and (isinstance(score, bool) or not isinstance(score, (int, float, np.number))):
            raise InputError(f"document {k}: its score is {score!r}, expected a number")
    return sum(score is None for score in scores)


def _needs_passages(selector: Selector) -> bool:
    clustered = selector.side.cover is not None and selector.side.cover != "labels"
    similar = selector.redundancy_weight > 0 or selector.side.max_similarity is not None
    return similar or clustered or _needs_query(selector)


def _needs_query(selector: Selector) -> bool:
    robust = selector.radius > 0 or selector.uncertainty is not None
    return robust or bool(selector.passage_radii) or isinstance(selector.relevance_model, RelevanceModel)


def _rows(documents: Documents, vectors: Callable[[], Vectors | None]) -> NDArray[np.float32]:
    """One row for each document: its own vector, or one that is made."""
    n, given = len(documents), documents.embeddings
    missing = range(n) if given is None else [k for k, row in enumerate(given) if row is None]
    if given is not None and not missing:
        return matrix("the documents", given)
    embedder = vectors()
    if embedder is None:
        raise InputError(
            f"{len(missing)} of {n} documents have no embedding: give embedder=, or set "
            "redundancy_weight=0 and give documents with scores"
        )
    texts = documents.texts if documents.embed_texts is None else documents.embed_texts
    if given is None or len(missing) == n:
        return embedder.passages(texts)
    rows = list(given)
    for k, row in zip(missing, embedder.passages([texts[k] for k in missing]), strict=True):
        rows[k] = row
    return matrix("the embedder and the documents", rows)


def _ids(documents: Documents) -> Sequence[str]:
    given = documents.ids
    if given is None:
        return [str(k) for k in range(len(documents))]
    plain_ids = given if all(given) else [name or str(k) for k, name in enumerate(given)]
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
    result, source = selection.result, selection.relevance_source
    return {
        "status": result.status.value,
        "objective": result.objective,
        "bound": result.bound,
        "gap": result.gap,
        "solver": result.solver,
        "text": result.certificate(),
        "notes": list(selection.notes),
        "relevance_source": None if source is None else f"{source.kind}: {source.why}",
    }


class SelectionFields(BaseModel):
    """Budget, settings, embedder and counter of an adapter to a pydantic framework (LangChain, LlamaIndex).

    budget: largest size of what is chosen, in tokens, >= 1.
    where: only documents whose metadata meet it, as {"tenant": "a"}; see `mio_rag.filters`.
    selector: settings to start from.
    embedder: embeds what comes without a vector: the framework's own kind, one of mio-rag, or the name of one
        ("minilm", or a sentence-transformers id or folder).
    counter: the reader's tokenizer, or a function from a text to its tokens. By default an approximation.
    on_selection: called with every `Selection`, whose `explain()` says why each document is in or out.
    **rest: `preset`, any parameter of `Selector`, and fields of the framework's base class.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    budget: int = DEFAULTS.budget
    where: Any = None
    selector: InstanceOf[Selector] = DEFAULT
    embedder: Any = None
    counter: Any = None
    on_selection: Callable[[Selection], None] | None = Field(default=None, exclude=True)

    _remembered: Vectors | None = PrivateAttr(default=None)

    def __init__(
        self,
        *,
        budget: int = DEFAULTS.budget,
        where: Any = None,
        selector: Selector | Mapping[str, Any] | None = None,
        embedder: Any = None,
        counter: Any = None,
        **rest: Any,
    ) -> None:
        budget = check_budget(rest.pop("budget_tokens", budget))  # its name in earlier releases
        Filter(where)
        if isinstance(selector, Mapping):
            selector = from_plain(selector)
        names = ("preset", *Selector.model_fields)
        check_names("setting", rest, [*type(self).model_fields, *names])
        settings = {name: rest.pop(name) for name in names if name in rest}
        for what, value in (("embedder", embedder), ("counter", counter)):
            if isinstance(value, Mapping):
                kind = value.get("not_saved", value)
                raise InputError(f"the {what} was an object ({kind}), which is not saved: give it again")
        if counter is not None:
            as_counter(counter)
        super().__init__(
            budget=budget,
            where=where,
            selector=make_selector(selector, settings),
            embedder=embedder,
            counter=counter,
            **rest,
        )

    @field_serializer("selector")
    def _write_selector(self, selector: Selector) -> dict[str, Any]:
        return to_plain(selector)

    @field_serializer("embedder", "counter")
    def _write_named(self, value: Any) -> Any:
        """A name as it is; for an object, a note that it has to be given again."""
        return value if value is None or isinstance(value, str) else {"not_saved": type(value).__qualname__}

    def _vectors_of(self, embedder: Any) -> Vectors:
        """Those of the framework's own kind of embedder; adapters refine it."""
        return Vectors.of(embedder)

    def _default_embedder(self) -> Any:
        """The framework's own, where it has one."""
        return None

    def _vectors(self) -> Vectors | None:
        embedder = self._default_embedder() if self.embedder is None else self.embedder
        if embedder is None:
            return None
        if self._remembered is None or self._remembered.owner is not embedder:
            self._remembered = self._vectors_of(embedder)
        return self._remembered

    def _choose(self, query: str, documents: Documents, query_embedding: ArrayLike | None = None) -> Choice:
        choice = choose(
            query,
            documents,
            budget=self.budget,
            selector=self.selector,
            vectors=self._vectors,
            counter=self.counter,
            query_embedding=query_embedding,
            where=self.where,
        )
        if self.on_selection is not None and choice.selection is not None:
            self.on_selection(choice.selection)
        return choice
