"""Runs of the command line: as a program of its own, in this process, with a full disk; and what they say."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from mio_rag.cli.app import app

ROOT = Path(__file__).parents[2]
Done = subprocess.CompletedProcess[str]


def cli(*arguments: object, stdin: str = "", **environment: str) -> Done:
    """``python -m mio_rag`` with arguments, as a program of its own."""
    return subprocess.run(
        [sys.executable, "-m", "mio_rag", *map(str, arguments)],
        cwd=ROOT, input=stdin, capture_output=True, text=True, encoding="utf-8", check=False,
        env={**os.environ, **environment},
    )  # fmt: skip


def here(*arguments: object, stdin: str = "") -> Done:
    """The same command in this process, where everything is loaded already."""
    result = CliRunner().invoke(app, [str(a) for a in arguments], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Done(arguments, result.exit_code, result.stdout, result.stderr)


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file can grow beyond `size` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def only_object(done: Done) -> dict[str, Any]:
    """The one JSON object on stdout."""
    assert done.stdout.count("\n") == 1, done.stdout
    value: dict[str, Any] = json.loads(done.stdout)
    assert isinstance(value, dict)
    return value


def refused(done: Done, code: int = 2) -> list[str]:
    """The problems of a command that failed in the agreed way, with and without --json."""
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert "error:" in done.stderr
    if not done.stdout:
        return [
            line.removeprefix("error: ") for line in done.stderr.splitlines() if line.startswith("error:")
        ]
    problems: list[str] = only_object(done)["error"]["problems"]
    return problems


def ids(told: dict[str, Any]) -> list[str]:
    """Ids of the passages that are read."""
    return [name for part in told["parts"] for name in part["ids"]]
