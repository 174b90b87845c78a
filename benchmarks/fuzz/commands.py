"""The command line under odd input: exit code, one message, nothing raw."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.fuzz.endings import Wrong, strict

_SECONDS = 120.0  # on the wall: several processes share the machine


def run_command(arguments: Sequence[str], stdin: bytes, environment: dict[str, str]) -> tuple[str, Any]:
    """Run ``python -m mio_rag`` as a program of its own.

    Returns
    -------
    str
        How it ended.
    dict or None
        What it printed with ``--json``.
    """
    done = subprocess.run(
        [sys.executable, "-m", "mio_rag", *arguments],
        input=stdin,
        capture_output=True,
        check=False,
        timeout=_SECONDS,
        env={**os.environ, **environment},
    )
    out, err = (text.decode("utf-8", "replace") for text in (done.stdout, done.stderr))
    return check_printed(done.returncode, out, err, "--json" in arguments)


def check_printed(code: int, out: str, err: str, as_json: bool) -> tuple[str, Any]:
    """What a command printed, as `run_command` returns it.

    Raises
    ------
    Wrong
        If it is not as documented: 0 with a result; 1 (a solver failed) or 2 (bad input) with a message.
    """
    if "Traceback (most recent" in err + out:
        raise Wrong("the command printed a traceback", err.strip().splitlines()[-1:])
    if "Warning:" in err:
        raise Wrong("the command printed a warning", err)
    if code not in (0, 1, 2):
        raise Wrong("an exit code that is not documented", f"{code}: {err}")
    if code and "error:" not in err.lower():
        raise Wrong("an exit code without a message", f"{code}: {err}")
    found = None
    if as_json and out:
        try:
            found = json.loads(out, parse_constant=_refuse)
        except ValueError as error:
            raise Wrong("--json printed no JSON", out[:200]) from error
        if out.count("\n") != 1 or not isinstance(found, dict):
            raise Wrong("--json printed more or less than one object on one line", out[:200])
        strict("what --json printed", found)
        if code == 2 and not found.get("error", {}).get("problems"):
            raise Wrong("--json printed no reason for exit code 2", out[:200])
    if not code and not out.strip():
        raise Wrong("nothing was printed")
    return ("answered by the command" if not code else f"exit code {code}"), found


def _refuse(name: str) -> float:
    raise ValueError(name)
