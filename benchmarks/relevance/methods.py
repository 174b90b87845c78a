"""The compared decision rules: rank baselines, the ablation, and the full method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mio_rag.evaluation.contenders import Method, make_methods
from mio_rag.relevance import RelevanceModel
from mio_rag.selection.selector import Selector
from mio_rag.solvers import SolveOptions

BASELINES = ("topk", "bm25", "fused", "mmr", "density")
OURS = "ours"

#: Pools: as retrieved, expanded along links, and that with the scores of a re-ranker.
PLAIN, LINKED, RERANKED = 0, 1, 2

LINK_BENEFIT = 0.2
FEW_TOKENS = 0.05  # lambda_2 of the sparing variants


@dataclass(frozen=True)
class Compared:
    """A method, the pool it sees, and whether it is run at every budget."""

    method: Method
    pool: int
    every_budget: bool = False

    @property
    def name(self) -> str:
        """Of the method."""
        return self.method.name


def compared(
    models: Mapping[str, RelevanceModel], time_limit: float, reranker: str | None = None
) -> list[Compared]:
    """What is measured with these models: plain, expanded, links, links-logistic, reranked (a set's own,
    where it has labels), default (all sets), others (all sets but this one).
    """
    options = SolveOptions(time_limit_seconds=time_limit, relative_gap=1e-3)
    plain = Selector.raw(redundancy_weight=0.0, passage_penalty=0.0, options=options)
    rows = [Compared(method, PLAIN, True) for method in make_methods(list(BASELINES), plain)]
    cosine = plain.replace(redundancy_weight=0.1, passage_penalty="auto")
    rows.append(Compared(Method("raw cosine", cosine), PLAIN))
    if reranker is not None:
        ranked_by = Method(f"ranked by {reranker}", plain.replace(solver="topk"), reranker)
        rows.append(Compared(ranked_by, RERANKED))

    linked = plain.replace(link_benefit=LINK_BENEFIT)
    sparing = linked.replace(passage_penalty=FEW_TOKENS)
    weighted = linked.replace(redundancy_weight=0.1, redundancy_by_relevance=True)
    unweighted = linked.replace(redundancy_weight=0.02)
    ranked = plain.replace(solver="topk")
    for name, model, pool, selector, every_budget in (
        ("calibrated", "plain", PLAIN, plain, False),
        ("+ link expansion", "expanded", LINKED, plain, False),
        ("+ link features", "links", LINKED, plain, False),
        (OURS, "links", LINKED, linked, True),
        ("ours, sparing", "links", LINKED, sparing, True),
        ("benefit without features", "expanded", LINKED, linked, False),
        ("+ redundancy", "links", LINKED, weighted, False),
        ("+ redundancy, unweighted", "links", LINKED, unweighted, False),
        (f"+ {reranker}", "reranked", RERANKED, linked, False),
        ("ours, logistic", "links-logistic", LINKED, linked, False),
        ("ranked by probability", "links", LINKED, ranked, True),
        ("default weights", "default", LINKED, linked, True),
        ("default weights, sparing", "default", LINKED, sparing, True),
        ("fitted on the other sets", "others", LINKED, linked, False),
    ):
        if model in models:
            method = Method(name, selector.replace(relevance_model=models[model]))
            rows.append(Compared(method, pool, every_budget))
    return rows
