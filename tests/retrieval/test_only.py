"""An index that is restricted by a filter: what is left out is never found, by whatever way."""

import re
from pathlib import Path

import numpy as np
import pytest

from mio_rag.corpora.dataset import load_folder
from mio_rag.errors import InputError
from mio_rag.filters import Filter
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.types import Passage

PUMPS = [
    Passage(f"p{k}", f"Pump {k} of the plant pumps water at {k} bar.", f"Pump {k}", f"{'ab'[k % 2]}/{k}.md")
    for k in range(40)
]


@pytest.fixture(scope="module")
def index() -> CorpusIndex:
    return CorpusIndex.build(PUMPS, "tfidf")


def test_only_passages_that_meet_the_filter_are_found(index: CorpusIndex) -> None:
    pool = Retriever(index.only({"source": "a/*"}), pool=15).retrieve("Which pump has 7 bar?")
    assert len(pool) == 15
    assert pool.sources is not None
    assert {source[0] for source in pool.sources} == {"a"}


def test_scores_are_those_of_the_whole_index(index: CorpusIndex) -> None:
    query = index.embedder.encode(["water at 8 bar"])[0]
    rows, scores = index.search_dense(query, len(index))
    even = rows % 2 == 0
    found, restricted = index.only("source=a/*").search_dense(query, 5)
    assert np.allclose(restricted, scores[even][:5])
    assert set(found.tolist()) <= set(rows[even].tolist())


def test_filters_add_up(index: CorpusIndex) -> None:
    both = index.only(Filter("source=a/*")).only(["title=Pump 1*"])
    assert [PUMPS[row].id for row in np.flatnonzero(both.allowed)] == ["p10", "p12", "p14", "p16", "p18"]
    assert both.digest() != index.digest()


def test_a_filter_that_keeps_nothing_is_refused(index: CorpusIndex) -> None:
    with pytest.raises(InputError, match="no passage of 'corpus' meets the filter"):
        index.only({"source": "c/*"})


def test_documents_that_a_question_names_stay_out_where_they_are_not_allowed(tmp_path: Path) -> None:
    for name in ("Alder", "Birch", "Cedar", "Oak"):
        head, text = f"---\ntenant: {name.lower()}\n---\n", f"The rent of {name} is due on the first day.\n"
        (tmp_path / f"{name}.md").write_text(f"{head}# Lease {name}\n\n{text}")
    index = CorpusIndex.build(load_folder(tmp_path).passages, "tfidf").only("tenant=birch")
    pool = Retriever(index).retrieve("In the lease Alder: when is the rent due?")
    assert pool.sources == ("Birch.md",)


def test_a_section_is_found_though_its_passage_holds_others(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# Work\n\n## Pay\n\nPay comes monthly.\n\n## Rail\n\nBook early.\n")
    (tmp_path / "b.md").write_text("# Trips\n\n## Rail\n\n" + "Trains leave at noon from platform two. " * 30)
    whole = CorpusIndex.build(load_folder(tmp_path).passages, "tfidf")

    def sources(where: str) -> set[str]:
        return {whole.passages[k].source for k in np.flatnonzero(whole.only(where).allowed)}

    assert sources("section=Rail") == {"a.md", "b.md"}
    assert sources("section=Pay") == {"a.md"}
    assert sources("section!=Pay") == {"b.md"}


def test_documents_that_lack_the_key_of_a_filter_are_counted(tmp_path: Path) -> None:
    for name, head in (("a", "---\ntenant: x\n---\n"), ("b", ""), ("c", "---\ntenant: y\n---\n")):
        (tmp_path / f"{name}.md").write_text(f"{head}The rent of {name} is due on the first day.\n")
    whole = CorpusIndex.build(load_folder(tmp_path).passages, "tfidf")
    index = whole.only("tenant=x")
    said = r"1 of 3 documents has no 'tenant', .*: b\.md \(filter_key_missing\)"
    assert re.search(said, str(*index.lacking))
    assert [(one.code, one.key, one.documents) for one in index.lacking] == [
        ("filter_key_missing", "tenant", 1)
    ]
    assert whole.only("source=a.md").lacking == ()
