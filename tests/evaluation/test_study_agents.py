"""The published agents: their constants are in the files, and their studies make tables and figures."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mio_rag.evaluation.studies import load_study
from mio_rag.learning.mdp import solve_plan
from mio_rag.policy import Policy
from mio_rag.settings import toml_text
from tests.cli.running import here, only_object, refused


def test_argo_has_the_published_thresholds() -> None:
    policy = Policy.load("published/argo")
    reported = {("linear", 1.0): 0.158, ("log", 1.0): 0.141, ("exp", 1.0): 0.196, ("exp", 3.0): 0.257,
                ("exp", 8.0): 0.665}  # fmt: skip
    for (quality, k), above in reported.items():
        given = {**policy.repeat.process, "quality": quality, "k": k}
        plan = solve_plan(policy.replace(repeat=policy.repeat.replace(process=given)).repeat.model)
        assert plan.solution.method == "value_iteration"
        assert plan.solution.converged
        retrieves = plan.model.levels[plan.policy() == plan.model.actions.index("retrieve")]
        assert retrieves.min() == pytest.approx(above, abs=0.00101), (quality, k)


def test_a_study_plans_decides_and_tells_where_time_goes(tmp_path: Path) -> None:
    given, file = load_study("mao-arag").to_dict(defaults=False), tmp_path / "small.toml"
    contenders = {name: given["contenders"][name] for name in ("published", "untrained")}
    short = "--limit 14 --workflows no-retrieval,plain --updates 5"
    fewer = given["prepare"][0].replace("--limit 200", short)
    tables = [
        {"title": name, "by": name, "alphas": [0.1], "ppo": {"updates": 5}}
        for name in ("planners", "decisions", "judged", "latency")
    ]
    small: dict[str, Any] = {
        "about": "small", "learn": 14, "model": "extract", "budgets": [128], "prepare": [fewer],
        "contenders": contenders, "variants": {"a": {"model": "{model}"}, "b": {"model": "{model2}"}},
        "tables": tables, "figures": [{**tables[0], "kind": "planners"}, {**tables[3], "kind": "latency"}],
    }  # fmt: skip
    file.write_text(toml_text(small))
    out = tmp_path / "out"
    run = ("evaluate", "demo", "--study", file, "--limit", 3, "--out", out, "--json")
    told = only_object(here(*run))
    planners, decisions, judged, latency = (one["columns"] for one in told["tables"])
    assert planners["planner or workflow"] == ["published", "ours", "no-retrieval", "plain"]
    assert planners["reward less that of published"][1] != "\u2013"
    assert len(decisions["question"]) == 14
    assert set(decisions["workflow"]) <= {"no-retrieval", "plain"}
    assert set(decisions["of F1 >= .6"]) <= {"right, cheapest", "right, dearer", "missed", "hopeless"}
    assert next(iter(judged.values())) == ["0"]
    marked = (out / "decisions.csv").read_text().splitlines()
    assert len(marked) == 15
    marked[1], marked[2] = f"{marked[1]}yes", f"{marked[2]}No"
    (out / "decisions.csv").write_text("\n".join(marked))
    again = {one["title"]: one["columns"] for one in only_object(here(*run, "--resume"))["tables"]}
    assert again["decisions"]["judged"][:3] == ["yes", "no", ""]
    assert [one[0][:3] for one in again["judged"].values()][:2] == ["2", "50%"]
    (out / "decisions.csv").write_text("\n".join([*marked[:3], f"{marked[3]}perhaps"]))
    assert "write yes or no" in " ".join(refused(here(*run, "--resume")))
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
    alone = here(
        "evaluate",
        "--questions",
        tmp_path / "asked",
        "--study",
        "argo-alone",
        "--out",
        tmp_path / "a",
        "--json",
    )
    assert only_object(alone)["tables"][0]["columns"]["Model calls"][1] == "2"
