"""``mio-rag plan`` and ``ask --workflow``."""

import json
from pathlib import Path

import pytest

from mio_rag.cli.show_control import _figure
from mio_rag.session.workflow import NAMED
from tests.cli.running import here

QUESTION = "Which metal melts at the higher temperature, rhenium or tungsten?"


def test_show_lists_and_prints() -> None:
    listed = here("plan", "show")
    assert "select (token price 0.001)" in listed.stdout
    assert "select (sentences, share 0.5)" in listed.stdout
    assert listed.returncode == 0
    assert all(name in listed.stdout for name in NAMED)
    shown = here("plan", "show", "decompose-serial")
    assert "summarise: summarise [each -> answer] = the answer" in shown.stdout
    told = json.loads(here("plan", "show", "plain", "--json").stdout)
    assert told == NAMED["plain"].to_dict()


def test_show_names_every_mistake(tmp_path: Path) -> None:
    path = tmp_path / "w.json"
    path.write_text(json.dumps({"nodes": {"a": {"do": "fly"}, "answer": {"do": "select"}}}))
    done = here("plan", "show", path)
    assert done.returncode == 2
    assert "is to do 'fly', which is unknown" in done.stderr
    assert "needs a pool" in done.stderr
    assert "gives passages: name one that gives an answer" in done.stderr


def test_ask_follows_a_workflow(index: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    done = here("ask", index, QUESTION, "--workflow", "plain", "--trace", trace)
    assert done.returncode == 0, done.stderr
    assert "workflow plain" in done.stdout
    assert json.loads(trace.read_text())["policy"] == "workflow:plain"
    told = json.loads(here("ask", index, QUESTION, "--workflow", "plain", "--json").stdout)
    assert [step["do"] for step in told["trace"]["steps"]] == ["retrieve", "select", "answer"]
    own = tmp_path / "own.json"
    own.write_text(json.dumps({"nodes": {"answer": {"do": "answer", "model": "other"}}}))
    refused = here("ask", index, QUESTION, "--workflow", own)
    assert refused.returncode == 2
    assert "asks model 'other'" in refused.stderr
    unpriced = here("ask", index, QUESTION, "--workflow", own, "--model", "other=extractive")
    assert "model 'other' has no price" in unpriced.stderr
    price = ("--model-price", "other=1,2")
    given = here("ask", index, QUESTION, "--workflow", own, "--model", "other=extractive", *price)
    assert given.returncode == 0, given.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--workflow", "plane"), "workflow 'plane' is unknown: did you mean 'plain'?"),
        (("--workflow", "plain", "--controller", "mdp"), "exclude each other"),
        (("--model", "a=extractive"), "no effect without a workflow"),
        (("--workflow", "plain", "--model", "a"), "--model a: give NAME=VALUE"),
        (("--workflow", "plain", "--model-price", "a=1"), "must be two numbers"),
        (("--workflow", "plain", "--model", "a=nonsense"), "'nonsense' is not known"),
    ],
)
def test_bad_options_are_refused(index: Path, arguments: tuple[str, ...], said: str) -> None:
    done = here("ask", index, QUESTION, *arguments)
    assert done.returncode == 2
    assert said in done.stderr


def test_outcomes_are_a_table_and_go_on(index: Path, tmp_path: Path) -> None:
    out = tmp_path / "table"
    common = ("--data", "demo", "--index", index, "--workflows", "no-retrieval,plain,search-parts")
    done = here("plan", "outcomes", out, *common, "--limit", 2)
    assert done.returncode == 0, done.stderr
    rows = (out / "rows.jsonl").read_text().splitlines()
    assert len(rows) == 6
    again = here("plan", "outcomes", out, *common, "--limit", 3, "--json")
    assert json.loads(again.stdout)["questions"] == 3
    assert (out / "rows.jsonl").read_text().splitlines()[:6] == rows
    (out / "rows.jsonl").write_text("\n".join([*rows, rows[0][:50]]))  # killed while it wrote
    assert here("plan", "outcomes", out, *common, "--limit", 2).returncode == 0
    (out / "rows.jsonl").write_text("\n".join(rows[:4]) + "\n")  # killed between the rows of a question
    assert json.loads(here("plan", "outcomes", out, *common, "--limit", 2, "--json").stdout)["questions"] == 2
    timed = [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
    assert [(row["question_id"], row["action"]) for row in timed] == [
        (row["question_id"], row["action"]) for row in map(json.loads, rows)
    ]
    other = here("plan", "outcomes", out, *common, "--limit", 2, "--budget-tokens", 100)
    assert other.returncode == 2
    assert "another budget_tokens" in other.stderr


def test_a_table_of_another_corpus_is_not_gone_on_with(tmp_path: Path) -> None:
    """Also where its passages have the same names."""
    data, table = tmp_path / "data", tmp_path / "table"
    data.mkdir()
    question = {"id": "q", "question": "When was the bridge opened?", "answers": ["1871"], "gold_ids": ["a"]}
    (data / "questions.jsonl").write_text(json.dumps(question))
    for place, said in enumerate(("was opened in 1871", "is closed, nobody knows when")):
        passages = [{"id": "a", "text": f"The swing bridge {said}."}, {"id": "b", "text": "Granite is hard."}]
        (data / "corpus.jsonl").write_text("\n".join(map(json.dumps, passages)))
        built = tmp_path / f"index-{place}"
        assert here("index", data, "--out", built, "--embedder", "tfidf").returncode == 0
        done = here("plan", "outcomes", table, "--data", data, "--index", built, "--workflows", "plain")
        assert done.returncode == 2 * place, done.stderr
    assert "another sources" in done.stderr


def test_a_table_of_other_questions_passes_over_the_first(index: Path, tmp_path: Path) -> None:
    common = ("--data", "demo", "--index", index, "--workflows", "no-retrieval")

    def asked(name: str, *options: object) -> list[str]:
        done = here("plan", "outcomes", tmp_path / name, *common, *options)
        assert done.returncode == 0, done.stderr
        lines = (tmp_path / name / "rows.jsonl").read_text().splitlines()
        return [json.loads(line)["question_id"] for line in lines]

    every = asked("all", "--limit", 5)
    assert asked("others", "--limit", 3, "--skip", 2) == every[2:]
    none = here("plan", "outcomes", tmp_path / "none", *common, "--skip", 10_000)
    assert none.returncode == 2
    assert "--skip=10000 leaves none of the" in none.stderr
    assert here("plan", "outcomes", tmp_path / "none", *common, "--skip", -1).returncode == 2


@pytest.fixture(scope="module")
def table(index: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Outcomes of three workflows on bundled questions."""
    out = tmp_path_factory.mktemp("plan") / "table"
    names = "no-retrieval,plain,search-parts"
    done = here(
        "plan", "outcomes", out, "--data", "demo", "--index", index, "--workflows", names, "--limit", 24
    )
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.parametrize(
    ("method", "mode"), [("regression", "once"), ("regression", "again"), ("ppo", "again")]
)
def test_a_planner_is_trained_judged_and_asked(
    method: str, mode: str, table: Path, index: Path, tmp_path: Path
) -> None:
    file = tmp_path / "planner.safetensors"
    done = here(
        "plan", "train", table, "--out", file, "--method", method, "--mode", mode, "--updates", 3,
        "--index", index, "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["learned_from"] + told["held_out"] == 24
    assert {point["name"] for point in told["points"]} >= {"plain", "oracle", "planner"}
    assert len(told["curve"]) == (3 if method == "ppo" else 0)
    about = json.loads(here("plan", "show", file, "--json").stdout)
    assert (about["method"], about["mode"], about["network"]) == (method, mode, method == "ppo")
    assert about["questions"] == told["learned_from"]
    assert "learned from" in here("plan", "show", file).stdout
    judged = here("plan", "evaluate", file, table, "--alpha", "0.1", "--index", index)
    assert judged.returncode == 0, judged.stderr
    # Held out are those that this very planner has not seen, however it was trained.
    assert judged.stdout.startswith(f"{told['held_out']} questions")
    assert "oracle" in judged.stdout
    traces = tmp_path / "traces.jsonl"
    asked = here(
        "ask", index, QUESTION, "--planner", file, "--alpha", 0.1, "--json", "--trace", traces
    )  # fmt: skip
    assert asked.returncode == 0, asked.stderr
    again = here("plan", "replay", traces, "--planner", file, "--index", index, "--json")
    assert json.loads(again.stdout) == {"traces": 1, "wrong": {}}
    line = traces.read_text(encoding="utf-8").replace('"alpha": 0.1', '"alpha": 9.0')
    traces.write_text(line, encoding="utf-8")
    forged = here("plan", "replay", traces, "--planner", file, "--index", index)
    assert forged.returncode == 1
    trace = json.loads(asked.stdout)["trace"]
    assert trace["settings"]["planner"] == {"method": method, "mode": mode, "alpha": 0.1}
    assert trace["workflow"]["name"] in ("no-retrieval", "plain", "search-parts")
    assert trace["scores"]
    assert "decide" in trace["parts"]


def test_a_planner_is_a_contender(table: Path, index: Path, tmp_path: Path) -> None:
    file, out = tmp_path / "planner.safetensors", tmp_path / "run"
    assert here("plan", "train", table, "--out", file, "--index", index).returncode == 0
    done = here(
        "evaluate", "demo", "--index", index, "--limit", 3, "--methods", "none", "--out", out,
        "--controllers", "workflow:plain,planner@0,planner@5", "--planner", file, "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    methods = {entry["method"] for entry in json.loads(done.stdout)["summary"]}
    assert methods == {"workflow:plain", "planner@0", "planner@5"}


def test_planners_are_refused_where_they_do_not_fit(table: Path, index: Path, tmp_path: Path) -> None:
    file = tmp_path / "planner.safetensors"
    assert here("plan", "train", table, "--out", file, "--index", index).returncode == 0

    def refused(*arguments: object) -> str:
        done = here(*arguments)
        assert done.returncode == 2, done.stdout
        return done.stderr

    told = here("ask", index, QUESTION, "--planner", file, "--generator", "extractive", "--json")
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout)["trace"]["settings"]["planner"]["alpha"] == 0.1
    assert "must be finite and >= 0" in refused("ask", index, QUESTION, "--planner", file, "--alpha", -1)
    assert "no effect without --planner" in refused("ask", index, QUESTION, "--alpha", 1)
    assert "does not exist" in refused("ask", index, QUESTION, "--planner", tmp_path / "x", "--alpha", 1)
    assert "no effect without --planner" in refused("serve", index, "--alpha", 1)
    together = ("serve", index, "--planner", file, "--alpha", 1, "--strategies", "raw")
    assert "--planner excludes --strategies: " in refused(*together)
    assert "cannot be read" in refused("plan", "replay", file.parent / "nothing.jsonl", "--planner", file)
    assert "exclude each other" in refused("ask", index, QUESTION, "--planner", file, "--workflow", "plain")
    assert "holds no outcomes" in refused("plan", "train", tmp_path, "--out", file, "--index", index)
    assert "--test=1" in refused("plan", "train", table, "--out", file, "--test", 1)
    assert "method 'luck' is unknown" in refused(
        "plan", "train", table, "--out", file, "--method", "luck", "--index", index
    )
    other = tmp_path / "other"
    names = ("--workflows", "plain,brief")
    common = ("--data", "demo", "--index", index, "--limit", 12)
    assert here("plan", "outcomes", other, *common, *names).returncode == 0
    assert "among other workflows" in refused("plan", "evaluate", file, other, "--index", index)


def test_who_has_seen_every_question_is_not_judged_by_them(table: Path, index: Path, tmp_path: Path) -> None:
    file = tmp_path / "planner.safetensors"
    done = here("plan", "train", table, "--out", file, "--test", 0, "--index", index)
    assert done.returncode == 0, done.stderr
    refused = here("plan", "evaluate", file, table, "--alpha", "0.1", "--index", index)
    assert refused.returncode == 2
    assert "has learned from all 24 questions" in refused.stderr
    assert here("plan", "evaluate", file, table, "--alpha", "0.1", "--index", index, "--all").returncode == 0


def test_dollars_are_those_of_every_model(index: Path, tmp_path: Path) -> None:
    own, script, listed = tmp_path / "own.json", tmp_path / "cheap.json", tmp_path / "prices.toml"
    nodes = {
        "query": {"do": "rewrite", "model": "cheap"},
        "found": {"do": "retrieve", "from": ["query"]},
        "read": {"do": "select", "from": ["found"]},
        "answer": {"do": "answer", "from": ["read"]},
    }
    own.write_text(json.dumps({"nodes": nodes}))
    script.write_text(json.dumps({QUESTION: "melting points of rhenium and tungsten"}))
    listed.write_text("[extractive]\ninput = 1.0\noutput = 4.0\n")
    common = (
        "ask", index, QUESTION, "--workflow", own, "--model", f"cheap=scripted:{script}", "--prices", listed,
    )  # fmt: skip
    priced = (*common, "--model-price", "cheap=10,40", "--model-price", "reader=1,4")
    told = json.loads(here(*priced, "--json").stdout)
    tokens = {"cheap": [0, 0], None: [0, 0]}
    for step in told["trace"]["steps"]:
        for call in step["calls"]:
            tokens[step["model"]][0] += call["prompt_tokens"]
            tokens[step["model"]][1] += call["completion_tokens"]
    (into, out), (rest, more) = tokens["cheap"], tokens[None]
    assert into > 0 < rest
    assert told["dollars"] == pytest.approx((10 * into + 40 * out + rest + 4 * more) / 1e6)
    assert told["models"] == {
        "cheap": {"prompt_tokens": into, "completion_tokens": out},
        "reader": {"prompt_tokens": rest, "completion_tokens": more},
    }
    shown = here(*priced).stdout
    assert " cheap, $" in shown
    assert f"by model: reader {rest} + {more}, cheap {into} + {out}" in shown
    # The prices of the models are enough.
    bare = [word for word in priced if word not in ("--prices", listed)]
    assert json.loads(here(*bare, "--json").stdout)["dollars"] == pytest.approx(told["dollars"])
    assert "$" in here(*bare).stdout
    table = tmp_path / "table"
    refused = here(
        "plan", "outcomes", table, "--data", "demo", "--index", index, "--workflows", own, "--limit", 2,
        "--model", f"cheap=scripted:{script}", "--model-price", "cheap=10,40",
    )  # fmt: skip
    assert refused.returncode == 2
    assert "the reader has no price" in refused.stderr
    assert not table.exists()


def test_options_without_effect_and_too_few_questions_are_told(
    table: Path, index: Path, tmp_path: Path
) -> None:
    common = ("plan", "train", table, "--out", tmp_path / "p.safetensors", "--index", index)
    refused = here(*common, "--alpha", "0.3")
    assert refused.returncode == 2
    assert "--alpha: without effect on --method regression" in refused.stderr
    refused = here(*common, "--test", "0.9")
    assert refused.returncode == 2
    assert "3 of 24 questions are left to learn from, 10 are needed" in refused.stderr
    assert not (tmp_path / "p.safetensors").exists()


def test_dollars_of_little_are_not_shown_as_none() -> None:
    assert [_figure(x) for x in (0.0, 0.000323, 0.5, 12.0, 1234.0)] == [
        "0.000", "0.000323", "0.500", "12", "1234",
    ]  # fmt: skip
