"""What a language model answers from windows: as everybody reads them, read as one text, and from sentences.

Replies are kept by content in the work folder, so that more questions cost their own replies only.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.repetition.study import PRICES, Corpus, answered
from benchmarks.repetition.summary import interval
from mio_rag.evaluation.contenders import make_methods
from mio_rag.generation import build_prompt, make_generator
from mio_rag.generation.replies import RememberingGenerator
from mio_rag.measures.answers import token_f1
from mio_rag.pool import Candidates
from mio_rag.relevance import RelevanceModel
from mio_rag.selection.result import Selection
from mio_rag.selection.selector import Selector

_BUDGET, _ANSWER = 256, 24
_OURS = f"price {PRICES[0]:g}, sentences"


def model_answers(
    generator: str,
    work: Path,
    corpus: Corpus,
    model: RelevanceModel,
    count: int,
    seed: int,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Token F1, whether the answer is in what is read, and prompt tokens; paired differences in F1.

    Parameters
    ----------
    generator : str
        As `mio_rag ask --generator`; its tokenizer counts.
    count : int
        Questions, the first ones of the corpus.
    """
    reader = RememberingGenerator(make_generator(generator), work / "replies.sqlite")
    ours = Selector(relevance_model=model, token_price=PRICES[0])
    fused = make_methods(["fused"], ours)[0]
    apart = make_methods(["fused"], ours.replace(merge=False))[0]
    sentences = ours.replace(units="sentences")
    ways: dict[str, Callable[[Candidates], Selection]] = {
        "fused, apart": lambda pool: apart.select(pool, _BUDGET, reader),
        "fused, merged": lambda pool: fused.select(pool, _BUDGET, reader),
        _OURS: lambda pool: sentences.select(pool, _BUDGET, reader),
    }
    columns: dict[str, dict[str, list[float]]] = {
        name: {"f1": [], "answer": [], "prompt_tokens": []} for name in ways
    }
    asked = list(zip(corpus.questions, corpus.pools, strict=True))[:count]
    for k, (question, pool) in enumerate(asked, start=1):
        for name, way in ways.items():
            read = way(pool).passages
            answer = reader.generate(build_prompt(question, read), max_tokens=_ANSWER)
            columns[name]["f1"].append(token_f1(answer.text, question.answers))
            columns[name]["answer"].append(float(answered(question, [f"{p.title} {p.text}" for p in read])))
            columns[name]["prompt_tokens"].append(float(answer.prompt_tokens))
        tell(f"{k} of {len(asked)} questions answered")
    draws = np.random.default_rng(seed).integers(0, len(asked), (2000, len(asked)))
    f1 = {name: np.array(found["f1"]) for name, found in columns.items()}
    pairs = [(_OURS, "fused, apart"), (_OURS, "fused, merged"), ("fused, merged", "fused, apart")]
    return {
        "questions": len(asked),
        "generator": reader.name,
        "budget_tokens": _BUDGET,
        "means": {
            name: {key: interval(np.array(column), draws) for key, column in found.items()}
            for name, found in columns.items()
        },
        "f1": {f"{one} - {other}": interval(f1[one] - f1[other], draws) for one, other in pairs},
    }
