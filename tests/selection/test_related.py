"""Passages of one short document, and a price that the pool decides."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from mio_rag.allocation import allocate
from mio_rag.errors import InputError
from mio_rag.frontier import query_frontier
from mio_rag.pool import Candidates
from mio_rag.relevance import RelevanceModel, Stage
from mio_rag.selection.selector import Selector
from tests.selection.pools import replace

PLAIN = Selector.raw(redundancy_weight=0, passage_penalty=0)
MODEL = RelevanceModel((Stage(("cosine",), (5.0,), -2.0),))


def pool(relevance: list[float], sources: list[str] | None = None, **more: object) -> Candidates:
    n = len(relevance)
    fields = {
        "ids": [f"p{k}" for k in range(n)],
        "texts": [f"text {k}" for k in range(n)],
        "relevance": relevance,
        "tokens": [10] * n,
        "sources": sources,
    }
    return Candidates(**{**fields, **more})  # type: ignore[arg-type]


def test_a_sibling_is_worth_more_in_company() -> None:
    c = pool([0.9, 0.3, 0.2], ["a", "b", "a"])
    assert PLAIN.select(c, 20).ids == ("p0", "p1")
    chosen = replace(PLAIN, link_benefit=0.2).select(c, 20)
    assert chosen.ids == ("p0", "p2")
    assert chosen.result.objective == pytest.approx(0.9 + 0.2 + 0.2 * 0.9)
    assert "0.18 is gained beside 'p0'" in chosen.decisions[2].reason


@pytest.mark.parametrize("seed", range(5))
def test_benefits_are_what_the_formula_says_and_solved_exactly(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, sources = 9, [*"aabbbccc", ""]
    r, links = rng.random(n), np.where(rng.random((n, n)) < 0.1, rng.random((n, n)), 0.0)
    np.fill_diagonal(links, 0.0)
    tokens = rng.integers(5, 30, n)
    c = pool(list(r), sources, links=links, tokens=tokens)
    assert c.links is not None
    chosen = replace(PLAIN, link_benefit=0.7, passage_penalty=0.4).select(c, 60)

    def worth(items: tuple[int, ...]) -> float:
        value = sum(r[i] - 0.4 for i in items)
        for i, j in combinations(items, 2):
            linked = max(float(c.links[i, j]), float(c.links[j, i]))  # type: ignore[index]
            same = sources[i] and sources[i] == sources[j]
            value += 0.7 * max(linked, 1 / (sources.count(sources[i]) - 1) if same else 0.0) * max(r[i], r[j])
        return float(value)

    every = [s for k in range(n + 1) for s in combinations(range(n), k) if tokens[list(s)].sum() <= 60]
    best = max(map(worth, every))
    assert chosen.result.is_optimal
    assert chosen.result.objective == pytest.approx(best, abs=1e-6)
    assert worth(tuple(sorted(chosen.chosen))) == pytest.approx(best, abs=1e-6)


def test_blank_sources_and_single_passages_relate_nothing() -> None:
    selector = replace(PLAIN, link_benefit=0.5)
    for sources in (["", "", " "], ["a", "b", "c"]):
        program = selector.program(pool([0.9, 0.5, 0.2], sources), 30)
        assert not np.any(program.pairwise)
    with pytest.raises(InputError, match="evidence links or sources"):
        selector.select(pool([0.9, 0.5, 0.2]), 30)


def test_auto_relates_siblings_where_relevance_is_a_probability_only() -> None:
    c = pool([0.9, 0.5, 0.2], [*"aab"], scores={"dense": [0.9, 0.5, 0.2]})
    by_model = Selector(relevance_model=MODEL).resolved(c).link_benefit
    assert by_model > 0
    assert by_model == Selector().resolved(c).link_benefit
    assert Selector(relevance_model="given").resolved(c).link_benefit == 0
    assert Selector().resolved(replace(c, sources=None)).link_benefit == 0
    assert Selector(link_benefit=0).resolved(c).link_benefit == 0
    assert not np.any(Selector.raw(redundancy_weight=0).program(c, 30).pairwise)


def test_adaptive_charges_sure_pools_more_than_unsure_ones() -> None:
    given = Selector(relevance_model="given")
    assert given.passage_penalty == "adaptive"
    assert given.penalty(pool([0.5, 0.9])) == pytest.approx(0.1 * 0.81)
    assert given.penalty(pool([0.3, 0.1])) == pytest.approx(0.1 * 0.09)
    assert given.penalty(pool([7.0, 0.1])) == pytest.approx(0.1)  # no probability: as if one were sure
    assert given.penalty(pool([-3.0, -0.1])) == 0
    assert given.penalty(pool([])) == 0
    assert given.select(pool([0.95, 0.05]), 20).ids == ("p0",)  # .05 is below .1 * .95 ** 2
    assert given.select(pool([0.30, 0.05]), 20).ids == ("p0", "p1")  # and above .1 * .3 ** 2


def test_what_does_not_fit_the_budget_makes_nothing_dear() -> None:
    given, c = Selector(relevance_model="given"), pool([0.95, 0.05, 0.04])  # .1 * .95 ** 2 is above .05
    c = replace(c, tokens=np.array([300, 10, 10]))
    assert given.penalty(c, 300) == given.penalty(c) == pytest.approx(0.1 * 0.95**2)
    assert given.penalty(c, 299) == pytest.approx(0.1 * 0.05**2)
    assert given.penalty(c, 9) == 0
    read = given.select(c, 299)
    assert read.ids == ("p1", "p2")
    assert read.result.objective == pytest.approx(0.05 + 0.04 - 2 * 0.1 * 0.05**2)
    assert given.select(c, 310).ids == ("p0",)
    assert given.penalty(c, 299) == pytest.approx(0.05 - given.program(c, 299).linear[1])
    cut = replace(given, units="sentences")  # a long passage may be read in part
    assert cut.penalty(c, 299) == pytest.approx(0.1 * 0.95**2)
    dear = replace(given, token_price=0.01).select(c, 299)
    assert "highest relevance of those that fit the budget is 0.05" in dear.notes[0]


def test_one_price_along_the_path_of_a_budget_and_in_a_shared_total() -> None:
    c = pool([0.95, 0.3, 0.04], tokens=[300, 20, 10], embeddings=np.eye(3), query_embedding=np.eye(3)[0])
    given = Selector(relevance_model="given")
    path = query_frontier(c, given, 100, up_to=400)
    assert path.to_dict()["settings"]["passage_penalty"] == pytest.approx(0.1 * 0.09)
    at = path.budget.at(100)
    assert at is not None
    assert at.value == pytest.approx(given.select(c, 100).result.objective)
    # Each is asked again within what it was given, 30: its price stays that of the ceiling, 250.
    shared = allocate([c, c], 60, selector=given, ceilings=250)
    for one in shared.selections:
        assert one.ids == ("p1", "p2")
        x = np.array([0.0, 1.0, 1.0])
        assert one.result.objective == pytest.approx(given.program(c, 250).objective(x))
