"""The core of the adapters: documents of a framework -> `mio_rag.select` -> chosen documents, with notes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mio_rag.adapters.given import Counter, as_counter, check_budget
from mio_rag.adapters.plain import select
from mio_rag.adapters.vectors import Vectors, matrix
from mio_rag.errors import InfeasibleError, InputError
from mio_rag.relevance.model import RelevanceModel
from mio_rag.selection.result import Decision, Selection
from mio_rag.selection.selector import Selector

__all__ = ["NOTES", "Choice", "Documents", "Read", "choose"]

_LOG = logging.getLogger("mio_rag.adapters")

#: Where the notes stand in the metadata of what is chosen.
NOTES = "mio_rag"


@dataclass(frozen=True, eq=False, slots=True)
class Documents:
    """What an adapter hands over, a column for each part: one entry for each document, or no column at all.

    Parameters
    ----------
    texts : sequence of str
        What the reader will see; its tokens are counted.
    ids : sequence of str, optional
        Blank where a document has none.
    sources : sequence of str, optional
        What `max_per_source` goes by; blank: a source of its own.
    scores : sequence of float or None, optional
        Relevance; None where unknown.
    embeddings : sequence of (sequence of float or None), optional
    embed_texts : sequence of str, optional
        What is embedded, where that is not `texts`.
    starts : sequence of int or None, optional
        Where each text begins in the document that its source names; None where unknown.
    """

    texts: Sequence[str]
    ids: Sequence[str] | None = None
    sources: Sequence[str] | None = None
    scores: Sequence[float | None] | None = None
    embeddings: Sequence[Any] | None = None
    embed_texts: Sequence[str] | None = None
    starts: Sequence[int | None] | None = None

    def __post_init__(self) -> None:
        n = len(self.texts)
        for name in ("ids", "sources", "scores", "embeddings", "embed_texts", "starts"):
            column = getattr(self, name)
            if column is not None and len(column) != n:
                raise InputError(f"{name} has {len(column)} entries, expected {n}: one per document")

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True, eq=False)
class Read:
    """One text that is read.

    Parameters
    ----------
    indices : tuple of int
        Of the documents in it, by where they begin.
    text : str
        Where there are several, what they make together; of sentences, these; otherwise the document's own.
    notes : dict
        As in `Choice`; for several, or sentences: ``rank``, ``certificate``, and the ``parts`` with their
        notes, ids and places in the text.
    is_whole : bool
        Whether it is one document as it was.
    """

    indices: tuple[int, ...]
    text: str
    notes: dict[str, Any]
    is_whole: bool


@dataclass(frozen=True, eq=False)
class Choice:
    """What was chosen among documents, in prompt order.

    Parameters
    ----------
    indices : tuple of int
        Into the documents; of sentences, one of theirs for each.
    notes : tuple of dict
        For each of them, plain data: ``rank`` (from 1), ``reason``, ``value``, ``relevance``, ``tokens`` and
        the ``certificate``, whose own notes tell what constraints were broken at their price.
    read : tuple of Read
        What is to be read, in prompt order: documents of one source that overlap or touch as one text.
    """

    selection: Selection | None
    indices: tuple[int, ...] = ()
    notes: tuple[dict[str, Any], ...] = ()
    read: tuple[Read, ...] = ()

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
    documents: Documents,
    *,
    budget_tokens: int,
    selector: Selector,
    vectors: Callable[[], Vectors | None] = lambda: None,
    counter: Counter | None = None,
    query_embedding: ArrayLike | None = None,
) -> Choice:
    """Choose among documents.

    Relevance is the score if all documents have one, and the cosine with the question if none has. `vectors`
    is called only if the settings need embeddings. Repeated ids get the suffixes "#2", "#3" and so on; a
    document without id gets its position, from 0.
    With ``prompt_order="document"`` the order of the documents is kept.

    Returns
    -------
    Choice
        Empty where there are no documents.

    Raises
    ------
    InputError
        If scores or vectors are missing where they are needed, or the selector refuses what it is given.
    InfeasibleError
        If no selection satisfies the constraints, or the solver found none: an empty context would make a
        reader invent its answer.
    """
    check_budget(budget_tokens)
    n = len(documents)
    if not n:
        return Choice(None)
    scores, sources = documents.scores, documents.sources
    missing = n if scores is None else _missing_scores(scores)
    if 0 < missing < n:
        raise InputError(f"{missing} of {n} documents have no score: score all of them, or none")
    cosine = missing == n
    vectors_of = _rows(documents, vectors) if cosine or _needs_passages(selector) else None
    if (cosine or _needs_query(selector)) and query_embedding is None:
        embedder = vectors()
        if embedder is None:
            raise InputError("the question has no embedding: give embedder=, or documents with scores")
        query_embedding = embedder.query(query)
    ids = _ids(documents)
    if sources is not None:
        if not any(sources):
            if selector.max_per_source is not None or selector.side.max_source_share is not None:
                raise InputError(
                    "no document has a source, which max_per_source and max_source_share need: name the "
                    "metadata field that holds it (source_key), or leave them out"
                )
            sources = None
        elif not all(sources):
            sources = [source or f"no source: {i}" for i, source in zip(ids, sources, strict=True)]
    selection = select(
        query,
        documents.texts,
        budget_tokens=budget_tokens,
        embeddings=vectors_of,
        query_embedding=query_embedding,
        scores=None if cosine else scores,  # type: ignore[arg-type]  # none is missing
        ids=ids,
        sources=sources,
        spans=_spans(documents, sources),
        counter=None if counter is None else as_counter(counter),
        selector=selector,
    )
    if selection.result.x is None:
        raise InfeasibleError(selection.explain())
    if not selection.chosen:  # no document is there to carry the notes
        _LOG.warning("%s", "; ".join(selection.notes) or selection.explain())
    proof = _certificate(selection)
    notes = tuple(
        {**_notes(selection.decisions[i], rank), "certificate": {**proof, "notes": list(proof["notes"])}}
        for rank, i in enumerate(selection.chosen, start=1)
    )
    place = {name: k for k, name in enumerate(ids)}
    rows = tuple(place[selection.candidates.passage_ids[i]] for i in selection.chosen)
    return Choice(selection, rows, notes, tuple(_read(selection, rows, notes)))


def _spans(documents: Documents, sources: Sequence[str] | None) -> list[tuple[int, int]] | None:
    """Places of the documents, where their source has a name and they know where they begin."""
    starts = documents.starts
    if starts is None or sources is None or set(starts) == {None}:
        return None
    named = documents.sources or ()
    return [
        (-1, -1) if start is None or start < 0 or not name else (start, start + len(text))
        for start, name, text in zip(starts, named, documents.texts, strict=True)
    ]


def _read(selection: Selection, rows: Sequence[int], notes: Sequence[dict[str, Any]]) -> Iterator[Read]:
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
                    **{
                        name: value for name, value in notes[k].items() if name not in ("rank", "certificate")
                    },
                    "id": part.id,
                    "start": part.start,
                    "end": part.end,
                }
                for k, part in zip(places, block.parts, strict=True)
            ]
            said = {"rank": rank, "parts": parts, "certificate": said["certificate"]}
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


def _notes(decision: Decision, rank: int) -> dict[str, Any]:
    return {
        "rank": rank,
        "reason": decision.reason,
        "relevance": decision.relevance,
        "value": decision.value,
        "tokens": decision.tokens,
    }
