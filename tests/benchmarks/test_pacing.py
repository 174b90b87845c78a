"""The benchmark of the pacer: a bound that bounds, orders that are orders, totals that are kept."""

from itertools import pairwise

import numpy as np
import pytest

from benchmarks.pacing import ORDERS, Asked, Read, decisions_a_second, offline, order, paced, read
from mio_rag import Retriever, Selector
from mio_rag.corpora.dataset import Dataset
from mio_rag.retrieval import CorpusIndex

MEAN, MOST = 100, 600


@pytest.fixture(scope="module")
def questions(demo: Dataset, demo_index: CorpusIndex) -> list[Asked]:
    retriever = Retriever(demo_index, pool=12)
    return [
        Asked(q, retriever.retrieve(q.text), "even" if k % 2 else "odd")
        for k, q in enumerate(demo.questions[:30])
    ]


def worth(found: list[Read]) -> float:
    return sum(one.value for one in found)


def test_nothing_that_keeps_to_the_total_exceeds_the_bound(questions: list[Asked]) -> None:
    selector, total = Selector(), MEAN * len(questions)
    best, bound, price = offline(selector, questions, total, MOST)
    assert sum(one.tokens for one in best) <= total
    assert worth(best) <= bound * (1 + 1e-9)
    assert price > 0
    fixed = [read(selector, asked, 0.0, MEAN) for asked in questions]
    assert worth(fixed) <= bound
    for kind in ORDERS:
        day = [questions[k] for k in order(kind, questions, [one.tokens for one in best], 1)]
        for days in ([day], [day[::-1], day]):
            found = paced(selector, days, total, MOST)
            assert len(found) == len(questions)
            assert sum(one.tokens for one in found) <= total
            assert worth(found) <= bound * (1 + 1e-9)


def test_orders_are_permutations_and_do_what_they_say(questions: list[Asked]) -> None:
    efforts = list(np.random.default_rng(0).integers(0, 9, len(questions)))
    for kind in ORDERS:
        assert sorted(order(kind, questions, efforts, 3)) == list(range(len(questions)))
        assert list(order(kind, questions, efforts, 3)) == list(order(kind, questions, efforts, 3))
    easy = [efforts[k] for k in order("easy first", questions, efforts, 3)]
    assert easy == sorted(efforts)
    assert [efforts[k] for k in order("hard first", questions, efforts, 3)] == easy[::-1]
    sets = [questions[k].of for k in order("bursts", questions, efforts, 3)]
    assert sum(a != b for a, b in pairwise(sets)) == 1


def test_decisions_of_processes_are_counted() -> None:
    found = decisions_a_second(2, 20)
    assert found["questions"] == 40
    assert found["a_second"] > 0
    assert 0 < found["median_seconds"] <= found["p95_seconds"]
