"""`mio-rag serve` in a process of its own, before a model that waits, and clients that ask it over HTTP."""

from __future__ import annotations

import argparse
import asyncio
import socket
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.runner import Measured, at_least, note, resident_mb
from mio_rag.corpora.load import load_dataset
from mio_rag.errors import SolverError
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.minilm import packaged_minilm

_HERE, _WAIT, _RAMP, _READY_SECONDS = Path(__file__).parents[1], 0.3, 0.5, 900.0
_BODY = {"budget_tokens": 256, "deadline_seconds": 30}


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def waiting_model(folder: Path) -> Iterator[str]:
    """Run a server with OpenAI's protocol that answers after a while; yield its specification."""
    url = folder / "url"
    command = [sys.executable, "-m", "benchmarks.faults", str(url), str(folder / "bill.json"), str(_WAIT)]
    process = subprocess.Popen(command, cwd=_HERE)
    try:
        while not url.is_file():
            time.sleep(0.1)
        yield f"openai:{url.read_text(encoding='utf-8')}#scripted?tokenizer={packaged_minilm()}"
    finally:
        process.terminate()
        process.wait(30)


@dataclass
class Service:
    """A running service, and what clients received.

    seconds: path and clients -> of the requests that were answered.
    statuses: of the requests of all loads.
    first: memory after the first round of loads, MB.
    """

    address: str
    process: subprocess.Popen[str]
    questions: Sequence[str]
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    statuses: Counter[str] = field(default_factory=Counter)
    without_retry_after: int = 0
    first: float = 0.0

    @property
    def megabytes(self) -> float:
        """Resident memory."""
        return resident_mb(self.process.pid)

    def wait(self) -> None:
        """Wait until it answers; `SolverError` if it ends before."""
        deadline = time.monotonic() + _READY_SECONDS
        while True:
            with suppress(httpx.HTTPError):
                if httpx.get(f"{self.address}/health", trust_env=False).status_code == 200:
                    return
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SolverError("the service did not start")
            time.sleep(0.2)

    def loads(self, seconds: float) -> dict[str, float]:
        """Return answers a second of every load, and the memory."""
        found = {f"{p}_{n}": self.load(p, n, seconds) for p in ("select", "ask") for n in (1, 16)}
        self.first = self.first or self.megabytes
        return {**found, "service_megabytes": self.megabytes}

    def load(self, path: str, clients: int, seconds: float) -> float:
        """Let clients ask again as soon as they are answered; return answers a second after a start.

        Every question is a new one. What began in time is waited for.
        """
        ends = sorted(asyncio.run(self._ask(path, clients, seconds + _RAMP)))
        steady = [end for end in ends if _RAMP <= end <= seconds + _RAMP]
        used = steady if len(steady) > 2 else ends
        return (len(used) - 1) / (used[-1] - used[0]) if len(used) > 1 else 0.0

    async def _ask(self, path: str, clients: int, seconds: float) -> list[float]:
        began, before, ends = time.monotonic(), sum(self.statuses.values()), []
        limits = httpx.Limits(max_connections=clients)
        async with httpx.AsyncClient(trust_env=False, timeout=120, limits=limits) as client:

            async def ask_on(number: int) -> None:
                asked = 0
                while (start := time.monotonic()) - began < seconds:
                    question = self.questions[(number + asked) % len(self.questions)]
                    asked += 1
                    body: dict[str, Any] = {"question": f"{question} ({before}.{number}.{asked})", **_BODY}
                    try:
                        answer = await client.post(f"{self.address}/{path}", json=body)
                    except httpx.HTTPError as error:
                        self.statuses[type(error).__name__] += 1
                        continue
                    self.statuses[str(answer.status_code)] += 1
                    if answer.status_code == 200:
                        ends.append(time.monotonic() - began)
                        self.seconds[f"{path}_{clients}"].append(time.monotonic() - start)
                        continue
                    wait = answer.headers.get("retry-after")
                    self.without_retry_after += wait is None
                    await asyncio.sleep(min(float(wait or 1), 5.0))

            await asyncio.gather(*(ask_on(k) for k in range(clients)))
        return ends


def measure(given: argparse.Namespace) -> Measured:
    """Ask without pause, through a service in its own process; read its memory after every load."""
    at_least(given, clients=1, seconds=0.1, loads=2)
    port, quiet, readings = free_port(), subprocess.DEVNULL, list[float]()
    demo = load_dataset("demo")
    CorpusIndex.build(demo.passages, "tfidf", demo.name).save(given.work / "clients", overwrite=True)
    command = [sys.executable, "-m", "mio_rag", "serve", str(given.work / "clients"), "--port", str(port)]
    process = subprocess.Popen(command, stdout=quiet, stderr=quiet, text=True)
    try:
        service = Service(f"http://127.0.0.1:{port}", process, [one.text for one in demo.questions])
        service.wait()
        for k in range(given.loads):
            service.load(("select", "ask")[k % 2], given.clients, given.seconds)
            readings.append(round(service.megabytes, 1))
            note(f"load {k + 1}: {readings[-1]} MB, {dict(service.statuses)}")
    finally:
        process.terminate()
        process.wait(30)
    first = readings[min(3, given.loads - 1)]
    report = {"megabytes": readings, "growth": readings[-1] / first, "statuses": dict(service.statuses)}
    wrong = int(set(service.statuses) != {"200"}) + int(report["growth"] > 1.05)
    return Measured(report, f"{report}", wrong=wrong)
