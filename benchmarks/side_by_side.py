"""This checkout against another one, in turn on one machine: time, own calls, memory, answers over HTTP.

Every round starts new processes of both checkouts, the other one first in every second round, so that slow
phases of the machine meet both; ratios are those of a round. Each checkout makes its own indexes: of the
bundled set, and of the pages of the guide. What a checkout cannot do is left out of its rounds.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.runner import Measured, at_least, note, text_table
from benchmarks.service import Service, free_port, waiting_model
from mio_rag.corpora.load import load_dataset
from mio_rag.errors import InputError

_HERE = Path(__file__).parents[1]
_QUESTION = "How long is the bridge?"
_ABOUT_PAGES = (
    *("How is a budget set?", "What does a key of the service limit?", "Which stores can be searched?"),
    *("How do I keep to some documents?", "What is lambda_2?", "How do I write a method of my own?"),
    *("What happens when documents change?", "Which formats of files are read?"),
    "What is a price of a token?",
    *("How is a selection proven?", "How do I use LangChain?", "How is a policy learned?"),
)


@dataclass(frozen=True)
class Goal:
    """A measure. It is compared with the same one of the base, or with another one of this checkout."""

    text: str
    ratio: float | None = None  # largest; of a rate least
    value: float | None = None  # largest
    is_rate: bool = False
    against: str = ""


MEASURES = {
    "select_seconds": Goal("cold `select`, index: CPU seconds", 0.4),
    "select_wall": Goal("the same, seconds", 0.4),
    "select_megabytes": Goal("its peak memory, MB", 0.2),
    "folder_seconds": Goal("cold `select`, unchanged folder, against its index: CPU seconds", 1.1,
                           against="indexed_seconds"),
    "folder_wall": Goal("the same, seconds", 1.1, against="indexed_wall"),
    "ask_ms": Goal("warm `ask`, extractive: CPU ms", 0.6),
    "ask_calls": Goal("own Python calls a question", value=5000),
    "ask_files": Goal("own files that a question runs through", value=30),
    "pages_256_ms": Goal("warm `select`, documents, 256 tokens: CPU ms", 0.5),
    "pages_1024_ms": Goal("the same, 1,024 tokens", 0.5),
    "new_ms": Goal("the same, 256 tokens, questions that were not asked before"),
    "kernel_ms": Goal("proof on demo pools: CPU ms"),
    "select_1": Goal("`/select`, 1 client: a second", is_rate=True),
    "select_16": Goal("`/select`, 16 clients: a second", 2.5, is_rate=True),
    "ask_1": Goal("`/ask`, 1 client: a second", is_rate=True),
    "ask_16": Goal("`/ask`, 16 clients: a second", 6, is_rate=True),
    "service_megabytes": Goal("memory of the service, MB"),
    "growth": Goal("its last reading over that of the first round", value=1.05),
}  # fmt: skip
_PROBE = """
import json, statistics, sys, time
from pathlib import Path
import numpy as np
try:
    from mio_rag.session.ask import ask
except ImportError:
    from mio_rag.ask import ask
from mio_rag.corpora.load import load_dataset
from mio_rag.formulations import SelectionProgram
from mio_rag.generation import make_generator
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.selector import Selector
from mio_rag.solvers import SolveOptions, solve

index, pages = CorpusIndex.load(Path(sys.argv[1])), CorpusIndex.load(Path(sys.argv[2]))
count, root, about_pages = int(sys.argv[3]), sys.argv[4], json.loads(sys.argv[5])
questions = [question.text for question in load_dataset("demo").questions[:count]]
reader, found = make_generator("extractive"), {}
def median_ms(work, items, known=True):
    for item in items if known else items[:3]:
        work(item)
    times = []
    for item in items:
        began = time.process_time()
        work(item)
        times.append(time.process_time() - began)
    return 1000 * statistics.median(times)
found["ask_ms"] = median_ms(lambda text: ask(index, text, reader, budget_tokens=256), questions)
calls, files = 0, set()
def seen(frame, event, argument):
    global calls
    if event == "call" and frame.f_code.co_filename.startswith(root):
        calls += 1
        files.add(frame.f_code.co_filename)
for question in questions:
    sys.setprofile(seen)
    ask(index, question, reader, budget_tokens=256)
    sys.setprofile(None)
found |= {"ask_calls": calls / len(questions), "ask_files": len(files)}
try:
    from mio_rag import Collection
    select = Collection(pages).select
except ImportError:
    selector, searched = Selector(units="auto"), Retriever(pages)
    def select(question, budget):
        return selector.select(searched.retrieve(question), budget)
for budget in (256, 1024):
    found[f"pages_{budget}_ms"] = median_ms(lambda text: select(text, budget=budget), about_pages)
found["new_ms"] = median_ms(lambda text: select(f"{text} {time.time_ns()}", budget=256), about_pages, False)
retriever, programs = Retriever(index), []
for question in questions:
    pool = retriever.retrieve(question)
    vectors = np.asarray(pool.embeddings, dtype=float)
    alike = np.clip(vectors @ vectors.T, 0, None)
    np.fill_diagonal(alike, 0)
    costs = np.array([max(1, len(pool.passage(i).text) // 4) for i in range(len(pool))], dtype=float)
    programs.append(SelectionProgram(vectors @ vectors.mean(axis=0), 0.1 * (alike + alike.T) / 2, costs, 512))
options = SolveOptions(time_limit_seconds=5)
found["kernel_ms"] = median_ms(lambda program: solve(program, "branch_and_bound", options), programs)
print(json.dumps(found))
"""
#: Starts a command. A small process does, since on Linux the peak memory includes that of the starter.
_STARTER = """
import json, os, subprocess, sys, time
began, quiet = time.perf_counter(), subprocess.DEVNULL
process = subprocess.Popen(sys.argv[1:], stdout=quiet, stderr=quiet)
_, status, used = os.wait4(process.pid, 0)
megabytes = used.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
seconds = used.ru_utime + used.ru_stime, time.perf_counter() - began
print(json.dumps([os.waitstatus_to_exitcode(status), *seconds, megabytes]))
"""


@dataclass(frozen=True)
class _Checkout:
    """A checkout, and where it works."""

    root: Path
    folder: Path
    pages: Path

    def command(self, *arguments: str, **files: Any) -> subprocess.Popen[str]:
        """Start Python."""
        left = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        own: dict[str, Any] = {"PYTHONPATH": self.root, "MIO_RAG_CACHE": self.folder}
        own |= {"PYTHONHASHSEED": 0, "OMP_NUM_THREADS": 1}
        environment = {**left, **{name: str(value) for name, value in own.items()}}
        return subprocess.Popen(
            [sys.executable, *arguments], cwd=self.folder, env=environment, text=True, **files
        )

    def run(self, *arguments: str) -> str:
        """Run Python; return what it prints."""
        process = self.command(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        printed, problem = process.communicate()
        if process.returncode:
            raise InputError(f"{self.root}: {' '.join(arguments[:3])} failed: {problem.strip()[-300:]}")
        return printed

    def prepare(self) -> None:
        """Compile what an installation compiles, index both collections, and run everything once."""
        self.folder.mkdir()
        if (self.root / "solvers/build.py").is_file():
            self.run(str(self.root / "solvers/build.py"))
        for source, name in (("demo", "demo"), (str(self.pages), "pages")):
            self.run("-m", "mio_rag", "index", source, "--out", str(self.folder / name))
        self.measured(3)

    def measured(self, questions: int) -> dict[str, float]:
        """Return what cold processes measure, and a warm one."""
        demo, pages = self.folder / "demo", self.folder / "pages"
        told = (str(demo), str(pages), str(questions), str(self.root), json.dumps(_ABOUT_PAGES))
        found: dict[str, float] = json.loads(self.run("-c", _PROBE, *told).splitlines()[-1])
        for name, source in (("select", demo), ("indexed", pages), ("folder", self.pages)):
            found |= self._cold(name, str(source), _QUESTION if source == demo else _ABOUT_PAGES[0])
        return found

    def _cold(self, name: str, source: str, question: str) -> dict[str, float]:
        """CPU seconds, seconds and peak MB of `mio-rag select`; nothing if it fails on a folder."""
        command = (sys.executable, "-m", "mio_rag", "select", source, question, "--json")
        code, *found = json.loads(self.run("-c", _STARTER, *command))
        if code and name != "folder":
            raise InputError(f"{self.root}: mio-rag select of {source} ended with {code}")
        names = (f"{name}_{one}" for one in ("seconds", "wall", "megabytes"))
        return {} if code else dict(zip(names, found, strict=True))

    @contextmanager
    def service(self, model: str) -> Iterator[Service]:
        """Serve the bundled set while the block runs."""
        known, port, quiet = self.run("-m", "mio_rag", "serve", "--help"), free_port(), subprocess.DEVNULL
        option = "--generator" if "--generator" in known else "--model"
        told = (str(self.folder / "demo"), "--port", str(port), "--concurrency", "16", option, model)
        process = self.command("-m", "mio_rag", "serve", *told, stdout=quiet, stderr=quiet)
        try:
            questions = [question.text for question in load_dataset("demo").questions]
            service = Service(f"http://127.0.0.1:{port}", process, questions)
            service.wait()
            yield service
        finally:
            process.terminate()
            process.wait(30)


def measure(given: argparse.Namespace) -> Measured:
    """Alternate both checkouts; report medians over rounds and the ratio of this one to the other."""
    at_least(given, rounds=1, questions=1, seconds=0.1, requests=1)
    rounds: list[dict[str, dict[str, float]]] = []
    with tempfile.TemporaryDirectory() as temporary:
        base, commit = checkout_of(given.base, Path(temporary) / "checkout")
        pages = Path(shutil.copytree(_HERE / "docs/pages", Path(temporary) / "guide"))
        checkouts = {"base": _Checkout(base, Path(temporary) / "base", pages)}
        checkouts["this"] = _Checkout(_HERE, Path(temporary) / "this", pages)
        for name, one in checkouts.items():
            note(f"{name}: indexes, and kernels compiled")
            one.prepare()
        note("cold and warm processes")
        for k in range(given.rounds):
            rounds.append({name: one.measured(given.questions) for name, one in _turn(checkouts, k)})
        with (
            waiting_model(Path(temporary)) as model,
            checkouts["base"].service(model) as other,
            checkouts["this"].service(model) as own,
        ):
            services = {"base": other, "this": own}
            for service in services.values():
                service.load("ask", 2, 0.1)  # what is loaded with the first requests
            for k, found in enumerate(rounds):
                note(f"HTTP, round {k + 1} of {given.rounds}")
                for name, service in _turn(services, k):
                    found[name] |= service.loads(given.seconds)
            while own.statuses["200"] < given.requests:
                own.load("select", 16, given.seconds)
            rounds[-1]["this"]["growth"] = own.megabytes / own.first
            statuses = {name: dict(one.statuses) for name, one in services.items()}
            own.load("select", given.overload, given.seconds)
            statuses["overload"] = dict(own.statuses - Counter(statuses["this"]))
    report = summarize(rounds)
    seconds = {
        name: {load: dict(zip(("p50", "p99"), np.percentile(found, (50, 99)).tolist(), strict=True))
               for load, found in one.seconds.items()}
        for name, one in services.items()
    }  # fmt: skip
    data = {"base": commit, "rounds": rounds, "summary": report, "statuses": statuses, "seconds": seconds}
    wrong = [set(statuses[name]) != {"200"} for name in services]
    wrong += [not set(statuses["overload"]) <= {"200", "503"}, own.without_retry_after > 0]
    return Measured(data, f"{table(report)}\nHTTP: {statuses}", wrong=sum(wrong))


def _turn(both: Mapping[str, Any], k: int) -> list[tuple[str, Any]]:
    return list(both.items())[:: -1 if k % 2 else 1]


def checkout_of(given: str, folder: Path) -> tuple[Path, str]:
    """Return the root of the other checkout, and its name; a commit is unpacked into the folder."""
    root = Path(given).resolve()
    if not root.is_dir():
        done = subprocess.run(["git", "-C", str(_HERE), "archive", given], capture_output=True)
        if done.returncode:
            raise InputError(f"--base '{given}' is no folder and no commit: name another checkout")
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as packed:
            packed.extractall(folder, filter="data")
        root = folder
    if not (root / "mio_rag" / "__init__.py").is_file():
        raise InputError(f"--base '{given}' holds no package mio_rag: name another checkout")
    return root, given


def summarize(rounds: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, Any]]:
    """Return medians of both; median and ends of the ratios of rounds; and whether a goal is met."""
    result = {}
    for name, goal in MEASURES.items():
        found = {side: [one[side][name] for one in rounds if name in one[side]] for side in ("base", "this")}
        side, other = ("this", goal.against) if goal.against else ("base", name)
        pairs = [(one["this"].get(name), one[side].get(other)) for one in rounds]
        ratios = [a / b for a, b in pairs if a is not None and b]
        row = {side: statistics.median(values) if values else None for side, values in found.items()}
        row["ratio"] = statistics.median(ratios) if ratios else None
        row |= {"least": min(ratios, default=None), "largest": max(ratios, default=None), "met": None}
        for reached, wanted in ((row["ratio"], goal.ratio), (row["this"], goal.value)):
            if reached is not None and wanted is not None:
                row["met"] = reached >= wanted if goal.is_rate else reached <= wanted
        result[name] = row
    return result


def table(summary: Mapping[str, Mapping[str, Any]]) -> str:
    """Lay out medians, ratios and goals."""
    rows = []
    for name, one in summary.items():
        goal = MEASURES[name]
        sign, wanted = (">=" if goal.is_rate else "<="), goal.ratio or goal.value
        lacking = "no such door" if name.startswith("folder") else "-"
        base, this = ("-" if one[k] is None else f"{one[k]:.4g}" for k in ("base", "this"))
        ends = [f"{one[k]:.2f}" for k in ("ratio", "least", "largest") if one[k] is not None]
        rows.append((
            goal.text, lacking if one["base"] is None else base, this,
            f"{ends[0]} ({ends[1]} to {ends[2]})" if ends else "-",
            "-" if wanted is None else f"{sign} {wanted:g}",
            {True: "met", False: "missed", None: ""}[one["met"]],
        ))  # fmt: skip
    return text_table(("", "base", "this", "ratio (rounds)", "goal", ""), rows)
