"""What a policy says, and everything that may be wrong with it, told at once and before anything is spent."""

from hashlib import sha256
from pathlib import Path

import pytest

from mio_rag.control.composed.parts import Bounds, Model, Price, Repetition
from mio_rag.control.composed.policy import Policy, policy_of
from mio_rag.control.composed.read import PRESETS, preset_text, read_policy
from mio_rag.control.composed.states import read_states
from mio_rag.control.make import check_controllers
from mio_rag.control.settings import ControlSettings
from mio_rag.errors import InputError
from mio_rag.learning.bandit_log import EventLog
from mio_rag.relevance import load_model
from mio_rag.session.tiers import Tier
from tests.control.composed.learned import planner_file, router_file


def problems(data: dict[str, object], folder: Path | None = None) -> list[str]:
    """Of plain data, files included."""
    try:
        read_states(policy_of(data, "tried", folder))
    except InputError as error:
        return list(error.problems)
    return []


def test_presets_are_policies_and_dearer_ones_read_less() -> None:
    found = [read_policy(name) for name in PRESETS]
    assert [policy.name for policy in found] == list(PRESETS)
    prices = [policy.fixed_price or 0.0 for policy in found]
    assert prices == sorted(prices, reverse=True)
    assert all(read_states(policy).sha256 for policy in found)
    with pytest.raises(InputError, match="did you mean 'balanced'"):
        read_policy("balancd")


def test_a_file_says_the_same_as_a_preset(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(preset_text("balanced"))
    mine, shipped = read_policy(path), read_policy("balanced")
    assert mine.name == "mine"
    assert mine.sha256 == shipped.sha256  # what it is called is no part of what it does
    again = policy_of(mine.to_dict(), "again")
    assert again == mine
    path.write_text(preset_text("balanced").replace("0.0005", "0.0006"))
    assert read_policy(path).sha256 != mine.sha256


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
[amount]
by = "tier"
[repetition]
by = "sometimes"
most = 0
[models.strong]
input = 3
[limits]
tokens = 10
[colour]
"""
    )
    with pytest.raises(InputError) as error:
        read_policy(path)
    told = "\n".join(error.value.problems)
    for expected in (
        "'colour' is unknown",
        "give one of token, worth and total, not token and worth",
        "token = 2 must be a number from 0 to 1",
        "did you mean 'planner'",
        "strategy 'hide' is unknown",
        "name the tier",
        "'sometimes' is unknown",
        "most = 0 must be",
        "model 'strong': give spec",
        "give both input and output",
        "tokens = 10 is below",
    ):
        assert expected in told, expected
    assert all(problem.startswith(f"'{path}'") for problem in error.value.problems)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"price": {"worth": 0.1}}, "the reader has no price"),
        ({"price": {"total": 100, "per": "day"}}, "take 1088 tokens, with its prompt on top"),
        ({"price": {"total": 10_000}}, "needs per"),
        ({"price": {"token": 0.1, "state": "x"}}, "no effect without a total"),
        ({"reading": {"by": "tier"}}, "needs a tier"),
        ({"reading": {"by": "ranking"}, "amount": {"by": "tier", "tier": "easy"}}, "read by the program"),
        ({"reading": {"preset": "raw"}}, "price is one of probabilities"),
        ({"reading": {"relevance_model": "given"}}, "price is one of probabilities"),
        ({"reading": {"relevance_model": "cosine", "preset": "thorough"}}, "price is one of probabilities"),
        ({"reading": {"relevance_model": None}}, "leave it out, or give auto"),
        ({"reading": {"passage_penalti": 0.1}}, "did you mean 'passage_penalty'"),
        ({"reading": {"token_price": 0.1}}, "the policy's own price"),
        ({"order": {"workflow": "plane"}}, "did you mean 'plain'"),
        ({"order": {"workflow": "no-retrieval"}, "repetition": {"by": "price"}}, "reads nothing"),
        ({"order": {"file": "x"}}, "nobody reads it"),
        ({"search": {"by": "bandit"}}, "give state"),
        ({"search": {"state": "x"}}, "only a bandit learns"),
        ({"amount": {"by": "tier", "tier": "easy"}}, "counts in characters"),
        ({"amount": {"by": "tier", "tier": "eazy"}, "reading": {"by": "tier"}}, "did you mean 'easy'"),
        ({"models": {"reader": {"spec": "extractive"}}}, "--generator names the reader"),
        ({"models": {"big": {"spec": "oracle:9"}}}, "oracle"),
        ({"models": {"big": {"spec": 3}}}, "spec = 3 must be text"),
        ({"order": {"workflow": 3}}, "workflow = 3 must be the name of a workflow"),
        ({"order": {"workflow": ["plain"]}}, "must be the name of a workflow"),
        ({"price": 3}, "must be a table"),
    ],
)
def test_contradictions(data: dict[str, object], expected: str) -> None:
    assert expected in "\n".join(problems(data))


def test_relevance_as_it_is_is_told_once_beside_other_problems() -> None:
    wrong: dict[str, object] = {"relevance_model": "given", "passage_penalty": -1, "uits": "sentences"}
    for more in ({}, {"token_price": 0.1}):  # the table stands, or is none by itself
        told = problems({"reading": {**wrong, **more}})
        assert sum('relevance_model = "given"' in problem for problem in told) == 1
        assert sum("passage_penalty must be >= 0" in problem for problem in told) == 1
        assert sum("uits is unknown" in problem for problem in told) == 1
    fitted = load_model("default")
    assert not problems({"reading": {"relevance_model": fitted}, "price": {"token": 0.001}})
    assert not problems({"reading": {"relevance_model": "auto"}})


def test_files_of_a_table_that_is_none_are_looked_at_too(tmp_path: Path) -> None:
    data: dict[str, object] = {
        "amount": {"by": "router", "file": "nowhere.safetensors", "sha256": "short"},
        "repetition": {"by": "pryce", "calibration": "none.json"},
        "search": {"state": "not-yet.sqlite"},
        "limits": {"evidence_tokens": 10**6, "seconds": -1},
    }
    told = "\n".join(problems(data, tmp_path))
    for expected in (
        "sha256 = 'short'",
        "nowhere.safetensors' does not exist",
        "none.json' does not exist",
        "seconds = -1",
        "tokens = 20000 is below evidence_tokens and answer_tokens together (1000064)",
    ):
        assert expected in told
    assert "not-yet.sqlite' does not exist" not in told  # a run makes it


def test_a_tier_above_the_ceiling_is_found_before_anything_runs(tmp_path: Path) -> None:
    big = Tier("big", 60, 5000, 32, unit="tokens", compress="none")
    router = router_file(tmp_path / "r.safetensors", "tfidf:x", 4, (big,))
    told = problems({"amount": {"by": "router", "file": router.name}}, tmp_path)
    assert len(told) == 2
    assert "may read 5000 tokens, above limits.evidence_tokens = 1024" in told[0]
    assert "a search brings 50" in told[1]


def test_a_workflow_has_no_effect_beside_a_planner_and_is_refused() -> None:
    told, missing = problems({"order": {"by": "planner", "file": "p", "workflow": "rewrite-first"}})
    assert "'p' does not exist" in missing
    assert "workflow = 'rewrite-first' has no effect beside a planner" in told


def test_files_are_looked_at_though_the_policy_contradicts_itself(tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(
        '[price]\nworth = 1\n[order]\nby = "planner"\nfile = "none.safetensors"\n'
        '[amount]\nby = "tier"\ntier = "large"\ntiers = "tiers.toml"\n'
        '[reading]\nby = "ranking"\n[limits]\nevidence_tokens = 50\nstep = 3\n'
    )
    (tmp_path / "tiers.toml").write_text(
        '[[tier]]\nname = "large"\ndepth = 9\ncontext = 900\nnew_tokens = 8\n'
        'unit = "tokens"\ncompress = "none"\n'
    )
    with pytest.raises(InputError) as error:
        read_policy(path)
    told = error.value.problems
    assert len(told) == len(set(told))
    for said in (
        "limits: step is unknown",
        "the reader has no price",
        'by = "ranking" reads until',
        "none.safetensors' does not exist",
        "tier 'large' may read 900 tokens, above limits.evidence_tokens = 50",
    ):
        assert sum(said in problem for problem in told) == 1, said


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
        "amount": {"by": "router", "file": router.name, "sha256": "0" * 64},
        "limits": {"evidence_tokens": 500},
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
    data = {"amount": {"by": "router", "file": file.name}}
    before = read_states(policy_of(data, "a", tmp_path))
    assert before.embedders == {"router": "tfidf:x"}
    assert read_states(policy_of(data, "b", tmp_path)).sha256 == before.sha256
    router_file(file, "tfidf:x", 5)
    assert read_states(policy_of(data, "a", tmp_path)).sha256 != before.sha256
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
        found.append(policy_of({"amount": amount, "search": search}, name, folder))
    here, there = map(read_states, found)
    assert here.sha256 == there.sha256
    about = {"embedder": "tfidf:x", "strategies": "raw+hyde", "base": ""}
    EventLog(tmp_path / "here" / "here.sqlite", about).close()
    assert read_states(found[0]).sha256 == here.sha256  # it goes on
    assert len(read_states(found[0]).hashes) == 2  # and what it is about is told


def test_the_content_of_a_model_is_looked_at_also_where_its_name_has_options(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF and more")
    digest = sha256(b"GGUF and more").hexdigest()
    for options in ("", "?slots=2"):
        model = {"spec": f"gguf:{tmp_path / 'm.gguf'}{options}", "input": 1, "output": 1}
        assert not problems({"models": {"cheap": model | {"sha256": digest}}})
        told = problems({"models": {"cheap": model | {"sha256": "0" * 64}}})
        assert "has the content" in told[0]


def test_worth_makes_the_price() -> None:
    policy = Policy(price=Price(worth=0.01), models={"reader": Model(input=2.0, output=8.0)})
    assert policy.fixed_price == pytest.approx(2e-6 / 0.01)
    assert Policy(price=Price(total=10_000, per="day")).fixed_price is None


def test_bad_parts_in_python() -> None:
    with pytest.raises(InputError, match="evidence_tokens = 0"):
        Bounds(evidence_tokens=0)
    with pytest.raises(InputError, match="finds = 2"):
        Repetition(finds=2)
    with pytest.raises(InputError, match="give one of token"):
        Price()


@pytest.mark.parametrize("name", ["mine.toml", "folder/mine"])
def test_a_file_that_is_missing_is_told_as_such(name: str) -> None:
    with pytest.raises(InputError, match=f"^policy '{name}': no such file"):
        read_policy(name)


def test_the_registry_knows_policies() -> None:
    check_controllers(["policy:frugal", "policy:thorough"], ControlSettings(), closed_book=False)
    with pytest.raises(InputError) as error:
        check_controllers(["policy:frugal", "policy:x", "policy"], ControlSettings(), closed_book=True)
    assert [p.split(":")[0] for p in error.value.problems] == [
        "this policy searches, and a closed-book run has no corpus",
        "policy 'x' is neither a file nor a preset",
        "controller 'policy' names no policy",
    ]


def test_what_is_wrong_with_the_program_is_told_with_the_rest() -> None:
    wrong = {"token_price": 0.1, "max_pasages": 2, "max_passages": -1}
    with pytest.raises(InputError) as raised:
        policy_of({"reading": wrong}, "x")
    for said in ("token_price is the policy's own", "max_pasages is unknown", "max_passages"):
        assert any(said in problem for problem in raised.value.problems), said
    with pytest.raises(InputError) as raised:
        policy_of({"reading": {"max_pasages": 2, "units": "words"}}, "x")
    assert len(raised.value.problems) == 2
    with pytest.raises(InputError, match="settings = 3 must be a table"):
        policy_of({"reading": {"settings": 3}}, "x")
