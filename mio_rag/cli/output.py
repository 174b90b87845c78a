"""Where the result of a command goes, and how an error becomes a message and an exit code."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer
from typer.core import TyperGroup

from mio_rag.cli import interrupt
from mio_rag.cli.streams import OutputError, prepare_streams, silence
from mio_rag.errors import InfeasibleError, InputError, MioRagError, SolverError
from mio_rag.types import GenerationError

if TYPE_CHECKING:
    from mio_rag.cli.show.selection import Output

__all__ = ["ReportingGroup", "kept_rows", "open_output"]

_current: Output | None = None

#: Of the command line: an option that is unknown, a value of another kind. Typer names but this part of it.
_UsageError = cast("type[Exception]", typer.BadParameter.__mro__[2])


def open_output(as_json: bool, kept: Callable[[], str] | None = None) -> Output:
    """The output of this command; kept so that an error goes the same way.

    Parameters
    ----------
    kept : callable, optional
        Says what an interrupt leaves behind, and how to go on; empty where that is nothing.
    """
    global _current
    from mio_rag.cli.show.selection import Output

    _current = Output(as_json, kept)
    return _current


def kept_rows(folder: Path) -> Callable[[], str]:
    """What an interrupted run leaves in its folder."""

    def kept() -> str:
        rows = folder / "rows.jsonl"
        if rows.is_file() and rows.stat().st_size > 0:
            return f"what was finished is kept in '{folder}': go on with --resume"
        return ""

    return kept


class ReportingGroup(TyperGroup):
    """Turns what goes wrong into messages and exit codes, for every command."""

    _debug = False

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an interrupt is told while it is known what the command leaves behind."""
        self._debug = bool(ctx.params.get("debug"))
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise _Interrupted from None

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command line and end the program.

        Exit code 1 if a solver or generator failed, or the output could not be written; 2 for bad input; 130
        if interrupted.
        """
        global _current
        _current = None
        given = sys.argv[1:] if args is None else list(args)
        as_json = "--json" in takewhile(lambda argument: argument != "--", given)
        code = 1
        try:
            prepare_streams()
            ended = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
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
        """Tell what ended a command; its exit code. Raise what nobody foresaw."""
        if interrupt.seen() or isinstance(error, (_Interrupted, KeyboardInterrupt, typer.Abort)):
            return _report(_Interrupted(), as_json)
        if isinstance(error, SystemExit):
            return error.code if isinstance(error.code, int) else 1
        if isinstance(error, BrokenPipeError):  # who read it has read enough
            silence(sys.stdout)
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
            silence(sys.stdout)
        return code


class _Interrupted(Exception):
    """Ctrl-C, on its way to the top."""


def _report(error: Exception, as_json: bool) -> int:
    """Tell an error where the command's result would go; its exit code."""
    problems, kind, code = [str(error)], type(error).__name__, 2
    if isinstance(error, InputError):
        problems = list(error.problems)
    elif isinstance(error, _Interrupted):
        kept = "" if _current is None or _current.kept is None else _current.kept()
        problems, kind, code = ["; ".join(["interrupted", *filter(None, [kept])])], "Interrupted", 130
    elif isinstance(error, (GenerationError, InfeasibleError, SolverError, OutputError)):
        code = 1
    output = _current or open_output(as_json)
    with suppress(OutputError):  # where not even this can be written, the exit code says it
        output.problems(problems, kind, headed=code != 130)
    return code


def _report_usage(error: Any, as_json: bool) -> int:
    """Tell a usage error as Typer words it."""
    from mio_rag.cli.show.selection import errors

    shown = io.StringIO()
    error.show(shown)
    with suppress(OutputError):
        errors.print(shown.getvalue().rstrip("\n"), soft_wrap=True)
        if as_json:
            open_output(True).json({"error": {"kind": "InputError", "problems": [error.format_message()]}})
    return int(error.exit_code)
