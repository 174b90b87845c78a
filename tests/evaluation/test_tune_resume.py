"""A search that was interrupted, or is asked for more, ends as one that was not."""

from __future__ import annotations

import resource
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
from typer.testing import CliRunner

from mio_rag.candidates import Candidates
from mio_rag.cli.app import app
from mio_rag.errors import InputError
from mio_rag.evaluation import tune as module
from mio_rag.evaluation.tune import Goal, Reading, Setting, TuneResult, TuneSettings, readings, tune
from mio_rag.files import claimed
from mio_rag.retrieval import CorpusIndex
from mio_rag.selection.selector import Selector
from mio_rag.types import Question

pytest.importorskip("optuna")

#: Enough trials for draws that rest on earlier ones (the first ten do not) and for some that end early.
SETTINGS = TuneSettings(
    Goal(100),
    Selector.raw(redundancy_weight=0.0, passage_penalty=0.0),
    vary=("redundancy_weight", "passage_penalty", "token_price"),
    trials=16,
    patience=16,
    folds=2,
)


def world() -> tuple[list[Question], list[Candidates]]:
    """Sizes, relevance and gold at random, so that hardly two settings are worth the same."""
    rng = np.random.default_rng(0)
    questions, pools = [], []
    for k in range(10):
        vectors = rng.normal(size=(9, 3))
        ids = [f"p{i}" for i in range(9)]
        relevance = np.sort(rng.uniform(0.1, 0.9, 9))[::-1]
        questions.append(Question(f"q{k}", "Which?", ("x",), tuple(ids[i] for i in rng.choice(7, 3, False))))
        pools.append(
            Candidates(
                ids=ids,
                texts=["t"] * 9,
                relevance=relevance,
                tokens=rng.integers(5, 60, 9),
                embeddings=vectors / np.linalg.norm(vectors, axis=1, keepdims=True),
                question="Which?",
            )
        )
    return questions, pools


def search(storage: Path, settings: TuneSettings = SETTINGS) -> TuneResult:
    return tune(*world(), settings, storage, label="world")


def tried(storage: Path) -> list[Any]:
    """Everything that was read in trials."""
    with closing(sqlite3.connect(storage)) as connection:
        return sorted(connection.execute("SELECT * FROM readings"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[TuneResult, list[Any]]:
    storage = tmp_path_factory.mktemp("whole") / "s.sqlite"
    return search(storage), tried(storage)


class Stop(BaseException):
    """Nothing tidies up behind it."""


def counting(
    monkeypatch: pytest.MonkeyPatch, at: Callable[[int], None] = lambda count: None
) -> list[Setting]:
    """Settings that are read from now on; `at` is told how many there have been."""
    seen: list[Setting] = []

    def counted(setting: Setting, *rest: Any) -> list[Reading]:
        seen.append(setting)
        at(len(seen))
        return readings(setting, *rest)

    monkeypatch.setattr(module, "readings", counted)
    return seen


def test_wherever_it_is_stopped_it_ends_alike(
    whole: tuple[TuneResult, list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for first in (1, 3, 17, 48, 80, 115, 190):
        storage = tmp_path / f"{first}.sqlite"
        for after in (first, 9):  # stopped, and once more after it went on

            def stop(count: int, last: int = after) -> None:
                if count == last:
                    raise Stop

            counting(monkeypatch, stop)
            with pytest.raises(Stop):
                search(storage)
        counting(monkeypatch)
        assert search(storage).to_dict() == whole[0].to_dict(), first
        assert tried(storage) == whole[1], first


KILLED = """
import os, signal, sys
from pathlib import Path
from mio_rag.evaluation import tune as module
from tests.evaluation.test_tune_resume import readings, search
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


def test_killed_and_started_again_it_ends_alike(whole: tuple[TuneResult, list[Any]], tmp_path: Path) -> None:
    storage = tmp_path / "s.sqlite"
    for after in (60, 31):
        killed = subprocess.run([sys.executable, "-c", KILLED, storage, str(after)], check=False)
        assert killed.returncode == -signal.SIGKILL
    assert search(storage).to_dict() == whole[0].to_dict()
    assert tried(storage) == whole[1]
    assert [path.name for path in tmp_path.iterdir()] == ["s.sqlite"]


def test_more_trials_and_more_patience_go_on_with_what_there_is(
    whole: tuple[TuneResult, list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = tmp_path / "s.sqlite"
    few = search(storage, replace(SETTINGS, trials=6))
    assert few.trials == 3 * 6
    before = tried(storage)
    assert search(storage, replace(SETTINGS, patience=2)).trials < 3 * 16
    seen = counting(monkeypatch)
    assert search(storage).to_dict() == whole[0].to_dict()
    assert tried(storage) == whole[1]
    assert {key for key, _ in before} < {key for key, _ in whole[1]}
    judged = 2 * 4 + 2  # of each fold start and choice, on either side; at the end start and choice
    assert len(seen) <= len(whole[1]) - len(before) + judged
    # And fewer are what they were.
    assert search(storage, replace(SETTINGS, trials=6)).to_dict() == few.to_dict()


def test_a_full_disk_is_one_error_and_what_was_found_is_kept(
    whole: tuple[TuneResult, list[Any]], tmp_path: Path
) -> None:
    storage = tmp_path / "s.sqlite"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for size in (1000, 20_000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            with pytest.raises(InputError, match=r"s\.sqlite' cannot hold the searches: [^\n]*$"):
                search(storage)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert 0 < len(tried(storage)) < len(whole[1])
    assert search(storage).to_dict() == whole[0].to_dict()


def test_what_is_no_file_of_searches_is_refused(tmp_path: Path) -> None:
    storage = tmp_path / "s.sqlite"
    for path in (tmp_path, storage / "deeper"):
        storage.write_text("years of work")
        with pytest.raises(InputError, match="cannot"):
            search(path)
    with pytest.raises(InputError, match="cannot hold the searches: file is not a database"):
        search(storage)
    assert storage.read_text() == "years of work"
    storage.unlink()
    search(storage, replace(SETTINGS, trials=1))
    with closing(sqlite3.connect(storage)) as connection, connection:
        connection.execute("UPDATE readings SET made = '[[1.0'")
    with pytest.raises(InputError, match=r"is damaged .*: delete it"):
        search(storage, replace(SETTINGS, trials=1))


def test_one_run_at_a_time_tunes_a_file(demo_index: CorpusIndex, tmp_path: Path) -> None:
    index, out = demo_index.save(tmp_path / "index"), tmp_path / "tuned.toml"
    command = ["tune", "demo", "--index", index, "--out", out, "--limit", 10, "--folds", 2, "--trials", 1]

    def said(*more: object) -> str:
        done = CliRunner().invoke(app, [str(part) for part in (*command, *more)])
        assert done.exit_code == 2, done.output
        assert done.stderr.count("\n") == 1
        return done.stderr

    with claimed(out):
        assert "another run is at work on" in said()
    with claimed(tmp_path / "other.sqlite"):
        assert "other.sqlite': wait for it" in said("--storage", tmp_path / "other.sqlite")
    assert "must be another file than --out" in said("--storage", out)
    done = CliRunner().invoke(app, [str(part) for part in command])
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index", "tuned.sqlite", "tuned.toml"]
