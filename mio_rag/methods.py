"""Selection methods by name: the program, the usual rankings, and methods of your own.

mio             the program, choosing passages or sentences depending on the budget, as `select` and `ask` do
exact           the program over passages, to proven optimality (or a certified gap at the time limit)
exact:UNITS     the same, choosing passages, sentences or either (auto)
topk            cosine, best first
bm25, fused     the same by BM25 score, by reciprocal rank fusion
calibrated      the same by the probability of the selector's relevance model
maxsim, cross-encoder, yes-no    the same by a re-ranker's score, where pools have it
mmr, mmr:LAMBDA      maximal marginal relevance; LAMBDA in (0, 1] weighs relevance, 0.7 by default
adaptive-k      cosine, best first, down to the largest gap between neighbours
density         cosine per token
greedy          the program's marginal gains per token
local_search    greedy with add, drop and swap, on the program
pyversity:STRATEGY   mmr, msd, cover, dpp or ssd of the package pyversity
NAME            a method of your own, see `register_method`

Rankings skip what does not fit; NAME:K stops after K passages.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast, overload

import numpy as np

from mio_rag.context import TokenCounter
from mio_rag.errors import InputError, MioRagError, choose, require
from mio_rag.pool import COLUMNS, Pool
from mio_rag.selection.result import Note, Selection
from mio_rag.selection.selector import Selector, Units

#: Pool and budget in tokens -> ids, best first.
Order = Callable[[Pool, int], Sequence[str]]
F = TypeVar("F", bound=Order)

#: The method that reads what `ask` reads by default.
FITTING = "mio"
#: Name -> score of the pool that ranks; blank: its relevance.
_SCORES = {
    "topk": "", "calibrated": "", "bm25": "bm25", "fused": "fused", "maxsim": "maxsim",
    "cross-encoder": "cross-encoder", "yes-no": "yes-no",
}  # fmt: skip
_PACKAGE = (
    FITTING, "exact", "topk", "bm25", "fused", "mmr", "adaptive-k", "calibrated", "density", "greedy",
    "local_search", "maxsim", "cross-encoder", "yes-no",
)  # fmt: skip
_STRATEGIES = ("mmr", "msd", "cover", "dpp", "ssd")
_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_NEEDS = (*(column.name for column in COLUMNS), "dense", *filter(None, _SCORES.values()))
_BUFFER, _TAIL = 5, 0.1  # of adaptive-k, as published


@dataclasses.dataclass(frozen=True)
class _Own:
    order: Order
    needs: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Hash of the file that holds the function, or of its code where there is none."""
        try:
            content = Path(inspect.getsourcefile(self.order) or "").read_bytes()
        except (OSError, TypeError):
            content = repr(getattr(self.order, "__code__", self.order)).encode()
        return hashlib.sha256(content).hexdigest()


@overload
def register_method(name: str, function: None = None, *, needs: Sequence[str] = ...) -> Callable[[F], F]: ...
@overload
def register_method(name: str, function: F, *, needs: Sequence[str] = ...) -> F: ...
def register_method(name: str, function: Any = None, *, needs: Sequence[str] = ()) -> Any:
    """Make a selection method known by name, in every door; also a decorator.

        @register_method("longest")
        def longest(pool, budget):
            return sorted(pool.ids, key=lambda i: -pool.tokens[pool.ids.index(i)])

    function: (pool, budget) -> ids of passages, best first; see `mio_rag.Pool` for ids, texts, tokens,
        relevance (cosines), embeddings and the rest. They are read in this order while they fit, under the
        constraints of the selector; what is not returned is not read.
    needs: columns of the pool ("embeddings", "sources") or scores ("bm25") without which it cannot work.

    A second function of the same name replaces the first. `mio_rag.testing.check_method` tests one.

    Raises `InputError` for a name that is taken or cannot be one, and for unknown needs.
    """
    if function is None:
        return lambda later: register_method(name, later, needs=needs)
    problems = (
        [] if _NAME.fullmatch(name) else [f"the name '{name}' must be lower-case letters, digits, - or _"]
    )
    if name in (*_PACKAGE, "pyversity", "allocated", "paced", "none"):
        problems.append(f"the name '{name}' is one of the package: choose another one")
    if not callable(function):
        problems.append(f"the method '{name}' is {function!r}: give a function (pool, budget) -> ids")
    problems += [
        f"'{need}' is no column of a pool: {choose(need, _NEEDS)}" for need in needs if need not in _NEEDS
    ]
    if problems:
        raise InputError(problems)
    _OWN[name] = _Own(function, tuple(needs))
    return function


def unregister_method(name: str) -> None:
    """Remove a method that was registered; `InputError` for any other name."""
    if _OWN.pop(name, None) is None:
        raise InputError(f"'{name}' is not a method that was registered")


def load_plugin(path: str | Path) -> None:
    """Import a Python file that registers methods or measures; `InputError` if that fails."""
    file = Path(path)
    if not file.is_file():
        raise InputError(f"the plugin {path} does not exist: give a Python file")
    module = f"mio_rag_plugin_{hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(module, file)
    if spec is None or spec.loader is None:
        raise InputError(f"the plugin {path} is no Python file: its name must end in .py")
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[module] = loaded
    try:
        spec.loader.exec_module(loaded)
    except Exception as error:
        del sys.modules[module]
        if isinstance(error, MioRagError):
            raise InputError(f"the plugin {path}: {error}") from error
        raise InputError(f"the plugin {path} failed ({type(error).__name__}: {error})") from error


def known_methods() -> list[str]:
    """Return all names, registered ones last; not those with a number behind a colon."""
    return [*_PACKAGE, *(f"pyversity:{name}" for name in _STRATEGIES), *_OWN]


def digests(names: Sequence[str]) -> dict[str, str]:
    """Return the registered methods among these names, each with a hash of its source."""
    own = {name: _OWN.get(name.partition(":")[0]) for name in names}
    return {name: one.digest for name, one in own.items() if one is not None}


# Those of the package that are functions --------------------------------------------------------------------


def _adaptive_k(pool: Pool, budget: int) -> list[str]:
    """Taguchi et al., EMNLP 2025: down to the largest gap in the best 90 %, and five more."""
    order = np.argsort(-pool.relevance, kind="stable")
    gaps = -np.diff(pool.relevance[order])
    gaps = gaps[: len(gaps) - int(_TAIL * len(gaps))]
    last = int(gaps.argmax()) + 1 + _BUFFER if gaps.size else 1
    return [pool.ids[i] for i in order[:last]]


def _pyversity(strategy: str) -> _Own:
    library = require("pyversity", "pyversity", f"the method 'pyversity:{strategy}'")

    def order(pool: Pool, budget: int) -> list[str]:
        assert pool.embeddings is not None
        found = library.diversify(pool.embeddings, pool.relevance, k=len(pool), strategy=strategy)
        return [pool.ids[i] for i in found.indices]

    return _Own(order, ("embeddings",))


_SHIPPED = {"adaptive-k": _Own(_adaptive_k, ())}
_OWN: dict[str, _Own] = {}


# Methods ----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Method:
    """A named way to choose from a pool.

    selector: program and solver.
    score: which of `Pool.scores` ranks; blank: the relevance.
    own: what orders the pool instead.
    asked_for_sentences: whether settings ask for sentences that it cannot choose, which a note then says.
    """

    name: str
    selector: Selector
    score: str = ""
    own: _Own | None = None
    asked_for_sentences: bool = False

    def select(self, pool: Pool, budget: int, counter: TokenCounter | None = None) -> Selection:
        """Choose; `InputError` where the pool lacks what the method needs, or a method of your own fails."""
        missing = [n for n in ((self.score,) if self.score else self.needs) if not _has(pool, n)]
        if missing:
            hint = ": a re-ranker's score comes with search.rerank" if self.score else ""
            if self.score in ("bm25", "fused"):
                hint = ": give an embedder, or embeddings with the question's, and no scores"
            raise InputError(f"method '{self.name}' needs pools with {', '.join(missing)}{hint}")
        if self.own is not None:
            return self._ordered(self.own.order, pool, budget, counter)
        if self.score:
            pool = dataclasses.replace(pool, relevance=pool.scores[self.score])
        return self._told(self.selector.select(pool, budget, counter))

    def _told(self, found: Selection) -> Selection:
        """A selection with the name of the method, and what it did not do."""
        said = f"units 'sentences' is left out: the method '{self.name}' ranks whole passages"
        notes = (Note("whole_passages", said),) if self.asked_for_sentences else ()
        return found.with_notes(*notes, method=self.name)

    @property
    def needs(self) -> tuple[str, ...]:
        """Columns and scores of a pool that it cannot do without."""
        return self.own.needs if self.own is not None else ()

    def _ordered(self, order: Order, pool: Pool, budget: int, counter: TokenCounter | None) -> Selection:
        try:
            given = [str(i) for i in order(pool, budget)] if len(pool) else []
        except MioRagError:
            raise
        except Exception as error:
            raise InputError(f"method '{self.name}' failed ({type(error).__name__}: {error})") from error
        place = {name: k for k, name in enumerate(given)}
        if unknown := [name for name in place if name not in set(pool.ids)]:
            raise InputError(f"method '{self.name}' returned '{unknown[0]}', which is no id of the pool")
        if len(place) < len(given):
            raise InputError(f"method '{self.name}' returned an id twice: return each once, best first")
        ranks = [float(len(pool) - place[i]) if i in place else 0.0 for i in pool.ids]
        kept = {*place, *self.selector.must_include}
        rest = tuple(i for i in pool.ids if i not in kept)
        excluded = tuple(dict.fromkeys([*self.selector.must_exclude, *rest]))
        selector = self.selector.replace(must_exclude=excluded)
        found = selector.select(dataclasses.replace(pool, relevance=np.array(ranks)), budget, counter)
        return self._told(found)


def _has(pool: Pool, need: str) -> bool:
    return need in pool.scores or getattr(pool, need, None) is not None


def make_methods(names: Sequence[str | Order], selector: Selector) -> list[Method]:
    """Return the methods of these names; a function is one, too, as of `register_method`.

    selector: settings of the program for "mio", "exact", "greedy" and "local_search"; only the first two use
        its solver. Its constraints bind every method; those that may be broken at a price, and the price of
        changes, count for these four alone.

    Raises `InputError` for unknown or repeated names, with all of them.
    """
    problems = [f"method '{n}' is listed twice" for n in dict.fromkeys(names) if names.count(n) > 1]
    if not names:
        problems.append(f"no method is given: choose from {', '.join(known_methods())}")
    plain, methods = _ranking(selector), list[Method]()
    for name in names:
        try:
            made = _made(name, selector, plain)
            if (
                selector.units == "sentences"
                and made.selector.units == "passages"
                and made.name != "exact:passages"
            ):
                made = dataclasses.replace(made, asked_for_sentences=True)
            methods.append(made)
        except MioRagError as error:
            found = error.problems if isinstance(error, InputError) else [str(error)]
            problems += [p if p.startswith("method '") else f"method '{name}': {p}" for p in found]
    if problems:
        raise InputError(problems)
    return methods


def _made(name: str | Order, selector: Selector, plain: Selector) -> Method:
    """`plain`: the selector with nothing but its constraints."""
    if callable(name):
        called = getattr(name, "__name__", type(name).__name__)
        return Method(called, plain.replace(solver="topk"), own=_Own(name, ()))
    if not isinstance(name, str):
        raise InputError(f"method is {name!r}: give a name, or a function (pool, budget) -> ids")
    kind, colon, more = name.partition(":")
    if kind == "exact" or name == FITTING:
        units = cast("Units", more) if colon else selector.units
        return Method(name, selector.replace(units=units))
    if name in ("greedy", "local_search"):
        return Method(name, selector.replace(solver=name))
    if name == "density":
        return Method(name, plain.replace(solver="density"))
    if kind == "mmr":
        weight = _fraction(more) if colon else 0.7
        # lambda rel - (1 - lambda) max sim orders like rel - (1 - lambda) / lambda max sim
        return Method(name, plain.replace(redundancy_weight=(1 - weight) / weight, solver="mmr"))
    if kind == "pyversity" and more in _STRATEGIES:
        return Method(name, plain.replace(solver="topk"), own=_pyversity(more))
    own = _OWN.get(kind) or _SHIPPED.get(kind)
    if (own is None and kind not in _SCORES) or (colon and not re.fullmatch(r"[1-9]\d*", more)):
        known, more = [*_PACKAGE, *_OWN, "allocated", "paced"], ", topk:K, exact:UNITS, pyversity:STRATEGY"
        raise InputError(f"method '{name}' is unknown: {choose(name, known, more=more)}")
    model = selector.relevance_model if kind == "calibrated" else "given"
    if kind == "calibrated" and model == "given":
        raise InputError("it needs probabilities; leave relevance at auto, or give a model")
    limits = [k for k in (int(more) if colon else None, plain.max_passages) if k is not None]
    rank = plain.replace(solver="topk", max_passages=min(limits, default=None), relevance_model=model)
    return Method(name, rank, _SCORES.get(kind, ""), own)


def _fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise InputError(f"'{text}' must be a number in (0, 1]: the weight of relevance")
    return value


def _ranking(selector: Selector) -> Selector:
    """Return the selector with nothing but its constraints, without those that may be broken at a price."""
    side, priced = selector.side, selector.side.prices
    if "clusters" in priced:
        side = side.replace(cover=None, per_cluster=1, prices={})
    if "conflicts" in priced:
        side = side.replace(conflicts=(), versions={}, max_similarity=None)
    if "needs" in priced:
        side = side.replace(needs={})
    counts: dict[str, Any] = {}
    if "passages" in priced:
        counts |= {"min_passages": None, "max_passages": None}
    if "sources" in priced:
        counts["max_per_source"] = None
    return selector.replace(
        side=side.replace(prices={}, change_price=0.0),
        **counts,
        redundancy_weight=0.0,
        passage_penalty=0.0,
        token_price=0.0,
        radius=0.0,
        uncertainty=None,
        passage_radii={},
        counterpart="termwise",
        relevance_model="given",
        link_benefit=0.0,
        shared_text_weight=0.0,
        near_duplicates="all",
        units="passages",
    )
