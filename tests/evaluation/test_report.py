"""The report: closed to the network, safe with hostile text, and careful in what it claims."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from mio_rag.evaluation.report import render_report

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
        found = next((text for a, text in self.scripts if a.get("id") == "report-data"), None)
        self.data: dict[str, Any] = {} if found is None else json.loads(found)

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

    def lines(self, name: str) -> list[Any]:
        script = next(text for attributes, text in self.scripts if attributes.get("id") == name)
        return [json.loads(line) for line in script.split("\n") if line]

    def text(self, part: str = "") -> str:
        """Visible text of every element whose tag, class or id is `part`."""
        return " ".join(
            text for path, text in self.texts if not part or any(part in p.split(".") for p in path)
        )


def spread(mean: float, low: float | None = None, high: float | None = None) -> dict[str, float]:
    return {"mean": mean, "low": mean if low is None else low, "high": mean if high is None else high}


def decision(**changes: Any) -> dict[str, Any]:
    return {
        "id": "p1", "title": "Forth Bridge", "source": "a", "tokens": 40, "relevance": 0.9, "value": 0.5,
        "selected": True, "gold": True, "reason": "relevance 0.900, adds +0.500", "redundant_with": None,
        "text": "Opened in 1890.", **changes,
    }  # fmt: skip


def row(**changes: Any) -> dict[str, Any]:
    return {
        "question_id": "q1", "question": "When did it open?", "question_type": "single", "method": "exact",
        "budget_tokens": 400, "selected_ids": ["p1"], "passages_selected": 1, "pool_size": 50,
        "tokens_used": 40, "answer": "1890", "answers": ["1890"], "gold_ids": ["p1"], "gold_recall": 1.0,
        "exact_match": 1.0, "token_f1": 1.0, "status": "optimal", "gap": 0.0,
        "objective": 0.5, "bound": 0.5, "solver": "highs",
        "solve_seconds": 0.01, "retrieve_seconds": 0.02, "select_seconds": 0.01, "generate_seconds": 0.5,
        "total_seconds": 0.53, "error": None, "decisions": [decision()], **changes,
    }  # fmt: skip


def entry(
    method: str, f1: float | None, tokens: float = 300, budget: int = 400, **more: Any
) -> dict[str, Any]:
    mean = None if f1 is None else spread(f1, f1 - 0.05, f1 + 0.05)
    common = {"method": method, "budget_tokens": budget, "n": 100, "failed": 0}
    return {**common, "token_f1": mean, "tokens_used": spread(tokens), **more}


def comparison(low: float, high: float, q: float | None, **changes: Any) -> dict[str, Any]:
    return {
        "method": "exact", "baseline": "topk", "budget_tokens": 400, "measure": "token_f1", "n": 100,
        "difference": (low + high) / 2, "low": low, "high": high, "p_value": q, "q_value": q, **changes,
    }  # fmt: skip


RUN: dict[str, Any] = {
    "dataset": "demo", "data_sha256": "ab12", "questions": 100, "passages": 80, "generator": "gguf:model",
    "methods": ["topk", "exact"], "budgets": [400], "baseline": "topk",
    "settings": {"redundancy_weight": 0.3}, "versions": {"mio-rag": "0.1.0"}, "hardware": {"cpu": "one"},
}  # fmt: skip

PAIR = [entry("topk", 0.5), entry("exact", 0.6)]


def page(rows: Any = (), summary: Any = (), comparisons: Any = (), run: Any = RUN) -> Page:
    return Page(render_report(rows, summary, comparisons, run))


def headlines(*arguments: Any, **named: Any) -> str:
    return page(*arguments, **named).text("headlines")


def test_the_page_requests_nothing_from_elsewhere() -> None:
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
    ids = [attributes.get("id") for attributes, _ in seen.scripts]
    assert ids == [None, "report-data", "report-details", "report-passages", None, None]
    assert "plotly.js" in seen.scripts[0][1][:200]


def test_hostile_text_stays_text() -> None:
    bad = decision(id=HOSTILE, title=HOSTILE, text=HOSTILE, reason=HOSTILE, redundant_with=HOSTILE)
    named = dict.fromkeys(("question_id", "question", "method", "answer", "error", "solver"), HOSTILE)
    hostile = row(**named, answers=[HOSTILE], gold_ids=[HOSTILE], status="error", decisions=[bad])
    summary = [entry(HOSTILE, 0.5), entry("topk", 0.4)]
    tested = [comparison(0.01, 0.2, 0.01, method=HOSTILE)]
    run = RUN | {"dataset": HOSTILE, "generator": HOSTILE, "methods": ["topk", HOSTILE]}
    run["settings"] = {HOSTILE: HOSTILE}
    seen, harmless = page([hostile], summary, tested, run), page([row()], PAIR, [comparison(0.01, 0.2, 0.01)])
    assert len(seen.scripts) == len(harmless.scripts)
    assert not [tag for tag, _ in seen.tags if tag == "img"]
    assert not [a for _, attributes in seen.tags for a in attributes if a.startswith("on")]
    assert (seen.data["questions"][0]["text"], seen.data["methods"][1]["name"]) == (HOSTILE, HOSTILE)
    (detail,) = seen.lines("report-details")
    assert (detail["answer"], detail["passages"][0][-1]) == (HOSTILE, HOSTILE)
    assert seen.lines("report-passages")[0]["text"] == HOSTILE
    assert HOSTILE in seen.text("facts")


def test_values_that_are_not_finite_or_not_plain_become_plain() -> None:
    odd = row(
        gap=math.nan,
        bound=math.inf,
        diversity=np.float32(0.5),
        selected_ids=np.array(["p1"]),
        answer="\ud800",
    )
    seen = page([odd], [entry("exact", 0.6, tokens_per_correct=spread(math.inf))])
    (detail,) = seen.lines("report-details")
    assert (detail["diversity"], detail["answer"]) == (0.5, "?")
    assert not {"gap", "bound"} & set(detail)
    text = repr(seen.data) + seen.text("summary-table")
    text.encode("utf-8")
    assert not re.search(r"\b(NaN|Infinity|nan|inf)\b", text)


# Claims


@pytest.mark.parametrize(
    ("low", "high", "q", "said", "unsaid"),
    [
        (-0.02, 0.20, 0.20, "No clear difference from topk at the same budget (+0.090", "above topk"),
        (0.0, 0.20, 0.04, "No clear difference from topk", "That is above"),
        (-0.0, 0.0, 1.0, "(0.000, 95 % interval 0.000 to 0.000)", "above topk"),
        (0.02, 0.18, 0.001, "That is above topk at the same budget (+0.100", "no clear difference from"),
        (0.02, 0.18, None, "That is above topk", "corrected p"),
        (0.02, 0.18, 0.08, "but not after correction for the number of comparisons (p = 0.080)", "That is"),
        (-0.18, -0.02, 0.001, "That is below topk", "above topk"),
    ],
)
def test_a_headline_claims_no_more_than_interval_and_correction_allow(
    low: float, high: float, q: float | None, said: str, unsaid: str
) -> None:
    text = headlines([], PAIR, [comparison(low, high, q)])
    best = "Highest mean token F1: exact at a budget of 400 tokens, 0.600, 95 % interval 0.550 to 0.650."
    assert best in text
    assert said in text
    assert unsaid not in text


def test_proofs_and_failures_are_counted() -> None:
    rows = [
        row(),
        row(question_id="q2", status="feasible", gap=0.04),
        row(question_id="q2", method="topk", solver="topk", status="ranked", gap=None),
        row(question_id="q3", status="error", error="endpoint down"),
        row(question_id="q3", method="topk", error="endpoint down", status=None),
    ]
    seen = page(rows, PAIR)
    text = seen.text("headlines")
    assert (
        "1 of 3 selections by optimization is proven optimal; 1 more carry a bound (median gap 4.00 %)"
        in text
    )
    assert "1 question failed at least once (2 of 5 evaluations)" in text
    marks = {(q, m): (mark, failed) for q, m, _, mark, failed, _ in seen.data["rows"]}
    assert (marks[0, 1], marks[2, 0]) == (("r", 0), ("r", 1))
    table = seen.text("certificate-table")
    assert "Ranked, nothing to prove" in table
    assert "50.00 %" not in table
    gaps = [row(question_id=f"q{i}", status="feasible", gap=g) for i, g in enumerate((0.1, 0.2, 0.6))]
    table = page([row(), *gaps], PAIR).text("certificate-table")
    assert "20.00 %" in table
    assert "60.00 %" in table
    tiny = page([row(status="feasible", gap=2e-6)], PAIR).text()
    assert "median gap < 0.01 %" in tiny
    assert "0.00 %" not in tiny
