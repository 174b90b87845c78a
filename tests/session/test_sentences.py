"""The executor `select` with sentences as units, and what they exclude."""

import pytest

from mio_rag.errors import InputError
from mio_rag.policies.make import make_controller
from mio_rag.policies.setup import ControlSettings, Setup
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.selection.selector import Selector
from mio_rag.session.workflow import chain
from mio_rag.types import Passage
from tests.session.scripted import COMPARISON
from tests.session.test_loop import Watched, check, controller

_PASSAGES = [
    Passage("t", "The Tiber is 406 km long. Its water is yellow. Many poets lived on its banks.", "Tiber"),
    Passage("a", "The Arno is 241 km long. It flooded Florence in 1966. It rises on a hill.", "Arno"),
    Passage("s", "The Seine flows through Paris. It is crossed by many bridges.", "Seine"),
]


@pytest.mark.parametrize("indexed", [True, False])
def test_sentences_are_read_whether_or_not_the_index_holds_them(indexed: bool) -> None:
    index = CorpusIndex.build(_PASSAGES, "tfidf", "rivers", sentences=indexed)
    model = Watched()
    found = controller("sentences", index).attempt(COMPARISON, model, 24)
    check(found, model)
    assert found.error is None
    assert found.selection is not None
    whole = {passage.id: passage.text for passage in _PASSAGES}
    read = model.asked[-1].passages
    assert all("#s" in passage.id for passage in read)
    for passage in read:
        text = whole[passage.id.partition("#")[0]]
        assert all(part.strip() in text for part in passage.text.split("…"))
    assert set(found.selection.ids) <= {"t", "a", "s"}


def test_what_sentences_exclude_is_said_before_anything_is_asked() -> None:
    index = CorpusIndex.build(_PASSAGES, "tfidf", "rivers")
    setup = Setup(ControlSettings(), Retriever(index, pool=4), Selector(max_passages=2))
    with pytest.raises(InputError, match="node 'select': units='sentences' excludes max_passages"):
        make_controller("workflow:sentences", setup)
    make_controller("workflow:plain", setup)
    with pytest.raises(InputError, match="must be one of passages, sentences"):
        chain("words", "retrieve", {"do": "select", "units": "words"}, "answer")
