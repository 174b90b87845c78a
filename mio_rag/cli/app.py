"""The command ``mio-rag``.

Exit codes: 0 done; 1 a solver or generator failed, nothing could be answered, or the output could not be
written; 2 bad input; 130 interrupted.
"""

from __future__ import annotations

from typing import Annotated

import typer

from mio_rag.cli.commands.allocate import allocate
from mio_rag.cli.commands.answer_batch import answer_batch
from mio_rag.cli.commands.ask import ask
from mio_rag.cli.commands.batch import select_batch
from mio_rag.cli.commands.calibrate import calibrate
from mio_rag.cli.commands.demo import demo
from mio_rag.cli.commands.evaluate import evaluate
from mio_rag.cli.commands.false_hits import false_hits
from mio_rag.cli.commands.frontier import frontier_app
from mio_rag.cli.commands.index import index
from mio_rag.cli.commands.mdp import mdp_app
from mio_rag.cli.commands.measures import measures
from mio_rag.cli.commands.plan import plan_app
from mio_rag.cli.commands.policy import policy_app
from mio_rag.cli.commands.profile import profile
from mio_rag.cli.commands.radius import radius
from mio_rag.cli.commands.route import route_app
from mio_rag.cli.commands.select import select
from mio_rag.cli.commands.serve import serve
from mio_rag.cli.commands.solve import solve, warmup
from mio_rag.cli.commands.strategies import strategies_app
from mio_rag.cli.commands.tune import tune
from mio_rag.cli.commands.unanswerable import unanswerable
from mio_rag.cli.help import brief
from mio_rag.cli.output import ReportingGroup

__all__ = ["app", "main"]

app = typer.Typer(
    name="mio-rag",
    cls=ReportingGroup,
    help="Chooses what a language model reads by mixed-integer optimization, and proves the choice.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich's help formatter would double the start-up time
)
app.add_typer(frontier_app, name="frontier")
app.add_typer(mdp_app, name="mdp")
app.add_typer(route_app, name="route")
app.add_typer(strategies_app, name="strategies")
app.add_typer(plan_app, name="plan")
app.add_typer(policy_app, name="policy")


#: What most people set when passages are chosen.
_SELECTING = ("budget_tokens", "preset", "passage_penalty", "relevance", "units")


def _version(wanted: bool) -> None:
    if wanted:
        from mio_rag import __version__

        typer.echo(f"mio-rag {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of every command."""


app.command()(demo)
app.command()(index)
app.command(cls=brief(*_SELECTING, "pool", "retrieval", "solver", "explain", "config"))(select)
app.command(cls=brief("generator", *_SELECTING, "controller", "policy", "explain", "config"))(ask)
app.command(
    cls=brief("out", "methods", "budget_tokens", "generator", "index", "limit", "preset",
              "passage_penalty", "details", "resume")
)(evaluate)  # fmt: skip
app.command()(calibrate)
app.command(name="select-batch")(select_batch)
app.command()(allocate)
app.command(name="answer-batch")(answer_batch)
app.command()(serve)
app.command()(tune)
app.command()(radius)
app.command()(profile)
app.command(name="false-hits")(false_hits)
app.command()(unanswerable)
app.command()(solve)
app.command()(measures)
app.command()(warmup)


def main() -> None:
    """Run the command line."""
    app()
