"""``mio-rag policy fit``: each kind writes a file that the policy takes."""

import json
from pathlib import Path

import numpy as np
import pytest

from mio_rag.corpora.dataset import Dataset
from mio_rag.generation.extractive import ScriptedGenerator
from mio_rag.relevance import load_model
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.storage import read_toml
from tests.cli.running import here, only_object, refused

QUESTION = "Which metal melts at the higher temperature, rhenium or tungsten?"
# -- relevance and price ----------------------------------------------------------------------------------


LADDER = "".join(
    f'[[tier]]\nname = "{name}"\ndepth = {depth}\ncontext = {context}\nnew_tokens = {length}\n'
    for name, depth, context, length in (("easy", 1, 200, 16), ("medium", 3, 500, 24), ("hard", 8, 1500, 32))
)


@pytest.fixture(scope="module")
def work(index: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiers, a labelled table and a router."""
    folder = tmp_path_factory.mktemp("route")
    (folder / "tiers.toml").write_text(LADDER)
    told = only_object(
        here(
            "policy", "fit", "router", index, "--questions", "demo", "--tiers", folder / "tiers.toml", "--by",
            "evidence", "--kind", "utility", "--correct-rate", "0.25", "--out", folder / "r.safetensors",
            "--json",
        )
    )  # fmt: skip
    assert told["questions"] + told["unlabelled"] == 90
    assert sum(told["label_shares"]) == pytest.approx(1)
    assert told["table"] == str(folder / "r.parquet")
    return folder


def test_a_relevance_model_is_fitted_and_used(index: Path, tmp_path: Path) -> None:
    out = tmp_path / "model.json"
    fit = ("policy", "fit", "relevance", index, "--questions", "demo", "--set", "search.pool=20", "--out")
    shown = here(*fit, out, "--sentences").stdout
    assert "calibration error" in shown
    assert "needed; log loss" in shown
    assert out.with_suffix(".png").read_bytes()[:4] == b"\x89PNG"
    model = load_model(out)
    assert model is not None
    assert model.measures["after"]["log_loss"] < model.measures["before"]["log_loss"]
    assert model.sentences is not None
    relevance = ("--set", f"selection.relevance_model={out}")
    found = only_object(here("select", index, QUESTION, *relevance, "--proof", "--json"))
    assert found["certificate"]["relevance"]["kind"] == "model"
    compared = only_object(
        here(
            "evaluate", index, "--questions", "demo", "--methods", "topk,calibrated,exact", *relevance,
            "--budget", "100,200", "--limit", 4, "--out", tmp_path / "run", "--json",
        )
    )  # fmt: skip
    assert compared["run"]["settings"]["relevance_model"]["name"] == "model"
    wrong = refused(here("select", index, QUESTION, "--set", "selection.relevance_model=minilm"))
    assert "was fitted on the embedder" in wrong[0]


def test_the_price_is_kept_by_the_policy_that_it_is_written_to(
    demo: Dataset, index: Path, tmp_path: Path
) -> None:
    out = tmp_path / "price.toml"
    fit = ("policy", "fit", "price", index, "--questions", "demo", "--out", out)
    told = only_object(
        here(*fit, "--mean-tokens", 120, "-b", 900, "--limit", 20, "--set", "search.pool=15", "--json")
    )
    held = read_toml(out)
    assert held["price"]["token"] == told["token_price"] > 0
    assert held["limits"]["budget"] == 900
    assert 100 < told["mean_tokens"] <= 120 < told["below"]["mean_tokens"]
    spent = [
        only_object(here("select", index, question.text, "--policy", out, "--json"))["tokens"]
        for question in demo.questions[:20]
    ]
    assert np.mean(spent) == pytest.approx(told["mean_tokens"], abs=0.5)
    assert "is above --budget 300" in refused(here(*fit, "--mean-tokens", 500, "-b", 300))[0]


def test_completeness_and_process_are_learned(index: Path, tmp_path: Path) -> None:
    out = tmp_path / "complete.json"
    fit = ("policy", "fit", "completeness", index, "--questions", "demo", "--out", out, "--limit", 30)
    assert "probabilities are off by" in here(*fit).stdout
    policy = ("--policy", "balanced", "--set", f"repeat.calibration={out}", "--set", "repeat.by=price")
    assert here("ask", index, QUESTION, *policy).returncode == 0

    traces = tmp_path / "traces.jsonl"
    for question in (QUESTION, "How tall is Skerryvore?", "When was the Forth Bridge opened?"):
        for policy_name in ("fixed-4@evidence", "mdp"):
            here("ask", index, question, "--policy", policy_name, "--trace", traces)
    file = tmp_path / "process.toml"
    found = only_object(
        here(
            "policy", "fit", "process", traces, "--out", file, "--bins", 2, "--cost-by", "tokens",
            "--price", "0.0001", "--json",
        )
    )  # fmt: skip
    assert (found["gauge"], set(found["solved"])) == ("evidence", {"given", "calibrated", "by bins"})
    again = only_object(here("lab", "solve", file, "--json"))
    assert again["segments"] == found["solved"]["calibrated"]["segments"]
    told = only_object(
        here("ask", index, QUESTION, "--policy", "mdp", "--set", f"repeat.process={file}", "--why", "--json")
    )
    assert told["trace"]["settings"]["model"]["retrieve_cost"] == again["model"]["retrieve_cost"]


@pytest.mark.parametrize(("unit", "budget"), [("characters", None), ("tokens", 500)])
def test_what_limits_a_tier_is_reported(
    index: Path, tmp_path: Path, demo: Dataset, unit: str, budget: int | None
) -> None:
    more = "" if budget is None else 'unit = "tokens"\ncompress = "none"\ntoken_price = 0.001'
    tiers = tmp_path / "one.toml"
    tiers.write_text(f'[[tier]]\nname = "only"\ndepth = 5\ncontext = 500\nnew_tokens = 16\n{more}\n')
    asked = ("ask", index, demo.questions[0].text, "--policy", "tier:only", "--set", f"depth.tiers={tiers}")
    told = only_object(here(*asked, "--json"))
    assert (told["tier"], told["budget"]) == ({"name": "only", "context": 500, "unit": unit}, budget)
    shown = " ".join(here(*asked, "--why").stderr.split())
    assert (f"(the tier only reads up to 500 {unit})" in shown) == (budget is None)


def test_replies_are_kept_next_to_the_table(
    work: Path, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, demo: Dataset
) -> None:
    asked: list[str] = []

    class Known(ScriptedGenerator):
        identity = "a model that is known"

    def made(spec: str, **options: object) -> Known:
        return Known(lambda prompt: asked.append(prompt.user) or demo.questions[0].answers[0])  # type: ignore[func-returns-value]

    monkeypatch.setattr("mio_rag.generation.make_generator", made)
    label = ("policy", "fit", "router", index, "--questions", "demo", "--tiers", work / "tiers.toml",
             "--limit",
             2, "--model", "extract", "--out")  # fmt: skip
    first = only_object(here(*label, tmp_path / "a.parquet", "--json"))
    before = len(asked)
    assert before > 0
    (tmp_path / "a.replies.sqlite").rename(tmp_path / "b.replies.sqlite")
    second = only_object(here(*label, tmp_path / "b.parquet", "--json"))
    assert len(asked) == before  # everything that the second run wanted to know was kept
    assert second["label_shares"] == first["label_shares"]


# -- router -----------------------------------------------------------------------------------------------


# -- planner ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def table(index: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Outcomes of three workflows on bundled questions."""
    out = tmp_path_factory.mktemp("plan") / "table"
    fit = ("policy", "fit", "planner", index, "--questions", "demo", "--out", out)
    done = here(*fit, "--workflows", "no-retrieval,plain,search-parts", "--limit", 24)
    assert done.returncode == 0, done.stderr
    assert "token_f1" in done.stdout
    return out


def test_outcomes_go_on_where_they_were_interrupted(index: Path, tmp_path: Path) -> None:
    out = tmp_path / "table"
    names = ("--questions", "demo", "--workflows", "no-retrieval,plain")
    fit = ("policy", "fit", "planner", index, *names, "--out")
    assert only_object(here(*fit, out, "--limit", 3, "--json"))["questions"] == 3
    rows = (out / "rows.jsonl").read_text().splitlines()
    (out / "rows.jsonl").write_text("\n".join([*rows, rows[0][:50]]))  # killed while it wrote
    assert here(*fit, out, "--limit", 3).returncode == 0
    (out / "rows.jsonl").write_text("\n".join(rows[:4]) + "\n")  # killed between the rows of a question
    assert only_object(here(*fit, out, "--limit", 3, "--json"))["questions"] == 3
    again = [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
    assert [(row["question_id"], row["action"]) for row in again] == [
        (row["question_id"], row["action"]) for row in map(json.loads, rows)
    ]
    assert "another budget_tokens" in refused(here(*fit, out, "--limit", 3, "-b", 100))[0]
    assert "leaves none of the" in refused(here(*fit, tmp_path / "none", "--skip", 10_000))[0]


def test_a_planner_looks_at_what_its_index_embeds_by(index: Path, tmp_path: Path) -> None:
    file, ten = tmp_path / "planner.safetensors", ("--limit", 10, "--test", 0)
    fit = ("policy", "fit", "planner", "--questions", "demo", "--workflows", "no-retrieval,plain", *ten)
    assert here(*fit, index, "--out", file).returncode == 0
    own = CorpusIndex.load(index).embedder.fingerprint
    assert only_object(here("policy", "show", file, "--json"))["embedder"] == own
    asked = (
        "ask",
        index,
        QUESTION,
        "--policy",
        "planner",
        "--set",
        f"order.file={file}",
        "--model",
        "extract",
    )
    assert here(*asked, "--set", f"order.file={file}").returncode == 0
    assert "give the index" in refused(here(*fit, "demo", "--embedder", "tfidf", "--out", file))[0]


@pytest.mark.parametrize(("method", "mode"), [("regression", "once"), ("ppo", "again")])
def test_a_planner_is_trained_judged_and_asked(
    method: str, mode: str, table: Path, index: Path, tmp_path: Path
) -> None:
    file, traces = tmp_path / "planner.safetensors", tmp_path / "traces.jsonl"
    fit = ("policy", "fit", "planner", table, "--out", file, "--embedder", index)
    told = only_object(here(*fit, "--method", method, "--mode", mode, "--updates", 3, "--json"))
    assert told["learned_from"] + told["held_out"] == 24
    assert {point["name"] for point in told["points"]} >= {"plain", "oracle", "planner"}
    assert len(told["curve"]) == (3 if method == "ppo" else 0)
    about = only_object(here("policy", "show", file, "--json"))
    assert (about["method"], about["mode"], about["network"]) == (method, mode, method == "ppo")
    assert "learned from" in here("policy", "show", file).stdout
    judge = ("policy", "replay", table, "--planner", file, "--prices", "0.1", "--embedder", index)
    # Held out are those that this very planner has not seen, however it was trained.
    assert here(*judge).stdout.startswith(f"{told['held_out']} questions")
    asked = ("ask", index, QUESTION, "--policy", "planner@.1", "--set", f"order.file={file}", "--why")
    trace = only_object(here(*asked, "--trace", traces, "--json"))["trace"]
    assert trace["settings"]["planner"] == {"method": method, "mode": mode, "alpha": 0.1}
    assert trace["workflow"]["name"] in ("no-retrieval", "plain", "search-parts")
    again = ("policy", "replay", traces, "--planner", file, "--embedder", index)
    assert only_object(here(*again, "--json"))["differing"] == []
    traces.write_text(traces.read_text().replace('"alpha": 0.1', '"alpha": 9.0'))
    assert here(*again).returncode == 1
