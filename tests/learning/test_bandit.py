"""The bandit: what it chooses and with which probability, what it learns, and the defects that it mends."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import qmc

from mio_rag.errors import InputError
from mio_rag.learning.bandit import BanditSettings, StrategyOptions, options_of
from mio_rag.learning.bandit_choice import drawn_by, every_set, mixture
from mio_rag.learning.bandit_report import add_strategy, recalibrate
from mio_rag.learning.strategist import Choice, Strategist
from tests.learning.bandits import asked, lived, outcome, strategist

GOOD_BAD = {"hyde": 0.2, "query2doc": 0.01, "grounded": 0.1}  # costs are .05


def mixtures(bandit: Strategist, number: int = 999):  # type: ignore[no-untyped-def]
    choice = asked(bandit, number)
    context, about = bandit._waiting[choice.id]
    return mixture(bandit.learned, context.x, context.type, choice.id), choice, about


def test_it_finds_out_what_is_worth_its_cost_and_stops_paying_for_the_rest(tmp_path: Path) -> None:
    choices = lived(strategist(tmp_path / "s.sqlite"), 200, GOOD_BAD)
    late = choices[-60:]
    share = {n: sum(n in c.strategies for c in late) / len(late) for n in GOOD_BAD}
    assert share["hyde"] > 0.85
    assert share["grounded"] > 0.85
    assert share["query2doc"] < 0.35
    assert all("raw" in choice.strategies for choice in choices)


@pytest.mark.parametrize("policy", ["linucb", "thompson", "epsilon-greedy", "uniform"])
def test_propensities_are_exact(policy: str, tmp_path: Path) -> None:
    bandit = strategist(tmp_path / "s.sqlite", policy=policy, explore=0.4, explore_decay=1.0)
    lived(bandit, 30, {"hyde": 0.06, "query2doc": 0.05, "grounded": 0.055})
    found, choice, about = mixtures(bandit)
    sets = [tuple(int(v) for v in row) for row in every_set(3)]
    assert sum(found.probability(members) for members in sets) == pytest.approx(1, abs=1e-12)
    numbers = qmc.Sobol(5, seed=1).random_base2(14)
    drawn = [drawn_by(found, row).members for row in numbers]
    for members in sets:
        assert drawn.count(members) / len(drawn) == pytest.approx(found.probability(members), abs=1e-3)
    each = np.mean(drawn, axis=0)
    assert each.tolist() == pytest.approx(found.each.tolist(), abs=1e-3)
    members = tuple(int(n in choice.strategies) for n in bandit.learned.strategies)
    assert about["propensity"] == found.probability(members) > 0


def test_the_same_question_and_state_give_the_same_choice(tmp_path: Path) -> None:
    lived(strategist(tmp_path / "s.sqlite"), 20, GOOD_BAD)
    one, other = (asked(strategist(tmp_path / "s.sqlite"), 77) for _ in range(2))
    assert (one.strategies, one.about) == (other.strategies, other.about)


# --- the defects of the draft ----------------------------------------------------------------------------


def test_nothing_is_learned_of_strategies_that_did_not_run(tmp_path: Path) -> None:
    bandit = strategist(tmp_path / "s.sqlite", cold_start=0, all_every=0)
    for number in range(40):
        before = {name: model.vector.copy() for name, model in bandit.learned.models.items()}
        choice = asked(bandit, number)
        bandit.record(choice, outcome(choice, GOOD_BAD))
        for name, vector in before.items():
            changed = not np.array_equal(bandit.learned.models[name].vector, vector)
            assert changed == (name in choice.strategies)
    with bandit.log.reading() as events:
        rows = [event for event in events.after(0) if event.kind == "question"]
    assert all(0 < row.data["propensity"] <= 1 for row in rows)
    assert len({tuple(row.data["strategies"]) for row in rows}) > 1


def test_a_rating_is_credited_to_those_who_found_what_was_read(tmp_path: Path) -> None:
    bandit = strategist(tmp_path / "s.sqlite")
    choice = asked(bandit, 0)
    told = outcome(choice, GOOD_BAD) | {"credit": {"raw": 0.5, "hyde": 0.5}}
    bandit.record(choice, told)
    context = np.frombuffer(_row(bandit, choice.id).x, dtype=np.float32).astype(float)
    before = {name: model.vector.copy() for name, model in bandit.learned.models.items()}
    assert bandit.feedback(choice.id, 1)
    moved = {n: model.vector - before[n] for n, model in bandit.learned.models.items()}
    np.testing.assert_allclose(moved["hyde"], 0.3 * 0.5 * context, atol=1e-12)
    assert not moved["query2doc"].any()
    assert not moved["grounded"].any()
    assert not bandit.feedback(choice.id, -1)  # once
    np.testing.assert_array_equal(bandit.learned.models["hyde"].vector, before["hyde"] + moved["hyde"])
    with pytest.raises(InputError, match="'nobody' is not in the log"):
        bandit.feedback("nobody", 1)
    with pytest.raises(InputError, match="give 1"):
        bandit.feedback(choice.id, 0)


def _row(bandit: Strategist, identity: str):  # type: ignore[no-untyped-def]
    with bandit.log.reading() as events:
        found = events.find("question", identity)
    assert found is not None
    return found


def test_a_late_rating_weighs_what_is_left_of_its_question(tmp_path: Path) -> None:
    """As if it had been given at once: what was forgotten, or lies before the window, is not brought back."""
    day, found = 86_400.0, {}
    for late in (False, True):
        path = tmp_path / f"{late}.sqlite"
        bandit = strategist(path, cold_start=0, policy="uniform", forget=0.25, change_threshold=1e9)
        bandit._now = lambda: 0.0
        old = lived(bandit, 20, GOOD_BAD)
        if not late:
            bandit.feedback(old[0].id, 1)
        bandit.learned._changed(bandit.learned.seq)
        if late:
            bandit.feedback(old[0].id, 1)
        found[late] = {name: model.vector.copy() for name, model in bandit.learned.models.items()}
        bandit._now = lambda: 100 * day
        lived(bandit, 80, {"hyde": 0.5, "query2doc": 0.3, "grounded": -0.2}, start=20)
        assert recalibrate(path, bandit.settings.replace(holdout=0.25), now=100 * day).deployed
        bandit.refresh()
        before = {name: model.vector.copy() for name, model in bandit.learned.models.items()}
        assert bandit.feedback(old[1].id, 1)
        for name, model in bandit.learned.models.items():
            np.testing.assert_array_equal(model.vector, before[name])
    for name, vector in found[False].items():
        np.testing.assert_allclose(found[True][name], vector, atol=1e-12)


def test_pruning_is_by_type_of_question_and_never_for_good(tmp_path: Path) -> None:
    bandit = strategist(tmp_path / "s.sqlite", prune_after=20, explore=1.0, explore_decay=1.0, retrial=0.1)
    lived(bandit, 80, {"hyde": 0.2, "query2doc": 0.0, "grounded": 0.1}, text="Who wrote it?")
    pruned = dict(zip(bandit.learned.strategies, bandit.learned.pruned("who").tolist(), strict=True))
    assert pruned == {"hyde": False, "query2doc": True, "grounded": False}
    assert not bandit.learned.pruned("when").any()
    found, _, _ = mixtures(bandit)
    place = bandit.learned.strategies.index("query2doc")
    assert found.explored[place] == 0.1  # tried again now and then
    assert all(members[place] == 0 for members in found.greedy)
    lived(bandit, 400, {"hyde": 0.2, "query2doc": 0.4, "grounded": 0.1}, start=80, text="Who wrote it?")
    assert not bandit.learned.pruned("who").any()  # it proved itself


def test_all_run_on_every_hundredth_question_and_not_at_once(tmp_path: Path) -> None:
    bandit = strategist(
        tmp_path / "s.sqlite", cold_start=3, all_every=10, explore=0.0, explore_least=0.0, alpha=0.0
    )
    modes = [c.about["mode"] for c in lived(bandit, 25, dict.fromkeys(GOOD_BAD, 0.0))]
    assert modes[:3] == ["cold"] * 3
    assert [place for place, mode in enumerate(modes) if mode == "all"] == [12, 22]
    assert set(modes[3:12]) == {"exploit"}


def test_a_start_may_run_each_with_a_probability_that_is_logged(tmp_path: Path) -> None:
    bandit = strategist(tmp_path / "s.sqlite", cold_start=60, cold_share=0.25)
    choices = lived(bandit, 60, GOOD_BAD)
    assert {choice.about["mode"] for choice in choices} == {"cold"}
    ran = np.mean([[name in choice.strategies for name in GOOD_BAD] for choice in choices])
    assert 0.15 < ran < 0.35
    for choice in choices:
        inside = len(choice.strategies) - 1
        assert choice.about["propensity"] == pytest.approx(0.25**inside * 0.75 ** (3 - inside))


def test_drawing_at_random_prunes_nobody(tmp_path: Path) -> None:
    bandit = strategist(tmp_path / "s.sqlite", policy="uniform", prune_after=5)
    lived(bandit, 60, dict.fromkeys(GOOD_BAD, 0.0))
    assert bandit.learned.pruned("who").all()
    found, _, about = mixtures(bandit)
    assert found.each.tolist() == [0.5, 0.5, 0.5]
    assert about["propensity"] == pytest.approx(1 / 8)


def test_what_is_learned_does_not_depend_on_the_machine(tmp_path: Path) -> None:
    states = []
    for name, slow in (("quick", 0.1), ("slow", 60.0)):
        bandit = strategist(tmp_path / f"{name}.sqlite")
        for number in range(15):
            choice = asked(bandit, number)
            bandit.record(choice, outcome(choice, GOOD_BAD, seconds=slow))
        states.append(
            [bandit.learned.models[n].theta.tolist() for n in GOOD_BAD] + [bandit.learned.costs().tolist()]
        )
    assert states[0] == states[1]
    priced = strategist(tmp_path / "priced.sqlite", second_price=0.01)  # on request
    choice = asked(priced, 0)
    priced.record(choice, outcome(choice, GOOD_BAD, seconds=60.0))
    assert priced.learned.costs().min() > 0.6


# --- schedule, change, prior -----------------------------------------------------------------------------


def test_exploration_falls_to_its_least_and_doubles_where_little_is_known() -> None:
    how = BanditSettings(explore=0.3, explore_least=0.05)
    assert how.share_exploring(0, 1.0) == 0.3
    assert how.share_exploring(10, 1.0) == pytest.approx(0.3 * 0.99**10)
    assert how.share_exploring(10_000, 1.0) == 0.05
    assert how.share_exploring(10_000, 0.4) == 0.1


def test_a_change_raises_exploration_and_is_survived(tmp_path: Path) -> None:
    bandit = strategist(tmp_path / "s.sqlite", change_threshold=8.0)
    lived(bandit, 150, GOOD_BAD)
    assert bandit.learned.changes == 0
    calm = mixtures(bandit)[0].each.sum()
    turned = {"hyde": 0.0, "query2doc": 0.3, "grounded": 0.1}
    lived(bandit, 12, turned, start=150)
    assert bandit.learned.changes >= 1
    assert mixtures(bandit, 998)[0].each.sum() > calm
    late = lived(bandit, 150, turned, start=162)[-50:]
    assert sum("query2doc" in c.strategies for c in late) > 40
    assert sum("hyde" in c.strategies for c in late) < 25


def test_a_change_ends_what_pruning_rests_on(tmp_path: Path) -> None:
    bandit = strategist(tmp_path / "s.sqlite", prune_after=20, forget=0.1, policy="uniform")
    lived(bandit, 100, GOOD_BAD)
    before = bandit.learned.pruned("who").tolist()
    assert any(before)
    bandit.learned._changed(bandit.learned.seq)
    assert not bandit.learned.pruned("who").any()


def test_questions_of_another_kind_are_noticed_where_no_strategy_runs(tmp_path: Path) -> None:
    bandit = strategist(tmp_path / "s.sqlite", explore=0.0, explore_least=0.0, alpha=0.0)
    useless, rng = dict.fromkeys(GOOD_BAD, 0.0), np.random.default_rng(5)

    def lives(numbers: range, level: float, own: dict[str, float]) -> list[Choice]:
        choices = [asked(bandit, number) for number in numbers]
        for choice in choices:
            bandit.record(choice, outcome(choice, own) | {"base": level + 0.2 * rng.standard_normal()})
        return choices

    for start in range(0, 300, 20):
        lives(range(start, start + 20), 0.8, useless)
    assert bandit.learned.changes == 0
    assert all(c.strategies == ("raw",) for c in lives(range(300, 310), 0.8, useless))
    for start in range(310, 350, 5):
        lives(range(start, start + 5), 1.3, GOOD_BAD)
    assert bandit.learned.changes == 1
    assert all("hyde" in c.strategies for c in lives(range(350, 360), 1.3, GOOD_BAD))


def test_a_strategy_is_added_to_a_log_and_the_others_keep_what_they_know(tmp_path: Path) -> None:
    path, more = tmp_path / "s.sqlite", ("raw", "hyde", "query2doc", "multi-query", "grounded")
    bandit = strategist(path)
    lived(bandit, 60, GOOD_BAD)
    before = bandit.learned.models["hyde"].theta.copy()
    with pytest.raises(InputError, match="strategies add"):  # nobody is let in unasked
        strategist(path, possible=more)
    assert add_strategy(path, "multi-query", 1.0)
    assert not add_strategy(path, "multi-query", 2.0)
    for wrong in ("raw", "all", "hyd"):
        with pytest.raises(InputError):
            add_strategy(path, wrong)
    again = strategist(path, possible=more)  # whatever the order
    found, _, _ = mixtures(again)
    assert found.program.value.size == 4
    assert found.explored[3] == 0.5
    np.testing.assert_array_equal(again.learned.models["hyde"].theta, before)
    choices = lived(again, 60, GOOD_BAD | {"multi-query": 0.3}, start=60)
    assert sum("multi-query" in c.strategies for c in choices[-20:]) > 15
    # Who had it open goes on without the new one, with propensities that say so, and still hears of it.
    bandit.close()  # it is opened again when it is needed
    late = lived(bandit, 5, GOOD_BAD, start=200)
    assert all("multi-query" not in c.strategies for c in late)
    found, _, _ = mixtures(bandit)
    assert found.program.value.size == 3 + 1
    again.refresh()
    assert bandit.learned.dump() == again.learned.dump()
    bandit.close()
    afresh = strategist(path, possible=more)
    afresh.log.close()
    assert afresh.learned.dump() == again.learned.dump()
    with pytest.raises(InputError, match="another bandit"):
        strategist(path)
    small = strategist(tmp_path / "t.sqlite", possible=("raw", "hyde"))
    assert small.add_strategy("grounded")
    assert small.possible == ("raw", "hyde", "grounded")
    assert any("grounded" in c.strategies for c in lived(small, 5, GOOD_BAD))


def test_settings_are_checked_and_come_from_plain_data() -> None:
    with pytest.raises(InputError) as caught:
        BanditSettings(alpha=-1.0, cold_start=1.5, policy="best", base=("bm25",))  # type: ignore[arg-type]
    assert len(caught.value.problems) == 4
    options = StrategyOptions(state="s.sqlite", bandit=BanditSettings(alpha=2.0))
    again = options_of({"strategies": json.loads(json.dumps(options.to_dict()))})
    assert again == options
    with pytest.raises(InputError, match="alhpa"):
        options_of({"strategies": {"bandit": {"alhpa": 1}}})
