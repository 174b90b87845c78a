"""One node on its way: what it took, gave and cost, told at any time, also when it is given up."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from mio_rag.candidates import Candidates
from mio_rag.control.costs import Call, Spent
from mio_rag.control.meter import Reply
from mio_rag.control.planner.shared_limits import BranchMeter
from mio_rag.control.planner.trace import PlanStep
from mio_rag.control.planner.workflow import Node
from mio_rag.control.steps.executors import Facts, Queries, Value
from mio_rag.selection.result import Selection
from mio_rag.types import GenerationError

__all__ = ["Work", "describe", "signals"]

_SHOWN = 160  # characters of what a node gave
_UNKNOWN = re.compile(r"unknown|not (?:mention|provid|state|specif|found|enough)|cannot|no information", re.I)


@dataclass(eq=False)
class Work:
    """A node that runs, or ran.

    Parameters
    ----------
    path : str
        Of the node, from the outermost workflow.
    inner : list of Work
        Nodes of workflows that it runs.
    notes : list of str
        What the executor says of its work.
    release : callable or None
        Gives back the place that it takes among those that run side by side.
    """

    node: Node
    path: str
    meter: BranchMeter | None = None
    value: Value | None = None
    dropped: str | None = None
    broken: bool = False
    ended: bool = False
    begun: float | None = None
    finished: float | None = None
    inner: list[Work] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    release: Callable[[], None] | None = None
    _frozen: tuple[list[PlanStep], list[Spent]] | None = None
    _own: list[Spent] | None = None
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def end(self, value: Value | None, dropped: str | None = None, error: Exception | None = None) -> None:
        """It came to a value, or to nothing and why; of what was given up already neither counts."""
        with self._lock:
            if not self.ended:
                self.value, self.dropped, self.ended = value, dropped, True
                self.broken = isinstance(error, GenerationError)
                self.finished = time.perf_counter()
            release, self.release = self.release, None
        if release is not None:
            release()

    def give_up(self, why: str) -> None:
        """It takes too long: nothing of it is used, and the call that it waits for is charged in full."""
        with self._lock:
            if self.ended:
                return
            self.dropped = why
            for work in list(self.inner):
                work.give_up(why)
            self.finished = time.perf_counter()
            self._own = self._own_spent()  # once: a call on its way takes longer each time that it is asked
            self._frozen = (self.steps(), self.spent())
            self.end(None, why)

    def steps(self) -> list[PlanStep]:
        """It, then everything inside it."""
        if self._frozen is not None:
            return self._frozen[0]
        value = self.value
        ids = value.ids if isinstance(value, Selection) else ()
        queries = value.texts if isinstance(value, Queries) else (value,) if isinstance(value, str) else ()
        own = PlanStep(
            step=0,
            action=self.node.do,
            query=" | ".join(queries),
            note="; ".join(self.notes),
            new_ids=ids,
            selected_ids=ids,
            calls=tuple(spent.call for spent in self._own_spent()),
            node=self.path,
            model=self.node.model,
            gave="" if value is None else describe(value)[:_SHOWN],
            signals={} if value is None else signals(value),
            dropped=self.dropped,
            broken=self.broken,
        )
        return [own, *(step for work in list(self.inner) if work.begun is not None for step in work.steps())]

    def spent(self) -> list[Spent]:
        """What it took, and everything inside it, by where it was spent."""
        if self._frozen is not None:
            return self._frozen[1]
        return [*self._own_spent(), *(one for work in list(self.inner) for one in work.spent())]

    def _own_spent(self) -> list[Spent]:
        if self._own is not None:
            return self._own
        if self.meter is None:
            return []
        pending = () if self.ended else self.meter.given_up()
        all_ = [*self.meter.costs.spent, *pending]
        if not all_ and self.begun is not None and self.finished is not None and self.dropped is not None:
            all_ = [Spent(Call(self.node.do, self.finished - self.begun))]
        path = tuple(self.path.split("/"))
        return [replace(one, within=(*path, *one.within)) for one in all_]


def describe(value: Value) -> str:
    """A value in a line, for people."""
    if isinstance(value, str):
        return value
    if isinstance(value, Queries):
        return " | ".join(value.texts)
    if isinstance(value, Candidates):
        return f"{len(value)} passages found"
    if isinstance(value, Selection):
        return f"{len(value.chosen)} passages, {value.tokens_used} tokens"
    if isinstance(value, Facts):
        return " | ".join(f"{fact.question} {fact.answer}" for fact in value.found)
    return value.answer.text


def signals(value: Value) -> dict[str, float]:
    """What can be seen of a value without another model: finite numbers by name."""
    if isinstance(value, str):
        return {"words": float(len(value.split()))}
    if isinstance(value, Queries):
        return {"parts": float(len(value.texts))}
    if isinstance(value, Candidates):
        best = sorted(map(float, value.relevance), reverse=True)
        return {
            "top": best[0],
            "gap": best[0] - best[min(1, len(best) - 1)],
            "fall": best[0] - best[min(9, len(best) - 1)],
            "found": float(len(best)),
        }
    if isinstance(value, Selection):
        worth = [float(value.candidates.relevance[i]) for i in value.chosen]
        return {
            "read": float(len(worth)),
            "tokens": float(value.tokens_used),
            "best": max(worth, default=0.0),
            "expected": sum(worth),
        }
    if isinstance(value, Facts):
        unknown = [bool(_UNKNOWN.search(fact.answer)) for fact in value.found]
        return {"facts": float(len(unknown)), "unknown": sum(unknown) / len(unknown)}
    return _reply_signals(value)


def _reply_signals(reply: Reply) -> dict[str, float]:
    logs = reply.answer.logprobs
    text = reply.answer.text
    said = {"words": float(len(text.split())), "unknown": float(bool(_UNKNOWN.search(text)))}
    if reply.probability is not None:
        said["probability"] = float(reply.probability)
    if logs:
        said |= {"logprob": sum(logs) / len(logs), "lowest": min(logs), "first": logs[0]}
    return said
