"""One entry is enough: a measure that is registered here shows up wherever measures are shown."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from mio_rag.cli.app import app
from mio_rag.errors import InputError
from mio_rag.measures import Measure, Page, failed_measures, measures, register, unregister
from mio_rag.selection.result import Selection
from mio_rag.types import Question


def first_is_gold(question: Question, selection: Selection) -> float:
    return float(bool(selection.ids) and selection.ids[0] in question.gold_ids)


GOLD_FIRST = Measure(
    "gold_first", "Gold at once", "the prompt begins with a gold passage", of="selection", better="higher",
    unit="0 to 1", source="this test", compute=first_is_gold,
    labelled=lambda question: bool(question.gold_ids),
)  # fmt: skip
WORDS = Measure(
    "answer_words", "Words", "words of the answer", of="answer", better="lower", unit="words",
    source="this test", compute=lambda question, text: len(text.split()),
    labelled=lambda question: bool(question.answers), failed=100.0, whole=True,
)  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """Whatever a test registers is gone after it, even when it fails."""
    before = measures()
    yield
    for measure in measures():
        if measure not in before:
            unregister(measure.name)


@pytest.fixture
def registered() -> None:
    register(GOLD_FIRST)
    register(WORDS)


def command(*arguments: object) -> str:
    done = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def page_data(page: str, name: str) -> Any:
    start = page.index(">", page.index(f'id="{name}"')) + 1
    return json.loads(page[start : page.index("</script>", start)])


@pytest.mark.usefixtures("registered")
def test_a_new_measure_is_in_ledger_summary_console_and_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    out = tmp_path / "run"
    common = ("--embedder", "tfidf", "--limit", 6, "--out", out)
    shown = command(
        "evaluate", "demo", "--methods", "topk,exact", "--budget", 256, "--model", "extract", *common
    )

    table = pyarrow.parquet.read_table(out / "ledger.parquet")
    rows = table.to_pylist()
    assert len(rows) == 12
    for row in rows:
        assert row["gold_first"] == float(row["selected_ids"][0] in row["gold_ids"])
        assert row["answer_words"] == len(row["answer"].split())
    assert str(table.schema.field("answer_words").type) == "int64"

    for entry in json.loads((out / "summary.json").read_text()):
        own = [row["gold_first"] for row in rows if row["method"] == entry["method"]]
        assert entry["gold_first"]["mean"] == pytest.approx(sum(own) / 6)
    compared = {c["measure"] for c in json.loads((out / "comparisons.json").read_text())}
    assert {"gold_first", "answer_words"} <= compared

    assert "gold at once" in shown
    assert "words" in shown

    page = (out / "report.html").read_text(encoding="utf-8")
    assert "<dt>Gold at once</dt><dd>the prompt begins with a gold passage</dd>" in page
    data = page_data(page, "report-data")
    assert data["measures"]["gold_first"] == {"label": "Gold at once", "kind": "rate"}
    assert "gold_first" in data["quality"]  # a chart of its own
    assert "answer_words" not in data["quality"]  # lower is better
    assert {"gold_first", "answer_words"} <= set(data["card"])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": "gold_recall"}, "there is a measure 'gold_recall' already"),
        ({"name": "status"}, "measures nothing"),
        ({"name": "Gold first"}, "lower-case"),
        ({"meaning": " "}, "has no meaning"),
        ({"source": ""}, "has no source"),
        ({"labelled": None}, "failed rows would raise the mean"),
        ({"better": "lower"}, "failed rows would count as good"),
        ({"of": "cost"}, "recorded where it arises"),
    ],
)
def test_a_measure_that_would_mislead_is_refused(changes: dict[str, Any], said: str) -> None:
    before = measures()
    with pytest.raises(InputError, match=said):
        register(replace(GOLD_FIRST, **changes))
    assert measures() == before


def test_the_measures_of_the_package_pass_what_registering_asks() -> None:
    for measure in measures():
        register(replace(measure, name=f"{measure.name}_again"))
    register(replace(GOLD_FIRST, labelled=None, page=Page(judged=False)))  # it is not judged


@pytest.mark.usefixtures("registered")
def test_a_new_measure_is_listed_scores_failures_and_can_be_removed() -> None:
    listed = {m["name"]: m for m in json.loads(command("evaluate", "--list", "--json"))["measures"]}
    assert listed["gold_first"] == {
        "name": "gold_first", "label": "Gold at once", "meaning": "the prompt begins with a gold passage",
        "of": "selection", "better": "higher", "unit": "0 to 1", "source": "this test",
    }  # fmt: skip
    text = command("evaluate", "--list")
    assert all(name in text and all(measure.values()) for name, measure in listed.items())
    labelled, question = Question("q", "?", ("a",), ("p0",)), Question("q", "?", ("a",))
    found = failed_measures(labelled, selection=True, answer=True)
    assert (found["gold_first"], found["answer_words"]) == (0.0, 100.0)
    assert "gold_first" not in failed_measures(question, selection=True, answer=True)
    assert "answer_words" not in failed_measures(question, selection=True, answer=False)
    unregister("gold_first")
    for name in ("gold_first", "gold_recall"):
        with pytest.raises(InputError, match="not a measure that was registered"):
            unregister(name)
