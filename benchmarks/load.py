"""`batch answer` under faults: a server that fails and stalls, kills, and half of the money.

The command runs in a process of its own and is killed; each time it is started again with the same
arguments. In the end every question must be answered once, the server's bill must lie within what the
ledger counts, and that within the total. A second run is given half of what the first spent.
"""

from __future__ import annotations

import argparse
import json
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from benchmarks.faults import INTO, OUT, dollars
from benchmarks.processes import resident_mb
from benchmarks.runner import Measured, at_least, note, write_json, write_text
from mio_rag.batch.ask import read_questions
from mio_rag.corpora.load import load_dataset
from mio_rag.generation import ScriptedGenerator
from mio_rag.policies.compose import compose
from mio_rag.policies.setup import Setup
from mio_rag.policy import policy_of
from mio_rag.pool import Candidates
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.minilm import packaged_minilm
from mio_rag.retrieval.retriever import Retriever
from mio_rag.storage import read_json

T = TypeVar("T")
_POLICY = f"""
[price]
token = 0.002

[models.reader]
input = {INTO}
output = {OUT}

[limits]
budget = 256
max_tokens = 16
"""
_KILL_SECONDS, _LOOK_SECONDS = (0.5, 10.0), 0.5  # after the first new answer
#: Policies whose decisions are timed.
_DECIDING: Mapping[str, dict[str, Any]] = {
    "price": {"price": {"token": 0.002}},
    "price, another search": {"price": {"token": 0.0005}, "repeat": {"by": "price", "most": 1}},
    "total, another search by the process": {
        "price": {"total": 10**7, "questions": 10_000},
        "repeat": {"by": "process", "most": 2},
    },
}


def measure(given: argparse.Namespace) -> Measured:
    """Run with enough money, then with half of it; and time decisions without a model."""
    at_least(given, questions=1, kills=0, decisions=1)
    work, runs = given.work, {}
    _make_ready(work, given.questions)
    url, bill = work / "url", work / "bill.json"
    url.unlink(missing_ok=True)
    server = subprocess.Popen([sys.executable, "-m", "benchmarks.faults", str(url), str(bill)])
    try:
        while not url.is_file() or not bill.is_file():
            time.sleep(0.1)
        options = f"timeout_seconds=1&tokenizer={packaged_minilm()}"
        spec = f"openai:{url.read_text(encoding='utf-8')}#scripted?{options}"
        runs["all"] = _run(work, "all", spec, bill, given.questions, 1000.0, given.kills, given.seed)
        half, kills = runs["all"]["spent"] / 2, max(1, given.kills // 3)
        runs["half"] = _run(work, "half", spec, bill, given.questions, half, kills, given.seed + 1)
    finally:
        server.terminate()
        server.wait()
    problems = [*_problems(runs["all"], given.questions), *_problems(runs["half"], None)]
    deciding = _deciding(work, given.decisions)
    lines = [
        f"{name}: {run['answered']} of {run['questions']} answered, {run['kills']} kills, "
        f"${run['spent']:.4f} spent, ${run['lost']:.4f} lost, total ${run['total']:.4f}, "
        f"peak {run['memory']['peak_mb']} MB"
        for name, run in runs.items()
    ]
    lines += [f"deciding, {n}: {1e3 * d['median_seconds']:.1f} ms of CPU" for n, d in deciding.items()]
    report = {"questions": given.questions, "runs": runs, "deciding": deciding, "problems": problems}
    return Measured(report, "\n".join([*lines, *problems]), wrong=len(problems))


def _make_ready(work: Path, questions: int) -> None:
    if (work / "policy.toml").is_file():
        return
    demo = load_dataset("demo")
    CorpusIndex.build(demo.passages, "tfidf", demo.name).save(work / "INDEX", overwrite=True)
    lines = (
        json.dumps({"id": f"q{k}", "question": f"{demo.questions[k % len(demo.questions)].text} ({k})"})
        for k in range(questions)
    )
    write_text(work / "questions.jsonl", "\n".join(lines) + "\n")
    write_text(work / "policy.toml", _POLICY)


def _run(
    work: Path, name: str, spec: str, bill: Path, questions: int, total: float, kills: int, seed: int
) -> dict[str, Any]:
    """Run one batch with so many kills; return its summary, the growth of its memory, and the bill."""
    done = work / f"{name}.json"
    if done.is_file():
        return dict(read_json(done))
    out, progress = work / name, work / f"{name}-progress.json"
    command = [
        sys.executable, "-m", "mio_rag", "batch", "answer",
        str(work / "INDEX"), str(work / "questions.jsonl"),
        "--out", str(out), "--policy", str(work / "policy.toml"), "--total-dollars", f"{total:.9f}",
        "--model", spec, "--concurrency", "8", "--limit", str(questions), "--json",
    ]  # fmt: skip
    new = {"killed": 0, "before": _billed(bill)}
    known: dict[str, Any] = read_json(progress) if progress.is_file() else new
    killed, drawn = int(known["killed"]), random.Random(f"{seed} {known['killed']}")
    seen: list[tuple[int, float]] = []
    while True:
        write_json(progress, {"killed": killed, "before": known["before"]})
        run = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        seen.clear()
        if not _is_killed(run, out, drawn.uniform(*_KILL_SECONDS) if killed < kills else None, seen):
            break
        killed += 1
        note(f"{name}: killed {killed} times, {_answered(out)} of {questions} answered")
    assert run.stdout is not None
    summary = json.loads(run.stdout.read())
    summary.pop("out")
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    rows = _lines(out)
    expected = [round((t["prompt_tokens"] * INTO + t["completion_tokens"] * OUT) * 1e3) for _, t in rows]
    found = {
        **summary,
        "kills": killed,
        "nothing_asked_again": json.loads(again.stdout)["spent"] == summary["spent"],
        "charged_otherwise": sum(abs(cost - e) > 1 for (cost, _), e in zip(rows, expected, strict=True)),
        "memory": _memory(seen),
        "cpu_seconds": float(np.mean([t["cpu_seconds"] for _, t in rows] or [0.0])),
        "bill": {key: count - known["before"].get(key, 0) for key, count in _billed(bill).items()},
    }
    write_json(done, found)
    return found


def _is_killed(
    run: subprocess.Popen[str], out: Path, after: float | None, seen: list[tuple[int, float]]
) -> bool:
    """Wait for a run and watch its memory; return whether it was killed `after` seconds of new answers."""
    before, first = _answered(out), None
    while run.poll() is None:
        time.sleep(_LOOK_SECONDS)
        if (answered := _answered(out)) > before:
            first = first or time.monotonic()
            seen.append((answered, resident_mb(run.pid)))
        if after is not None and first is not None and time.monotonic() - first >= after:
            run.kill()
            run.communicate()
            return True
    return False


def _memory(seen: Sequence[tuple[int, float]]) -> dict[str, Any]:
    picked = np.linspace(0, len(seen) - 1, min(11, len(seen))).astype(int)
    curve = [[seen[k][0], round(seen[k][1], 1)] for k in picked]
    return {"mb_by_answered": curve, "peak_mb": round(max((size for _, size in seen), default=0.0), 1)}


def _answered(out: Path) -> int:
    try:
        return len(_lines(out))
    except sqlite3.OperationalError:  # the ledger is being made
        return 0


def _lines(out: Path) -> list[tuple[int, dict[str, Any]]]:
    """Return cost and result of every answered question."""
    if not (out / "ledger.sqlite").is_file():
        return []
    with closing(sqlite3.connect(out / "ledger.sqlite")) as ledger:
        found = ledger.execute("SELECT cost, told FROM questions WHERE state = 'answered'").fetchall()
    return [(int(cost), json.loads(line)) for cost, line in found]


def _billed(bill: Path) -> dict[str, int]:
    time.sleep(1.5)  # it is written twice a second
    found: dict[str, int] = read_json(bill)
    return found


def _problems(run: Mapping[str, Any], questions: int | None) -> list[str]:
    """Return what must not be; `questions` is how many must be answered, None: what the total allows."""
    bill, counted = run["bill"], run["spent"] + run["lost"]
    billed = dollars(bill)
    found = []
    if billed > counted + 1e-9:
        found.append(f"the server billed ${billed:.6f}, the ledger counts ${counted:.6f}")
    if max(billed, counted) > run["total"] + 1e-9:
        found.append(f"${max(billed, counted):.6f} were spent, the total is ${run['total']:.6f}")
    if questions is not None and run["answered"] != questions:
        found.append(f"{run['answered']} of {questions} questions are answered")
    if run["charged_otherwise"]:
        found.append(f"{run['charged_otherwise']} questions were charged otherwise than once")
    if not run["nothing_asked_again"]:
        found.append("a finished batch asked again")
    return found


# CPU time of decisions, without searching and without a model -----------------------------------------------


class _Timed(Retriever):
    """Count the CPU seconds of searches."""

    searching = 0.0
    _inside = False

    def _timed(self, search: Callable[[], T]) -> T:
        if self._inside:  # one search calls another
            return search()
        self._inside, began = True, time.process_time()
        try:
            return search()
        finally:
            self._inside = False
            self.searching += time.process_time() - began

    def retrieve(self, question: str) -> Candidates:
        return self._timed(lambda: super(_Timed, self).retrieve(question))

    def ranked(self, text: str, words: str | None = None) -> list[int]:
        return self._timed(lambda: super(_Timed, self).ranked(text, words))

    def pool_of(self, question: str, ranking: Sequence[int], fused: Mapping[int, float]) -> Candidates:
        return self._timed(lambda: super(_Timed, self).pool_of(question, ranking, fused))


def _deciding(work: Path, questions: int, warm: int = 5) -> dict[str, dict[str, float]]:
    index, found = CorpusIndex.load(work / "INDEX"), {}
    asked = read_questions(work / "questions.jsonl")[: questions + warm]
    for name, policy in _DECIDING.items():
        reader, retriever = ScriptedGenerator(lambda prompt: "yes"), _Timed(index)
        made = compose(policy_of(policy, name), Setup(retriever=retriever))
        session = replace(made, kit=replace(made.kit, retriever=retriever))
        took = []
        for question in asked:
            before, began = retriever.searching, time.process_time()
            session.attempt(question, reader, 1024)
            took.append(time.process_time() - began - (retriever.searching - before))
        session.close()
        kept = np.array(took[warm:] or took)
        found[name] = {
            "median_seconds": float(np.median(kept)),
            "p95_seconds": float(np.quantile(kept, 0.95)),
        }
    return found
