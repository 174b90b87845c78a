"""Off-policy estimates, recalibration, priors; and kills at any moment."""

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mio_rag.errors import DataError, InputError
from mio_rag.learning.bandit import BanditSettings, Learned
from mio_rag.learning.bandit_log import Event, EventLog
from mio_rag.learning.bandit_report import (
    add_strategy,
    export,
    off_policy,
    plot_log,
    prune,
    rebuild,
    recalibrate,
    replay,
    settings_of,
    start_from,
    stats_of,
)
from mio_rag.learning.strategist import folded, rate
from mio_rag.learning.weights import read_weights, write_weights
from tests.learning.bandits import STRATEGIES, asked, lived, strategist

TRUTH = {"hyde": 0.2, "query2doc": 0.01, "grounded": 0.1}


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    """Synthetic logs: three sets, rewards by context, a target unlike the logging policy, a biased model."""
    rng = np.random.default_rng(0)
    hits = {"ips": 0, "snips": 0, "dr": 0}
    widths = {"ips": 0.0, "snips": 0.0, "dr": 0.0}
    logs, n = 400, 600
    mean = np.array([[0.2, 0.5, 0.3], [0.6, 0.1, 0.4]])
    logging = np.array([[0.6, 0.3, 0.1], [0.2, 0.7, 0.1]])
    target = np.array([[0.1, 0.8, 0.1], [0.9, 0.05, 0.05]])
    truth = float((target * mean).sum(axis=1).mean())
    wrong = mean + 0.1
    for _ in range(logs):
        x = rng.integers(0, 2, n)
        u = rng.random(n)[:, None]
        a = (u > np.cumsum(logging[x], axis=1)).sum(axis=1)
        r = (rng.random(n) < mean[x, a]).astype(float)
        for one in off_policy(
            r, logging[x, a], target[x, a], wrong[x, a], (target[x] * wrong[x]).sum(axis=1)
        ):
            hits[one.name] += one.low <= truth <= one.high
            widths[one.name] += (one.high - one.low) / logs
    for name, count in hits.items():
        assert 0.92 <= count / logs <= 0.98, (name, count)
    assert widths["dr"] < widths["ips"]


def test_estimates_of_the_logging_policy_are_the_mean() -> None:
    rewards = np.array([0.0, 1.0, 0.5, 0.25])
    same = off_policy(rewards, [0.5, 0.2, 0.9, 1.0], [0.5, 0.2, 0.9, 1.0])
    assert [one.value for one in same] == pytest.approx([0.4375] * 2)
    assert same[0].effective == pytest.approx(4)
    with pytest.raises(InputError) as caught:
        off_policy([0.0, np.nan], [0.0, 1.0], [2.0, 0.0], predicted=[0.0, 0.0])
    assert len(caught.value.problems) == 4
    with pytest.raises(InputError, match="shapes"):
        off_policy([1.0], [1.0], [1.0])


def test_a_replay_finds_the_better_policy(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    lived(strategist(path, policy="uniform"), 400, TRUTH)
    price = BanditSettings(dimensions=40, token_price=0.001, cold_start=5)
    learned = replay(path, price)
    truth = 0.2 + 0.1 - 2 * 0.05
    uniform = 0.5 * (0.2 + 0.01 + 0.1 - 3 * 0.05)
    assert learned.earned == pytest.approx(uniform, abs=0.02)
    found = {one.name: one for one in learned.estimates}
    assert found["snips"].value > uniform + 0.05
    assert learned.differs > 300
    assert found["dr"].low - 0.03 <= truth <= found["dr"].high + 0.03
    cold = tmp_path / "cold.sqlite"
    lived(strategist(cold, cold_start=50), 10, TRUTH)
    with pytest.raises(InputError, match="holds 0 questions"):
        replay(cold, price)


def test_a_replay_chooses_among_what_could_be_chosen_then(tmp_path: Path) -> None:
    """A strategy that came later is no alternative on earlier questions: weights of one policy stay 1."""
    path = tmp_path / "s.sqlite"
    bandit = strategist(path, policy="uniform", cold_start=0)
    lived(bandit, 40, TRUTH)
    assert add_strategy(path, "multi-query")
    bandit.refresh()
    found = replay(path, settings_of(path))
    assert found.questions == 40
    ips, snips, _ = found.estimates
    assert ips.effective == pytest.approx(40)
    assert ips.value == pytest.approx(found.earned)
    assert snips.value == pytest.approx(found.earned)
    assert found.differs == 0


def test_settings_of_a_log_are_those_that_it_was_opened_with(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    bandit = strategist(path, ridge=7.0, token_price=0.02)
    assert settings_of(path) == bandit.settings
    with bandit.log.transaction() as events:
        later = bandit.settings.to_dict() | {"a setting of a later release": 1}
        events.append("settings", "later", 0.0, later)
    assert settings_of(path).ridge == 7.0
    assert stats_of(path)["questions"] == 0


def test_recalibration_compares_on_later_questions_that_neither_learned_from(tmp_path: Path) -> None:
    """Long ago hyde was good, since then it is not: what learned from the last days alone is better."""
    path, day = tmp_path / "s.sqlite", 86_400.0
    bandit = strategist(path, policy="uniform", cold_start=0, change_threshold=1e9)
    bandit._now = lambda: 0.0
    lived(bandit, 150, TRUTH)
    bandit._now = lambda: 100 * day
    lived(bandit, 100, TRUTH | {"hyde": 0.0}, start=150)
    found = recalibrate(path, BanditSettings(dimensions=40), now=101 * day)
    assert (found.window, found.holdout) == (80, 20)
    assert 10 <= found.compared <= 20
    assert found.deployed
    assert found.high < 0
    assert found.new_loss < found.loss
    bandit.refresh()
    context = bandit._waiting[asked(bandit, 999).id][0]
    assert abs(bandit.learned.models["hyde"].mean(context.x)) < 0.05
    with bandit.log.reading() as events:
        afresh = folded(Learned(bandit.settings, STRATEGIES[1:]), events, afresh=True)
    assert afresh.dump() == bandit.learned.dump()


def test_recalibration_keeps_what_is_better(tmp_path: Path) -> None:
    """The window is too short to learn from it what all of the log shows."""
    path, day = tmp_path / "s.sqlite", 86_400.0
    bandit = strategist(path, policy="uniform", cold_start=0, change_threshold=1e9)
    bandit._now = lambda: 0.0
    lived(bandit, 300, TRUTH)
    bandit._now = lambda: 100 * day
    lived(bandit, 25, TRUTH, start=300)
    found = recalibrate(path, BanditSettings(dimensions=40), now=101 * day)
    assert not found.deployed
    before = bandit.learned.dump()
    bandit.refresh()
    assert bandit.learned.dump() == before
    with pytest.raises(InputError, match="hold 0 questions"):
        recalibrate(path, now=200 * day)
    calm = tmp_path / "calm.sqlite"  # raw alone, after the start: nothing to compare on
    lived(strategist(calm, explore=0.0, explore_least=0.0, alpha=0.0), 30, dict.fromkeys(TRUTH, 0.0))
    with pytest.raises(InputError, match="on 0 of the last questions did a strategy run"):
        recalibrate(calm)


def test_others_go_on_while_a_log_is_recalibrated_rebuilt_or_pruned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mio_rag.shared_file._PATIENCE_SECONDS", 0.2)
    path = tmp_path / "s.sqlite"
    bandit = strategist(path, cold_start=10**6)
    first = lived(bandit, 80, TRUTH)
    fold, ratings = Learned.fold, iter(first)
    open_now = EventLog(path)

    def slowly(self: Learned, event: Event, find: Any) -> None:
        if event.seq == 5:  # whoever folds the log from its start: somebody rates an answer meanwhile
            assert rate(open_now, next(ratings).id, 1, time.time())
        fold(self, event, find)

    with monkeypatch.context() as patched:
        patched.setattr(Learned, "fold", slowly)
        found = recalibrate(path)
        assert found.deployed
        rebuild(path)
        with open_now.transaction() as events:
            events.drop_snapshot()
        assert prune(path, "hyde", "who")
    assert next(ratings).id == "q4"  # recalibration folds the log and the window, the others once each
    bandit.refresh()
    again = strategist(path, cold_start=10**6)
    with again.log.reading() as events:
        afresh = folded(Learned(again.settings, STRATEGIES[1:]), events, afresh=True)
    assert afresh.dump() == bandit.learned.dump() == again.learned.dump()
    # What was added while the window was folded is part of what took over.
    with again.log.reading() as events:
        fitted = events.latest("recalibrated")
        assert fitted is not None
        assert fitted.data["upto"] >= 83


def test_a_prior_helps_a_cold_start_and_foreign_ones_are_refused(tmp_path: Path) -> None:
    lived(strategist(tmp_path / "old.sqlite"), 150, TRUTH)
    prior = tmp_path / "prior.safetensors"
    assert export(tmp_path / "old.sqlite", prior) == 150
    earned = []
    for name in ("warm", "cold"):
        path = tmp_path / f"{name}.sqlite"
        bandit = strategist(path, cold_start=0, explore=0.0, explore_least=0.0)
        if name == "warm":
            start_from(path, prior, 5.0)
        choices = lived(bandit, 15, TRUTH)
        worth = {n: value - 0.05 for n, value in TRUTH.items()}
        earned.append(sum(worth.get(n, 0.0) for c in choices for n in c.strategies))
    assert earned[0] >= earned[1]
    assert earned[0] > 0.8 * 15 * 0.2
    with pytest.raises(InputError, match="prior already"):
        start_from(tmp_path / "warm.sqlite", prior, 5.0)
    with pytest.raises(InputError, match="weight"):
        start_from(tmp_path / "cold.sqlite", prior, 0.0)
    other = tmp_path / "other.sqlite"
    strategist(other, dimensions=48)
    with pytest.raises(InputError, match="dimensions 40"):
        start_from(other, prior, 1.0)
    strange = tmp_path / "strange.sqlite"
    strategist(strange, possible=("raw", "multi-query"))
    with pytest.raises(InputError, match="knows nothing of the strategies"):
        start_from(strange, prior, 1.0)
    short = read_weights(prior, "strategies", 1)
    cut = {name: values[:5] for name, values in short.arrays.items()}
    write_weights(replace(short, arrays=cut), tmp_path / "short.safetensors")
    with pytest.raises(InputError, match="damaged"):
        start_from(tmp_path / "cold.sqlite", tmp_path / "short.safetensors", 1.0)
    (tmp_path / "no.safetensors").write_bytes(b"no")
    with pytest.raises(DataError):
        start_from(tmp_path / "cold.sqlite", tmp_path / "no.safetensors", 1.0)
    strategist(tmp_path / "empty.sqlite")
    with pytest.raises(InputError, match="nothing to export"):
        export(tmp_path / "empty.sqlite", prior)


def test_pruning_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    bandit = strategist(path)
    assert prune(path, "hyde", "who")
    assert not prune(path, "hyde", "who")
    bandit.refresh()
    assert bandit.learned.pruned("who").tolist() == [True, False, False]
    assert prune(path, "hyde", "who", on=False)
    bandit.refresh()
    assert not bandit.learned.pruned("who").any()
    with pytest.raises(InputError) as caught:
        prune(path, "raw", "whom")
    assert len(caught.value.problems) == 2


def test_insights_are_sentences_with_numbers(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    lived(strategist(path, policy="uniform"), 120, TRUTH)
    told = stats_of(path)
    assert told["questions"] == 120
    assert told["strategies"]["raw"]["selection_rate"] == 1
    assert told["strategies"]["raw"]["contribution"] is None  # nothing is held against it
    assert 0.35 < told["strategies"]["hyde"]["selection_rate"] < 0.65
    assert told["strategies"]["hyde"]["contribution"] == pytest.approx(0.2, abs=0.01)
    assert told["entropy_bits"] > 2
    assert 1 / 8 <= told["convergence"] < 0.5  # eight sets at random
    said = told["insights"][0]
    assert said.startswith("who questions: hyde is worth its cost, +0.15")
    assert "n = " in said
    assert any("query2doc is not worth its cost, -0.0" in text for text in told["insights"])
    assert not any(text.startswith("all questions") for text in told["insights"])  # one type says it
    few = tmp_path / "few.sqlite"
    bandit = strategist(few, policy="uniform")
    for number, word in enumerate(("Who", "When", "Where", "Which")):
        lived(bandit, 8, TRUTH, start=8 * number, text=f"{word} is it?")
    said = stats_of(few)["insights"]  # each type alone has too few
    assert said[0].startswith("all questions: hyde is worth its cost, +0.15")
    assert all(text.startswith("all questions") for text in said if "worth its cost" in text)


def test_a_log_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    bandit = strategist(path)
    with pytest.raises(InputError, match="nothing to draw"):
        plot_log(path, tmp_path / "p.png")
    lived(bandit, 30, TRUTH)
    plot_log(path, tmp_path / "p.svg")
    drawn = (tmp_path / "p.svg").read_text()
    assert drawn.count("<path") > 20
    with pytest.raises(InputError, match="must end with"):
        plot_log(path, tmp_path / "p.txt")


def test_two_hundred_kills_lose_and_repeat_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    command = [sys.executable, "-m", "tests.learning.killed", str(path)]
    root = Path(__file__).parents[2]
    finished = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout.split()
    bandit = strategist(path)
    with bandit.log.reading() as events:
        logged = [event.id for event in events.after(0) if event.kind == "question"]
        afresh = folded(Learned(bandit.settings, STRATEGIES[1:]), events, afresh=True)
    assert len(finished) > 30
    assert len(set(logged)) == len(logged)
    assert set(finished) <= set(logged)
    assert len(logged) <= len(finished) + 200  # each kill may come between the log and the report
    assert afresh.dump() == bandit.learned.dump()
    assert rebuild(path) == len(logged) + 3  # and settings: ours, theirs, ours again
    assert strategist(path).learned.dump() == afresh.dump()
