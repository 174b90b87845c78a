"""The log of a bandit up to a million questions: time, memory, and the state folded afresh.

The package's own bandit writes every question into one file: a context, what strategies added, costs and
propensities. Contributions are drawn, since nothing is searched for. On every 20th question the bandit
chooses; those up to the next one reuse its choice. At the end the file is folded afresh from its first
event; the state must be the live one to the last bit.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.processes import resident_mb
from benchmarks.runner import Measured, at_least, note
from mio_rag.learning.bandit import BanditSettings, Learned
from mio_rag.learning.bandit_log import EventLog
from mio_rag.learning.strategist import Strategist, known_settings, replayed
from mio_rag.session.search import STRATEGIES

_BLOCKS = 20
_EMBEDDING = 384
_CHOOSE_EVERY = 20
_TYPES = ("Who wrote it?", "When was it built?", "Which of them is older?", "How far is it?", "Is it so?")
_ADDS = {"hyde": 0.004, "query2doc": 0.006, "grounded": 0.012, "multi-query": 0.008}


def measure(given: argparse.Namespace) -> Measured:
    """Write and fold; another rebuilt state is wrong."""
    at_least(given, events=_BLOCKS * _CHOOSE_EVERY)
    with tempfile.TemporaryDirectory(dir=given.work) as folder:
        report = run(Path(folder) / "log.sqlite", given.events)
    last = report["blocks"][-1]
    text = (
        f"{given.events} questions: choosing {last['choosing_ms']:.3f} ms, writing and learning "
        f"{last['writing_ms']:.3f} ms each in the last block; {last['megabytes']:.0f} MB held "
        f"({report['blocks'][0]['megabytes']:.0f} after the first block); "
        f"{report['bytes_a_question']:.0f} bytes a question; opening {report['opening_seconds']:.2f} s, "
        f"folding afresh {report['folding_ms']:.3f} ms a question; same state: {report['same_state']}"
    )
    return Measured(report, text, wrong=not report["same_state"])


def run(path: Path, events: int) -> dict[str, Any]:
    """Write so many questions into a new file, and measure."""
    settings = BanditSettings(token_price=1e-4)
    bandit = Strategist(path, STRATEGIES, settings, "benchmark:384")
    rng = np.random.default_rng(24)
    blocks, size = [], events // _BLOCKS
    for block in range(_BLOCKS):
        choosing = writing = 0.0
        for number in range(block * size, (block + 1) * size):
            if number % _CHOOSE_EVERY == 0:
                vector = rng.standard_normal(_EMBEDDING).astype(np.float32)
                vector /= np.linalg.norm(vector)
                start = time.process_time()
                text = _TYPES[number // _CHOOSE_EVERY % len(_TYPES)]
                choice = bandit.choose_by(text, vector, number % 3, f"q{number}")
                choosing += time.process_time() - start
                known = bandit._waiting[choice.id]
            else:
                choice = replace(choice, id=f"q{number}")
                bandit._waiting[choice.id] = known
            outcome = _outcome(choice.strategies, rng)
            start = time.process_time()
            bandit.record(choice, outcome)
            writing += time.process_time() - start
        blocks.append(
            {
                "questions": (block + 1) * size,
                "choosing_ms": 1e3 * choosing * _CHOOSE_EVERY / size,
                "writing_ms": 1e3 * writing / size,
                "megabytes": resident_mb(),
            }
        )
        note(f"{blocks[-1]}")
    live = hashlib.sha256(bandit.learned.dump()).hexdigest()
    bandit.log.close()
    start = time.process_time()
    Strategist(path, STRATEGIES, settings, "benchmark:384").log.close()
    opening = time.process_time() - start
    log = EventLog(path)
    again, names = known_settings(log, settings)
    start = time.process_time()
    with log.reading() as found:
        replayed(rebuilt := Learned(again, names), found)
    folding = time.process_time() - start
    log.close()
    return {
        "events": _BLOCKS * size,
        "blocks": blocks,
        "bytes_a_question": path.stat().st_size / (_BLOCKS * size),
        "opening_seconds": opening,
        "folding_ms": 1e3 * folding / (_BLOCKS * size),
        "megabytes_after_folding": resident_mb(),
        "same_state": hashlib.sha256(rebuilt.dump()).hexdigest() == live,
    }


def _outcome(strategies: tuple[str, ...], rng: np.random.Generator) -> dict[str, Any]:
    """Draw the outcome of a question: mostly nothing is added, now and then a passage."""
    ran = [name for name in strategies if name in _ADDS]
    own = {name: float(rng.random() < 5 * _ADDS[name]) * 0.2 for name in ran}
    return {
        "own": own,
        "overlap": [[a, b, 0.5 * min(own[a], own[b])] for i, a in enumerate(ran) for b in ran[i + 1 :]],
        "base": 0.5,
        "total": 0.5 + sum(own.values()),
        "tokens": {name: 100 * (name in _ADDS) for name in strategies},
        "seconds": dict.fromkeys(strategies, 0.5),
        "credit": {name: 1 / len(strategies) for name in strategies},
    }
