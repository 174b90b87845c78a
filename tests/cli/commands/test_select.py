"""``mio-rag select``: one JSON object, and words for people."""

from pathlib import Path

from tests.cli.running import cli, here, only_object, refused


def test_select(index: Path) -> None:
    question = "Which Pennsylvania settlement did the designer of the Brooklyn Bridge found? \u2192"
    done = cli(
        "select",
        index,
        question,
        "--budget-tokens",
        220,
        "--solver",
        "cpsat",
        "--json",
        PYTHONIOENCODING="ascii",
    )
    assert done.returncode == 0, done.stderr
    told = only_object(done)
    assert told["question"] == question
    assert told["status"] == "optimal"
    assert told["bound"] >= told["objective"] > 0
    assert told["gap"] <= 1e-5
    assert (told["solver"], told["budget_tokens"]) == ("cpsat", 220)
    assert told["wall_seconds"] > 0
    assert told["tokens_used"] <= 220
    chosen = [p for p in told["passages"] if p["selected"]]
    assert [p["id"] for p in chosen] == told["selected_ids"]
    assert len(told["passages"]) == 50
    for passage in told["passages"]:
        assert passage["reason"]
        assert passage["tokens"] >= 1
        assert isinstance(passage["relevance"], float)


def test_select_for_people(index: Path) -> None:
    done = here("select", index, "When was the Forth Bridge opened?", "--max-passages", 1)
    assert done.returncode == 0
    assert "1 passage," in done.stdout
    assert "proven bound" in done.stdout


def test_bytes_that_are_no_text(index: Path) -> None:
    problems = refused(here("select", index, "what \udcff is this?"))
    assert "UTF-8" in problems[0]
