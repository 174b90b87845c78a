"""The bandit at work on new questions: its own log, real searches, a real model."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.strategies.found import POOL, SETS, asked
from benchmarks.strategies.simulate import POLICIES, told_of
from benchmarks.strategies.table import BUDGET
from mio_rag.deciders.order import Order
from mio_rag.deciders.search import Search
from mio_rag.generation import Generator
from mio_rag.learning.strategist import Strategist, StrategyLearner
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.selector import Selector
from mio_rag.session.budget import Limits
from mio_rag.session.loop import Session
from mio_rag.session.search import SearchSettings
from mio_rag.session.strategies import STRATEGIES
from mio_rag.session.tools import Equipment
from mio_rag.session.workflow import NAMED

_NORMAL = 1.959963984540054


def lived_live(
    lines: Sequence[Mapping[str, Any]],
    data: Path,
    indexes: Path,
    generator: Generator,
    each: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Teach a bandit by the questions of the table, then let it search for others, of every set alike.

    Parameters
    ----------
    each : int
        New questions of every set: those that follow the ones in the table.

    Returns
    -------
    dict
        Recall and tokens of the bandit and of the question alone, their paired difference, what ran, and what
        choosing and writing took.
    """
    first = CorpusIndex.load(indexes / f"{SETS[0]}-minilm")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "live.sqlite"
        bandit = Strategist(path, STRATEGIES, POLICIES["linucb"], first.embedder.fingerprint)
        try:
            for number in np.random.default_rng(24).permutation(len(lines)).tolist():
                line = lines[number]
                vector = np.array(line["embedding"], dtype=np.float32)
                choice = bandit.choose_by(line["question"], vector, 0, f"{line['set']}/{line['id']}")
                bandit.record(choice, told_of(line, choice.strategies))
            taught = bandit.learned.questions
            for name in SETS:
                known = {line["id"] for line in lines if line["set"] == name}
                index = first if name == SETS[0] else CorpusIndex.load(indexes / f"{name}-minilm")
                retriever = Retriever(index, pool=POOL)
                how = SearchSettings(deadline_seconds=3600.0)
                kit, plan = Equipment(retriever, Selector(), search=how), Order(NAMED["plain"])
                limits = Limits(tokens=how.tokens * len(STRATEGIES), seconds=how.deadline_seconds)
                learner = StrategyLearner(bandit, Selector())
                sessions = {
                    "bandit": Session(
                        "bandit", (plan, Search(bandit)), plan, kit, limits=limits, learner=learner
                    ),
                    "raw": Session("raw", (plan,), plan, kit, limits=limits),
                }
                for question in [q for q in asked(data, name) if q.id not in known][-each:]:
                    row: dict[str, Any] = {"set": name, "id": question.id}
                    for who, session in sessions.items():
                        start = time.process_time()
                        found = session.select(question, generator, BUDGET).check()
                        gold, spent = set(question.gold_ids), found.costs.total()
                        assert found.selection is not None
                        row[who] = {
                            "recall": len(gold & set(found.selection.ids)) / len(gold),
                            "tokens": spent.prompt_tokens + spent.completion_tokens,
                            "ran": found.trace.search.get("strategies", ["raw"]),
                            "cpu_seconds": time.process_time() - start,
                        }
                    rows.append(row)
                    say(f"live {len(rows)}: {name} {question.id} {'+'.join(row['bandit']['ran'])}")
            written = bandit.learned.questions
        finally:
            bandit.close()
    gain = np.array([row["bandit"]["recall"] - row["raw"]["recall"] for row in rows])
    half = _NORMAL * float(gain.std(ddof=1)) / len(gain) ** 0.5
    return {
        "taught_by": taught,
        "questions": len(rows),
        "written": written - taught,
        "recall": float(np.mean([row["bandit"]["recall"] for row in rows])),
        "recall_of_raw": float(np.mean([row["raw"]["recall"] for row in rows])),
        "gain": {
            "mean": float(gain.mean()),
            "low": float(gain.mean()) - half,
            "high": float(gain.mean()) + half,
        },
        "tokens": float(np.mean([row["bandit"]["tokens"] for row in rows])),
        "ran": {name: float(np.mean([name in row["bandit"]["ran"] for row in rows])) for name in STRATEGIES},
        "rows": rows,
    }
