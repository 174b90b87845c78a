"""One corpus: every way to choose at every budget, read apart and merged; one number a question.

    fused, mmr             rankings of the pool of 50; "distinct": fused without what is nearly the same
                           (cosine above .9) as something read before
    probabilities          ranking by the probabilities of `default`, whatever fits
    default                the program at its default prices
    price P                the same, and every token costs P
    ..., shared text       and text that two passages share counts once in value, too
    ..., redundancy        and similarity costs .3 of what is relevant
    ..., greedy            the same program by marginal gains
    ..., paid apart        the program charges every passage for all of its text; merged afterwards
    price P, sentences     the same with the sentences of the windows as units
    ..., no penalty        and another sentence costs its tokens alone: large budgets are spent

A choice is of one budget. "apart" is read as everybody reads it; "merged" reads what passages share once and
fills the budget with more. Finished rows lie in the work folder, so that an interrupted run goes on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mio_rag.context import RegexCounter, block_tokens, merged, shared_characters
from mio_rag.evaluation.contenders import make_methods
from mio_rag.measures.answers import normalize_answer
from mio_rag.pool import Candidates
from mio_rag.relevance import RelevanceModel
from mio_rag.relevance.sentences import answer_figures, figures, shipped_sentences
from mio_rag.selection.constraints import SideConstraints
from mio_rag.selection.selector import Selector
from mio_rag.solvers import SolveOptions
from mio_rag.storage import write_atomically
from mio_rag.types import Question

BUDGETS = (64, 128, 256, 384, 512, 768, 1024)
PRICES = (0.0002, 0.0005, 0.001)
_UNPENALIZED = (0.0, PRICES[1])
_PAID_APART = ("default", f"price {PRICES[1]:g}")
_COUNTER = RegexCounter()

#: budget -> {answer, tokens, proven, milliseconds}: one value a question each
Columns = dict[str, dict[str, list[float]]]


@dataclass(frozen=True, eq=False)
class Corpus:
    """Questions whose answers are known, and the pool of each."""

    name: str
    questions: tuple[Question, ...]
    pools: tuple[Candidates, ...]
    by_figures: bool = False

    def found(self, question: Question, texts: Sequence[str]) -> float:
        """Whether an answer is read; of long answers, the share of their figures that is."""
        return figures_found(question, texts) if self.by_figures else float(answered(question, texts))


def fitted_weight(corpus: Corpus, model: RelevanceModel) -> float:
    """What two passages lose that share text, as it is in the data: a least-squares slope through 0.

    Of "both hold the answer" on the share of the shorter text times the smaller probability, over all pairs
    of a pool that overlap.
    """
    above = below = 0.0
    for question, pool in zip(corpus.questions, corpus.pools, strict=True):
        valued = model.valued(pool)
        holds = np.array([answered(question, [text]) for text in pool.texts])
        lengths = np.array([len(text) for text in pool.texts], dtype=np.float64)
        share = np.triu(shared_characters(pool) / np.minimum.outer(lengths, lengths), 1)
        x = share * np.minimum.outer(valued.relevance, valued.relevance)
        above += float((x * np.logical_and.outer(holds, holds)).sum())
        below += float((x * x).sum())
    return above / below


#: Rows of a short study.
MAIN = (
    "fused",
    "mmr",
    "distinct",
    "probabilities",
    f"price {PRICES[1]:g}",
    f"price {PRICES[1]:g}, greedy",
    *(f"price {price:g}, sentences" for price in (0.0, *PRICES)),
    *(f"price {price:g}, sentences, no penalty" for price in _UNPENALIZED),
    f"price {PRICES[1]:g}, sentences, greedy",
)


def settings_of(model: RelevanceModel, time_limit: float) -> dict[str, tuple[Selector, str | None]]:
    """Name of a row -> its selector, and the score that stands for relevance where that is not its own."""
    options = SolveOptions(time_limit_seconds=time_limit, relative_gap=1e-3)
    own = Selector(relevance_model=model, options=options)
    rows = {
        method.name: (method.selector, method.score)
        for method in make_methods(["fused", "mmr", "calibrated"], own)
    }
    rows["probabilities"] = rows.pop("calibrated")
    fused, score = rows["fused"]
    rows["distinct"] = fused.replace(side=SideConstraints(max_similarity=0.9)), score
    rows["default"] = own, None
    for price in PRICES:
        rows[f"price {price:g}"] = own.replace(token_price=price), None
    low, middle = (own.replace(token_price=price) for price in PRICES[:2])
    rows[f"price {PRICES[1]:g}, greedy"] = middle.replace(solver="greedy"), None
    rows[f"price {PRICES[1]:g}, shared text"] = middle.replace(shared_text_weight=1.0), None
    for price in (0.0, *PRICES):
        rows[f"price {price:g}, sentences"] = own.replace(token_price=price, units="sentences"), None
    for price in _UNPENALIZED:
        unpenalized = own.replace(token_price=price, passage_penalty=0.0, units="sentences")
        rows[f"price {price:g}, sentences, no penalty"] = unpenalized, None
    rows[f"price {PRICES[1]:g}, sentences, greedy"] = (
        middle.replace(units="sentences", solver="greedy"),
        None,
    )
    similar = low.replace(redundancy_weight=0.3, redundancy_by_relevance=True)
    rows[f"price {PRICES[0]:g}, redundancy"] = similar, None
    return rows


def rows_of(
    folder: Path,
    corpus: Corpus,
    settings: dict[str, tuple[Selector, str | None]],
    tell: Callable[[str], None],
) -> dict[str, Columns]:
    """Every row of a corpus, apart and merged."""
    found: dict[str, Columns] = {}
    for name, (selector, score) in settings.items():
        kinds = {"apart": (False, False), "merged": (True, True)}
        if selector.units == "sentences":
            del kinds["apart"]  # they are always read as one
        if name in _PAID_APART:
            kinds["merged, paid apart"] = (False, True)
        for kind, (chosen_merged, read_merged) in kinds.items():
            chooser = selector.replace(merge=chosen_merged)
            said = f"{chooser.to_dict()}{score}{read_merged}{[q.id for q in corpus.questions]}{BUDGETS}"
            if selector.units == "sentences":
                said += str(shipped_sentences(corpus.pools[0].embedder))
            digest = hashlib.sha256(said.encode()).hexdigest()[:16]
            path = folder / f"{name}-{kind}.json".replace(" ", "-").replace(",", "")
            known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
            if known.get("settings") != digest:
                known = {"settings": digest, "columns": _columns(chooser, score, read_merged, corpus)}
                folder.mkdir(parents=True, exist_ok=True)
                write_atomically(path, json.dumps(known))
                tell(f"{name}, {kind}")
            found[f"{name}, {kind}"] = known["columns"]
    return found


def _columns(selector: Selector, score: str | None, merge: bool, corpus: Corpus) -> Columns:
    kept = ("answer", "tokens", "proven", "milliseconds")
    columns: Columns = {str(budget): {key: [] for key in kept} for budget in BUDGETS}
    for question, pool in zip(corpus.questions, corpus.pools, strict=True):
        scored = pool if score is None else replace(pool, relevance=pool.scores[score])
        known = None
        for budget in BUDGETS:
            made = selector.choose(scored, budget, _COUNTER, known=known)
            known = made.formulation
            units, column = known.candidates, columns[str(budget)]
            blocks = merged(units, made.chosen) if merge else ()
            read = [block.passage for block in blocks] or [units.passage(i) for i in made.chosen]
            said = [f"{passage.title} {passage.text}" for passage in read]
            column["answer"].append(corpus.found(question, said))
            column["tokens"].append(float(block_tokens(units, made.chosen, _COUNTER, merge)))
            column["proven"].append(float(made.result.is_optimal))
            column["milliseconds"].append(1000 * made.result.wall_seconds)
    return columns


def answered(question: Question, texts: Sequence[str]) -> bool:
    """As the measure answer_in_context has it."""
    said = f" {normalize_answer(' '.join(texts))} "
    return any(f" {a} " in said for a in map(normalize_answer, question.answers) if a)


def figures_found(question: Question, texts: Sequence[str]) -> float:
    """Share of these numbers that the texts hold; 0 without any."""
    asked = answer_figures(question)
    said = frozenset[str]().union(*map(figures, texts))
    return len(asked & said) / max(1, len(asked))
