"""The report: closed to the network, safe with hostile text, and careful in what it claims."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from mio_rag import errors
from mio_rag.evaluation.report.page import render_report

pytest.importorskip("plotly")

HOSTILE = (
    "</script><script>alert(1)</script><!-- <script> \" ' & <img src=x onerror=alert(2)> \u2028 ${x} $data"
)


class Page(HTMLParser):
    """What a browser would see: tags with attributes, visible text, the contents of scripts."""

    VOID = frozenset({"meta", "input", "br", "img", "link"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.texts: list[tuple[tuple[str, ...], str]] = []
        self.styles = ""
        self.path: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append((dict(attrs), ""))
        if tag not in self.VOID:
            self.path.append(tag + "".join(f".{v}" for k, v in attrs if k in ("class", "id") and v))

    def handle_endtag(self, tag: str) -> None:
        while self.path and self.path.pop().split(".")[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        inside = self.path[-1] if self.path else ""
        if inside.startswith("script"):
            attributes, text = self.scripts[-1]
            self.scripts[-1] = attributes, text + data
        elif inside.startswith("style"):
            self.styles += data
        else:
            self.texts.append((tuple(self.path), data))

    def script(self, name: str) -> str:
        return next(text for attributes, text in self.scripts if attributes.get("id") == name)

    def lines(self, name: str) -> list[Any]:
        return [json.loads(line) for line in self.script(name).split("\n") if line]

    def text(self, part: str = "") -> str:
        """Visible text of every element whose tag, class or id is `part`."""
        return " ".join(
            text for path, text in self.texts if not part or any(part in p.split(".") for p in path)
        )


def spread(mean: float, low: float | None = None, high: float | None = None) -> dict[str, float]:
    return {"mean": mean, "low": mean if low is None else low, "high": mean if high is None else high}


def decision(**changes: Any) -> dict[str, Any]:
    return {
        "id": "p1",
        "title": "Forth Bridge",
        "source": "a",
        "tokens": 40,
        "relevance": 0.9,
        "value": 0.5,
        "selected": True,
        "gold": True,
        "reason": "relevance 0.900, adds +0.500",
        "redundant_with": None,
        "text": "Opened in 1890.",
        **changes,
    }


def row(**changes: Any) -> dict[str, Any]:
    return {
        "question_id": "q1",
        "question": "When did it open?",
        "question_type": "single",
        "method": "exact",
        "budget_tokens": 400,
        "selected_ids": ["p1"],
        "passages_selected": 1,
        "pool_size": 50,
        "tokens_used": 40,
        "answer": "1890",
        "answers": ["1890"],
        "gold_ids": ["p1"],
        "gold_recall": 1.0,
        "exact_match": 1.0,
        "token_f1": 1.0,
        "status": "optimal",
        "gap": 0.0,
        "objective": 0.5,
        "bound": 0.5,
        "solver": "highs",
        "solve_seconds": 0.01,
        "retrieve_seconds": 0.02,
        "select_seconds": 0.01,
        "generate_seconds": 0.5,
        "total_seconds": 0.53,
        "error": None,
        "decisions": [decision()],
        **changes,
    }


def entry(
    method: str, f1: float | None, tokens: float = 300, budget: int = 400, **more: Any
) -> dict[str, Any]:
    mean = None if f1 is None else spread(f1, f1 - 0.05, f1 + 0.05)
    return {
        "method": method,
        "budget_tokens": budget,
        "n": 100,
        "failed": 0,
        "token_f1": mean,
        "tokens_used": spread(tokens),
        **more,
    }


def comparison(low: float, high: float, q: float | None, **changes: Any) -> dict[str, Any]:
    return {
        "method": "exact",
        "baseline": "topk",
        "budget_tokens": 400,
        "measure": "token_f1",
        "n": 100,
        "difference": (low + high) / 2,
        "low": low,
        "high": high,
        "p_value": q,
        "q_value": q,
        **changes,
    }


RUN: dict[str, Any] = {
    "dataset": "demo",
    "data_sha256": "ab12",
    "questions": 100,
    "passages": 80,
    "generator": "gguf:model",
    "methods": ["topk", "exact"],
    "budgets": [400],
    "baseline": "topk",
    "settings": {"redundancy_weight": 0.3},
    "versions": {"mio-rag": "0.1.0"},
    "hardware": {"cpu": "one"},
}
PAIR = [entry("topk", 0.5), entry("exact", 0.6)]


def page(rows: Any = (), summary: Any = (), comparisons: Any = (), run: Any = RUN) -> Page:
    return Page(render_report(rows, summary, comparisons, run))


def headlines(*arguments: Any, **named: Any) -> str:
    return page(*arguments, **named).text("headlines")


def test_page_asks_for_nothing_from_elsewhere() -> None:
    seen = page([row()], PAIR, [comparison(0.01, 0.2, 0.01)])
    for tag, attributes in seen.tags:
        assert tag not in ("link", "iframe", "object", "embed", "img", "base")
        assert attributes.get("src") is None
        assert (attributes.get("href") or "#").startswith("#")
        assert "url(" not in (attributes.get("style") or "")
    assert not re.search(r"url\(|@import", seen.styles)
    policy = next(a["content"] or "" for t, a in seen.tags if t == "meta" and a.get("http-equiv"))
    assert "default-src 'none'" in policy
    assert "http" not in policy


def test_page_brings_plotly_and_five_scripts_of_its_own() -> None:
    scripts = page([row()], PAIR).scripts
    assert [attributes.get("id") for attributes, _ in scripts] == [
        None,
        "report-data",
        "report-details",
        "report-passages",
        None,
        None,
    ]
    assert "plotly.js" in scripts[0][1][:200]


def test_hostile_text_stays_text() -> None:
    bad = decision(id=HOSTILE, title=HOSTILE, text=HOSTILE, reason=HOSTILE, redundant_with=HOSTILE)
    hostile = row(
        question_id=HOSTILE,
        question=HOSTILE,
        method=HOSTILE,
        answer=HOSTILE,
        answers=[HOSTILE],
        gold_ids=[HOSTILE],
        error=HOSTILE,
        status="error",
        solver=HOSTILE,
        decisions=[bad],
    )
    summary = [entry(HOSTILE, 0.5), entry("topk", 0.4)]
    tested = [comparison(0.01, 0.2, 0.01, method=HOSTILE)]
    run = RUN | {
        "dataset": HOSTILE,
        "generator": HOSTILE,
        "methods": ["topk", HOSTILE],
        "settings": {HOSTILE: HOSTILE},
    }
    seen, harmless = page([hostile], summary, tested, run), page([row()], PAIR, [comparison(0.01, 0.2, 0.01)])
    assert len(seen.scripts) == len(harmless.scripts)
    assert not [tag for tag, _ in seen.tags if tag == "img"]
    assert not [a for _, attributes in seen.tags for a in attributes if a.startswith("on")]
    data = json.loads(seen.script("report-data"))
    assert data["questions"][0]["text"] == HOSTILE
    assert data["methods"][1]["name"] == HOSTILE
    assert seen.lines("report-details")[0]["answer"] == HOSTILE
    assert seen.lines("report-details")[0]["passages"][0][-1] == HOSTILE
    assert seen.lines("report-passages")[0]["text"] == HOSTILE
    assert HOSTILE in seen.text("facts")


def test_details_hold_one_line_a_row_and_each_passage_once() -> None:
    rows = [row(question_id=f"q{i}", answer="line\nbreak") for i in range(5)]
    rows[3]["decisions"] = [decision(), decision(id="p2", selected=False, gold=False, redundant_with="p1")]
    seen = page(rows, PAIR)
    details, passages = seen.lines("report-details"), seen.lines("report-passages")
    assert len(details) == 5
    assert [p["id"] for p in passages] == ["p1", "p2"]
    assert details[3]["passages"][1] == [1, 0.9, 0.5, 0, 0, "relevance 0.900, adds +0.500", "p1"]


def test_what_is_not_finite_or_not_plain_becomes_plain() -> None:
    odd = row(
        gap=math.nan,
        bound=math.inf,
        diversity=np.float32(0.5),
        selected_ids=np.array(["p1"]),
        answer="\ud800",
    )
    broken = entry("exact", 0.6, tokens_per_correct=spread(math.inf))
    seen = page([odd], [broken])
    (detail,) = seen.lines("report-details")
    assert detail["diversity"] == 0.5
    assert "gap" not in detail
    assert "bound" not in detail
    assert detail["answer"] == "?"
    seen.script("report-data").encode("utf-8")
    assert not re.search(
        r"\b(NaN|Infinity|nan|inf)\b", seen.script("report-data") + seen.text("summary-table")
    )


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


def test_colours_belong_to_methods_and_the_baseline_is_neutral() -> None:
    run = RUN | {"methods": ["exact", "topk", "mmr"]}
    methods = json.loads(page([], PAIR, run=run).script("report-data"))["methods"]
    assert {m["name"]: m["tone"] for m in methods} == {"exact": "--m0", "topk": "--base", "mmr": "--m1"}


def test_without_a_generator_evidence_is_judged() -> None:
    none = dict.fromkeys(("exact_match", "token_f1", "accuracy", "answer", "generate_seconds"))
    rows = [row(question_id=f"q{i}", gold_recall=r, **none) for i, r in enumerate((1.0, 0.5, 0.0, None))]
    seen = page(
        rows, [entry("exact", None, gold_recall=spread(0.5, 0.4, 0.6))], run=RUN | {"generator": None}
    )
    data = json.loads(seen.script("report-data"))
    assert [r[3] for r in data["rows"]] == ["a", "s", "n", "?"]
    assert data["quality"] == ["gold_recall"]
    assert set(data["latency"][0]["stages"]) == {"retrieve", "select", "total"}
    assert "Highest mean evidence found: exact" in seen.text("headlines")
    assert "Token F1" not in seen.text("summary-table")


def test_answers_are_right_partly_right_or_wrong() -> None:
    given = [{"exact_match": 0.0, "token_f1": 0.4}, {"exact_match": 0.0, "token_f1": 0.0}, {"accuracy": 1.0}]
    rows = [row(question_id=f"q{i}", **changes) for i, changes in enumerate(given)]
    assert [r[3] for r in json.loads(page(rows, PAIR).script("report-data"))["rows"]] == ["p", "w", "r"]


def test_what_is_quoted_is_not_judged() -> None:
    """An extractive reader names no answer: its rows are judged by their evidence alone."""
    missed = {"exact_match": 0.0, "token_f1": 0.0, "answers": ["1890"]}
    rows = [row(question_id=f"q{i}", gold_recall=r, **missed) for i, r in enumerate((1.0, 0.5, None))]
    summary = [entry("exact", 0.0, gold_recall=spread(0.75, 0.5, 1.0))]
    seen = page(rows, summary, run=RUN | {"generator": "extractive"})
    data = json.loads(seen.script("report-data"))
    assert [(r[3], r[5]) for r in data["rows"]] == [("a", 1.0), ("s", 0.5), ("?", None)]
    assert data["answered"] is False
    assert data["primary"] == "gold_recall"
    assert data["quality"][0] == "gold_recall"
    columns = [a.get("class") for tag, a in seen.tags if tag == "th" and a.get("scope") == "col"][:7]
    assert columns == ["num", "name", "num", "num more", "num", "num", "num"]  # token F1 on demand
    asked = json.loads(page(rows, summary).script("report-data"))
    assert [(r[3], r[5]) for r in asked["rows"]] == [("w", 1.0), ("w", 0.5), ("w", None)]
    assert asked["answered"] is True


def test_documents_are_the_evidence_where_only_these_are_labelled() -> None:
    rows = [row(gold_recall=None, source_recall=0.5, gold_ids=[], exact_match=None, token_f1=None)]
    seen = page(rows, [entry("exact", None, source_recall=spread(0.5))])
    data = json.loads(seen.script("report-data"))
    assert (data["primary"], data["rows"][0][3:]) == ("source_recall", ["s", 0, 0.5])


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


def test_latency_is_median_and_95th_percentile() -> None:
    rows = [row(question_id=f"q{i}", select_seconds=float(i)) for i in range(21)]
    (timed,) = json.loads(page(rows, PAIR).script("report-data"))["latency"]
    assert timed["stages"]["select"] == [10.0, 19.0]


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


def test_unknown_measures_are_shown_and_not_judged() -> None:
    summary = [entry("topk", 0.5, fluency=spread(0.2)), entry("exact", 0.5, fluency=spread(0.9))]
    seen = page([], summary)
    assert "Fluency" in seen.text("summary-table")
    assert seen.text("strong") == ""


def test_nothing_at_all_is_still_a_page() -> None:
    seen = page([], [], [], {})
    assert "No quality measure is defined" in seen.text("headlines")
    assert "No summary was given" in seen.text()
    assert json.loads(seen.script("report-data"))["rows"] == []


def test_reproduction_lists_versions_hardware_data_and_settings() -> None:
    text = page([], PAIR).text("plain")
    for expected in ("ab12", "versions: mio-rag", "0.1.0", "hardware: cpu", "settings: redundancy_weight"):
        assert expected in text


def test_missing_plotly_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(name: str) -> None:
        raise ModuleNotFoundError(f"No module named '{name}'", name=name)

    monkeypatch.setattr(errors.importlib, "import_module", gone)
    with pytest.raises(errors.MissingExtraError, match=r"mio-rag\[evaluation\]"):
        render_report([], [], [], {})
