"""Passages and units as spans of one text, whatever is given; damaged files end no reading."""

import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mio_rag.corpora.dataset import load_folder
from mio_rag.documents.blocks import Document
from mio_rag.documents.excerpts import read_excerpt
from mio_rag.documents.files import KINDS, read_file, read_folder
from mio_rag.documents.markdown import read_markdown
from mio_rag.documents.passages import document_text, passages_of
from mio_rag.documents.plain import read_code, read_csv, read_jsonl, read_text
from tests.documents.made import docx, paragraph, pdf

WORDS = st.sampled_from(
    [
        "the", "pump", "12", "4.5", "Rates:", "-", "*",
        "#", "##", "=", "|", "||", "a)", "(a)", "1.", "2.1",
        "```", "~~~",
        "**bold**", "**Note**", "<b>", "</p>", "<td>", "$x_1$", "[a](b)", "&", "\\", "\"", "'", "塔很高。",
        "مرحبا", "สวัสดี", "It", "Dr.", "e.g.", "AND", "ARTICLE 4", "---", "+++", "key:", "===", "_",
        "\xad", "\ufb01", "\u200b",
    ]
)  # fmt: skip
TEXTS = st.lists(
    st.tuples(WORDS, st.sampled_from([" ", " ", " ", "\n", "\n\n", "\n    ", "\t"])), min_size=1, max_size=80
).map(lambda parts: "".join(a + b for a, b in parts))


def check(document: Document, max_words: int) -> None:
    passages = passages_of(document, "a", max_words)
    text, starts = document_text(document)
    headings = [  # and headers of tables
        (start, start + len(block.text))
        for block, start, after in zip(document.blocks, starts, [*document.blocks[1:], None], strict=False)
        if block.kind == "heading" or (block.header and after is not None and after.table == block.table)
    ]
    covered = [False] * len(text)
    last = 0
    for number, passage in enumerate(passages):
        assert passage.id == f"a#{number}"
        assert passage.start is not None
        assert passage.text == text[passage.start : passage.end]
        assert passage.start >= last
        last = passage.end or 0
        assert passage.units
        assert passage.units[-1].end == len(passage.text)
        end = 0
        for unit in passage.units:
            assert end <= unit.start < unit.end
            end = unit.end
            begin = passage.start + unit.start
            covered[begin : passage.start + unit.end] = [True] * (unit.end - unit.start)
            needed = [passage.lines[k] for k in unit.needs]
            assert needed == sorted(needed)
            assert all(line.start < begin for line in needed)
        assert all(text[line.start : line.start + len(line.text)] == line.text for line in passage.lines)
    for start, end in headings:
        assert not any(covered[start:end])
        covered[start:end] = [True] * (end - start)
    assert not "".join(c for c, seen in zip(text, covered, strict=True) if not seen).split()


@pytest.mark.parametrize("reader", [read_text, read_markdown, read_code, read_csv, read_jsonl])
@given(TEXTS, st.sampled_from([1, 7, 30, 100]))
@settings(max_examples=120, deadline=None)
def test_passages_and_lines_are_spans_and_nothing_but_what_heads_others_lies_outside_units(
    reader, text: str, max_words: int
) -> None:
    check(reader(text), max_words)


WHOLE = {
    "a.pdf": pdf(["The pump is new. It was built in May.", "Its rate is 12."], ["Nothing else is known."]),
    "a.docx": docx(paragraph("The pump is new.") + paragraph("Rates", '<w:outlineLvl w:val="0"/>')),
    "a.html": b"<title>Pump</title><h1>Pump</h1><p>The <b>pump</b> is new.<table><tr><td>a<td>1</table>",
    "a.md": b"# Pump\n\n- new\n  - old\n\n| a | b |\n|---|---|\n| 1 | 2 |\n",
}


def book() -> bytes:
    library, out = pytest.importorskip("openpyxl"), io.BytesIO()
    file = library.Workbook()
    file.active.append(["Pump", 12, "=B1"])
    file.save(out)
    return out.getvalue()


WHOLE["a.xlsx"] = book()


def test_a_workbook_of_empty_cells_is_read_as_far_as_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mio_rag.documents.office._MOST_CELLS", 100_000)
    wide = b"".join(b'<row r="%d"><c r="XFD%d"><v>1</v></c></row>' % (k, k) for k in range(2, 20))
    with zipfile.ZipFile(io.BytesIO(book())) as old, zipfile.ZipFile(tmp_path / "a.xlsx", "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name).replace(b"</sheetData>", wide + b"</sheetData>"))
    found = read_file(tmp_path / "a.xlsx")
    assert found.passages
    assert "from row" in found.left_out[0].path


@given(st.sampled_from(sorted(WHOLE)), st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_file_is_read_or_named(tmp_path: Path, name: str, data: st.DataObject) -> None:
    whole = bytearray(WHOLE[name])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole) - 1))
        length = data.draw(st.integers(0, 40))
        whole[at : at + length] = data.draw(st.binary(max_size=20))
        if not whole:
            break
    (tmp_path / name).write_bytes(bytes(whole))
    found = read_file(tmp_path / name)
    assert found.passages or found.left_out


@pytest.mark.parametrize("kind", KINDS)
def test_noise_under_any_ending_is_read_or_named(tmp_path: Path, kind: str) -> None:
    for number, data in enumerate(
        (b"\x00\xff\x10PK\x03\x04", b"PK\x03\x04", b"text", b"<", b"{", b"%PDF-1.4")
    ):
        path = tmp_path / f"{number}{kind}"
        path.write_bytes(data)
        found = read_file(path)
        assert found.passages or found.left_out


@pytest.mark.parametrize("name", ["a.md", "a.txt", "a.html", "a.py", "a.csv"])
@pytest.mark.parametrize("piece", ["[", "<noscript>", "ab-\n", "a\n", "{\n  ", "= ", "塔", "2020 "])
def test_endless_repetition_is_read_in_time_that_grows_with_its_length(
    tmp_path: Path, name: str, piece: str
) -> None:
    (tmp_path / name).write_text("The pump is new.\n\n" + piece * 20_000)
    passages = read_file(tmp_path / name).passages
    assert passages[0].text.startswith("The pump is new.")
    assert max(len(p.text) for p in passages) < 30_000


LARGE = "<p>It is so." + "<!-- large enough for further processes -->" * 50_000


def test_many_files_are_read_side_by_side_and_one_by_one_alike(tmp_path: Path) -> None:
    (tmp_path / "0.html").write_text(LARGE)
    for k in range(1, 21):
        (tmp_path / f"{k}.md").write_text(f"# File {k}\n\nIts number is {k}.\n")
    (tmp_path / "x.pdf").write_bytes(b"%PDF-1.4")
    told: list[tuple[int, int]] = []
    many = load_folder(tmp_path, progress=lambda done, total: told.append((done, total)))
    assert told == [(k + 1, 22) for k in range(22)]
    for name in ("x.pdf", "0.html"):
        (tmp_path / name).unlink()
    few = read_folder(tmp_path)
    assert [p for p in many.passages if p.source != "0.html"] == list(few.passages)
    assert [one.path for one in many.left_out] == ["x.pdf"]


SCRIPT = """
import sys
from mio_rag.corpora.dataset import load_folder
print(len(load_folder(sys.argv[1]).passages))
"""


def test_a_program_without_a_guard_may_read_a_folder(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "0.html").write_text(LARGE)
    (tmp_path / "docs" / "1.txt").write_text("Number 1 is here.")
    (tmp_path / "run.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "run.py", "docs"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("2\n", "")


def test_what_tools_keep_is_named_and_not_read(tmp_path: Path) -> None:
    for name in (".git", "node_modules"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.js").write_text("let a = 1")
    (tmp_path / "a.txt").write_text("It is so.")
    data = load_folder(tmp_path)
    assert [p.source for p in data.passages] == ["a.txt"]
    assert [one.path for one in data.left_out] == [".git", "node_modules"]


@pytest.mark.parametrize(
    "text",
    [
        "pumps:\n  main:\n    limit: 40\n  spare:\n    limit: 15",
        "def clear(pump):\n    for one in pump.files:\n        one.unlink()\n\n    return True",
        '{\n  "pumps": [\n    {"name": "main", "limit": 40}\n  ]\n}',
        "[main]\nlimit=40\n[spare]\nlimit=15",
        "Port      Charge   Days\nLoen          54      3\nOlden         61      4",
        "2024-05-01 10:02 valve 7 failed\n2024-05-01 10:03 shutdown",
        "item 1 has value 7\nitem 2 has value 9\nitem 3 has value 8",
    ],
)
def test_lines_that_stand_for_themselves_stay_lines(text: str) -> None:
    shown, parts = read_excerpt(text)
    assert [shown[one.start : one.end] for one in parts] == [text]
    assert [block.text for block in read_text(text).blocks] == [text]


@pytest.mark.parametrize(
    "text",
    [
        "The ferry costs forty euros for\neveryone who is not a child and has no\ncard but theirs.",
        "He writes: dear reader,\n    the ferry is late today, and so was the one before it, they say.",
    ],
)
def test_wrapped_prose_is_one_line(text: str) -> None:
    assert "\n" not in read_excerpt(text)[0]
    assert "\n" not in read_text(text).blocks[0].text


def test_a_numbered_line_heads_the_clauses_that_go_on_with_it() -> None:
    text = (
        "Contract of 10 May 2022\n1. Subject\n1.1 The contractor cleans all cars.\n1.2 It does so at night.\n"
        "2. Term\n2.1 It ends after three years.\n3. Bring a coat.\n4.2 Fines are at most 5 %."
    )
    shown, parts = read_excerpt(text)
    headings = {shown[one.start : one.end][:3]: [line.text for line in one.needs] for one in parts}
    assert headings["1.2"] == ["1. Subject"]
    assert headings["2.1"] == ["2. Term"]
    assert headings["4.2"] != ["3. Bring a coat."]
    read = [block.text for block in read_text(text).blocks if block.kind == "heading"]
    assert read[-2:] == ["1. Subject", "2. Term"]
