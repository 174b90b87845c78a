"""A conversation: each turn's selection stays close to the previous one."""

from __future__ import annotations

from dataclasses import replace

from mio_rag.candidates import Candidates
from mio_rag.context import TokenCounter
from mio_rag.selection.result import Selection
from mio_rag.selection.selector import Selector

__all__ = ["Conversation"]


class Conversation:
    """Carries the previous selection from turn to turn.

    Parameters
    ----------
    selector : Selector
        Its `side.max_changes` or `side.change_price` says how near each selection must stay to the last;
        the first turn is free, unless `side.previous` names one.

    Examples
    --------
    >>> from mio_rag import Conversation, Selector, SideConstraints
    >>> talk = Conversation(Selector(side=SideConstraints(change_price=0.05)))
    """

    def __init__(self, selector: Selector) -> None:
        self.selector = selector
        self.turns: list[Selection] = []

    def select(
        self, candidates: Candidates, budget_tokens: int, counter: TokenCounter | None = None
    ) -> Selection:
        """Choose for the next turn; see `Selector.select`. A turn without a selection leaves the last one."""
        side = self.selector.side
        free = replace(side, max_changes=None, change_price=0.0) if side.lacking() else side
        selection = replace(self.selector, side=free).select(candidates, budget_tokens, counter)
        self.turns.append(selection)
        if selection.result.x is not None:
            side = replace(side, previous=selection.ids)
            self.selector = replace(self.selector, side=side)
        return selection

    def changes(self) -> int | None:
        """Passages that came in or went between the last two turns; None before the second."""
        if len(self.turns) < 2:
            return None
        before, now = (set(turn.ids) for turn in self.turns[-2:])
        return len(before ^ now)
