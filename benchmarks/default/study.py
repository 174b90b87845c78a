"""One set with one embedder: every row at every budget, one number a question.

    topk, bm25, fused, mmr   rankings of the pool of 50
    default, frugal, thorough   `Selector.preset(...)`, weights fitted on the other sets
    same probabilities       ranking by the probabilities of `default`, whatever fits
    price .05                `default` with the same price for every question
    answer taken for granted `default` that does not ask whether the collection holds an answer
    without sources          `default` where nothing says which passages share a document
    any embedder             `default` with weights as for unknown embedders, fitted on the other sets
    other embedder           `default` with weights fitted on the other sets and on the other embedder
    fused scores alone       `default` where nothing but the fused score is known
    raw                      `Selector.raw()`, on cosines

Finished rows lie in the work folder as one JSON file each, so that an interrupted run goes on.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.default.models import Pools
from mio_rag.evaluation.contenders import Method, make_methods
from mio_rag.measures import evidence_found
from mio_rag.pool import Candidates
from mio_rag.relevance import RelevanceModel
from mio_rag.selection.selector import Selector
from mio_rag.solvers import SolveOptions
from mio_rag.storage import write_atomically

BASELINES = ("topk", "bm25", "fused", "mmr")
OURS = (
    "default",
    "frugal",
    "thorough",
    "same probabilities",
    "price .05",
    "answer taken for granted",
    "without sources",
    "any embedder",
    "other embedder",
    "fused scores alone",
    "raw",
)
BUDGETS = (256, 512, 1024)
_POOL = 50

#: budget -> {recall, tokens, proven}: a list with one value a question each
Columns = dict[str, dict[str, list[float]]]
_Row = tuple[Selector, Callable[[Candidates], Candidates]]


def rows_of(
    folder: Path,
    given: Pools,
    models: Mapping[str, RelevanceModel],
    time_limit: float,
    tell: Callable[[str], None],
) -> dict[str, Columns]:
    """Every row of a set; `models` are "own", "any", "other" and "scores", none fitted on this set."""
    found = {}
    for name, (selector, of) in _rows(models, time_limit).items():
        said = f"{name}{selector.to_dict()}{[q.id for q in given.questions]}"
        digest = hashlib.sha256(said.encode()).hexdigest()[:16]
        path = folder / f"{name.replace(' ', '-')}.json"
        known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        if known.get("settings") != digest:
            known = {"settings": digest, "columns": _columns(selector, given, of)}
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(known))
            tell(name)
        found[name] = known["columns"]
    return found


def _rows(models: Mapping[str, RelevanceModel], time_limit: float) -> dict[str, _Row]:
    options = SolveOptions(time_limit_seconds=time_limit, relative_gap=1e-3)
    plain = Selector.raw(options=options)
    rows: dict[str, _Row] = {}
    for method in make_methods(list(BASELINES), plain):
        rows[method.name] = (method.selector, partial(_scored, method))
    own = Selector(options=options, relevance_model=models["own"])

    def whole(pool: Candidates) -> Candidates:
        return pool

    for preset in ("default", "frugal", "thorough"):
        made = Selector.preset(preset, options=options)
        rows[preset] = (made.replace(relevance_model=models["own"]), whole)
    rows["same probabilities"] = (make_methods(["calibrated"], own)[0].selector, whole)
    rows["price .05"] = (own.replace(passage_penalty=0.05), whole)
    certain = dataclasses.replace(models["own"], answerable=None)
    rows["answer taken for granted"] = (own.replace(relevance_model=certain), whole)
    rows["without sources"] = (own, _sourceless)
    rows["any embedder"] = (own.replace(relevance_model=models["any"]), whole)
    rows["other embedder"] = (own.replace(relevance_model=models["other"]), whole)
    rows["fused scores alone"] = (own.replace(relevance_model=models["scores"]), _bare)
    rows["raw"] = (plain, head)
    return rows


def _scored(method: Method, pool: Candidates) -> Candidates:
    return method.scored(head(pool))


def _columns(selector: Selector, given: Pools, of: Callable[[Candidates], Candidates]) -> Columns:
    columns: Columns = {}
    for budget in BUDGETS:
        column: dict[str, list[float]] = {"recall": [], "tokens": [], "proven": []}
        for question, pool in zip(given.questions, given.pools, strict=True):
            candidates = of(pool)
            choice = selector.choose(candidates, budget)
            column["recall"].append(evidence_found(question, pool, choice.chosen))
            column["tokens"].append(float(choice.used))
            column["proven"].append(float(choice.result.is_optimal))
        columns[str(budget)] = column
    return columns


def head(pool: Candidates) -> Candidates:
    """What retrieval ranked, without what links led to."""
    return _part(pool, range(min(_POOL, len(pool))))


def _bare(pool: Candidates) -> Candidates:
    """Texts and one score, as a caller hands them over."""
    first = head(pool)
    return Candidates(
        ids=first.ids,
        texts=first.texts,
        relevance=first.scores["fused"],
        tokens=first.tokens,
        sources=first.sources,
    )


def _sourceless(pool: Candidates) -> Candidates:
    return dataclasses.replace(pool, sources=None, spans=None, documents=None)


def _part(pool: Candidates, kept: Sequence[int]) -> Candidates:
    rows = list(kept)
    return dataclasses.replace(
        pool,
        ids=[pool.ids[k] for k in rows],
        texts=[pool.texts[k] for k in rows],
        relevance=pool.relevance[rows],
        tokens=pool.tokens[rows],
        embeddings=None if pool.embeddings is None else pool.embeddings[rows],
        titles=None if pool.titles is None else [pool.titles[k] for k in rows],
        sources=None if pool.sources is None else [pool.sources[k] for k in rows],
        scores={name: values[rows] for name, values in pool.scores.items()},
        links=None,
        positions=None,
        spans=None if pool.spans is None else pool.spans[rows],
        dates=None if pool.dates is None else [pool.dates[k] for k in rows],
        duplicates=None if pool.duplicates is None else pool.duplicates[np.ix_(rows, rows)],
        sentences=None,
        documents=None if pool.documents is None else [pool.documents[k] for k in rows],
    )
