"""Selection inside other frameworks: one thin module for each, loaded only when it is imported.

    langchain      SelectionCompressor, SelectionRetriever
    llama_index    SelectionPostprocessor
    haystack       SelectionRanker
    dspy           SelectionModule

All take `budget`, `where`, the parameters of `mio_rag.Selector` as keywords, a counter, and an embedder for
documents without vectors. Chosen documents keep their text, metadata and score and are returned in prompt
order. Their metadata has, under "mio_rag", the rank, the reason, and the certificate of the selection.
"""
