"""The metrics of GET /metrics, summed over all worker processes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector

from mio_rag.errors import StateError
from mio_rag.service.keys import Key, Keys

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
#: Why a connection is closed: its headers or its body took too long, it left a response unread, it was idle,
#: it was replaced by another one, it was not accepted.
CLOSED = ("headers", "body", "unread", "idle", "crowded", "refused")
_GAPS = (0.0, 0.001, 0.01, 0.05, 0.1, 0.25, 1.0)

#: Statistics of a bandit, and of each of its strategies.
_BANDIT = {
    "questions": "Questions that the bandit has learned from.",
    "entropy_bits": "Entropy of the sets chosen recently; 0: always the same.",
    "convergence": "Share of the recent questions on which the most frequent set ran.",
    "regret": "Expected regret so far, in passages that are certainly needed.",
    "changes": "Changes of the questions that were detected.",
}
_POLICY = {
    "questions": "Questions that the policy answered, of those shared between two.",
    "rated": "Answers of these that were rated.",
    "helpful": "Answers of these that were rated as helpful.",
}
_DIFFERENCE = {
    "difference": "Share of helpful answers of the other policy less that of the usual one.",
    "low": "Lower end of its 95 % interval.",
    "high": "Upper end of its 95 % interval.",
    "p_value": "Of Fisher's exact test that there is none.",
}
_STRATEGY = {
    "ran": "Questions for which the strategy ran.",
    "selection_rate": "Share of the questions for which it ran.",
    "share_exploring": "Share of these on which it ran to be tried.",
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
        counter = partial(Counter, registry=self._registry)
        histogram = partial(Histogram, registry=self._registry)
        gauge = partial(Gauge, registry=self._registry, multiprocess_mode="livesum")
        self.requests = counter("mio_rag_requests", "Requests by path and status.", ["path", "status"])
        arrival = "From arrival to response."
        self.seconds = histogram("mio_rag_request_seconds", arrival, ["path"], buckets=_SECONDS)
        self.certificates = counter("mio_rag_certificates", "Selections by status.", ["status"])
        self.gap = histogram("mio_rag_gap", "Certified relative gap of selections.", buckets=_GAPS)
        self.active = gauge("mio_rag_active_requests", "Requests in progress, including waiting ones.")
        self.connections = gauge("mio_rag_connections", "Open connections.")
        closed = "Connections closed or refused by the service, by reason."
        self.closed = counter("mio_rag_connections_closed", closed, ["reason"])
        cached = "Questions where answers are stored: the same as before, or new."
        self.answers = counter("mio_rag_cached_answers", cached, ["question"])
        for reason in CLOSED:  # so that each of them is shown from the start
            self.closed.labels(reason)

    def observe(self, path: str, status: int, seconds: float) -> None:
        """Count a finished request."""
        self.requests.labels(path, str(status)).inc()
        self.seconds.labels(path).observe(seconds)

    def counted(self, data: Mapping[str, Any]) -> None:
        """Count a response of /select or /ask: its certificate, and whether its answer was stored."""
        if "cached" in data:
            self.answers.labels("new" if data["cached"] is None else "same").inc()
        status = data.get("status", "none")
        if data.get("cached") is None and status != "none":  # a stored one was counted before
            self.certificates.labels(status).inc()
            if data["gap"] is not None:
                self.gap.observe(data["gap"])

    def text(
        self,
        keys: Keys | None = None,
        learned: Mapping[str, Any] | None = None,
        split: Mapping[str, Any] | None = None,
        only: Key | None = None,
    ) -> bytes:
        """Return all metrics in Prometheus' text format.

        keys: their budgets, for all processes; of `only` one, where it is given.
        learned: what a bandit learned, for all processes; see `mio_rag.learning.bandit_report`.
        split: `Ratings.stats` of two policies.
        """
        read = CollectorRegistry()
        read.register(_Read(keys, learned, split, only))
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return generate_latest(self._registry) + generate_latest(read)
        everyone = CollectorRegistry()
        collect: Any = MultiProcessCollector
        collect(everyone)
        return generate_latest(everyone) + generate_latest(read)


class _Read:
    """Read for all processes at once: a gauge would also stay in the files of each process."""

    def __init__(
        self,
        keys: Keys | None,
        learned: Mapping[str, Any] | None,
        split: Mapping[str, Any] | None,
        only: Key | None,
    ) -> None:
        self._keys, self._learned, self._split, self._only = keys, learned, split, only

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """As the client's collectors."""
        if self._learned is not None:
            yield from _learned(self._learned)
        if self._split is not None:
            yield from _split(self._split)
        if self._keys is not None and self._keys.accounts is not None:
            labels = ["key", "unit", "window"]
            spent = GaugeMetricFamily("mio_rag_key_spent", "Spent or reserved in this window.", labels=labels)
            limit = GaugeMetricFamily("mio_rag_key_limit", "Limit of this window.", labels=labels)
            for name, key in self._keys:
                if self._only not in (None, key):
                    continue
                with suppress(StateError):
                    for which, (used, most) in self._keys.accounts.spent(key).items():
                        spent.add_metric([name, *which], used)
                        limit.add_metric([name, *which], most)
            yield spent
            yield limit


def _split(split: Mapping[str, Any]) -> Iterator[GaugeMetricFamily]:
    for name, about in _POLICY.items():
        gauge = GaugeMetricFamily(f"mio_rag_split_{name}", about, labels=["policy"])
        for policy, counts in split["policies"].items():
            gauge.add_metric([policy], counts[name])
        yield gauge
    for name, about in _DIFFERENCE.items():
        if name in split:
            yield GaugeMetricFamily(f"mio_rag_split_{name}", about, split[name])


def _learned(learned: Mapping[str, Any]) -> Iterator[GaugeMetricFamily]:
    for name, about in _BANDIT.items():
        yield GaugeMetricFamily(f"mio_rag_strategies_{name}", about, learned[name])
    for name, about in _STRATEGY.items():
        gauge = GaugeMetricFamily(f"mio_rag_strategy_{name}", about, labels=["strategy"])
        for strategy, each in learned["strategies"].items():
            if each[name] is not None:
                gauge.add_metric([strategy], each[name])
        yield gauge
    pruned = sum(len(names) for names in learned["probation"].values())
    about = "Strategies on probation, counted once for each type of question."
    yield GaugeMetricFamily("mio_rag_strategies_on_probation", about, pruned)
