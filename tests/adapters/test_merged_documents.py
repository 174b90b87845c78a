"""Adapters and batches that know where documents lie hand over merged ones, with their parts in the notes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mio_rag import select
from mio_rag.context import RegexCounter

_WORDS = [f"w{k}" for k in range(60)]
_STARTS = [sum(len(word) + 1 for word in _WORDS[:k]) for k in (0, 10, 40)]
_TEXTS = [" ".join(_WORDS[:20]), " ".join(_WORDS[10:30]), " ".join(_WORDS[40:50])]
_MERGED = " ".join(_WORDS[:30]) + "\n\u2026\n" + " ".join(_WORDS[40:50])
_STORY = (
    "The pump room is locked at night. The key hangs in the office. Ask the porter for it before nine. "
    "The main pump must never run dry. Its seal burns within a minute."
)
_SCORES = [0.9, 0.8, 0.7]


def _plain(**settings):
    return {"redundancy_weight": 0.0, "passage_penalty": 0.0, "relevance_model": "given", **settings}


class TestLangChain:
    def documents(self, **metadata):
        core = pytest.importorskip("langchain_core.documents")
        rows = zip(_TEXTS, _STARTS, _SCORES, strict=True)
        return [
            core.Document(
                page_content=text,
                id=f"c{k}",
                metadata={"source": "d", "start_index": start, "relevance_score": score, **metadata},
            )
            for k, (text, start, score) in enumerate(rows)
        ]

    def chosen(self, documents, **settings):
        module = pytest.importorskip("mio_rag.adapters.langchain")
        chooser = module.SelectionCompressor(budget=200, **_plain(**settings))
        return chooser.compress_documents(documents, "?")

    def test_one_document_with_the_parts_in_its_notes(self):
        (found,) = self.chosen(self.documents())
        assert found.page_content == _MERGED
        assert found.id == "c0+c1+c2"
        notes = found.metadata["mio_rag"]
        assert [part["id"] for part in notes["parts"]] == ["c0", "c1", "c2"]
        for part, text in zip(notes["parts"], _TEXTS, strict=True):
            assert found.page_content[part["start"] : part["end"]] == text
            assert part["reason"]
        assert notes["certificate"]["status"] == "optimal"

    def test_the_parts_on_request(self):
        assert [d.page_content for d in self.chosen(self.documents(), merge=False)] == _TEXTS

    @pytest.mark.parametrize("wrong", [{0: None, 1: None, 2: None}, {0: "0"}, {1: -1}, {1: _STARTS[1] + 1}])
    def test_places_that_are_missing_or_wrong_are_found_in_the_texts(self, wrong):
        documents = self.documents()
        for k, start in wrong.items():
            documents[k].metadata["start_index"] = start
        found = self.chosen(documents)
        assert "\n\u2026\n".join(d.page_content for d in found) == _MERGED
        notes = found[0].metadata["mio_rag"]["certificate"]["notes"]
        assert any("contradict" in note for note in notes) == (wrong == {1: _STARTS[1] + 1})

    @pytest.mark.parametrize(
        "key",
        ["page", "page_number", "pageLabel", "Header 2", "h2", "sheet_name", "slide", "row", "Section Title"],
    )
    def test_places_count_anew_in_parts(self, key):
        documents = self.documents()
        for document, part in zip(documents, ["1", "1", "2"], strict=True):
            document.metadata[key] = part
        documents[2].metadata["start_index"] = _STARTS[1] + len(_TEXTS[1])  # seems to go on where page 1 ends
        found = self.chosen(documents)
        assert [d.page_content for d in found] == [_MERGED.split("\n")[0], _TEXTS[2]]
        assert [d.metadata[key] for d in found] == ["1", "2"]
        parts = found[0].metadata["mio_rag"]["parts"]
        assert [part["metadata"] for part in parts] == [d.metadata for d in documents[:2]]

    def test_scores_that_ascend_are_noted(self):
        documents = self.documents()
        for document, score in zip(documents, [0.02, 0.8, 1.9], strict=True):
            document.metadata["relevance_score"] = score
        (found,) = self.chosen(documents)
        assert any("ascend" in note for note in found.metadata["mio_rag"]["certificate"]["notes"])
        (found,) = self.chosen(self.documents())
        assert not any("ascend" in note for note in found.metadata["mio_rag"]["certificate"]["notes"])


class TestLlamaIndex:
    def test_nodes_of_one_document(self):
        schema = pytest.importorskip("llama_index.core.schema")
        module = pytest.importorskip("mio_rag.adapters.llama_index")
        related = {schema.NodeRelationship.SOURCE: schema.RelatedNodeInfo(node_id="d")}
        nodes = [
            schema.NodeWithScore(
                node=schema.TextNode(
                    text=text,
                    id_=f"c{k}",
                    start_char_idx=a,
                    end_char_idx=a + len(text),
                    relationships=related,
                ),
                score=score,
            )
            for k, (text, a, score) in enumerate(zip(_TEXTS, _STARTS, _SCORES, strict=True))
        ]
        chooser = module.SelectionPostprocessor(budget=200, **_plain())
        (found,) = chooser.postprocess_nodes(nodes, query_str="?")
        assert found.node.get_content() == _MERGED
        assert [part["id"] for part in found.node.metadata["mio_rag"]["parts"]] == ["c0", "c1", "c2"]
        nodes[1].node.end_char_idx = 3  # offsets that do not fit its text: it is found by what it shares
        (found,) = chooser.postprocess_nodes(nodes, query_str="?")
        assert found.node.get_content() == _MERGED
        for node in nodes:
            node.node.metadata["author"] = "shown to the model"
        assert len(chooser.postprocess_nodes(nodes, query_str="?")) == 3

    def test_windows_and_children_are_read_once(self):
        core = pytest.importorskip("llama_index.core")
        parsers = pytest.importorskip("llama_index.core.node_parser")
        module = pytest.importorskip("mio_rag.adapters.llama_index")
        chooser = module.SelectionPostprocessor(budget=400, **_plain())
        document = core.Document(text=_STORY, id_="pump")
        windows = parsers.SentenceWindowNodeParser.from_defaults(window_size=1)
        shown = core.postprocessor.MetadataReplacementPostProcessor("window").postprocess_nodes(
            [
                core.schema.NodeWithScore(node=node, score=score)
                for node, score in zip(
                    windows.get_nodes_from_documents([document])[1:4], [0.7, 0.9, 0.8], strict=True
                )
            ]
        )
        (found,) = chooser.postprocess_nodes(shown, query_str="?")
        assert found.node.get_content().split() == _STORY.split()
        tree = parsers.HierarchicalNodeParser.from_defaults(chunk_sizes=[60, 20], chunk_overlap=0)
        nodes = tree.get_nodes_from_documents([document])
        assert len(nodes) > 2
        scored = [core.schema.NodeWithScore(node=n, score=0.9 - 0.01 * k) for k, n in enumerate(nodes)]
        (found,) = chooser.postprocess_nodes(scored, query_str="?")
        assert found.node.get_content() == _STORY
        assert not any("contradict" in n for n in found.node.metadata["mio_rag"]["certificate"]["notes"])


class TestHaystack:
    def test_splits_of_one_document(self):
        haystack = pytest.importorskip("haystack")
        module = pytest.importorskip("mio_rag.adapters.haystack")
        documents = [
            haystack.Document(
                id=f"c{k}", content=text, score=score, meta={"source_id": "d", "split_idx_start": start}
            )
            for k, (text, start, score) in enumerate(zip(_TEXTS, _STARTS, _SCORES, strict=True))
        ]
        ranker = module.SelectionRanker(budget=200, **_plain())
        (found,) = ranker.run(query="?", documents=documents)["documents"]
        assert (found.content, found.id) == (_MERGED, "c0+c1+c2")
        assert [part["id"] for part in found.meta["mio_rag"]["parts"]] == ["c0", "c1", "c2"]

    def test_children_are_read_with_their_parents(self):
        haystack = pytest.importorskip("haystack")
        module = pytest.importorskip("mio_rag.adapters.haystack")
        splitters = pytest.importorskip("haystack.components.preprocessors")
        splitter = splitters.HierarchicalDocumentSplitter({16, 8}, split_overlap=0, split_by="word")
        split = splitter.run([haystack.Document(content=_STORY, id="root")])["documents"]
        assert len({d.meta["__level"] for d in split}) == 3
        split = [replace(d, score=0.9 - 0.01 * k) for k, d in enumerate(split) if len(d.content) >= 20]
        ranker = module.SelectionRanker(budget=400, **_plain())
        assert "".join(d.content for d in ranker.run("?", split)["documents"]) == _STORY
        below = [
            d for d in split if d.meta["__level"] == 2
        ]  # their places count in parents that are not here
        found = ranker.run("?", below)["documents"]
        assert all(d.content.replace("\n\u2026\n", "") in _STORY for d in found)


class TestSentences:
    """Sentences of documents: their text, under the documents that they are of, and nothing else."""

    question = "When was the dam built?"
    texts = (
        "A very long text of other things that does not say anything of interest and goes on for ever.",
        "The dam was built in 1957. It holds the water of two rivers. They left in the year after.",
        "The dam of the next valley is of earth. Sheep graze on it.",
    )
    scores = (0.5, 0.9, 0.7)

    def read(self, name, budget, units):
        """(text, id of the document or None, notes) of each that an adapter hands over."""
        settings = {"budget": budget, "units": units, "counter": RegexCounter()}
        given = list(zip(self.texts, self.scores, strict=True))
        if name == "langchain":
            core = pytest.importorskip("langchain_core.documents")
            module = pytest.importorskip("mio_rag.adapters.langchain")
            documents = [
                core.Document(
                    page_content=text, id=f"d{k}", metadata={"source": f"s{k}", "relevance_score": score}
                )
                for k, (text, score) in enumerate(given)
            ]
            found = module.SelectionCompressor(**settings).compress_documents(documents, self.question)
            return [(d.page_content, d.metadata["source"], d.metadata["mio_rag"]) for d in found]
        if name == "llama-index":
            schema = pytest.importorskip("llama_index.core.schema")
            module = pytest.importorskip("mio_rag.adapters.llama_index")
            nodes = [
                schema.NodeWithScore(node=schema.TextNode(text=text, id_=f"s{k}"), score=score)
                for k, (text, score) in enumerate(given)
            ]
            found = module.SelectionPostprocessor(**settings).postprocess_nodes(
                nodes, query_str=self.question
            )
            return [(n.node.text, n.node.id_, n.node.metadata["mio_rag"]) for n in found]
        if name == "haystack":
            haystack = pytest.importorskip("haystack")
            module = pytest.importorskip("mio_rag.adapters.haystack")
            documents = [
                haystack.Document(content=text, id=f"d{k}", score=score, meta={"source": f"s{k}"})
                for k, (text, score) in enumerate(given)
            ]
            found = module.SelectionRanker(**settings).run(self.question, documents)["documents"]
            return [(d.content, d.meta["source"], d.meta["mio_rag"]) for d in found]
        dspy = pytest.importorskip("dspy")
        module = pytest.importorskip("mio_rag.adapters.dspy")
        names = [f"s{k}" for k in range(len(given))]
        chooser = module.SelectionModule(
            lambda query: dspy.Prediction(passages=list(self.texts), scores=list(self.scores), names=names),
            **settings,
        )
        found = chooser(self.question)
        return list(zip(found.passages, found.names, found.notes, strict=True))

    @pytest.mark.parametrize(("budget", "units"), [(9, "auto"), (40, "sentences")])
    @pytest.mark.parametrize("name", ["langchain", "llama-index", "haystack", "dspy"])
    def test_what_is_handed_over_is_what_was_chosen(self, name, budget, units):
        found = self.read(name, budget, units)
        scores = {"scores": list(self.scores), "counter": RegexCounter(), "units": units}
        given = [{"id": f"s{k}", "text": text, "source": f"s{k}"} for k, text in enumerate(self.texts)]
        expected = select(self.question, given, budget=budget, **scores)
        assert expected.unit == "sentence"
        assert [text for text, _, _ in found] == list(expected.texts)
        assert "built in 1957" in found[0][0]
        for text, source, notes in found:
            own = self.texts[int(source[1:])]
            for part in notes["parts"]:
                assert text[part["start"] : part["end"]] in own
                assert part["id"].endswith(tuple(f"#s{k}" for k in range(1, 4)))
