"""The log of a bandit: a replay to the last bit, shared by processes; its reports and changes; kills."""

import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mio_rag.errors import DataError, InputError, StateError
from mio_rag.learning.bandit import BanditSettings, Learned
from mio_rag.learning.bandit_log import Event, EventLog, Events
from mio_rag.learning.bandit_report import (
    add_strategy,
    export,
    off_policy,
    prune,
    rebuild,
    recalibrate,
    replay,
    settings_of,
    start_from,
)
from mio_rag.learning.strategist import Strategist, rate
from mio_rag.learning.strategist import replayed as replay_events
from mio_rag.learning.weights import Weights, read_weights, write_weights
from tests.learning.bandits import EMBEDDER, STRATEGIES, TRUTH, asked, lived, outcome, rated, strategist

DAY = 86_400.0


def replayed(bandit: Strategist, *, afresh: bool = True, names: tuple[str, ...] = STRATEGIES[1:]) -> bytes:
    """The state that the events of a bandit's log give, or its snapshot with those after it."""
    with bandit.log.reading() as events:
        learned = Learned(bandit.settings, names)
        replay_events(learned, events, snapshot=not afresh)
        return learned.dump()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The log of a bandit after 6 questions, with a snapshot."""
    path = tmp_path / "s.sqlite"
    bandit = strategist(path)
    lived(bandit, 6, TRUTH)
    bandit.log.close()
    rebuild(path)
    return path


def changed(path: Path, statement: str, *values: Any) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(statement, values)
    connection.close()


# --- replay ----------------------------------------------------------------------------------------------


def test_the_state_is_a_replay_of_the_log_to_the_last_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mio_rag.learning.strategist._SNAPSHOT_EVERY", 16)
    bandit = strategist(
        tmp_path / "s.sqlite",
    )
    choices = lived(bandit, 40, TRUTH)
    for choice in choices[::5]:
        rated(bandit, choice.id, -1)
    lived(bandit, 30, {name: value + 0.5 for name, value in TRUTH.items()}, start=40)
    assert bandit.learned.changes
    with bandit.log.reading() as events:
        kept = events.snapshot()
        assert kept is not None
        assert 0 < kept[0] < events.last()
    assert replayed(bandit) == bandit.learned.dump() == replayed(bandit, afresh=False)
    assert add_strategy(bandit.log.path, "multi-query")  # also after a change
    lived(bandit, 2, TRUTH | {"multi-query": 0.2}, start=80)
    assert replayed(bandit, names=(*STRATEGIES[1:], "multi-query")) == bandit.learned.dump()


def test_the_price_of_the_moment_is_no_part_of_what_is_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mio_rag.learning.strategist._SNAPSHOT_EVERY", 16)
    path = tmp_path / "s.sqlite"
    bandit = strategist(path, policy="uniform", prune_after=20)
    for start, price in enumerate((0.001, 0.01, 0.0)):
        choices = lived(bandit, 30, TRUTH, start=30 * start, price=price)
        assert choices[0].about["token_price"] == price
    assert replayed(bandit) == bandit.learned.dump()
    pruned = {}
    for price in (0.0, 0.001, 0.01):  # a run costs 50 tokens
        other = strategist(path, token_price=price, prune_after=20)
        bandit.refresh()
        assert other.learned.dump() == bandit.learned.dump()  # whoever opens it, at whatever price
        pruned[price] = other.learned.pruned("who").tolist()
    assert pruned == {0.0: [False, False, False], 0.001: [False, True, False], 0.01: [True, True, True]}


def test_two_at_once_learn_from_each_other_and_nothing_is_written_twice(tmp_path: Path) -> None:
    one, other = (strategist(tmp_path / "s.sqlite") for _ in range(2))
    lived(one, 10, TRUTH)
    first, again = asked(one, 50), asked(other, 50)
    assert other.learned.questions == 10
    assert one.record(first, outcome(first, TRUTH))
    assert not other.record(again, outcome(again, TRUTH))  # the same question: it is there
    assert not one.record(first, outcome(first, TRUTH))
    assert other.learned.dump() == one.learned.dump()

    def live(start: int) -> None:
        lived(one, 10, TRUTH, start=start)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(live, range(100, 500, 100)))
    assert one.learned.questions == 51
    assert replayed(one) == one.learned.dump()


def test_sixty_kills_lose_and_repeat_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    command = [sys.executable, "-m", "tests.learning.killed", str(path)]
    root = Path(__file__).parents[2]
    finished = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout.split()
    bandit = strategist(path)
    with bandit.log.reading() as events:
        logged = [event.id for event in events.after(0) if event.kind == "question"]
    assert len(finished) > 10
    assert len(set(logged)) == len(logged)
    assert set(finished) <= set(logged)
    assert len(logged) <= len(finished) + 60  # each kill may come between the log and the report
    state = bandit.learned.dump()
    assert replayed(bandit) == state
    assert rebuild(path) == len(logged) + 3  # and settings: ours, theirs, ours again
    assert strategist(path).learned.dump() == state


def test_nothing_is_learned_of_what_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bandit = strategist(tmp_path / "s.sqlite")
    lived(bandit, 5, TRUTH)

    def full(*_: Any) -> bool:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patched:
        patched.setattr("mio_rag.learning.strategist._SNAPSHOT_EVERY", 1)
        patched.setattr(Events, "keep_snapshot", full)
        lived(bandit, 3, TRUTH, start=5)  # a snapshot is a cache
        lost, before = asked(bandit, 8), bandit.learned.dump()
        patched.setattr(Events, "append", full)
        with pytest.raises(StateError, match="disk is full"):
            bandit.record(lost, outcome(lost, TRUTH))
        assert bandit.learned.dump() == before
    lived(bandit, 5, TRUTH, start=9)
    assert replayed(bandit) == bandit.learned.dump()


def test_others_go_on_while_a_log_is_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mio_rag.storage._PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr("mio_rag.learning.strategist._SNAPSHOT_EVERY", 16)
    path = tmp_path / "s.sqlite"
    bandit = strategist(path, cold_start=10**6)
    ratings = iter(lived(bandit, 80, TRUTH))
    other, fold = EventLog(path), Learned.fold

    def slowly(self: Learned, event: Event, find: Any) -> None:
        if event.seq == 5:  # whoever replays the log from its start: an answer is rated meanwhile
            assert rate(other, next(ratings).id, 1, time.time())
        fold(self, event, find)

    with monkeypatch.context() as patched:
        patched.setattr(Learned, "fold", slowly)
        assert recalibrate(path, bandit.settings.replace(holdout=0.3)).deployed
        rebuild(path)
        changed(path, "DELETE FROM snapshot")
        assert prune(path, "hyde", "who")
        strategist(path, cold_start=10**6, ridge=9.0)  # no snapshot fits
    assert next(ratings).id == "q5"  # recalibration replays the log and the window, the others once each
    bandit.refresh()
    again = strategist(path, cold_start=10**6)
    bandit.refresh()
    assert replayed(again) == bandit.learned.dump() == again.learned.dump()
    with again.log.reading() as events:
        fitted = events.latest("recalibrated")
    assert fitted is not None
    assert fitted.data["upto"] >= 83  # what was added meanwhile is part of what took over


# --- files -----------------------------------------------------------------------------------------------


def test_files_of_others_are_refused_and_stay_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    lived(strategist(path), 3, TRUTH)
    with pytest.raises(InputError, match=r"strategies hyde\+query2doc\+grounded there, hyde here"):
        strategist(path, possible=("raw", "hyde"))
    with pytest.raises(InputError, match="embedder test:8 there, minilm here") as caught:
        Strategist(path, STRATEGIES, BanditSettings(dimensions=40), "minilm")
    assert "export" not in str(caught.value)  # import would refuse it
    with pytest.raises(InputError, match="choose among"):
        strategist(tmp_path / "t.sqlite", possible=("raw",))
    assert strategist(path).learned.questions == 3
    assert EventLog(path).about["embedder"] == EMBEDDER
    changed(path, "PRAGMA user_version = 9")
    with pytest.raises(InputError, match="of version 9, and this is version 2"):
        strategist(path)
    foreign = tmp_path / "foreign.sqlite"
    changed(foreign, "CREATE TABLE t (a)")
    before = foreign.read_bytes()
    for bad in (foreign, tmp_path):
        with pytest.raises(InputError):
            strategist(bad)
    assert foreign.read_bytes() == before
    empty = tmp_path / "empty.sqlite"
    empty.touch()
    with pytest.raises(InputError, match="is empty"):
        EventLog(empty)
    strategist(empty)
    with pytest.raises(InputError, match="does not exist"):
        EventLog(tmp_path / "missing.sqlite")
    assert not (tmp_path / "missing.sqlite").exists()


@pytest.mark.parametrize("place", [20, 60, 500, -1])
def test_a_damaged_snapshot_is_replayed_from_the_events(log: Path, place: int) -> None:
    with EventLog(log).reading() as events:
        kept = events.snapshot()
    assert kept is not None
    wrong = bytearray(kept[1])
    wrong[place] ^= 1
    changed(log, "UPDATE snapshot SET state = ?", bytes(wrong))
    bandit = strategist(log)
    assert bandit.learned.questions == 6
    assert replayed(bandit) == bandit.learned.dump()


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        ("data", "{", " is not valid JSON"),
        ("data", "{}", ", a question, is damaged: KeyError('own')"),
        ("data", '{"own": {"hyde": null}}', ", a question, is damaged"),
        ("data", '{"own": {"hyde": NaN}}', ""),
        ("x", b"abc", ", a question, is damaged"),
        ("x", np.full(40, np.nan, "f4").tobytes(), ", a question, is damaged"),
        ("kind", "dream", " is of the kind 'dream', which this release does not know"),
    ],
)
def test_a_damaged_event_is_named(log: Path, column: str, value: Any, expected: str) -> None:
    changed(log, "DELETE FROM snapshot")
    changed(log, f"UPDATE events SET {column} = ? WHERE seq = 3", value)
    with pytest.raises(DataError) as error:
        strategist(log)
    assert str(error.value).startswith(f"'{log}': event 3{expected}")


# --- off-policy estimates --------------------------------------------------------------------------------


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    """Synthetic logs: three sets, rewards by context, a target unlike the logging policy, a biased model."""
    rng = np.random.default_rng(0)
    hits, widths = dict.fromkeys(("ips", "snips", "dr"), 0), dict.fromkeys(("ips", "snips", "dr"), 0.0)
    logs, n = 400, 600
    mean = np.array([[0.2, 0.5, 0.3], [0.6, 0.1, 0.4]])
    logging = np.array([[0.6, 0.3, 0.1], [0.2, 0.7, 0.1]])
    target = np.array([[0.1, 0.8, 0.1], [0.9, 0.05, 0.05]])
    truth = float((target * mean).sum(axis=1).mean())
    wrong = mean + 0.1
    for _ in range(logs):
        x = rng.integers(0, 2, n)
        a = (rng.random(n)[:, None] > np.cumsum(logging[x], axis=1)).sum(axis=1)
        r = (rng.random(n) < mean[x, a]).astype(float)
        expected = (target[x] * wrong[x]).sum(axis=1)
        for one in off_policy(r, logging[x, a], target[x, a], wrong[x, a], expected):
            hits[one.name] += one.low <= truth <= one.high
            widths[one.name] += (one.high - one.low) / logs
    for name, count in hits.items():
        assert 0.92 <= count / logs <= 0.98, (name, count)
    assert widths["dr"] < widths["ips"]


def test_estimates_of_the_logging_policy_are_the_mean() -> None:
    logged, p = [0.0, 1.0, 0.5, 0.25], [0.5, 0.2, 0.9, 1.0]
    same = off_policy(logged, p, p, logged, [0.4375] * 4)
    assert [one.value for one in same] == pytest.approx([0.4375] * 3)
    assert same[0].effective == pytest.approx(4)
    for wrong in (
        ([0.0, np.nan], p[:2], p[:2]),
        ([0.0, 1.0], [0.0, 1.0], p[:2]),
        ([0.0, 1.0], p[:2], [2, 0]),
    ):
        with pytest.raises(InputError, match="must lie in"):
            off_policy(*wrong, [0.0, 0.0], [0.0, 0.0])
    with pytest.raises(InputError, match="shapes"):
        off_policy([1.0], [1.0], [1.0], [1.0], [1.0])


def test_a_replay_finds_the_better_policy(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    lived(strategist(path, policy="uniform"), 300, TRUTH)
    found = replay(path, BanditSettings(dimensions=40, token_price=0.001, cold_start=5))
    uniform = 0.5 * (0.2 + 0.01 + 0.1 - 3 * 0.05)
    assert found.earned == pytest.approx(uniform, abs=0.02)
    each = {one.name: one for one in found.estimates}
    assert each["snips"].value > uniform + 0.05
    assert found.differs > 200
    assert each["dr"].low - 0.03 <= 0.2 + 0.1 - 2 * 0.05 <= each["dr"].high + 0.03
    cold = tmp_path / "cold.sqlite"
    lived(strategist(cold, cold_start=50), 10, TRUTH)
    with pytest.raises(InputError, match="holds 0 questions"):
        replay(cold, BanditSettings(dimensions=40))


def test_a_replay_chooses_among_what_could_be_chosen_then(tmp_path: Path) -> None:
    """A strategy that came later is no alternative on earlier questions: weights of one policy stay 1."""
    path = tmp_path / "s.sqlite"
    lived(strategist(path, policy="uniform", cold_start=0), 40, TRUTH)
    assert add_strategy(path, "multi-query")
    found = replay(path, settings_of(path))
    ips, snips, _ = found.estimates
    assert (found.questions, found.differs, ips.effective) == (40, 0, pytest.approx(40))
    assert ips.value == pytest.approx(found.earned) == pytest.approx(snips.value)


# --- changes to a log ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "hyde", "deployed"), [(150, 100, 0.0, True), (300, 60, 0.2, False)]
)
def test_recalibration_keeps_what_is_better_on_questions_that_neither_saw(
    tmp_path: Path, before: int, after: int, hyde: float, deployed: bool
) -> None:
    """Either hyde was good long ago alone, or the window is too short to learn what all of the log shows."""
    path = tmp_path / "s.sqlite"
    bandit = strategist(path, policy="uniform", cold_start=0, change_threshold=1e9)
    bandit._now = lambda: 0.0
    lived(bandit, before, TRUTH)
    bandit._now = lambda: 100 * DAY
    lived(bandit, after, TRUTH | {"hyde": hyde}, start=before)
    state = bandit.learned.dump()
    half = BanditSettings(dimensions=40, holdout=0.5)
    tried = recalibrate(path, half, now=101 * DAY, dry_run=True)
    bandit.refresh()
    assert bandit.learned.dump() == state  # it was only tried
    found = recalibrate(path, half, now=101 * DAY)
    assert found == tried
    assert (found.window, found.holdout) == (after // 2, after // 2)
    assert found.deployed == deployed
    assert not deployed or found.new_loss < found.loss
    bandit.refresh()
    assert (bandit.learned.dump() == state) == (not deployed)
    assert replayed(bandit) == bandit.learned.dump()
    if deployed:
        context = bandit._waiting[asked(bandit, 999).id][0]
        assert abs(bandit.learned.models["hyde"].mean(context.x)) < 0.05
    with pytest.raises(InputError, match="hold 0 questions: at least 50"):
        recalibrate(path, now=200 * DAY)
    with pytest.raises(InputError, match="at least 20 are needed to compare"):
        recalibrate(path, half.replace(holdout=0.1), now=101 * DAY)


def test_a_prior_helps_a_cold_start(tmp_path: Path) -> None:
    lived(strategist(tmp_path / "old.sqlite"), 150, TRUTH)
    prior = tmp_path / "prior.safetensors"
    assert export(tmp_path / "old.sqlite", prior) == 150
    earned = []
    for name in ("warm", "cold"):
        path = tmp_path / f"{name}.sqlite"
        bandit = strategist(path, cold_start=0, explore=0.0, explore_least=0.0)
        if name == "warm":
            start_from(path, prior, 5.0)
        worth = {n: value - 0.05 for n, value in TRUTH.items()}
        earned.append(sum(worth.get(n, 0.0) for c in lived(bandit, 15, TRUTH) for n in c.strategies))
    assert earned[0] >= earned[1]
    assert earned[0] > 0.8 * 15 * 0.2
    with pytest.raises(InputError, match="prior already"):
        start_from(tmp_path / "warm.sqlite", prior, 5.0)
    with pytest.raises(InputError, match="weight"):
        start_from(tmp_path / "cold.sqlite", prior, 0.0)
    (tmp_path / "no.safetensors").write_bytes(b"no")
    with pytest.raises(DataError):
        start_from(tmp_path / "cold.sqlite", tmp_path / "no.safetensors", 1.0)
    strategist(tmp_path / "empty.sqlite")
    with pytest.raises(InputError, match="nothing to export"):
        export(tmp_path / "empty.sqlite", prior)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda w: replace(w, arrays={k: v[:3] for k, v in w.arrays.items()}), "is damaged"),
        (lambda w: replace(w, about={**w.about, "dimensions": 41}), "was learned with dimensions 41"),
        (lambda w: replace(w, arrays={"theta/other": np.zeros(40)}), "knows nothing of the strategies"),
    ],
)
def test_priors_that_do_not_fit_are_refused(
    log: Path, tmp_path: Path, change: Callable[[Weights], Weights], expected: str
) -> None:
    prior = tmp_path / "prior.safetensors"
    export(log, prior)
    write_weights(change(read_weights(prior, "strategies", 1)), prior)
    with pytest.raises(InputError, match=expected) as error:
        start_from(log, prior, 1.0)
    assert str(prior) in str(error.value)


def test_pruning_by_hand(log: Path) -> None:
    bandit = strategist(log)
    assert prune(log, "hyde", "who")
    assert not prune(log, "hyde", "who")
    bandit.refresh()
    assert bandit.learned.pruned("who").tolist() == [True, False, False]
    assert prune(log, "hyde", "who", on=False)
    bandit.refresh()
    assert not bandit.learned.pruned("who").any()
    with pytest.raises(InputError) as caught:
        prune(log, "raw", "whom")
    assert len(caught.value.problems) == 2


# --- reports ---------------------------------------------------------------------------------------------
