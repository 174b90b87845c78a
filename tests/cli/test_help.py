"""Help on one screen, and all of it on request."""

import re

import pytest
import typer
import typer.core
from typer.testing import CliRunner

from mio_rag.cli.app import app

COMMANDS = ("select", "ask", "evaluate")


def options(command: str) -> set[str]:
    """The options of a command, by what the parser takes."""
    group = typer.main.get_command(app)
    params = group.commands[command].params  # type: ignore[attr-defined]
    return {text for p in params if p.param_type_name == "option" for text in p.opts}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_on_one_screen_and_names_what_most_people_use(command: str) -> None:
    done = CliRunner().invoke(app, [command, "--help"])
    assert done.exit_code == 0
    assert len(done.stdout.splitlines()) <= 40
    listed = set(re.findall(r"^  (--[a-z-]+)", done.stdout, re.M))
    assert {"--budget-tokens", "--preset"} <= listed
    assert len(listed - {"--json", "--help", "--help-all"}) == 10
    assert {"--json", "--help", "--help-all"} <= listed


@pytest.mark.parametrize("command", COMMANDS)
def test_all_help_has_every_option_once_in_a_group(command: str) -> None:
    done = CliRunner().invoke(app, [command, "--help-all"])
    assert done.exit_code == 0
    found = re.findall(r"^  (--[a-z-]+)", done.stdout, re.M)
    assert len(found) == len(set(found))
    assert options(command) <= set(found)
    assert {"--help", "--help-all"} <= set(found)
    assert "Solver:" in done.stdout
    assert "Other:" not in done.stdout  # an option without a group


def test_all_help_is_no_option_of_anything_else() -> None:
    assert CliRunner().invoke(app, ["solve", "--help-all"]).exit_code == 2


def test_no_command_is_described_by_half_a_sentence() -> None:
    cut = []

    def walk(group: typer.core.TyperGroup, path: str) -> None:
        longest = max(len(name) for name in group.commands)
        for name, command in group.commands.items():
            if command.get_short_help_str(80 - 6 - longest).endswith("..."):
                cut.append(f"{path} {name}")
            if isinstance(command, typer.core.TyperGroup):
                walk(command, f"{path} {name}")

    whole = typer.main.get_command(app)
    assert isinstance(whole, typer.core.TyperGroup)
    walk(whole, "mio-rag")
    assert cut == []
