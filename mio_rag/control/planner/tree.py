"""Workflows as a tree of decisions: those that begin with the same nodes part where they differ.

*Plan once* decides at the root for a whole workflow. *Plan again after every executor* goes down node by
node, and sees at each what the executors before it gave. Where one node alone can follow there is nothing to
decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mio_rag.deciders.workflow import Workflow
from mio_rag.errors import InputError

__all__ = ["MODES", "Branch", "Tree"]

MODES = ("once", "again")


@dataclass
class Branch:
    """A place in the tree.

    Parameters
    ----------
    place : int
        Its number; the root is 0.
    parent : int
    node : (int, int) or None
        Workflow and position of the node that leads here; None: the root, or the end of a workflow.
    leaves : list of int
        Workflows that can still be reached.
    children : list of int
    ends : int or None
        The workflow that has ended here.
    """

    place: int
    parent: int
    node: tuple[int, int] | None
    leaves: list[int] = field(default_factory=list)
    children: list[int] = field(default_factory=list)
    ends: int | None = None


class Tree:
    """The decisions between workflows.

    Parameters
    ----------
    workflows : sequence of Workflow
        All different.
    mode : {"once", "again"}

    Raises
    ------
    InputError
        For another mode, no workflows, or two that are the same.
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

    def towards(self, place: int, leaf: int) -> int:
        """The child of a place on the way to a workflow."""
        return next(c for c in self.branches[place].children if leaf in self.branches[c].leaves)

    def mask(self) -> NDArray[np.bool_]:
        """Which workflows can still be reached from each place, shape (places, workflows)."""
        found = np.zeros((len(self.branches), len(self.workflows)), dtype=bool)
        for branch in self.branches:
            found[branch.place, branch.leaves] = True
        return found
