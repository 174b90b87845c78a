"""Methods by name: what each stands for, under one set of constraints, and methods of your own."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mio_rag.context import RegexCounter
from mio_rag.errors import InputError
from mio_rag.methods import (
    digests,
    known_methods,
    load_plugin,
    make_methods,
    register_method,
    unregister_method,
)
from mio_rag.pool import Candidates, Pool
from mio_rag.selection.selector import Selector
from mio_rag.testing import check_method

ALL = [n for n in known_methods() if n not in ("calibrated", "maxsim", "cross-encoder", "yes-no")]


def pool(seed: int, n: int = 14) -> Candidates:
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(n, 4))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    query = rng.normal(size=4)
    relevance = vectors @ query / np.linalg.norm(query)
    return Candidates(
        ids=[f"p{k}" for k in range(n)], texts=["word " * k for k in range(1, n + 1)], relevance=relevance,
        tokens=rng.integers(5, 30, size=n), embeddings=vectors, query_embedding=query,
        sources=[f"s{k % 3}" for k in range(n)],
        scores={"bm25": rng.random(n), "fused": rng.random(n), "dense": relevance},
    )  # fmt: skip


class Plain(RegexCounter):
    """Counts a block as the sum of its passages, so that a reference needs no tokenizer."""

    def __init__(self, candidates: Candidates) -> None:
        self.costs = {t.strip(): int(c) for t, c in zip(candidates.texts, candidates.tokens, strict=True)}

    def count(self, texts: object) -> list[int]:
        return [sum(self.costs[part] for part in text.split("\n\n")) for text in texts]  # type: ignore[attr-defined]


def chosen(name: str, candidates: Candidates, budget: int, selector: Selector | None = None) -> list[int]:
    """What a method chooses, in order of index."""
    (method,) = make_methods([name], selector or Selector.raw())
    return sorted(method.select(candidates, budget, Plain(candidates)).chosen)


def filled(scores: np.ndarray, tokens: np.ndarray, budget: int, most: int = 99) -> list[int]:
    """Best first, skipping what does not fit."""
    taken: list[int] = []
    for i in np.argsort(-scores, kind="stable"):
        if tokens[taken].sum() + tokens[i] <= budget and len(taken) < most:
            taken.append(int(i))
    return sorted(taken)


@pytest.mark.parametrize("seed", range(2))
def test_rankings(seed: int) -> None:
    given = pool(seed)
    scores = {"topk": given.relevance, "bm25": given.scores["bm25"], "fused": given.scores["fused"]}
    for name, values in scores.items():
        assert chosen(name, given, 90) == filled(values, given.tokens, 90)
        assert chosen(f"{name}:3", given, 90) == filled(values, given.tokens, 90, most=3)
    positive = np.where(given.relevance > 0, given.relevance / given.tokens, -np.inf)
    fitting = [i for i in filled(positive, given.tokens, 90) if given.relevance[i] > 0]
    assert chosen("density", given, 90) == fitting
    assert chosen("mmr:1", given, 90) == chosen("topk", given, 90)


@pytest.mark.parametrize("weight", [0.3, 0.7])
@pytest.mark.parametrize("seed", range(2))
def test_mmr_is_the_textbook_loop(seed: int, weight: float) -> None:
    """Carbonell and Goldstein (1998), taking the best that still fits."""
    given = pool(seed)
    assert given.embeddings is not None
    vectors, taken = given.embeddings.astype(np.float64), list[int]()

    def score(i: int) -> float:
        nearest = max((float(vectors[i] @ vectors[j]) for j in taken), default=0.0)
        return weight * float(given.relevance[i]) - (1 - weight) * nearest

    while True:
        used = int(given.tokens[taken].sum())
        rest = [i for i in range(len(given)) if i not in taken and used + given.tokens[i] <= 90]
        if not rest:
            break
        taken.append(max(rest, key=score))
    assert chosen(f"mmr:{weight}", given, 90) == sorted(taken)


@pytest.mark.parametrize("seed", range(2))
def test_exact_is_worth_most_on_its_own_program(seed: int) -> None:
    given, selector = pool(seed), Selector.raw(redundancy_weight=0.3)
    program = selector.program(given, 90)
    worth = {}
    for name in ALL:
        x = np.zeros(len(given))
        x[chosen(name, given, 90, selector)] = 1
        worth[name] = program.objective(x)
        assert program.violations(x) == []
    assert worth["exact"] >= max(worth.values()) - 1e-6
    assert worth["local_search"] >= worth["greedy"] - 1e-9


def test_the_same_constraints_bind_every_method() -> None:
    selector = Selector.raw(max_per_source=1, max_passages=2, must_exclude=("p0",), must_include=("p5",))
    given = pool(0)
    assert given.sources is not None
    for name in (*ALL, "topk:5", "bm25:1", "fused:9", "adaptive-k:1"):
        taken = chosen(name, given, 200, selector)
        assert 5 in taken
        assert 0 not in taken
        assert len(taken) <= (1 if name.endswith(":1") else 2)
        assert len({given.sources[i] for i in taken}) == len(taken)


def test_every_problem_is_listed() -> None:
    with pytest.raises(InputError) as raised:
        make_methods(["topk", "topk", "nonsense", "topk:0", "mmr:1.5", "bm25:x"], Selector.raw())
    said = raised.value.problems
    assert len(said) == 5
    for part in ("'topk' is listed twice", "'1.5' must be", "'nonsense' is unknown", "'topk:0'", "'bm25:x'"):
        assert sum(part in problem for problem in said) == 1
    with pytest.raises(InputError, match="no method"):
        make_methods([], Selector.raw())
    with pytest.raises(
        InputError, match=r"method 'topk:2': min_passages=3 .* max_passages=2.*'foo' is unknown"
    ):
        make_methods(["topk:2", "foo"], Selector.raw(min_passages=3))
    (method,) = make_methods(["maxsim"], Selector.raw())
    with pytest.raises(InputError, match="needs pools with maxsim: a re-ranker"):
        method.select(pool(0), 90, RegexCounter())


def test_adaptive_k_reads_five_beyond_the_largest_gap() -> None:
    given = pool(0, 12)
    scores = np.array([0.9, 0.88, 0.86, *np.linspace(0.4, 0.3, 8), 0.0])  # the last gap is in the tail
    shuffled = np.random.default_rng(1).permutation(12)
    found = chosen("adaptive-k", given.with_relevance(scores[np.argsort(shuffled)], given.scores), 10_000)
    assert found == sorted(shuffled[:8].tolist())


# Methods of your own


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    yield
    for name in ("shortest", "own", "from-file"):
        if name in known_methods():
            unregister_method(name)


def test_a_registered_method_is_one_among_the_others() -> None:
    @register_method("shortest", needs=("embeddings", "bm25"))
    def shortest(given: Pool, budget: int) -> list[str]:
        return [given.ids[i] for i in np.argsort(given.tokens, kind="stable")[: budget // 10]]

    given = pool(0)
    assert chosen("shortest", given, 90) == filled(-given.tokens, given.tokens, 90, most=9)
    assert chosen("shortest:2", given, 90) == filled(-given.tokens, given.tokens, 90, most=2)
    bound = Selector.raw(must_include=("p13",), must_exclude=("p1",), max_per_source=1)
    assert 13 in chosen("shortest", given, 90, bound)
    assert 1 not in chosen("shortest", given, 90, bound)
    check_method("shortest")
    assert digests(["topk", "shortest"]).keys() == {"shortest"}
    (method,) = make_methods(["shortest"], Selector.raw())
    bare = Candidates(given.ids, given.texts, given.relevance, given.tokens)
    with pytest.raises(InputError, match="'shortest' needs pools with embeddings, bm25"):
        method.select(bare, 90)


def test_a_plugin_is_a_file_that_registers(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from mio_rag.methods import register_method\n\n"
        "@register_method('from-file')\ndef first(pool, budget):\n    return pool.ids[:1]\n"
    )
    load_plugin(file)
    assert chosen("from-file", pool(0), 90) == [0]
    before = digests(["from-file"])
    file.write_text(file.read_text().replace("[:1]", "[1:2]"))
    load_plugin(file)
    assert chosen("from-file", pool(0), 90) == [1]
    assert digests(["from-file"]) != before
    own = "from mio_rag import InputError\nraise InputError('no')"
    for content, said in (("1 / 0", "ZeroDivisionError"), ("def", "SyntaxError"), (own, "mine.py: no")):
        file.write_text(content)
        with pytest.raises(InputError, match=said):
            load_plugin(file)
    with pytest.raises(InputError, match="does not exist"):
        load_plugin(tmp_path / "absent.py")
