"""What becomes of a document of each format, at the door for folders."""

import datetime
import io
import json
from pathlib import Path
from typing import Any

import pypdfium2
import pytest

from mio_rag.corpora.folder import load_folder
from mio_rag.retrieval.words import Words
from tests.documents.made import Field, Piece, docx, needs, paragraph, pdf, read, run, units

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


def xlsx(rows: list[list[Any]]) -> bytes:
    library: Any = pytest.importorskip("openpyxl")
    book, out = library.Workbook(), io.BytesIO()
    for row in rows:
        book.active.append(row)
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
        ("fares.xlsx", xlsx(ROWS)),
        ("fares.docx", docx(word_table(["".join(map(cell, row)) for row in ROWS]))),
    ],
)
def test_rows_keep_their_columns_and_bring_their_header(tmp_path: Path, name: str, data: str | bytes) -> None:
    passages = read(tmp_path, name, data)
    assert units(passages) == TABLE
    assert all(TABLE[0] in needs(passages)[row] for row in TABLE[1:])


def test_rows_of_a_pdf_keep_their_columns_and_bring_their_header(tmp_path: Path) -> None:
    at = (60, 260, 340, 420)
    pieces = [
        Piece(x, 700 - 14 * k, text)
        for k, row in enumerate(ROWS)
        for x, text in zip(at, row, strict=True)
        if text
    ]
    passages = read(tmp_path, "fares.pdf", pdf([Piece(60, 740, "The fares are in euros."), *pieces]))
    assert units(passages) == ["The fares are in euros.", *TABLE]
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


def _merged_sheet() -> bytes:
    library: Any = pytest.importorskip("openpyxl")
    book, out = library.Workbook(), io.BytesIO()
    rows = [
        ["Rates of 2026"],
        ["Region", "Time", "Euros"],
        ["North", "Day", 10],
        [None, "Night", 20],
        ["South"],
    ]
    for row in rows:
        book.active.append(row)
    book.active["C5"] = 15
    for span in ("A1:C1", "A3:A4", "A5:B5"):
        book.active.merge_cells(span)
    book.save(out)
    return out.getvalue()


MERGED["xlsx"] = _merged_sheet()


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
    library: Any = pytest.importorskip("openpyxl")
    book, out = library.Workbook(), io.BytesIO()
    for row in [
        [None, "2025", None, "2026"],
        ["Name", "Q1", "Q2", "Q1", "Q2"],
        ["Oslo", 1, 2, 3, 4],
        ["Rome", 5, 6, 7, 8],
    ]:
        book.active.append(row)
    for span in ("B1:C1", "D1:E1"):
        book.active.merge_cells(span)
    book.save(out)
    found = needs(read(tmp_path, "sales.xlsx", out.getvalue()))
    assert found["Oslo | 1 | 2 | 3 | 4"][-2:] == [" | 2025 | 2025 | 2026 | 2026", "Name | Q1 | Q2 | Q1 | Q2"]


LISTS = {
    "md": "We cover:\n\n- storms, except:\n    - floods\n    - hail\n- fire\n\nNothing else.",
    "txt": "We cover:\n- storms, except:\n    - floods\n    - hail\n- fire\n\nNothing else is said.",
    "html": (
        "<p>We cover:</p><ul><li>storms, except:<ul><li>floods</li><li>hail</li></ul></li><li>fire</li></ul>"
        "<p>Nothing else."
    ),
}


WEEKS = "Before the first day\n{0}\n\n{1}First week\n{2}\n\nOn the last day of all\n{3}\n"
FEES = "| Pier | Fee |\n|---|---|\n| Loen | {} |\n\n"
SEASONS = f"Summer\n\n{FEES.format(54)}All other months\n\n{FEES.format(61)}"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.txt", WEEKS.format("  - passport", "", "  - key", "  - key, back")),
        ("b.txt", WEEKS.format("- passport", "", "- key", "- key, back").replace("\n\n", "\n")),
        ("c.txt", WEEKS.format("\n- passport", "", "\n- key", "\n- key, back")),
        ("d.txt", WEEKS.format("1. passport", "Safety\nNobody is alone.\n\n", "1. key", "1. key, back")),
        ("e.md", WEEKS.format("- passport", "", "- key", "- key, back")),
        ("f.html", "<p>Before the first day<ul><li>passport</ul><p>First week<ul><li>key</ul>"
                   "<p>On the last day of all<ul><li>key, back</ul>"),
    ],
)  # fmt: skip
def test_items_bring_the_line_above_their_list_and_no_other(tmp_path: Path, name: str, text: str) -> None:
    found = needs(read(tmp_path, name, text))
    items = {item.lstrip("- 1."): lines for item, lines in found.items() if item[:1] in "-1"}
    assert items == {
        "passport": ["Before the first day"], "key": ["First week"], "key, back": ["On the last day of all"]
    }  # fmt: skip


def test_rows_bring_the_line_above_their_table(tmp_path: Path) -> None:
    found = needs(read(tmp_path, "fees.md", SEASONS))
    assert [found[row][0] for row in ("Loen | 54", "Loen | 61")] == ["Summer", "All other months"]


@pytest.mark.parametrize("kind", LISTS)
def test_nested_items_stay_below_and_bring_what_leads_to_them(tmp_path: Path, kind: str) -> None:
    passages = read(tmp_path, f"cover.{kind}", LISTS[kind])
    found = needs(passages)
    assert "- storms, except:\n  - floods\n  - hail\n- fire" in "\n".join(p.text for p in passages)
    assert found["  - hail"] == ["We cover:", "- storms, except:"]
    assert found["- fire"] == ["We cover:"]
    assert [lines for text, lines in found.items() if text.startswith("Nothing")] == [[]]


def test_items_of_contracts_nest_by_their_marks(tmp_path: Path) -> None:
    text = (
        "2.1 Neither party may:\n(a) sell, save for:\n(i) boats;\n(ii) oars;\n(b) lend.\n2.2 Both may row.\n"
    )
    found = needs(read(tmp_path, "deed.txt", text))
    assert found["    (ii) oars;"] == ["2.1 Neither party may:", "  (a) sell, save for:"]
    assert found["  (b) lend."] == ["2.1 Neither party may:"]
    assert found["2.2 Both may row."] == []


MATHML = (
    "<math><semantics><mrow><mi>E</mi><mo>=</mo><mfrac><mrow><mi>m</mi><msup><mi>v</mi><mn>2</mn></msup></mrow>"
    "<mn>2</mn></mfrac></mrow><annotation>E=\\frac{mv^2}{2}</annotation></semantics></math>"
)
MENUS = (
    "<ul class='side menu'><li>Home</ul><ul class=menu><li>Soup 4.50</ul><p class=footer-note>Plus tax<p>Ten."
    "</p><div class=page-footer>(c) 2026, print</div>"
)
FORM = (
    "<table><tr><th>Step<th>Done<th>By<tr><td>Paid<td><input type=checkbox checked><td><img alt=Ana></table>"
)


@pytest.mark.parametrize(
    ("name", "data", "wanted"),
    [
        ("a.html", "<ol start=5><li>He pays.<li value=9>He leaves.</ol>", ["5. He pays.", "9. He leaves."]),
        ("a.html", "<ol type=a><li>One.<li>Two.</ol>", ["a. One.", "b. Two."]),
        ("a.html", "<dl><dt>Fee<dd>Two<dt>Rent<dd><p>Ten</p></dl>", ["Fee: Two", "Rent: Ten"]),
        ("a.md", "3. Open it.\n4. Close it.\n", ["3. Open it.", "4. Close it."]),
        ("a.html", "<p>Ten.<p hidden>draft<p style='display: none'>draft<div aria-hidden=true>", ["Ten."]),
        ("a.html", MENUS, ["- Soup 4.50", "Plus tax", "Ten."]),
        ("a.html", "<nav>Home</nav><script>x</script><p>Ten.<noscript>No</noscript>", ["Ten."]),
        ("a.html", "<p>First line.<br>Second line.", ["First line.", "Second line."]),
        ("a.html", "<p>An <b>in</b>separable word.", ["An inseparable word."]),
        ("a.html", "<label><input type=checkbox checked> Insured</label>", ["☒ Insured"]),
        ("a.html", "<ol reversed><li>Two.<li>One.</ol>", ["2. Two.", "1. One."]),
        ("a.html", "City <input value=Oslo> <select><option>S<option selected>M</select>", ["City Oslo M"]),
        ("a.html", f"<p>{MATHML}</p>", ["E=(mv^2)/2"]),
        ("a.html", FORM, ["Step | Done | By", "Paid | ☒ | Ana"]),
        ("a.md", "It is ~~40~~ 45 kg, <del>never</del> always.", ["It is 45 kg, always."]),
        ("a.md", "Notice\n: Ninety days.\n: Or more.", ["Notice: Ninety days.", "  Or more."]),
        ("a.md", "~~~\nmake\n  run\n~~~\n", ["make\n  run"]),
        ("a.html", "<pre>make\n  run</pre>", ["make\n  run"]),
        ("a.md", "See [it](https://x.org/a) and [that](b.md).", ["See it (https://x.org/a) and that."]),
        ("a.md", "The *first* of `a_b` is 2 \\* 3.<!-- secret -->", ["The first of `a_b` is 2 * 3."]),
        ("a.md", "Let $x_1$ be and $y_2$.", ["Let $x_1$ be and $y_2$."]),
        ("a.txt", "The maxi-\nmum of the well-\nknown crane.", ["The maximum of the well-known crane."]),
        ("a.txt", "The ofﬁce co\u00adoperates.", ["The office cooperates."]),
        ("a.txt", "灯塔建得很高。它已经很老。", ["灯塔建得很高。", "它已经很老。"]),
    ],
)  # fmt: skip
def test_units_are_what_a_reader_sees(tmp_path: Path, name: str, data: str, wanted: list[str]) -> None:
    assert units(read(tmp_path, name, data)) == wanted


# Headings --------------------------------------------------------------------------------------------------

FAN = "The fan is for walls. It has a filter. The motor needs no fuse. Clean it with a cloth. "
MANUAL = "".join(f"\n## Model {k}\n\n{FAN * 4}It weighs {k} kilograms.\n" for k in (200, 400))


def test_a_unit_brings_the_heading_of_its_own_section(tmp_path: Path) -> None:
    passages = read(tmp_path, "fans.md", f"# Fans\n{MANUAL}")
    assert {p.section for p in passages} == {("Model 200",), ("Model 400",)}
    for model in ("200", "400"):
        weighs = f"It weighs {model} kilograms."
        assert needs(passages)[weighs] == [f"Model {model}", "Clean it with a cloth."]
    assert not any(p.text.endswith(("Model 200", "Model 400")) for p in passages)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.md", "# Book\n\n## Part\n\n### Rates\n\nTen euros."),
        ("a.md", "Book\n====\n\nPart\n----\n\n**Rates**\n\nTen euros."),
        ("a.html", "<title>Book</title><h2>Part</h2><p><b>Rates</b></p><p>Ten euros."),
        ("a.txt", "Book of prices\n\n= Part =\n\n= = Rates = =\n\nTen euros."),
        (
            "a.docx",
            docx(
                paragraph("Book", '<w:pStyle w:val="Title"/>')
                + paragraph("Part", '<w:outlineLvl w:val="0"/>')
                + paragraph("Rates", '<w:pStyle w:val="Heading2"/>')
                + paragraph("Ten euros.")
            ),
        ),
        (
            "a.pdf",
            pdf(
                [
                    Piece(60, 700, "Part", 20),
                    Piece(60, 670, "Rates", 14),
                    *(Piece(60, 640 - 14 * k, "Ten euros are the price of it all.") for k in range(9)),
                ]
            ),
        ),
    ],
)
def test_headings_are_found_in_every_format(tmp_path: Path, name: str, data: str | bytes) -> None:
    (passage,) = read(tmp_path, name, data)
    assert passage.section == ("Part", "Rates")
    assert passage.text.startswith("Ten euros")
    assert [line.text for line in passage.lines] == ["Rates"]


def test_a_heading_without_text_is_no_unit_and_one_that_counts_joins_the_next(tmp_path: Path) -> None:
    text = "# Deed\n\n## Empty\n\n## ARTICLE 4\n\n## TERM\n\nFive years.\n"
    passages = read(tmp_path, "deed.md", text)
    assert needs(passages) == {"Five years.": ["ARTICLE 4 TERM"]}


@pytest.mark.parametrize(
    ("name", "data", "wanted"),
    [
        ("a.md", "# Rates\n\n## Adults\n", ["Adults"]),  # there are headings alone
        ("a.html", "<h2>Part</h2><h2>Rates</h2><p>Ten euros.<h2>End</h2>", ["Ten euros."]),
        ("a.html", "<p>Write to us.<p><b>Castle Street 9</b></p>", ["Write to us.", "Castle Street 9"]),
    ],
)
def test_lines_that_only_look_like_headings_are_not_lost(
    tmp_path: Path, name: str, data: str, wanted: list[str]
) -> None:
    assert units(read(tmp_path, name, data)) == wanted


def test_small_sections_share_a_passage_that_keeps_their_headings(tmp_path: Path) -> None:
    text = "# Questions\n\n## When?\n\nOn Monday.\n\n## Where?\n\nIn Oslo.\n"
    (passage,) = read(tmp_path, "faq.md", text)
    assert (passage.text, passage.section) == ("When?\nOn Monday.\nWhere?\nIn Oslo.", ())
    assert needs([passage]) == {"On Monday.": ["When?"], "In Oslo.": ["Where?"]}


# Word ------------------------------------------------------------------------------------------------------

NUMBERING = (
    '<w:abstractNum w:abstractNumId="7"><w:lvl w:ilvl="0"><w:start w:val="1"/><w:numFmt w:val="decimal"/>'
    '<w:lvlText w:val="%1."/></w:lvl><w:lvl w:ilvl="1"><w:start w:val="1"/><w:numFmt w:val="decimal"/>'
    '<w:lvlText w:val="%1.%2"/></w:lvl><w:lvl w:ilvl="2"><w:start w:val="1"/><w:numFmt w:val="lowerLetter"/>'
    '<w:lvlText w:val="(%3)"/></w:lvl></w:abstractNum><w:num w:numId="7"><w:abstractNumId w:val="7"/></w:num>'
    '<w:num w:numId="8"><w:abstractNumId w:val="7"/><w:lvlOverride w:ilvl="0"><w:startOverride w:val="9"/>'
    "</w:lvlOverride></w:num>"
)


def listed(text: str, level: int, number: int = 7) -> str:
    return paragraph(text, f'<w:numPr><w:ilvl w:val="{level}"/><w:numId w:val="{number}"/></w:numPr>')


def test_word_counts_its_lists_and_so_do_we(tmp_path: Path) -> None:
    body = [
        listed("Use", 0), listed("Six persons.", 1), listed("No dogs.", 1), listed("Large ones.", 2),
        listed("Small ones.", 2), listed("Costs", 0), paragraph("In between."),
        listed("Cleaning: 45 euros.", 1), listed("Annex", 0, 8),
    ]  # fmt: skip
    passages = read(tmp_path, "hire.docx", docx("".join(body), NUMBERING))
    assert [line.strip() for line in units(passages)] == [
        "1. Use", "1.1 Six persons.", "1.2 No dogs.", "(a) Large ones.", "(b) Small ones.", "2. Costs",
        "In between.", "2.1 Cleaning: 45 euros.", "9. Annex",
    ]  # fmt: skip


def text_of(text: str) -> str:
    return f"<m:r><m:t>{text}</m:t></m:r>"


X = text_of("x")
RAISED = '<w:r><w:rPr><w:vertAlign w:val="superscript"/></w:rPr><w:t>{}</w:t></w:r>'
LEGACY = (
    '<w:r><w:fldChar w:fldCharType="begin"><w:ffData><w:checkBox><w:default w:val="0"/>{}</w:checkBox>'
    "</w:ffData></w:fldChar></w:r><w:r><w:instrText> FORMCHECKBOX </w:instrText></w:r>"
    '<w:r><w:fldChar w:fldCharType="end"/></w:r>'
)
STRUCK = "<w:r><w:rPr><w:strike/></w:rPr><w:t>4</w:t></w:r>"
CONTROL = (
    '<w:sdt><w:sdtPr><w14:checkbox><w14:checked w14:val="{}"/></w14:checkbox></w:sdtPr><w:sdtContent>'
    "<w:r><w:t>x</w:t></w:r></w:sdtContent></w:sdt>"
)


@pytest.mark.parametrize(
    ("runs", "wanted"),
    [
        (run("C = ") + f"<m:oMath>{text_of('1.85 × L')}</m:oMath>", "C = 1.85 × L"),
        (f"<m:oMath><m:f><m:num>{text_of('a+b')}</m:num><m:den>{X}</m:den></m:f></m:oMath>", "(a+b)/x"),
        (f"<m:oMath><m:sSup><m:e>{X}</m:e><m:sup>{text_of('2')}</m:sup></m:sSup></m:oMath>", "x^2"),
        (f"<m:oMath><m:rad><m:deg/><m:e>{text_of('y')}</m:e></m:rad></m:oMath>", "√(y)"),
        (LEGACY.format("<w:checked/>") + run("yes ") + LEGACY.format("") + run("no"), "☒ yes ☐ no"),
        (CONTROL.format(1) + run("yes ") + CONTROL.format(0) + run("no"), "☒ yes ☐ no"),
        ('<w:r><w:sym w:font="Wingdings" w:char="F0FE"/></w:r>' + run(" paid"), "☑ paid"),
        ('<w:r><w:sym w:font="Nobody" w:char="F0FE"/></w:r>' + run(" paid"), "[sign] paid"),
        (f"<w:ins>{run('In')}</w:ins><w:del><w:r><w:delText>out</w:delText></w:r></w:del>", "In"),
        (f"<w:moveFrom>{run('gone')}</w:moveFrom><w:fldSimple>{run('Field')}</w:fldSimple>", "Field"),
        ("<w:r><w:rPr><w:vanish/></w:rPr><w:t>hidden</w:t></w:r>" + run("Shown."), "Shown."),
        (run("It is ") + STRUCK + run("5"), "It is 5"),
        (run("10") + RAISED.format("-") + RAISED.format("6") + run(" m"), "10^-6 m"),
        (run("10") + RAISED.format("-6") + run(" m"), "10^-6 m"),
        (run("the 1") + RAISED.format("st") + run(" trip"), "the 1st trip"),
    ],
)  # fmt: skip
def test_a_paragraph_of_word_reads_as_it_is_shown(tmp_path: Path, runs: str, wanted: str) -> None:
    assert units(read(tmp_path, "a.docx", docx(f"<w:p>{runs}</w:p>"))) == [wanted]


# PDF -------------------------------------------------------------------------------------------------------


def test_words_cut_at_line_ends_are_whole_again(tmp_path: Path) -> None:
    lines = [
        "Rules for the boathouse. The maxi-", "mum load of the slipway is nine tonnes. Main-",
        "tenance is done in May. The well-", "known crane inspector comes on Mondays. Long-",
        "term berths are in the ISO-", "9001 book of the non-", "Euclidean society.",
    ]  # fmt: skip
    (passage,) = read(tmp_path, "rules.pdf", pdf(lines))
    assert passage.text == (
        "Rules for the boathouse. The maximum load of the slipway is nine tonnes. Maintenance is done in May."
        " The well-known crane inspector comes on Mondays. Long-term berths are in the ISO-9001 book of the "
        "non-Euclidean society."
    )


def test_a_page_without_text_is_named_and_sentences_stay_whole(
    tmp_path: Path,
) -> None:
    data = pdf(["The tenant pays in May. The lease"], ["runs for five years. It ends then."], None)
    passages = read(tmp_path, "lease.pdf", data)
    assert [(p.page, p.text) for p in passages] == [
        (1, "The tenant pays in May. The lease runs for five years."), (2, "It ends then."),
    ]  # fmt: skip
    left_out = load_folder(tmp_path).left_out
    assert [(one.path, one.reason) for one in left_out] == [
        ("lease.pdf, page 3", "holds no text (a picture needs OCR)")
    ]


def test_what_every_page_repeats_goes_and_so_do_their_numbers(tmp_path: Path) -> None:
    pages = [
        [
            Piece(60, 810, "Harbour report, secret"),
            Piece(60, 600, f"Boats of kind {name} are {name}."),
            Piece(280, 30, f"Page {k + 1} of 4"),
        ]
        for k, name in enumerate(("red", "blue", "green", "white"))
    ]
    passages = read(tmp_path, "report.pdf", pdf(*pages))
    assert [(p.page, p.text) for p in passages] == [
        (k + 1, f"Boats of kind {name} are {name}.")
        for k, name in enumerate(("red", "blue", "green", "white"))
    ]


BODY = [
    Piece(60, 600 - 14 * k, f"The pump of hall {k} is checked by its owner every spring.") for k in range(9)
]


def test_heads_of_two_pages_go(tmp_path: Path) -> None:
    pages = [
        [
            Piece(60, 800, "Harbour report", 9),
            *(b._replace(text=f"{b.text[:-1]} {k}.") for b in BODY),
            Piece(280, 30, f"{k} / 2"),
        ]
        for k in (1, 2)
    ]
    found = units(read(tmp_path, "report.pdf", pdf(*pages)))
    assert len(found) == 18
    assert not any("Harbour report" in text or "/ 2" in text for text in found)


@pytest.mark.parametrize("heading", ["{} About pump {name}", "Chapter {}", "{}. Use of {name}"])
@pytest.mark.parametrize("pages", [2, 6])
def test_headings_that_count_with_the_pages_stay(tmp_path: Path, heading: str, pages: int) -> None:
    names = ("red", "blue", "green", "white", "black", "brown")[:pages]
    heads = [heading.format(k, name=name) for k, name in enumerate(names, 1)]
    made = pdf(*([Piece(60, 790, head, 16, "B"), *BODY] for head in heads))
    passages = read(tmp_path, "manual.pdf", made)
    assert list(dict.fromkeys(head for p in passages for head in p.section)) == heads


def test_cells_that_come_column_by_column_are_rows_again(tmp_path: Path) -> None:
    columns = {
        60: ["Year", "Boats", "Oars"],
        200: ["2021", "1,500", "1,200"],
        300: ["2022", "1,700", "1,900"],
    }
    pieces = [Piece(x, 700 - 14 * k, t) for x, texts in columns.items() for k, t in enumerate(texts)]
    assert units(read(tmp_path, "boats.pdf", pdf(pieces))) == [
        "Year | 2021 | 2022",
        "Boats | 1,500 | 1,700",
        "Oars | 1,200 | 1,900",
    ]


@pytest.mark.parametrize(
    ("title", "wanted"),
    [("Rules of the port", "Rules of the port"), ("Microsoft Word - x12.doc", "port rules v2")],
)
def test_the_title_of_a_pdf_is_its_own_where_that_is_one(tmp_path: Path, title: str, wanted: str) -> None:
    (passage,) = read(
        tmp_path, "port_rules-v2.pdf", pdf(["These are the rules of the port of Oslo."], title=title)
    )
    assert passage.title == wanted


# Other formats ---------------------------------------------------------------------------------------------


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
    assert units(passages) == ["Code | Sold | Share", "007 | 3 | 25%", "NA | =B2+1 | ", "From | 2024-05-01"]
    assert needs(passages)["007 | 3 | 25%"] == ["Fares", "Code | Sold | Share"]
    assert [one.path for one in load_folder(tmp_path).left_out] == ["prices.xlsx, sheet 'Old'"]


def test_slides_are_pages(tmp_path: Path) -> None:
    library: Any = pytest.importorskip("pptx")
    show, out = library.Presentation(), io.BytesIO()
    for title, text in (("Cover", "We pay for storms."), ("Price", "Ten euros."), ("Old", "Nine euros.")):
        slide = show.slides.add_slide(show.slide_layouts[1])
        slide.shapes.title.text, slide.placeholders[1].text_frame.text = title, text
    slide.element.set("show", "0")
    show.slides[0].notes_slide.notes_text_frame.text = "Smile."
    show.save(out)
    passages = read(tmp_path, "show.pptx", out.getvalue())
    assert [(p.page, p.section, p.text) for p in passages] == [
        (1, ("Cover",), "We pay for storms.\nNotes: Smile."), (2, ("Price",), "Ten euros."),
    ]  # fmt: skip
    assert [one.path for one in load_folder(tmp_path).left_out] == ["show.pptx, slide 3"]


def test_lines_of_code_bring_the_lines_they_stand_below(tmp_path: Path) -> None:
    body = "\n".join(f"        self.pump_{k}.set(limit={k}, unit='bar')" for k in range(30))
    code = f"import os\n\n\nclass Plant:\n\n    def start(self):\n{body}\n\n\ndef stop():\n    os.abort()\n"
    passages = read(tmp_path, "plant.py", code)
    found = needs(passages)
    last = next(text for text in found if "pump_29" in text)
    assert found[last] == ["class Plant:", "    def start(self):"]
    assert "".join("".join(units(passages)).split()) == "".join(code.split())
    tree = json.dumps({"pumps": {f"p{k}": {"limit": k, "unit": "bar"} for k in range(30)}}, indent=2)
    found = needs(read(tmp_path, "plant.json", tree))
    assert found[next(text for text in found if '"limit": 29' in text)][0].strip() == '"pumps": {'


# Size, titles, dates ---------------------------------------------------------------------------------------

SCRIPTS = {
    "zh": "东港建于一九四年。它的高度是三十米。",
    "ja": "東港は昭和十年に建てられた．高さは三十メートルである．",
    "th": "ประภาคารเหนือสร้างขึ้นเมื่อปีมีความสูง ",
    "none": "x" * 40,
}  # fmt: skip


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_book_in_any_script_becomes_passages_of_the_same_size(tmp_path: Path, script: str) -> None:
    passages = read(tmp_path, "book.txt", SCRIPTS[script] * 400)
    assert len(passages) >= (3 if script == "none" else 20)
    assert max(len(p.text) for p in passages) < (8000 if script == "none" else 260)
    assert all(len(p.text[a:b]) < 4000 for p in passages for a, b, *_ in p.units)


@pytest.mark.parametrize("size", [5, 20, 100, 400])
def test_passages_are_about_as_long_as_asked(tmp_path: Path, size: int) -> None:
    sentences = [f"Sentence number {k} has seven words." for k in range(300)]
    text = "\n\n".join(" ".join(sentences[k : k + 4]) for k in range(0, 300, 4))
    lengths = [len(p.text.split()) for p in read(tmp_path, "long.txt", text, size)]
    assert max(lengths) <= max(size, 6)
    assert sorted(lengths)[len(lengths) // 2] >= 0.7 * size


@pytest.mark.parametrize(
    ("name", "text", "date"),
    [
        ("a.md", "---\ndate: 2024-05-03\nowner: Ann\n---\nIt is so.", "2024-05-03"),
        ("a.md", "+++\nupdated = 2024-05-03\n+++\nIt is so.", "2024-05-03"),
        ("a.txt", "Last updated: May 3, 2024\n\nIt is so.", "2024-05-03"),
        ("a.txt", "Stand: 3. Mai 2024\n\nIt is so.", "2024-05-03"),
        ("a.html", "<p>Effective date: 3 May 2024<p>It is so.", "2024-05-03"),
        ("fees_2024-05-03.txt", "It is so.", "2024-05-03"),
        ("fees 20240503.txt", "It is so.", "2024-05-03"),
        ("a.txt", "In May 2024 it was so.", ""),
        ("a.txt", "Updated: May 33, 2024", ""),
    ],
)
def test_the_date_is_the_one_that_a_document_states(tmp_path: Path, name: str, text: str, date: str) -> None:
    passages = read(tmp_path, name, text)
    assert {p.date for p in passages} == {date}
    if "owner" in text:
        assert passages[0].metadata["owner"] == "Ann"


MAIN = (
    "<title>Fares</title><header><h1>Fares of 2024</h1><p>Follow us</p></header><div id='c'>We use cookies. "
    "<button>Fine</button></div><main>{}<footer>Valid from May.</footer></main><footer>Imprint 2024</footer>"
)


def test_what_stands_beside_the_main_part_of_a_page_is_not_read(tmp_path: Path) -> None:
    passages = read(
        tmp_path, "a.html", MAIN.format("<p>Adults pay ten euros for a day on any of the ferries.")
    )
    assert units(passages) == ["Adults pay ten euros for a day on any of the ferries.", "Valid from May."]
    assert passages[0].section == ("Fares of 2024",)
    small = units(read(tmp_path, "a.html", MAIN.format("") + "<p>Adults pay ten euros. " * 9))
    assert "Adults pay ten euros." in small  # a main part without the text is not believed
    banner = '<p>Ten euros.<div class="x cookie-banner">We use cookies.</div>'
    assert units(read(tmp_path, "a.html", banner)) == ["Ten euros."]


@pytest.mark.parametrize(
    ("body", "title"),
    [
        (paragraph("Boat hire", '<w:outlineLvl w:val="0"/>') + paragraph("It is so."), "Boat hire"),
        (paragraph("Introduction", '<w:outlineLvl w:val="0"/>') + paragraph("It is so."), "hire 2"),
        (paragraph("1. Use", '<w:outlineLvl w:val="0"/>') + paragraph("It is so."), "hire 2"),
        (
            paragraph("It is so. " * 9) + paragraph("Costs", '<w:outlineLvl w:val="0"/>') + paragraph("Ten."),
            "hire 2",
        ),
    ],
)
def test_a_word_file_is_called_by_the_heading_that_it_begins_with(
    tmp_path: Path, body: str, title: str
) -> None:
    assert {p.title for p in read(tmp_path, "hire_2.docx", docx(body))} == {title}


def test_what_files_say_of_themselves_can_be_filtered_by(tmp_path: Path) -> None:
    page = (
        '<html lang="en"><meta name="author" content="Ann"><meta property="article:modified_time" '
        'content="2024-05-03T10:00:00Z"><meta name="keywords" content="boats, oars"><p>It is so.'
    )
    (web,) = read(tmp_path, "a.html", page)
    assert web.metadata == {
        "author": "Ann",
        "modified": "2024-05-03",
        "keywords": ["boats", "oars"],
        "language": "en",
    }
    assert web.date == "2024-05-03"
    library: Any = pytest.importorskip("docx")
    file, out = library.Document(), io.BytesIO()
    file.add_paragraph("It is so.")
    given = file.core_properties
    given.author, given.category, given.keywords, given.title = (
        "Bob",
        "contracts",
        "lease; flat",
        "Lease of a flat",
    )
    given.created = given.modified = datetime.datetime(2024, 5, 3)
    file.save(out)
    (word,) = read(tmp_path, "a.docx", out.getvalue())
    days = {"created": "2024-05-03", "modified": "2024-05-03"}
    assert word.metadata == {"author": "Bob", "category": "contracts", "keywords": ["lease", "flat"], **days}
    assert word.title == "Lease of a flat"


def test_a_title_has_twelve_words_at_most_and_none_of_them_is_lost(tmp_path: Path) -> None:
    heading = " ".join(f"word{k}" for k in range(20))
    (passage,) = read(tmp_path, "a.md", f"# {heading}\n\nIt is so.")
    assert passage.title == " ".join(heading.split()[:12])
    assert passage.section == (heading,)


def test_labels_part_no_statement_of_a_pdf(tmp_path: Path) -> None:
    rows = [(700, "As of June 30,", "2023", "2022"), (685, "Total assets", "17,003", "17,426")]
    rows += [(670, "Total debt", "12,913", "13,285"), (640, "Equity", "", ""), (618, "Shares:", "", "")]
    rows += [(596, "Authorized and issued", "14", "15"), (581, "Retained earnings", "865", "534")]
    pieces = [
        Piece(x, y, said, 10, "B" if x == 60 and not first else "")
        for y, label, first, second in rows
        for x, said in ((60, label), (300, first), (400, second))
        if said
    ]
    body = [
        Piece(60, 540 - 14 * k, "The notes are a part of these statements of the company.") for k in range(5)
    ]
    passages = read(
        tmp_path, "balance.pdf", pdf([Piece(60, 740, "The sums are in dollars."), *pieces, *body])
    )
    assert needs(passages)["Retained earnings | 865 | 534"] == [
        "As of June 30, | 2023 | 2022",
        "Shares: |  | ",
    ]


def test_a_year_or_quarter_of_a_company_is_its_number() -> None:
    assert Words()("Q4 of FY2023, FY22, 2023Q4, Q22021") == ["q4", "2023", "2022", "2023", "q4", "q2", "2021"]


@pytest.mark.parametrize(("turn", "rotation"), [((0, 1, -1, 0, 842, 0), 90), ((0, -1, 1, 0, 0, 842), 0)])
def test_pages_of_a_pdf_that_lie_on_their_side_are_read_as_others(
    tmp_path: Path, turn: tuple[float, ...], rotation: int
) -> None:
    pieces = [
        Piece(x, 700 - 14 * k, text)
        for k, row in enumerate(STOCK)
        for x, text in zip((60, 160, 260), row, strict=True)
    ]
    made = pypdfium2.PdfDocument(pdf([Piece(60, 740, "What is in stock in May."), *pieces]))
    page = made[0]
    for thing in page.get_objects():
        pypdfium2.raw.FPDFPageObj_Transform(thing, *turn)
    page.gen_content()
    page.set_rotation(rotation)
    file = io.BytesIO()
    made.save(file)
    assert units(read(tmp_path, "stock.pdf", file.getvalue())) == [
        "What is in stock in May.", *map(" | ".join, STOCK)
    ]  # fmt: skip


def test_what_a_form_of_a_pdf_is_filled_with_stands_at_its_labels(tmp_path: Path) -> None:
    labels = [
        Piece(60, 700, "Name:"),
        Piece(60, 660, "Leave begins on:"),
        Piece(60, 620, "Kind of leave:"),
        Piece(80, 600, "full leave"),
        Piece(80, 580, "part-time work"),
        Piece(60, 540, "Allowance claimed?        yes           no"),
    ]
    fields = [
        Field(200, 698, "Ann Field"),
        Field(200, 658, "3 August 2026"),
        Field(62, 598, "no tick"),
        Field(62, 578, "tick"),
        Field(166, 538, "tick"),
        Field(212, 538, "no tick"),
    ]
    assert units(read(tmp_path, "form.pdf", pdf(labels, fields=fields))) == [
        "Name: Ann Field",
        "Leave begins on: 3 August 2026",
        "Kind of leave:",
        "\u2610 full leave",
        "\u2611 part-time work",
        "Allowance claimed? \u2611 yes \u2610 no",
    ]


def test_items_of_a_pdf_begin_at_their_dots_though_these_are_drawn(tmp_path: Path) -> None:
    lines = [
        "The warranty does not cover:",
        "tyres, brake pads and other parts that wear",
        "damage by cleaners",
    ]
    pieces = [Piece(60 + 20 * bool(k), 700 - 14 * k, line) for k, line in enumerate(lines)]
    dots = b"68 688 4 4 re f 68 674 4 4 re f"
    made = pdf(pieces, producer="Skia/PDF m140", drawn=dots)
    wanted = [lines[0], *(f"\u2022 {line}" for line in lines[1:])]
    assert units(read(tmp_path, "warranty.pdf", made)) == wanted
    slides = pdf([f"\u2022 The share in the market of the north is {k} %" for k in (18, 23)])
    assert len(units(read(tmp_path, "slides.pdf", slides))) == 2


def test_names_of_groups_of_rows_and_cells_between_two_lines_of_heads(tmp_path: Path) -> None:
    places = (60, 140, 200, 270, 400, 470)
    heads = [
        Piece(60, 693, "Zone"),
        Piece(200, 700, "Standard service"),
        Piece(400, 700, "Express service"),
        *(
            Piece(x, 686, text)
            for x, text in zip(places[1:], ["Weight", *2 * ["Price", "Days"]], strict=True)
        ),
    ]

    def page(part: int, rows: list[list[str]]) -> list[Piece]:
        body = [
            Piece(x, 668 - 18 * k, text)
            for k, row in enumerate(rows)
            for x, text in zip(places, row, strict=True)
            if text
        ]
        return [Piece(60, 740, f"Prices of parcels in euros, part {part}"), *heads, *body]

    one = [["Home", "1 kg", "4.20", "2", "9.90", "1"], ["", "2 kg", "5.90", "2", "12.80", "1"]]
    one += [["", "5 kg", "9.30", "2", "18.60", "1"], ["North", "1 kg", "6.50", "3", "14.00", "1"]]
    two = [["", "2 kg", "9.90", "3", "19.80", "1"], ["", "5 kg", "11.60", "3", "22.70", "1"]]
    two += [["South", "1 kg", "8.80", "4", "18.10", "2"]]
    found = units(read(tmp_path, "prices.pdf", pdf(page(1, one), page(2, two))))
    assert "Home | 5 kg | 9.30 | 2 | 18.60 | 1" in found
    assert "North | 2 kg | 9.90 | 3 | 19.80 | 1" in found
    assert any(line.startswith("Zone | ") and "Standard service" in line for line in found)


def test_what_a_browser_prints_around_a_page_is_not_read(tmp_path: Path) -> None:
    body = [Piece(60, 700 - 14 * k, f"The pump number {k} is new and it was built in May.") for k in range(9)]
    around = [Piece(25, 820, "11/27/26, 4:37 PM", 8), Piece(25, 15, "https://pumps.example/new 1/1", 8)]
    assert "4:37" not in "".join(units(read(tmp_path, "pumps.pdf", pdf([*around, *body]))))
    assert "pumps.example" not in "".join(units(read(tmp_path, "pumps.pdf", pdf([*around, *body]))))


def test_the_small_mark_of_a_note_in_a_pdf_stands_before_it(tmp_path: Path) -> None:
    lines = [Piece(60, 700 - 14 * k, f"In May it handled {k} calls of ships.") for k in range(3)]
    note = [Piece(60, 600, "1", 6), Piece(66, 597, "Pilot boats are not counted.", 8)]
    assert units(read(tmp_path, "calls.pdf", pdf([*lines, *note])))[-1] == "1 Pilot boats are not counted."
