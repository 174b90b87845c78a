"""Short runs of the harness, and what holds in every one."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet

from mio_rag.context import RegexCounter, render_context
from mio_rag.corpora.dataset import Dataset
from mio_rag.evaluation.harness import EvaluationResult, EvaluationSettings, evaluate
from mio_rag.generation import Generator, Prompt, ScriptedGenerator
from mio_rag.retrieval import CorpusIndex
from mio_rag.types import GenerationError

SCRIPT = {"a": "Mount Falterona", "b": "406 kilometres", "c": "The Tiber", "d": "sand"}
#: Enough for one or two of the river passages, or for all of them.
SETTINGS = EvaluationSettings(methods=("topk", "mmr", "exact"), budgets=(30, 120))


def run(
    data: Dataset, index: CorpusIndex, generator: Generator | None, out: Path, **changes: Any
) -> EvaluationResult:
    options = {name: changes.pop(name) for name in ("resume", "progress") if name in changes}
    return evaluate(data, index, generator, replace(SETTINGS, **changes), out, **options)


def ledger(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(folder / "ledger.parquet").to_pylist()
    return rows


def timeless(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without what differs from run to run: seconds, and the memory of the process."""
    return [
        {k: v for k, v in row.items() if not k.endswith("_seconds") and k != "peak_memory_mb"} for row in rows
    ]


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def check_rows(result: EvaluationResult, data: Dataset, counter: RegexCounter) -> None:
    """What holds in every run."""
    passages = {p.id: p for p in data.passages}
    assert result.rows
    for row in result.rows:
        block = render_context(passages[i] for i in row["selected_ids"])
        assert row["tokens_used"] == (counter.count([block])[0] if block else 0) <= row["budget_tokens"]
        question = next(q for q in data.questions if q.id == row["question_id"])
        if question.gold_ids:
            found = set(row["selected_ids"]) & set(question.gold_ids)
            assert row["gold_recall"] == len(found) / len(set(question.gold_ids))
            assert row["all_gold"] == (found == set(question.gold_ids))


def failing(*ids: str) -> ScriptedGenerator:
    def answer(prompt: Prompt) -> str:
        if prompt.question.id in ids:
            raise GenerationError("the model fell over")
        return SCRIPT.get(prompt.question.id, "x")

    return ScriptedGenerator(answer)


def never(prompt: Prompt) -> str:
    """For runs of which nothing is left to be asked."""
    raise AssertionError(f"asked about '{prompt.question.id}'")
