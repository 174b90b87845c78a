"""BM25 of passages and units against a double loop."""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from mio_rag.retrieval.texts import between_units, context_of, embedded_text, file_name, unit_text
from mio_rag.retrieval.unit_terms import TERMS_FILE, UnitTerms
from mio_rag.retrieval.words import Words
from mio_rag.types import Passage, Unit
from tests.retrieval.documents import documents

QUESTIONS = (
    "Who pays for repairs of the roof?",
    "rent in May of 1,200",
    "lease",
    "pumps pump Pumping",
    "zebra",
    "",
)


def plain_bm25(
    split: Sequence[Sequence[str]], asked: Sequence[str], k1: float = 1.2, b: float = 0.75
) -> np.ndarray:
    mean = sum(map(len, split)) / len(split)
    scores = np.zeros(len(split))
    for word in dict.fromkeys(asked):
        df = sum(word in text for text in split)
        idf = math.log(1 + (len(split) - df + 0.5) / (df + 0.5))
        for row, text in enumerate(split):
            tf = Counter(text)[word]
            scores[row] += idf * tf * (k1 + 1) / (tf + k1 * (1 - b + b * len(text) / max(1, mean)))
    return scores


@pytest.mark.parametrize("question", QUESTIONS)
def test_scores_are_those_of_a_double_loop(question: str, tmp_path: Path) -> None:
    found, passages = documents(), documents()
    built = UnitTerms.build(found)
    built.save(tmp_path)
    words = Words()
    bare = [
        words("\n".join([*(p.text[u.start : u.end] for u in p.units), between_units(p)])) for p in passages
    ]
    above = [
        words(context_of(p, sorted({k for u in p.units for k in u.needs}), outside=True)) for p in passages
    ]
    units = [words(p.text[u.start : u.end]) for p in passages for u in p.units]
    whole = [words(unit_text(p, u)) for p in passages for u in p.units]
    asked, every = words(question), np.arange(len(units))
    for terms in (built, UnitTerms.load(tmp_path), UnitTerms.load(tmp_path, mapped=True)):
        assert (len(terms), terms.units, terms.words.languages) == (5, 9, ("english",))
        both = [a + b for a, b in zip(above, bare, strict=True)]
        for expected, got in (
            (plain_bm25(both, asked), terms.scores(question)),
            (plain_bm25(bare, asked), terms.scores(question, bare=True)),
            (plain_bm25(whole, asked), terms.of_units(question, every)),
            (plain_bm25(whole, asked)[[7, 2]], terms.of_units(question, np.array([7, 2]))),
            (plain_bm25(units, asked), terms.of_units(question, every, bare=True)),
        ):
            np.testing.assert_allclose(got, expected, rtol=1e-6)
        best = terms.best_units(question, 2)
        np.testing.assert_allclose(
            np.sort(plain_bm25(units, asked)[best]),
            np.sort(plain_bm25(units, asked))[len(units) - len(best) :],
        )


def test_what_stands_above_is_told_once() -> None:
    lease, rent, sale, *_ = documents()
    assert embedded_text(lease) == f"Lease of Alder House > Repairs\n{lease.text}"
    assert unit_text(rent, rent.units[0]) == "Lease of Alder House > Rent\nMonth | Rent\nMay | 1,200"
    assert embedded_text(rent) == f"Lease of Alder House > Rent\nMonth | Rent\n{rent.text}"
    assert embedded_text(sale) == f"Sale of Birch Farm > Price\n{sale.text}"  # its line lies in its text
    assert between_units(sale).split() == ["Repairs"]


@pytest.mark.parametrize(
    ("source", "title", "name"),
    [
        ("sites/1498_www.naturalnews.com.html", "Privacy Policy", "www naturalnews com"),
        (
            "AlderSoftwareInc_20190815_8-K_EX-10.34_Lease Agreement.pdf",
            "Exhibit",
            "Alder Software Inc EX Lease Agreement",
        ),
        ("pump-guide.md", "Guide for a Pump", ""),
        ("refunds/index.md", "Start", "refunds"),
        ("1705.09665.md", "Communities", ""),
        ("report 2024 v2.1.docx", "Report", "report 2024 v2.1"),
        ("", "Report", ""),
    ],
)
def test_names_of_files_say_whose_a_page_is(source: str, title: str, name: str) -> None:
    assert file_name(source, title) == name
    whole = Passage("1", "All data.", title, source, units=(Unit(0, 9),))
    assert embedded_text(whole) == (f"{name} > {title}\nAll data." if name else f"{title}\nAll data.")
    assert embedded_text(Passage("1", "All data.", title, source)) == f"{title}\nAll data."


def test_damaged_parts_are_refused(tmp_path: Path) -> None:
    UnitTerms.build(documents()).save(tmp_path)
    with np.load(tmp_path / TERMS_FILE) as data:
        arrays = dict(data)
    np.savez(tmp_path / TERMS_FILE, **arrays | {"rows": arrays["rows"][:-1]})
    with pytest.raises(ValueError, match="do not fit together"):
        UnitTerms.load(tmp_path)
