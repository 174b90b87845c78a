"""The compared rules: the nominal program and its robust counterparts, for two meanings of relevance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mio_rag.formulations.uncertainty import Norm, NormBall
from mio_rag.relevance import RelevanceModel
from mio_rag.selection.selector import Counterpart, Selector
from mio_rag.solvers import SolveOptions

#: Cosines, or the probabilities of a calibrated model with evidence links.
RELEVANCE = ("cosine", "calibrated")

_OPTIONS = SolveOptions(time_limit_seconds=1.0, relative_gap=1e-3)
#: An l-infinity ball moves every coordinate: this radius is an l2 error of .39 in 384 dimensions.
_LINF = 0.02


@dataclass(frozen=True)
class Rule:
    """A robust counterpart: which, and for how large an error."""

    counterpart: Counterpart
    radius: float
    norm: Norm = "l2"

    @property
    def name(self) -> str:
        """As the report names it."""
        return f"{self.counterpart} {self.radius:g}{'' if self.norm == 'l2' else f' {self.norm}'}"

    @property
    def ball(self) -> NormBall:
        """The set that it is safe against."""
        return NormBall(self.radius, self.norm)

    def applied(self, selector: Selector) -> Selector:
        """A nominal selector made robust."""
        return selector.replace(uncertainty=self.ball, counterpart=self.counterpart)


def rules(radii: Sequence[float], relevance: str) -> list[Rule]:
    """Both counterparts at every radius; for cosines the l-infinity ball beside them."""
    made = [Rule(counterpart, r) for counterpart in ("termwise", "joint") for r in radii]
    return [*made, Rule("termwise", _LINF, "linf")] if relevance == "cosine" else made


def base_selector(relevance: str, model: RelevanceModel) -> Selector:
    """The nominal selector. No passage penalty: every rule may fill the budget."""
    plain = Selector.raw(redundancy_weight=0.1, passage_penalty=0.0, options=_OPTIONS)
    if relevance == "cosine":
        return plain
    return plain.replace(redundancy_weight=0.05, link_benefit=0.2, relevance_model=model)
