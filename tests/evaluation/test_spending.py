"""The report's section on tokens of each question, in a real browser: the same numbers as the ledger."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mio_rag.corpora.dataset import Dataset
from mio_rag.evaluation.harness import EvaluationResult, EvaluationSettings, evaluate_and_report
from mio_rag.retrieval import CorpusIndex, RetrievalSettings
from mio_rag.selection.selector import Selector
from tests.browsing import layout_problems

pytest.importorskip("plotly")


@pytest.fixture(scope="module")
def run(
    demo: Dataset,
    demo_index: CorpusIndex,
    rivers: Dataset,
    river_index: CorpusIndex,
    tmp_path_factory: pytest.TempPathFactory,
) -> EvaluationResult:
    settings = EvaluationSettings(
        methods=("fused", "exact", "allocated", "paced"),
        budgets=(60, 120),
        selector=Selector.raw(),
        retrieval=RetrievalSettings(pool=15),
        limit=20,
    )
    out = tmp_path_factory.mktemp("spending") / "run"
    return evaluate_and_report([demo, rivers], [demo_index, river_index], None, settings, out)


@pytest.mark.parametrize("width", [1280, 390])
def test_the_histogram_and_the_list_say_what_the_ledger_says(
    browser: Any, run: EvaluationResult, width: int
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, reduced_motion="reduce")
    page.goto(Path(run.folder / "report.html").as_uri())
    page.wait_for_selector("#spending-chart .plot-container")
    assert layout_problems(page) == []
    drawn = page.evaluate("() => document.getElementById('spending-chart').data.map(t => [t.name, t.x, t.y])")
    rows = [row for row in run.rows if row["budget_tokens"] == 120]
    assert [name for name, _, _ in drawn] == ["fused", "exact", "allocated", "paced"]
    for name, edges, shares in drawn:
        tokens = [row["tokens_used"] for row in rows if row["method"] == name]
        step = edges[1] - edges[0]
        counts = Counter(used // step for used in tokens)
        assert shares == pytest.approx([counts[k] / len(tokens) for k in range(len(edges))])
        assert sum(shares) == pytest.approx(1)
    used = {(row["method"], row["question_id"]): row["tokens_used"] for row in rows}
    for method in ("allocated", "exact"):
        page.locator("#spending-method label", has_text=method).locator("input").evaluate(
            "one => one.click()"
        )
        listed = page.eval_on_selector_all(
            "#spending-list tbody tr",
            "all => all.map(one => [one.querySelector('small').textContent, "
            "...[...one.querySelectorAll('td')].slice(0, 3).map(cell => cell.textContent)])",
        )
        more = {q: used[method, q] - used["fused", q] for m, q in used if m == method}
        for question, shown, mine, theirs in listed:
            assert int(shown.replace("−", "-").replace("+", "")) == more[question]
            assert (int(mine), int(theirs)) == (used[method, question], used["fused", question])
        order = sorted(more.values(), reverse=True)
        assert [more[q] for q, *_ in listed] == [
            *[m for m in order if m > 0][:8], *[m for m in order if m < 0][-8:]
        ]  # fmt: skip
        assert layout_problems(page) == []
    page.eval_on_selector("#spending-switch input", "one => one.click()")
    assert layout_problems(page) == []
    sets = page.eval_on_selector_all("#set-table tbody tr", "all => all.map(one => one.cells[0].textContent)")
    assert Counter(sets) == {"demo": 8, rivers_name(run): 8}
    page.close()


def rivers_name(run: EvaluationResult) -> str:
    return next(str(row["dataset"]) for row in run.rows if row["dataset"] != "demo")
