"""`mio-rag ask --cache`: answers that were given before."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from mio_rag.cli.app import app
from mio_rag.corpora.dataset import Dataset
from mio_rag.retrieval import CorpusIndex


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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--cache-by-meaning", 0.9), "no effect without --cache FILE"),
        (("--cache", "x.sqlite", "--controller", "mdp"), "answers of agents are not kept"),
        (("--cache", "x.sqlite", "--cache-days", 0, "--cache-entries", 0), "days=0 must be above 0"),
    ],
)
def test_what_cannot_be_kept_is_refused(folder: Path, arguments: tuple[object, ...], said: str) -> None:
    done = ask(folder, "Where?", *arguments)
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())
