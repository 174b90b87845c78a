#!/usr/bin/env bash
# SciPy: milp reports an optimal solution with gap 0 that is far from optimal, without a warning.
#
# Multiplying an objective by a positive number does not change which choice is best. HiGHS, which
# milp calls, takes part of its decisions by absolute tolerances near 1e-7, so with coefficients near
# 1e-8 it stops early and reports the bound it believes in. Its own log, which milp hides, advises
# to scale such costs. The result shows nothing: success, "Optimal", a bound that agrees, gap 0.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -qq --disable-pip-version-check scipy==1.17.1 numpy==2.4.6 || exit 2
"$dir/venv/bin/python" -I - <<'PY'
import sys
from importlib.metadata import version

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp


def solve(unit):
    """Choose at most two of three things worth 3, 2 and 2 units; milp minimizes, hence the signs."""
    return milp(
        -unit * np.array([3, 2, 2]),
        integrality=np.ones(3),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint([[1, 1, 1]], ub=2),
        options={"mip_rel_gap": 0.0},
    )


print("scipy", version("scipy"))
print("expected: 5 units, whatever the unit is")
value = {}
for unit in (1.0, 1e-8):
    result = solve(unit)
    value[unit] = round(-result.fun / unit, 6)
    bound = round(-result.mip_dual_bound / unit, 6)
    print(f"seen with a unit of {unit:g}: {value[unit]:g} units, bound {bound:g}, gap {result.mip_gap:g}; {result.message}")
    assert result.success and result.status == 0 and result.mip_gap == 0
sys.exit(not (value[1.0] == 5 and value[1e-8] <= 4))
PY
