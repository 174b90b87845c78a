"""Inputs over processes that may hang, run out of memory or die: what kills one is a fault like any other."""

from __future__ import annotations

import faulthandler
import mmap
import multiprocessing
import struct
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fuzz.endings import CPU_SECONDS, Fault, Kind, ending, place_in_dump

#: Module and class of each kind, and its share of all inputs: the quicker ones get more.
KINDS = {
    "programs": ("Programs", 0.5),
    "select": ("Selects", 0.3),
    "toml": ("Toml", 0.06),
    "parquet": ("Parquet", 0.03),
    "http": ("Http", 0.08),
    "corpora": ("Corpora", 0.03),
}

_WALL_SECONDS = 12 * CPU_SECONDS  # then nothing but the end of the process helps
_ENDING_SECONDS = 10.0
_MEMORY = 6 << 30  # above what the worker has when it is ready
_SHRINK_SECONDS, _SHRINK_STEPS = 4.0, 400


@dataclass(frozen=True)
class Chunk:
    """Inputs that are done together: `count` of a kind from number `first` on."""

    kind: str
    first: int
    count: int


@dataclass
class Done:
    """What became of a chunk.

    Parameters
    ----------
    endings : Counter
        Inputs by how they ended, bad endings included.
    faults : list of dict
        Number of the input, the fault, and for the first of its place in this worker the input, made smaller.
    """

    chunk: Chunk
    endings: Counter[str] = field(default_factory=Counter)
    faults: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**vars(self), "chunk": vars(self.chunk), "endings": dict(self.endings)}

    def add(self, number: int, end: str | Fault, given: str | None = None) -> None:
        """Count an input."""
        self.endings["bad" if isinstance(end, Fault) else end] += 1
        if isinstance(end, Fault):
            self.faults.append({"number": number, **end.to_dict(), "input": given})


def make(name: str, folder: Path) -> Kind:
    """A kind of input, ready to draw and run."""
    folder.mkdir(parents=True, exist_ok=True)
    kind: Kind = getattr(import_module(f"benchmarks.fuzz.{name}"), KINDS[name][0])(folder)
    return kind


def drawn(kind: Kind, name: str, seed: int, number: int) -> Any:
    """Input `number` of a kind: the same for a seed, whatever was drawn before."""
    return kind.draw(np.random.default_rng([seed, zlib.crc32(name.encode()), number]))


class _Doing:
    """The kinds that a process has made so far, and the places that it has seen."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed, self.folder = seed, folder
        self.kinds: dict[str, Kind] = {}
        self._seen: set[tuple[str, str]] = set()

    def __call__(self, chunk: Chunk, at: Callable[[int], None]) -> Done:
        if chunk.kind not in self.kinds:
            self.kinds[chunk.kind] = make(chunk.kind, self.folder / chunk.kind)
        kind, done, began = self.kinds[chunk.kind], Done(chunk), time.perf_counter()
        for number in range(chunk.first, chunk.first + chunk.count):
            at(number)
            given = drawn(kind, chunk.kind, self.seed, number)
            end, shown = ending(kind, given), None
            if isinstance(end, Fault) and (end.place, end.error) not in self._seen:
                self._seen.add((end.place, end.error))
                shown = repr(_shrunk(kind, given, end))
            done.add(number, end, shown)
        done.seconds = time.perf_counter() - began
        return done

    def close(self) -> None:
        for kind in self.kinds.values():
            kind.close()


def _shrunk(kind: Kind, given: Any, fault: Fault) -> Any:
    """The input without what the fault does not need, as far as some seconds carry."""
    until, steps = time.monotonic() + _SHRINK_SECONDS, 0
    again = fault.error != "takes too long"
    while again:
        again = False
        for smaller in kind.smaller(given):
            steps += 1
            if steps > _SHRINK_STEPS or time.monotonic() > until:
                return given
            end = ending(kind, smaller)
            if isinstance(end, Fault) and (end.place, end.error) == (fault.place, fault.error):
                given, again = smaller, True
                break
    return given


def here(chunks: Sequence[Chunk], seed: int) -> Generator[Done, None, None]:
    """The chunks one after the other, in this process."""
    with tempfile.TemporaryDirectory(prefix="mio-rag-fuzz-") as folder:
        doing = _Doing(seed, Path(folder))
        try:
            for chunk in chunks:
                yield doing(chunk, lambda number: None)
        finally:
            doing.close()


def side_by_side(chunks: Sequence[Chunk], seed: int, processes: int) -> Generator[Done, None, None]:
    """The chunks over processes, in the order of finishing. A process that ends is replaced."""
    waiting = list(chunks)[::-1]
    workers: dict[Any, _Worker] = {}
    with tempfile.TemporaryDirectory(prefix="mio-rag-fuzz-") as folder:
        try:
            made = 0
            while waiting or any(worker.chunk for worker in workers.values()):
                while waiting and len(workers) < processes:
                    worker = _Worker(seed, Path(folder) / str(made))
                    made += 1
                    workers[worker.pipe] = worker
                for worker in workers.values():
                    if worker.chunk is None and waiting:
                        worker.begin(waiting.pop())
                for pipe in wait([worker.pipe for worker in workers.values() if worker.chunk]):
                    worker = workers[pipe]
                    done = worker.result()
                    if done is None:
                        del workers[pipe]
                        done, rest = worker.blamed()
                        waiting += rest
                    yield done
        finally:
            for worker in workers.values():
                worker.end()


class _Worker:
    """A process that does a chunk at a time, seen from outside."""

    def __init__(self, seed: int, folder: Path) -> None:
        folder.mkdir()
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._dump = folder / "dump"
        self._at = folder / "at"
        given = (theirs, seed, folder, self._dump, self._at, _WALL_SECONDS)
        self._process = context.Process(target=_serve, args=given, daemon=True)
        self._process.start()
        theirs.close()
        self.chunk: Chunk | None = None

    def begin(self, chunk: Chunk) -> None:
        self.chunk = chunk
        self.pipe.send(chunk)

    def result(self) -> Done | None:
        """What it sent; None if it has died."""
        try:
            done: Done = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            return None
        self.chunk = None
        return done

    def blamed(self) -> tuple[Done, list[Chunk]]:
        """The input that it died of, and what is left of its chunk."""
        self._process.join()
        assert self.chunk is not None
        chunk = self.chunk
        number = (
            max(chunk.first, struct.unpack("q", self._at.read_bytes())[0])
            if self._at.exists()
            else chunk.first
        )
        dump = self._dump.read_text(encoding="utf-8", errors="replace") if self._dump.exists() else ""
        slow = dump.startswith("Timeout")
        what = "takes too long" if slow else f"the process died ({self._process.exitcode})"
        done = Done(Chunk(chunk.kind, number, 1))
        done.add(number, Fault(place_in_dump(dump) or "nowhere", what, dump[:400]))
        before = Chunk(chunk.kind, chunk.first, number - chunk.first)
        after = Chunk(chunk.kind, number + 1, chunk.first + chunk.count - number - 1)
        return done, [part for part in (before, after) if part.count]

    def end(self) -> None:
        self.pipe.close()
        if self.chunk is None:  # it waits for the next one, and sees that there is none
            self._process.join(_ENDING_SECONDS)
        self._process.terminate()
        self._process.join()


def _serve(pipe: Connection, seed: int, folder: Path, dump: Path, at: Path, wall_seconds: float) -> None:
    """Do chunks until the other side closes; an input that hangs is written down, and ends the process."""
    doing, limited = _Doing(seed, folder), False
    at.write_bytes(struct.pack("q", -1))
    with dump.open("w") as file, at.open("r+b") as place, mmap.mmap(place.fileno(), 8) as memory:
        faulthandler.enable(file)

        def begin(number: int) -> None:
            struct.pack_into("q", memory, 0, number)  # no system call an input
            faulthandler.dump_traceback_later(wall_seconds, exit=True, file=file)

        while True:
            try:
                chunk: Chunk = pipe.recv()
            except (EOFError, KeyboardInterrupt):
                return
            if not limited:
                _limit_memory()
                limited = True
            done = doing(chunk, begin)
            faulthandler.cancel_dump_traceback_later()
            pipe.send(done)


def _limit_memory() -> None:
    """So that an input which asks for all memory gets a MemoryError, and not the machine."""
    if sys.platform != "linux":
        return
    import resource

    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + _MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))
