"""What a selection builds of its pool is built once, however many programs it takes, and is the same."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mio_rag.selection.constraints
import mio_rag.selection.program
from mio_rag.candidates import Candidates
from mio_rag.context import RegexCounter
from mio_rag.corpora.load import Dataset
from mio_rag.formulations.program import SelectionProgram
from mio_rag.formulations.uncertainty import ScaledSet
from mio_rag.relevance import RelevanceModel, load_model
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.selection.constraints import SideConstraints
from mio_rag.selection.program import Formulation
from mio_rag.selection.selector import Selector

MODEL = load_model("ranks")
PRICED = SideConstraints(cover="kmeans:4", per_cluster=2, change_price=0.02, prices={"clusters": 0.05})
#: These fill the budget, whatever the radius: joins then cost more than is left.
LINKED = Selector(redundancy_weight=0.0, passage_penalty=0.0, relevance_model=MODEL, link_benefit=0.2)
SELECTORS = {
    "nominal": Selector.raw(),
    "links": LINKED,
    "termwise": LINKED.replace(radius=0.05),
    "joint": LINKED.replace(radius=0.05, counterpart="joint"),
    "prices": Selector.raw(side=PRICED),
    "prices, termwise": Selector.raw(side=PRICED, radius=0.05),
    "prices, joint": Selector.raw(side=PRICED, radius=0.05, counterpart="joint"),
}


class Joins:
    """Every join of two passages costs 60 tokens more than the passages: blocks come out too large."""

    name = "joins"
    _plain = RegexCounter()

    def count(self, texts):
        return [n + 60 * t.count("\n\n") for t, n in zip(texts, self._plain.count(texts), strict=True)]


@pytest.fixture(scope="module")
def pool(demo: Dataset, demo_index: CorpusIndex) -> Candidates:
    return Retriever(demo_index, pool=25, link_hops=1).retrieve(demo.questions[0].text)


def given(name: str, pool: Candidates) -> Selector:
    selector = SELECTORS[name]
    if selector.side is PRICED:
        return selector.replace(side=PRICED.replace(previous=pool.ids[2:6]))
    return selector


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Part -> how often it was built."""
    counts: Counter[str] = Counter()

    def count(owner: Any, name: str, label: str) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        def counted(*arguments: Any, **named: Any) -> Any:
            counts[label] += 1
            return original(*arguments, **named)

        monkeypatch.setattr(owner, name, counted)

    count(mio_rag.selection.program, "nominal_program", "terms")
    count(mio_rag.selection.program, "fixed_values", "fixed")
    count(mio_rag.selection.program, "JointProblem", "joint")
    count(mio_rag.selection.constraints, "passage_count", "side")
    count(mio_rag.selection.constraints, "cluster_labels", "clusters")
    count(ScaledSet, "__post_init__", "set")
    count(Selector, "penalty_of", "penalty")
    count(RelevanceModel, "alone", "curves")
    return counts


def expected(name: str) -> Counter[str]:
    """Each part once, of those that the settings ask for."""
    parts = ["terms", "fixed", "side", "penalty"]
    if SELECTORS[name].radius > 0:
        parts += ["joint", "set"] + (["curves"] if SELECTORS[name].relevance_model is MODEL else [])
    return Counter(parts + (["clusters"] if "prices" in name else []))


@pytest.mark.parametrize("counter", [None, Joins()], ids=["fits", "too large"])
@pytest.mark.parametrize("name", SELECTORS)
def test_every_part_is_built_once_a_selection(
    name: str, counter: Joins | None, pool: Candidates, built: Counter[str]
) -> None:
    selector = given(name, pool)
    selection = selector.select(pool, 400, counter)
    assert built == expected(name)
    assert (selection.program.budget < 400) == (counter is not None)
    built.clear()
    (one,) = selector.select_many([pool], 400, counter)
    assert built == expected(name)
    assert one.ids == selection.ids


@pytest.mark.parametrize("name", ["termwise", "prices, termwise"])
def test_a_choice_without_reasons_needs_no_worst_case(
    name: str, pool: Candidates, built: Counter[str]
) -> None:
    choice = given(name, pool).choose(pool, 400)
    assert choice.chosen
    assert built["joint"] == built["curves"] == 0


def same(first: SelectionProgram, second: SelectionProgram) -> None:
    assert first.budget == second.budget
    for part in ("linear", "pairwise", "costs", "fixed"):
        assert np.array_equal(getattr(first, part), getattr(second, part)), part
    for one, other in zip(first.rows, second.rows, strict=True):
        assert np.array_equal(one.coefficients, other.coefficients)
        assert (one.lower, one.upper, one.name) == (other.lower, other.upper, other.name)


@pytest.mark.parametrize("name", SELECTORS)
def test_what_is_kept_is_what_would_be_built_anew(name: str, pool: Candidates) -> None:
    selector = given(name, pool)
    valued = selector.valued(pool)
    kept = Formulation(selector, valued)
    x = np.zeros(len(pool), dtype=np.int8)
    x[[0, 2, 5]] = 1
    for budget in (400, 230, 400):
        fresh = Formulation(selector, valued)
        same(kept.program(budget), fresh.program(budget))
        assert kept.program(budget) is kept.program(budget)
        first, second = kept.joint(budget), fresh.joint(budget)
        same(first.scenario(), second.scenario())
        assert first.interval(x) == second.interval(x)
        assert first is kept.joint(budget)
