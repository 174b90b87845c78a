"""One runner for all studies: settings from a file; one report, one table, one picture.

A study is a file `studies/NAME.toml`:

    about = "one price for every token, against one budget for all"
    section = "one-price-for-every-token"   # heading in benchmarks/README.md
    measure = "benchmarks.price:measure"    # function of the settings -> Measured
    sets = "squad2,nq_open"                 # if it takes question sets: the published ones
    limit = 150                             # questions of each

    [settings]                              # further options of the command line
    draws = {default = 6, help = "orders of the questions"}

    [quick]                                 # settings of `--quick`, a short run on the bundled data
    draws = 1

Results are written to `benchmarks/results/NAME.json`, `.txt` and `.png`.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib
import json
import os
import platform
import shlex
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from mio_rag import __version__, errors, storage
from mio_rag.errors import InputError, MioRagError, SolverError
from mio_rag.retrieval.cached import cache_folder

STUDIES, RESULTS = Path(__file__).parent / "studies", Path("benchmarks/results")
_TYPES: Mapping[str, Callable[[str], Any]] = {"path": Path, "int": int, "float": float, "str": str}
_KEYS = {"about", "section", "measure", "sets", "limit", "settings", "quick"}
_SETTING = {"default", "type", "help", "required", "choices", "flag"}
_PACKAGES = (
    *("numpy", "scipy", "numba", "scikit-learn", "faiss-cpu", "highspy", "ortools"),
    *("ray", "langchain-core", "llama-index-core", "dspy", "haystack-ai"),
)
#: Settings of every study on question sets; see `benchmarks.questions.load_sets`.
_ON_SETS: dict[str, dict[str, Any]] = {
    "data": {"type": "path", "help": "folder with one folder for each set (default: the bundled questions)"},
    "sets": {"help": "comma-separated names"},
    "indexes": {"type": "path", "help": "folder of indexes SET-EMBEDDER (default: built)"},
    "limit": {"help": "questions of each set"},
}


@dataclass(frozen=True)
class Measured:
    """The result of a study.

    report: for JSON; the runner adds command, seed, versions and machine.
    table: for people.
    draw: draw the picture into a file.
    wrong: number of claims that do not hold; above 0 the exit status is 1.
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
    sets: str = ""
    limit: int = 0
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    quick: Mapping[str, Any] = field(default_factory=dict)

    def function(self) -> Callable[[argparse.Namespace], Measured]:
        """Import the function that measures."""
        module, _, name = self.measure.partition(":")
        found: Callable[[argparse.Namespace], Measured] = getattr(importlib.import_module(module), name)
        return found

    def options(self) -> dict[str, dict[str, Any]]:
        """Return all settings with their defaults."""
        defaults = {"sets": self.sets, "limit": self.limit}
        shared = {k: {**v, "default": defaults.get(k)} for k, v in _ON_SETS.items()} if self.sets else {}
        always: dict[str, dict[str, Any]] = {
            "seed": {"default": 0, "help": "of everything that is drawn"},
            "work": {"type": "path", "help": "folder of finished work, where a run resumes (default: cache)"},
        }
        return {**shared, **always, **{k: dict(v) for k, v in self.settings.items()}}

    def given(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse the settings of one run; `--quick` changes defaults, not what is given."""
        parser = argparse.ArgumentParser(prog=f"python -m benchmarks run {self.name}", description=self.about)
        quick, options = "--quick" in arguments, self.options()
        short = {"limit": 4, "sets": "", **self.quick} if self.sets else self.quick
        for name, option in options.items():
            if quick and name in short:
                option = {**option, "default": short[name], "required": False}
            _add_option(parser, name, option)
        parser.add_argument("--quick", action="store_true", help="a short run on the bundled data")
        parser.add_argument("--out", type=Path, default=RESULTS / f"{self.name}.json", help="(%(default)s)")
        return parser.parse_args(arguments)


def _add_option(parser: argparse.ArgumentParser, name: str, option: Mapping[str, Any]) -> None:
    flag, text, default = f"--{name.replace('_', '-')}", option.get("help", ""), option.get("default")
    if option.get("flag"):
        parser.add_argument(flag, dest=name, action="store_true", help=text)
        return
    kind = option.get("type") or (type(default).__name__ if default is not None else "str")
    parser.add_argument(
        flag,
        dest=name,
        type=_TYPES[kind],
        default=None if default is None else _TYPES[kind](default),
        required=bool(option.get("required")),
        choices=option.get("choices"),
        help=text if default is None else f"{text} (default: %(default)s)".strip(),
    )


@functools.cache
def studies() -> dict[str, Study]:
    """Read all studies; `InputError` for a file that does not describe one."""
    found, problems = {}, []
    for path in sorted(STUDIES.glob("*.toml")):
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        settings = data.get("settings", {})
        known = {*settings, "seed", "work", *(_ON_SETS if "sets" in data else ())}
        strange = [
            *sorted(set(data) - _KEYS),
            *(f"quick.{k}" for k in data.get("quick", {}) if k not in known),
        ]
        strange += [f"settings.{n}.{key}" for n, one in settings.items() for key in set(one) - _SETTING]
        missing = [key for key in ("about", "section", "measure") if key not in data]
        problems += [f"{path.name}: {key} is unknown" for key in strange]
        problems += [f"{path.name}: {key} is missing" for key in missing]
        if not strange and not missing:
            found[path.stem] = Study(path.stem, **data)
    if problems:
        raise InputError(problems)
    return found


def run(study: Study, arguments: Sequence[str]) -> int:
    """Run a study and write its results.

    Returns: 0; 1 if a claim did not hold, 2 for bad input, 130 when interrupted.
    """
    given = study.given(arguments)
    public = [Path(a).name if os.path.isabs(a) else a for a in arguments]  # no folders of this machine
    command = shlex.join(["python", "-m", "benchmarks", "run", study.name, *public])
    try:
        with _work_folder(study, given):
            found = study.function()(given)
    except InputError as error:
        for problem in error.problems:
            print(f"error: {problem}", file=sys.stderr)
        return 2
    except MioRagError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1 if isinstance(error, SolverError) else 2
    except KeyboardInterrupt:
        print("interrupted: the same command resumes", file=sys.stderr)
        return 130
    about = {"study": study.name, "command": command, "seed": given.seed, "versions": versions()}
    write_json(given.out, {**about, "machine": machine(), **found.report})
    if found.table:
        write_text(given.out.with_suffix(".txt"), found.table.rstrip("\n") + "\n")
        print(found.table)
    if found.draw is not None:
        with replaced(given.out.with_suffix(".png")) as partial:
            found.draw(partial)
    note(str(given.out))
    return 1 if found.wrong else 0


@contextmanager
def _work_folder(study: Study, given: argparse.Namespace) -> Iterator[None]:
    """Set `given.work`, and `given.shared` for what carries its own key and may outlive a change of the code.

    Both are `--work` if it is given, temporary for a quick run, else in the user's cache, where other
    settings and other sources have another folder for work.
    """
    if given.work is None and given.quick:
        with tempfile.TemporaryDirectory(prefix="mio-rag-benchmarks-") as folder:
            given.work = given.shared = Path(folder)
            yield
        return
    cache = cache_folder() / "benchmarks"
    given.shared = given.work or cache
    if given.work is None:
        settings = sorted((k, str(v)) for k, v in vars(given).items() if k not in ("out", "shared", "fresh"))
        digest = hashlib.sha256(f"{sources()}{settings}".encode()).hexdigest()[:16]
        given.work = cache / f"{study.name}-{digest}"
    given.work.mkdir(parents=True, exist_ok=True)
    yield


def main(arguments: Sequence[str] | None = None) -> int:
    """List the studies, or run one."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["run"]:
        words = words[1:]
    known = studies()
    if not words or words[0] in ("list", "-h", "--help"):
        print("usage: python -m benchmarks run STUDY [OPTIONS]; run STUDY --help lists its options\n")
        for study in known.values():
            print(f"{study.name:20}{study.about}")
        return 0
    if words[0] not in known:
        print(f"error: there is no study '{words[0]}': choose {', '.join(known)}", file=sys.stderr)
        return 2
    return run(known[words[0]], words[1:])


# What studies share ----------------------------------------------------------------------------------------


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Yield a partial file that takes the place of `path` when the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with storage.replaced(path) as partial:
        yield partial


def write_text(path: Path, text: str) -> None:
    """Write a whole file or none of it."""
    with replaced(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path, data: Any) -> None:
    """Write a report."""
    write_text(path, json.dumps(data, indent=1, sort_keys=True) + "\n")


def stored(path: Path, settings: Any, make: Callable[[], Any]) -> Any:
    """Return the JSON data stored in `path` for equal settings; make and store it otherwise."""
    settings = json.loads(json.dumps(settings))
    known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if known.get("settings") != settings:
        known = {"settings": settings, "made": make()}
        write_text(path, json.dumps(known))
    return known["made"]


def sources() -> str:
    """Return a digest of the sources of the package and of the benchmarks."""
    package, digest = Path(errors.__file__).resolve().parent, hashlib.sha256()
    folders = [package, package / "solvers", package / "formulations", Path(__file__).resolve().parent]
    for path in sorted({file.resolve() for folder in folders for file in folder.glob("**/*.py")}):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def versions() -> dict[str, str]:
    """Return the versions of this package and of the packages that results depend on."""
    found = {"mio-rag": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """Describe the machine."""
    model, info = platform.processor() or platform.machine(), Path("/proc/cpuinfo")
    if info.is_file():
        names = [line for line in info.read_text(encoding="utf-8").splitlines() if "model name" in line]
        model = names[0].partition(":")[2].strip() if names else model
    return {
        "system": platform.system(),
        "processor": model,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
    }


def note(text: str) -> None:
    """Print progress."""
    print(text, file=sys.stderr, flush=True)


def numbers(option: str, text: str, kind: type[int] | type[float]) -> list[Any]:
    """Parse different numbers >= 0 with commas between them; `InputError` if they are not."""
    try:
        found = [kind(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"{option}={text!r} must be numbers with commas between them") from error
    if any(value < 0 for value in found) or len(set(found)) < len(found):
        raise InputError(f"{option}={text!r} must be different numbers >= 0")
    return found


def at_least(given: argparse.Namespace, **least: float) -> None:
    """Raise `InputError` for settings below a number."""
    below = [(name.replace("_", "-"), low, getattr(given, name)) for name, low in least.items()]
    if problems := [f"--{name} must be >= {low:g}, got {got}" for name, low, got in below if got < low]:
        raise InputError(problems)


def interval_text(interval: Mapping[str, Any] | None, digits: int = 3, sign: str = "") -> str:
    """Format a mean with its interval: 0.512 (0.480 to 0.544)."""
    if interval is None:
        return "-"
    mean, low, high = (f"{interval[end]:{sign}.{digits}f}" for end in ("mean", "low", "high"))
    return mean if interval["low"] == interval["high"] else f"{mean} ({low} to {high})"


def text_table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Lay out cells in columns, the first to the left and the others to the right."""
    columns = []
    for k, column in enumerate(zip(heads, *rows, strict=True)):
        cells = list(map(str, column))
        width = max(map(len, cells))
        columns.append([cell.rjust(width) if k else cell.ljust(width) for cell in cells])
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))


def figure(panels: int, width: float = 5.2, height: float = 4.2) -> tuple[Any, list[Any]]:
    """Return a matplotlib figure and its panels, side by side."""
    from mio_rag.errors import require

    made = require("matplotlib.figure", "evaluation", "the picture").Figure(
        figsize=(width * panels, height), layout="constrained"
    )
    return made, list(made.subplots(1, panels, squeeze=False)[0])


def resident_mb(process: int | None = None, peak: bool = False) -> float:
    """Return resident megabytes of a process, by default of this one, now or at its peak; 0 if unknown."""
    try:
        # Not getrusage: on Linux its peak includes that of the process that started this one.
        text = Path(f"/proc/{process or 'self'}/status").read_text(encoding="ascii")
        line = next(one for one in text.splitlines() if one.startswith("VmHWM:" if peak else "VmRSS:"))
        return int(line.split()[1]) / 1024
    except (OSError, StopIteration, UnicodeDecodeError):
        return 0.0
