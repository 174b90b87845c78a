"""The compared decision rules: rank baselines, the ablation, and the whole road."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mio_rag.evaluation.methods import Method, make_methods
from mio_rag.relevance import RelevanceModel
from mio_rag.selector import Selector
from mio_rag.solvers import SolveOptions

__all__ = ["BASELINES", "OURS", "Compared", "compared"]

BASELINES = ("topk", "bm25", "fused", "mmr", "density")
OURS = "ours"

LINK_BENEFIT = 0.2
FEW_TOKENS = 0.05  # lambda_2 of the sparing variants


@dataclass(frozen=True)
class Compared:
    """A method, the pool it sees (0: as retrieved, 1: expanded along links), and whether at every budget."""

    method: Method
    hops: int
    every_budget: bool = False

    @property
    def name(self) -> str:
        """Of the method."""
        return self.method.name


def compared(models: Mapping[str, RelevanceModel], time_limit: float) -> list[Compared]:
    """What is measured with these models: plain, expanded, links, links-logistic (a set's own, where it has
    labels), default (all sets), others (all sets but this one).
    """
    options = SolveOptions(time_limit_seconds=time_limit, relative_gap=1e-3)
    plain = Selector(redundancy_weight=0.0, passage_penalty=0.0, options=options)
    rows = [Compared(method, 0, True) for method in make_methods(list(BASELINES), plain)]
    cosine = replace(plain, redundancy_weight=0.1, passage_penalty="auto")
    rows.append(Compared(Method("raw cosine", cosine), 0))

    linked = replace(plain, link_benefit=LINK_BENEFIT)
    sparing = replace(linked, passage_penalty=FEW_TOKENS)
    weighted = replace(linked, redundancy_weight=0.1, redundancy_by_relevance=True)
    unweighted = replace(linked, redundancy_weight=0.02)
    ranked = replace(plain, solver="topk")
    for name, model, hops, selector, every_budget in (
        ("calibrated", "plain", 0, plain, False),
        ("+ link expansion", "expanded", 1, plain, False),
        ("+ link features", "links", 1, plain, False),
        (OURS, "links", 1, linked, True),
        ("ours, sparing", "links", 1, sparing, True),
        ("benefit without features", "expanded", 1, linked, False),
        ("+ redundancy", "links", 1, weighted, False),
        ("+ redundancy, unweighted", "links", 1, unweighted, False),
        ("ours, logistic", "links-logistic", 1, linked, False),
        ("ranked by probability", "links", 1, ranked, True),
        ("default weights", "default", 1, linked, True),
        ("default weights, sparing", "default", 1, sparing, True),
        ("fitted on the other sets", "others", 1, linked, False),
    ):
        if model in models:
            method = Method(name, replace(selector, relevance_model=models[model]))
            rows.append(Compared(method, hops, every_budget))
    return rows
