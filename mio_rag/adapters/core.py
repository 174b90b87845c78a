"""What the adapters share: documents of a framework -> selection -> chosen documents, with notes."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from itertools import chain, count, pairwise
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict, Field, InstanceOf, PrivateAttr, field_serializer

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
from mio_rag.context import (
    Block,
    Part,
    RegexCounter,
    TokenCounter,
    counted,
    merged,
    passage_tokens,
    render_context,
)
from mio_rag.defaults import DEFAULTS
from mio_rag.errors import InfeasibleError, InputError
from mio_rag.filters import Filter
from mio_rag.formulations.numbers import plural
from mio_rag.pool import Candidates
from mio_rag.relevance.documents import is_document_pool
from mio_rag.relevance.model import RelevanceModel
from mio_rag.retrieval.notes import noted
from mio_rag.selection.result import Note, Selection
from mio_rag.selection.selector import Selector
from mio_rag.stores.cut import Part as Place
from mio_rag.stores.cut import are_pieces, lay_out, part_of, rooted
from mio_rag.types import Passage, check_date

if TYPE_CHECKING:
    from mio_rag.retrieval.embedders import Embedder

_LOG = logging.getLogger("mio_rag.adapters")

#: Where the notes stand in the metadata of what is chosen.
NOTES = "mio_rag"
#: Different scores in ascending order that cannot be similarities by chance.
_CLEARLY = 5
_NOTED = ("reason", "relevance", "value", "tokens")

#: Vectors that a `Vectors` remembers at most; the oldest are forgotten first.
REMEMBERED = 20_000

Rows = NDArray[np.float32]


def place(value: Any) -> int | None:
    """Return where a text begins, as it stands in metadata; None for what is no place."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    return int(value) if whole and value >= 0 else None


def label(value: Any) -> str:
    """Return metadata as a text; blank for None."""
    return "" if value is None else str(value)


class Vectors:
    """Embeds passages and questions; passage vectors are cached in memory by text.

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
        self._rows: OrderedDict[str, Rows] = OrderedDict()
        self._lock = Lock()  # frameworks call from many threads

    @classmethod
    def of(cls, embedder: Embedder | str) -> Vectors:
        """Wrap an embedder of mio-rag, or its name: the model is loaded when it is first needed.

        Raises `InputError` for "tfidf", which has to be fitted on a corpus.
        """
        if embedder == "tfidf":
            raise InputError(
                "embedder 'tfidf' must be fitted on a corpus: fit a TfidfEmbedder and give that, or 'minilm'"
            )
        loaded: list[Embedder] = [] if isinstance(embedder, str) else [embedder]

        def encode(texts: list[str]) -> Rows:
            from mio_rag.retrieval.embedders import make_embedder

            if not loaded:
                loaded.append(make_embedder(str(embedder)))
            return loaded[0].encode(texts)

        return cls(encode, lambda text: encode([text])[0], embedder)

    def __getstate__(self) -> dict[str, Any]:
        """Everything but what is remembered."""
        return {"_passages": self._passages, "_query": self._query, "owner": self.owner}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Vectors.__init__(self, state["_passages"], state["_query"], state["owner"])

    def __deepcopy__(self, memo: dict[int, Any]) -> Vectors:
        return self  # DSPy's optimizers copy whole programs; a model and what it made are not settings

    def passages(self, texts: Sequence[str]) -> Rows:
        """Return the vector of each text, a row each."""
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
            rows |= dict(zip(new, made, strict=True))
            with self._lock:
                # An embedder may fail once only.
                self._rows |= {text: rows[text].copy() for text in new if np.isfinite(rows[text]).all()}
                while len(self._rows) > REMEMBERED:
                    self._rows.popitem(last=False)
        return np.array([rows[text] for text in texts], dtype=np.float32)

    @property
    def name(self) -> str:
        """The name of the embedder, where it has one."""
        return str(getattr(self.owner, "name", self.owner))

    @property
    def fingerprint(self) -> str:
        """What identifies the embedder, where it is one of mio-rag."""
        return str(getattr(self.owner, "fingerprint", ""))

    def encode(self, texts: Sequence[str], progress: Any = None) -> Rows:
        """`passages`, as an embedder."""
        return self.passages(list(texts))

    def query(self, text: str) -> Rows:
        """Return the vector of a question."""
        made = self._query(text)
        try:
            return np.asarray(made, dtype=np.float32)
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(f"the embedder returned no vector for the question ({error})") from error


def matrix(whose: str, rows: ArrayLike | Sequence[Any]) -> Rows:
    """Return rows of one length as an array; `InputError` if they are not."""
    try:
        found = np.asarray(rows, dtype=np.float32)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{whose}: vectors are not rows of numbers of one length ({error})") from error
    if found.ndim != 2:
        raise InputError(f"{whose}: vectors have shape {found.shape}, expected one row for each text")
    return found


# Documents in, choice out -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, slots=True)
class Documents:
    """What an adapter hands over, a column for each part: one entry for each document, or no column at all.

    texts: what the reader will see; its tokens are counted.
    heads: what the reader sees above each text; counted, and above texts that are read as one written once.
    ids: blank where a document has none.
    sources: what `max_per_source` goes by; blank: a source of its own.
    scores: relevance; None where unknown.
    embed_texts: what is embedded, where that is not `texts`.
    starts: where each text begins in its source, or in its part of it (see
        `mio_rag.stores.cut.part_of`); None where unknown.
    metadata: names the page, section or sheet of a text; handed back with every part.
    places: of each in what the framework handed over, where some were left out.
    """

    texts: Sequence[str]
    ids: Sequence[str] | None = None
    sources: Sequence[str] | None = None
    scores: Sequence[float | None] | None = None
    embeddings: Sequence[Any] | None = None
    embed_texts: Sequence[str] | None = None
    starts: Sequence[int | None] | None = None
    metadata: Sequence[Mapping[str, Any]] | None = None
    heads: Sequence[str] | None = None
    places: Sequence[int] = ()

    def __post_init__(self) -> None:
        n = len(self.texts)
        if not self.places:
            object.__setattr__(self, "places", range(n))
        for name, column in self.columns().items():
            if column is not None and len(column) != n:
                raise InputError(f"{name} has {len(column)} entries, expected {n}: one per document")

    def columns(self) -> dict[str, Any]:
        """Return every column by its name."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def only(self, where: Any) -> Documents:
        """Return those that meet a filter; `InputError` for a key that no document has."""
        conditions, n = Filter(where), len(self.texts)
        if not conditions or not n:
            return self
        data, sources = self.metadata or [{}] * n, self.sources or [""] * n
        kept = conditions.rows(Passage(str(k), "x", source=sources[k], metadata=data[k]) for k in range(n))
        return self.at(kept.tolist())

    def at(self, rows: Sequence[int]) -> Documents:
        """Return some of them, in this order."""
        if len(rows) == len(self.texts):
            return self
        columns: dict[str, Any] = {
            name: None if column is None else [column[i] for i in rows]
            for name, column in self.columns().items()
        }
        return Documents(**columns)


@dataclass(frozen=True, eq=False)
class Read:
    """One text that is read.

    indices: of the documents in it, by where they begin.
    text: what several make together, or the sentences chosen of one; otherwise the document's own.
    notes: as in `Choice`. For several, or sentences: of all together (the sum of their values, the largest
        relevance, the tokens of the text), and the ``parts`` with their own, ids, places in the text, and the
        metadata of their documents.
    is_whole: it is one document as it was.
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
        and the ``certificate``, whose own notes name constraints that were broken at their price.
    read: what is to be read: documents of one source that overlap or touch as one text.
    """

    selection: Selection | None
    indices: tuple[int, ...] = ()
    notes: tuple[dict[str, Any], ...] = ()
    read: tuple[Read, ...] = ()

    def report(self) -> dict[str, Any]:
        """Return the certificate, the tokens, and why the rest was left out, as plain data."""
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
    """Choose among documents; of none, nothing.

    Relevance is the score if all documents have one. If none has, documents are ranked as those of an index:
    by vectors, words and names. `vectors` is called only if the settings need embeddings. Repeated ids get
    the suffixes "#2", "#3" and so on; a document without id gets its position, from 0. With
    ``prompt_order="document"`` the order of the documents is kept.

    where: only documents whose metadata meet it; see `mio_rag.filters`.

    Raises `InputError` if scores or vectors are missing where they are needed, or the selector refuses what
    it is given; `InfeasibleError` if no selection satisfies the constraints, or the solver found none: an
    empty context would make a reader invent its answer.
    """
    check_budget(budget)
    given = documents.only(where)
    documents = given.at([k for k, text in enumerate(given.texts) if text.strip()])
    n = len(documents.texts)
    if not n:
        return Choice(None)
    scores = _scores(documents.scores, n)
    if scores is None and documents.embeddings is None:  # nothing but texts
        vectors = partial(_or_packaged, vectors)
    needs_documents, needs_query = _needed(selector)
    rows = _rows(documents, vectors) if scores is None or needs_documents else None
    embedder: Vectors | None = None
    if (scores is None or needs_query) and query_embedding is None:
        if (embedder := vectors()) is None:
            raise InputError("the question has no embedding: give embedder=, or documents with scores")
        query_embedding = embedder.query(query)
    ids = _ids(documents)
    sources, columns, starts, problems = _laid_out(documents, ids, selector)
    if scores is not None and n > 2 and scores[0] < scores[-1] and all(a <= b for a, b in pairwise(scores)):
        turned = len(set(scores.tolist())) >= _CLEARLY
        taken = "were read as such: give" if turned else "the largest was taken for the most relevant: give"
        problems.insert(
            0,
            f"scores ascend along the ranks ({scores[0]:g} to {scores[-1]:g}), as distances do, and {taken} "
            "similarities for distances, or no scores",
        )
        scores = scores[0] + scores[-1] - scores if turned else scores
    if blank := len(given.texts) - n:
        problems.insert(0, f"left out for having no text: {plural(blank, 'document')}")
    data = documents.metadata or [{}] * n
    passages = [
        Passage(
            ids[k],
            documents.texts[k],
            title="" if documents.heads is None else documents.heads[k],
            source=sources[k],
            start=starts[k],
            end=None if (start := starts[k]) is None else start + len(documents.texts[k]),
            date=date if isinstance(date := data[k].get("date"), str) and not check_date(date) else "",
            metadata=data[k],
            vector=None if rows is None else rows[k],
        )
        for k in range(n)
    ]
    tokens = RegexCounter() if counter is None else as_counter(counter)
    pool, index = pool_of(
        query,
        passages,
        tokens,
        query=query_embedding,
        embedder=embedder,  # type: ignore[arg-type]
        scores=scores,
        whole=reads_whole(selector),
    )
    row_of = {name: k for k, name in enumerate(ids)}
    rows_of = [row_of[one] for one in pool.ids]  # ranked anew where there are no scores
    if not is_document_pool(pool):  # whose units have places of their own
        placed: dict[str, Any] = {
            name: given and [given[k] for k in rows_of] for name, given in columns.items()
        }
        pool = replace(pool, **placed)
    selection, blocks = _by_part(selector, pool, budget, tokens, {ids[k]: part_of(data[k]) for k in range(n)})
    selection = noted(selection, index, given=True)
    if problems:
        _LOG.warning("%s", "; ".join(problems))
        selection = selection.with_notes(*(Note("places", one) for one in problems))
    if selection.result.x is None:
        raise InfeasibleError(selection.explain())
    if not selection.chosen:  # no document is there to carry the notes
        _LOG.warning("%s", "; ".join(selection.notes) or selection.explain())
    notes = tuple(
        {
            "rank": rank,
            **{name: getattr(selection.decisions[i], name) for name in _NOTED},
            "certificate": _certificate(selection),
        }
        for rank, i in enumerate(selection.chosen, start=1)
    )
    chosen = [row_of[selection.candidates.passage_ids[i]] for i in selection.chosen]
    indices = tuple(documents.places[k] for k in chosen)
    kept = None if documents.metadata is None else [dict(data[k]) for k in chosen]
    return Choice(selection, indices, notes, tuple(_read(selection, blocks, indices, notes, kept, tokens)))


def takes_scores(
    given: bool | None, texts: Sequence[str], selector: Selector, vectors: Callable[[], Vectors | None]
) -> bool:
    """Whether scores of a retriever are what relevance goes by.

    given: what the user says. Otherwise not for pieces of documents where an embedder is there: a score is of
        a whole piece, and says nothing of its rows and sentences.
    """
    if given is not None:
        return given
    if reads_whole(selector) or selector.relevance_model != "auto" or not are_pieces(texts):
        return True
    try:
        return vectors() is None
    except InputError:  # the framework's default embedder lacks a key
        return True


def reads_whole(selector: Selector) -> bool:
    """Whether settings are about whole passages."""
    return bool(selector.about_passages() or selector.must_include) or selector.units == "passages"


def _scores(scores: Sequence[Any] | None, n: int) -> NDArray[np.float64] | None:
    """Return the scores; None where no document has one. `InputError` where only some have."""
    if scores is None:
        return None
    for k, one in enumerate(scores):
        if one is not None and (isinstance(one, bool) or not isinstance(one, (int, float, np.number))):
            raise InputError(f"document {k}: its score is {one!r}, expected a number")
    missing = sum(one is None for one in scores)
    if 0 < missing < n:
        raise InputError(f"{missing} of {n} documents have no score: score all of them, or none")
    return None if missing else checked_scores(scores, n)


def _needed(selector: Selector) -> tuple[bool, bool]:
    """Return whether the settings need vectors of the documents, and of the question."""
    side, robust = selector.side, selector.radius > 0 or selector.uncertainty is not None
    query = robust or bool(selector.passage_radii) or isinstance(selector.relevance_model, RelevanceModel)
    similar = selector.redundancy_weight > 0 or side.max_similarity is not None
    return query or similar or side.cover not in (None, "labels"), query


def _laid_out(
    documents: Documents, ids: Sequence[str], selector: Selector
) -> tuple[Sequence[str], dict[str, Any], list[int | None], list[str]]:
    """Return sources, the columns with the places of texts in them, where texts are said to begin, and notes
    about wrong places."""
    n, given = len(ids), documents.sources
    sources = [""] * n if given is None else rooted(given, ids)
    if given is None or not any(sources):
        capped = selector.max_per_source is not None or selector.side.max_source_share is not None
        if given is not None and capped:
            raise InputError(
                "no document has a source, which max_per_source and max_source_share need: name the metadata "
                "field that holds it (source_key), or leave them out"
            )
        return sources, {"spans": None, "documents": None}, [None] * n, []
    starts = documents.starts or [None] * n
    starts = [start if sources[k] == given[k] else None for k, start in enumerate(starts)]
    laid = lay_out(documents.texts, sources, starts, documents.metadata)
    names = [source or f"no source: {i}" for i, source in zip(ids, sources, strict=True)]
    return names, {"spans": laid.spans, "documents": laid.spaces}, starts, laid.notes


def _by_part(
    selector: Selector, pool: Candidates, budget: int, counter: TokenCounter, parts: Mapping[str, Place]
) -> tuple[Selection, Sequence[Block]]:
    """What is selected, and its blocks: one for each page, section or sheet that metadata name.

    The program reads a document as one text. Where a line is needed on two pages, it is solved again, with
    what that takes less.
    """
    allowed = budget
    while True:
        selection = selector.select(pool, allowed, counter)
        names, of = selection.candidates.ids, selection.candidates.passage_ids
        places = {names[i]: i for i in selection.chosen}
        blocks: list[Block] = []
        for block in selection.blocks:
            runs: dict[Place, list[Part]] = {}
            for one in block.parts:
                runs.setdefault(parts[of[places[one.id]]], []).append(one)
            ranges = sorted((min(p.start for p in run), max(p.end for p in run)) for run in runs.values())
            if len(runs) == 1 or any(a[1] > b[0] for a, b in pairwise(ranges)):  # as parents with children
                blocks.append(block)
                continue
            rows = ([places[one.id] for one in run] for run in runs.values())
            blocks += [merged(selection.candidates, chosen)[0] for chosen in rows]
        over = int(counted(counter, [render_context(one.passage for one in blocks)])[0]) - budget
        if over <= 0 or len(blocks) == len(selection.blocks):
            return selection, blocks
        if (allowed := min(allowed, selection.tokens_used) - over) < 1:  # the budget holds, pages or not
            return selection, selection.blocks


def _read(
    selection: Selection,
    blocks: Sequence[Block],
    indices: Sequence[int],
    notes: Sequence[dict[str, Any]],
    metadata: Sequence[dict[str, Any]] | None,
    counter: TokenCounter,
) -> Iterator[Read]:
    """Yield what is to be read; indices, notes and metadata are of what was chosen."""
    of_sentences = selection.candidates.cut_from is not None
    at = {selection.candidates.ids[i]: k for k, i in enumerate(selection.chosen)}
    for rank, block in enumerate(blocks, start=1):
        chosen = [at[part.id] for part in block.parts]
        note = {**notes[chosen[0]], "rank": rank}
        is_whole = len(chosen) == 1 and not of_sentences
        if not is_whole:
            parts = [
                {
                    **{name: notes[k][name] for name in _NOTED},
                    "id": part.id,
                    "start": part.start,
                    "end": part.end,
                    **({} if metadata is None else {"metadata": metadata[k]}),
                }
                for k, part in zip(chosen, block.parts, strict=True)
            ]
            reasons = "; ".join(dict.fromkeys(part["reason"] for part in parts))
            note = {
                **note,
                "reason": reasons,
                "value": sum(part["value"] for part in parts),
                "relevance": max(part["relevance"] for part in parts),
                "tokens": int(passage_tokens([block.passage], counter)[0]),
                "parts": parts,
            }
        yield Read(tuple(dict.fromkeys(indices[k] for k in chosen)), block.passage.text, note, is_whole)


@lru_cache(maxsize=1)
def _packaged() -> Vectors:
    return Vectors.of("minilm")


def _or_packaged(vectors: Callable[[], Vectors | None]) -> Vectors:
    return vectors() or _packaged()


def _rows(documents: Documents, vectors: Callable[[], Vectors | None]) -> Rows:
    """Return one row for each document: its own vector, or one that is made."""
    texts = documents.embed_texts or documents.texts
    rows = list(documents.embeddings if documents.embeddings is not None else [None] * len(texts))
    missing = [k for k, row in enumerate(rows) if row is None]
    embedder = vectors() if missing else None
    if missing and embedder is None:
        raise InputError(
            f"{len(missing)} of {len(rows)} documents have no embedding: give embedder=, or set "
            "redundancy_weight=0 and give documents with scores"
        )
    if embedder is not None:
        for k, row in zip(missing, embedder.passages([texts[k] for k in missing]), strict=True):
            rows[k] = row
    return matrix("the documents" if not missing else "the embedder and the documents", rows)


def _ids(documents: Documents) -> list[str]:
    taken: dict[str, None] = {}
    for k, given in enumerate(documents.ids or [""] * len(documents.texts)):
        name = given or str(k)
        free = chain([name], (f"{name}#{number}" for number in count(2)))
        taken[next(one for one in free if one not in taken)] = None
    return list(taken)


def _certificate(selection: Selection) -> dict[str, Any]:
    result, source = selection.result, selection.relevance_source
    return {
        "status": result.status.value,
        **{name: getattr(result, name) for name in ("objective", "bound", "gap", "solver")},
        "text": result.certificate(),
        "notes": list(selection.notes),
        "relevance_source": None if source is None else f"{source.kind}: {source.why}",
    }


# Settings of an adapter -------------------------------------------------------------------------------------


def checked_settings(
    budget: Any, where: Any, selector: Any, counter: Any, settings: dict[str, Any]
) -> tuple[int, Selector]:
    """Return the budget and the selector of an adapter's arguments; `InputError` for what is out of range.

    settings: parameters of `Selector`, and ``budget_tokens``, the budget's name in earlier releases.
    """
    budget = check_budget(settings.pop("budget_tokens", budget))
    Filter(where)
    if counter is not None:
        as_counter(counter)
    base = from_plain(selector) if isinstance(selector, Mapping) else selector
    return budget, make_selector(base, settings)


class SelectionFields(BaseModel):
    """Budget, settings, embedder and counter of an adapter to a pydantic framework (LangChain, LlamaIndex).

    budget: largest size of what is chosen, in tokens, >= 1.
    where: only documents whose metadata meet it, as {"tenant": "a"}; see `mio_rag.filters`.
    selector: settings to start from.
    embedder: embeds what comes without a vector: the framework's own kind, one of mio-rag, or the name of one
        ("minilm", which is taken where nothing but texts comes, or a sentence-transformers id or folder).
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
        for what, value in (("embedder", embedder), ("counter", counter)):
            if isinstance(value, Mapping):
                kind = value.get("not_saved", value)
                raise InputError(f"the {what} was an object ({kind}), which is not saved: give it again")
        names = ("budget_tokens", "preset", *Selector.model_fields)
        settings = {name: rest.pop(name) for name in names if name in rest}
        check_names("setting", rest, [*type(self).model_fields, *names[1:]])
        budget, selector = checked_settings(budget, where, selector, counter, settings)
        super().__init__(
            budget=budget, where=where, selector=selector, embedder=embedder, counter=counter, **rest
        )

    @field_serializer("selector")
    def _write_selector(self, selector: Selector) -> dict[str, Any]:
        return to_plain(selector)

    @field_serializer("embedder", "counter")
    def _write_named(self, value: Any) -> Any:
        """Write a name as it is; for an object, a note that it has to be given again."""
        return value if value is None or isinstance(value, str) else {"not_saved": type(value).__qualname__}

    def _vectors_of(self, embedder: Any) -> Vectors:
        """Wrap an embedder; adapters add the framework's own kind."""
        return Vectors.of(embedder)

    def _default_embedder(self) -> Any:
        """Return the framework's own embedder, where it has one."""
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
