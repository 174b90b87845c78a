"""What a report claims: no more than intervals, corrections and proofs allow."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.evaluation.reported import (
    PAIR,
    RUN,
    comparison,
    entry,
    headlines,
    page,
    row,
    spread,
)

pytest.importorskip("plotly")


@pytest.mark.parametrize(
    ("low", "high", "q", "said", "unsaid"),
    [
        (-0.02, 0.20, 0.20, "No clear difference from topk at the same budget (+0.090", "above topk"),
        (0.0, 0.20, 0.04, "No clear difference from topk", "That is above"),
        (0.02, 0.18, 0.001, "That is above topk at the same budget (+0.100", "no clear difference from"),
        (0.02, 0.18, None, "That is above topk", "corrected p"),
        (
            0.02,
            0.18,
            0.08,
            "but not after correction for the number of comparisons (p = 0.080): no clear",
            "That is",
        ),
        (-0.18, -0.02, 0.001, "That is below topk", "above topk"),
    ],
)
def test_headline_claims_no_more_than_interval_and_correction_allow(
    low: float, high: float, q: float | None, said: str, unsaid: str
) -> None:
    text = headlines([], PAIR, [comparison(low, high, q)])
    assert (
        "Highest mean token F1: exact at a budget of 400 tokens, 0.600, 95 % interval 0.550 to 0.650." in text
    )
    assert said in text
    assert unsaid not in text


def test_headline_counts_every_comparison_not_only_the_best() -> None:
    summary = [entry(m, f, budget=b) for b in (200, 400) for m, f in (("topk", 0.5), ("exact", 0.6))]
    tested = [comparison(0.02, 0.2, 0.01), comparison(-0.1, 0.1, 0.9, budget_tokens=200)]
    text = headlines([], summary, tested)
    assert "Of 2 comparisons with topk on Token F1, 1 is clearly above it, 0 clearly below" in text
    assert "1 show no clear difference" in text


def test_headline_when_the_baseline_is_best_or_alone_or_untested() -> None:
    assert "That is the baseline itself." in headlines([], [entry("topk", 0.7), entry("exact", 0.6)])
    alone = RUN | {"methods": ["exact"], "baseline": None}
    assert "Only one method was run" in headlines([], [entry("exact", 0.6)], run=alone)
    assert "was not tested" in headlines([], PAIR)


def test_headline_tells_ties() -> None:
    text = headlines([], [entry("topk", 0.6, tokens=300), entry("exact", 0.6, tokens=200)])
    assert "Highest mean token F1: exact" in text
    assert "1 other setting reached the same mean" in text


def test_headline_counts_proofs_and_failures() -> None:
    rows = [
        row(),
        row(question_id="q2", status="feasible", gap=0.04),
        row(
            question_id="q2", method="topk", solver="topk", status="feasible", gap=0.5
        ),  # ranks: asks for no proof
        row(question_id="q3", status="error", error="endpoint down"),
        row(question_id="q3", method="topk", error="endpoint down", status=None),
    ]
    seen = page(rows, PAIR)
    text = seen.text("headlines")
    assert (
        "1 of 4 selections by optimization is proven optimal; 1 more carry a bound (median gap 4.00 %)"
        in text
    )
    assert "1 question failed at least once (2 of 5 evaluations)" in text
    marks = {
        (q, m): (mark, failed) for q, m, _, mark, failed, _ in json.loads(seen.script("report-data"))["rows"]
    }
    assert marks[0, 1] == ("r", 0)
    assert marks[2, 0] == ("r", 1)


def test_few_questions_are_called_few() -> None:
    assert "With only 12 questions" in headlines([], PAIR, run=RUN | {"questions": 12})
    assert "One question says nothing about others" in headlines([row()], PAIR, run=RUN | {"questions": 1})
    assert "rough" not in headlines([], PAIR)


def emphasised(summary: list[dict[str, Any]], comparisons: list[dict[str, Any]]) -> str:
    return page([], summary, comparisons).text("strong")


def test_emphasis_needs_a_clear_best() -> None:
    assert emphasised(PAIR, []) == ""
    assert emphasised([entry("topk", 0.4), entry("exact", 0.6)], []) == "0.600"
    assert emphasised(PAIR, [comparison(0.02, 0.18, 0.01)]) == "0.600"
    assert emphasised([entry("topk", 0.4), entry("exact", 0.6)], [comparison(-0.02, 0.3, 0.2)]) == ""
    assert emphasised([entry("topk", 0.6), entry("exact", 0.5)], [comparison(-0.18, -0.02, 0.01)]) == "0.600"
    assert emphasised([*PAIR, entry("mmr", 0.58)], [comparison(0.02, 0.18, 0.01)]) == ""


def test_emphasis_knows_where_less_is_better() -> None:
    summary = [
        entry("topk", None, tokens_per_correct=spread(900, 800, 1000)),
        entry("exact", None, tokens_per_correct=spread(500, 450, 550)),
    ]
    assert emphasised(summary, []) == "500"


def test_front_holds_what_nothing_dominates() -> None:
    summary = [entry("a", 0.5, 100), entry("b", 0.6, 200), entry("c", 0.55, 250), entry("d", 0.5, 150)]
    data = json.loads(page([], summary, run={}).script("report-data"))
    names = [data["methods"][p["method"]]["name"] for p in data["points"] if "token_f1" in p["front"]]
    assert names == ["a", "b"]


def test_a_proof_beside_less_evidence_is_explained() -> None:
    summary = [
        entry("topk", None, gold_recall=spread(0.7), optimal_share=None),
        entry("exact", None, gold_recall=spread(0.5), optimal_share=1.0),
    ]
    worse = comparison(-0.3, -0.1, 0.001, measure="gold_recall")
    text = headlines([], summary, [worse])
    assert (
        "exact finds clearly less evidence than topk: 20.0 points less (10.0 to 30.0) at 400 tokens" in text
    )
    assert "The proof is about the program, not about the evidence" in text
    assert "not about the evidence" not in headlines([], summary, [worse | {"high": 0.1}])


def test_beside_controllers_the_chart_counts_all_prompts() -> None:
    prompts = {"prompt_tokens": spread(150)}
    summary = [
        entry("topk", 0.5, 100, **prompts),
        entry("mdp", 0.5, 20, prompt_tokens=spread(900), steps=spread(3)),
    ]
    seen = page([], summary, run=RUN | {"methods": ["topk", "mdp"]})
    data = json.loads(seen.script("report-data"))
    assert data["reading"] == "prompt_tokens"
    # By its context alone the controller would be the cheapest.
    assert [p["method"] for p in data["points"] if "token_f1" in p["front"]] == [0]
    assert json.loads(page([], PAIR).script("report-data"))["reading"] == "tokens_used"


def test_an_interval_without_an_upper_end_says_so() -> None:
    open_above = {"mean": 900.0, "low": 500.0, "high": None}
    text = page([], [entry("exact", 0.5, tokens_per_correct=open_above)]).text("summary-table")
    assert "500 up, unbounded" in text


def test_rankings_have_nothing_to_prove() -> None:
    rows = [row(), row(method="topk", solver="topk", status="feasible", gap=0.5)]
    text = page(rows, PAIR).text("certificate-table")
    assert "Ranked, nothing to prove" in text
    assert "50.00 %" not in text


def test_certificates_are_counted_by_method() -> None:
    rows = [
        row(),
        *(row(question_id=f"q{i}", status="feasible", gap=g) for i, g in enumerate((0.1, 0.2, 0.6))),
    ]
    text = page(rows, PAIR).text("certificate-table")
    assert "20.00 %" in text
    assert "60.00 %" in text


def test_an_unproven_gap_never_reads_as_zero() -> None:
    text = page([row(status="feasible", gap=2e-6)], PAIR).text()
    assert "median gap < 0.01 %" in text
    assert "0.00 %" not in text


def test_a_difference_of_nothing_has_no_sign() -> None:
    assert "(0.000, 95 % interval 0.000 to 0.000)" in headlines([], PAIR, [comparison(-0.0, 0.0, 1.0)])
