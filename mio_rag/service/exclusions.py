"""Which options of a service decide the same thing, so that one of them has to go."""

from __future__ import annotations

from collections.abc import Collection

__all__ = ["excluded"]

_TOTALS = ("--tokens-per-day", "--tokens-per-hour")

#: Who decides -> what it excludes, and why.
_EXCLUDES = {
    "--policy": (
        ("--router", "--planner", "--strategies", *_TOTALS, "--prices", "--cache", "--refusal"),
        "its file says who decides, and the price",
    ),
    "--planner": (
        ("--router", "--strategies", *_TOTALS, "--prices", "--refusal"),
        "its workflows decide how is searched and what is read, and no total counts what they ask models",
    ),
    "--router": (
        ("--strategies", *_TOTALS, "--refusal"),
        "its tiers decide how is searched, and what a question takes",
    ),
    "--strategies": (
        (*_TOTALS, "--prices", "--cache"),
        "no total counts what they ask the model, and answers are not kept by what was found",
    ),
}


def excluded(given: Collection[str]) -> list[str]:
    """What is wrong with options that are given together, one problem for each that decides.

    Parameters
    ----------
    given : collection of str
        Names of options, as on the command line.
    """
    problems = []
    for who, (others, why) in _EXCLUDES.items():
        beside = [other for other in others if other in given]
        if who in given and beside:
            problems.append(f"{who} excludes {', '.join(beside)}: {why}; leave one of them out")
    return problems
