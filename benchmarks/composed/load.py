"""`answer-batch` at scale: ten thousand questions, a server that fails and stalls, and kills.

The command runs as a program of its own and is killed at random moments; each time it is started again with
the same arguments. In the end every question must be answered once, and what the server has billed must lie
within what the ledger holds, and that within the total. A second run is given half of what the first spent.
The study itself goes on where it was interrupted.
"""

from __future__ import annotations

import json
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from mio_rag.corpora.load import load_dataset
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.storage import read_json, write_atomically

#: Dollars per million tokens.
INTO, OUT = 0.15, 0.60
_POLICY = f"""
[price]
token = 0.002

[models.reader]
input = {INTO}
output = {OUT}

[limits]
evidence_tokens = 256
answer_tokens = 16
"""
_KILL_SECONDS = (0.5, 10.0)  # after the first new answer
_LOOK_SECONDS = 0.5

Say = Callable[[str], None]


def load(work: Path, questions: int, kills: int, seed: int, say: Say) -> dict[str, Any]:
    """Run all, and say what was found; kills come while questions are under way.

    Parameters
    ----------
    work : Path
        Folder for everything; a study goes on there.
    """
    made_ready(work, questions)
    url, bill = work / "url", work / "bill.json"
    url.unlink(missing_ok=True)
    server = subprocess.Popen([sys.executable, "-m", "benchmarks.composed.server", str(url), str(bill)])
    try:
        while not url.is_file() or not bill.is_file():
            time.sleep(0.1)
        spec = f"openai:{url.read_text(encoding='utf-8')}#scripted?timeout_seconds=1"
        generous = _kept(work / "all.json", lambda: _all(work, spec, bill, questions, kills, seed, say))
        tight = _kept(
            work / "half.json", lambda: _half(work, spec, bill, generous, questions, kills, seed, say)
        )
    finally:
        server.terminate()
        server.wait()
    return {"questions": questions, "seed": seed, "runs": {"all": generous, "half": tight}}


def made_ready(work: Path, questions: int) -> None:
    """The index, the questions and the policy of a load test, made once."""
    work.mkdir(parents=True, exist_ok=True)
    if (work / "policy.toml").is_file():
        return
    demo = load_dataset("demo")
    CorpusIndex.build(demo.passages, "tfidf", demo.name).save(work / "INDEX", overwrite=True)
    lines = (
        json.dumps({"id": f"q{k}", "question": f"{demo.questions[k % len(demo.questions)].text} ({k})"})
        for k in range(questions)
    )
    write_atomically(work / "questions.jsonl", "\n".join(lines) + "\n")
    write_atomically(work / "policy.toml", _POLICY)


def _kept(path: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a file holds; else what is made, which it holds from then on."""
    if path.is_file():
        return dict(read_json(path))
    made = make()
    write_atomically(path, json.dumps(made))
    return made


def _all(
    work: Path, spec: str, bill: Path, questions: int, kills: int, seed: int, say: Say
) -> dict[str, Any]:
    """With more than enough."""
    found = run_of(work, "all", spec, questions, 1000.0, kills, seed, say)
    found["bill"] = _billed(bill)
    found["problems"] = problems_of(found, found["bill"], questions)
    return found


def _half(
    work: Path,
    spec: str,
    bill: Path,
    generous: Mapping[str, Any],
    questions: int,
    kills: int,
    seed: int,
    say: Say,
) -> dict[str, Any]:
    """With half of what all questions cost."""
    found = run_of(work, "half", spec, questions, generous["spent"] / 2, max(1, kills // 3), seed + 1, say)
    after = _billed(bill)
    found["bill"] = {key: count - generous["bill"][key] for key, count in after.items()}
    found["problems"] = problems_of(found, found["bill"], None)
    return found


def _billed(bill: Path) -> dict[str, int]:
    time.sleep(1.5)  # it is written twice a second
    told: dict[str, int] = json.loads(bill.read_text(encoding="utf-8"))
    return told


def run_of(
    work: Path, name: str, spec: str, questions: int, total: float, kills: int, seed: int, say: Say
) -> dict[str, Any]:
    """One batch, killed so many times; what its ledger says in the end, and how its memory grew."""
    out = work / name
    command = [
        sys.executable, "-m", "mio_rag", "answer-batch", str(work / "questions.jsonl"), str(work / "INDEX"),
        "--out", str(out), "--policy", str(work / "policy.toml"), "--total-dollars", f"{total:.9f}",
        "--generator", spec, "--concurrency", "8", "--limit", str(questions), "--json",
    ]  # fmt: skip
    record = work / f"{name}-progress.json"
    kept = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {"killed": 0, "seconds": 0}
    killed, before_seconds, began = int(kept["killed"]), float(kept["seconds"]), time.monotonic()
    luck = random.Random(f"{seed} {killed}")
    seen: list[tuple[int, float]] = []
    while True:
        run = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        seen = []
        if not _is_killed(run, out, luck.uniform(*_KILL_SECONDS) if killed < kills else None, seen):
            break
        killed += 1
        now = {"killed": killed, "seconds": before_seconds + time.monotonic() - began}
        write_atomically(record, json.dumps(now))
        say(f"{name}: killed {killed} times, {_answered(out)} of {questions} answered")
    assert run.stdout is not None
    summary = json.loads(run.stdout.read())
    summary.pop("out")
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    return {
        **summary,
        "kills": killed,
        "seconds": round(before_seconds + time.monotonic() - began, 1),
        "nothing_asked_again": json.loads(again.stdout)["spent"] == summary["spent"],
        "answered_more_than_once": _more_than_once(out),
        "memory": memory_of(seen),
        "cpu_seconds": _worked(out),
    }


def _is_killed(
    run: subprocess.Popen[str], out: Path, after: float | None, seen: list[tuple[int, float]]
) -> bool:
    """Wait for a run, looking at its memory; whether it was killed so long after its first new answer."""
    before, first = _answered(out), None
    while run.poll() is None:
        time.sleep(_LOOK_SECONDS)
        answered = _answered(out)
        if answered > before:
            first = first or time.monotonic()
            if (size := _resident_mb(run.pid)) is not None:
                seen.append((answered, size))
        if after is not None and first is not None and time.monotonic() - first >= after:
            run.kill()
            run.communicate()
            return True
    return False


def _resident_mb(pid: int) -> float | None:
    try:
        for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return None


def memory_of(seen: Sequence[tuple[int, float]]) -> dict[str, Any] | None:
    """How resident memory grew with the questions answered, past the first tenth; None where it is not known.

    Parameters
    ----------
    seen : sequence of (answered, megabytes)
        Of one process.
    """
    if len(seen) < 10:
        return None
    later = np.array(seen[len(seen) // 10 :])
    slope = float(np.polyfit(later[:, 0], later[:, 1], 1)[0]) if np.ptp(later[:, 0]) > 0 else 0.0
    picked = np.linspace(0, len(seen) - 1, 11).astype(int)
    return {
        "mb_by_answered": [[seen[k][0], round(seen[k][1], 1)] for k in picked],
        "mb_per_thousand_questions": round(1000 * slope, 3),
        "peak_mb": round(max(size for _, size in seen), 1),
    }


def _answered(out: Path) -> int:
    if not (out / "ledger.sqlite").is_file():
        return 0
    try:
        with closing(sqlite3.connect(out / "ledger.sqlite")) as ledger:
            row = ledger.execute("SELECT count(*) FROM questions WHERE state = 'answered'").fetchone()
    except sqlite3.OperationalError:
        return 0  # it is being made
    return int(row[0])


def _lines(out: Path) -> list[tuple[int, dict[str, Any]]]:
    """Cost and line of every answered question."""
    with closing(sqlite3.connect(out / "ledger.sqlite")) as ledger:
        found = ledger.execute("SELECT cost, told FROM questions WHERE state = 'answered'").fetchall()
    return [(int(cost), json.loads(told)) for cost, told in found]


def _worked(out: Path) -> dict[str, float]:
    """CPU seconds that the command worked for a question: deciding, searching, and asking the server."""
    worked = np.array([told["cpu_seconds"] for _, told in _lines(out)] or [0.0])
    return {"mean": round(float(worked.mean()), 5), "p95": round(float(np.quantile(worked, 0.95)), 5)}


def _more_than_once(out: Path) -> int:
    """Questions whose ledger holds another cost than that of their one answer."""
    wrong = 0
    for cost, told in _lines(out):
        expected = round((told["prompt_tokens"] * INTO + told["completion_tokens"] * OUT) * 1e3)
        wrong += abs(cost - expected) > 1
    return wrong


def problems_of(run: Mapping[str, Any], bill: Mapping[str, Any], questions: int | None) -> list[str]:
    """What must not be.

    Parameters
    ----------
    questions : int or None
        How many must be answered; None: as many as the total allows.
    """
    found = []
    billed = (bill["prompt_tokens"] * INTO + bill["completion_tokens"] * OUT) / 1e6
    counted = run["spent"] + run["lost"]
    if billed > counted + 1e-9:
        found.append(f"the server billed ${billed:.6f}, and the ledger counts ${counted:.6f}")
    if billed > run["total"] + 1e-9 or counted > run["total"] + 1e-9:
        found.append(f"${max(billed, counted):.6f} were spent, the total is ${run['total']:.6f}")
    if questions is not None and run["answered"] != questions:
        found.append(f"{run['answered']} of {questions} questions are answered")
    if run["answered_more_than_once"]:
        found.append(f"{run['answered_more_than_once']} questions were charged otherwise than once")
    return found
