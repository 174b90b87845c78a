"""Notes on a question: names that no document has, and languages that the embedder does not read."""

from pathlib import Path

import pytest

from mio_rag import Collection, Selection

FILES = {
    "prices-2026.md": "---\ndate: 2026-01-05\n---\n# Prices\n\nA car from Sandvik to Bergholm: 30 euros.\n",
    "prices-2024.md": "---\ndate: 2024-01-05\n---\n# Prices\n\nA car from Sandvik to Bergholm: 26 euros.\n",
    "fleet.md": "# Fleet\n\nMV Ternen carries 155 cars and burns gas oil. Her pilots are paid in July.\n",
    "pay.md": "# Pay\n\nPayment of KX-100 parts is due within 1,200 hours.\n",
    "phones.csv": "Name,Extension\nOda Myhre,4617\nMarit Dahl,4471\n",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ferry")
    for name, text in FILES.items():
        (path / name).write_text(text, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def docs(folder: Path) -> Collection:
    return Collection(folder, embedder="minilm")


def told(chosen: Selection, code: str = "not_named") -> list[str]:
    return [str(note) for note in chosen.notes if note.code == code]


@pytest.mark.parametrize(
    ("question", "note"),
    [
        ("How many cars does MV Lomvi carry?", "No document has 'Lomvi'."),
        ("how many cars does mv lomvi carry?", "No document has 'lomvi'."),
        ("What is the salary of a pilot on MV Ternen?", "No document has 'salary'."),
        ("What does a car cost from Sandvik to Bergholm in 2031?", "No document has '2031'."),
        ("When is payment of KX-100 parts due?", None),
        ("When is payment of KX-200 parts due?", "No document has 'KX-200'."),
        ("Are Lomvi and Östervåg 1,300 hours apart?", "No document has 'Lomvi' or 'Östervåg' or '1,300'."),
        ("Is payment due within 1200h?", None),
        ("Is payment due within 1 200 hours, 1.200 hours or 1'200 hours?", None),
        ("Is payment due within 12.00 or 1.2 hours?", "No document has '12.00' or '1.2'."),
        ("Is payment of KX100 parts due?", None),
        ("Is GasOil what MV Ternen burns?", None),
        ("Are 155.0 cars on MV Ternen on 2025-03-01?", None),
        ("Which clause says when payment of KX-100 parts is due?", None),
        ("What allowance is there for payment of KX-100 parts, due within 1,200 hours?", None),
        ("Which pilots are paid in July?", None),
        ("What is the total, the fewest or the biggest of both aims?", None),
        ("What does a car from Sandvik to Bergholm cost in July?", "Nothing that was read has 'July'."),
        ("What does a car from Sandvik to Bergholm cost in January 2026?", None),
        ("What does a car from Sandvik to Bergholm cost in February 2026?", "No document has 'February'."),
        ("Does the 3rd car cost 30 euros?", None),
        ("Does Mr Myhre have the extension 4617?", None),
        ("What does the carriage of 155 cars burn?", None),
        ("Are the pilots repaid in July?", "No document has 'repaid'."),
        ("How Many Cars Does The Ship Called Ternen Carry Today?", None),
        ("Wie viele Autos trägt die Fähre an dem Tag?", None),
    ],
)
def test_what_no_document_names_is_said(docs: Collection, question: str, note: str | None) -> None:
    assert told(docs.select(question, budget=25)) == ([] if note is None else [note])


@pytest.mark.parametrize(
    ("question", "budget", "left_out"),
    [
        ("What is the total damage of all incidents?", 33, "4 rows of a table in 'incidents.csv'"),
        ("What was the most damage of an incident?", 33, "4 rows of a table in 'incidents.csv'"),
        ("What was the most damage of an incident?", 400, None),
        ("How many incidents are open?", 33, "rows of a table in 'incidents.csv'"),
        ("Which incidents are open?", 33, "rows of a table in 'incidents.csv'"),
        ("What was the damage of the burst pipe at Quay?", 33, None),
        ("List all goals for the harbour", 33, "2 items of a list in 'goals.md'"),
        ("What are the five goals?", 33, "2 items of a list in 'goals.md'"),
        ("When does the seed library open?", 33, None),
    ],
)
def test_rows_and_items_that_are_asked_for_and_not_read_are_counted(
    question: str, budget: int, left_out: str | None, tmp_path: Path
) -> None:
    (tmp_path / "incidents.csv").write_text(
        "Incident,Branch,Damage,Status\nBurst pipe,Quay,5200,closed\nSilverfish,Lindholt,310,closed\n"
        "Finger pinched,Tanner,10,open\nReturn machine broken,Fenwick,880,closed\n"
        "Torn picture book,Eastmoor,18,open\nLeaking roof,Salt Lane,77,open\n"
    )
    (tmp_path / "goals.md").write_text(
        "# Goals\n\nThe board has five goals for the harbour:\n\n- Open the seed library by May.\n"
        "- Digitise 4,000 negatives.\n- Replace the shear.\n- Train apprentices.\n- Offer reading dogs.\n"
    )
    chosen = Collection(tmp_path, embedder="minilm").select(question, budget=budget)
    notes = told(chosen, "as_likely")
    assert [left_out in note for note in notes] == [True] if left_out else not notes, (notes, chosen.context)


def test_a_filter_hides_what_others_name(docs: Collection) -> None:
    chosen = docs.select("What is the extension of Oda Myhre?", where="source=*.md")
    assert told(chosen) == ["No document that meets the filter has 'Oda' or 'Myhre' or 'extension'."]


def test_a_year_is_found_only_where_something_else_of_the_question_is(tmp_path: Path) -> None:
    for name, text in {
        "report.md": "# Annual report 2024\n\n|Clinic|Revenue|\n|---|---|\n|Pinehurst|731|\n|Wexcombe|90|\n",
        "devices.csv": "Device,Place,Bought\nAutoclave,Marl,2019-05-06\nX-ray,Pinehurst,2018-02-01\n",
        "gifts.md": "# Gifts\n\n| Item | 2015 | 2016 |\n|---|---|---|\n| Donations | 73 | 51 |\n",
        "loans.md": "# Loans\n\nWe lent 391,635 items, 4 % more than in 2017.1 Visits rose.\n",
        "fees-2022.md": "---\ndate: 2022-01-01\n---\n# Fee rules\n\nThe fee of a ferry berth is 30 euros.\n",
        "fees-2025.md": "---\ndate: 2025-01-01\n---\n# Fee rules\n\nThe fee of a ferry berth is 38 euros.\n",
    }.items():
        (tmp_path / name).write_text(text)
    for k in range(3):
        (tmp_path / f"{k}.md").write_text(f"# Ship {k}\n\nShip {k} is painted green.\n")
    docs = Collection(tmp_path, embedder="tfidf")
    for question, note in {
        "What was the revenue of Pinehurst in 2019?": ["Nothing that was read has '2019'."],
        "What was the revenue of Pinehurst in 2024?": [],
        "What was bought for Marl in 2019?": [],
        "What were the donations in 2015?": [],
        "How many items were lent in 2017?": [],
        "What was the fee of a ferry berth in 2023?": [],
        "What was the fee of a ferry berth before 2025?": [],
    }.items():
        devices = ["devices.csv#0"] if "Pinehurst" in question else []
        chosen = docs.select(question, must_include=devices, budget=300)
        assert told(chosen) == note, question


def test_a_clause_that_is_read_is_not_called_missing(tmp_path: Path) -> None:
    clauses = {
        "4.1": "The board has three members.",
        "4.4": "A change needs three quarters of the votes cast.",
    }
    text = "# Statutes\n\n## Organs\n\n" + "\n\n".join(f"{n} {said}" for n, said in clauses.items())
    for name, content in {"statutes.md": text, "pets.md": "# Pets\n\nDogs need consent.", **FILES}.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    chosen = Collection(tmp_path, embedder="minilm").select("What does clause 4.4 say?", budget=120)
    assert "4.4 A change" in chosen.context
    assert not told(chosen)


def test_a_row_with_all_words_of_the_question_is_not_doubted(docs: Collection) -> None:
    for question in ("what is the extension of oda myhre?", "WHAT IS THE EXTENSION OF ODA MYHRE?"):
        chosen = docs.select(question, budget=40)
        assert "4617" in chosen.context
        assert chosen.answerable is not None
        assert chosen.answerable >= 0.5
        assert not told(chosen, "answerable")


def test_languages_that_the_embedder_does_not_read_are_said(docs: Collection, tmp_path: Path) -> None:
    german = "Die Tagesmiete der Fähre ist in dem Vertrag mit der Reederei geregelt und wird nicht erhöht."
    assert not docs.notes
    assert told(docs.select("Wie hoch ist die Miete für die Fähre?"), "language")
    assert not told(docs.select("How much is the hire of the ferry?"), "language")
    for short in ("Wie lange darf man Brettspiele ausleihen?", "Combien coûte une carte adulte ?"):
        assert told(docs.select(short), "language")
        assert not told(docs.select(short))
    assert not told(docs.select("Miete Fähre"), "language")  # too little to tell
    for name, text in (*FILES.items(), ("vertrag.md", f"# Vertrag\n\n{german}\n")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    (note,) = Collection(tmp_path, embedder="minilm").notes
    assert "several languages (English 4, German 1)" in note
    (tmp_path / "pay.md").write_text("# Pay\n\nThe payment is due within 40 days.\n", encoding="utf-8")
    assert not Collection(tmp_path, embedder="minilm").notes  # is read again; the languages are the same
    other = tmp_path / "other"
    other.mkdir()
    (other / "vertrag.md").write_text(f"# Vertrag\n\n{german}\n", encoding="utf-8")
    (note,) = told(Collection(other, embedder="minilm").select("What is the hire of the ferry?"), "language")
    assert "another language than most documents (German)" in note
    assert not told(Collection(other, embedder="tfidf").select("What is the hire of the ferry?"), "language")
