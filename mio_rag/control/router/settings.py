"""What runs of tiers and routers are set to, as plain data below `ControlSettings.kinds`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from mio_rag.errors import InputError, choose
from mio_rag.session.tiers import PUBLISHED, Tier, tiers_of

__all__ = ["KEY", "WHEN_UNSURE", "RouterSettings", "Utility"]

#: The entry of `ControlSettings.kinds`.
KEY = "router"

#: What happens where more than one tier is plausible.
WHEN_UNSURE = ("stay", "up")


@dataclass(frozen=True)
class Utility:
    """alpha Q - beta C_tok - gamma C_lat - delta C_mem, changed whenever one likes: nothing is trained anew.

    Parameters
    ----------
    alpha : float
        Worth of a question that a tier answers.
    beta : float
        What a token into or out of the model costs.
    gamma : float
        What a second costs.
    delta : float
        What a megabyte of peak memory costs.

    Notes
    -----
    All >= 0 and finite. With alpha = 1 costs are in units of quality: beta = .0005 says that 2,000 tokens are
    worth one more answered question.
    """

    alpha: float = 1.0
    beta: float = 0.0005
    gamma: float = 0.0
    delta: float = 0.0

    def __post_init__(self) -> None:
        problems = [
            f"{name}={value!r} must be a finite number >= 0"
            for name, value in vars(self).items()
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf
        ]
        if not problems and self.alpha == 0:
            problems.append("alpha=0 makes every answer worthless: give a number above 0")
        if problems:
            raise InputError([f"utility: {problem}" for problem in problems])


@dataclass(frozen=True)
class RouterSettings:
    """Tiers, and who chooses among them.

    Parameters
    ----------
    tiers : tuple of Tier
        Ordered by cost. A router brings its own.
    router : str or None
        File that `mio-rag route train` wrote.
    utility : Utility
        Of a router that knows the utility of each tier.
    unsure : str
        "up": a dearer tier where more than one is plausible; "stay": the most probable one.
    """

    tiers: tuple[Tier, ...] = PUBLISHED
    router: str | None = None
    utility: Utility = Utility()
    unsure: str = "stay"

    def __post_init__(self) -> None:
        if self.unsure not in WHEN_UNSURE:
            raise InputError(f"unsure={self.unsure!r} is unknown: {choose(self.unsure, WHEN_UNSURE)}")

    def to_dict(self) -> dict[str, Any]:
        """Plain data; a router is known by its content, so that runs with another one do not mix."""
        data: dict[str, Any] = {
            "tiers": [tier.to_dict() for tier in self.tiers],
            "utility": dict(vars(self.utility)),
            "unsure": self.unsure,
        }
        if self.router is not None:
            path = Path(self.router)
            data["router"] = self.router
            data["sha256"] = sha256(path.read_bytes()).hexdigest() if path.is_file() else None
        return data

    @classmethod
    def of(cls, kinds: Mapping[str, Any]) -> RouterSettings:
        """The settings below `ControlSettings.kinds`; where there are none, the published tiers.

        Raises
        ------
        InputError
            For data that describes none.
        """
        data = kinds.get(KEY)
        if data is None:
            return cls()
        if not isinstance(data, Mapping):
            raise InputError(f"settings of routers are {data!r}: give a mapping, as `to_dict` makes it")
        known = ("tiers", "utility", "unsure", "router", "sha256")
        if strange := sorted(set(data) - set(known)):
            raise InputError(
                f"settings of routers: {', '.join(strange)} is unknown: choose {', '.join(known)}"
            )
        try:
            utility = Utility(**data.get("utility", {}))
        except TypeError as error:
            raise InputError(f"settings of routers: utility: {error}") from error
        tiers = PUBLISHED if "tiers" not in data else tiers_of(data["tiers"], "settings of routers")
        return cls(tiers, data.get("router"), utility, data.get("unsure", "stay"))
