"""Starting and stopping the service, in one process or several."""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from mio_rag.allocation.money import Money
from mio_rag.errors import InputError, require
from mio_rag.refusal.model import Refusal
from mio_rag.service.curve import read_curve
from mio_rag.service.examples import check_examples
from mio_rag.service.exclusions import excluded
from mio_rag.service.limits import ConnectionLimits, ServiceLimits, fitted
from mio_rag.service.pacing import Pacing
from mio_rag.service.planning import Planning
from mio_rag.service.searching import Strategies

if TYPE_CHECKING:
    from fastapi import FastAPI

    from mio_rag.answer_cache import AnswerCache
    from mio_rag.generation import Generator
    from mio_rag.retrieval.index import CorpusIndex

__all__ = ["Kept", "ServiceSettings", "app_from_environment", "check", "is_loopback", "read_key", "serve"]

#: Environment variables for worker processes; the API key is only in KEY.
SETTINGS, KEY = "MIO_RAG_SERVICE", "MIO_RAG_API_KEY"
_LEAST_KEY = 16
_WATCH_SECONDS, _WATCH_PATIENCE_SECONDS = 0.1, 2.0
_START_SECONDS = 600  # a worker that loads models does not answer its supervisor all the while


@dataclass(frozen=True)
class Kept:
    """A file of answers.

    Parameters
    ----------
    entries, days, by_meaning
        As in `CacheSettings`.
    """

    path: str
    entries: int
    days: float
    by_meaning: float | None

    def opened(self, index: CorpusIndex) -> AnswerCache:
        """The cache for an index.

        Raises
        ------
        InputError
            If the file is something else.
        """
        from mio_rag.answer_cache import AnswerCache, CacheSettings

        settings = CacheSettings(self.entries, self.days, self.by_meaning)
        return AnswerCache.of(self.path, index, settings)


@dataclass(frozen=True)
class ServiceSettings:
    """What is served, and where.

    Parameters
    ----------
    generator : str
        As `make_generator` takes it.
    workers : int
        Processes; each loads index and models by itself.
    examples : tuple of str
        Questions that the page proposes; without them they are taken from the index.
    pacing : Pacing or None
        Tokens of a day or an hour.
    money : Money or None
        Prices of models.
    curve : str or None
        File with the curve over prices; see `mio_rag.service.curve`.
    cache : Kept or None
        Where answers are kept.
    routing : dict or None
        `mio_rag.control.router.settings.RouterSettings` as plain data: a router chooses how much is read.
    strategies : Strategies or None
        By which is searched.
    policy : str or None
        Preset or file of the policy that answers.
    mapped : bool
        Vectors, texts and the lexical index stay on disk.
    refusal : str or None
        File of a refusal model.
    planning : Planning or None
        A planner chooses a workflow for each question.
    """

    index: str
    generator: str = "extractive"
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    limits: ServiceLimits = field(default_factory=ServiceLimits)
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    examples: tuple[str, ...] = ()
    pacing: Pacing | None = None
    money: Money | None = None
    curve: str | None = None
    cache: Kept | None = None
    routing: dict[str, Any] | None = None
    strategies: Strategies | None = None
    policy: str | None = None
    mapped: bool = False
    refusal: str | None = None
    planning: Planning | None = None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host's address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check(settings: ServiceSettings, api_key: str | None, without_key: bool) -> None:
    """Raise `InputError` with everything that is wrong with these settings."""
    problems = []
    if not 1 <= settings.port <= 65535:
        problems.append(f"port={settings.port} must be between 1 and 65535")
    if settings.workers < 1:
        problems.append(f"workers={settings.workers} must be >= 1")
    if settings.workers > 1 and not hasattr(socket, "AF_UNIX"):
        problems.append(f"workers={settings.workers}: on this system a service is one process; leave it at 1")
    if api_key is not None and len(api_key) < _LEAST_KEY:
        problems.append(f"the API key has {len(api_key)} characters: make it {_LEAST_KEY} or more")
    if api_key is None and not without_key and not is_loopback(settings.host):
        problems.append(
            f"{settings.host} can be reached from other machines, and no key is set: set {KEY} or "
            "--api-key-file, or allow access without a key with --without-key"
        )
    if settings.workers > 1 and settings.pacing is not None and settings.pacing.path is None:
        problems.append(f"{settings.workers} workers must share the count of tokens: give its file a path")
    problems += excluded(_deciding(settings))
    if settings.policy is not None:
        problems += _policy_problems(settings.policy, settings.workers)
    problems += check_examples(settings.examples, settings.limits.max_question)
    if problems:
        raise InputError(problems)


def _deciding(settings: ServiceSettings) -> list[str]:
    """Names of the options that decide something, and are given."""
    total = f"--tokens-per-{'day' if settings.pacing is None else settings.pacing.window}"
    options = {
        "--policy": settings.policy,
        "--planner": settings.planning,
        "--router": settings.routing,
        "--strategies": settings.strategies,
        total: settings.pacing,
        "--prices": settings.money,
        "--cache": settings.cache,
        "--refusal": settings.refusal,
    }
    return [name for name, value in options.items() if value is not None]


def _policy_problems(policy: str, workers: int) -> list[str]:
    from mio_rag.service.governed import check_policy

    try:
        check_policy(policy, workers)
    except InputError as error:
        return list(error.problems)
    return []


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _application(
    settings: ServiceSettings, loaded: tuple[CorpusIndex, Generator], api_key: str | None
) -> FastAPI:
    """Raises `InputError` where the reader has no price."""
    from mio_rag.service.app import create_app

    return create_app(
        *loaded,
        settings.limits,
        connections=settings.connections,
        api_key=api_key,
        loopback=is_loopback(settings.host),
        examples=settings.examples,
        pacer=None if settings.pacing is None else settings.pacing.opened(),
        rate=None if settings.money is None else settings.money.rate(loaded[1].name),
        curve=None if settings.curve is None else read_curve(Path(settings.curve)),
        cache=None if settings.cache is None else settings.cache.opened(loaded[0]),
        routing=settings.routing,
        strategies=settings.strategies,
        policy=settings.policy,
        refusing=None if settings.refusal is None else Refusal.load(settings.refusal),
        planning=settings.planning,
    )


def _loaded(settings: ServiceSettings) -> tuple[CorpusIndex, Generator]:
    from mio_rag.generation import make_generator
    from mio_rag.retrieval.cached import CachedEmbedder
    from mio_rag.retrieval.index import CorpusIndex
    from mio_rag.solvers.branch_and_bound import warmup

    index = CorpusIndex.load(settings.index, mapped=settings.mapped)
    if isinstance(index.embedder, CachedEmbedder):
        index.embedder.stop_caching()
    generator = make_generator(settings.generator)
    warmup()
    return index, generator


def app_from_environment() -> FastAPI:
    """The application of a worker process."""
    given = json.loads(os.environ[SETTINGS])
    parts = {
        "limits": ServiceLimits(**given["limits"]),
        "connections": ConnectionLimits(**given["connections"]),
        "examples": tuple(given["examples"]),
        "money": None if given["money"] is None else Money(**given["money"]),
        "pacing": None if given["pacing"] is None else Pacing(**given["pacing"]),
        "cache": None if given["cache"] is None else Kept(**given["cache"]),
        "strategies": None if given["strategies"] is None else Strategies(**given["strategies"]),
        "planning": None if given["planning"] is None else Planning(**given["planning"]),
    }
    settings = ServiceSettings(**{**given, **parts})
    return _application(settings, _loaded(settings), os.environ.get(KEY) or None)


def serve(
    settings: ServiceSettings,
    api_key: str | None = None,
    without_key: bool = False,
    ready: Callable[[], None] = lambda: None,
    loading: Callable[[], None] = lambda: None,
) -> None:
    """Serve until interrupted or terminated; requests under way are finished first.

    The address is bound before anything is loaded. Clients that connect meanwhile wait.

    Parameters
    ----------
    ready : callable
        Called once, from another thread, when the first request can be answered: index and models have to be
        loaded before, by every worker.
    loading : callable
        Called when the settings are right and the address is taken.

    Raises
    ------
    InputError
        If the settings, the index or the generator cannot be used, or the port is taken.
    MissingExtraError
        Without the extra ``serve``.
    """
    for module in ("fastapi", "prometheus_client"):
        require(module, "serve", "the service")
    uvicorn = require("uvicorn", "serve", "the service")
    check(settings, api_key, without_key)
    with _listening(settings) as listener:
        loading()
        loaded = _loaded(settings)  # by several workers again: what cannot be loaded is reported here, once
        settings = replace(settings, connections=fitted(settings.connections))
        options = _options(settings)
        if settings.refusal is not None:
            Refusal.load(settings.refusal).check_fits(loaded[0].embedder.fingerprint, loaded[1].name)
        if settings.money is not None:
            settings.money.rate(loaded[1].name)  # what the workers would fail on is reported here, once
        if settings.workers == 1:
            app = _application(settings, loaded, api_key)
            # The interrupt that ended the server, and is raised again once it has ended.
            with _announced(settings, ready), suppress(KeyboardInterrupt):
                uvicorn.Server(uvicorn.Config(app, **options)).run(sockets=[listener])
            return
        loaded[1].close()
        with _environment(settings, api_key), _announced(settings, ready):
            uvicorn.run(
                "mio_rag.service.run:app_from_environment",
                factory=True,
                workers=settings.workers,
                fd=listener.fileno(),
                **options,
            )


def _options(settings: ServiceSettings) -> dict[str, Any]:
    """What uvicorn is told."""
    return {
        "backlog": settings.connections.burst,  # asyncio accepts so many in a row
        "loop": "asyncio",
        "http": "mio_rag.service.connections:GuardedProtocol",
        "ws": "none",
        "log_level": "warning",
        "timeout_graceful_shutdown": int(settings.limits.max_deadline_seconds) + 5,
        "server_header": False,
        "timeout_keep_alive": settings.connections.idle_seconds,
        "timeout_worker_healthcheck": _START_SECONDS,
        "forwarded_allow_ips": list(settings.connections.trusted_proxies),
    }


def _listening(settings: ServiceSettings) -> socket.socket:
    """The socket that is listened on: bound alone, two services may share an address until one listens."""
    try:
        return socket.create_server((settings.host, settings.port), family=_family(settings.host))
    except OSError as error:
        raise InputError(f"cannot listen on {settings.host}:{settings.port}: {error}") from error


@contextmanager
def _announced(settings: ServiceSettings, ready: Callable[[], None]) -> Iterator[None]:
    """Calls `ready` as soon as the service answers, unless the block ends before."""
    here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    ended = Event()

    def watch() -> None:
        while not ended.wait(_WATCH_SECONDS):
            connection = HTTPConnection(here, settings.port, timeout=_WATCH_PATIENCE_SECONDS)
            try:
                connection.request("GET", "/health")
                connection.getresponse()
            except (OSError, HTTPException):
                continue
            finally:
                connection.close()
            if not ended.is_set():
                ready()
            return

    watcher = Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


@contextmanager
def _environment(settings: ServiceSettings, api_key: str | None) -> Iterator[None]:
    """Environment variables for worker processes; restored afterwards."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="mio-rag-metrics-") as folder:
        os.environ[SETTINGS] = json.dumps(asdict(settings))
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # processes share the cores already
        os.environ.pop(KEY, None)
        if api_key is not None:
            os.environ[KEY] = api_key
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)


def read_key(file: Path | None) -> str | None:
    """The key in a file, or in the environment; None where there is none.

    Raises
    ------
    InputError
        If the file cannot be read or is empty.
    """
    if file is None:
        return os.environ.get(KEY) or None
    try:
        key = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--api-key-file: '{file}' cannot be read: {error}") from error
    if not key:
        raise InputError(f"--api-key-file: '{file}' is empty: write the key into it")
    return key
