"""Why passages were chosen or left out: amounts that add up, and words that agree with them."""

from __future__ import annotations

import re

import numpy as np
import pytest

from mio_rag.pool import Candidates
from mio_rag.selection.explain import Decision
from mio_rag.selection.selector import Selector
from tests.selection.pools import PLAIN, pool, simple


def rounded(value: float) -> str:
    return f"{value:.2f}" if abs(value) >= 0.0995 else f"{value:.2g}"


def _check_amounts(decision: Decision, value: float, alone: float) -> None:
    """The amounts of a sentence are those of the program, and add up."""
    adds = re.search(r"(?:^|would )adds? (-?[\d.e-]+)", decision.reason)
    assert adds is None or adds[1] == rounded(value)
    own = re.search(r"worth (-?[\d.e-]+)", decision.reason)
    if own is None:
        assert adds is not None or "not worth" in decision.reason or "exceed" in decision.reason
        return
    assert own[1] == rounded(alone)
    lost = re.search(r"([\d.e-]+) (?:is|would be) lost", decision.reason)
    gained = re.search(r"([\d.e-]+) (?:is|would be) gained", decision.reason)
    total = alone - (0 if lost is None else float(lost[1])) + (0 if gained is None else float(gained[1]))
    assert total == pytest.approx(value, abs=0.011)
    assert decision.selected == (" would be lost" not in decision.reason)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("solver", ["auto", "topk"])
def test_decisions_agree_with_recomputed_values(seed: int, solver: str) -> None:
    chosen = Selector.raw(redundancy_weight=0.4, max_per_source=2, solver=solver).select(pool(seed=seed), 90)
    program, x = chosen.program, chosen.result.x
    for i, decision in enumerate(chosen.decisions):
        without, beside = x.copy(), x.copy()
        without[i], beside[i] = 0, 1
        value = program.objective(beside) - program.objective(without)
        assert decision.value == pytest.approx(value, abs=1e-12)
        assert decision.selected == bool(x[i])
        _check_amounts(decision, value, float(program.linear[i]))
        if "tokens and" in decision.reason:
            assert program.cost(beside) > program.budget
        if "is full" in decision.reason:
            assert any("row" in broken for broken in program.violations(beside))
        if swap := re.search(r"in place of '(\w+)' it would (gain|lose|change)", decision.reason):
            rival = swap[1]
            swapped = beside.copy()
            swapped[chosen.candidates.ids.index(rival)] = 0
            assert program.violations(swapped) == []
            change = program.objective(swapped) - program.objective(x)
            sign = {"gain": 1, "lose": -1, "change": 0}[swap[2]]
            assert sign * change >= -1e-9
            assert sign == 0 or f"{swap[2]} {rounded(abs(change))} in total" in decision.reason
            assert solver == "topk" or change <= 1e-6
        if decision.redundant_with is not None:
            j = chosen.candidates.ids.index(decision.redundant_with)
            assert x[j]
            assert program.pairwise[i, j] == max(program.pairwise[i, k] for k in np.flatnonzero(x) if k != i)


def reasons(selector: Selector, candidates: Candidates, budget: int) -> dict[str, str]:
    return {d.id: d.reason for d in selector.select(candidates, budget).decisions}


def test_reasons_by_hand() -> None:
    embeddings = [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.6, 0.8]]
    candidates = simple([0.9, 0.5, 0.8, 0.01, 0.7], [5, 5, 5, 5, 50], embeddings=embeddings)
    why = reasons(Selector.raw(redundancy_weight=0.8, passage_penalty=0.05, must_exclude=[]), candidates, 20)
    assert why["p0"] == "worth 0.85 (relevance 0.90 less 0.05 for penalties)"
    assert why["p1"] == (
        "worth 0.45 on its own (relevance 0.50 less 0.05 for penalties), but 0.80 would be lost because it "
        "repeats 'p0' (similarity 1.00)"
    )
    assert why["p3"] == "not worth its price: relevance 0.01, penalties 0.05"
    assert why["p4"] == "its 50 tokens exceed the whole budget of 20"
    why = reasons(
        Selector.raw(redundancy_weight=0, must_exclude=["p0"], must_include=["p3"], max_passages=2),
        candidates,
        20,
    )
    assert why["p0"] == "excluded (must_exclude)"
    assert why["p3"].startswith("required (must_include): worth")
    assert why["p1"] == "would add 0.48, but 'at most 2 passages' is full"
    why = reasons(PLAIN, candidates, 10)
    assert why["p1"] == (
        "would add 0.50, but needs 5 tokens and 0 are left; read in place of 'p2' it would lose 0.30 in total"
    )
    why = reasons(Selector.raw(redundancy_weight=0, passage_penalty=0.6, min_passages=3), candidates, 20)
    assert why["p1"] == (
        "worth -0.10 (relevance 0.50 less 0.60 for penalties); chosen because this has to hold: "
        "at least 3 passages"
    )


def test_an_item_that_pays_only_in_company_is_not_called_worthless() -> None:
    """p1 is worth -0.02 alone and +0.78 beside p0, for which there is no room."""
    candidates = simple([0.9, 0.0], [5, 5], embeddings=[[1.0, 0.0], [-0.8, 0.6]])
    chosen = Selector.raw(redundancy_weight=1.0, passage_penalty=0.02).select(candidates, 9)
    assert chosen.ids == ("p0",)
    assert chosen.decisions[1].reason.startswith("would add 0.78, but needs 5 tokens and 4 are left")


def test_an_exchange_that_a_row_forbids_is_not_proposed() -> None:
    """p2 would be better than p1, but its source is full once p0 stays."""
    candidates = simple([0.9, 0.3, 0.8], [5, 4, 5], sources=["s", "t", "s"])
    why = reasons(Selector.raw(redundancy_weight=0, passage_penalty=0, max_per_source=1), candidates, 9)
    assert why["p2"] == "would add 0.80, but 'at most 1 from source 's'' is full"
    low = simple([0.9, 0.1, 0.8], [5, 5, 6], sources=["s", "t", "t"])
    keep = Selector.raw(redundancy_weight=0, passage_penalty=0, must_include=["p0", "p1"])
    assert "no single passage could make room" in reasons(keep, low, 11)["p2"]


def test_explain_and_to_dict_list_every_candidate_once() -> None:
    chosen = Selector.raw().select(pool(), 80)
    lines = chosen.explain().splitlines()
    assert lines[0] == f"{len(chosen.chosen)} of 12 passages, {chosen.tokens_used} of 80 tokens"
    assert lines[1].startswith("optimal: objective")
    assert lines[2] == "relevance: as the candidates have it"
    assert len(lines) == 3 + 12
    data = chosen.to_dict(why=True, proof=True)
    read = [name for part in data["parts"] for name in part["ids"]]
    assert [p["id"] for p in data["reasons"]][: len(chosen.ids)] == list(chosen.ids) == read
    assert sorted(p["id"] for p in data["reasons"]) == sorted(chosen.candidates.ids)
    assert data["certificate"]["bound"] >= data["certificate"]["objective"]
    assert (data["status"], data["counter"], data["left_out"]) == ("optimal", "given", 12 - len(read))
    assert sum(part["tokens"] for part in data["parts"]) == data["tokens"] == chosen.tokens_used
