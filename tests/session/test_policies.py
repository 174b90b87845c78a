"""A question under a policy: who decided what, at which price, and what it all cost."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mio_rag.allocation.pacer import Pacer
from mio_rag.corpora.load import Dataset
from mio_rag.deciders.steps import Depth, Search
from mio_rag.errors import InputError, SpentError
from mio_rag.generation import Prompt, ScriptedGenerator
from mio_rag.learning.bandit_report import stats
from mio_rag.learning.router_model import Correction, read_router
from mio_rag.learning.strategist import rate
from mio_rag.learning.weights import write_weights
from mio_rag.policies.compose import compose
from mio_rag.policies.setup import ControlSettings, Setup
from mio_rag.policy import Policy, policy_of
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.session.budget import Limits
from mio_rag.session.loop import Session
from mio_rag.session.trace import Outcome, Trace, append_traces, read_traces, wrong_totals
from mio_rag.types import Question
from tests.learning.files import router_file

QUESTION = Question("c", "Which river is longer, the Arno or the Tiber?", ("Tiber",), ("r1", "r3"))


def said(prompt: Prompt) -> str:
    if prompt.system.startswith("You write search queries"):
        return "How long is the Arno"
    return "the Tiber" if prompt.user.rstrip().endswith("Answer:") else "a hypothetical passage on rivers"


def composed(data: dict[str, Any], index: CorpusIndex, folder: Path | None = None) -> Session:
    given = {"search": {"pool": 6}, **data}
    given["search"] = {"pool": 6, **given["search"]}
    return compose(policy_of(given, "tried", folder), Setup(retriever=Retriever(index, pool=6)))


def chooser_of(session: Session) -> Any:
    return next(one.chooser for one in session.deciders if isinstance(one, Search))


def asked(controller: Session, question: Question = QUESTION, budget: int = 10_000) -> Outcome:
    found = controller.attempt(question, ScriptedGenerator(said), budget).check()
    trace = found.trace
    assert not wrong_totals(trace)
    assert Trace.from_dict(json.loads(json.dumps(trace.to_dict()))) == trace
    assert found.costs.total().prompt_tokens == sum(call.prompt_tokens for call in trace.calls)
    assert all(step.why for step in trace.steps)
    return found


def whys(found: Outcome) -> list[str]:
    return [step.why for step in found.trace.steps]


def test_a_higher_price_never_reads_nor_searches_more(river_index: CorpusIndex) -> None:
    tokens, searches = [], []
    for price in (0.0, 0.001, 0.01, 1.0):
        data = {"price": {"token": price}, "repeat": {"by": "price", "finds": 0.5}}
        found = asked(composed(data, river_index))
        tokens.append(0 if found.selection is None else found.selection.tokens_used)
        searches.append(found.costs.total().retrieval_calls)
    assert tokens == sorted(tokens, reverse=True)
    assert tokens[0] > 0 == tokens[-1]
    assert searches == sorted(searches, reverse=True)
    assert searches[-1] == 1


def test_the_limit_on_evidence_and_the_budget_both_hold(river_index: CorpusIndex) -> None:
    for limit, budget in ((30, 1000), (1000, 30)):
        data = {
            "price": {"token": 0.0},
            "selection": {"preset": "thorough"},
            "limits": {"budget": limit},
        }
        found = asked(composed(data, river_index), budget=budget)
        assert found.selection is not None
        assert found.selection.tokens_used <= 30
    with pytest.raises(InputError, match="budget_tokens=0"):
        composed({}, river_index).attempt(QUESTION, ScriptedGenerator(said), 0)


def test_limits_of_the_caller_bind_the_policy(river_index: CorpusIndex) -> None:
    retriever = Retriever(river_index, pool=6)
    setup = Setup(ControlSettings(limits=Limits(steps=0, tokens=700, seconds=60.0)), retriever)
    again = {"repeat": {"by": "always-retrieve", "query": "model"}, "limits": {"budget": 200}}
    found = asked(compose(policy_of(again, "x"), setup))
    assert found.costs.total().lm_calls == 1  # no step that asks a model, but the answer
    assert "limit of 0 steps" in " ".join(whys(found))
    far = policy_of({"limits": {"max_total_tokens": 90_000, "timeout": 600.0, "max_steps": 30}}, "far")
    for limits, tokens in ((None, 90_000), (Limits(tokens=40_000), 40_000)):
        setup = Setup(ControlSettings(limits=limits or Limits()), retriever)
        assert compose(far, setup).limits == Limits(steps=30, tokens=tokens, seconds=600.0)


def test_a_router_sees_the_price_and_the_program_reads_its_tier(
    river_index: CorpusIndex, tmp_path: Path
) -> None:
    embedder = river_index.embedder
    size = embedder.encode(["x"]).shape[1]
    file = router_file(tmp_path / "r.safetensors", embedder.fingerprint, size)
    named = []
    # .5 after 100 tokens, .8 after 300: the large tier is worth it below .3 / 200 a token.
    for price in (0.0014, 0.0016):
        data = {"price": {"token": price}, "depth": {"by": "router", "file": file.name}}
        found = asked(composed(data, river_index, tmp_path))
        assert found.selection is not None
        named.append(
            (whys(found)[1].split(" ")[1], found.selection.budget_tokens, whys(found)[-1].split(";")[0])
        )
    assert named == [
        ("large", 90, "answered in at most 16 tokens"),
        ("small", 30, "answered in at most 8 tokens"),
    ]


def test_strategies_search_and_a_bandit_learns_at_the_price(river_index: CorpusIndex, tmp_path: Path) -> None:
    data = {"search": {"strategies": ["raw", "hyde"]}}
    found = asked(composed(data, river_index))
    assert whys(found)[0].startswith("searched by raw + hyde: ")
    assert found.costs.total().lm_calls == 2
    nodes = {
        "find": {"do": "retrieve", "strategies": ["raw", "hyde"]},
        "read": {"do": "select", "from": "find"},
    }
    steps = {"nodes": {**nodes, "say": {"do": "answer", "from": "read"}}, "answer": "say"}
    (tmp_path / "own.json").write_text(json.dumps(steps), encoding="utf-8")
    found = asked(composed({"order": {"workflow": "own.json"}}, river_index, tmp_path))
    assert found.trace.columns()["strategies"] == "raw+hyde"  # of a step's own settings, too
    state = {"by": "bandit", "strategies": ["raw", "hyde"], "state": "arms.sqlite"}
    controller = composed({"search": state, "price": {"token": 0.003}}, river_index, tmp_path)
    asked(controller)
    chooser: Any = chooser_of(controller)
    assert chooser.learned.questions == 1
    trace = asked(controller).trace
    assert set(trace.search["found_by"]) == {passage["id"] for passage in trace.passages}
    assert all("raw" in ranks for ranks in trace.search["found_by"].values())
    assert rate(chooser.log, trace.search["id"], 1, 0.0)  # the id is that of the log
    append_traces(tmp_path / "t.jsonl", [trace])
    assert read_traces(tmp_path / "t.jsonl") == [trace]
    assert chooser.settings.token_price == 0.003
    controller.close()
    other = policy_of({"search": state}, "x", tmp_path)
    again = compose(other, Setup(retriever=Retriever(river_index)))
    assert chooser_of(again).learned.questions == 2
    again.close()


def test_the_published_bandit_runs_all_strategies_at_first_and_weighs_them(
    river_index: CorpusIndex, tmp_path: Path
) -> None:
    """Also the question itself is chosen; a graph of one's own grounds without links."""
    graph = tmp_path / "graph.csv"
    graph.write_text("name,neighbour\nTiber,Rome\n")
    published = Policy.load("published/strategy-bandit").to_dict()
    search = published["search"] | {"state": str(tmp_path / "arms.sqlite"), "graph": str(graph)}
    controller = composed(published | {"search": search}, river_index, tmp_path)
    chooser: Any = chooser_of(controller)
    assert (chooser.base, chooser.settings.alpha, chooser.settings.token_price) == ((), 1.0, 0.0)
    trace = asked(controller).trace
    assert set(trace.search["strategies"]) == set(search["strategies"])
    assert chooser.learned.questions == 1
    rewards = {name: one["reward"] for name, one in stats(chooser.learned)["strategies"].items()}
    assert rewards["raw"] > 0.5  # a share of what was read, less next to nothing for its time
    controller.close()
    for wrong, said in (
        ({"bandit": {"alpha": -1}}, "alpha"),
        ({"bandit": {"token_price": 1.0}}, "a bandit has the policy's own"),
        ({"strategies": ["hyde", "grounded"], "bandit": {}}, "name raw, too"),
    ):
        with pytest.raises(InputError, match=said):
            policy_of({"search": search | wrong}, "x")


def test_a_router_without_its_correction_or_compression(river_index: CorpusIndex, tmp_path: Path) -> None:
    embedder = river_index.embedder
    size = embedder.encode(["x"]).shape[1]
    file = router_file(tmp_path / "r.safetensors", embedder.fingerprint, size)
    tiers = [
        {"name": "small", "depth": 2, "context": 90, "new_tokens": 8},
        {"name": "large", "depth": 4, "context": 120, "new_tokens": 16},
    ]
    fixed: dict[str, Any] = {"by": "tier", "tier": "large", "tiers": tiers}
    whole = {**fixed, "compress": "none"}
    read = []
    for depth in (fixed, whole):
        found = asked(composed({"depth": depth, "selection": {"by": "tier"}}, river_index, tmp_path))
        assert found.selection is not None
        read.append(found.selection)
    assert sum(len(p.text) for p in read[0].passages) <= 120 < sum(len(p.text) for p in read[1].passages)
    assert len(read[1].passages) == 4
    named = {"depth": {"by": "router", "file": file.name, "tiers": tiers}, "selection": {"by": "tier"}}
    with pytest.raises(InputError, match="was trained on other tiers"):
        composed(named, river_index, tmp_path)
    write_weights(replace(read_router(str(file)), correction=Correction(0.5)).weights(), file)
    for correct in (True, False):
        depth = {"by": "router", "file": file.name, "correct": correct}
        deciders = composed({"depth": depth}, river_index, tmp_path).deciders
        (decider,) = (one for one in deciders if isinstance(one, Depth))
        assert (decider.correction is not None) == correct
    with pytest.raises(InputError, match="epochs must be"):
        policy_of({"depth": {**depth, "training": {"epochs": 0}}}, "x")


def test_a_total_is_never_exceeded_and_then_questions_are_refused(
    river_index: CorpusIndex, rivers: Dataset
) -> None:
    total = 1150
    data = {
        "price": {"total": total, "questions": 6},
        "limits": {"budget": 80, "max_tokens": 8},
        "repeat": {"by": "price", "query": "model", "finds": 0.5},
    }
    controller = composed(data, river_index)
    spent, prices, refused = 0, [], 0
    for k in range(12):
        question = rivers.questions[k % 4]
        found = controller.attempt(question, ScriptedGenerator(said), 1000)
        amount = found.costs.total()
        spent += amount.prompt_tokens + amount.completion_tokens
        if found.error is not None:
            assert isinstance(found.error, SpentError)
            assert amount.lm_calls == 0
            refused += 1
        else:
            prices.append(found.trace.token_price)
    assert refused
    assert spent <= total
    assert len(set(prices)) > 1
    assert isinstance(controller.account, Pacer)
    assert controller.account.account().spent == spent
    controller.close()


def test_an_index_of_another_embedder_is_refused(river_index: CorpusIndex, tmp_path: Path) -> None:
    router_file(tmp_path / "r.safetensors", "minilm:other", 4)
    with pytest.raises(InputError, match="the router was trained with the embedder 'minilm:other'"):
        composed({"depth": {"by": "router", "file": "r.safetensors"}}, river_index, tmp_path)
