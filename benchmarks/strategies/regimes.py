"""Every policy in both regimes: hearing the program's own estimate, and told the gold of what it ran.

Without labels a policy hears what the selection program makes of the strategies that it ran. Told the gold it
hears what these, alone and in pairs, add to the recall of the gold, as bandits are usually studied: each the
reward of what it played, on the same orders. Nobody hears of what did not run.

Questions come up again in an order, which helps who tells them apart. What a policy earns on questions that
have not come up before is therefore shown beside what it earns on all: of these it can know nothing but what
others have taught.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.strategies.bound import at_equal_cost, mixture_at, resampled
from benchmarks.strategies.goals import OURS
from benchmarks.strategies.simulate import (
    POLICIES,
    PRICE,
    Lived,
    action_of,
    interval,
    live,
    order_of,
    summed,
    utility,
)
from benchmarks.strategies.table import BASE
from mio_rag.session.strategies import STRATEGIES

FloatArray = NDArray[np.float64]
Cells = Sequence[Mapping[str, Any]]
Orders = Sequence[Sequence[int]]


def both_regimes(
    cells: Cells, table: Any, best: str, orders: int, questions: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """What every policy earned in both regimes, beside fixed sets and the oracle on the same orders.

    Parameters
    ----------
    table : Outcomes
        Of these cells.
    best : str
        The best fixed set in hindsight.

    Returns
    -------
    dict
        `policies`, `equal_cost`, `evidence` and `first_times` without labels; under `told_the_gold` the same,
        where `policies` holds only those that learn. Goals are added by `judge`.
    """
    drawn = [order_of(range(len(cells)), questions, seed) for seed in range(orders)]
    oracle = [max(map(utility, line["cells"].values())) for line in cells]
    rival = [utility(line["cells"][best]) for line in cells]
    names = dict.fromkeys((BASE, *STRATEGIES, action_of(STRATEGIES)))
    fixed = {f"fixed: {name}": _fixed(cells, drawn, name) for name in names}
    fixed[f"fixed: best fixed in hindsight ({best})"] = _fixed(cells, drawn, best)
    found: list[dict[str, Any]] = []
    for gold in (False, True):
        lived = {}
        for name, settings in POLICIES.items():
            say(f"policy {name}{', told the gold' if gold else ''}")
            priced = settings.replace(token_price=PRICE) if gold else settings
            lived[name] = [live(cells, o, priced, seed=s, gold=gold) for s, o in enumerate(drawn)]
        found.append(
            {
                "policies": {name: summed(each, drawn, oracle, rival) for name, each in lived.items()},
                "equal_cost": at_equal_cost(cells, table, *_late(lived[OURS], drawn, len(cells))),
                "evidence": {name: _evidence(each, drawn, table) for name, each in lived.items()},
                "first_times": first_times({**lived, **fixed}, drawn, rival, table),
            }
        )
    without, told = found
    without["policies"][f"{OURS}, told the gold"] = told["policies"][OURS]
    without["policies"] |= {name: summed(each, drawn, oracle, rival) for name, each in fixed.items()}
    return {**without, "told_the_gold": told}


def _fixed(cells: Cells, orders: Orders, action: str) -> list[Lived]:
    """The same set for every question."""
    lived = []
    for order in orders:
        one = Lived()
        for place in order:
            cell = cells[place]["cells"][action]
            one.rows.append((utility(cell), cell["gold_recall"], cell["tokens"]))
            one.actions.append(action)
        lived.append(one)
    return lived


def _late(lived: Sequence[Lived], orders: Orders, count: int) -> tuple[FloatArray, float]:
    """Mean recall of each question in the second halves, that of all where it never came up; mean tokens."""
    half = len(orders[0]) // 2
    places = np.concatenate([o[half:] for o in orders])
    recall = np.concatenate([one.recall[half:] for one in lived])
    sums, seen = np.bincount(places, recall, count), np.bincount(places, minlength=count)
    means = np.where(seen > 0, sums / np.maximum(seen, 1), recall.mean())
    return means, float(np.mean([one.tokens[half:].mean() for one in lived]))


def _evidence(lived: Sequence[Lived], orders: Orders, table: Any) -> dict[str, Any]:
    """Recall in the second halves against the best mixture of fixed sets in hindsight at the same tokens.

    The intervals are over questions, as for the default in `bound`, and over orders.
    """
    recall, tokens = table.of("gold_recall"), table.of("tokens")
    ours, spent = _late(lived, orders, len(recall))
    fixed = recall @ mixture_at(recall.mean(axis=0), tokens.mean(axis=0), spent)
    half = len(orders[0]) // 2
    gaps = [
        one.recall[half:].mean() - fixed[list(order[half:])].mean()
        for one, order in zip(lived, orders, strict=True)
    ]
    return {
        "tokens": spent,
        "recall": float(ours.mean()),
        "fixed_mixture": float(fixed.mean()),
        "beyond_fixed": resampled(ours - fixed),
        "beyond_fixed_by_order": interval(np.array(gaps)),
    }


def first_times(
    lived: Mapping[str, Sequence[Lived]], orders: Orders, rival: Sequence[float], table: Any
) -> dict[str, Any]:
    """What each is worth beyond the best fixed set where a question comes up first, and where it does again.

    Parameters
    ----------
    rival : sequence of float
        Worth of the best fixed set, by question.

    Returns
    -------
    dict
        `questions`: mean number of first times; `policies`: name -> means of an order, with intervals over
        orders: `first`, `late` (first times after as many questions as there are), `again`, `evidence`
        (recall beyond the best mixture of fixed sets at the same tokens, of first times), and `ours_more`
        (the default's `first` less this one's), and
        `by_question` (the mean over questions of `first`, with a bootstrap interval over questions).
    """
    fresh = []
    for order in orders:
        places, mask = np.unique(order, return_index=True)[1], np.zeros(len(order), dtype=bool)
        mask[places] = True
        fresh.append(mask)
    late = np.arange(len(orders[0])) >= len(rival)
    recall, tokens = table.of("gold_recall"), table.of("tokens")
    worth = np.array(rival)
    told: dict[str, Any] = {}
    ground: FloatArray | None = None
    for name in sorted(lived, key=lambda each: each != OURS):  # ours first: others are held against it
        each = lived[name]
        gains = [one.earned - worth[list(o)] for one, o in zip(each, orders, strict=True)]
        first = np.array([gain[mask].mean() for gain, mask in zip(gains, fresh, strict=True)])
        ground = first if ground is None else ground
        spent = float(np.mean([one.tokens[mask].mean() for one, mask in zip(each, fresh, strict=True)]))
        fixed = recall @ mixture_at(recall.mean(axis=0), tokens.mean(axis=0), spent)
        more = [
            (one.recall - fixed[list(o)])[mask].mean()
            for one, o, mask in zip(each, orders, fresh, strict=True)
        ]
        told[name] = {
            "first": interval(first),
            "late": _mean(gains, [mask & late for mask in fresh]),
            "again": _mean(gains, [~mask for mask in fresh]),
            "by_question": resampled(np.nanmean(_each(gains, orders, fresh, len(worth)), axis=0)),
            "tokens": spent,
            "evidence": interval(np.array(more)),
            "ours_more": interval(ground - first),
        }
    return {"questions": float(np.mean([mask.sum() for mask in fresh])), "policies": told}


def _each(
    gains: Sequence[FloatArray], orders: Orders, masks: Sequence[NDArray[np.bool_]], count: int
) -> FloatArray:
    """What is masked, by order and question; NaN where a question did not come up."""
    found = np.full((len(orders), count), np.nan)
    for row, gain, order, mask in zip(found, gains, orders, masks, strict=True):
        row[np.asarray(order)[mask]] = gain[mask]
    return found[:, ~np.isnan(found).all(axis=0)]


def _mean(gains: Sequence[FloatArray], masks: Sequence[NDArray[np.bool_]]) -> dict[str, float] | None:
    """Of the orders in which there are any; None without them."""
    means = [gain[mask].mean() for gain, mask in zip(gains, masks, strict=True) if mask.any()]
    return interval(np.array(means)) if means else None


def regimes_in_words(told: Mapping[str, Any]) -> list[str]:
    """Tables of both regimes: regret, evidence at equal cost, first times."""
    last, count = str(told["questions_of_an_order"]), told["questions"]
    lines = []
    for title, each in (("without labels", told), ("told the gold of what it ran", told["told_the_gold"])):
        lines += [
            f"{title}: regret to the best set for all after {last} questions, and of {OURS} less that; "
            "tokens and recall of the second half beyond the best fixed sets at these tokens, with intervals "
            "over questions and over orders",
            f"  {'policy':28}{'regret':24}{OURS + ' less that':25}{'tokens':>6} "
            f"{'beyond, by question':28}beyond, by order",
        ]
        for name, found in each["evidence"].items():
            regret = each["policies"][name]["regret_to_best_fixed"][last]
            less = each["goals"]["difference_of_regret"].get(name)
            lines.append(
                f"  {name:28}{_said(regret, 2):24}{'' if less is None else _said(less, 2):25}"
                f"{found['tokens']:6.1f} {_said(found['beyond_fixed'], 4):28}"
                f"{_said(found['beyond_fixed_by_order'], 4)}"
            )
        first = each["first_times"]
        lines += [
            "",
            f"{title}: worth a question beyond the best set for all, where a question comes up first "
            f"({first['questions']:.0f} times an order), with intervals over orders and over questions; of "
            f"{OURS} more than that; first, but after {count} questions; where it comes up again; tokens and "
            "recall beyond the best fixed sets at these tokens, of first times",
            f"  {'policy':28}{'first, by order':28}{'first, by question':28}{OURS + ' more':28}{'late':28}"
            f"{'again':28}{'tokens':>6} recall",
        ]
        for name, found in first["policies"].items():
            if name.startswith("fixed:"):
                continue
            kept = ("first", "by_question", "ours_more", "late", "again")
            lines.append(
                f"  {name:28}{''.join(f'{_said(found[key], 4):28}' for key in kept)}"
                f"{found['tokens']:6.1f} {_said(found['evidence'], 4)}"
            )
        lines.append("")
    return lines


def _said(found: Mapping[str, float] | None, digits: int) -> str:
    if found is None:
        return "none"
    return f"{found['mean']:+.{digits}f} [{found['low']:+.{digits}f}, {found['high']:+.{digits}f}]"
