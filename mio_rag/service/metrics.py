"""The metrics of GET /metrics, summed over all worker processes."""

from __future__ import annotations

import os
from typing import Any

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector

__all__ = ["CLOSED", "CONTENT_TYPE_LATEST", "Metrics"]

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
#: Why a connection is closed: its headers or its body took too long, it left a response unread, it was idle,
#: it made room for another one, it found none itself.
CLOSED = ("headers", "body", "unread", "idle", "crowded", "refused")
_GAPS = (0.0, 0.001, 0.01, 0.05, 0.1, 0.25, 1.0)


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

    def text(self) -> bytes:
        """All of it in Prometheus' text format."""
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return generate_latest(self._registry)
        everyone = CollectorRegistry()
        collect: Any = MultiProcessCollector
        collect(everyone)
        return generate_latest(everyone)
