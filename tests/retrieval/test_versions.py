"""Of two versions of a document the newer is read; what only looks like one stays."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from pathlib import Path

import pytest

from mio_rag import Collection
from mio_rag.context import RegexCounter

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
        {"expenses.md": _policy("", **OLD), "expenses-2026.md": _policy("2026-01-01", **NEW)},
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

_BILL = """# {title}

Date: {date}

For transport services in {month}.

| Item | Quantity | Amount (EUR) |
|---|---|---|
| Domestic parcels | 410 | {amount} |
| Fuel surcharge | 1 | 75.10 |

Please pay within 30 days to the account of Alder Freight.
"""
_MONTHS = {
    "2026-01-28": ("January", "1240.50"),
    "2026-02-28": ("February", "1310.75"),
    "2026-03-28": ("March", "980.20"),
}


def _bills(name: str, title: str, dates: Iterable[str] = _MONTHS) -> dict[str, str]:
    found = {}
    for k, (date, (month, amount)) in enumerate(zip(dates, _MONTHS.values(), strict=True), 1):
        names = {"date": date, "year": date[:4], "period": date[:7], "k": k, "month": month}
        found[name.format(**names)] = _BILL.format(
            title=title.format(**names), date=date, month=month, amount=amount
        )
    return found


AMOUNT = "What is the amount for domestic parcels?"
YEARS = ("2023-12-31", "2024-12-31", "2025-12-31")
SERIES = {
    "invoices by month": (_bills("invoice-{period}.md", "Invoice Alder Freight"), AMOUNT),
    "invoices without a period in the name": (_bills("{k}/alder.md", "Invoice Alder Freight"), AMOUNT),
    "statements": (_bills("statement_{date}.md", "Account statement"), AMOUNT),
    "reports by year": (_bills("annual-report-{year}.md", "Annual report {year}", YEARS), AMOUNT),
    "in folders": (_bills("Rechnungen/{period}.md", "Alder Freight"), AMOUNT),
    "numbered": (_bills("INV-00{k}.md", "Alder Freight"), AMOUNT),
    "of an unknown kind, by month": (_bills("alder-{period}.md", "Alder Freight"), AMOUNT),
    "months in titles": (_bills("a{k}.md", "Monatsbericht {month} {year}"), AMOUNT),
    "of a policy committee": (_bills("{date}.md", "Minutes of the policy committee"), AMOUNT),
    "finals": (_bills("report-{period}-final.md", "Report"), AMOUNT),
    "summed, of an unknown kind": (
        _bills("alder-{year}.md", "Alder Freight", YEARS),
        "What is the total amount?",
    ),
    "policies compared": (
        {"expenses-2024.md": _policy("2024-01-01", **OLD), "expenses-2026.md": _policy("2026-01-01", **NEW)},
        "Compare the amounts that may be claimed for meals.",
    ),
}
REPLACED = {
    "price lists by month": (_bills("prices-{period}.md", "Price list"), "What is the highest amount?"),
    "drafts of one report": (
        {
            "report-2026-01-draft.md": _BILL.format(
                title="Report", date="2026-02-03", month="January", amount="1240"
            ),
            "report-2026-01-final.md": _BILL.format(
                title="Report", date="2026-02-09", month="January", amount="1250"
            ),
        },
        AMOUNT,
    ),
    "by year": (_bills("alder-{year}.md", "Alder Freight", YEARS), AMOUNT),
    "a rule on reports": (_bills("reporting-{period}.md", "Guideline for monthly reports"), AMOUNT),
    "days per year": (
        {"expenses-2024.md": _policy("2024-01-01", **OLD), "expenses-2026.md": _policy("2026-01-01", **NEW)},
        "How many days do I have to send all claims to the finance team?",
    ),
}


@pytest.mark.parametrize("case", SERIES)
def test_documents_of_a_series_replace_none(case: str, tmp_path: Path) -> None:
    files, question = SERIES[case]
    found = _selected(tmp_path, files, question)
    assert {passage.source for passage in found.passages} == set(files)
    assert not [note for note in found.notes if note.code == "older_version"]


@pytest.mark.parametrize("case", REPLACED)
def test_what_a_newer_document_replaces_is_not_read(case: str, tmp_path: Path) -> None:
    files, question = REPLACED[case]
    found = _selected(tmp_path, files, question)
    assert {passage.source for passage in found.passages} == {list(files)[-1]}
    (note,) = [note for note in found.notes if note.code == "older_version"]
    assert "selection.near_duplicates=all" in note


def test_a_version_whose_newer_one_is_not_read_is_not_noted(tmp_path: Path) -> None:
    files, _, _ = VERSIONS["short sections"]
    files = files | {"lamp.md": "# Lighthouse\n\nThe lamp of the lighthouse burns colza oil at night.\n"}
    found = _selected(tmp_path, files, "Which oil does the lamp of the lighthouse burn?", budget=20)
    assert {passage.source for passage in found.passages} == {"lamp.md"}
    assert not [note for note in found.notes if note.code == "older_version"]


def test_versions_that_are_read_have_their_dates_in_the_text(tmp_path: Path) -> None:
    files, question = SERIES["policies compared"]
    files = files | {"lamp.md": "# Lighthouse\n\nMeals for the keeper are cooked at night.\n"}
    found = _selected(tmp_path, files, question)
    dates = {"expenses-2024.md": "2024-01-01", "expenses-2026.md": "2026-01-01", "lamp.md": ""}
    assert {p.source: p.date for p in found.passages} == dates
    assert {part["source"]: part["date"] or "" for part in found.to_dict()["parts"]} == dates
    titles = {p.source: p.title for p in found.passages}
    assert [titles[name].endswith(f"({date})") for name, date in dates.items()] == [True, True, False]
    assert all(title in found.context and title in " ".join(found.labels) for title in titles.values())
    assert found.tokens == RegexCounter().count([found.context])[0] <= found.budget
    alone = _selected(tmp_path, files, MEALS)
    assert not [p for p in alone.passages if p.date and p.date in p.title]


@pytest.mark.parametrize(
    ("question", "read"),
    [
        ("Has the limit of hotels changed between the 2024 and the 2026 expenses policy?", [OLD, NEW]),
        ("How has the limit of hotels changed?", [OLD, NEW]),
        ("Compare the limits of hotels in 2024 and 2026.", [OLD, NEW]),
        ("What was the limit of hotels in 2024?", [OLD]),
        ("What is the limit of hotels?", [NEW]),
    ],
)
@pytest.mark.parametrize("meals", [32, 38])
def test_what_compared_versions_have_in_common_is_read_of_each(
    question: str, read: list[dict[str, object]], meals: int, tmp_path: Path
) -> None:
    new = OLD | {"meals": meals}
    files = {
        "expenses-2024.md": _policy("2024-01-01", **OLD),
        "expenses-2026.md": _policy("2026-01-01", **new),
    }
    found = _selected(tmp_path, files, question, budget=400)
    dates = {passage.date for passage in found.passages if "£120 a night" in passage.text}
    assert dates == {"2024-01-01" if one is OLD else "2026-01-01" for one in read}


def test_a_compared_version_that_does_not_fit_is_noted(tmp_path: Path) -> None:
    files, _, _ = VERSIONS["short sections"]
    found = _selected(tmp_path, files, "How has the limit for meals per day changed?", budget=40)
    (source,) = {passage.source for passage in found.passages}
    (note,) = [note for note in found.notes if note.code == "not_compared"]
    assert all(name in note for name in files)
    assert f"of '{source}'" in note


def _selected(folder: Path, files: dict[str, str], question: str, budget: int = 1024):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return Collection(folder, embedder="tfidf").select(question, budget=budget)


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


@pytest.mark.parametrize(
    ("time", "read"),
    [
        ("before 2024", [2022]), ("before 1 May 2024", [2022]), ("before 3 June 2024", [2024]),
        ("in 2023", [2022]), ("until 2023", [2022]), ("prior to 2026", [2024]), ("on 2025-03-01", [2024]),
        ("at the end of 2023", [2022]), ("in 2024", [2022, 2024]), ("until 2024", [2022, 2024]),
        ("before the end of 2024", [2022, 2024]), ("in May 2024", [2022, 2024]), ("in 2022", [2022]),
        ("in 2026", [2026]), ("in 2027", [2026]), ("before 2027", [2026]), ("in 2019", [2022]),
        ("today", [2026]), ("vor 2024", [2022]), ("bis Ende 2023", [2022]),
        ("in spring 2024", [2022, 2024]), ("in early 2024", [2022]), ("in Q2 2026", [2026]),
        ("before summer 2024", [2024]), ("im Sommer 2024", [2024]), ("am 3. Mai 2023", [2022]),
        ("avant 2024", [2022]), ("en 2023", [2022]), ("antes de 2024", [2022]),
        ("before the policy of 2026", [2024]), ("before the meeting of 3 May 2024 took place", [2022]),
        ("（2024年以前）", [2022]), ("（2023年）", [2022]), ("（2024年之前）", [2022]),
    ],
)  # fmt: skip
def test_a_question_on_a_time_reads_the_version_that_was_in_force(
    time: str, read: list[int], tmp_path: Path
) -> None:
    dates = {2022: "2022-01-01", 2024: "2024-05-07", 2026: "2026-01-01"}
    name = "{}/expenses-{}.md" if read == [2022] else "{}/expenses.md"
    files = {
        name.format(year, year): _policy(day, **OLD | {"meals": year - 1990, "hotel": year - 1900})
        for year, day in dates.items()
    }
    found = _selected(tmp_path, files, f"How much may staff claim for meals a day {time}?")
    assert {int(p.date[:4]) for p in found.passages if "may claim up to" in p.text} == set(read)
    (note,) = [note for note in found.notes if note.code == "older_version"]
    assert all(f"'{name.format(year, year)}', a" in note for year in dates if year not in read)


@pytest.mark.parametrize("budget", [90, 120, 200])
def test_each_version_that_is_compared_has_its_best_row_first(budget: int, tmp_path: Path) -> None:
    for year, price in ((2024, 170), (2025, 189)):
        rows = "".join(
            f"K{k}06,{what},{price - 10 * k}.00,19\n"
            for k, what in enumerate(("X-ray", "Scaling", "Bath", "Visit", "Cast"))
        )
        (tmp_path / f"price-list-{year}.csv").write_text(f"Code,Treatment,Net price (EUR),VAT (%)\n{rows}")
    question = "By how much did the price of K306 rise from 2024 to 2025?"
    found = Collection(tmp_path, embedder="minilm").select(question, budget=budget)
    assert "K306 | Visit | 140.00" in found.context
    assert "K306 | Visit | 159.00" in found.context
    assert not [note for note in found.notes if note.code == "not_compared"]


_LAW = (
    "---\ndate: {}\n---\n# Rent law\n\n## Subletting\n\n{}\n\n## Deposit\n\n{}\n\n"
    "## Notice\n\nNotice is {} months.\n"
)


@pytest.mark.parametrize(
    ("question", "budget", "pairs"),
    [
        ("How has subletting changed since 2019?", 140, ["most two", "most five", "with", "or the"]),
        ("How has subletting changed since 2019?", 60, ["two years", "five years"]),
        ("Difference between the 2019 and the 2024 law on the deposit?", 60, ["three rents", "two rents"]),
        ("Is the notice the same in both laws?", 50, ["2019-01-01)", "2024-03-01)", "Notice is 3"]),
        ("Are both of the rent laws alike on the deposit?", 60, ["three rents", "two rents"]),
        ("Has notice changed since 2019?", 50, ["2019-01-01)\nNotice", "2024-03-01)\nNotice"]),
    ],
)  # fmt: skip
def test_both_sides_of_a_change_are_read(
    question: str, budget: int, pairs: list[str], tmp_path: Path
) -> None:
    texts = [
        (
            "2019-01-01",
            "A tenant may sublet one room with consent. A sublease lasts at most two years.",
            "three",
        ),
        (
            "2024-03-01",
            "A tenant may sublet one room or the flat. A sublease lasts at most five years.",
            "two",
        ),
    ]
    for day, subletting, count in texts:
        law = _LAW.format(day, subletting, f"The deposit is {count} rents.", 3)
        (tmp_path / f"rent-law-{day[:4]}.md").write_text(law)
    docs = Collection(tmp_path, embedder="minilm")
    found = docs.select(question, budget=budget)
    assert [part for part in pairs if part not in found.context] == []
    (note,) = [note for note in docs.select(question, budget=24).notes if note.code == "not_compared"]
    assert "raise the budget" in note


@pytest.mark.parametrize(
    ("said", "rents"),
    [("the old", "3"), ("the previous", "3"), ("the", "4"), ("both the old and the new", "34")],
)
def test_the_old_version_is_read_where_it_is_asked_for(said: str, rents: str, tmp_path: Path) -> None:
    for day, count in (("2019-01-01", 3), ("2024-03-01", 4)):
        text = _LAW.format(day, "No.", f"The deposit is {count} rents.", 3)
        (tmp_path / f"rent-law-{day[:4]}.md").write_text(text)
    found = Collection(tmp_path, embedder="tfidf").select(
        f"What is the deposit in {said} rent law?", budget=90
    )
    assert f"The deposit is {rents[0]} rents." in found.context
    assert f"The deposit is {rents[-1]} rents." in found.context
    assert not [note for note in found.notes if note.code == "not_compared"]


@pytest.mark.parametrize(("time", "expected"), [("before 2018", True), ("in 2017", True), ("in 2020", False)])
def test_a_time_before_all_versions_is_noted(time: str, expected: bool, tmp_path: Path) -> None:
    for day in ("2019-01-01", "2024-03-01"):
        text = _LAW.format(day, "No.", f"The deposit is {day[3]} rents.", 3)
        (tmp_path / f"rent-law-{day[:4]}.md").write_text(text)
    found = Collection(tmp_path, embedder="tfidf").select(f"What was the deposit {time}?", budget=200)
    assert any(note.code == "not_in_force" for note in found.notes) is expected


@pytest.mark.parametrize(
    ("question", "budget", "read", "left"),
    [
        ("How has the trim price changed since 2023?", 40, "45", "3"),
        ("How much did the trim price rise from 2022 to 2024?", 40, "35", "4"),
        ("Compare the trim price in all years.", 60, "345", ""),
        ("How much is the trim?", 40, "5", "34"),
        ("How much was the trim before 2024?", 40, "4", "35"),
    ],
)
def test_of_several_versions_those_asked_of_are_read(
    question: str, budget: int, read: str, left: str, tmp_path: Path
) -> None:
    for year in (2022, 2023, 2024):
        rows = "".join(f"{name},{year - 2019 + k}7\n" for k, name in enumerate(("Trim", "Wash", "Colour")))
        (tmp_path / f"price-list-{year}.csv").write_text(f"Service,Price\n{rows}")
    found = Collection(tmp_path, embedder="minilm").select(question, budget=budget)
    assert {tens: f"Trim | {tens}7" in found.context for tens in read + left} == {
        **dict.fromkeys(read, True),
        **dict.fromkeys(left, False),
    }
    assert not [note for note in found.notes if note.code == "not_compared"]


def test_all_that_changed_is_read_where_a_question_asks_for_nothing_else(tmp_path: Path) -> None:
    clauses = {
        "2023": ("2.1 The fee is 310 euro.", "3.1 The insurance is 2 million euro.", "4.1 It ends in March."),
        "2026": ("2.1 The fee is 345 euro.", "3.1 The insurance is 3 million euro.", "4.1 It ends in March."),
    }
    for year, (*lines, last) in clauses.items():
        new = "4.2 Boats left behind are lifted ashore.\n\n" if year == "2026" else ""
        text = f"# Berth agreement\n\nVersion {year}, in force from 1 April {year}.\n\n" + "\n\n".join(lines)
        (tmp_path / f"berth-agreement-{year}.md").write_text(f"{text}\n\n{last}\n\n{new}")
    docs = Collection(tmp_path, embedder="minilm")
    for question in (
        "What changed between the 2023 and the 2026 berth agreement?",
        "What is new in the agreement?",
    ):
        found = docs.select(question, budget=160)
        for changed in ("310", "345", "2 million", "3 million", "lifted ashore"):
            assert changed in found.context, question
        assert not [note for note in found.notes if note.code == "not_compared"]
        (note,) = [note for note in docs.select(question, budget=70).notes if note.code == "not_compared"]
        assert "more sentence" in note
        assert not [note for note in found.notes if note.code == "older_version"]


_KENNEL = (
    "# Kennel handbook\n\n## Feeding\n\nDogs are fed {} a day with dry food. Water is changed before eight.\n"
)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("handbook (old).md", "handbook.md"),
        ("handbook_v9.md", "handbook_v10.md"),
        ("archive/handbook.md", "handbook.md"),
        ("handbook-draft.md", "handbook-final.md"),
        ("handbook-03-2025.md", "handbook-01-2026.md"),
        ("feeding-2025.md", "feeding-2026.md"),
    ],
)
def test_names_tell_which_version_is_the_newer(old: str, new: str, tmp_path: Path) -> None:
    files = {old: _KENNEL.format("twice"), new: _KENNEL.format("three times")}
    found = _selected(tmp_path, files, "How often are dogs fed?", budget=40)
    assert {passage.source for passage in found.passages} == {new}
    (note,) = [note for note in found.notes if note.code == "older_version"]
    assert f"'{old}', an older version of '{new}'" in note
    if "v9" in old:
        docs = Collection(tmp_path, embedder="tfidf")
        for time in ("by version 9", "before version 10", "before v10 came"):
            found = docs.select(f"How often are dogs fed {time}?", budget=40)
            assert {passage.source for passage in found.passages} == {old}


@pytest.mark.parametrize("time", ["in 2025", "before 2026", "in June 2025"])
def test_what_only_a_later_version_says_did_not_hold_then(time: str, tmp_path: Path) -> None:
    files = {"handbook-2024.md": _KENNEL.format("twice"), "handbook-2026.md": _KENNEL.format("three times")}
    found = _selected(tmp_path, files, f"Were dogs fed three times {time}?", budget=40)
    assert {passage.source for passage in found.passages} == {"handbook-2024.md"}
    assert not [note for note in found.notes if note.code == "not_in_force"]


def test_what_the_newest_version_does_not_say_is_noted(tmp_path: Path) -> None:
    files = {"handbook-2024.md": _KENNEL.format("twice"), "handbook-2026.md": _KENNEL.format("three times")}
    files["handbook-2024.md"] += "\n## Ferrets\n\nFerrets sleep in hammocks.\n"
    found = _selected(tmp_path, files, "Where do ferrets sleep?", budget=24)
    (note,) = [note for note in found.notes if note.code == "older_read"]
    assert "'handbook-2024.md' is an older version of 'handbook-2026.md'" in note


def test_what_only_a_later_version_says_is_not_read_first_for_an_earlier_time(tmp_path: Path) -> None:
    files = {
        f"fees-{year}.md": f"# Van fees\n\n## Fee\n\nThe monthly fee is {fee} euro.\n"
        for year, fee in ((2024, 850), (2026, 990))
    }
    files["fees-2026.md"] += "\n## Electric van\n\nThe van is an electric van.\n"
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    found = Collection(tmp_path, embedder="minilm").select(
        "What was the van fee before the list of 2026?", budget=20
    )
    assert {passage.source for passage in found.passages} == {"fees-2024.md"}


def test_the_year_before_this_one_is_meant_by_last_year(tmp_path: Path) -> None:
    year = datetime.date.today().year
    files = {f"handbook-{year - 2 * k}.md": _KENNEL.format(f"{k + 1} times") for k in range(2)}
    found = _selected(tmp_path, files, "How often were dogs fed last year?", budget=40)
    assert {passage.source for passage in found.passages} == {f"handbook-{year - 2}.md"}


def test_what_a_newer_document_of_a_series_says_of_the_same_is_noted(tmp_path: Path) -> None:
    for day, said in (("03-10", "will be replaced in August"), ("06-09", "is delayed to October")):
        text = f"# Minutes, 2026-{day}\n\n## Other\n\nThe lift at Quay {said}.\n\n## Roof\n\nIt leaks.\n"
        (tmp_path / f"minutes-2026-{day}.md").write_text(text)
    docs = Collection(tmp_path, embedder="minilm")
    found = docs.select("Is the lift at Quay finished in August?", budget=24)
    (note,) = [note for note in found.notes if note.code == "newer_not_read"]
    assert "'minutes-2026-06-09.md' (2026-06-09) is newer" in note
    notes = docs.select("What was said of the lift at Quay in March?", budget=24).notes
    assert not [note for note in notes if note.code == "newer_not_read"]


@pytest.mark.parametrize(
    ("question", "month"),
    [
        ("How many dogs are on the waiting list?", "05"),
        ("How many dogs were on the waiting list in January?", "01"),
        ("How many dogs are on the waiting list for surrender?", "01"),
        ("How many dogs were on the waiting list in March 2026?", "01"),
    ],
)
def test_of_a_series_the_newest_figure_is_read_first(question: str, month: str, tmp_path: Path) -> None:
    said = {
        "01": "37 dogs on the waiting list for surrender",
        "05": "41 dogs on the waiting list, since two left",
    }
    for day, text in said.items():
        title = f"Minutes of the team, 14 {'January' if day == '01' else 'May'} 2026"
        lines = f"# {title}\n\n## Waiting list\n\nThere are {text}.\n\n## Other\n\nThe kettle is broken.\n"
        (tmp_path / f"2026-{day}-14-team.md").write_text(lines)
    found = Collection(tmp_path, embedder="minilm").select(question, budget=34)
    assert {passage.source for passage in found.passages} == {f"2026-{month}-14-team.md"}
