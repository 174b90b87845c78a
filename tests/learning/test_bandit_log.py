"""The log of a bandit: a fold to the last bit, shared by processes, bounded; foreign files are refused."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mio_rag.errors import DataError, InputError, StateError
from mio_rag.learning.bandit import BanditSettings, Learned
from mio_rag.learning.bandit_log import EventLog, Events
from mio_rag.learning.strategist import Strategist, folded, rate
from tests.learning.bandits import EMBEDDER, STRATEGIES, asked, lived, outcome, strategist

GOOD_BAD = {"hyde": 0.2, "query2doc": 0.01, "grounded": 0.1}  # costs are .05


def refolded(path: Path, afresh: bool = True) -> Learned:
    bandit = strategist(path)
    with bandit.log.reading() as events:
        return folded(Learned(bandit.settings, STRATEGIES[1:]), events, afresh=afresh)


def test_the_state_is_a_fold_over_the_log_to_the_last_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mio_rag.learning.strategist._SNAPSHOT_EVERY", 16)
    path = tmp_path / "s.sqlite"
    bandit = strategist(path, refresh=7)
    choices = lived(bandit, 50, GOOD_BAD)
    for choice in choices[::5]:
        bandit.feedback(choice.id, -1)
    with bandit.log.reading() as events:
        kept = events.snapshot()
        assert kept is not None
        assert 0 < kept[0] < events.last()
        afresh = folded(Learned(bandit.settings, STRATEGIES[1:]), events, afresh=True)
        resumed = folded(Learned(bandit.settings, STRATEGIES[1:]), events)
    assert afresh.dump() == bandit.learned.dump() == resumed.dump()


def test_the_price_of_the_moment_is_no_part_of_what_is_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mio_rag.learning.strategist._SNAPSHOT_EVERY", 16)
    path = tmp_path / "s.sqlite"
    bandit = strategist(path, policy="uniform", prune_after=20)
    for start, price in enumerate((0.001, 0.01, 0.0)):
        bandit.price_tokens(price)
        choices = lived(bandit, 30, GOOD_BAD, start=30 * start)
        assert choices[0].about["token_price"] == price
    assert refolded_with(bandit).dump() == bandit.learned.dump()
    pruned = {}
    for price in (0.0, 0.001, 0.01):  # a run costs 50 tokens
        other = strategist(path, token_price=price, prune_after=20)
        with other.log.reading() as events:
            kept = events.snapshot()
        assert kept is not None
        assert Learned(other.settings, STRATEGIES[1:]).load(kept[1])  # whoever opens it, at whatever price
        bandit.refresh()
        assert other.learned.dump() == bandit.learned.dump()
        pruned[price] = other.learned.pruned("who").tolist()
    assert pruned == {0.0: [False, False, False], 0.001: [False, True, False], 0.01: [True, True, True]}


def test_two_at_once_learn_from_each_other_and_nothing_is_written_twice(tmp_path: Path) -> None:
    one, other = (strategist(tmp_path / "s.sqlite") for _ in range(2))
    lived(one, 10, GOOD_BAD)
    first = asked(one, 50)
    again = asked(other, 50)
    assert other.learned.questions == 10
    assert one.record(first, outcome(first, GOOD_BAD))
    assert not other.record(again, outcome(again, GOOD_BAD))  # the same question: it is there
    assert not one.record(first, outcome(first, GOOD_BAD))
    assert other.learned.dump() == one.learned.dump()
    assert one.learned.questions == 11


def test_files_of_others_are_refused_and_stay_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    lived(strategist(path), 3, GOOD_BAD)
    with pytest.raises(
        InputError, match=r"another bandit \(strategies hyde\+query2doc\+grounded there, hyde here"
    ):
        strategist(path, possible=("raw", "hyde"))
    with pytest.raises(InputError, match="embedder test:8 there, minilm here") as caught:
        Strategist(path, STRATEGIES, BanditSettings(dimensions=40), "minilm")
    assert "export" not in str(caught.value)  # import would refuse it
    with pytest.raises(InputError, match="choose among"):
        strategist(tmp_path / "t.sqlite", possible=("raw",))
    assert refolded(path).questions == 3
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 9")
    with pytest.raises(InputError, match="version 9 of its layout"):
        strategist(path)
    foreign = tmp_path / "foreign.sqlite"
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE t (a)")
    before = foreign.read_bytes()
    for bad in (foreign, tmp_path):
        with pytest.raises(InputError):
            strategist(bad)
    assert foreign.read_bytes() == before
    empty = tmp_path / "empty.sqlite"
    empty.touch()
    with pytest.raises(InputError, match="is empty"):
        EventLog(empty)
    assert not empty.read_bytes()
    strategist(empty)
    with pytest.raises(InputError, match="does not exist"):
        EventLog(tmp_path / "missing.sqlite")
    assert not (tmp_path / "missing.sqlite").exists()


def test_a_file_of_the_first_version_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    bandit = strategist(path)
    lived(bandit, 5, GOOD_BAD)
    bandit.close()
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE snapshot")
        connection.execute("PRAGMA user_version = 1")
    again = strategist(path)
    assert again.learned.dump() == bandit.learned.dump()
    lived(again, 5, GOOD_BAD, start=5)


def test_nothing_is_learned_of_what_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.sqlite"
    bandit = strategist(path)
    lived(bandit, 5, GOOD_BAD)
    monkeypatch.setattr("mio_rag.learning.strategist._SNAPSHOT_EVERY", 1)
    keep, full = Events.keep_snapshot, sqlite3.OperationalError("database or disk is full")

    def refused(self: Events, seq: int, state: bytes) -> None:
        raise full

    monkeypatch.setattr(Events, "keep_snapshot", refused)
    lived(bandit, 3, GOOD_BAD, start=5)  # a snapshot is a cache
    monkeypatch.setattr(Events, "keep_snapshot", keep)
    assert refolded(path).dump() == bandit.learned.dump()
    lost = asked(bandit, 8)
    before = bandit.learned.dump()

    def appended(self: Events, *given: Any) -> bool:
        raise full

    append = Events.append
    monkeypatch.setattr(Events, "append", appended)
    with pytest.raises(StateError, match="disk is full"):
        bandit.record(lost, outcome(lost, GOOD_BAD))
    assert bandit.learned.dump() == before
    monkeypatch.setattr(Events, "append", append)
    lived(bandit, 5, GOOD_BAD, start=9)
    assert refolded(path).dump() == bandit.learned.dump()


def test_a_strategy_that_was_added_after_a_change_is_folded_to_the_last_bit(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    bandit = strategist(path)
    lived(bandit, 40, GOOD_BAD)
    lived(bandit, 40, {name: value + 0.5 for name, value in GOOD_BAD.items()}, start=40)
    assert bandit.learned.changes
    assert bandit.add_strategy("multi-query")
    for start in (80, 81):
        with bandit.log.reading() as events:
            afresh = Learned(bandit.settings, [*STRATEGIES[1:], "multi-query"])
            assert folded(afresh, events, afresh=True).dump() == bandit.learned.dump()
        lived(bandit, 1, GOOD_BAD | {"multi-query": 0.2}, start=start)


def test_others_go_on_while_a_log_is_folded_afresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mio_rag.learning.strategist._SNAPSHOT_EVERY", 16)
    monkeypatch.setattr("mio_rag.shared_file._PATIENCE_SECONDS", 0.2)
    path = tmp_path / "s.sqlite"
    first = strategist(path)
    choice, *_ = lived(first, 40, GOOD_BAD)
    fold = Learned.fold

    def slowly(self: Learned, *given: Any) -> None:
        if self.settings.ridge == 9.0 and self.seq == 20:
            assert rate(first.log, choice.id, 1, 0.0)
        fold(self, *given)

    monkeypatch.setattr(Learned, "fold", slowly)
    other = strategist(path, ridge=9.0)  # no snapshot fits
    other.refresh()
    assert other.learned.tallies["raw"]["rated"] > 0
    with other.log.reading() as events:
        kept = events.snapshot()
    assert kept is not None
    assert Learned(other.settings, STRATEGIES[1:]).load(kept[1])  # who comes next need not fold it again


def test_events_of_a_later_release_are_not_guessed_at(tmp_path: Path) -> None:
    bandit = strategist(tmp_path / "s.sqlite")
    with bandit.log.transaction() as events:
        events.append("dream", "1", 0.0, {})
    with pytest.raises(DataError, match="'dream'"):
        strategist(tmp_path / "s.sqlite")


def test_memory_is_bounded(tmp_path: Path) -> None:
    sizes = []
    bandit = strategist(tmp_path / "s.sqlite")
    lived(bandit, 520, GOOD_BAD)
    sizes.append(len(bandit.learned.dump()))
    lived(bandit, 300, GOOD_BAD, start=520)
    sizes.append(len(bandit.learned.dump()))
    assert sizes[1] < sizes[0] + 200
    assert bandit.log.about["embedder"] == EMBEDDER


def test_questions_that_fail_on_the_way_do_not_pile_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mio_rag.learning.strategist._MOST_WAITING", 3)
    bandit = strategist(tmp_path / "s.sqlite")
    choices = [asked(bandit, number) for number in range(6)]
    assert len(bandit._waiting) == 3
    assert not bandit.record(choices[0], outcome(choices[0], GOOD_BAD))
    assert bandit.record(choices[5], outcome(choices[5], GOOD_BAD))


def test_threads_share_a_bandit(tmp_path: Path) -> None:
    bandit = strategist(tmp_path / "s.sqlite")

    def live(start: int) -> None:
        lived(bandit, 15, GOOD_BAD, start=start)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(live, range(0, 400, 100)))
    assert bandit.learned.questions == 60
    assert refolded_with(bandit).dump() == bandit.learned.dump()


def refolded_with(bandit: Strategist) -> Learned:
    with bandit.log.reading() as events:
        return folded(Learned(bandit.settings, STRATEGIES[1:]), events, afresh=True)


def test_on_request_rankings_are_weighed_by_what_is_expected(tmp_path: Path) -> None:
    plain, weighing = strategist(tmp_path / "p.sqlite"), strategist(tmp_path / "w.sqlite", weighted=True)
    lived(plain, 80, GOOD_BAD)
    assert asked(plain, 99).weights == {}
    assert asked(weighing, 0).weights == {}  # nothing is known
    lived(weighing, 80, GOOD_BAD)
    weights = asked(weighing, 99).weights
    assert weights["hyde"] == 1.0
    assert 0.3 < weights["grounded"] < 0.8
    assert weights["query2doc"] == pytest.approx(0.1, abs=0.05)
    assert "raw" not in weights  # 1
    with pytest.raises(InputError, match="weighted"):
        BanditSettings(weighted=1)  # type: ignore[arg-type]
