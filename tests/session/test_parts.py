"""The parts of the agent: pools merged on their own scale, notes kept as many as asked for."""

from dataclasses import replace

import numpy as np
import pytest

from mio_rag.generation import Prompt, ScriptedGenerator
from mio_rag.pool import Candidates
from mio_rag.retrieval import CorpusIndex, Retriever, TfidfEmbedder
from mio_rag.session.state import Memory
from mio_rag.types import Passage
from tests.session.scripted import COMPARISON, agent, said


def pool(ids: str, **scores: list[float]) -> Candidates:
    n = len(ids)
    return Candidates(list(ids), list(ids), np.ones(n), np.ones(n), scores=scores)


def test_what_only_one_pool_repeats_is_still_known_of_both() -> None:
    """A pool without near-duplicates, dates or places holds None: it has found none."""
    alike = np.array([[0, 0.9], [0.9, 0]])
    places = {"sources": ["d", "d"], "spans": [(0, 1), (1, 2)], "dates": ["2024", "2025"]}
    one = replace(pool("ab"), duplicates=alike, **places)
    other = replace(pool("bc"), sources=["d", "e"])
    for merged in (one.merge(other, 3, set()), other.merge(one, 3, set())):
        at = [merged.ids.index(name) for name in "abc"]
        assert merged.duplicates is not None
        assert merged.duplicates[np.ix_(at, at)][0, 1] == pytest.approx(0.9)
    merged = one.merge(other, 3, set())
    assert merged.spans is not None
    assert merged.spans.tolist() == [[0, 1], [1, 2], [-1, -1]]
    assert merged.dates == ("2024", "2025", "")
    assert replace(other, sources=None).merge(one, 3, set()).spans is None


def test_sentences_of_two_pools_are_those_of_the_passages() -> None:
    passages = [
        Passage(name, f"The {name} is long. The {name} is wet.", name) for name in ("Arno", "Po", "Rhine")
    ]
    index = CorpusIndex.build(passages, TfidfEmbedder(dimensions=2), "rivers", sentences=True)
    whole, retriever = index.sentences, Retriever(index, pool=2)
    merged = retriever.retrieve("Arno and Po").merge(retriever.retrieve("Rhine and Po"), 3, set())
    assert whole is not None
    assert merged.sentences is not None
    assert merged.positions is not None
    expected = whole.of(merged.positions.tolist())
    assert len(merged) == 3
    assert merged.sentences.owners.tolist() == expected.owners.tolist()
    assert (merged.sentences.spans == expected.spans).all()
    assert (merged.sentences.embeddings == expected.embeddings).all()
    bare = replace(merged, sentences=None)
    assert merged.merge(bare, 3, set()).sentences is not None  # all passages are the first pool's
    assert bare.merge(merged, 3, set()).sentences is None


@pytest.mark.parametrize("kept", [0, 1, 2, 9])
def test_the_model_sees_the_last_notes_and_no_others(kept: int, river_index: CorpusIndex) -> None:
    seen: list[Prompt] = []

    def heard(prompt: Prompt) -> str:
        seen.append(prompt)
        if prompt.system.startswith("You think"):
            return f"Thought number {sum(p.system == prompt.system for p in seen)}."
        return said(prompt)

    agent("fixed-7", river_index, kept_notes=kept).attempt(COMPARISON, ScriptedGenerator(heard), 60)
    made = 0
    for prompt in seen:
        shown = {k for k in range(1, 9) if f"Thought number {k}." in prompt.user}
        assert shown == set(range(max(1, made - kept + 1), made + 1)), prompt.user
        made += prompt.system.startswith("You think")
    assert made == (3 if kept else 1)  # the same prompt is not asked twice
    shown_in_the_end = Memory(COMPARISON, notes=["a", "b", "c"]).passages(kept)
    assert [p.text.split("\n") for p in shown_in_the_end] == ([list("abc")[-kept:]] if kept else [])
