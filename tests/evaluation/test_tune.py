"""Tuning: what a setting is worth, nested figures, resumption, and the file that commands read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from mio_rag.candidates import Candidates
from mio_rag.cli.app import app
from mio_rag.cli.fit import _fit, _lines
from mio_rag.cli.options import config_text, read_config
from mio_rag.corpora.load import Dataset
from mio_rag.errors import InputError
from mio_rag.evaluation.tune import Goal, Setting, TuneResult, TuneSettings, readings, tune, valued_pools
from mio_rag.relevance import load_model
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.selection.selector import Selector
from mio_rag.types import Question

optuna = pytest.importorskip("optuna")


def world(count: int = 12, seed: int = 0) -> tuple[list[Question], list[Candidates]]:
    """Decoys are copies of one gold passage, so that only a redundancy weight finds both."""
    rng = np.random.default_rng(seed)
    questions, pools = [], []
    for k in range(count):
        base = np.linalg.qr(rng.normal(size=(8, 8)))[0]
        vectors = np.vstack([base[0], base[0] + 0.05 * base[2], base[0] + 0.05 * base[3], base[1], base[4]])
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        questions.append(Question(f"q{k}", "Which?", ("x",), ("gold a", "gold b")))
        pools.append(
            Candidates(
                ids=["gold a", "copy 1", "copy 2", "gold b", "noise"],
                texts=["t"] * 5,
                relevance=np.array([0.9, 0.62, 0.61, 0.6, 0.05]),
                tokens=np.array([50, 50, 50, 50, 20]),
                embeddings=vectors,
                question="Which?",
            )
        )
    return questions, pools


def settings(**changes: Any) -> TuneSettings:
    given: dict[str, Any] = {
        "goal": Goal(100),
        "start": Selector.raw(redundancy_weight=0.0, passage_penalty=0.0),
        "vary": ["redundancy_weight", "passage_penalty"],
        "trials": 8,
        "patience": 8,
        "folds": 2,
    }
    return TuneSettings(**{**given, **changes})


def test_what_a_setting_is_worth_by_hand() -> None:
    assert Goal(200).worth(0.8, 100) == pytest.approx(0.8 - 0.005)
    goal = Goal(200, recall=0.9)
    assert goal.worth(0.95, 50) == pytest.approx(-0.25)
    assert goal.worth(0.8, 50) == pytest.approx(-0.25 - 1.0)
    questions, pools = world(1)
    start = Setting.of(Selector.raw(redundancy_weight=0.0, passage_penalty=0.0), 100)
    assert (
        readings(start, Selector.raw(), questions, pools)[0].recall == 0.5
    )  # the golden passage and its copy
    apart = Setting.of(Selector.raw(redundancy_weight=0.4, passage_penalty=0.0), 100)
    found = readings(apart, Selector.raw(), questions, pools)[0]
    assert (found.recall, found.tokens) == (1.0, 100.0)
    nothing = Setting.of(Selector.raw(redundancy_weight=0.0), 10)  # below every passage
    assert readings(nothing, Selector.raw(), questions, pools)[0].recall == 0.0


def test_it_finds_what_helps_and_reports_unseen_questions(tmp_path: Path) -> None:
    questions, pools = world()
    told: list[int] = []
    found = tune(questions, pools, settings(), tmp_path / "s.sqlite", progress=lambda n, text: told.append(n))
    assert found.setting.redundancy_weight > 0.02
    assert found.start["recall"]["mean"] == 0.5
    assert found.outer["recall"]["mean"] == 1.0
    assert found.outer["gain"]["low"] > 0
    assert len(found.folds) == 2
    assert sum(told) == 3 * 8
    # Going on: every search is finished, nothing is tried again, and the outcome is the same.
    again = tune(questions, pools, settings(), tmp_path / "s.sqlite")
    assert again.to_dict() == found.to_dict()
    # Other settings share the file and not the searches.
    other = tune(questions, pools, settings(goal=Goal(120), trials=2), tmp_path / "s.sqlite")
    assert other.trials <= 6


def test_a_recall_is_reached_with_the_fewest_tokens(tmp_path: Path) -> None:
    questions, pools = world()
    found = tune(questions, pools, settings(goal=Goal(220, recall=0.5), trials=8), tmp_path / "s.sqlite")
    assert found.outer["recall"]["mean"] >= 0.5
    assert found.outer["tokens"]["mean"] < found.start["tokens"]["mean"]


def test_a_search_without_progress_ends_early(tmp_path: Path) -> None:
    questions, pools = world()
    # Nothing that is varied changes anything: the first setting stays the best.
    still = settings(vary=["redundancy_by_relevance"], trials=30, patience=3)
    found = tune(questions, pools, still, tmp_path / "s.sqlite")
    assert found.trials <= 3 * 5
    assert found.outer["gain"]["mean"] == 0


def test_relevance_fitted_within_the_folds_never_sees_its_questions(
    demo: Dataset, demo_index: CorpusIndex
) -> None:
    questions = [q for q in demo.questions if q.gold_ids]
    pools = Retriever(demo_index, pool=20).retrieve_many([q.text for q in questions])
    train, test = list(range(18)), list(range(18, len(questions)))
    valued = valued_pools("logistic", questions, pools, train, test, 0)
    assert sorted(valued) == sorted(train + test)
    # Labels of a question must not change its own values, only those of others.
    spoiled = [*questions]
    i = 3
    spoiled[i] = Question("other", questions[i].text, ("x",), (pools[i].ids[-1],))
    changed = valued_pools("logistic", spoiled, pools, train, test, 0)
    np.testing.assert_array_equal(changed[i].relevance, valued[i].relevance)
    assert any(not np.array_equal(changed[j].relevance, valued[j].relevance) for j in train if j != i)
    assert not np.array_equal(changed[test[0]].relevance, valued[test[0]].relevance)


def test_what_cannot_be_tuned_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="budget_tokens=0"):
        Goal(0, 2.0)
    with pytest.raises(InputError, match="'colour' cannot be varied"):
        settings(vary=["colour"], folds=1)
    with pytest.raises(InputError, match="without embedding uncertainty"):
        settings(start=Selector.raw(radius=0.1))
    questions, pools = world(9)
    with pytest.raises(InputError, match="too few for 2 folds"):
        tune(questions, pools, settings(), tmp_path / "s.sqlite")


def test_configurations_come_back(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    options = {"link_benefit": 0.2, "relevance": "m.json", "rerank": ["maxsim"], "max_per_source": None}
    path.write_text(config_text(options, {"questions": 3}, "two\nlines"))
    known = {"link_benefit", "relevance", "rerank"}
    assert read_config(path, known) == {
        "link_benefit": 0.2,
        "relevance": str(tmp_path / "m.json"),
        "rerank": ["maxsim"],
    }
    with pytest.raises(InputError, match="'rerank' is unknown"):
        read_config(path, {"link_benefit", "relevance"})
    path.write_text("[link_benefit]\na = 1\n")
    with pytest.raises(InputError, match="not a table"):
        read_config(path, known)
    path.write_text("= 1")
    with pytest.raises(InputError, match="not a readable TOML"):
        read_config(path, known)


def run(*arguments: object, code: int = 0) -> Any:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return json.loads(result.stdout) if "--json" in arguments and code == 0 else result.output


def test_relevance_fitted_while_tuning_lies_beside_the_file(
    demo: Dataset, demo_index: CorpusIndex, tmp_path: Path
) -> None:
    questions = [q for q in demo.questions if q.gold_ids]
    pools = Retriever(demo_index, pool=10).retrieve_many([q.text for q in questions])
    name = _fit(questions, pools, "logistic", tmp_path / "tuned.toml", 0, demo_index, "demo")
    assert name == "tuned.relevance.json"
    path = tmp_path / "tuned.toml"
    path.write_text(config_text({"relevance": name}, {}, "x"))
    assert load_model(read_config(path, {"relevance"})["relevance"]) is not None


def test_the_command_writes_what_select_and_evaluate_read(demo_index: CorpusIndex, tmp_path: Path) -> None:
    index, out = demo_index.save(tmp_path / "index"), tmp_path / "tuned.toml"
    small = ["--trials", 2, "--folds", 2, "--pool", 15, "--budget-tokens", 200, "--limit", 12]
    evidence = ["--relevance", "ranks", "--link-hops", 1, "--link-benefit", 0.2]
    found = run("tune", "demo", "--index", index, "--out", out, *small, *evidence, "--json")
    assert found["outer"]["recall"]["mean"] > 0.3
    assert found["trials"] <= 6
    assert "outer_recall" in out.read_text()
    question = "Which tower is taller, Bell Rock Lighthouse or Skerryvore?"
    chosen = run("select", index, question, "--config", out, "--json")
    assert chosen["budget_tokens"] == 200
    assert all(0 <= p["relevance"] <= 1 for p in chosen["passages"])
    narrow = run("select", index, question, "--config", out, "--budget-tokens", 90, "--json")
    assert narrow["budget_tokens"] == 90  # the command line wins
    evaluated = run(
        *("evaluate", "demo", "--index", index, "--out", tmp_path / "e", "--generator", "none"),
        *("--methods", "topk,exact", "--limit", 2, "--config", out, "--json"),
    )
    assert evaluated["run"]["budgets"] == [200]
    assert evaluated["run"]["settings"]["link_benefit"] == found["options"]["link_benefit"]
    out.write_text("colour = 1\n")
    assert "'colour' is unknown" in run("select", index, question, "--config", out, code=2)
    assert "must be a file that ends in .toml" in run(
        "tune", "demo", "--index", index, "--out", tmp_path / "x.json", code=2
    )


SPREAD = {"mean": 0.5, "low": 0.4, "high": 0.6}
FIGURES = {"recall": SPREAD, "tokens": {"mean": 90.0, "low": 80.0, "high": 99.0}}
GAIN, SAVED = {"mean": 0.1, "low": 0.05, "high": 0.2}, {"mean": -5.2, "low": -11.0, "high": 3.0}


def outcome(gain: dict[str, float]) -> list[str]:
    """What the command says of a search of two folds."""
    outer = {**FIGURES, "gain": gain, "saved": SAVED}
    setting = Setting.of(Selector.raw(), 100)
    return _lines(TuneResult(setting, FIGURES, outer, FIGURES, [{}, {}], 20, 12, improved=True))


def test_the_outcome_is_said_without_riddles() -> None:
    said = outcome(GAIN)
    assert said[0] == (
        "12 questions; 20 trials in 3 searches, one for each of 2 folds and one on all questions"
    )
    assert "evidence found 50.0% (40.0% to 60.0%) with 90 tokens" in said[1]
    assert said[-1].endswith("evidence found +10.0 points (+5.0 to +20.0), tokens +5 (-3 to +11)")
    unclear = outcome({"mean": -0.0, "low": -0.01, "high": 0.01})
    assert unclear[-1].startswith("no clear improvement on questions not seen")
    assert "+0.0 points" in unclear[-2]


def test_nothing_better_is_said(tmp_path: Path) -> None:
    questions, pools = world()
    still = settings(vary=["redundancy_by_relevance"], trials=3, patience=3)
    found = tune(questions, pools, still, tmp_path / "s.sqlite")
    assert found.improved is False
    assert found.clearly_better is False
    assert found.to_dict()["clearly_better"] is False
    assert found.setting == Setting.of(still.start, 100)
    assert _lines(found)[-1].startswith("nothing better was found")
    better = tune(questions, pools, settings(), tmp_path / "s.sqlite")
    assert better.improved is True
    assert not any("nothing better" in line for line in _lines(better))
