"""`select` among passages of one's own, and `Collection`, in Python."""

import asyncio
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mio_rag
from mio_rag import Collection, InputError, MioRagError, Passage, select
from mio_rag.adapters.plain import from_plain, to_plain
from mio_rag.errors import IndexFormatError
from mio_rag.generation import Prompt, ScriptedGenerator
from mio_rag.generation.base import told_pieces
from mio_rag.relevance import load_model
from mio_rag.selection.constraints import SideConstraints
from mio_rag.selection.selector import Selector
from mio_rag.solvers import SolveOptions
from mio_rag.types import Answer

TEXTS = ["a b c", "d e", "f"]
RAW = {"redundancy_weight": 0, "passage_penalty": 0}


ALL = {
    "redundancy_weight": 0.3, "passage_penalty": "auto", "token_price": 0.001, "norm": "l1",
    "min_passages": 1, "max_passages": 5, "max_per_source": {"a": 2}, "must_include": ["x"],
    "must_exclude": ["y"], "solver": "highs",
    "options": SolveOptions(time_limit_seconds=None, relative_gap=0.01),
    "relevance_model": load_model("default"), "link_benefit": 0.2, "redundancy_by_relevance": False,
    "prompt_order": "document", "counterpart": "joint", "passage_radii": {"x": 0.1}, "merge": False,
    "shared_text_weight": 0.5, "near_duplicates": "all",
    "side": SideConstraints(cover="kmeans:3", conflicts=[("x", "z")], prices={"clusters": 0.1}),
}  # fmt: skip


class TestSelect:
    def test_strings_passages_and_mappings_are_the_same(self) -> None:
        texts = ["The bridge is 1,410 m long.", "It spans 1,410 metres.", "It opened in 1981."]
        ways = [
            texts,
            [Passage(str(k), text) for k, text in enumerate(texts)],
            [{"text": text, "kind": "fact"} for text in texts],
        ]
        found = [select("How long?", way, scores=[0.92, 0.9, 0.55], budget=20) for way in ways]
        assert len({one.context for one in found}) == 1
        assert found[0].tokens <= found[0].budget == 20
        assert found[2].candidates.metadata[0] == {"kind": "fact"}

    def test_an_empty_list_gives_an_empty_selection(self) -> None:
        empty = select("q", [])
        assert (empty.context, empty.parts, empty.tokens, empty.ids) == ("", (), 0, ())
        assert json.dumps(empty.to_dict())
        assert "no passage was found" in empty.why()

    def test_smaller_distances_are_better(self) -> None:
        by_score = select("q", TEXTS, scores=[0.9, 0.5, 0.1], budget=3, **RAW)
        assert select("q", TEXTS, distances=[0.1, 0.5, 0.9], budget=3, **RAW).ids == by_score.ids == ("0",)
        with pytest.raises(InputError, match="exclude each other"):
            select("q", TEXTS, scores=[1, 2, 3], distances=[1, 2, 3])

    def test_where_is_applied_before_ranking(self) -> None:
        given = [{"text": text, "tenant": t} for text, t in zip(TEXTS, "aab", strict=True)]
        assert select("q", given, scores=[1, 2, 3], where={"tenant": "a"}, **RAW).ids == ("1", "0")
        assert select("q", given, scores=[1, 2, 3], where="tenant=b", **RAW).ids == ("2",)
        assert select("q", given, scores=[1, 2, 3], where={"tenant": "z"}).ids == ()
        with pytest.raises(InputError, match="no passage has 'tenat'"):
            select("q", given, scores=[1, 2, 3], where={"tenat": "a"})

    def test_vectors_are_scaled_and_unlike_passages_read(self) -> None:
        vectors = np.array([[10.0, 0], [0.1, 0], [0, 3]])
        given = {"embeddings": vectors, "question_embedding": [5.0, 5.0], "tokens": [1, 1, 1], "budget": 2}
        chosen = select("q", ["one", "two", "three"], preset="raw", redundancy_weight=1, **given)
        assert chosen.candidates.relevance == pytest.approx([0.5**0.5] * 3)
        assert "2" in chosen.ids
        assert len(chosen.ids) == 2

    def test_any_function_counts_tokens(self) -> None:
        chosen = select("q", TEXTS, scores=[3, 2, 1], budget=6, counter=len, **RAW)
        assert chosen.tokens == sum(len(text) for text in chosen.texts) + 2 * (len(chosen.texts) - 1)

    def test_equal_texts_are_read_once(self) -> None:
        texts = ["The bridge is long.", "It opened in 1981.", "The bridge is long. "]
        given = {"scores": [3, 1, 3], "tokens": [5, 5, 5], "budget": 60}
        chosen = select("How long?", texts, **given)
        assert chosen.ids == ("0", "1")
        assert set(select("How long?", texts, near_duplicates="all", **given).ids) == {"0", "1", "2"}

    def test_overlapping_passages_are_read_as_one_text(self) -> None:
        words = [f"w{k}" for k in range(30)]
        texts = [" ".join(words[:20]), " ".join(words[10:])]
        passages = [
            {"text": text, "source": "d", "start": start} for text, start in zip(texts, (0, 30), strict=True)
        ]
        given = {"scores": [2, 1], "budget": 200, "relevance_model": "given", **RAW}
        assert select("?", passages, **given).texts == (" ".join(words),)
        assert select("?", passages, merge=False, **given).texts == tuple(texts)


class Wrong:
    """A counter whose counts are none."""

    name = "wrong"

    def __init__(self, *counts: Any) -> None:
        self.counts = counts

    def count(self, texts: Sequence[str]) -> Any:
        return list(self.counts) if len(texts) > 1 else [self.counts[0]]


class Makes:
    """An embedder that gives the same for everything."""

    name = "makes"

    def __init__(self, given: object) -> None:
        self.given = given

    def encode(self, texts: list[str]) -> object:
        return self.given


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"passages": None}, "passages is None: give a list"),
        ({"passages": "abc"}, "passages is one string: give a list of strings"),
        ({"passages": {"a", "b", "c"}}, "passages is a set, which has no order"),
        ({"passages": (t for t in TEXTS)}, "passages is a generator: give a list"),
        ({"passages": ["a", None, "c"]}, r"passages\[1\]: a NoneType is no passage: give a string"),
        ({"passages": [{"id": "x"}]}, r"passages\[0\]: .*'text'"),
        ({"passages": ["a", " ", "c"]}, "passage '1' has no text"),
        ({"passages": [{"id": "x", "text": "a"}] * 3}, "id 'x' is there twice"),
        ({"question": None}, "question is None, expected a string"),
        ({"budget": 0}, "budget must be >= 1, got 0."),
        ({"budget": -1}, "budget must be >= 1, got -1."),
        ({"budget": 1.5}, "whole number"),
        ({"scores": None, "embeddings": np.eye(3)}, "relevance is unknown"),
        ({"scores": [1.0]}, r"scores has shape \(1,\), expected one number for each of 3 passages"),
        ({"scores": [1, 2, float("nan")]}, r"scores\[2\] is nan: every value must be finite"),
        ({"scores": [0.5, True, 0.1]}, "holds truth values: give numbers"),
        ({"scores": ["0.5", "0.2", "0.1"]}, "scores holds strings"),
        ({"scores": [[], 0.2, 0.3]}, "scores is not an array of numbers"),
        ({"scores": np.array(["2026-01-01"] * 3, dtype="datetime64[D]")}, "holds dates"),
        ({"distances": [1, 2, 3]}, "exclude each other"),
        ({"tokens": [True] * 3}, "tokens holds truth values"),
        ({"tokens": [10**30, 1, 1]}, "tokens must be at most 1e.12"),
        ({"embeddings": np.eye(2)}, r"embeddings has shape \(2, 2\), expected \(3, d\)"),
        ({"embeddings": [[1.0, 2.0], [1.0], [2.0]]}, "embeddings is not an array of numbers"),
        ({"embeddings": np.array([[1j], [0], [0]])}, "embeddings holds complex numbers"),
        ({"scores": None, "embeddings": np.eye(3), "question_embedding": [1.0]}, "same model"),
        ({"scores": None, "embedder": object()}, "is not an Embedder"),
        ({"scores": None, "embedder": Makes(np.ones((7, 2)))}, "embedder 'makes' gives an array"),
        ({"scores": None, "embedder": Makes(None)}, "embedder 'makes' gives NoneType"),
        ({"counter": 7}, "counts nothing: give a function"),
        ({"counter": Wrong(-3, 2, 2)}, "'wrong' counts -3 tokens"),
        ({"counter": Wrong(1, 2)}, r"shape \(2,\) for 3 texts"),
        ({"counter": Wrong("many", "few", "none")}, "'wrong' gives strings"),
        ({"max_pasages": 2}, "did you mean 'max_passages'"),
        ({"policy": "defualt"}, "did you mean 'default'"),
        ({"where": {"date": {"=>": "2026"}}}, "'=>' is no operator"),
    ],
)
def test_what_does_not_fit_is_named(changes: dict[str, Any], message: str) -> None:
    given = {"question": "q", "passages": TEXTS, "scores": [0.9, 0.8, 0.1], "budget": 4, **RAW} | changes
    with pytest.raises(InputError, match=message):
        select(**given)


def test_settings_survive_json() -> None:
    plain = to_plain(Selector(**ALL))
    again = from_plain(json.loads(json.dumps(plain, allow_nan=False)))
    assert to_plain(again) == plain
    assert again.side.prices == {"clusters": 0.1}
    assert from_plain({}) == Selector()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("handbook")
    (made / "travel.md").write_text(
        "# Travel\n\n## Meals\n\nBreakfast is paid by the firm.\n\n## Rail\n\nBook early.\n"
    )
    (made / "work.md").write_text("# Work\n\nThe office opens at seven. Leave is thirty days a year.\n")
    return made


@pytest.fixture(scope="module")
def docs(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Collection:
    return Collection(folder, embedder="tfidf", cache=tmp_path_factory.mktemp("cache") / "index")


class Slow(ScriptedGenerator):
    """Writes one piece, and the others once that was heard."""

    def __init__(self) -> None:
        super().__init__(lambda prompt: "At seven.")
        self.heard, self.late = threading.Event(), False

    def _generate(self, prompt: Prompt, max_tokens: int) -> Answer:
        if (tell := told_pieces()) is not None:
            tell("At ")
            self.late = not self.heard.wait(10)
            tell("seven")
            tell(".")
        return super()._generate(prompt, max_tokens)


class Letters:
    """Embeds by counts of letters; what a person has who never heard of `Embedder`."""

    def encode(self, texts: list[str]) -> list[list[float]]:
        return [[1.0 + text.lower().count(letter) for letter in "aeinrst"] for text in texts]


@pytest.mark.parametrize("embedder", [Letters(), Letters().encode], ids=["object", "function"])
def test_any_object_or_function_embeds(embedder: Any, folder: Path, tmp_path: Path) -> None:
    chosen = select("When does the office open?", TEXTS, embedder=embedder, budget=60)
    assert chosen.candidates.embeddings is not None
    made = Collection(folder, embedder=embedder, cache=tmp_path / "index")
    found = made.select("When does the office open?", budget=60)
    assert "opens at seven" in found.context
    assert not made.refresh()
    with pytest.raises(IndexFormatError, match=r"built by an embedder object, '(Letters|encode)': give"):
        Collection(tmp_path / "index")
    again = Collection(tmp_path / "index", embedder=embedder)
    assert again.select("When does the office open?", budget=60).context == found.context
    with pytest.raises(IndexFormatError, match="vectors of two models"):
        Collection(tmp_path / "index", embedder=lambda texts: np.ones((len(texts), 7)))


class TestCollection:
    def test_a_folder_is_searched_and_refreshed(self, docs: Collection, folder: Path) -> None:
        chosen = docs.select("How many days of leave?", budget=60)
        assert "thirty days" in chosen.context
        assert chosen.parts[0]["source"] == "work.md"
        assert not docs.refresh()
        (folder / "work.md").write_text("# Work\n\nThe office opens at seven. Leave is forty days a year.\n")
        assert docs.refresh().changed == ("work.md",)
        assert "forty days" in docs.select("How many days of leave?", budget=60).context

    def test_questions_are_answered_and_cited(self, docs: Collection) -> None:
        answer = docs.ask("When does the office open?", budget=60)
        assert answer.text
        assert not answer.refused
        assert answer.citations[0]["source"] == "work.md"
        assert answer.usage["prompt_tokens"] > 0
        asked = []
        said = docs.ask("Who pays?", model=lambda prompt, n: asked.append((prompt, n)) or "The firm.")
        assert (said.text, asked[0][1]) == ("The firm.", 64)
        assert "Who pays?" in asked[0][0]
        assert "Breakfast" in asked[0][0]
        with pytest.raises(MioRagError, match="ZeroDivisionError"):
            docs.ask("Who pays?", model=lambda prompt, n: 1 / 0)

    def test_it_is_awaited_and_streamed(self, docs: Collection) -> None:
        async def both() -> tuple[Any, Any]:
            return await asyncio.gather(docs.aselect("Rail?"), docs.aask("When does the office open?"))

        selection, answer = asyncio.run(both())
        assert selection.ids == docs.select("Rail?").ids
        assert "".join(docs.stream("When does the office open?")) == answer.text

    def test_an_answer_is_streamed_while_it_is_written(self, docs: Collection) -> None:
        reader = Slow()
        pieces = docs.stream("When does the office open?", model=reader, budget=60)
        assert next(pieces) == "At "
        reader.heard.set()
        assert list(pieces) == ["seven", "."]
        assert not reader.late
        assert list(docs.stream("Who pays?", model=lambda prompt, n: "The firm.")) == ["The firm."]
        policy = docs.policy.replace(search=docs.policy.search.replace(strategies=("raw", "hyde")))
        assert list(Collection(docs.index, policy=policy).stream("Rail?", model=reader)) == ["At seven."]
        with pytest.raises(MioRagError, match="ZeroDivisionError"):
            list(docs.stream("Who pays?", model=lambda prompt, n: 1 / 0))

    def test_where_restricts_the_documents(self, docs: Collection) -> None:
        chosen = docs.select("What is paid?", where={"source": "travel*"})
        assert {part["source"] for part in chosen.parts} == {"travel.md"}
        with pytest.raises(InputError, match="no passage has 'sauce'"):
            docs.select("q", where={"sauce": "x"})

    def test_a_policy_of_several_steps_selects_and_answers(self, docs: Collection) -> None:
        policy = docs.policy.replace(search=docs.policy.search.replace(strategies=("raw", "hyde")))
        steps = Collection(docs.index, policy=policy)
        assert steps.ask("How many days of leave?", budget=60).text


def test_paths_are_one_collection_that_follows_its_files(tmp_path: Path) -> None:
    for name, days in (("north", "thirty"), ("south", "forty")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "leave.md").write_text(f"# Leave\n\nThere are {days} days of leave.\n")
    files = Collection([tmp_path / "north" / "leave.md", tmp_path / "south" / "leave.md"])
    assert {one.source for one in files.index.passages} == {"north/leave.md", "south/leave.md"}
    both = Collection([tmp_path / "north", str(tmp_path / "south")])
    assert both.select("How many days of leave?", where="source=south").parts[0]["source"] == "south/leave.md"
    (tmp_path / "south" / "desk.md").write_text("# Desks\n\nDesks are booked by the day.\n")
    assert both.refresh().added == ("south/desk.md",)
    assert "booked by the day" in both.select("How are desks booked?").context
    assert not both.refresh()
    assert len(Collection([tmp_path / "north"]).index) == 1
    with pytest.raises(InputError, match="no path is given"):
        Collection([])


def test_texts_that_are_pieces_of_documents_are_read_by_rows_and_sentences() -> None:
    texts = [
        "# Fares\n\n| Quay | Summer | Winter |\n|---|---|---|\n| Loen | 54 | 61 |\n| Olden | 12 | 15 |",
        "Dogs travel free of charge.\n\n## Claims\n\nClaims are sent in writing.\n\n- Skis cost 3.",
    ]
    question = "What is the winter fare to Olden?"
    read = mio_rag.select(question, texts, embedder="minilm", budget=20, passage_penalty=0.5)
    assert "Fares\nQuay | Summer | Winter\n" in read.context
    assert "Olden | 12 | 15" in read.context
    assert "|---|" not in read.context
    whole = mio_rag.select(question, texts, embedder="minilm", budget=60, tokens=[30, 30])
    assert texts[0] in whole.context


def test_a_part_names_every_page_that_it_is_of() -> None:
    one, two = "The pump hall is locked at night.", "The key hangs in the office."
    given = [
        Passage("a", one, source="rules.pdf", start=0, page=1),
        Passage("b", two, source="rules.pdf", start=len(one) + 1, page=2),
    ]
    found = select("Where is the key of the pump hall?", given, scores=[0.9, 0.8], budget=40)
    assert [(part["page"], part["pages"]) for part in found.parts] == [(1, [1, 2])]
    alone = select("Where is the key of the pump hall?", given[1:], scores=[0.8], budget=40)
    assert [(part["page"], "pages" in part) for part in alone.parts] == [(2, False)]


def test_texts_alone_are_ranked_by_the_packaged_embedder() -> None:
    assert (
        select("What is red?", ["The sea is cold.", "The boat is red."], budget=6).context
        == "The boat is red."
    )
