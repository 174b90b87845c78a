"""The corpora of the study: which set, how it is cut and bent, its questions, their pools; and relevance."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.default.models import EMBEDDERS, by_ranks, pools_of
from benchmarks.repetition.study import Corpus
from benchmarks.repetition.windows import in_versions, recut, under_a_notice, words_of
from mio_rag.corpora.dataset import Dataset
from mio_rag.corpora.load import load_dataset
from mio_rag.errors import InputError
from mio_rag.pool import Candidates
from mio_rag.relevance import RelevanceModel
from mio_rag.relevance.sentences import answer_figures
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.storage import write_atomically
from mio_rag.types import Passage, Question

#: How a corpus is bent, beside being cut: not at all, with older versions, with a notice in every window.
BENT = ("plain", "versions", "notice")

_OTHERS = 150  # questions of each other set that relevance is fitted on
_FITTED_SENTENCES = ("hotpotqa", "nq_open")  # the weights of sentences were fitted on their first questions,
_FITTED_QUESTIONS = 300  # so many of each
_BY_FIGURES = ("sec10q",)


@dataclass(frozen=True)
class Cut:
    """How a corpus is made.

    Parameters
    ----------
    words : int
        Of a window; 0: as many as are `tokens`.
    overlap : float
        Share of a window that the next one repeats.
    within : bool
        Whether a question is searched for in the documents alone that its set names for it
        (`annotated_sources`), as a filter by company and quarter would.
    """

    data: Path
    dataset: str
    embedder: str
    tokens: int
    words: int
    overlap: float
    bent: str
    within: bool = False

    @property
    def name(self) -> str:
        """For people and files."""
        size = f"{self.words}w" if self.words else f"{self.tokens}t"
        bent = "" if self.bent == "plain" else f"-{self.bent}"
        bent += "-within" if self.within else ""
        return f"{self.dataset}-{size}-{round(100 * self.overlap)}{bent}-{self.embedder}"

    def windows(self) -> Dataset:
        """The set, cut and bent."""
        whole = load_dataset(self.data / self.dataset)
        if self.bent == "versions":
            whole = in_versions(whole, 0)
        cut = recut(whole, self.words or words_of(whole, self.tokens), self.overlap)
        return under_a_notice(cut) if self.bent == "notice" else cut


def corpora_of(
    cut: Cut, work: Path, held_out: int, limit: int, seed: int, tell: Callable[[str], None]
) -> tuple[Corpus, Corpus]:
    """The questions that weights are measured on, and those that are reported."""
    windows = cut.windows()
    by_figures = cut.dataset in _BY_FIGURES
    known = [q for q in windows.questions if (answer_figures(q) if by_figures else q.answers)]
    if cut.dataset in _FITTED_SENTENCES:
        whole_set = load_dataset(cut.data / cut.dataset).questions
        labelled = [q.id for q in whole_set if q.answers and q.gold_ids]
        order = np.random.default_rng(0).permutation(len(labelled))[:_FITTED_QUESTIONS]
        taken = {labelled[k] for k in order}
        known = [q for q in known if q.id not in taken]
    order = np.random.default_rng(seed).permutation(len(known))
    chosen = [known[k] for k in order[: held_out + limit]]
    if len(chosen) <= held_out:
        raise InputError(f"{cut.dataset} has {len(chosen)} questions: hold fewer than that out")
    if cut.within:
        pools = _within(cut, windows.passages, chosen, work, tell)
    else:
        index = _index(cut, windows.passages, work / f"{cut.name}-index", tell)
        pools = Retriever(index).retrieve_many([question.text for question in chosen])
    whole = Corpus(cut.name, tuple(chosen), tuple(pools), by_figures)
    parts = (slice(held_out), slice(held_out, None))
    first, second = (replace(whole, questions=whole.questions[p], pools=whole.pools[p]) for p in parts)
    return first, second


def _index(cut: Cut, passages: Sequence[Passage], folder: Path, tell: Callable[[str], None]) -> CorpusIndex:
    if folder.is_dir():
        return CorpusIndex.load(folder)
    tell(f"{folder.name}: embedding {len(passages)} windows and their sentences")
    index = CorpusIndex.build(passages, cut.embedder, cut.name, sentences=True)
    index.save(folder)
    return index


def _within(
    cut: Cut, passages: Sequence[Passage], asked: Sequence[Question], work: Path, tell: Callable[[str], None]
) -> list[Candidates]:
    """The pool of each question from an index of the documents that its set names for it."""
    named = _annotated(cut.data / cut.dataset)
    if lacking := [question.id for question in asked if not named.get(question.id)]:
        raise InputError(f"{cut.dataset} names no documents for {lacking[0]}: leave --within out")
    together: dict[frozenset[str], list[int]] = {}
    for k, question in enumerate(asked):
        together.setdefault(frozenset(named[question.id]), []).append(k)
    pools: dict[int, Candidates] = {}
    for sources, questions in together.items():
        folder = work / f"{cut.name}-index" / "+".join(sorted(sources)).replace(" ", "_")
        index = _index(cut, [p for p in passages if p.source in sources], folder, tell)
        found = Retriever(index).retrieve_many([asked[k].text for k in questions])
        pools.update(zip(questions, found, strict=True))
    return [pools[k] for k in range(len(asked))]


def _annotated(folder: Path) -> dict[str, list[str]]:
    """Question -> the documents that it is about, as its set has them."""
    packed = folder / "questions.jsonl.gz"
    text = (
        gzip.decompress(packed.read_bytes())
        if packed.is_file()
        else (folder / "questions.jsonl").read_bytes()
    )
    rows = [json.loads(line) for line in text.splitlines() if line.strip()]
    return {row["id"]: row.get("annotated_sources", []) for row in rows}


def fitted_model(data: Path, indexes: Path, work: Path, cut: Cut, others: str, seed: int) -> RelevanceModel:
    """Probabilities, fitted on other sets than the one that is reported, by the same embedder."""
    path = work / f"relevance-{cut.dataset}-{cut.embedder}.json"
    if path.is_file():
        return RelevanceModel.from_dict(json.loads(path.read_text(encoding="utf-8")))
    names = [name.strip() for name in others.split(",") if name.strip() not in ("", cut.dataset)]
    if not names:
        raise InputError("--fit names no other set than the one that is reported")
    sets = [
        pools_of(
            load_dataset(data / name), CorpusIndex.load(indexes / f"{name}-{cut.embedder}"), _OTHERS, seed
        )
        for name in names
    ]
    model = by_ranks(sets, "other sets", EMBEDDERS[cut.embedder])
    work.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(model.to_dict()))
    return model
