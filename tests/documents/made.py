"""Small files, made for the tests."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mio_rag.corpora.dataset import load_folder
from mio_rag.types import Passage


class Piece(NamedTuple):
    """Text at a place of a page, from below and from the left."""

    x: float
    y: float
    text: str
    size: float = 11
    font: str = "F"  # "B" for bold, "M" for letters of one width, "J" for Japanese ones


class Field(NamedTuple):
    """A field of a form: its lower left corner, what it holds, or "tick" or "no tick"."""

    x: float
    y: float
    value: str


def pdf(
    *pages: str | list[str] | list[Piece] | None,
    title: str = "",
    producer: str = "",
    drawn: bytes = b"",
    fields: Sequence[Field] = (),
) -> bytes:
    """A PDF, written out by hand: each page a line, lines, pieces of text, or None for a picture.

    drawn: what each page shows besides. fields: of the form on the first page.
    """
    image = zlib.compress(bytes([200]) * 48)
    objects: list[bytes] = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"",
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica-Bold /Encoding /WinAnsiEncoding >>",
        b"<< /Type /XObject /Subtype /Image /Width 4 /Height 4 /ColorSpace /DeviceRGB /BitsPerComponent 8 "
        b"/Filter /FlateDecode /Length %d >>\nstream\n%s\nendstream" % (len(image), image),
        b"<< /Title (%s) /Producer (%s) >>" % (title.encode("cp1252"), producer.encode()),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Courier /Encoding /WinAnsiEncoding >>",
        b"<< /Type /Font /Subtype /Type0 /BaseFont /HeiseiMin-W3 /Encoding /UniJIS-UCS2-H "
        b"/DescendantFonts [<< /Type /Font /Subtype /CIDFontType0 /BaseFont /HeiseiMin-W3 /DW 1000 "
        b"/CIDSystemInfo << /Registry (Adobe) /Ordering (Japan1) /Supplement 2 >> "
        b"/FontDescriptor << /Type /FontDescriptor /FontName /HeiseiMin-W3 /Flags 6 /StemV 69 "
        b"/Ascent 723 /Descent -241 /CapHeight 709 /ItalicAngle 0 /FontBBox [-123 -257 1001 910] >> >>] >>",
    ]
    kids = []
    for page in pages:
        if page is None:
            stream = b"q 500 0 0 700 50 50 cm /I Do Q"
        else:
            given: list[Any] = [page] if isinstance(page, str) else list(page)
            pieces = [
                one if isinstance(one, Piece) else Piece(60, 760 - 14 * k, one) for k, one in enumerate(given)
            ]
            stream = b"\n".join([*map(_shown, pieces), drawn])
        objects += [
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents %d 0 R /Resources << /Font << "
            b"/F 3 0 R /B 4 0 R /M 7 0 R /J 8 0 R >> /XObject << /I 5 0 R >> >> >>" % (len(objects) + 2),
            b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream),
        ]
        kids.append(b"%d 0 R" % (len(objects) - 1))
    if fields:
        first = len(objects) + 1
        refs = b" ".join(b"%d 0 R" % (first + k) for k in range(len(fields)))
        objects += map(_field, fields)
        objects[0] = objects[0].replace(b" >>", b" /AcroForm << /Fields [%s] >> >>" % refs)
        objects[8] = objects[8].replace(b"/Parent", b"/Annots [%s] /Parent" % refs)
    objects[1] = b"<< /Type /Pages /Kids [%s] /Count %d >>" % (b" ".join(kids), len(kids))
    out, offsets = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, start=1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    tail = b"trailer\n<< /Size %d /Root 1 0 R /Info 6 0 R >>\nstartxref\n%d\n%%%%EOF\n"
    head = b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    return out + head + table + tail % (len(objects) + 1, len(out))


def grid(
    rows: Sequence[Sequence[str]], places: Sequence[float], top: float = 700, step: float = 14
) -> list[Piece]:
    """Cells of a table at these places from the left, row below row."""
    return [
        Piece(x, top - step * k, text)
        for k, row in enumerate(rows)
        for x, text in zip(places, row, strict=True)
        if text
    ]


def _field(field: Field) -> bytes:
    ticked = {"tick": b"/Yes", "no tick": b"/Off"}.get(field.value)
    kind = b"/FT /Tx /V (%s)" % field.value.encode("cp1252")
    if ticked:
        kind = b"/FT /Btn /V %s /AS %s /AP << /N << /Yes 5 0 R /Off 5 0 R >> >>" % (ticked, ticked)
    end = field.x + (12 if ticked else 200)
    box = b"/Rect [%g %g %g %g]" % (field.x, field.y, end, field.y + 12)
    return b"<< /Type /Annot /Subtype /Widget /F 4 /T (f%g) %s %s >>" % (field.x + 1000 * field.y, box, kind)


def _shown(piece: Piece) -> bytes:
    if piece.font == "J":
        shown = piece.size, piece.x, piece.y, piece.text.encode("utf-16-be").hex().encode()
        return b"BT /J %g Tf %g %g Td <%s> Tj ET" % shown
    text = piece.text.encode("cp1252")
    for sign in (b"\\", b"(", b")"):
        text = text.replace(sign, b"\\" + sign)
    return b"BT /%s %g Tf %g %g Td (%s) Tj ET" % (piece.font.encode(), piece.size, piece.x, piece.y, text)


_NAMES = (
    'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main" '
    'xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math" '
    'xmlns:w14="http://schemas.microsoft.com/office/word/2010/wordml" '
    'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"'
)


def docx(body: str, numbering: str = "") -> bytes:
    """A Word file with a body, and lists that come first among the numberings."""
    library: Any = pytest.importorskip("docx")
    empty, made = io.BytesIO(), io.BytesIO()
    library.Document().save(empty)
    with zipfile.ZipFile(empty) as source, zipfile.ZipFile(made, "w") as target:
        for name in source.namelist():
            data = source.read(name)
            if name == "word/document.xml":
                data = f"<w:document {_NAMES}><w:body>{body}<w:sectPr/></w:body></w:document>".encode()
            elif name == "word/numbering.xml" and numbering:
                data = f"<w:numbering {_NAMES}>{numbering}</w:numbering>".encode()
            target.writestr(name, data)
    return made.getvalue()


def run(text: str, *, bold: bool = False) -> str:
    """A run of a paragraph."""
    return f'<w:r>{"<w:rPr><w:b/></w:rPr>" if bold else ""}<w:t xml:space="preserve">{text}</w:t></w:r>'


def paragraph(text: str, settings: str = "") -> str:
    """A paragraph of Word."""
    return f"<w:p><w:pPr>{settings}</w:pPr>{run(text)}</w:p>"


def read(folder: Path, name: str, data: str | bytes, max_words: int = 100) -> list[Passage]:
    """The passages of one file."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(data.encode() if isinstance(data, str) else data)
    return [p for p in load_folder(folder, max_words).passages if p.source == name]


def units(passages: list[Passage]) -> list[str]:
    """The texts of all units, and of the headers that their rows need."""
    said: dict[tuple[str, int], str] = {}
    for p in passages:
        for unit in p.units:
            for line in (p.lines[k] for k in unit.needs):
                if " | " in line.text:
                    said.setdefault((p.source, line.start), line.text)
            said[p.source, (p.start or 0) + unit.start] = p.text[unit.start : unit.end]
    return list(said.values())


def needs(passages: list[Passage]) -> dict[str, list[str]]:
    """The text of each unit -> the lines that it needs."""
    return {
        p.text[unit.start : unit.end]: [p.lines[k].text for k in unit.needs]
        for p in passages
        for unit in p.units
    }
