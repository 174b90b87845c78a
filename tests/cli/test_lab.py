"""``mio-rag lab``: programs, decision processes, other settings, errors of embeddings."""

import json
import re
from pathlib import Path

import pytest

from mio_rag.cli.batch import kept
from tests.cli.running import cli, here, only_object, refused

QUESTION = "Which tower is taller, Bell Rock Lighthouse or Skerryvore?"
PROGRAM = {
    "linear": [5, 4, 3],
    "pairwise": [[0, 3, 0], [3, 0, 0], [0, 0, 0]],
    "costs": [2, 2, 2],
    "budget": 4,
}


def test_a_program_from_stdin_and_from_a_file(tmp_path: Path) -> None:
    told = only_object(cli("lab", "solve", "-", "--solver", "highs", "--json", stdin=json.dumps(PROGRAM)))
    assert (told["status"], told["selected"], told["tokens_used"]) == ("optimal", [0, 2], 4)
    assert (told["objective"], told["bound"], told["conflict"]) == (pytest.approx(8), pytest.approx(8), None)
    path = tmp_path / "program.json"
    path.write_text(json.dumps(PROGRAM | {"fixed": [1, 1, 1]}))
    told = only_object(here("lab", "solve", path, "--json"))  # infeasibility is an answer
    assert (told["status"], told["selected"], told["objective"]) == ("infeasible", None, None)
    parts = ["at most 4 tokens", "'item 0' in", "'item 1' in", "'item 2' in"]
    assert told["conflict"] == {"parts": parts, "minimal": True, "smallest_budget": 6}
    assert "cannot hold together: at most 4 tokens; 'item 0' in;" in here("lab", "solve", path).stdout
    path.write_text("{,")
    assert refused(here("lab", "solve", path))[0].startswith(f"'{path}': the program is not valid JSON")
    done = here("lab", "solve", "-", "--solver", "pyomo:nosuchsolver", "--json", stdin=json.dumps(PROGRAM))
    assert "nosuchsolver" in refused(done, done.returncode)[0]


def test_a_frontier_agrees_with_select(index: Path, tmp_path: Path) -> None:
    options, picture = ["--budget", 150, "--set", "search.pool=15"], tmp_path / "q.png"
    found = only_object(here("lab", "frontier", index, QUESTION, *options, "--plot", picture, "--json"))
    alone = only_object(here("select", index, QUESTION, *options, "--units", "passages", "--proof", "--json"))
    step = next(s for s in found["budget"]["steps"] if s["tokens"] <= 150 <= s["until"])
    assert step["value"] == pytest.approx(alone["certificate"]["objective"], abs=1e-6)
    assert found["budget"]["certified"]
    assert picture.read_bytes()[:4] == b"\x89PNG"
    text = here("lab", "frontier", index, QUESTION, *options).stdout
    assert "every step proven" in text
    assert "tokens above 150 buy" in text
    problems = refused(here("lab", "frontier", index, QUESTION, "--weights", "a", "--up-to", 3))
    assert "--weights must be numbers separated by commas" in problems[0]
    assert "--up-to 3 is below" in problems[1]
    assert "give a QUESTION, or --out" in refused(here("lab", "frontier", index))[0]


def test_a_frontier_of_a_set_goes_on_with_resume(index: Path, tmp_path: Path) -> None:
    asked = ("lab", "frontier", index, "--questions", "demo", "--out", tmp_path / "out",
             "--budget", "100,200", "--weights", "0.1", "--radii", "0", "--penalties", "auto", "--draws", 1,
             "--set", "search.pool=10",
             "--token-prices", "0.001,0.0002")  # fmt: skip
    first = only_object(here(*asked, "--limit", 3, "--json"))
    assert [p["n"] for p in first["points"]] == [3] * 2
    assert [point["token_price"] for point in first["price"]["prices"]] == [0.0002, 0.001]
    assert "--resume" in refused(here(*asked))[0]
    text = here(*asked, "--limit", 6, "--resume").stdout
    assert "2 settings" in text
    assert "one price of a token for all questions" in text
    data = json.loads((tmp_path / "out" / "frontier.json").read_text())
    assert [p["n"] for p in data["points"]] == [6] * 2
    for wrong, said in (("--budget", "must be whole numbers"), ("--radii", "radii holds -1")):
        given = (*asked[:5], tmp_path / "no", wrong, "1.5" if wrong == "--budget" else "-1")
        assert said in " ".join(refused(here("lab", "frontier", index, "--out", *given[5:])))
    assert not (tmp_path / "no").exists()


def test_a_radius_is_measured_and_used(index: Path, tmp_path: Path) -> None:
    out = tmp_path / "errors.npz"
    told = only_object(here("lab", "radius", index, "--out", out, "--limit", 40, "--json"))
    assert 0 < told["median"] <= told["radius"] <= told["largest"]
    assert "use --set selection.radius=" in here("lab", "radius", index).stdout
    robust = here("select", index, QUESTION, "--units", "passages", "--set",
                  f"selection.passage_radii={out}", "--proof", "--json")  # fmt: skip
    assert only_object(robust)["certificate"]["worst_case"]["lower"] > 0
    assert "quantile" in refused(here("lab", "radius", index, "--quantile", 2))[0]


def test_a_finished_batch_says_so_and_no_rate(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [
        {"query_id": f"q{k}", "ids": ["a", "b"], "relevance": [0.9, 0.8], "tokens": [5, 6]} for k in range(3)
    ]
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    asked = ("batch", "select", tmp_path / "rows.parquet", "--out", tmp_path / "out", "-b", 9)
    first, again = here(*asked), here(*asked)
    assert first.returncode == again.returncode == 0, first.stderr
    assert re.search(r"[1-9]\S* rows per (second|minute|hour), .* 1 worker, ", first.stdout)
    assert "3 were finished before: nothing was left to do" in again.stdout
    assert " rows per " not in again.stdout
    assert "finished shards (1)" in kept(tmp_path / "out")


@pytest.mark.parametrize(
    ("command", "given", "said"),
    [
        ("select", ("--set", "search.rerank=maxsim"), "a batch takes its candidates as they are"),
        ("select", ("--set", "repeat.by=price"), "decides more than a selection"),
        ("select", ("--column", "score"), "--column score: write NAME=VALUE"),
        ("allocate", (), "an allocation needs a total"),
        ("allocate", ("--set", "depth.tier=easy", "--set", "selection.by=tier"), "shares one total"),
    ],
)
def test_what_a_batch_cannot_do(command: str, given: tuple[str, ...], said: str, tmp_path: Path) -> None:
    asked = ("batch", command, tmp_path / "pools.parquet", "--out", tmp_path / "out", *given)
    assert said in " ".join(refused(here(*asked)))
