"""Rows of the study: each a way of choosing, as probabilities of the actions on every question.

Whatever is trained decides about questions that it has not seen: by folds on the sets that it learns from,
and as a whole on sets that it never meets.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import InputError
from mio_rag.learning.outcomes import Outcomes
from mio_rag.learning.router import (
    LABEL,
    WORKED,
    FitSettings,
    Table,
    Validated,
    chosen_at,
    correction_at,
    fit_once,
    joined,
    measured,
    out_of_fold,
)
from mio_rag.learning.router_model import SEARCH, Seen, Utility

FloatArray = NDArray[np.float64]

#: Prices of a token at which the frontier of a router of utility is drawn.
PRICES = (0.0, 1e-5, 3e-5, 1e-4, 2e-4, 3e-4, 5e-4, 7e-4, 1e-3, 1.5e-3, 2e-3, 3e-3, 5e-3, 1e-2)

COST = "prompt_tokens"

#: Name of a row -> kind and features of a router that learns which tier is needed.
_Kind = Literal["mlp", "logistic", "utility"]
_Features = Literal["question", "question+search"]
ROUTERS: Mapping[str, tuple[_Kind, _Features]] = {
    "published router": ("mlp", "question"),
    "logistic": ("logistic", "question"),
    "mlp with search": ("mlp", "question+search"),
    "logistic with search": ("logistic", "question+search"),
}
_FEATURES: tuple[_Features, ...] = ("question", "question+search")
#: Ladder, name of its rows, and features of a router that learns what each of its tiers achieves.
UTILITIES: tuple[tuple[str, str, _Features], ...] = tuple(
    (ladder, name, features)
    for ladder, name in (("published", "utility"), ("priced", "both"))
    for features in _FEATURES
)
#: Cosine below which the publication calls a search weak; and the share of searches that a learned one does.
_PUBLISHED_BELOW, _WEAK = 0.52, 0.15
#: Prices of a token at which rows of utility are shown.
_SHOWN = (0.0001, 0.0003, 0.0005, 0.001, 0.002)


@dataclass(frozen=True, eq=False)
class Group:
    """Questions of some sets, with the outcomes of every action of every ladder.

    Parameters
    ----------
    ladders : mapping of str to Table
        Of the same questions.
    outcomes : Outcomes
        All actions side by side.
    """

    name: str
    ladders: Mapping[str, Table]
    outcomes: Outcomes

    def on(self, ladder: str, choice: NDArray[np.intp] | FloatArray) -> FloatArray:
        """A choice among the tiers of a ladder, as probabilities of all actions, shape (n, m)."""
        names = [tier.name for tier in self.ladders[ladder].tiers]
        columns = [self.outcomes.actions.index(name) for name in names]
        made = np.zeros((len(self.outcomes), len(self.outcomes.actions)))
        if choice.ndim == 2:
            made[:, columns] = choice
        else:
            made[np.arange(len(choice)), np.array(columns)[choice.astype(int)]] = 1.0
        return made


@dataclass(eq=False)
class Row:
    """A way of choosing.

    Parameters
    ----------
    kind : str
        "tier", "fixed k", "price", "sentences", "router", "utility", "both", "draw" or "oracle": how it is
        drawn.
    chances : array, shape (n, m)
        Of the actions.
    """

    name: str
    kind: str
    chances: FloatArray
    about: dict[str, Any] = field(default_factory=dict)

    def values(self, outcomes: Outcomes, measure: str) -> FloatArray:
        """The measure's expectation on each question, shape (n,); nan where it is undefined."""
        found = np.where(self.chances > 0, outcomes.values[measure], 0.0)
        return np.asarray((found * self.chances).sum(axis=1), dtype=np.float64)


def groups_of(tables: Mapping[str, Mapping[str, Table]], names: Sequence[str], name: str) -> Group:
    """The questions of some sets that every ladder has, as one group.

    What the labels of a set leave undefined is nan there.
    """
    columns = dict.fromkeys(m for one in names for t in tables[one].values() for m in t.outcomes.values)
    parts: dict[str, list[Table]] = {}
    for one in names:
        ladders = tables[one]
        shared = set.intersection(*(set(table.outcomes.ids) for table in ladders.values()))
        for ladder, table in ladders.items():
            place = {i: k for k, i in enumerate(table.outcomes.ids)}
            kept = [place[i] for i in next(iter(ladders.values())).outcomes.ids if i in shared]
            parts.setdefault(ladder, []).append(_padded(table.where(kept), columns))
    merged = {ladder: joined(some) for ladder, some in parts.items()}
    first = next(iter(merged.values())).outcomes
    measures = [m for m in first.values if all(m in table.outcomes.values for table in merged.values())]
    outcomes = Outcomes(
        first.ids,
        tuple(action for table in merged.values() for action in table.outcomes.actions),
        {m: np.hstack([table.outcomes.values[m] for table in merged.values()]) for m in measures},
        first.questions,
        first.sets,
    )
    return Group(name, merged, outcomes)


def _padded(table: Table, columns: Collection[str]) -> Table:
    """The table with all these columns."""
    nowhere = np.full(table.worked.shape, np.nan)
    values = {name: table.outcomes.values.get(name, nowhere) for name in columns}
    return dataclasses.replace(table, outcomes=dataclasses.replace(table.outcomes, values=values))


def without(group: Group, ids: Collection[str]) -> Group:
    """The other questions of a group.

    Raises
    ------
    InputError
        If none is left.
    """
    kept = [k for k, one in enumerate(group.outcomes.ids) if one not in ids]
    if not kept:
        raise InputError("there are no other questions")
    ladders = {name: table.where(kept) for name, table in group.ladders.items()}
    return Group(group.name, ladders, group.outcomes.where(kept))


def at_actions_of(group: Group, other: Group) -> Group:
    """A group with those actions of each ladder that another one has; the ladders that both have.

    A question's label is again the cheapest tier that does, and the dearest where none does.
    """
    ladders = {}
    for name, table in other.ladders.items():
        if name not in group.ladders:
            continue
        mine = group.ladders[name]
        ladders[name] = at_tiers(mine, [tier.name for tier in table.tiers])
    return Group(group.name, ladders, group.outcomes)


def at_tiers(table: Table, names: Sequence[str]) -> Table:
    """Some tiers of a table. A label is the cheapest of them that does, or the last where none does."""
    kept = [k for k, tier in enumerate(table.tiers) if tier.name in names]
    worked = table.worked[:, kept]
    label = np.where(worked.any(axis=1), worked.argmax(axis=1), len(kept) - 1)
    values = {name: found[:, kept] for name, found in table.outcomes.values.items()}
    values[LABEL] = table.outcomes.of(LABEL) if len(kept) == len(table.tiers) else np.eye(len(kept))[label]
    actions = tuple(table.tiers[k].name for k in kept)
    outcomes = dataclasses.replace(table.outcomes, actions=actions, values=values)
    return Table(outcomes, tuple(table.tiers[k] for k in kept), table.seen, table.embedder)


def mixture(outcomes: Outcomes, columns: Sequence[int], spent: float, quality: str = WORKED) -> FloatArray:
    """Chances of the best mixture of two fixed actions whose mean cost is at most `spent`, shape (m,).

    Below the cheapest action it is that action.
    """
    costs, values = outcomes.of(COST).mean(axis=0), outcomes.of(quality).mean(axis=0)
    best, chances = -np.inf, np.zeros(len(outcomes.actions))
    cheapest = min(columns, key=lambda k: costs[k])
    for one in columns:
        for other in columns:
            if costs[one] > spent and one != cheapest:
                continue
            gap = costs[other] - costs[one]
            share = 0.0 if gap <= 0 else float(np.clip((spent - costs[one]) / gap, 0, 1))
            found = (1 - share) * values[one] + share * values[other]
            if found > best:
                best = found
                chances = np.zeros(len(outcomes.actions))
                chances[one] += 1 - share
                chances[other] += share
    return chances


#: What routers said out of fold, by ladder and settings: it is the same for every group that is asked.
Folds = dict[tuple[str, FitSettings], Validated]


def rows_of(trained: Group, asked: Group | None, seed: int = 0, known: Folds | None = None) -> list[Row]:
    """Every row on the questions of `asked`; None: on those that routers learn from, by folds.

    Parameters
    ----------
    known : dict, optional
        Taken from, and added to: calls that learn from the same questions need not train twice.
    """
    known = {} if known is None else known
    here = trained if asked is None else asked
    published, priced = here.ladders["published"], here.ladders["priced"]
    rows = [_one(here, "published", k, "tier") for k in range(len(published.tiers))]
    rows += [_one(here, "fixed", k, "fixed k") for k in range(len(here.ladders["fixed"].tiers))]
    rows += [_one(here, "priced", k, "price") for k in range(len(priced.tiers))]
    if "sentences" in here.ladders:
        rows += [_one(here, "sentences", k, "sentences") for k in range(len(here.ladders["sentences"].tiers))]
    for name, (kind, features) in ROUTERS.items():
        settings = FitSettings(kind=kind, features=features, seed=seed)
        found = _decided("published", trained, asked, settings, known)
        about = _about(found, kind, features)
        rows.append(Row(name, "router", here.on("published", found.choice), about))
        if name == "published router":
            shares = np.bincount(found.choice, minlength=len(published.tiers)) / len(published)
            drawn = np.tile(shares, (len(published), 1))
            rows.append(Row("draw with its shares", "draw", here.on("published", drawn)))
            rows.append(Row(f"{name}, up", "router", here.on("published", found.up())))
            rows += _ablation(here, trained, found)
    for ladder, name, features in UTILITIES:
        if len(here.ladders[ladder].tiers) < 2:
            continue
        settings = FitSettings(kind="utility", features=features, seed=seed)
        found = _decided(ladder, trained, asked, settings, known)
        assert found.success is not None
        costs, told = trained.ladders[ladder].costs(), _about(found, "utility", features)
        for price in PRICES:
            choice = chosen_at(found.success, costs, Utility(beta=price))
            about = {**told, "price": price, "shown": price in _SHOWN}
            rows.append(Row(f"{name}, {features} @{price:g}", name, here.on(ladder, choice), about))
    rows.append(Row("oracle of labels", "oracle", here.on("published", published.labels)))
    for price in (0.0001, 0.0005):
        best = published.outcomes.oracle(WORKED, {COST: price})
        rows.append(Row(f"oracle of tiers @{price:g}", "oracle", here.on("published", best)))
        best = priced.outcomes.oracle(WORKED, {COST: price})
        rows.append(Row(f"oracle of prices @{price:g}", "oracle", here.on("priced", best)))
    return rows


def _one(group: Group, ladder: str, place: int, kind: str) -> Row:
    table = group.ladders[ladder]
    return Row(table.tiers[place].name, kind, group.on(ladder, np.full(len(table), place)))


def _decided(
    ladder: str, trained: Group, asked: Group | None, settings: FitSettings, known: Folds
) -> Validated:
    """What routers say that have not seen the questions."""
    table = trained.ladders[ladder]
    if (ladder, settings) not in known:
        known[ladder, settings] = out_of_fold(table, settings)
    learned = known[ladder, settings]
    if asked is None:
        return learned
    router, others = fit_once(table, settings).router, asked.ladders[ladder]
    probabilities = np.array([router.probabilities(one) for one in others.seen])
    success = np.array([router.success(one) for one in others.seen]) if settings.kind == "utility" else None
    choice = (
        np.argmax(probabilities, axis=1) if success is None else chosen_at(success, table.costs(), Utility())
    )
    return Validated(others, probabilities, success, choice, learned.plausible)


def _about(found: Validated, kind: str, features: str) -> dict[str, Any]:
    told = measured(found, Utility())
    kept = ("accuracy", "most_frequent_label", "calibration_error", "unsure_share", "confusion")
    return {"learner": kind, "features": features, **{name: told[name] for name in kept}}


def _ablation(here: Group, trained: Group, found: Validated) -> list[Row]:
    """The published ablation: routing alone, with whole passages; and with correction beside compression.

    What was not run is left out.
    """
    fixed = {tier.depth: k for k, tier in enumerate(here.ladders["fixed"].tiers)}
    depths = [tier.depth for tier in here.ladders["published"].tiers]
    rows = []
    if set(depths) <= set(fixed):
        places = np.array([fixed[depth] for depth in depths])[found.choice]
        rows.append(Row("published router, whole passages", "router", here.on("fixed", places)))
    if "corrected" in here.ladders:
        rate = FitSettings(correct_rate=_WEAK)
        learned = correction_at(trained.ladders["published"], rate)
        assert learned is not None
        for said, below in ((f"{_PUBLISHED_BELOW:g}", _PUBLISHED_BELOW), ("learned", learned.below)):
            row = _corrected(here, found, below)
            row.about["below"] = below
            rows.append(dataclasses.replace(row, name=f"published router, corrected ({said})"))
    return rows


def _corrected(here: Group, found: Validated, below: float) -> Row:
    """Its routing with more passages where the best cosine is below a threshold, but at the dearest tier."""
    published, more = here.ladders["published"], here.ladders["corrected"]
    best = np.array([one.search[SEARCH.index("best_cosine")] for one in published.seen])
    weak = (best < below) & (found.choice < len(more.tiers))
    usual = here.on("published", found.choice)
    deeper = here.on("corrected", np.minimum(found.choice, len(more.tiers) - 1))
    return Row("", "router", np.where(weak[:, None], deeper, usual), {"weak": float(weak.mean())})


def deciding_seconds(trained: Table, seed: int = 0) -> dict[str, float]:
    """Processor seconds of one decision, by kind: the median over the questions."""
    times = {}
    for kind in ("mlp", "logistic", "utility"):
        router = fit_once(trained, FitSettings(kind=kind, seed=seed)).router
        times[kind] = _median(lambda seen, router=router: router.choose(seen), trained.seen[:200])
    return times


def _median(decide: Any, seen: Sequence[Seen]) -> float:
    took = []
    for one in seen:
        began = time.process_time()
        for _ in range(5):
            decide(one)
        took.append((time.process_time() - began) / 5)
    return float(np.median(took))
