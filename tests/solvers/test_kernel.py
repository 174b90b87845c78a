"""The compiled kernels: the same bits from the extension and from numba; plain Python; and the cache."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mio_rag.solvers import compiled

ROOT = Path(__file__).parents[2]
TINY = """
from mio_rag.solvers.compiled import compiled

@compiled
def twice(x: float) -> float:
    return 2.0 * x
"""
CALL = "import tiny; print(tiny.twice(1.0), sum(tiny.twice.stats.cache_hits.values()))"

MANY = """
import sys, numpy as np
from mio_rag.formulations import FiniteMDP, LinearConstraint, Segments, SelectionProgram
from mio_rag.solvers import SolveOptions, branch_and_bound, solve_mdp
branch_and_bound.warmup()
for seed in range(120):
    draw = np.random.default_rng(seed)
    n = int(draw.integers(5, 40))
    A = np.triu(draw.normal(0.1, 0.2, (n, n)), 1)
    program = SelectionProgram(
        draw.normal(1, 1, n), A + A.T, draw.integers(1, 60, n), int(draw.integers(20, 40 * n)),
        rows=(LinearConstraint(draw.integers(-1, 3, n), upper=6.0),) if seed % 3 == 0 else (),
        segments=Segments(draw.random(4), draw.random((n, 4)) < 0.4) if seed % 2 else None,
    )
    found = branch_and_bound.solve(program, SolveOptions(time_limit_seconds=None), max_nodes=300)
    print(found.status.value, found.selected, repr(found.objective), repr(found.bound), found.nodes)
    chance = draw.dirichlet(np.ones(4), (4, 2))
    print(repr(solve_mdp(FiniteMDP(chance, draw.normal(size=(4, 2)), 0.9)).values.tolist()))
print("numba" in sys.modules)
"""


def run(folder: Path, code: str, **environment: str) -> str:
    """What a program prints in an interpreter of its own, with its cache in `folder`."""
    paths = os.pathsep.join([str(folder), str(ROOT)])
    env = {**os.environ, "PYTHONPATH": paths, "MIO_RAG_KERNEL": "numba", **environment}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.skipif(not compiled.IS_AHEAD, reason="the kernels are not compiled ahead (solvers/build.py)")
def test_the_extension_gives_the_same_bits_as_numba_without_loading_it(tmp_path: Path) -> None:
    ahead, by_numba = (run(tmp_path, MANY, MIO_RAG_KERNEL=way).splitlines() for way in ("", "numba"))
    assert ahead.pop() == "False"
    assert by_numba.pop() == "True"
    assert ahead == by_numba
    assert len(ahead) == 240


@pytest.mark.skipif(not compiled.IS_AHEAD, reason="the kernels are not compiled ahead (solvers/build.py)")
def test_the_extension_refuses_arrays_of_other_types() -> None:
    import numpy as np

    from mio_rag.solvers import bounds

    G, ids = np.eye(4), np.arange(4)
    assert bounds.is_positive_definite(G, ids, 4, 0.0, np.empty((4, 4)), np.empty(4))
    for bad in (G.astype(np.float32), G[:, ::2], G[0]):
        with pytest.raises(TypeError, match="G must be a contiguous array of float64 with 2 dimensions"):
            bounds.is_positive_definite(bad, ids, 4, 0.0, np.empty((4, 4)), np.empty(4))


def test_machine_code_on_disk_is_of_the_sources_as_they_are(tmp_path: Path) -> None:
    """Also where another file of the kernels has changed, whose functions may be called."""
    (tmp_path / "tiny.py").write_text(TINY)
    cache = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    assert [run(tmp_path, CALL, **cache) for _ in range(2)] == ["2.0 0", "2.0 1"]
    other = "from mio_rag.solvers import compiled; compiled.digest = lambda: 7\n" + CALL
    assert [run(tmp_path, other, **cache) for _ in range(2)] == ["2.0 0", "2.0 1"]
    (tmp_path / "tiny.py").write_text(TINY.replace("2.0", "3.25"))
    assert run(tmp_path, other, **cache) == "3.25 0"


def test_warmup_compiles_all_that_a_solve_calls(tmp_path: Path) -> None:
    code = (
        "from mio_rag.solvers import bounds as b, branch_and_bound, incumbents as i, kernel\n"
        "branch_and_bound.warmup()\n"
        "called = [kernel.search, i.local_optima, b.relax, b.probe, b.spread, i.dantzig_search]\n"
        "print([len(function.signatures) for function in called])\n"
    )
    assert run(tmp_path, code) == "[2, 2, 1, 1, 1, 1]"  # two versions: without and with segments
