"""``mio-rag tune --mean-tokens``: the price that it writes spends what was asked for, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from mio_rag.corpora.dataset import Dataset
from mio_rag.retrieval import CorpusIndex
from mio_rag.storage import read_toml
from tests.cli.running import here


def test_the_price_is_kept_by_the_file_that_it_is_written_to(
    demo: Dataset, demo_index: CorpusIndex, tmp_path: Path
) -> None:
    index, out = demo_index.save(tmp_path / "index"), tmp_path / "price.toml"
    done = here(
        "tune", "demo", "--index", index, "--out", out, "--mean-tokens", 120, "--budget-tokens", 900,
        "--limit", 20, "--pool", 15, "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said, held = json.loads(done.stdout), read_toml(out)
    assert held["token_price"] == said["token_price"] > 0
    assert held["budget_tokens"] == 900
    assert 100 < said["mean_tokens"] <= 120 < said["below"]["mean_tokens"]
    spent = []
    for question in demo.questions[:20]:
        asked = here("select", index, question.text, "--config", out, "--json")
        assert asked.returncode == 0, asked.stderr
        spent.append(json.loads(asked.stdout)["tokens_used"])
    assert np.mean(spent) == pytest.approx(said["mean_tokens"], abs=0.5)
    assert max(spent) > 2 * min(spent)


def test_presets_that_set_a_price_are_written_as_settings(demo_index: CorpusIndex, tmp_path: Path) -> None:
    index = demo_index.save(tmp_path / "index")
    for preset, penalty in (("thorough", 0.0), ("raw", 0.02)):
        out = tmp_path / f"{preset}.toml"
        done = here(
            "tune",
            "demo",
            "--index",
            index,
            "--out",
            out,
            "--mean-tokens",
            100,
            "--preset",
            preset,
            "--limit",
            5,
        )
        assert done.returncode == 0, done.stderr
        assert "tokens in the mean of 5 questions" in done.stdout
        assert read_toml(out)["passage_penalty"] == penalty
        asked = here("select", index, "Who built the bridge?", "--config", out, "--json")
        assert asked.returncode == 0, asked.stderr


def test_what_cannot_be_meant_is_refused(demo_index: CorpusIndex, tmp_path: Path) -> None:
    index, out = demo_index.save(tmp_path / "index"), tmp_path / "x.toml"
    for given, words in [
        (("--mean-tokens", 0), "--mean-tokens=0.0 must be a number above 0"),
        (("--mean-tokens", 500, "--budget-tokens", 300), "is above --budget-tokens=300"),
        (("--mean-tokens", 90, "--recall", 0.9), "--recall belongs to a search"),
        (("--mean-tokens", 90, "--trials", 7), "--trials belongs to a search"),
        (("--mean-tokens", 90, "--relevance", "fit"), "--relevance fit belongs to a search"),
        (("--mean-tokens", 90, "--token-price", 0.1), "token_price=0.1 is what is looked for here"),
    ]:
        done = here("tune", "demo", "--index", index, "--out", out, *given)
        assert done.returncode == 2
        assert words in " ".join(done.stderr.split())
        assert not out.exists()
