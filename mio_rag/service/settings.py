"""Settings of a service, and what is checked before it starts. Imports nothing of the extra ``serve``."""

from __future__ import annotations

import ipaddress
import os
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, field_validator

from mio_rag.allocation.money import Rate
from mio_rag.defaults import DEFAULTS
from mio_rag.errors import InputError, Notice
from mio_rag.settings import Settings
from mio_rag.sources import Building
from mio_rag.types import is_text

if TYPE_CHECKING:
    from mio_rag.retrieval.index import CorpusIndex
    from mio_rag.session.cache import AnswerCache

#: Environment variable with the API key; worker processes get it in no other way.
KEY = "MIO_RAG_API_KEY"
_LEAST_CONNECTIONS = 8
_FILES_IN_RESERVE = 32  # for the event loop, metrics of several workers, and files that are read meanwhile
_FILES_IN_USE = 64  # where the system does not report it
_MOST_EXAMPLES = 12  # more would fill the page

Count = Annotated[int, Field(gt=0, lt=10**12)]
Seconds = Annotated[float, Field(gt=0, lt=1e12)]


class ServiceLimits(Settings):
    """Limits of a service; each worker process applies them separately."""

    max_body_bytes: Count = 16_384
    """Largest body of a request."""
    max_chat_bytes: Count = 1 << 20
    """Largest body of a chat request, with its earlier messages."""
    max_question: Count = 2_000
    """Longest question, in characters."""
    max_pool: Count = 200
    """Candidates of a question."""
    max_budget_tokens: Count = 8_192
    """Largest budget that a request may set."""
    max_answer_tokens: Count = 512
    """Longest answer that a request may set."""
    max_deadline_seconds: Seconds = 30.0
    """Longest deadline that a request may set, from its arrival."""
    concurrency: Count = 2
    """Requests worked on at the same time."""
    queue: Annotated[int, Field(ge=0, lt=10**6)] = 64
    """Requests that may wait; one more gets 503 with Retry-After."""
    max_wait_seconds: Seconds = 30.0
    """Longest wait; then 503 with Retry-After."""


class ConnectionLimits(Settings):
    """Limits on connections and their timeouts; each worker process applies them separately."""

    max_connections: Annotated[int, Field(ge=_LEAST_CONNECTIONS, lt=10**12)] = 512
    """At the same time. One more replaces the connection that has been without a request longest."""
    max_connections_per_client: Count = 128
    """Of one address (IPv6: of one /64 network)."""
    trusted_proxies: tuple[str, ...] = ("127.0.0.0/8", "::1/128")
    """Addresses and networks that many clients come through: exempt from `max_connections_per_client`, and
    trusted in what they report of their clients in X-Forwarded-For and X-Forwarded-Proto."""
    header_seconds: Seconds = 10.0
    """From a connection, or the first byte of a later request, to the end of the headers."""
    body_seconds: Seconds = 10.0
    """From the headers to the end of the body."""
    unread_seconds: Seconds = 30.0
    """For which a client may leave a response unread."""
    idle_seconds: Seconds = 30.0  # clients close after 5 usually; closing first would be a race
    """Between two requests of a connection."""

    @field_validator("trusted_proxies")
    @classmethod
    def _networks(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        networks = []
        for one in given:
            try:
                networks.append(str(ipaddress.ip_network(one, strict=False)))
            except ValueError:
                raise ValueError(
                    f"{one!r} is not an address or network: give 10.0.0.5 or 10.0.0.0/8"
                ) from None
        return tuple(networks)

    @property
    def burst(self) -> int:
        """Connections taken from the system's queue at a time, before any of them is looked at.

        Few enough that a client whose request is on its way is not displaced by those taken after it.
        """
        return max(2, min(128, self.max_connections // 8))


def fitted(limits: ConnectionLimits) -> ConnectionLimits:
    """Return the limits with no more connections than there are file descriptors for; warn if that is fewer.

    Call it when index and models are loaded. The system's limit is raised as far as possible.

    Raises `InputError` if there are too few to serve at all.
    """
    try:
        import resource
    except ImportError:  # Windows, where connections are no file descriptors
        return limits
    used = _FILES_IN_USE
    with suppress(OSError):
        used = len(os.listdir("/dev/fd"))
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
    left = (allowed - used) * 2 // 3
    if left >= limits.max_connections:
        return limits
    if left < _LEAST_CONNECTIONS:
        raise InputError(
            f"{allowed} open files are allowed, and {used} are in use or reserved: too few are left for "
            f"{_LEAST_CONNECTIONS} connections; raise the limit (ulimit -n)"
        )
    warnings.warn(
        f"mio-rag: {allowed} open files are allowed, which is enough for {left} connections and not for "
        f"{limits.max_connections}: raise the limit (ulimit -n), or set server.max_connections={left}",
        Notice,
        stacklevel=2,
    )
    return limits.replace(max_connections=left)


@dataclass(frozen=True)
class Kept:
    """A file of stored answers; `entries` and `days` as in `CacheSettings`."""

    path: str
    entries: int
    days: float

    def opened(self, index: CorpusIndex) -> AnswerCache:
        """Open the cache for an index; `InputError` if the file is something else."""
        from mio_rag.session.cache import AnswerCache, CacheSettings

        return AnswerCache.of(self.path, index, CacheSettings(entries=self.entries, days=self.days))


class Split(Settings):
    """Questions under the policy of the service are shared between it and another one."""

    policy: Annotated[str, Field(min_length=1)]
    """Preset or file."""
    share: Annotated[float, Field(gt=0, lt=1)]
    """Of the questions that it answers."""
    ratings: Annotated[str, Field(min_length=1)]
    """SQLite file of who answered, and of ratings."""


@dataclass(frozen=True)
class ServiceSettings:
    """What is served, and where.

    source: as `mio_rag.sources.open_source` takes it.
    building: how it is indexed; None: it is an index.
    readers: name -> generator, as `make_generator` takes it; the first one answers by default.
    rates: name of a reader -> what its tokens cost.
    workers: processes; each loads index and models by itself.
    examples: questions that the page proposes; without them they are taken from the documents.
    policy: preset or file of the policy that answers; None: requests decide.
    keys: file of API keys and their budgets.
    where: condition on everything that is served.
    mapped: vectors, texts and the lexical index stay on disk.
    refusal: file of a refusal model.
    split: another policy, which answers a share of the questions.
    """

    source: str
    readers: dict[str, str] = field(default_factory=lambda: {DEFAULTS.model: DEFAULTS.model})
    building: Building | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    limits: ServiceLimits = field(default_factory=ServiceLimits)
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    examples: tuple[str, ...] = ()
    rates: dict[str, Rate] = field(default_factory=dict)
    cache: Kept | None = None
    policy: str | None = None
    keys: str | None = None
    where: tuple[str, ...] = ()
    mapped: bool = False
    refusal: str | None = None
    split: Split | None = None


def example_problems(examples: Sequence[str], most: int) -> list[str]:
    """Return what is wrong with an operator's questions, which may have so many characters at most."""
    problems = [f"{len(examples)} examples: give at most {_MOST_EXAMPLES}"] * (len(examples) > _MOST_EXAMPLES)
    return problems + [
        f"the example {one[:40]!r} must be a text of 1 to {most} characters, got {len(one)}: give a question"
        for one in examples
        if not is_text(one) or not one.strip() or len(one) > most
    ]


def single_key() -> str | None:
    """Return the key in the environment, which has no limits; None if there is none."""
    return os.environ.get(KEY) or None
