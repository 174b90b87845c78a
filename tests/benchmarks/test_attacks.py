"""The attacks benchmark counts every attacked selection, and would notice a certificate that is too high."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.attacks import SETS, attacked, drawn_set, summarize
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
    summary = summarize({"demo": found})
    assert summary["attacked"] == sum(entry["attacked"] for entry in summary["kinds"].values()) == len(found)
    for one in found:
        assert one.termwise - 1e-7 <= one.reached <= one.nominal + 1e-7
        assert one.joint - 1e-7 <= one.reached
    for kind, entry in summary["kinds"].items():
        for certificate in ("joint", "termwise"):
            assert sum(entry[certificate]["histogram"]) == entry[certificate]["charged"], kind
    cosine = summary["kinds"]["cosine|l2"]
    assert cosine["joint"]["median"] < 0.05 < cosine["termwise"]["median"]


def test_a_certificate_that_is_too_high_is_noticed(pool: Candidates, monkeypatch: pytest.MonkeyPatch) -> None:
    lower = JointProblem.lower
    monkeypatch.setattr(
        JointProblem, "lower", lambda self, chosen: lower(self, chosen) + 0.01 * float(chosen.size)
    )
    found = attacked(pool, np.random.default_rng(0))
    summary = summarize({"demo": found})
    assert "below the certified" in summary["violations"][0]
    assert summary["attacked"] == len(found)


def test_half_of_the_sets_have_a_radius_for_each_passage(pool: Candidates) -> None:
    rng = np.random.default_rng(1)
    spread = [np.ptp(drawn_set("l2", pool, rng).radii(len(pool))) for _ in range(40)]
    assert 10 < sum(width > 0 for width in spread) < 30
