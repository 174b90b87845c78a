"""Both regimes of the study of search strategies: without labels, and told the gold of what ran."""

import copy
from typing import Any

import numpy as np
import pytest

from benchmarks.strategies.goals import OURS, goals, in_words, judge, when_told
from benchmarks.strategies.regimes import both_regimes, first_times, regimes_in_words
from benchmarks.strategies.simulate import POLICIES, PRICE, Lived, live, order_of, utility
from benchmarks.strategies.table import BASE, outcomes_of
from tests.benchmarks.test_strategies import line

Table = list[dict[str, Any]]


def told_wrongly(number: int) -> dict[str, Any]:
    """HyDE finds half of the gold; the program's estimate says that Query2Doc does, and HyDE nothing."""
    made = line(number)
    for cell in made["cells"].values():
        if "own" in cell:
            cell["own"] = {name: 0.5 if name == "query2doc" else 0.0 for name in cell["own"]}
            cell["total"] = 0.4 + max(cell["own"].values(), default=0.0)
    return made


def reported(cells: Table, orders: int, questions: int) -> dict[str, Any]:
    table = outcomes_of(cells)
    best = table.actions[table.best_fixed("gold_recall", {"tokens": PRICE})]
    found = {
        "questions": len(cells),
        "questions_of_an_order": questions,
        "best_fixed": best,
        "beaten": {best: {"questions": 0}},
        "actions": {best: {"tokens": 100.0}},
        **both_regimes(cells, table, best, orders, questions, lambda _: None),
    }
    judge(found)
    return found


def test_who_is_told_the_gold_learns_what_the_estimate_hides() -> None:
    found = reported([told_wrongly(number) for number in range(12)], 2, 120)
    here, gold = found["policies"], found["told_the_gold"]["policies"]
    assert set(gold) == set(POLICIES)
    for name in POLICIES:
        told, deaf = (each[name]["late_utility"]["mean"] for each in (gold, here))
        if name == "uniform":
            assert told == deaf  # it learns nothing
            assert gold[name]["last_regret"] == here[name]["last_regret"]
        else:
            assert told > deaf + 0.1, name
    assert here[f"{OURS}, told the gold"] == gold[OURS]
    # The same bandit reaches a goal in one regime and not in the other.
    share = "regret_to_best_fixed_share_of_uniform"
    assert not found["goals"][share]["reached"]
    assert found["goals"][share]["less_a_third_of_uniform"]["low"] > 0
    assert found["told_the_gold"]["goals"][share]["reached"]
    assert found["told_the_gold"]["equal_cost"]["recall"] > found["equal_cost"]["recall"] + 0.3
    text = "\n".join([*in_words(found), *in_words(when_told(found)), *regimes_in_words(found)])
    assert "told the gold of what it ran: worth a question" in text


def test_where_the_estimate_is_the_gold_both_regimes_are_one() -> None:
    cells = [line(number) for number in range(12)]
    order = order_of(range(12), 150, 3)
    for name, settings in POLICIES.items():
        priced = settings.replace(token_price=PRICE)
        assert live(cells, order, priced).actions == live(cells, order, priced, gold=True).actions, name


def test_nobody_hears_the_gold_of_what_did_not_run() -> None:
    """Else told policies would be no bandits: what did not run may be anything, and nothing changes."""
    cells = [line(number) for number in range(60)]
    for name in (OURS, "linucb, textbook", "thompson", "epsilon-greedy"):
        lived = live(cells, range(60), POLICIES[name], gold=True)
        other = copy.deepcopy(cells)
        for one, ran in zip(other, lived.actions, strict=True):
            for action, cell in one["cells"].items():
                if not set(action.split("+")) <= set(ran.split("+")):
                    cell["gold_recall"] = 0.9 if "multi-query" in action else 0.0
        assert other != cells
        assert live(other, range(60), POLICIES[name], gold=True).actions == lived.actions, name
        for one, ran in zip(other, lived.actions, strict=True):  # what did run is heard
            for action, cell in one["cells"].items():
                if set(action.split("+")) <= set(ran.split("+")):
                    cell["gold_recall"] = 0.9 if "multi-query" in action else 0.4
        assert live(other, range(60), POLICIES[name], gold=True).actions != lived.actions, name


def lived_by(cells: Table, order: list[int], chosen: list[str]) -> Lived:
    one = Lived()
    for place, action in zip(order, chosen, strict=True):
        cell = cells[place]["cells"][action]
        one.rows.append((utility(cell), cell["gold_recall"], cell["tokens"]))
        one.actions.append(action)
    return one


def test_memory_pays_only_where_a_question_comes_up_again() -> None:
    """Who tries HyDE on every new question, and keeps to what it found there, has learned of no other."""
    cells = [line(number) for number in range(8)]
    for place, one in enumerate(cells):
        for action, cell in one["cells"].items():
            pays = "hyde" in action.split("+") and place < 2
            cell["gold_recall"] = 0.9 if pays else 0.4
    table = outcomes_of(cells)
    rival = [utility(one["cells"][BASE]) for one in cells]
    orders = [[0, 1, 2, 0, 3, 0, 2, 4, 5, 1], [7, 0, 7, 1, 2, 3, 4, 5, 6, 0]]
    ours = []
    for order in orders:
        known: set[int] = set()
        chosen = []
        for place in order:
            chosen.append("raw+hyde" if place < 2 or place not in known else BASE)
            known.add(place)
        ours.append(lived_by(cells, order, chosen))
    raw = [lived_by(cells, order, [BASE] * 10) for order in orders]
    found = first_times({f"fixed: {BASE}": raw, OURS: ours}, orders, rival, table)
    assert found["questions"] == 7  # 6 and 8
    one, other = found["policies"][OURS], found["policies"][f"fixed: {BASE}"]
    each = 100 * PRICE
    first = np.array([2 * 0.5 / 6, 2 * 0.5 / 8]) - each
    assert one["first"]["mean"] == pytest.approx(first.mean())
    # Again: three of four where HyDE pays, and one of two.
    again = np.array([(3 * (0.5 - each)) / 4, (0.5 - each) / 2])
    assert one["again"]["mean"] == pytest.approx(again.mean())
    assert one["late"]["mean"] == pytest.approx(-each)  # question 6, after eight, in one of the orders
    assert other["late"]["mean"] == 0
    # By question: 0 and 1 gain .5 less the cost, six others the cost.
    assert one["by_question"]["mean"] == pytest.approx(2 * 0.5 / 8 - each)
    assert other["first"]["mean"] == other["again"]["mean"] == 0
    assert other["ours_more"]["mean"] == pytest.approx(first.mean())
    assert one["ours_more"]["mean"] == 0


def row(regret: list[float], recall: float = 0.6, tokens: float = 10.0) -> dict[str, Any]:
    kept = {"100": {"mean": float(np.mean(regret))}}
    return {
        "regret": kept, "regret_to_best_fixed": kept, "last_regret": regret,
        "late_recall": recall, "late_tokens": tokens,
    }  # fmt: skip


def test_goals_are_judged_by_what_the_policies_of_the_regime_have() -> None:
    everyone = "fixed: raw+hyde+query2doc+grounded+multi-query"
    equal = {"tokens": 10.0, "recall": 0.6, "fixed_mixture": 0.6, "oracle": 0.7, "oracle_margin": 0.1}
    equal |= {"question_alone": {}, "beyond_fixed": {"mean": 0.0, "low": -0.1, "high": 0.1}}
    found = {
        "questions_of_an_order": 100,
        "best_fixed": "raw",
        "policies": {
            OURS: row([3.0, 4.0, 3.5]),
            "thompson": row([3.1, 3.9, 3.5]),
            "uniform": row([30.0, 32.0, 31.0]),
            f"{OURS}, told the gold": row([-5.0, -5.1, -4.9]),
            "fixed: best fixed in hindsight (raw)": row([0.0, 0.0, 0.0]),
            everyone: row([50.0, 51.0, 52.0], 0.6, 100.0),
        },
        "equal_cost": equal,
        "choosing_ms": {"median": 0.2, "p95": 0.3},
        "told_the_gold": {
            "policies": {
                OURS: row([-5.0, -5.1, -4.9], 0.7, 30.0),
                "thompson": row([-1.0, -1.2, -0.9]),
                "uniform": row([30.0, 32.0, 31.0]),
            },
            "equal_cost": {**equal, "beyond_fixed": {"mean": 0.1, "low": 0.05, "high": 0.15}},
        },
    }
    judge(found)
    here, told = found["goals"], found["told_the_gold"]["goals"]
    rivals = here["below_every_rival"]
    assert rivals["no_difference"] == ["thompson"]
    assert rivals["reached"]  # none has less
    assert not rivals["below_each_that_learns"]  # but one may have as much
    assert not rivals["below_each_fixed_set"]
    assert f"{OURS}, told the gold" in rivals["more_regret_than"]
    assert here["evidence_at_equal_cost"]["more"] is False
    assert here["regret_to_best_fixed_share_of_uniform"]["less_a_third_of_uniform"]["high"] < 0
    rivals = told["below_every_rival"]
    assert rivals["below_each_that_learns"]
    assert rivals["below_each_fixed_set"]
    assert told["evidence_at_equal_cost"]["more"] is True
    assert told["share_of_all"]["cost"] == pytest.approx(0.3)
    assert "choosing_ms" in here
    assert "choosing_ms" not in told  # it was not measured there
    # A rival with less regret undoes it, in its regime alone.
    found["told_the_gold"]["policies"]["thompson"] = row([-6.0, -6.1, -5.9])
    rivals = goals(when_told(found))["below_every_rival"]
    assert rivals["more_regret_than"] == ["thompson"]
    assert not rivals["reached"]
    assert goals(found)["below_every_rival"]["reached"]
