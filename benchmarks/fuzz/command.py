"""Random and mutated inputs; each must give a valid result or a clear error.

Valid is a result whose claims hold when they are recomputed (objective, budget, bound, strict JSON; small
programs also against enumeration). An error must be one of the package's own with a message. No other
exception, no RuntimeWarning, no hang, no end of memory. Each input is drawn from seed, kind and number alone:
`--repeat programs:17` shows one again.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fuzz.endings import CPU_SECONDS, Fault, Kind, ending
from benchmarks.runner import Measured, at_least, note, sources, stored
from mio_rag.errors import InputError

#: Module and class of each kind, and its share of all inputs: the quicker ones get more.
KINDS = {
    "programs": ("Programs", 0.53),
    "select": ("Selects", 0.35),
    "parquet": ("Parquet", 0.05),
    "corpora": ("Corpora", 0.05),
    "files": ("Files", 0.02),
}
_CHUNK = 2000
_WALL_SECONDS = 12 * CPU_SECONDS  # of one input; then only the end of its process helps
_MEMORY = 6 << 30  # above what a process has when it is ready
_SHOWN, _LONGEST = 20, 4000  # numbers of inputs listed for a place, characters of an input in the report
Done = dict[str, Any]  # endings: word -> count; faults: list of dict


def measure(given: argparse.Namespace) -> Measured:
    """Run the inputs of every kind, or one again; an input that does not end well is wrong."""
    chosen = [name.strip() for name in given.only.split(",") if name.strip()]
    if unknown := [name for name in chosen if name not in KINDS]:
        raise InputError(f"--only: {', '.join(unknown)} is unknown: choose from {', '.join(KINDS)}")
    at_least(given, inputs=1, processes=0, seed=0)
    if given.repeat:
        return _repeated(given.repeat, given.seed)
    whole, chunks = sum(KINDS[name][1] for name in chosen), []
    for name in chosen:
        count = max(1, round(given.inputs * KINDS[name][1] / whole))
        chunks += [(name, first, min(_CHUNK, count - first)) for first in range(0, count, _CHUNK)]
    digest, work = sources(), given.work
    run = _chunk_here if given.processes == 0 else _chunk_apart

    def finished(chunk: tuple[str, int, int]) -> tuple[str, Done]:
        path = work / f"{chunk[0]}-{given.seed}-{chunk[1]}.json"
        found: Done = stored(path, [*chunk, digest], partial(run, *chunk, given.seed))
        note(f"{chunk[0]}: {chunk[1] + chunk[2]} inputs")
        return chunk[0], found

    with ThreadPoolExecutor(max(1, given.processes)) as pool:
        report = _report(list(pool.map(finished, chunks)))
    report["sources"] = digest
    return Measured(report, _table(report, given.seed), wrong=len(report["faults"]))


def make(name: str, folder: Path) -> Kind:
    """Return a kind of input, ready to draw and run."""
    folder.mkdir(parents=True, exist_ok=True)
    kind: Kind = getattr(import_module(f"benchmarks.fuzz.{name}"), KINDS[name][0])(folder)
    return kind


def drawn(kind: Kind, name: str, seed: int, number: int) -> Any:
    """Draw input `number` of a kind: the same for a seed, whatever was drawn before."""
    return kind.draw(np.random.default_rng([seed, zlib.crc32(name.encode()), number]))


def _repeated(which: str, seed: int) -> Measured:
    name, _, number = which.partition(":")
    if name not in KINDS or not number.isdigit():
        raise InputError(f"--repeat {which} must be KIND:NUMBER, with a kind of {', '.join(KINDS)}")
    with tempfile.TemporaryDirectory(prefix="mio-rag-fuzz-") as folder:
        kind = make(name, Path(folder))
        given = drawn(kind, name, seed, int(number))
        end, lines = ending(kind, given), [ascii(given)]
        if isinstance(end, Fault):
            lines.append(f"{end.place}  {end.error}: {end.message}")
            try:
                kind.run(given)
            except Exception:
                lines.append(traceback.format_exc())
        else:
            lines.append(end)
    return Measured({"repeated": which}, "\n".join(lines), wrong=int(isinstance(end, Fault)))


# Running ---------------------------------------------------------------------------------------------------


def _chunk_here(name: str, first: int, count: int, seed: int, at: Any = None) -> Done:
    """Run inputs one after the other; `at` takes the number of each."""
    done: Done = {"endings": Counter(), "faults": []}
    seen: set[tuple[str, str]] = set()
    with tempfile.TemporaryDirectory(prefix="mio-rag-fuzz-") as folder:
        kind = make(name, Path(folder))
        for number in range(first, first + count):
            if at is not None:
                at.value = number
            given = drawn(kind, name, seed, number)
            end = ending(kind, given)
            done["endings"]["bad" if isinstance(end, Fault) else end] += 1
            if isinstance(end, Fault):
                known = (end.place, end.error) in seen
                seen.add((end.place, end.error))
                shown = None if known else repr(given)[:_LONGEST]
                done["faults"].append({"number": number, **end.to_dict(), "input": shown})
    return done


def _chunk_apart(name: str, first: int, count: int, seed: int) -> Done:
    """Run inputs in a process of their own; what kills it or hangs is a fault, and the rest goes on."""
    context, last = multiprocessing.get_context("spawn"), first + count
    total: Done = {"endings": Counter(), "faults": []}
    while first < last:
        ours, theirs = context.Pipe()
        at = context.Value("q", first - 1)
        process = context.Process(
            target=_serve, args=(theirs, name, first, last - first, seed, at), daemon=True
        )
        process.start()
        theirs.close()
        moved, number = time.monotonic(), at.value
        while not ours.poll(1.0) and process.is_alive() and time.monotonic() - moved < _WALL_SECONDS:
            if at.value != number:
                moved, number = time.monotonic(), at.value
        try:
            done = ours.recv() if ours.poll(1.0) else None
        except EOFError:
            done = None
        slow = time.monotonic() - moved >= _WALL_SECONDS
        process.kill()
        process.join()
        if done is None:
            blamed = max(first, at.value)
            what = "takes too long" if slow else f"the process died ({process.exitcode})"
            fault = Fault("nowhere", what, "run it again with --repeat").to_dict()
            before = _chunk_apart(name, first, blamed - first, seed)
            done = {"endings": Counter(before["endings"]) + Counter({"bad": 1}), "faults": before["faults"]}
            done["faults"].append({"number": blamed, **fault, "input": None})
            first = blamed + 1
        else:
            first = last
        total["endings"] += Counter(done["endings"])
        total["faults"] += done["faults"]
    return total


def _serve(pipe: Any, name: str, first: int, count: int, seed: int, at: Any) -> None:
    if sys.platform == "linux":  # an input that asks for all memory gets a MemoryError, and not the machine
        import resource

        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = pages * resource.getpagesize() + _MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))
    pipe.send(_chunk_here(name, first, count, seed, at))


# The report ------------------------------------------------------------------------------------------------


def _report(found: Sequence[tuple[str, Done]]) -> dict[str, Any]:
    """Count endings by kind, and group faults by the place that raised."""
    kinds: dict[str, Counter[str]] = {}
    groups: dict[tuple[str, str, str], dict[str, Any]] = {}
    for name, done in found:
        kinds.setdefault(name, Counter()).update(done["endings"])
        for fault in done["faults"]:
            empty = {"kind": name, **fault, "count": 0, "numbers": []}
            group = groups.setdefault((name, fault["place"], fault["error"]), empty)
            group["count"] += 1
            group["numbers"] = [*group["numbers"], fault["number"]][:_SHOWN]
            if fault["input"] is not None and len(fault["input"]) < len(
                group["input"] or fault["input"] + " "
            ):
                group["input"], group["message"] = fault["input"], fault["message"]
    endings = {name: dict(count) for name, count in kinds.items()}
    return {"endings": endings, "faults": sorted(groups.values(), key=lambda group: -group["count"])}


def _table(report: dict[str, Any], seed: int) -> str:
    lines, total = [], 0
    for name, endings in report["endings"].items():
        ends = ", ".join(f"{count} {word}" for word, count in sorted(endings.items()))
        lines.append(f"{name:9} {sum(endings.values()):7}: {ends}")
        total += sum(endings.values())
    for group in report["faults"]:
        lines.append(f"\n{group['count']:6}  {group['place']}  {group['error']}")
        lines.append(f"        {group['message'][:300]}")
        again = f"{group['kind']}:{group['numbers'][0]}"
        lines.append(f"        again: python -m benchmarks run fuzz --seed {seed} --repeat {again}")
        if group["input"] is not None:
            shown = group["input"].encode("ascii", "backslashreplace").decode()
            lines.append(f"        input: {shown[:300]}")
    bad = sum(group["count"] for group in report["faults"])
    return "\n".join([*lines, f"\n{total} inputs, {bad} ended badly, at {len(report['faults'])} places"])
