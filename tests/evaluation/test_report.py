"""The report: closed to the network, safe with hostile text, and careful in what it claims."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest

from mio_rag import errors
from mio_rag.evaluation.report import render_report
from tests.evaluation.reported import (
    HOSTILE,
    PAIR,
    RUN,
    comparison,
    decision,
    entry,
    page,
    row,
    spread,
)

pytest.importorskip("plotly")


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


def test_latency_is_median_and_95th_percentile() -> None:
    rows = [row(question_id=f"q{i}", select_seconds=float(i)) for i in range(21)]
    (timed,) = json.loads(page(rows, PAIR).script("report-data"))["latency"]
    assert timed["stages"]["select"] == [10.0, 19.0]


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
