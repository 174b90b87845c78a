"""Where the result of a command goes, and how an error becomes a message and an exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from mio_rag.errors import GenerationError, InfeasibleError, MioRagError, SolverError

if TYPE_CHECKING:
    from mio_rag.console import Output

__all__ = ["ReportingGroup", "open_output"]

_current: Output | None = None


def open_output(as_json: bool) -> Output:
    """The output of this command; kept so that an error goes the same way."""
    global _current
    from mio_rag.console import Output

    _current = Output(as_json)
    return _current


class ReportingGroup(TyperGroup):
    """Turns the package's own errors into messages and exit codes, for every command."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command: exit code 1 if a solver or generator failed, 2 for bad input, 130 interrupted."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo(
                "interrupted: finished work is kept (evaluate goes on with --resume, select-batch by itself)",
                err=True,
            )
            raise typer.Exit(130) from None
        except MioRagError as error:
            if ctx.params.get("debug"):
                raise
            (_current or open_output(False)).error(error)
            failed = isinstance(error, (GenerationError, InfeasibleError, SolverError))
            raise typer.Exit(1 if failed else 2) from None
