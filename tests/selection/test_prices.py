"""Rules at a price and changes, against every selection valued in words; and what reasons say of them."""

from __future__ import annotations

import re
from itertools import combinations, product

import numpy as np
import pytest

from mio_rag import Conversation, Selector, SideConstraints
from mio_rag.errors import InputError
from mio_rag.evaluation.tune import Goal, TuneSettings
from mio_rag.frontier.dataset import FrontierSettings
from mio_rag.frontier.paths import query_frontier
from mio_rag.methods import make_methods
from mio_rag.pool import Candidates
from mio_rag.solvers import Status
from tests.selection.pools import replace
from tests.selection.test_constraints import made, pool

N, BUDGET = 9, 70
PRICES = {"passages": 0.07, "sources": 0.05, "clusters": 0.06, "conflicts": 0.08, "needs": 0.04}


def everything(c: Candidates, **changes) -> Selector:
    side = SideConstraints(
        cover="labels",
        previous=("p0", "p1", "p5", "gone"),
        change_price=0.03,
        conflicts=[("p2", "p3"), ("p3", "p4"), ("p1", "elsewhere")],
        needs={"p6": ["p7"], "p8": ["gone"], "elsewhere": ["p0"]},
        prices=PRICES,
    )
    return made(side.replace(**changes), min_passages=3, max_passages=4, max_per_source=1)


def paid(c: Candidates, chosen: set[str]) -> float:
    """What the rules of `everything` cost a selection, one after the other."""
    k, p = len(chosen), PRICES
    at = [i for i, name in enumerate(c.ids) if name in chosen]
    total = p["passages"] * (max(0, 3 - k) + max(0, k - 4))
    for source in set(c.sources):
        total += p["sources"] * max(0, sum(c.sources[i] == source for i in at) - 1)
    total += p["clusters"] * len(set(c.clusters) - {c.clusters[i] for i in at})
    total += p["conflicts"] * sum({a, b} <= chosen for a, b in [("p2", "p3"), ("p3", "p4")])
    total += p["needs"] * (("p6" in chosen and "p7" not in chosen) + ("p8" in chosen))
    return total + 0.03 * len(chosen ^ {"p0", "p1", "p5"})


def worth(c: Candidates, chosen: set[str]) -> float:
    x = np.array([name in chosen for name in c.ids], dtype=np.int8)
    return made(SideConstraints()).program(c, BUDGET).objective(x) - paid(c, chosen)


def best(c: Candidates) -> float:
    sets = ({i for i, b in zip(c.ids, bits, strict=True) if b} for bits in product((0, 1), repeat=N))
    cost = dict(zip(c.ids, c.tokens, strict=True))
    return max(worth(c, s) for s in sets if sum(cost[i] for i in s) <= BUDGET)


@pytest.mark.parametrize("seed", range(6))
def test_optimum_objective_notes_and_reasons(seed: int) -> None:
    c = pool(N, seed)
    chosen = everything(c).select(c, BUDGET)
    now = set(chosen.ids)
    assert chosen.result.status is Status.OPTIMAL
    assert chosen.result.objective == pytest.approx(best(c))
    assert chosen.result.objective == pytest.approx(worth(c, now))
    for solver in ("highs", "cpsat"):
        other = replace(everything(c), solver=solver).select(c, BUDGET)
        assert other.result.objective == pytest.approx(chosen.result.objective)
    amounts = [float(found[1]) for note in chosen.notes if (found := re.match(r"paid ([\d.e-]+): ", note))]
    assert sum(amounts) == pytest.approx(paid(c, now))
    outside = "'gone': of the previous selection, but not in this question's pool: dropped, and not counted"
    assert chosen.notes[-3:] == (
        "'elsewhere': in a conflict, but not in this question's pool, so there is nothing to forbid",
        "'p8': costs 0.04 to read, without a need that is not in this question's pool",
        outside,
    )
    for d in chosen.decisions:
        change = worth(c, now ^ {d.id}) - worth(c, now)
        assert d.value == pytest.approx(-change if d.selected else change)
        swap = re.search(r"in place of '(\w+)' it would (gain|lose) (\S+) in total", d.reason)
        if swap:
            exact = worth(c, now - {swap[1]} | {d.id}) - worth(c, now)
            amount = float(swap[3]) * (1 if swap[2] == "gain" else -1)
            assert amount == pytest.approx(exact, abs=5.1e-3 if abs(exact) > 0.0995 else 0.051 * abs(exact))
            assert exact <= 1e-6


def test_only_what_has_no_price_is_asked_for_together() -> None:
    c = pool(tokens=[30] * 10)
    stuck = made(
        SideConstraints(cover="labels", previous=("p1",), change_price=0.1, prices={"clusters": 0.1}),
        must_include=("p1", "p2", "p3"),
        solver="greedy",
    ).select(c, 65)
    assert stuck.result.x is None
    assert "asked for, together: at most 65 tokens" in replace(stuck, conflict=None).explain()
    exact = replace(everything(c), must_include=("p1", "p2", "p3")).select(c, 65)
    assert exact.result.status is Status.INFEASIBLE
    assert exact.conflict.parts == ("at most 65 tokens", "'p1' in", "'p2' in", "'p3' in")
    assert exact.conflict.smallest_budget == 90
    assert exact.notes[-1].startswith("'gone': of the previous selection")


def test_hard_needs_outside_the_pool_are_a_reason() -> None:
    c = pool(6)
    side = SideConstraints(needs={"p1": ["header"], "p2": ["p3"]}, conflicts=[("p4", "p5")])
    chosen = made(side).select(c, 1000)
    why = {d.id: d.reason for d in chosen.decisions}
    assert why["p1"] == "cannot be chosen: 'p1' needs 'header', which is not in the pool"
    assert chosen.notes == ("'p1': cannot be read, without a need that is not in this question's pool",)
    left_out = next(i for i in ("p4", "p5") if i not in chosen.ids)
    assert why[left_out].endswith("but: not both of 'p4', 'p5'")


def test_a_conversation_of_many_turns() -> None:
    """Each turn against every selection, by what is said of changes; the first turn is free."""
    side = SideConstraints(max_changes=3, change_price=0.02)
    talk, plain = Conversation(made(side)), made(SideConstraints())
    before: set[str] | None = None
    for seed in range(5):
        c = pool(8, seed, ids=[f"p{k + seed % 2}" for k in range(8)])  # p0 leaves the pool, and comes back
        turn, program = talk.select(c, 80), plain.program(c, 80)
        values = []
        for k in range(9):
            for s in combinations(range(8), k):
                x = np.isin(np.arange(8), s).astype(np.int8)
                changes = 0 if before is None else len({c.ids[i] for i in s} ^ (before & set(c.ids)))
                if not program.violations(x) and changes <= 3:
                    values.append(program.objective(x) - (0.0 if before is None else 0.02 * changes))
        assert turn.result.objective == pytest.approx(max(values))
        before = set(turn.ids)
    with pytest.raises(InputError, match="max_changes and change_price compare with the previous selection"):
        made(side).select(pool(), 90)
    # nothing chosen is a selection too: at most so many may come in
    after_nothing = made(side.replace(previous=())).select(pool(), 1000)
    assert len(after_nothing.chosen) == 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SideConstraints(prices={"clusters": 0.1}), "'clusters' needs clusters to cover"),
        (lambda: SideConstraints(per_cluster=2), "per_cluster=2 needs clusters to cover"),
        (lambda: made(SideConstraints(prices={"passages": 1})), "needs min_passages or max_passages"),
        (lambda: made(SideConstraints(prices={"sources": 1})), "'sources' needs max_per_source"),
        (lambda: Selector.raw(counterpart="joint").select(pool(), 90), "give radius > 0, uncertainty"),
        (
            lambda: Selector.raw(passage_radii={"a": 1}, radius=0.1),
            "passage_radii and radius exclude each other",
        ),
        (lambda: FrontierSettings(selector=Selector.raw(passage_radii={"a": 1})), "sets the radius itself"),
        (
            lambda: query_frontier(pool(), Selector.raw(counterpart="joint", radius=0.1), 90),
            "only the termwise counterpart",
        ),
        (lambda: query_frontier(pool(), everything(pool()), 90), "leave prices and change_price out"),
        (
            lambda: TuneSettings(Goal(90, None), everything(pool()), vary=["max_per_source"]),
            "cannot be varied with a price on it",
        ),
        (
            lambda: TuneSettings(Goal(90, None), Selector.raw(passage_radii={"a": 0.1})),
            "only one radius of a norm is tuned",
        ),
        (
            lambda: made(SideConstraints(versions={f"v{k}": "d" for k in range(9)})).check_ids(["p1"]),
            "4 more ids are not in the index",
        ),
    ],
)
def test_what_would_be_ignored_is_refused(make, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_rankings_do_not_follow_prices() -> None:
    """What may be broken at a price is part of the program, and rankings do not maximise it."""
    c, names = pool(N), ["topk", "topk:3", "mmr", "density"]
    priced, bare = everything(c), make_methods(names, made(SideConstraints()))
    for method, plain in zip(make_methods(names, priced), bare, strict=True):
        assert method.selector.select(c, 150).ids == plain.selector.select(c, 150).ids
    assert len(make_methods(["topk:3"], priced)[0].selector.select(c, 150).ids) == 3
    hard = make_methods(["topk"], made(SideConstraints(conflicts=[("p1", "p2")])))[0]
    assert not {"p1", "p2"} <= set(hard.selector.select(c, 1000).ids)
