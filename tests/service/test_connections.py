"""The real command on loopback, beset by clients that never finish: real ones are served, the others go."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from mio_rag.retrieval import CorpusIndex
from mio_rag.service.edge import ConnectionGuard
from mio_rag.service.metrics import Metrics
from mio_rag.service.settings import ConnectionLimits

KEY = "a key of more than sixteen characters"
HALF = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-More: "
linux = pytest.mark.skipif(sys.platform != "linux", reason="counts files in /proc, comes from 127.0.0.2")

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Answer = tuple[int, dict[str, str], bytes]


@dataclass
class Served:
    """A running service."""

    port: int
    process: int
    log: Path

    def files(self) -> int:
        """Open files of the process."""
        return len(os.listdir(f"/proc/{self.process}/fd"))


@contextmanager
def _serving(index: Path, log: Path, *options: str, files: int | None = None) -> Iterator[Served]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def few_files() -> None:
        import resource

        if files is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    command = [sys.executable, "-m", "mio_rag", "serve", str(index), "--port", str(port), *options]
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "MIO_RAG_API_KEY": KEY},
            preexec_fn=few_files if files is not None else None,
        )
    assert process.stdout is not None
    try:
        assert "loading" in process.stdout.readline()
        assert f"http://127.0.0.1:{port}" in process.stdout.readline(), log.read_text(encoding="utf-8")
        yield Served(port, process.pid, log)
        process.terminate()
        process.wait(30)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture(scope="module")
def index(demo_index: CorpusIndex, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return demo_index.save(tmp_path_factory.mktemp("served") / "index")


@pytest.fixture(scope="module")
def served(index: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    short = [f"--set=server.{part}_seconds=1" for part in ("header", "body", "unread")]
    log = tmp_path_factory.mktemp("log") / "log"
    with _serving(index, log, "--set", "server.max_connections=200", *short) as one:
        yield one


async def _connect(port: int, source: str = "127.0.0.1") -> Stream:
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))


async def _ask(stream: Stream, method: str, path: str, body: bytes = b"") -> Answer:
    reader, writer = stream
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"X-API-Key: {KEY}"]
    lines += ["Content-Type: application/json", f"Content-Length: {len(body)}", "\r\n"]
    writer.write("\r\n".join(lines).encode() + body)
    return await _answer(reader)


async def _answer(reader: asyncio.StreamReader) -> Answer:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").splitlines()
    headers = dict(line.lower().split(": ", 1) for line in lines if line)
    return int(first.split()[1]), headers, await reader.readexactly(int(headers["content-length"]))


async def _closed(stream: Stream) -> bytes:
    """What still comes, until the other side closes the connection."""
    got = b""
    with suppress(ConnectionError):
        async with asyncio.timeout(30):
            got = await stream[0].read()
    stream[1].close()
    return got


async def _metrics(port: int) -> dict[str, float]:
    stream = await _connect(port)
    status, _, text = await _ask(stream, "GET", "/metrics")
    stream[1].close()
    assert status == 200
    lines = [line for line in text.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def _closings(metrics: dict[str, float], reason: str) -> float:
    return metrics[f'mio_rag_connections_closed_total{{reason="{reason}"}}']


async def _beset(port: int, count: int, sources: int = 1) -> list[Stream]:
    """Half-open connections, as fast as a loop that serves real clients too can make them."""
    made = []
    for k in range(count):
        stream = await _connect(port, f"127.0.0.{1 + k % sources}")
        stream[1].write(HALF)
        made.append(stream)
        await asyncio.sleep(0.001)
    return made


async def _client(port: int, number: int) -> list[int]:
    """Statuses of a client that keeps its connection as long as it may."""
    stream = await _connect(port)
    statuses = []
    body = json.dumps({"question": f"Which tower is taller ({number})?", "pool": 10}).encode()
    requests = [("GET", "/health", b""), ("POST", "/select", body), ("POST", "/select", body)]
    for request in requests:
        status, headers, _ = await _ask(stream, *request)
        statuses.append(status)
        if headers.get("connection") == "close":
            stream[1].close()
            stream = await _connect(port)
    stream[1].close()
    return statuses


@linux
def test_real_clients_are_served_among_half_open_connections(index: Path, tmp_path: Path) -> None:
    async def go(served: Served) -> None:
        before, files = await _metrics(served.port), served.files()
        flood = asyncio.create_task(_beset(served.port, 150))
        clients = asyncio.gather(*(_client(served.port, k) for k in range(10)))
        most = files
        while not (flood.done() and clients.done()):
            most = max(most, served.files())
            await asyncio.sleep(0.01)
        assert most <= files + 90  # 60, and those just accepted that are about to be closed
        assert await clients == [[200, 200, 200]] * 10
        for stream in await flood:
            assert await _closed(stream) == b""
        after = await _metrics(served.port)
        closed = {
            reason: _closings(after, reason) - _closings(before, reason)
            for reason in ("headers", "crowded", "refused")
        }
        assert closed["headers"] + closed["crowded"] == 150
        assert closed["crowded"] >= 90  # at most 60 are open at a time
        assert closed["refused"] == 0
        assert after["mio_rag_connections"] == 1  # the one that asks
        assert served.files() <= files + 1

    # Long enough that on a slow machine, too, the limit on connections acts before the timeout.
    with _serving(
        index, tmp_path / "log", "--set", "server.max_connections=60", "--set", "server.header_seconds=3"
    ) as one:
        asyncio.run(asyncio.wait_for(go(one), 60))
        assert one.log.stat().st_size < 2_000


def test_slow_clients_are_shown_out(served: Served) -> None:
    async def go() -> None:
        begun = b"POST /select HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{"
        silent, later, body, beside = [await _connect(served.port) for _ in range(4)]
        assert (await _ask(later, "GET", "/health"))[0] == 200
        body[1].write(begun)
        # A body that nobody asked for, a byte now and then: the answer came long before.
        beside[1].write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9999\r\n\r\n")
        assert (await _answer(beside[0]))[0] == 200

        async def drip(stream: Stream) -> None:
            while not stream[1].is_closing():
                stream[1].write(b"G")
                await asyncio.sleep(0.1)

        async with asyncio.TaskGroup() as group:
            drips = [group.create_task(drip(stream)) for stream in (later, beside)]
            assert await _closed(silent) == await _closed(later) == await _closed(beside) == b""
            assert (await _closed(body)).startswith(b"HTTP/1.1 408 ")
            for task in drips:
                task.cancel()

    asyncio.run(asyncio.wait_for(go(), 60))


def test_a_response_that_nobody_reads_is_given_up(served: Served) -> None:
    async def go() -> None:
        before = _closings(await _metrics(served.port), "unread")
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.connect(("127.0.0.1", served.port))
            deaf.sendall(b"GET /docs HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 2_000)
            async with asyncio.timeout(30):
                while _closings(await _metrics(served.port), "unread") == before:
                    await asyncio.sleep(0.1)

    asyncio.run(asyncio.wait_for(go(), 60))


def test_a_request_with_two_lengths_is_refused_and_its_connection_closed(served: Served) -> None:
    async def go() -> None:
        stream = await _connect(served.port)
        stream[1].write(
            b"POST /select HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n"
            b"\r\n0\r\n\r\nGET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        )
        got = await _closed(stream)
        assert got.startswith(b"HTTP/1.1 400 ")
        assert got.count(b"HTTP/1.1 ") == 1  # what follows is not taken for a request

    asyncio.run(asyncio.wait_for(go(), 60))


def test_whom_a_connection_is_counted_for() -> None:
    guard = ConnectionGuard(ConnectionLimits(trusted_proxies=("10.0.0.5", "fd00::/8")), Metrics())
    assert guard.client("192.0.2.7") == guard.client("::ffff:192.0.2.7") == "192.0.2.7"
    assert guard.client("2001:db8::1") == guard.client("2001:db8::ffff:2") != guard.client("2001:db8:0:1::1")
    assert guard.client("fe80::1%eth0") == "fe80::/64"
    assert guard.client("10.0.0.5") is guard.client("::ffff:10.0.0.5") is guard.client("fd00::1") is None
