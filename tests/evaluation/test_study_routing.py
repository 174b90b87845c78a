"""Tables of the studies of the bandit and of the router, from rows whose answers are known."""

from pathlib import Path
from typing import Any

import pytest

from mio_rag.evaluation.studies import Study, StudyRun, drawn, made_tables
from mio_rag.learning.router import FitSettings, fit_and_validate
from mio_rag.learning.weights import write_weights
from tests.learning.bandits import TRUTH, lived, strategist
from tests.learning.routes import table


def run_of(folder: Path, shown: dict[str, Any], **rows: tuple[float, float]) -> StudyRun:
    """A run: name -> F1 and prompt tokens; every second of forty questions is unanswerable."""
    found = [
        {
            "question_id": f"q{k}", "question_type": "unanswerable" if k % 2 else "bridge", "method": name,
            "budget_tokens": 100, "token_f1": good * (k % 4 < 2), "exact_match": good * (k % 4 < 2),
            "gold_recall": good, "prompt_tokens": spent, "completion_tokens": 0,
        }
        for name, (good, spent) in rows.items()
        for k in range(40)
    ]  # fmt: skip
    study = Study.from_dict({"contenders": {name: name for name in rows}, **shown}, "study")
    return StudyRun.of(study, {"": found}, {name: name for name in rows}, folder)


def test_claims_equal_tokens_and_types_of_questions(tmp_path: Path) -> None:
    shown = {
        "tables": [
            {"title": "a", "by": "router_claim", "router": "routed", "others": ["fixed", "cheap"]},
            {"title": "b", "by": "equal_tokens", "compared": ["routed"], "with": ["cheap", "fixed"]},
            {"title": "c", "by": "by_type", "measures": ["token_f1", "prompt_tokens"]},
            {"title": "d", "by": "worth", "price": 0.001, "rival": "cheap"},
        ]
    }
    run = run_of(tmp_path, shown, routed=(0.99, 300), fixed=(1.0, 500), cheap=(0.5, 100))
    claim, equal, types, worth = (dict(one.columns) for one in made_tables(run))
    assert claim["holds"] == ["yes", "no"]
    assert claim["tokens"] == ["0.600 (0.600 to 0.600)", "3.000 (3.000 to 3.000)"]
    assert equal["F1"][0].startswith("+0.120 (")  # of a half of .99 less the mean of .25 and .5
    assert equal["evidence"][0].startswith("+0.240 (")
    assert types["token f1, 20 answerable"] == ["0.495", "0.500", "0.250"]
    assert types["prompt tokens, 20 unanswerable"] == ["300", "500", "100"]
    assert worth["against cheap"][0].startswith("+0.2900")


def test_a_router_and_a_bandit_are_shown(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    router, _ = fit_and_validate(table(), FitSettings(kind="mlp", epochs=4))
    write_weights(router.weights(), tmp_path / "r.safetensors")
    lived(strategist(tmp_path / "s.sqlite", cold_start=1000, dimensions=64), 30, TRUTH)
    state, of_router = {"state": "s.sqlite", "price": 0.0001}, {"router": "r.safetensors"}
    shown = {
        "tables": [
            {"title": "a", "by": "router_labels", **of_router},
            {"title": "b", "by": "bandit_strategies", **state},
            {"title": "c", "by": "bandit_hindsight", **state},
        ],
        "figures": [
            {"title": "a", "kind": "router_labels", **of_router},
            {"title": "b", "kind": "router_training", **of_router},
            {"title": "c", "kind": "bandit_hindsight", **state},
            {"title": "d", "kind": "worth_lost", "price": 0.001, "rival": "one"},
        ],
    }
    run = run_of(tmp_path, shown, one=(1.0, 10), other=(0.5, 10))
    labels, strategies, regret = (dict(one.columns) for one in made_tables(run))
    assert labels["label"][:3] == ["33%", "33%", "33%"]
    assert strategies["strategy"] == ["raw", "hyde", "query2doc", "grounded"]
    assert regret["bandit"][:2] == ["published", "ours"]
    assert regret["bandit"][-2].startswith("always raw+hyde")
    assert all(file.stat().st_size > 5000 for file in drawn(run))
