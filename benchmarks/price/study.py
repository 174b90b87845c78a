"""Rules for spending tokens on a mixed workload: what each question reads, finds and costs.

fused            reciprocal rank fusion, best first, one budget for all questions
probabilities    ranking by the same probabilities as the program, one budget for all
program          the exact program without prices, one budget for all
default          the same with the price of a passage that is the default
price            the exact program at one price of a token for all, at most so many tokens a question
allocation       one total for all questions, with a certificate
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.default.models import Pools
from benchmarks.default.study import head
from mio_rag.allocation import allocate
from mio_rag.evaluation.contenders import make_methods
from mio_rag.measures import evidence_found
from mio_rag.pool import Candidates
from mio_rag.relevance import RelevanceModel
from mio_rag.selection.program import LINK_BENEFIT
from mio_rag.selection.selector import Selector
from mio_rag.solvers import SolveOptions
from mio_rag.types import Question

BUDGETS = (128, 256, 512, 1024)
PRICES = (0.005, 0.002, 0.001, 0.0005, 0.0002, 0.0001)
MEANS = (150, 250, 400, 600, 1000)
CEILING = 2048
_DEFAULT = Selector().passage_penalty


@dataclass(frozen=True, eq=False)
class Asked:
    """A question of a set, what was retrieved for it, and the same with probabilities as relevance."""

    data: str
    question: Question
    pool: Candidates
    valued: Candidates


@dataclass(eq=False)
class Row:
    """One rule at one setting: a number for each question."""

    rule: str
    setting: float
    recall: list[float] = field(default_factory=list)
    everything: list[float] = field(default_factory=list)
    tokens: list[float] = field(default_factory=list)
    proven: list[float] = field(default_factory=list)
    certificate: dict[str, Any] | None = None

    @property
    def name(self) -> str:
        """Rule and setting."""
        return f"{self.rule} {self.setting:g}"

    def add(self, asked: Asked, chosen: Sequence[int], tokens: int, proven: bool) -> None:
        """What one question reads, by positions in its pool."""
        found = evidence_found(asked.question, asked.pool, chosen)
        self.recall.append(found)
        self.everything.append(float(found == 1))
        self.tokens.append(float(tokens))
        self.proven.append(float(proven))


def asked_of(pools: Pools, model: RelevanceModel | None) -> list[Asked]:
    """The questions of a set; without a model, probabilities are those that `Selector()` takes."""
    selector = Selector() if model is None else Selector(relevance_model=model)
    return [
        Asked(pools.name, question, pool, selector.valued(pool))
        for question, pool in zip(pools.questions, pools.pools, strict=True)
    ]


def rows_of(asked: Sequence[Asked], time_limit: float, tell: Callable[[str], None]) -> list[Row]:
    """Every rule at every setting."""
    options = SolveOptions(time_limit_seconds=time_limit, relative_gap=1e-4)
    program = Selector(options=options, relevance_model=None, link_benefit=LINK_BENEFIT, passage_penalty=0.0)
    fused = make_methods(["fused"], program)[0]
    ranked = fused.selector.replace(relevance_model="given")
    rows = []
    for budget in BUDGETS:
        rows.append(_each(asked, "fused", budget, lambda a: fused.scored(head(a.pool)), fused.selector))
        rows.append(_each(asked, "probabilities", budget, _valued, ranked))
        rows.append(_each(asked, "program", budget, _valued, program))
        rows.append(_each(asked, "default", budget, _valued, program.replace(passage_penalty=_DEFAULT)))
        tell(f"budget {budget}")
    for price in PRICES:
        rows.append(_each(asked, "price", CEILING, _valued, program.replace(token_price=price)))
        rows[-1].setting = price
        tell(f"price {price:g}")
    for mean in MEANS:
        rows.append(_allocated(asked, mean, program))
        tell(f"allocation of {mean} tokens in the mean")
    return rows


def _valued(asked: Asked) -> Candidates:
    return asked.valued


def _each(
    asked: Sequence[Asked], rule: str, budget: int, of: Callable[[Asked], Candidates], selector: Selector
) -> Row:
    row = Row(rule, budget)
    for one in asked:
        candidates = of(one)
        choice = selector.choose(candidates, budget)
        row.add(one, choice.chosen, choice.used, choice.result.is_optimal)
    return row


def _allocated(asked: Sequence[Asked], mean: int, selector: Selector) -> Row:
    row = Row("allocation", mean)
    found = allocate([a.valued for a in asked], mean * len(asked), selector=selector, ceilings=CEILING)
    for one, choice, tokens in zip(asked, found.choices, found.tokens, strict=True):
        row.add(one, choice.chosen, tokens, choice.result.is_optimal)
    row.certificate = {
        "token_price": found.token_price,
        "tokens_used": found.tokens_used,
        "total_tokens": found.total_tokens,
        "value": found.value,
        "bound": found.bound,
        "gap": found.gap,
        "programs": found.programs,
    }
    return row
