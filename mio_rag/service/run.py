"""Start and stop the service, in one process or several."""

from __future__ import annotations

import ipaddress
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from http.client import HTTPConnection, HTTPException
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from mio_rag.errors import InputError, MioRagError, require
from mio_rag.filters import Filter
from mio_rag.refusal.model import Refusal
from mio_rag.service.keys import Keys, key_problem, read_keys
from mio_rag.service.settings import KEY, ServiceSettings, example_problems, fitted, single_key

if TYPE_CHECKING:
    from fastapi import FastAPI

    from mio_rag.generation import Generator
    from mio_rag.service.documents import Documents

#: Environment variable with the settings of worker processes.
SETTINGS = "MIO_RAG_SERVICE"
_WATCH_SECONDS, _WATCH_PATIENCE_SECONDS = 0.1, 2.0
_START_SECONDS = 600  # a worker that loads models does not answer its supervisor all the while


def serve(
    settings: ServiceSettings,
    api_key: str | None = None,
    without_key: bool = False,
    ready: Callable[[], None] = lambda: None,
    loading: Callable[[], None] = lambda: None,
) -> None:
    """Serve until interrupted or terminated; requests in progress are finished first.

    The address is bound before anything is loaded. Clients that connect meanwhile wait.

    ready: called once, from another thread, when the first request can be answered.
    loading: called when the settings are right and the address is bound.

    Raises `InputError` if the settings, the index or the generator cannot be used, or the port is taken;
    `MissingExtraError` without the extra ``serve``.
    """
    for module in ("fastapi", "prometheus_client"):
        require(module, "serve", "the service")
    uvicorn = require("uvicorn", "serve", "the service")
    check(settings, api_key, without_key)
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:  # merely bound, two services could share an address until one listens
        listener = socket.create_server((settings.host, settings.port), family=family)
    except OSError as error:
        raise InputError(f"cannot listen on {settings.host}:{settings.port}: {error}") from error
    with listener:
        loading()
        loaded = _loaded(settings)  # again in each of several workers: an error is reported here, once
        settings = replace(settings, connections=fitted(settings.connections))
        options = _options(settings)
        if settings.refusal is not None:
            for reader in loaded[1].values():
                Refusal.load(settings.refusal).check_fits(loaded[0].index().embedder.fingerprint, reader.name)
        if settings.workers == 1:
            app = _application(settings, loaded, api_key)
            # The interrupt that ended the server is raised again once it has ended.
            with _announced(settings, ready), suppress(KeyboardInterrupt):
                uvicorn.Server(uvicorn.Config(app, **options)).run(sockets=[listener])
            return
        for reader in loaded[1].values():
            reader.close()
        with _environment(settings, api_key), _announced(settings, ready):
            uvicorn.run(
                "mio_rag.service.run:app_from_environment",
                factory=True,
                workers=settings.workers,
                fd=listener.fileno(),
                **options,
            )


def check(settings: ServiceSettings, api_key: str | None, without_key: bool, rates: bool = True) -> None:
    """Raise `InputError` with everything that is wrong with these settings.

    rates: whether readers and their prices are known already.
    """
    problems, workers = [], settings.workers
    if not 1 <= settings.port <= 65535:
        problems.append(f"port={settings.port} must be between 1 and 65535")
    if workers < 1:
        problems.append(f"workers={workers} must be >= 1")
    if workers > 1 and not hasattr(socket, "AF_UNIX"):
        problems.append(f"workers={workers}: on this system a service is one process; leave it at 1")
    if (problem := key_problem(api_key)) is not None:
        problems.append(problem)
    if api_key is None and settings.keys is None and not without_key and not is_loopback(settings.host):
        problems.append(
            f"{settings.host} can be reached from other machines, and no key is set: give --keys FILE or set "
            f"{KEY}, or allow access without a key with --without-key"
        )
    if settings.policy is not None:
        given = {"answers.cache": settings.cache, "answers.refusal": settings.refusal}
        told = "does not go with a policy of its own: leave one of them out"
        problems += [f"{name} {told}" for name, value in given.items() if value is not None]
        from mio_rag.service.governed import policy_problems

        problems += policy_problems(settings.policy, workers)
    if settings.split is not None:
        from mio_rag.service.governed import policy_problems

        problems += [f"--against: {one}" for one in policy_problems(settings.split.policy, workers)]
    if settings.keys is not None:
        try:
            found = read_keys(settings.keys)
            problems += [
                f"'{settings.keys}': keys.{name} limits dollars, and the reader '{reader}' has no price: set "
                "models.reader.input and models.reader.output"
                for name, key in found.keys.items()
                for reader in settings.readers
                if rates and key.needs_rates and reader not in settings.rates
            ]
        except InputError as error:
            problems += error.problems
    problems += example_problems(settings.examples, settings.limits.max_question)
    if problems:
        raise InputError(problems)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a host's address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def app_from_environment() -> FastAPI:
    """Return the application of a worker process."""
    settings = TypeAdapter(ServiceSettings).validate_json(os.environ[SETTINGS])
    return _application(settings, _loaded(settings), single_key())


@contextmanager
def _environment(settings: ServiceSettings, api_key: str | None) -> Iterator[None]:
    """Set the environment variables of worker processes; restore them afterwards."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="mio-rag-metrics-") as folder:
        os.environ[SETTINGS] = TypeAdapter(ServiceSettings).dump_json(settings).decode()
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


def _application(
    settings: ServiceSettings, loaded: tuple[Documents, dict[str, Generator]], api_key: str | None
) -> FastAPI:
    from mio_rag.service.app import create_app

    documents, readers = loaded
    return create_app(
        documents,
        readers,
        settings.limits,
        connections=settings.connections,
        keys=None if api_key is None and settings.keys is None else Keys(settings.keys, api_key),
        loopback=is_loopback(settings.host),
        examples=settings.examples,
        rates=settings.rates,
        cache=None if settings.cache is None else settings.cache.opened(documents.index()),
        policy=settings.policy,
        refusing=None if settings.refusal is None else Refusal.load(settings.refusal),
        split=settings.split,
    )


def _loaded(settings: ServiceSettings) -> tuple[Documents, dict[str, Generator]]:
    from mio_rag.generation import make_generator
    from mio_rag.retrieval.retriever import Retriever
    from mio_rag.selection.selector import Selector
    from mio_rag.service.documents import Documents
    from mio_rag.solvers.branch_and_bound import warmup

    documents = Documents(
        settings.source, settings.building, mapped=settings.mapped, where=Filter(settings.where)
    )
    readers = {name: make_generator(spec) for name, spec in settings.readers.items()}
    warmup()
    retriever = Retriever(documents.index())
    with suppress(MioRagError):  # a search by an endpoint, which may be down
        for k in range(3):  # the third text loads what the first two do not need
            Selector(units="auto").select(retriever.retrieve(f"a first question {k}"), 64)
    return documents, readers


def _options(settings: ServiceSettings) -> dict[str, Any]:
    """Return the options of uvicorn."""
    return {
        "backlog": settings.connections.burst,  # asyncio accepts so many in a row
        "loop": "asyncio",
        "http": "mio_rag.service.edge:GuardedProtocol",
        "ws": "none",
        "log_level": "warning",
        "timeout_graceful_shutdown": int(settings.limits.max_deadline_seconds) + 5,
        "server_header": False,
        "timeout_keep_alive": settings.connections.idle_seconds,
        "timeout_worker_healthcheck": _START_SECONDS,
        "forwarded_allow_ips": list(settings.connections.trusted_proxies),
    }


@contextmanager
def _announced(settings: ServiceSettings, ready: Callable[[], None]) -> Iterator[None]:
    """Call `ready` as soon as the service answers, unless the block ends before."""
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
