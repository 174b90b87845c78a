"""What a strategy adds for a type of question, net of a price that may change: count, means and deviations.

A region is six numbers: n, the means of value and tokens, their sums of squared deviations, and of products
(Welford's way of adding one at a time). The net value at a price p a token has the mean E[v] - p E[t] and the
squared deviations S_vv + p^2 S_tt - 2 p S_vt, so that no price is part of what is kept.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["forget", "net", "observe", "pooled", "region"]


def region() -> list[float]:
    """One of which nothing is known."""
    return [0.0] * 6


def observe(kept: list[float], value: float, tokens: float) -> None:
    """Take in what a strategy added to one question, and the tokens that it took."""
    kept[0] += 1
    count = kept[0]
    step, more = value - kept[1], tokens - kept[2]
    kept[1] += step / count
    kept[2] += more / count
    kept[3] += step * (value - kept[1])
    kept[4] += more * (tokens - kept[2])
    kept[5] += step * (tokens - kept[2])


def net(kept: Sequence[float], price: float) -> tuple[float, float, float]:
    """Count, mean and squared deviations of the net value at a price of a token."""
    count, value, tokens, squares, spent, both = kept
    return count, value - price * tokens, max(0.0, squares + price**2 * spent - 2 * price * both)


def pooled(parts: Sequence[Sequence[float]]) -> list[float]:
    """Several regions as one."""
    found = region()
    for count, value, tokens, squares, spent, both in parts:
        if not count:
            continue
        total = found[0] + count
        share = found[0] * count / total
        step, more = value - found[1], tokens - found[2]
        found[0] = total
        found[1] += step * count / total
        found[2] += more * count / total
        found[3] += squares + share * step**2
        found[4] += spent + share * more**2
        found[5] += both + share * step * more
    return found


def forget(kept: list[float], share: float) -> None:
    """Keep a share of the weight of what was seen; means stay."""
    for place in (0, 3, 4, 5):
        kept[place] *= share
