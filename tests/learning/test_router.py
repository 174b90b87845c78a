"""Routers: every kind learns what can be learned, decides in numpy as its library would, and comes back."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mio_rag.errors import DataError, InputError
from mio_rag.learning.router import (
    FitSettings,
    Table,
    Validated,
    calibration_error,
    fit_and_validate,
    fit_once,
    labels,
    measured,
    plausible_at,
    read_table,
    row_worked,
    train_mlp,
)
from mio_rag.learning.router_model import first_success, read_router
from mio_rag.learning.weights import write_weights
from tests.learning.files import rewritten
from tests.learning.routes import TIERS, TOKENS, table

EASY = table()


def valued(made: Table, **values: np.ndarray) -> Table:
    """A table with other columns."""
    changed = {**made.outcomes.values, **values}
    return dataclasses.replace(made, outcomes=dataclasses.replace(made.outcomes, values=changed))


Changed = Callable[[dict[str, Any], dict[str, Any]], object]


@pytest.mark.parametrize(
    ("kind", "features"),
    [("mlp", "question"), ("logistic", "question"), ("logistic", "question+search"), ("utility", "question")],
)
def test_every_kind_learns_and_comes_back(kind: str, features: str, tmp_path: Path) -> None:
    made, found = fit_and_validate(EASY, FitSettings(kind=kind, features=features), 1e-4)
    measures = made.measures
    assert measures["accuracy"] == pytest.approx(np.mean(found.choice == EASY.labels))
    assert measures["accuracy"] > 0.8 - 0.2 * (features != "question")  # this search tells nothing
    assert measures["most_frequent_label"] == pytest.approx(1 / 3)
    assert np.trace(measures["confusion"]) == pytest.approx(90 * measures["accuracy"])
    path = tmp_path / "router.safetensors"
    write_weights(made.weights(), path)
    back = read_router(str(path))
    assert (back.kind, back.features, back.tiers, back.shares) == (kind, features, TIERS, made.shares)
    assert back.measures == json.loads(json.dumps(measures, allow_nan=False))
    for seen in EASY.seen[:12]:
        np.testing.assert_array_equal(back.probabilities(seen), made.probabilities(seen))
        assert back.probabilities(seen).sum() == pytest.approx(1)
        assert back.choose(seen) == made.choose(seen)
    with pytest.raises(InputError, match="embedded by 'tfidf:made', and the index embeds by 'minilm'"):
        back.check("minilm")


def test_the_network_is_the_published_one() -> None:
    torch = pytest.importorskip("torch")
    rows = np.array([one.embedding for one in EASY.seen])
    arrays, curve = train_mlp(rows, EASY.labels, 3, FitSettings(kind="mlp", features="question", seed=1))
    assert len(curve) == 60
    assert curve[-1][0] < curve[0][0]  # the loss falls
    assert [arrays[f"weights_{k}"].shape for k in range(3)] == [(8, 256), (256, 64), (64, 3)]
    x = torch.tensor(rows, dtype=torch.float64)
    for k in range(3):
        x = x @ torch.tensor(arrays[f"weights_{k}"], dtype=torch.float64) + torch.tensor(arrays[f"bias_{k}"])
        x = torch.relu(x) if k < 2 else torch.softmax(x, dim=1)
    router = fit_once(EASY, FitSettings(kind="mlp", seed=1))
    given = np.array([router.probabilities(one) for one in EASY.seen])
    np.testing.assert_allclose(given, x.numpy(), atol=1e-6)  # and the same seed trains the same network


def test_utility_changes_without_training() -> None:
    router = fit_once(EASY, FitSettings(kind="utility"))
    seen = EASY.seen[2]  # needs the most expensive
    assert [router.choose(seen, beta).place for beta in (0, 1.0)] == [2, 0]
    betas = (0, 1e-5, 1e-4, 1e-3, 1e-2)
    spent = [sum(TOKENS[router.choose(one, beta).place] for one in EASY.seen) for beta in betas]
    assert spent == sorted(spent, reverse=True)
    scores = router.choose(seen, 1e-3).scores
    assert scores is not None
    expected = router.success(seen) - 1e-3 * np.array([110, 260, 510])
    np.testing.assert_allclose(list(scores.values()), expected)
    logistic = fit_once(EASY, FitSettings(kind="logistic"))
    with pytest.raises(InputError, match="predicts no success"):
        logistic.success(seen)
    for one in EASY.seen[:6]:  # the next tier up, where several are plausible
        plain = logistic.choose(one)
        up = dataclasses.replace(logistic, plausible=0.0).choose(one, unsure="up")
        assert (up.place, up.unsure) == (min(plain.place + 1, 2), plain.place < 2)
        assert dataclasses.replace(logistic, plausible=0.999999).choose(one, unsure="up") == plain


def test_measures_by_hand() -> None:
    known = fit_and_validate(EASY, FitSettings(kind="utility"))[1]
    right = dataclasses.replace(known, choice=EASY.labels)
    # Of tiers that answer a third, two thirds and all, at 100, 250 and 500 tokens, a mixture at the 283
    # tokens of the right ones answers 2/3 + (283.3 - 250) / 250 / 3; the right ones answer all.
    found = measured(right)["against_mixture"]
    assert found["mean"] == pytest.approx(1 / 3 - (850 / 3 - 250) / 750)
    assert 0 < found["low"] < found["mean"] < found["high"] < 1 / 3 + 0.15
    hard = measured(dataclasses.replace(known, choice=np.full(90, 2)))["against_mixture"]
    assert list(hard.values()) == pytest.approx([0, 0, 0])
    wrong = dataclasses.replace(known, choice=(EASY.labels + 1) % 3)
    assert measured(wrong)["against_mixture"]["high"] < 0
    for price, tokens in ((0.0005, np.mean(TOKENS)), (0.01, TOKENS[0])):  # charged what routers are
        row = measured(known, price)["rows"]["oracle at the utility"]
        assert row["prompt_tokens"] == pytest.approx(tokens), price


def test_calibration_is_of_each_tier() -> None:
    """Nine of ten questions need the easy tier. Pooled over tiers, equal shares would seem right."""
    made = table(n=30)
    known = valued(made, label=np.eye(3)[[0] * 27 + [1] * 3])
    equal = Validated(known, np.full((30, 3), 1 / 3), None, np.zeros(30, dtype=np.intp), 0.0)
    assert calibration_error(equal) == pytest.approx((0.9 - 1 / 3 + 1 / 3 - 0.1 + 1 / 3) / 3)
    told = dataclasses.replace(equal, probabilities=np.tile([0.9, 0.1, 0.0], (30, 1)))
    assert calibration_error(told) == pytest.approx(0)
    success = np.full((30, 3), 2 / 3)  # easy answers a third of the questions, hard all
    by_tier = dataclasses.replace(equal, table=made, success=success)
    assert calibration_error(by_tier) == pytest.approx((1 / 3 + 0 + 1 / 3) / 3)


def test_plausible_tiers_include_the_right_one_as_often_as_wanted() -> None:
    rng = np.random.default_rng(0)
    given = rng.dirichlet([1, 1, 1], 4000)
    right = np.array([rng.choice(3, p=p) for p in given])
    for confidence in (0.7, 0.9):
        level = plausible_at(given[:2000], right[:2000], confidence)
        inside = given[np.arange(2000, 4000), right[2000:]] >= level
        assert inside.mean() == pytest.approx(confidence, abs=0.03)
    # By hand: of 9 the one of rank (9 + 1) * .2 = 2.
    one = np.column_stack([np.arange(1, 10) / 10, 1 - np.arange(1, 10) / 10])
    assert plausible_at(one, np.zeros(9, dtype=int), 0.8) == pytest.approx(0.2)
    assert plausible_at(one, np.zeros(9, dtype=int), 0.95) == 0.0
    np.testing.assert_allclose(first_success(np.array([0.2, 0.7, 0.9])), [0.2, 0.5, 0.3])
    np.testing.assert_allclose(first_success(np.array([0.5, 0.4, 0.6])), [0.5, 0.0, 0.5])


def test_labels_by_hand() -> None:
    worked = [[1, 0, 1], [0, 0, 1], [0, 0, 0], [0, 0, 0]]
    hops = [True, True, True, False]
    assert labels(worked, hops).tolist() == [0, 2, 2, 1]
    assert labels(worked, hops, "cheapest").tolist() == [0, 2, 0, 0]
    assert labels(worked, hops, "dearest").tolist() == [0, 2, 2, 2]
    with pytest.raises(InputError, match="unanswered"):
        labels(worked, hops, "never")  # type: ignore[arg-type]


# --- labels ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "by", "expected"),
    [
        ({"exact_match": 0.0, "token_f1": 0.6}, "answers", 1),
        ({"exact_match": 0.0, "token_f1": 0.59}, "answers", 0),
        ({"exact_match": 0.0, "token_f1": 0.6, "accuracy": 0.0}, "answers", 0),
        ({}, "answers", None),
        ({"gold_recall": 1.0, "answer_in_context": 0.0}, "evidence", 0),
        ({"gold_recall": 1.0, "answer_in_context": None}, "evidence", 1),
        ({"gold_recall": 0.5, "answer_in_context": None}, "evidence", 0),
        ({"gold_recall": None, "source_recall": 1.0}, "evidence", 1),
        ({}, "evidence", None),
    ],
)
def test_what_counts_as_answered_in_a_ledger(row: dict[str, Any], by: Any, expected: float | None) -> None:
    assert row_worked(row, by) == expected


# --- files -----------------------------------------------------------------------------------------------


def test_tables_come_back_and_join(tmp_path: Path) -> None:
    first, second = tmp_path / "a.parquet", tmp_path / "b.parquet"
    EASY.outcomes.write(first)
    back = read_table([first])
    assert back.outcomes.ids == EASY.outcomes.ids
    np.testing.assert_allclose([s.embedding for s in back.seen], [s.embedding for s in EASY.seen], atol=1e-6)
    np.testing.assert_array_equal(back.labels, EASY.labels)
    np.testing.assert_allclose(back.costs(), [[110, 0.1, 0], [260, 0.2, 0], [510, 0.3, 0]])
    with pytest.raises(DataError, match="holds 'q0' more than once"):
        read_table([first, first])
    more = table(30, seed=2)
    ids = tuple(f"other-{k}" for k in range(30))
    dataclasses.replace(more.outcomes, ids=ids).write(second)
    assert len(read_table([first, second])) == 120


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda about, arrays: about.update(kind="neighbours"), "kind 'neighbours': train one of mlp"),
        (lambda about, arrays: about.update(tiers=[]), "there are no tiers"),
        (lambda about, arrays: about.update(search=["x"]), "other signals"),
        (lambda about, arrays: about.pop("features"), "is damaged"),
        (lambda about, arrays: arrays.pop("costs"), "is damaged"),
    ],
)
def test_routers_of_other_releases_are_named(tmp_path: Path, change: Changed, expected: str) -> None:
    path = tmp_path / "r.safetensors"
    write_weights(fit_once(EASY.where(np.arange(30)), FitSettings(kind="utility")).weights(), path)
    rewritten(path, "router", 1, change)
    with pytest.raises(DataError, match=expected) as error:
        read_router(str(path))
    assert str(path) in str(error.value)
