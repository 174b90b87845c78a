"""PDF: what a reader sees of pages, by a table of pages and units."""

import io
from pathlib import Path

import pypdfium2
import pytest

from mio_rag.corpora.dataset import load_folder
from mio_rag.documents import pdf as reader
from mio_rag.documents import processes
from tests.documents.made import Field, Piece, grid, needs, pdf, read, units

FARES = [
    ["Ticket", "Summer", "Winter", "All year"],
    ["Adult day return", "24", "18", ""],
    ["Child day return", "", "9", ""],
    ["Season pass", "", "", "310"],
]
STOCK = [["A-102", "Bolt", "12"], ["A-107", "Nut", "7"], ["B-1", "Ring", "40"]]
BOATS = [["Year", "2021", "2022"], ["Boats", "1,500", "1,700"], ["Oars", "1,200", "1,900"]]
IN_STOCK = [Piece(60, 740, "What is in stock in May."), *grid(STOCK, (60, 160, 260))]
BODY = [
    Piece(60, 600 - 14 * k, f"The pump of hall {k} is checked by its owner every spring.") for k in range(9)
]
CUT = [
    "Rules for the boathouse. The maxi-", "mum load of the slipway is nine tonnes. Main-",
    "tenance is done in May. The well-", "known crane inspector comes on Mondays. Long-",
    "term berths are in the ISO-", "9001 book of the non-", "Euclidean society.",
]  # fmt: skip
WHOLE = [
    "Rules for the boathouse.", "The maximum load of the slipway is nine tonnes.",
    "Maintenance is done in May.", "The well-known crane inspector comes on Mondays.",
    "Long-term berths are in the ISO-9001 book of the non-Euclidean society.",
]  # fmt: skip
FORM = [
    Piece(60, 700, "Name:"), Piece(60, 660, "Leave begins on:"), Piece(60, 620, "Kind of leave:"),
    Piece(80, 600, "full leave"), Piece(80, 580, "part-time work"),
    Piece(60, 540, "Allowance claimed?        yes           no"),
]  # fmt: skip
FILLED = [
    Field(200, 698, "Ann Field"), Field(200, 658, "3 August 2026"), Field(62, 598, "no tick"),
    Field(62, 578, "tick"), Field(166, 538, "tick"), Field(212, 538, "no tick"),
]  # fmt: skip
NOT_COVERED = [
    "The warranty does not cover:", "tyres, brake pads and other parts that wear", "damage by cleaners",
]  # fmt: skip
SHARES = [f"\u2022 The share in the market of the north is {k} %" for k in (18, 23)]
CALLS = [f"In May it handled {k} calls of ships." for k in range(3)]
COLOURS = ("red", "blue", "green", "white")
CHECKED = [piece.text for piece in BODY]


def turned(data: bytes, turn: tuple[float, ...], rotation: int) -> bytes:
    """The first page with its content turned, and the page turned by degrees."""
    made, file = pypdfium2.PdfDocument(data), io.BytesIO()
    page = made[0]
    for thing in page.get_objects():
        pypdfium2.raw.FPDFPageObj_Transform(thing, *turn)
    page.gen_content()
    page.set_rotation(rotation)
    made.save(file)
    return file.getvalue()


SEEN = {
    "rows": (
        pdf([Piece(60, 740, "The fares are in euros."), *grid(FARES, (60, 260, 340, 420))]),
        ["The fares are in euros.", *map(" | ".join, FARES)],
    ),
    "cells that come column by column": (
        pdf([piece for x in (60, 200, 300) for piece in grid(BOATS, (60, 200, 300)) if piece.x == x]),
        [*map(" | ".join, BOATS)],
    ),
    "a page on its side": (
        turned(pdf(IN_STOCK), (0, 1, -1, 0, 842, 0), 90),
        ["What is in stock in May.", *map(" | ".join, STOCK)],
    ),
    "content on its side": (
        turned(pdf(IN_STOCK), (0, -1, 1, 0, 0, 842), 0),
        ["What is in stock in May.", *map(" | ".join, STOCK)],
    ),
    "words cut at line ends": (pdf(CUT), WHOLE),
    "what a form is filled with": (
        pdf(FORM, fields=FILLED),
        ["Name: Ann Field", "Leave begins on: 3 August 2026", "Kind of leave:", "\u2610 full leave",
         "\u2611 part-time work", "Allowance claimed? \u2611 yes \u2610 no"],
    ),
    "dots that are drawn": (
        pdf(
            [Piece(60 + 20 * bool(k), 700 - 14 * k, line) for k, line in enumerate(NOT_COVERED)],
            producer="Skia/PDF m140",
            drawn=b"68 688 4 4 re f 68 674 4 4 re f",
        ),
        [NOT_COVERED[0], *(f"\u2022 {line}" for line in NOT_COVERED[1:])],
    ),
    "dots that are letters": (pdf(SHARES), SHARES),
    "the small mark of a note": (
        pdf([*(Piece(60, 700 - 14 * k, line) for k, line in enumerate(CALLS)), Piece(60, 600, "1", 6),
             Piece(66, 597, "Pilot boats are not counted.", 8)]),
        [*CALLS, "1 Pilot boats are not counted."],
    ),
    "what a browser prints around a page": (
        pdf([Piece(25, 820, "11/27/26, 4:37 PM", 8), Piece(25, 15, "https://pumps.example/new 1/1", 8),
             *BODY]),
        CHECKED,
    ),
    "heads and numbers of four pages": (
        pdf(*([Piece(60, 810, "Harbour report, secret"), Piece(60, 600, f"Boats of kind {name} are {name}."),
               Piece(280, 30, f"Page {k} of 4")] for k, name in enumerate(COLOURS, 1))),
        [f"Boats of kind {name} are {name}." for name in COLOURS],
    ),
    "heads and numbers of two pages": (
        pdf(*([Piece(60, 800, "Harbour report", 9), *(b._replace(text=f"{b.text[:-1]} {k}.") for b in BODY),
               Piece(280, 30, f"{k} / 2")] for k in (1, 2))),
        [f"{text[:-1]} {k}." for k in (1, 2) for text in CHECKED],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SEEN)
def test_units_are_what_a_reader_sees(tmp_path: Path, case: str) -> None:
    data, wanted = SEEN[case]
    passages = read(tmp_path, "a.pdf", data)
    assert units(passages) == wanted
    if case == "rows":
        assert all(wanted[1] in needs(passages)[row] for row in wanted[2:])


def test_a_page_without_text_is_named_and_sentences_go_on_over_pages(tmp_path: Path) -> None:
    data = pdf(["The tenant pays in May. The lease"], ["runs for five years. It ends then."], None)
    passages = read(tmp_path, "lease.pdf", data)
    assert [(p.page, p.text) for p in passages] == [
        (1, "The tenant pays in May. The lease runs for five years."), (2, "It ends then."),
    ]  # fmt: skip
    assert [(one.path, one.reason) for one in load_folder(tmp_path).left_out] == [
        ("lease.pdf, page 3", "holds no text (a picture needs OCR)")
    ]


CALLS_AT = [
    (name, month, f"1,{k}{i}0") for k, name in enumerate(COLOURS) for i, month in enumerate(("May", "June"))
]
HEAD = ("Berth", "Month", "Calls")
PLACES = (60, 160, 260)


@pytest.mark.parametrize("repeated", [True, False])
def test_rows_of_a_table_have_its_names_on_every_page(tmp_path: Path, repeated: bool) -> None:
    pages = [
        [*grid([HEAD] if repeated or not k else [], PLACES, 780),
         *grid(CALLS_AT[2 * k : 2 * k + 2], PLACES, 764), Piece(280, 30, f"Page {k + 1} of 4")]
        for k in range(4)
    ]  # fmt: skip
    passages = read(tmp_path, "calls.pdf", pdf(*pages))
    lines = {row: head for row, head in needs(passages).items() if row in map(" | ".join, CALLS_AT)}
    assert len(lines) == len(CALLS_AT)
    assert all(" | ".join(HEAD) in head for head in lines.values())
    assert not any("Page" in passage.text for passage in passages)


def test_headings_part_tables_and_tables_of_words_have_columns(tmp_path: Path) -> None:
    seen = [["Date", "Place", "What happened"], ["11 March", "Drum Cross", "A railcar left the rails"],
            ["2 October", "Saint Orm", "A cyclist slipped"]]  # fmt: skip
    costs = [["Item", "million EUR"], ["Fares", "20.1"], ["Staff", "13.7"]]
    page = [
        Piece(60, 760, "3 Accidents", 18, "B"), Piece(60, 735, "There were two of them."),
        *grid(seen, (140, 220, 310), 715, 18), Piece(60, 650, "4 Finance", 18, "B"),
        *grid(costs, (240, 320), 630, 18), Piece(60, 560, "5 Outlook", 18, "B"),
        Piece(60, 540, "More passengers are expected."),
    ]  # fmt: skip
    passages = read(tmp_path, "report.pdf", pdf(["Annual report"], page))
    found = needs(passages)
    for heading, rows in (("3 Accidents", seen), ("4 Finance", costs)):
        for row in map(" | ".join, rows[1:]):
            assert {heading, " | ".join(rows[0])} <= set(found[row])
    assert found["More passengers are expected."] == ["5 Outlook"]


@pytest.mark.parametrize("heading", ["{} About pump {name}", "Chapter {}", "{}. Use of {name}"])
@pytest.mark.parametrize("pages", [2, 6])
def test_headings_that_count_with_the_pages_stay(tmp_path: Path, heading: str, pages: int) -> None:
    names = ("red", "blue", "green", "white", "black", "brown")[:pages]
    heads = [heading.format(k, name=name) for k, name in enumerate(names, 1)]
    made = pdf(*([Piece(60, 790, head, 16, "B"), *BODY] for head in heads))
    passages = read(tmp_path, "manual.pdf", made)
    assert list(dict.fromkeys(head for p in passages for head in p.section)) == heads


@pytest.mark.parametrize(
    ("title", "wanted"),
    [("Rules of the port", "Rules of the port"), ("Microsoft Word - x12.doc", "port rules v2")],
)
def test_the_title_of_a_pdf_is_its_own_where_that_is_one(tmp_path: Path, title: str, wanted: str) -> None:
    (passage,) = read(
        tmp_path, "port_rules-v2.pdf", pdf(["These are the rules of the port of Oslo."], title=title)
    )
    assert passage.title == wanted


def test_labels_part_no_statement(tmp_path: Path) -> None:
    rows = [(700, "As of June 30,", "2023", "2022"), (685, "Total assets", "17,003", "17,426")]
    rows += [(670, "Total debt", "12,913", "13,285"), (640, "Equity", "", ""), (618, "Shares:", "", "")]
    rows += [(596, "Authorized and issued", "14", "15"), (581, "Retained earnings", "865", "534")]
    pieces = [
        piece._replace(size=10, font="B" if piece.x == 60 and not row[1] else "")
        for y, *row in rows
        for piece in grid([row], (60, 300, 400), y)
    ]
    around = [Piece(60, 740, "The sums are in dollars.")]
    notes = "The notes are a part of these statements of the company."
    around += [Piece(60, 540 - 14 * k, notes) for k in range(5)]
    found = needs(read(tmp_path, "balance.pdf", pdf([*around[:1], *pieces, *around[1:]])))
    assert found["Retained earnings | 865 | 534"] == ["As of June 30, | 2023 | 2022", "Shares: |  | "]


def test_names_of_groups_of_rows_and_cells_between_two_lines_of_heads(tmp_path: Path) -> None:
    places = (60, 140, 200, 270, 400, 470)
    heads = [Piece(60, 693, "Zone"), Piece(200, 700, "Standard service"), Piece(400, 700, "Express service")]
    heads += grid([["Weight", "Price", "Days", "Price", "Days"]], places[1:], 686)
    parts = [
        [["Home", "1 kg", "4.20", "2", "9.90", "1"], ["", "2 kg", "5.90", "2", "12.80", "1"],
         ["", "5 kg", "9.30", "2", "18.60", "1"], ["North", "1 kg", "6.50", "3", "14.00", "1"]],
        [["", "2 kg", "9.90", "3", "19.80", "1"], ["", "5 kg", "11.60", "3", "22.70", "1"],
         ["South", "1 kg", "8.80", "4", "18.10", "2"]],
    ]  # fmt: skip
    pages = [
        [Piece(60, 740, f"Prices of parcels in euros, part {k}"), *heads, *grid(rows, places, 668, 18)]
        for k, rows in enumerate(parts, 1)
    ]
    found = units(read(tmp_path, "prices.pdf", pdf(*pages)))
    assert {"Home | 5 kg | 9.30 | 2 | 18.60 | 1", "North | 2 kg | 9.90 | 3 | 19.80 | 1"} <= {*found}
    assert any(line.startswith("Zone | ") and "Standard service" in line for line in found)


def test_a_large_file_is_read_in_parts_as_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = [
        [Piece(60, 600 - 20 * k, f"A line of its own has {name}"), *IN_STOCK]
        for k, name in enumerate(COLOURS)
    ]
    data = pdf(*pages)
    whole = reader.read_pdf(data)
    for place, name, value in ((processes, "MUCH", 1), (processes, "cores", lambda: 2), (reader, "_PART", 2)):
        monkeypatch.setattr(place, name, value)
    assert len(whole.blocks) > 5
    assert reader.read_pdf(data) == whole


def test_pages_that_all_say_the_same_are_read(tmp_path: Path) -> None:
    assert units(read(tmp_path, "label.pdf", pdf(*["Keep this box dry and cold."] * 4)))


def test_numbers_without_a_dot_count_the_items_of_a_list_over_pages(tmp_path: Path) -> None:
    goals = [f"{k} Paint the {colour} boat in May." for k, colour in enumerate(COLOURS, 1)]
    pages = [
        [Piece(60, 790 - 16 * k, goal, 11, "B") for k, goal in enumerate(half)]
        for half in (goals[:2], goals[2:])
    ]
    pages[0] = [Piece(60, 820, "The goals are:"), *pages[0]]
    found = units(read(tmp_path, "plan.pdf", pdf(*pages, [*BODY])))
    assert [goal.replace(" ", ". ", 1) for goal in goals] == [one for one in found if "Paint" in one]


def test_a_bullet_of_another_font_begins_an_item_that_goes_on(tmp_path: Path) -> None:
    lines = [
        Piece(60, 790, "*", 8), Piece(72, 790, "The red boat is painted by its owner each year in May"),
        Piece(72, 776, "and dries for nine days in the yard before it is used."),
        Piece(60, 762, "*", 8), Piece(72, 762, "The blue boat is sold."),
    ]  # fmt: skip
    found = units(read(tmp_path, "boats.pdf", pdf(lines, [*BODY])))
    assert found[0].startswith("* The red boat")
    assert "May and dries for nine days" in found[0]
    assert found[1] == "* The blue boat is sold."
