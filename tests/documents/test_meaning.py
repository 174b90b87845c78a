"""What reading must not change: numbers, rows, lines, versions."""

import os
from pathlib import Path

import pytest

from mio_rag import Collection
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


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_a_quote_that_nothing_closes_swallows_no_row(name: str, tmp_path: Path) -> None:
    rows = ["id,note", '1,"started and never closed', "2,the code is 7788", "3,third"]
    text = "\n".join(rows).replace(",", "\t" if name.endswith("tsv") else ",")
    assert len(_units(tmp_path, name, text)) == 3  # and the header, which is no unit


def test_lines_of_a_log_stay_apart(tmp_path: Path) -> None:
    log = "10:05 job alpha ok\n10:06 job beta failed\n  with code 3\n10:07 job gamma ok\n"
    assert _units(tmp_path, "a.log", log) == [
        "10:05 job alpha ok",
        "10:06 job beta failed with code 3",
        "10:07 job gamma ok",
    ]


def test_links_that_loop_are_followed_once(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("Hello world.")
    (tmp_path / "x").symlink_to(".")
    (tmp_path / "y").symlink_to(".")
    opened = open_source(tmp_path, Building("tfidf", follow_links=True), out=tmp_path.parent / "index")
    assert list(opened.files) == ["a.md"]


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


CHAT = """[2024-05-02 09:14] Mia: Is the release still planned for Thursday?
[2024-05-02 09:16] Tom: No, it is moved to 9 May, as the payment tests fail.
[2024-05-02 09:20] Priya: The sandbox has a timeout, which I look at
now, and the log as well.
"""
LOG = "2024-01-12 P300 no. 114: seal replaced, 3 h\n2024-04-03 P300 no. 114: oil changed, 1 h\n"
RECORDS = "\n\n".join(
    f"Name: {name}\nPhone: 0170 {phone}\nRole: {role}"
    for name, phone, role in [("Lena Vogt", 1111, "first aid"), ("Omar Said", 2222, "fire warden")]
)
HOURS = "Visiting hours\n\nWard A: 14:00 to 19:00\nWard B: 15:00 to 18:00\nWard C: by arrangement\n"


@pytest.mark.parametrize(
    ("text", "question", "read"),
    [
        (CHAT, "Which tests fail?", "\n[2024-05-02 09:16] Tom: No, it is moved to 9 May"),
        (CHAT, "Which timeout has the sandbox?", "which I look at now, and the log as well."),
        (LOG, "When was the oil of pump 114 changed?", "\n2024-04-03 P300 no. 114: oil changed, 1 h"),
        (RECORDS, "What is the phone number of the fire warden?", "Omar Said\nPhone: 0170 2222\nRole: fire"),
        (HOURS, "When can I visit ward B?", "\nWard B: 15:00 to 18:00"),
    ],
)
def test_an_entry_is_read_by_itself(text: str, question: str, read: str, tmp_path: Path) -> None:
    (tmp_path / "entries.txt").write_text(text, encoding="utf-8")
    assert read in Collection(tmp_path, embedder="minilm").select(question, budget=45).context


@pytest.mark.parametrize(
    ("name", "text", "date"),
    [
        ("news.md", "# Newsletter, November 2023\n\nText.", "2023-11"),
        ("news.md", "# Rundbrief Oktober 2023: ein Protokoll\n\nText.", "2023-10"),
        ("news.md", "# Report, Q3 2023\n\nText.", "2023-09"),
        ("news.md", "# Annual report 2023\n\nText.", "2023"),
        ("news.md", "# Report on Vision 2030 and 2040\n\nText.", None),
        ("news.md", "# Report due by March 2024\n\nText.", None),
        ("news.md", "# Thoughts on the flood of March 2021\n\nText.", None),
        ("news.md", "---\ndate: 2024-05\n---\n# News\n\nText.", "2024-05"),
        ("news.md", "---\ndate: 2024\n---\n# News\n\nText.", "2024"),
        ("newsletter-2023-11.md", "Text.", "2023-11"),
        ("newsletter_nov_2023.md", "Text.", "2023-11"),
        ("compte-rendu-mars-2024.md", "Text.", "2024-03"),
        ("11.2023 sales.md", "Text.", "2023-11"),
        ("sales-2023-Q2.md", "Text.", "2023-06"),
        ("budget-FY2023.md", "Text.", "2023"),
        ("price-list-2024.md", "Text.", "2024"),
        ("fees-2025.md", "Text.", "2025"),
        ("opening hours Christmas 2025.md", "Text.", "2025"),
        ("2025_menu.md", "Text.", "2025"),
        ("fees.html", "<h1>Shelter fees 2025</h1><p>Text.</p>", "2025"),
        ("vision-2020.md", "Text.", None),
        ("plans.md", "# Mobility 2090\n\nText.", None),
        ("flood-1995.md", "Text.", None),
        ("history of the 2002 flood.md", "Text.", None),
        ("the flood of 2002.md", "Text.", None),
        ("ISO 9001 2015.md", "Text.", None),
        ("mail.txt", "From: Ann\nDate: Mon, 18 May 2026 09:12\nSubject: Text\n\nText.\n", "2026-05-18"),
        *(
            ("rules.md", f"# Rules\n\n{stated} 2026\n\nText.", "2026-03-10")
            for stated in (
                "Approved by the board on 10 March",
                "Beschlossen am 10. März",
                "Publié le 10 mars",
                "Fecha: 10 de marzo de",
                "Aggiornato il 10 marzo",
                "Bijgewerkt op 10 maart",
                "Обновлено: 10 марта",
                "Дата: 10. 3.",
            )
        ),
        *(
            (
                "chat.txt",
                f"[{one}, 07:58] Ann: Two of the cats sneeze.\n[{two}, 08:03] Ben: Text text.\n",
                day,
            )
            for one, two, day in (
                ("03/06/2026", "05/06/2026", "2026-06-05"),
                ("06/03/26", "06/05/26", "2026-06-05"),
                ("06/13/2026", "06/13/2026", "2026-06-13"),
                ("2026-06-03", "2026-06-05", "2026-06-05"),
                ("03/06/2026", "03/06/2026", None),
            )
        ),
        ("plan-2024-2026.md", "Text.", None),
        ("season-2010-11.md", "Text.", None),
        ("AMD_2022_10K.md", "Text.", None),
    ],
)
def test_the_date_of_a_document(name: str, text: str, date: str | None, tmp_path: Path) -> None:
    (tmp_path / name).write_text(f"{text}\n", encoding="utf-8")
    (part, *_) = Collection(tmp_path, embedder="tfidf").select("Text", budget=60).parts
    assert part["date"] == date
