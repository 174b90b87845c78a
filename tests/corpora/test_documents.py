"""Folders of documents: what is read, what is left out, and why."""

import io
import json
import os
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mio_rag.cli.app import app
from mio_rag.corpora.documents import load_folder
from mio_rag.corpora.files import read_document
from mio_rag.corpora.load import load_dataset
from mio_rag.errors import DataError, InputError


def pdf(*pages: str) -> bytes:
    """A PDF of one line of text a page, written out by hand."""
    kids = " ".join(f"{4 + 2 * k} 0 R" for k in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for k, text in enumerate(pages):
        stream = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET"
        resources = "<< /Font << /F1 3 0 R >> >>"
        objects += [
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {5 + 2 * k} 0 R "
            f"/Resources {resources} >>",
            f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream",
        ]
    out, offsets = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, start=1):
        offsets.append(len(out))
        out += f"{number} 0 obj\n{content}\nendobj\n".encode()
    table = "".join(f"{offset:010d} 00000 n \n" for offset in offsets)
    out += f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}".encode()
    start = out.index(b"xref\n0")
    return out + f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{start}\n%%EOF\n".encode()


def test_folder_of_documents(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "notes.md").write_text("# Arno\n\nThe Arno is a river. It flows through Florence.\n")
    (tmp_path / "po.txt").write_text("The Po is long.")
    (tmp_path / "PAPER.PDF").write_bytes(pdf("The Tiber flows through Rome.", "It is 406 kilometres long."))
    (tmp_path / "image.png").write_bytes(b"\x89PNG")
    data = load_folder(tmp_path, max_words=5)
    assert {(p.id, p.text) for p in data.passages} == {
        ("PAPER.PDF#1.0", "The Tiber flows through Rome."),
        ("PAPER.PDF#2.0", "It is 406 kilometres long."),
        ("po.txt#0", "The Po is long."),
        ("sub/notes.md#0", "The Arno is a river."),
        ("sub/notes.md#1", "It flows through Florence."),
    }
    assert {(p.title, p.source) for p in data.passages if p.id.startswith("sub")} == {
        ("Arno", "sub/notes.md")
    }
    assert data.questions == ()


@pytest.mark.parametrize(
    ("text", "title", "read"),
    [
        ("Bell Rock  Light\n\nIt was lit in 1811.", "Bell Rock Light", "Bell Rock Light It was lit in 1811."),
        ("\r\n Skerryvore \r\n\r\nIt is tall.", "Skerryvore", "Skerryvore It is tall."),
        ("1. Open the lid\n\n2. Press it.", "notes", "1. Open the lid 2. Press it."),
        ("key = value\n\nIt is tall.", "notes", "key = value It is tall."),
        ("\u957f\u57ce\u3002\n\nIt is tall.", "notes", "\u957f\u57ce\u3002 It is tall."),
        ("It was lit in 1811.\n\nIt is tall.", "notes", "It was lit in 1811. It is tall."),
        ("A line that\ngoes on here.", "notes", "A line that goes on here."),
        ("Only a heading\n\n  \n", "notes", "Only a heading"),
        ("----\n\nIt is tall.", "notes", "---- It is tall."),
        (f"{'long ' * 30}line\n\nIt is tall.", "notes", f"{'long ' * 30}line It is tall."),
    ],
)
def test_a_short_first_line_that_stands_alone_is_the_title_of_a_text_file(
    tmp_path: Path, text: str, title: str, read: str
) -> None:
    (tmp_path / "notes.txt").write_bytes(text.encode())
    (passage,) = load_folder(tmp_path).passages
    assert (passage.title, " ".join(passage.text.split())) == (title, read)


def test_what_can_be_read_is_read_and_the_rest_is_listed(tmp_path: Path) -> None:
    (tmp_path / "fine.txt").write_text("Fine.")
    (tmp_path / "marked.md").write_text("A marked caf\u00e9.", encoding="utf-16")
    (tmp_path / "signed.txt").write_text("Signed.", encoding="utf-8-sig")
    bad = {
        "blank.md": (b" \n\n ", "holds no text"),
        "broken.docx": (b"PK nonsense", r"cannot be read as a DOCX \(BadZipFile"),
        "broken.pdf": (pdf("text")[:150], "cannot be read as a PDF"),
        "empty.txt": (b"", "is empty"),
        "image.png": (b"\x89PNG", r"\.png files are not read"),
        "latin.txt": ("caf\u00e9".encode("latin-1"), r"is not UTF-8 text \(at byte 3\): save it as UTF-8"),
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


HTML = """<!DOCTYPE html><html><head><meta charset="utf-8"><title>The  Po </title>
<style>p { color: red }</style><script>var secret = 1;</script><body>
<nav><a href="/">Home</a></nav><div role="navigation">Menu</div><h1>Po</h1>
<p>The Po is <b>652</b> km <i>lo</i>ng.<br>It is in Italy.<p>It ends in the sea.<noscript>Scripts!</noscript>
<table><tr><th>Name<td>Po<td><tr><td>Sea</td><td>Adriatic</td></tr></table><svg><title>icon</title></svg>
<ul><li>one<li>two</ul><button>Buy</button><!-- comment --><template>no</template></body>"""

MARKDOWN = {  # text -> title, and what is left of the text
    "# Arno\n\nIt flows.": ("Arno", "It flows."),
    "\n\n#  The `Arno` at **Pisa** ##\nIt flows.": ("The Arno at Pisa", "It flows."),
    "The [Arno](a.md)\n====\nIt flows.": ("The Arno", None),  # the title leaves the address out
    "# snake_case and _emphasis_\nIt flows.": ("snake_case and emphasis", None),
    "---\n# a comment\ntags: x\n---\n# Arno\nIt flows.": ("Arno", None),
    "It flows.\n\n# Arno\nTo Pisa.": ("Arno", None),
    "```sh\n# install\n```\n# Arno\nIt flows.": ("Arno", None),
    "~~~\n# install\n```\n# more\n~~~ \nIt flows.": ("page", None),
    "# Arno": ("Arno", None),  # all there is
    "## Arno\n#hashtag\nIt flows.": ("page", None),
    "It flows.\nTo Pisa.\n===": ("page", None),  # the last line of a paragraph
    "# \n\n===\n": ("page", None),
}


@pytest.mark.parametrize("text", MARKDOWN)
def test_the_first_heading_is_the_title_of_a_markdown_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "page.md").write_text(text)
    title, left = MARKDOWN[text]
    read = read_document(tmp_path / "page.md", 10_000)
    assert read.title == title
    assert read.parts[0][1].strip() == (text.strip() if left is None else left)


@pytest.mark.parametrize(
    ("text", "title", "kept"),
    [
        ("# a*b and 2 * 3\n\nx", "a*b and 2 * 3", "x"),
        ("# The *Forth* `Bridge`\n\nx", "The Forth Bridge", "x"),
        ("# [RFC 9110](https://x.org/rfc)\n\nx", "RFC 9110", "https://x.org/rfc"),
        ("# __init__\n\nx", "init", "__init__"),
        ("- a\n===\nb", "odd", "- a"),
        ("> q\n===\nb", "odd", "> q"),
    ],
)
def test_nothing_of_a_heading_is_lost(tmp_path: Path, text: str, title: str, kept: str) -> None:
    (tmp_path / "odd.md").write_text(text)
    (passage,) = load_dataset(tmp_path).passages
    assert passage.title == title
    assert kept in passage.text


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
def test_the_title_is_not_repeated_at_the_head_of_a_page(
    tmp_path: Path, title: str, heading: str, repeated: bool
) -> None:
    text = f"<title>{title}</title><h1>{heading}</h1><p>It is long.<p>{heading}"
    (tmp_path / "po.html").write_text(text)
    (tmp_path / "bare.html").write_text(f"<h1>{heading}</h1>")
    data = load_folder(tmp_path)
    (bare, page) = data.passages
    assert page.title == title
    assert page.text.split()[0] == ("It" if repeated else heading)
    assert bare.text.split() == heading.split()  # all there is stays


def test_html_keeps_title_and_text_alone(tmp_path: Path) -> None:
    (tmp_path / "po.html").write_text(HTML)
    (tmp_path / "old.htm").write_bytes('<meta charset="latin1"><p>Caf\u00e9 \u2013 fin.'.encode("cp1252"))
    page, old = (read_document(tmp_path / name, 10_000) for name in ("po.html", "old.htm"))
    assert page.title == "The Po"
    assert page.parts[0][1].split("\n\n") == [
        "Po", "The Po is 652 km long. It is in Italy.", "It ends in the sea.", "Name | Po", "Sea | Adriatic",
        "one", "two",
    ]  # fmt: skip
    assert (old.title, old.parts[0][1]) == ("old", "Caf\u00e9 \u2013 fin.")
    assert {p.title for p in load_folder(tmp_path).passages} == {"The Po", "old"}


@pytest.mark.parametrize("markup", ["<div>", "<p>a ", "<b>x", "<table><tr><td>", "<nav>", "<![x]>"])
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
    read = read_document(tmp_path / "atlas.docx", 10**7)
    assert read.title == "The River Atlas"
    assert read.parts[0][1].split("\n\n") == [
        "The Arno is 241 km", "River | Length", "Tiber | 406 km", "Controlled.",
        "In stays.", "Boxed.",
    ]  # fmt: skip


def encrypted(password: str) -> bytes:
    """A PDF of one line of text, locked."""
    pypdf: Any = pytest.importorskip("pypdf")
    writer = pypdf.PdfWriter(clone_from=io.BytesIO(pdf("The Tiber.")))
    writer.encrypt(password, owner_password="owner", algorithm="AES-256")
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


def test_a_pdf_that_only_restricts_printing_is_read_and_one_without_text_is_listed(tmp_path: Path) -> None:
    (tmp_path / "owned.pdf").write_bytes(encrypted(""))
    (tmp_path / "scan.pdf").write_bytes(pdf(""))
    data = load_folder(tmp_path)
    assert [p.text for p in data.passages] == ["The Tiber."]
    assert [(i.path, i.reason.split(":")[0]) for i in data.left_out] == [("scan.pdf", "holds no text")]


def test_settings_of_folders_of_documents_are_refused_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'demo' is not a folder of documents"):
        load_dataset("demo", follow_links=True)


def test_the_index_command_lists_what_it_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "documents"
    folder.mkdir()
    (tmp_path / "far.txt").write_text("Far away.")
    (folder / "fine.txt").write_text("Fine words are here. " * 3)
    (folder / "far.txt").symlink_to(tmp_path / "far.txt")
    for k in range(5):
        (folder / f"{k}.png").write_bytes(b"x")

    def index(*options: str) -> Any:
        out = ("--embedder", "tfidf", "--out", str(tmp_path / "index"), "--overwrite")
        return CliRunner().invoke(app, ["index", str(folder), *out, *options])

    shown = index()
    assert shown.exit_code == 0, shown.output
    assert "left out: 6" in shown.stdout
    assert "0.png, 1.png, 2.png and 2 more: .png files are not read" in shown.stdout
    found = json.loads(index("--follow-links", "--json").stdout)
    assert found["passages"] == 2
    assert found["left_out"] == [{"path": f"{k}.png", "reason": ".png files are not read"} for k in range(5)]
    refused = index("--max-file-mb", "0")
    assert refused.exit_code == 2
    assert "--max-file-mb=0 must be a number above 0" in refused.stderr
    nothing = index("--max-file-mb", "0.000001")
    assert nothing.exit_code == 2
    assert "fine.txt: holds 0.0 MB" in nothing.stderr


def test_an_evaluation_on_a_folder_of_documents_says_what_the_corpus_lacks(tmp_path: Path) -> None:
    for name in ("documents", "questions"):
        (tmp_path / name).mkdir()
    (tmp_path / "documents" / "fine.txt").write_text("The Po is long. " * 9)
    (tmp_path / "documents" / "map.png").write_bytes(b"x")
    asked = {"id": "q", "question": "Is the Po long?", "answers": ["yes"]}
    (tmp_path / "questions" / "questions.jsonl").write_text(json.dumps(asked))
    folders = [str(tmp_path / name) for name in ("questions", "documents", "run")]
    options = (
        f"evaluate {folders[0]} --corpus {folders[1]} --out {folders[2]} --embedder tfidf --methods topk"
    )
    done = CliRunner().invoke(app, options.split())
    assert done.exit_code == 0, done.output
    assert "map.png: .png files are not read" in done.stdout


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
