"""LlamaIndex: a node postprocessor.

index.as_query_engine(similarity_top_k=50, node_postprocessors=[SelectionPostprocessor(budget_tokens=512)])
"""

from __future__ import annotations

from functools import cache
from typing import Any

from mio_rag.adapters.core import NOTES, Item, Vectors
from mio_rag.errors import InputError, optional

with optional("llama_index", "llama-index", "mio_rag.adapters.llama_index"):
    from llama_index.core import Settings
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore, QueryBundle, TextNode

    from mio_rag.adapters.fields import SelectionFields

__all__ = ["SelectionPostprocessor"]


class SelectionPostprocessor(SelectionFields, BaseNodePostprocessor):
    """Chooses among retrieved nodes under a token budget, with a proof.

    A node costs what the model is shown of it, metadata included, and is embedded as the index embeds it. Its
    notes stand in ``node.metadata["mio_rag"]``, where neither the model nor an embedder is shown them.

    Parameters
    ----------
    budget_tokens : int
        Largest total of what is chosen, >= 1.
    embedder : BaseEmbedding, mio_rag Embedder or str, optional
        Embeds question and nodes where that is needed: redundancy needs vectors, and stores return nodes
        without theirs. By default ``Settings.embed_model``. A vector is remembered by its text.
    use_scores : bool
        Take a node's score for its relevance; False: the cosine of question and node.
    source_key : str or None
        Where in the metadata a node's source stands, for `max_per_source`; None: the document it is part of.
    selector, counter, on_selection
        See `mio_rag.adapters.fields.SelectionFields`.
    **settings
        Any parameter of `mio_rag.Selector`.

    Raises
    ------
    InputError
        For settings out of range; when called, for nodes without what the settings need.
    InfeasibleError
        When called, if no selection satisfies the constraints.
    """

    use_scores: bool = True
    source_key: str | None = None

    def __init__(self, *, budget_tokens: int, **rest: Any) -> None:  # for type checkers
        super().__init__(budget_tokens=budget_tokens, **rest)

    @classmethod
    def class_name(cls) -> str:
        """The name under which it is saved."""
        return "SelectionPostprocessor"

    def _default_embedder(self) -> Any:
        return Settings.embed_model

    def _vectors_of(self, embedder: Any) -> Vectors:
        if isinstance(embedder, BaseEmbedding):
            return Vectors(embedder.get_text_embedding_batch, embedder.get_query_embedding, embedder)
        return super()._vectors_of(embedder)

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if query_bundle is None:
            raise InputError("the question is missing: give query_bundle= or query_str=")
        items = [self._item(found) for found in nodes]
        # The bundle's vector is the index's; it fits vectors that come with the nodes, and no others.
        own = all(item.embedding is not None for item in items)
        choice = self._choose(query_bundle.query_str, items, query_bundle.embedding if own else None)
        return [
            NodeWithScore(node=_noted(nodes[i].node, notes), score=nodes[i].score)
            for i, notes in zip(choice.indices, choice.notes, strict=True)
        ]

    def _item(self, found: NodeWithScore) -> Item:
        node = found.node
        text, embed_text = _shown(node)
        key = self.source_key
        source = node.metadata.get(key) if key else node.ref_doc_id if node.relationships else None
        score = found.score if self.use_scores else None
        return Item(text, node.id_, str(source or ""), score, node.embedding, embed_text)


def _shown(node: BaseNode) -> tuple[str, str | None]:
    """What the model is shown of a node, and what an embedder is, where that differs.

    Rendering metadata takes as long as all the rest of a node: it is done no more often than needed.
    """
    if not node.metadata and isinstance(node, TextNode) and _renders_as_usual(type(node)):
        return node.text, None
    text = node.get_content(metadata_mode=MetadataMode.LLM)
    if node.excluded_embed_metadata_keys == node.excluded_llm_metadata_keys:
        return text, None
    return text, node.get_content(metadata_mode=MetadataMode.EMBED)


@cache
def _renders_as_usual(kind: type[TextNode]) -> bool:
    return kind.get_content is TextNode.get_content and kind.get_metadata_str is BaseNode.get_metadata_str


def _noted(node: BaseNode, notes: dict[str, Any]) -> BaseNode:
    """A copy with the notes in its metadata, kept from prompts and embedders."""
    return node.model_copy(
        update={
            "metadata": {**node.metadata, NOTES: notes},
            "excluded_llm_metadata_keys": [*node.excluded_llm_metadata_keys, NOTES],
            "excluded_embed_metadata_keys": [*node.excluded_embed_metadata_keys, NOTES],
        }
    )
