"""Tables of all formats: columns, headers, merged cells."""

import datetime
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from mio_rag import Collection
from mio_rag.corpora.dataset import load_folder
from tests.documents.made import docx, needs, read, run, units

ROWS = [
    ["Ticket", "Summer", "Winter", "All year"],
    ["Adult day return", "24", "18", ""],
    ["Child day return", "", "9", ""],
    ["Season pass", "", "", "310"],
]
TABLE = [" | ".join(row) for row in ROWS]


def html_table(rows: list[list[str]]) -> str:
    lines = ["".join(f"<t{'h' if k == 0 else 'd'}>{cell}" for cell in row) for k, row in enumerate(rows)]
    return "<table><tr>" + "<tr>".join(lines) + "</table>"


def word_table(rows: list[str]) -> str:
    grid = '<w:tblGrid><w:gridCol w:w="1"/><w:gridCol w:w="1"/><w:gridCol w:w="1"/></w:tblGrid>'
    return f"<w:tbl><w:tblPr/>{grid}{''.join(f'<w:tr>{row}</w:tr>' for row in rows)}</w:tbl>"


def cell(text: str, settings: str = "") -> str:
    return f"<w:tc><w:tcPr>{settings}</w:tcPr><w:p>{run(text) if text else ''}</w:p></w:tc>"


def xlsx(rows: list[list[Any]], *merged: str) -> bytes:
    library: Any = pytest.importorskip("openpyxl")
    book, out = library.Workbook(), io.BytesIO()
    for row in rows:
        book.active.append(row)
    for span in merged:
        book.active.merge_cells(span)
    book.save(out)
    return out.getvalue()


def csv(rows: list[list[str]]) -> str:
    return "\n".join(",".join(row) for row in rows)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("fares.md", "\n".join(f"| {' | '.join(row)} |" for row in [ROWS[0], ["-"] * 4, *ROWS[1:]])),
        ("fares.txt", "\n".join(f"| {' | '.join(row)} |" for row in ROWS)),
        ("fares.html", html_table(ROWS)),
        ("fares.csv", csv(ROWS)),
        ("fares.tsv", csv(ROWS).replace(",", "\t")),
        ("fares.jsonl", "\n".join(json.dumps(dict(zip(ROWS[0], row, strict=True))) for row in ROWS[1:])),
        ("fares.xlsx", xlsx(ROWS)),
        ("fares.docx", docx(word_table(["".join(map(cell, row)) for row in ROWS]))),
    ],
)
def test_rows_keep_their_columns_and_bring_their_header(tmp_path: Path, name: str, data: str | bytes) -> None:
    passages = read(tmp_path, name, data)
    assert units(passages) == TABLE
    assert all(TABLE[0] in needs(passages)[row] for row in TABLE[1:])


PAIRS = [["Name", "Ann Field"], ["Born", "1970"], ["Height", "1.70 m"], ["City", "Oslo"]]
PEOPLE = [["Ann", "Sales", "Oslo"], ["Bob", "Sales", "Bergen"], ["Cid", "Design", "Oslo"]]
STOCK = [["A-102", "Bolt", "12"], ["A-107", "Nut", "7"], ["B-1", "Ring", "40"]]
YEARS = [["", "2021", "2022"], ["Boats", "1500", "1700"], ["Oars", "12", "19"]]


def html_pairs(rows: list[list[str]]) -> str:
    return "<table>" + "".join(f"<tr><th>{row[0]}<td>{'<td>'.join(row[1:])}" for row in rows) + "</table>"


def bold_table(rows: list[list[str]], *, row: bool) -> bytes:
    """A table of Word whose first row, or column, is bold."""
    cells = [
        "".join(
            f"<w:tc><w:p>{run(text, bold=(k if row else j) == 0)}</w:p></w:tc>"
            for j, text in enumerate(texts)
        )
        for k, texts in enumerate(rows)
    ]
    return docx(word_table(cells))


@pytest.mark.parametrize(
    ("name", "data", "headed"),
    [
        ("a.docx", docx(word_table(["".join(map(cell, row)) for row in PAIRS])), False),
        ("a.docx", bold_table([["Depth", "4 m"], ["Name", "Ann"], ["Mass", "9 kg"]], row=False), False),
        ("a.docx", bold_table([["Depth", "Name"], ["4 m", "Ann"], ["9 m", "Bob"]], row=True), True),
        (
            "a.docx",
            docx(word_table(["".join(map(cell, row)) for row in [["River", "Length"], *PAIRS[1:3]]])),
            True,
        ),
        ("a.html", html_pairs(PAIRS), False),
        ("a.html", html_pairs([["Adults", "ten"], ["Children", "5"], ["Dogs", "1"]]), False),
        ("a.html", html_table(YEARS).replace("th>", "td>").replace("<th", "<td"), True),
        ("a.csv", csv(PEOPLE), False),
        ("a.csv", csv([["Name", "Team", "Town"], *PEOPLE]), True),
        ("a.csv", csv(STOCK), False),
        ("a.csv", csv([["Code", "Part", "Pieces"], *STOCK]), True),
        ("a.csv", csv([["Who", "Mail"], ["Ann", "ann@x.org"], ["Bob", "bob@x.org"]]), True),
        ("a.csv", csv([["Ann", "ann@x.org"], ["Bob", "bob@x.org"], ["Cid", "cid@x.org"]]), False),
        ("a.csv", csv([["2024-05-01", "sunny"], ["2024-05-02", "rainy"]]), False),
        ("a.csv", csv(YEARS), True),
        (
            "a.csv",
            csv([["Land", "Unit", "2021", "1st"], ["Norway", "t", "12", "15"], ["Malta", "kg", "7", "9"]]),
            True,
        ),
        ("a.csv", csv([["Oslo", "2021", "5"], ["Rome", "2022", "7"], ["Bern", "2021", "8"]]), False),
        ("a.xlsx", xlsx(PAIRS), False),
    ],
)
def test_a_row_is_a_header_only_if_it_names_the_columns(
    tmp_path: Path, name: str, data: str | bytes, headed: bool
) -> None:
    passages = read(tmp_path, name, data)
    first, *rows = units(passages)
    assert [first in needs(passages)[row] for row in rows] == [headed] * len(rows)


MERGED = {
    "html": (
        "<table><tr><th>Region<th>Time<th>Euros<tr><td rowspan=2>North<td>Day<td>10<tr><td>Night<td>20"
        "<tr><td colspan=2>South<td>15</table>"
    ),
    "docx": docx(
        word_table(
            [
                cell("Region") + cell("Time") + cell("Euros"),
                cell("North", '<w:vMerge w:val="restart"/>') + cell("Day") + cell("10"),
                cell("", "<w:vMerge/>") + cell("Night") + cell("20"),
                cell("South", '<w:gridSpan w:val="2"/>') + cell("15"),
                '<w:trPr><w:gridBefore w:val="1"/></w:trPr>' + cell("Noon") + cell("12"),
            ]
        )
    ),
}


MERGED["xlsx"] = xlsx(
    [
        ["Rates of 2026"],
        ["Region", "Time", "Euros"],
        ["North", "Day", 10],
        [None, "Night", 20],
        ["South", None, 15],
    ],
    *("A1:C1", "A3:A4", "A5:B5"),
)


@pytest.mark.parametrize("kind", MERGED)
def test_merged_cells_do_not_shift_a_row(tmp_path: Path, kind: str) -> None:
    rows = units(read(tmp_path, f"rates.{kind}", MERGED[kind]))
    late = [" | Noon | 12"] if kind == "docx" else []
    wanted = ["Region | Time | Euros", "North | Day | 10", "North | Night | 20", "South | South | 15", *late]
    assert rows[kind == "xlsx" :] == wanted


def test_a_cell_says_the_same_of_every_column_that_it_spans_and_a_title_is_said_once(tmp_path: Path) -> None:
    text = (
        "<table><thead><tr><td><th colspan=2>2025<th colspan=2>2026<tr><th>Model<th>A<th>B<th>A<th>B</thead>"
        "<tr><td colspan=5>Outdoors<tr><td>Range<td colspan=2>-20 to 55 °C<td colspan=2>-30 to 60 °C"
        "<tr><td>Weight<td>1 kg<td>2 kg<td>1 kg<td>2 kg</table>"
        "<table><tr><th>Name<th colspan=2>Fee<tr><td>Anna<td colspan=2>7<tr><td>Ben<td colspan=2>8</table>"
    )
    assert [text.strip(" |") for text in units(read(tmp_path, "rates.html", text))] == [
        "2025 | 2025 | 2026 | 2026",
        "Model | A | B | A | B",
        "Outdoors",
        "Range | -20 to 55 °C | -20 to 55 °C | -30 to 60 °C | -30 to 60 °C",
        "Weight | 1 kg | 2 kg | 1 kg | 2 kg",
        "Name | Fee",
        "Anna | 7",
        "Ben | 8",
    ]


def test_names_of_groups_of_columns_are_a_header_with_those_below(tmp_path: Path) -> None:
    heads = [[None, "2025", None, "2026"], ["Name", "Q1", "Q2", "Q1", "Q2"]]
    made = xlsx([*heads, ["Oslo", 1, 2, 3, 4], ["Rome", 5, 6, 7, 8]], "B1:C1", "D1:E1")
    found = needs(read(tmp_path, "sales.xlsx", made))
    assert found["Oslo | 1 | 2 | 3 | 4"][-2:] == [" | 2025 | 2025 | 2026 | 2026", "Name | Q1 | Q2 | Q1 | Q2"]


def test_a_workbook_is_read_sheet_by_sheet(tmp_path: Path) -> None:
    library: Any = pytest.importorskip("openpyxl")
    book, out = library.Workbook(), io.BytesIO()
    sheet = book.active
    sheet.title = "Fares"
    for row in (
        ["Code", "Sold", "Share"],
        ["007", 3.0, 0.25],
        ["NA", "=B2+1", None],
        [],
        ["From", datetime.date(2024, 5, 1)],
    ):
        sheet.append(row)  # fmt: skip
    sheet["C2"].number_format = "0%"
    book.create_sheet("Old").sheet_state = "hidden"
    book.save(out)
    passages = read(tmp_path, "prices.xlsx", out.getvalue())
    assert units(passages) == ["Code | Sold | Share", "007 | 3 | 25%", "NA |  | ", "From | 2024-05-01"]
    assert needs(passages)["007 | 3 | 25%"] == ["Fares", "Code | Sold | Share"]
    left_out = [one.path for one in load_folder(tmp_path).left_out]
    assert left_out == ["prices.xlsx, sheet 'Fares', B3", "prices.xlsx, sheet 'Old'"]


def test_rows_of_a_workbook_that_are_numbered_without_end_are_not_waited_for(tmp_path: Path) -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(xlsx(YEARS))) as source, zipfile.ZipFile(made, "w") as target:
        for name in source.namelist():
            target.writestr(name, source.read(name).replace(b'<row r="3"', b'<row r="2147483648"'))
    assert units(read(tmp_path, "a.xlsx", made.getvalue())) == [" | 2021 | 2022", "Boats | 1500 | 1700"]


def test_each_table_of_a_sheet_has_its_caption_and_header(tmp_path: Path) -> None:
    head = "Region,2023,2024"
    sheet = f"Orders,,\n,,\n{head}\nNorth,120,135\nSouth,80,95\n,,\nReturns,,\n{head}\nSouth,1,4\n"
    (tmp_path / "sheet.csv").write_text(sheet)
    found = Collection(tmp_path, embedder="minilm").select("Returns of the South in 2024", budget=24)
    assert found.context == "sheet\nReturns\nRegion | 2023 | 2024\nSouth | 1 | 4"
