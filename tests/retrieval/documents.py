"""Passages of documents, with sections, lines and units, as readers make them."""

from __future__ import annotations

from mio_rag.types import Line, Passage, Unit


def passage(document: str, text: str, source: str, title: str = "", **more: object) -> Passage:
    """A passage of a document whose units are its lines; ``needs`` are texts of lines that all units need."""
    start = document.index(text)
    needed = tuple(more.pop("needs", ()))  # type: ignore[call-overload]
    lines = tuple(Line(document.index(line), line) for line in needed)
    units, at = [], 0
    for line in text.split("\n"):
        if line not in needed:
            units.append(Unit(at, at + len(line), tuple(range(len(lines)))))
        at += len(line) + 1
    return Passage(f"{source}#{start}", text, title, source, start, lines=lines, units=tuple(units), **more)  # type: ignore[arg-type]


LEASE = """Lease of Alder House
Repairs
The tenant pays for small repairs.
The owner pays for the roof.
Rent
Month | Rent
May | 1,200
June | 1,300"""
SALE = """Sale of Birch Farm
Price
The buyer pays 90,000 in May.
Repairs
The seller pays for all repairs before the sale."""
GUIDE = """Guide to pumps
Start
Pumps start when the lever is down.
They stop by themselves.
Care
Clean the filter every month."""


def documents() -> tuple[Passage, ...]:
    """Three documents in five passages."""
    return (
        passage(
            LEASE,
            "The tenant pays for small repairs.\nThe owner pays for the roof.",
            "alder-house.md",
            "Lease of Alder House",
            section=("Repairs",),
            needs=["Repairs"],
        ),
        passage(
            LEASE,
            "May | 1,200\nJune | 1,300",
            "alder-house.md",
            "Lease of Alder House",
            section=("Rent",),
            needs=["Rent", "Month | Rent"],
        ),
        passage(
            SALE,
            "The buyer pays 90,000 in May.\nRepairs\nThe seller pays for all repairs before the sale.",
            "birch-farm.md",
            "Sale of Birch Farm",
            section=("Price",),
            needs=["Repairs"],
        ),
        passage(
            GUIDE,
            "Pumps start when the lever is down.\nThey stop by themselves.",
            "pumps.md",
            "Guide to pumps",
            section=("Start",),
            page=1,
        ),
        passage(
            GUIDE, "Clean the filter every month.", "pumps.md", "Guide to pumps", section=("Care",), page=2
        ),
    )
