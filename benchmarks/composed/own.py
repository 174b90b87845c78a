"""How many questions of one's own it takes until the probability of complete evidence is right.

For every set, a regression of the other sets is what ships; it is left as it is, adapted to a few questions
of the set, or fitted anew on them, and held against a hundred others. `adapted, nested` is adapted as firmly
as was best for the other sets: nothing of it was chosen on the set. `chance` is what true probabilities would
show on so many questions. Sets beside those that the regression knows are seen here for the first time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.composed.complete import Rows, fitted
from mio_rag.errors import InputError
from mio_rag.evaluation.fit import by_chance, calibration_error
from mio_rag.relevance.complete import Completeness, adapt, fit

FloatArray = NDArray[np.float64]
Told = tuple[FloatArray, FloatArray, NDArray[np.intp]]  # said, what came of it, of which question

#: Own questions.
SIZES = (5, 10, 20, 30, 50, 100)
_FIRM = (3.0, 10.0, 30.0, 100.0, 300.0)
_TESTED, _DRAWS = 100, 8


def curve_of(known: Sequence[Rows], unseen: Sequence[Rows], seed: int = 0) -> dict[str, Any]:
    """Calibration errors by number of own questions: over all sets together, and the mean of each set.

    Parameters
    ----------
    known : sequence of Rows
        Each is left out in its turn.
    unseen : sequence of Rows
        Sets on which nothing was ever fitted or chosen.
    """
    names = list(dict.fromkeys(rows.name for rows in known))
    shipped = {name: fitted([rows for rows in known if rows.name != name]) for name in names}
    told = {"left out": _curve(known, shipped, seed)}
    if unseen:
        whole = fitted(known)
        told["never seen"] = _curve(unseen, {rows.name: whole for rows in unseen}, seed)
    return told


def _curve(every: Sequence[Rows], shipped: Mapping[str, Completeness], seed: int) -> dict[str, Any]:
    found: dict[tuple[str, int], dict[tuple[str, str, int], Told]] = {}
    rng = np.random.default_rng(seed)
    for draw in range(_DRAWS):
        for rows in every:
            order = rng.permutation(len(rows.complete))
            test = order[-_TESTED:]
            for size in SIZES:
                learn = order[: min(size, len(order) - _TESTED)]
                for kind, made in _ways(shipped[rows.name], *rows.flat(learn)).items():
                    cell = found.setdefault((kind, size), {})
                    cell[rows.name, rows.embedder, draw] = _said(made, rows, test)
    names = list(dict.fromkeys(rows.name for rows in every))
    if len(names) > 1:
        for size in SIZES:
            found["adapted, nested", size] = _nested(found, names, size)
    kinds = ("shipped", "fitted anew", "adapted", "adapted, nested")
    return {
        kind: {str(size): _errors(found[kind, size], seed) for size in SIZES}
        for kind in kinds
        if (kind, SIZES[0]) in found
    }


def _ways(shipped: Completeness, x: FloatArray, y: FloatArray) -> dict[str, Completeness]:
    made = {"shipped": shipped}
    tried: dict[str, Callable[[], Completeness]] = {
        "adapted": lambda: adapt(shipped, x, y),
        **{f"firm {firm:g}": partial(adapt, shipped, x, y, firm=firm) for firm in _FIRM},
        "fitted anew": lambda: fit(x, y),
    }
    for kind, make in tried.items():
        try:
            made[kind] = make()
        except InputError:  # too few, or all alike: what ships stays
            made[kind] = shipped
    return made


def _said(model: Completeness, rows: Rows, questions: NDArray[np.intp]) -> Told:
    x, y = rows.flat(questions)
    seen = np.isfinite(rows.signals[questions]).all(axis=2)
    return model.of(x), y, np.repeat(np.arange(len(questions)), seen.sum(axis=1))


def _nested(
    found: Mapping[tuple[str, int], Mapping[tuple[str, str, int], Told]], names: Sequence[str], size: int
) -> dict[tuple[str, str, int], Told]:
    """For each set, what the strength says that has the least Brier score on the other sets."""
    made: dict[tuple[str, str, int], Told] = {}
    for name in names:

        def off(kind: str, name: str = name) -> float:
            cells = [told for key, told in found[kind, size].items() if key[0] != name]
            return float(np.mean([np.mean((p - y) ** 2) for p, y, _ in cells]))

        best = min((f"firm {firm:g}" for firm in _FIRM), key=off)
        made |= {key: told for key, told in found[best, size].items() if key[0] == name}
    return made


def _errors(cells: Mapping[tuple[str, str, int], Told], seed: int) -> dict[str, float]:
    """Errors of all sets together, draw by draw, and of each set alone."""
    together, chance = [], []
    for embedder, draw in dict.fromkeys((key[1], key[2]) for key in cells):
        parts = [told for key, told in cells.items() if key[1:] == (embedder, draw)]
        said, was = (np.concatenate([part[k] for part in parts]) for k in (0, 1))
        asked = np.concatenate([part[2] + 1000 * k for k, part in enumerate(parts)])
        together.append(calibration_error(said, was))
        chance.append(by_chance(said, asked, 3, seed + draw))
    alone = [calibration_error(p, y) for p, y, _ in cells.values()]
    lone = [by_chance(p, asked, 3, seed) for p, _, asked in cells.values()]
    return {
        "together": round(float(np.mean(together)), 4),
        "together, by chance": round(float(np.mean(chance)), 4),
        "each set": round(float(np.mean(alone)), 4),
        "each set, by chance": round(float(np.mean(lone)), 4),
        "brier": round(float(np.mean([np.mean((p - y) ** 2) for p, y, _ in cells.values()])), 4),
    }
