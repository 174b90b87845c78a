"""Compiling the kernel: once, into a cache on disk that survives damage; and without compiling."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TINY = """
from mio_rag.solvers.kernel import compiled

@compiled
def twice(x: float) -> float:
    return 2.0 * x
"""
CALL = "import tiny; print(tiny.twice(1.0), sum(tiny.twice.stats.cache_hits.values()))"


def run(folder: Path, code: str, **environment: str) -> str:
    """What a program prints in an interpreter of its own, with its cache in `folder`."""
    paths = os.pathsep.join([str(folder), str(ROOT)])
    env = {**os.environ, "PYTHONPATH": paths, "NUMBA_CACHE_DIR": str(folder / "cache"), **environment}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_damaged_cache_is_compiled_again_and_a_whole_one_loaded_alone(tmp_path: Path) -> None:
    (tmp_path / "tiny.py").write_text(TINY)
    assert run(tmp_path, CALL) == "2.0 0"
    code = (
        "import sys, numba, numpy as np, tiny; tiny.twice(1.0);"
        "print('numba.np.linalg' in sys.modules, end=' ');"
        "print(tiny.twice(np.ones(2)), numba.njit(lambda A: np.linalg.inv(A))(2.0 * np.eye(2)).diagonal())"
    )
    assert run(tmp_path, code) == "False [2. 2.] [0.5 0.5]"
    for kind in ("nbi", "nbc"):
        for file in (tmp_path / "cache").rglob(f"*.{kind}"):
            file.write_bytes(file.read_bytes()[:40])
        assert [run(tmp_path, CALL) for _ in range(2)] == ["2.0 0", "2.0 1"]
    (tmp_path / "tiny.py").write_text(TINY.replace("2.0", "3.25"))
    assert run(tmp_path, CALL) == "3.25 0"


def test_without_compiling_the_kernel_is_plain_python(tmp_path: Path) -> None:
    code = (
        "import numpy as np; from mio_rag import SelectionProgram, solve;"
        "P = np.full((3, 3), 0.5) - 0.5 * np.eye(3);"
        "r = solve(SelectionProgram([3.0, 2.0, 1.0], P, [2, 2, 2], 4), 'branch_and_bound');"
        "print(r.status.value, r.selected, r.objective)"
    )
    assert run(tmp_path, code, NUMBA_DISABLE_JIT="1") == "optimal (0, 1) 4.5"


def test_warmup_compiles_all_that_a_solve_calls() -> None:
    code = (
        "from mio_rag.solvers import branch_and_bound, kernel as k\n"
        "branch_and_bound.warmup()\n"
        "called = [k.search, k.local_optima, k.relax, k.probe, k.spread, k.dantzig_search]\n"
        "print([len(function.signatures) for function in called])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[2, 2, 1, 1, 1, 1]"  # two versions: without and with segments
