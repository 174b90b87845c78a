"""Where the result of a command goes: JSON, streams, messages of errors, and exit codes."""

from __future__ import annotations

import codecs
import errno
import io
import math
import os
import re
import sys
import unicodedata
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer
from typer.core import TyperGroup

from mio_rag.cli import interrupt
from mio_rag.errors import (
    InfeasibleError,
    InputError,
    MioRagError,
    Notice,
    OutputError,
    SolverError,
    SpentError,
    StateError,
)
from mio_rag.types import GenerationError

if TYPE_CHECKING:
    from mio_rag.cli.terminal import Terminal


# -- streams ---------------------------------------------------------------------------------------------

_HANDLER = "mio_rag.plain_characters"
#: What stands for characters that a stream cannot take; one column wide where tables hold them.
_PLAIN = {
    "\u2713": "+", "\u00b7": "-", "\u2022": "*", "\u2010": "-", "\u2011": "-", "\u2013": "-", "\u2014": "-",
    "\u2212": "-", "\u2192": ">", "\u2026": "...", "\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"',
    "\u2264": "<=", "\u2265": ">=", "\u00d7": "x", "\u00b1": "+-", "\u00a0": " ", "\u2009": " ",
    "\u202f": " ",
}  # fmt: skip


def prepare_streams() -> None:
    """Let stdout and stderr take every character: plain ones stand for those that their encoding lacks.

    What the environment chose (``PYTHONIOENCODING=ascii:xmlcharrefreplace``) stays.

    Raises `OutputError` if stdout is closed.
    """
    if sys.stdout is None:
        raise OutputError(OSError(errno.EBADF, "stdout is closed"))
    codecs.register_error(_HANDLER, _plain)
    for stream in (sys.stdout, sys.stderr):
        defaults = ("strict", "surrogateescape", *(("backslashreplace",) if stream is sys.stderr else ()))
        if isinstance(stream, io.TextIOWrapper) and stream.errors in defaults:
            stream.reconfigure(errors=_HANDLER)


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error

    def of(character: str) -> str:
        base, *marks = list(unicodedata.normalize("NFD", character))
        if unicodedata.combining(base):
            return ""
        if base.isascii() and all(map(unicodedata.combining, marks)):
            return base
        return "??" if unicodedata.east_asian_width(character) in "WF" else "?"

    return "".join(_PLAIN.get(c) or of(c) for c in error.object[error.start : error.end]), error.end


def _silence(stream: Any) -> None:
    """Send what a stream still holds to nowhere, so that Python does not fail on it once more at its end."""
    with suppress(OSError, ValueError, AttributeError):  # no real descriptor, which holds nothing back
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


# -- output ----------------------------------------------------------------------------------------------

#: Of the command line: an option that is unknown, a value of another kind. Typer names but this part of it.
_UsageError = cast("type[Exception]", typer.BadParameter.__mro__[2])


class Output:
    """Where a command's result goes. `kept` says what an interrupt leaves behind.

    With `as_json`, exactly one JSON object is written to stdout. Native libraries write to file descriptor 1
    whenever they like, so that descriptor is pointed at stderr until the object is printed.
    """

    def __init__(self, as_json: bool, kept: Callable[[], str] | None = None) -> None:
        self.as_json, self.kept = as_json, kept
        self._stdout: int | None = None
        if as_json and sys.stdout is not None:
            sys.stdout.flush()
            try:
                self._stdout = os.dup(1)
                os.dup2(2, 1)
            except OSError:  # no real descriptors (a test runner's capture)
                self._stdout = None

    @cached_property
    def console(self) -> Terminal:
        """Where the result goes."""
        from mio_rag.cli.terminal import Terminal

        return Terminal(stderr=self.as_json)

    @cached_property
    def notes(self) -> Terminal:
        """Where everything else goes."""
        from mio_rag.cli.terminal import Terminal

        return Terminal(stderr=True)

    def close(self) -> None:
        """Give stdout back."""
        if self._stdout is not None:
            sys.stdout.flush()
            os.dup2(self._stdout, 1)
            os.close(self._stdout)
            self._stdout = None

    def say(self, *items: Any) -> None:
        """Print lines and tables that are no part of the result on stderr."""
        if items:
            self.notes.show(*items)

    def text(self, text: str) -> None:
        """Print a text on stdout as it is."""
        self.console.print(text, soft_wrap=True)

    def result(self, data: Mapping[str, Any], *items: Any) -> None:
        """Print the data as JSON, or these lines and tables for people."""
        if self.as_json:
            self.json(data)
        else:
            self.console.show(*items)

    def json(self, data: Mapping[str, Any]) -> None:
        """Print the one object, on one line; what JSON cannot hold (infinity, NaN) becomes null.

        Raises `OutputError` if stdout is closed, or takes nothing more.
        """
        import json

        self.close()
        if sys.stdout is None:
            raise OutputError(OSError(errno.EBADF, "stdout is closed"))
        text = json.dumps(_finite(data), ensure_ascii=False, allow_nan=False)
        try:  # JSON is UTF-8, and other bytes would be read as that
            text.encode("utf-8" if codecs.lookup(sys.stdout.encoding or "utf-8").name == "utf-8" else "ascii")
        except UnicodeEncodeError:
            text = json.dumps(_finite(data), allow_nan=False)
        try:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(error) from error

    def problems(self, problems: Sequence[str], kind: str, headed: bool = True) -> None:
        """Report an error: to people on stderr, headed "error:"; to programs as one object on stdout."""
        from mio_rag.cli.terminal import errors, styled

        for problem in problems:
            errors.print(styled(("error:", "bold red"), f" {problem}") if headed else problem, soft_wrap=True)
        if self.as_json:
            self.json({"error": {"kind": kind, "problems": list(problems)}})


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return value


_current: Output | None = None


def open_output(as_json: bool, kept: Callable[[], str] | None = None) -> Output:
    """The output of this command; kept so that an error goes the same way. See `Output`."""
    global _current
    _current = Output(as_json, kept)
    return _current


def kept_rows(folder: Path, go_on: str = "continue with --resume") -> Callable[[], str]:
    """Return the message about what an interrupted run left in its folder, and how to go on."""
    rows = folder / "rows.jsonl"
    told = f"what was finished is kept in '{folder}': {go_on}"
    return lambda: told if rows.is_file() and rows.stat().st_size > 0 else ""


class ReportingGroup(TyperGroup):
    """Turn what goes wrong into messages and exit codes, for every command."""

    _debug = False

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an interrupt is told while it is known what the command leaves behind."""
        self._debug = bool(ctx.params.get("debug"))
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise _Interrupted from None

    def main(
        self, args: Any = None, prog_name: Any = None, complete_var: Any = None, *rest: Any, **extra: Any
    ) -> Any:
        """Run the command line and end the program; exit codes as in `mio_rag.cli.app`."""
        global _current
        _current = None
        given = renamed(sys.argv[1:] if args is None else list(map(str, args)))
        as_json = "--json" in takewhile(lambda argument: argument != "--", given)
        code = 1
        try:
            prepare_streams()
            with _notices_as_notes():
                ended = super().main(given, prog_name, complete_var, **{**extra, "standalone_mode": False})
            code = ended if isinstance(ended, int) else 0
            if code == 130:  # Typer took the interrupt
                raise _Interrupted
            sys.stdout.flush()
        except BaseException as error:
            code = self._ended(error, as_json)
        finally:
            if _current is not None:
                _current.close()
        sys.exit(code)

    def _ended(self, error: BaseException, as_json: bool) -> int:
        """Report what ended a command, and return its exit code; raise what nobody foresaw."""
        if interrupt.seen() or isinstance(error, (_Interrupted, KeyboardInterrupt, typer.Abort)):
            return _report(_Interrupted(), as_json)
        if isinstance(error, SystemExit):
            return error.code if isinstance(error.code, int) else 1
        if isinstance(error, BrokenPipeError):  # who read it has read enough
            _silence(sys.stdout)
            return 1
        if isinstance(error, _UsageError):
            return _report_usage(error, as_json)
        if isinstance(error, OSError) and not self._debug:
            nameless = error.filename is None  # a stream
            error = OutputError(error) if nameless else InputError(str(error))
        if not isinstance(error, MioRagError) or self._debug:
            raise error
        code = _report(error, as_json)
        if isinstance(error, OutputError):
            _silence(sys.stdout)
        return code


@contextmanager
def _notices_as_notes() -> Iterator[None]:
    """Print what mio-rag warns of for people, without a line of code; other warnings stay as they are."""
    with warnings.catch_warnings():
        otherwise = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if not issubclass(category, Notice):
                otherwise(message, category, *where, **more)
                return
            from mio_rag.cli.terminal import errors, notes

            errors.print(*notes([str(message).removeprefix("mio-rag: ")]), soft_wrap=True)

        warnings.showwarning = show
        yield


#: Errors -> exit code.
_CODES = ((InfeasibleError, 3), (SpentError, 4), ((GenerationError, SolverError, StateError, OutputError), 1))


class _Interrupted(Exception):
    """Ctrl-C, on its way to the top."""


def _report(error: Exception, as_json: bool) -> int:
    """Report an error where the command's result would go, and return its exit code."""
    problems, kind, code = [str(error)], type(error).__name__, 2
    if isinstance(error, InputError):
        problems = [_as_typed(problem) for problem in error.problems]
    elif isinstance(error, _Interrupted):
        kept = "" if _current is None or _current.kept is None else _current.kept()
        problems, kind, code = ["; ".join(filter(None, ["interrupted", kept]))], "Interrupted", 130
    else:
        code = next((code for kinds, code in _CODES if isinstance(error, kinds)), code)
    output = _current or open_output(as_json)
    with suppress(OutputError):  # where not even this can be written, the exit code says it
        output.problems(problems, kind, headed=code != 130)
    return code


#: Arguments of functions -> the option that sets them.
_OPTIONS = {"max_tokens": "answer", "budget_tokens": "budget"} | {
    name: name.replace("_", "-")
    for name in ("engine", "workers", "shard_rows", "floor", "ceiling", "sample", "concurrency", "retries",
                 "total_tokens", "total_dollars")
}  # fmt: skip


def _as_typed(problem: str) -> str:
    """Word a problem as the command line is written, not as Python is."""
    if found := re.match(r"^(\w+): (?:(\w+): )?(\w+)(?= must |=)", problem):
        problem = ".".join(filter(None, found.groups())) + problem[found.end() :]
    if found := re.match(r"^([\w.]+)=(\S+) must be (.*)$", problem):
        option = f"--{_OPTIONS.get(found[1], found[1].replace('_', '-'))}"
        return f"{found[1] if '.' in found[1] else option} must be {found[3]}, got {found[2]}"
    name, must, rest = problem.partition(" must be ")
    return f"--{_OPTIONS[name]} must be {rest}" if must and name in _OPTIONS else problem


def _report_usage(error: Any, as_json: bool) -> int:
    """Report a usage error as Typer words it."""
    from mio_rag.cli.terminal import errors

    shown = io.StringIO()
    error.show(shown)
    with suppress(OutputError):
        errors.print(shown.getvalue().rstrip("\n"), soft_wrap=True)
        if as_json:
            open_output(True).json({"error": {"kind": "InputError", "problems": [error.format_message()]}})
    return int(error.exit_code)


#: Commands; then options of select, ask, evaluate and serve: a name of today, or a key of the policy.
NAMES = {
    "select-batch": "batch select", "answer-batch": "batch answer", "allocate": "batch allocate",
    "solve": "lab solve", "frontier": "lab frontier", "radius": "lab radius", "warmup": "lab warmup",
    "measures": "evaluate --list",
    "--budget-tokens": "--budget", "--max-tokens": "--answer", "--generator": "--model", "--explain": "--why",
    "--config": "--policy", "--controller": "--policy", "--controllers": "--methods",
    "--policies": "--methods",
    "--pool": "search.pool", "--retrieval": "search.ranking", "--link-hops": "search.link_hops",
    "--rerank": "search.rerank", "--strategies": "search.strategies", "--preset": "selection.preset",
    "--redundancy": "selection.redundancy_weight", "--passage-penalty": "selection.passage_penalty",
    "--max-per-source": "selection.max_per_source", "--max-passages": "selection.max_passages",
    "--solver": "selection.solver", "--relevance": "selection.relevance_model",
    "--token-price": "price.token", "--cache": "answers.cache", "--refusal": "answers.refusal",
    "--router": "depth.file", "--planner": "order.file",
}  # fmt: skip


def renamed(words: list[str]) -> list[str]:
    """Return the words of a command line with today's names, and say on stderr which were replaced."""
    if not words:
        return words
    said = []
    if not words[0].startswith("-") and words[0] in NAMES:
        said.append((words[0], NAMES[words[0]]))
        words = [*NAMES[words[0]].split(), *words[1:]]
    if words[0] in ("select", "ask", "evaluate", "serve"):
        made, rest = [words[0]], iter(words[1:])
        for word in rest:
            name, mark, value = word.partition("=")
            now = NAMES.get(name) if name.startswith("--") else None
            if now is None:
                made.append(word)
            elif not now.startswith("--"):
                made += ["--set", f"{now}={value if mark else next(rest, '')}"]
                said.append((name, f"--set {now}=..."))
            else:
                said.append((name, now))
                if name != "--generator":
                    made.append(now + mark + value)
                elif (given := value if mark else next(rest, "")) != "none":  # which is now the default
                    made += [now, given]
        words = made
    for old, new in said:
        print(f"note: {old} is now {new}", file=sys.stderr)
    return words
