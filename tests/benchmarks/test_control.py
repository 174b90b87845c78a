"""The study of controllers: rounds that go on, folds that never meet, sums that can be checked by hand."""

import dataclasses
import json
import math
from pathlib import Path

import pytest

from benchmarks.control.picture import draw, table
from benchmarks.control.study import Set, run_calibrated, run_given
from benchmarks.control.summary import answered, gather, summarize
from mio_rag.generation import BaseGenerator, Prompt, ScriptedGenerator
from mio_rag.types import Answer

TINY = Set(
    "tiny", 12, True, 64, ("mdp", "mdp@confidence", "fixed-1", "fixed-0"), ("always-reason@confidence",)
)


class Thinker(BaseGenerator):
    """Answers right once it has thought, and is surer then."""

    def __init__(self) -> None:
        super().__init__("thinker", None)
        self.inner, self.asked = ScriptedGenerator(self.said), 0

    def said(self, prompt: Prompt) -> str:
        if prompt.system.startswith("You think"):
            return f"Thought {prompt.user.count('- ')}"
        return "yes" if prompt.passages else "no"

    def _count(self, texts: list[str]) -> list[int]:
        return self.inner.count(texts)

    def _generate(self, prompt: Prompt, max_tokens: int) -> Answer:
        self.asked += 1
        answer = self.inner.generate(prompt, max_tokens=max_tokens)
        return dataclasses.replace(answer, logprobs=(math.log(0.95 if prompt.passages else 0.4),))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Twelve questions whose answer is yes."""
    folder = tmp_path / "data" / "tiny"
    folder.mkdir(parents=True)
    rows = [
        {"id": f"q{k}", "question": f"Is {k} a number?", "answers": ["yes"], "choices": ["yes", "no"]}
        for k in range(12)
    ]
    (folder / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    return tmp_path / "data"


def test_a_study_from_runs_to_picture(data: Path, tmp_path: Path) -> None:
    work, generator = tmp_path / "work", Thinker()
    ids = [q.id for q in TINY.load(data).questions]
    assert sorted(ids) == sorted(f"q{k}" for k in range(12))
    assert ids != [f"q{k}" for k in range(12)]  # drawn, not the first of the file
    assert answered(TINY, ids, work) == 0
    run_given(TINY, data, None, generator, work, 4, lambda text: None)
    asked = generator.asked
    run_given(TINY, data, None, generator, work, 12, lambda text: None)
    run_given(TINY, data, None, generator, work, 12, lambda text: None)
    assert generator.asked == 3 * asked  # nothing was asked again
    assert answered(TINY, ids, work) == 12

    folds = run_calibrated(TINY, data, None, generator, work, 12, lambda text: None)
    assert [fold["learned_from"] for fold in folds] == [6, 6]
    for fold in folds:  # of two options, 1 - .4 is U = 1.2, cut to 1; 1 - .95 is .1, where it stays
        assert fold["estimates"]["reason_drop"]["value"] == pytest.approx((0.9 + 0 + 0) / 3)
        assert fold["estimates"]["reasonings"] == 3 * 6  # of two controllers, but alike
    for k in (0, 1):
        rows = (work / "tiny" / f"calibrated-{k}-of-12" / "rows.jsonl").read_text().splitlines()
        assert {json.loads(row)["question_id"] for row in rows} == set(ids[1 - k :: 2])

    found = summarize(gather(TINY, ids, work), "accuracy")
    quality = {name: entry["quality"]["mean"] for name, entry in found["controllers"].items()}
    assert quality["fixed-0"] == 0
    assert quality["fixed-1"] == quality["mdp"] == quality["mdp@confidence, calibrated"] == 1
    tokens = {name: entry["tokens"]["mean"] for name, entry in found["controllers"].items()}
    assert tokens["fixed-0"] < tokens["fixed-1"] < tokens["mdp"]
    assert found["controllers"]["mdp"]["lm_calls"]["mean"] == 4  # three thoughts and the answer
    assert "fixed-1" in found["dominated"]["mdp"]
    assert "fixed-0" not in found["dominated"]["mdp"]
    gain = next(
        d
        for d in found["differences"]
        if (d["method"], d["baseline"], d["measure"]) == ("mdp", "fixed-0", "quality")
    )
    assert (gain["difference"], gain["low"], gain["high"], gain["n"]) == (1, 1, 1, 12)
    pairs = [(d["method"], d["baseline"], d["measure"]) for d in found["differences"]]
    assert len(pairs) == len(set(pairs))
    assert not any((b, a, m) in pairs for a, b, m in pairs)

    results = {"tiny": {"questions": 12, "planned": 12, "measure": "accuracy", "calibration": folds} | found}
    shown = table(json.loads(json.dumps(results)))
    assert "mdp: dominated by" in shown
    assert "fixed-1" in shown
    draw(results, tmp_path / "control.png")
    assert (tmp_path / "control.png").read_bytes().startswith(b"\x89PNG")


def test_a_question_counts_once_every_controller_has_answered_it(data: Path, tmp_path: Path) -> None:
    run_given(TINY, data, None, Thinker(), tmp_path, 3, lambda text: None)
    ids = [q.id for q in TINY.load(data).questions]
    file = tmp_path / "tiny" / "given" / "rows.jsonl"
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    kept = [row for row in rows if (row["question_id"], row["method"]) != (ids[1], "fixed-1")]
    file.write_text("".join(json.dumps(row) + "\n" for row in kept) + '{"cut short', encoding="utf-8")
    assert answered(TINY, ids, tmp_path) == 1
    assert {len(rows) for rows in gather(TINY, ids, tmp_path).values()} == {1}
