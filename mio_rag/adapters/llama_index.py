"""LlamaIndex: a node postprocessor.

index.as_query_engine(similarity_top_k=50, node_postprocessors=[SelectionPostprocessor(budget=512)])
"""

from __future__ import annotations

from functools import cache
from typing import Any

from mio_rag.adapters.core import NOTES, Documents, Read, SelectionFields, Vectors, label, place, takes_scores
from mio_rag.errors import InputError, optional
from mio_rag.stores.rows import NAMES

with optional("llama_index", "llama-index", "mio_rag.adapters.llama_index"):
    from llama_index.core import Settings
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore, QueryBundle, TextNode


class SelectionPostprocessor(SelectionFields, BaseNodePostprocessor):
    """Chooses among retrieved nodes under a token budget, with a proof.

    Tokens of a node are counted on the text that the model sees, metadata included. A node is embedded as the
    index embeds it. Its notes are in ``node.metadata["mio_rag"]``, hidden from model and embedder.

    budget: largest total of what is chosen, in tokens, >= 1.
    embedder: embeds question and nodes where that is needed: redundancy needs vectors, and stores return
        nodes without theirs. By default ``Settings.embed_model``. Vectors are cached by text.
    use_scores: take a node's score for its relevance; False: nodes are ranked anew, by vectors and words. By
        default scores are taken unless nodes have several lines, and an embedder is there: their rows and
        sentences are then ranked one by one.
    source_key: where in the metadata a node's source stands, for `max_per_source`; None: the file or document
        it is part of. Nodes of one page or section that overlap or touch (by ``start_char_idx``, or by their
        texts, as sentence windows, and parents and children) are read as one, with theirs in
        ``node.metadata["mio_rag"]["parts"]``, unless ``merge=False``; not where metadata that are shown to
        the model differ.
    where, selector, counter, on_selection: see `mio_rag.adapters.core.SelectionFields`.
    **settings: any parameter of `mio_rag.Selector`.

    Raises `InputError` for settings out of range; when called, for nodes without what the settings need, and
    `InfeasibleError` if no selection satisfies the constraints.
    """

    use_scores: bool | None = None
    source_key: str | None = None

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which it is saved."""
        return "SelectionPostprocessor"

    def _default_embedder(self) -> Any:
        try:
            return Settings.embed_model
        except (ImportError, ValueError) as error:  # of the vendor that LlamaIndex falls back on
            raise InputError(
                "question or nodes have to be embedded, and there is no embedder: give embedder=, or set "
                f"llama_index.core.Settings.embed_model (its own default says: {str(error).strip()})"
            ) from error

    def _vectors_of(self, embedder: Any) -> Vectors:
        if isinstance(embedder, BaseEmbedding):
            return Vectors(embedder.get_text_embedding_batch, embedder.get_query_embedding, embedder)
        return super()._vectors_of(embedder)

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if query_bundle is None:
            raise InputError("the question is missing: give query_bundle= or query_str=")
        given, bare = list(nodes), [found.node for found in nodes]
        key, embeddings = self.source_key, [node.embedding for node in bare]
        shown, embed_texts = _shown(bare)
        heads = [_head(node, text) for node, text in zip(bare, shown, strict=True)]
        texts = [text[len(head) :] for text, head in zip(shown, heads, strict=True)]
        scored = takes_scores(self.use_scores, texts, self.selector, self._vectors)
        documents = Documents(
            texts,
            [node.id_ for node in bare],
            _sources(bare) if key is None else [label(node.metadata.get(key)) for node in bare],
            [found.score for found in given] if scored else None,
            embeddings if any(embeddings) else None,
            embed_texts or shown,
            [_start(node, text) for node, text in zip(bare, texts, strict=True)],
            [node.metadata for node in bare],
            heads,
        )
        # The bundle's vector is the index's; it fits vectors that come with the nodes, and no others.
        choice = self._choose(
            query_bundle.query_str, documents, query_bundle.embedding if all(embeddings) else None
        )
        return [
            NodeWithScore(node=_noted(bare[read.indices[0]], read), score=given[read.indices[0]].score)
            for read in choice.read
        ]


def _sources(nodes: list[BaseNode]) -> list[str]:
    """The documents that nodes are part of; by the name of the file where it is one document."""
    parents = [(node.ref_doc_id or "") if node.relationships else "" for node in nodes]
    names = ("file_path", *NAMES["source"])
    files = [label(next(filter(None, map(node.metadata.get, names)), "")) for node in nodes]
    of: dict[str, set[str]] = {}
    for parent, file in zip(parents, files, strict=True):
        of.setdefault(file, set()).add(parent)
    return [
        file if parent and file and len(of[file]) == 1 else parent
        for parent, file in zip(parents, files, strict=True)
    ]


def _shown(nodes: list[BaseNode]) -> tuple[list[str], list[str] | None]:
    """What the model is shown of the nodes, and what an embedder is, where that differs."""
    if not any(node.metadata for node in nodes) and all(map(_renders_as_usual, set(map(type, nodes)))):
        return [node.text for node in nodes], None  # type: ignore[attr-defined]  # they are TextNodes
    texts = [node.get_content(metadata_mode=MetadataMode.LLM) for node in nodes]
    if all(node.excluded_embed_metadata_keys == node.excluded_llm_metadata_keys for node in nodes):
        return texts, None
    return texts, [node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes]


def _head(node: BaseNode, shown: str) -> str:
    """What the model is shown above the text of a node: mostly metadata. LlamaIndex cuts white space then."""
    text = getattr(node, "text", "").rstrip()
    return shown[: -len(text)] if text and shown.endswith(text) else ""


@cache
def _renders_as_usual(kind: type[BaseNode]) -> bool:
    if not issubclass(kind, TextNode):
        return False
    return kind.get_content is TextNode.get_content and kind.get_metadata_str is BaseNode.get_metadata_str


def _start(node: BaseNode, shown: str) -> int | None:
    """Where a node begins in its document, if what the model is shown is the text that lies there.

    Places of a node that has a parent count in that.
    """
    if node.relationships and node.parent_node is not None:
        return None
    start, end = (place(getattr(node, name, None)) for name in ("start_char_idx", "end_char_idx"))
    text = getattr(node, "text", "")
    if start is None or shown.rstrip() != text.rstrip() or end not in (None, start + len(text)):
        return None
    return start


def _noted(node: BaseNode, read: Read) -> BaseNode:
    """A copy with what is read, and the notes in its metadata, hidden from prompts and embedders."""
    update: dict[str, Any] = {} if read.is_whole else {"text": read.text, "end_char_idx": None}
    hiding = ("excluded_llm_metadata_keys", "excluded_embed_metadata_keys")
    update |= {name: [*getattr(node, name), NOTES] for name in hiding}
    return node.model_copy(update={**update, "metadata": {**node.metadata, NOTES: read.notes}})
