"""The commands ``mio-rag plan``: show workflows, run all of them for a table of outcomes, learn to choose."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mio_rag.cli.options.shared import Json, MaxTokens, spread
from mio_rag.cli.options.workflow import ModelOptions
from mio_rag.cli.output import open_output
from mio_rag.errors import InputError, collect

if TYPE_CHECKING:
    from mio_rag.control.planner.workflow import Workflow

__all__ = ["plan_app"]

plan_app = typer.Typer(
    help="Workflows: which steps, in what order, by which model.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def _workflows(names: str) -> list[Workflow]:
    from mio_rag.control.planner.named import NAMED, find_workflow

    given = [name.strip() for name in names.split(",") if name.strip()] or list(NAMED)
    found = collect(*((lambda name=name: find_workflow(name)) for name in given))
    if twice := {w.name for w in found if sum(other.name == w.name for other in found) > 1}:
        raise InputError(f"--workflows names {', '.join(sorted(twice))} twice")
    return found


@plan_app.command("show")
def show_command(
    workflow: Annotated[
        str, typer.Argument(help="Name of a workflow, or a JSON file; nothing: list all.")
    ] = "",
    picture: Annotated[Path | None, typer.Option("--picture", help="Draw it: .png, .svg or .pdf.")] = None,
    json_output: Json = False,
) -> None:
    """Check a workflow, print it and draw it; or list what there is."""
    from mio_rag.cli.show.plan import print_named
    from mio_rag.control.planner.draw import draw_workflow, workflow_text
    from mio_rag.control.planner.named import NAMED, find_workflow, workflow_problems
    from mio_rag.pictures import check_figure

    output = open_output(json_output)
    if not workflow:
        if picture is not None:
            raise InputError("--picture needs a workflow to draw: give its name")
        if json_output:
            output.json({"workflows": [found.to_dict() for found in NAMED.values()]})
        else:
            print_named(output.console, NAMED)
        return
    found, _ = collect(
        lambda: find_workflow(workflow), lambda: None if picture is None else check_figure(picture)
    )
    # Which models there are, and what they cost, is known where it runs.
    if problems := workflow_problems(found, models=found.models, prices=found.models):
        raise InputError(problems)
    if picture is not None:
        draw_workflow(found, picture)
    if json_output:
        output.json(found.to_dict())
        return
    output.console.print(workflow_text(found), soft_wrap=True, markup=False, highlight=False)
    if picture is not None:
        output.console.print(f"\npicture: {picture}", soft_wrap=True)


@plan_app.command("outcomes")
@spread
def outcomes_command(
    out: Annotated[Path, typer.Argument(help="Folder of the table; an interrupted run goes on there.")],
    data: Annotated[
        list[str], typer.Option("--data", help="Question set; give it once for each, with an index for each.")
    ],
    index: Annotated[
        list[Path], typer.Option("--index", help="Index that the questions of the set are asked of.")
    ],
    generator: Annotated[str, typer.Option("--generator", help="Who answers, as in ask.")] = "extractive",
    *,
    workflows: Annotated[
        str, typer.Option("--workflows", help="Comma-separated names or files. [all named ones]")
    ] = "",
    models: ModelOptions,
    limit: Annotated[int, typer.Option("--limit", help="Questions of each set, drawn by seed.")] = 50,
    budget_tokens: Annotated[int, typer.Option("--budget-tokens", help="Largest block of evidence.")] = 256,
    max_tokens: MaxTokens = 32,
    seed: Annotated[int, typer.Option("--seed", help="Of the questions that are drawn.")] = 0,
    json_output: Json = False,
) -> None:
    """Answer every question by every workflow, and keep quality and costs as a table."""
    from mio_rag.cli.progress import progress_bar
    from mio_rag.cli.show.plan import print_table
    from mio_rag.control.meter import Limits
    from mio_rag.control.planner.collect import Source, collect_outcomes, data_hash, shuffled
    from mio_rag.control.planner.named import workflow_problems
    from mio_rag.control.planner.run import Kit
    from mio_rag.control.planner.settings import Models
    from mio_rag.corpora.load import check_source, load_questions
    from mio_rag.generation import check_generator, make_generator
    from mio_rag.retrieval import CorpusIndex, Retriever
    from mio_rag.retrieval.index import check_index
    from mio_rag.selection.selector import Selector

    output = open_output(json_output)
    if len(data) != len(index):
        raise InputError(
            f"{len(data)} question sets and {len(index)} indexes: give one --index for each --data"
        )
    if limit < 1:
        raise InputError(f"--limit={limit} must be >= 1")
    chosen, settings, *_ = collect(
        lambda: _workflows(workflows),
        models.settings,
        lambda: check_generator(generator),
        *((lambda source=source: check_source(source)) for source in data),
        *((lambda folder=folder: check_index(folder)) for folder in index),
    )
    told = {"models": tuple(settings.models), "prices": tuple(settings.prices), "depth": settings.depth}
    if problems := [p for w in chosen for p in workflow_problems(w, **told)]:
        raise InputError(problems)
    reader = make_generator(generator)
    opened = Models(settings.models)
    try:
        sources = []
        for name, folder in zip(data, index, strict=True):
            corpus = CorpusIndex.load(folder)
            kit = Kit(
                Retriever(corpus, counter=reader), Selector(), opened, settings,
                Limits(40, 20_000, 1e6), max_tokens,
            )  # fmt: skip
            questions = shuffled(load_questions(name), limit, seed)
            sources.append(Source(Path(name).name, questions, kit, data_hash(corpus, load_questions(name))))
        total = sum(len(source.questions) for source in sources)
        with progress_bar("answering", total) as advance:
            table = collect_outcomes(
                out, sources, chosen, reader, budget_tokens=budget_tokens,
                progress=lambda name, done, of: advance(1, name),
            )  # fmt: skip
    finally:
        reader.close()
        opened.close()
    if json_output:
        output.json({"questions": len(table), "workflows": list(table.actions), "table": str(out)})
        return
    print_table(output.console, table)
    output.console.print(f"\ntable: {out / 'outcomes.parquet'}", soft_wrap=True)
