"""The curve over prices of a token: it says what a selector at that price does, and the page shows it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mio_rag.corpora.dataset import Dataset
from mio_rag.frontier.dataset import FrontierSettings, data_frontier, price_curve
from mio_rag.measures import evidence_found
from mio_rag.retrieval import CorpusIndex, RetrievalSettings, Retriever
from mio_rag.selection.selector import Selector
from mio_rag.types import Question
from tests.allocation.test_shared_totals import COUNTER, windows

SELECTOR = Selector()


def test_each_point_is_what_a_selector_at_that_price_does(demo: Dataset, demo_index: CorpusIndex) -> None:
    asked = [q for q in demo.questions[:15] if q.gold_ids]
    pools = Retriever.of(demo_index, RetrievalSettings(pool=15)).retrieve_many([q.text for q in asked])
    curve = price_curve(asked, pools, SELECTOR, [0.001, 0.01, 0.0], [100, 300])
    assert curve["ceiling"] == 300
    assert [p["token_price"] for p in curve["prices"]] == [0.0, 0.001, 0.01]
    tokens = [p["tokens"]["mean"] for p in curve["prices"]]
    assert tokens == sorted(tokens, reverse=True)
    assert tokens[0] > tokens[-1]
    for point in curve["prices"]:
        chosen = [SELECTOR.replace(token_price=point["token_price"]).select(p, 300) for p in pools]
        found = [evidence_found(q, p, s.chosen) for q, p, s in zip(asked, pools, chosen, strict=True)]
        assert point["tokens"]["mean"] == pytest.approx(np.mean([s.tokens_used for s in chosen]))
        assert point["evidence"]["mean"] == pytest.approx(np.mean(found))
        assert 0 <= point["gap"] < 1e-4
    bare = [replace(q, gold_ids=(), gold_sources=()) for q in asked[:3]]
    unlabelled = price_curve(bare, pools[:3], SELECTOR, [0.001], [100])["prices"][0]
    assert unlabelled["evidence"] is None
    assert unlabelled["tokens"]["mean"] > 0
    for point in curve["budgets"]:
        alike = [SELECTOR.select(p, point["budget_tokens"]).tokens_used for p in pools]
        assert point["tokens"]["mean"] == pytest.approx(np.mean(alike))


def test_what_passages_share_is_counted_once_as_where_they_are_read() -> None:
    pools = [windows(seed, 8) for seed in range(6)]
    asked = [Question(f"q{k}", "which?", gold_ids=("p1", "p2")) for k in range(6)]
    plain = Selector.raw(redundancy_weight=0.0, passage_penalty=0.0)
    curve = price_curve(asked, pools, plain, [0.03, 0.01], [120], counter=COUNTER)
    shared = 0.0
    for point in curve["prices"]:
        priced = plain.replace(token_price=point["token_price"])
        chosen = [priced.whole().choose(pool, 120, COUNTER) for pool in pools]
        apart = [pool.tokens[list(one.chosen)].sum() for one, pool in zip(chosen, pools, strict=True)]
        assert point["tokens"]["mean"] == pytest.approx(np.mean([one.used for one in chosen]))
        shared += np.mean(apart) - point["tokens"]["mean"]
    assert shared > 10


def test_it_is_part_of_the_run_where_prices_are_given(
    demo: Dataset, demo_index: CorpusIndex, tmp_path: Path
) -> None:
    settings = FrontierSettings(
        budgets=(100, 200), weights=(0.0,), radii=(0.0,), selector=SELECTOR, draws=0, limit=6,
        retrieval=RetrievalSettings(pool=12),
    )  # fmt: skip
    data_frontier(demo, demo_index, settings, tmp_path / "run")
    assert "price" not in json.loads((tmp_path / "run" / "frontier.json").read_text())
    assert "h-price" not in (tmp_path / "run" / "frontier.html").read_text(encoding="utf-8")
    # Prices are no rows: a finished run takes them.
    priced = replace(settings, token_prices=(0.001, 0.01))
    data_frontier(demo, demo_index, priced, tmp_path / "run", resume=True)
    held = json.loads((tmp_path / "run" / "frontier.json").read_text())
    assert [p["token_price"] for p in held["price"]["prices"]] == [0.001, 0.01]
    page = (tmp_path / "run" / "frontier.html").read_text(encoding="utf-8")
    assert "One price for every token" in page
    assert 'src="data:image/png;base64,' in page
    assert (tmp_path / "run" / "price.png").read_bytes().startswith(b"\x89PNG")
