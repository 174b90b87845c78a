"""What a router is worth on questions that it has not seen: by folds, against all that needs no router.

Every question is decided by a router that was trained without it. Rivals: each fixed tier, the best mixture
of fixed tiers at equal cost (draw one of two, looking at no question), a draw with the router's own shares,
and the oracle.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.control.outcomes import mixtures
from mio_rag.control.router.fit import FOLDS, FitSettings, Fitted, fit_once, folds_of, plausible_at
from mio_rag.control.router.model import Router
from mio_rag.control.router.settings import Utility
from mio_rag.control.router.table import WORKED, Table
from mio_rag.errors import InputError

__all__ = ["PRICES", "Validated", "chosen_at", "fit_and_validate", "frontier", "out_of_fold"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]

#: Prices of a token at which the frontier of a router of utility is drawn.
PRICES = (0.0, 1e-5, 3e-5, 1e-4, 2e-4, 3e-4, 5e-4, 7e-4, 1e-3, 1.5e-3, 2e-3, 3e-3, 5e-3, 1e-2)
_BINS = 10
_DRAWS = 1000
_FEW = 500  # questions whose draws are kept: 4 MB
LEAST = 13  # questions, of which 10 are left without a fold


@dataclass(frozen=True, eq=False)
class Validated:
    """What each question was told by a router that had not seen it.

    Parameters
    ----------
    probabilities : array, shape (n, m)
        Of each tier to be the one that is needed.
    success : array, shape (n, m), or None
        Of each tier to do; of the kind `utility` alone.
    choice : array of int, shape (n,)
        Places of the tiers chosen, at the utility of the run.
    plausible : float
        The conformal threshold.
    """

    table: Table
    probabilities: FloatArray
    success: FloatArray | None
    choice: IntArray
    plausible: float

    def up(self) -> IntArray:
        """The choices, one tier up where several are plausible."""
        several = (self.probabilities >= self.plausible).sum(axis=1) > 1
        return np.asarray(np.minimum(self.choice + several, len(self.table.tiers) - 1), dtype=np.intp)

    def at(self, utility: Utility) -> IntArray:
        """The choices at another utility; those of other kinds do not change."""
        if self.success is None:
            return self.choice
        return chosen_at(self.success, self.table.costs(), utility)


def chosen_at(success: FloatArray, costs: FloatArray, utility: Utility) -> IntArray:
    """Places of the tiers of largest utility, shape (n,).

    Parameters
    ----------
    success : array, shape (n, m)
    costs : array, shape (m, 3)
        Tokens, seconds and megabytes.
    """
    charged = costs @ np.array([utility.beta, utility.gamma, utility.delta])
    return np.asarray(np.argmax(utility.alpha * success - charged, axis=1), dtype=np.intp)


def out_of_fold(
    table: Table,
    settings: FitSettings,
    utility: Utility | None = None,
    progress: Callable[[int], None] | None = None,
) -> Validated:
    """Train without each fold in turn, and ask about it.

    Parameters
    ----------
    progress : callable, optional
        Called with 1 as each fold is finished.

    Raises
    ------
    InputError
        For fewer than 13 questions.
    """
    if len(table) < LEAST:
        raise InputError(
            f"{len(table)} questions are too few to train a router and to measure it by folds: give at least "
            f"{LEAST}"
        )
    fold = folds_of(table.labels, settings.seed)
    n, m = len(table), len(table.tiers)
    probabilities, success = np.zeros((n, m)), np.zeros((n, m))
    for k in range(FOLDS):
        router = fit_once(table.where(fold != k), settings).router
        for place in np.flatnonzero(fold == k):
            seen = table.seen[place]
            probabilities[place] = router.probabilities(seen)
            if router.kind == "utility":
                success[place] = router.success(seen)
        if progress:
            progress(1)
    plausible = plausible_at(probabilities, table.labels, settings.confidence)
    known = success if settings.kind == "utility" else None
    choice = (
        np.argmax(probabilities, axis=1)
        if known is None
        else chosen_at(known, table.costs(), utility or Utility())
    )
    return Validated(table, probabilities, known, choice, plausible)


def fit_and_validate(
    table: Table,
    settings: FitSettings,
    utility: Utility | None = None,
    progress: Callable[[int], None] | None = None,
) -> tuple[Fitted, Validated]:
    """A router of all questions, with what folds say: measures, shares and the conformal threshold."""
    found = out_of_fold(table, settings, utility, progress)
    made = fit_once(table, settings)
    shares = np.bincount(found.choice, minlength=len(table.tiers)) / len(table)
    router: Router = replace(
        made.router,
        shares=tuple(shares.tolist()),
        plausible=found.plausible,
        measures=measured(found, utility or Utility()),
    )
    return Fitted(router, made.history), found


def measured(found: Validated, utility: Utility) -> dict[str, Any]:
    """Accuracy, confusion, calibration, cost and quality against rivals; plain data."""
    table, labels, m = found.table, found.table.labels, len(found.table.tiers)
    confusion = np.zeros((m, m), dtype=int)
    np.add.at(confusion, (labels, found.choice), 1)
    sets = (found.probabilities >= found.plausible).sum(axis=1)
    inside = found.probabilities[np.arange(len(labels)), labels] >= found.plausible
    rows = {
        "router": _point(table, found.choice),
        "router, up where unsure": _point(table, found.up()),
        **{f"tier:{tier.name}": _point(table, np.full(len(table), k)) for k, tier in enumerate(table.tiers)},
        "oracle": _point(table, table.labels),
        # Who knows the outcomes, and is charged for a tier what routers are.
        "oracle at the utility": _point(
            table, chosen_at(table.worked.astype(np.float64), table.costs(), utility)
        ),
    }
    return {
        "questions": len(table),
        "accuracy": float((found.choice == labels).mean()),
        "most_frequent_label": float(np.bincount(labels, minlength=m).max() / len(labels)),
        "label_shares": (np.bincount(labels, minlength=m) / len(labels)).tolist(),
        "confusion": confusion.tolist(),
        "calibration_error": calibration_error(found),
        "unsure_share": float((sets > 1).mean()),
        "right_tier_is_plausible": float(inside.mean()),
        "utility": dict(vars(utility)),
        "rows": rows,
        "best_mixture_at_equal_cost": _mixture(table, rows["router"]["prompt_tokens"]),
        "against_mixture": _against_mixture(table, found.choice),
    }


def calibration_error(found: Validated) -> float:
    """Expected calibration error of each tier, ten bins of equal width, mean over the tiers.

    Of the success of each tier where that is known, else of the label's probabilities (Kull et al. 2019,
    "Beyond temperature scaling", classwise). Never pooled over tiers: probabilities of one question sum to 1,
    so whoever says 1/m of every tier would be free of error.
    """
    if found.success is None:
        said, true = found.probabilities, np.eye(found.probabilities.shape[1])[found.table.labels]
    else:
        said, true = found.success, found.table.worked.astype(np.float64)
    bins, off = np.minimum((said * _BINS).astype(int), _BINS - 1), said - true
    # A bin's share of the questions times its mean error is the sum of its errors over all questions.
    return float(
        np.mean(
            [
                sum(abs(off[bins[:, j] == b, j].sum()) for b in range(_BINS)) / len(said)
                for j in range(said.shape[1])
            ]
        )
    )


def _point(table: Table, choice: IntArray) -> dict[str, float]:
    """Means under a choice, with what is defined everywhere."""
    outcomes = table.outcomes
    names = [WORKED, "prompt_tokens", "tokens_used", "exact_match", "token_f1", "gold_recall"]
    return {
        name: outcomes.mean(name, choice)
        for name in names
        if name in outcomes.values and not np.isnan(outcomes.values[name]).any()
    }


def _mixture(table: Table, tokens: float) -> float | None:
    """How often the best mixture of fixed tiers does at so many tokens; None below the cheapest tier."""
    found = table.outcomes.fixed_at(WORKED, "prompt_tokens", tokens)
    return None if np.isnan(found) else found


def _against_mixture(table: Table, choice: IntArray) -> dict[str, float]:
    """How much more often a choice does than the best mixture of fixed tiers at its tokens, with the 95 %
    interval: a bootstrap over questions, in which each draw has a mixture of its own."""
    n, rows = len(table), np.arange(len(table))
    worked, tokens = table.worked, table.outcomes.of("prompt_tokens")
    weights = _drawn(n) if n <= _FEW else _draw(n)
    spent, did = weights @ tokens[rows, choice], weights @ worked[rows, choice]
    gains = did - mixtures(weights @ worked, weights @ tokens, spent)
    low, high = np.quantile(gains[1:], [0.025, 0.975])
    return {"mean": float(gains[0]), "low": float(low), "high": float(high)}


def _draw(n: int) -> FloatArray:
    """Weights of the questions, shape (draws + 1, n): all alike, then those of each draw."""
    rng = np.random.default_rng(0)
    drawn = [np.bincount(rng.integers(n, size=n), minlength=n) / n for _ in range(_DRAWS)]
    return np.vstack([np.full(n, 1 / n), *drawn])


@functools.lru_cache(maxsize=2)  # routers of the same questions are measured one after the other
def _drawn(n: int) -> FloatArray:
    found = _draw(n)
    found.flags.writeable = False
    return found


def frontier(
    choices: Sequence[IntArray], table: Table, quality: str = WORKED, cost: str = "prompt_tokens"
) -> list[tuple[float, float]]:
    """(mean cost, mean quality) of choices, by cost."""
    return sorted((table.outcomes.mean(cost, one), table.outcomes.mean(quality, one)) for one in choices)
