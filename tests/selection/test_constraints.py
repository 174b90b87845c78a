"""Side constraints and robustness as a selector sees them, each against what it says in words."""

from __future__ import annotations

import json
from itertools import combinations

import numpy as np
import pytest

from mio_rag import Conversation, Selector, SideConstraints
from mio_rag.errors import InputError
from mio_rag.formulations import DeviationBudget, NormBall, SparseBox
from mio_rag.pool import Candidates
from mio_rag.relevance import load_model
from mio_rag.solvers import Status, solve
from tests.selection import pools
from tests.selection.pools import replace


def pool(n: int = 10, seed: int = 0, **changes) -> Candidates:
    return pools.pool(n, seed, **{"clusters": [f"topic{k % 4}" for k in range(n)], **changes})


def made(side: SideConstraints, **settings) -> Selector:
    return Selector.raw(**{"redundancy_weight": 0.1, "passage_penalty": 0.0, "side": side, **settings})


def counts(values) -> dict[str, int]:
    return {v: list(values).count(v) for v in set(values)}


def test_every_constraint_holds_alone_and_together() -> None:
    for seed in range(8):
        c = pool(seed=seed)
        near = float(np.sort(np.triu(c.embeddings @ c.embeddings.T, 1).ravel())[-4])
        side = SideConstraints(
            max_source_share=0.5,
            cover="labels",
            previous=("p0", "p1", "p2", "gone"),
            max_changes=6,
            max_similarity=near,
            conflicts=[("p3", "p4"), ("p1", "elsewhere")],
            versions={"p5": "v", "p6": "v", "p7": "v"},
            needs={"p8": ["p9"]},
        )
        chosen = made(side).select(c, 160)
        assert chosen.result.status is Status.OPTIMAL, chosen.explain()
        ids, at = set(chosen.ids), list(chosen.chosen)
        assert max(counts(c.sources[i] for i in at).values()) <= 0.5 * len(at)
        assert {c.clusters[i] for i in at} == set(c.clusters)
        assert len(ids ^ {"p0", "p1", "p2"}) <= 6
        assert all(c.embeddings[i] @ c.embeddings[j] <= near for i, j in combinations(at, 2))
        assert not {"p3", "p4"} <= ids
        assert len(ids & {"p5", "p6", "p7"}) <= 1
        assert "p8" not in ids or "p9" in ids
        # dropping constraints never costs anything
        free = made(SideConstraints()).select(c, 160)
        assert free.result.objective >= chosen.result.objective - 1e-9
        for solver in ("highs", "cpsat"):
            assert solve(chosen.program, solver).objective == pytest.approx(chosen.result.objective)


def test_prices_are_paid_reported_and_hidden() -> None:
    c = pool()
    hard = made(SideConstraints(cover="labels")).select(c, 45)
    assert hard.result.status is Status.INFEASIBLE
    assert hard.conflict.smallest_budget > 45
    assert "cannot hold together: at most 45 tokens" in hard.explain()
    enough = made(SideConstraints(cover="labels")).select(c, int(hard.conflict.smallest_budget))
    assert enough.result.status is Status.OPTIMAL
    soft = made(SideConstraints(cover="labels", prices={"clusters": 0.05})).select(c, 45)
    assert soft.result.status is Status.OPTIMAL
    missing = set(c.clusters) - {c.clusters[i] for i in soft.chosen}
    assert len(soft.notes) == len(missing) > 0
    assert all("paid 0.05: at least 1 from cluster" in note for note in soft.notes)
    assert all(note in soft.explain() for note in soft.notes)
    assert len(soft.decisions) == len(c)
    assert max(soft.chosen) < len(c) < soft.program.n
    assert soft.program.objective(soft.result.x) == pytest.approx(soft.result.objective)
    data = json.loads(json.dumps(soft.to_dict(why=True)))
    assert len(data["reasons"]) == len(c)
    assert data["notes"] == [{"code": "constraint", "text": note} for note in soft.notes]
    plain = made(SideConstraints()).select(c, 45)
    paid = 0.05 * len(missing)
    assert soft.result.objective <= plain.result.objective
    x = np.isin(np.arange(len(c)), soft.chosen).astype(np.int8)
    assert soft.result.objective == pytest.approx(plain.program.objective(x) - paid)
    free = made(SideConstraints(cover="labels", prices={"clusters": 0.0})).select(c, 45)
    assert free.result.objective == pytest.approx(plain.result.objective)


@pytest.mark.parametrize("how", ["kmeans:3", "agglomerative:0.8", "labels"])
def test_clusters_are_covered(how: str) -> None:
    from mio_rag.selection.constraints import cluster_labels

    c = pool(14)
    labels = cluster_labels(c, how)
    assert labels == cluster_labels(c, how)
    chosen = made(SideConstraints(cover=how), passage_penalty=2.0).select(c, 10_000)
    assert {labels[i] for i in chosen.chosen} == set(labels)
    assert len(chosen.chosen) == len(set(labels))
    if how.startswith("kmeans"):
        assert len(set(labels)) == 3


def test_a_conversation_stays_near_its_last_turn() -> None:
    talk = Conversation(made(SideConstraints(max_changes=1)))
    first = talk.select(pool(seed=1), 90)
    second = talk.select(pool(seed=2), 90)
    assert len(set(first.ids) ^ set(second.ids)) <= 1
    free = made(SideConstraints()).select(pool(seed=2), 90)
    assert len(set(first.ids) ^ set(free.ids)) > 1
    costly = Conversation(made(SideConstraints(change_price=10.0)))
    kept = [costly.select(pool(seed=s, tokens=[10] * 10), 90).ids for s in (1, 2)]
    assert set(kept[0]) == set(kept[1])
    impossible = Conversation(made(SideConstraints(), must_include=("p0", "p1")))
    before = impossible.selector
    assert impossible.select(pool(tokens=[50] * 10), 60).chosen == ()
    assert impossible.selector is before


SETS = [NormBall(0.1), NormBall(0.02, "linf"), SparseBox(0.2, 2), DeviationBudget(NormBall(0.2), 2)]


@pytest.mark.parametrize("uncertainty", SETS)
@pytest.mark.parametrize("counterpart", ["termwise", "joint"])
def test_robust_selections_withstand_attacks(uncertainty, counterpart: str) -> None:
    side = SideConstraints(cover="labels", prices={"clusters": 0.05}, conflicts=[("p1", "p2")])
    selector = made(side, uncertainty=uncertainty, counterpart=counterpart, max_per_source=2)
    for seed in range(3):
        chosen = selector.select(pool(seed=seed), 110)
        worst = chosen.worst_case
        assert worst.counterpart == counterpart
        assert worst.lower <= worst.upper + 1e-9
        assert f"worst case ({counterpart}): between" in chosen.explain()
        found = chosen.attack(restarts=3, random=30)
        # the cuts may know a scenario that this attack does not find
        assert worst.lower - 1e-9 <= found.worst <= worst.upper + 0.01
        assert found.worst <= found.nominal + 1e-9
        stronger = chosen.attack(NormBall(0.5), restarts=1, random=5)
        assert stronger.certified <= stronger.worst
        if counterpart == "joint":
            termwise = selector.replace(counterpart="termwise").select(pool(seed=seed), 110)
            assert worst.lower >= termwise.worst_case.lower - 1e-9
            assert chosen.result.bound >= worst.lower
            assert chosen.result.objective == worst.lower


def test_calibrated_relevance_has_joint_worst_cases(demo_index, demo) -> None:
    from mio_rag.retrieval import Retriever

    retriever = Retriever(demo_index, pool=15, link_hops=1)
    selector = Selector(
        relevance_model=load_model("default"), link_benefit=0.2, redundancy_weight=0.05, radius=0.05,
        passage_penalty=0.02, counterpart="joint",
    )  # fmt: skip
    for question in demo.questions[:3]:
        pool = replace(retriever.retrieve(question.text), embedder="")  # the weights are another embedder's
        chosen = selector.select(pool, 200)
        found = chosen.attack(restarts=3, random=50)
        assert chosen.worst_case.lower - 1e-9 <= found.worst <= chosen.worst_case.upper + 1e-9
        assert found.random.min() >= found.worst - 1e-12
        termwise = selector.replace(counterpart="termwise").select(chosen.candidates, 200)
        assert chosen.result.objective >= termwise.result.objective - 1e-9


def test_a_nominal_selection_can_be_attacked_too() -> None:
    chosen = made(SideConstraints()).select(pool(), 100)
    assert chosen.worst_case is None
    assert chosen.attack().worst == pytest.approx(chosen.result.objective)
    assert chosen.attack(NormBall(0.1)).worst < chosen.result.objective
    bare = Candidates(["a"], ["text"], [0.5], [3])
    plain = Selector.raw(redundancy_weight=0).select(bare, 5)
    with pytest.raises(InputError, match="needs candidates with embeddings"):
        plain.attack()


def test_radii_by_id_are_those_of_the_pool() -> None:
    """By id and as an array of the candidates they are the same; every shape of set takes them."""
    given = pool(12)
    radii = np.linspace(0.0, 0.2, 12)
    by_id = dict(zip(given.ids, radii, strict=True))
    for uncertainty in (None, NormBall(1.0, "l1"), DeviationBudget(NormBall(1.0), 2)):
        one = Selector.raw(uncertainty=uncertainty, passage_radii=by_id).select(given, 128)
        other = Selector.raw(uncertainty=uncertainty).select(replace(given, radius=radii), 128)
        assert one.worst_case is not None
        assert one.worst_case == other.worst_case
        assert one.ids == other.ids
    nominal = Selector.raw().select(replace(given, radius=0.0), 128)
    for counterpart in ("termwise", "joint"):
        none = Selector.raw(uncertainty=DeviationBudget(NormBall(0.2), 0), counterpart=counterpart)
        still = none.select(given, 128)
        assert still.ids == nominal.ids
        assert still.worst_case is not None
        assert still.worst_case.lower == still.worst_case.upper == pytest.approx(nominal.result.objective)
    assert Selector.raw(passage_radii=by_id).select(replace(given, radius=0.0), 128).ids == nominal.ids
    with pytest.raises(InputError, match="passage_radii lacks 12 of 12 candidates"):
        Selector.raw(passage_radii={"x": 0.1}).select(given, 128)
    with pytest.raises(InputError, match="must be >= 0"):
        Selector.raw(passage_radii={"x": -1.0})


def test_a_circle_of_needs_is_read_whole_or_not_at_all() -> None:
    ids = ["a", "b", "c", "d"]
    circle = SideConstraints(needs={"a": ["b"], "b": ["c"], "c": ["a"], "d": ["d"]})
    pool = Candidates(ids=ids, texts=ids, relevance=[0.9, 0.1, 0.1, 0.5], tokens=[10, 10, 10, 10])
    assert set(
        Selector.raw(redundancy_weight=0.0, passage_penalty=0.0, side=circle).select(pool, 40).ids
    ) == set(ids)
    assert Selector.raw(redundancy_weight=0.0, passage_penalty=0.0, side=circle).select(pool, 25).ids == (
        "d",
    )
