"""What all formats share: units, headings, lists, titles, dates; pages of the web, slides and code."""

import datetime
import io
import json
from pathlib import Path
from typing import Any

import pytest

from mio_rag.corpora.dataset import load_folder
from tests.documents.made import Piece, docx, needs, paragraph, pdf, read, units

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
        ("a.html", "<article><p>Five euros.</article><footer><ul><li><a href=/i>Imprint</a><li>"
         "<a href=/p>Privacy</a></ul>\u00a9 2025 Kestrel</footer>", ["Five euros."]),
        ("a.html", "<article><p>Five euros.</article><ul><li><a href=/i>Imprint</a></ul>", ["Five euros."]),
        ("a.html", "<h1>Forms</h1><ul><li><a href=/i>Leave</a><li><a href=/p>Travel</a></ul><footer>"
         "<a href='tel:1'>0555</a></footer>", ["- Leave", "- Travel", "0555"]),
        ("a.html", "<h2>Prices</h2><details><summary>Show prices</summary><p>It costs 24 euros.</details>"
         "<h2>Asked</h2><details><summary>May I pay by card</summary><p>Yes.</details>",
         ["It costs 24 euros.", "Yes."]),
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
        ("a.html", f"Size <select>{'<option>S' * 3000}<option selected>M</select>", ["Size M"]),
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
        ("a.txt", "Jobs\n\nClosing date: 4 June 2025. Date: 3 May 2024", "2024-05-03"),
        *(
            (f"a.{kind}", f"Rules\n\n{said} 2024\n\nIt is so.", "2024-05-03")
            for kind in ("txt", "md")
            for said in (
                "Effective 3 May",
                "In force from 3 May",
                "In effect since May 3,",
                "Valid as of 3 May",
                "Applies from 3 May",
                "Stand: 3. Mai",
                "G\u00fcltig ab dem 3. Mai",
                "In Kraft seit 3. Mai",
                "Rev. 7, 3 May",
                "Policy no. 4, effective 3 May",
            )
        ),
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


def test_a_first_heading_that_holds_the_title_and_more_is_the_title(tmp_path: Path) -> None:
    for heading, title in (("Leave regulation 2025", "Leave regulation 2025"), ("Staff", "Leave regulation")):
        (passage,) = read(tmp_path, "a.md", f"---\ntitle: Leave regulation\n---\n# {heading}\n\nIt is so.\n")
        assert passage.title == title


def test_a_title_has_twelve_words_at_most_and_none_of_them_is_lost(tmp_path: Path) -> None:
    heading = " ".join(f"word{k}" for k in range(20))
    (passage,) = read(tmp_path, "a.md", f"# {heading}\n\nIt is so.")
    assert passage.title == " ".join(heading.split()[:12])
    assert passage.section == (heading,)


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
