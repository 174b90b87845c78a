"""``mio-rag solve``: programs from stdin and from files."""

import json
from pathlib import Path

import pytest

from tests.cli.running import cli, here, only_object, refused

PROGRAM = {
    "linear": [5, 4, 3],
    "pairwise": [[0, 3, 0], [3, 0, 0], [0, 0, 0]],
    "costs": [2, 2, 2],
    "budget": 4,
}


def test_solve_from_stdin() -> None:
    told = only_object(cli("solve", "-", "--solver", "highs", "--json", stdin=json.dumps(PROGRAM)))
    assert (told["status"], told["selected"], told["tokens_used"]) == ("optimal", [0, 2], 4)
    assert told["objective"] == pytest.approx(8)
    assert told["bound"] == pytest.approx(8)
    assert told["gap"] == pytest.approx(0, abs=1e-6)
    assert told["conflict"] is None


def test_solve_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "program.json"
    path.write_text(json.dumps(PROGRAM | {"fixed": [1, 1, 1]}))
    done = here("solve", path, "--json")
    assert done.returncode == 0  # infeasibility is an answer
    told = only_object(done)
    assert (told["status"], told["selected"], told["objective"]) == ("infeasible", None, None)
    parts = ["at most 4 tokens", "'item 0' in", "'item 1' in", "'item 2' in"]
    assert told["conflict"] == {"parts": parts, "minimal": True, "smallest_budget": 6}
    assert "cannot hold together: at most 4 tokens; 'item 0' in;" in here("solve", path).stdout
    path.write_text("{broken")
    refused(here("solve", path, "--json"))
    assert "cannot be read" in refused(here("solve", tmp_path / "absent.json"))[0]
    path.write_text("{,")
    assert refused(here("solve", path))[0].startswith(f"'{path}': the program is not valid JSON")


def test_a_solver_that_is_not_there() -> None:
    done = here("solve", "-", "--solver", "pyomo:nosuchsolver", "--json", stdin=json.dumps(PROGRAM))
    assert done.returncode in (1, 2)
    assert "nosuchsolver" in refused(done, done.returncode)[0]


def test_solve_pays_once_for_what_items_share(tmp_path: Path) -> None:
    shared = {"costs": [30, 30, 30], "needs": [[0, 1], [1, 2], []]}
    program = {"linear": [5, 4, 1], "costs": [0, 0, 50], "budget": 90, "segments": shared}
    path = tmp_path / "program.json"
    path.write_text(json.dumps(program))
    told = only_object(here("solve", path, "--json"))
    assert (told["selected"], told["tokens_used"], told["objective"]) == ([0, 1], 90, 9)
    path.write_text(json.dumps(program | {"fixed": [1, 1, 1]}))
    told = only_object(here("solve", path, "--json"))
    assert told["conflict"]["smallest_budget"] == 140
    path.write_text(json.dumps(program | {"segments": shared | {"needs": [[0, 3], [], []]}}))
    assert "needs[0] holds 3, and there are segments 0 to 2" in refused(here("solve", path))[0]
