"""What a selection and an answer show of whether the passages answer the question; no model is asked."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mio_rag.context import render_passage
from mio_rag.generation.extractive import sentences, stems
from mio_rag.selection.result import Selection
from mio_rag.types import Answer

__all__ = ["SIGNS", "signs_of"]

#: Names, in the order of the numbers of `signs_of`.
SIGNS = ("best_cosine", "mean_cosine", "lexical", "best_relevance", "sentence_cover", "answer_cover", "said")


def signs_of(question: str, selection: Selection, answer: Answer) -> NDArray[np.float64]:
    """Signs, shape (7,): the more, the likelier there is an answer.

    best_cosine, mean_cosine: of question and selected passages. lexical: largest BM25 score of them over the
    best of the pool's, 0 without. best_relevance: of the selected passages; where sentences were selected, of
    the passages that they are of. sentence_cover: largest share of the question's content words in one
    sentence that was read. answer_cover: the same for sentences that hold all words of the answer. said:
    whether the answer has any words.
    """
    pool, chosen = selection.pool, list(selection.places)
    if not chosen:
        return np.zeros(len(SIGNS))
    cosines = np.zeros(1)
    if pool.embeddings is not None and pool.query_embedding is not None:
        cosines = pool.embeddings[chosen].astype(np.float64) @ pool.query_embedding.astype(np.float64)
    lexical = 0.0
    if "bm25" in pool.scores:
        scores = pool.scores["bm25"]
        lexical = float(scores[chosen].max() / max(float(scores.max()), 1e-12))
    asked, said = stems(question), stems(answer.text)
    read = [stems(part) for p in selection.passages for part in sentences(render_passage(p))]
    covers = [len(asked & part) / max(1, len(asked)) for part in read]
    holding = [cover for cover, part in zip(covers, read, strict=True) if said and said <= part]
    return np.array(
        [
            float(cosines.max()),
            float(cosines.mean()),
            lexical,
            float(pool.relevance[chosen].max()),
            max(covers, default=0.0),
            max(holding, default=0.0),
            float(bool(said)),
        ]
    )
