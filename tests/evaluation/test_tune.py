"""Tuning: what a setting is worth, nested figures, resumption after kills, the file of options."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mio_rag.cli.fit import tuned_lines
from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import InputError
from mio_rag.evaluation import tune as module
from mio_rag.evaluation.tune import (
    Goal,
    Reading,
    Setting,
    TuneResult,
    TuneSettings,
    readings,
    tune,
    valued_pools,
)
from mio_rag.pool import Candidates
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.selection.selector import Selector
from mio_rag.storage import claimed
from mio_rag.types import Question
from tests.cli.running import full_disk, here, only_object

pytest.importorskip("optuna")

World = tuple[list[Question], list[Candidates]]


def pool(ids: list[str], relevance: Any, tokens: Any, vectors: np.ndarray) -> Candidates:
    return Candidates(
        ids=ids, texts=["t"] * len(ids), relevance=np.array(relevance), tokens=np.array(tokens),
        embeddings=vectors / np.linalg.norm(vectors, axis=1, keepdims=True), question="Which?",
    )  # fmt: skip


def copies(count: int = 12) -> World:
    """Decoys are copies of one gold passage, so that only a redundancy weight finds both."""
    rng, questions, pools = np.random.default_rng(0), [], []
    ids, relevance = ["gold a", "copy 1", "copy 2", "gold b", "noise"], [0.9, 0.62, 0.61, 0.6, 0.05]
    for k in range(count):
        base = np.linalg.qr(rng.normal(size=(8, 8)))[0]
        vectors = np.vstack([base[0], base[0] + 0.05 * base[2], base[0] + 0.05 * base[3], base[1], base[4]])
        questions.append(Question(f"q{k}", "Which?", ("x",), ("gold a", "gold b")))
        pools.append(pool(ids, relevance, [50, 50, 50, 50, 20], vectors))
    return questions, pools


def mixed() -> World:
    """Sizes, relevance and gold at random, so that hardly two settings are worth the same."""
    rng, questions, pools = np.random.default_rng(0), [], []
    ids = [f"p{i}" for i in range(9)]
    for k in range(10):
        vectors = rng.normal(size=(9, 3))
        relevance = np.sort(rng.uniform(0.1, 0.9, 9))[::-1]
        questions.append(Question(f"q{k}", "Which?", ("x",), tuple(ids[i] for i in rng.choice(7, 3, False))))
        pools.append(pool(ids, relevance, rng.integers(5, 60, 9), vectors))
    return questions, pools


START = Selector.raw(redundancy_weight=0.0, passage_penalty=0.0)
FEW = TuneSettings(
    Goal(100), START, vary=("redundancy_weight", "passage_penalty"), trials=8, patience=8, folds=2
)
#: Enough trials for draws that rest on earlier ones (the first ten do not) and for some that end early.
MANY = replace(FEW, vary=("redundancy_weight", "passage_penalty", "token_price"), trials=13, patience=13)


def test_what_a_setting_is_worth_by_hand() -> None:
    assert Goal(200).worth(0.8, 100) == pytest.approx(0.8 - 0.005)
    goal = Goal(200, recall=0.9)
    assert goal.worth(0.95, 50) == pytest.approx(-0.25)
    assert goal.worth(0.8, 50) == pytest.approx(-0.25 - 1.0)
    for selector, budget, recall, tokens in (
        (START, 100, 0.5, 100),  # a gold passage and its copy
        (START.replace(redundancy_weight=0.4), 100, 1.0, 100),
        (START, 10, 0.0, 0),  # below every passage
    ):
        (found,) = readings(Setting.of(selector, budget), Selector.raw(), *copies(1))
        assert (found.recall, found.tokens) == (recall, tokens)


def test_it_finds_what_helps_and_reports_unseen_questions(tmp_path: Path) -> None:
    storage = tmp_path / "s.sqlite"
    done: list[int] = []
    found = tune(*copies(), FEW, storage, progress=lambda n, text: done.append(n))
    assert found.setting.redundancy_weight > 0.02
    assert (found.start["recall"]["mean"], found.outer["recall"]["mean"]) == (0.5, 1.0)
    assert found.outer["gain"]["low"] > 0
    assert found.clearly_better
    assert (len(found.folds), sum(done)) == (2, 3 * 8)
    # Other settings share the file and not the searches.
    assert tune(*copies(), replace(FEW, goal=Goal(120), trials=2), storage).trials <= 6
    # A recall is reached with fewer tokens.
    cheap = tune(*copies(), replace(FEW, goal=Goal(220, recall=0.5)), storage)
    assert cheap.outer["recall"]["mean"] >= 0.5
    assert cheap.outer["tokens"]["mean"] < cheap.start["tokens"]["mean"]
    # Where nothing that is varied matters, the search ends early, and the start stays the best.
    still = tune(*copies(), replace(FEW, vary=("redundancy_by_relevance",), trials=30, patience=3), storage)
    assert still.trials <= 3 * 5
    assert (still.outer["gain"]["mean"], still.improved, still.clearly_better) == (0, False, False)
    assert still.setting == Setting.of(START, 100)
    assert tuned_lines(still)[-1].startswith("nothing better was found")


def test_relevance_fitted_within_the_folds_never_sees_its_questions(
    demo: Dataset, demo_index: CorpusIndex, tmp_path: Path
) -> None:
    questions = [q for q in demo.questions if q.gold_ids][:20]
    pools = Retriever(demo_index, pool=12).retrieve_many([q.text for q in questions])
    train, test = list(range(16)), list(range(16, 20))
    valued = valued_pools("logistic", questions, pools, train, test, 0)
    assert sorted(valued) == sorted(train + test)
    # Labels of a question must not change its own values, only those of others.
    spoiled, i = [*questions], 3
    spoiled[i] = Question("other", questions[i].text, ("x",), (pools[i].ids[-1],))
    changed = valued_pools("logistic", spoiled, pools, train, test, 0)
    np.testing.assert_array_equal(changed[i].relevance, valued[i].relevance)
    assert any(not np.array_equal(changed[j].relevance, valued[j].relevance) for j in train if j != i)
    assert not np.array_equal(changed[test[0]].relevance, valued[test[0]].relevance)


def test_rho_is_tuned_together_with_the_other_weights(tmp_path: Path) -> None:
    questions, pools = [], []
    for k in range(12):
        questions.append(Question(f"q{k}", "Which?", ("x",), ("gold",)))
        made = pool(["gold", "far", "near", "noise"], [0.9, 0.02, 0.015, 0.01], [50] * 4, np.eye(4))
        pools.append(replace(made, query_embedding=np.eye(4)[0]))
    start = Selector.raw(redundancy_weight=0.0, passage_penalty=0.0)
    settings = replace(FEW, goal=Goal(200), vary=("radius",), relevance="given", start=start)
    found = tune(questions, pools, settings, tmp_path / "s.sqlite")
    assert found.setting.radius > 0
    assert (found.start["tokens"]["mean"], found.outer["recall"]["mean"]) == (200, 1)
    assert found.outer["tokens"]["mean"] < 200
    together = replace(settings, vary=("redundancy_weight", "passage_penalty", "token_price", "radius"))
    assert tune(questions, pools, together, tmp_path / "t.sqlite").outer["tokens"]["mean"] < 200


def test_the_command_writes_a_policy(demo_index: CorpusIndex, tmp_path: Path) -> None:
    index, out = demo_index.save(tmp_path / "index"), tmp_path / "tuned.toml"
    command = ("policy", "fit", "settings", index, "--questions", "demo", "--out", out, "--trials", 2,
               "--folds", 2, "--limit", 12)  # fmt: skip
    for more, said in (
        ((), "another run is at work on"),
        (("--storage", out), "must be another file than --out"),
        (("--out", tmp_path / "x.json"), "must be a file that ends in .toml"),
    ):
        with claimed(out):
            done = here(*command, *more)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert said in done.stderr
    given = (
        "--budget", 200, "--set", "search.pool=15", "--set", "selection.relevance_model=ranks",
        "--set", "search.link_hops=1", "--set", "selection.link_benefit=0.2",
    )  # fmt: skip
    found = only_object(here(*command, *given, "--json"))
    assert found["outer"]["recall"]["mean"] > 0.3
    assert found["trials"] <= 6
    assert "outer_recall" in out.read_text()
    select = ("select", index, "Which tower is taller, Bell Rock Lighthouse or Skerryvore?", "--policy", out)
    assert only_object(here(*select, "--json"))["budget"] == 200
    assert only_object(here(*select, "--budget", 90, "--json"))["budget"] == 90
    evaluate = ("evaluate", index, "--questions", "demo", "--out", tmp_path / "e", "--policy", out)
    run = only_object(here(*evaluate, "--methods", "topk,exact", "--limit", 2, "--json"))["run"]
    assert run["settings"]["link_benefit"] == found["policy"]["selection"]["link_benefit"]
    assert run["pool"] == 15
    out.write_text("colour = 1\n")
    assert "colour" in here(*select).stderr


# Resumption


def search(storage: Path, settings: TuneSettings = MANY) -> TuneResult:
    return tune(*mixed(), settings, storage, label="world")


def tried(storage: Path) -> list[Any]:
    """Everything that was read in trials."""
    with closing(sqlite3.connect(storage)) as connection:
        return sorted(connection.execute("SELECT * FROM readings"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[TuneResult, list[Any]]:
    storage = tmp_path_factory.mktemp("whole") / "s.sqlite"
    return search(storage), tried(storage)


def counting(
    monkeypatch: pytest.MonkeyPatch, at: Callable[[int], None] = lambda count: None
) -> list[Setting]:
    """Settings that are read from now on; `at` is called with how many there have been."""
    seen: list[Setting] = []

    def counted(setting: Setting, *rest: Any) -> list[Reading]:
        seen.append(setting)
        at(len(seen))
        return readings(setting, *rest)

    monkeypatch.setattr(module, "readings", counted)
    return seen


KILLED = """
import os, signal, sys
from pathlib import Path
from mio_rag.evaluation import tune as module
from tests.evaluation.test_tune import readings, search
left = int(sys.argv[2])
def counted(*given):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    return readings(*given)
module.readings = counted
search(Path(sys.argv[1]))
"""


def test_killed_and_resumed_it_ends_alike(whole: tuple[TuneResult, list[Any]], tmp_path: Path) -> None:
    storage = tmp_path / "s.sqlite"
    killed = subprocess.run([sys.executable, "-c", KILLED, storage, "60"], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert search(storage).to_dict() == whole[0].to_dict()
    assert tried(storage) == whole[1]
    assert [path.name for path in tmp_path.iterdir()] == ["s.sqlite"]


def test_more_trials_and_more_patience_continue_the_same_searches(
    whole: tuple[TuneResult, list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = tmp_path / "s.sqlite"
    few = search(storage, replace(MANY, trials=6))
    assert few.trials == 3 * 6
    before = tried(storage)
    assert search(storage, replace(MANY, patience=2)).trials < 3 * 13
    seen = counting(monkeypatch)
    assert search(storage).to_dict() == whole[0].to_dict()
    assert tried(storage) == whole[1]
    assert {key for key, _ in before} < {key for key, _ in whole[1]}
    judged = 2 * 4 + 2  # of each fold start and choice, on either side; at the end start and choice
    assert len(seen) <= len(whole[1]) - len(before) + judged


def test_damaged_foreign_and_full_storage_is_refused(
    whole: tuple[TuneResult, list[Any]], tmp_path: Path
) -> None:
    storage = tmp_path / "s.sqlite"
    with full_disk(20_000), pytest.raises(InputError, match=r"s\.sqlite' cannot hold the searches: [^\n]*$"):
        search(storage)
    assert 0 < len(tried(storage)) < len(whole[1])
    assert search(storage).to_dict() == whole[0].to_dict()
    with closing(sqlite3.connect(storage)) as connection, connection:
        connection.execute("UPDATE readings SET made = '[[1.0'")
    with pytest.raises(InputError, match=r"is damaged .*: delete it"):
        search(storage, replace(MANY, trials=1))
    storage.write_text("years of work")
    for path in (tmp_path, storage / "deeper"):
        with pytest.raises(InputError, match="cannot"):
            search(path)
    with pytest.raises(InputError, match="cannot hold the searches: file is not a database"):
        search(storage)
    assert storage.read_text() == "years of work"
