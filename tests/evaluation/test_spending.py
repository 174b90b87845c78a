"""The report's section on the tokens of each question, in a real browser: the numbers of the ledger."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mio_rag.corpora.dataset import Dataset
from mio_rag.evaluation.harness import EvaluationSettings, evaluate_and_report
from mio_rag.retrieval import CorpusIndex, RetrievalSettings
from mio_rag.selection.selector import Selector
from tests.browsing import layout_problems

pytest.importorskip("plotly")


def test_histogram_and_list_agree_with_the_ledger(
    browser: Any, demo: Dataset, demo_index: CorpusIndex, rivers: Dataset, river_index: CorpusIndex,
    tmp_path: Path,
) -> None:  # fmt: skip
    settings = EvaluationSettings(
        methods=("fused", "allocated"), budgets=(60, 120), selector=Selector.raw(),
        retrieval=RetrievalSettings(pool=15), limit=12,
    )  # fmt: skip
    run = evaluate_and_report([demo, rivers], [demo_index, river_index], None, settings, tmp_path / "run")
    page = browser.new_page(viewport={"width": 390, "height": 900}, reduced_motion="reduce")
    page.goto(Path(run.folder / "report.html").as_uri())
    page.wait_for_selector("#spending-chart .plot-container")
    assert layout_problems(page) == []
    drawn = page.evaluate("() => document.getElementById('spending-chart').data.map(t => [t.name, t.x, t.y])")
    used = {(r["method"], r["question_id"]): r["tokens_used"] for r in run.rows if r["budget_tokens"] == 120}
    assert [name for name, _, _ in drawn] == ["fused", "allocated"]
    for name, edges, shares in drawn:
        tokens = [n for (method, _), n in used.items() if method == name]
        counts = Counter(n // (edges[1] - edges[0]) for n in tokens)
        assert shares == pytest.approx([counts[k] / len(tokens) for k in range(len(edges))])
    page.locator("#spending-method label", has_text="allocated").locator("input").evaluate(
        "one => one.click()"
    )
    listed = page.eval_on_selector_all(
        "#spending-list tbody tr",
        "all => all.map(one => [one.querySelector('small').textContent, "
        "...[...one.querySelectorAll('td')].slice(0, 3).map(cell => cell.textContent)])",
    )
    more = {q: used["allocated", q] - used["fused", q] for m, q in used if m == "fused"}
    for question, shown, mine, theirs in listed:
        assert int(shown.replace("−", "-").replace("+", "")) == more[question]
        assert (int(mine), int(theirs)) == (used["allocated", question], used["fused", question])
    order = sorted(more.values(), reverse=True)
    expected = [*[m for m in order if m > 0][:8], *[m for m in order if m < 0][-8:]]
    assert [more[q] for q, *_ in listed] == expected
    page.eval_on_selector("#spending-switch input", "one => one.click()")
    assert layout_problems(page) == []
    sets = page.eval_on_selector_all("#set-table tbody tr", "all => all.map(one => one.cells[0].textContent)")
    assert Counter(sets) == {"demo": 4, rivers.name: 4}
    page.close()
