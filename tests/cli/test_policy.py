"""``mio-rag policy``: files to begin with, checks, and what a bandit has learned."""

import json
import shutil
from pathlib import Path

import pytest

from mio_rag.learning.bandit_report import recalibrate, replay, settings_of
from mio_rag.session.workflow import NAMED
from tests.cli.running import here, only_object, refused
from tests.learning.bandits import lived, strategist

QUESTION = "How long is the Tiber?"


def test_what_there_is_is_listed_and_shown() -> None:
    listed = here("policy", "list").stdout
    assert {"default", "frugal", "balanced", "thorough", *NAMED} <= set(listed.replace(",", " ").split())
    assert "select (sentences, share 0.5)" in listed
    shown = here("policy", "show", "balanced").stdout
    assert "a passage of 100 tokens must add .05" in shown
    told = only_object(here("policy", "show", "balanced", "--json"))
    assert [line["decision"] for line in told["decisions"]] == [
        "order",
        "search",
        "depth",
        "selection",
        "repeat",
    ]
    changed = only_object(here("policy", "show", "balanced", "--set", "price.token=0.002", "--json"))
    assert changed["token_price"] == 0.002
    assert only_object(here("policy", "show", "plain", "--json")) == NAMED["plain"].to_dict()
    assert "summarise: summarise [each -> answer]" in here("policy", "show", "decompose-serial").stdout


# -- strategies, and what is learned ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that always says the same."""
    path = tmp_path_factory.mktemp("strategies") / "model.json"
    path.write_text(json.dumps({QUESTION: "The Tiber is 406 kilometres long."}))
    return f"scripted:{path}"


def test_a_bandit_learns_from_the_command_line(rivers_at: Path, model: str, tmp_path: Path) -> None:
    state = tmp_path / "s.sqlite"
    options = ("--policy", "strategies:bandit", "--set", f"search.state={state}", "--set",
               "search.strategies=raw,hyde,query2doc,grounded", "--model", model)  # fmt: skip
    chosen = only_object(here("ask", rivers_at, QUESTION, *options, "--why", "--json"))["trace"]["search"]
    assert chosen["mode"] == "cold"
    assert only_object(here("policy", "state", "show", state, "--json"))["questions"] == 1
    rate = ("policy", "state", "feedback", state, chosen["id"], "helpful")
    assert only_object(here(*rate, "--json"))["new"] is True
    assert "rated before" in here(*rate).stdout
    assert only_object(here("policy", "state", "rebuild", state, "--json"))["events"] == 3
    told = only_object(here("policy", "state", "show", state, "--json"))
    assert sum(each["rating"] for each in told["strategies"].values()) == pytest.approx(1)
    assert "entropy" in here("policy", "state", "show", state).stdout
    here("policy", "state", "export", state, "--out", tmp_path / "p.safetensors")
    assert (tmp_path / "p.safetensors").is_file()
    assert only_object(here("policy", "state", "add", state, "grounded", "--json"))["new"] is False
    prune = ("policy", "state", "prune", state, "hyde", "--type", "who")
    assert here(*prune).stdout == "hyde is on probation for 'who' questions; --lift ends it\n"
    assert "on probation for 'who' questions already" in here(*prune).stdout
    assert "no longer put on probation for 'who' questions" in here(*prune, "--lift").stdout
    assert "nothing changes" in here(*prune, "--lift").stdout


def test_a_log_is_replayed_with_its_own_settings(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    truth = {"hyde": 0.2, "query2doc": 0.01, "grounded": 0.1}
    bandit = strategist(path, policy="uniform", token_price=0.01, ridge=20.0)
    lived(bandit, 60, truth)
    bandit.log.close()
    own = settings_of(path)
    told = only_object(here("policy", "replay", path, "--json"))
    assert told["earned"] == replay(path, own.replace(policy="linucb")).earned
    assert told["differs"] > 0
    assert "would have chosen alike on all" in here("policy", "replay", path, "--bandit", "uniform").stdout
    cheap = only_object(here("policy", "replay", path, "--price", "0", "--json"))
    assert cheap["earned"] == pytest.approx(told["earned"] + 0.01 * 50 * 1.5, abs=0.3)
    assert "in hindsight, on" in here("policy", "replay", path).stdout
    whole = tmp_path / "whole.sqlite"  # a cold start on which all run: nothing else had a chance
    lived(strategist(whole, cold_start=1000), 10, truth)
    seen = only_object(here("policy", "replay", whole, "--json"))["hindsight"]
    assert (seen["questions"], seen["best"]) == (10, ["raw", "hyde", "grounded"])
    assert len(seen["regret"]) == 10
    copy = shutil.copy(path, tmp_path / "copy.sqlite")
    assert "are needed to compare" in refused(here("policy", "state", "recalibrate", path))[0]
    recalibrated = ("policy", "state", "recalibrate", path, "--holdout", "0.5", "--json")
    told = only_object(here(*recalibrated, "--dry-run"))
    assert told["loss"] == pytest.approx(recalibrate(Path(copy), own.replace(holdout=0.5)).loss)
    assert only_object(here(*recalibrated)) == {**told, "dry_run": False}


# -- replay of traces -------------------------------------------------------------------------------------
