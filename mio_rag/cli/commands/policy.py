"""The commands ``mio-rag policy``: check a policy, show who decides what, draw it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mio_rag.cli.options.shared import Json
from mio_rag.cli.output import open_output
from mio_rag.errors import InputError, collect

__all__ = ["policy_app"]

policy_app = typer.Typer(
    help="Policies: who decides what on a question's way, at one price.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_Named = Annotated[str, typer.Argument(metavar="FILE|PRESET", help="TOML file of a policy, or a preset.")]
_Index = Annotated[
    Path | None, typer.Option("--index", help="Also hold what was learned against this index.")
]


@policy_app.command("check")
def check_command(policy: _Named, index: _Index = None, json_output: Json = False) -> None:
    """Find everything that is wrong with a policy. With its files, too; no model is loaded, nothing spent."""
    from mio_rag.cli.options.shared import load_index
    from mio_rag.control.composed.read import read_policy
    from mio_rag.control.composed.states import read_states

    output = open_output(json_output)
    found = read_policy(policy)
    states, corpus = collect(lambda: read_states(found), lambda: None if index is None else load_index(index))
    if corpus is not None:
        states.check(corpus.embedder.fingerprint)
    if json_output:
        output.json({"name": found.name, "sha256": states.sha256, "files": dict(states.hashes)})
        return
    count = len(states.hashes)
    files = f", with {count} file{'s' if count > 1 else ''}" if count else ""
    output.console.print(f"{found.name} holds together{files}; content {states.sha256[:12]}", soft_wrap=True)


@policy_app.command("calibrate")
def calibrate_command(
    data: Annotated[str, typer.Argument(help="Question set with gold passages.")],
    index: Annotated[Path, typer.Option("--index", help="Index that the questions are asked of.")],
    out: Annotated[Path, typer.Option("--out", help="File for [repetition] calibration: .json.")],
    limit: Annotated[int, typer.Option("--limit", help="Most questions, drawn by seed.")] = 500,
    seed: Annotated[int, typer.Option("--seed", help="Of the questions that are drawn.")] = 0,
    json_output: Json = False,
) -> None:
    """Learn how likely the evidence is complete. From labelled questions."""
    from mio_rag.cli.options.shared import load_index
    from mio_rag.cli.progress import progress_bar
    from mio_rag.corpora.dataset import Dataset
    from mio_rag.corpora.load import check_source, load_questions
    from mio_rag.evaluation.fit import calibrate_completeness
    from mio_rag.files import make_parent, write_atomically
    from mio_rag.retrieval.index import check_index

    output = open_output(json_output)
    if limit < 1:
        raise InputError(f"--limit={limit} must be >= 1")
    collect(lambda: check_source(data), lambda: check_index(index))
    questions, corpus = load_questions(data), load_index(index)
    asked = Dataset(Path(data).name, tuple(corpus.passages), questions)
    with progress_bar("reading", min(limit, len(questions))) as advance:
        found = calibrate_completeness(asked, corpus, limit=limit, seed=seed, progress=advance)
    make_parent(out)
    write_atomically(out, found.model.to_json())
    if json_output:
        output.json({"file": str(out), **found.to_dict()})
        return
    output.console.print(
        f"{found.questions} questions: on those not seen, probabilities are off by {found.error:.3f} (as "
        f"shipped: {found.shipped_error:.3f}; by chance alone, on so few: {found.chance:.3f}), Brier "
        f"{found.brier:.3f} ({found.shipped_brier:.3f})\n{out}",
        soft_wrap=True,
    )


@policy_app.command("show")
def show_command(
    policy: Annotated[
        str, typer.Argument(metavar="FILE|PRESET", help="TOML file or preset; nothing: list the presets.")
    ] = "",
    picture: Annotated[Path | None, typer.Option("--picture", help="Draw it: .png, .svg or .pdf.")] = None,
    toml: Annotated[
        bool, typer.Option("--toml", help="Print the file of a preset, to begin one's own with.")
    ] = False,
    json_output: Json = False,
) -> None:
    """Show who decides what, at which price, within which limits."""
    from mio_rag.cli.show.policy import print_policy, print_presets
    from mio_rag.control.composed.describe import policy_json
    from mio_rag.control.composed.draw import draw_policy
    from mio_rag.control.composed.read import PRESETS, preset_text, read_policy
    from mio_rag.control.composed.states import read_states
    from mio_rag.pictures import check_figure

    output = open_output(json_output)
    if not policy:
        if picture is not None or toml:
            raise InputError("--picture and --toml need a policy: give its name")
        if json_output:
            output.json({"presets": dict(PRESETS)})
        else:
            print_presets(output.console, PRESETS)
        return
    if toml:
        output.console.print(preset_text(policy), end="", soft_wrap=True, markup=False, highlight=False)
        return
    found, _ = collect(
        lambda: read_policy(policy), lambda: None if picture is None else check_figure(picture)
    )
    states = read_states(found)
    if picture is not None:
        draw_policy(found, states, picture)
    if json_output:
        output.json(policy_json(found, states))
        return
    print_policy(output.console, found, states)
    if picture is not None:
        output.console.print(f"\npicture: {picture}", soft_wrap=True)
