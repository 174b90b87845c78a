"""The parts of the agent: pools merged on their own scale, notes kept as many as asked for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mio_rag.candidates import Candidates, merge_pools
from mio_rag.control.memory import Memory
from mio_rag.generation import Prompt, ScriptedGenerator
from mio_rag.retrieval import CorpusIndex
from tests.control.scripted import COMPARISON, agent, said


def pool(ids: str, **scores: list[float]) -> Candidates:
    n = len(ids)
    return Candidates(list(ids), list(ids), np.ones(n), np.ones(n), scores=scores)


logits = st.floats(-60, 60)


@given(st.lists(logits, min_size=3, max_size=3), st.lists(logits, min_size=3, max_size=3))
def test_merged_scores_keep_their_scale_and_order(one: list[float], other: list[float]) -> None:
    merged = merge_pools(pool("abc", logit=one), pool("bcd", logit=other), 4, set())
    expected = {"a": one[0], "b": max(one[1], other[0]), "c": max(one[2], other[1]), "d": other[2]}
    assert dict(zip(merged.ids, merged.scores["logit"].tolist(), strict=True)) == expected


def test_scores_that_one_pool_lacks_are_left_out() -> None:
    merged = merge_pools(
        pool("ab", dense=[0.1, 0.2], logit=[-3.0, -8.0]), pool("bc", dense=[0.3, 0.4]), 3, set()
    )
    assert set(merged.scores) == {"dense"}


@pytest.mark.parametrize("kept", [0, 1, 2, 9])
def test_the_model_sees_the_last_notes_and_no_others(kept: int, river_index: CorpusIndex) -> None:
    seen: list[Prompt] = []

    def heard(prompt: Prompt) -> str:
        seen.append(prompt)
        if prompt.system.startswith("You think"):
            return f"Thought number {sum(p.system == prompt.system for p in seen)}."
        return said(prompt)

    agent("fixed-7", river_index, kept_notes=kept).run(COMPARISON, ScriptedGenerator(heard), 60)
    made = 0
    for prompt in seen:
        shown = {k for k in range(1, 9) if f"Thought number {k}." in prompt.user}
        assert shown == set(range(max(1, made - kept + 1), made + 1)), prompt.user
        made += prompt.system.startswith("You think")
    assert made == (3 if kept else 1)  # the same prompt is not asked twice
    shown_in_the_end = Memory(COMPARISON, 60, notes=["a", "b", "c"]).passages(kept)
    assert [p.text.split("\n") for p in shown_in_the_end] == ([list("abc")[-kept:]] if kept else [])
