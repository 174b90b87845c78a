"""Workbooks and slides -> blocks."""

from __future__ import annotations

import io
import re
import zipfile
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, time, timedelta
from typing import Any

from mio_rag.documents.blocks import ITEM, POWER, Document, Repeated, merged, plain, short_title, spread, tidy
from mio_rag.documents.docx import core_properties
from mio_rag.errors import require

_SPAN = re.compile(rb'<(?:\w+:)?mergeCell\s[^>]*?ref="(\$?[A-Z]+\$?\d+:\$?[A-Z]+\$?\d+)"')
_MOST_CELLS = 20_000_000  # of a workbook, empty ones included
_LAST_ROW = 1 << 20  # that a sheet can have; a damaged file may number its rows without end

# Workbooks -------------------------------------------------------------------------------------------------


def read_xlsx(data: bytes) -> Document:
    """Sheets as sections, with the header row of each table; hidden sheets are left out."""
    library = require("openpyxl", "documents", "reading XLSX files")
    document = Document()
    values = library.load_workbook(io.BytesIO(data), read_only=True, data_only=True)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        pages = {sheet._worksheet_path: archive.read(sheet._worksheet_path) for sheet in values.worksheets}
    computed = any(b"<f" in page for page in pages.values())
    spans = {name: _SPAN.findall(page) for name, page in pages.items()}
    del pages
    # Of a formula whose result nobody stored nothing is known.
    formulas = library.load_workbook(io.BytesIO(data), read_only=True) if computed else None
    cells = 0
    for sheet in values.worksheets:
        if sheet.sheet_state != "visible":
            document.left_out.append((f"sheet '{sheet.title}'", "is hidden"))
            continue
        sheet.reset_dimensions()  # files may state them wrongly
        written: Iterator[Any] | None = None
        if formulas is not None:
            same = formulas[sheet.title]
            same.reset_dimensions()
            written = same.iter_rows(max_row=_LAST_ROW)
        rows: list[dict[int, str]] = []
        lacking = list[str]()  # formulas without a stored result
        for number, row in enumerate(sheet.iter_rows(max_row=_LAST_ROW), 1):
            cells += len(row)
            if cells > _MOST_CELLS:
                what = f"sheet '{sheet.title}', from row {number:,}"
                document.left_out.append((what, f"the file has more than {_MOST_CELLS:,} cells"))
                break
            rows.append(_row(row))
            lacking += [] if written is None else _without_value(row, next(written, ()))
        if lacking:
            more = f" and {len(lacking) - 3} more" if len(lacking) > 3 else ""
            what = f"sheet '{sheet.title}', {', '.join(lacking[:3])}{more}"
            why = "formulas without stored results: open the file in a spreadsheet program and save it"
            document.left_out.append((what, why))
        _fill(rows, spans[sheet._worksheet_path])
        if any(rows):
            document.add("heading", tidy(sheet.title), 1)
            for table in _tables(rows):
                if len(table) == 1 or max(sum(map(bool, row)) for row in table) == 1:
                    for row in table:
                        document.add("paragraph", " | ".join(filter(None, row)))
                else:
                    document.add_table(table)
    document.title = short_title(values.properties.title or "")
    document.metadata = core_properties(values.properties)
    return document


def _fill(rows: list[dict[int, str]], spans: list[bytes]) -> None:
    """Write the text of merged cells into all the columns and rows that they span."""
    library = require("openpyxl", "documents", "reading XLSX files")
    filled = [k for k, row in enumerate(rows, 1) if row]
    widest = max((column for row in rows for column in row), default=0)
    for span in spans:
        left, top, right, bottom = library.utils.range_boundaries(span.decode())
        said = merged(rows[top - 1].get(left, "")) if top <= len(rows) else ""
        for k in filled[bisect_left(filled, top) : bisect_right(filled, bottom)] if said else ():
            for column in range(left, min(right, widest) + 1):
                rows[k - 1].setdefault(column, said if column == left else Repeated(said))


def _row(cells: Iterable[Any]) -> dict[int, str]:
    """What the cells of a row show, by their columns."""
    row: dict[int, str] = {}
    for k, cell in enumerate(cells, 1):
        if cell.value is not None and (shown := _shown(cell.value, getattr(cell, "number_format", "") or "")):
            row[k] = shown
    return row


def _without_value(cells: Sequence[Any], formulas: Iterable[Any]) -> list[str]:
    """Names of the cells of a row that hold a formula and no value."""
    return [
        cell.coordinate
        for k, cell in enumerate(formulas)
        if getattr(cell, "data_type", "") == "f" and (k >= len(cells) or cells[k].value is None)
    ]


def _shown(value: Any, form: str) -> str:
    """A value as the sheet shows it, more or less."""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, datetime):
        return value.date().isoformat() if value.time() == time() else value.isoformat(" ", "minutes")
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return str(value)
    if isinstance(value, (int, float)):
        if "%" in form:
            return f"{100 * value:.10g}%"
        return f"{value:.12g}"
    return tidy(str(value))


def _tables(rows: list[dict[int, str]]) -> Iterator[list[list[str]]]:
    """Rows between empty ones, without columns that are empty in all of them."""
    table: list[dict[int, str]] = []
    for row in [*rows, {}]:
        if row:
            table.append(row)
            continue
        if table:
            columns = sorted(
                {k for one in table for k, cell in one.items() if not isinstance(cell, Repeated)}
            )
            yield from _titled([*spread([[one.get(k, "") for k in columns] for one in table])])
        table = []


def _titled(table: list[list[str]]) -> Iterator[list[list[str]]]:
    """A table, and before it the lines above that are no row of it."""
    while len(table) > 2 and sum(map(bool, table[0])) == 1 and max(sum(map(bool, row)) for row in table) > 2:
        yield [table.pop(0)]
    yield table


# Slides ----------------------------------------------------------------------------------------------------


def read_pptx(data: bytes) -> Document:
    """Slides as pages, their titles as headings, from top to bottom, with notes; hidden ones are left out."""
    library = require("pptx", "documents", "reading PPTX files")
    document = Document()
    file = library.Presentation(io.BytesIO(data))
    for number, slide in enumerate(file.slides, 1):
        document.page = number
        if slide.element.get("show") == "0":
            document.left_out.append((f"slide {number}", "is hidden"))
            continue
        before = len(document.blocks)
        pictures = 0
        title = slide.shapes.title
        if title is not None and title.has_text_frame and tidy(title.text_frame.text):
            document.add("heading", tidy(title.text_frame.text), 1)
        for shape in _ordered(slide.shapes):
            if title is not None and shape.shape_id == title.shape_id:
                continue
            pictures += shape.shape_type == 13
            _add_shape(document, shape)
        if slide.has_notes_slide and (notes := tidy(slide.notes_slide.notes_text_frame.text)):
            document.add("paragraph", f"Notes: {notes}")
        if len(document.blocks) == before and pictures:
            document.left_out.append((f"slide {number}", "holds no text (a picture needs OCR)"))
    given = file.core_properties
    document.title = "" if given.title in (None, "PowerPoint Presentation") else short_title(given.title)
    document.metadata = core_properties(given)
    return document


def _ordered(shapes: Any) -> Iterator[Any]:
    """Shapes from top to bottom, those of groups among them."""

    def place(shape: Any) -> tuple[int, int]:
        return (shape.top or 0) // 180_000, shape.left or 0  # half a centimetre is one line

    for shape in sorted(shapes, key=place):
        if shape.shape_type == 6:
            yield from _ordered(shape.shapes)
        else:
            yield shape


def _add_shape(document: Document, shape: Any) -> None:
    if shape.is_placeholder and shape.placeholder_format.type in (13, 15, 16):
        return  # number of the slide, footer, date
    if getattr(shape, "has_table", False) and shape.has_table:
        rows = [[cell.text for cell in row.cells] for row in shape.table.rows]
        document.add_table(rows, 1 if shape.table.first_row else None)
    elif getattr(shape, "has_chart", False) and shape.has_chart:
        chart = shape.chart
        if chart.has_title and chart.chart_title.has_text_frame:
            document.add("paragraph", tidy(chart.chart_title.text_frame.text))
        for plot in chart.plots:
            names = [str(name) for name in plot.categories]
            rows = [
                ["", *names],
                *([series.name or "", *map(_number, series.values)] for series in plot.series),
            ]
            document.add_table(rows, 1)
    elif shape.has_text_frame:
        for paragraph in shape.text_frame.paragraphs:
            lines = [tidy(line) for line in plain(_said(paragraph).replace("\v", "\n")).split("\n")]
            text = " ".join(filter(None, lines))
            listed = paragraph.level > 0 or (shape.is_placeholder and len(shape.text_frame.paragraphs) > 1)
            if text and listed and not ITEM.match(text):
                document.add("item", f"- {text}", paragraph.level)
            else:
                document.add("item" if text and ITEM.match(text) else "paragraph", text)


def _said(paragraph: Any) -> str:
    """The text of a paragraph, with "^" before raised numbers."""
    pieces = [run.text for run in paragraph.runs]
    text = str(paragraph.text)
    if "".join(pieces) != text or not any(
        run._r.find("{*}rPr[@baseline]") is not None for run in paragraph.runs
    ):
        return text
    for k, run in enumerate(paragraph.runs):
        height = run._r.find("{*}rPr[@baseline]")
        if height is not None and height.get("baseline").strip("%").isdigit() and POWER.match(run.text):
            pieces[k] = f"^{run.text}" if height.get("baseline") != "0" else run.text
    return "".join(pieces)


def _number(value: Any) -> str:
    return "" if value is None else f"{value:.12g}"
