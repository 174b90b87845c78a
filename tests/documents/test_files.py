"""Folders of documents: what is read, what is left out, and why."""

import base64
import os
import re
import zipfile
import zlib
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest

from mio_rag.corpora.dataset import load_folder
from mio_rag.corpora.load import load_dataset
from mio_rag.errors import DataError, InputError
from tests.documents.made import Piece, pdf


def test_folder_of_documents(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "notes.md").write_text("# Arno\n\nThe Arno is a river. It flows through Florence.\n")
    (tmp_path / "po.txt").write_text("The Po is long.")
    (tmp_path / "PAPER.PDF").write_bytes(pdf("The Tiber flows through Rome.", "It is 406 kilometres long."))
    (tmp_path / "image.png").write_bytes(b"\x89PNG")
    data = load_folder(tmp_path, max_words=5)
    assert {(p.id, p.text) for p in data.passages} == {
        ("PAPER.PDF#0", "The Tiber flows through Rome."),
        ("PAPER.PDF#1", "It is 406 kilometres long."),
        ("po.txt#0", "The Po is long."),
        ("sub/notes.md#0", "The Arno is a river."),
        ("sub/notes.md#1", "It flows through Florence."),
    }
    assert {(p.title, p.source) for p in data.passages if p.id.startswith("sub")} == {
        ("Arno", "sub/notes.md")
    }
    assert data.questions == ()
    assert [(p.id, p.page) for p in load_folder(tmp_path / "PAPER.PDF").passages] == [
        ("PAPER.PDF#0", 1), ("PAPER.PDF#1", 2),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "title", "read"),
    [
        ("Bell Rock  Light\n\nIt was lit in 1811.", "Bell Rock Light", "It was lit in 1811."),
        ("\r\n Skerryvore \r\n\r\nIt is tall.", "Skerryvore", "It is tall."),
        ("1. Open the lid\n\n2. Press it.", "notes", "1. Open the lid 2. Press it."),
        ("key = value\n\nIt is tall.", "notes", "key = value It is tall."),
        ("\u957f\u57ce\u3002\n\nIt is tall.", "notes", "\u957f\u57ce\u3002 It is tall."),
        ("It was lit in 1811.\n\nIt is tall.", "notes", "It was lit in 1811. It is tall."),
        ("A line that\ngoes on here.", "notes", "A line that goes on here."),
        ("Only a heading\n\n  \n", "notes", "Only a heading"),
        (f"{'long ' * 30}line\n\nIt is tall.", "notes", f"{'long ' * 30}line It is tall."),
    ],
)
def test_a_short_first_line_that_stands_alone_is_the_title_of_a_text_file(
    tmp_path: Path, text: str, title: str, read: str
) -> None:
    (tmp_path / "notes.txt").write_bytes(text.encode())
    passages = load_folder(tmp_path).passages
    assert {p.title for p in passages} == {title}
    assert " ".join(" ".join(p.text for p in passages).split()) == read


def test_what_can_be_read_is_read_and_the_rest_is_listed(tmp_path: Path) -> None:
    (tmp_path / "fine.txt").write_text("Fine.")
    (tmp_path / "marked.md").write_text("A marked caf\u00e9.", encoding="utf-16")
    (tmp_path / "signed.txt").write_text("Signed.", encoding="utf-8-sig")
    bad = {
        "blank.md": (b" \n\n ", "holds no text"),
        "photo.jpg": (b"x", r"\.jpg files are not read"),
        "broken.docx": (b"PK nonsense", r"cannot be read as DOCX \(BadZipFile"),
        "broken.pdf": (pdf("text")[:150], "cannot be read as a PDF"),
        "empty.txt": (b"", "is empty"),
        "image.png": (b"\x89PNG", r"\.png files are not read"),
        "latin.txt": (b"caf\xe9\x01", r"is not UTF-8 text \(at byte 3\): save it as UTF-8"),
        "locked.docx": (b"\xd0\xcf\x11\xe0" + bytes(99), "is encrypted"),
        "locked.pdf": (encrypted("secret"), "is encrypted: save it without a password"),
        "notes": (b"Text.", "has no ending"),
        "odd.html": (b'<meta charset="klingon"><p>x', "declares the encoding 'klingon'"),
        "unmarked.txt": ("Unmarked.".encode("utf-16-le"), "holds NUL characters"),
    }
    for name, (content, _) in bad.items():
        (tmp_path / name).write_bytes(content)
    os.mkfifo(tmp_path / "pipe.txt")
    bad["pipe.txt"] = (b"", "is not a file")
    data = load_dataset(tmp_path)
    assert [p.text for p in data.passages] == ["Fine.", "A marked caf\u00e9.", "Signed."]
    assert [item.path for item in data.left_out] == sorted(bad)
    for item in data.left_out:
        assert re.match(bad[item.path][1], item.reason.removeprefix("its name ")), item


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1", "utf-8"])
@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.csv", "a.html", "a.py"])
def test_texts_in_other_encodings_are_read_and_listed(tmp_path: Path, name: str, encoding: str) -> None:
    text = "A na\u00efve caf\u00e9 takes \u00a35 a day."
    (tmp_path / name).write_bytes(text.encode(encoding))
    data = load_folder(tmp_path)
    assert text in " ".join(p.text for p in data.passages)
    assert [(one.path, "cp1252" in one.reason) for one in data.left_out] == (
        [] if encoding == "utf-8" else [(f"{name}, its encoding", True)]
    )


@pytest.mark.parametrize(
    ("name", "given", "printed", "title"),
    [
        ("safety-manual", "", "Safety Manual", "Safety Manual"),
        ("scan_0042", "", "Rules for Pilots", "Rules for Pilots"),
        ("acme-lease", "", "Rules for Pilots", "acme lease"),
        ("acme-lease", "Rules of Pilots", "Rules of Pilots", "Rules of Pilots"),
        ("safety-manual", "", "", "safety manual"),
    ],
)
def test_a_pdf_is_called_by_what_its_first_page_prints(
    tmp_path: Path, name: str, given: str, printed: str, title: str
) -> None:
    lines = [Piece(60, 640 - 14 * k, "Ten euros are the price of it all.") for k in range(9)]
    head = [Piece(60, 720, printed, 22)] if printed else []
    (tmp_path / f"{name}.pdf").write_bytes(pdf([*head, *lines], title=given))
    (passage,) = load_folder(tmp_path).passages
    assert passage.title == title


def test_where_nothing_can_be_read_the_error_lists_why(tmp_path: Path) -> None:
    for k in range(12):
        (tmp_path / f"{k:02}.doc").write_bytes(b"x")
    with pytest.raises(DataError) as raised:
        load_dataset(tmp_path)
    head, *reasons, more = raised.value.problems
    assert "holds no text that can be read" in head
    assert reasons == [f"{k:02}.doc: .doc files are not read" for k in range(10)]
    assert more == "and 2 more"


def test_large_files_and_what_unpacks_to_more_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "small.txt").write_text("Small.")
    (tmp_path / "large.txt").write_text("Large. " * 200)
    with zipfile.ZipFile(tmp_path / "bomb.docx", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", " " * 100_000)
    data = load_folder(tmp_path, max_bytes=1000)
    assert [p.source for p in data.passages] == ["small.txt"]
    assert [(i.path, i.reason.split(",")[0]) for i in data.left_out] == [
        ("bomb.docx", "unpacks to 0.1 MB"), ("large.txt", "holds 0.0 MB"),
    ]  # fmt: skip
    with pytest.raises(InputError, match="max_bytes=0"):
        load_folder(tmp_path, max_bytes=0)


def test_links_out_of_the_folder_are_followed_on_request_only_and_loops_end(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    (inside / "sub").mkdir(parents=True)
    outside.mkdir()
    (inside / "sub" / "a.txt").write_text("Inside.")
    (outside / "b.txt").write_text("Outside.")
    (outside / "back").symlink_to(inside)
    targets = {
        "again.txt": "sub/a.txt", "cycle": "cycle", "gone.txt": "nowhere", "sub/up": "..",
        "out": "../outside", "out.txt": "../outside/b.txt",
    }  # fmt: skip
    for name, target in targets.items():
        (inside / name).symlink_to(target)
    closed, followed = load_folder(inside), load_folder(inside, follow_links=True)
    assert [p.text for p in closed.passages] == ["Inside."]
    reasons = {item.path: item.reason for item in closed.left_out}
    assert set(reasons) == set(targets)
    assert reasons["out"] == reasons["out.txt"]
    assert "--follow-links" in reasons["out"]
    assert "the same as 'sub/a.txt'" in reasons["again.txt"]
    assert "broken link" in reasons["cycle"]
    assert {p.id: p.text for p in followed.passages} == {"out/b.txt#0": "Outside.", "sub/a.txt#0": "Inside."}
    assert {i.path for i in followed.left_out} == {
        "again.txt", "cycle", "gone.txt", "sub/up", "out/back", "out.txt",
    }  # fmt: skip


def test_folders_and_names_that_cannot_be_opened_are_listed(tmp_path: Path) -> None:
    (tmp_path / "fine.txt").write_text("Fine.")
    (tmp_path / os.fsdecode(b"caf\xe9.txt")).write_text("Its name is not UTF-8.")
    at = os.open(tmp_path, os.O_RDONLY)
    for _ in range(20):  # a path longer than the system opens
        os.mkdir("d" * 250, dir_fd=at)
        deeper = os.open("d" * 250, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = deeper
    os.close(at)
    data = load_folder(tmp_path)
    assert [p.text for p in data.passages] == ["Fine."]
    assert [item.reason for item in data.left_out] == [
        "its name is not valid UTF-8: rename it", "cannot be opened: File name too long",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("title", "heading", "repeated"),
    [
        ("Po", "Po", True),
        ("The Po", "THE  po", True),
        ("Po | Rivers of Italy", "Po", True),
        ("Po - Rivers of Italy", "Po", True),
        ("Po-Delta", "Po", False),
        ("Rivers: Po", "Po", False),
    ],
)
def test_a_heading_that_repeats_the_title_is_no_section(
    tmp_path: Path, title: str, heading: str, repeated: bool
) -> None:
    text = f"<title>{title}</title><h1>{heading}</h1><p>It is long."
    (tmp_path / "po.html").write_text(text)
    (tmp_path / "bare.html").write_text(f"<h1>{heading}</h1>")
    (bare, page) = load_folder(tmp_path).passages
    assert (page.title, page.text) == (heading if "Rivers of" in title else title, "It is long.")
    assert page.section == (() if repeated else (heading,))
    assert bare.text.split() == heading.split()  # all there is stays


@pytest.mark.parametrize(
    "markup",
    [
        "<div>",
        "<p>a ",
        "<b>x",
        "<table><tr><td>",
        "<nav>",
        "<![x]>",
        "<ul><li>a",
        "<p hidden>",
        "<sup>",
        "<main>",
    ],
)
def test_endless_nesting_neither_breaks_the_reader_nor_stops_it(tmp_path: Path, markup: str) -> None:
    (tmp_path / "fine.txt").write_text("Fine.")
    (tmp_path / "deep.html").write_text(markup * 3000 + "end")
    data = load_folder(tmp_path)
    read = " ".join(p.text for p in data.passages if p.source == "deep.html")
    assert read.endswith("end") or [item.path for item in data.left_out] == ["deep.html"]


def test_docx_is_read_with_tables_boxes_and_changes_as_they_are_shown(tmp_path: Path) -> None:
    docx: Any = pytest.importorskip("docx")
    document = docx.Document()
    document.add_heading("The River Atlas", 0)
    document.add_paragraph("The Arno is ").add_run("241 km").bold = True
    table = document.add_table(2, 2)
    for cell, text in zip(table._cells, ("River", "Length", "Tiber", "406 km"), strict=True):
        cell.text = text
    spaces = (
        'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main" '
        'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"'
    )
    run = "<w:r><w:t>{}</w:t></w:r>".format
    box = f"<w:txbxContent><w:p>{run('Boxed.')}</w:p></w:txbxContent>"
    for content in (
        f"<w:sdt {spaces}><w:sdtContent><w:p>{run('Controlled.')}</w:p></w:sdtContent></w:sdt>",
        f"<w:p {spaces}><w:ins>{run('In')}</w:ins><w:del><w:r><w:delText>Out</w:delText></w:r></w:del>"
        f"<w:moveFrom>{run('Moved')}</w:moveFrom><w:r><w:tab/><w:t>stays.</w:t></w:r></w:p>",
        f"<w:p {spaces}><w:r><mc:AlternateContent><mc:Choice>{box}</mc:Choice>"
        f"<mc:Fallback>{box}</mc:Fallback></mc:AlternateContent></w:r></w:p>",
    ):
        document.element.body.insert(-1, docx.oxml.parse_xml(content))
    document.save(str(tmp_path / "atlas.docx"))
    (passage,) = load_folder(tmp_path).passages
    assert passage.title == "The River Atlas"
    assert passage.text.split("\n") == [
        "The Arno is 241 km", "River | Length", "Tiber | 406 km", "Controlled.", "In stays.", "Boxed.",
    ]  # fmt: skip


#: One line of text, locked with AES: with a password, and with none for reading.
_LOCKED = {
    "secret": (
        "eNqNU71rFEEU7wf/ALWQaQ5sdD52ZnZHjoN83GHQkHCnKRSL2d23lwuX3WN3LiT+FSJobSFKCBKxERsLG0klQcRe"
        "qyhYahFEZ3cvycFZuLss8977vd/7nMbqYucKu+qhxpevHz4ihinOwg3UbCJya2cEmCwYa4ZZH5FV04cCcwfoolYL"
        "QRqXQD7jUOEQuTGIC3wXeyUe30NkIRunFrMpV++frmWgHBy0jkSWIR6Y+WzbcVH3Ksaxr3nNmFoHLLCokV0osnEe"
        "uSRLxo6z1geG5UnS9TeJL6bi34S0b9exEqW9sDmYTXS09+Dd8dull48Os2u9g8eXj5/MHe5eOtp/9fsivD638+Pn"
        "n6fPWkcX3u9/70dvHr7ozv86v3tntDeiBxvPv332P5VxJlSTiHKm4jJLRHrj0FZiqWSIzJsCqvzJdRhugR1EZipv"
        "NcWyhoUrvPxNKmA8cB3Egmuhlc81dw0YDC3kmPSsSWOTx4is4CaNQxlImUTS40oqDb6SmqrIJEqAcO5GRJzGCrRW"
        "SQyJVh7oUNKAJhpo4LUQuY2bgQ+ejHxP0pCD0obGkkZAQWgjGWWUB2EiQIIAXwZGMCUodbJKksQ4c+BYFjrVlHo2"
        "npzmxna9vVVuAFnMopURpCVoGZO5dm+NnxWqJtN0rpsdXBOUQn4qnLVsO4cEUewjevpgJaUncYJPdcyNp7KkZzol"
        "ZnSMezM6LtmMzlOzfMKb0tncDIaQV3PsDe6DS490s8xdknqflxbdzjc18NiPIyk4d0MyTPgmCH3QMqFKJTpu/Q/E"
        "3ZZ2GuU7I4vVyV0orMlt1RhfcNRotFc66C8HhyM9"
    ),
    "": (
        "eNqNUz1rFEEYLoUpFAuLgMU01wg637O7chwm96GiISEXg/hRzO7MXE4uu8fuXEhSCuJf0B8gWFgIQhoLIzZi41et"
        "hdZaWqqzu5fk4CzcXZZ5n3ne5/2aaax2eufJBQYa376//wwIxDCL74FmE6D13bGBqK2cGmUDgFbVwBSQesIaaLWA"
        "SXVJpHMOFQ+ga0NdwNuQlXx4F6B2NkkdJDOu7J+uZaDceGodCS0bPVRL2Y7Xwv6VhMIgorVi6jyxgLxmrpkim+SJ"
        "T7JU7PndekGgOEy6/qbx+Uz86yYduE0oeblfuNyoLXB6/8nqucevbz39fXnvZrTw8cW7/fzHxqMPJ88UD9r3+at1"
        "Pnl+QF7+Oji7MPh64qf59PDZnVNv2knnkvjz9uIXXcaZSk0jirmKyywB6k9iV5klSABaUoWp8kdXzGjbuGGiZvKW"
        "MyobkPvCy9+0AkJD30HIacQjGdCI+gYMR87kEPWdSrXKNUArsCmktCoMmDGMJUEUJJrFEeZWK21DwpVVjGsbKRZa"
        "aTQncRRyQxOpFVVKWtEC6AZs6oSpWEdWG8Gk1kwTFgeRElIEQSgiScPYciMMN4EIFSeSY+xtaa1VmODQq7R71ZT6"
        "Tk9XixO32d0uTwDqZMnK2KQlaRmixW5/gx4XKqfT9K5bPVgLlEZ+ZBy3bCc3FmAYAHz0QCkEE9DCI4z48VQ76TEm"
        "+RxGKJvDqCBzGJPzepzNYC5Xw5HJqzn2h3vGp4fWssxfkvo8X+34M9/EcSAp5thoSxkLNZUJNVFgfeexUknS+h+K"
        "vy3dNMl3xw7Kw7tQOJW7qjEBp6DR6K70wF/FCR+5"
    ),
}


def encrypted(password: str) -> bytes:
    """A PDF of one line of text, locked."""
    return zlib.decompress(base64.b64decode(_LOCKED[password]))


def test_a_pdf_that_only_restricts_printing_is_read_and_one_without_text_is_listed(tmp_path: Path) -> None:
    (tmp_path / "owned.pdf").write_bytes(encrypted(""))
    (tmp_path / "scan.pdf").write_bytes(pdf(""))
    data = load_folder(tmp_path)
    assert [p.text for p in data.passages] == ["The Tiber."]
    assert [(i.path, i.reason.split(":")[0]) for i in data.left_out] == [("scan.pdf", "holds no text")]


@pytest.mark.parametrize("cut", range(40, 700, 60))
def test_a_cut_pdf_never_breaks_the_reader(tmp_path: Path, cut: int) -> None:
    (tmp_path / "cut.pdf").write_bytes(pdf("The Tiber flows through Rome.", "It is long.")[:cut])
    try:
        texts = {p.text for p in load_folder(tmp_path).passages}
    except DataError as error:
        texts = set()
        said = str(error)
    assert texts <= {"The Tiber flows through Rome.", "It is long."}
    assert texts or "cut.pdf" in said or "holds no text" in said


def test_records_are_read_and_the_questions_of_a_set_are_not(tmp_path: Path) -> None:
    (tmp_path / "questions.jsonl").write_text('{"question": "How heavy is Rex?"}\n')
    (tmp_path / "animals.jsonl").write_text('{"name": "Rex", "kg": 12.5}\n{"name": "Mia"}\nRex\n')
    read = load_folder(tmp_path)
    (passage,) = read.passages
    assert [line.text for line in passage.lines] == ["name | kg"]
    assert passage.text.split("\n") == ["Rex | 12.5", "Mia | "]
    assert [one.path for one in read.left_out] == ["animals.jsonl, line 3", "questions.jsonl"]


def test_a_mail_is_read_with_its_subject_and_date_and_its_attachments_are_named(tmp_path: Path) -> None:
    mail = EmailMessage()
    mail["Subject"], mail["From"], mail["Date"] = (
        "The new pump",
        "Ann <ann@a.example>",
        "Mon, 18 May 2026 09:12 +0200",
    )
    mail.set_content("<p>The pump arrives on <b>3 June</b>.</p>", subtype="html")
    mail.add_attachment(b"%PDF", maintype="application", subtype="pdf", filename="bill.pdf")
    (tmp_path / "pump.eml").write_bytes(bytes(mail))
    read = load_folder(tmp_path)
    assert [(p.title, p.date, p.text.splitlines()[-1]) for p in read.passages] == [
        ("The new pump", "2026-05-18", "The pump arrives on 3 June.")
    ]
    assert [one.path for one in read.left_out] == ["pump.eml, attachment bill.pdf"]
