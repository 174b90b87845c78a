"""Of two versions of a document the newer is read; what only looks like one stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from mio_rag import Collection

_POLICY = """# {title}

{news}## Meals

You may claim up to £{meals} a day for meals when you travel for work. Receipts are needed above £10.

## Hotels

A hotel may cost up to £{hotel} a night. Ask your manager before you book one that costs more.

## Trains

Travel second class. First class is paid on journeys of more than {hours} hours.

## Claims

Send the form to the finance team within {days} days.
"""
_NEWS = (
    "## News\n\nThe form is now on the intranet. Its old place is closed, and so is the shared mailbox.\n\n"
)
OLD = {"meals": 32, "hotel": 120, "hours": "three", "days": 30, "news": ""}
NEW = {"meals": 38, "hotel": 145, "hours": "four", "days": 14, "news": ""}


def _policy(date: str, title: str = "Expenses policy", **facts: object) -> str:
    head = f"---\ndate: {date}\n---\n\n" if date else ""
    return head + _POLICY.format(title=title, **facts)


def _minutes(date: str, *decisions: str) -> str:
    return f"---\ntitle: Minutes\ndate: {date}\n---\n\n# Minutes\n\n## Decisions\n\n" + "\n\n".join(decisions)


_LIST = "---\ntitle: Price list\ndate: {}\n---\n\n# Price list\n\n## Rooms\n\n{}"
_TABLE = "| Room | Price |\n|---|---|\n| Single | £{} |\n| Double | £{} |\n| Suite | £{} |\n"
_ITEMS = "- Single room: £{}\n- Double room: £{}\n- Suite: £{}\n"
MEALS = "How much may I claim for meals per day?"

VERSIONS = {
    "short sections": (
        {"expenses-2024.md": _policy("2024-01-01", **OLD), "expenses-2026.md": _policy("2026-01-01", **NEW)},
        MEALS,
        "£38",
    ),
    "years in titles": (
        {
            "a/policy.md": _policy("2024-01-01", "Expenses policy 2024", **OLD),
            "a/policy v2 final.md": _policy("2026-01-01", "Expenses policy (2026)", **NEW),
        },
        MEALS,
        "£38",
    ),
    "another title": (
        {
            "expenses_01.03.2024.md": _policy("2024-03-01", "Expenses", **OLD),
            "expenses-march-2026.md": _policy("2026-03-01", "Travel expenses", **NEW),
        },
        MEALS,
        "£38",
    ),
    "a section more": (
        {
            "expenses-2024.md": _policy("2024-01-01", **OLD),
            "expenses-2026.md": _policy("2026-01-01", **NEW | {"news": _NEWS}),
        },
        MEALS,
        "£38",
    ),
    "rows": (
        {
            "prices.md": _LIST.format("2026-02-01", _TABLE.format(95, 120, 210)),
            "archive/2023/prices.md": _LIST.format("2023-02-01", _TABLE.format(80, 99, 180)),
        },
        "What does a single room cost?",
        "£95",
    ),
    "list items": (
        {
            "prices v1.md": _LIST.format("2023-02-01", _ITEMS.format(80, 99, 180)),
            "prices v2.md": _LIST.format("2026-02-01", _ITEMS.format(95, 120, 210)),
        },
        "What does a single room cost?",
        "£95",
    ),
}

NONE = {
    "undated": (
        {"expenses-2024.md": _policy("", **OLD), "expenses-2026.md": _policy("2026-01-01", **NEW)},
        MEALS,
    ),
    "of one day": (
        {"expenses-2024.md": _policy("2026-01-01", **OLD), "expenses-2026.md": _policy("2026-01-01", **NEW)},
        MEALS,
    ),
    "how it changed": (
        {"expenses-2024.md": _policy("2024-01-01", **OLD), "expenses-2026.md": _policy("2026-01-01", **NEW)},
        "How has the amount that I may claim for meals changed?",
    ),
    "of other documents": (
        {
            "sales/travel.md": _policy("2024-01-01", "Rules for sales staff", **OLD),
            "lab/visits.md": _policy("2026-01-01", "Visits to the lab", **NEW),
        },
        MEALS,
    ),
    "the older is named": (
        {"expenses-2024.md": _policy("2024-01-01", **OLD), "expenses-2026.md": _policy("2026-01-01", **NEW)},
        "How much could I claim for meals in 2024?",
    ),
    "its month is named": (
        {"a1.md": _policy("2026-03-31", **OLD), "a1-new.md": _policy("2026-06-30", **NEW)},
        "How much could I claim for meals in March?",
    ),
    "quarters": (
        {
            "expenses-q1-2026.md": _policy("2026-03-31", "Expenses policy", **OLD),
            "expenses-q2-2026.md": _policy("2026-06-30", "Expenses policy", **NEW),
        },
        MEALS,
    ),
    "quarters in titles": (
        {
            "2026-03.md": _policy("2026-03-31", "Expenses, Q1", **OLD),
            "2026-06.md": _policy("2026-06-30", "Expenses, Q2", **NEW),
        },
        MEALS,
    ),
    "countries": (
        {"uk/expenses.md": _policy("2024-01-01", **OLD), "fr/expenses.md": _policy("2026-01-01", **NEW)},
        MEALS,
    ),
    "two meetings": (
        {
            "minutes-2026-03-02.md": _minutes(
                "2026-03-02", "The committee agreed to buy a printer.", "Anna asks three roofers for a price."
            ),
            "minutes-2026-06-01.md": _minutes(
                "2026-06-01", "The committee agreed to hire a cook.", "Ben writes to the parents about lunch."
            ),
        },
        "What did the committee agree to?",
    ),
}


def _selected(folder: Path, files: dict[str, str], question: str):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return Collection(folder, embedder="tfidf").select(question, budget=1024)


@pytest.mark.parametrize("case", VERSIONS)
def test_the_newer_of_two_versions_is_read(case: str, tmp_path: Path) -> None:
    files, question, fact = VERSIONS[case]
    found = _selected(tmp_path, files, question)
    newest = max(files, key=lambda name: files[name].partition("date: ")[2])
    assert {passage.source for passage in found.passages} == {newest}
    assert fact in " ".join(found.texts)
    (note,) = [note for note in found.notes if getattr(note, "code", "") == "older_version"]
    assert ", an older version of " in note


@pytest.mark.parametrize("case", NONE)
def test_what_is_no_older_version_is_read_too(case: str, tmp_path: Path) -> None:
    files, question = NONE[case]
    found = _selected(tmp_path, files, question)
    assert {passage.source for passage in found.passages} == set(files)
    assert not [note for note in found.notes if "older version" in note]
