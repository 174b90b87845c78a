"""Reports of made rows, as a browser would see them."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

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
