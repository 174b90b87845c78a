"""The published agents: their constants are in the files, and their studies make tables and figures."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mio_rag.evaluation.studies import load_study
from mio_rag.learning.mdp import solve_plan
from mio_rag.learning.planner_training import Training
from mio_rag.policy import Policy
from mio_rag.settings import toml_text
from tests.cli.running import here, only_object


def test_argo_has_the_published_process_and_its_thresholds() -> None:
    policy = Policy.load("published/argo")
    process = policy.repeat.model
    assert (policy.repeat.rule, policy.repeat.from_start, policy.repeat.signal) == ("mdp", True, "tracked")
    assert process.to_dict() == {
        "retrieve_drop": 0.25, "reason_drop": 0.08, "success": 0.8, "retrieve_cost": 0.05,
        "reason_cost": 0.02, "discount": 0.98, "horizon": "inf", "quality": "linear", "k": 1.0, "grid": 1001,
        "epsilon": 1e-6, "iterations": 1000,
    }  # fmt: skip
    reported = {("linear", 1.0): 0.158, ("log", 1.0): 0.141, ("exp", 1.0): 0.196, ("exp", 3.0): 0.257,
                ("exp", 8.0): 0.665}  # fmt: skip
    for (quality, k), above in reported.items():
        given = {**policy.repeat.process, "quality": quality, "k": k}
        plan = solve_plan(policy.replace(repeat=policy.repeat.replace(process=given)).repeat.model)
        assert plan.solution.method == "value_iteration"
        assert plan.solution.converged
        retrieves = plan.model.levels[plan.policy() == plan.model.actions.index("retrieve")]
        assert retrieves.min() == pytest.approx(above, abs=0.00101), (quality, k)


def test_mao_arag_has_the_published_costs_and_training() -> None:
    policy = Policy.load("published/mao-arag")
    how = Training.from_dict(policy.training, "training")
    assert (policy.order.by, policy.order.grammar, how.method) == ("model", False, "ppo")
    assert how.weights.to_dict() == {"tokens": 1.0, "turns": 0.5 * 0.25, "retrieval_calls": 0.25}
    said = {
        "start": "nothing", "format_penalty": 1.0, "episodes": 96, "minibatch": 96, "epochs": 1, "clip": 0.2,
        "value_clip": 0.5, "gradient": 1.0, "entropy": 0.0, "kl": 0.001, "discount": 1.0, "smoothing": 1.0,
        "decay": 0.01, "annealed": False,
    }  # fmt: skip
    assert {name: getattr(how.ppo, name) for name in said} == said
    ours = Training.from_dict(Policy.load("ours/mao-arag").training, "training")
    assert (ours.method, ours.weights, ours.workflows) == ("regression", how.weights, how.workflows)


def test_a_study_plans_decides_and_tells_where_time_goes(tmp_path: Path) -> None:
    given, file = load_study("mao-arag").to_dict(defaults=False), tmp_path / "small.toml"
    contenders = {name: given["contenders"][name] for name in ("published", "untrained")}
    fewer = given["prepare"][0].replace("--limit 50", "--limit 14 --workflows no-retrieval,plain --updates 5")
    tables = [
        {"title": name, "by": name, "alphas": [0.1], "ppo": {"updates": 5}}
        for name in ("planners", "decisions", "latency")
    ]
    small: dict[str, Any] = {
        "about": "small", "learn": 14, "model": "extract", "budgets": [128], "prepare": [fewer],
        "contenders": contenders, "variants": {"a": {"model": "{model}"}, "b": {"model": "{model2}"}},
        "tables": tables, "figures": [{**tables[0], "kind": "planners"}, {**tables[2], "kind": "latency"}],
    }  # fmt: skip
    file.write_text(toml_text(small))
    out = tmp_path / "out"
    run = ("evaluate", "demo", "--study", file, "--limit", 3, "--out", out, "--json")
    told = only_object(here(*run))
    planners, decisions, latency = (one["columns"] for one in told["tables"])
    assert planners["planner or workflow"] == ["published", "ours", "no-retrieval", "plain"]
    assert planners["reward less that of published"][1] != "\u2013"
    assert len(decisions["question"]) == 14
    assert set(decisions["workflow"]) <= {"no-retrieval", "plain"}
    assert set(decisions["of F1 >= .6"]) <= {"right, cheapest", "right, dearer", "missed", "hopeless"}
    assert latency["system"] == ["published, a", "untrained, a", "published, b", "untrained, b"]
    shares = [float(latency[name][0].rstrip("%")) for name in ("retriever", "synthesizer", "overhead")]
    assert sum(shares) == pytest.approx(100, abs=0.3)
    assert min(float(one) for one in latency["speed-up"] if one != "\u2013") == 1.0
    assert all((out / name).stat().st_size > 10_000 for name in ("planners.png", "latency.png"))
    rows = [json.loads(line) for line in (out / "a" / "rows.jsonl").read_text().splitlines()]
    own = [row["total_seconds"] for row in rows if "invalid_plans" in row]
    assert float(latency["seconds"][1]) == pytest.approx(np.mean(own[1:]), abs=0.006)  # models are loaded
    invalid = [row["invalid_plans"] for row in rows if "invalid_plans" in row]
    assert len(invalid) == 3  # of the untrained one alone
    assert np.mean(invalid) > 0


def test_a_corpus_for_multiple_choice_is_a_folder_that_the_user_names(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "wg.md").write_text("# Open RAN\n\nO-RAN.WG1 describes the architecture.\n")
    choices = ["O-RAN.WG3", "O-RAN.WG1"]
    question = {"id": "q", "question": "Which group describes the architecture?", "choices": choices}
    (tmp_path / "asked").mkdir()
    asked = tmp_path / "asked" / "questions.jsonl"
    asked.write_text(json.dumps({**question, "answers": [choices[1]], "answer_index": 1, "gold_ids": []}))
    done = here(
        "evaluate", tmp_path / "docs", "--questions", tmp_path / "asked", "--methods", "published/argo",
        "-b", 256, "--model", "extract", "--embedder", "tfidf", "--out", tmp_path / "run", "--json",
    )  # fmt: skip
    (summary,) = only_object(done)["summary"]
    assert summary["accuracy"]["mean"] == 1.0
    assert summary["retrieval_calls"]["mean"] >= 1
