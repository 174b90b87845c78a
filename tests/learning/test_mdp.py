"""The plan answers at any U, and its structure tells what the policy really does."""

from pathlib import Path

import numpy as np
import pytest

from mio_rag.errors import InputError
from mio_rag.formulations.mdp import RetrievalMDP
from mio_rag.learning.mdp import (
    Plan,
    model_from_mapping,
    read_model,
    sensitivity,
    solve_plan,
    structure,
)


@pytest.fixture(scope="module")
def published() -> Plan:
    return solve_plan(RetrievalMDP(horizon=None))


@pytest.fixture(scope="module")
def stopping() -> Plan:
    return solve_plan(RetrievalMDP())


def test_segments_are_the_policy(stopping: Plan) -> None:
    shape = structure(stopping)
    assert len(shape["segments"]) == 10
    for step, segments in enumerate(shape["segments"]):
        told = [
            a
            for u in stopping.model.levels
            for s in segments
            if s["from"] - 1e-12 <= u <= s["to"] + 1e-12
            for a in [s["action"]]
        ]
        assert told == [stopping.model.actions[k] for k in stopping.policy(step)]  # every point, once
    assert shape["segments"][0][0] == {"from": 0.0, "to": 0.04, "action": "stop"}


def test_the_error_of_the_grid(published: Plan) -> None:
    assert published.grid_error is not None
    assert published.grid_error.at_points < 1e-9  # both drops are multiples of .001
    assert 0 < published.grid_error.anywhere < 0.2
    coarse = solve_plan(RetrievalMDP(grid=12))
    assert coarse.grid_error is not None
    assert coarse.grid_error.at_points > 0.01
    assert any("grid of 12 points" in w for w in structure(coarse)["warnings"])
    fine = np.interp(coarse.model.levels, RetrievalMDP().levels, solve_plan(RetrievalMDP()).values())
    assert np.abs(coarse.values() - fine).max() <= coarse.grid_error.at_points
    bins = solve_plan(RetrievalMDP(success=(0.5, 0.9)))
    assert bins.grid_error is None
    assert any("not bounded" in w for w in structure(bins)["warnings"])


def test_sensitivity_solves_again(published: Plan) -> None:
    rows = {(row["parameter"], row["factor"]): row for row in sensitivity(published, (1.0, 0.5))}
    assert all(
        row["changed"] == row["value_change"] == 0 for (_, factor), row in rows.items() if factor == 1.0
    )
    cheap = rows["retrieve_cost", 0.5]
    other = solve_plan(RetrievalMDP(retrieve_cost=0.025, horizon=None))
    assert cheap["changed"] == pytest.approx(np.mean(published.policy() != other.policy()))
    assert cheap["segments"] == structure(other)["segments"][0]
    assert rows["discount", 0.5]["value_change"] > 40  # 1 - gamma halves: values double


def test_models_travel_as_plain_data(tmp_path: Path) -> None:
    for model in (RetrievalMDP(horizon=None, quality="exp", k=3), RetrievalMDP(success=(0.1, 0.9))):
        assert model_from_mapping(model.to_dict(), "test") == model
    file = tmp_path / "model.toml"
    file.write_text('[mdp]\nhorizon = "inf"\nsuccess = [0.5, 0.6]\n')
    assert model_from_mapping(read_model(file), "file") == RetrievalMDP(horizon=None, success=(0.5, 0.6))
    for text in ("success = ", "mdp = 3"):
        file.write_text(text)
        with pytest.raises(InputError, match=r"must be a table|not a readable TOML"):
            read_model(file)
    with pytest.raises(InputError, match="sets delta_r: known are retrieve_drop"):
        model_from_mapping({"delta_r": 0.2}, "it")
