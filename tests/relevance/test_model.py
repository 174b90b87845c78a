"""Features, the model, and worst cases through it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mio_rag.errors import DataError, InputError
from mio_rag.pool import Candidates
from mio_rag.relevance import (
    BASE_FEATURES,
    LINK_FEATURES,
    RelevanceModel,
    Stage,
    available_features,
    feature_matrix,
    load_model,
)

FIRST = Stage(("cosine", "cosine_gap", "log_words"), (2.0, 1.0, 0.1), -1.0)
SECOND = Stage(("cosine", "best_mentioning", "is_mentioned"), (1.0, 3.0, -0.5), -1.5)
MODEL = RelevanceModel((FIRST, SECOND))


def pool(n: int = 7, seed: int = 0, **changes: object) -> Candidates:
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(n, 5)) + 0.5
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    query = vectors.sum(axis=0) / np.linalg.norm(vectors.sum(axis=0))
    links = np.where(rng.random((n, n)) < 0.3, rng.random((n, n)), 0.0)
    np.fill_diagonal(links, 0.0)
    cosine = vectors @ query
    fields = {
        "ids": [f"p{k}" for k in range(n)],
        "texts": ["word " * (k + 1) for k in range(n)],
        "relevance": cosine,
        "tokens": rng.integers(5, 30, n),
        "embeddings": vectors,
        "query_embedding": query,
        "titles": ["Lone Wolf"] + [f"Title {k}" for k in range(1, n)],
        "scores": {
            "dense": cosine,
            "bm25": np.maximum(rng.normal(1, 1, n), 0),
            "fused": rng.random(n),
            "rerank": rng.normal(size=n),
        },
        "question": "Who directed Lone Wolf?",
        "links": links,
    }
    return Candidates(**{**fields, **changes})  # type: ignore[arg-type]


def test_features_by_hand() -> None:
    c = pool(3, scores={"dense": [0.5, 0.9, 0.1], "bm25": [0.0, 2.0, 4.0], "fused": [0.3, 0.2, 0.1]})
    names = (
        "cosine_gap",
        "bm25_share",
        "log_rank_dense",
        "log_rank_fused",
        "title_named",
        "title_share",
        "log_words",
    )
    matrix = feature_matrix(c, names)
    np.testing.assert_allclose(matrix[:, 0], [-0.4, 0.0, -0.8], atol=1e-12)
    np.testing.assert_allclose(matrix[:, 1], [0, 0.5, 1])
    np.testing.assert_allclose(matrix[:, 2], np.log([2, 1, 3]))
    np.testing.assert_allclose(matrix[:, 3], np.log([1, 2, 3]))
    np.testing.assert_array_equal(matrix[:, 4], [1, 0, 0])
    np.testing.assert_array_equal(matrix[:, 5], [1, 0, 0])
    np.testing.assert_allclose(matrix[:, 6], np.log1p([1, 2, 3]))


def test_link_features_by_hand() -> None:
    links = np.array([[0, 0.5, 0], [0, 0, 1.0], [0, 0.25, 0]])
    c = pool(3, links=links)
    matrix = feature_matrix(c, LINK_FEATURES, before=np.array([0.8, 0.1, 0.4]))
    np.testing.assert_allclose(matrix[:, 0], [0, 0.4, 0.1], atol=1e-7)  # 0.5 * 0.8 beats 0.25 * 0.4
    np.testing.assert_allclose(matrix[:, 1], [0.05, 0.4, 0.025], atol=1e-7)
    np.testing.assert_allclose(matrix[:, 2], [0, 0.5, 1])
    np.testing.assert_array_equal(matrix[:, 3:], [[0, 1], [1, 1], [1, 1]])


def test_a_rerankers_score_is_one_more_feature() -> None:
    c = pool()
    assert "score:rerank" in available_features(c)
    np.testing.assert_array_equal(feature_matrix(c, ["score:rerank"])[:, 0], c.scores["rerank"])
    gap = feature_matrix(c, ["gap:rerank"])[:, 0]
    np.testing.assert_allclose(gap, c.scores["rerank"] - c.scores["rerank"].max())
    assert set(available_features(c)) == {*BASE_FEATURES, *LINK_FEATURES, "score:rerank", "gap:rerank"}
    assert set(available_features(pool(links=None), links=True)).isdisjoint(LINK_FEATURES)


def test_what_is_missing_is_named_with_what_it_needs() -> None:
    bare = Candidates(["a"], ["text"], [0.3], [4])
    with pytest.raises(InputError) as raised:
        feature_matrix(bare, ["cosine", "title_named", "score:rerank", "best_mentioning", "log_words"])
    message = str(raised.value)
    for part in (
        "'cosine' (needs scores['dense'])",
        "'title_named' (needs question)",
        "'score:rerank' (needs scores['rerank'])",
        "'best_mentioning' (needs links)",
        "policy fit relevance",
    ):
        assert part in message
    assert "log_words" not in message
    with pytest.raises(InputError, match="a feature of that name"):
        feature_matrix(bare, ["nonsense"])


def test_probabilities_are_the_formula() -> None:
    c = pool()
    first = 1 / (1 + np.exp(-(feature_matrix(c, FIRST.features) @ FIRST.weights + FIRST.intercept)))
    matrix = feature_matrix(c, SECOND.features, before=first)
    second = 1 / (1 + np.exp(-(matrix @ SECOND.weights + SECOND.intercept)))
    np.testing.assert_allclose(MODEL.probabilities(c), second)
    assert MODEL.features == ("cosine", "cosine_gap", "log_words", "best_mentioning", "is_mentioned")


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), radius=st.floats(0, 0.5))
def test_no_perturbation_in_the_ball_goes_below_the_worst_case(seed: int, radius: float) -> None:
    """The best cosine of the pool, ranks and the rest stay as observed; cosines move with the embeddings."""
    c = pool(seed=seed)
    rng = np.random.default_rng(seed)
    assert c.embeddings is not None
    assert c.query_embedding is not None
    worst = MODEL.probabilities(c, radius * float(np.linalg.norm(c.query_embedding)))
    for _ in range(5):
        shift = rng.normal(size=c.embeddings.shape)
        shift *= radius * rng.random((len(c), 1)) / np.linalg.norm(shift, axis=1, keepdims=True)
        loss = -(shift @ c.query_embedding)
        assert np.all(MODEL.probabilities(c, loss) >= worst - 1e-12)
    # and it is attained, by the perturbation against the question
    attained = np.full(len(c), radius * float(np.linalg.norm(c.query_embedding)))
    np.testing.assert_allclose(MODEL.probabilities(c, attained), worst)


def test_isotonic_knots_bend_the_last_stage() -> None:
    bent = RelevanceModel((FIRST,), "isotonic", ((0.2, 0.0), (0.5, 0.1), (0.8, 0.9)))
    plain = RelevanceModel((FIRST,)).probabilities(pool())
    np.testing.assert_allclose(bent.probabilities(pool()), np.interp(plain, [0.2, 0.5, 0.8], [0, 0.1, 0.9]))


def test_round_trip_through_a_file(tmp_path: Path) -> None:
    model = dataclasses.replace(
        MODEL, kind="isotonic", knots=((0.1, 0.0), (0.9, 1.0)), name="m", provenance="here", embedder="e"
    )
    file = tmp_path / "model.json"
    file.write_text(json.dumps(model.to_dict()))
    assert load_model(file) == model
    assert load_model("cosine") is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be used"),
        ("[]", "not a relevance model"),
        ('{"format": "mio-rag-relevance", "version": 9}', "format version 9"),
        ('{"format": "mio-rag-relevance", "version": 1, "kind": "logistic"}', "malformed"),
        (
            '{"format": "mio-rag-relevance", "version": 1, "kind": "logistic", "stages": []}',
            "at least one stage",
        ),
        (
            '{"format": "mio-rag-relevance", "version": 1, "kind": "logistic", '
            '"stages": [{"intercept": 0, "weights": {"cosine": -1}}]}',
            "must not be negative",
        ),
    ],
)
def test_files_that_are_no_model(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "model.json"
    file.write_text(content)
    with pytest.raises(DataError, match=message):
        load_model(file)


def test_the_shipped_weights_tell_where_they_come_from() -> None:
    model = load_model("default")
    assert model is not None
    assert model.name == "default"
    assert "Fitted on" in model.provenance
    values = model.probabilities(pool())
    assert np.all((values >= 0) & (values <= 1))
    assert model.measures["after"]["ece"] < model.measures["before"]["ece"] / 10
    assert model.misfit(model.embedder) is None
    assert model.misfit("") is None  # not known
    assert "'default' was fitted on the embedder sentence-transformers:" in str(model.misfit("tfidf:1"))
