"""Ratings of answers and the relevance of the passages that were read for them."""

from pathlib import Path

import numpy as np
import pytest
from mio_rag.control.bandit.passages import PassageMemory, remembering

from mio_rag.control.bandit.strategist import folded
from mio_rag.errors import InputError
from mio_rag.learning.bandit import Learned
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.selection.selector import Selector
from tests.control.bandits import STRATEGIES, asked, outcome, strategist


def test_the_posterior_by_hand() -> None:
    memory = PassageMemory()
    assert not memory.shift(["a", "b"]).any()
    for helpful in (True, True, False):
        memory.learn(["a", "b"], helpful)
    memory.learn(["c"], False)
    # 2 of 4 answers were helpful: the prior is (2 + 1) / (4 + 2) = 1/2, its log-odds are 0.
    good, all_ = 1.0, 1.5  # half of each of three answers
    mean = (2 * 0.5 + good) / (2 + all_)
    np.testing.assert_allclose(memory.shift(["a"]), np.log(mean / (1 - mean)))
    np.testing.assert_allclose(memory.shift(["c", "new"]), [np.log((1 / 3) / (2 / 3)), 0.0])


def test_only_so_many_passages_are_kept_and_the_rest_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mio_rag.control.bandit.passages._MOST", 3)
    memory = PassageMemory()
    for name in ("a", "b", "c", "a", "d"):
        memory.learn([name], True)
    assert list(memory.rated) == ["c", "a", "d"]  # b was rated longest ago
    again = PassageMemory(**memory.to_dict())
    assert again.to_dict() == memory.to_dict()
    again.learn([], False)  # nothing was read: nothing is known of any passage
    assert again.to_dict() == memory.to_dict()


def test_relevance_moves_where_something_is_known(demo_index: CorpusIndex) -> None:
    pool = Retriever(demo_index, pool=6).retrieve("How tall is Skerryvore?")
    memory, selector = PassageMemory(), Selector()
    memory.learn([pool.ids[2]], True)
    memory.learn(["elsewhere"], False)
    same, untouched = remembering(selector, pool, memory, 0.0)
    assert same is selector
    assert untouched is pool
    given, moved = remembering(selector, pool, memory, 1.0)
    before, after = selector.valued(pool).relevance, given.valued(moved).relevance
    odds = np.log(after / (1 - after)) - np.log(before / (1 - before))
    np.testing.assert_allclose(odds, memory.shift(pool.ids), atol=1e-6)
    assert after[2] > before[2]
    assert (np.delete(after, 2) == np.delete(before, 2)).all()
    plain = Selector(redundancy_weight=0.0)
    assert given.penalty(moved) == pytest.approx(
        plain.resolved(moved).settings.penalty(given.valued(moved))
    )  # prices go by the probabilities that were moved
    with pytest.raises(InputError, match="take relevance as it is"):
        remembering(Selector.raw(), pool, memory, 1.0)
    with pytest.raises(InputError, match="uncertain embeddings exclude each other"):
        remembering(Selector(radius=0.1), pool, memory, 1.0)


def test_ratings_are_part_of_the_state_and_touch_nothing_unless_asked(
    tmp_path: Path, demo_index: CorpusIndex
) -> None:
    pool = Retriever(demo_index, pool=6).retrieve("How tall is Skerryvore?")
    bandit = strategist(tmp_path / "s.sqlite")
    choice = asked(bandit, 0)
    bandit.record(choice, outcome(choice, dict.fromkeys(STRATEGIES, 0.1)) | {"read": [pool.ids[0]]})
    bandit.feedback(choice.id, -1)
    assert bandit.learned.passages.rated == {pool.ids[0]: [0.0, 1.0]}
    assert bandit.valued(Selector(), pool)[1] is pool  # off by default
    asking = strategist(tmp_path / "s.sqlite", passage_memory=1.0)
    selector = Selector()
    given, moved = asking.valued(selector, pool)
    assert given.valued(moved).relevance[0] < selector.valued(pool).relevance[0]
    with asking.log.reading() as events:
        again = folded(Learned(asking.settings, STRATEGIES[1:]), events, afresh=True)
    assert again.dump() == asking.learned.dump()
