"""The attacks benchmark counts every attacked selection, and would notice a certificate that is too high."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.attacks import SETS, attacked, summarize
from mio_rag.corpora.dataset import Dataset
from mio_rag.formulations.robust import JointProblem
from mio_rag.pool import Candidates
from mio_rag.retrieval import CorpusIndex, Retriever


@pytest.fixture(scope="module")
def pool(demo: Dataset, demo_index: CorpusIndex) -> Candidates:
    return Retriever(demo_index, pool=12, link_hops=1).retrieve(demo.questions[0].text)


def test_every_certificate_of_a_pool_holds(pool: Candidates) -> None:
    found = attacked(pool, np.random.default_rng(0))
    assert len(found) == 5 * 2 * len(SETS)
    assert not [one.wrong for one in found if one.wrong]
    for one in found:
        assert max(one.termwise, one.joint) - 1e-7 <= one.reached <= one.nominal + 1e-7
    summary = summarize({"demo": found})
    assert summary["attacked"] == len(found)
    cosine = summary["kinds"]["cosine|l2"]
    assert cosine["joint"]["median"] < 0.05 < cosine["termwise"]["median"]


def test_a_certificate_that_is_too_high_is_noticed(pool: Candidates, monkeypatch: pytest.MonkeyPatch) -> None:
    lower = JointProblem.lower
    monkeypatch.setattr(
        JointProblem, "lower", lambda self, chosen: lower(self, chosen) + 0.01 * float(chosen.size)
    )
    summary = summarize({"demo": attacked(pool, np.random.default_rng(0))})
    assert "below the certified" in summary["violations"][0]
