"""The house rules, read from the syntax trees and from fresh interpreters."""

import ast
import functools
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import mio_rag
from mio_rag.cli import app
from tests.sources import tree_of

ROOT = Path(__file__).parents[1]

#: What the two mathematical packages may import at most, by the first part of the name.
CONFINED = {"formulations": {"errors", "reading"}, "solvers": {"errors", "formulations"}}

HEAVY = (
    *(
        "torch",
        "onnxruntime",
        "faiss",
        "ortools",
        "numba",
        "transformers",
        "sentence_transformers",
        "pandas",
        "sklearn",
    ),
    *("langchain_core", "llama_index", "haystack", "dspy", "pydantic"),
)


def modules() -> dict[str, Path]:
    """Dotted name -> file, of every source file; a folder's name is that of its __init__.py."""
    found = {}
    for folder in ("mio_rag", "formulations", "solvers", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if parts[:2] in (("mio_rag", "formulations"), ("mio_rag", "solvers")):
                continue  # links to the folders at the root
            name = ".".join(parts if folder in ("mio_rag", "benchmarks") else ("mio_rag", *parts))
            found[name.removesuffix(".__init__")] = path
    return found


def imports(tree: ast.AST, known: Collection[str]) -> set[str]:
    """Modules that a file imports: anywhere in it, for the type checker too."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "relative imports hide who imports whom"
            named = (f"{node.module}.{alias.name}" for alias in node.names)
            found |= {name if name in known else str(node.module) for name in named}
    return found & set(known)


def circles(graph: Mapping[str, Collection[str]]) -> list[list[str]]:
    """One circle of a directed graph, if there is one."""
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        return [error.args[1]]
    return []


def inside(graph: Mapping[str, Collection[str]], folder: str) -> dict[str, set[str]]:
    """Who imports whom among the parts of a folder: its files, and its folders as wholes."""

    def part(name: str) -> str | None:
        """What a module is in this folder; None for what lies outside, and for the folder's own __init__."""
        start = f"{folder}." if folder else ""
        return name[len(start) :].split(".")[0] if name.startswith(start) and name != folder else None

    parts: dict[str, set[str]] = {}
    for name, targets in graph.items():
        if (own := part(name)) is not None:
            parts.setdefault(own, set()).update(t for t in map(part, targets) if t not in (None, own))
    return parts


@functools.cache
def everyone() -> dict[str, set[str]]:
    """Who imports whom. The package's own __init__ lists the public names, and is not followed."""
    known = modules()
    found = {
        name: imports(tree_of(path), known) - {name, "mio_rag"}
        for name, path in known.items()
        if name != "mio_rag"
    }
    # The command line knows its commands by name.
    found["mio_rag.cli.app"] |= {f"mio_rag.cli.commands.{file}" for file, _ in app._COMMANDS.values()}
    return found


def test_no_file_imports_itself_by_way_of_others() -> None:
    assert circles(everyone()) == []


def test_in_every_folder_imports_run_one_way() -> None:
    """Not only between files: two folders that import from each other cannot be read one after the other."""
    graph = everyone()
    folders = {"", *(name.rpartition(".")[0] for name in graph)}
    assert {folder: found for folder in folders if (found := circles(inside(graph, folder)))} == {}


def test_mathematics_knows_nothing_of_retrieval() -> None:
    for name, targets in everyone().items():
        unit = name.removeprefix("mio_rag.").split(".")[0]
        if unit in CONFINED:
            assert {t.split(".")[1] for t in targets} <= CONFINED[unit] | {unit}, name


def test_the_guard_sees_what_it_should() -> None:
    known = ("mio_rag.a", "mio_rag.b", "mio_rag.b.c", "mio_rag.d")
    code = """
import mio_rag.a
from mio_rag.b import c, something
if TYPE_CHECKING:
    from mio_rag.d import D
def f():
    import mio_rag.d
"""
    assert imports(ast.parse(code), known) == {"mio_rag.a", "mio_rag.b", "mio_rag.b.c", "mio_rag.d"}
    assert imports(ast.parse("if TYPE_CHECKING:\n    from mio_rag.d import D"), known) == {"mio_rag.d"}
    graph = {"m.a.x": ["m.b.x"], "m.b.x": [], "m.b.y": ["m.a.y"], "m.a.y": []}
    assert circles(graph) == []
    assert circles({"a": ["b"], "b": ["a"]}) != []
    assert inside(graph, "m") == {"a": {"b"}, "b": {"a"}}
    assert inside(graph, "m.a") == {"x": set(), "y": set()}


def test_every_folder_says_what_lives_there() -> None:
    for path in modules().values():
        if path.name == "__init__.py":
            said = ast.get_docstring(tree_of(path))
            assert said, path
            assert "\n\n\n" not in said


def test_packages_listed_are_the_packages_on_disk() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"][
        "packages"
    ]
    with_code = {name.rpartition(".")[0] for name in modules() if name.startswith("mio_rag.")}
    marked = {name for name, path in modules().items() if path.name == "__init__.py"}
    assert set(listed) == with_code == {name for name in marked if name.startswith("mio_rag")}
    for name in ("solvers", "formulations"):
        assert (ROOT / "mio_rag" / name).resolve() == ROOT / name


def python(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("module", ["mio_rag", "mio_rag.cli.app", "mio_rag.adapters.core"])
def test_importing_is_light(module: str) -> None:
    loaded = python(f"import sys, {module}; print([m for m in {HEAVY} if m in sys.modules])")
    assert loaded == "[]"


def test_public_names() -> None:
    assert mio_rag.__all__ == [
            "Answer", "Candidates", "Conversation", "CorpusIndex", "Dataset", "InputError",
            "LinearConstraint", "MioRagError", "Passage", "Question", "Retriever", "Selection",
            "SelectionProgram", "Selector", "SideConstraints", "SolveOptions", "SolveResult", "Status",
            "load_dataset", "make_generator", "select", "solve",
        ]  # fmt: skip
    for name in mio_rag.__all__:
        assert getattr(mio_rag, name).__name__ == name
    assert set(mio_rag.__all__) <= set(dir(mio_rag))
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


def undocumented(tree: ast.Module) -> Iterator[str]:
    """Public classes, functions and methods without a docstring, and the module itself."""
    if not ast.get_docstring(tree):
        yield "the module"
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            if not ast.get_docstring(node):
                yield node.name
            for part in node.body if isinstance(node, ast.ClassDef) else []:
                if (
                    isinstance(part, ast.FunctionDef)
                    and not part.name.startswith("_")
                    and not ast.get_docstring(part)
                ):
                    yield f"{node.name}.{part.name}"


def test_everything_public_is_documented() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in modules().values()
        for name in undocumented(tree_of(path))
    }
    assert found == set()
