"""This checkout against another one, in turn on one machine: time, own calls, memory.

Every round starts new processes of both checkouts, the other one first in every second round, so that slow
phases of the machine meet both. An index of the bundled set is made by each checkout for itself.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.runner import Measured, note, text_table
from mio_rag.errors import InputError

_HERE = Path(__file__).parents[1]
_QUESTION = "How long is the bridge?"
#: Measure -> its unit.
MEASURES = {
    "ask_ms": "warm `ask`, ms of CPU time a question",
    "ask_calls": "own Python calls a question",
    "ask_files": "own files that a question runs through",
    "kernel_ms": "proof on demo pools, ms a program",
    "select_seconds": "cold `mio-rag select`, CPU seconds",
    "select_megabytes": "its peak memory, MB",
}
_PROBE = """
import json, statistics, sys, time
from pathlib import Path
import numpy as np
from mio_rag.ask import ask
from mio_rag.corpora.load import load_dataset
from mio_rag.formulations import SelectionProgram
from mio_rag.generation import make_generator
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.retriever import Retriever
from mio_rag.solvers import SolveOptions, solve

index, count, root = CorpusIndex.load(Path(sys.argv[1])), int(sys.argv[2]), sys.argv[3]
questions = [question.text for question in load_dataset("demo").questions[:count]]
reader = make_generator("extractive")
for question in questions[:3]:
    ask(index, question, reader)
times = []
for question in questions:
    began = time.process_time()
    ask(index, question, reader)
    times.append(time.process_time() - began)
calls, files = 0, set()
def seen(frame, event, argument):
    global calls
    if event == "call" and frame.f_code.co_filename.startswith(root):
        calls += 1
        files.add(frame.f_code.co_filename)
for question in questions:
    sys.setprofile(seen)
    ask(index, question, reader)
    sys.setprofile(None)
retriever, solving = Retriever(index), []
for question in questions:
    pool = retriever.retrieve(question)
    vectors = np.asarray(pool.embeddings, dtype=float)
    alike = np.clip(vectors @ vectors.T, 0, None)
    np.fill_diagonal(alike, 0)
    costs = np.array([max(1, len(pool.passage(i).text) // 4) for i in range(len(pool))], dtype=float)
    program = SelectionProgram(vectors @ vectors.mean(axis=0), 0.1 * (alike + alike.T) / 2, costs, 512)
    solve(program, "branch_and_bound", SolveOptions(time_limit_seconds=5))
    began = time.process_time()
    solve(program, "branch_and_bound", SolveOptions(time_limit_seconds=5))
    solving.append(time.process_time() - began)
print(json.dumps({
    "ask_ms": 1000 * statistics.median(times),
    "ask_calls": calls / len(questions),
    "ask_files": len(files),
    "kernel_ms": 1000 * statistics.median(solving),
}))
"""


def measure(given: argparse.Namespace) -> Measured:
    """Alternate both checkouts; report medians over rounds and the ratio of this one to the other."""
    base = given.base.resolve()
    if not (base / "mio_rag" / "__init__.py").is_file():
        raise InputError(f"--base '{given.base}' holds no package mio_rag: name another checkout")
    checkouts = {"base": base, "this": _HERE}
    rounds: list[dict[str, dict[str, float]]] = []
    with tempfile.TemporaryDirectory() as folder:
        indexes = {name: Path(folder) / name for name in checkouts}
        for name, root in checkouts.items():
            note(f"{name}: index, and kernels compiled")
            _run(root, folder, "-m", "mio_rag", "index", "demo", "--out", str(indexes[name]))
            _probe(root, folder, indexes[name], 3)
        for k in range(given.rounds):
            order = list(checkouts.items())[:: -1 if k % 2 else 1]
            found = {name: _round(root, folder, indexes[name], given.questions) for name, root in order}
            rounds.append(found)
            note(f"round {k + 1} of {given.rounds}")
    report = summarize(rounds)
    return Measured({"rounds": rounds, "summary": report, "questions": given.questions}, table(report))


def _round(root: Path, folder: str, index: Path, questions: int) -> dict[str, float]:
    return {**_probe(root, folder, index, questions), **_cold(root, folder, index)}


def summarize(rounds: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, Any]]:
    """Return medians of both, and median, least and largest of the ratios of rounds."""
    result = {}
    for name in MEASURES:
        ratios = [one["this"][name] / one["base"][name] for one in rounds]
        result[name] = {
            "base": statistics.median(one["base"][name] for one in rounds),
            "this": statistics.median(one["this"][name] for one in rounds),
            "ratio": statistics.median(ratios),
            "least": min(ratios),
            "largest": max(ratios),
        }
    return result


def table(summary: dict[str, dict[str, Any]]) -> str:
    """Lay out medians and ratios."""
    rows = [
        (MEASURES[name], f"{one['base']:.4g}", f"{one['this']:.4g}", f"{one['ratio']:.2f}",
         f"{one['least']:.2f} to {one['largest']:.2f}")
        for name, one in summary.items()
    ]  # fmt: skip
    return text_table(("", "base", "this", "ratio", "of rounds"), rows)


def _environment(root: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(root), "PYTHONHASHSEED": "0"}


def _run(root: Path, folder: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=_environment(root), capture_output=True, text=True
    )
    if done.returncode:
        raise InputError(f"{root}: {' '.join(arguments[:3])} failed: {done.stderr.strip()[-300:]}")
    return done.stdout


def _probe(root: Path, folder: str, index: Path, questions: int) -> dict[str, float]:
    result = _run(root, folder, "-c", _PROBE, str(index), str(questions), str(root))
    found: dict[str, float] = json.loads(result.splitlines()[-1])
    return found


def _cold(root: Path, folder: str, index: Path) -> dict[str, float]:
    """Return CPU seconds and peak memory of one `mio-rag select` in a new process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "mio_rag", "select", str(index), _QUESTION, "--json"],
        cwd=folder,
        env=_environment(root),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise InputError(f"{root}: mio-rag select ended with {process.returncode}")
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return {"select_seconds": used.ru_utime + used.ru_stime, "select_megabytes": used.ru_maxrss / unit}
