"""Retrieval against plain recomputation."""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import bm25s
import numpy as np
import pytest

from mio_rag.context import SEPARATOR, RegexCounter, render_passage
from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import InputError
from mio_rag.retrieval import CorpusIndex, Retriever, reciprocal_rank_fusion
from mio_rag.retrieval.texts import embedded_text
from mio_rag.types import Passage


def plain_bm25(texts: list[str], question: str, k1: float = 1.5, b: float = 0.75) -> np.ndarray:
    """Robertson's BM25 with Lucene's idf, by a double loop."""
    *split, words = bm25s.tokenize([*texts, question], stopwords="en", return_ids=False, show_progress=False)
    mean = sum(map(len, split)) / len(split)
    scores = np.zeros(len(texts))
    for word in words:
        df = sum(word in document for document in split)
        idf = math.log(1 + (len(split) - df + 0.5) / (df + 0.5))
        for row, document in enumerate(split):
            tf = Counter(document)[word]
            scores[row] += idf * tf / (tf + k1 * (1 - b + b * len(document) / mean)) if df else 0
    return scores


@pytest.mark.parametrize("mode", ["fused", "dense", "bm25"])
def test_scores_are_those_of_a_plain_computation(demo: Dataset, demo_index: CorpusIndex, mode: str) -> None:
    texts = [embedded_text(p) for p in demo.passages]
    vectors = demo_index.embedder.encode(texts)
    row_of = {p.id: k for k, p in enumerate(demo.passages)}
    for question in demo.questions[:8]:
        query = demo_index.embedder.encode([question.text])[0]
        cosine = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)) @ (query / np.linalg.norm(query))
        lexical = plain_bm25(texts, question.text)
        by_cosine = np.argsort(-cosine, kind="stable").tolist()
        by_words = [r for r in np.argsort(-lexical, kind="stable").tolist() if lexical[r] > 0]
        # Either search goes to a depth of 100, or of four pools; what it does not reach has no rank in it.
        fused = reciprocal_rank_fusion([by_cosine[:100], by_words[:100]])
        ranking = {
            "fused": sorted(fused, key=lambda r: (-fused[r], r)),
            "dense": by_cosine,
            "bm25": by_words,
        }[mode]

        pool = Retriever(demo_index, pool=12, mode=mode, link_hops=0).retrieve(question.text)
        rows = [row_of[i] for i in pool.ids]
        assert rows == ranking[:12]
        np.testing.assert_allclose(pool.relevance, cosine[rows], atol=1e-6)
        np.testing.assert_allclose(pool.scores["dense"], cosine[rows], atol=1e-6)
        np.testing.assert_allclose(pool.scores["bm25"], lexical[rows], rtol=1e-4)
        np.testing.assert_allclose(pool.scores["fused"], [fused[r] for r in rows], rtol=1e-12)
        np.testing.assert_allclose(pool.embeddings, vectors[rows], atol=1e-6)
        assert pool.texts == tuple(demo.passages[r].text for r in rows)
        assert pool.titles == tuple(demo.passages[r].title for r in rows)
        assert pool.sources == tuple(demo.passages[r].source for r in rows)
        counts = RegexCounter().count([SEPARATOR + render_passage(demo.passages[r]) for r in rows])
        assert pool.tokens.tolist() == counts


class Backwards:
    """Holds long texts to be close to the question, which BM25 ranks last."""

    name, fingerprint = "backwards", "backwards"

    def fit(self, texts: Sequence[str]) -> None: ...

    def save(self, folder: Path) -> None: ...

    def encode(self, texts: Sequence[str], progress: object = None) -> np.ndarray:
        angles = np.array([10 / len(text) for text in texts])
        angles[[text.endswith("?") for text in texts]] = 0
        return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def test_lexical_scores_reach_the_end_of_the_corpus() -> None:
    """A passage that dense search brings into the pool has its true BM25 score, however low BM25 ranks it."""
    passages = [Passage(str(k), "granite" + " filler" * k) for k in range(150)]
    pool = Retriever(CorpusIndex.build(passages, Backwards()), pool=5, mode="dense").retrieve("granite?")
    assert pool.ids == ("149", "148", "147", "146", "145")
    truth = plain_bm25([p.text for p in passages], "granite")
    assert truth.argmin() == 149
    np.testing.assert_allclose(pool.scores["bm25"], truth[[int(i) for i in pool.ids]], rtol=1e-4)
    assert pool.scores["bm25"].all()


def test_fusion_by_hand() -> None:
    fused = reciprocal_rank_fusion([[7, 3], [3, 9, 7]], k=60)
    assert fused == pytest.approx({7: 1 / 61 + 1 / 63, 3: 1 / 62 + 1 / 61, 9: 1 / 62})
    assert reciprocal_rank_fusion([[5, 6], [6]], k=0) == pytest.approx({5: 1.0, 6: 1.5})
    assert reciprocal_rank_fusion([]) == {}
    with pytest.raises(InputError, match="k=-1"):
        reciprocal_rank_fusion([[1]], k=-1)
