"""Methods that share a total among questions, allocated and paced: never above it, and resumed alike."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mio_rag.context import RegexCounter
from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import InputError
from mio_rag.evaluation.contenders import make_methods
from mio_rag.evaluation.harness import EvaluationSettings
from mio_rag.generation import ScriptedGenerator
from mio_rag.retrieval import CorpusIndex, RetrievalSettings
from mio_rag.selection.selector import Selector
from tests.evaluation.runs import run, timeless

BUDGETS, COUNT = (60, 150), 16
FEW: dict[str, Any] = {
    "methods": ("exact", "allocated", "paced"), "budgets": BUDGETS, "retrieval": RetrievalSettings(pool=12),
    "limit": COUNT, "selector": Selector(),
}  # fmt: skip


class Interrupted(Exception):
    """In the midst of a run."""


def test_totals_are_kept_and_an_interrupted_run_ends_alike(
    demo: Dataset, demo_index: CorpusIndex, tmp_path: Path
) -> None:
    whole = run(demo, demo_index, None, tmp_path / "whole", **FEW)
    assert all(row["error"] is None for row in whole.rows)

    def of(method: str, budget: int) -> list[dict[str, Any]]:
        return [r for r in whole.rows if (r["method"], r["budget_tokens"]) == (method, budget)]

    def mass(method: str, budget: int) -> float:
        return float(sum(d["relevance"] for r in of(method, budget) for d in r["decisions"] if d["selected"]))

    for budget in BUDGETS:
        for method in ("allocated", "paced"):
            used = [row["tokens_used"] for row in of(method, budget)]
            assert len(used) == COUNT
            assert 0 < sum(used) <= COUNT * budget
            assert max(used) > budget > min(used)  # one question pays for another
        assert mass("allocated", budget) > mass("exact", budget)

    done = 0

    def interrupt(count: int, text: str) -> None:
        nonlocal done
        done += count
        if done in (4, 8):
            raise Interrupted

    for _ in range(2):
        with pytest.raises(Interrupted):
            run(demo, demo_index, None, tmp_path / "cut", resume=True, progress=interrupt, **FEW)
    resumed = run(demo, demo_index, None, tmp_path / "cut", resume=True, **FEW)
    assert timeless(resumed.rows) == timeless(whole.rows)
    with pytest.raises(InputError, match="had another questions_of_paced"):
        run(demo, demo_index, None, tmp_path / "cut", resume=True, **{**FEW, "limit": COUNT + 1})


def test_a_readers_tokens_are_what_is_shared(
    rivers: Dataset, river_index: CorpusIndex, tmp_path: Path
) -> None:
    class Wordy(ScriptedGenerator):
        def count(self, texts: Sequence[str]) -> list[int]:
            return [2 * tokens + 3 for tokens in RegexCounter().count(texts)]

    reader = Wordy({q.id: "x" for q in rivers.questions})
    result = run(rivers, river_index, reader, tmp_path, methods=("allocated",), budgets=(70,))
    assert 0 < sum(row["tokens_used"] for row in result.rows) <= 70 * len(rivers.questions)


def test_unusable_settings_are_refused() -> None:
    with pytest.raises(InputError, match=r"method 'allocated': token_price=0.1 is what is looked for here"):
        EvaluationSettings(methods=("allocated",), selector=Selector(token_price=0.1))
    (method,) = make_methods(["allocated"], Selector())
    with pytest.raises(InputError, match="shares one total among all questions"):
        method.select(None, 100, RegexCounter())  # type: ignore[arg-type]
    assert EvaluationSettings(methods=("paced",)).names == ("paced",)
    with pytest.raises(InputError, match="'paced' is listed twice"):
        EvaluationSettings(methods=("paced", "paced"))
    with pytest.raises(InputError, match="did you mean 'paced'"):
        EvaluationSettings(methods=("paced", "paces"))
