"""Sentences by weights that are fitted on other questions of the same corpus.

The questions are halved at random. Each half is read by weights that were fitted on the other one, as a user
has them who fits on questions of his own (`mio-rag calibrate --sentences`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.repetition.study import Columns, Corpus, rows_of
from mio_rag.evaluation.fit import fit_sentences
from mio_rag.relevance import RelevanceModel
from mio_rag.selection.selector import Selector

#: The end of the name of these rows.
OWN = ", own weights"


def own_rows(
    folder: Path,
    corpus: Corpus,
    model: RelevanceModel,
    settings: dict[str, tuple[Selector, str | None]],
    seed: int,
    tell: Callable[[str], None],
) -> dict[str, Columns]:
    """The rows of sentences among `settings`, chosen by such weights; merged.

    Raises
    ------
    InputError
        If a half has too few questions to fit on.
    """
    asked = len(corpus.questions)
    first = np.random.default_rng(seed).permutation(asked) < asked // 2
    found: dict[str, Columns] = {}
    for number, half in enumerate((first, ~first)):
        read, fitted_on = np.flatnonzero(half), np.flatnonzero(~half)
        pools = [model.valued(corpus.pools[k]) for k in fitted_on]
        weights = fit_sentences([corpus.questions[k] for k in fitted_on], pools, seed=seed)
        own = replace(model, sentences=weights)
        chosen = {
            name: (selector.replace(relevance_model=own), score)
            for name, (selector, score) in settings.items()
            if selector.units == "sentences" and selector.solver != "greedy"
        }
        questions, pools_read = [corpus.questions[k] for k in read], [corpus.pools[k] for k in read]
        part = replace(corpus, questions=tuple(questions), pools=tuple(pools_read))
        for name, columns in rows_of(folder / f"own-{number}", part, chosen, tell).items():
            row = found.setdefault(name.replace(", merged", f"{OWN}, merged"), {})
            for budget, column in columns.items():
                whole = row.setdefault(budget, {key: [0.0] * asked for key in column})
                for key, values in column.items():
                    for k, value in zip(read.tolist(), values, strict=True):
                        whole[key][k] = value
    return found
