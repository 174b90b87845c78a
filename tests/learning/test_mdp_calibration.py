"""Calibration finds the parameters that traces were made with, and what speaks against the process."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from mio_rag.errors import InputError
from mio_rag.formulations.mdp import RetrievalMDP
from mio_rag.learning.mdp_calibration import calibrate, transitions
from mio_rag.session.budget import Call
from mio_rag.session.trace import Step, Trace

SETTINGS = {"model": {}, "seed": 0, "stop_at": 0.05, "closed_book": False}


def trace(
    question: str, levels: list[float], actions: list[str], gauge: str = "confidence", **calls: Any
) -> Trace:
    """A trace of these levels of U; retrieving takes 3 s and 30 tokens, reasoning 1 s and 50."""
    took = {"retrieve": Call("retrieve", 3.0, 1, 1, 20, 10), "reason": Call("reason", 1.0, 1, 0, 40, 10)}
    steps = tuple(
        Step(
            id=f"step-{k}",
            do="reason" if action == "reason" else "search_again",
            query=f"query {k}",
            output="1 passages",
            calls=(took[action],),
            about={"uncertainty": levels[k]},
        )
        for k, action in enumerate(actions)
    )
    return Trace(
        question_id=question,
        question="?",
        choices=(),
        policy=f"random@{gauge}",
        budget=100,
        settings=SETTINGS,
        steps=steps,
        ended="stop",
        passages=(),
        answer="a",
        choice=None,
        generator="g",
        about={"signal": gauge, "uncertainty": levels[-1]},
    )


def simulate(
    model: RetrievalMDP, questions: int, seed: int, length: int = 3, drift: float = 0.0
) -> list[Trace]:
    """Runs of the process itself, from random levels well above 0, with random actions."""
    rng = np.random.default_rng(seed)
    found = []
    for k in range(questions):
        levels, actions = [float(rng.uniform(0.8, 1))], []
        for step in range(length):
            action = str(rng.choice(["retrieve", "reason"]))
            u = levels[-1]
            wins = action == "reason" or rng.random() < float(model.at("success", u))
            after = float(model.lowered(action, u)) if wins else u
            levels.append(min(1.0, after + drift * step))
            actions.append(action)
        found.append(trace(f"q{k}", levels, actions))
    return found


def test_the_parameters_come_back() -> None:
    truth = RetrievalMDP(retrieve_drop=0.2, reason_drop=0.05, success=0.6)
    found = calibrate(simulate(truth, 400, seed=0), RetrievalMDP())
    assert found.success is not None
    assert (found.success.low or 0) <= 0.6 <= (found.success.high or 0)
    assert found.model.success == pytest.approx(0.6, abs=0.05)
    assert found.model.retrieve_drop == pytest.approx(0.2)
    assert found.model.reason_drop == pytest.approx(0.05)
    assert found.retrievals + found.reasonings == 1200
    assert not any(check.violated for check in found.checks)
    # A reasoning step keeps its cost; a retrieval took three times as long, and 3/5 of the tokens.
    assert found.model.reason_cost == pytest.approx(0.02)
    assert found.model.retrieve_cost == pytest.approx(0.06)
    tokens = calibrate(simulate(truth, 50, seed=0), RetrievalMDP(), cost_by="tokens", price=0.001)
    assert (tokens.model.retrieve_cost, tokens.model.reason_cost) == pytest.approx((0.03, 0.05))


def test_what_two_controllers_did_alike_counts_once() -> None:
    one = trace("q", [0.9, 0.6, 0.5], ["retrieve", "reason"])
    other = dataclasses.replace(one, policy="fixed-3@confidence")
    longer = dataclasses.replace(
        trace("q", [0.9, 0.6, 0.5, 0.2], ["retrieve", "reason", "retrieve"]), policy="mdp@confidence"
    )
    assert len(transitions([one, other])[0]) == 2
    together, _ = transitions([one, longer, other])
    assert [(t.action, t.before, t.last_drop) for t in together] == [
        ("retrieve", 0.9, None),
        ("reason", 0.6, pytest.approx(0.3)),
        ("retrieve", 0.5, pytest.approx(0.1)),
    ]
    # Another question, or another outcome of the same action, is something else.
    apart = [one, trace("r", [0.9, 0.6, 0.5], ["retrieve", "reason"]), trace("q", [0.9, 0.7], ["retrieve"])]
    assert len(transitions(apart)[0]) == 5


def test_intervals_know_that_actions_of_a_question_hang_together() -> None:
    questions, each = 30, 5
    rng = np.random.default_rng(questions)
    inside = {"success": 0, "retrieve_drop": 0}
    runs, known = 100, 0
    for _ in range(runs):
        traces = []
        for k in range(questions):
            chance, fall = rng.beta(1.4, 0.6), rng.uniform(0.05, 0.15)  # each question its own
            levels = [1.0]
            for _ in range(each):
                levels.append(levels[-1] - fall * (rng.random() < chance))
            traces.append(trace(f"q{k}", levels, ["retrieve"] * each))
        found = calibrate(traces, RetrievalMDP())
        assert found.success is not None
        assert found.success.low is not None
        assert found.success.high is not None
        inside["success"] += found.success.low <= 0.7 <= found.success.high
        # Falls of questions that succeed often count more often: of a mean of 0.1 nothing changes.
        drop = found.retrieve_drop
        if drop is not None and drop.low is not None and drop.high is not None:
            known += 1
            inside["retrieve_drop"] += drop.low <= 0.1 <= drop.high
    assert known > 0.5 * runs  # the others had too few questions with a success
    assert inside["success"] >= 0.88 * runs, inside
    assert inside["retrieve_drop"] >= 0.88 * known, inside


def test_tracked_runs_calibrate_nothing() -> None:
    with pytest.raises(InputError, match="nothing can be estimated from it"):
        transitions([trace("q", [1, 0.75], ["retrieve"], gauge="tracked")])
    both = [trace("q", [1, 0.75], ["retrieve"]), trace("q", [1, 0.5], ["retrieve"], gauge="evidence")]
    with pytest.raises(InputError, match="choose with --signal"):
        transitions(both)
    assert transitions(both, "evidence")[0][0].after == 0.5
    with pytest.raises(InputError, match="stopped at once"):
        transitions([trace("q", [1.0], [])])
    with pytest.raises(InputError) as found:
        calibrate(both, RetrievalMDP(), bins=0, min_drop=1, cost_by="luck", price=0)
    assert len(found.value.problems) == 4
