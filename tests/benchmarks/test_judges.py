"""The study of judges: its area by hand, and a run on a few questions."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.judges import area, measured
from mio_rag.corpora.dataset import Dataset
from mio_rag.retrieval import TfidfEmbedder
from mio_rag.retrieval.texts import embedded_text


def test_area_by_hand() -> None:
    # of six pairs four are in order and one is tied
    assert area(np.array([0.9, 0.5]), np.array([0.5, 0.4, 0.7])) == pytest.approx((4 + 0.5) / 6)
    assert area(np.array([1.0]), np.array([0.0])) == 1


def test_gold_answers_are_told_from_others(demo: Dataset) -> None:
    embedder = TfidfEmbedder()
    embedder.fit([embedded_text(p) for p in demo.passages])
    found = measured(demo, embedder, 12, 0)
    assert found["questions"] == 12
    for kind in ("words", "embedding"):
        for value in found["judges"][kind].values():
            assert 0.5 < value["low"] <= value["area"] <= value["high"] <= 1


def test_the_command_refuses_too_few(tmp_path: Path) -> None:
    assert main(["judges", "--questions", "1", "--out", str(tmp_path / "j.json")]) == 2
    assert not (tmp_path / "j.json").exists()


def test_the_committed_report_names_what_it_rests_on() -> None:
    report = json.loads((Path(__file__).parents[2] / "benchmarks/results/judges.json").read_text())
    assert {"seed", "embedder", "versions", "sets"} <= set(report)
    assert all(found["data_sha256"] for found in report["sets"].values())
