"""The study of sentences: what it refuses, what it fits on, and the mean of all sets."""

import argparse
from pathlib import Path

import numpy as np
import pytest

from benchmarks.sentences.answers import of_all_sets
from benchmarks.sentences.command import add_options, command
from benchmarks.sentences.fit import Labels, by_words
from mio_rag.relevance.sentences import SENTENCE_FEATURES, shipped_sentences

WAYS = (
    "published rule", "program", "fused", "passages", "sentences", "by words",
    "fused, at 128", "passages, at 128", "sentences, at 128", "by words, at 128",
)  # fmt: skip


def test_sets_weigh_alike_however_many_questions_they_have() -> None:
    rng = np.random.default_rng(0)
    answers = {}
    for name, count, gain in (("large", 400, 0.0), ("small", 40, 0.2)):
        base = rng.uniform(0, 0.8, count)
        f1 = {way: base + gain * way.startswith("by words") for way in WAYS}
        answers[name] = {
            "questions": count,
            "means": {way: {"f1": {"mean": float(values.mean())}} for way, values in f1.items()},
            "f1_by_question": {way: values.tolist() for way, values in f1.items()},
        }
    told = of_all_sets(answers, 0)
    more = told["f1"]["by words - passages"]
    assert (more["mean"], more["low"], more["high"]) == (0.1, 0.1, 0.1)
    assert told["means"]["by words"] - told["means"]["passages"] == pytest.approx(0.1, abs=1e-3)
    assert told["f1"]["sentences - fused"]["mean"] == 0


def test_what_nobody_embedded_has_no_cosine_in_fit_and_weights() -> None:
    places = [SENTENCE_FEATURES.index(name) for name in ("lead", "pool_gap")]
    given = Labels(np.ones((3, len(SENTENCE_FEATURES))), np.array([True, False, True]), np.arange(3))
    made = by_words(given)
    assert not made.features[:, places].any()
    assert np.delete(made.features, places, axis=1).all()
    assert given.features.all()
    weights = list(shipped_sentences(None).weights.values())
    assert [weights[place] for place in places] == [0.0, 0.0]
    assert shipped_sentences("").name == "any"
    assert shipped_sentences("tfidf:x").name == "tfidf"


def test_weights_that_are_not_fitted_cannot_be_shipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    given = parser.parse_args(["--data", str(tmp_path), "--work", str(tmp_path / "w"), "--ship", "word"])
    assert command(given) == 2
    assert "--ship word is not fitted here: choose minilm, tfidf, any, words" in capsys.readouterr().err
