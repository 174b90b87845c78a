"""The logistic function that is loaded quickly is SciPy's."""

import sys

import numpy as np
import pytest
from scipy.special import expit

from mio_rag.relevance.logistic import logistic


def test_it_is_that_of_scipy_whether_that_is_loaded_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    ends = [0.0, -0.0, 709.0, -709.0, 710.0, -710.0, 1e300, -1e300, np.inf, -np.inf, np.nan, 5e-324]
    x = np.concatenate([ends, rng.normal(scale=3, size=900), rng.uniform(-800, 800, size=900)])
    np.testing.assert_array_equal(logistic(x), expit(x))
    monkeypatch.delitem(sys.modules, "scipy.special")
    np.testing.assert_array_max_ulp(logistic(x), expit(x), maxulp=1)
    np.testing.assert_array_equal(logistic(np.tile(x, 2)), expit(np.tile(x, 2)))
    assert logistic(np.zeros(0)).shape == (0,)
