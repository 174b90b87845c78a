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
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mio_rag.context import TokenCounter, by_itself, counted, documents, text_tokens
from mio_rag.errors import InputError
from mio_rag.pool import Candidates
from mio_rag.relevance.documents import DocumentModel
from mio_rag.relevance.model import RelevanceModel
from mio_rag.relevance.sentences import SentenceModel, sentence_model
from mio_rag.sentences import cut, leans
from mio_rag.types import Line, moment

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


class Unit(NamedTuple):
    """A sentence of a passage, with the one before it if it leans on that."""

    passage: int
    number: int  # in its passage, from 1
    start: int  # of what is read: the sentence, or the one before it, in the passage's text
    core: int  # where the sentence itself starts
    end: int
    row: int  # of the pool's sentences
    worth: float
    required: bool


class Cut(NamedTuple):
    """A pool of sentences.

    candidates: the sentences, most probable first; ``cut_from`` says of which passages.
    shares: shape (m,); of the text of its passage, how much each is.
    sizes: shape (m,); what the relevance of each is multiplied by: 1 for probabilities that a sentence is
        needed. In a pool of documents its tokens divided by `PASSAGE`, since short pieces would otherwise be
        bought for being short, and by the largest relevance: prices are shares of the best, as nobody knows
        how hard a question is.
    related: shape (m, m); benefit of choosing two: that of their passages, for the best sentence of each.
    fixed: shape (m,); 1 for sentences of passages that must be read, -1 for all others.
    not_cut: passages that are not cut -> the near-duplicate that is.
    """

    candidates: Candidates
    shares: FloatArray
    sizes: FloatArray
    related: FloatArray
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
    """Return what is chosen from a pool.

    Where this says sentences, `Selector.select` reads passages all the same if all that are above their price
    fit.

    "auto" is sentences where fewer than three passages fit the budget, by the mean of the five that are most
    likely to be needed. There they hold more answers on every set; where five or more passages fit, whole
    ones do on questions that need several of them. Passages stay where
    sentences cannot be chosen, relevance is no probability, a passage must be read (all of it), or programs
    are enumerated.

    candidates: passages with the relevance that these settings give them, see `Selector.valued`.
    model: what gave them that.
    counter: the reader's tokenizer.
    """
    if settings.units != "auto":
        return settings.units
    if settings.by_formula(candidates):
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
    tight = is_tight(float(candidates.tokens[likely].mean()), budget_tokens)
    return "sentences" if tight and may_cut(settings, candidates, counter) else "passages"


def is_tight(tokens: float, budget_tokens: int) -> bool:
    """Whether a budget has no room for three passages of so many tokens."""
    return _ROOM * tokens > budget_tokens


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
) -> Cut:
    """The sentences of a pool, as candidates.

    candidates: passages with probabilities as relevance; they are cut here if they do not know their
        sentences.
    counter: the reader's tokenizer, which the program cannot do without here.
    fixed: shape (n,); passages that must (1) or must not (0) be read; -1: free.
    related: shape (n, n); benefit of choosing two passages.
    one_of_copies: whether only one of near-duplicates may be read.
    compared: whether it must be known how similar sentences are, for redundancy.
    weights: what tells which sentences are needed, instead of what ships.
    formula: of a pool of documents, instead of both.

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
    vectors = sentences.embeddings
    not_cut = _replaced(candidates, fixed) if one_of_copies else {}
    units = _units(candidates, fixed, not_cut, one_of_copies, weights, formula)
    units.sort(key=lambda unit: -unit.worth * (unit.end - unit.core if formula else 1))
    units = [*units[:MOST_UNITS], *(unit for unit in units[MOST_UNITS:] if unit.required)]
    if not units:
        raise InputError("no sentence is left to choose from: must_exclude names every passage of the pool")
    passages = np.array([unit.passage for unit in units], dtype=np.int64)
    texts = [candidates.texts[u.passage][u.start : u.end] for u in units]
    titles = [candidates.titles[u.passage] if candidates.titles else "" for u in units]
    document = documents(candidates)
    order = np.arange(len(candidates)) if candidates.positions is None else candidates.positions
    rank = np.unique(order, return_inverse=True)[1]
    places = [_place(candidates, document, unit.passage, int(rank[unit.passage])) for unit in units]
    spans = [(at + u.start, at + u.end) for (_, at), u in zip(places, units, strict=True)]
    made = Candidates(
        ids=[f"{candidates.ids[u.passage]}#s{u.number}" for u in units],
        texts=texts,
        relevance=np.array([u.worth for u in units]),
        tokens=text_tokens(texts, titles, counter),
        embeddings=None if vectors is None else vectors[[u.row for u in units]],
        query_embedding=None if vectors is None else candidates.query_embedding,
        titles=titles,
        sources=None if candidates.sources is None else [candidates.sources[i] for i in passages],
        question=candidates.question,
        positions=None if candidates.positions is None else candidates.positions[passages],
        embedder=candidates.embedder,
        spans=np.array(spans, dtype=np.int64).reshape(-1, 2),
        dates=None if candidates.dates is None else [candidates.dates[i] for i in passages],
        cut_from=[candidates.ids[i] for i in passages],
        documents=[name for name, _ in places],
        gaps=[_gap(candidates.texts[u.passage], u.start) for u in units],
        sections=_sections(candidates, units),
        pages=None if candidates.pages is None else [candidates.pages[i] for i in passages],
        metadata=None if candidates.metadata is None else [candidates.metadata[i] for i in passages],
        lines=_lines(candidates, units),
        similarity=_similarity(texts) if compared and vectors is None else None,
    )
    lengths = np.array([len(text.strip()) for text in candidates.texts], dtype=np.float64)
    sizes = np.array([u.end - u.core for u in units], dtype=np.float64)
    amounts = counted(counter, texts) / PASSAGE
    return Cut(
        made,
        amounts if formula else np.minimum(1.0, sizes / lengths[passages]),
        amounts / max(made.relevance.max(), 1e-9) if formula else np.ones(len(units)),
        _between(passages, related),
        np.array([1 if u.required else -1 for u in units], dtype=np.int8),
        not_cut,
    )


def _sections(candidates: Candidates, units: Sequence[Unit]) -> list[tuple[str, ...]] | None:
    """The headings above each unit; None where they are unknown."""
    if candidates.sentences is not None and (own := candidates.sentences.sections) is not None:
        return [tuple(own[unit.row]) for unit in units]
    return None if candidates.sections is None else [candidates.sections[unit.passage] for unit in units]


def _lines(candidates: Candidates, units: Sequence[Unit]) -> list[tuple[Line, ...]] | None:
    """The lines that each unit is read with; None where the passages have none."""
    sentences, lines = candidates.sentences, candidates.lines
    if lines is None or sentences is None or sentences.needs is None:
        return None
    return [tuple(lines[unit.passage][k] for k in sentences.needs[unit.row]) for unit in units]


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


def _gap(text: str, start: int) -> str:
    return text[len(text[:start].rstrip()) : start]


def _replaced(candidates: Candidates, fixed: NDArray[np.int8]) -> dict[int, int]:
    """Passages that are not cut -> the near-duplicate that is: a newer version, or one that stands above."""
    alike, dates = candidates.duplicates, candidates.dates
    if alike is None:
        return {}
    gone: dict[int, int] = {}
    for i in outdated(candidates, fixed):
        assert dates is not None
        others = [j for j in np.flatnonzero(alike[i]).tolist() if fixed[j] != 0]
        gone[i] = max(others, key=lambda j: moment(dates[j]))
    rest = [i for i in range(len(candidates)) if i not in gone and fixed[i] != 0]
    for i in sorted(rest, key=lambda k: (fixed[k] == 1, candidates.relevance[k], -k), reverse=True):
        if i in gone:
            continue  # what is not cut itself replaces nothing
        for j in np.flatnonzero(alike[i]).tolist():
            if j not in gone and fixed[j] < 0:
                gone[j] = i
    return gone


def _units(
    candidates: Candidates,
    fixed: NDArray[np.int8],
    not_cut: Collection[int],
    one_of_copies: bool,
    weights: SentenceModel | None,
    formula: DocumentModel | None,
) -> list[Unit]:
    """Return every sentence that may be read, once."""
    left_out = {*not_cut, *np.flatnonzero(fixed == 0).tolist()}
    sentences = candidates.sentences
    assert sentences is not None
    if formula is not None:
        worth = formula.unit_relevance(candidates).tolist()
    else:
        worth = sentence_model(weights, candidates).worth(candidates).tolist()
    must = (fixed == 1).tolist()
    units: list[Unit] = []
    before: tuple[int, int] | None = None
    number = 0
    rows = zip(sentences.owners.tolist(), sentences.spans.tolist(), strict=True)
    for row, (passage, (start, end)) in enumerate(rows):
        follows = before is not None and before[0] == passage
        number = number + 1 if follows else 1
        first = start
        if passage not in left_out:
            if (
                sentences.needs is None
                and follows
                and before is not None
                and leans(candidates.texts[passage][start:end])
            ):
                first = before[1]
            units.append(Unit(passage, number, first, start, end, row, worth[row], must[passage]))
        before = passage, start
    units = _placed_once(candidates, units)
    return _said_once(candidates, units) if one_of_copies else units


def _said_once(candidates: Candidates, units: list[Unit]) -> list[Unit]:
    """Return one of those that say the same word for word under the same title, however they are spaced.

    Required ones stay, and no other.
    """
    blank = [""] * len(candidates)
    titles = [" ".join(title.casefold().split()) for title in candidates.titles or blank]
    dates = list(map(moment, candidates.dates)) if candidates.dates else blank
    best: dict[tuple[str, str], Unit] = {}
    keys = []
    for unit in units:
        text = " ".join(candidates.texts[unit.passage][unit.start : unit.end].casefold().split())
        key = titles[unit.passage], text
        keys.append(key)
        other = best.setdefault(key, unit)
        standing = unit.required, dates[unit.passage], unit.worth
        if other is not unit and standing > (other.required, dates[other.passage], other.worth):
            best[key] = unit
    return [unit for key, unit in zip(keys, units, strict=True) if unit.required or unit is best[key]]


def _placed_once(candidates: Candidates, units: list[Unit]) -> list[Unit]:
    """Return units without those that lie within one of another passage; that is worth the larger of the two.

    Required ones stay, so that their passage is read by its name.
    """
    if candidates.spans is None:
        return units
    starts = candidates.spans[:, 0].tolist()
    sources = candidates.sources or [""] * len(candidates)
    placed: dict[str, list[tuple[int, int, Unit]]] = {}
    kept: list[Unit] = []
    for unit in units:
        if (at := starts[unit.passage]) < 0:
            kept.append(unit)
        else:
            place = at + unit.core, at + unit.end, unit
            placed.setdefault(sources[unit.passage], []).append(place)
    for group in placed.values():
        group.sort(key=lambda one: (one[0], -one[1], not one[2].required, one[2].start - one[2].core))
        inside: list[tuple[int, int, Unit]] = []
        for start, end, unit in group:
            k = len(inside) - 1
            while k >= 0 and not unit.required and end > inside[k][1]:
                k -= 1
            if k >= 0 and not unit.required and _text(candidates, unit) in _text(candidates, inside[k][2]):
                low, high, other = inside[k]
                inside[k] = low, high, other._replace(worth=max(other.worth, unit.worth))
            else:
                inside.append((start, end, unit))
        kept += [unit for _, _, unit in inside]
    return kept


def _text(candidates: Candidates, unit: Unit) -> str:
    return candidates.texts[unit.passage][unit.core : unit.end]


def outdated(candidates: Candidates, fixed: NDArray[np.int8]) -> list[int]:
    """Return candidates of which a newer near-duplicate is in the pool.

    fixed: shape (n,); 1 for what must be read, which is never outdated; 0 for what must not, which replaces
        nothing.
    """
    alike, dates = candidates.duplicates, candidates.dates
    if alike is None or dates is None:
        return []
    old, when = list[int](), list(map(moment, dates))
    for i in sorted(range(len(candidates)), key=lambda k: when[k], reverse=True):
        newer = [j for j in np.flatnonzero(alike[i]).tolist() if fixed[j] != 0 and when[j] > when[i]]
        if dates[i] and fixed[i] < 0 and not set(newer) <= set(old):
            old.append(i)
    return old


def _place(candidates: Candidates, document: NDArray[np.int64], i: int, rank: int) -> tuple[str, int]:
    """Document and place of a passage; far from the others of its document where nobody knows.

    Then they stand there by rank, which is their place in the corpus among those of the pool.

    A blank name is its source. One that is read by itself, since its document contradicts itself, is a
    document of its own.
    """
    source = candidates.sources[i] if candidates.sources else ""
    at = -1 if candidates.spans is None else int(candidates.spans[i, 0])
    if document[i] >= 0:
        return "", at
    if candidates.documents and candidates.documents[i]:
        return candidates.documents[i], 0
    if at >= 0:
        return by_itself(candidates.ids[i]), 0
    return source or candidates.ids[i], (rank + 1) * _FAR


def _between(passages: NDArray[np.int64], related: FloatArray | None) -> FloatArray:
    """The weights between passages, for the best sentence of each, which comes first."""
    weights = np.zeros((passages.size, passages.size))
    if related is not None:
        best = np.unique(passages, return_index=True)[1]
        weights[np.ix_(best, best)] = related[np.ix_(passages[best], passages[best])]
    return weights
