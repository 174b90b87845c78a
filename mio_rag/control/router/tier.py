"""Tiers: how deep to search, how much to read, how long to answer. Any number of them, ordered by cost.

    [[tier]]
    name = "easy"
    depth = 2              # passages
    context = 600          # most of the context, in `unit`
    unit = "characters"    # or "tokens"
    new_tokens = 64        # longest answer
    rerank = ""            # as `mio-rag ask --rerank`; "": not re-ranked
    compress = "sentences" # "program" or "none"; see `mio_rag.control.router.compress`

A tier with a `token_price` has the exact program choose among `depth` candidates, at that price of a token,
instead of reading the best `depth` of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from mio_rag.control.router.compress import CHOSEN, COMPRESSORS
from mio_rag.errors import InputError, choose
from mio_rag.reading import read_toml
from mio_rag.retrieval.rerank import spec_problems

__all__ = ["PUBLISHED", "Tier", "check_tiers", "read_tiers", "tiers_of"]

_UNITS = ("characters", "tokens")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Tier:
    """How much a question gets.

    Parameters
    ----------
    name : str
        Letters, digits, ``_``, ``.`` and ``-``.
    depth : int
        Passages that are read, in the order of the search, >= 1; with a `token_price`, candidates.
    context : int
        Most that is read, in `unit`, >= 1; titles and what parts passages count.
    new_tokens : int
        Longest answer, >= 1.
    unit : str
        "characters" or "tokens" of the reader.
    rerank : str
        Specification of a re-ranker that orders the passages; empty: the search's order.
    compress : str
        How passages are brought to the size of the context; see `mio_rag.control.router.compress`.
    token_price : float or None
        None: the best passages are read. A number >= 0: the exact program chooses, and a token must be worth
        so much. It then reads whole passages, counts in tokens, and needs no re-ranker.

    Raises
    ------
    InputError
        With every problem found.
    """

    name: str
    depth: int
    context: int
    new_tokens: int
    unit: str = "characters"
    rerank: str = ""
    compress: str = "sentences"
    token_price: float | None = None

    def __post_init__(self) -> None:
        problems = []
        if not (isinstance(self.name, str) and _NAME.fullmatch(self.name)):
            problems.append(f"name={self.name!r} must be letters, digits, '_', '.' and '-'")
        for name in ("depth", "context", "new_tokens"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                problems.append(f"{name}={value!r} must be a whole number >= 1")
        if self.unit not in _UNITS:
            problems.append(f"unit={self.unit!r} is unknown: {choose(self.unit, _UNITS)}")
        known = (*COMPRESSORS, CHOSEN)
        if self.compress not in known:
            problems.append(f"compress={self.compress!r} is unknown: {choose(self.compress, known)}")
        if not isinstance(self.rerank, str):
            problems.append(f'rerank={self.rerank!r} must be the name of a re-ranker, for instance "maxsim"')
        elif self.rerank:
            problems += spec_problems([self.rerank])
        price = self.token_price
        if price is not None:
            if isinstance(price, bool) or not isinstance(price, (int, float)) or not 0 <= price < math.inf:
                problems.append(f"token_price={price!r} must be a number >= 0")
            if self.rerank or self.compress != "none" or self.unit != "tokens":
                problems.append(
                    "with a token_price the program reads whole passages and counts tokens: set "
                    'compress = "none", unit = "tokens", and leave out rerank'
                )
        if problems:
            raise InputError([f"tier {self.name!r}: {problem}" for problem in problems])

    def to_dict(self) -> dict[str, Any]:
        """Plain data; what is None is left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}


#: The three published tiers for small devices.
PUBLISHED = (
    Tier("easy", 2, 600, 64),
    Tier("medium", 5, 1200, 96, rerank="maxsim"),
    Tier("hard", 10, 2000, 128, rerank="maxsim"),
)


def check_tiers(tiers: Sequence[Tier]) -> None:
    """Raise `InputError` unless there are tiers of different names, each dearer than the one before.

    Depth, context and answer must not fall from one tier to the next, a price of tokens must not rise (none
    is a price of 0), and something must change.
    """
    problems = [] if tiers else ["there are no tiers: give at least one"]
    names = [tier.name for tier in tiers]
    problems += [f"tier '{n}' is there twice" for n in dict.fromkeys(names) if names.count(n) > 1]
    for one, other in pairwise(tiers):
        here = f"tier '{other.name}' stands behind '{one.name}'"
        if one.unit != other.unit:
            problems.append(f"{here}, and counts in {other.unit}, not in {one.unit}: use one unit in all")
            continue
        before, after = _costs(one), _costs(other)
        falls = [name for name, value in after.items() if value < before[name]]
        if falls:
            said = ", ".join(_told(name, one, other) for name in falls)
            problems.append(f"{here} and is cheaper in {said}: order the tiers by cost, the cheapest first")
        elif before == after:
            problems.append(f"{here} and costs the same: leave one of them out")
    if problems:
        raise InputError(problems)


def _costs(tier: Tier) -> dict[str, float]:
    # A price makes a tier cheaper: it is compared with its sign turned.
    return {
        "depth": tier.depth,
        "context": tier.context,
        "new_tokens": tier.new_tokens,
        "token_price": -(tier.token_price or 0.0),
    }


def _told(name: str, one: Tier, other: Tier) -> str:
    return f"{name} ({getattr(other, name)} after {getattr(one, name)})"


def tiers_of(entries: Any, source: str) -> tuple[Tier, ...]:
    """Tiers from plain data, checked one by one and in their order.

    Parameters
    ----------
    entries : list of mapping
        One for each tier.
    source : str
        Where it comes from, to begin messages.

    Raises
    ------
    InputError
        With every problem of every tier.
    """
    if not isinstance(entries, (list, tuple)) or not all(isinstance(one, Mapping) for one in entries):
        raise InputError(f"{source}: tiers are a list of tables, each beginning with [[tier]]")
    known = {field.name for field in fields(Tier)}
    needed = ("name", "depth", "context", "new_tokens")
    tiers, problems = [], []
    for place, entry in enumerate(entries, start=1):
        here = f"{source}, tier {place}"
        if strange := sorted(set(entry) - known):
            problems.append(f"{here}: {', '.join(strange)} is unknown: choose {', '.join(sorted(known))}")
        elif missing := [name for name in needed if name not in entry]:
            problems.append(f"{here} lacks {', '.join(missing)}")
        else:
            try:
                tiers.append(Tier(**entry))
            except InputError as error:
                problems += [f"{source}: {problem}" for problem in error.problems]
    if not problems:
        try:
            check_tiers(tiers)
        except InputError as error:
            problems += [f"{source}: {problem}" for problem in error.problems]
    if problems:
        raise InputError(problems)
    return tuple(tiers)


def read_tiers(path: Path) -> tuple[Tier, ...]:
    """The tiers of a TOML file.

    Raises
    ------
    InputError
        If it cannot be read, holds anything but tiers, or they are not ordered by cost.
    """
    data = read_toml(path)
    if strange := sorted(set(data) - {"tier"}):
        raise InputError(f"'{path}': {', '.join(strange)} is unknown: a file of tiers holds [[tier]] alone")
    return tiers_of(data.get("tier", []), f"'{path}'")
