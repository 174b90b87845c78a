"""How a command ends: streams that take nothing, interrupts, errors that come before anything is loaded."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mio_rag import Passage, generation
from mio_rag.cli.app import app
from mio_rag.retrieval import CorpusIndex, embedders

ROOT = Path(__file__).parents[2]
PROGRAM = json.dumps({"linear": [1.0], "costs": [1], "budget": 1})
SOLVE = f"{sys.executable} -m mio_rag lab solve - --solver topk"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    passages = [Passage("a", "The bridge opened in 1890."), Passage("b", "A second bridge.")]
    return CorpusIndex.build(passages, "tfidf").save(tmp_path_factory.mktemp("ends") / "index")


def shell(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        cwd=ROOT, input=PROGRAM, capture_output=True, text=True, check=False,
    )  # fmt: skip


FULL = "error: the output could not be written: No space left on device\n"
CLOSED = "error: the output could not be written: stdout is closed\n"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (f"{SOLVE} > /dev/full", FULL),
        (f"{SOLVE} --json > /dev/full", FULL),
        (f"{sys.executable} -m mio_rag --help > /dev/full", FULL),
        (f"{SOLVE} --json >&-", CLOSED),
        (f"{SOLVE} >&- 2>&-", ""),
    ],
)
def test_output_that_cannot_be_written_is_told(command: str, said: str) -> None:
    done = shell(command)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", said)


@pytest.mark.parametrize("command", [SOLVE, f"{SOLVE} --json", f"{sys.executable} -m mio_rag --help"])
def test_a_pipe_that_nobody_reads_ends_it_quietly(command: str) -> None:
    done = shell(f"{command} | true")
    assert (done.stdout, done.stderr) == ("", "")
    assert shell(f"{command} | head -c 3").stderr == ""


# --- interrupts ------------------------------------------------------------------------------------------

INTERRUPTED = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            {what}

sys.meta_path.insert(0, Finder())
from mio_rag.__main__ import main
sys.argv = ["mio-rag", *{arguments!r}]
main()
"""
AT_ONCE = "os.kill(os.getpid(), signal.SIGINT)"
#: As an extension does whose own imports are interrupted.
CONVERTED = """
            try:
                os.kill(os.getpid(), signal.SIGINT)
                import time
                time.sleep(5)
            except KeyboardInterrupt:
                raise ImportError("initialization failed") from None
"""


def interrupted(module: str, arguments: list[str], what: str = AT_ONCE) -> subprocess.CompletedProcess[str]:
    """The command line, interrupted where it loads a module."""
    return subprocess.run(
        [sys.executable, "-c", INTERRUPTED.format(module=module, what=what, arguments=arguments)],
        cwd=ROOT, capture_output=True, text=True, check=False,
        # A shell's background job ignores SIGINT, and its children would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("module", "what"), [("typer", AT_ONCE), ("mio_rag.cli.app", CONVERTED), ("mio_rag.retrieval", CONVERTED)]
)
def test_an_interrupt_is_one_line_and_one_object_however_early_it_comes(module: str, what: str) -> None:
    done = interrupted(module, ["select", "nowhere", "What?", "--json"], what)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")
    assert json.loads(done.stdout) == {"error": {"kind": "Interrupted", "problems": ["interrupted"]}}


LOST = """
import signal, sys, time, weakref
from mio_rag.cli import interrupt

class Thing: pass

assert interrupt.watch_early()
interrupt.watch()
thing = Thing()
reference = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGINT))
try:
    del thing  # Python can raise nothing in the callback
    for _ in range(500):
        time.sleep(0.01)
except KeyboardInterrupt:
    assert interrupt.seen()
    interrupt.watch_no_more(7)
    signal.raise_signal(signal.SIGINT)
"""


def test_an_interrupt_within_a_callback_is_not_lost() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOST], cwd=ROOT, capture_output=True, text=True, check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (7, "")


# --- errors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("select i q --policy missing.toml", "'missing.toml': no such file"),
        ("policy fit process t --start missing.toml", "'missing.toml' cannot be read"),
        ("select i q --set search.pool=many", "search.pool must be"),
        ("select i", "QUESTION"),
        ("select i q --no-such", "--no-such"),
        ("index nowhere --out o", "nowhere does not exist"),
        ("demo --embedder ./nowhere", "is no folder"),
        ("no-such-command", "no-such-command"),
    ],
)
def test_every_early_error_is_an_object_too(
    arguments: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, [*arguments.split(), "--json"])
    assert done.exit_code == 2, done.exception
    assert done.stdout.count("\n") == 1
    told: dict[str, Any] = json.loads(done.stdout)
    assert any(message in problem for problem in told["error"]["problems"])
    assert message in done.stderr.replace("\n", " ")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("ask INDEX q --trace no/such/t.jsonl", "--trace must be a file in a folder that exists"),
        ("evaluate INDEX --out o --methods mdp", "needs a model that answers"),
        ("evaluate INDEX --out o --methods frugal", "--methods mio,fused --policy frugal"),
        ("lab frontier INDEX q --plot p.txt", "the ending names the format"),
        ("lab frontier INDEX --out o --weights -1", "weights"),
        ("policy fit settings INDEX --out o.toml --vary luck", "'luck' cannot be varied"),
        ("policy fit relevance INDEX --out o.json --limit 0", "--limit must be >= 1"),
        ("lab radius INDEX --quantile 2", "--quantile"),
        ("index demo --out INDEX", "exists already"),
        ("demo --out d --model oracle", "'oracle' is not known"),
        ("serve INDEX --model oracle", "'oracle' is not known"),
    ],
)
def test_cheap_options_are_checked_before_anything_is_loaded(
    arguments: str, message: str, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loaded(*_: object, **__: object) -> None:
        raise AssertionError("something was loaded before the options were checked")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(CorpusIndex, "load", loaded)
    monkeypatch.setattr(CorpusIndex, "build", loaded)
    monkeypatch.setattr(generation, "make_generator", loaded)
    monkeypatch.setattr(embedders, "make_embedder", loaded)
    monkeypatch.setattr("mio_rag.corpora.load._load_layout", loaded)
    done = CliRunner().invoke(app, arguments.replace("INDEX", str(index)).split())
    assert done.exit_code == 2, done.exception
    assert message in " ".join(done.stderr.split())
