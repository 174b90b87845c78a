"""Studies of published systems, policies that ship with them, and rows with settings of their own."""

import json
from pathlib import Path
from typing import Any

import pytest

import mio_rag
from mio_rag.errors import InputError
from mio_rag.evaluation.python import evaluate
from mio_rag.evaluation.studies import Study, StudyRun, drawn, load_study, made_tables, study_names
from mio_rag.policy import PRESETS, Policy
from mio_rag.policy.keys import load_policy, parts_of, policy_names, split_name
from mio_rag.storage import read_toml
from tests.cli.running import here, only_object, refused

SHIPPED = [name for name in PRESETS if "/" in name]


@pytest.mark.parametrize("name", SHIPPED)
def test_every_policy_that_ships_can_be_read_and_says_what_it_is(name: str) -> None:
    assert Policy.load(name).about
    assert name.partition("/")[0] in ("published", "ours")


_TIER = {"unit": "characters", "compress": "sentences"}
#: What was published, as the policy files have it; what is left out of a file here was our choice.
PUBLISHED: dict[str, dict[str, Any]] = {
    "robust-selection": {
        "price.token": 0.0, "search.ranking": "dense", "search.link_hops": 0, "selection.by": "program",
        "selection.relevance_model": "given", "selection.redundancy_weight": 0.1,
        "selection.passage_penalty": 0.02, "selection.radius": 0.05, "selection.norm": "l2",
        "selection.counterpart": "termwise", "selection.link_benefit": 0.0, "selection.units": "passages",
        "selection.near_duplicates": "all", "selection.merge": False,
    },
    "argo": {
        "price.token": 0.0, "order.workflow": "no-retrieval", "repeat.by": "mdp", "repeat.from_start": True,
        "repeat.signal": "tracked", "repeat.query": "model",
        "repeat.process": {
            "retrieve_drop": 0.25, "reason_drop": 0.08, "success": 0.8, "retrieve_cost": 0.05,
            "reason_cost": 0.02, "discount": 0.98, "quality": "linear", "grid": 1001, "horizon": "inf",
            "epsilon": 1e-6, "iterations": 1000,
        },
    },
    "mao-arag": {
        "price.token": 0.0, "order.by": "model", "order.grammar": False,
        "training.method": "ppo", "training.mode": "once", "training.cost": "tokens",
        "training.workflows": [
            "no-retrieval", "plain", "rewrite-first", "model-selects", "decompose-parallel",
            "decompose-serial",
        ],
        "training.weights": {"tokens": 1.0, "turns": 0.5 * 0.25, "retrieval_calls": 0.25},
        "training.ppo": {
            "start": "nothing", "format_penalty": 1.0, "episodes": 96, "minibatch": 96, "epochs": 1,
            "clip": 0.2, "value_clip": 0.5, "gradient": 1.0, "entropy": 0.0, "kl": 0.001, "discount": 1.0,
            "smoothing": 1.0, "decay": 0.01, "annealed": False, "alphas": [0.1],
        },
    },
    "strategy-bandit": {
        "price.token": 0.0, "search.by": "bandit",
        "search.strategies": ["raw", "hyde", "query2doc", "grounded", "multi-query"],
        "search.bandit": {
            "policy": "linucb", "dimensions": 64, "alpha": 1.0, "alpha_unit": "reward", "ridge": 1.0,
            "ridge_embedding": 1.0, "base": [], "rule": "threshold", "threshold": 0.1, "cold_start": 100,
            "cold_share": 1.0, "explore": 0.3, "explore_decay": 0.99, "explore_least": 0.05, "unsure": 0.5,
            "all_every": 100, "reward": "found", "feedback": 0.3, "slow_seconds": 5.0, "slow_most": 0.2,
            "weighted": True, "prune_after": 50, "prune_by": "all", "prune_confidence": 0.0, "retrial": 0.0,
            "window_days": 30.0, "change_threshold": 1e12,
        },
        "selection.by": "ranking",
    },
    "router": {
        "price.token": 0.0, "search.strategies": ["raw"], "depth.by": "router", "selection.by": "tier",
        "repeat.by": "never",
        "depth.training": {
            "kind": "mlp", "features": "question", "hidden": [256, 64], "dropout": 0.3, "rate": 1e-3,
            "decay": 1e-4, "batch": 64, "epochs": 60, "held": 0.15, "correct_below": 0.52, "correct_more": 5,
        },
        "depth.tiers": [
            {"name": "easy", "depth": 2, "context": 600, "new_tokens": 64, **_TIER},
            {"name": "medium", "depth": 5, "context": 1200, "new_tokens": 96, "rerank": "maxsim", **_TIER},
            {"name": "hard", "depth": 10, "context": 2000, "new_tokens": 128, "rerank": "maxsim", **_TIER},
        ],
    },
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_constants_are_in_the_file(name: str) -> None:
    assert set(PUBLISHED) == {one[10:] for one in SHIPPED if one.startswith("published/")}
    file = Path(mio_rag.__file__).parent / "data" / "published" / f"{name}.toml"
    for key, value in PUBLISHED[name].items():
        part: Any = read_toml(file)
        for step in key.split("."):
            part = part[step]
        left = {k: part[k] for k in value} if isinstance(value, dict) else part
        assert left == value, key


@pytest.mark.parametrize("name", study_names())
def test_every_study_that_ships_can_be_read(name: str) -> None:
    study = load_study(name)
    assert study.about
    assert study.tables
    assert study.figures


def test_names_with_settings() -> None:
    assert parts_of("mio, exact[radius=.1,norm=linf],x[a={b=[1,2]}]") == [
        "mio", "exact[radius=.1,norm=linf]", "x[a={b=[1,2]}]",
    ]  # fmt: skip
    assert split_name("exact[radius=.1,price.token=.001]") == (
        "exact", {"selection.radius": 0.1, "price.token": 0.001},
    )  # fmt: skip
    assert load_policy("balanced[price.token=.25]").price.token == 0.25
    assert policy_names(["frugal[units=passages]", "exact[radius=.1]", "program:frugal"]) == [
        "policy:frugal[units=passages]", "exact[radius=.1]", "program:frugal",
    ]  # fmt: skip
    for wrong in ("exact[radius=.1", "exact[radiuss=.1]", "exact[radius]"):
        with pytest.raises(InputError):
            split_name(wrong)


def test_rows_with_settings_are_as_runs_with_these_settings(tmp_path: Path, demo_index: Any) -> None:
    def run(methods: list[str], **more: Any) -> dict[str, list[Any]]:
        found = evaluate(demo_index, "demo", methods=methods, budgets=[150], limit=8, **more)
        return {m: [r["selected_ids"] for r in found.rows if r["method"] == m] for m in found.run["methods"]}

    named = ["exact", "exact[redundancy_weight=.6]", "program:published/robust-selection"]
    together = run(named)
    assert len({json.dumps(one) for one in together.values()}) == 3
    assert together["exact"] == run(["exact"])["exact"]
    policy = Policy.from_dict({"selection": {"redundancy_weight": 0.6, "units": "passages"}})
    assert together[named[1]] == run(["exact"], policy=policy)["exact"]
    assert (
        together[named[2]]
        == run(["exact"], policy="published/robust-selection[search.ranking=fused]")["exact"]
    )


def test_wrong_settings_are_told_before_anything_runs() -> None:
    for methods, said in (
        ("exact[radiuss=1]", "did you mean selection.radius"),
        ("exact[limits.budget=3]", "no setting of a method"),
        ("program:nothing", "nothing"),
        ("exact,exact", "listed twice"),
    ):
        assert said in " ".join(refused(here("evaluate", "demo", "--methods", methods)))


STUDY = """
about = "Two rankings."
budgets = [120, 240]
limit = 6
learn = 3
model = "extract"
measures = []
prepare = ["policy new frugal --out {out}/mine.toml"]
[contenders]
one = "topk"
two = "program:{out}/mine.toml[units=passages]"
[[tables]]
title = "Found"
columns = ["gold_recall", "accuracy", "tokens_used", "retrieved_per_correct"]
[[figures]]
title = "Found, against tokens"
y = "gold_recall"
[[figures]]
title = "Bars"
kind = "bars"
y = "gold_recall"
"""


def test_a_study_learns_runs_and_shows(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(STUDY)
    arguments = ("evaluate", "demo", "--study", tmp_path / "mine.toml", "--out", tmp_path / "out", "--json")
    told = only_object(here(*arguments))
    (table,) = told["tables"]
    assert table["columns"]["system"] == ["one", "two", "one", "two"]
    assert table["columns"]["against one"][0] == ""
    assert "to" in table["columns"]["against one"][1]
    assert "Accuracy" not in table["columns"]  # of no question
    assert told["notes"][0] == "6 questions, reader extractive"
    assert "fewer than 30 questions" in told["notes"][1]
    assert (tmp_path / "out" / "tables.md").read_text().startswith("6 questions, reader")
    assert all(Path(file).is_file() for file in told["files"])
    assert len(told["files"]) == 3
    rows = [json.loads(line) for line in (tmp_path / "out" / "run" / "rows.jsonl").open()]
    learned = [json.loads(line)["id"] for line in (tmp_path / "out" / "learn" / "questions.jsonl").open()]
    assert len(learned) == 3
    assert not {row["question_id"] for row in rows} & set(learned)
    assert len(rows) == 6 * 2 * 2
    assert only_object(here(*arguments, "--resume"))["tables"] == told["tables"]
    for_people = here(*arguments[:-1], "--resume").stdout
    assert "6 questions, reader extractive\nnote: with fewer than 30" in for_people
    assert max(map(len, for_people.split("\n"))) <= 120 + len(str(tmp_path))


def test_a_study_of_a_small_set_learns_from_two_thirds_or_refuses_at_once(tmp_path: Path) -> None:
    study, out, few = tmp_path / "mine.toml", tmp_path / "out", tmp_path / "few.jsonl"
    study.write_text(STUDY.replace("learn = 3", "learn = 300").replace("limit = 6", "limit = 2"))
    command = ("evaluate", "demo", "--study", study, "--out", out)
    asked = [{"id": f"q{k}", "question": f"What is gallium {k}?", "answers": ["a metal"]} for k in range(29)]
    few.write_text("\n".join(map(json.dumps, asked)))
    for more, said in (
        (("--questions", few), "few.jsonl has 29 questions: give at least 30"),
        (("--measure", "judge=nothing-like-it"), "nothing-like-it"),
        (("--budget", "0"), "--budget"),
        (("--model", "nothing:x"), "nothing"),
        (("--methods", "mio"), "leave out --methods"),
    ):
        assert said in " ".join(refused(here(*command, *more))), said
        assert not out.exists()
    assert "PATH is missing" in " ".join(refused(here("evaluate", "--study", study, "--questions", few)))
    assert "run it once for each" in " ".join(
        refused(here("evaluate", "demo,demo", "--study", study, "--out", out))
    )
    ran = here(*command)
    assert "90 questions: the first 60 to learn from (the study takes up to 300)" in ran.stderr
    rows = [json.loads(line) for line in (out / "run" / "rows.jsonl").open()]
    learned = [json.loads(line)["id"] for line in (out / "learn" / "questions.jsonl").open()]
    assert len(learned) == 60
    assert not {row["question_id"] for row in rows} & set(learned)


def talk(names: str) -> list[dict[str, str]]:
    return [{"question": f"What is {name}?", "id": name, "conversation": "a"} for name in names.split()]


def test_a_conversation_is_smoother_at_a_price_of_changes(demo_index: Any, tmp_path: Path) -> None:
    asked = talk("gallium mercury iron lighthouse")
    free, dear = "exact[relevance_model=given]", "exact[relevance_model=given,side.change_price=.2]"
    found = evaluate(demo_index, asked, methods=[free, dear], budgets=[200])
    rows = {(row["question_id"], row["method"]): row for row in found.rows}
    assert "smoothness" not in rows["gallium", dear]
    assert rows["gallium", free]["selected_ids"] == rows["gallium", dear]["selected_ids"]
    before, now = (set(rows[name, free]["selected_ids"]) for name in ("gallium", "mercury"))
    assert rows["mercury", free]["smoothness"] == len(before & now) / len(before | now)
    mean = {one["method"]: one["smoothness"]["mean"] for one in found.summary}
    assert mean[dear] > mean[free]


def test_stability_is_that_of_the_method(demo_index: Any, tmp_path: Path) -> None:
    command = ("evaluate", "demo", "--methods", "topk:1,topk:40", "--budget", 9000, "--limit", 5, "--json")
    found = only_object(here(*command, "--measure", "stability=0.3", "--out", tmp_path / "out"))
    one, many = (entry["stability"]["mean"] for entry in found["summary"])
    assert 0 <= one <= 1
    assert 0.5 < many < 1
    assert "below 2" in " ".join(refused(here(*command[:-1], "--measure", "stability=3")))


def test_the_frontier_of_three_measures(tmp_path: Path) -> None:
    axes = {"x": "gold_recall", "y": "diversity", "z": "stability"}
    shown = {"tables": [{"title": "T", "by": "pareto", **axes}],
             "figures": [{"title": "F", "kind": "pareto", **axes}]}  # fmt: skip
    study = Study.from_dict({"contenders": {"a": "topk", "b": "mmr"}, **shown})
    rows = [{"question_id": "q", "method": name, "budget_tokens": 9, "gold_recall": 0.5, "diversity": d,
             "stability": 0.5} for name, d in (("topk", 0.2), ("mmr", 0.4))]  # fmt: skip
    run = StudyRun.of(study, {"": rows}, {"topk": "a", "mmr": "b"}, tmp_path)
    assert made_tables(run)[0].columns[-1] == ("on the frontier", ["", "yes"])
    assert drawn(run)[0].is_file()
