"""``mio-rag select``: one JSON object, and words for people."""

import re
from pathlib import Path

import pytest

from mio_rag.cli.show import snippet
from tests.cli.running import cli, here, only_object, refused


def test_select(index: Path) -> None:
    question = "Which Pennsylvania settlement did the designer of the Brooklyn Bridge found? \u2192"
    done = cli(
        "select",
        index,
        question,
        "--budget-tokens",
        220,
        "--link-hops",
        0,
        "--solver",
        "cpsat",
        "--units",
        "passages",
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
    head, snippet, summary = done.stdout.splitlines()
    assert re.fullmatch(r"1\. \S.*  demo-\d+, \d+ tokens", head)
    assert snippet.startswith("   ")
    assert snippet.endswith(" ...")
    assert len(snippet) <= 170
    assert re.match(
        r"1 passage, \d+ of 256 tokens \S+ proven optimal: no other choice is worth more", summary
    )


def test_passages_come_in_prompt_order_and_begin_as_their_texts_do(index: Path) -> None:
    asked = ("select", index, "When was the Forth Bridge opened?", "--prompt-order", "document",
             "--units", "passages")  # fmt: skip
    told = only_object(here(*asked, "--json"))
    shown = here(*asked).stdout.splitlines()
    assert [line.split("  ")[-1].split(",")[0] for line in shown[:-1:2]] == told["selected_ids"]
    texts = [p["text"] for p in told["passages"] if p["selected"]]
    assert len(texts) > 1
    for line, text in zip(shown[1::2], texts, strict=False):
        words = line.strip().removesuffix(" ...").split()
        assert words == text.split()[: len(words)]  # cut between words


def test_reasons_come_on_request(index: Path) -> None:
    asked = ("select", index, "When was the Forth Bridge opened?", "--budget-tokens", 150,
             "--units", "passages")  # fmt: skip
    plain, told = here(*asked), here(*asked, "--explain")
    full = only_object(here(*asked, "--explain", "--json"))
    assert "why:" not in plain.stdout
    assert "left out" not in plain.stdout
    assert told.stdout.count("   why: ") == len(full["selected_ids"])
    reasons = {p["id"]: p["reason"] for p in full["passages"]}
    assert all(f"   why: {reasons[i]}\n" in told.stdout for i in full["selected_ids"])
    assert sum(f"   {reason}\n" in told.stdout for reason in set(reasons.values())) >= 5
    assert "proven bound" in told.stdout
    assert "radius" not in told.stdout
    assert "radius" in here(*asked, "--explain", "--radius", 0.05).stdout
    assert full == {**only_object(here(*asked, "--json")), "wall_seconds": full["wall_seconds"]}


def test_what_is_not_proven_is_said(index: Path) -> None:
    done = here("select", index, "When was the Forth Bridge opened?", "--solver", "topk")
    assert re.search(r"not proven optimal: the best choice is worth at most [\d.]+% more", done.stdout)


@pytest.mark.parametrize("width", [40, 100])
def test_on_a_terminal_a_snippet_has_two_lines_that_fit(width: int) -> None:
    for text in ("Some words of a passage " * 30, "endless" * 60, "\x1b[31mred " * 90):
        lines = snippet(text, width)
        assert len(lines) == 2
        assert max(map(len, lines)) <= width
        assert lines[-1].endswith(" ...")
        assert "\x1b" not in "".join(lines)
    assert snippet("Two\n words", width) == ["Two words"]
    assert snippet("", None) == []


def test_bytes_that_are_no_text(index: Path) -> None:
    problems = refused(here("select", index, "what \udcff is this?"))
    assert "UTF-8" in problems[0]
