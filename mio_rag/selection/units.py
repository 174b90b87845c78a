"""Units smaller than a passage: the sentences of a pool, as candidates of the same program.

A sentence needs the title of its document, and where it starts with a pronoun, the sentence before it: a unit
then holds both. What several units need is a segment, which is paid once (`mio_rag.selection.program`), and
chosen units of a document are read as one text. A unit is worth the probability of its passage times the
probability that it is needed if the passage is (`mio_rag.relevance.sentences`); of the price of a passage
it is charged its share of the passage's text. The benefit of two related passages is one of the best
sentences of both.

Sentences that two overlapping passages share are one unit; so are those of different documents that say the
same word for word under the same title: the newest, where they are dated, otherwise the most probable. Of
near-duplicate passages one is cut, by the same rule. The most probable sentences are the pool.

Candidates without known sentences are cut here. These sentences have no vectors: they are weighed by their
words alone, and are as similar as the words that they share make them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import lru_cache
from operator import is_
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mio_rag.context import (
    RegexCounter,
    TokenCounter,
    by_itself,
    counted,
    documents,
    number_documents,
    text_tokens,
)
from mio_rag.documents.dates import in_force, is_ordered
from mio_rag.errors import InputError
from mio_rag.pool import Candidates
from mio_rag.relevance.documents import DocumentModel, is_document_pool
from mio_rag.relevance.model import RelevanceModel
from mio_rag.relevance.sentences import SentenceModel, sentence_model
from mio_rag.sentences import Pieces, Sentences, compares, cut, named_years, pieces_of

if TYPE_CHECKING:
    from mio_rag.selection.selector import Selector

#: Sentences that are candidates; those of `must_include` come on top.
MOST_UNITS = 120
#: Tokens of a passage by which the value of units of documents is measured.
PASSAGE = 128.0

_ROOM, _LIKELY = 3, 5  # "auto" cuts where fewer passages fit, by the mean of so many
_WORD = re.compile(r"\w+")
_FAR = 2**31  # characters between passages of a document whose distance nobody knows

FloatArray = NDArray[np.float64]


class Cut(NamedTuple):
    """A pool of sentences.

    candidates: the sentences, most probable first; ``cut_from`` says of which passages.
    shares: shape (m,); of the text of its passage, how much each is.
    sizes: shape (m,); what the relevance of each is multiplied by: 1 for probabilities that a sentence is
        needed. In a pool of documents its tokens divided by `PASSAGE`, since short pieces would otherwise be
        bought for being short, and by the largest relevance: prices are shares of the best, as nobody knows
        how hard a question is.
    related: shape (m, m); benefit of choosing two: that of their passages, for the best sentence of each.
        None: no two belong together.
    fixed: shape (m,); 1 for sentences of passages that must be read, -1 for all others.
    not_cut: passages that are not cut -> the near-duplicate that is.
    """

    candidates: Candidates
    shares: FloatArray
    sizes: FloatArray
    related: FloatArray | None
    fixed: NDArray[np.int8]
    not_cut: dict[int, int]


def may_cut(settings: Selector, candidates: Candidates, counter: TokenCounter | None) -> bool:
    """Whether sentences of passages can be chosen with these settings.

    Not where nobody counts tokens or knows the question, where a setting, or a radius of the candidates, is
    about whole passages, nor where they are sentences already.
    """
    return (
        counter is not None
        and bool(candidates.question.strip())
        and candidates.cut_from is None
        and not _unsure(candidates)
        and not settings.about_passages()
    )


def units_for(
    settings: Selector,
    candidates: Candidates,
    model: RelevanceModel | None,
    budget_tokens: int,
    counter: TokenCounter | None,
) -> Literal["passages", "sentences"]:
    """Return what is chosen from a pool; `Selector.select` reads passages all the same if all that are above
    their price fit.

    "auto" is sentences where fewer than three passages fit the budget, by the mean of the five that are most
    likely to be needed: there they hold more answers on every set. Passages stay where sentences cannot be
    chosen, relevance is no probability, a passage must be read (all of it), or programs are enumerated.

    candidates: passages with the relevance that these settings give them. model: what gave them that.
    """
    if settings.units != "auto":
        return settings.units
    if is_document_pool(candidates) and settings.relevance_model != "given" and model is None:
        free = not settings.must_include and may_cut(settings, candidates, counter)
        return "sentences" if free else "passages"
    # Passages are compared by their vectors, and a larger budget may choose passages.
    lacking = candidates.embeddings is None and candidates.similarity is None
    if model is None or settings.solver == "exhaustive" or (settings.redundancy_weight > 0 and lacking):
        return "passages"
    ids = set(candidates.ids)
    if ids & set(settings.must_include) or ids <= set(settings.must_exclude):
        return "passages"
    likely = np.argsort(-candidates.relevance, kind="stable")[:_LIKELY]
    tight = _ROOM * float(candidates.tokens[likely].mean()) > budget_tokens
    return "sentences" if tight and may_cut(settings, candidates, counter) else "passages"


def _unsure(candidates: Candidates) -> bool:
    """Whether candidates say themselves that their embeddings may be off."""
    return candidates.radius is not None and bool(np.any(np.asarray(candidates.radius) > 0))


def cut_into_sentences(
    candidates: Candidates,
    counter: TokenCounter | None,
    fixed: NDArray[np.int8],
    related: FloatArray | None,
    one_of_copies: bool,
    compared: bool = False,
    weights: SentenceModel | None = None,
    formula: DocumentModel | None = None,
    worth: FloatArray | None = None,
) -> Cut:
    """Return the sentences of a pool as candidates.

    candidates: passages with probabilities as relevance.
    fixed: shape (n,); passages that must (1) or must not (0) be read; -1: free.
    related: shape (n, n); benefit of choosing two passages.
    one_of_copies: whether only one of near-duplicates may be read.
    compared: whether redundancy needs the similarity of sentences.
    weights: which sentences are needed, instead of the weights that ship.
    formula: of a pool of documents, instead of both.
    worth: relevance of all sentences by this formula, where it is known.

    Raises `InputError` without counter, or without a question where nobody embedded the sentences; for
    candidates with a radius; if every passage is excluded, or if the candidates are sentences already.
    """
    if candidates.cut_from is not None:
        raise InputError("the candidates are sentences already: give passages, or units='passages'")
    if counter is None:
        raise InputError(
            "units='sentences' needs the reader's tokenizer, since titles and sentences are paid once: pass "
            "counter (mio_rag.context.RegexCounter approximates one), or choose passages"
        )
    sentences = candidates.sentences
    if _unsure(candidates):
        raise InputError(
            "units='sentences' excludes a radius of the candidates: that is about whole passages, leave one "
            "of them out"
        )
    if (sentences is None or sentences.embeddings is None) and not candidates.question.strip():
        raise InputError(
            "units='sentences' needs the question, whose words tell sentences apart that nobody embedded: "
            "give question to the candidates, or choose passages"
        )
    if sentences is None:
        sentences = cut(candidates.texts)
        candidates = replace(candidates, sentences=sentences)
    if formula is None:
        worth = sentence_model(weights, candidates).worth(candidates)
    elif worth is None:
        worth = formula.unit_relevance(candidates)
    not_cut = _replaced(candidates, fixed) if one_of_copies else {}
    pieces = _pieces_of(candidates, sentences)
    open_ = fixed != 0
    open_[list(not_cut)] = False
    rows = np.flatnonzero(open_[sentences.owners])
    if candidates.spans is not None and rows.size:
        rows, worth = _placed_once(candidates, sentences, pieces, worth, fixed, rows)
    if one_of_copies:
        rows = _said_once(candidates, sentences, pieces, worth, fixed, rows)
    lengths = sentences.spans[:, 1] - sentences.spans[:, 0]
    rows = rows[np.argsort(-worth[rows] * (lengths[rows] if formula else 1), kind="stable")]
    required = fixed[sentences.owners] == 1
    rows = np.concatenate([rows[:MOST_UNITS], rows[MOST_UNITS:][required[rows[MOST_UNITS:]]]])
    if not rows.size:
        raise InputError("no sentence is left to choose from: must_exclude names every passage of the pool")
    owners, vectors = sentences.owners[rows], sentences.embeddings

    def taken(column: Sequence[Any] | None) -> Any:
        return None if column is None else list(map(column.__getitem__, passages))

    passages, at, ends = owners.tolist(), rows.tolist(), sentences.spans[rows, 1]
    places = rows - np.searchsorted(sentences.owners, owners)
    # Nothing else of the pool is looked at.
    read = [pieces[i].units[k] for i, k in zip(passages, places.tolist(), strict=True)]
    columns: Any = map(list, zip(*read, strict=True))
    texts, first, gaps, sections, lines, sizes, tokens = columns
    titles = taken(candidates.titles) or [""] * len(read)
    document, (names, begins) = documents(candidates), _places(candidates, set(passages))
    starts = begins[owners]

    held, needs = candidates.lines, sentences.needs
    if is_known := pieces is sentences.pieces:
        lines = None if held is None else lines
    else:
        sections = taken(candidates.sections)
        if sentences.sections is not None:
            sections = [tuple(sentences.sections[k]) for k in at]
        if held is None or needs is None:
            lines = None
        else:
            lines = [tuple([held[i][n] for n in needs[k]]) for i, k in zip(passages, at, strict=True)]
    if not is_known or type(counter) is not RegexCounter:
        tokens, sizes = text_tokens(texts, titles, counter), counted(counter, texts)
    made = Candidates.unchecked(
        ids=[f"{candidates.ids[i]}#s{k}" for i, k in zip(passages, (places + 1).tolist(), strict=True)],
        texts=texts,
        relevance=worth[rows],
        tokens=np.asarray(tokens, dtype=np.int64),
        embeddings=None if vectors is None else vectors[rows],
        query_embedding=None if vectors is None else candidates.query_embedding,
        titles=titles,
        sources=taken(candidates.sources),
        question=candidates.question,
        positions=None if candidates.positions is None else candidates.positions[owners],
        embedder=candidates.embedder,
        spans=np.stack([starts + first, starts + ends], axis=1),
        dates=taken(candidates.dates),
        cut_from=taken(candidates.ids),
        documents=[names[i] for i in passages],
        gaps=gaps,
        sections=sections,
        pages=taken(candidates.pages),
        metadata=taken(candidates.metadata),
        lines=lines,
        similarity=_similarity(texts) if compared and vectors is None else None,
    )
    if (document[owners] >= 0).all():  # parts of texts that agree agree, too
        number_documents(made, document[owners].tolist())
    amounts = np.asarray(sizes) / PASSAGE
    if formula:
        shares = amounts
    else:
        whole = np.array([len(text.strip()) for text in candidates.texts], dtype=np.float64)
        shares = np.minimum(1.0, lengths[rows] / whole[owners])
    return Cut(
        made,
        shares,
        amounts / max(made.relevance.max(), 1e-9) if formula else np.ones(rows.size),
        _between(owners, related),
        np.where(required[rows], 1, -1).astype(np.int8),
        not_cut,
    )


def _pieces_of(candidates: Candidates, sentences: Sentences) -> Sequence[Pieces]:
    """What is read of the units of each candidate."""
    known = sentences.pieces
    if known is not None and candidates.titles is not None:
        whose = [one.passage for one in known], [one.title for one in known]
        if all(map(is_, whose[0], candidates.texts)) and all(map(is_, whose[1], candidates.titles)):
            return known
    borders = np.searchsorted(sentences.owners, np.arange(len(candidates) + 1)).tolist()
    spans, leaning = np.ascontiguousarray(sentences.spans), sentences.needs is None
    return [
        pieces_of(text, spans[a:b].tobytes(), leaning)
        for text, a, b in zip(candidates.texts, borders[:-1], borders[1:], strict=True)
    ]


def _placed_once(
    candidates: Candidates,
    sentences: Sentences,
    pieces: Sequence[Pieces],
    worth: FloatArray,
    fixed: NDArray[np.int8],
    rows: NDArray[np.int64],
) -> tuple[NDArray[np.int64], FloatArray]:
    """Return rows without those that lie within one of another passage; that is worth the larger of the two.

    Required ones stay, so that their passage is read by its name.
    """
    assert candidates.spans is not None
    owners = sentences.owners[rows]
    at, required = candidates.spans[owners, 0], fixed[owners] == 1
    cores, ends = (at + sentences.spans[rows, k] for k in (0, 1))
    number: dict[str, int] = {}
    sources = candidates.sources or [""] * len(candidates)
    of_passage = np.full(len(candidates), -1)
    for i in dict.fromkeys(owners[at >= 0].tolist()):
        of_passage[i] = number.setdefault(sources[i], len(number))
    group = of_passage[owners]
    by = [~required, -ends, cores, group]
    if sentences.needs is None:  # the one that leans on what stands before it comes first
        starts = np.array([unit.start for one in pieces for unit in one.units])[rows]
        by.insert(0, starts + at - cores)
    order = np.lexsort(by)
    unplaced = int((group < 0).sum())
    order = np.concatenate([np.flatnonzero(group < 0), order[unplaced:]])
    placed = order[unplaced:]
    same = group[placed[1:]] == group[placed[:-1]]
    if not (same & (cores[placed[1:]] < ends[placed[:-1]])).any():
        return rows[order], worth
    worth, kept, inside = worth.copy(), order[:unplaced].tolist(), list[int]()

    def core(k: int) -> str:
        start, end = map(int, sentences.spans[rows[k]])
        return candidates.texts[int(owners[k])][start:end]

    for k in placed.tolist():
        if inside and group[inside[-1]] != group[k]:
            kept, inside = kept + inside, []
        holder = next((j for j in reversed(inside) if ends[k] <= ends[j]), None)
        if holder is not None and not required[k] and core(k) in core(holder):
            worth[rows[holder]] = max(worth[rows[holder]], worth[rows[k]])
        else:
            inside.append(k)
    return rows[kept + inside], worth


def _said_once(
    candidates: Candidates,
    sentences: Sentences,
    pieces: Sequence[Pieces],
    worth: FloatArray,
    fixed: NDArray[np.int8],
    rows: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return one of those that say the same word for word under the same title, however they are spaced.

    It is of the document whose year the question names, or the newest; of versions that are compared each has
    one. Required ones stay, and no other.
    """
    hashes = np.concatenate([one.hashes for one in pieces])[rows]
    order = hashes.argsort()
    alike = hashes[order[1:]] == hashes[order[:-1]]
    twice = np.unique(np.concatenate([order[1:][alike], order[:-1][alike]])).tolist()
    owners, at = sentences.owners[rows].tolist(), rows.tolist()
    first, titles = sentences.owners.searchsorted(np.arange(len(pieces))), candidates.titles
    places: dict[tuple[str, str], list[int]] = {}
    for k in twice:
        i = owners[k]
        key = _plain(titles[i]) if titles else "", pieces[i].keys[at[k] - int(first[i])]
        places.setdefault(key, []).append(k)
    question, names = candidates.question, candidates.names
    kept = np.ones(rows.size, dtype=bool)
    for same in places.values():
        if len(same) == 1:
            continue

        def rank(k: int) -> tuple[Any, ...]:
            i = owners[k]
            holds, *when = in_force(names[i], question)
            return fixed[i] == 1, holds, named_years(question, names[i]), when, worth[at[k]]

        stay = list[int]()
        for k in sorted(same, key=rank, reverse=True):
            if all(compares(question, names[owners[k]], names[owners[j]]) for j in stay):
                stay.append(k)
        kept[[k for k in same if k not in stay and fixed[owners[k]] != 1]] = False
    return rows[kept]


@lru_cache(maxsize=4096)
def _plain(title: str) -> str:
    return " ".join(title.casefold().split())


def _places(candidates: Candidates, passages: Collection[int]) -> tuple[dict[int, str], NDArray[np.int64]]:
    """Return document and place of passages; far from the others of its document where it is unknown.

    Then they stand there by rank, which is their place in the corpus among those of the pool.

    A blank name is its source. One that is read by itself, since its document contradicts itself, is a
    document of its own.
    """
    n, known, names = len(candidates), documents(candidates), dict.fromkeys(passages, "")
    places = np.full(n, -1) if candidates.spans is None else candidates.spans[:, 0].copy()
    if (known >= 0).all():
        return names, places
    order = np.arange(n) if candidates.positions is None else candidates.positions
    rank = np.unique(order, return_inverse=True)[1]
    for i in passages:
        if known[i] >= 0:
            continue
        if candidates.documents and candidates.documents[i]:
            names[i], places[i] = candidates.documents[i], 0
        elif places[i] >= 0:
            names[i], places[i] = by_itself(candidates.ids[i]), 0
        else:
            source = candidates.sources[i] if candidates.sources else ""
            names[i], places[i] = source or candidates.ids[i], (int(rank[i]) + 1) * _FAR
    return names, places


def _similarity(texts: Sequence[str]) -> FloatArray:
    """Cosines of the words of texts, each weighed by how few of them hold it; shape (m, m)."""
    words = [frozenset(_WORD.findall(text.lower())) for text in texts]
    place = {word: k for k, word in enumerate(sorted(frozenset().union(*words)))}
    rows = np.zeros((len(words), len(place)))
    for row, held in zip(rows, words, strict=True):
        row[[place[word] for word in held]] = 1.0
    rows *= np.log((1 + len(words)) / (1 + rows.sum(axis=0))) + 1
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return np.asarray(np.minimum(1.0, rows @ rows.T))


def _replaced(candidates: Candidates, fixed: NDArray[np.int8]) -> dict[int, int]:
    """Passages that are not cut -> the near-duplicate that is: a newer version, or one that stands above."""
    alike, names = candidates.duplicates, candidates.names
    if alike is None:
        return {}
    gone: dict[int, int] = {}
    for i in outdated(candidates, fixed):
        others = [j for j in np.flatnonzero(alike[i]).tolist() if fixed[j] != 0]
        gone[i] = max(others, key=lambda j: in_force(names[j], candidates.question))
    rest = [i for i in range(len(candidates)) if i not in gone and fixed[i] != 0]
    for i in sorted(rest, key=lambda k: (fixed[k] == 1, candidates.relevance[k], -k), reverse=True):
        if i in gone:
            continue  # what is not cut itself replaces nothing
        for j in np.flatnonzero(alike[i]).tolist():
            if j not in gone and fixed[j] < 0:
                gone[j] = i
    return gone


def outdated(candidates: Candidates, fixed: NDArray[np.int8]) -> list[int]:
    """Return candidates of which a newer near-duplicate, or one in force when asked of, is in the pool.

    fixed: shape (n,); 1 for what must be read, which is never outdated; 0 for what must not, which replaces
        nothing.
    """
    alike, names = candidates.duplicates, candidates.names
    if alike is None:
        return []
    old, when = list[int](), [in_force(one, candidates.question) for one in names]
    for i in sorted(range(len(candidates)), key=lambda k: when[k], reverse=True):
        others = [j for j in np.flatnonzero(alike[i]).tolist() if fixed[j] != 0 and when[j] > when[i]]
        newer = [j for j in others if is_ordered(names[i], names[j])]
        if fixed[i] < 0 and not set(newer) <= set(old):
            old.append(i)
    return old


def _between(passages: NDArray[np.int64], related: FloatArray | None) -> FloatArray | None:
    """The weights between passages, for the best sentence of each, which comes first; None for none."""
    if related is None:
        return None
    weights = np.zeros((passages.size, passages.size))
    best = np.unique(passages, return_index=True)[1]
    weights[np.ix_(best, best)] = related[np.ix_(passages[best], passages[best])]
    return weights if weights.any() else None
