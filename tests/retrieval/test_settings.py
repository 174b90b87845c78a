"""How pools are found, as one value that is checked once."""

from __future__ import annotations

import pytest

from mio_rag.errors import InputError
from mio_rag.retrieval import CorpusIndex, RetrievalSettings, Retriever


def test_every_problem_is_listed() -> None:
    with pytest.raises(InputError) as raised:
        RetrievalSettings(0, "sparse", 4, ("maxsim", "maxsim", "oracle"))  # type: ignore[arg-type]
    said = raised.value.problems
    for part in ("'maxsim' is given twice", "'oracle' is not known", "link_hops=4", "pool=0", "'sparse'"):
        assert sum(part in problem for problem in said) == 1, part
    assert len(said) == 5


def test_a_retriever_of_settings_is_one_of_keywords(river_index: CorpusIndex) -> None:
    question = "Where does the Arno rise?"
    made = Retriever.of(river_index, RetrievalSettings(2, "bm25", 1))
    given = Retriever(river_index, pool=2, mode="bm25", link_hops=1)
    assert (made.pool, made.mode, made.link_hops) == (2, "bm25", 1)
    assert made.retrieve(question).ids == given.retrieve(question).ids != ()
    assert Retriever.of(river_index, RetrievalSettings()).pool == Retriever(river_index).pool == 50
