"""The selector with probabilities, links between passages, and an order in the prompt."""

from __future__ import annotations

import numpy as np
import pytest

from mio_rag.context import in_prompt_order
from mio_rag.errors import InputError
from mio_rag.pool import Candidates
from mio_rag.relevance import RelevanceModel, Stage
from mio_rag.selection.selector import Selector
from tests.selection.pools import replace

PLAIN = Selector.raw(redundancy_weight=0, passage_penalty=0)
MODEL = RelevanceModel((Stage(("cosine", "cosine_gap"), (5.0, 1.0), -2.0),))


def pool(n: int = 9, seed: int = 0, **changes: object) -> Candidates:
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(n, 6)) + 0.6
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    query = rng.normal(size=6) + 0.6
    query /= np.linalg.norm(query)
    links = np.where(rng.random((n, n)) < 0.2, rng.random((n, n)), 0.0)
    np.fill_diagonal(links, 0.0)
    fields = {
        "ids": [f"p{k}" for k in range(n)],
        "texts": [f"text {k}" for k in range(n)],
        "relevance": vectors @ query,
        "tokens": rng.integers(5, 40, n),
        "embeddings": vectors,
        "query_embedding": query,
        "scores": {"dense": vectors @ query},
        "links": links,
        "positions": rng.permutation(n),
    }
    return Candidates(**{**fields, **changes})  # type: ignore[arg-type]


def test_relevance_becomes_the_models_probability() -> None:
    c = pool()
    chosen = replace(PLAIN, relevance_model=MODEL).select(c, 60)
    np.testing.assert_allclose(chosen.candidates.relevance, MODEL.probabilities(c))
    np.testing.assert_allclose(chosen.program.linear, MODEL.probabilities(c))
    assert chosen.decisions[0].relevance == pytest.approx(MODEL.probabilities(c)[0])
    with pytest.raises(InputError, match=r"needs scores\['dense'\]"):
        replace(PLAIN, relevance_model=MODEL).select(pool(scores={}), 60)


@pytest.mark.parametrize("norm", ["l2", "l1", "linf"])
def test_radius_passes_through_the_model(norm: str) -> None:
    c = pool()
    selector = replace(PLAIN, relevance_model=MODEL, radius=0.1, norm=norm, link_benefit=0.3)  # type: ignore[arg-type]
    order = {"l2": 2, "l1": np.inf, "linf": 1}[norm]
    loss = 0.1 * np.linalg.norm(np.asarray(c.query_embedding, dtype=float), ord=order)
    low = MODEL.probabilities(c, loss)
    program = selector.program(selector.valued(c), 60)
    np.testing.assert_allclose(program.linear, low)
    assert c.links is not None
    expected = 0.3 * np.maximum(c.links, c.links.T) * np.maximum.outer(low, low)
    np.testing.assert_allclose(program.pairwise, -expected, atol=1e-9)
    nominal = selector.replace(radius=0.0).select(c, 60)
    robust = selector.select(c, 60)
    assert robust.result.objective <= nominal.result.objective + 1e-9  # type: ignore[operator]
    np.testing.assert_allclose(robust.candidates.relevance, nominal.candidates.relevance)


@pytest.mark.parametrize("radius", [0.0, 0.05])
def test_redundancy_by_relevance(radius: float) -> None:
    c = pool()
    selector = replace(PLAIN, redundancy_weight=0.4, radius=radius, relevance_model=MODEL)
    valued = selector.valued(c)
    plain = selector.program(valued, 60).pairwise
    weighed = selector.replace(redundancy_by_relevance=True).program(valued, 60).pairwise
    loss = radius * float(np.linalg.norm(c.query_embedding))  # type: ignore[arg-type]
    most, least = MODEL.probabilities(c, -loss), MODEL.probabilities(c, loss)
    root = np.where(plain >= 0, np.sqrt(np.outer(most, most)), np.sqrt(np.outer(least, least)))
    np.testing.assert_allclose(weighed, root * plain, atol=1e-9)
    if radius == 0:  # a Gram matrix scaled on both sides stays positive semidefinite
        vectors = c.embeddings.astype(float)  # type: ignore[union-attr]
        gram = np.sqrt(np.outer(most, most)) * (vectors @ vectors.T)
        assert np.linalg.eigvalsh(gram).min() > -1e-9


def test_prompt_orders() -> None:
    c = pool(5, relevance=[0.1, 0.9, 0.5, 0.7, 0.3], positions=[3, 4, 0, 2, 1])
    assert in_prompt_order(c, range(5), "best_first") == (1, 3, 2, 4, 0)
    assert in_prompt_order(c, range(5), "document") == (2, 4, 3, 0, 1)
    for order in ("best_first", "document"):
        chosen = replace(PLAIN, prompt_order=order).select(c, 1000)  # type: ignore[arg-type]
        assert chosen.chosen == in_prompt_order(c, range(5), order)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="needs candidates with positions"):
        replace(PLAIN, prompt_order="document").select(replace(c, positions=None), 100)
    with pytest.raises(InputError, match="prompt_order must be best_first"):
        replace(PLAIN, prompt_order="worst")  # type: ignore[arg-type]
