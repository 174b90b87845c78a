"""The study of search strategies, on made-up cells with a known answer."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.strategies.bound import oracle_at, predictable
from benchmarks.strategies.command import _text
from benchmarks.strategies.limits import limits, limits_in_words
from benchmarks.strategies.picture import draw
from benchmarks.strategies.simulate import OTHERS, POLICIES, PRICE, live, order_of, reported, told_of
from benchmarks.strategies.study import report
from benchmarks.strategies.table import BASE, every_action, outcomes_of
from mio_rag.learning.outcomes import read_outcomes


def line(number: int) -> dict[str, Any]:
    """Hyde finds the missing half of the gold; the others find nothing new."""
    rng = np.random.default_rng(number)
    vector = rng.standard_normal(12)
    cells = {}
    for action in every_action():
        names = action.split("+")
        helped = 0.5 if "hyde" in names else 0.0
        others = [name for name in names if name != BASE]
        tokens = 100 * len(others)
        cells[action] = {
            "gold_recall": 0.4 + helped, "all_gold": 0.0, "pool_recall": 1.0, "pool_all_gold": 1.0,
            "tokens": tokens, "lm_calls": len(others), "retrieval_calls": len(names),
        }  # fmt: skip
        if BASE in names:
            cells[action] |= {
                "own": {name: 0.5 if name == "hyde" else 0.0 for name in others},
                "overlap": [[a, b, 0.0] for i, a in enumerate(others) for b in others[i + 1 :]],
                "base": 0.4,
                "total": 0.4 + helped,
            }
    kind = "Who" if number % 2 else "When"
    return {
        "set": "squad2" if number % 3 else "hotpotqa",
        "id": str(number),
        "question": f"{kind} wrote number {number}?",
        "embedding": (vector / np.linalg.norm(vector)).tolist(),
        "cells": cells,
    }


@pytest.fixture(scope="module")
def cells() -> list[dict[str, Any]]:
    return [line(number) for number in range(12)]


def test_a_policy_finds_the_strategy_that_pays(cells: list[dict[str, Any]]) -> None:
    lived = live(cells, order_of(range(12), 200, 0), POLICIES["linucb"])
    late = lived.actions[120:]
    assert sum("hyde" in action for action in late) > 0.9 * len(late)
    uniform = live(cells, order_of(range(12), 200, 0), POLICIES["uniform"])
    assert lived.earned[120:].mean() > uniform.earned.mean() + 0.1
    gold = live(cells, order_of(range(12), 200, 0), POLICIES["linucb"], gold=True)
    assert gold.actions == lived.actions  # here contributions say what the gold says


def test_the_report_holds_what_is_known(cells: list[dict[str, Any]], tmp_path: Path) -> None:
    told = report(cells, 2, 120, lambda _: None)
    assert told["best_fixed"] == "hyde"
    assert told["oracle"]["utility"] == pytest.approx(0.9 - PRICE * 100)
    assert told["beyond_raw"]["raw+hyde"]["mean"] == pytest.approx(0.5)
    regret = {name: each["regret"]["120"]["mean"] for name, each in told["policies"].items()}
    assert regret["fixed: hyde"] == pytest.approx(0, abs=1e-9)
    assert regret["fixed: raw"] == pytest.approx(120 * (0.5 - PRICE * 100))
    assert regret["linucb"] < regret["uniform"] < regret["fixed: raw"]
    behind = {name: each["regret_to_best_fixed"]["120"]["mean"] for name, each in told["policies"].items()}
    assert behind["fixed: best fixed in hindsight (hyde)"] == pytest.approx(0, abs=1e-9)
    assert behind["linucb"] == pytest.approx(regret["linucb"])  # here one set is the best of every question
    assert told["beaten"]["raw"]["questions"] == 12
    assert told["beaten"]["hyde"]["questions"] == 0
    goals = told["goals"]
    assert goals["regret_share_of_uniform"]["share"] == pytest.approx(regret["linucb"] / regret["uniform"])
    rivals = goals["below_every_rival"]
    assert "fixed: raw" in rivals["less_regret_than"]
    assert not rivals["reached_for_fixed_sets_too"]  # HyDE alone, without the question, costs as much
    equal = told["equal_cost"]
    assert equal["fixed_mixture"] == pytest.approx(0.4 + 0.5 * min(1.0, equal["tokens"] / 100))
    assert equal["oracle"] == pytest.approx(equal["fixed_mixture"])  # all questions are alike
    assert [row["oracle_margin"] for row in told["other_costs"]] == pytest.approx([0.0] * 4)
    for learner in equal["question_alone"].values():
        assert learner["recall"] <= equal["oracle"] + 1e-9
    draw(told, tmp_path / "p.png")
    assert (tmp_path / "p.png").stat().st_size > 10_000
    text = _text(told)
    assert "off-policy: truth" in text
    (row,) = re.findall(r"^uniform +([\d.]+) +[\d.]+ +([\d.]+) ", text, re.M)
    assert [float(v) for v in row] == pytest.approx([behind["uniform"], regret["uniform"]], abs=0.01)
    said, _ = re.findall(r"at most a third of uniform's regret after 120 questions: (.*)", text)
    share = goals["regret_share_of_uniform"]["share"]
    assert f"of each question ({share:.2f}; on 0 of 12 questions is any set worth more than hyde)" in said
    assert "any policy, pools of 50:" in text
    assert told["limits"]["needed_share_of_oracle"] == 0.0  # who treats all alike loses nothing here
    table = outcomes_of(cells)
    table.write(tmp_path / "o.parquet")
    assert read_outcomes(tmp_path / "o.parquet").actions == tuple(every_action())
    assert len(every_action()) == 31
    assert BASE not in OTHERS


def test_who_knows_all_outcomes_pays_where_a_token_brings_most() -> None:
    quality, cost = np.array([[0.0, 1.0], [0.2, 0.7]]), np.array([[0.0, 10.0], [0.0, 5.0]])
    # One question gains 1 for 10 tokens, the other .5 for 5: two questions share what is spent.
    assert oracle_at(quality, cost, 0.0) == pytest.approx(0.1)
    assert oracle_at(quality, cost, 2.5) == pytest.approx(0.1 + 0.25)
    assert oracle_at(quality, cost, 5.0) == pytest.approx(0.1 + 0.5)
    assert oracle_at(quality, cost, 100.0) == pytest.approx(0.85)


def test_learners_are_not_tried_on_what_they_learned_from(cells: list[dict[str, Any]]) -> None:
    # Outcomes that have nothing to do with the question: a nearest neighbour would know its own.
    rng = np.random.default_rng(0)
    lines = [line(number) for number in range(60)]
    recall = np.column_stack([np.full(60, 0.5), rng.random(60) < 0.5]).astype(float)
    tokens = np.tile([0.0, 0.0], (60, 1))
    found = predictable(lines, recall, tokens, 0.0, recall[:, 0])
    assert max(each["recall"] for each in found.values()) < 0.7
    assert all(each["beyond_fixed"]["low"] <= 0 for each in found.values())


def test_learners_find_what_a_question_shows() -> None:
    """Else that they find nothing would be no evidence that there is nothing."""
    words = ("Who", "When", "Why", "Which")
    lines = [{**line(number), "question": f"{words[number % 4]} is it?"} for number in range(120)]
    who = np.arange(120) % 4 == 0
    rng = np.random.default_rng(0)
    noise = rng.random(120) < 0.1
    recall = np.column_stack([np.full(120, 0.5), np.where(who ^ noise, 1.0, 0.3)])
    tokens = np.tile([0.0, 100.0], (120, 1))
    fixed = np.full(120, 0.5)  # what the other pays for one in four is lost on the rest
    found = predictable(lines, recall, tokens, 30.0, fixed)
    for name in ("by type of question", "ridge 1", "ridge 10"):
        assert found[name]["beyond_fixed"]["low"] > 0.05
        assert found[name]["tokens"] <= 30
    assert found["the same for all"]["beyond_fixed"]["high"] <= 1e-9


def test_what_any_policy_could_lose_follows_from_the_report() -> None:
    learner = {"recall": 0.6, "tokens": 10.0, "beyond_fixed": {"mean": 0.01, "low": -0.01, "high": 0.03}}
    nothing = {"recall": 0.5, "tokens": 0.0, "beyond_fixed": {"mean": -0.1, "low": -0.2, "high": 0.3}}
    told = {
        "best_fixed": "raw",
        "questions": 10,
        "questions_of_an_order": 100,
        "actions": {"raw": {"utility": 0.5}},
        "beaten": {"raw": {"questions": 2, "mean": 0.04}},
        "policies": {
            "fixed: best fixed in hindsight (raw)": {"last_regret": [4.0, 6.0]},
            "uniform": {"last_regret": [8.0, 12.0]},
        },
        "equal_cost": {"tokens": 20.0, "fixed_mixture": 0.59, "question_alone": {"a": learner}},
        "other_costs": [{"at_most": 50.0, "fixed_mixture": 0.6, **nothing}],
    }
    found = limits(told, 0.001)
    assert found["alike_share_of_uniform"] == pytest.approx({"share": 0.5, "low": 0.5, "high": 0.5})
    assert found["needed_a_question"] == pytest.approx((5 - 10 / 3) / 100)
    assert found["needed_share_of_oracle"] == pytest.approx((5 - 10 / 3) / 5)
    gain = found["questions_that_gain"]
    # Clopper and Pearson's limits of 2 in 10, as their tables have them.
    assert [gain["low"], gain["high"]] == pytest.approx([0.0252, 0.5561], abs=1e-4)
    assert found["oracle_margin"]["high"] == pytest.approx(0.2 * 0.5561, abs=1e-4)
    first, second = found["told_of_others"]
    assert [first[key] for key in ("mean", "low", "high")] == pytest.approx([0.09, 0.07, 0.11])
    assert [second[key] for key in ("mean", "low", "high")] == [0.0, 0.0, 0.0]  # no model was asked
    assert found["told_and_remembers"]["regret"] == pytest.approx(0.4 * (1 - 0.9**100))


def test_the_committed_limits_are_those_of_the_committed_report() -> None:
    told = json.loads((Path(__file__).parents[2] / "benchmarks/results/strategies.json").read_text())
    for each in (told, *told["other_pools"].values()):
        assert limits(each, told["price_of_a_token"]) == each["limits"]
        for said in limits_in_words(each):
            assert said in (Path(__file__).parents[2] / "benchmarks/results/strategies.txt").read_text()


def test_nothing_is_reported_on_what_settings_were_chosen_by(cells: list[dict[str, Any]]) -> None:
    placed = [{**line, "place": 3 * number} for number, line in enumerate(cells)]
    assert [line["place"] for line in reported(placed)] == [21, 24, 27, 30, 33]


def test_what_a_bandit_hears_of_the_table(cells: list[dict[str, Any]]) -> None:
    told = told_of(cells[0], ("raw", "hyde", "grounded"))
    assert told["own"] == {"hyde": 0.5, "grounded": 0.0}
    assert told["tokens"] == {"raw": 0, "hyde": 100, "grounded": 100}
