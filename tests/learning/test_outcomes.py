"""The table of outcomes: what is chosen from it is worked out by hand."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mio_rag.errors import DataError, InputError
from mio_rag.learning.outcomes import Outcomes, gain_over_mixtures, mixtures, read_outcomes

F1 = np.array([[0.0, 1.0, 1.0], [0.5, 0.5, 0.6], [0.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
TOKENS = np.array([[10.0, 100.0, 300.0]] * 4)


@pytest.fixture
def table() -> Outcomes:
    return Outcomes(
        ("a", "b", "c", "d"),
        ("small", "middle", "large"),
        {"token_f1": F1, "prompt_tokens": TOKENS},
        questions=("A?", "B?", "C?", "D?"),
        sets=("one", "one", "two", "two"),
        provenance={"seed": 3},
    )


def fixed_at(quality: np.ndarray, cost: np.ndarray, spent: float) -> float:
    means = [values.mean(axis=0)[None] for values in (quality, cost)]
    return float(mixtures(*means, np.array([spent]))[0])


def test_choices_and_mixtures_by_hand(table: Outcomes) -> None:
    assert table.mean("token_f1", np.array([1, 0, 2, 0])) == pytest.approx(0.875)
    assert table.mean("prompt_tokens", np.array([1, 0, 2, 0])) == pytest.approx(105)
    for spent, best in ((10, 0.375), (55, 0.5), (200, 0.6375), (9999, 0.65)):
        assert fixed_at(F1, TOKENS, spent) == pytest.approx(best)
    mean, low, high = gain_over_mixtures(F1, TOKENS, np.array([1, 0, 2, 0]))
    assert mean == pytest.approx(0.875 - fixed_at(F1, TOKENS, 105))
    assert low <= mean <= high


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 10)), min_size=1, max_size=6),
    st.floats(0, 25),
)
def test_no_pair_of_fixed_actions_beats_the_mixture(points: list[tuple[int, int]], spent: float) -> None:
    cost, quality = (np.array([[float(point[k]) for point in points]]) for k in (0, 1))
    best = float(quality[0, cost[0] == cost.min()].max())
    for i, j in itertools.product(range(len(points)), repeat=2):
        (x, y), (v, w) = points[i], points[j]
        if x <= spent <= v and v > x:
            best = max([best, y + (w - y) * (spent - x) / (v - x)])
        if x <= spent:
            best = max([best, y])
    assert fixed_at(quality, cost, spent) == pytest.approx(best)


def test_written_and_read_back(table: Outcomes, tmp_path: Path) -> None:
    values = {**table.values, "tokens_per_second": np.where(F1 > 0.5, np.nan, F1)}
    path = tmp_path / "new" / "outcomes.parquet"
    Outcomes(table.ids, table.actions, values, table.questions, table.sets, table.provenance).write(path)
    back = read_outcomes(path)
    assert (back.ids, back.actions, back.questions, back.sets) == (
        table.ids,
        table.actions,
        table.questions,
        table.sets,
    )
    assert back.provenance == {"seed": 3}
    for name, array in values.items():
        np.testing.assert_array_equal(back.values[name], array)
    with pytest.raises(InputError, match=r"undefined in 6 of 12 cells, for instance for 'a', middle"):
        back.of("tokens_per_second")


def test_rows_of_a_ledger_in_any_order(table: Outcomes) -> None:
    rows = [
        {"question_id": q, "action": a, "question": f"{q}?", "f1": F1[i, j]}
        for j, a in enumerate(table.actions)
        for i, q in enumerate(table.ids)
    ]
    made = Outcomes.from_rows(reversed(rows), ["f1"], actions=table.actions)
    assert made.actions == table.actions
    for i, q in enumerate(made.ids):
        assert made.of("f1")[i].tolist() == F1[table.ids.index(q)].tolist()
    two = Outcomes.from_rows(rows, ["f1"], actions=["large", "small"])
    assert two.of("f1").tolist() == F1[:, [2, 0]].tolist()


def test_what_is_missing_or_twice_is_named(table: Outcomes) -> None:
    rows = [{"question_id": q, "action": a, "f1": 0.0} for q in "ab" for a in ("x", "y")]
    with pytest.raises(DataError, match=r"1 of 4 cells are missing \('b' lacks y\)"):
        Outcomes.from_rows(rows[:3], ["f1"])
    with pytest.raises(DataError, match="question 'b' has action 'y' twice"):
        Outcomes.from_rows([*rows, rows[-1]], ["f1"])
    with pytest.raises(DataError, match="there are no rows"):
        Outcomes.from_rows([], ["f1"])
    with pytest.raises(DataError, match="there are no rows"):
        Outcomes.from_rows(rows, ["f1"], actions=["z"])


def test_other_files_are_refused(table: Outcomes, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pytest.raises(DataError, match="does not exist"):
        read_outcomes(tmp_path / "none.parquet")
    text = tmp_path / "text.parquet"
    text.write_text("question_id,action")
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        read_outcomes(text)
    pq.write_table(pa.table({"question_id": ["a"]}), text)
    with pytest.raises(DataError, match="not a table of outcomes"):
        read_outcomes(text)
    path = tmp_path / "outcomes.parquet"
    table.write(path)
    held = pq.read_table(path)
    pq.write_table(held.slice(1), path)
    with pytest.raises(DataError, match="1 of 12 cells are missing"):
        read_outcomes(path)
    changed = held.schema.metadata[b"mio-rag-outcomes"].replace(b'"version": 1', b'"version": 9')
    pq.write_table(held.replace_schema_metadata({b"mio-rag-outcomes": changed}), path)
    with pytest.raises(DataError, match="has version 9"):
        read_outcomes(path)
