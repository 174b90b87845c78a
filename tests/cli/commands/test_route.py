"""The commands route, and --router of ask, evaluate and the service: from questions to a routed answer."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from mio_rag.cli.app import app
from mio_rag.corpora.load import Dataset, load_dataset
from mio_rag.errors import InputError
from mio_rag.generation import ScriptedGenerator, make_generator
from mio_rag.learning.router import read_table
from mio_rag.learning.router_model import RouterSettings, Utility, read_router
from mio_rag.retrieval import CorpusIndex
from mio_rag.service.run import check
from mio_rag.service.settings import Pacing, ServiceSettings

LADDER = "".join(
    f'[[tier]]\nname = "{name}"\ndepth = {depth}\ncontext = {context}\nnew_tokens = {length}\n'
    for name, depth, context, length in (("easy", 1, 200, 16), ("medium", 3, 500, 24), ("hard", 8, 1500, 32))
)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def said(*arguments: object) -> Any:
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def work(demo_index: CorpusIndex, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index, tiers, a labelled table and a router."""
    folder = tmp_path_factory.mktemp("route")
    demo_index.save(folder / "index")
    (folder / "tiers.toml").write_text(LADDER)
    told = said(
        *("route", "label", "demo", "--index", folder / "index", "--tiers", folder / "tiers.toml"),
        *("--by", "evidence", "--out", folder / "table.parquet"),
    )
    assert told["questions"] + told["unlabelled"] == len(demo_questions())
    assert sum(told["label_shares"]) == pytest.approx(1)
    said(
        *("route", "train", folder / "table.parquet", "--out", folder / "router.safetensors"),
        *("--kind", "utility", "--features", "question+search", "--correct-rate", "0.25"),
    )
    return folder


def demo_questions() -> Sequence[object]:
    return load_dataset("demo").questions


def test_the_table_says_what_each_tier_did(work: Path) -> None:
    table = read_table([work / "table.parquet"])
    worked, tokens = table.worked, table.outcomes.of("prompt_tokens")
    assert [tier.name for tier in table.tiers] == ["easy", "medium", "hard"]
    assert (np.diff(tokens.mean(axis=0)) > 0).all()
    assert (np.diff(worked.mean(axis=0)) >= 0).all()
    first = np.where(worked.any(axis=1), worked.argmax(axis=1), table.labels)
    np.testing.assert_array_equal(table.labels, first)
    about = table.outcomes.provenance["tables"][0]
    assert (about["by"], about["generator"]) == ("evidence", None)
    assert table.embedder.startswith("tfidf")


def test_a_second_run_does_nothing_anew(work: Path) -> None:
    rows = (work / "table.run" / "rows.jsonl").read_text()
    said(
        *("route", "label", "demo", "--index", work / "index", "--tiers", work / "tiers.toml"),
        *("--by", "evidence", "--out", work / "table.parquet"),
    )
    assert (work / "table.run" / "rows.jsonl").read_text() == rows
    other = run(
        *("route", "label", "demo", "--index", work / "index", "--by", "evidence"),
        *("--out", work / "table.parquet"),
    )
    assert other.exit_code == 2
    assert "had another control" in other.output


def test_what_no_tier_does_for_is_told_beside_the_labels_that_it_gets(work: Path, tmp_path: Path) -> None:
    label = ("route", "label", "demo", "--index", work / "index", "--tiers", work / "tiers.toml")
    for more, does in (
        (("--by", "evidence"), "reads the evidence of"),
        (("--generator", "extractive"), "answers"),
    ):
        out = ("--out", tmp_path / f"{more[1]}.parquet", "--limit", 40)
        plain = run(*label, *more, *out)
        assert plain.exit_code == 0, plain.output
        none = int((~read_table([tmp_path / f"{more[1]}.parquet"]).worked.any(axis=1)).sum())
        assert none > 0
        assert f"no tier {does} {none} (" in plain.output
        assert "the rule 'published' (--unanswered)" in plain.output
        assert said(*label, *more, *out)["unanswered"] == none


def test_without_options_the_kind_is_trained_that_is_most_often_right(work: Path, tmp_path: Path) -> None:
    said("route", "train", work / "table.parquet", "--out", tmp_path / "plain.safetensors")
    made = read_router(str(tmp_path / "plain.safetensors"))
    assert (made.kind, made.features) == ("logistic", "question+search")


def test_show_tells_what_was_measured(work: Path) -> None:
    shown = run("route", "show", work / "router.safetensors")
    assert shown.exit_code == 0, shown.output
    for text in (
        "utility router of",
        "labels by evidence",
        "tier:easy",
        "oracle",
        "best mixture of fixed tiers",
    ):
        assert text in " ".join(shown.output.split())
    told = said("route", "show", work / "router.safetensors")
    lines = [line.split() for line in shown.stdout.splitlines()]
    head = lines.index(["needed", "easy", "medium", "hard"])
    matrix = [line[1:] for line in lines[head + 1 : head + 4]]
    assert matrix == [[str(count) for count in row] for row in told["measures"]["confusion"]]
    assert set(told["measures"]) >= {"accuracy", "confusion", "calibration_error", "rows", "unsure_share"}
    assert told["correction"]["more"] == 5
    assert told["provenance"]["questions"] == told["measures"]["questions"]


def test_ask_at_the_tier_that_the_router_chooses(work: Path, demo: Dataset) -> None:
    question = demo.questions[0].text
    asked = ("ask", work / "index", question, "--router", work / "router.safetensors")
    cheap = said(*asked, "--utility", "1,1")
    dear = said(*asked, "--utility", "1,0")
    assert (cheap["trace"]["policy"], cheap["trace"]["about"]["tier"]) == ("routed", "easy")
    assert cheap["prompt_tokens"] < dear["prompt_tokens"]
    assert set(dear["trace"]["scores"]) == {"easy", "medium", "hard"}
    plain = run(*asked)
    assert plain.exit_code == 0, plain.output
    assert re.search(r"tier (easy|medium|hard) \(easy -?\.?\d", plain.output)
    whole = said("ask", work / "index", question, "--controller", "tier:hard", "--tiers", work / "tiers.toml")
    assert 300 < len(" ".join(p["text"] for p in whole["trace"]["passages"])) <= 1500
    other = run("ask", work / "index", question, "--controller", "mdp", "--tiers", work / "tiers.toml")
    assert other.exit_code == 2
    assert "--tiers: no effect without a controller that has tiers" in " ".join(other.output.split())


NOT_IN_FORCE = dict.fromkeys(("budget_tokens", "redundancy_weight", "passage_penalty"))


@pytest.mark.parametrize(
    ("tier", "in_force"),
    [
        ("", {"context": 500, "context_unit": "characters", **NOT_IN_FORCE}),
        ('unit = "tokens"', {"context": 500, "context_unit": "tokens", **NOT_IN_FORCE}),
        (
            'unit = "tokens"\ncompress = "none"\ntoken_price = 0.001',
            {
                "context": 500, "context_unit": "tokens",
                "budget_tokens": 500, "redundancy_weight": 0.1, "passage_penalty": 0.05,
            },
        ),
    ],
)  # fmt: skip
def test_what_is_told_was_in_force(
    work: Path, tmp_path: Path, demo: Dataset, tier: str, in_force: dict[str, object]
) -> None:
    (tmp_path / "one.toml").write_text(
        f'[[tier]]\nname = "only"\ndepth = 5\ncontext = 500\nnew_tokens = 16\n{tier}\n'
    )
    asked = (
        *("ask", work / "index", demo.questions[0].text, "--controller", "tier:only"),
        *("--tiers", tmp_path / "one.toml", "--redundancy", 0.1, "--passage-penalty", 0.05),
    )
    told = said(*asked)
    shown = " ".join(run(*asked, "--explain").output.split())
    room = f"tokens (the tier only reads up to 500 {in_force['context_unit']})"
    assert (room in shown) == (in_force["budget_tokens"] is None)
    assert (" of 500 tokens" in shown) == (in_force["budget_tokens"] is not None)
    assert {name: told.get(name, "absent") for name in ("tier", *in_force)} == {"tier": "only", **in_force}


def test_methods_and_tiers_side_by_side(work: Path, tmp_path: Path) -> None:
    told = said(
        *("evaluate", "demo", "--index", work / "index", "--out", tmp_path / "run", "--limit", 3),
        *("--methods", "topk,tier:hard,routed,random-tier,oracle-tier", "--budget-tokens", 2000),
        *("--router", work / "router.safetensors"),
    )
    names = {entry["method"] for entry in told["summary"]}
    assert names == {"topk", "tier:hard", "routed", "random-tier", "oracle-tier"}
    rows = [json.loads(line) for line in (tmp_path / "run" / "rows.jsonl").read_text().splitlines()]
    assert {row["tier"] for row in rows if row["method"] == "tier:hard"} == {"hard"}
    assert not any(row["error"] for row in rows if row["method"] != "oracle-tier")


def test_the_service_answers_at_a_tier(work: Path, demo: Dataset) -> None:
    pytest.importorskip("fastapi")
    from fastapi.testclient import TestClient

    from mio_rag.service.app import create_app

    index, question = CorpusIndex.load(work / "index"), demo.questions[0].text
    told = {}
    for price in (0.0, 1.0):
        settings = RouterSettings(router=str(work / "router.safetensors"), utility=Utility(beta=price))
        with TestClient(
            create_app(index, make_generator("extractive"), routing=settings.to_dict())
        ) as client:
            answer = client.post("/ask", json={"question": question, "budget_tokens": 64})
            assert answer.status_code == 200, answer.text
            told[price] = answer.json()
            size = {"easy": 200, "medium": 500, "hard": 1500}[told[price]["tier"]]
            for name, value in {"context": size, "context_unit": "characters", **NOT_IN_FORCE}.items():
                assert told[price][name] == value, name
            outcome = said(
                *("ask", work / "index", question, "--router", work / "router.safetensors"),
                *("--utility", f"1,{price}"),
            )
            for name in ("tier", "context", "context_unit", *NOT_IN_FORCE):
                assert told[price][name] == outcome[name], name
            assert "tier" not in client.post("/select", json={"question": question}).json()
    assert told[1.0]["tier"] == "easy"
    assert told[0.0]["tier"] != "easy"
    assert told[0.0]["answer"]
    assert 0 < told[1.0]["prompt_tokens"] < told[0.0]["prompt_tokens"]


def test_what_is_refused_and_why(work: Path, tmp_path: Path, demo: Dataset) -> None:
    table, router, question = work / "table.parquet", work / "router.safetensors", demo.questions[0].text
    (tmp_path / "bad.toml").write_text(LADDER.replace("depth = 3", "depth = 30"))
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(router.read_bytes()[:200])
    (tmp_path / "two.toml").write_text(LADDER.rpartition("[[tier]]")[0])
    label = ("route", "label", "demo", "--index", work / "index")
    for arguments, expected in (
        ((*label, "--out", "x.csv"), "must be a file that ends in .parquet"),
        ((*label, "--out", tmp_path / "x.parquet"), "labels by answers need a model"),
        ((*label, "--out", tmp_path / "x.parquet", "--by", "luck"), "by='luck' is unknown"),
        ((*label, "--out", tmp_path / "x.parquet", "--tiers", tmp_path / "bad.toml"), "cheaper in depth"),
        (("route", "train", table, "--out", "x.json"), "ends in .safetensors"),
        (("route", "train", router, "--out", tmp_path / "x.safetensors"), "cannot be read as Parquet"),
        (
            ("route", "train", table, "--out", tmp_path / "x.safetensors", "--kind", "tree"),
            "kind must be mlp",
        ),
        (("route", "show", tmp_path / "none"), "does not exist"),
        (("route", "show", damaged), "damaged"),
        (("ask", work / "index", question, "--router", damaged), "damaged"),
        (
            ("ask", work / "index", question, "--router", router, "--tiers", tmp_path / "two.toml"),
            "holds 2 tiers, and the router chooses among 3",
        ),
        (
            ("ask", work / "index", question, "--router", router, "--utility", "1,x"),
            "give up to four numbers",
        ),
        (("ask", work / "index", question, "--router", router, "--utility", "1,-1"), "beta=-1.0 must be"),
        (
            ("ask", work / "index", question, "--tiers", tmp_path / "two.toml"),
            "no effect without a controller",
        ),
        (("evaluate", "demo", "--out", tmp_path / "r", "--methods", "routed"), "needs a router"),
        (("evaluate", "demo", "--out", tmp_path / "r", "--methods", "tier:huge"), "names no tier"),
    ):
        done = run(*arguments)
        assert done.exit_code == 2, (arguments, done.output)
        assert expected in " ".join(done.output.split()), (arguments, done.output)
    other = CorpusIndex.build(demo.passages[:30], "tfidf", "other")
    with pytest.raises(InputError, match="and the index embeds by"):
        read_router(str(router)).check(other.embedder.fingerprint)


def test_a_router_and_a_total_exclude_each_other(work: Path) -> None:
    routing = RouterSettings(router=str(work / "router.safetensors")).to_dict()
    where = ServiceSettings(str(work / "index"), pacing=Pacing(1000, "day"), routing=routing)
    with pytest.raises(InputError, match="--router excludes --tokens-per-day: its tiers decide"):
        check(where, None, False)
    check(ServiceSettings(str(work / "index"), routing=routing), None, False)


def test_replies_are_kept_beside_the_table(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, demo: Dataset
) -> None:
    asked: list[str] = []

    class Known(ScriptedGenerator):
        identity = "a model that is known"

    def made(spec: str, **options: object) -> Known:
        return Known(lambda prompt: asked.append(prompt.user) or demo.questions[0].answers[0])  # type: ignore[func-returns-value]

    monkeypatch.setattr("mio_rag.generation.make_generator", made)
    label = (
        "route",
        "label",
        "demo",
        "--index",
        work / "index",
        "--tiers",
        work / "tiers.toml",
        "--limit",
        2,
    )
    first = said(*label, "--generator", "extractive", "--out", tmp_path / "a.parquet")
    before = len(asked)
    assert before > 0
    assert (tmp_path / "a.replies.sqlite").is_file()
    (tmp_path / "a.replies.sqlite").rename(tmp_path / "b.replies.sqlite")
    second = said(*label, "--generator", "extractive", "--out", tmp_path / "b.parquet")
    assert len(asked) == before  # everything that the second run wanted to know was kept
    assert second["label_shares"] == first["label_shares"]
