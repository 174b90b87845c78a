"""What ratings of answers say of the passages that were read for them: a beta posterior for each passage.

    odds of p  ->  odds of p, times (odds that an answer with it is helpful / odds of any answer) ** weight

An answer's rating counts for every passage read, in equal shares. The prior is the share of helpful answers
so far, so that a passage that was never read, or is rated like all others, stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.candidates import Candidates
from mio_rag.errors import InputError
from mio_rag.selection.selector import Selector

__all__ = ["PassageMemory", "remembering"]

FloatArray = NDArray[np.float64]

_STRENGTH = 2.0  # ratings that the prior weighs
_MOST = 10_000  # passages; of more the one rated longest ago is forgotten
_EDGE = 1e-6  # probabilities are kept this far from 0 and 1


class PassageMemory:
    """Ratings by passage, as plain data: what a bandit's state keeps.

    Parameters
    ----------
    rated : sequence of (str, float, float), optional
        Passage, its shares of helpful answers that it was read for, and of all; rated last at the end.
    answers : (float, float), optional
        Helpful answers, and all.
    """

    def __init__(
        self, rated: Sequence[tuple[str, float, float]] = (), answers: Sequence[float] = (0.0, 0.0)
    ) -> None:
        self.rated = {name: [float(good), float(all_)] for name, good, all_ in rated}
        self.answers = [float(value) for value in answers]

    def learn(self, read: Sequence[str], helpful: bool) -> None:
        """Take in the rating of an answer."""
        if not read:
            return
        share = 1.0 / len(read)
        for name in read:
            good, all_ = self.rated.pop(name, [0.0, 0.0])
            self.rated[name] = [good + share * helpful, all_ + share]  # at the end: rated last
        while len(self.rated) > _MOST:
            del self.rated[next(iter(self.rated))]
        self.answers = [self.answers[0] + helpful, self.answers[1] + 1.0]

    def shift(self, ids: Sequence[str]) -> FloatArray:
        """What is added to the log-odds of passages at weight 1, shape (n,); 0 where nothing is known."""
        prior = (self.answers[0] + 1.0) / (self.answers[1] + 2.0)
        seen = np.array([self.rated.get(name, (0.0, 0.0)) for name in ids]).reshape(len(ids), 2)
        mean = (_STRENGTH * prior + seen[:, 0]) / (_STRENGTH + seen[:, 1])
        return _odds(mean) - float(_odds(np.array([prior]))[0])

    def to_dict(self) -> dict[str, Any]:
        """Plain data; the arguments of the class."""
        return {"rated": [[name, *seen] for name, seen in self.rated.items()], "answers": self.answers}


def remembering(
    selector: Selector, pool: Candidates, memory: PassageMemory, weight: float
) -> tuple[Selector, Candidates]:
    """Selector and pool with relevance moved by what was rated; both as they are where nothing is known.

    Raises
    ------
    InputError
        Where relevance is no probability, or embeddings are uncertain: there is nothing to move, or it would
        be moved after the worst case was taken.
    """
    shift = memory.shift(pool.ids)
    if not weight or not shift.any():
        return selector, pool
    resolved = selector.resolved(pool)
    if isinstance(resolved.relevance_model, str):
        raise InputError(
            "ratings of passages move probabilities, and these settings take relevance as it is: leave out "
            "the memory of passages, or use a relevance model"
        )
    if selector.radius or selector.uncertainty is not None or pool.radius is not None:
        raise InputError("ratings of passages and uncertain embeddings exclude each other: leave one out")
    chances = selector.valued(pool).relevance
    moved = 1.0 / (1.0 + np.exp(-(_odds(chances) + weight * shift)))
    settings = resolved.replace(relevance_model="given")
    assert isinstance(settings, Selector)
    return settings, replace(pool, relevance=np.where(shift == 0.0, chances, moved))


def _odds(chances: FloatArray) -> FloatArray:
    inside = np.clip(chances, _EDGE, 1 - _EDGE)
    return np.asarray(np.log(inside / (1 - inside)), dtype=np.float64)
