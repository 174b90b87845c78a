"""`answer-batch` at scale: ten thousand questions, a server that fails and stalls, and kills.

The command runs as a program of its own and is killed at random moments; each time it is started again with
the same arguments. In the end every question must be answered once, and what the server has billed must lie
within what the ledger holds, and that within the total. A second run is given half of what the first spent.
"""

from __future__ import annotations

import json
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from mio_rag.corpora.load import load_dataset
from mio_rag.files import write_atomically
from mio_rag.retrieval.index import CorpusIndex

__all__ = ["load", "problems_of"]

_INTO, _OUT = 0.15, 0.60  # dollars per million tokens
_POLICY = f"""
[price]
token = 0.002

[models.reader]
input = {_INTO}
output = {_OUT}

[limits]
evidence_tokens = 256
answer_tokens = 16
"""
_KILL_SECONDS = (0.5, 10.0)  # after the first new answer


def load(work: Path, questions: int, kills: int, seed: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Run all, and say what was found; kills come while questions are under way.

    Parameters
    ----------
    work : Path
        Folder for everything; should be empty.
    """
    work.mkdir(parents=True, exist_ok=True)
    demo = load_dataset("demo")
    CorpusIndex.build(demo.passages, "tfidf", demo.name).save(work / "INDEX")
    lines = (
        json.dumps({"id": f"q{k}", "question": f"{demo.questions[k % len(demo.questions)].text} ({k})"})
        for k in range(questions)
    )
    write_atomically(work / "questions.jsonl", "\n".join(lines) + "\n")
    write_atomically(work / "policy.toml", _POLICY)
    url, bill = work / "url", work / "bill.json"
    server = subprocess.Popen([sys.executable, "-m", "benchmarks.composed.server", str(url), str(bill)])
    try:
        while not url.is_file() or not bill.is_file():
            time.sleep(0.1)
        generous = _one(work, "all", questions, 1000.0, kills, seed, say)
        generous["bill"] = _billed(bill)
        generous["problems"] = problems_of(generous, generous["bill"], questions)
        half = generous["spent"] / 2
        tight = _one(work, "half", questions, half, max(1, kills // 3), seed + 1, say)
        after = _billed(bill)
        tight["bill"] = {k: after[k] - generous["bill"][k] for k in ("prompt_tokens", "completion_tokens")}
        tight["problems"] = problems_of(tight, tight["bill"], None)
    finally:
        server.terminate()
        server.wait()
    return {"questions": questions, "seed": seed, "runs": {"all": generous, "half": tight}}


def _billed(bill: Path) -> dict[str, Any]:
    time.sleep(1.5)  # it is written twice a second
    told: dict[str, Any] = json.loads(bill.read_text(encoding="utf-8"))
    return told


def _one(
    work: Path, name: str, questions: int, total: float, kills: int, seed: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """One batch, killed so many times; what its ledger says in the end."""
    out = work / name
    url = (work / "url").read_text(encoding="utf-8")
    command = [
        sys.executable, "-m", "mio_rag", "answer-batch", str(work / "questions.jsonl"), str(work / "INDEX"),
        "--out", str(out), "--policy", str(work / "policy.toml"), "--total-dollars", f"{total:.9f}",
        "--generator", f"openai:{url}#scripted?timeout_seconds=1", "--concurrency", "8", "--json",
    ]  # fmt: skip
    luck, killed, began = random.Random(seed), 0, time.monotonic()
    while True:
        before = _answered(out)
        run = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            while killed < kills and _answered(out) == before and run.poll() is None:
                time.sleep(0.1)  # it loads
            told, _ = run.communicate(timeout=luck.uniform(*_KILL_SECONDS) if killed < kills else None)
            break
        except subprocess.TimeoutExpired:
            run.kill()
            run.communicate()
            killed += 1
            say(f"{name}: killed {killed} times, {_answered(out)} of {questions} answered")
    summary = json.loads(told)
    summary.pop("out")
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    return {
        **summary,
        "kills": killed,
        "seconds": round(time.monotonic() - began, 1),
        "nothing_asked_again": json.loads(again.stdout)["spent"] == summary["spent"],
        "answered_more_than_once": _more_than_once(out),
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


def _more_than_once(out: Path) -> int:
    """Questions whose ledger holds another cost than that of their one answer."""
    wrong = 0
    with closing(sqlite3.connect(out / "ledger.sqlite")) as ledger:
        for cost, told in ledger.execute("SELECT cost, told FROM questions WHERE state = 'answered'"):
            said = json.loads(told)
            tokens = said["prompt_tokens"], said["completion_tokens"]
            expected = round((tokens[0] * _INTO + tokens[1] * _OUT) * 1e3)
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
    billed = (bill["prompt_tokens"] * _INTO + bill["completion_tokens"] * _OUT) / 1e6
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
