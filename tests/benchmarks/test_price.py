"""The benchmark of one price: rows that add up, and figures that are those of the rows."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.default.models import Pools
from benchmarks.price.study import BUDGETS, CEILING, MEANS, PRICES, asked_of, rows_of
from benchmarks.price.summary import compared, draw, summarized, table
from mio_rag.corpora.dataset import Dataset
from mio_rag.retrieval import CorpusIndex, Retriever


def test_every_rule_keeps_its_tokens_and_the_figures_are_the_rows(
    demo: Dataset, demo_index: CorpusIndex, tmp_path: Path
) -> None:
    count = 7
    questions = tuple(q for q in demo.questions if q.gold_ids)[:count]
    pools = tuple(Retriever(demo_index).retrieve_many([q.text for q in questions]))
    asked = asked_of(Pools("demo", questions, pools), None)
    told: list[str] = []
    rows = rows_of(asked, 5.0, told.append)
    assert len(rows) == 4 * len(BUDGETS) + len(PRICES) + len(MEANS)
    for row in rows:
        assert len(row.recall) == len(row.tokens) == count
        if row.rule == "allocation":
            assert row.certificate is not None
            assert sum(row.tokens) <= row.setting * count
            assert row.certificate["value"] <= row.certificate["bound"]
        else:
            assert max(row.tokens) <= (CEILING if row.rule == "price" else row.setting)
    summary, pairs = summarized(rows, asked), compared(rows)
    one = next(r for r in rows if r.name == "price 0.001")
    assert summary["price 0.001"]["recall"]["mean"] == pytest.approx(np.mean(one.recall))
    assert summary["price 0.001"]["sets"]["demo"]["tokens"] == pytest.approx(np.mean(one.tokens))
    text = table(summary, pairs, "about")
    assert all(row.name in text for row in rows)
    draw(summary, tmp_path / "price.png")
    assert (tmp_path / "price.png").read_bytes().startswith(b"\x89PNG")
