"""The policy of a service, which may be changed while it serves: no request is lost.

Before a request is answered, the policy's files are looked at. When they have changed, the policy is read
again, whole and checked, and is in force from then on; requests in progress end under the one that they began
with. A file that is wrong changes nothing: the old policy stays, and ``/health`` reports the problem.
"""

from __future__ import annotations

import logging
import math
import random
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mio_rag.deciders.steps import Search
from mio_rag.defaults import DEFAULTS
from mio_rag.errors import InputError, MioRagError, StateError
from mio_rag.learning.bandit_log import EventLog
from mio_rag.learning.strategist import Strategist, rate
from mio_rag.policies.compose import compose
from mio_rag.policies.setup import Setup
from mio_rag.policy import PRESETS, Policy
from mio_rag.policy.files import resolve
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.retriever import Retriever
from mio_rag.service.settings import Split
from mio_rag.session.loop import Session
from mio_rag.session.trace import Outcome

_LOG = logging.getLogger("mio_rag.service")

#: Name of a file -> size and time of the last change; None if it is missing.
_Seen = dict[str, tuple[int, int] | None]


def policy_problems(name: str, workers: int) -> list[str]:
    """Return everything that is wrong with a policy that is to be served."""
    problems: list[str] = []
    try:
        policy = Policy.load(name)
        if workers > 1 and policy.price.total is not None and policy.price.state is None:
            problems.append(
                f"{workers} workers must share the count of the policy's total: give price.state, a file"
            )
        resolve(policy)
    except InputError as error:
        problems = [*error.problems, *problems]
    return problems


@dataclass(eq=False)
class Serving:
    """A policy in force, and how many requests use it; under the default, requests decide."""

    session: Session
    policy: Policy
    seen: _Seen
    is_default: bool = False
    users: int = 0
    retired: bool = False

    @property
    def sha256(self) -> str:
        """Of the policy with everything that its files hold."""
        return str(self.session.settings["sha256"])

    @property
    def identity(self) -> str:
        """What a search depends on; the hash does not depend on the log of the bandit."""
        return f"{self.sha256} {self.policy.search.state or ''}"

    @property
    def chooser(self) -> Any:
        """What chooses strategies; None: it searches by the question alone."""
        return next((one.chooser for one in self.session.deciders if isinstance(one, Search)), None)


class Governed:
    """A policy, read again when its files change.

    name: preset or file.

    Raises `InputError` if the policy cannot be used with this index.
    """

    def __init__(self, name: str, index: CorpusIndex) -> None:
        self._name, self._index = name, index
        self._logs: dict[Path, None] = {}  # of all bandits since the service began, the last one last
        self._lock = threading.Lock()
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
    def using(self) -> Iterator[Serving]:
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

    def rate(self, identity: str, helpful: bool) -> bool:
        """Record a rating in the log of the bandit that gave the id; False if the question was rated before.

        If logs are copies of each other, it goes to the one that was added last.

        Raises `InputError` if no log has the question; `StateError` if its log, or the one that may be its
        log, cannot be read or written.
        """
        with self.using():  # so that the log of the policy in force is known
            known, unread = list(self._logs)[::-1], None
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

    def close(self) -> None:
        """Close what was opened."""
        with self._lock:
            self._serving.retired = True
            self._close_if_done(self._serving)

    def _opened(self, policy: Policy, seen: _Seen) -> Serving:
        session = compose(policy, Setup(retriever=Retriever(self._index)))
        try:
            serving = Serving(session, policy, seen, self._name == DEFAULTS.policy)
            if isinstance(serving.chooser, Strategist):
                log = serving.chooser.log.path.absolute()
                self._logs.pop(log, None)
                self._logs[log] = None
        except BaseException:
            session.close()
            raise
        return serving

    def _refresh(self) -> None:
        """Put a changed policy in force; report one that cannot be used."""
        old = self._serving
        if _look(self._name, old.policy, self._tried) == old.seen:
            return
        self._tried, seen = None, _look(self._name, old.policy)
        try:
            policy, fresh = _read(self._name)
            self._tried, seen = policy, seen | fresh
            total, before = policy.price.total, old.policy.price.total
            if total is not None and before is not None and policy.price.state is None:
                raise InputError("a total without price.state would begin anew: give it a file")
            made = self._opened(policy, fresh)
        except Exception as error:  # whatever is wrong with it, requests go on under the old one
            is_known = isinstance(error, MioRagError)
            problem = str(error) if is_known else f"{type(error).__name__}: {error}"
            if self._problem != problem:
                _LOG.warning(
                    "the policy '%s' is not in force: %s", self._name, problem, exc_info=not is_known
                )
            # Tried again once a file changes, including one that only the new policy names.
            self._problem, old.seen = problem, seen
            return
        self._serving, self._problem, self._tried = made, None, None
        old.retired = True
        self._close_if_done(old)

    @staticmethod
    def _close_if_done(serving: Serving) -> None:
        if serving.retired and not serving.users:
            serving.session.close()


def _read(name: str) -> tuple[Policy, _Seen]:
    """Return a policy, and its files as they were before anything was read: a later change is noticed."""
    own = _look(name)
    policy = Policy.load(name)
    return policy, _look(name, policy) | own


def _look(name: str, *policies: Policy | None) -> _Seen:
    """Return size and time of the files of policies, except of logs and counts, which keep changing."""
    files = [] if name in PRESETS else [name]
    for policy in filter(None, policies):
        files += [file for (_, key), file in policy.files.items() if key not in ("state", "cache")]

    def state(file: str) -> tuple[int, int] | None:
        try:
            found = Path(file).expanduser().stat()
        except OSError:
            return None
        return found.st_size, found.st_mtime_ns

    return {file: state(file) for file in files}


def search_report(outcome: Outcome) -> dict[str, Any]:
    """Return what a response reports of a search by strategies; nothing without them."""
    found = next((one for one in outcome.results.values() if "searched" in one.facts), None)
    if found is None:
        return {}
    searched, chosen = found.facts["searched"], found.action.about["search"]
    names = searched.found if outcome.reply is None or outcome.selection is None else outcome.selection.ids
    report = {
        **{name: chosen[name] for name in ("id", "strategies", "why")},
        "prompt_tokens": sum(one.amount.prompt_tokens for one in searched.tried),
        "completion_tokens": sum(one.amount.completion_tokens for one in searched.tried),
        "notes": list(searched.notes),
        "found_by": {name: dict(searched.found.get(name, {})) for name in names},
    }
    return {"search": report}


def policy_report(outcome: Outcome) -> dict[str, Any]:
    """Return what a response reports of a policy: its search, and each step with tokens and seconds."""
    trace = outcome.trace
    steps = [
        {"step": one.id, "why": one.why, "tokens": one.tokens, "complete": one.complete,
         "seconds": sum(call.seconds for call in one.calls)}
        for one in trace.steps
    ]  # fmt: skip
    policy = {
        "name": trace.settings["policy"]["name"],
        "sha256": str(trace.settings["sha256"]),
        "token_price": trace.token_price,
        "complete": trace.complete,
        "workflow": str(trace.workflow.get("name", "")),
        "steps": steps,
    }
    return {**search_report(outcome), "policy": policy}


_TABLE = (
    "CREATE TABLE IF NOT EXISTS answers (id TEXT PRIMARY KEY, policy TEXT NOT NULL, at REAL DEFAULT "
    "(julianday()), helpful INTEGER)"
)


class Ratings:
    """Who answered which question, and how that was rated. Thread-safe.

    usual: the policy of the service.

    Raises `InputError` if the file is something else.
    """

    def __init__(self, split: Split, usual: str) -> None:
        self.split, self.policies = split, (usual, split.policy)
        if split.policy == usual:
            raise InputError(
                f"--against {split.policy}: the service has this policy already; name another one"
            )
        try:
            with self._open() as file:
                file.execute(_TABLE)
        except StateError as error:
            raise InputError(str(error)) from error

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(Path(self.split.ratings), timeout=30)) as connection, connection:
                yield connection
        except sqlite3.Error as error:
            raise StateError(f"'{self.split.ratings}' cannot be used for ratings: {error}") from error

    def draw(self) -> str:
        """Return the policy that answers the next question."""
        return self.policies[random.random() < self.split.share]

    def answered(self, policy: str) -> dict[str, Any]:
        """Record an answer; return what its response tells of it."""
        identity = uuid.uuid4().hex
        with self._open() as file:
            file.execute("INSERT INTO answers (id, policy) VALUES (?, ?)", (identity, policy))
        share = self.split.share if policy == self.split.policy else 1 - self.split.share
        return {"id": identity, "policy": policy, "share": share}

    def rate(self, identity: str, helpful: bool) -> bool | None:
        """Record a rating; False if the answer was rated before, None if it is not known here."""
        with self._open() as file:
            done = file.execute(
                "UPDATE answers SET helpful = ? WHERE id = ? AND helpful IS NULL", (int(helpful), identity)
            )
            if done.rowcount:
                return True
            return (
                False if file.execute("SELECT 1 FROM answers WHERE id = ?", (identity,)).fetchone() else None
            )

    def stats(self) -> dict[str, Any]:
        """Return what was asked, rated and helpful by policy, and how the other differs from the usual."""
        with self._open() as file:
            told = file.execute(
                "SELECT policy, COUNT(*), COUNT(helpful), SUM(helpful) FROM answers GROUP BY policy"
            )
            counts = {policy: (asked, rated, helpful or 0) for policy, asked, rated, helpful in told}
        each = {policy: counts.get(policy, (0, 0, 0)) for policy in self.policies}
        names = ("questions", "rated", "helpful")
        policies = {policy: dict(zip(names, count, strict=True)) for policy, count in each.items()}
        return {"policies": policies, **compared(*(count[1:] for count in each.values()))}


def compared(usual: tuple[int, int], other: tuple[int, int]) -> dict[str, float]:
    """Return the difference of two shares with its 95 % interval and p-value.

    usual, other: how many were rated, and how many of these helpful. Nothing without ratings of both.

    The interval is Newcombe's (Statistics in Medicine 17, 1998, method 10), the test Fisher's.
    """
    if not usual[0] or not other[0]:
        return {}
    import numpy as np
    from scipy.stats import binomtest, fisher_exact

    share = [helpful / rated for rated, helpful in (usual, other)]
    ends = [binomtest(helpful, rated).proportion_ci(0.95, "wilson") for rated, helpful in (usual, other)]
    difference = share[1] - share[0]
    table = [[helpful, rated - helpful] for rated, helpful in (usual, other)]
    return {
        "difference": difference,
        "low": max(-1.0, difference - math.hypot(share[1] - ends[1].low, ends[0].high - share[0])),
        "high": min(1.0, difference + math.hypot(ends[1].high - share[1], share[0] - ends[0].low)),
        "p_value": float(fisher_exact(np.array(table)).pvalue),
    }
