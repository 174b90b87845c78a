"""The package from outside: light to import, its public names, whole when it is built, and portable."""

import json
import signal
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import mio_rag
from mio_rag import InputError
from mio_rag.retrieval import CorpusIndex
from mio_rag.service.run import check, serve
from mio_rag.service.settings import ConnectionLimits, ServiceSettings, fitted
from mio_rag.session import budget

ROOT = Path(__file__).parents[1]

HEAVY = (
    "torch|onnxruntime|faiss|ortools|numba|transformers|sentence_transformers|pandas|sklearn|scipy.sparse"
    "|scipy.optimize|highspy|matplotlib|langchain_core|llama_index|haystack|dspy"
)
SELECT = """
from mio_rag import Pool, Selector
Selector().select(Pool(["a", "b"], ["one", "two"], [.9, .5], [3, 4]), 9)
"""


def test_packages_listed_are_the_packages_on_disk() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders = {path.parent.relative_to(ROOT) for path in (ROOT / "mio_rag").rglob("*.py")}
    linked = {"mio_rag.formulations", "mio_rag.solvers"}
    assert set(config["tool"]["setuptools"]["packages"]) == {".".join(f.parts) for f in folders} | linked
    for name in ("solvers", "formulations"):
        assert (ROOT / "mio_rag" / name).resolve() == ROOT / name


def python(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "code", ["import mio_rag", "import mio_rag.cli.app", "import mio_rag.adapters.core", SELECT]
)
def test_importing_and_selecting_load_nothing_heavy(code: str) -> None:
    loaded = python(f"{code}\nimport re, sys; print([m for m in sys.modules if re.fullmatch({HEAVY!r}, m)])")
    assert loaded == "[]"


def test_public_names() -> None:
    assert mio_rag.__all__ == [
            "Answer", "Candidates", "Collection", "Conversation", "CorpusIndex", "Dataset", "InputError",
            "LinearConstraint", "MioRagError", "Passage", "Policy", "Pool", "Question", "Retriever",
            "Selection", "SelectionProgram", "Selector", "SideConstraints", "SolveOptions", "SolveResult",
            "Status", "Store", "load_dataset", "make_generator", "select", "solve",
        ]  # fmt: skip
    for name in mio_rag.__all__:
        assert getattr(mio_rag, name).__name__ == {"Candidates": "Pool"}.get(name, name)
    assert set(mio_rag.__all__) <= set(dir(mio_rag))
    from mio_rag.corpora.dataset import load_folder as now
    from mio_rag.corpora.documents import load_folder  # a former name, for one release

    assert load_folder is now
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        mio_rag.nonsense  # noqa: B018


@pytest.mark.parametrize("order", [("highspy", "ortools"), ("ortools", "highspy")])
def test_highs_and_ortools_share_a_process(order: tuple[str, str]) -> None:
    pytest.importorskip("ortools")
    modules = ["ortools.sat.python.cp_model" if name == "ortools" else name for name in order]
    code = "\n".join(
        [
            *(f"import {m}" for m in modules),
            "import numpy as np",
            "from mio_rag import SelectionProgram, solve",
            "p = np.array([[0, 3, 0], [3, 0, 0], [0, 0, 0.0]])",
            "program = SelectionProgram(np.array([5.0, 4.0, 3.0]), p, np.array([2, 2, 2]), 4)",
            "for name in ('highs', 'cpsat'):",
            "    result = solve(program, name)",
            "    print(result.status.value, result.selected, round(result.objective, 6))",
        ]
    )
    # 5 + 3 beats 5 + 4 - 3.
    assert python(code).splitlines() == ["optimal (0, 2) 8.0"] * 2


#: What only POSIX has.
MODULES = {"fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty"}


def test_every_module_can_be_imported_without_what_only_posix_has_and_bare_names_stay_free() -> None:
    names = [
        ".".join(path.relative_to(ROOT / "mio_rag").with_suffix("").parts)
        for path in sorted((ROOT / "mio_rag").rglob("*.py"))
    ]
    program = f"""
import builtins, gc, importlib, json, sys
gc.disable()  # loading makes objects, and next to no garbage
missing, there = {sorted(MODULES)!r}, builtins.__import__
def find(name, globals=None, *rest, **more):
    # Other packages know what system they are on; this one is told that it is on another.
    if name in missing and str((globals or {{}}).get("__name__")).startswith("mio_rag"):
        raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
    return there(name, globals, *rest, **more)
builtins.__import__ = find
for name in {names!r}:
    if name != "__main__":
        importlib.import_module(f"mio_rag.{{name}}".removesuffix(".__init__"))
print(json.dumps([len({names!r}), [n for n in ("solvers", "formulations") if n in sys.modules]]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    count, bare = json.loads(done.stdout)
    assert count > 100
    assert bare == []


def test_without_the_module_resource_what_it_says_is_not_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(budget, "_STATUS", tmp_path / "none")
    assert (budget.peak_memory_mb() or 0) > 1  # as on a Mac
    monkeypatch.setitem(sys.modules, "resource", None)
    assert budget.peak_memory_mb() is None
    many = ConnectionLimits(max_connections=10**6)
    assert fitted(many) is many


def test_one_process_serves_where_sockets_cannot_be_shared(
    monkeypatch: pytest.MonkeyPatch, demo_index: CorpusIndex, tmp_path: Path
) -> None:
    index = str(demo_index.save(tmp_path / "index"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with monkeypatch.context() as without:
        without.delattr(socket, "AF_UNIX")
        with pytest.raises(InputError, match="workers=2: on this system a service is one process"):
            check(ServiceSettings(index, port=port, workers=2), None, without_key=False)
        check(ServiceSettings(index, port=port), None, without_key=False)
    monkeypatch.delattr(socket, "fromfd")
    answered: list[int] = []

    def end() -> None:
        answered.append(port)
        signal.raise_signal(signal.SIGINT)

    serve(ServiceSettings(index, port=port), ready=end)  # returns once interrupted
    assert answered == [port]
