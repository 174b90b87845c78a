"""Compiling in two interpreters at once, into one cache."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mio_rag
from tests.forked import Loaded

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
FROM_CACHE = """
import sys, numba, numpy as np, tiny
print(tiny.twice(21.0), *tiny.twice.stats.cache_hits.values(), "numba.np.linalg" in sys.modules, end=" ")
print(tiny.twice(np.ones(2)), *tiny.twice.stats.cache_hits.values(), end=" ")
print(numba.njit(lambda A: np.linalg.inv(A))(2.0 * np.eye(2)).diagonal(), tiny.twice(4.0))
"""
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


@pytest.fixture(scope="module", autouse=True)
def interpreters() -> Iterator[None]:
    """One has loaded numba, as an import does; the other has compiled, so that it need not load the rest."""
    again = "numba.core.config.reload_config()"  # the folder of the cache
    _kept["loaded"] = Loaded("import numba, numpy", again)
    _kept["compiled"] = Loaded("import numba, numpy; numba.njit(lambda x: 2.0 * x)(1.0)", again)
    yield
    for one in _kept.values():
        one.close()
    _kept.clear()


_kept: dict[str, Loaded] = {}


def _run(folder: Path, statement: str, code: str = CALL, source: str = TINY, after: str = "compiled") -> str:
    """What a program prints that calls `source` as the module ``tiny``, in an interpreter of its own."""
    (folder / "tiny.py").write_text(source)
    done = _kept[after].run(folder, code, [statement], {"NUMBA_CACHE_DIR": str(folder / "cache")})
    assert (done.code, done.stderr) == (0, "")
    return done.stdout.strip()


@pytest.mark.skipif(CORES == 1, reason="with one core nothing is compiled elsewhere")
def test_what_another_interpreter_compiled_comes_from_the_cache(tmp_path: Path) -> None:
    note = tmp_path / "note"
    statement = f"import tiny; tiny.twice(1.0); open({str(note)!r}, 'w').close()"
    assert _run(tmp_path, statement) == "False 42.0 1 0"
    assert note.exists()
    note.unlink()
    assert _run(tmp_path, statement) == "False 42.0 1 0"
    assert not note.exists()  # the cache holds it: no other interpreter is started
    assert _run(tmp_path, statement, source=TINY + "\n") == "False 42.0 1 0"
    assert note.exists()  # that was of other sources


@pytest.mark.parametrize("statement", ["raise SystemExit(3)", "import nothing_of_this_name"])
def test_whatever_becomes_of_the_other_interpreter_it_is_compiled(tmp_path: Path, statement: str) -> None:
    assert _run(tmp_path, statement) == "False 42.0 0 1"


def test_from_the_cache_nothing_is_loaded_that_only_compiling_needs(tmp_path: Path) -> None:
    _run(tmp_path, "", "import tiny; tiny.twice(1.0)")
    # One version from the cache, without numba's linear algebra; another compiled after it, and a function
    # of the user's own that needs just that.
    first = _run(tmp_path, "", FROM_CACHE, after="loaded")
    assert first == "42.0 1 False [2. 2.] 1 [0.5 0.5] 8.0"
    assert _run(tmp_path, "", FROM_CACHE, after="loaded") == "42.0 1 False [2. 2.] 1 1 [0.5 0.5] 8.0"


def test_code_of_changed_source_is_compiled_anew(tmp_path: Path) -> None:
    code = "import tiny; print(tiny.twice(1.0), sum(tiny.twice.stats.cache_hits.values()))"
    assert _run(tmp_path, "", code) == "2.0 0"
    assert _run(tmp_path, "", code, TINY.replace("2.0", "3.25")) == "3.25 0"


@pytest.mark.parametrize("kind", ["nbi", "nbc"])
@pytest.mark.parametrize("content", [b"", b"\x80\x05garbage", None])
def test_a_damaged_file_of_the_cache_is_compiled_anew(
    tmp_path: Path, kind: str, content: bytes | None
) -> None:
    code = "import tiny; print(tiny.twice(1.0), sum(tiny.twice.stats.cache_hits.values()))"
    assert _run(tmp_path, "", code) == "2.0 0"
    (file,) = (tmp_path / "cache").rglob(f"*.{kind}")
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2] if content is None else content)
    told = "import warnings; warnings.showwarning = lambda w, *more: print(str(w)[:24], end=' | ')\n" + code
    assert [_run(tmp_path, "", told) for _ in range(2)] == ["mio-rag: machine code in | 2.0 0", "2.0 1"]


def test_code_of_another_signature_is_not_taken_for_this_one(tmp_path: Path) -> None:
    code = (
        "import numpy as np, tiny; print(tiny.twice(1.5), tiny.twice(np.ones(2)),"
        "sum(tiny.twice.stats.cache_hits.values()))"
    )
    assert _run(tmp_path, "", code) == "3.0 [2. 2.] 0"
    assert _run(tmp_path, "", code) == "3.0 [2. 2.] 2"
    one, two = sorted((tmp_path / "cache").rglob("*.nbc"))
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    assert [_run(tmp_path, "", code) for _ in range(2)] == ["3.0 [2. 2.] 0", "3.0 [2. 2.] 2"]


def test_a_process_that_dies_between_index_and_code_leaves_nothing_out_of_date(tmp_path: Path) -> None:
    code = "import tiny; print(tiny.twice(1.0), sum(tiny.twice.stats.cache_hits.values()))"
    dies = (
        "import os; from numba.core.caching import IndexDataCacheFile as F;"
        "F._save_data = lambda *a: (print('dies', flush=True), os._exit(0)); import tiny; tiny.twice(1.0)"
    )
    changed = TINY.replace("2.0", "3.25")
    assert _run(tmp_path, "", code) == "2.0 0"
    assert _run(tmp_path, "", dies, changed) == "dies"
    assert [_run(tmp_path, "", code, changed) for _ in range(2)] == ["3.25 0", "3.25 1"]


@pytest.mark.parametrize(
    "change",
    [
        "numba.version_info = numba.version_info._replace(short=(0, 69))",
        "del numba.core.caching.IndexDataCacheFile._load_index",
    ],
)
def test_another_numba_keeps_its_own_cache_and_says_what_to_install(tmp_path: Path, change: str) -> None:
    code = (
        f"import numba, numba.core.caching; {change}\n"
        "import warnings; warnings.showwarning = lambda w, *more: print(w)\n"
        "import tiny; print(type(tiny.twice._cache).__module__, tiny.twice.py_func(2.0))"
    )
    again = "\n".join([TINY, *TINY.replace("twice", "thrice").splitlines()[2:]])
    said = _run(tmp_path, "", code, again).splitlines()
    assert len(said) == 2  # once a process
    assert 'Better: pip install "numba>=0.60,<0.69"' in said[0]
    assert said[1] == "numba.core.caching 4.0"


def test_without_compiling_the_kernel_is_plain_python(tmp_path: Path) -> None:
    code = (
        "import numpy as np; from mio_rag import SelectionProgram, solve;"
        "P = np.full((3, 3), 0.5) - 0.5 * np.eye(3);"
        "r = solve(SelectionProgram([3.0, 2.0, 1.0], P, [2, 2, 2], 4), 'branch_and_bound');"
        "print(r.status.value, r.selected, r.objective)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "optimal (0, 1) 4.5"


def test_a_changed_file_of_the_kernel_makes_the_machine_code_of_the_others_out_of_date(
    tmp_path: Path,
) -> None:
    package = Path(mio_rag.__file__).parent
    shutil.copytree(package, tmp_path / "mio_rag", ignore=shutil.ignore_patterns("__pycache__"))
    code = (
        "import numpy as np; from mio_rag.solvers.kernel_start import knapsack_table as f;"
        "f(np.ones(3), np.ones(3, dtype=np.int64), 2); print(f.__module__, sum(f.stats.cache_hits.values()))"
    )
    name = "mio_rag.solvers.kernel_start"
    assert _run(tmp_path, "", code) == f"{name} 0"
    assert _run(tmp_path, "", code) == f"{name} 1"
    changed = tmp_path / "mio_rag" / "solvers" / "kernel_relax.py"
    changed.write_text(changed.read_text() + "\n")
    assert _run(tmp_path, "", code) == f"{name} 0"
