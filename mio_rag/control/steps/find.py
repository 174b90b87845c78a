"""Search, and choose what is read of all that was found."""

from __future__ import annotations

from dataclasses import dataclass

from mio_rag.control.memory import Memory
from mio_rag.control.meter import Meter
from mio_rag.control.steps.pools import merge_pools
from mio_rag.errors import InfeasibleError
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.selector import Selector

__all__ = ["SelectingFinder"]


@dataclass(frozen=True, eq=False)
class SelectingFinder:
    """Retrieve for the query, then choose by the program from all that was found.

    A passage counts with its best relevance over all queries. Of the united pool the best stay, as many as
    one query brings, and whatever is read already.
    """

    retriever: Retriever
    selector: Selector

    def find(self, memory: Memory, query: str, meter: Meter) -> tuple[str, ...]:
        """Take pool and selection of the memory forward; the ids that are read now and were not before."""
        before = set() if memory.selection is None else set(memory.selection.ids)
        with meter.timed("retrieve", retrieval_calls=1):
            found = self.retriever.retrieve(query)
        with meter.timed("select"):
            pool = found
            if memory.pool is not None:  # as many as one query brings, links included
                pool = merge_pools(memory.pool, found, max(len(memory.pool), len(found)), before)
            selection = self.selector.select(pool, memory.budget_tokens, self.retriever.counter)
        if selection.result.x is None:
            raise InfeasibleError(selection.explain())
        memory.pool, memory.selection = pool, selection
        return tuple(i for i in selection.ids if i not in before)
