"""The compared methods: each one a way of deciding what is read, on the same pool under the same budget.

topk           cosine, best first, skipping what does not fit;  topk:K stops after K passages
bm25, fused    the same by BM25 score, by reciprocal rank fusion (also bm25:K, fused:K)
calibrated     the same by the probability of the selector's relevance model (also calibrated:K)
maxsim, cross-encoder, yes-no    the same by a re-ranker's score, where pools have it (also maxsim:K, ...)
mmr            maximal marginal relevance
density        cosine per token
greedy         the program's marginal gains per token
local_search   greedy with add, drop and swap, on the program
exact          the program, to proven optimality (or a certified gap at the time limit)
exact:UNITS    the same, choosing passages, sentences, or (auto) by the room there is, as `ask` does
allocated      the program under one total: the budget times the number of questions, spent where it adds most

"paced" (`mio_rag.evaluation.paced`) is the same program at one price for all questions of a run.
"""

from __future__ import annotations

import re
from typing import cast

from mio_rag.allocation.question import selector_problems
from mio_rag.errors import InputError, choose
from mio_rag.evaluation.allocated import Allocated
from mio_rag.evaluation.method import Method
from mio_rag.selection.selector import Selector, Units

__all__ = ["DEFAULT_METHODS", "METHODS", "RANKING_SOLVERS", "Method", "make_methods"]

#: Solvers that rank by a score of their own; their gap is to that score's optimum, not to the program's.
RANKING_SOLVERS = ("topk", "mmr", "density")

METHODS = ("topk", "bm25", "fused", "mmr", "density", "greedy", "local_search", "exact")

#: What is compared where nobody says: the usual rankings, and the program.
DEFAULT_METHODS = ("fused", "topk", "bm25", "mmr", "exact")


def _without_prices(selector: Selector) -> Selector:
    """The selector without what may be broken at a price: a ranking pays nothing, so nothing binds it."""
    side, priced = selector.side, selector.side.prices
    if "clusters" in priced:
        side = side.replace(cover=None, per_cluster=1, prices={})
    if "conflicts" in priced:
        side = side.replace(conflicts=(), versions={}, max_similarity=None)
    if "needs" in priced:
        side = side.replace(needs={})
    counts = {name: getattr(selector, name) for name in ("min_passages", "max_passages", "max_per_source")}
    if "passages" in priced:
        counts |= {"min_passages": None, "max_passages": None}
    if "sources" in priced:
        counts["max_per_source"] = None
    return selector.replace(side=side.replace(prices={}, change_price=0.0), **counts)


def make_methods(names: list[str], selector: Selector, mmr_lambda: float = 0.7) -> list[Method]:
    """The methods of the given names.

    Parameters
    ----------
    selector : Selector
        Settings of the program for "exact", "greedy" and "local_search"; its solver is used by "exact"
        alone. Its constraints bind every method; those that may be broken at a price, and the price of
        changes, are part of what "exact", "greedy" and "local_search" maximise, and of nothing else.
    mmr_lambda : float
        In (0, 1]: weight of relevance against redundancy in "mmr". 1 is top-k.

    Raises
    ------
    InputError
        For unknown or repeated names, with all of them.
    """
    problems = [f"method '{n}' is listed twice" for n in dict.fromkeys(names) if names.count(n) > 1]
    if not 0 < mmr_lambda <= 1:
        problems.append(f"mmr_lambda={mmr_lambda!r} must be in (0, 1]")
    if not names:
        problems.append(f"no method is given: choose from {', '.join(METHODS)}, topk:K")
    plain = _without_prices(selector).replace(
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
    methods = []
    for name in names:
        ranked = re.fullmatch(
            r"(topk|bm25|fused|calibrated|maxsim|cross-encoder|yes-no)(?::([1-9]\d*))?", name
        )
        if ranked:
            score = None if ranked[1] in ("topk", "calibrated") else ranked[1]
            if ranked[1] == "calibrated" and selector.relevance_model == "given":
                problems.append(
                    f"method '{name}' needs probabilities: leave relevance at auto, or give a model"
                )
            model = selector.relevance_model if ranked[1] == "calibrated" else "given"
            given = (int(ranked[2]) if ranked[2] else None, plain.max_passages)
            most = min((k for k in given if k is not None), default=None)
            try:
                rank = plain.replace(solver="topk", max_passages=most, relevance_model=model)
                methods.append(Method(name, rank, score))
            except InputError as error:  # K below min_passages
                problems += [f"method '{name}': {p}" for p in error.problems]
        elif name == "mmr" and 0 < mmr_lambda <= 1:
            # lambda rel - (1 - lambda) max sim orders like rel - (1 - lambda) / lambda max sim
            weight = (1 - mmr_lambda) / mmr_lambda
            methods.append(Method(name, plain.replace(redundancy_weight=weight, solver="mmr")))
        elif name == "density":
            methods.append(Method(name, plain.replace(solver="density")))
        elif name in ("greedy", "local_search"):
            methods.append(Method(name, selector.replace(solver=name)))
        elif name == "exact":
            methods.append(Method(name, selector))
        elif name.startswith("exact:"):
            try:
                units = cast("Units", name.removeprefix("exact:"))
                methods.append(Method(name, selector.replace(units=units)))
            except InputError as error:  # no such units, or settings that are about passages
                problems += [f"method '{name}': {p}" for p in error.problems]
        elif name == "allocated":
            problems += [f"method '{name}': {p}" for p in selector_problems(selector)]
            methods.append(Allocated(name, selector))
        elif name != "mmr":
            problems.append(
                f"method '{name}' is unknown: "
                + choose(
                    name,
                    [*METHODS, "allocated", "calibrated", "paced"],
                    more=", topk:K, bm25:K, fused:K, exact:UNITS",
                )
            )
    if problems:
        raise InputError(problems)
    return methods
