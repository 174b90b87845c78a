"""Files of learned parts that are damaged are refused, with the file and the place in it."""

import json
from pathlib import Path

import numpy as np
import pytest

from mio_rag.errors import DataError, InputError
from mio_rag.learning.outcomes import Outcomes, read_outcomes, read_rows


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
