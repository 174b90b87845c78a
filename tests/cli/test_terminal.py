"""What people read: on any terminal, in any encoding, whatever a title holds."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mio_rag import Passage
from mio_rag.cli.app import app
from mio_rag.cli.evaluate import summary_lines
from mio_rag.cli.learn import point_lines
from mio_rag.cli.terminal import Table, Terminal, printable, styled
from mio_rag.learning.planner_training import Point
from mio_rag.measures import Measure
from mio_rag.retrieval import CorpusIndex

EVIL = (
    "\x1b[31mred\x1b[0m \x1b]0;title\x07\x1b]8;;http://x\x1b\\link\x9b1m \x08\x00\r\x7f\u202egnp\u2066 "
    "[red]x[/nope] :smile:"
)
PLAIN = "red link gnp [red]x[/nope] :smile:"
ENCODINGS = ("cp1252", "ascii", "utf-8")


def squeezed(text: str) -> str:
    """Without the line breaks of a narrow table."""
    return " ".join(text.split())


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain \u05d0 \u200f\u4e00\t\n", "plain \u05d0 \u200f\u4e00\t\n"),
        ("a\x1b[2Jb", "ab"),
        ("a\x1b]52;c;aGk=\x07b", "ab"),
        ("a\x1bP1;2|abc\x1b\\b", "ab"),
        ("a\x1bcb", "ab"),
        ("a\x1b", "a"),
        ("a\x1b]0;never ended\nb", "a0;never ended\nb"),
        ("a\x9b31mb\x85", "ab"),
        ("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069", ""),
    ],
)
def test_nothing_is_left_that_a_terminal_acts_on(text: str, shown: str) -> None:
    assert printable(text) == shown
    file = io.StringIO()
    Terminal(file=file, width=80).print(text, end="")
    assert file.getvalue().rstrip("\n") == shown.expandtabs().rstrip("\n")


def test_no_string_is_markup_whatever_prints_it() -> None:
    file = io.StringIO()
    console = Terminal(file=file, width=200)
    console.print(EVIL)
    console.show(styled((EVIL, "bold"), f" {EVIL}"), EVIL, Table.rows(f"{EVIL}|b", [(EVIL, EVIL)]))
    console.show(*summary_lines([{"method": EVIL, "budget_tokens": 1, "failed": 0, "optimal_share": None}]))
    assert squeezed(file.getvalue()).count(PLAIN) == 8
    assert not set(file.getvalue()) & set("\x1b\x9b\x07\x08\x00\r\x7f\u202e\u2066")


@pytest.fixture(scope="module")
def evil_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    passages = [
        Passage("a[red]", "The bridge opened in 1890.", title=EVIL),
        Passage("b\x1b[31m", "A second bridge \u2014 na\u00efve \u6771\u4eac.", title="\u2713 \u0142 [/]"),
    ]
    return CorpusIndex.build(passages, "tfidf").save(tmp_path_factory.mktemp("evil") / "index")


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("command", ["select", "frontier"])
def test_every_encoding_can_be_printed_in(evil_index: Path, command: str, encoding: str) -> None:
    names = ["lab", "frontier"] if command == "frontier" else [command, "--why"]
    done = CliRunner(charset=encoding).invoke(
        app, [*names, str(evil_index), "When did the bridge open? \u2192"]
    )
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == 0, done.stderr
    shown = (done.stdout_bytes + done.stderr_bytes).decode(encoding)
    assert not set(shown) & set("\x1b\x9b\x07\x08\x00\x7f\u202e\u2066")
    assert "a[red]" in shown
    if command != "frontier":
        assert PLAIN in squeezed(shown.replace("a[red]", "")) or "[red]x[/nope]" in shown
        assert ("\u2713" in shown) == (encoding == "utf-8")
        assert "proven optimal" in shown


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16", "utf-8"])
def test_json_is_utf_8_or_ascii_whatever_the_terminal_speaks(evil_index: Path, encoding: str) -> None:
    done = CliRunner(charset=encoding).invoke(
        app, ["select", str(evil_index), "The na\u00efve bridge?", "--why", "--json"]
    )
    assert done.exit_code == 0
    raw = done.stdout_bytes.decode("utf-8" if encoding != "utf-16" else "utf-16")
    assert json.loads(raw)["question"] == "The na\u00efve bridge?"
    assert raw.isascii() == (encoding != "utf-8")
    assert {p["title"] for p in json.loads(raw)["reasons"]} >= {EVIL}  # data stay what they are


OWN = Measure(
    "own_measure", "A measure of somebody else's own", "?", "selection", "none", "0 to 1", "this test"
)  # fmt: skip


def difference(method: str, budget: int, mean: float, air: float) -> dict[str, Any]:
    return {
        "method": method, "baseline": "fused", "budget_tokens": budget, "measure": "evidence_covered",
        "n": 40, "difference": mean, "low": mean - air, "high": mean + air, "p_value": 0.01, "q_value": 0.01,
    }  # fmt: skip


def test_the_verdict_on_a_planner_goes_by_the_intervals() -> None:
    def point(name: str, alpha: float, low: float, high: float) -> Point:
        return Point(name, alpha, 0.5, 1.0, 0.4, 0.5, (low + high) / 2, low, high, {})

    fixed = point("plain", 0.0, 0.5, 0.9)  # no planner
    unclear, better = point("planner", 0.0, -1.0, 1.0), point("planner", 0.1, 0.1, 1.0)
    worse = point("planner", 0.5, -1.0, -0.1)
    verdicts = [
        [*point_lines(of)][-1] for of in ([fixed, unclear], [fixed, unclear, better], [unclear, worse])
    ]
    assert verdicts[0].startswith("at no price the planner clearly has more")
    assert verdicts[1].endswith("at its cost for alpha 0.1")
    assert verdicts[2].endswith("; clearly less for alpha 0.5")
