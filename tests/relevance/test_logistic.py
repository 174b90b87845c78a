"""The logistic function and its inverse are SciPy's, to the last bits."""

import numpy as np
from scipy import special

from mio_rag.relevance.features import logistic, logit


def test_they_are_those_of_scipy() -> None:
    rng = np.random.default_rng(0)
    ends = [0.0, -0.0, 709.0, -709.0, 710.0, -710.0, 1e300, -1e300, np.inf, -np.inf, np.nan, 5e-324]
    x = np.concatenate([ends, rng.normal(scale=3, size=900), rng.uniform(-700, 700, size=900)])
    np.testing.assert_allclose(logistic(x), special.expit(x), rtol=1e-15 * 4)
    p = np.clip(rng.beta(0.2, 0.2, size=1000), 1e-12, 1 - 1e-12)
    np.testing.assert_allclose(logit(p), special.logit(p), rtol=1e-14, atol=4e-16)
