"""What all adapters share, without any framework."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from mio_rag.adapters.core import Documents, Vectors, choose
from mio_rag.errors import InfeasibleError, InputError
from mio_rag.retrieval import TfidfEmbedder
from mio_rag.selection.constraints import SideConstraints
from mio_rag.selection.selector import Selector

ROOT = Path(__file__).parents[2]
SCORED = Selector.raw(redundancy_weight=0, passage_penalty=0)


class Planes:
    """Texts "a", "b", ... are axes of the plane in turn; it counts what it is given."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def many(self, texts: list[str]) -> list[list[float]]:
        self.asked += texts
        return [[1.0, 0.0] if ord(text[0]) % 2 else [0.0, 1.0] for text in texts]

    def vectors(self) -> Vectors:
        return Vectors(self.many, lambda text: self.many([text])[0])


def test_nothing_is_embedded_that_is_not_needed() -> None:
    planes = Planes()
    items = Documents(["a", "b"], scores=[0.9, 0.8])
    found = choose("q", items, budget=9, selector=SCORED, vectors=planes.vectors)
    assert found.indices == (0, 1)
    assert planes.asked == []
    found = choose("q", items, budget=9, selector=Selector.raw(), vectors=planes.vectors)
    assert planes.asked == ["a", "b"]  # redundancy needs the passages, scores spare the question
    assert found.indices == (0, 1)


def test_vectors_of_documents_are_taken_and_missing_ones_made() -> None:
    planes = Planes()
    items = Documents(["a", "b", "c"], embeddings=[[0.0, 2.0], None, None], embed_texts=["a", "b", "d"])
    found = choose("a?", items, budget=9, selector=Selector.raw(passage_penalty=0), vectors=planes.vectors)
    assert planes.asked == ["b", "d", "a?"]
    pool = found.selection.candidates
    assert pool.embeddings.tolist() == [[0, 1], [0, 1], [0, 1]]
    assert pool.relevance.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "changes",
    [
        {"radius": 0.1},
        {"side": SideConstraints(max_similarity=0.9)},
        {"side": SideConstraints(cover="agglomerative:0.5")},
    ],
)
def test_settings_that_compare_passages_need_vectors(changes) -> None:
    selector = Selector.raw(redundancy_weight=0, **changes)
    items = Documents(["a", "b"], scores=[1.0, 0.5])
    with pytest.raises(InputError, match="2 of 2 documents have no embedding: give embedder="):
        choose("q", items, budget=9, selector=selector)
    assert choose("q", items, budget=9, selector=selector, vectors=Planes().vectors).indices


def test_vectors_asked_for_by_many_threads_are_each_texts_own(monkeypatch) -> None:
    monkeypatch.setattr("mio_rag.adapters.core.REMEMBERED", 40)  # rows change hands all the time

    def embed(texts: list[str]) -> list[list[float]]:
        return [[float(text), -float(text)] for text in texts]

    vectors = Vectors(embed, lambda text: embed([text])[0])

    def wrong(seed: int) -> int:
        draw = np.random.default_rng(seed)
        found = 0
        for _ in range(300):
            texts = [str(k) for k in draw.integers(0, 90, size=25)]
            found += vectors.passages(texts).tolist() != embed(texts)
        return found

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(wrong, range(8))) == [0] * 8


def test_an_embedder_of_mio_rag_serves_unless_it_is_unfitted() -> None:
    fitted = TfidfEmbedder()
    fitted.fit(["red boat", "blue car"])
    vectors = Vectors.of(fitted)
    assert vectors.query("red") @ vectors.passages(["boat red"])[0] > 0.5
    with pytest.raises(InputError, match="must be fitted"):
        Vectors.of("tfidf")


def test_ids_are_made_where_they_lack_or_repeat() -> None:
    items = Documents(["one", "two", "three"], ["x", "x", ""], scores=[3.0, 2.0, 1.0])
    found = choose("q", items, budget=9, selector=SCORED)
    assert found.selection.ids == ("x", "x#2", "2")


def test_a_cap_by_source_needs_sources() -> None:
    selector = Selector.raw(redundancy_weight=0, max_per_source=1)
    with pytest.raises(InputError, match=r"no document has a source, .*\(source_key\)"):
        choose("q", Documents(["a"], sources=[""], scores=[1.0]), budget=9, selector=selector)
    with pytest.raises(InputError, match="sources has 1 entries, expected 2"):
        Documents(["a", "b"], sources=["s"])


def test_a_constraint_broken_at_its_price_is_told() -> None:
    side = SideConstraints(prices={"passages": 0.01})
    selector = Selector.raw(redundancy_weight=0, passage_penalty=0, max_passages=1, side=side)
    found = choose("q", Documents(["one", "two"], scores=[0.9, 0.8]), budget=9, selector=selector)
    assert found.indices == (0, 1)
    (note,) = found.report()["certificate"]["notes"]
    assert note == "paid 0.01: at most 1 passage, broken by 1"
    assert [each["certificate"]["notes"] for each in found.notes] == [[note]] * 2
    found.notes[0]["certificate"]["notes"].clear()
    assert found.notes[1]["certificate"]["notes"] == [note]


def test_where_nothing_is_chosen_a_warning_says_why(caplog: pytest.LogCaptureFixture) -> None:
    items = Documents(["one two three", "four five six"], scores=[0.9, 0.8])
    found = choose("q", items, budget=1, selector=Selector())
    assert found.indices == ()
    assert "the shortest sentence has" in caplog.text
    caplog.clear()
    read = choose("q", items, budget=100, selector=Selector())
    assert read.indices
    assert all(note["certificate"]["relevance_source"].startswith("scores: ") for note in read.notes)
    assert not caplog.text


def test_an_empty_context_is_an_error() -> None:
    selector = Selector.raw(redundancy_weight=0, min_passages=2)
    items = Documents(["one two three", "four five six"], scores=[1.0, 1.0])
    with pytest.raises(InfeasibleError, match="a budget of 6 tokens would do"):
        choose("q", items, budget=5, selector=selector)


@pytest.mark.parametrize(
    ("items", "budget", "message"),
    [
        (Documents(["a", "b"], scores=[1.0, None]), 9, "1 of 2 documents have no score"),
        (Documents(["a", "b"], embeddings=[[1.0], None]), 9, "1 of 2 documents have no embedding"),
        (Documents(["a"], embeddings=[[1.0, 0.0]]), 9, "the question has no embedding"),
        (Documents(["a", "b"], embeddings=[[1.0], [1.0, 2.0]]), 9, "the documents: vectors are not rows"),
        (Documents(["a"], scores=[float("nan")]), 9, r"scores\[0\] is nan: every value must be finite"),
        (Documents(["a"], scores=["0.5"]), 9, "document 0: its score is '0.5', expected a number"),
        (Documents(["a"], scores=[True]), 9, "document 0: its score is True"),
        (Documents(["a"], scores=[1.0]), 0, "budget must be >= 1, got 0"),
        (Documents(["a"], scores=[1.0]), 1.5, "whole number"),
    ],
)
def test_what_does_not_fit_is_named(items, budget, message: str) -> None:
    selector = SCORED if items.scores and None not in items.scores else Selector.raw()
    with pytest.raises(InputError, match=message):
        choose("q", items, budget=budget, selector=selector)


def test_a_missing_framework_is_named_with_its_extra() -> None:
    code = """
import sys
for name in ("langchain_core", "llama_index", "haystack", "dspy"):
    sys.modules[name] = None
import mio_rag, importlib
for name in ("langchain", "llama_index", "haystack", "dspy"):
    try:
        importlib.import_module(f"mio_rag.adapters.{name}")
    except ImportError as error:
        print(type(error).__name__, str(error))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["MissingExtraError"] * 4
    extras = ["langchain", "llama-index", "haystack", "dspy"]
    assert all(
        f'pip install -c constraints.txt -e ".[{extra}]"' in line
        for extra, line in zip(extras, lines, strict=True)
    )


FARES = "# Fares\n\n| Quay | Summer | Winter |\n|---|---|---|\n| Loen | 54 | 61 |\n| Olden | 12 | 15 |\n"
RULES = "Dogs travel free of charge.\n\n## Claims\n\nClaims are sent in writing.\n\n- Skis cost 3."


@pytest.mark.parametrize(
    ("changes", "whole"), [({}, False), ({"units": "passages"}, True), ({"max_passages": 1}, True)]
)
def test_pieces_of_documents_are_read_by_rows_and_sentences(changes, whole) -> None:
    items = Documents([FARES, RULES], ids=["fares", "rules"], sources=["a.md", "b.md"])
    selector = Selector(passage_penalty=0.5, **changes)
    choice = choose(
        "What is the winter fare to Olden?",
        items,
        budget=60,
        selector=selector,
        vectors=lambda: Vectors.of("minilm"),
    )
    read = choice.read[0]
    assert read.indices == (0,)
    assert read.is_whole == whole
    assert "Olden | 12 | 15" in read.text
    if not whole:
        assert read.text.startswith("Fares\nQuay | Summer | Winter\n")
        part = next(part for part in read.notes["parts"] if "Olden" in read.text[part["start"] : part["end"]])
        assert read.text[part["start"] : part["end"]] == "Olden | 12 | 15"


def test_pieces_of_documents_with_vectors_and_no_embedder_are_read_whole() -> None:
    rows = [[1.0, 0.0], [0.0, 1.0]]
    items = Documents([FARES, RULES], sources=["a.md", "b.md"], embeddings=rows)
    assert (
        choose("winter fare?", items, budget=60, query_embedding=[1.0, 0.1]).selection.candidates.lines
        is None
    )


def test_documents_without_text_are_left_out_with_a_note(caplog: pytest.LogCaptureFixture) -> None:
    items = Documents(["one two", " \n", "three four"], ["x", "y", "z"], scores=[0.9, 0.8, 0.7])
    choice = choose("q", items, budget=9, selector=SCORED)
    assert choice.indices == (0, 2)
    assert choice.notes[0]["certificate"]["notes"] == ["left out for having no text: 1 document"]
    assert choose("q", Documents(["", "\t"], scores=[1.0, 1.0]), budget=9).read == ()
