"""The fuzzer finds planted faults, repeats them by their seed, and survives what kills its processes."""

from __future__ import annotations

import json
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import __main__ as main
from benchmarks.fuzz import claims, command, commands, programs, workers
from benchmarks.fuzz.endings import Fault, Wrong, ending, place_in_dump, strict
from benchmarks.fuzz.odd import Odd, built, mutated_bytes, mutated_text, simpler, value
from benchmarks.fuzz.workers import KINDS, Chunk, drawn, make, side_by_side
from mio_rag.errors import InputError
from mio_rag.formulations import LinearConstraint, SelectionProgram
from mio_rag.solvers import SolveOptions, Status, solve

PROGRAM = SelectionProgram([3.0, 2.0], np.zeros((2, 2)), [1, 1], 1)
OPTIONS = SolveOptions()


class Planted:
    """A kind whose inputs end as they say."""

    chunk = 5

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def draw(self, rng: np.random.Generator) -> Any:
        return [int(k) for k in rng.integers(0, 100, 6)]

    def run(self, given: Any) -> str:
        if any(k > 90 for k in given):
            raise Wrong("a large number", given)
        return "fine"

    def smaller(self, given: Any) -> Any:
        return simpler(given)

    def close(self) -> None: ...


def ends(run: Any) -> str | Fault:
    """How an input ends of which this becomes."""
    kind = Planted(Path())
    kind.run = lambda given: run()  # type: ignore[method-assign]
    return ending(kind, [])


def raises(error: BaseException) -> Any:
    def run() -> str:
        raise error

    return run


def fuzz(out: Path, *arguments: object) -> tuple[int, dict[str, Any]]:
    """The command in this process, and its report."""
    code = main.main(["fuzz", "--processes", "0", "--out", str(out), *map(str, arguments)])
    return code, json.loads(out.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", list(KINDS))
def test_every_kind_is_drawn_again_from_its_seed_and_number_and_ends(name: str, tmp_path: Path) -> None:
    kind = make(name, tmp_path / name)
    try:
        for number in range(12):
            given = drawn(kind, name, 5, number)
            assert ascii(given) == ascii(drawn(kind, name, 5, number))
            given = {k: v for k, v in given.items() if k != "bytes"}  # commands take a second each
            assert ending(kind, given)
            assert next(kind.smaller(given), None) != given
        assert ascii(drawn(kind, name, 6, 0)) != ascii(drawn(kind, name, 5, 0))
    finally:
        kind.close()


def test_an_ending_is_named_by_the_line_of_the_product() -> None:
    def reads_a_list() -> str:
        return str(SelectionProgram.from_dict({"linear": [], "costs": [], "budget": 1, "rows": PROGRAM}))

    assert ends(lambda: "fine") == "fine"
    assert ends(reads_a_list) == "refused"
    found = ends(lambda: str(PROGRAM.objective([[1, 0, 1]])))
    assert isinstance(found, Fault)
    assert found.place.startswith("formulations/program.py:")
    assert found.error == "IndexError"


@pytest.mark.parametrize(
    ("run", "error"),
    [
        (raises(KeyError("x")), "KeyError"),
        (raises(InputError([])), "InputError, an error without a message"),
        (raises(InputError(["good", " "])), "InputError, an error without a message"),
        (raises(InputError("Traceback (most recent call last)")), "InputError, a traceback as message"),
        (raises(Wrong("what", "detail")), "Wrong"),
        (lambda: str(np.float64(1e300) * np.float64(1e300)), "RuntimeWarning"),
        (lambda: warnings.warn("no fault", UserWarning, stacklevel=1) or "fine", None),
    ],
)
def test_what_is_no_good_ending(run: Any, error: str | None) -> None:
    found = ends(run)
    assert (found.error if isinstance(found, Fault) else None) == error


def test_too_much_time_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.fuzz import endings

    monkeypatch.setattr(endings, "CPU_SECONDS", 0.05)

    def for_ever() -> str:
        while True:
            try:
                sum(range(1000))
            except Exception:  # as the product does for a row of a batch
                continue

    found = ends(for_ever)
    assert isinstance(found, Fault)
    assert found.error == "takes too long"


GOOD = solve(PROGRAM, "exhaustive")


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        ({"objective": 3.1, "bound": 3.1}, "the objective is not that of the selection"),
        ({"bound": 2.9}, "bound lies below the objective"),
        ({"bound": 3.5}, "the gap is not that"),
        ({"bound": 6.0, "gap": 1.0}, "called optimal with a gap"),
        ({"bound": float("inf")}, "a number that JSON does not have"),
        ({"x": np.array([0, 1], np.int8), "objective": 2.0, "bound": 2.0}, "bound lies below the optimum"),
        ({"x": np.array([1, 1], np.int8), "objective": 5.0, "bound": 5.0}, "breaks the budget"),
        ({"x": np.array([1, 0, 0], np.int8)}, "x is no 0/1 vector"),
        ({"x": None, "objective": None, "bound": None, "gap": None}, "optimal without a selection"),
        ({"status": Status.INFEASIBLE, "x": None, "objective": None, "bound": None}, "infeasible, though"),
        ({"status": Status.ERROR, "message": "broke"}, "the solver says that it broke"),
    ],
)
def test_a_false_claim_is_noticed(lie: dict[str, Any], words: str) -> None:
    claims.check_result(PROGRAM, GOOD, OPTIONS)
    with pytest.raises(Wrong, match=words):
        claims.check_result(PROGRAM, replace(GOOD, **lie), OPTIONS)


def test_rows_and_fixed_items_are_checked() -> None:
    both = replace(GOOD, x=np.array([1, 1], np.int8), objective=5.0, bound=5.0)
    row = LinearConstraint([1.0, 1.0], upper=1.0)
    with pytest.raises(Wrong, match="breaks a row"):
        claims.check_result(replace(PROGRAM, budget=2.0, rows=(row,)), both, OPTIONS)
    with pytest.raises(Wrong, match="a fixed item"):
        claims.check_result(replace(PROGRAM, fixed=np.array([0, -1], np.int8)), GOOD, OPTIONS)


@pytest.mark.parametrize(
    ("printed", "words"),
    [
        ((1, "", "Traceback (most recent call last)\nKeyError", False), "a traceback"),
        ((3, "", "error: x", False), "exit code that is not documented"),
        ((2, "", "", False), "without a message"),
        ((0, "", "", False), "nothing was printed"),
        ((0, '{"a": NaN}\n', "", True), "no JSON"),
        ((0, "{}\n{}\n", "", True), "no JSON"),
        ((0, "[1]\n", "", True), "more or less than one object"),
        ((2, "{}\n", "error: x", True), "no reason"),
        ((0, "{}\n", "RuntimeWarning: overflow", True), "a warning"),
    ],
)
def test_what_a_command_may_not_print(printed: tuple[int, str, str, bool], words: str) -> None:
    with pytest.raises(Wrong, match=words):
        commands.check_printed(*printed)
    assert commands.check_printed(0, '{"a": 1}\n', "", True) == ("answered by the command", {"a": 1})
    assert commands.check_printed(2, "", "Error: no such option", True)[0] == "exit code 2"


def test_a_planted_exception_is_found_shrunk_and_shown_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = LinearConstraint.violation

    def planted(self: LinearConstraint, activity: float) -> float:
        if self.name == "at most 1 passage":
            raise KeyError("planted")
        return real(self, activity)

    monkeypatch.setattr(LinearConstraint, "violation", planted)
    monkeypatch.setattr(workers, "_SHRINK_SECONDS", 1.0)
    out = tmp_path / "fuzz.json"
    code, report = fuzz(out, "--only", "programs", "--inputs", 250, "--seed", 3)
    (found,) = [group for group in report["faults"] if group["error"] == "KeyError"]
    assert code == 1
    assert found["place"].startswith("formulations/program.py:")  # which called what was planted
    assert found["count"] >= len(found["numbers"]) > 0
    assert "at most 1 passage" in found["input"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fuzz.json"]
    again = f"programs:{found['numbers'][0]}"
    table = capsys.readouterr().err
    assert f"{found['count']:6}  {found['place']}  KeyError" in table
    assert f"--seed 3 --repeat {again}" in table
    assert main.main(["fuzz", "--seed", "3", "--repeat", again]) == 1
    assert "KeyError" in capsys.readouterr().out
    monkeypatch.undo()
    assert main.main(["fuzz", "--seed", "3", "--repeat", again]) == 0


def test_a_planted_wrong_objective_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = programs.solve

    def planted(program: SelectionProgram, *given: Any) -> Any:
        result = real(program, *given)
        off = result.status is Status.OPTIMAL and program.n > 2
        return replace(result, objective=result.objective + 1e-3) if off else result

    monkeypatch.setattr(programs, "solve", planted)
    code, report = fuzz(tmp_path / "fuzz.json", "--only", "programs", "--inputs", 30)
    places = {group["place"] for group in report["faults"]}
    assert code == 1
    assert "the objective is not that of the selection" in places


def test_the_report_says_what_was_run(tmp_path: Path) -> None:
    _, report = fuzz(tmp_path / "fuzz.json", "--only", "programs,corpora", "--inputs", 53, "--seed", 2)
    assert report["asked"] == report["inputs"] == {"programs": 50, "corpora": 3}
    assert report["seed"] == 2
    assert {"sources", "python", "numpy", "mio-rag"} <= set(report["versions"])
    assert sum(report["kinds"]["programs"]["endings"].values()) == 50
    strict("a report", report)


def test_an_interrupted_run_resumes_to_the_same_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ("--only", "corpora", "--inputs", 60)
    _, whole = fuzz(tmp_path / "whole.json", *given)
    real = command.here

    def interrupted(chunks: Any, seed: int) -> Any:
        for k, done in enumerate(real(chunks, seed)):
            yield done
            if k == 20:
                raise KeyboardInterrupt

    monkeypatch.setattr(command, "here", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fuzz(tmp_path / "parts.json", *given)
    ledger = tmp_path / "parts.partial.jsonl"
    with ledger.open("a", encoding="utf-8") as file:
        file.write('{"chunk": {"ki')  # what a kill leaves
    monkeypatch.setattr(command, "here", real)
    _, parts = fuzz(tmp_path / "parts.json", *given, "--resume")
    for report in (whole, parts):
        report["kinds"]["corpora"].pop("seconds")
    assert parts == whole
    assert not ledger.exists()


def test_what_is_left_of_chunks_of_which_parts_are_done() -> None:
    done = [workers.Done(Chunk("a", 3, 1)), workers.Done(Chunk("a", 0, 2)), workers.Done(Chunk("b", 0, 9))]
    chunks = [Chunk("a", 0, 6), Chunk("b", 0, 3)]
    assert command._left(chunks, done) == [Chunk("a", 2, 1), Chunk("a", 4, 2)]


def test_minutes_end_a_run(tmp_path: Path) -> None:
    _, report = fuzz(tmp_path / "fuzz.json", "--only", "programs", "--inputs", 100_000, "--minutes", 1e-6)
    assert 0 < report["inputs"]["programs"] <= 200


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "nonsense"], "'nonsense' is unknown"),
        (["--only", " "], "names no kind"),
        (["--inputs", "0"], "--inputs 0 must be >= 1"),
        (["--processes", "-1"], "--processes -1 must be >= 0"),
        (["--minutes", "nan"], "--minutes nan must be > 0"),
        (["--repeat", "programs"], "must be KIND:NUMBER"),
    ],
)
def test_bad_options_are_refused(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["fuzz", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_process_that_dies_costs_one_input(monkeypatch: pytest.MonkeyPatch) -> None:
    real, killed = workers._Worker.begin, []

    def deadly(self: Any, chunk: Chunk) -> None:
        real(self, chunk)
        if not killed:
            killed.append(chunk)
            self._process.kill()

    monkeypatch.setattr(workers._Worker, "begin", deadly)
    ran = list(side_by_side([Chunk("corpora", 0, 30), Chunk("corpora", 30, 30)], 0, 1))
    assert sorted(k for d in ran for k in range(d.chunk.first, d.chunk.first + d.chunk.count)) == [*range(60)]
    (fault,) = [fault for done in ran for fault in done.faults]
    assert fault["error"] == "the process died (-9)"
    assert fault["number"] < 30


def hanging_worker(*given: Any) -> None:
    """A worker in whose process no line of JSON is ever read."""
    json.loads = lambda *_, **__: time.sleep(3600)
    workers._serve(*given)


def test_a_process_that_hangs_costs_one_input(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(workers, "_WALL_SECONDS", 0.5)
        patched.setattr(workers, "_serve", hanging_worker)
        (done,) = side_by_side([Chunk("corpora", 7, 1)], 0, 1)
    (fault,) = done.faults
    assert (fault["number"], fault["error"]) == (7, "takes too long")
    assert fault["place"] != "nowhere"


def test_the_place_in_a_dump_is_the_innermost_of_the_product() -> None:
    product = Path(SelectionProgram.from_dict.__func__.__code__.co_filename)
    dump = (
        "Timeout (0:02:00)!\nThread 0x1 (most recent call first):\n"
        '  File "/usr/lib/python3.11/json/decoder.py", line 9 in decode\n'
        f'  File "{product}", line 380 in from_json\n'
        f'  File "{product}", line 10 in outer\n'
    )
    assert place_in_dump(dump) == "formulations/program.py:380"
    assert place_in_dump("nothing") is None


def test_odd_values_are_plain_data_until_they_are_built() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        given = value(rng)
        assert ascii(given)
        built(given)
    assert built(Odd("array:float16", [1, 2])).dtype == np.float16
    with pytest.raises(Exception, match="__len__"):
        len(built([Odd("hostile:__len__", [1])])[0])
    assert list(built(Odd("generator", [1, 2]))) == [1, 2]


def test_mutations_change_and_simpler_shrinks() -> None:
    rng = np.random.default_rng(0)
    text = json.dumps({"linear": [1.0, 2.0], "budget": 3})
    assert sum(mutated_text(rng, text) != text for _ in range(50)) > 40
    assert sum(mutated_bytes(rng, text.encode()) != text.encode() for _ in range(50)) > 40
    assert {"linear": [2.0], "budget": 3} in simpler({"linear": [1.0, 2.0], "budget": 3})
    assert b"ab" in simpler(b"abcd")
    assert list(simpler(0.0)) == []
