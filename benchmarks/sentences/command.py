"""`python -m benchmarks sentences`: fits the relevance of sentences, and measures what choosing them brings.

Fitted on the supporting sentences of HotpotQA questions, and on which sentence of its passage holds the
answer in NQ open; judged on other questions of both, and on sets that nothing was fitted on. Then, set by
set and at equal prices of tokens, passages against sentences: whether the answer is in what is read, and the
tokens of it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.runner import Measured, note
from benchmarks.sentences.answers import answers_of, of_all_sets
from benchmarks.sentences.fit import (
    Labels,
    answer_labels,
    by_words,
    context_set,
    fitted,
    judged,
    raw_questions,
    supporting_labels,
    valued_pools,
)
from benchmarks.sentences.study import rows_of, summary, table
from mio_rag.corpora.dataset import Dataset
from mio_rag.corpora.load import load_dataset
from mio_rag.errors import InputError
from mio_rag.pool import Candidates
from mio_rag.relevance import sentences as shipped
from mio_rag.relevance.sentences import SENTENCE_FEATURES, SentenceModel
from mio_rag.retrieval import CorpusIndex
from mio_rag.storage import write_atomically
from mio_rag.types import Question

_FITTED = {"minilm": "sentence-transformers:72362722b466552f", "tfidf": "tfidf:"}
_FIT_ON, _ANSWERS = "hotpotqa", "nq_open"


def command(given: argparse.Namespace) -> Measured:
    """Fit, judge and compare what is not finished yet, then write JSON and table."""
    report = _report(given)
    return Measured(report, table(report["sets"]))


def _report(given: argparse.Namespace) -> dict[str, Any]:
    embedders = [name.strip() for name in given.embedders.split(",")]
    known = (*embedders, "any", "words")
    if strange := {name for name in given.ship.split(",") if name} - set(known):
        raise InputError(f"--ship {', '.join(sorted(strange))} is not fitted here: choose {', '.join(known)}")
    labels: dict[str, list[Labels]] = {}
    for embedder in embedders:
        pools, raw = _hotpot(given, embedder, slice(0, given.fit_questions))
        labels[embedder] = [supporting_labels(pools, raw, True), _answering(given, embedder)]
        note(f"{embedder}: {[len(one.needed) for one in labels[embedder]]} sentences to fit on")
    told = (
        f"Fitted on {given.fit_questions} questions each of HotpotQA (CC BY-SA 4.0; supporting facts) and "
        "NQ open (CC BY-SA 3.0; sentences of gold passages that hold an answer), weighing the same, over "
        "all sentences of pools of 50 of their own passages, expanded one link deep. Only numbers are kept."
    )
    models = [fitted(labels[e], e, _FITTED[e], told) for e in embedders]
    every = [one for both in labels.values() for one in both]
    models.append(fitted(every, "any", "", told))
    models.append(fitted([by_words(one) for one in every], "words", "", told))
    _ship([model for model in models if model.name in given.ship.split(",")])
    found: dict[str, Any] = {}
    judgements: dict[str, Any] = {}
    answers: dict[str, Any] = {}
    for embedder in embedders:
        own = next(model for model in models if model.name == embedder)
        for name in given.sets.split(","):
            dataset, pools, held = _reported(given, embedder, name.strip())
            key = f"{name}, {embedder}"
            judgements[key] = _judged([own, *models[-2:]], held)
            note(f"{key}: {judgements[key]}")
            folder = given.work / "rows" / f"{name}-{embedder}"
            found[key] = summary(rows_of(folder, dataset.questions, pools, note), given.seed)
            if given.generator and embedder == "minilm" and name != _FIT_ON:
                index, part = _index(given, dataset, embedder, name), slice(given.answers)
                answers[name] = answers_of(
                    given.generator, given.work, index, dataset.questions[part], pools[part], given.seed
                )
    return {
        "seed": given.seed,
        "fitted_on": {
            name: {
                "sentences": sum(len(one.needed) for one in both),
                "labels_beyond": sum(one.beyond for one in both),
            }
            for name, both in labels.items()
        },
        "weights": [model.to_dict() for model in models],
        "judged": judgements,
        "sets": found,
        "answers": answers,
        "answers_of_all_sets": of_all_sets(answers, given.seed) if answers else None,
        "counter": "regex",
    }


def _ship(models: list[SentenceModel]) -> None:
    """Put these weights into the package; others stay there as they are."""
    if not models:
        return
    path = Path(shipped.__file__).with_name("sentences.json")
    known = {data["name"]: data for data in json.loads(path.read_text(encoding="utf-8"))["models"]}
    known |= {model.name: model.to_dict() for model in models}
    write_atomically(path, json.dumps({"models": list(known.values())}, indent=1, allow_nan=False) + "\n")
    shipped._shipped.cache_clear()


def _judged(models: list[SentenceModel], held: Labels) -> dict[str, Any]:
    """Weights of this embedder, for any, by words, and none: the share that is needed, for all."""
    lead = held.features[:, SENTENCE_FEATURES.index("lead")]
    made: dict[str, Any] = {}
    for model, name in zip(models, ("own", "any", "words"), strict=True):
        score = held.features @ np.array(list(model.weights.values())) + model.intercept
        made[name] = judged(1 / (1 + np.exp(-score)), held)
    made["all alike"] = judged(np.full(lead.size, held.needed.mean()), held)
    made["best cosine"] = {"best_is_needed": judged(1 / (1 + np.exp(-lead)), held)["best_is_needed"]}
    return made


def _hotpot(
    given: argparse.Namespace, embedder: str, part: slice
) -> tuple[list[Candidates], list[dict[str, Any]]]:
    """Pools and raw questions of a part of HotpotQA."""
    folder = given.data / _FIT_ON
    dataset, raw = load_dataset(folder), raw_questions(folder)
    chosen = np.random.default_rng(given.seed).permutation(len(raw))[part].tolist()
    own = context_set(dataset, raw, chosen)
    index = _index(given, own, embedder, f"{_FIT_ON}-{part.start}-{part.stop}")
    by_id = {entry["id"]: entry for entry in raw}
    return valued_pools(index, own.questions), [by_id[question.id] for question in own.questions]


def _answering(given: argparse.Namespace, embedder: str) -> Labels:
    """Which sentences of the gold passages of NQ open hold an answer."""
    part = _nq(given, slice(0, given.fit_questions))
    wanted = {i for question in part for i in question.gold_ids}
    whole = load_dataset(given.data / _ANSWERS)
    own = Dataset(_ANSWERS, tuple(p for p in whole.passages if p.id in wanted), part)
    index = _index(given, own, embedder, f"{_ANSWERS}-0-{given.fit_questions}")
    return answer_labels(valued_pools(index, own.questions), own.questions, True)


def _nq(given: argparse.Namespace, part: slice) -> tuple[Question, ...]:
    """A part of the questions of NQ open."""
    asked = [q for q in load_dataset(given.data / _ANSWERS).questions if q.answers and q.gold_ids]
    order = np.random.default_rng(given.seed).permutation(len(asked))[part]
    return tuple(asked[k] for k in order)


def _reported(
    given: argparse.Namespace, embedder: str, name: str
) -> tuple[Dataset, list[Candidates], Labels]:
    """Questions, pools and labels of a set, none of which anything was fitted on."""
    if name == _FIT_ON:
        first = given.fit_questions + given.skip
        part = slice(first, first + given.limit)
        pools, raw = _hotpot(given, embedder, part)
        whole = load_dataset(given.data / name)
        by_id = {question.id: question for question in whole.questions}
        dataset = Dataset(name, whole.passages, tuple(by_id[entry["id"]] for entry in raw))
        return dataset, pools, supporting_labels(pools, raw)
    whole = load_dataset(given.data / name)
    asked = [q for q in whole.questions if q.answers and q.gold_ids]
    first = given.skip + (given.fit_questions if name == _ANSWERS else 0)
    order = np.random.default_rng(given.seed).permutation(len(asked))[first : first + given.limit]
    dataset = Dataset(name, whole.passages, tuple(asked[k] for k in order))
    pools = valued_pools(_index(given, whole, embedder, name), dataset.questions)
    return dataset, pools, answer_labels(pools, dataset.questions)


def _index(given: argparse.Namespace, dataset: Dataset, embedder: str, name: str) -> CorpusIndex:
    folder = given.work / f"{name}-{embedder}"
    if folder.is_dir():
        return CorpusIndex.load(folder)
    note(f"embedding {len(dataset.passages)} passages and their sentences by {embedder}")
    index = CorpusIndex.build(dataset.passages, embedder, name, sentences=True)
    index.save(folder)
    return index
