"""False hits of a cache by meaning, counted by hand."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from mio_rag.cli.app import app
from mio_rag.errors import InputError
from mio_rag.evaluation.false_hits import false_hits
from mio_rag.types import Question

ANGLES = {"a": 0.0, "b": 10.0, "c": 20.0, "d": 90.0, "e": 91.0, "f": 180.0}


class Angles:
    """An embedder by hand: a direction for each question."""

    name = fingerprint = "angles"

    def fit(self, texts: Sequence[str]) -> None: ...

    def encode(self, texts: Sequence[str], progress: Any = None) -> Any:
        turned = np.deg2rad([ANGLES[t] for t in texts])
        return np.stack([np.cos(turned), np.sin(turned)], axis=1).astype(np.float32)

    def save(self, folder: Any) -> None: ...


def asked(*pairs: tuple[str, str]) -> list[Question]:
    return [
        Question(f"{k}", t, (a,) if a else (), type="" if a else "unanswerable")
        for k, (t, a) in enumerate(pairs)
    ]


def test_hits_and_false_ones_by_hand() -> None:
    questions = asked(("a", "The Po"), ("b", "po."), ("c", "Arno"), ("d", ""), ("e", ""), ("f", "Po"))
    # neighbours: a-b (10 degrees, same), b-a, c-b (10 degrees, other), d-e (1 degree, both unanswerable),
    # e-d, f-e (89 degrees, other)
    low, high, none = false_hits(questions, Angles(), (0.98, 0.999, 1.0))  # type: ignore[arg-type]
    assert (low.questions, low.hits, low.false, low.rate) == (6, 5, 1, 1 / 5)
    assert low.examples == (("c", "b"),)
    assert (high.hits, high.false, high.low) == (2, 0, 0.0)
    # nobody of two: the exact upper limit is 1 - (0.05 / 2) ** (1 / 2)
    assert high.high == pytest.approx(1 - 0.025**0.5)
    assert (none.hits, none.rate, none.high) == (0, None, None)


def test_the_same_question_is_no_near_one() -> None:
    questions = asked(("a", "Po"), ("a", "Arno"), ("d", "Po"))
    (found,) = false_hits(questions, Angles(), (0.9,))  # type: ignore[arg-type]
    assert (found.questions, found.hits) == (2, 0)


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(InputError, match="at least 2 are needed"):
        false_hits([*asked(("a", "Po")), Question("x", "b")], Angles())  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"0, 2 must be in \(0, 1\]"):
        false_hits(asked(("a", "Po"), ("b", "Po")), Angles(), (0, 2))  # type: ignore[arg-type]


def test_the_command() -> None:
    done = CliRunner().invoke(app, ["false-hits", "demo", "--embedder", "tfidf", "--json"])
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["cosines"]
    assert [row["hits"] for row in rows] == sorted((row["hits"] for row in rows), reverse=True)
    shown = CliRunner().invoke(app, ["false-hits", "demo", "--embedder", "tfidf"]).stdout
    assert "false among hits" in shown
