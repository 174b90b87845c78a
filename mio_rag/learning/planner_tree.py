"""Workflows as a tree of decisions, and what a planner sees of a question.

Workflows that begin with the same steps part where they differ. *Plan once* decides at the root for a
whole workflow. *Plan again after every step* goes down step by step, and sees what the steps before gave.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mio_rag.errors import InputError
from mio_rag.session.workflow import Workflow

FloatArray = NDArray[np.float64]

_KINDS = ("who", "what", "when", "where", "which", "how many", "how", "why")
_YES_NO = re.compile(r"^(?:is|are|was|were|do|does|did|has|have|had|can|could|will|would|should)\b", re.I)
_COMPARED = re.compile(
    r"\b(?:both|either|same|older|younger|earlier|later|longer|larger|more|less|first|than|between)\b", re.I
)
_NESTED = re.compile(r"\bof\b|'s\b|\bthat\b|\bwho\b|\bwhose\b|\bwhere\b|\bin which\b", re.I)

#: Names of what `wording` counts, in order.
WORDING = (
    "words",
    "names",
    "digits",
    "commas",
    "quotes",
    "compared",
    "nested",
    "yes_no",
    *(f"asks {kind}" for kind in _KINDS),
)


def wording(question: str) -> FloatArray:
    """Cheap signals of a question's text, shape (len(WORDING),), each roughly in [0, 3]."""
    words = question.split()
    lower = question.lower()
    names = sum(word[:1].isupper() for word in words[1:])
    first = next((kind for kind in _KINDS if re.search(rf"\b{kind}\b", lower)), None)
    return np.array(
        [
            len(words) / 10,
            names / 3,
            sum(any(c.isdigit() for c in word) for word in words) / 2,
            question.count(",") / 2,
            (question.count('"') + question.count("\u201c")) / 2,
            float(bool(_COMPARED.search(lower))),
            len(_NESTED.findall(lower)) / 2,
            float(bool(_YES_NO.search(lower))),
            *(float(kind == first) for kind in _KINDS),
        ]
    )


class Encoder(Protocol):
    """What makes vectors of questions: an index's embedder, or `mio_rag.generation.gguf.HiddenStates`."""

    @property
    def fingerprint(self) -> str:
        """Changes whenever the vectors could."""
        ...

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit rows, shape (len(texts), d)."""
        ...


@dataclass(frozen=True, eq=False)
class QuestionFeatures:
    """From a question to numbers of mean 0 and deviation 1 over the questions that it was fitted on.

    center: shape (d,); mean embedding.
    axes: shape (d, k); principal axes of embeddings; k may be 0.
    mean, scale: shape (len(WORDING) + k,); of the raw features.
    """

    center: FloatArray
    axes: FloatArray
    mean: FloatArray
    scale: FloatArray

    @classmethod
    def fit(cls, texts: Sequence[str], vectors: ArrayLike, axes: int = 16) -> QuestionFeatures:
        """Fit on training questions.

        vectors: shape (n, d); their embeddings.
        axes: most principal axes that are kept; never more than a quarter of the questions.

        Raises `InputError` if texts and vectors do not fit together.
        """
        given = np.asarray(vectors, dtype=np.float64)
        if given.ndim != 2 or len(given) != len(texts) or not len(texts):
            raise InputError(
                f"{len(texts)} questions have embeddings of shape {given.shape}: give one row each"
            )
        center = given.mean(axis=0)
        _, _, rows = np.linalg.svd(given - center, full_matrices=False)
        kept = max(0, min(axes, len(texts) // 4, len(rows)))
        directions = rows[:kept].T
        raw = np.hstack([np.array([wording(text) for text in texts]), (given - center) @ directions])
        scale = raw.std(axis=0)
        return cls(center, directions, raw.mean(axis=0), np.where(scale > 1e-9, scale, 1.0))

    def __len__(self) -> int:
        return len(self.mean)

    def of(self, texts: Sequence[str], vectors: ArrayLike) -> FloatArray:
        """Features, shape (n, len(self)), cut at four deviations."""
        given = np.asarray(vectors, dtype=np.float64)
        raw = np.hstack([np.array([wording(text) for text in texts]), (given - self.center) @ self.axes])
        return np.asarray(np.clip((raw - self.mean) / self.scale, -4, 4), dtype=np.float64)

    def arrays(self) -> dict[str, FloatArray]:
        """As a file holds it."""
        return {
            "features.center": self.center,
            "features.axes": self.axes,
            "features.mean": self.mean,
            "features.scale": self.scale,
        }

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[np.float64]]) -> QuestionFeatures:
        """What `arrays` gave."""
        names = ("center", "axes", "mean", "scale")
        return cls(*(np.asarray(arrays[f"features.{name}"], dtype=np.float64) for name in names))


MODES = ("once", "again")


@dataclass
class Branch:
    """A place in the tree.

    place: its number; the root is 0.
    node: workflow and position of the node that leads here; None: the root, or the end of a workflow.
    leaves: workflows that can still be reached.
    ends: the workflow that has ended here.
    """

    place: int
    parent: int
    node: tuple[int, int] | None
    leaves: list[int] = field(default_factory=list)
    children: list[int] = field(default_factory=list)
    ends: int | None = None


class Tree:
    """The decisions between workflows.

    workflows: all different.
    mode: "once", "again".

    Raises `InputError` for another mode, no workflows, or two that are the same.
    """

    def __init__(self, workflows: Sequence[Workflow], mode: str) -> None:
        if mode not in MODES:
            raise InputError(f"mode '{mode}' is unknown: choose {', '.join(MODES)}")
        if not workflows:
            raise InputError("there are no workflows to choose from: give at least one")
        self.workflows, self.mode = tuple(workflows), mode
        self.signatures = [workflow.signatures() for workflow in workflows]
        root = Branch(0, -1, None, list(range(len(workflows))))
        self.branches = [root]
        if mode == "once":
            for leaf in root.leaves:
                self._add(root, None, leaf).ends = leaf
        else:
            self._grow(root, 0)

    def _add(self, parent: Branch, node: tuple[int, int] | None, *leaves: int) -> Branch:
        child = Branch(len(self.branches), parent.place, node, list(leaves))
        self.branches.append(child)
        parent.children.append(child.place)
        return child

    def _grow(self, branch: Branch, depth: int) -> None:
        following: dict[str, list[int]] = {}
        for leaf in branch.leaves:
            signed = self.signatures[leaf]
            following.setdefault(signed[depth] if depth < len(signed) else "", []).append(leaf)
        for signature, leaves in following.items():
            if signature:
                self._grow(self._add(branch, (leaves[0], depth), *leaves), depth + 1)
            elif len(leaves) > 1:
                names = ", ".join(self.workflows[leaf].name for leaf in leaves)
                raise InputError(f"workflows {names} run the same nodes in the same order: keep one")
            else:
                self._add(branch, None, *leaves).ends = leaves[0]

    @property
    def decisions(self) -> list[int]:
        """Places where there is something to decide."""
        return [branch.place for branch in self.branches if len(branch.children) > 1]

    def mask(self) -> NDArray[np.bool_]:
        """Which workflows can still be reached from each place, shape (places, workflows)."""
        found = np.zeros((len(self.branches), len(self.workflows)), dtype=bool)
        for branch in self.branches:
            found[branch.place, branch.leaves] = True
        return found
