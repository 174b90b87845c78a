"""A service under a policy, which may be changed while it serves: no request is lost.

Before a request is answered, the policy's files are looked at. Where they changed, the policy is read anew,
whole and checked, and serves from then on; requests under way end under the one that they began with. A file
that is wrong changes nothing: the old policy stays, and ``/health`` says what is wrong.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mio_rag.allocation.pacer import Pacer
from mio_rag.context import TokenCounter
from mio_rag.control.bandit.pipeline import SearchPipeline
from mio_rag.control.bandit.strategist import Strategist
from mio_rag.control.composed.controller import Composed, compose
from mio_rag.control.composed.policy import Policy
from mio_rag.control.composed.read import PRESETS, read_policy
from mio_rag.control.composed.states import read_states
from mio_rag.control.composed.trace import PolicyTrace
from mio_rag.control.controller import Outcome, Setup, answered
from mio_rag.control.costs import Costs
from mio_rag.control.steps.search import SearchSettings
from mio_rag.errors import InputError, MioRagError
from mio_rag.generation import Generator
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.result import Selection
from mio_rag.selection.selector import Selector
from mio_rag.service.rated import Logs
from mio_rag.service.searching import Searching
from mio_rag.types import Question

__all__ = ["Governed", "check_policy", "told", "told_search"]

_MOST = 1_000_000  # tokens: the policy's own limit holds
_LOG = logging.getLogger("mio_rag.service")

#: Of a file: name, size, time of the last change; None where it is missing.
_Seen = tuple[tuple[str, tuple[int, int] | None], ...]


def check_policy(name: str, workers: int) -> None:
    """Raise `InputError` with everything that is wrong with a policy that is to be served."""
    policy = read_policy(name)
    problems: list[str] = []
    try:
        read_states(policy)
    except InputError as error:
        problems += error.problems
    if workers > 1 and policy.price.total is not None and policy.price.state is None:
        problems.append(
            f"{workers} workers must share the count of the policy's total: give price.state, a file"
        )
    if problems:
        raise InputError(problems)


@dataclass(eq=False)
class _Held:
    """A policy that serves, and how many requests it has under way."""

    composed: Composed
    searching: Searching | None
    seen: _Seen
    users: int = 0
    retired: bool = False


class Governed:
    """Answers requests under a policy.

    Parameters
    ----------
    name : str
        Preset or file.
    counter : TokenCounter
        That counts for searches beside an answer.
    asking : threading.Lock
        Held by who asks the generator.

    Raises
    ------
    InputError
        If the policy cannot be used with this index.
    """

    learns = True  # a policy that does not may give way to one that does

    def __init__(
        self,
        name: str,
        index: CorpusIndex,
        generator: Generator,
        counter: TokenCounter,
        asking: threading.Lock,
    ) -> None:
        self._name, self._index, self._generator = name, index, generator
        self._counter, self._asking, self._logs = counter, asking, Logs()
        self._lock = threading.Lock()
        self._problem: str | None = None
        self._tried: Policy | None = None
        policy, seen = _read(name)
        self._held = self._opened(policy, seen)

    def state(self) -> tuple[str, str, str | None]:
        """The policy that serves now: its name and hash, and why a change was not taken over."""
        with self._lock:
            self._refresh()
            composed = self._held.composed
            return composed.policy.name, composed.sha256, self._problem

    @contextmanager
    def using(self) -> Iterator[_Held]:
        """The policy of the moment, which stays open until the block ends."""
        with self._lock:
            self._refresh()
            held = self._held
            held.users += 1
        try:
            yield held
        finally:
            with self._lock:
                held.users -= 1
                self._close_if_done(held)

    def answer(self, question: Question, base: Selector, seconds: float) -> Outcome:
        """Answer a question within so many seconds.

        Parameters
        ----------
        base : Selector
            Whose time limit a program takes.

        Raises
        ------
        MioRagError
            As `Composed.attempt` fails.
        """
        with self.using() as held:
            composed = held.composed
            timed = replace(
                composed,
                limits=replace(composed.limits, seconds=min(composed.limits.seconds, max(0.01, seconds))),
                equipment=replace(composed.equipment, base=base),
            )
            return answered(timed.attempt(question, self._generator, _MOST))

    @contextmanager
    def searching(self) -> Iterator[tuple[Searching | None, str]]:
        """Who searches as the policy of the moment says, None: the index alone; and whose pools these are.

        A policy's hash says nothing of the log of its bandit, which is asked here.
        """
        with self.using() as held:
            composed = held.composed
            yield held.searching, f"{composed.sha256} {composed.policy.search.state or ''}"

    def rate(self, identity: str, helpful: bool) -> bool:
        """Take in a rating, for the bandit that gave the id; as `Logs.rate`."""
        with self.using():  # what serves now is known
            return self._logs.rate(identity, helpful)

    def stats(self) -> dict[str, Any] | None:
        """What the bandit of the policy has learned, as `Searching.stats`."""
        with self.searching() as (searching, _):
            return None if searching is None else searching.stats()

    def nothing_read(self, question: str, base: Selector) -> Selection:
        """The empty selection, for a workflow that reads nothing."""
        pool = Retriever(self._index, counter=self._generator).retrieve(question)
        return base.replace(max_passages=0).select(pool, 1)

    def close(self) -> None:
        """Close what was opened."""
        with self._lock:
            self._held.retired = True
            self._close_if_done(self._held)

    def _opened(self, policy: Policy, seen: _Seen) -> _Held:
        setup = Setup(retriever=Retriever(self._index, counter=self._generator))
        composed = compose(policy, setup)
        try:
            return _Held(composed, self._searching(composed), seen)
        except BaseException:
            composed.close()
            raise

    def _searching(self, composed: Composed) -> Searching | None:
        """Who searches as a policy says for a request that wants no answer; its log is known from then on."""
        chooser, pacer = composed.equipment.chooser, composed.pacer
        if chooser is None:
            return None
        each = SearchSettings(tokens=max(1, composed.limits.tokens // len(chooser.possible)))
        pipeline = SearchPipeline(chooser, Retriever(self._index), self._generator, Selector(), each)
        if isinstance(chooser, Strategist):
            self._logs.add(chooser.log.path)
        return Searching(pipeline, self._counter, self._asking, pacer if isinstance(pacer, Pacer) else None)

    def _refresh(self) -> None:
        """Take in a policy that has changed; one that is wrong is only told."""
        old = self._held
        if _look(self._name, old.composed.policy, self._tried) == old.seen:
            return
        self._tried, seen = None, _look(self._name, old.composed.policy)
        try:
            policy, fresh = _read(self._name)
            self._tried, seen = policy, seen + fresh[len(_look(self._name)) :]
            total, was = policy.price.total, old.composed.policy.price.total
            if total is not None and was is not None and policy.price.state is None:
                raise InputError("a total without price.state would begin anew: give it a file")
            made = self._opened(policy, fresh)
        except MioRagError as error:
            if self._problem != str(error):
                _LOG.warning("the policy '%s' was not taken over: %s", self._name, error)
            # Tried again once a file changes, also one that the new policy alone names.
            self._problem, old.seen = str(error), seen
            return
        self._held, self._problem, self._tried = made, None, None
        old.retired = True
        self._close_if_done(old)

    @staticmethod
    def _close_if_done(held: _Held) -> None:
        if held.retired and not held.users:
            held.composed.close()


def _read(name: str) -> tuple[Policy, _Seen]:
    """A policy, and how its files looked before anything was read of them: a later change is seen."""
    own = _look(name)
    policy = read_policy(name)
    return policy, own + _look(name, policy)[len(own) :]


def _look(name: str, *policies: Policy | None) -> _Seen:
    """How the files of policies look; of logs and counts that go on changing nothing is looked at."""
    files = [] if name in PRESETS else [name]
    for policy in filter(None, policies):
        amount, again = policy.amount, policy.repetition
        files += filter(None, (policy.order.file, amount.file, amount.tiers, again.calibration))
        if policy.order.workflow.endswith(".json"):
            files.append(policy.order.workflow)

    def state(file: str) -> tuple[int, int] | None:
        try:
            found = Path(file).stat()
        except OSError:
            return None
        return found.st_size, found.st_mtime_ns

    return tuple((file, state(file)) for file in files)


def told_search(trace: PolicyTrace, costs: Costs) -> dict[str, Any]:
    """What a response says of the search; nothing where the policy names no strategies."""
    found = trace.search
    if not found:
        return {}
    calls = [spent.call for spent in costs.spent if "search" in spent.within]
    said = {key: found[key] for key in ("id", "strategies", "why", "notes", "found_by")}
    said["prompt_tokens"] = sum(call.prompt_tokens for call in calls)
    said["completion_tokens"] = sum(call.completion_tokens for call in calls)
    return {"search": said}


def told(trace: PolicyTrace, sha256: str) -> dict[str, Any]:
    """What a response says of a question's way: every step in a sentence, with its tokens and seconds."""
    steps = []
    for step in trace.steps:
        steps.append(
            {
                "step": step.node,
                "why": step.why,
                "tokens": sum(call.prompt_tokens + call.completion_tokens for call in step.calls),
                "seconds": sum(call.seconds for call in step.calls),
                "complete": step.complete,
            }
        )
    return {
        "name": trace.settings["policy"]["name"],
        "sha256": sha256,
        "token_price": trace.token_price,
        "complete": trace.complete,
        "workflow": str(trace.workflow.get("name", "")),
        "steps": steps,
    }
