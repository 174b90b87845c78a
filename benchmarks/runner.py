"""One runner for all studies.

A study is a file `studies/NAME.toml`: what it asks, which results it backs, the function that measures, and
its settings with defaults, each of which is an option of the command line. `[quick]` holds the settings of a
short look at the bundled data.

    about = "what a newcomer gets"          in one line
    section = "the-default"                 of benchmarks/README.md
    measure = "benchmarks.default:measure"  a function of the settings
    results = "default.json"                in benchmarks/results

    [settings]
    limit = {default = 400, help = "questions of a set"}
    data = {type = "path", required = true, help = "folder that holds one folder for each set"}

`measure` returns a `Measured`, which the runner writes (JSON with versions, seed and machine; the table as
text; the picture) and prints; or an exit status, where a study writes several files itself.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import shlex
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.files import replaced, write_json
from mio_rag import __version__
from mio_rag.errors import InputError, MioRagError, SolverError

STUDIES, RESULTS = Path(__file__).parent / "studies", Path("benchmarks/results")
_TYPES: Mapping[str, Callable[[str], Any]] = {"path": Path, "int": int, "float": float, "str": str}
_KEYS = {"about", "section", "measure", "results", "settings", "quick"}
_SETTING = {"default", "type", "help", "required", "choices", "flag"}
_PACKAGES = (
    *("numpy", "scipy", "numba", "scikit-learn", "faiss-cpu", "bm25s", "highspy", "ortools", "quantecon"),
    *("mdpsolver", "ray", "langchain-core", "llama-index-core", "dspy", "haystack-ai"),
)


@dataclass(frozen=True)
class Measured:
    """What a study found.

    Parameters
    ----------
    report : dict
        Of JSON; the runner adds benchmark, command, seed, versions and machine where they are missing.
    table : str
        For people.
    draw : callable, optional
        Draws the picture into a file.
    wrong : int
        Claims that did not hold; above 0 the exit status is 1.
    """

    report: dict[str, Any]
    table: str = ""
    draw: Callable[[Path], None] | None = None
    wrong: int = 0


@dataclass(frozen=True)
class Study:
    """A study as its file describes it."""

    name: str
    about: str
    section: str
    measure: str
    results: str = ""
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    quick: Mapping[str, Any] = field(default_factory=dict)

    def function(self) -> Callable[[argparse.Namespace], Measured | int]:
        """Import what measures."""
        module, _, name = self.measure.partition(":")
        found: Callable[[argparse.Namespace], Measured | int] = getattr(importlib.import_module(module), name)
        return found

    def parser(self) -> argparse.ArgumentParser:
        """An option for each setting."""
        parser = argparse.ArgumentParser(prog=f"python -m benchmarks {self.name}", description=self.about)
        for name, said in self.settings.items():
            _add_option(parser, name, said)
        if self.quick:
            parser.add_argument("--quick", action="store_true", help="a short look at the bundled data")
        if self.results:
            parser.add_argument("--out", type=Path, default=RESULTS / self.results, help="(%(default)s)")
        return parser

    def given(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The settings of one run: those of `--quick` where it is asked for, then what is said."""
        parser = self.parser()
        if "--quick" in arguments:
            for action in parser._actions:
                if action.dest in self.quick:
                    action.required = False
            parser.set_defaults(**{k: _typed(self.settings[k], v) for k, v in self.quick.items()})
        return parser.parse_args(arguments)


def _typed(said: Mapping[str, Any], value: Any) -> Any:
    return Path(value) if said.get("type") == "path" else value


def _add_option(parser: argparse.ArgumentParser, name: str, said: Mapping[str, Any]) -> None:
    option, text = f"--{name.replace('_', '-')}", said.get("help", "")
    if said.get("flag"):
        parser.add_argument(option, dest=name, action="store_true", help=text)
        return
    default = said.get("default")
    kind = said.get("type") or (type(default).__name__ if default is not None else "str")
    parser.add_argument(
        option,
        dest=name,
        type=_TYPES[kind],
        default=None if default is None else _TYPES[kind](default),
        required=bool(said.get("required")),
        choices=said.get("choices"),
        help=text if default is None else f"{text} (default: %(default)s)".strip(),
    )


@cache
def studies() -> dict[str, Study]:
    """All studies by name.

    Raises
    ------
    InputError
        If a file does not describe a study.
    """
    found, problems = {}, []
    for path in sorted(STUDIES.glob("*.toml")):
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        strange = sorted(set(data) - _KEYS)
        settings = data.get("settings", {})
        strange += [f"settings.{n}.{key}" for n, said in settings.items() for key in set(said) - _SETTING]
        strange += [f"quick.{name}" for name in data.get("quick", {}) if name not in settings]
        missing = [key for key in ("about", "section", "measure") if key not in data]
        problems += [f"{path.name}: {key} is unknown" for key in strange]
        problems += [f"{path.name}: {key} is missing" for key in missing]
        if not strange and not missing:
            found[path.stem] = Study(path.stem, **data)
    if problems:
        raise InputError(problems)
    return found


def run(name: str, arguments: Sequence[str]) -> int:
    """Run a study and write what it found.

    Returns
    -------
    int
        0; 1 where a claim did not hold, 2 for bad input, 130 when interrupted.
    """
    study = studies()[name]
    given = study.given(arguments)
    public = [Path(a).name if os.path.isabs(a) else a for a in arguments]  # no folders of this machine
    given.command_line = shlex.join(["python", "-m", "benchmarks", name, *public])
    try:
        found = study.function()(given)
    except InputError as error:
        for problem in error.problems:
            print(f"error: {problem}", file=sys.stderr)
        return 2
    except MioRagError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1 if isinstance(error, SolverError) else 2
    except KeyboardInterrupt:
        print("interrupted: where rows are kept, the same command goes on", file=sys.stderr)
        return 130
    if isinstance(found, int):
        return found
    write(study, given, found)
    return 1 if found.wrong else 0


def write(study: Study, given: argparse.Namespace, found: Measured) -> None:
    """Write JSON, table and picture, and print the table."""
    about = {
        "benchmark": study.name,
        "command": given.command_line,
        "seed": getattr(given, "seed", None),
        "versions": versions(),
        "machine": {
            "system": platform.system(),
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "load": os.getloadavg(),
        },
    }
    write_json(given.out, {**about, **found.report})
    if found.table:
        with replaced(given.out.with_suffix(".txt")) as partial:
            partial.write_text(found.table.rstrip("\n") + "\n", encoding="utf-8")
        print(found.table)
    if found.draw is not None:
        found.draw(given.out.with_suffix(".png"))
    print(given.out, file=sys.stderr)


def versions(*more: str) -> dict[str, str]:
    """Of this package and of those that figures depend on, where they are installed."""
    found = {"mio-rag": __version__, "python": platform.python_version()}
    for package in (*_PACKAGES, *more):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def note(text: str) -> None:
    """Say how far a study is."""
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """List the studies, or run one."""
    said = list(sys.argv[1:] if arguments is None else arguments)
    if said[:1] == ["run"]:
        said = said[1:]
    known = studies()
    if not said or said[0] in ("list", "-h", "--help"):
        print("usage: python -m benchmarks [run] STUDY [OPTIONS]; STUDY --help shows its options\n")
        for study in known.values():
            print(f"{study.name:20}{study.about}")
        return 0
    if said[0] not in known:
        print(f"error: there is no study '{said[0]}': choose {', '.join(known)}", file=sys.stderr)
        return 2
    return run(said[0], said[1:])
