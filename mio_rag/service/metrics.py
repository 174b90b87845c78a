"""The metrics of GET /metrics, summed over all worker processes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector

from mio_rag.allocation.pacer import Account

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
#: Why a connection is closed: its headers or its body took too long, it left a response unread, it was idle,
#: it made room for another one, it found none itself.
CLOSED = ("headers", "body", "unread", "idle", "crowded", "refused")
_GAPS = (0.0, 0.001, 0.01, 0.05, 0.1, 0.25, 1.0)

#: Where a window of tokens stands: field of `Account` -> what it is.
_PACER = {
    "total": "Tokens of this window.",
    "spent": "Tokens that were spent in this window.",
    "reserved": "Tokens that requests under way may still spend.",
    "left": "Tokens that are left in this window.",
    "lost": "Tokens of requests that never told what they spent; part of the spent ones.",
    "price": "What a token must be worth, in units of relevance.",
    "asked": "Requests of this window that got tokens.",
    "refused": "Requests of this window that were refused for want of tokens.",
}


#: What is shown of a bandit, and of each strategy; names as in its statistics.
_BANDIT = {
    "questions": "Questions that the bandit has learned from.",
    "entropy_bits": "Entropy of the sets chosen lately; 0: always the same.",
    "convergence": "Share of the questions lately on which the most frequent set ran.",
    "regret": "Expected regret so far, in passages that are certainly needed.",
    "changes": "Changes of the questions that were found.",
}
_STRATEGY = {
    "ran": "Questions for which the strategy ran.",
    "selection_rate": "Share of the questions for which it ran.",
    "share_exploring": "Share of these that it ran to be tried.",
    "contribution_rate": "Share of its runs that added anything.",
    "contribution": "What a run added, in passages that are certainly needed.",
    "reward": "Mean reward, ratings included.",
    "tokens": "Tokens of a run.",
    "seconds": "Seconds of a run.",
}


class Metrics:
    """Counters of one worker process, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "mio_rag_requests", "Requests by path and status.", ["path", "status"], registry=self._registry
        )
        self.seconds = Histogram(
            "mio_rag_request_seconds",
            "From arrival to response.",
            ["path"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self.certificates = Counter(
            "mio_rag_certificates", "Selections by status.", ["status"], registry=self._registry
        )
        self.gap = Histogram(
            "mio_rag_gap", "Certified relative gap of selections.", buckets=_GAPS, registry=self._registry
        )
        self.active = Gauge(
            "mio_rag_active_requests",
            "Requests in progress, including waiting ones.",
            multiprocess_mode="livesum",
            registry=self._registry,
        )
        self.connections = Gauge(
            "mio_rag_connections", "Open connections.", multiprocess_mode="livesum", registry=self._registry
        )
        self.closed = Counter(
            "mio_rag_connections_closed",
            "Connections closed or refused by the service, by reason.",
            ["reason"],
            registry=self._registry,
        )
        self.answers = Counter(
            "mio_rag_cached_answers",
            "Questions where answers are kept: the same as before, or new.",
            ["question"],
            registry=self._registry,
        )
        for reason in CLOSED:  # so that each of them shows from the start
            self.closed.labels(reason)

    def observe(self, path: str, status: int, seconds: float) -> None:
        """Count a finished request."""
        self.requests.labels(path, str(status)).inc()
        self.seconds.labels(path).observe(seconds)

    def certified(self, status: str, gap: float | None) -> None:
        """Count a selection."""
        self.certificates.labels(status).inc()
        if gap is not None:
            self.gap.observe(gap)

    def looked_up(self, cached: Mapping[str, Any] | None) -> None:
        """Count a question where answers are kept, by what was found."""
        kind = "new" if cached is None else "same"
        self.answers.labels(kind).inc()

    def text(self, account: Account | None = None, learned: Mapping[str, Any] | None = None) -> bytes:
        """All of it in Prometheus' text format.

        Parameters
        ----------
        account : Account, optional
            Where the tokens of this day or hour stand, for all processes.
        learned : mapping, optional
            What a bandit learned about strategies, for all processes; see `mio_rag.learning.bandit_report`.
        """
        read = CollectorRegistry()
        read.register(_Read(account, learned))
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return generate_latest(self._registry) + generate_latest(read)
        everyone = CollectorRegistry()
        collect: Any = MultiProcessCollector
        collect(everyone)
        return generate_latest(everyone) + generate_latest(read)


class _Read:
    """What is read for all processes at once: a gauge would lie in the files of each, too, and stay there."""

    def __init__(self, account: Account | None, learned: Mapping[str, Any] | None) -> None:
        self._account, self._learned = account, learned

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """As the client's collectors."""
        if self._learned is not None:
            yield from _learned(self._learned)
        for name, what in _PACER.items() if self._account is not None else ():
            yield GaugeMetricFamily(f"mio_rag_pacer_{name}", what, getattr(self._account, name))


def _learned(learned: Mapping[str, Any]) -> Iterator[GaugeMetricFamily]:
    for name, what in _BANDIT.items():
        yield GaugeMetricFamily(f"mio_rag_strategies_{name}", what, learned[name])
    for name, what in _STRATEGY.items():
        gauge = GaugeMetricFamily(f"mio_rag_strategy_{name}", what, labels=["strategy"])
        for strategy, each in learned["strategies"].items():
            if each[name] is not None:
                gauge.add_metric([strategy], each[name])
        yield gauge
    pruned = sum(len(names) for names in learned["probation"].values())
    what = "Strategies on probation, counted once for each type of question."
    yield GaugeMetricFamily("mio_rag_strategies_on_probation", what, pruned)
