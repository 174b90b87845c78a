"""Training: every kind learns what can be learned, decides in numpy as its library would, and comes back."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from mio_rag.errors import DataError, InputError
from mio_rag.learning.labels import answer_worked, labels, row_worked
from mio_rag.learning.router import (
    FitSettings,
    Table,
    Validated,
    calibration_error,
    fit_and_validate,
    fit_once,
    folds_of,
    measured,
    out_of_fold,
    plausible_at,
    read_table,
    seen_path,
    train_mlp,
    write_table,
)
from mio_rag.learning.router_model import KINDS, SEARCH, Utility, first_success, read_router
from mio_rag.learning.weights import write_weights
from mio_rag.types import Question
from tests.learning.routes import TIERS, table

EASY = table()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("features", ["question", "question+search"])
def test_every_kind_learns_and_comes_back(kind: str, features: str, tmp_path: Path) -> None:
    made, found = fit_and_validate(EASY, FitSettings(kind=kind, features=features), Utility(beta=1e-4))
    measures = made.router.measures
    assert measures["accuracy"] == pytest.approx(np.mean(found.choice == EASY.labels))
    assert measures["accuracy"] > 0.8 - 0.2 * (features != "question")  # this search tells nothing
    assert measures["most_frequent_label"] == pytest.approx(1 / 3)
    assert np.sum(measures["confusion"]) == 90
    assert np.trace(measures["confusion"]) == pytest.approx(90 * measures["accuracy"])
    assert sum(made.router.shares) == pytest.approx(1)
    json.dumps(measures, allow_nan=False)
    path = tmp_path / "router.safetensors"
    write_weights(made.router.weights(), path)
    back = read_router(str(path))
    assert (back.kind, back.features, back.tiers, back.shares) == (kind, features, TIERS, made.router.shares)
    for seen in EASY.seen[:12]:
        np.testing.assert_array_equal(back.probabilities(seen), made.router.probabilities(seen))
        assert back.probabilities(seen).sum() == pytest.approx(1)
        assert back.choose(seen) == made.router.choose(seen)
    assert back.measures == json.loads(json.dumps(measures))
    assert (made.history is not None) == (kind == "mlp")


def test_the_network_is_the_published_one() -> None:
    torch = pytest.importorskip("torch")
    rows = np.array([one.embedding for one in EASY.seen])
    arrays, history = train_mlp(rows, EASY.labels, 3, seed=1)
    assert [arrays[f"weights_{k}"].shape for k in range(3)] == [(8, 256), (256, 64), (64, 3)]
    assert len(history.loss) == len(history.held_out_loss) == len(history.accuracy) == 60
    assert history.accuracy[history.best] == max(history.accuracy)
    assert history.loss[-1] < history.loss[0]
    x = torch.tensor(rows, dtype=torch.float64)
    for k in range(3):
        x = x @ torch.tensor(arrays[f"weights_{k}"], dtype=torch.float64) + torch.tensor(arrays[f"bias_{k}"])
        x = torch.relu(x) if k < 2 else torch.softmax(x, dim=1)
    router = fit_once(EASY, FitSettings(kind="mlp", seed=1)).router
    said = np.array([router.probabilities(one) for one in EASY.seen])
    np.testing.assert_allclose(said, x.numpy(), atol=1e-6)  # and the same seed trains the same network
    with pytest.raises(InputError, match="9 questions are too few"):
        train_mlp(rows[:9], EASY.labels[:9], 3)


def test_utility_changes_without_training() -> None:
    router = fit_once(EASY, FitSettings(kind="utility")).router
    seen, before = EASY.seen[2], None  # needs the dearest
    assert router.choose(seen, Utility(beta=0)).place == 2
    assert router.choose(seen, Utility(beta=1.0)).place == 0
    for beta in (0, 1e-5, 1e-4, 1e-3, 1e-2):
        spent = sum(TIERS_TOKENS[router.choose(one, Utility(beta=beta)).place] for one in EASY.seen)
        assert before is None or spent <= before
        before = spent
    scores = router.choose(seen, Utility(2.0, 1e-3, 0.5, 0.0)).scores
    assert scores is not None
    expected = 2 * router.success(seen) - 1e-3 * (np.array([110, 260, 510])) - 0.5 * np.array([0.1, 0.2, 0.3])
    np.testing.assert_allclose(list(scores.values()), expected)
    with pytest.raises(InputError, match="knows no success"):
        fit_once(EASY, FitSettings(kind="logistic")).router.success(seen)


def test_the_oracle_is_charged_what_routers_are() -> None:
    """Seconds count as tokens do: at half a success a second only what is needed is worth its time."""
    found = out_of_fold(EASY, FitSettings(kind="utility"))
    for utility, tokens in (
        (Utility(), np.mean(TIERS_TOKENS)),  # the cheapest that does, of each third
        (Utility(gamma=4.0), (2 * TIERS_TOKENS[0] + TIERS_TOKENS[1]) / 3),  # .2 s more are .8, .1 s .4
        (Utility(beta=0.01), TIERS_TOKENS[0]),
    ):
        row = measured(found, utility)["rows"]["oracle at the utility"]
        assert row["prompt_tokens"] == pytest.approx(tokens), utility


TIERS_TOKENS = (100.0, 250.0, 500.0)


def test_what_is_likely_first() -> None:
    np.testing.assert_allclose(first_success(np.array([0.2, 0.7, 0.9])), [0.2, 0.5, 0.3])
    np.testing.assert_allclose(first_success(np.array([0.5, 0.4, 0.6])), [0.5, 0.0, 0.5])


def test_plausible_tiers_hold_the_right_one_as_often_as_wanted() -> None:
    rng = np.random.default_rng(0)
    said = rng.dirichlet([1, 1, 1], 4000)
    right = np.array([rng.choice(3, p=p) for p in said])
    for confidence in (0.7, 0.9):
        level = plausible_at(said[:2000], right[:2000], confidence)
        inside = said[np.arange(2000, 4000), right[2000:]] >= level
        assert inside.mean() == pytest.approx(confidence, abs=0.03)
    # by hand: of 9 the one of rank (9 + 1) * .2 = 2
    one = np.column_stack([np.arange(1, 10) / 10, 1 - np.arange(1, 10) / 10])
    assert plausible_at(one, np.zeros(9, dtype=int), 0.8) == pytest.approx(0.2)
    assert plausible_at(one, np.zeros(9, dtype=int), 0.95) == 0.0


def test_when_unsure_a_tier_up_and_it_says_so() -> None:
    router = fit_once(EASY, FitSettings(kind="logistic")).router
    wide = dataclasses.replace(router, plausible=0.0)
    narrow = dataclasses.replace(router, plausible=0.999999)
    for seen in EASY.seen[:6]:
        plain = router.choose(seen)
        assert not plain.unsure
        up = wide.choose(seen, unsure="up")
        assert (up.place, up.unsure) == (min(plain.place + 1, 2), plain.place < 2)
        assert narrow.choose(seen, unsure="up") == plain


def test_folds_are_disjoint_even_and_seeded() -> None:
    given = np.array([0] * 10 + [1] * 7)
    fold = folds_of(given, 3)
    assert np.bincount(fold[:10]).tolist() == [2] * 5
    assert sorted(np.bincount(fold).tolist()) == [3, 3, 3, 4, 4]
    assert (folds_of(given, 3) == fold).all()
    assert (folds_of(given, 4) != fold).any()


def test_a_fold_is_told_nothing_of_itself() -> None:
    """Labels that nothing tells: only a router that had seen them could be right more often than chance."""
    rng = np.random.default_rng(5)
    made = table(240)
    random = np.eye(3)[rng.integers(3, size=240)]
    values = {**made.outcomes.values, "label": random}
    blind = dataclasses.replace(made, outcomes=dataclasses.replace(made.outcomes, values=values))
    for kind in ("logistic", "utility"):
        found = out_of_fold(blind, FitSettings(kind=kind))
        assert np.mean(found.choice == blind.labels) < 0.45


def test_weak_searches_are_as_many_as_wanted() -> None:
    found = fit_once(EASY, FitSettings(kind="logistic", correct_rate=0.2)).router.correction
    assert found is not None
    best = np.array([one.search[SEARCH.index("best_cosine")] for one in EASY.seen])
    assert np.mean(best < found.below) == pytest.approx(0.2, abs=0.01)
    assert found.more == 5
    published = fit_once(EASY, FitSettings(kind="logistic", correct_below=0.52)).router.correction
    assert published is not None
    assert published.below == 0.52
    assert fit_once(EASY, FitSettings(kind="logistic")).router.correction is None


def test_calibration_is_of_each_tier() -> None:
    """By hand: nine of ten questions need the easy tier. Pooled over tiers, equal shares would seem right."""
    made = table(n=30)
    easy = dataclasses.replace(
        made.outcomes, values=made.outcomes.values | {"label": np.eye(3)[[0] * 27 + [1] * 3]}
    )
    known = dataclasses.replace(made, outcomes=easy)
    equal = Validated(known, np.full((30, 3), 1 / 3), None, np.zeros(30, dtype=np.intp), 0.0)
    assert calibration_error(equal) == pytest.approx((0.9 - 1 / 3 + 1 / 3 - 0.1 + 1 / 3) / 3)
    told = dataclasses.replace(equal, probabilities=np.tile([0.9, 0.1, 0.0], (30, 1)))
    assert calibration_error(told) == pytest.approx(0)

    success = np.full((30, 3), 2 / 3)  # a third of the questions is answered by easy, all by hard
    by_tier = dataclasses.replace(equal, table=made, success=success)
    assert calibration_error(by_tier) == pytest.approx((1 / 3 + 0 + 1 / 3) / 3)


def test_settings_that_make_no_sense() -> None:
    with pytest.raises(InputError) as caught:
        FitSettings(
            kind="forest", features="answer", seed=-1, confidence=1.0, correct_rate=2.0, correct_below=3.0
        )
    assert len(caught.value.problems) == 6
    with pytest.raises(InputError, match="exclude each other"):
        FitSettings(correct_rate=0.2, correct_below=0.5)
    with pytest.raises(InputError, match="'neighbours' was removed: choose mlp, logistic, utility"):
        FitSettings(kind="neighbours")
    with pytest.raises(InputError, match="9 questions are too few"):
        fit_once(EASY.where(np.arange(9)), FitSettings(kind="logistic"))
    with pytest.raises(InputError, match=r"12 questions are too few .* at least 13"):
        out_of_fold(EASY.where(np.arange(12)), FitSettings(kind="logistic"))
    out_of_fold(EASY.where(np.arange(13)), FitSettings(kind="logistic"))


def test_labels_by_hand() -> None:
    worked = [[1, 0, 1], [0, 0, 1], [0, 0, 0], [0, 0, 0]]
    hops = [True, True, True, False]
    assert labels(worked, hops).tolist() == [0, 2, 2, 1]
    assert labels(worked, hops, "cheapest").tolist() == [0, 2, 0, 0]
    assert labels(worked, hops, "dearest").tolist() == [0, 2, 2, 2]
    with pytest.raises(InputError, match="unanswered"):
        labels(worked, hops, "never")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="3 entries for 4"):
        labels(worked, hops[:3])


def test_what_counts_as_answered() -> None:
    question = Question("a", "Who?", ("Ada Lovelace of London",))
    assert answer_worked(question, "ada lovelace of london.", None)
    assert answer_worked(question, "Ada Lovelace", None)  # F1 = 2 * 2 / (2 + 4) = .67
    assert not answer_worked(question, "Ada", None)  # .4
    assert answer_worked(Question("b", "Who?", (), type="unanswerable"), "", None)
    assert not answer_worked(Question("b", "Who?", (), type="unanswerable"), "Ada", None)
    options = Question("c", "Which?", ("x",), choices=("y", "x"))
    assert answer_worked(options, "y", 1)
    stopped = Question("c", "Which?", ("Paris",), choices=("Rome.", "Paris."))  # as the harness counts
    assert answer_worked(stopped, "B", 1)
    assert not answer_worked(stopped, "A", 0)
    with pytest.raises(InputError, match="has no answers"):
        answer_worked(Question("d", "Who?"), "Ada", None)
    row = {"exact_match": 0.0, "token_f1": 0.6, "gold_recall": 1.0, "answer_in_context": 0.0}
    assert row_worked(row, "answers") == 1
    assert row_worked({**row, "token_f1": 0.59}, "answers") == 0
    assert row_worked({**row, "accuracy": 0.0}, "answers") == 0
    assert row_worked(row, "evidence") == 0
    assert row_worked({**row, "answer_in_context": None}, "evidence") == 1
    assert row_worked({**row, "gold_recall": 0.5, "answer_in_context": None}, "evidence") == 0
    assert row_worked({"gold_recall": None, "source_recall": 1.0}, "evidence") == 1
    assert row_worked({}, "evidence") is None
    assert row_worked({}, "answers") is None


def test_tables_come_back_and_join(tmp_path: Path) -> None:
    first, second = tmp_path / "a.parquet", tmp_path / "b.parquet"
    write_table(EASY, first)
    (back,) = [read_table([first])]
    assert back.outcomes.ids == EASY.outcomes.ids
    np.testing.assert_allclose([s.embedding for s in back.seen], [s.embedding for s in EASY.seen], atol=1e-6)
    np.testing.assert_array_equal(back.labels, EASY.labels)
    np.testing.assert_allclose(back.costs(), [[110, 0.1, 0], [260, 0.2, 0], [510, 0.3, 0]])
    with pytest.raises(DataError, match="holds 'q0' more than once"):
        read_table([first, first])
    more = table(30, seed=2)
    ids = tuple(f"other-{k}" for k in range(30))
    write_table(dataclasses.replace(more, outcomes=dataclasses.replace(more.outcomes, ids=ids)), second)
    assert len(read_table([first, second])) == 120


def test_tables_that_cannot_be_used(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    with pytest.raises(DataError, match="does not exist"):
        read_table([path])
    write_table(EASY, path)
    write_table(table(30, embedder="other"), tmp_path / "b.parquet")
    with pytest.raises(DataError, match="of another embedder"):
        read_table([path, tmp_path / "b.parquet"])
    seen = seen_path(path)
    kept = seen.read_bytes()
    seen.write_bytes(kept[: len(kept) // 2])
    with pytest.raises(DataError, match="damaged"):
        read_table([path])
    seen.write_bytes(seen_path(tmp_path / "b.parquet").read_bytes())
    with pytest.raises(DataError, match="is of other questions than"):
        read_table([path])
    seen.unlink()
    with pytest.raises(DataError, match="does not exist"):
        read_table([path])
    bare = {k: v for k, v in EASY.outcomes.values.items() if k != "label"}
    with pytest.raises(InputError, match="no column 'label'"):
        Table(dataclasses.replace(EASY.outcomes, values=bare), TIERS, EASY.seen, "x")
    wrong = {**EASY.outcomes.values, "label": np.zeros((90, 3))}
    with pytest.raises(InputError, match="must be 1 for one tier"):
        Table(dataclasses.replace(EASY.outcomes, values=wrong), TIERS, EASY.seen, "x")
    with pytest.raises(InputError, match="not easy, medium"):
        Table(EASY.outcomes, TIERS[:2], EASY.seen, "x")


def test_routers_that_cannot_be_used(tmp_path: Path) -> None:
    router = fit_once(EASY, FitSettings(kind="logistic")).router
    path = tmp_path / "router.safetensors"
    weights = router.weights()
    write_weights(weights, path)
    with pytest.raises(InputError, match="embedded by 'tfidf:made', and the index embeds by 'minilm'"):
        read_router(str(path)).check("minilm")
    with pytest.raises(InputError, match="among 3 tiers, and 4 are given"):
        read_router(str(path)).check("tfidf:made", 4)
    write_weights(dataclasses.replace(weights, version=9), path)
    with pytest.raises(DataError, match="has version 9"):
        read_router(str(path))
    write_weights(dataclasses.replace(weights, kind="bandit"), path)
    with pytest.raises(DataError, match="is of the kind 'bandit'"):
        read_router(str(path))
    few = {k: v for k, v in weights.arrays.items() if k != "bias"}
    write_weights(dataclasses.replace(weights, arrays=few), path)
    with pytest.raises(DataError, match="arrays bias are missing"):
        read_router(str(path))
    narrow = {**weights.arrays, "weights": np.zeros((8, 2))}
    write_weights(dataclasses.replace(weights, arrays=narrow), path)
    with pytest.raises(DataError, match="do not lead to 3 tiers"):
        read_router(str(path))
    write_weights(dataclasses.replace(weights, about={**weights.about, "search": ["x"]}), path)
    with pytest.raises(DataError, match="other signals"):
        read_router(str(path))
    path.write_bytes(safetensors.numpy.save({"a": np.zeros(1)}))
    with pytest.raises(DataError, match="not a file of a learned controller"):
        read_router(str(path))
    path.write_bytes(b"not safetensors")
    with pytest.raises(DataError, match="damaged"):
        read_router(str(path))


def test_a_router_is_held_against_the_best_mixture_with_an_interval() -> None:
    known = fit_and_validate(table(90), FitSettings(kind="logistic"))[1]
    right = dataclasses.replace(known, choice=known.table.labels)
    # Of tiers that do for a third, two thirds and all, at 100, 250 and 500 tokens, a mixture at the 283
    # tokens of the right ones does for 2/3 + (283.3 - 250) / 250 / 3; the right ones do for all.
    found = measured(right, Utility())["against_mixture"]
    assert found["mean"] == pytest.approx(1 / 3 - (850 / 3 - 250) / 750)
    assert 0 < found["low"] < found["mean"] < found["high"] < 1 / 3 + 0.15
    hard = dataclasses.replace(known, choice=np.full(90, 2))
    told = measured(hard, Utility())["against_mixture"]
    assert [told[name] for name in ("mean", "low", "high")] == pytest.approx([0, 0, 0])
    wrong = dataclasses.replace(known, choice=(known.table.labels + 1) % 3)
    assert measured(wrong, Utility())["against_mixture"]["high"] < 0


def test_only_one_tier_is_ever_needed() -> None:
    values = {**EASY.outcomes.values, "label": np.eye(3)[np.zeros(90, dtype=int)], "worked": np.ones((90, 3))}
    flat = dataclasses.replace(EASY, outcomes=dataclasses.replace(EASY.outcomes, values=values))
    for kind in KINDS:
        router = fit_once(flat, FitSettings(kind=kind)).router
        assert router.choose(flat.seen[5], Utility()).place == 0
