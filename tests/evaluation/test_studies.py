"""Studies of published systems, policies that ship with them, and rows with settings of their own."""

import json
from pathlib import Path
from typing import Any

import pytest

from mio_rag.errors import InputError
from mio_rag.evaluation.python import evaluate
from mio_rag.evaluation.studies import Study, StudyRun, drawn, load_study, made_tables, study_names
from mio_rag.policy import PRESETS, Policy
from mio_rag.policy_keys import load_policy, parts_of, policy_names, split_name
from tests.cli.running import here, only_object, refused

SHIPPED = [name for name in PRESETS if "/" in name]


@pytest.mark.parametrize("name", SHIPPED)
def test_every_policy_that_ships_can_be_read_and_says_what_it_is(name: str) -> None:
    assert Policy.load(name).about
    assert name.partition("/")[0] in ("published", "ours")


def test_robust_selection_has_the_published_objective() -> None:
    published = Policy.load("published/robust-selection").selector(0.0, Policy().selection.program())
    said = {
        "relevance_model": "given", "redundancy_weight": 0.1, "passage_penalty": 0.02, "radius": 0.05,
        "norm": "l2", "counterpart": "termwise", "link_benefit": 0.0, "token_price": 0.0,
    }  # fmt: skip
    assert {name: getattr(published, name) for name in said} == said


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
[[figures]]
title = "Curve"
kind = "curve"
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
    assert len(told["files"]) == 4
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


def test_variants_are_rows_of_their_own(tmp_path: Path) -> None:
    shown = {"tables": [{"title": "T", "columns": ["tokens_used"]}],
             "figures": [{"title": "F", "kind": "bars", "y": "tokens_used"}]}  # fmt: skip
    study = Study.from_dict({"contenders": {"a": "topk"}, "variants": {"x": {}, "y": {}}, **shown})
    rows = [{"question_id": q, "method": "topk", "budget_tokens": 9, "tokens_used": 5} for q in "pq"]
    more = [{**row, "tokens_used": 7} for row in rows]
    run = StudyRun.of(study, {"x": rows, "y": more}, {"topk": "a"}, tmp_path)
    (made,) = made_tables(run)
    assert made.columns[0][1] == ["a, x", "a, y"]
    assert made.columns[2][1] == ["", "+2 (+2 to +2)"]
    assert drawn(run)[0].is_file()


def test_what_a_study_names_must_be_there() -> None:
    with pytest.raises(InputError, match="no contender"):
        Study.from_dict({"contenders": {"a": "topk"}, "baseline": "b"})
    with pytest.raises(InputError, match="table 'nothing' is unknown"):
        Study.from_dict({"contenders": {"a": "topk"}, "tables": [{"title": "T", "by": "nothing"}]})
    with pytest.raises(InputError, match="study 'x' is unknown"):
        load_study("x")
