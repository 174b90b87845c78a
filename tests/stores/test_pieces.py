"""Hits that are pieces of documents: rows are read with headers, pieces in order, no heading alone."""

import json
import re
from collections.abc import Mapping, Sequence

import pytest

from mio_rag import Collection, InputError, Passage
from mio_rag.documents.excerpts import read_excerpt
from mio_rag.retrieval import TfidfEmbedder
from mio_rag.stores.cut import as_documents
from mio_rag.stores.rows import Fields

QUESTION = "What is the penalty for a late parcel to the Nordics?"
HEADER = ("Lane", "Latest pickup", "Delivered within", "Penalty for a late parcel")
ROWS = [
    ("Domestic", "17:30", "1 day", "EUR 2.50"), ("Benelux", "16:00", "2 days", "EUR 3.75"),
    ("Nordics", "14:30", "4 days", "EUR 6.00"), ("Iberia", "13:00", "5 days", "EUR 6.50"),
]  # fmt: skip
BEFORE = "1 Scope\nAlder collects the boxes at both depots of the company, and carries no dangerous goods."
BEHIND = "3 Claims\nClaims for damaged goods are sent in writing within nine days of their delivery.\n4 Term"


class Pieces:
    """A store of a few texts, which it returns in a given order."""

    def __init__(self, *hits: Passage) -> None:
        self.hits = hits

    def search(self, question: str, vector, k: int, where: Mapping | None) -> Sequence[Passage]:
        return self.hits[:k]


def asked(*hits: Passage) -> Collection:
    embedder = TfidfEmbedder(dimensions=8)
    embedder.fit(
        [QUESTION, *(one.text for one in hits), "The canteen opens at noon.", "Lifts are tested in May."]
    )
    return Collection(Pieces(*hits), embedder=embedder)


def joined(cells: str, ruler: str = "", ends: tuple[str, str] = ("", "")) -> str:
    rows = [ends[0] + cells.join(row) + ends[1] for row in (HEADER, *ROWS)]
    return "\n".join([rows[0], *filter(None, [ruler]), *rows[1:]])


TABLES = {
    "cells": "\n".join("\n".join(row) for row in (HEADER, *ROWS)),
    "cells with numbers": "\n".join(
        "\n".join([number, *row])
        for number, row in zip(["No.", "7", "8", "9", "10"], (HEADER, *ROWS), strict=True)
    ),
    "markdown": joined(" | ", "|---|---|---|---|", ("| ", " |")),
    "bars": joined(" | "),
    "tabs": joined("\t"),
    "commas": joined(","),
}


def test_a_short_line_heads_the_list_below_it() -> None:
    docs = asked(
        Passage(
            "a",
            "Goals for 2026\nThe board agreed on two goals:\n1. Paint the pier.\n2. Lend tools.",
            source="r",
        )
    )
    assert "2. Lend tools." in docs.select("What are the goals for 2026?").context


@pytest.mark.parametrize("kind", TABLES)
def test_a_row_of_a_table_is_read_with_its_header(kind: str) -> None:
    docs = asked(Passage("a", f"{BEFORE}\n\n{TABLES[kind]}\n\n{BEHIND}", source="sla.md"))
    found = docs.select(QUESTION, budget=48).context
    assert "Penalty for a late parcel" in found
    assert "Nordics" in found
    assert re.search(r"Nordics\W{1,3}14:30\W{1,3}4 days\W{1,3}EUR 6.00", found)
    assert "Claims" not in found
    assert "Term" not in found


def test_headings_with_nothing_below_are_not_read() -> None:
    docs = asked(
        Passage("a", f"{BEFORE}\n{TABLES['bars']}\n{BEHIND}"),
        Passage("b", "## Notes\n## Index\n- A late parcel is noted."),
    )
    found = docs.select(QUESTION, budget=400).context
    assert "EUR 6.50" in found
    assert "A late parcel is noted." in found
    assert "Term" not in found
    assert "Notes" not in found


TEXT = f"{BEFORE}\n{TABLES['bars']}\n{BEHIND}"
CUT = TEXT.index("Nordics |")


@pytest.mark.parametrize(
    "pieces",
    [
        [("x:0", TEXT[: CUT + 30], {}), (f"x:{CUT - 40}", TEXT[CUT - 40 :], {})],  # they overlap
        [("x#3", TEXT[:CUT].rstrip(), {}), ("x#4", TEXT[CUT:], {})],
        [("chunk-11", TEXT[:CUT].rstrip(), {}), ("chunk-12", TEXT[CUT:], {})],
        [("e7a1", TEXT[:CUT].rstrip(), {"chunk_index": 8}), ("0b42", TEXT[CUT:], {"chunk_index": 9})],
    ],
)
def test_pieces_of_a_source_are_read_in_its_order(pieces) -> None:
    hits = [Passage(name, text, source="sla.md", metadata=more) for name, text, more in pieces]
    docs = asked(
        *hits[::-1], Passage("other", "The canteen opens at noon.\nLifts are tested in May.", source="b")
    )
    whole = docs.select(QUESTION, budget=400).context
    assert -1 < whole.index("Domestic") < whole.index("Nordics") < whole.index("Iberia")
    assert whole.count("Domestic") == whole.count("Nordics") == 1
    few = docs.select(QUESTION, budget=60).context  # the header stands in the other piece
    assert "Penalty for a late parcel" in few
    assert "EUR 6.00" in few


def test_what_an_index_knows_of_its_passages_is_used(tmp_path) -> None:
    (tmp_path / "sla.md").write_text(f"# Terms\n\n{BEFORE}\n\n{TABLES['markdown']}\n\n{BEHIND} runs long.\n")
    index = Collection(tmp_path, cache=tmp_path / "index").index
    rows = [
        {
            **one.to_dict(),
            "lines": json.dumps(one.to_dict().get("lines")),
            "units": one.to_dict().get("units"),
        }
        for one in index.passages
    ]
    vectors = index.embeddings(range(len(rows)))
    hits = [
        Fields().passage(row, k, vector) for k, (row, vector) in enumerate(zip(rows, vectors, strict=True))
    ]
    found = Collection(Pieces(*hits), embedder=index.embedder).select(QUESTION, budget=60)
    assert found.context == Collection(index).select(QUESTION, budget=60).context
    damaged = Fields().passage({**rows[0], "units": [[5, 2]]}, 0)
    assert damaged.text == rows[0]["text"]
    assert not damaged.units


def test_paragraphs_stay_passages() -> None:
    docs = asked(
        *(Passage(str(k), f"Pump {k} is tested in May. It runs.", title=f"Pump {k}") for k in range(6))
    )
    pool = docs.retriever().retrieve("When is pump 3 tested?")
    assert pool.sentences is None
    assert pool.links is not None


def test_a_question_in_a_script_that_no_word_matches_is_read_for() -> None:
    text = "第1条 目的\nこの規程は旅費を定める。\n第3条 宿泊費\n国内の宿泊費は一泊一万二千円を上限とする。"
    docs = Collection(Pieces(Passage("ja:0", text, source="ja.txt")), embedder="minilm")
    assert "一万二千円" in docs.select("東京の宿泊費の上限はいくらですか。", budget=1024).context
    flat = Collection(Pieces(Passage("ja:0", text.replace("\n", " "), source="ja.txt")), embedder="minilm")
    assert "一万二千円" in flat.select("東京の宿泊費の上限はいくらですか。", budget=1024).context


@pytest.mark.parametrize("where", ["source=hr", "date>=2031-01-01"])
def test_a_filter_that_nothing_meets_is_an_error_as_for_folders(where: str) -> None:
    hit = Passage("a", TEXT, source="sla.md", date="2026-01-01")
    with pytest.raises(InputError, match="no passage of 'Pieces' meets the filter: loosen it"):
        asked(hit).select(QUESTION, where=where)


def test_several_queries_keep_units_and_order() -> None:
    docs = asked(
        Passage("x#4", TEXT[CUT:], source="s.md"), Passage("x#3", TEXT[:CUT].rstrip(), source="s.md")
    )
    docs.policy = docs.policy.replace(search=docs.policy.search.replace(strategies=("raw", "hyde")))
    found = docs.ask(QUESTION, budget=400).selection.context
    assert -1 < found.index("Penalty for a late parcel") < found.index("Nordics |")


@pytest.mark.parametrize(
    "text", [TEXT, TABLES["commas"], "a\r\n\r\n- b:\r\n  - c\r\n  d", "```\nx = 1\n", "# A\n# B"]
)
def test_units_of_a_piece_are_spans_of_it(text: str) -> None:
    shown, parts = read_excerpt(text)
    assert shown.split() == text.split()
    assert len(shown) == len(text)
    assert all(shown[one.start : one.end].strip() for one in parts)
    assert all(shown.startswith(line.text, line.start) for one in parts for line in one.needs)


def test_documents_of_one_title_without_a_source_are_not_glued() -> None:
    texts = ["Part | Weight\nBolt | 3 g\nNut | 2 g", "Part | Price\nBolt | 4 EUR\nNut | 1 EUR"]
    made = as_documents([Passage(f"doc-{k}", text, title="FAQ") for k, text in enumerate(texts, 1)])
    assert [one.source for one in made] == ["doc-1", "doc-2"]
    assert [{line.text for line in one.lines} for one in made] == [{"Part | Weight"}, {"Part | Price"}]
