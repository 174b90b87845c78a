"""The tree of commands: its options, its help, and what replaces old names."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator

import pytest
import typer
import typer.core

from mio_rag.cli.app import _COMMANDS, _GROUPS, app, load_command
from mio_rag.cli.chosen import keys
from mio_rag.cli.output import renamed
from tests.cli.running import here


def commands() -> Iterator[tuple[str, typer.core.TyperCommand]]:
    """Every command by its path."""

    def walk(command: object, path: str) -> Iterator[tuple[str, typer.core.TyperCommand]]:
        if isinstance(command, typer.core.TyperGroup):
            for name in command.commands:
                yield from walk(command.commands[name], f"{path} {name}".strip())
        else:
            assert isinstance(command, typer.core.TyperCommand)
            yield path, command

    yield from walk(typer.main.get_command(app), "")


def options(command: typer.core.TyperCommand) -> set[str]:
    return {text for p in command.params if p.param_type_name == "option" for text in p.opts}


def test_nine_commands_with_few_options_each() -> None:
    found = dict(commands())
    assert len(set(_COMMANDS) - {"demo"}) == 9
    counts = {
        path: sum(p.param_type_name == "option" for p in command.params) for path, command in found.items()
    }
    assert {path: count for path, count in counts.items() if count > 21} == {}
    assert all("/" not in text for command in found.values() for text in options(command))


def test_every_option_has_a_help_and_no_command_is_described_by_half_a_sentence() -> None:
    for path, command in commands():
        silent = [p.name for p in command.params if p.param_type_name == "option" and not p.help]  # type: ignore[attr-defined]
        assert silent == [], path
        assert not command.get_short_help_str(74 - len(path.split()[-1])).endswith("..."), path


def test_examples_in_the_help_are_commands() -> None:
    found = dict(commands())
    seen = 0
    for path, command in found.items():
        for line in re.findall(r"^ *mio-rag (.*)$", command.help or "", re.M):
            words = shlex.split(line.partition("|")[0].partition(" > ")[0])
            assert " ".join(words).startswith(path)
            given = {word for word in words if word.startswith("-")}
            assert given <= options(command), line
            seen += 1
    assert seen > 10


def test_the_list_of_commands_says_what_the_commands_say() -> None:
    shown = " ".join(here("-h").stdout.split())
    every = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name, command in ((name, every[name]) for name in every):
        assert f"{name} {_COMMANDS[name][2]}" in shown
        assert (command.help or "").startswith(_COMMANDS[name][2].rstrip(".")), name


def test_groups_list_what_their_files_hold() -> None:
    for name, texts in _GROUPS.items():
        group = load_command(name)
        said = {one: command.get_short_help_str(200) for one, command in group.commands.items()}
        assert {"": group.help, **said} == texts


def test_defaults_in_the_help_are_those_of_the_settings() -> None:
    known, ask = keys(), here("ask", "-h").stdout
    for option, key in (("--budget", "limits.budget"), ("--answer", "limits.max_tokens"),
                        ("--units", "selection.units")):  # fmt: skip
        text = " ".join(ask[ask.index(option) :].split())
        assert re.search(r"\[default: (\S+)\]", text)[1] == str(known[key].default)  # type: ignore[index]


def test_help_loads_none_of_the_heavy_packages() -> None:
    code = (
        "import sys; sys.argv = ['mio-rag', *sys.argv[1:]]\n"
        "from mio_rag.cli.app import app\n"
        "try: app()\n"
        "except SystemExit: pass\n"
        "print(sorted({'numpy', 'rich', 'mio_rag.policy'} & set(sys.modules)), file=sys.stderr)"
    )
    for arguments in (
        ["--help"],
        ["policy", "--help"],
        ["select", "--help"],
        ["ask", "--help"],
        ["--version"],
    ):
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
        assert done.stderr.strip().endswith("[]"), (arguments, done.stderr)


@pytest.mark.parametrize(
    ("given", "now", "said"),
    [
        ("select P Q --budget-tokens 9 --explain", "select P Q --budget 9 --why", "--explain is now --why"),
        ("ask P Q --pool=8", "ask P Q --set search.pool=8", "--pool is now --set search.pool=..."),
        (
            "evaluate P --generator none --policies a,b",
            "evaluate P --methods a,b",
            "--policies is now --methods",
        ),
        ("select-batch F --out O", "batch select F --out O", "select-batch is now batch select"),
        ("lab frontier P --pool 3", "lab frontier P --pool 3", ""),
        ("select P Q -b 9", "select P Q -b 9", ""),
    ],
)
def test_they_become_todays(given: str, now: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert renamed(given.split()) == now.split()
    assert said in capsys.readouterr().err


def test_a_command_runs_with_them() -> None:
    old = here("select", "demo", "How tall is Skerryvore?", "--embedder", "tfidf", "--budget-tokens", 60)
    new = here("select", "demo", "How tall is Skerryvore?", "--embedder", "tfidf", "--budget", 60)
    assert old.returncode == 0
    assert old.stdout == new.stdout
