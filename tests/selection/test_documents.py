"""Units of documents: what they need is read and paid once, and long units are worth more than short ones."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mio_rag import Collection
from mio_rag.context import RegexCounter, block_tokens, render_passage
from mio_rag.corpora.dataset import load_folder
from mio_rag.pool import Pool
from mio_rag.relevance.documents import DocumentModel
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.selection.program import Formulation
from mio_rag.selection.selector import Selector
from mio_rag.sentences import Sentences
from mio_rag.types import Line

FARES = (
    "Fares\n"
    "Fare | Summer | Winter\n"
    "Loen | 54 | 61\n"
    "Olden | 12 | 15\n"
    "Dogs\n"
    "Dogs travel free of charge on every line of the company.\n"
    "Yes."
)
COUNTER = RegexCounter()


def document_pool(
    rows: list[tuple[str, tuple[str, ...], float]], text: str = FARES, **changes: object
) -> Pool:
    """A pool of one passage for each unit: its text, the lines that it needs, its cosine."""
    lines = [tuple(Line(text.index(line), line) for line in needs) for _, needs, _ in rows]
    units = [unit for unit, _, _ in rows]
    cosine = np.array([value for *_, value in rows])
    n = len(rows)
    scores = {"dense": cosine, "bm25": np.zeros(n)}
    columns: dict[str, object] = {
        "ids": [f"fares.md#{k}" for k in range(n)],
        "texts": units,
        "relevance": cosine,
        "tokens": COUNTER.count(units),
        "titles": ["Ferries"] * n,
        "sources": ["fares.md"] * n,
        "question": "What does it cost?",
        "spans": [(text.index(unit), text.index(unit) + len(unit)) for unit in units],
        "scores": scores | {"fused": cosine},
        "lines": lines,
        "sections": [("Fares",)] * n,
        "pages": [3] * n,
        "sentences": Sentences(
            np.arange(n),
            np.array([(0, len(unit)) for unit in units]),
            None,
            needs=[tuple(range(len(needs))) for needs in lines],
            scores=scores,
        ),
    }
    return Pool(**(columns | changes))  # type: ignore[arg-type]


TABLE = ("Fares", "Fare | Summer | Winter")


def test_a_row_is_read_behind_its_heading_and_header() -> None:
    pool = document_pool([("Loen | 54 | 61", TABLE, 0.9), ("Olden | 12 | 15", TABLE, 0.1)])
    selection = Selector(units="auto").select(pool, 16, COUNTER)
    assert [render_passage(p) for p in selection.passages] == [
        "Ferries\nFares\nFare | Summer | Winter\nLoen | 54 | 61"
    ]
    (part,) = selection.blocks[0].parts
    assert (part.id, part.page, part.section) == ("fares.md#0#s1", 3, ("Fares",))
    assert selection.texts[0][part.start : part.end] == "Loen | 54 | 61"


def test_two_rows_pay_for_their_header_once() -> None:
    pool = document_pool([("Loen | 54 | 61", TABLE, 0.9), ("Olden | 12 | 15", TABLE, 0.8)])
    selection = Selector(units="auto").select(pool, 100, COUNTER)
    assert selection.texts == ("Fares\nFare | Summer | Winter\nLoen | 54 | 61\nOlden | 12 | 15",)
    assert (
        selection.certified_tokens
        == selection.tokens_used
        == COUNTER.count([render_passage(selection.passages[0])])[0]
    )


def test_a_row_is_not_read_where_its_header_does_not_fit() -> None:
    pool = document_pool([("Loen | 54 | 61", TABLE, 0.9)])
    assert Selector(units="auto").select(pool, 10, COUNTER).chosen == ()


def test_the_likeliest_row_that_does_not_fit_with_its_header_is_noted(tmp_path: Path) -> None:
    table = "| Harbour | Berths for yachts | Berths for fishing boats |\n|---|---|---|\n| Loen | 54 | 61 |\n"
    (tmp_path / "harbours.md").write_text(f"# Harbours\n\n{table}| Olden | 12 | 15 |\n\nFreight counts.\n")
    found = Collection(tmp_path).select("How many fishing boats can berth at Loen?", budget=16)
    assert any("with the lines that it needs" in note for note in found.notes)


ZONES = """# {title}

| {zones} | {adults} | {children} |
|---|---|---|
""" + "".join(f"| {k} | {k * 2 + 1}.40 EUR | {k}.20 EUR |\n" for k in range(1, 7))


@pytest.mark.parametrize(
    ("names", "question", "row"),
    [
        (("Single tickets", "Zones", "Adults", "Children"), "How much does a child pay for three zones?", 3),
        (("Single tickets", "Zones", "Adults", "Children"), "What do five zones cost for adults?", 5),
        (("Einzelfahrkarten", "Zonen", "Erwachsene", "Kinder"), "Was zahlen Kinder für vier Zonen?", 4),
    ],
)
def test_numbers_of_a_question_are_words_or_digits(
    tmp_path: Path, names: tuple[str, ...], question: str, row: int
) -> None:
    text = ZONES.format(title=names[0], zones=names[1], adults=names[2], children=names[3])
    other = "Die Hunde sind auf der Bahn frei, wenn sie nicht groß sind und das Ticket für sie da ist."
    text += f"\n{other}\n" if names[1] == "Zonen" else "\nDogs travel free of charge on every line.\n"
    (tmp_path / "fares.md").write_text(text)
    found = Collection(tmp_path).select(question, budget=45)
    assert f"\n{row} | {row * 2 + 1}.40 EUR | {row}.20 EUR" in found.texts[0]


def test_rows_that_may_answer_as_well_and_do_not_fit_are_noted(tmp_path: Path) -> None:
    (tmp_path / "fares.md").write_text(
        ZONES.format(title="Single tickets", zones="Zones", adults="Adults", children="Children")
    )
    question = "What do children pay for single tickets?"
    small, large = (Collection(tmp_path).select(question, budget=budget) for budget in (45, 1000))
    assert any("of a table in 'fares.md'" in note for note in small.notes)
    asked = Collection(tmp_path).select("What do children pay for three zones?", budget=45)
    assert not any("of a table" in note for note in (*large.notes, *asked.notes))


def test_rows_that_only_name_a_place_do_not_bury_what_is_said_of_it(tmp_path: Path) -> None:
    months = ("January", "February", "March", "April", "May", "June", "July")
    counts = [(name, month) for name in ("Mill Lane", "Tarn", "Orm") for month in months]
    rows = "".join(f"| {name} | {month} | {k}3 |\n" for k, (name, month) in enumerate(counts, 10))
    (tmp_path / "report.md").write_text(f"# Report\n\n| Station | Month | Boardings |\n|---|---|---|\n{rows}")
    (tmp_path / "minutes.txt").write_text(
        "Minutes of the meeting\n\n1. Machines\nNine are bought from Parkova.\n\n"
        "2. Mill Lane crossing\nThe council pays a part of a new barrier, which costs 88,000 EUR.\n"
    )
    found = Collection(tmp_path).select("What was agreed about Mill Lane?", budget=70)
    assert any("new barrier" in text for text in found.texts)
    found = Collection(tmp_path).select("Which barrier does the council pay?")
    assert found.tokens_used < 120  # rows of stations match alike, and weakly


def test_short_units_are_not_bought_for_being_short() -> None:
    text = "Dogs travel free of charge on every line of the company."
    pool = document_pool([("Yes.", (), 0.9), (text, ("Dogs",), 0.9)])
    selection = Selector(units="auto").select(pool, 16, COUNTER)
    assert text in selection.texts[0]


def test_whole_passages_hold_their_lines_too() -> None:
    pool = document_pool([("Loen | 54 | 61", TABLE, 0.9), ("Olden | 12 | 15", TABLE, 0.1)])
    selection = Selector(units="passages").select(pool, 16, COUNTER)
    assert selection.texts == ("Fares\nFare | Summer | Winter\nLoen | 54 | 61",)


def test_a_question_that_names_a_document_is_answered_from_it() -> None:
    rows = [("Loen | 54 | 61", TABLE, 0.7), ("Olden | 12 | 15", TABLE, 0.6)]
    pool = document_pool(rows, sources=["a.md", "b.md"], titles=["A", "B"])
    assert pool.sentences is not None
    named = {"scope": np.array([0.0, 1.0])}
    scoped = Pool(**{**pool.__dict__, "scores": {**pool.scores, **named}})
    assert DocumentModel().unit_relevance(pool).argmax() == 0
    assert DocumentModel().unit_relevance(scoped).argmax() == 1


def test_of_documents_that_are_compared_none_is_forgotten(tmp_path: Path) -> None:
    told = {
        "Alder Tools": " ".join(
            f"In {month}, Alder Tools changed {what}."
            for month, what in (
                ("May", "its chair"), ("June", "its board"), ("July", "its senior managers"),
                ("August", "its plans"), ("September", "its managers in Loen"), ("October", "its bank"),
            )
        ),
        "Birch Trading": "The year was wet. New directors came in June, and two left. Ships were sold.",
        "Cedar Farms": "Milk is sold. New directors came in March. Cows graze in Olden.",
        "Doric Homes": "Rents were paid. New directors came in April. Houses were let.",
    }  # fmt: skip
    for name, text in told.items():
        (tmp_path / f"{name}.md").write_text(f"# {name}\n\n{text}\n", encoding="utf-8")
    question = "What changes of managers and directors were there at Alder Tools and at Birch Trading?"
    read = Collection(tmp_path).select(question, budget=50)
    text = "\n".join(passage.text for passage in read.passages)
    assert "senior managers" in text
    assert "came in June" in text
    assert {passage.title for passage in read.passages} == {"Alder Tools", "Birch Trading"}


@pytest.mark.parametrize("heading", ["", "Whales\n\n"])
def test_what_lies_apart_in_a_document_is_parted_by_a_line(tmp_path: Path, heading: str) -> None:
    between = "Ropes are made of hemp. Lamps burn oil at night. Sails are white. Boots are black. "
    text = f"The whale eats krill. {between}The whale sings at night. {between}".strip()
    (tmp_path / "sea.txt").write_text(f"Notes of a sailor\n\n{heading}{text}\n")
    (read,) = Collection(tmp_path, embedder="tfidf").select("What does the whale do?", budget=20).passages
    lines = read.text.split("\n")
    assert lines[-1] == "The whale sings at night."
    assert "The whale eats krill." in lines
    assert "\u2026" not in lines


def test_english_cosines_do_not_rank_other_scripts() -> None:
    rows = [("Loen | 54 | 61", TABLE, 0.1), ("Olden | 12 | 15", TABLE, 0.9)]
    pool = document_pool(rows, embedder="sentence-transformers:72362722b466552f", question="青石塔在哪里?")
    first, second = DocumentModel().unit_relevance(pool)
    assert first == second


def test_of_documents_that_surely_do_not_answer_only_the_best_is_read(tmp_path: Path) -> None:
    (tmp_path / "call.md").write_text(
        "# On call\n\nThe engineer on call answers within 15 minutes.\n\n- Week A: Ada\n- Week B: Ben\n\n"
        "If nobody answers, call the head of operations.\n"
    )
    (tmp_path / "travel.md").write_text(
        "# Travel policy\n\nEvery trip is booked through the travel desk. Ask your manager first.\n\n"
        "Laundry is paid from the fifth day of a trip on. Keep the receipt.\n"
    )
    index = CorpusIndex.build(load_folder(tmp_path).passages, "minilm")
    read = [
        Selector(units="auto").select(Retriever(index).retrieve(question), 200, COUNTER)
        for question in ("Who is on call in week B?", "How tall is the tower of Skerryvore?")
    ]
    assert "Ben" in " ".join(read[0].texts)
    assert len(read[1].chosen) < len(read[1].candidates) / 2
    assert any("may not hold the answer" in note for note in read[1].notes)


@st.composite
def _pools(draw: st.DrawFn) -> tuple[Pool, int]:
    """A document of up to seven lines, of which units need earlier ones."""
    count = draw(st.integers(2, 7))
    lines = [f"L{k} " + "word " * draw(st.integers(1, 6)) + "end." for k in range(count)]
    text = "\n".join(lines)
    chosen = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=count, unique=True))
    rows = []
    for k in sorted(chosen):
        needs = draw(st.lists(st.integers(0, k), max_size=2, unique=True))
        rows.append((lines[k], tuple(lines[j] for j in needs), draw(st.floats(0, 1))))
    return document_pool(rows, text), draw(st.integers(1, 60))


@settings(deadline=None, max_examples=60)
@given(_pools())
def test_the_program_counts_what_is_read_and_its_optimum_is_one(case: tuple[Pool, int]) -> None:
    pool, budget = case
    chooser = Selector(units="auto")
    formulation = Formulation(chooser.replace(units="sentences"), chooser.read(pool), COUNTER)
    program, units = formulation.program(budget), formulation.candidates
    best, fixed = -np.inf, program.fixed >= 0  # the most likely unit is read where it fits
    for size in range(len(units) + 1):
        for rows in combinations(range(len(units)), size):
            x = np.isin(np.arange(program.n), rows).astype(np.int8)
            assert program.cost(x) == pytest.approx(block_tokens(units, rows, COUNTER, True))
            if program.cost(x) <= budget and (x == program.fixed)[fixed].all():
                best = max(best, program.objective(x))
    found = chooser.select(pool, budget, COUNTER)
    assert found.tokens_used <= budget
    assert found.result.objective == pytest.approx(best)


def test_settings_about_passages_read_them_whole_and_say_so() -> None:
    pool = document_pool([("Loen | 54 | 61", TABLE, 0.9), ("Olden | 12 | 15", TABLE, 0.1)])
    for changes, named in (({"max_passages": 1}, "max_passages"), ({"merge": False}, "merge=False")):
        selection = Selector(**changes).select(pool, 40, COUNTER)
        assert selection.unit == "passage"
        assert (
            f"whole passages, since {named} is about these (without, sentences may be read)"
            in selection.notes
        )
    tight = Selector(max_per_source=1).select(pool, 2, COUNTER)
    assert any("leave out max_per_source, which keeps passages whole" in note for note in tight.notes)
    plain = Selector(units="passages").select(pool, 40, COUNTER)
    assert not any("is about these" in note for note in plain.notes)


def test_the_most_likely_text_is_read_where_it_fits_and_noted_where_not(tmp_path: Path) -> None:
    (tmp_path / "operations.md").write_text(
        "# Operations handbook\n\nRailway, operations department.\n\n## Rest times\n\n"
        "| Duty | Minimum rest (h) | Longest shift (h) | Breaks (min) |\n|---|---|---|---|\n"
        "| Driver | 11 | 9 | 45 |\n| Conductor | 10 | 10 | 30 |\n| Shunter | 12 | 8 | 45 |\n\n"
        "Rest times of all duties must be kept, and exceptions are granted by the duty manager only, once "
        "per crew member and week.\n"
    )
    docs = Collection(tmp_path, embedder="minilm")
    tiny, small, large = (docs.select("How long must a shunter rest?", budget=b) for b in (20, 40, 100))
    assert any("most likely text needs" in note and "Shunter | 12" in note for note in tiny.notes)
    assert "Shunter | 12" in small.context  # the longer paragraph below the table is worth more
    assert "which is read if it fits" in small.explain()
    assert "Shunter | 12" in large.context
    assert not any("most likely text" in note for one in (small, large) for note in one.notes)


def test_a_row_is_read_by_its_code(tmp_path: Path) -> None:
    rows = "".join(f"| AC-{k:03} | Hall {k % 7} | 0{1 + k % 9}.2026 |\n" for k in range(10, 60))
    (tmp_path / "register.md").write_text(
        "# Autoclaves\n\nAll autoclaves of the chain with the date of their next service.\n\n"
        f"| Autoclave | Place | Next service |\n|---|---|---|\n{rows}"
    )
    docs = Collection(tmp_path, embedder="minilm")
    for code in ("AC-010", "AC-021", "AC-044", "AC-059"):
        assert f"{code} |" in docs.select(f"When is the next service of autoclave {code}?", budget=50).context
