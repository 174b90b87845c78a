"""Single files of every format, damaged or hostile: read, or named with why not, beside one that is read."""

from __future__ import annotations

import io
import re
import shutil
import zipfile
import zlib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fuzz.corpora import _PDF
from benchmarks.fuzz.endings import Wrong
from benchmarks.fuzz.odd import chance, mutated_bytes, mutated_text, pick
from mio_rag.documents.files import KINDS, read_folder
from mio_rag.errors import require

_LAUGHS = '<!DOCTYPE x [<!ENTITY a "ha">' + "".join(
    f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
#: What is repeated n times, and what stands before and after it.
_NESTED: Mapping[str, tuple[tuple[str, str, str], ...]] = {
    "text": (
        ("", "[", ""), ("", "> ", "a"), ("", "(", ")"), ("# a\n\n", "- b\n", ""), ("", "| a ", "|\n|---|\n"),
        ("", "`", ""), ("", "a-\n", ""), ("", "*a", ""), ("", "1.1.", " a"), ("", "\u0e01", ""),
        ("", "\0", "a"), ("", "a,", "\n1"), ('"', "a\n", ""), ("", "{\n  ", ""), ("", "a: ", ""),
        ("", "Fee: 3 May 2024 ", ""),
    ),
    "html": (
        ("", "<div>", "a"), ("", "<table><tr><td>", "a"), ("", "<ul><li>", "a"), ("", "<b>", "a"),
        ("<table><tr>", "<td rowspan=65534 colspan=1000>a", ""), ("<p>", "&lt;", ""), ("<p ", "a=b ", ">a"),
        ("<select>", "<option>a", ""), ("<math>", "<mrow>", "a"), ("<dl>", "<dt>a", ""), ("<!--", "a", ""),
    ),
    "xml": (
        ("", "<w:tbl><w:tr><w:tc>", ""), ("", "<w:p><w:r><w:t>a</w:t></w:r></w:p>", ""),
        ("", '<w:tbl><w:tr><w:tc><w:tcPr><w:gridSpan w:val="999999999"/></w:tcPr></w:tc></w:tr></w:tbl>', ""),
        ("", '<row r="1048576"><c r="XFD1048576"><v>1</v></c></row>', ""), ("", "<p:grpSp>", ""),
        ("", "<m:e>", ""),
    ),
    "pdf": (
        ("", "[", ""), ("", "<<", ""), ("", "q ", ""), ("", "BT (a) Tj ET ", ""), ("", "0 0 9 9 re f ", ""),
    ),
}  # fmt: skip


@cache
def _packed(kind: str) -> dict[str, bytes]:
    """The parts of a small file of Office, without the time at which it was made."""
    out = io.BytesIO()
    if kind.startswith("doc"):
        document = require("docx", "documents", "Word files").Document()
        document.add_heading("Rivers", 1)
        document.add_paragraph("The Arno is long.", style="List Bullet")
        document.add_table(2, 2).cell(0, 0).text = "Name"
        document.save(out)
    elif kind.startswith("xls"):
        book = require("openpyxl", "documents", "workbooks").Workbook()
        for row in (["River", "Length"], ["Arno", 241], ["Po", "=B2+1"]):
            book.active.append(row)
        book.save(out)
    else:
        show = require("pptx", "documents", "slides").Presentation()
        show.slides.add_slide(show.slide_layouts[1]).shapes.title.text = "The Arno is long."
        show.save(out)
    with zipfile.ZipFile(out) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    return {
        name: re.sub(rb"20\d\d-\d\d-\d\dT[\d:]+Z", b"2026-01-01T00:00:00Z", data)
        for name, data in parts.items()
    }


def _zipped(parts: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in parts.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def _repeated(rng: np.random.Generator, kind: str) -> str:
    before, piece, after = pick(rng, _NESTED[kind])
    return str(before + piece * int(10 ** rng.uniform(2, 4.7)) + after)


def _office(rng: np.random.Generator, kind: str) -> bytes:
    """A file of Office with a part that is damaged, repeats itself, expands or unpacks without end."""
    parts = dict(_packed(kind))
    name = pick(rng, [name for name in parts if name.endswith((".xml", ".rels"))])
    if chance(rng, 0.5):
        name = pick(
            rng, [n for n in parts if re.search(r"document\.xml$|sheet1\.xml|slide1\.xml$|Strings", n)]
        )
    text = parts[name].decode()
    how = int(rng.integers(5))
    if how == 0:
        text = mutated_text(rng, text)
    elif how == 1:
        at = pick(rng, [found.end() for found in re.finditer("<[^>]*[^/?]>", text)] or [len(text)])
        text = text[:at] + _repeated(rng, "xml") + text[at:]
    elif how == 2:
        text = re.sub(r"(\?>\s*)", lambda found: f"{found[1]}{_LAUGHS}]>", text, count=1).replace(
            "</", "&i;</"
        )
    elif how == 3:
        text = re.sub(r'"\d+"', lambda _: f'"{pick(rng, [-1, 0, 2**31, 10**9, 10**30])}"', text)
    else:
        parts["large.xml"] = b" " * int(10 ** rng.uniform(6, 8.3))
    parts[name] = text.encode("utf-8", "surrogatepass")
    return _zipped(parts)


def _pdf(rng: np.random.Generator, kind: str) -> bytes:
    shown = _repeated(rng, "pdf").encode()
    if chance(rng, 0.3):  # page trees without end, and places far outside
        change = pick(rng, [(b"[3 0 R]", b"[2 0 R]"), (b"200 200", b"1e30 -1e30"), (b"12 Tf", b"1e-30 Tf"),
                            (b"/Count 1", b"/Count 999999999"), (b"10 100 Td", b"1e9 1e9 Td")])  # fmt: skip
        return _PDF.replace(*change)
    if chance(rng, 0.3):
        packed = zlib.compress(shown * 20)
        shown = packed if chance(rng, 0.8) else mutated_bytes(rng, packed)
        return _PDF.replace(b"/Length 44>>stream\nBT /F 12 Tf 10 100 Td (The Arno is long.) Tj ET",
                            b"/Filter/FlateDecode/Length %d>>stream\n%s" % (len(shown), shown))  # fmt: skip
    at = int(rng.integers(len(_PDF)))
    return _PDF[:at] + shown + _PDF[at:]


def _text(rng: np.random.Generator, kind: str) -> bytes:
    return _repeated(rng, "html" if "htm" in kind else "text").encode()


def _whole(kind: str) -> bytes:
    if kind == ".pdf":
        return _PDF
    if kind[1:4] in ("doc", "xls", "ppt"):
        return _zipped(_packed(kind[1:]))
    return (
        b"# Rivers\n\nThe Arno is long.\n\n- It flows.\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n<p>It is so.\n"
    )


class Files:
    """The bytes of a file, and its name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "files"

    def draw(self, rng: np.random.Generator) -> dict[str, Any]:
        """A file that is damaged or hostile, one in eight with the ending of another format."""
        kind = pick(rng, [".pdf", ".docx", ".xlsx", ".pptx", ".html", ".md", ".csv", *KINDS])
        office = kind[1:4] in ("doc", "xls", "ppt")
        hostile: Callable[..., bytes] = _office if office else _pdf if kind == ".pdf" else _text
        data = hostile(rng, kind[1:]) if chance(rng, 0.6) else mutated_bytes(rng, _whole(kind))
        return {"name": f"a{pick(rng, KINDS) if chance(rng, 0.12) else kind}", "data": data}

    def run(self, given: dict[str, Any]) -> str:
        """Read it beside a whole file."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        (self._folder / given["name"]).write_bytes(given["data"])
        (self._folder / "whole.txt").write_text("The Po is longer.")
        found = read_folder(self._folder)
        if not any(passage.text == "The Po is longer." for passage in found.passages):
            raise Wrong("a whole file beside it was not read")
        read = [passage for passage in found.passages if passage.source == given["name"]]
        if not read and not any(one.path.startswith(given["name"]) and one.reason for one in found.left_out):
            raise Wrong("a file that is neither read nor named", given["name"])
        for passage in read:
            passage.text.encode()
            if not passage.text.strip() or any(
                not 0 <= u.start < u.end <= len(passage.text) for u in passage.units
            ):
                raise Wrong("a passage without text, or with a unit outside of it", passage.text[:99])
        return "read" if read else "named"
