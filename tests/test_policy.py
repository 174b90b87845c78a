"""What a policy says, and everything that may be wrong with it, told at once and before anything is spent."""

from contextlib import nullcontext
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from mio_rag.errors import InputError
from mio_rag.learning.bandit_log import EventLog
from mio_rag.policy import PRESETS, Policy, policy_of, preset_text
from mio_rag.policy.files import allocating, resolve
from mio_rag.policy.tables import DollarPrice, Model, Total
from mio_rag.selection.selector import Selector
from mio_rag.session.tiers import Tier
from mio_rag.solvers import SolveOptions
from tests.learning.files import planner_file, router_file


def problems(data: dict[str, object], folder: Path | None = None) -> list[str]:
    """Of plain data, files included."""
    try:
        resolve(policy_of(data, "tried", folder))
    except InputError as error:
        return list(error.problems)
    return []


def test_presets_are_policies_and_dearer_ones_read_less() -> None:
    found = [Policy.load(name) for name in PRESETS]
    assert [policy.name for policy in found] == list(PRESETS)
    prices = [policy.fixed_price or 0.0 for policy in found if "/" not in policy.name]
    assert prices == sorted(prices, reverse=True)
    learned = {"published/router"}  # its file is fitted first
    for policy in found:
        missing = "does not exist: give a file" if policy.name in learned else ""
        with pytest.raises(InputError, match=missing) if missing else nullcontext():
            assert resolve(policy).sha256
    assert Policy.load("frugal") == Policy.load("frugal")
    with pytest.raises(InputError, match="did you mean 'balanced'"):
        Policy.load("balancd")


def test_a_file_says_the_same_as_a_preset(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(preset_text("balanced"))
    mine, shipped = Policy.load(path), Policy.load("balanced")
    assert mine.name == "mine"
    assert mine.sha256 == shipped.sha256  # what it is called is no part of what it does
    again = policy_of(mine.to_dict(), "again")
    assert again == mine
    path.write_text(preset_text("balanced").replace("0.0005", "0.0006"))
    assert Policy.load(path).sha256 != mine.sha256


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(
        """
[price]
token = 2
worth = 1
[order]
by = "planer"
[search]
strategies = ["raw", "hide"]
[depth]
by = "tier"
[repeat]
by = "sometimes"
most = 0
[models.strong]
input = 3
[limits]
max_total_tokens = 10
[colour]
"""
    )
    with pytest.raises(InputError) as error:
        Policy.load(path)
    told = "\n".join(error.value.problems)
    for expected in (
        "colour is not a setting",
        "give one of token, worth and total, not token and worth",
        "did you mean 'planner'",
        "strategy 'hide' is unknown",
        "depth.tier is missing",
        "'sometimes' is unknown",
        "repeat.most must be >= 1, got 0",
        "models.strong: give spec",
        "give both input and output",
        "max_total_tokens must be >= budget + max_tokens (1088), got 10",
    ):
        assert expected in told, expected
    assert all(problem.startswith(f"'{path}'") for problem in error.value.problems)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"price": {"worth": 0.1}}, "the reader has no price"),
        ({"price": {"total": 100, "per": "day"}}, "take 1088 tokens, with its prompt on top"),
        ({"price": {"total": 10_000}}, "needs per"),
        ({"price": {"token": 0.1, "state": "x"}}, 'state has no effect with by = "fixed"'),
        ({"price": {}}, "give one of token, worth and total, not nothing"),
        ({"price": 3}, "price must be a table"),
        ({"price": {"token": True}}, "price.token must be a number, got True"),
        ({"selection": {"by": "tier"}}, "needs a tier"),
        ({"selection": {"by": "ranking"}, "depth": {"by": "tier", "tier": "easy"}}, "read by the program"),
        ({"selection": {"preset": "raw"}}, "price is one of probabilities"),
        ({"selection": {"relevance_model": "given"}}, "price is one of probabilities"),
        ({"selection": {"relevance_model": "cosine", "preset": "thorough"}}, "price is one of probabilities"),
        ({"selection": {"relevance_model": None}}, "leave it out, or give auto"),
        ({"selection": {"passage_penalti": 0.1}}, "did you mean 'passage_penalty'"),
        ({"selection": {"token_price": 0.1}}, "the policy's own price"),
        ({"selection": {"settings": 3}}, "selection.settings must be a table"),
        ({"order": {"workflow": "plane"}}, "did you mean 'plain'"),
        ({"order": {"workflow": "no-retrieval"}, "repeat": {"by": "price"}}, "reads nothing"),
        ({"order": {"file": "x"}}, 'file has no effect with by = "workflow"'),
        ({"order": {"workflow": ["plain"]}}, "order.workflow must be a text"),
        ({"order": {"by": "planer"}}, "did you mean 'planner'"),
        ({"search": {"by": "bandit"}}, "search.state is missing"),
        ({"search": {"by": "bandit", "state": "x"}}, "a bandit needs strategies to choose among"),
        ({"search": {"state": "x"}}, 'state has no effect with by = "strategies"'),
        ({"search": {"strategies": ["raw", "hide"]}}, "did you mean 'hyde'"),
        ({"depth": {"by": "tier"}}, "depth.tier is missing"),
        ({"depth": {"by": "tier", "tier": "easy"}}, "counts in characters"),
        ({"depth": {"by": "tier", "tier": "eazy"}, "selection": {"by": "tier"}}, "did you mean 'easy'"),
        ({"repeat": {"by": "sometimes"}}, "'sometimes' is unknown"),
        ({"repeat": {"by": "price", "signal": "evidence"}}, "signal has no effect"),
        ({"repeat": {"most": 2}}, 'most has no effect with by = "never"'),
        ({"limits": {"max_total_tokens": 10}}, "must be >= budget + max_tokens (1088), got 10"),
        ({"limits": {"max_steps": 2.5}}, "limits.max_steps must be a whole number, got 2.5"),
        ({"limits": {"timeout": float("nan")}}, "limits.timeout must be a finite number"),
        ({"limits": {"evidence_tokens": 60}}, "limits.evidence_tokens is not a setting"),
        ({"order": {"by": "planner", "file": "p", "sha256": "short"}}, "order.sha256 must be of the form"),
        ({"models": {"reader": {"spec": "extractive"}}}, "--model names the reader"),
        ({"models": {"strong": {"input": 3.0}}}, "give both input and output"),
        ({"models": {"big": {"spec": "oracle:9"}}}, "oracle"),
        ({"models": {"big": {"spec": 3}}}, "models.big.spec must be a text, got 3"),
        ({"colour": {}}, "colour is not a setting"),
        ({"name": ""}, "name must be not empty"),
    ],
)
def test_contradictions(data: dict[str, object], expected: str) -> None:
    assert expected in "\n".join(problems(data))


def test_a_tier_above_the_ceiling_is_found_before_anything_runs(tmp_path: Path) -> None:
    big = Tier(name="big", depth=60, context=5000, new_tokens=32, unit="tokens", compress="none")
    router = router_file(tmp_path / "r.safetensors", "tfidf:x", 4, (big,))
    told = problems({"depth": {"by": "router", "file": router.name}}, tmp_path)
    assert len(told) == 2
    assert "may read 5000 tokens, above limits.budget = 1024" in told[0]
    assert "a search brings 50" in told[1]


def test_learned_parts_must_fit_together(tmp_path: Path) -> None:
    router = router_file(tmp_path / "r.safetensors", "tfidf:one", 4)
    planner = planner_file(tmp_path / "p.safetensors", embedder="tfidf:two")
    log = EventLog(
        tmp_path / "arms.sqlite",
        {"strategies": "hyde", "base": "raw", "embedder": "tfidf:one", "dimensions": "64"},
    )
    log.close()
    data = {
        "order": {"by": "planner", "file": planner.name},
        "search": {"by": "bandit", "strategies": ["raw", "grounded"], "state": "arms.sqlite"},
        "depth": {"by": "router", "file": router.name, "sha256": "0" * 64},
        "limits": {"budget": 500},
    }
    told = "\n".join(problems(data, tmp_path))
    assert "learned on the strategies hyde, raw, and the policy names grounded, raw" in told
    assert "000000000000... is wanted" in told
    assert "planner with 'tfidf:two', router with 'tfidf:one', bandit with 'tfidf:one'" in told


def test_planners_that_a_policy_cannot_run_are_refused(tmp_path: Path) -> None:
    again = planner_file(tmp_path / "again.safetensors", "again")
    assert not problems({"order": {"by": "planner", "file": str(again)}})
    trained = planner_file(tmp_path / "one.safetensors", alphas=(0.1,))
    told = problems({"order": {"by": "planner", "file": str(trained)}})
    assert "at 0.0005 a token: alpha=0.15: this planner was trained for 0.1" in told[0]
    assert not problems({"order": {"by": "planner", "file": str(trained)}, "price": {"token": 0.1 / 300}})
    moving = {"order": {"by": "planner", "file": str(trained)}, "price": {"total": 9999, "per": "day"}}
    assert "a total moves the price" in problems(moving)[0]
    assert "does not exist" in problems({"order": {"by": "planner", "file": "nowhere"}})[0]


def test_a_workflow_without_its_models_is_refused(tmp_path: Path) -> None:
    flow = tmp_path / "strong.json"
    flow.write_text(
        '{"nodes": {"f": {"do": "retrieve"}, "r": {"do": "select", "from": ["f"]},'
        ' "a": {"do": "answer", "from": ["r"], "model": "strong"}}, "answer": "a"}'
    )
    data: dict[str, object] = {"order": {"workflow": flow.name}}
    told = problems(data, tmp_path)
    assert "give [models.strong] with its spec" in told[0]
    assert "give [models.reader] input and output" in told[1]
    data["models"] = {"strong": {"spec": "extractive"}, "reader": {"input": 1, "output": 1}}
    assert "give [models.strong] input and output" in problems(data, tmp_path)[0]
    data["models"] = {
        "strong": {"spec": "extractive", "input": 9, "output": 9},
        "reader": {"input": 1, "output": 1},
    }
    assert not problems(data, tmp_path)


def test_content_is_part_of_the_hash_and_names_are_not(tmp_path: Path) -> None:
    file = router_file(tmp_path / "r.safetensors", "tfidf:x", 4)
    data = {"depth": {"by": "router", "file": file.name}}
    before = resolve(policy_of(data, "a", tmp_path))
    assert before.embedders == {"router": "tfidf:x"}
    assert resolve(policy_of(data, "b", tmp_path)).sha256 == before.sha256
    router_file(file, "tfidf:x", 5)
    assert resolve(policy_of(data, "a", tmp_path)).sha256 != before.sha256
    with pytest.raises(InputError, match="trained with the embedder 'tfidf:x', and the index embeds by 'y'"):
        before.check("y")


def test_the_hash_goes_by_what_files_hold_and_not_by_where_they_lie(tmp_path: Path) -> None:
    found, made = [], router_file(tmp_path / "r.safetensors", "tfidf:x", 4).read_bytes()
    for name in ("here", "there"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / f"{name}.safetensors").write_bytes(made)
        search = {"by": "bandit", "strategies": ["raw", "hyde"], "state": f"{name}.sqlite"}
        amount = {"by": "router", "file": f"{name}.safetensors"}
        found.append(policy_of({"depth": amount, "search": search}, name, folder))
    here, there = map(resolve, found)
    assert here.sha256 == there.sha256
    about = {"embedder": "tfidf:x", "strategies": "raw+hyde", "base": ""}
    EventLog(tmp_path / "here" / "here.sqlite", about).close()
    assert resolve(found[0]).sha256 == here.sha256  # it goes on
    assert len(resolve(found[0]).hashes) == 2  # and what it is about is told


def test_the_content_of_a_model_is_looked_at_also_where_its_name_has_options(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF and more")
    digest = sha256(b"GGUF and more").hexdigest()
    for options in ("", "?slots=2"):
        model = {"spec": f"gguf:{tmp_path / 'm.gguf'}{options}", "input": 1, "output": 1}
        assert not problems({"models": {"cheap": model | {"sha256": digest}}})
        told = problems({"models": {"cheap": model | {"sha256": "0" * 64}}})
        assert "has the content" in told[0]


def test_worth_makes_the_price() -> None:
    policy = Policy(price=DollarPrice(worth=0.01), models={"reader": Model(input=2.0, output=8.0)})
    assert policy.fixed_price == pytest.approx(2e-6 / 0.01)
    assert Policy(price=Total(total=10_000, per="day")).fixed_price is None


BASE = Selector()
TOTAL = {"price": {"total": 5000, "questions": 10}}


@pytest.mark.parametrize(
    "name", [name for name in PRESETS if "/" not in name]
)  # published ones have no price
def test_presets_share_a_total_that_is_given(name: str) -> None:
    found = allocating(Policy.load(name), BASE, 4000)
    assert (found.total_tokens, found.ceiling) == (4000, Policy.load(name).limits.budget)
    assert found.selector.token_price == 0
    assert any("replaces it" in said for said in found.unused)
    with pytest.raises(InputError, match="needs a total"):
        allocating(Policy.load(name), BASE)


def test_an_allocation_reads_by_the_policy_and_names_what_it_cannot_keep() -> None:
    data = {"selection": {"max_per_source": 2}, "limits": {"budget": 300}, "search": {"pool": 9}}
    found = allocating(policy_of({**TOTAL, **data}, "p"), BASE)
    assert (found.selector.max_per_source, found.ceiling, found.total_tokens) == (2, 300, 5000)
    assert [said.partition(":")[0] for said in found.unused] == ["search", "limits except budget"]
    data = {"depth": {"by": "tier", "tier": "easy"}, "selection": {"by": "tier"}}
    with pytest.raises(InputError) as error:
        allocating(policy_of({"price": {"total": 5000, "per": "day"}, **data}, "p"), BASE)
    assert [said.partition(":")[0] for said in error.value.problems] == ["depth", "selection", "price"]
    with pytest.raises(InputError, match="has what was found"):
        allocating(policy_of({**TOTAL, "repeat": {"by": "price"}}, "p"), BASE)


def test_the_program_opens_files_and_keeps_its_own_limits() -> None:
    base = Selector(options=SolveOptions(time_limit_seconds=2.0, threads=2))
    told = {"relevance_model": "ranks", "solver": "highs", "options": {"time_limit_seconds": 7.0}}
    made = policy_of({"selection": told}, "p").selector(0.0, base)
    assert made.relevance_model.name == "ranks"
    assert (made.solver, made.options.time_limit_seconds, made.options.threads) == ("highs", 7.0, 2)


@pytest.mark.parametrize(
    ("given", "is_plain"),
    [
        ({}, True),
        ({"name": "mine", "server": {"queue": 3}, "limits": {"budget": 90}}, True),
        ({"price": {"token": 0.01}, "search": {"pool": 9}, "selection": {"max_passages": 2}}, True),
        ({"price": {"total": 10_000, "questions": 5}}, False),
        ({"order": {"workflow": "rewrite-first"}}, False),
        ({"search": {"strategies": ["raw", "hyde"]}}, False),
        ({"depth": {"by": "tier", "tier": "easy"}}, False),
        ({"selection": {"by": "ranking"}, "price": {"token": 0}}, False),
        ({"repeat": {"by": "price"}}, False),
    ],
)
def test_a_policy_is_plain_where_one_search_and_one_program_decide(
    given: dict[str, Any], is_plain: bool
) -> None:
    assert Policy.from_dict(given).is_plain == is_plain
