"""JSON and TOML from others: refused in words wherever they are read, or read whole."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mio_rag.cli.options import read_config
from mio_rag.corpora.load import load_questions
from mio_rag.errors import DataError, InputError
from mio_rag.formulations import SelectionProgram
from mio_rag.generation import ScriptedGenerator
from mio_rag.learning.mdp import read_model
from mio_rag.relevance.model import load_model
from mio_rag.session.trace import Trace, read_traces
from mio_rag.storage import parse_json, parse_toml, read_json, read_text

ROOT = Path(__file__).parents[1]
DEEP = "[" * 5000 + "]" * 5000
BAD_JSON = [
    ('{"a": 1, "a": 2}', "'a' is given twice"),
    ('{"b": {"a": 1, "a": 1}}', "'a' is given twice"),
    ("[NaN]", "NaN is not a JSON number"),
    ("[-Infinity]", "-Infinity is not a JSON number"),
    ("[1" + "0" * 400 + "]", r"100000000000\.\.\. \(401 characters\) is larger than any"),
    ("[" + "9" * 5000 + "]", "is larger than any"),
    ("[-1e999]", "-1e999 is larger than any"),
    (r'["\ud800"]', "half of a surrogate pair"),
    (r'{"\udfff": 1}', "half of a surrogate pair"),
    ('{"a": ["\ud800"]}', "half of a surrogate pair"),
    (DEEP, "nested more than 64 levels deep"),
    ("[" * 65 + "1" + "]" * 65, "nested more than 64 levels deep"),
    ("[" * 200_000, "nested more than 64 levels deep"),
    ("{", "column 2"),
    ("[1,\n2,\n", "line 3, column 1"),
]
BAD_TOML = [
    (f"a = {DEEP}", "nested more than 64 levels deep"),
    ("a = 1" + "0" * 400, "larger than any"),
    ("a = " + "9" * 5000, "thousands of digits"),
    ("a = nan", "nan is not allowed"),
    ("a = 1e999", "1e999 is larger than any"),
    ("a = 1\na = 2", "Cannot overwrite a value"),
]


@pytest.mark.parametrize(("text", "message"), BAD_JSON)
def test_json_that_would_be_lost_or_break_later_is_refused(text: str, message: str) -> None:
    with pytest.raises(DataError, match=f"^the text.*{message}"):
        parse_json(text, "the text", DataError)


@pytest.mark.parametrize(("text", "message"), BAD_TOML)
def test_toml_that_would_break_later_is_refused(text: str, message: str) -> None:
    with pytest.raises(DataError, match=f"^the text.*{message}"):
        parse_toml(text, "the text", DataError)


def test_what_is_fine_is_read_whole(tmp_path: Path) -> None:
    value = {
        "a": [1, -2.5, 1e300, None, True],
        "b": "\U0001f600 \u2028 \\ud800",
        "c": {"a": []},
        "d": 10**300,
    }
    path = tmp_path / "file.json"
    for ascii_only in (True, False):
        path.write_text("\ufeff" + json.dumps(value, ensure_ascii=ascii_only), encoding="utf-8")
        assert read_json(path) == value
        assert parse_json(path.read_bytes(), "the text") == value
    deepest = "[" * 64 + "1" + "]" * 64
    assert json.dumps(parse_json(deepest, "the text")) == deepest
    assert parse_toml("\ufeffa = inf\nb = [1, 2.5]\n", "the text") == {"a": float("inf"), "b": [1, 2.5]}


def test_what_mio_rag_wrote_itself_may_hold_more() -> None:
    assert parse_json(r'["\ud800", Infinity]', "the text", own=True) == ["\ud800", float("inf")]
    with pytest.raises(InputError, match="twice"):
        parse_json('{"a": 1, "a": 2}', "the text", own=True)


def test_stdin_is_utf_8_whatever_the_terminal_speaks(monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = io.TextIOWrapper(io.BytesIO('\ufeff["é"]'.encode()), encoding="cp1252")
    monkeypatch.setattr(sys, "stdin", stdin)
    assert read_json("-") == ["é"]
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InputError, match="stdin cannot be read: it is closed"):
        read_text("-")


def _dataset(path: Path) -> Any:
    return load_questions(path.rename(path.with_name("questions.jsonl")).parent)


@pytest.mark.parametrize(
    "read",
    [
        lambda path: SelectionProgram.from_json(path.read_text()),
        ScriptedGenerator.from_file,
        load_model,
        lambda path: read_traces(path, Trace),
        _dataset,
    ],
    ids=["program", "script", "relevance", "traces", "questions"],
)
@pytest.mark.parametrize("text", ['{"a": "", "a": ""}', '{"a": ' + DEEP + "}", '{"a": 1' + "0" * 400 + "}"])
def test_every_door_for_json_reads_strictly(tmp_path: Path, read: Callable[[Path], Any], text: str) -> None:
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"given twice|nested more than|larger than any"):
        read(path)


@pytest.mark.parametrize("read", [lambda path: read_config(path, {"pool"}), read_model])
@pytest.mark.parametrize(("text", "message"), BAD_TOML)
def test_every_door_for_toml_reads_strictly(
    tmp_path: Path, read: Callable[[Path], Any], text: str, message: str
) -> None:
    path = tmp_path / "file.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read(path)


def test_byte_order_marks_are_no_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text('\ufeff{"q": "yes"}', encoding="utf-8")
    assert ScriptedGenerator.from_file(path)._answers == {"q": "yes"}
    path.write_text("\ufeffpool = 3\n", encoding="utf-8")
    assert read_config(path, {"pool"}) == {"pool": 3}
    path.write_text("\ufeff[mdp]\ngrid = 11\n", encoding="utf-8")
    assert read_model(path) == {"grid": 11}
