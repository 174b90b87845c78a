"""The study of planners: nobody decides on what it has learned from, and the sums can be checked by hand."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.options import numbers
from benchmarks.planner.picture import draw, table
from benchmarks.planner.study import ALPHAS, folds_of, study
from mio_rag.deciders.workflow import NAMED
from mio_rag.errors import InputError
from mio_rag.learning.outcomes import Outcomes, table_of
from mio_rag.learning.planner import Table, split_of
from mio_rag.learning.ppo import PPOSettings

NAMES = ("no-retrieval", "plain", "decompose-serial")


def given(n: int = 30, seed: int = 0) -> Table:
    """Questions of two kinds, told by their wording: short ones need no retrieval."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        hard = bool(rng.random() < 0.5)
        text = "Where was the wife of the director of that film of 1950 born?" if hard else "Who is he?"
        for name, tokens, right in zip(
            NAMES, (50, 300, 900), ((0, 0, 1) if hard else (1, 1, 1)), strict=True
        ):
            workflow = NAMED[name]
            each = tokens / len(workflow.nodes)
            steps = [
                {"node": node.id, "do": node.do, "signature": signature, "tokens": each,
                 "signals": {}, "dropped": None}
                for node, signature in zip(workflow.nodes, workflow.signatures(), strict=True)
            ]  # fmt: skip
            rows.append(
                {"question_id": f"{'ab'[i % 2]}:{i}", "set": "ab"[i % 2], "question": f"{text} ({i})",
                 "action": name,
                 "token_f1": float(right), "exact_match": float(right), "evidence": None, "tokens": tokens,
                 "lm_calls": 1, "dropped": 0, "failed": 0, "steps": steps}
            )  # fmt: skip
    found: Outcomes = table_of(rows, NAMES, {"generator": "none"})
    return Table(found, rows, tuple(NAMED[name] for name in NAMES), np.zeros((n, 4), np.float32), "none")


def test_folds_are_balanced_and_a_split_stays_as_the_table_grows() -> None:
    some = given(30)
    fold = folds_of(some, 5, 0)
    for name in "ab":
        counts = np.bincount(fold[np.array(some.outcomes.sets) == name], minlength=5)
        assert counts.max() - counts.min() <= 1
    more = given(60)
    held = {some.outcomes.ids[i] for i in split_of(some.outcomes, 0.4, 0)[1]}
    later = {more.outcomes.ids[i] for i in split_of(more.outcomes, 0.4, 0)[1]}
    assert later & set(some.outcomes.ids) == held


def test_the_study_tells_what_is_there(tmp_path: Path) -> None:
    report = study(given(40), folds=3, ppo=PPOSettings(updates=2, hidden=8, episodes=32), seeds=2)
    assert report["unit_tokens"] == 300
    assert report["workflows"]["decompose-serial"]["cost"] == 3
    assert report["workflows"]["decompose-serial"]["token_f1"] == 1
    points = {p["alpha"]: p for p in report["policies"]["regression, once"]}
    # At .1 hard questions are worth 1 - .3 by the chain, easy ones 1 - .017 from memory.
    hard = 1 - report["workflows"]["plain"]["token_f1"]
    assert points[0.1]["quality"] == pytest.approx(1)
    assert points[0.1]["cost"] == pytest.approx(hard * 3 + (1 - hard) / 6)
    assert points[0.1]["gain"] > 0
    assert points[2.0]["cost"] == pytest.approx(1 / 6)
    assert report["goals"]["once"]["cost_falls_in_alpha"]
    assert report["goals"]["once"]["best_fixed"]["name"] == "decompose-serial"
    assert report["goals"]["once"]["best_fixed"]["share_of_cost"] < 0.8
    # Who is told a set takes one workflow for it. Both sets hold hard questions: the dear one, if it is free.
    told = next(p for p in report["rivals"]["0"] if p["name"] == "best of its set")
    assert told["shares"] == {"decompose-serial": 1.0}
    # Each set is decided by what was learned from the other alone.
    never = {p["alpha"]: p for p in report["sets_never_met"]["regression, once, never met"]}
    assert never[0.1]["quality"] == pytest.approx(1)
    assert never[0.1]["cost"] < 0.8 * 3
    assert sum(report["categories"]["once"]["counts"].values()) == 40
    assert set(report["categories"]["once"]["counts"]) == {"right, cheapest"}
    assert len(report["ppo"]["again, 0.1"]["rewards"]) == 2
    assert set(report["ppo"]) == {f"{mode}, {a:g}" for mode in ("once", "again") for a in ALPHAS}
    found = report["ppo"]["once, 0.5"]
    assert found["networks"] == 6
    if not found["networks_that_departed"]:
        assert found["rewards"] == [found["regression"]] * 2
    text = table(json.loads(json.dumps(report)))
    assert "alpha 0: random F1 " in text
    assert "best of its set F1 1.000 cost 3.00" in text
    assert "regression, once, never met" in text
    assert "fewer than 100 questions" in text
    draw(report, tmp_path / "planner.png")
    assert (tmp_path / "planner.png").stat().st_size > 10_000
    with pytest.raises(InputError, match="at least 13 questions"):
        study(given(12))


def test_nothing_is_found_where_nothing_is() -> None:
    some = given(40)
    rng = np.random.default_rng(1)
    shuffled = [dict(row) for row in some.rows]
    for row in shuffled:
        row["token_f1"] = float(rng.random() < 0.5)
    none = dataclasses.replace(some, rows=shuffled, outcomes=table_of(shuffled, NAMES, {}))
    report = study(none, folds=3, ppo_alphas=())
    gains = [p for p in report["policies"]["regression, once"] if p["low"] > 0.05]
    assert gains == []


def test_a_price_may_be_nothing_but_not_less() -> None:
    assert numbers("--ppo-alphas", "0,0.1", float, zero=True) == [0.0, 0.1]
    for text, said in (("-0.1", ">= 0"), ("nan", ">= 0"), ("0,0", "different")):
        with pytest.raises(InputError, match=said):
            numbers("--ppo-alphas", text, float, zero=True)
    with pytest.raises(InputError, match="above 0"):
        numbers("--tokens", "0", int)
