"""`python -m benchmarks answers`: a language model reads what each method selected."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from benchmarks.relevance.answers import Readings, answer_all, conditions, open_ledger
from benchmarks.relevance.answers_picture import draw
from benchmarks.relevance.models import halves, load
from mio_rag.corpora.load import load_dataset
from mio_rag.errors import InputError
from mio_rag.evaluation.ledger import environment
from mio_rag.evaluation.statistics import compare_rows, summarize
from mio_rag.generation import Generator, make_generator
from mio_rag.measures import find_measure
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.storage import write_atomically
from mio_rag.types import GenerationError

#: What is a variant of ours, and compared with it.
_VARIANTS = ("sparing", "default", "ends", "document")


def command(given: argparse.Namespace) -> int:
    """Answer what has no row yet, then write the JSON and print the table."""
    names = [name.strip() for name in given.sets.split(",") if name.strip()]
    wanted = [name.strip() for name in given.conditions.split(",") if name.strip()]
    generator: Generator | None = None
    status = 0
    try:
        generator = make_generator(given.generator)
        sets = [_open(given, name, wanted, generator) for name in names]
        try:
            answer_all(
                sets,
                generator,
                count=given.questions,
                budget_tokens=given.budget_tokens,
                max_tokens=given.max_tokens,
                progress=lambda text: print(text, file=sys.stderr, flush=True),
            )
        except KeyboardInterrupt:  # what is finished is reported
            status = 130
        _report(given, generator.name, sets)
    except (InputError, GenerationError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    finally:
        if generator is not None:
            generator.close()
    return status


def _open(given: argparse.Namespace, name: str, wanted: list[str], generator: Generator) -> Readings:
    """One set: its report half, its models, its ledger."""
    dataset = load_dataset(given.data / name)
    study = json.loads(given.study.read_text(encoding="utf-8"))
    if name not in study["results"] or study["seed"] != given.seed or study["limit"] is not None:
        raise InputError(
            f"'{given.study}' does not hold '{name}' with seed {given.seed}: run the relevance study first"
        )
    found = study["results"][name]
    if found["data_sha256"] != dataset.content_hash():
        raise InputError(
            f"'{given.study}' was made from other data of '{name}': run the relevance study again"
        )
    baseline = found["best_baseline"][str(given.budget_tokens)]
    files = {"default": given.work / "models" / "default.json"}
    own = given.work / "models" / name / "links.json"
    if own.is_file():
        files["links"] = own
    models = {key: load(path) for key, path in files.items()}
    index = CorpusIndex.load(given.indexes / name)
    identity = {
        "data_sha256": dataset.content_hash(),
        "generator": generator.name,
        "budget_tokens": given.budget_tokens,
        "max_tokens": given.max_tokens,
        "seed": given.seed,
        "baseline": baseline,
        "models": {key: model.to_dict() for key, model in models.items()},
    }
    return Readings(
        name,
        halves(dataset, given.seed).report,
        {hops: Retriever(index, counter=generator, link_hops=hops) for hops in (0, 1)},
        {p.id: p for p in dataset.passages},
        conditions(wanted, baseline, models, given.time_limit),
        open_ledger(given.work / "answers" / name, identity),
        baseline,
    )


def _report(given: argparse.Namespace, generator: str, sets: list[Readings]) -> None:
    """Means with intervals and paired differences, by set and over all of them."""
    rows_of = {one.name: _complete(one) for one in sets}
    results = {
        one.name: _summary(rows_of[one.name]) | {"baseline": one.baseline}
        for one in sets
        if rows_of[one.name]
    }
    pooled = _pooled(rows_of)
    if len(results) > 1:
        results["all sets"] = _summary(pooled) | {"baseline": "of each set"}
    report = {
        "benchmark": "answers",
        "generator": generator,
        "budget_tokens": given.budget_tokens,
        "max_tokens": given.max_tokens,
        "seed": given.seed,
        "results": results,
        **environment(),
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(given.out, json.dumps(report, indent=1, allow_nan=False) + "\n")
    text = _table(results)
    write_atomically(given.out.with_suffix(".txt"), text + "\n")
    if results:
        draw(results, given.out.with_suffix(".png"))
    print(text)


def _complete(one: Readings) -> list[dict[str, Any]]:
    """Rows of the questions that were read under every condition that is compared, in order."""
    by_question: dict[str, list[dict[str, Any]]] = {}
    for row in one.ledger.rows:
        by_question.setdefault(row["question_id"], []).append(row)
    compared = {"baseline", "mmr", "ours"} & {row["method"] for row in one.ledger.rows}
    return [
        row
        for question in one.questions
        if compared <= {row["method"] for row in by_question.get(question.id, [])}
        for row in by_question.get(question.id, [])
    ]


def _pooled(rows_of: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """As many questions of every set, under the conditions that all sets have."""
    kept = {name: rows for name, rows in rows_of.items() if rows}
    if not kept:
        return []
    questions = {name: list(dict.fromkeys(r["question_id"] for r in rows)) for name, rows in kept.items()}
    count = min(map(len, questions.values()))
    shared = set.intersection(*({r["method"] for r in rows} for rows in kept.values()))
    return [
        row | {"question_id": f"{name}/{row['question_id']}"}
        for name, rows in kept.items()
        for row in rows
        if row["question_id"] in set(questions[name][:count]) and row["method"] in shared
    ]


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "questions": len({row["question_id"] for row in rows}),
        "summary": summarize(rows),
        "against_baseline": compare_rows(rows, "baseline"),
        "against_ours": compare_rows(rows, "ours"),
    }


def _table(results: dict[str, Any]) -> str:
    """F1 and EM by set and condition, with the paired difference in F1 to the best ranking, or to ours."""
    lines = []
    for name, found in results.items():
        lines.append(f"{name}: {found['questions']} questions, best ranking {found['baseline']}")
        gains = {(e["method"], e["measure"]): e for e in found["against_baseline"]}
        ours = {(e["method"], e["measure"]): e for e in found["against_ours"]}
        for entry in found["summary"]:
            shown = "  ".join(
                f"{m.title} {entry[m.name]['mean']:.3f} "
                f"({entry[m.name]['low']:.3f}-{entry[m.name]['high']:.3f})"
                for m in map(find_measure, ("token_f1", "exact_match"))
                if m is not None
            )
            variant = entry["method"] in _VARIANTS
            gain = (ours if variant else gains).get((entry["method"], "token_f1"))
            difference = (
                f"  F1 {gain['difference']:+.3f} ({gain['low']:+.3f} to {gain['high']:+.3f})"
                + (" against ours" if variant else "")
                if gain
                else ""
            )
            lines.append(
                f"  {entry['method']:<10} n={entry['n']:<4} {shown} at "
                f"{entry['tokens_used']['mean']:4.0f} tokens{difference}"
            )
    return "\n".join(lines)
