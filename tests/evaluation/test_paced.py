"""The method "paced": one total for a run, in the order of its questions, also where it was interrupted."""

from pathlib import Path
from typing import Any

import pytest

from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import InputError
from mio_rag.evaluation.harness import EvaluationSettings, evaluate
from mio_rag.retrieval import CorpusIndex
from tests.evaluation.runs import timeless

BUDGETS = (64, 160)
COUNT = 24


class Interrupted(Exception):
    """In the midst of a run."""


def settings(**changes: Any) -> EvaluationSettings:
    given: dict[str, Any] = {"methods": ("fused", "paced"), "budgets": BUDGETS, "limit": COUNT}
    return EvaluationSettings(**{**given, **changes})


def test_questions_share_a_total_that_is_never_exceeded(
    demo: Dataset, demo_index: CorpusIndex, tmp_path: Path
) -> None:
    result = evaluate(demo, demo_index, None, settings(), tmp_path)
    for budget in BUDGETS:
        used = [
            row["tokens_used"]
            for row in result.rows
            if (row["method"], row["budget_tokens"]) == ("paced", budget)
        ]
        assert len(used) == COUNT
        assert 0 < sum(used) <= COUNT * budget
        assert max(used) > budget  # a hard question may take more than its share
    assert all(row["error"] is None for row in result.rows)


def test_an_interrupted_run_goes_on_as_if_it_had_not_been(
    demo: Dataset, demo_index: CorpusIndex, tmp_path: Path
) -> None:
    whole = evaluate(demo, demo_index, None, settings(), tmp_path / "whole")
    done = 0

    def interrupt(count: int, text: str) -> None:
        nonlocal done
        done += count
        if done in (8, 16):
            raise Interrupted

    for _ in range(2):
        with pytest.raises(Interrupted):
            evaluate(demo, demo_index, None, settings(), tmp_path / "cut", resume=True, progress=interrupt)
    resumed = evaluate(demo, demo_index, None, settings(), tmp_path / "cut", resume=True)
    assert timeless(resumed.rows) == timeless(whole.rows)


def test_more_questions_would_have_been_paced_otherwise(
    demo: Dataset, demo_index: CorpusIndex, tmp_path: Path
) -> None:
    evaluate(demo, demo_index, None, settings(limit=4), tmp_path)
    with pytest.raises(InputError, match="had another questions_of_paced"):
        evaluate(demo, demo_index, None, settings(limit=8), tmp_path, resume=True)


def test_paced_is_listed_once_and_may_stand_alone() -> None:
    assert settings(methods=("paced",)).names == ("paced",)
    with pytest.raises(InputError, match="'paced' is listed twice"):
        settings(methods=("paced", "paced"))
    with pytest.raises(InputError, match="did you mean 'paced'"):
        settings(methods=("paced", "paces"))
