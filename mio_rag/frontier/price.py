"""Evidence against mean tokens over the price of a token, beside the same over budgets alike for all."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mio_rag.allocation.workload import workload_of
from mio_rag.context import TokenCounter, block_tokens
from mio_rag.errors import require
from mio_rag.evaluation.statistics import mean_interval
from mio_rag.measures import evidence_found
from mio_rag.pictures import label_points, save_figure, set_title
from mio_rag.pool import Candidates
from mio_rag.selection.selector import Selector
from mio_rag.types import Question

_PRICE, _BUDGET = "#0072b2", "#9aa1a8"


def price_curve(
    questions: Sequence[Question],
    pools: Sequence[Candidates],
    selector: Selector,
    token_prices: Sequence[float],
    budgets: Sequence[int],
    seed: int = 0,
    counter: TokenCounter | None = None,
) -> dict[str, Any]:
    """What questions spend and find at each price, and under each budget.

    Parameters
    ----------
    token_prices : sequence of float
        Each >= 0; no question takes more than the largest budget.
    seed : int
        Of the intervals.
    counter : TokenCounter, optional
        The reader's tokenizer: what passages share is then paid once, and tokens are those that are read.

    Returns
    -------
    dict
        ceiling; prices: token_price, tokens, evidence and everything (the share of questions with all of it;
        both None without labels), each {mean, low, high}, and gap: how much more any allocation of the same
        tokens could be worth, as a share; budgets: budget_tokens and the same figures.
    """
    ceiling = max(budgets)
    labelled = [k for k, q in enumerate(questions) if q.gold_ids or (q.gold_sources and pools[k].sources)]

    def figures(chosen: Sequence[Iterable[int]], tokens: Sequence[float]) -> dict[str, Any]:
        found = [evidence_found(questions[k], pools[k], list(chosen[k])) for k in labelled]
        return {
            "tokens": mean_interval(tokens, seed),
            "evidence": mean_interval(found, seed) if found else None,
            "everything": mean_interval([float(f == 1) for f in found], seed) if found else None,
        }

    workload = workload_of(pools, selector, ceilings=ceiling, counter=counter)
    prices = []
    for price in sorted(map(float, token_prices)):
        totals = workload.at(price)
        decided = workload.decisions(price)
        chosen = [
            () if one.x is None else [i for i in one.x.nonzero()[0].tolist() if i < len(pool)]
            for one, pool in zip(decided, pools, strict=True)
        ]
        missing = totals.bound(totals.tokens) - totals.value
        gap = missing / abs(totals.value) if totals.value else None
        read = [one.tokens for one in decided]
        if counter is not None:
            read = [
                block_tokens(pool, own, counter, selector.merge and pool.spans is not None)
                for pool, own in zip(pools, chosen, strict=True)
            ]
        prices.append(
            {
                "token_price": price,
                **figures(chosen, list(map(float, read))),
                "gap": gap if gap is not None and math.isfinite(gap) else None,
            }
        )
    alike = []
    for budget in sorted(budgets):
        choices = [selector.choose(pool, budget, counter) for pool in pools]
        alike.append(
            {
                "budget_tokens": int(budget),
                **figures([c.chosen for c in choices], [float(c.used) for c in choices]),
            }
        )
    return {"ceiling": int(ceiling), "prices": prices, "budgets": alike}


def plot_price(data: Mapping[str, Any], title: str, path: Path) -> None:
    """Draw what `price_curve` returns into a .png, .svg or .pdf file: two curves, with 95 % intervals.

    Raises
    ------
    InputError
        For another format, or if the file cannot be written.
    MissingExtraError
        Without matplotlib.
    """
    require("matplotlib", "evaluation", "plotting a frontier")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.5), layout="constrained")
    panels = figure.subplots(1, 2)
    labels = {"evidence": "evidence found", "everything": "share of questions with all evidence"}
    curves = (
        ("prices", "token_price", _PRICE, "one price of a token for all"),
        ("budgets", "budget_tokens", _BUDGET, "one budget for all"),
    )
    placed = []
    for panel, (measure, label) in zip(panels, labels.items(), strict=True):
        spots: list[tuple[tuple[float, float], str]] = []
        for kind, setting, colour, name in curves:
            points = sorted(
                (p for p in data[kind] if p[measure] is not None), key=lambda p: p["tokens"]["mean"]
            )
            if not points:
                continue
            x, y = ([p[key]["mean"] for p in points] for key in ("tokens", measure))
            panel.errorbar(
                x,
                y,
                xerr=_bars(points, "tokens"),
                yerr=_bars(points, measure),
                marker="o",
                ms=4,
                color=colour,
                elinewidth=0.6,
                label=name,
            )
            spots.extend(
                (at, f"{point[setting]:g}") for point, at in zip(points, zip(x, y, strict=True), strict=True)
            )
        panel.set(xlabel="context tokens, mean per question", ylabel=label)
        placed.append((panel, spots))
    handles, names = panels[0].get_legend_handles_labels()
    if handles:  # below both panels, where no interval runs through it
        figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)
    set_title(figure, title)
    for panel, spots in placed:
        label_points(panel, spots)
    save_figure(figure, path)


def _bars(points: Sequence[Mapping[str, Any]], name: str) -> list[list[float]]:
    below = [p[name]["mean"] - p[name]["low"] for p in points]
    return [below, [p[name]["high"] - p[name]["mean"] for p in points]]
