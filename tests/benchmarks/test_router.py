"""The study of routers: rows by routers that had not seen the questions, and figures that are the rows."""

import argparse
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.router import study
from benchmarks.router.command import add_options, command
from benchmarks.router.rows import Folds, Group, groups_of, mixture, rows_of
from benchmarks.router.study import Plan, begun, finished, run_round
from benchmarks.router.summary import draw, shortened, summarized, table
from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import InputError
from mio_rag.learning.outcomes import Outcomes
from mio_rag.learning.router import Table
from mio_rag.retrieval import CorpusIndex
from mio_rag.session.tiers import Tier
from tests.control.router.made import table as made_table

PRICED = tuple(
    Tier(f"price-{k}", 50, 2048, 96, unit="tokens", compress="none", token_price=p)
    for k, p in enumerate((0.002, 0.001))
)
FIXED = (Tier("k5", 5, 100_000, 96, compress="none"),)


def with_tiers(given: Table, tiers: tuple[Tier, ...], tokens: list[float]) -> Table:
    """The same questions at other tiers, of which the last does for all."""
    n, m = len(given), len(tiers)
    values = {
        "worked": np.column_stack([np.arange(n) % 2] * (m - 1) + [np.ones(n)]).astype(float),
        "label": np.eye(m)[np.full(n, m - 1)],
        "prompt_tokens": np.tile(tokens, (n, 1)),
    }
    outcomes = Outcomes(
        given.outcomes.ids,
        tuple(t.name for t in tiers),
        values,
        given.outcomes.questions,
        given.outcomes.sets,
    )
    return Table(outcomes, tiers, given.seen, given.embedder)


def group(n: int = 60, seed: int = 0) -> Group:
    published = made_table(n, seed=seed)
    ladders = {
        "published": published,
        "fixed": with_tiers(published, FIXED, [700.0]),
        "priced": with_tiers(published, PRICED, [150.0, 300.0]),
    }
    return groups_of({"made": ladders}, ["made"], "made")


def test_rows_and_figures(tmp_path: Path) -> None:
    learned, asked = group(), group(30, seed=4)
    known: Folds = {}
    for other in (None, asked):
        rows, here = rows_of(learned, other, known=known), learned if other is None else asked
        names = [row.name for row in rows]
        assert len(names) == len(set(names))
        for row in rows:
            np.testing.assert_allclose(row.chances.sum(axis=1), 1)
        summary = summarized(rows, here)
        by_hand = {"easy": 1 / 3, "medium": 2 / 3, "hard": 1.0, "k5": 1.0, "price-1": 1.0, "price-0": 0.5}
        for name, share in by_hand.items():
            assert summary[name]["worked"]["mean"] == pytest.approx(share)
        assert summary["hard"]["against k5"]["token_reduction"] == pytest.approx(1 - 500 / 700)
        # At the tokens of hard, the dearer price does for all as well; at those of easy, only the other fits.
        assert summary["hard"]["against prices"]["worked"]["mean"] == pytest.approx(0)
        assert summary["medium"]["against prices"]["worked"]["mean"] == pytest.approx(2 / 3 - (1 / 3 + 0.5))
        assert summary["oracle of labels"]["worked"]["mean"] == 1
        routed = summary["published router"]
        assert routed["accuracy"] > 0.6
        assert routed["against fixed tiers"]["worked"]["mean"] > 0.1  # labels that the questions tell
        assert sum(routed["sets"]["made"]["shares"].values()) == pytest.approx(1)
    results = {
        "about": "made", "quality": "done", "deciding_seconds": {"mlp": 1e-5}, "goals": [],
        "groups": {
            "made": {
                "questions": 30, "sets": {"made": 30}, "labels": {"made": [1.0, 0, 0]},
                "routed": {"made": [1.0, 0, 0]}, "rows": summary,
            }
        },
    }  # fmt: skip
    kept = json.loads(json.dumps(shortened(results)))
    text = table(kept)
    assert text == table(results)
    hidden = kept["groups"]["made"]["rows"]["utility, question @0"]
    assert set(hidden) == {"kind", "learner", "features", "price", "shown", "worked", "prompt_tokens"}
    assert "fewer than 100 questions: no verdict" in text
    assert "published router" in text
    draw(kept, tmp_path / "router.png")
    assert (tmp_path / "router.png").read_bytes().startswith(b"\x89PNG")


def test_what_a_set_does_not_define_is_nan_there() -> None:
    def renamed(given: Table, mark: str, more: dict[str, np.ndarray]) -> Table:
        outcomes = dataclasses.replace(
            given.outcomes,
            ids=tuple(f"{mark}{i}" for i in given.outcomes.ids),
            values={**given.outcomes.values, **more},
            sets=(mark,) * len(given),
        )
        return dataclasses.replace(given, outcomes=outcomes)

    plain, recall = group(20), np.full((20, 3), 0.5)
    tables = {
        "a": {k: renamed(t, "a", {}) for k, t in plain.ladders.items()},
        "b": {k: renamed(t, "b", {"recall": recall[:, : len(t.tiers)]}) for k, t in plain.ladders.items()},
    }
    both = groups_of(tables, ["a", "b"], "both").outcomes
    assert np.isnan(both.values["recall"][:20]).all()
    assert (both.values["recall"][20:] == 0.5).all()
    np.testing.assert_array_equal(both.of("worked")[:20], plain.outcomes.of("worked"))


def test_gold_documents_hold_only_answers_that_can_be_found(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "corpus.jsonl").write_text('{"id": "p", "text": "The Po.", "source": "Po"}\n')
    asked = (
        {"id": "1", "question": "Which?", "answers": ["Po"], "gold_sources": ["Po"]},
        {"id": "2", "question": "Is it?", "answers": ["Yes"], "gold_sources": ["Po"]},
        {"id": "3", "question": "Is it so?", "answers": ["no"], "gold_ids": ["p"]},
        {"id": "4", "question": "Who?", "answers": ["Ada"]},
        {"id": "5", "question": "When?", "answers": [], "gold_ids": ["p"]},
    )
    lines = "".join(json.dumps(one) + "\n" for one in asked)
    (tmp_path / "made" / "questions.jsonl").write_text(lines)

    def ids(by: str) -> set[str]:
        plan = Plan(by, tmp_path, tmp_path, tmp_path)  # type: ignore[arg-type]
        return {q.id for q in plan.load("made").questions}

    assert ids("evidence") == {"1", "3"}
    assert ids("answers") == {"1", "2", "3"}


def test_the_best_mixture_is_the_envelope_of_the_table() -> None:
    outcomes = group().ladders["published"].outcomes
    for spent in (100.0, 180.0, 250.0, 400.0, 500.0, 900.0):
        chances = mixture(outcomes, [0, 1, 2], spent)
        assert chances.sum() == pytest.approx(1)
        assert float((outcomes.of("prompt_tokens") @ chances).mean()) <= spent + 1e-9
        expected = outcomes.fixed_at("worked", "prompt_tokens", spent)
        assert float((outcomes.of("worked") @ chances).mean()) == pytest.approx(expected)
    assert mixture(outcomes, [0, 1, 2], 10.0).tolist() == [1, 0, 0]


def test_a_run_by_evidence_resumes_and_reports(
    demo: Dataset, demo_index: CorpusIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "TRAINED", ("squad2",))
    ladders = {
        "published": (Tier("easy", 1, 150, 8), Tier("hard", 6, 900, 16)),
        "fixed": FIXED,
        "priced": PRICED,
    }
    monkeypatch.setattr(study, "ladders_of", lambda by: ladders)
    plan = Plan("evidence", tmp_path, tmp_path, tmp_path / "work")
    asked = dataclasses.replace(demo, questions=tuple(q for q in demo.questions if q.gold_ids))
    said: list[str] = []
    run_round(plan, "squad2", asked, demo_index, None, 4, said.append)
    assert (begun(plan, "squad2"), set(finished(plan, "squad2"))) == (4, set(ladders))
    assert len(said) == 12  # four questions at three ladders
    run_round(plan, "squad2", asked, demo_index, None, 12, said.append)
    assert begun(plan, "squad2") == 12
    assert all(len(table) == 12 for table in finished(plan, "squad2").values())
    assert len(said) == 12 + 36
    assert finished(plan, "hotpotqa") == {}


def test_what_is_refused(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    where = ["--data", str(tmp_path), "--indexes", str(tmp_path), "--work", str(tmp_path / "work")]
    for more, expected in (
        (["--share", "101"], "--share=101"),
        (["--by", "answers"], "give --generator"),
        (["--sets", "squad9"], "squad9 is unknown"),
        (["--share", "0"], "nothing of squad2"),
    ):
        with pytest.raises(InputError, match=expected):
            command(parser.parse_args([*where, *more]))
