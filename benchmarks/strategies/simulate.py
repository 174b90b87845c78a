"""Policies on questions of the table, one after another: what each runs, learns and earns.

The bandit is the package's own, without its file. It learns from contributions, which need no labels; what it
earns is measured by the gold: recall of the selection, less the price of the tokens. Orders draw questions
with replacement, since the table has fewer than a policy needs to settle: they come up again, which helps
whoever learns from contexts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.strategies.table import BASE
from mio_rag.learning.bandit import BanditSettings, Context, Learned, context_of
from mio_rag.learning.bandit_choice import Drawn, draw, mixture
from mio_rag.learning.bandit_log import Event
from mio_rag.session.strategies import STRATEGIES

FloatArray = NDArray[np.float64]

#: What a token of the model must add to the recall of the gold.
PRICE = 1e-4
#: The first questions of every set: defaults were chosen by them, and nothing is reported on them.
TUNED = 20
#: Gold passages of those questions, on average: a unit of the program's value is a passage, recall a share.
_GOLD = 2.03
_NORMAL = 1.959963984540054
OTHERS = tuple(name for name in STRATEGIES if name != BASE)
_SETTINGS = BanditSettings(token_price=PRICE * _GOLD)
_TEXTBOOK = _SETTINGS.replace(ridge=1.0, ridge_embedding=1.0, cold_start=0, prune_after=10**9, unsure=0.0)
POLICIES: dict[str, BanditSettings] = {
    "linucb": _SETTINGS,
    "linucb, published constants": _SETTINGS.replace(
        alpha=1.0,
        ridge=1.0,
        ridge_embedding=1.0,
        cold_start=100,
        cold_share=1.0,
        explore=0.3,
        explore_least=0.05,
        all_every=100,
    ),
    "linucb, textbook": _TEXTBOOK.replace(alpha=1.0, explore=0.0, explore_least=0.0),
    "thompson": _SETTINGS.replace(policy="thompson"),
    "thompson, textbook": _TEXTBOOK.replace(policy="thompson", alpha=1.0, explore=0.0, explore_least=0.0),
    "epsilon-greedy": _SETTINGS.replace(policy="epsilon-greedy"),
    "epsilon-greedy, textbook": _TEXTBOOK.replace(
        policy="epsilon-greedy", explore=0.1, explore_decay=1.0, explore_least=0.1
    ),
    "margin rule": _SETTINGS.replace(rule="margin"),
    "uniform": _SETTINGS.replace(policy="uniform", cold_start=0, all_every=0),
}


class Lived:
    """What came of a policy on an order.

    Attributes
    ----------
    earned : array
        Recall less price, by question.
    tokens, recall : array
        By question.
    actions : list of str
    changes : list of int
        Questions after which a change was found.
    """

    def __init__(self) -> None:
        self.rows: list[tuple[float, float, float]] = []
        self.actions: list[str] = []
        self.changes: list[int] = []
        self.logged: list[tuple[int, Drawn, Context]] = []

    @property
    def earned(self) -> FloatArray:
        """Recall less price, by question."""
        return np.array(self.rows)[:, 0]

    @property
    def recall(self) -> FloatArray:
        """Of the gold, by question."""
        return np.array(self.rows)[:, 1]

    @property
    def tokens(self) -> FloatArray:
        """By question."""
        return np.array(self.rows)[:, 2]


def reported(lines: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Questions that no default of the bandit was chosen by: those behind the first of every set."""
    return [line for line in lines if line["place"] >= TUNED]


def utility(cell: Mapping[str, Any]) -> float:
    """What a cell is worth."""
    return float(cell["gold_recall"] - PRICE * cell["tokens"])


def action_of(names: Sequence[str]) -> str:
    """The action that runs these, in the table's spelling."""
    return "+".join(name for name in STRATEGIES if name in names)


def order_of(places: Sequence[int], questions: int, seed: int) -> list[int]:
    """Questions drawn with replacement."""
    return [int(i) for i in np.random.default_rng([24, seed]).choice(np.asarray(places), questions)]


def live(
    cells: Sequence[Mapping[str, Any]],
    order: Sequence[int],
    settings: BanditSettings,
    *,
    seed: int = 0,
    gold: bool = False,
    learned: Learned | None = None,
) -> Lived:
    """Let a bandit take the questions of an order.

    Parameters
    ----------
    gold : bool
        Learn from what strategies add to the recall of the gold, instead of from the program's value.
    learned : Learned, optional
        Go on with this state.
    """
    state, lived = learned or Learned(settings.replace(seed=seed), OTHERS), Lived()
    for number, place in enumerate(order):
        line = cells[place]
        context = _context(line, state)
        identity = f"{seed}/{number}"
        drawn = draw(mixture(state, context.x, context.type, identity), seed, identity)
        names = [BASE, *(n for n, inside in zip(state.strategies, drawn.members, strict=True) if inside)]
        action = action_of(names)
        cell = line["cells"][action]
        data = _told(line["cells"], cell, names, gold)
        data |= {"type": context.type, "mode": drawn.mode, "propensity": drawn.propensity}
        before = state.changes
        x = context.x.astype(np.float32).tobytes()
        state.fold(Event(state.seq + 1, "question", identity, 0.0, x, data), lambda *_: None)
        if state.changes > before:
            lived.changes.append(number)
        lived.rows.append((utility(cell), cell["gold_recall"], cell["tokens"]))
        lived.actions.append(action)
        lived.logged.append((place, drawn, context))
    return lived


def interval(values: FloatArray) -> dict[str, float]:
    """The mean with a 95 % interval."""
    half = _NORMAL * float(values.std(ddof=1)) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return {
        "mean": float(values.mean()),
        "low": float(values.mean()) - half,
        "high": float(values.mean()) + half,
    }


def summed(
    lived: Sequence[Lived], orders: Sequence[Sequence[int]], oracle: Sequence[float], rival: Sequence[float]
) -> dict[str, Any]:
    """What came of a policy on all orders, against the worth of the best set of each and for all."""
    regret, behind = (
        np.array(
            [
                np.cumsum(np.array([worth[i] for i in o]) - one.earned)
                for one, o in zip(lived, orders, strict=True)
            ]
        )
        for worth in (oracle, rival)
    )
    n = regret.shape[1]
    every = max(1, n // 40)
    hyde = np.mean([["hyde" in a.split("+") for a in one.actions] for one in lived], axis=0)
    block = max(1, min(50, n // 4))
    points = sorted({min(n, p) for p in (50, 100, 200, 300, 500, 1000, 1500, 2000)})
    late = slice(n // 2, n)
    shares = {
        name: float(np.mean([[name in a.split("+") for a in one.actions[late]] for one in lived]))
        for name in STRATEGIES
    }
    return {
        "regret": {str(p): interval(regret[:, p - 1]) for p in points},
        "regret_to_best_fixed": {str(p): interval(behind[:, p - 1]) for p in points},
        "last_regret": regret[:, -1].round(6).tolist(),
        "curve": {
            "questions": list(range(every, n + 1, every)),
            "regret": regret.mean(axis=0)[every - 1 :: every].round(4).tolist(),
            "regret_to_best_fixed": behind.mean(axis=0)[every - 1 :: every].round(4).tolist(),
        },
        "hyde_share": {
            "questions_a_block": block,
            "share": [float(hyde[k : k + block].mean()) for k in range(0, n - block + 1, block)],
        },
        "late_utility": interval(np.array([one.earned[late].mean() for one in lived])),
        "late_recall": float(np.mean([one.recall[late].mean() for one in lived])),
        "late_tokens": float(np.mean([one.tokens[late].mean() for one in lived])),
        "late_share": shares,
        "changes_found": int(sum(len(one.changes) for one in lived)),
        "hyde_share_after_200": float(hyde[min(200, n - 1) :].mean()),
    }


def _context(line: Mapping[str, Any], state: Learned) -> Context:
    vector = np.array(line["embedding"], dtype=np.float32)
    bare = context_of(line["question"], vector, 0, state.settings.dimensions)
    return bare.with_past(state.similar(bare.place))


def told_of(line: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """What a bandit hears of strategies that ran on a question of the table."""
    cells = line["cells"]
    return _told(cells, cells[action_of(names)], names, gold=False) | {"last": {}}


def _told(
    cells: Mapping[str, Any], cell: Mapping[str, Any], names: Sequence[str], gold: bool
) -> dict[str, Any]:
    """What the bandit hears of those that ran."""
    ran = [name for name in names if name != BASE]
    alone = {n: cells[n] for n in names}
    tokens = {n: int(alone[n]["tokens"]) for n in names}
    told = {"strategies": list(names), "tokens": tokens, "seconds": {}, "credit": {}, "regret": 0.0}
    if not gold:
        return told | {key: cell[key] for key in ("own", "overlap", "base", "total")}

    def recall(*added: str) -> float:
        return float(cells[action_of([BASE, *added])]["gold_recall"])

    start = recall()
    own = {n: recall(n) - start for n in ran}
    overlap = [
        [a, b, own[a] + own[b] - (recall(a, b) - start)] for i, a in enumerate(ran) for b in ran[i + 1 :]
    ]
    return told | {"own": own, "overlap": overlap, "base": start, "total": recall(*ran)}
