"""A service under a policy, which may be changed while it serves: no request is lost.

Before a request is answered, the policy's files are looked at. When they have changed, the policy is read
again, whole and checked, and is in force from then on; requests in progress end under the one that they began
with. A file that is wrong changes nothing: the old policy stays, and ``/health`` reports the problem.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from mio_rag.allocation.pacer import Pacer
from mio_rag.deciders.search import Search
from mio_rag.errors import InputError, MioRagError, StateError
from mio_rag.generation import Generator
from mio_rag.learning.bandit_log import EventLog
from mio_rag.learning.strategist import SearchPipeline, Strategist, rate
from mio_rag.policies.compose import compose, with_limits
from mio_rag.policies.setup import Setup
from mio_rag.policy import PRESETS, Policy, read_policy
from mio_rag.policy_files import resolve
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.selector import Selector
from mio_rag.service.requests import Asked
from mio_rag.service.searching import Searching
from mio_rag.session.costs import Costs
from mio_rag.session.loop import Session
from mio_rag.session.search import SearchSettings
from mio_rag.session.trace import Outcome, Trace
from mio_rag.storage import write_atomically
from mio_rag.types import Question

_MOST = 1_000_000  # tokens: the policy's own limit applies
_LEAST_SECONDS = 0.01
_LOG = logging.getLogger("mio_rag.service")
_SHARED = "PROMETHEUS_MULTIPROC_DIR"  # a folder of all workers, as long as the service runs
_NOTE = "strategy-log-"

#: Of a file: name, size, time of the last change; None if it is missing.
_Seen = tuple[tuple[str, tuple[int, int] | None], ...]


def policy_problems(name: str, workers: int) -> list[str]:
    """Return everything that is wrong with a policy that is to be served."""
    problems: list[str] = []
    try:
        policy = read_policy(name)
        if workers > 1 and policy.price.total is not None and policy.price.state is None:
            problems.append(
                f"{workers} workers must share the count of the policy's total: give price.state, a file"
            )
        resolve(policy)
    except InputError as error:
        problems = [*error.problems, *problems]
    return problems


@dataclass(eq=False)
class _Serving:
    """A policy in force, and how many requests use it."""

    session: Session
    policy: Policy
    searching: Searching | None
    seen: _Seen
    users: int = 0
    retired: bool = False
    turn: Any = field(default_factory=nullcontext)

    @property
    def sha256(self) -> str:
        """Of the policy with everything that its files hold."""
        return str(self.session.settings["sha256"])


class Governed:
    """Answers requests under a policy.

    name: preset or file.

    Raises `InputError` if the policy cannot be used with this index.
    """

    learns = True  # a policy that does not may be replaced by one that does

    def __init__(self, name: str, index: CorpusIndex, generator: Generator) -> None:
        self._name, self._index, self._generator = name, index, generator
        self._logs, self._lock = Logs(), threading.Lock()
        self._problem: str | None = None
        self._tried: Policy | None = None
        policy, seen = _read(name)
        self._serving = self._opened(policy, seen)

    def state(self) -> dict[str, Any]:
        """Return name and hash of the policy in force, and why a change of its files is not."""
        with self._lock:
            self._refresh()
            serving = self._serving
            return {"name": serving.policy.name, "sha256": serving.sha256, "problem": self._problem}

    @contextmanager
    def _using(self) -> Iterator[_Serving]:
        """Context with the policy in force, which stays open until the block ends."""
        with self._lock:
            self._refresh()
            serving = self._serving
            serving.users += 1
        try:
            yield serving
        finally:
            with self._lock:
                serving.users -= 1
                self._close_if_done(serving)

    def answer(self, question: Question, asked: Asked) -> tuple[Outcome, dict[str, Any]]:
        """Answer a question before the deadline; also return what the response reports of the policy.

        Raises `MioRagError` as `Session.attempt` fails.
        """
        with self._using() as serving, serving.turn:
            left = max(_LEAST_SECONDS, asked.seconds_left())
            timed = with_limits(serving.session, left, asked.timed(), serving.policy)
            outcome = timed.attempt(question, self._generator, _MOST).check()
        trace = outcome.trace
        report = {**_search_report(trace, outcome.costs), "policy": _report(trace)}
        return outcome, report

    @contextmanager
    def searching(self) -> Iterator[tuple[Searching | None, str]]:
        """Context with what searches under the policy in force (None: the index alone), and a key for pools.

        A policy's hash does not depend on the log of its bandit, which is used here.
        """
        with self._using() as serving:
            yield serving.searching, f"{serving.sha256} {serving.policy.search.state or ''}"

    def rate(self, identity: str, helpful: bool) -> bool:
        """Record a rating, for the bandit that gave the id; as `Logs.rate`."""
        with self._using():  # so that the log of the policy in force is known
            return self._logs.rate(identity, helpful)

    def stats(self) -> dict[str, Any] | None:
        """Return what the bandit of the policy has learned, as `Searching.stats`."""
        with self.searching() as (searching, _):
            return None if searching is None else searching.stats()

    def close(self) -> None:
        """Close what was opened."""
        with self._lock:
            self._serving.retired = True
            self._close_if_done(self._serving)

    def _opened(self, policy: Policy, seen: _Seen) -> _Serving:
        session = compose(policy, Setup(retriever=Retriever(self._index, counter=self._generator)))
        try:
            serving = _Serving(session, policy, self._searching(session), seen)
        except BaseException:
            session.close()
            raise
        if session.account is not None and session.learner is not None:
            serving.turn = threading.Lock()  # the bandit keeps the price of the question that it decides
        return serving

    def _searching(self, session: Session) -> Searching | None:
        """Return what searches for requests that need no answer; its log is known from then on."""
        chooser = next((one.chooser for one in session.deciders if isinstance(one, Search)), None)
        pacer = session.account
        if chooser is None:
            return None
        each = SearchSettings(tokens=max(1, session.limits.tokens // len(chooser.possible)))
        pipeline = SearchPipeline(chooser, Retriever(self._index), self._generator, Selector(), each)
        if isinstance(chooser, Strategist):
            self._logs.add(chooser.log.path)
        return Searching(pipeline, pacer if isinstance(pacer, Pacer) else None)

    def _refresh(self) -> None:
        """Put a changed policy in force; report one that cannot be used."""
        old = self._serving
        if _look(self._name, old.policy, self._tried) == old.seen:
            return
        self._tried, seen = None, _look(self._name, old.policy)
        try:
            policy, fresh = _read(self._name)
            self._tried, seen = policy, seen + fresh[len(_look(self._name)) :]
            total, before = policy.price.total, old.policy.price.total
            if total is not None and before is not None and policy.price.state is None:
                raise InputError("a total without price.state would begin anew: give it a file")
            made = self._opened(policy, fresh)
        except Exception as error:  # whatever is wrong with it, requests go on under the old one
            problem = str(error) if isinstance(error, MioRagError) else f"{type(error).__name__}: {error}"
            if self._problem != problem:
                unknown = None if isinstance(error, MioRagError) else error
                _LOG.warning("the policy '%s' is not in force: %s", self._name, problem, exc_info=unknown)
            # Tried again once a file changes, including one that only the new policy names.
            self._problem, old.seen = problem, seen
            return
        self._serving, self._problem, self._tried = made, None, None
        old.retired = True
        self._close_if_done(old)

    @staticmethod
    def _close_if_done(serving: _Serving) -> None:
        if serving.retired and not serving.users:
            serving.session.close()


def _read(name: str) -> tuple[Policy, _Seen]:
    """Return a policy, and its files as they were before anything was read: a later change is noticed."""
    own = _look(name)
    policy = read_policy(name)
    return policy, own + _look(name, policy)[len(own) :]


def _look(name: str, *policies: Policy | None) -> _Seen:
    """Return size and time of the files of policies, except of logs and counts, which keep changing."""
    files = [] if name in PRESETS else [name]
    for policy in filter(None, policies):
        depth, again = policy.depth, policy.repeat
        files += filter(None, (policy.order.file, depth.file, depth.tiers, again.calibration))
        if policy.order.by == "workflow" and policy.order.workflow.endswith(".json"):
            files.append(policy.order.workflow)

    def state(file: str) -> tuple[int, int] | None:
        try:
            found = Path(file).expanduser().stat()
        except OSError:
            return None
        return found.st_size, found.st_mtime_ns

    return tuple((file, state(file)) for file in files)


def _search_report(trace: Trace, costs: Costs) -> dict[str, Any]:
    """Return what a response reports of the search; nothing if the policy names no strategies."""
    found = trace.search
    if not found:
        return {}
    calls = [spent.call for spent in costs.spent if "search" in spent.within]
    report = {key: found[key] for key in ("id", "strategies", "why", "notes", "found_by")}
    report["prompt_tokens"] = sum(call.prompt_tokens for call in calls)
    report["completion_tokens"] = sum(call.completion_tokens for call in calls)
    return {"search": report}


def _report(trace: Trace) -> dict[str, Any]:
    """Return what a response reports of the steps: each in a sentence, with its tokens and seconds."""
    steps = [
        {
            "step": step.id,
            "why": step.why,
            "tokens": sum(call.prompt_tokens + call.completion_tokens for call in step.calls),
            "seconds": sum(call.seconds for call in step.calls),
            "complete": step.complete,
        }
        for step in trace.steps
    ]
    return {
        "name": trace.settings["policy"]["name"],
        "sha256": str(trace.settings["sha256"]),
        "token_price": trace.token_price,
        "complete": trace.complete,
        "workflow": str(trace.workflow.get("name", "")),
        "steps": steps,
    }


class Logs:
    """The logs of all bandits since the service began; a rating goes to the one that gave its id.

    Several workers share the list through a folder.
    """

    def __init__(self) -> None:
        self._paths: list[Path] = []
        shared = os.environ.get(_SHARED)
        self._shared = None if shared is None else Path(shared)

    def add(self, path: Path) -> None:
        """Add a log that is searched with from now on."""
        here = path.absolute()
        self._paths = [here, *(other for other in self._paths if other != here)]
        if self._shared is not None:
            name = sha256(os.fsencode(here)).hexdigest()[:32]
            write_atomically(self._shared / f"{_NOTE}{name}.txt", str(here))

    def rate(self, identity: str, helpful: bool) -> bool:
        """Record a rating; False if the question was rated before.

        If logs are copies of each other, it goes to the one that was added last.

        Raises `InputError` if no log has the question; `StateError` if its log, or the one that may be its
        log, cannot be read or written.
        """
        known, unread = self._known(), None
        for path in known:
            try:
                log = EventLog(path)  # does not create a log that is gone
            except InputError as error:
                # Unlike a file of something else it may have the question.
                if isinstance(error.__cause__, (sqlite3.OperationalError, OSError)):
                    unread = StateError(str(error))
                continue
            try:
                with log.reading() as events:
                    is_here = events.find("question", identity) is not None
                if is_here:
                    return rate(log, identity, 1 if helpful else -1, time.time())
            finally:
                log.close()
        if unread is not None:
            raise unread
        if not known:
            raise InputError("this service learns nothing from ratings: the policy searches by no bandit")
        raise InputError(
            f"question '{identity}' is not in the log of any policy of this service: give search.id of a "
            "response; of a question for which nothing could be learned there is nothing to rate"
        )

    def _known(self) -> list[Path]:
        """Return the logs of this worker, the last first, then those of others."""
        notes = [] if self._shared is None else sorted(self._shared.glob(f"{_NOTE}*.txt"))
        others = [Path(note.read_text(encoding="utf-8")) for note in notes]
        return list(dict.fromkeys([*self._paths, *others]))
