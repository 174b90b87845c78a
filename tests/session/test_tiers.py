"""Tiers: their order, what they read and never exceed, and what they cost."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mio_rag.context import RegexCounter, render_context
from mio_rag.corpora.load import Dataset
from mio_rag.deciders.depth import Depth
from mio_rag.errors import InputError
from mio_rag.generation import Prompt, ScriptedGenerator, build_prompt
from mio_rag.learning.router_model import KEY, Correction, RouterSettings, TierChoice
from mio_rag.policies.make import make_controller
from mio_rag.policies.setup import ControlSettings, Setup
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.selection.selector import Selector
from mio_rag.session.budget import Limits
from mio_rag.session.loop import Session
from mio_rag.session.tiers import (
    Tier,
    check_tiers,
    cut_off,
    keep_sentences,
    keep_whole,
    read_tiers,
)
from mio_rag.session.trace import Trace
from mio_rag.testing import check_controller
from mio_rag.types import Passage, Question

SMALL = (
    Tier(name="easy", depth=1, context=70, new_tokens=8),
    Tier(name="medium", depth=2, context=140, new_tokens=16, compress="none"),
    Tier(name="hard", depth=4, context=400, new_tokens=24, compress="none"),
)
KINDS = {KEY: RouterSettings(tiers=SMALL).to_dict()}


def setup_of(index: CorpusIndex, tiers: tuple[Tier, ...] = SMALL, **settings: object) -> Setup:
    control = ControlSettings(kinds={KEY: RouterSettings(tiers=tiers).to_dict()}, **settings)  # type: ignore[arg-type]
    return Setup(control, Retriever(index, pool=6))


@dataclasses.dataclass(frozen=True)
class Always:
    place: int

    def choose(self, question: Question, pool: Any, price: float) -> TierChoice:
        return TierChoice(self.place)


def at(session: Session, place: int, below: float) -> Session:
    """The session with one tier for all questions, and a correction of weak searches."""
    plan, depth = session.deciders
    assert isinstance(depth, Depth)
    changed = dataclasses.replace(depth, chooser=Always(place), correction=Correction(below, 3))
    return dataclasses.replace(session, deciders=(plan, changed))


def test_tiers_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "tiers.toml"
    common = 'depth = 9\ncontext = 90\nnew_tokens = 8\nunit = "tokens"\ncompress = "none"\n'
    first = f'[[tier]]\nname = "a"\ntoken_price = 0.01\n{common}'
    second = f'[[tier]]\nname = "b"\ntoken_price = 0.001\n{common}'
    file.write_text(first + second)
    expected = Tier(
        name="a", depth=9, context=90, new_tokens=8, unit="tokens", compress="none", token_price=0.01
    )
    assert read_tiers(file) == (expected, expected.replace(name="b", token_price=0.001))
    file.write_text(second + first)
    with pytest.raises(InputError, match=r"cheaper in token_price \(0.01 after 0.001\)"):
        read_tiers(file)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there are no tiers"),
        ('[[tier]]\nname = "a"\ndepth = 1', r"tier\[0\].context is missing"),
        ('[[tier]]\nname = "a b"\ndepth = 0\ncontext = 5.5\nnew_tokens = true', "name must be letters"),
    ],
)
def test_files_that_hold_no_tiers(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "tiers.toml").write_text(text)
    with pytest.raises(InputError, match=said):
        read_tiers(tmp_path / "tiers.toml")


def test_tiers_are_ordered_by_cost() -> None:
    easy, medium, hard = SMALL
    with pytest.raises(
        InputError, match=r"'easy' stands behind 'medium' and is cheaper in depth \(1 after 2\)"
    ):
        check_tiers((medium, easy, hard))
    with pytest.raises(InputError, match="'x' stands behind 'easy' and costs the same"):
        check_tiers((easy, easy.replace(name="x")))
    with pytest.raises(InputError, match="tier 'easy' is there twice"):
        check_tiers((easy, hard.replace(name="easy")))
    with pytest.raises(InputError, match="counts in tokens, not in characters"):
        check_tiers((easy, medium.replace(unit="tokens")))


PASSAGES = (
    Passage("a", "The Arno is long. It rises in the hills. Florence lies on it.", "Arno"),
    Passage("b", "Bread is baked. The Tiber is longer than that.", ""),
)


def vectors(texts: list[str]) -> np.ndarray:
    """Nearness to the question by hand: the longer river first, then the hills."""
    order = {"The Tiber is longer than that.": 3, "It rises in the hills.": 2}
    return np.array([[order.get(text.strip(), 0)] for text in texts], dtype=np.float32)


@pytest.mark.parametrize(
    ("room", "kept"),
    [
        # separator (2) and sentence with a blank (31); the title costs 7 with its separator and line end
        (33, ["", "The Tiber is longer than that."]),
        (62, ["The Arno is long.", "The Tiber is longer than that."]),
        (63, ["It rises in the hills.", "The Tiber is longer than that."]),
        (1000, [PASSAGES[0].text, PASSAGES[1].text]),
        (5, ["T", ""]),
        (12, ["The A", ""]),
    ],
)
def test_sentences_nearest_to_the_question_stay(room: int, kept: list[str]) -> None:
    query = np.ones(1, dtype=np.float32)
    made = keep_sentences(PASSAGES, query, room, lambda texts: list(map(len, texts)), vectors)  # type: ignore[arg-type]
    assert made == kept


def test_whole_passages_as_long_as_they_fit() -> None:
    def size(texts: object) -> list[int]:
        return [len(text) for text in texts]  # type: ignore[attr-defined]

    query = np.ones(1, dtype=np.float32)
    takes = len("\n\nArno\n" + PASSAGES[0].text)
    assert keep_whole(PASSAGES, query, takes, size, vectors) == [PASSAGES[0].text, ""]  # type: ignore[arg-type]
    assert keep_whole(PASSAGES, query, takes - 1, size, vectors) == ["", PASSAGES[1].text]  # type: ignore[arg-type]
    assert keep_whole(PASSAGES, query, 20, size, vectors) == cut_off(PASSAGES, 20, size)  # type: ignore[arg-type]
    assert cut_off(PASSAGES, 20, size) == [PASSAGES[0].text[:13], ""]


def test_a_tier_reads_no_more_than_it_may(rivers: Dataset, river_index: CorpusIndex) -> None:
    for question in rivers.questions:
        for tier in SMALL:
            reader = ScriptedGenerator(lambda prompt: "the Tiber")
            found = make_controller(f"tier:{tier.name}", setup_of(river_index)).attempt(
                question, reader, 10_000
            )
            assert found.error is None
            assert isinstance(found.trace, Trace)
            assert found.selection is not None
            block = render_context(found.selection.passages)
            assert 0 < len(block) <= tier.context + 2  # no separator stands before the first
            assert len(found.selection.chosen) <= tier.depth
            assert found.trace.about["tier"] == tier.name
            assert found.trace.columns()["tier"] == tier.name
            (prompt,) = reader.prompts
            assert prompt.passages == found.selection.passages
            assert {c.part for c in found.costs.calls} == {
                "retrieve",
                "decide",
                "compress",
                "select",
                "answer",
            }


def test_a_tier_may_read_the_sentences_that_a_program_chooses(
    rivers: Dataset, river_index: CorpusIndex
) -> None:
    tiers = tuple(
        Tier(name=str(n), depth=4, context=n, new_tokens=8, unit="tokens", compress="program")
        for n in (9, 20, 200)
    )
    for question in rivers.questions:
        read = []
        for tier in tiers:
            found = make_controller(f"tier:{tier.name}", setup_of(river_index, tiers)).attempt(
                question, ScriptedGenerator(lambda prompt: "x"), 10_000
            )
            assert found.selection is not None
            block = RegexCounter().count([render_context(found.selection.passages)])[0]
            assert 0 < block <= tier.context
            wholes = [p.text for p in river_index.passages]
            assert all(any(p.text in whole for whole in wholes) for p in found.selection.passages)
            read.append(block)
        assert read == sorted(read)
    about_passages = dataclasses.replace(setup_of(river_index, tiers), selector=Selector(max_passages=2))
    with pytest.raises(InputError, match="excludes max_passages"):
        make_controller("tier:9", about_passages)


@pytest.mark.parametrize("name", ["tier:hard", "random-tier"])
def test_promises(name: str) -> None:
    def made(setup: Setup) -> Session:
        control = setup.settings.replace(kinds=KINDS)
        found = make_controller(name, dataclasses.replace(setup, settings=control))
        assert isinstance(found, Session)
        return found

    check_controller(made, name=name, questions=2, budgets=(40, 200))


def test_a_tier_with_a_price_is_the_program(rivers: Dataset, river_index: CorpusIndex) -> None:
    tiers = (
        Tier(
            name="dear", depth=6, context=200, new_tokens=8, unit="tokens", compress="none", token_price=0.05
        ),
        Tier(
            name="cheap", depth=6, context=200, new_tokens=8, unit="tokens", compress="none", token_price=0.0
        ),
    )
    setup = setup_of(river_index, tiers)
    reader = ScriptedGenerator(lambda prompt: "x")
    used = {}
    for tier in tiers:
        found = make_controller(f"tier:{tier.name}", setup).attempt(rivers.questions[2], reader, 1000)
        assert found.selection is not None
        expected = setup.selector.replace(token_price=tier.token_price)
        assert setup.retriever is not None
        pool = setup.retriever.retrieve(rivers.questions[2].text)
        assert found.selection.ids == expected.select(pool, 200, reader).ids
        used[tier.name] = found.selection.tokens_used
    assert used["dear"] < used["cheap"]


@pytest.mark.parametrize("priced", [{}, {"unit": "tokens", "token_price": 0.0}])
def test_a_weak_search_reads_more_but_not_at_the_dearest_tier(
    rivers: Dataset, river_index: CorpusIndex, priced: dict[str, Any]
) -> None:
    question = rivers.questions[2]
    tiers = tuple(
        Tier(name=name, depth=depth, context=4000, new_tokens=8, compress="none", **priced)
        for name, depth in (("one", 1), ("two", 2))
    )
    base = make_controller("random-tier", setup_of(river_index, tiers))
    assert isinstance(base, Session)
    reader = ScriptedGenerator(lambda prompt: "x")
    counts = {}
    for below in (-1.0, 1.1):
        for place in (0, 1):
            found = at(base, place, below).attempt(question, reader, 1000)
            assert isinstance(found.trace, Trace)
            assert found.selection is not None
            corrected = found.trace.about["corrected"]
            assert ("more since the search was weak" in found.trace.explain()) == corrected
            counts[below, place] = len(found.selection.chosen), corrected
    assert counts == {(-1.0, 0): (1, False), (-1.0, 1): (2, False), (1.1, 0): (4, True), (1.1, 1): (2, False)}
    # A tier that reads all that the search finds has nothing more to read.
    assert base.retriever is not None
    depth = base.retriever.pool
    deep = tuple(tier.replace(depth=depth, new_tokens=8 + k) for k, tier in enumerate(tiers))
    whole = make_controller("random-tier", setup_of(river_index, deep))
    assert isinstance(whole, Session)
    found = at(whole, 0, 1.1).attempt(question, reader, 1000)
    assert not found.trace.about["corrected"]


def test_the_oracle_takes_the_cheapest_tier_that_is_right(rivers: Dataset, river_index: CorpusIndex) -> None:
    def said(prompt: Prompt) -> str:
        return "406 kilometres" if len(prompt.passages) >= 2 else "no idea"

    setup, question = setup_of(river_index), rivers.questions[1]
    oracle = make_controller("oracle-tier", setup).attempt(question, ScriptedGenerator(said), 1000)
    medium = make_controller("tier:medium", setup).attempt(question, ScriptedGenerator(said), 1000)
    assert isinstance(oracle.trace, Trace)
    assert oracle.trace.about["tier"] == "medium"
    assert oracle.trace.policy == "oracle-tier"
    assert oracle.costs.total().prompt_tokens == medium.costs.total().prompt_tokens
    none = ScriptedGenerator(lambda prompt: "no idea")
    for asked, tier in ((rivers.questions[1], "medium"), (rivers.questions[2], "hard")):  # one hop, two hops
        found = make_controller("oracle-tier", setup).attempt(asked, none, 1000)
        assert isinstance(found.trace, Trace)
        assert found.trace.about["tier"] == tier
    with pytest.raises(InputError, match="has no answers"):
        make_controller("oracle-tier", setup).attempt(Question("x", "Who?"), none, 1000)


def test_tiers_keep_no_tokens_for_notes_that_they_never_write(river_index: CorpusIndex) -> None:
    """A question of which prompt, evidence and answer fit its limit is answered."""
    index, reader = river_index, ScriptedGenerator(lambda prompt: "241 kilometres")
    retriever, question = Retriever(index, pool=4, counter=reader), Question("q", "How long is the Arno?")
    asked = reader.prompt_tokens(build_prompt(question)) + 64
    for room, answered in ((40, True), (0, False)):
        limited = ControlSettings(limits=Limits(tokens=asked + room))
        found = make_controller("tier:easy", Setup(limited, retriever)).attempt(question, reader, 10_000)
        assert (found.error is None) is answered
        if answered:
            assert found.selection is not None
            assert found.selection.ids
            total = found.costs.total()
            assert total.prompt_tokens + total.completion_tokens <= asked + room
