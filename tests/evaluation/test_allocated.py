"""The method that shares a total among all questions: never above it, the same when resumed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mio_rag.context import RegexCounter
from mio_rag.corpora.load import Dataset
from mio_rag.errors import InputError
from mio_rag.evaluation.contenders import make_methods
from mio_rag.evaluation.harness import EvaluationSettings
from mio_rag.generation import ScriptedGenerator
from mio_rag.retrieval import CorpusIndex, RetrievalSettings
from mio_rag.selection.selector import Selector
from tests.evaluation.runs import run, timeless

FEW: dict[str, Any] = {
    "methods": ("exact", "allocated"),
    "budgets": (60, 150),
    "retrieval": RetrievalSettings(pool=12),
    "limit": 8,
    "selector": Selector(),
}


def objective(rows: Sequence[dict[str, Any]], method: str, budget: int) -> float:
    """Probability mass of what was chosen: the value of the default program, but for pairs and penalty."""
    found = [r for r in rows if (r["method"], r["budget_tokens"]) == (method, budget)]
    return sum(d["relevance"] for r in found for d in r["decisions"] if d["selected"])


def test_a_total_is_shared_and_never_exceeded(demo: Dataset, demo_index: CorpusIndex, tmp_path: Path) -> None:
    result = run(demo, demo_index, None, tmp_path, **FEW)
    for budget in (60, 150):
        tokens = [
            r["tokens_used"]
            for r in result.rows
            if (r["method"], r["budget_tokens"]) == ("allocated", budget)
        ]
        assert sum(tokens) <= 8 * budget
        assert max(tokens) > budget > min(tokens)
        assert objective(result.rows, "allocated", budget) > objective(result.rows, "exact", budget)
    assert all(row["error"] is None for row in result.rows)


def test_resumed_it_shares_among_the_same_questions(
    demo: Dataset, demo_index: CorpusIndex, tmp_path: Path
) -> None:
    whole = run(demo, demo_index, None, tmp_path / "whole", **FEW)
    written = (tmp_path / "whole" / "rows.jsonl").read_text().splitlines()
    run(demo, demo_index, None, tmp_path / "cut", **FEW)
    (tmp_path / "cut" / "rows.jsonl").write_text("\n".join(written[:11]) + "\n")
    resumed = run(demo, demo_index, None, tmp_path / "cut", resume=True, **FEW)
    assert timeless(resumed.rows) == timeless(whole.rows)


def test_a_readers_tokens_are_what_is_shared(
    rivers: Dataset, river_index: CorpusIndex, tmp_path: Path
) -> None:
    class Wordy(ScriptedGenerator):
        def count(self, texts: Sequence[str]) -> list[int]:
            return [2 * tokens + 3 for tokens in RegexCounter().count(texts)]

    result = run(
        rivers, river_index, Wordy({q.id: "x" for q in rivers.questions}), tmp_path,
        methods=("allocated",), budgets=(70,),
    )  # fmt: skip
    assert 0 < sum(row["tokens_used"] for row in result.rows) <= 70 * len(rivers.questions)


def test_what_it_cannot_do_is_said() -> None:
    with pytest.raises(InputError, match=r"method 'allocated': token_price=0.1 is what is looked for here"):
        EvaluationSettings(methods=("allocated",), selector=Selector(token_price=0.1))
    (method,) = make_methods(["allocated"], Selector())
    with pytest.raises(InputError, match="shares one total among all questions"):
        method.select(None, 100, RegexCounter())  # type: ignore[arg-type]
