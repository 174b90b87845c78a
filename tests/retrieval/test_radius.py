"""Radii from data, against what they mean."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mio_rag.errors import DataError, InputError
from mio_rag.retrieval import CorpusIndex, TfidfEmbedder
from mio_rag.retrieval.radius import measure_radius


class Turned(TfidfEmbedder):
    """TF-IDF vectors turned by an orthogonal matrix: another encoder that knows the same."""

    name = "turned"

    def encode(self, texts, progress=None):
        vectors = super().encode(texts, progress)
        turn, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(vectors.shape[1],) * 2))
        return (vectors @ turn).astype(np.float32)


def test_sq8_is_exact(demo_index: CorpusIndex) -> None:
    found = measure_radius(demo_index, "sq8")
    vectors = demo_index.embeddings(range(len(demo_index))).astype(np.float64)
    low, high = vectors.min(axis=0), vectors.max(axis=0)
    step = (high - low) / 255  # a cell of the grid of every coordinate: the middle is at most half a cell off
    assert found.errors.shape == (len(demo_index),)
    assert np.all(found.errors <= np.linalg.norm(step) / 2 * 1.01 + 1e-6)
    assert found.errors.max() > 0
    assert found.ids == tuple(p.id for p in demo_index.passages)


def test_alignment_sees_through_a_rotation(demo_index: CorpusIndex) -> None:
    texts = [f"{p.title}\n{p.text}" for p in demo_index.passages]
    small = CorpusIndex.build(demo_index.passages, TfidfEmbedder(dimensions=20))
    other = Turned(dimensions=20)
    other.fit(texts)
    same = measure_radius(small, "encoder", other=other, limit=1000).errors
    assert same.size == len(small)
    assert same.max() < 1e-4
    stranger = TfidfEmbedder(dimensions=8)
    stranger.fit(texts)
    assert np.median(measure_radius(small, "encoder", other=stranger, limit=1000).errors) > 0.1
    unfit = Turned(dimensions=60)
    unfit.fit(texts)
    few = CorpusIndex.build(demo_index.passages[:84], TfidfEmbedder(dimensions=60))
    with pytest.raises(InputError, match=r"needs 134 passages to align.*84 are sampled"):
        measure_radius(few, "encoder", other=unfit, limit=1000)


def test_paraphrases(demo_index: CorpusIndex, tmp_path: Path) -> None:
    file = tmp_path / "texts.jsonl"
    texts = ["How tall is the tower?", "How tall is the tower?", "Which bridge is longer?"]
    file.write_text(json.dumps({"texts": texts[:2]}) + "\n" + json.dumps({"texts": texts}) + "\n")
    found = measure_radius(demo_index, "paraphrases", file=file)
    assert found.ids == ("1.1", "1.2", "2.1", "2.2", "2.3")
    assert found.errors[:2] == pytest.approx([0, 0], abs=1e-6)
    assert found.errors[4] > found.errors[2]
    marked = json.dumps({"texts": [f"{t} \u2028 \x85" for t in texts]}, ensure_ascii=False)
    file.write_text(f"\ufeff{marked}\r\n", encoding="utf-8")  # neither separator ends a line
    assert measure_radius(demo_index, "paraphrases", file=file).ids == ("1.1", "1.2", "1.3")
    file.write_text('{"texts": ["one"]}\nnonsense\n')
    with pytest.raises(DataError, match="line 1: expected") as caught:
        measure_radius(demo_index, "paraphrases", file=file)
    assert len(caught.value.problems) == 2
