"""Short runs of the harness."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet

from mio_rag.evaluation.harness import EvaluationSettings, Report, evaluate
from mio_rag.generation import Generator, Prompt, ScriptedGenerator
from mio_rag.selection.selector import Selector
from mio_rag.types import GenerationError

SCRIPT = {"a": "Mount Falterona", "b": "406 kilometres", "c": "The Tiber", "d": "sand"}
#: Enough for one or two of the river passages, or for all of them.
SETTINGS = EvaluationSettings(methods=("topk", "mmr", "exact"), budgets=(30, 120))


class Crash(Exception):
    """An unforeseen error."""


def run(data: Any, index: Any, generator: Generator | None, out: Path, **changes: Any) -> Report:
    options = {name: changes.pop(name) for name in ("resume", "progress") if name in changes}
    changes.setdefault("selector", Selector(units="passages"))  # rows are checked by whole passages
    return evaluate(data, index, generator, replace(SETTINGS, **changes), out, **options)


def ledger(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(folder / "ledger.parquet").to_pylist()
    return rows


def timeless(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows without seconds and memory, which differ from run to run."""
    return [
        {k: v for k, v in row.items() if not k.endswith("_seconds") and k != "peak_memory_mb"} for row in rows
    ]


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def scripted(*failing: str, crash: str = "") -> ScriptedGenerator:
    """A reader that fails on some questions, and crashes on one."""

    def answer(prompt: Prompt) -> str:
        if prompt.question.id in failing:
            raise GenerationError("the model fell over")
        if prompt.question.id == crash:
            raise Crash
        return SCRIPT.get(prompt.question.id, f"answer to {prompt.question.id}")

    return ScriptedGenerator(answer)


def at(count: int) -> Any:
    """A progress that crashes after so many questions."""

    def crash(more: int, text: str) -> None:
        if text.startswith(f"{count} of"):
            raise Crash

    return crash
