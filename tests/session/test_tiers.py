"""Tiers: their order, what they read and never exceed, and what they cost."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mio_rag.context import RegexCounter, render_context
from mio_rag.corpora.load import Dataset
from mio_rag.deciders.steps import Depth
from mio_rag.errors import InputError
from mio_rag.generation import Prompt, ScriptedGenerator, build_prompt
from mio_rag.learning.router_model import KEY, Correction, RouterSettings, TierChoice
from mio_rag.policies.make import make_controller
from mio_rag.policies.setup import ControlSettings, Setup
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.selection.selector import Selector
from mio_rag.session.budget import Limits
from mio_rag.session.loop import Session
from mio_rag.session.tiers import COMPRESSORS, Tier, check_tiers, read_tiers
from mio_rag.session.trace import Trace
from mio_rag.types import Passage, Question

SMALL = (
    Tier(name="easy", depth=1, context=70, new_tokens=8),
    Tier(name="medium", depth=2, context=140, new_tokens=16, compress="none"),
    Tier(name="hard", depth=4, context=400, new_tokens=24, compress="none"),
)


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


def test_tiers_are_read_from_a_file_and_ordered_by_cost(tmp_path: Path) -> None:
    easy, medium, hard = SMALL
    priced = medium.replace(unit="tokens", token_price=0.01)
    cheaper = priced.replace(name="cheaper", token_price=0.001)
    for tiers, wrong in (
        ((medium, easy, hard), r"'easy' stands behind 'medium' and is cheaper in depth \(1 after 2\)"),
        ((easy, easy.replace(name="x")), "'x' stands behind 'easy' and costs the same"),
        ((easy, hard.replace(name="easy")), "tier 'easy' is there twice"),
        ((easy, medium.replace(unit="tokens")), "counts in tokens, not in characters"),
        ((cheaper, priced), r"cheaper in token_price \(0.01 after 0.001\)"),
        ((), "there are no tiers"),
    ):
        with pytest.raises(InputError, match=wrong):
            check_tiers(tiers)
    common = 'depth = 2\ncontext = 140\nnew_tokens = 16\nunit = "tokens"\ncompress = "none"\n'
    file = tmp_path / "tiers.toml"
    file.write_text(
        f'[[tier]]\nname = "medium"\ntoken_price = 0.01\n{common}'
        f'[[tier]]\nname = "cheaper"\ntoken_price = 0.001\n{common}'
    )
    assert read_tiers(file) == (priced, cheaper)
    file.write_text('[[tier]]\nname = "a b"\ndepth = 1')
    with pytest.raises(InputError, match="name must be letters") as raised:
        read_tiers(file)
    assert any("context is missing" in problem for problem in raised.value.problems)


PASSAGES = (
    Passage("a", "The Arno is long. It rises in the hills. Florence lies on it.", "Arno"),
    Passage("b", "Bread is baked. The Tiber is longer than that.", ""),
)


def vectors(texts: list[str]) -> np.ndarray:
    """Nearness to the question by hand: the longer river first, then the hills."""
    order = {"The Tiber is longer than that.": 3, "It rises in the hills.": 2}
    return np.array([[order.get(text.strip(), 0)] for text in texts], dtype=np.float32)


def size(texts: Any) -> list[int]:
    return [len(text) for text in texts]


QUERY: Any = np.ones(1, dtype=np.float32)
ENCODE: Any = vectors


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
    assert COMPRESSORS["sentences"](PASSAGES, QUERY, room, size, ENCODE) == kept


def test_a_tier_reads_no_more_than_it_may(rivers: Dataset, river_index: CorpusIndex) -> None:
    for question in rivers.questions:
        for tier in SMALL:
            reader = ScriptedGenerator(lambda prompt: "the Tiber")
            session = make_controller(f"tier:{tier.name}", setup_of(river_index))
            found = session.attempt(question, reader, 10_000).check()
            assert found.selection is not None
            block = render_context(found.selection.passages)
            assert 0 < len(block) <= tier.context + 2  # no separator stands before the first
            assert len(found.selection.chosen) <= tier.depth
            assert found.trace.about["tier"] == found.trace.columns()["tier"] == tier.name
            (prompt,) = reader.prompts
            assert prompt.passages == found.selection.passages
            parts = {"retrieve", "decide", "compress", "select", "answer"}
            assert {c.part for c in found.costs.calls} == parts


def test_a_tier_may_read_the_sentences_that_a_program_chooses(
    rivers: Dataset, river_index: CorpusIndex
) -> None:
    tiers = tuple(
        Tier(name=str(n), depth=4, context=n, new_tokens=8, unit="tokens", compress="program")
        for n in (9, 20, 200)
    )
    wholes = [p.text for p in river_index.passages]
    for question in rivers.questions:
        read = []
        for tier in tiers:
            session = make_controller(f"tier:{tier.name}", setup_of(river_index, tiers))
            found = session.attempt(question, ScriptedGenerator(lambda prompt: "x"), 10_000)
            assert found.selection is not None
            read += RegexCounter().count([render_context(found.selection.passages)])
            assert 0 < read[-1] <= tier.context
            assert all(any(p.text in whole for whole in wholes) for p in found.selection.passages)
        assert read == sorted(read)
    about_passages = dataclasses.replace(setup_of(river_index, tiers), selector=Selector(max_passages=2))
    with pytest.raises(InputError, match="excludes max_passages"):
        make_controller("tier:9", about_passages)


def test_a_tier_with_a_price_is_the_program(rivers: Dataset, river_index: CorpusIndex) -> None:
    dear = Tier(
        name="dear", depth=6, context=200, new_tokens=8, unit="tokens", compress="none", token_price=0.05
    )
    tiers, question = (dear, dear.replace(name="cheap", token_price=0.0)), rivers.questions[2]
    setup, reader, used = setup_of(river_index, tiers), ScriptedGenerator(lambda prompt: "x"), []
    assert setup.retriever is not None
    for tier in tiers:
        found = make_controller(f"tier:{tier.name}", setup).attempt(question, reader, 1000)
        assert found.selection is not None
        expected = setup.selector.replace(token_price=tier.token_price)
        pool = setup.retriever.retrieve(question.text)
        assert found.selection.ids == expected.select(pool, 200, reader).ids
        used.append(found.selection.tokens_used)
    assert used[0] < used[1]


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
