"""The study of policies: what stands at equal tokens, what a load test must find, and its server."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.composed.complete import Rows, fitted, studied
from benchmarks.composed.costs import costs_of
from benchmarks.composed.load import problems_of
from benchmarks.composed.picture import draw_costs
from benchmarks.composed.server import Scripted, started
from benchmarks.composed.study import CONTENDERS, Knob, Source, knobs_of, rows_of
from benchmarks.composed.summary import at_total, summarize, table
from mio_rag.batch.retrying import Retrying
from mio_rag.corpora.dataset import Dataset
from mio_rag.generation import build_prompt, make_generator
from mio_rag.relevance.complete import SIGNALS
from mio_rag.retrieval import CorpusIndex
from mio_rag.types import Question


def rows(*tokens: float) -> list[dict[str, float]]:
    return [{"tokens": t, "recall": t / 100, "complete": float(t > 50), "searches": 1.0} for t in tokens]


def test_two_knobs_are_mixed_until_the_mean_is_the_total() -> None:
    low, high = Knob("price", 0.1), Knob("price", 0.01)
    found = at_total({low: rows(10, 30), high: rows(60, 80)}, [low, high], 45)
    assert found is not None
    assert found["tokens"].mean() == pytest.approx(45)
    assert found["tokens"].tolist() == [35.0, 55.0]  # each question half of either
    assert found["complete"].tolist() == [0.5, 0.5]
    assert at_total({low: rows(10, 30), high: rows(60, 80)}, [low, high], 5) is None
    most = at_total({low: rows(10, 30), high: rows(60, 80)}, [low, high], 500)
    assert most is not None
    assert most["tokens"].tolist() == [60.0, 80.0]  # nobody is made to read more than it wants


def test_contenders_run_and_are_told_beside_fused(
    demo: Dataset, demo_index: CorpusIndex, tmp_path: Path
) -> None:
    source = Source.of(demo, demo_index, 5, 4, 0)
    assert not {q.id for q in source.questions} & {q.id for q in source.training.questions}
    knobs = {name: knobs_of(name)[2:4] for name in ("fused", "price, again")}
    every = [knob for mine in knobs.values() for knob in mine]
    found = rows_of(source, every, {}, tmp_path, lambda text: None)
    assert all(len(one) == 4 for one in found.values())
    again = rows_of(source, every, {}, tmp_path, pytest.fail)  # from files: nothing is run
    assert again == found
    told = summarize({name: (found, mine) for name, mine in knobs.items()})
    assert "price, again" in table(told)
    assert set(CONTENDERS) >= set(knobs)


def test_costs_are_told_at_the_same_evidence(tmp_path: Path) -> None:
    def here(before: tuple[float, float], after: tuple[float, float]) -> dict[str, dict[str, float]]:
        both = {"fused": before, "price": after}
        return {name: {"tokens": tokens, "complete": share} for name, (tokens, share) in both.items()}

    found = costs_of(
        {
            "200": here((200, 0.1), (200, 0.3)),
            "400": here((400, 0.4), (400, 0.5)),
            "800": here((800, 0.6), (500, 0.55)),
        },
        {"m": (1.0, 10.0)},
    )
    assert [level["tokens"]["before"] for level in found["levels"]] == [200, 400, 800]
    # .1 is less than was tried; .4 lies half-way from .3 to .5; .6 is never reached.
    assert [level["tokens"]["after"] for level in found["levels"]] == [200, 300, None]
    dollars = found["levels"][1]["dollars"]["m"]
    assert dollars["before"] == pytest.approx((400 * 1.0 + 32 * 10.0) / 1e6 * 1000)
    assert dollars["after"] == pytest.approx((300 * 1.0 + 32 * 10.0) / 1e6 * 1000)
    assert found["levels"][2]["dollars"]["m"]["after"] is None
    draw_costs(found, tmp_path / "costs.png")
    assert (tmp_path / "costs.png").read_bytes().startswith(b"\x89PNG")


def test_completeness_is_told_for_known_and_unknown_sets() -> None:
    rng = np.random.default_rng(0)
    every = []
    for name in ("a", "b"):
        x = rng.normal(size=(40, 3, len(SIGNALS)))
        every.append(Rows(name, "e", x, (rng.random((40, 3)) < 1 / (1 + np.exp(-x[:, :, 0]))).astype(float)))
    every[0].signals[0, 0] = np.nan  # nothing was read
    told = studied(every)
    assert set(told) == {"known sets", "unknown set", "own set alone"}
    assert told["unknown set"]["sets"]["a"]["rows"] == 119
    assert 0 <= told["known sets"]["all"]["calibration_error"] <= 1
    assert len(fitted(every).weights) == len(SIGNALS)


def test_a_load_test_finds_what_must_not_be() -> None:
    bill = {"prompt_tokens": 10_000_000, "completion_tokens": 0}
    fine = {"spent": 1.5, "lost": 0.0, "total": 2.0, "answered": 9, "answered_more_than_once": 0}
    assert problems_of(fine, bill, 9) == []
    wrong = {"spent": 1.0, "lost": 0.0, "total": 1.2, "answered": 8, "answered_more_than_once": 3}
    assert len(problems_of(wrong, bill, 9)) == 4


def test_the_server_fails_stalls_and_bills() -> None:
    pytest.importorskip("openai")
    server = Scripted(fails=0.3, stalls=0.3, stall_seconds=0.4, seed=4)
    thread = started(server)
    untold: list[int] = []
    try:
        spec = f"openai:{server.url}#scripted?timeout_seconds=0.2"
        with make_generator(spec, retries=0) as inner:
            reader = Retrying(inner, 9, lambda into, out: untold.append(into + out) or True, lambda s: None)
            for k in range(6):
                answer = reader.generate(build_prompt(Question(f"q{k}", f"Who is number {k}?")), max_tokens=9)
                assert answer.text == "It says so in the passages."
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    bill = server.bill.to_dict()
    assert bill["failed"] > 0
    assert bill["stalled"] == len(untold) == bill["asked_again"] > 0
    assert bill["replies"] == 6 + len(untold)
