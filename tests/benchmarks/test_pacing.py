"""The benchmark of the pacer: a bound that bounds, orders that are orders, totals that are kept."""

import pytest

from benchmarks.pacing import ORDERS, Asked, offline, order, paced, read
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


def test_nothing_that_keeps_to_the_total_exceeds_the_bound(questions: list[Asked]) -> None:
    selector, total = Selector(), MEAN * len(questions)
    best, bound, price = offline(selector, questions, total, MOST)
    assert sum(one.tokens for one in best) <= total
    assert sum(one.value for one in best) <= bound * (1 + 1e-9)
    assert price > 0
    fixed = [read(selector, asked, 0.0, MEAN) for asked in questions]
    assert sum(one.value for one in fixed) <= bound
    for kind in ORDERS:
        places = order(kind, questions, [one.tokens for one in best], 1)
        assert sorted(places) == list(range(len(questions)))
        day = [questions[k] for k in places]
        for days in ([day], [day[::-1], day]):
            found = paced(selector, days, total, MOST)
            assert len(found) == len(questions)
            assert sum(one.tokens for one in found) <= total
            assert sum(one.value for one in found) <= bound * (1 + 1e-9)
