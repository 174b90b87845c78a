"""Goals of the study of routers, worked out by hand."""

from typing import Any

import numpy as np
import pytest

from benchmarks.router.goals import chosen_elsewhere, goals_of
from benchmarks.router.rows import Group, Row
from mio_rag.learning.outcomes import Outcomes
from tests.control.router.made import table as made_table


def small(did: dict[str, list[float]], tokens: dict[str, float]) -> tuple[list[Row], Group]:
    """Ten questions of HotpotQA, each a row for what it does on them."""
    names = list(did)
    values = {
        "worked": np.array([did[name] for name in names]).T,
        "prompt_tokens": np.tile([tokens[name] for name in names], (10, 1)),
    }
    ids = tuple(f"q{k}" for k in range(10))
    outcomes = Outcomes(ids, tuple(names), values, sets=("hotpotqa",) * 10)
    rows = [
        Row(name, "fixed k" if name == "k5" else "price", np.tile(np.eye(len(names))[k], (10, 1)))
        for k, name in enumerate(names)
    ]
    return rows, Group("made", {"published": made_table(10)}, outcomes)


def test_the_setting_is_chosen_on_other_questions() -> None:
    tokens = {"k5": 700.0, "half": 300.0, "cheap": 100.0, "dear": 500.0}
    # Folds are questions 0 and 5, 1 and 6, ... Without questions 0 and 5, "half" does 4 of 8 and "cheap" 5;
    # without any other two, "half" does 5 of 8 and "cheap" 4 at most.
    did: dict[str, list[float]] = {
        "k5": [1.0] * 10,
        "half": [1, 1, 1, 1, 1, 1, 0, 0, 0, 0],
        "cheap": [0, 1, 1, 1, 1, 0, 1, 0, 0, 0],
        "dear": [1.0] * 10,  # never: it saves 2 of 7
    }
    found = chosen_elsewhere(*small(did, tokens), "evidence")["hotpotqa"]
    assert found["settings"] == {"half": 8, "cheap": 2}
    # "cheap" misses both of its questions; "half" does 1, 2, 3 and 4, and none of 6 to 9.
    assert found["difference"]["mean"] == pytest.approx(0.4 - 1)
    assert found["saved"] == pytest.approx(1 - (8 * 300 + 2 * 100) / 7000)
    # Where nothing saves half, it is the row that saves most.
    (dear,) = chosen_elsewhere(*small(did, tokens | {"half": 400, "cheap": 600}), "evidence").values()
    assert dear["settings"] == {"half": 10}
    assert dear["saved"] == pytest.approx(1 - 400 / 700)


def test_too_few_questions_choose_nothing() -> None:
    rows, group = small({"k5": [1.0] * 10, "half": [1.0] * 10}, {"k5": 700.0, "half": 300.0})
    other = Outcomes(
        group.outcomes.ids, ("k5", "half"), group.outcomes.values, sets=("squad2",) * 5 + ("nq",) * 5
    )
    assert chosen_elsewhere(rows, Group("made", group.ladders, other), "evidence") == {}


def interval(mean: float, low: float, high: float) -> dict[str, float]:
    return {"mean": mean, "low": low, "high": high}


def entry(kind: str, worked: float, tokens: float, **more: Any) -> dict[str, Any]:
    return {
        "kind": kind,
        "worked": interval(worked, worked - 0.1, worked + 0.1),
        "prompt_tokens": interval(tokens, tokens, tokens),
        "against k5": {"token_reduction": 1 - tokens / 700, "worked": interval(worked - 0.7, -1, 1)},
        "sets": {"hotpotqa": {"saved": 1 - tokens / 700, "against k5": interval(worked - 0.7, -0.1, 0.1)}},
        **more,
    }


def figures(questions: int = 200, **chosen: Any) -> dict[str, Any]:
    rows = {
        "easy": entry("tier", 0.5, 200),
        "k5": entry("fixed k", 0.7, 700),
        "published router": entry("router", 0.6, 300, accuracy=0.72, most_frequent_label=0.5),
        "price-.002": entry("price", 0.65, 200),
        "both": entry("both", 0.75, 290),
    }
    found = {"difference": interval(0.01, -0.004, 0.02), "saved": 0.55, "settings": {}} | chosen
    group = {"questions": questions, "sets": {"hotpotqa": questions}, "rows": rows}
    return {"learned": group | {"chosen": {"hotpotqa": found}}}


def verdicts(groups: dict[str, Any], seconds: float = 1e-4) -> list[str]:
    return [goal["met"] for goal in goals_of(groups, {"mlp": seconds}, "evidence")]


def test_each_goal_is_met_or_not() -> None:
    groups = figures()
    goals = goals_of(groups, {"mlp": 1e-4}, "evidence")
    assert [goal["met"] for goal in goals] == ["met"] * 5
    assert "settings chosen on other questions 55%, +0.010 (-0.004 to +0.020)" in goals[2]["found"]
    assert "in hindsight both 59%, +0.050" in goals[2]["found"]
    rows = groups["learned"]["rows"]
    rows["published router"]["accuracy"] = 0.719
    rows["published router"]["against k5"]["token_reduction"] = 0.0
    rows["price-.002"]["prompt_tokens"] = interval(201, 201, 201)  # now nothing is as cheap as "easy"
    groups["learned"]["chosen"]["hotpotqa"]["difference"] = interval(-0.006, -0.1, 0.1)
    goals = goals_of(groups, {"mlp": 0.002, "utility": 1e-5}, "evidence")
    assert [goal["met"] for goal in goals] == ["not met"] * 5
    assert "2 of 3 rivals; not than easy" in goals[3]["found"]
    assert "mlp, takes 2.000 ms" in goals[4]["found"]


def test_half_of_the_tokens_takes_the_saving_the_mean_and_the_interval() -> None:
    assert verdicts(figures(difference=interval(0.01, -0.1, 0.1)))[2] == "in mean"
    assert verdicts(figures(difference=interval(-0.005, -0.005, 0)))[2] == "met"
    assert verdicts(figures(saved=0.499))[2] == "not met"


def test_few_questions_tell_nothing() -> None:
    found = verdicts(figures(questions=99))
    assert [found[k] for k in (0, 1, 3)] == ["open"] * 3
    assert found[2] == "in mean"  # whatever the interval says
    groups = figures()
    groups["learned"]["chosen"] = {}
    assert verdicts(groups)[2] == "open"
