"""Adapters hand over merged documents with their parts in the notes, and never glue different pages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from mio_rag import Selector, select
from mio_rag.adapters.core import Documents, choose
from mio_rag.context import RegexCounter
from mio_rag.retrieval import TfidfEmbedder

_WORDS = [f"w{k}" for k in range(60)]
_STARTS = [sum(len(word) + 1 for word in _WORDS[:k]) for k in (0, 10, 40)]
_TEXTS = [" ".join(_WORDS[:20]), " ".join(_WORDS[10:30]), " ".join(_WORDS[40:50])]
_GAP = "\n\u2026\n"
_MERGED = " ".join(_WORDS[:30]) + _GAP + " ".join(_WORDS[40:50])
_STORY = (
    "The pump room is locked at night. The key hangs in the office. Ask the porter for it before nine. "
    "The main pump must never run dry. Its seal burns within a minute."
)
_GIVEN: dict[str, Any] = {"redundancy_weight": 0.0, "passage_penalty": 0.0, "relevance_model": "given"}


class Item(NamedTuple):
    text: str
    id: str
    score: float
    source: str = "d"
    start: int | None = None


class Found(NamedTuple):
    text: str
    id: str | None
    notes: dict[str, Any]


def by_langchain(question: str, items: list[Item], **settings: Any) -> list[Found]:
    core = pytest.importorskip("langchain_core.documents")
    module = pytest.importorskip("mio_rag.adapters.langchain")
    documents = [
        core.Document(
            page_content=one.text, id=one.id,
            metadata={"source": one.source, "relevance_score": one.score, "start_index": one.start},
        )
        for one in items
    ]  # fmt: skip
    found = module.SelectionCompressor(**settings).compress_documents(documents, question)
    return [Found(one.page_content, one.id, one.metadata["mio_rag"]) for one in found]


def by_llama_index(question: str, items: list[Item], **settings: Any) -> list[Found]:
    schema = pytest.importorskip("llama_index.core.schema")
    module = pytest.importorskip("mio_rag.adapters.llama_index")

    def node(one: Item) -> Any:
        source = {schema.NodeRelationship.SOURCE: schema.RelatedNodeInfo(node_id=one.source)}
        made = schema.TextNode(text=one.text, id_=one.id, relationships=source, start_char_idx=one.start)
        return schema.NodeWithScore(node=made, score=one.score)

    chooser = module.SelectionPostprocessor(**settings)
    found = chooser.postprocess_nodes(list(map(node, items)), query_str=question)
    return [Found(one.node.text, None, one.node.metadata["mio_rag"]) for one in found]


def by_haystack(question: str, items: list[Item], **settings: Any) -> list[Found]:
    haystack = pytest.importorskip("haystack")
    module = pytest.importorskip("mio_rag.adapters.haystack")
    documents = [
        haystack.Document(
            id=one.id, content=one.text, score=one.score,
            meta={"source_id": one.source, "split_idx_start": one.start},
        )
        for one in items
    ]  # fmt: skip
    found = module.SelectionRanker(**settings).run(question, documents)["documents"]
    return [Found(one.content, one.id, one.meta["mio_rag"]) for one in found]


def by_dspy(question: str, items: list[Item], **settings: Any) -> list[Found]:
    pytest.importorskip("dspy")
    module = pytest.importorskip("mio_rag.adapters.dspy").SelectionModule(**settings)
    scores = [one.score for one in items]
    found = module(question, passages=[one.text for one in items], scores=scores)
    return [Found(text, None, notes) for text, notes in zip(found.passages, found.notes, strict=True)]


MERGING = {"langchain": by_langchain, "llama-index": by_llama_index, "haystack": by_haystack}
DOCUMENTS = [Item(_TEXTS[k], f"c{k}", 0.9 - 0.1 * k, "d", _STARTS[k]) for k in range(3)]


def chosen(documents: list[Any], **settings: Any) -> list[Any]:
    module = pytest.importorskip("mio_rag.adapters.langchain")
    return module.SelectionCompressor(budget=200, **_GIVEN, **settings).compress_documents(documents, "?")


def documents(**metadata: Any) -> list[Any]:
    core = pytest.importorskip("langchain_core.documents")
    return [
        core.Document(
            page_content=one.text, id=one.id,
            metadata={"source": "d", "start_index": one.start, "relevance_score": one.score, **metadata},
        )
        for one in DOCUMENTS
    ]  # fmt: skip


@pytest.mark.parametrize("adapter", MERGING.values(), ids=MERGING)
def test_one_document_with_the_parts_in_its_notes(adapter: Callable[..., list[Found]]) -> None:
    (found,) = adapter("?", DOCUMENTS, budget=200, **_GIVEN)
    assert found.text == _MERGED
    assert found.id in (None, "c0+c1+c2")
    assert [part["id"] for part in found.notes["parts"]] == ["c0", "c1", "c2"]
    for part, text in zip(found.notes["parts"], _TEXTS, strict=True):
        assert found.text[part["start"] : part["end"]] == text
        assert part["reason"]
    assert found.notes["certificate"]["status"] == "optimal"
    (whole, *_) = adapter("?", DOCUMENTS[:1], budget=200, **_GIVEN)
    assert {*found.notes} == {*whole.notes, "parts"}
    assert found.notes["tokens"] < sum(part["tokens"] for part in found.notes["parts"])
    assert [one.text for one in adapter("?", DOCUMENTS, budget=200, merge=False, **_GIVEN)] == _TEXTS


def test_places_go_with_documents_that_are_ranked_here() -> None:
    module = pytest.importorskip("mio_rag.adapters.langchain")
    given = documents()
    given[1].page_content += " It ends here."  # of lengths that tell places from each other
    given[2].metadata["start_index"] = 10 * _STARTS[2]
    for one in given:
        del one.metadata["relevance_score"]
    embedder = TfidfEmbedder()
    embedder.fit([one.page_content for one in given])
    wanted = None
    for k in range(3):
        order = given[k:] + given[:k]
        compressor = module.SelectionCompressor(budget=200, embedder=embedder)
        found = [one.page_content for one in compressor.compress_documents(order, given[2].page_content)]
        assert all(sum(one.page_content in text for text in found) <= 1 for one in given)
        wanted = wanted or found
        assert found == wanted


@pytest.mark.parametrize("wrong", [{0: None, 1: None, 2: None}, {0: "0"}, {1: -1}, {1: _STARTS[1] + 1}])
def test_places_that_are_missing_or_wrong_are_found_in_the_texts(wrong: dict[int, Any]) -> None:
    given = documents()
    for k, start in wrong.items():
        given[k].metadata["start_index"] = start
    found = chosen(given)
    assert _GAP.join(d.page_content for d in found) == _MERGED
    notes = found[0].metadata["mio_rag"]["certificate"]["notes"]
    assert any("contradict" in note for note in notes) == (wrong == {1: _STARTS[1] + 1})


@pytest.mark.parametrize("key", ["page", "pageLabel", "Header 2", "h2", "sheet_name", "row", "Section Title"])
def test_places_count_anew_in_parts(key: str) -> None:
    given = documents()
    for document, part in zip(given, ["1", "1", "2"], strict=True):
        document.metadata[key] = part
    given[2].metadata["start_index"] = _STARTS[1] + len(_TEXTS[1])  # seems to go on where page 1 ends
    found = chosen(given)
    assert [d.page_content for d in found] == [_MERGED.split("\n")[0], _TEXTS[2]]
    assert [d.metadata[key] for d in found] == ["1", "2"]
    parts = found[0].metadata["mio_rag"]["parts"]
    assert [part["metadata"] for part in parts] == [d.metadata for d in given[:2]]


def test_scores_that_ascend_are_noted() -> None:
    given = documents()
    for ascending in (False, True):
        (found,) = chosen(given)
        notes = found.metadata["mio_rag"]["certificate"]["notes"]
        assert any("ascend" in note for note in notes) == ascending
        for document, score in zip(given, [0.02, 0.8, 1.9], strict=True):
            document.metadata["relevance_score"] = score


def test_few_different_scores_in_ascending_order_are_no_distances() -> None:
    given = Documents([f"text {k}" for k in range(6)], scores=[0.0, 0.0, 0.0, 0.2, 0.2, 0.9])
    found = choose("Which text?", given, budget=4, selector=Selector(units="passages")).selection
    assert found.texts[0] == "text 5"


def test_distances_in_the_place_of_scores_are_read_as_such() -> None:
    texts = ["The pump hall is locked at night.", *(f"Canteen menu {k}: soup and bread." for k in range(7))]
    items = [Item(text, f"t{k}", 0.1 + 0.1 * k, f"s{k}") for k, text in enumerate(texts)]
    for adapter in (by_langchain, by_llama_index, by_haystack):
        found = adapter("When is the pump hall locked?", items, budget=9, **_GIVEN)
        assert [one.text for one in found] == texts[:1]
        assert any("ascend" in note for note in found[0].notes["certificate"]["notes"])


def test_metadata_that_a_model_is_shown_stand_once_above_merged_nodes() -> None:
    schema = pytest.importorskip("llama_index.core.schema")
    parsers = pytest.importorskip("llama_index.core.node_parser")
    module = pytest.importorskip("mio_rag.adapters.llama_index")
    document = schema.Document(text=_STORY + "\n", metadata={"file_path": "rules/pumps.md"})
    cut = parsers.SentenceSplitter(chunk_size=30, chunk_overlap=10).get_nodes_from_documents([document])
    scored = [schema.NodeWithScore(node=node, score=0.9 - 0.1 * k) for k, node in enumerate(cut)]
    assert len(scored) > 2
    found = module.SelectionPostprocessor(budget=80, **_GIVEN).postprocess_nodes(scored, query_str="pump")
    assert [one.node.get_content(schema.MetadataMode.LLM) for one in found] == [
        f"file_path: rules/pumps.md\n\n{_STORY}"
    ]


def test_the_row_that_is_asked_for_is_read_whatever_its_piece_scores() -> None:
    core = pytest.importorskip("llama_index.core")
    parsers = pytest.importorskip("llama_index.core.node_parser")
    module = pytest.importorskip("mio_rag.adapters.llama_index")
    rows = [
        f"R-{k},{base},static,{60 + k},20{10 + k % 9}-06-20" for k, base in enumerate(["Harn", "Ostrel"] * 12)
    ]
    table = "rope,base,type,length,retire by\n" + "\n".join(rows)
    files = {"ropes.csv": table, "club.md": "# Club\n\nMembers pay 90 EUR.\n\nThe hut sleeps 12."}
    documents = [core.Document(text=text, metadata={"file_path": name}) for name, text in files.items()]
    cut = parsers.SentenceSplitter(chunk_size=100, chunk_overlap=30).get_nodes_from_documents(documents)
    order = sorted(cut, key=lambda node: "R-17," in node.text)  # its pieces come last
    scored = [core.schema.NodeWithScore(node=n, score=0.9 - 0.02 * k) for k, n in enumerate(order)]
    embedder = TfidfEmbedder()
    embedder.fit([node.text for node in cut])
    question = "When must rope R-17 be retired?"
    for given, there in ((None, True), (False, True), (True, False)):
        chooser = module.SelectionPostprocessor(budget=60, embedder=embedder, use_scores=given)
        found = chooser.postprocess_nodes(scored, query_str=question)
        assert any(rows[17] in one.node.text for one in found) == there
    assert found  # by the scores


@pytest.mark.parametrize("key", ["file_path", "file_name", "source"])
def test_files_of_a_folder_are_told_apart_as_versions(key: str) -> None:
    core = pytest.importorskip("llama_index.core")
    module = pytest.importorskip("mio_rag.adapters.llama_index")
    text = "# Call-outs\n\nLast updated: {}\n\nThe duty team leaves the base within {} minutes of the alarm."
    days = {"callout-policy-2023.md": ("1 March 2023", 40), "callout-policy-2025.md": ("2 May 2025", 30)}
    documents = [core.Document(text=text.format(*told), metadata={key: name}) for name, told in days.items()]
    cut = core.node_parser.SentenceSplitter(chunk_size=200).get_nodes_from_documents(documents)
    scored = [core.schema.NodeWithScore(node=n, score=0.9 - 0.1 * k) for k, n in enumerate(cut)]
    embedder = TfidfEmbedder()
    embedder.fit([node.text for node in cut])
    chooser = module.SelectionPostprocessor(budget=200, embedder=embedder)
    found = chooser.postprocess_nodes(scored, query_str="When does the duty team leave the base?")
    assert [one.node.metadata[key] for one in found] == ["callout-policy-2025.md"]


def test_pieces_have_the_date_that_their_document_states() -> None:
    core = pytest.importorskip("langchain_core.documents")
    module = pytest.importorskip("mio_rag.adapters.langchain")
    days = {"leave-policy-2023.md": ("10 January 2023", 25), "leave-policy.md": ("2 March 2026", 27)}
    documents = [
        core.Document(page_content=text, metadata={"source": source, "relevance_score": 1.0})
        for source, (day, number) in days.items()
        for text in (f"# Leave policy\n\nUpdated: {day}", f"Staff have {number} working days of leave.")
    ]  # fmt: skip
    question = "How many working days of leave do staff have?"
    found = module.SelectionCompressor(budget=60, **_GIVEN).compress_documents(documents, question)
    read = " ".join(one.page_content for one in found)
    assert "27 working days" in read
    assert "25 working days" not in read


def test_windows_and_children_of_llama_index_are_read_once() -> None:
    core = pytest.importorskip("llama_index.core")
    parsers = pytest.importorskip("llama_index.core.node_parser")
    module = pytest.importorskip("mio_rag.adapters.llama_index")
    chooser = module.SelectionPostprocessor(budget=400, **_GIVEN)
    document = core.Document(text=_STORY, id_="pump")
    windows = parsers.SentenceWindowNodeParser.from_defaults(window_size=1)
    nodes = zip(windows.get_nodes_from_documents([document])[1:4], [0.7, 0.9, 0.8], strict=True)
    scored = [core.schema.NodeWithScore(node=node, score=score) for node, score in nodes]
    shown = core.postprocessor.MetadataReplacementPostProcessor("window").postprocess_nodes(scored)
    (found,) = chooser.postprocess_nodes(shown, query_str="?")
    assert found.node.get_content().split() == _STORY.split()
    tree = parsers.HierarchicalNodeParser.from_defaults(chunk_sizes=[60, 20], chunk_overlap=0)
    nodes = tree.get_nodes_from_documents([document])
    assert len(nodes) > 2
    scored = [core.schema.NodeWithScore(node=n, score=0.9 - 0.01 * k) for k, n in enumerate(nodes)]
    (found,) = chooser.postprocess_nodes(scored, query_str="?")
    assert found.node.get_content() == _STORY
    assert not any("contradict" in n for n in found.node.metadata["mio_rag"]["certificate"]["notes"])
    for k, one in enumerate(scored):
        one.node.metadata["author"] = f"shown to the model: {k}"
    assert len(chooser.postprocess_nodes(scored, query_str="?")) > 1


def test_children_of_haystack_are_read_with_their_parents() -> None:
    haystack = pytest.importorskip("haystack")
    module = pytest.importorskip("mio_rag.adapters.haystack")
    splitters = pytest.importorskip("haystack.components.preprocessors")
    splitter = splitters.HierarchicalDocumentSplitter({16, 8}, split_overlap=0, split_by="word")
    split = splitter.run([haystack.Document(content=_STORY, id="root")])["documents"]
    assert len({d.meta["__level"] for d in split}) == 3
    split = [replace(d, score=0.9 - 0.01 * k) for k, d in enumerate(split) if len(d.content) >= 20]
    ranker = module.SelectionRanker(budget=400, **_GIVEN)
    assert "".join(d.content for d in ranker.run("?", split)["documents"]) == _STORY
    below = [d for d in split if d.meta["__level"] == 2]  # their places count in parents that are not here
    assert all(d.content.replace(_GAP, "") in _STORY for d in ranker.run("?", below)["documents"])


SENTENCES = (
    "A very long text of other things that does not say anything of interest and goes on for ever.",
    "The dam was built in 1957. It holds the water of two rivers. They left in the year after.",
    "The dam of the next valley is of earth. Sheep graze on it.",
)


@pytest.mark.parametrize(("budget", "units"), [(9, "auto"), (40, "sentences")])
@pytest.mark.parametrize("adapter", [*MERGING.values(), by_dspy], ids=[*MERGING, "dspy"])
def test_of_sentences_what_was_chosen_is_handed_over(
    adapter: Callable[..., list[Found]], budget: int, units: str
) -> None:
    question, scores = "When was the dam built?", (0.5, 0.9, 0.7)
    items = [Item(text, f"{k}", scores[k], f"s{k}") for k, text in enumerate(SENTENCES)]
    settings = {"budget": budget, "units": units, "counter": RegexCounter()}
    given = [{"id": one.id, "text": one.text, "source": one.source} for one in items]
    expected = select(question, given, scores=list(scores), **settings)
    found = adapter(question, items, **settings)
    assert expected.unit == "sentence"
    assert [one.text for one in found] == list(expected.texts)
    assert "built in 1957" in found[0].text
    for one in found:
        for part in one.notes["parts"]:
            name, mark, number = part["id"].partition("#s")
            assert (mark, number in "123") == ("#s", True)
            assert one.text[part["start"] : part["end"]] in SENTENCES[int(name)]
