"""Searching by strategies from the command line, and what is learned there."""

import json
import shutil
from pathlib import Path

import pytest

from mio_rag.learning.bandit_report import recalibrate, replay, settings_of
from mio_rag.retrieval import CorpusIndex
from tests.cli.running import here, only_object
from tests.learning.bandits import lived, strategist

QUESTION = "How long is the Tiber?"


@pytest.fixture(scope="module")
def folder(river_index: CorpusIndex, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index, and a model that always says the same."""
    made = tmp_path_factory.mktemp("strategies")
    river_index.save(made / "INDEX")
    (made / "model.json").write_text(json.dumps({QUESTION: "The Tiber is 406 kilometres long."}))
    return made


def test_select_tells_who_found_what(folder: Path) -> None:
    model = f"scripted:{folder / 'model.json'}"
    options = ("--strategies", "raw,hyde,query2doc", "--generator", model)
    got = only_object(here("select", folder / "INDEX", QUESTION, *options, "--json"))
    assert [one["strategy"] for one in got["strategies"]] == ["raw", "hyde", "query2doc"]
    assert got["strategies"][1]["queries"] == ["The Tiber is 406 kilometres long."]
    assert set(got["found_by"]) == set(got["selected_ids"])
    assert all(set(ranks) <= {"raw", "hyde", "query2doc"} for ranks in got["found_by"].values())
    shown = here("select", folder / "INDEX", QUESTION, *options)
    assert "found by (rank):" in shown.stdout
    alone = only_object(here("select", folder / "INDEX", QUESTION, "--strategies", "raw", "--json"))
    plain = only_object(here("select", folder / "INDEX", QUESTION, "--json"))
    assert alone["selected_ids"] == plain["selected_ids"]


def test_a_model_that_writes_on_and_on_does_not_fill_the_table(folder: Path, tmp_path: Path) -> None:
    said = "The Tiber, " + "a river, " * 40 + "is long."
    (tmp_path / "model.json").write_text(json.dumps({QUESTION: said}))
    options = ("--strategies", "raw,hyde", "--generator", f"scripted:{tmp_path / 'model.json'}")
    shown = here("ask", folder / "INDEX", QUESTION, *options).stdout
    table = shown[shown.index("step ") : shown.index("ended:")]
    assert "The Tiber, a river," in table
    assert " ..." in table
    assert "is long." not in table
    trace = only_object(here("ask", folder / "INDEX", QUESTION, *options, "--json"))["trace"]
    assert trace["search"]["queries"] == {"raw": [QUESTION], "hyde": [said]}


def test_a_bandit_learns_from_the_command_line(folder: Path, tmp_path: Path) -> None:
    state, model = tmp_path / "s.sqlite", f"scripted:{folder / 'model.json'}"
    options = ("--strategies", "bandit", "--strategy-state", state, "--generator", model, "--json")
    answered = only_object(here("ask", folder / "INDEX", QUESTION, *options))
    chosen = answered["trace"]["search"]
    assert chosen["mode"] == "cold"
    assert only_object(here("strategies", "stats", state, "--json"))["questions"] == 1
    rate = ("strategies", "feedback", state, chosen["id"], "helpful")
    assert only_object(here(*rate, "--json"))["new"] is True
    assert "rated before" in here(*rate).stdout
    assert only_object(here("strategies", "rebuild", state, "--json"))["events"] == 3
    told = only_object(here("strategies", "stats", state, "--json"))
    assert sum(each["rating"] for each in told["strategies"].values()) == pytest.approx(1)
    here("strategies", "export", state, "--out", tmp_path / "p.safetensors")
    assert (tmp_path / "p.safetensors").is_file()
    assert "selection_rate" in json.dumps(told)
    assert only_object(here("strategies", "add", state, "grounded", "--json"))["new"] is False
    assert "entropy" in here("strategies", "stats", state).stdout
    prune = ("strategies", "prune", state, "hyde", "--type", "who")
    assert here(*prune).stdout == "hyde is on probation for 'who' questions; --lift ends it\n"
    assert "on probation for 'who' questions already" in here(*prune).stdout
    assert "no longer put on probation for 'who' questions" in here(*prune, "--lift").stdout
    assert "nothing changes" in here(*prune, "--lift").stdout


def test_evaluate_compares_strategies_with_methods(folder: Path, tmp_path: Path) -> None:
    done = here(
        "evaluate", "demo", "--out", tmp_path / "run", "--methods", "topk", "--strategies", "raw,grounded",
        "--embedder", "tfidf", "--limit", "2", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    names = {row["method"] for row in json.loads(done.stdout)["summary"]}
    assert names == {"topk", "strategies:raw+grounded"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--strategies", "raw,hide"], "strategy 'hide' is unknown"),
        (["--strategies", "raw,raw"], "'raw' is given twice"),
        (["--strategies", "hyde"], "hyde: these strategies need a language model: give --generator"),
        (["--strategies", "bandit"], "give --strategy-state FILE.sqlite"),
        (["--strategies", "bandit,raw", "--strategy-state", "s.sqlite"], "name no others beside it"),
        (["--strategies", "raw", "--strategy-state", "s.sqlite"], "--strategy-state: no effect without"),
        (["--strategy-price", "0.1"], "--strategy-price: no effect without --strategies"),
        (["--strategies", "raw", "--strategy-deadline", "0"], "deadline_seconds=0.0 must be finite and > 0"),
        (["--generator", "extractive"], "select asks no model without --strategies"),
    ],
)
def test_what_makes_no_sense_is_refused(folder: Path, options: list[str], words: str) -> None:
    done = here("select", folder / "INDEX", QUESTION, *options)
    assert done.returncode == 2
    assert words in " ".join(done.stderr.split())


def test_a_log_is_looked_at_with_its_own_settings(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    truth = {"hyde": 0.2, "query2doc": 0.01, "grounded": 0.1}
    bandit = strategist(path, policy="uniform", token_price=0.01, ridge=20.0)
    lived(bandit, 60, truth)
    bandit.close()
    own = settings_of(path)
    told = only_object(here("strategies", "replay", path, "--json"))
    assert told["earned"] == replay(path, own.replace(policy="linucb")).earned
    assert told["differs"] > 0
    assert "chosen alike" not in here("strategies", "replay", path).stdout
    assert (
        "It would have chosen alike on all"
        in here("strategies", "replay", path, "--policy", "uniform").stdout
    )
    cheap = only_object(here("strategies", "replay", path, "--strategy-price", "0", "--json"))
    assert cheap["earned"] == pytest.approx(told["earned"] + 0.01 * 50 * 1.5, abs=0.3)
    copy = shutil.copy(path, tmp_path / "copy.sqlite")
    told = only_object(here("strategies", "recalibrate", path, "--json"))
    assert told["loss"] == pytest.approx(recalibrate(Path(copy), own).loss)


def test_ask_takes_a_controller_or_strategies(folder: Path) -> None:
    done = here("ask", folder / "INDEX", QUESTION, "--strategies", "raw", "--controller", "mdp")
    assert done.returncode == 2
    assert "exclude each other" in done.stderr


def test_files_that_are_no_state_are_refused(tmp_path: Path) -> None:
    for command in ("stats", "rebuild", "replay", "recalibrate"):
        done = here("strategies", command, tmp_path / "none.sqlite")
        assert done.returncode == 2
        assert "does not exist" in done.stderr
    (tmp_path / "text.sqlite").write_text("no database at all, but some text that is long enough" * 20)
    done = here("strategies", "stats", tmp_path / "text.sqlite")
    assert done.returncode == 2
    assert "cannot be used" in done.stderr
