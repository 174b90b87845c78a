"""Compiling in two interpreters at once, into one cache."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TINY = """
from mio_rag.solvers.compiled import compiled

@compiled
def twice(x: float) -> float:
    return 2.0 * x
"""
CALL = """
import sys, tiny
from mio_rag.solvers.compiled import compiled_beside
with compiled_beside(tiny.twice, sys.argv[1]):
    print(bool(tiny.twice.stats.cache_hits), end=" ")
stats = tiny.twice(21.0) and tiny.twice.stats
print(tiny.twice(21.0), sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))
"""
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _run(folder: Path, statement: str) -> str:
    (folder / "tiny.py").write_text(TINY)
    run = subprocess.run(
        [sys.executable, "-c", CALL, statement],
        env={**os.environ, "NUMBA_CACHE_DIR": str(folder / "cache")},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert not run.stderr
    return run.stdout.strip()


@pytest.mark.skipif(CORES == 1, reason="with one core nothing is compiled elsewhere")
def test_what_another_interpreter_compiled_comes_from_the_cache(tmp_path: Path) -> None:
    note = tmp_path / "note"
    statement = f"import tiny; tiny.twice(1.0); open({str(note)!r}, 'w').close()"
    assert _run(tmp_path, statement) == "False 42.0 1 0"
    assert note.exists()
    note.unlink()
    assert _run(tmp_path, statement) == "False 42.0 1 0"
    assert not note.exists()  # the cache knows it: no other interpreter is started


@pytest.mark.parametrize("statement", ["raise SystemExit(3)", "import nothing_of_this_name"])
def test_whatever_becomes_of_the_other_interpreter_it_is_compiled(tmp_path: Path, statement: str) -> None:
    assert _run(tmp_path, statement) == "False 42.0 0 1"
