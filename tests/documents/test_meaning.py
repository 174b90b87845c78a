"""What reading must not change: numbers, rows, lines, versions."""

import os
from pathlib import Path

import pytest

from mio_rag.context import RegexCounter
from mio_rag.corpora.dataset import load_folder
from mio_rag.generation import build_prompt, make_generator
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.selection.selector import Selector
from mio_rag.sources import Building, open_source
from mio_rag.types import Question


def _units(folder: Path, name: str, text: str) -> list[str]:
    (folder / name).write_text(text)
    return [p.text[u.start : u.end] for p in load_folder(folder).passages for u in p.units]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.html", "<p>The limit is 10<sup>6</sup> newtons.</p>", "The limit is 10^6 newtons."),
        ("a.html", "<p>It was the 1<sup>st</sup> trip of the year.</p>", "It was the 1st trip of the year."),
        ("a.html", "<p>It costs <del>100</del> <ins>80</ins> euros a day.</p>", "It costs 80 euros a day."),
        ("a.md", "The limit is 10<sup>6</sup> newtons.", "The limit is 10^6 newtons."),
        ("a.html", "<p>It is 10<sup>-6</sup> metres.</p>", "It is 10^-6 metres."),
    ],
)
def test_raised_and_deleted_text(name: str, text: str, expected: str, tmp_path: Path) -> None:
    assert _units(tmp_path, name, text) == [expected]


def test_lines_of_a_log_stay_apart(tmp_path: Path) -> None:
    log = "10:05 job alpha ok\n10:06 job beta failed\n  with code 3\n10:07 job gamma ok\n"
    assert _units(tmp_path, "a.log", log) == [
        "10:05 job alpha ok",
        "10:06 job beta failed with code 3",
        "10:07 job gamma ok",
    ]


def _read(folder: Path, question: str) -> str:
    index = CorpusIndex.build(load_folder(folder).passages, "tfidf")
    pool = Retriever(index).retrieve(question)
    return " ".join(Selector(units="auto").select(pool, 60, RegexCounter()).texts)


def _report(folder: Path, name: str, head: str, month: str, tonnes: int) -> None:
    text = (
        f"---\n{head}\n---\n# Report of the plant\n\nIn {month} the plant ran without any accident and sold "
        f"{tonnes} tonnes of steel to customers in the north and in the south of the country.\n"
    )
    (folder / name).write_text(text)


def test_of_reports_about_different_months_the_one_that_is_asked_for_is_read(tmp_path: Path) -> None:
    for month, day, tonnes in (("January", "2024-01-31", 412), ("March", "2024-03-31", 699)):
        _report(tmp_path, f"{day}.md", f"date: {day}", month, tonnes)
    assert "412 tonnes" in _read(tmp_path, "How many tonnes of steel were sold in January?")


def test_the_later_update_of_a_text_is_its_newer_version(tmp_path: Path) -> None:
    _report(tmp_path, "new.md", "date: 2021-03-01\nupdated: 2024-06-01", "summer", 300)
    _report(tmp_path, "old.md", "date: 2022-03-01", "summer", 200)
    read = _read(tmp_path, "How many tonnes of steel were sold?")
    assert "300 tonnes" in read
    assert "200 tonnes" not in read


def test_a_file_that_is_written_again_at_once_is_read_again(tmp_path: Path) -> None:
    documents, index = tmp_path / "documents", tmp_path / "index"
    documents.mkdir()
    path = documents / "fee.md"
    path.write_text("The fee is 10 euros.")
    open_source(documents, Building("tfidf"), out=index)
    times = path.stat().st_mtime_ns
    path.write_text("The fee is 20 euros.")
    os.utime(path, ns=(times, times))
    opened = open_source(documents, Building("tfidf"), out=index)
    assert opened.changes.changed == ("fee.md",)
    assert [p.text for p in opened.index.passages] == ["The fee is 20 euros."]


def test_a_sentence_is_read_under_its_heading(tmp_path: Path) -> None:
    models = ((200, "three"), (400, "six"), (700, "nine"))
    text = "".join(
        f"## Fan {k}\n\nThe filter is changed every {often} months. It is loud.\n\n" for k, often in models
    )
    (tmp_path / "fans.md").write_text(f"# Fans\n\n{text}")
    index = CorpusIndex.build(load_folder(tmp_path).passages, "tfidf")
    question = "How often is the filter of the Fan 700 changed?"
    pool = Retriever(index).retrieve(question)
    chosen = Selector(units="auto").select(pool, 60, RegexCounter())
    reader = make_generator("extractive")
    assert reader.generate(build_prompt(Question("q", question), chosen.passages)).text == "nine months"
