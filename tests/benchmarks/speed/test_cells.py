"""Pools and the programs made of them."""

import numpy as np
import pytest

from benchmarks.speed.cells import LINK_WEIGHT, build, calibrated, chosen_cells, grid, links, program_hash
from benchmarks.speed.pools import Pool, load_pools, mention_pairs
from mio_rag.candidates import Candidates
from mio_rag.errors import InputError
from mio_rag.selection.selector import Selector
from mio_rag.types import Passage


def pool(n: int = 60, mentions=(), name: str = "set/q") -> Pool:
    rng = np.random.default_rng(1)
    vectors = (rng.normal(size=(n, 16)) + 0.6).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    query = vectors.mean(axis=0) / np.linalg.norm(vectors.mean(axis=0))
    order = np.argsort(-(vectors @ query))
    vectors = vectors[order]
    return Pool(
        name,
        (vectors @ query).astype(np.float64),
        rng.integers(20, 200, n),
        vectors,
        query,
        np.array(mentions, dtype=np.int64).reshape(-1, 2),
    )


def test_the_grid_has_every_setting_once() -> None:
    names = [cell.name for cell in grid()]
    assert len(set(names)) == len(names) == 5 * 5 * 3 * 3 + 4 * 3
    assert {"dense/n500/l0.05/r0.1/b2048", "links/n60/l0/r0/b256"} <= set(names)


def test_patterns_choose_cells() -> None:
    some = chosen_cells(grid(), "dense/n20/*/r0/b512, links/*/b1024")
    assert len(some) == 5 + 4
    with pytest.raises(InputError, match=r"'dense/n21/\*' matches no cell"):
        chosen_cells(grid(), "links/*,dense/n21/*")


@pytest.mark.parametrize("radius", [0.0, 0.1])
def test_a_dense_program_is_the_selectors(radius: float) -> None:
    some = pool()
    (cell,) = chosen_cells(grid(), f"dense/n50/l0.3/r{radius:g}/b1024")
    program = build(some, cell, 0)
    candidates = Candidates(
        [str(k) for k in range(50)],
        ["text"] * 50,
        some.cosine[:50],
        some.tokens[:50],
        embeddings=some.embeddings[:50],
        query_embedding=some.query,
    )
    same = Selector.raw(redundancy_weight=0.3, passage_penalty=0, radius=radius).program(candidates, 1024)
    np.testing.assert_allclose(program.linear, same.linear)
    np.testing.assert_allclose(program.pairwise, same.pairwise)
    assert program.budget == same.budget == 1024
    assert build(pool(40), cell, 0) is None


def test_links_gain_a_share_of_the_better_end() -> None:
    some = pool(mentions=[(k, k + 3) for k in range(12)])
    (cell,) = chosen_cells(grid(), "links/n60/l0.1/r0/b512")
    (plain,) = chosen_cells(grid(), "links/n60/l0/r0/b512")
    program, linear = build(some, cell, 0), build(some, plain, 0)
    value = calibrated(some.cosine)
    assert np.count_nonzero(np.triu(linear.pairwise)) == 12
    for k in range(12):
        assert linear.pairwise[k, k + 3] == pytest.approx(-LINK_WEIGHT * max(value[k], value[k + 3]))
        similarity = float(some.embeddings[k].astype(float) @ some.embeddings[k + 3].astype(float))
        assert program.pairwise[k, k + 3] == pytest.approx(linear.pairwise[k, k + 3] + 0.1 * similarity)


def test_links_are_between_ten_and_sixty() -> None:
    many = [(i, j) for i in range(20) for j in range(i + 1, 20)]
    assert links(pool(mentions=many), 60, 0) == many[:60]
    counts = set()
    for k in range(40):
        found = links(pool(mentions=[(0, 1)], name=f"set/{k}"), 60, 0)
        assert found[0] == (0, 1)
        assert len(set(found)) == len(found)
        assert all(0 <= i < j < 60 for i, j in found)
        counts.add(len(found))
    assert min(counts) >= 10
    assert max(counts) <= 60
    assert len(counts) > 5
    assert links(pool(), 60, 3) == links(pool(), 60, 3) != links(pool(), 60, 4)


def test_calibrated_relevance_is_mostly_near_zero() -> None:
    value = calibrated(np.linspace(0.7, 0.35, 60))
    assert value.sum() == pytest.approx(2.5, abs=1e-6)
    assert np.all(np.diff(value) < 0)
    assert 0 < value[-1] < value[0] < 1
    assert np.mean(value < 0.02) > 0.6


def test_mentions_are_whole_words_of_another_title() -> None:
    passages = [
        Passage("a", "The Arno passes Florence.", "Arno"),
        Passage("b", "Florence lies on the arno.", "Florence"),
        Passage("c", "Florentines bake.", "Bread"),
        Passage("d", "More of Bread, and Po.", "Bread"),
        Passage("e", "Nothing.", "Po"),
        Passage("f", "The Arno, Florence.", ""),
    ]
    assert mention_pairs(passages).tolist() == [[0, 1], [0, 5], [1, 5]]
    assert mention_pairs([]).shape == (0, 2)


def test_a_hash_tells_programs_apart() -> None:
    some = pool()
    programs = [build(some, cell, 0) for cell in chosen_cells(grid(), "*/n50/*,links/*")]
    assert len({program_hash(p) for p in programs}) == len(programs)
    assert program_hash(programs[0]) == program_hash(build(some, chosen_cells(grid(), "links/*")[0], 0))


def test_a_folder_without_data_sets_is_refused(tmp_path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no data set"):
        load_pools(tmp_path, [], 3, 0, print)
