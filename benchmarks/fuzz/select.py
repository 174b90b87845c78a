"""Arguments of `mio_rag.select`: of every type, length and sort, and settings at odd values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fuzz.claims import check_result
from benchmarks.fuzz.endings import Wrong, strict
from benchmarks.fuzz.odd import TEXTS, Odd, built, chance, number, pick, placed, scaled, value
from mio_rag.collection import select
from mio_rag.relevance.features import given as came_with
from mio_rag.selection.result import Selection
from mio_rag.solvers import SolveOptions

_OPTIONS = SolveOptions(time_limit_seconds=1.0)

#: Settings with values that they may have.
_SETTINGS: dict[str, Sequence[Any]] = {
    "redundancy_weight": (0, 0.1, 1.0, 1e300),
    "passage_penalty": (0, 0.02, "auto", 1e-300, 1e300),
    "token_price": (0, 0.001, 1e300),
    "radius": (0, 0.05, 2.0, 1e30),
    "norm": ("l2", "l1", "linf"),
    "min_passages": (0, 1, 2, 10**9),
    "max_passages": (0, 1, 3, 10**9),
    "max_per_source": (0, 1, {"a": 1}, {"a": 0, "b": 2, "": 1}),
    "must_include": ([], ["0"], ["0", "1"], ["gone"]),
    "must_exclude": ([], ["1"], ["gone"]),
    "solver": ("auto", "branch_and_bound", "greedy", "highs"),
    "link_benefit": (0, 0.3),
    "redundancy_by_relevance": (True, False),
    "prompt_order": ("best_first", "document"),
    "counterpart": ("termwise", "joint"),
    "passage_radii": ({}, {"0": 0.1}, {"gone": 0.1}),
}


class _Counter:
    """A counter that returns a given value."""

    name = "given"

    def __init__(self, value: Any) -> None:
        self._value = value

    def count(self, texts: Sequence[str]) -> Any:
        return built(self._value) if self._value is not None else [len(text.split()) for text in texts]


class Selects:
    """Keyword arguments as plain data, in which `Odd` stands for objects of other sorts."""

    def __init__(self, folder: Path) -> None:
        del folder

    def draw(self, rng: np.random.Generator) -> Any:
        """A call that is right, then none to three arguments that may not be."""
        given = _right(rng)
        for _ in range(int(rng.choice(4, p=[0.25, 0.4, 0.2, 0.15]))):
            name = pick(rng, [*given, "query", "counter", "selector", "embedder", "nonsense"])
            if name in _SETTINGS and chance(rng, 0.5):
                name = pick(rng, list(_SETTINGS))
            before, way = given.get(name), int(rng.integers(5))
            if way == 0:
                given[name] = value(rng)
            elif way == 1 and before is not None:
                given[name] = placed(rng, before)
            elif way == 2 and isinstance(before, list):
                given[name] = scaled(rng, before)
            elif way == 3 and isinstance(before, list) and before:
                i = int(rng.integers(len(before)))
                given[name] = before[:i] + pick(rng, [[], [value(rng)], [number(rng)]]) + before[i + 1 :]
            else:
                given[name] = number(rng)
        return given

    def run(self, given: Any) -> str:
        """Select, and check the selection."""
        call = built(given)
        if "counter" in given and not isinstance(given["counter"], Odd):
            call["counter"] = _Counter(given["counter"])
        query, passages = call.pop("query", "who?"), _passages(call)
        if "nonsense" not in call:
            call["options"] = _OPTIONS
        made = select(query, passages, **call)
        _check(made, given)
        return made.result.status.value


def _passages(call: dict[str, Any]) -> Any:
    """Take texts, ids, titles and sources from a call, as mappings where they are lists of one length."""
    texts = call.pop("texts", ["a"])
    columns = {name: call.pop(f"{name}s") for name in ("id", "title", "source") if f"{name}s" in call}
    if not isinstance(texts, list) or not columns:
        return texts
    return [
        {"text": text, **{n: c[k] for n, c in columns.items() if isinstance(c, list) and k < len(c)}}
        for k, text in enumerate(texts)
    ]


def _right(rng: np.random.Generator) -> dict[str, Any]:
    n = int(rng.integers(1, 8)) if chance(rng, 0.97) else int(rng.integers(15, 40))
    words = ["river", "bridge", "tower", "Arno", "1932", "\u4e2d\u6587"]
    texts = [" ".join(pick(rng, words) for _ in range(int(rng.integers(1, 9)))) for _ in range(n)]
    if chance(rng, 0.2):
        texts[int(rng.integers(n))] = pick(rng, TEXTS)
    given: dict[str, Any] = {"texts": texts, "budget": int(rng.integers(1, 40))}
    d = int(rng.integers(1, 5))
    vectors = chance(rng, 0.5)
    if vectors:
        given["embeddings"] = rng.normal(size=(n, d)).tolist()
        given["question_embedding"] = rng.normal(size=d).tolist()
    else:
        given["redundancy_weight"] = 0
    if chance(rng, 0.5) or not vectors:
        given["scores"] = rng.random(n).tolist()
    if chance(rng, 0.5):
        given["tokens"] = rng.integers(1, 20, n).tolist()
    for name, among in (("ids", None), ("titles", TEXTS), ("sources", "abc")):
        if chance(rng, 0.2):
            given[name] = (
                [f"p{k}" for k in range(n)] if among is None else [pick(rng, among) for _ in range(n)]
            )
    if chance(rng, 0.05):
        given["counter"] = pick(rng, [None, [1] * n, [3], [0], [-1], ["a"], [1.5], 7, []])
    for _ in range(int(rng.integers(4))):
        name = pick(rng, list(_SETTINGS))
        given[name] = pick(rng, _SETTINGS[name])
    return given


def _check(made: Selection, given: dict[str, Any]) -> None:
    """Check what a selection reports."""
    exact = given.get("solver") != "greedy" and given.get("counterpart") != "joint"
    pool, chosen = made.candidates, made.chosen
    if made.program.n <= 60 and given.get("counterpart") != "joint":
        check_result(made.program, made.result, _OPTIONS, exact)
    strict("to_dict() of a selection", made.to_dict(why=True, proof=True))
    if not made.explain().strip():
        raise Wrong("a selection without an explanation")
    if len(set(chosen)) < len(chosen) or not set(chosen) <= set(range(len(pool))):
        raise Wrong("chosen are no different places in the pool", chosen)
    if made.result.x is not None and set(chosen) != {i for i in made.result.selected if i < len(pool)}:
        raise Wrong("chosen are not those of the decision", chosen)
    if made.tokens_used > made.budget_tokens:
        raise Wrong("more tokens than the budget", f"{made.tokens_used} > {made.budget_tokens}")
    if "tokens" in given and made.tokens_used != sum(int(pool.tokens[i]) for i in chosen):
        raise Wrong("tokens_used is not the sum over the chosen", made.tokens_used)
    if len(made.decisions) != len(pool) or any(
        d.selected != (i in chosen) for i, d in enumerate(made.decisions)
    ):
        raise Wrong("the decisions are not those of the selection", made.decisions)
    tokens, scores = given.get("tokens"), given.get("scores")
    whole = made.pool
    if isinstance(tokens, list) and "scores" in given and whole.tokens.tolist() != tokens:
        raise Wrong("the pool has other tokens than were given", whole.tokens)
    if (
        isinstance(scores, list)
        and all(type(s) is float for s in scores)
        and came_with(whole).tolist() != scores
    ):
        raise Wrong("the pool has another relevance than was given", pool.relevance)
