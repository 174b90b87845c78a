"""The service under load: many clients on loopback, then more than there is room for.

`mio-rag serve` runs in processes of its own. Every question is a new one (a number is appended), so that each
request embeds, retrieves, solves and explains; clients ask again as soon as they are answered.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.runner import Measured, at_least, text_table
from mio_rag.corpora.load import load_dataset
from mio_rag.errors import SolverError, require
from mio_rag.retrieval import CorpusIndex

_READY_SECONDS = 900.0


@dataclass
class Phase:
    """What clients received."""

    name: str
    clients: int
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    without_retry_after: int = 0
    unproven: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; latencies of answered requests in seconds."""
        served = np.array(self.latencies or [np.nan])
        return {
            "name": self.name,
            "clients": self.clients,
            "seconds": self.seconds,
            "statuses": dict(self.statuses),
            "answered_per_second": len(self.latencies) / self.seconds,
            "latency_seconds": {
                label: float(np.percentile(served, share))
                for label, share in (("p50", 50), ("p90", 90), ("p99", 99), ("largest", 100))
            },
            "refused_without_retry_after": self.without_retry_after,
            "not_proven_optimal": self.unproven,
        }


def measure(given: argparse.Namespace) -> Measured:
    """Load the service; a failed request, or a refusal without Retry-After, is wrong."""
    require("httpx", "dev", "the load generator")
    at_least(given, seconds=0.1, clients=1, overload=1, workers=1)
    questions = [question.text for question in load_dataset(given.questions).questions]
    with tempfile.TemporaryDirectory() as folder:
        index = given.index or _demo_index(Path(folder) / "index", given.embedder)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        options = ["--port", str(port), "--workers", str(given.workers)]
        started = [sys.executable, "-m", "mio_rag", "serve", str(index), *options]
        process = subprocess.Popen(started, stdout=subprocess.DEVNULL)
        try:
            address = f"http://127.0.0.1:{port}"
            asyncio.run(_ready(address, process))
            load, over = Phase("load", given.clients), Phase("overload", given.overload)
            asyncio.run(_phase(load, address, questions, given.seconds))
            asyncio.run(_phase(over, address, questions, min(20.0, given.seconds)))
            start = time.monotonic()
            process.send_signal(signal.SIGTERM)
            process.wait(60)
            stopped = time.monotonic() - start
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()
    phases = [load.to_dict(), over.to_dict()]
    good = set(load.statuses) == {"200"} and set(over.statuses) <= {"200", "503"}
    rows = [
        (
            f"{one['name']}, {one['clients']} clients", one["statuses"], f"{one['answered_per_second']:.1f}",
            f"{one['latency_seconds']['p50']:.2f}", f"{one['latency_seconds']['p99']:.2f}",
        )
        for one in phases
    ]  # fmt: skip
    table = text_table(("", "statuses", "answered a second", "p50 s", "p99 s"), rows)
    report = {"workers": given.workers, "phases": phases, "stopped_seconds": stopped}
    return Measured(report, table, wrong=int(not good or over.without_retry_after > 0))


def _demo_index(folder: Path, embedder: str) -> Path:
    data = load_dataset("demo")
    CorpusIndex.build(data.passages, embedder, data.name).save(folder)
    return folder


async def _ready(address: str, process: subprocess.Popen[bytes]) -> None:
    import httpx

    deadline = time.monotonic() + _READY_SECONDS
    async with httpx.AsyncClient(trust_env=False) as client:
        while True:
            with suppress(httpx.HTTPError):
                if (await client.get(f"{address}/health")).status_code == 200:
                    return
            if process.poll() is not None or time.monotonic() > deadline:
                raise SolverError("the service did not start")
            await asyncio.sleep(0.2)


async def _phase(phase: Phase, address: str, questions: list[str], seconds: float) -> None:
    import httpx

    began = time.monotonic()
    limits = httpx.Limits(max_connections=phase.clients)
    async with httpx.AsyncClient(trust_env=False, timeout=120, limits=limits) as client:

        async def ask_on(number: int) -> None:
            asked = 0
            while time.monotonic() - began < seconds:
                question = questions[(number + asked) % len(questions)]
                body = {"question": f"{question} ({number}.{asked})", "more_tokens": 100}
                asked += 1
                start = time.monotonic()
                try:
                    answer = await client.post(f"{address}/select", json=body)
                except httpx.HTTPError as error:
                    phase.statuses[type(error).__name__] += 1
                    continue
                phase.statuses[str(answer.status_code)] += 1
                if answer.status_code == 200:
                    phase.latencies.append(time.monotonic() - start)
                    phase.unproven += answer.json()["status"] != "optimal"
                    continue
                wait = answer.headers.get("retry-after")
                phase.without_retry_after += wait is None
                await asyncio.sleep(min(float(wait or 1), 5.0))

        await asyncio.gather(*(ask_on(k) for k in range(phase.clients)))
    phase.seconds = time.monotonic() - began
