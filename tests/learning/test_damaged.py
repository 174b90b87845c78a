"""Files of learned parts that are damaged are refused, with the file and the place in it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mio_rag.errors import DataError, InputError
from mio_rag.learning.outcomes import Outcomes, read_outcomes, read_rows
from mio_rag.learning.planner import read_planner
from mio_rag.learning.ppo import PPOSettings
from tests.learning.files import rewritten
from tests.learning.learned import planner_file


@pytest.mark.parametrize(
    "change",
    [
        lambda about, arrays: arrays.update({"regression.weights": np.zeros((1, 2, 3, 4))}),
        lambda about, arrays: arrays.update({"regression.mean": np.zeros((2, 2))}),
        lambda about, arrays: arrays.update({"features.axes": np.zeros((9, 1))}),
        lambda about, arrays: arrays.pop("regression.gates"),
        lambda about, arrays: about.update(unit=0),
        lambda about, arrays: about.update(cost="euros"),
        lambda about, arrays: about.update(alphas=[2, 1]),
        lambda about, arrays: about.update(alphas="no"),
        lambda about, arrays: about.update(workflows=[{"nodes": 3}]),
        lambda about, arrays: about.update(mode=None),
        lambda about, arrays: about.update(inner=[1]),
    ],
)
def test_damaged_planners(tmp_path: Path, change: Callable[..., None]) -> None:
    path = planner_file(tmp_path / "p.safetensors")
    rewritten(path, "planner", 2, change)
    with pytest.raises(DataError) as error:
        read_planner(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    "line", ["[1]", "{}", '{"question_id": "q", "set": "s", "question": "", "action": "a", "steps": 3}']
)
def test_a_damaged_row_of_outcomes_is_named(tmp_path: Path, line: str) -> None:
    good = {"question_id": "q", "set": "s", "question": "Who?", "action": "plain", "steps": []}
    (tmp_path / "rows.jsonl").write_text(f"{json.dumps(good)}\n{line}\n{json.dumps(good)}\n")
    with pytest.raises(DataError, match=r"rows\.jsonl', line 2 is damaged"):
        read_rows(tmp_path)


def test_a_table_whose_measures_are_no_numbers_is_refused(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "t.parquet"
    Outcomes(("q1", "q2"), ("a",), {"f1": np.ones((2, 1))}, provenance={"seed": np.int64(3)}).write(path)
    assert read_outcomes(path).provenance == {"seed": 3}
    table = parquet.read_table(path)
    texts = table.set_column(2, "f1", arrow.array(["1", "much"])).replace_schema_metadata(
        table.schema.metadata
    )
    parquet.write_table(texts, path)
    with pytest.raises(DataError, match=r"t\.parquet': 'f1' of question 'q2' must be a number, got 'much'"):
        read_outcomes(path)
    with pytest.raises(InputError, match="'f1' is infinite for 'q1', a"):
        Outcomes(("q1",), ("a",), {"f1": np.array([[np.inf]])})
    with pytest.raises(InputError, match="provenance must be plain finite data"):
        Outcomes(("q1",), ("a",), {"f1": np.ones((1, 1))}, provenance={"x": float("nan")})


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"updates": 2.5}, "updates must be a whole number, got 2.5"),
        ({"updates": True}, "updates must be a whole number, got True"),
        ({"rate": float("nan")}, "rate must be a finite number, got nan"),
        ({"gamma": float("inf")}, "gamma must be a finite number, got inf"),
        ({"alphas": (0.1, float("nan"))}, "must be a finite number, got nan"),
        ({"alphas": ()}, "alphas must be not empty"),
        ({"seed": "1"}, "seed must be a whole number, got '1'"),
        ({"start": "anywhere"}, "start must be regression or nothing, got 'anywhere'"),
        ({"update": 3}, "did you mean 'updates'"),
    ],
)
def test_bad_training_settings(wrong: dict[str, Any], expected: str) -> None:
    with pytest.raises(InputError) as error:
        PPOSettings(**wrong)
    assert expected in str(error.value)


def test_training_settings_take_numpy_numbers_and_sets() -> None:
    made = PPOSettings(updates=np.int64(3), alphas={0.6, 0.0, 0.1}, rate=np.float32(0.5))
    assert (made.updates, made.alphas, made.rate) == (3, (0.0, 0.1, 0.6), 0.5)
    assert json.loads(json.dumps(made.to_dict()))["alphas"] == [0.0, 0.1, 0.6]
