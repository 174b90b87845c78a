"""The value of an item as its embedding changes, for the two kinds of relevance.

An item's *loss* is the decrease of its inner product with the query, -q . delta_i. Under perturbations its
value is either

- an inner product (or any score that falls by the loss): r_i - loss_i; or
- a curve: a function that falls as losses rise, as a calibrated probability does. Other items' losses may
  lower it too (through evidence links), never raise it.

For certificates a curve is replaced from below by lines: for every slope beta >= 0,
value_i(loss) >= alpha - beta loss over the losses that can occur. With samples t_0 < ... < t_K of the loss,
the curve falls, so on [t_k, t_k+1] it is at least its value at t_k+1: alpha = min_k value(t_k+1) + beta t_k.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["CurveValue", "InnerProductValue", "ItemValue"]

FloatArray = NDArray[np.float64]

_SAMPLES = 513
_SLOPES = 24


@dataclass(frozen=True, eq=False)
class InnerProductValue:
    """Values that fall by exactly the loss.

    Parameters
    ----------
    nominal : ndarray, shape (n,)
    """

    nominal: FloatArray

    def at(self, loss: FloatArray) -> FloatArray:
        """Value of every item, all losses at once."""
        return self.nominal - loss

    def apart(self, loss: FloatArray) -> FloatArray:
        """Value of every item, others at their worst: the same, since they do not matter."""
        return self.nominal - loss

    def lines(self, reach: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(alpha, beta), shapes (1, n): the value itself."""
        return self.nominal[None, :], np.ones((1, self.nominal.size))


@dataclass(frozen=True, eq=False)
class CurveValue:
    """Values that fall as losses rise.

    Parameters
    ----------
    function : callable
        Losses (n,) -> values (n,).
    alone : callable
        Losses (K, n) of items, with everybody else at their worst -> lower bounds (K, n) on their values,
        which fall as the losses rise.
    """

    function: Callable[[FloatArray], FloatArray]
    alone: Callable[[FloatArray], FloatArray]

    def at(self, loss: FloatArray) -> FloatArray:
        """Value of every item, all losses at once."""
        return self.function(loss)

    def apart(self, loss: FloatArray) -> FloatArray:
        """Value of every item, others at their worst."""
        return np.asarray(self.alone(loss[None, :])[0])

    def lines(self, reach: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(alpha, beta), shapes (K, n): lines below the curve wherever |loss| <= reach, shape (n,)."""
        t = np.linspace(-1.0, 1.0, _SAMPLES)[:, None] * reach
        value = self.alone(t)
        left, floor = np.vstack([t[:-1], t[-1:]]), np.vstack([value[1:], value[-1:]])
        # A reach that underflows when it is shared out is as good as none: the curve is flat there.
        width = 2 * reach / (_SAMPLES - 1)
        width = np.where(width > 0, width, 1.0)
        steep = (value[:-1] - value[1:]) / width
        share = np.linspace(0.0, 1.0, _SLOPES - 1)[:, None]
        beta = steep.min(axis=0) + share * (steep.max(axis=0) - steep.min(axis=0))
        chord = (value[0] - value[-1]) / np.where(reach > 0, 2 * reach, 1.0)
        beta = np.maximum(np.vstack([beta, chord[None, :]]), 0.0)
        alpha = np.stack([(floor + slope * left).min(axis=0) for slope in beta])
        return alpha, beta


ItemValue = InnerProductValue | CurveValue
