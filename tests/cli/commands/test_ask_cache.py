"""`mio-rag ask --cache`: answers that were given before."""

import dataclasses
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from mio_rag.cli.app import app
from mio_rag.corpora.dataset import Dataset
from mio_rag.learning.weights import write_weights
from mio_rag.retrieval import CorpusIndex
from tests.cli.running import cli, only_object


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, rivers: Dataset) -> Path:
    index = tmp_path_factory.mktemp("cache") / "index"
    CorpusIndex.build(rivers.passages, "tfidf", rivers.name).save(index)
    return index


def ask(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["ask", *map(str, arguments)])


def test_an_answer_is_given_again(folder: Path, tmp_path: Path) -> None:
    cache = ("--cache", tmp_path / "a.sqlite")
    first = json.loads(ask(folder, "Where does the Po end?", *cache, "--json").stdout)
    assert first["cached"] is None
    again = json.loads(ask(folder, "where does the po end", *cache, "--json").stdout)
    assert again.pop("cached")["question"] == "Where does the Po end?"
    assert {k: v for k, v in again.items() if k != "question"} == {
        k: v for k, v in first.items() if k not in ("question", "cached")
    }
    shown = ask(folder, "Where does the Po end?", *cache).stdout
    assert "seconds ago to the same question; nothing was asked now" in " ".join(shown.split())
    other = json.loads(ask(folder, "Where does the Po end?", *cache, "--json", "--max-tokens", 63).stdout)
    assert other["cached"] is None
    explained = ask(folder, "Where does the Po end?", *cache, "--explain").stdout
    assert "cached" not in explained  # what explains has to be solved again


def test_a_cache_of_another_version_is_told_in_a_line(folder: Path, tmp_path: Path) -> None:
    cache = ("ask", folder, "Where does the Po end?", "--cache", tmp_path / "a.sqlite", "--json")
    assert cli(*cache).stderr == ""
    with closing(sqlite3.connect(tmp_path / "a.sqlite")) as connection:
        connection.execute("PRAGMA user_version = 7")
    done = cli(*cache)
    assert only_object(done)["cached"] is None
    assert done.stderr == (
        f"note: '{tmp_path / 'a.sqlite'}' was written by another version of mio-rag (format 7, not 2): it is "
        "put aside as 'a.sqlite.version-7', and a new one is begun\n"
    )


def test_an_answer_at_a_tier_is_given_again(folder: Path, tmp_path: Path) -> None:
    from mio_rag.learning.router import FitSettings, fit_once
    from tests.learning.routes import table

    embedder = CorpusIndex.load(folder).embedder
    width = embedder.encode(["Po"]).shape[1]
    made = table(30, embedder=embedder.fingerprint)
    seen = tuple(dataclasses.replace(s, embedding=np.resize(s.embedding, width)) for s in made.seen)
    router = fit_once(dataclasses.replace(made, seen=seen), FitSettings(kind="utility")).router
    write_weights(router.weights(), tmp_path / "r.safetensors")
    one = ("--cache", tmp_path / "a.sqlite", "--json", "--router", tmp_path / "r.safetensors")
    first = json.loads(ask(folder, "Where does the Po end?", *one).stdout)
    assert first["cached"] is None
    assert first["trace"]["about"]["tier"] in ("easy", "medium", "hard")
    again = json.loads(ask(folder, "where does the Po end", *one).stdout)
    assert again["cached"]["question"] == "Where does the Po end?"
    assert (again["answer"], again["trace"]) == (first["answer"], first["trace"])
    for changed in (("--utility", "1,0.01"), ("--unsure", "up"), ("--trace", tmp_path / "t.jsonl")):
        other = json.loads(ask(folder, "Where does the Po end?", *one, *changed).stdout)
        assert other["cached"] is None
    plain = json.loads(ask(folder, "Where does the Po end?", *one[:3]).stdout)
    assert plain["cached"] is None  # no answer of a tier
    shown = ask(folder, "Where does the Po end?", *one[:2], *one[3:]).stdout
    assert "nothing was asked now" in " ".join(shown.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--cache-days", 3), "no effect without --cache FILE"),
        (("--cache", "x.sqlite", "--controller", "mdp"), "answers of agents are not kept"),
        (("--cache", "x.sqlite", "--cache-days", 0, "--cache-entries", 0), "days=0 must be above 0"),
    ],
)
def test_what_cannot_be_kept_is_refused(folder: Path, arguments: tuple[object, ...], said: str) -> None:
    done = ask(folder, "Where?", *arguments)
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())
