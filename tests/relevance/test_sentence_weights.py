"""Weights of sentences: what they make of a passage's probability, and which ones a pool is given."""

import json

import numpy as np
import pytest

from mio_rag.errors import InputError
from mio_rag.pool import Candidates
from mio_rag.relevance import RelevanceModel
from mio_rag.relevance.model import Stage
from mio_rag.relevance.sentences import (
    SENTENCE_FEATURES,
    SentenceModel,
    sentence_features,
    sentence_model,
    shipped_sentences,
)
from mio_rag.sentences import Sentences, cut
from tests.selection.pools import replace

TEXTS = ["Revenue was $40 million.\nThe weather was fine.", "Revenue rests on trust."]


def pool(question: str = "What was the revenue?") -> Candidates:
    return Candidates(
        ids=["a", "b"], texts=TEXTS, relevance=np.array([0.5, 0.1]), tokens=np.array([8, 4]),
        question=question, sentences=cut(TEXTS),
    )  # fmt: skip


def weights(chance: float | None = None, **given: float) -> SentenceModel:
    return SentenceModel({name: given.get(name, 0.0) for name in SENTENCE_FEATURES}, 0.0, chance=chance)


def column(candidates: Candidates, name: str) -> list[float]:
    return sentence_features(candidates)[:, SENTENCE_FEATURES.index(name)].tolist()


def test_amounts_count_where_the_question_asks_for_one() -> None:
    assert column(pool(), "amount") == [1.0, 0.0, 0.0]
    assert column(pool(), "no_amount") == [0.0, 1.0, 1.0]
    other = pool("Who was there?")
    assert column(other, "amount") == column(other, "no_amount") == [0.0, 0.0, 0.0]


def test_what_ships_prefers_a_sentence_that_holds_the_amount() -> None:
    before = replace(shipped_sentences(None), weights={**shipped_sentences(None).weights})
    flat = replace(before, weights={**before.weights, "amount": 0.0, "no_amount": 0.0})
    assert before.worth(pool())[0] > flat.worth(pool())[0]
    assert before.worth(pool())[1] < flat.worth(pool())[1]
    other = pool("Who was there?")
    np.testing.assert_array_equal(before.worth(other), flat.worth(other))


def test_a_weight_on_the_passage_makes_it_a_probability_of_the_sentence() -> None:
    np.testing.assert_allclose(weights().worth(pool()), [0.25, 0.25, 0.05])  # half of its passage's
    np.testing.assert_allclose(weights(0.0).worth(pool()), [0.5, 0.5, 0.5])
    np.testing.assert_allclose(weights(1.0).worth(pool()), [0.5, 0.5, 0.1])
    np.testing.assert_allclose(weights(0.5).worth(pool()), [0.5, 0.5, 0.25])  # odds 1/9, square root 1/3
    sure = replace(pool(), relevance=np.array([1.0, 0.0]))
    assert np.isfinite(weights(2.0).worth(sure)).all()


def test_own_weights_come_first_and_those_that_need_vectors_are_refused_without() -> None:
    bare, own = pool(), weights(1.0)
    assert sentence_model(own, bare) is own
    assert sentence_model(None, bare).name == "words"
    by_vectors = replace(own, embedder="tfidf:1")
    with pytest.raises(InputError, match="fitted on embedded sentences, and these are not"):
        sentence_model(by_vectors, bare)
    known = cut(TEXTS)
    embedded = replace(bare, sentences=Sentences(known.owners, known.spans, np.eye(3, dtype=np.float32)))
    assert sentence_model(by_vectors, embedded) is by_vectors


def test_a_model_file_holds_them() -> None:
    model = RelevanceModel((Stage(("cosine",), (1.0,), 0.0),), sentences=weights(0.25, amount=2.0))
    again = RelevanceModel.from_dict(json.loads(json.dumps(model.to_dict())))
    assert again == model
    assert RelevanceModel.from_dict(replace(model, sentences=None).to_dict()).sentences is None
    broken = model.to_dict()
    broken["sentences"] = {"weights": {"amount": 1.0}, "intercept": 0.0}
    with pytest.raises(InputError, match="weights of sentences are for"):
        RelevanceModel.from_dict(broken)
    broken["sentences"] = {"intercept": 0.0}
    with pytest.raises(InputError, match="malformed"):
        RelevanceModel.from_dict(broken)
