"""Programs in interpreters that have loaded their heavy modules already: forks of one that did nothing else.

A fresh interpreter takes half a second to load numba. One that has loaded it and then waits is forked for
each program instead: nothing of this package is loaded in it, and no program sees what another one did.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["Done", "Loaded"]

_WAITING = """
import json, os, sys, traceback

exec(sys.argv[1])
for line in sys.stdin:
    task = json.loads(line)
    child = os.fork()
    if child == 0:
        os.chdir(task["folder"])
        nothing = os.open(os.devnull, os.O_RDONLY)
        created = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        out, err = (os.open(task[name], created) for name in ("stdout", "stderr"))
        for stream, number in ((nothing, 0), (out, 1), (err, 2)):
            os.dup2(stream, number)
        os.environ.update(task["environment"])
        sys.argv = ["-c", *task["arguments"]]
        sys.path[0] = ""
        code = 0
        try:
            exec(task["once"])
            exec(compile(task["code"], "<string>", "exec"), {"__name__": "__main__"})
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Done(NamedTuple):
    """How a program ended (below 0: by this signal), and what it printed."""

    code: int
    stdout: str
    stderr: str


class Loaded:
    """An interpreter that waits for programs; where there is no fork, each gets a new one.

    Parameters
    ----------
    loading : str
        Statements that it executes at once.
    once : str
        Statements for each program before it runs, with its environment set: for what was read from the
        environment while loading.
    """

    def __init__(self, loading: str, once: str = "") -> None:
        self.loading, self.once = loading, once
        self.waiting = None
        if hasattr(os, "fork"):
            command = [sys.executable, "-c", _WAITING, loading]
            self.waiting = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
            )

    def run(self, folder: Path, code: str, arguments: Sequence[str], environment: Mapping[str, str]) -> Done:
        """The program `code` in a folder."""
        if self.waiting is None:
            command = [sys.executable, "-c", f"{self.loading}\n{code}", *arguments]
            own = {**os.environ, **environment}
            done = subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, check=False)
            return Done(done.returncode, done.stdout, done.stderr)
        assert self.waiting.stdin is not None
        assert self.waiting.stdout is not None
        files = {name: str(folder / f".{name}") for name in ("stdout", "stderr")}
        task = {
            **files, "folder": str(folder), "code": code, "arguments": list(arguments),
            "environment": dict(environment), "once": self.once,
        }  # fmt: skip
        self.waiting.stdin.write(json.dumps(task) + "\n")
        self.waiting.stdin.flush()
        ended = int(self.waiting.stdout.readline())
        out, err = (Path(files[name]).read_text(encoding="utf-8") for name in ("stdout", "stderr"))
        return Done(ended, out, err)

    def close(self) -> None:
        """It ends."""
        if self.waiting is not None:
            self.waiting.communicate()
