"""Programs with side rows: all kinds are there, and the kernel proves what enumeration finds."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.rows import measured, programs_of, summarize, table
from benchmarks.speed.pools import Pool
from mio_rag.solvers import SolveOptions, solve


@pytest.fixture(scope="module")
def pool() -> Pool:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(16, 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    query = vectors[:5].mean(axis=0)
    cosine = (vectors @ query).astype(np.float64)
    best = np.argsort(-cosine)
    tokens = rng.integers(10, 60, 16)
    return Pool("made up/1", cosine[best], tokens, vectors[best], query, np.zeros((0, 2), dtype=np.int64))


def test_each_kind_of_rows_and_all_together(pool: Pool) -> None:
    made = programs_of(pool, 16, 200, seed=0)
    counts = {name: len(program.rows) for name, program in made.items()}
    assert counts["none"] == 0
    assert counts["source caps"] == 4  # of six sources, four have more than two passages
    assert counts["topics"] == 5
    assert counts["conflicts"] > 0
    assert counts["all"] == counts["source caps"] + counts["topics"] + counts["conflicts"]
    assert all(np.array_equal(p.linear, made["none"].linear) for p in made.values())
    solves = []
    for name, program in made.items():
        one = measured(program, SolveOptions(time_limit_seconds=20))
        truth = solve(program, "exhaustive")
        assert one["status"] == truth.status.value
        assert truth.objective is not None
        solves.append({"budget": 200, "rows": name, "chosen_freely": 3, "pool": "1", **one})
    summary = summarize(solves)
    assert {s["rows"] for s in summary if s["chosen_freely"] == "any"} == set(made)
    assert all(s["proven"] == s["programs"] == 1 for s in summary)
    assert "source caps" in table({"n": 16, "lambda_1": 0.1, "summary": summary})


def test_malformed_options_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rows", "--budgets", "512,many"]) == 2
    assert "--budgets='512,many' must be whole numbers" in capsys.readouterr().err
    assert main(["rows", "--n", "2"]) == 2
    assert "--n=2 >= 5" in capsys.readouterr().err


def test_an_unproven_program_is_counted_as_such() -> None:
    one = {"cpu_ms": 5.0, "status": "feasible", "gap": 0.2, "nodes": 1, "chosen": 3}
    entry = summarize([{"budget": 1, "rows": "all", "chosen_freely": 12, **one}])[0]
    assert (entry["proven"], entry["programs"], entry["largest_gap"]) == (0, 1, 0.2)
