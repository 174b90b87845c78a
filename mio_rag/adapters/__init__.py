"""Selection inside other frameworks: one thin module for each, loaded only when it is imported.

    langchain      SelectionCompressor, SelectionRetriever
    llama_index    SelectionPostprocessor
    haystack       SelectionRanker
    dspy           SelectionModule

All take `budget_tokens`, the parameters of `mio_rag.Selector` as keywords, an embedder where documents come
without vectors, and a counter. What is chosen keeps its text, metadata and score, stands in prompt order, and
carries in its metadata, under "mio_rag", its rank, why it was chosen, and the certificate of the choice.
"""
