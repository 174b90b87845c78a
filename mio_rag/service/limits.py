"""Limits on requests, waiting requests and connections."""

from __future__ import annotations

import ipaddress
import os
import warnings
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from mio_rag.errors import InputError, Notice

__all__ = ["ConnectionLimits", "ServiceLimits", "fitted"]

_LEAST_CONNECTIONS = 8
_FILES_IN_RESERVE = 32  # for the event loop, for metrics of several workers, for whatever is read meanwhile
_FILES_IN_USE = 64  # where the system does not say


@dataclass(frozen=True)
class ServiceLimits:
    """Limits of a service; each worker process applies them separately.

    Parameters
    ----------
    max_body_bytes : int
        Of a request.
    max_question : int
        Characters.
    max_pool : int
        Candidates a question, n.
    max_budget_tokens, max_answer_tokens : int
    max_deadline_seconds : float
        Longest deadline that a request may set, counted from its arrival.
    concurrency : int
        Requests worked on at the same time.
    queue : int
        Requests that may wait for that; one more is answered 503 with Retry-After.
    max_wait_seconds : float
        Longest wait; then 503 with Retry-After, whatever the deadline.
    """

    max_body_bytes: int = 16_384
    max_question: int = 2_000
    max_pool: int = 200
    max_budget_tokens: int = 8_192
    max_answer_tokens: int = 512
    max_deadline_seconds: float = 30.0
    concurrency: int = 2
    queue: int = 64
    max_wait_seconds: float = 10.0

    def __post_init__(self) -> None:
        problems = _not_positive({name: value for name, value in vars(self).items() if name != "queue"})
        if not 0 <= self.queue < 1e6:
            problems.append(f"queue={self.queue!r} must be >= 0")
        if problems:
            raise InputError(problems)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return dict(vars(self))


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits on connections and their timeouts; each worker process applies them separately.

    Parameters
    ----------
    max_connections : int
        At the same time, >= 8. One more takes the place of the one that has been longest without a request.
    max_connections_per_client : int
        Of one address (IPv6: of one /64 network), likewise.
    trusted_proxies : tuple of str
        Addresses and networks that many clients come through: not limited by `max_connections_per_client`,
        and believed what they say of their clients in X-Forwarded-For and X-Forwarded-Proto.
    header_seconds : float
        From a connection, or from the first byte of a later request, to the end of the headers.
    body_seconds : float
        From the headers to the end of the body.
    unread_seconds : float
        For which a client may leave a response unread.
    idle_seconds : float
        Between two requests of a connection.
    """

    max_connections: int = 512
    max_connections_per_client: int = 128
    trusted_proxies: tuple[str, ...] = ("127.0.0.0/8", "::1/128")
    header_seconds: float = 10.0
    body_seconds: float = 10.0
    unread_seconds: float = 30.0
    idle_seconds: float = 30.0  # clients give up before, usually after 5: closing first is a race

    def __post_init__(self) -> None:
        problems = _not_positive({k: v for k, v in vars(self).items() if k != "trusted_proxies"})
        if self.max_connections < _LEAST_CONNECTIONS:
            problems.append(f"max_connections={self.max_connections} must be >= {_LEAST_CONNECTIONS}")
        networks = []
        for given in self.trusted_proxies:
            try:
                networks.append(str(ipaddress.ip_network(given, strict=False)))
            except ValueError:
                problems.append(
                    f"trusted_proxies: {given!r} is not an address or network: give 10.0.0.5 or 10.0.0.0/8"
                )
        if problems:
            raise InputError(problems)
        object.__setattr__(self, "trusted_proxies", tuple(networks))

    @property
    def burst(self) -> int:
        """Connections that are taken from the system's queue at a time, before any of them is looked at.

        Few enough that a client whose request is on its way is not driven out by those taken after it.
        """
        return max(2, min(128, self.max_connections // 8))


def _not_positive(values: dict[str, float]) -> list[str]:
    return [
        f"{name}={value!r} must be a finite number > 0"
        for name, value in values.items()
        if not 0 < value < 1e12
    ]


def fitted(limits: ConnectionLimits) -> ConnectionLimits:
    """The limits with no more connections than this process has file descriptors for; fewer bring a warning.

    Call it when index and models are loaded. The system's limit is raised as far as it lets. Some descriptors
    stay in reserve, so that a request can be answered whoever else is connected.

    Raises
    ------
    InputError
        If there are too few to serve at all.
    """
    try:
        import resource
    except ImportError:  # Windows, where connections are no file descriptors
        return limits
    try:
        used = len(os.listdir("/dev/fd"))
    except OSError:
        used = _FILES_IN_USE
    used += _FILES_IN_RESERVE
    # Before the first of a burst is closed, three more may have come: half as many again as may stay.
    wanted = used + limits.max_connections * 3 // 2
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY or allowed >= wanted:
        return limits
    better = wanted if most == resource.RLIM_INFINITY else min(most, wanted)
    with suppress(OSError, ValueError):  # then what is allowed has to do
        resource.setrlimit(resource.RLIMIT_NOFILE, (better, most))
        allowed = better
    room = (allowed - used) * 2 // 3
    if room >= limits.max_connections:
        return limits
    if room < _LEAST_CONNECTIONS:
        raise InputError(
            f"{allowed} open files are allowed, and {used} are in use or reserved: too few are left for "
            f"{_LEAST_CONNECTIONS} connections; raise the limit (ulimit -n)"
        )
    warnings.warn(
        f"mio-rag: {allowed} open files are allowed, which is enough for {room} connections and not for "
        f"{limits.max_connections}: raise the limit (ulimit -n), or set --max-connections {room}",
        Notice,
        stacklevel=2,
    )
    return replace(limits, max_connections=room)
