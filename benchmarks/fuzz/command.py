"""`python -m benchmarks fuzz`: random and mutated inputs; each must give a valid result or a clear error.

Well means: a result whose claims hold when they are recomputed (objective, budget, bound, strict JSON; small
programs also against enumeration), or an error of the package's own with a message. On the command line: the
documented exit code, one message. No other exception, no RuntimeWarning, no hang, no end of memory. Each
input is drawn from seed, kind and number alone: ``--repeat programs:17`` shows one again.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import platform
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.files import write_json
from benchmarks.fuzz.endings import Fault, ending
from benchmarks.fuzz.workers import KINDS, Chunk, Done, drawn, here, make, side_by_side
from mio_rag import __version__, errors
from mio_rag.cli.terminal import progress_bar
from mio_rag.errors import InputError

_SHOWN = 20  # numbers of inputs that are listed for a place
_LONGEST = 4000  # characters of an input in the report


def command(given: argparse.Namespace) -> int:
    """Run it; returns 1 where an input did not end well."""
    chosen = [name.strip() for name in given.only.split(",") if name.strip()]
    problems = [f"--only: '{name}' is unknown: choose from {', '.join(KINDS)}" for name in chosen]
    problems = [problem for name, problem in zip(chosen, problems, strict=True) if name not in KINDS]
    problems += [] if chosen else ["--only names no kind of input"]
    for name, least in (("inputs", 1), ("seed", 0), ("processes", 0)):
        if getattr(given, name) < least:
            problems.append(f"--{name} {getattr(given, name)} must be >= {least}")
    if given.minutes is not None and not given.minutes > 0:
        problems.append(f"--minutes {given.minutes:g} must be > 0")
    if problems:
        raise InputError(problems)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a name that is drawn must not be looked for
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if given.repeat is not None:
        return _repeat(given.repeat, given.seed)
    counts = _counts(chosen, given.inputs)
    partial = given.out.with_suffix(".partial.jsonl")
    head = {"seed": given.seed, "counts": counts, "versions": _versions()}
    finished = _resumed(partial, head) if given.resume else []
    rest = _left(_chunks(counts), finished)
    until = None if given.minutes is None else time.monotonic() + 60 * given.minutes
    run = here(rest, given.seed) if given.processes == 0 else side_by_side(rest, given.seed, given.processes)
    total = sum(counts.values())
    with closing(run), _ledger(partial, head, finished) as write, progress_bar("inputs", total) as advance:
        advance(sum(done.chunk.count for done in finished))
        for done in run:
            finished.append(done)
            write(done)
            advance(done.chunk.count)
            if until is not None and time.monotonic() > until:
                break
    report = _report(given, counts, finished)
    write_json(given.out, report)
    partial.unlink(missing_ok=True)
    print(_table(report, given.seed), file=sys.stderr)
    return 1 if report["faults"] else 0


def _repeat(which: str, seed: int) -> int:
    name, _, number = which.partition(":")
    if name not in KINDS or not number.isdigit():
        raise InputError(f"--repeat {which} must be KIND:NUMBER, with a kind of {', '.join(KINDS)}")
    with tempfile.TemporaryDirectory(prefix="mio-rag-fuzz-") as folder:
        kind = make(name, Path(folder))
        given = drawn(kind, name, seed, int(number))
        print(ascii(given))
        end = ending(kind, given)
        print(f"{end.place}  {end.error}: {end.message}" if isinstance(end, Fault) else end)
        if isinstance(end, Fault):
            try:
                kind.run(given)
            except Exception:
                traceback.print_exc()
        kind.close()
    return 1 if isinstance(end, Fault) else 0


def _counts(chosen: Sequence[str], inputs: int) -> dict[str, int]:
    """Inputs of each kind, by its share among the chosen ones; at least one."""
    whole = sum(KINDS[name][1] for name in chosen)
    return {name: max(1, round(inputs * KINDS[name][1] / whole)) for name in chosen}


def _chunks(counts: dict[str, int]) -> list[Chunk]:
    """All inputs, the kinds in turn, so that a run that is stopped has seen of each."""
    parts: list[tuple[float, Chunk]] = []
    for name, count in counts.items():
        size = max(1, min(200, count // 50))
        for first in range(0, count, size):
            parts.append((first / count, Chunk(name, first, min(size, count - first))))
    return [chunk for _, chunk in sorted(parts, key=lambda part: part[0])]


def _left(chunks: list[Chunk], finished: list[Done]) -> list[Chunk]:
    """What of the chunks is not finished; a process that died may have finished parts of one."""
    held: dict[str, set[int]] = {}
    for done in finished:
        part = done.chunk
        held.setdefault(part.kind, set()).update(range(part.first, part.first + part.count))
    rest = []
    for chunk in chunks:
        open_numbers = [
            k for k in range(chunk.first, chunk.first + chunk.count) if k not in held.get(chunk.kind, set())
        ]
        start = 0
        for i, number in enumerate(open_numbers):
            if i + 1 == len(open_numbers) or open_numbers[i + 1] != number + 1:
                rest.append(Chunk(chunk.kind, open_numbers[start], i + 1 - start))
                start = i + 1
    return rest


@contextmanager
def _ledger(path: Path, head: dict[str, Any], finished: list[Done]) -> Iterator[Any]:
    """A file with a line for every finished chunk, written anew with those that are known."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:

        def write(done: Done) -> None:
            file.write(json.dumps(done.to_dict()) + "\n")
            file.flush()

        file.write(json.dumps(head) + "\n")
        for done in finished:
            write(done)
        yield write


def _resumed(path: Path, head: dict[str, Any]) -> list[Done]:
    """The finished chunks of an interrupted run; none where there is none, or it was another one."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]  # the last line may be half of one
    if not lines or json.loads(lines[0]) != head:
        print(f"{path} is of another seed, other inputs or versions: starting anew", file=sys.stderr)
        return []
    return [
        Done(Chunk(**data["chunk"]), Counter(data["endings"]), data["faults"], data["seconds"])
        for data in map(json.loads, lines[1:])
    ]


@functools.cache
def _versions() -> dict[str, str]:
    """Of all that could change an ending: of the sources, the product's and the fuzzer's, a digest."""
    digest = hashlib.sha256()
    package = Path(errors.__file__).resolve().parent
    folders = [package, package / "solvers", package / "formulations", Path(__file__).resolve().parent]
    for path in sorted({file.resolve() for folder in folders for file in folder.glob("**/*.py")}):
        digest.update(path.read_bytes())
    return {
        "sources": digest.hexdigest()[:16],
        "python": platform.python_version(),
        "numpy": np.__version__,
        "mio-rag": __version__,
    }


def _report(given: argparse.Namespace, counts: dict[str, int], finished: list[Done]) -> dict[str, Any]:
    kinds: dict[str, Any] = {}
    groups: dict[tuple[str, str, str], dict[str, Any]] = {}
    for done in sorted(finished, key=lambda done: (done.chunk.kind, done.chunk.first)):
        kind = kinds.setdefault(done.chunk.kind, {"endings": Counter(), "seconds": 0.0})
        kind["endings"].update(done.endings)
        kind["seconds"] += done.seconds
        for fault in done.faults:
            key = (done.chunk.kind, fault["place"], fault["error"])
            group = groups.setdefault(
                key,
                {"kind": key[0], "place": key[1], "error": key[2], "message": fault["message"], "count": 0}
                | {"numbers": [], "input": None},
            )
            group["count"] += 1
            group["numbers"] = [*group["numbers"], fault["number"]][:_SHOWN]
            shown = fault["input"]
            if shown is not None and (group["input"] is None or len(shown) < len(group["input"])):
                group["input"], group["message"] = shown[:_LONGEST], fault["message"]
    return {
        "benchmark": "fuzz",
        "inputs": {name: sum(kind["endings"].values()) for name, kind in kinds.items()},
        "asked": counts,
        "seed": given.seed,
        "kinds": kinds,
        "faults": sorted(groups.values(), key=lambda group: -group["count"]),
        "versions": _versions(),
        "machine": {"system": platform.system(), "processor": platform.machine()},
        "command": "python -m benchmarks fuzz "
        f"--inputs {given.inputs} --seed {given.seed} --only {given.only}",
    }


def _table(report: dict[str, Any], seed: int) -> str:
    """Endings by kind, then every place with how to see it again."""
    lines = []
    for name, kind in report["kinds"].items():
        ends = ", ".join(f"{count} {word}" for word, count in sorted(kind["endings"].items()))
        lines.append(f"{name:9} {report['inputs'][name]:7} in {kind['seconds']:6.0f} s: {ends}")
    for group in report["faults"]:
        where = f"{group['place']}  {group['error']}"
        lines.append(f"\n{group['count']:6}  {where}\n        {group['message'][:300]}")
        lines.append(f"        again: python -m benchmarks fuzz --seed {seed} --repeat "
                     f"{group['kind']}:{group['numbers'][0]}")  # fmt: skip
        if group["input"] is not None:
            shown = group["input"].encode("ascii", "backslashreplace").decode()
            lines.append(f"        smaller: {shown[:300]}")
    total, bad = sum(report["inputs"].values()), sum(group["count"] for group in report["faults"])
    lines.append(f"\n{total} inputs, {bad} ended badly, at {len(report['faults'])} places")
    return "\n".join(lines)
