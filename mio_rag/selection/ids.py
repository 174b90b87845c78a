"""Ids that settings name, held against the passages of an index."""

from __future__ import annotations

import difflib
from collections.abc import Collection

from mio_rag.errors import InputError
from mio_rag.selection.settings import Settings

__all__ = ["check_ids"]

_SHOWN = 5  # unknown ids, of possibly thousands


def check_ids(settings: Settings, ids: Collection[str]) -> None:
    """Find what no question could be asked with: ids of no passage, and changes against nothing.

    Parameters
    ----------
    ids : collection of str
        All passages of the index.

    Raises
    ------
    InputError
        With every problem found.
    """
    lacking = settings.side.lacking()
    problems = [lacking] if lacking else []
    named = [("must_include", i) for i in settings.must_include]
    named += [("must_exclude", i) for i in settings.must_exclude] + settings.side.named()
    known = frozenset(ids) if named else frozenset()
    unknown = [(name, i) for name, i in named if i not in known]
    problems += [_unknown(name, i, known) for name, i in unknown[:_SHOWN]]
    if len(unknown) > _SHOWN:
        problems.append(f"{len(unknown) - _SHOWN} more ids are not in the index")
    if problems:
        raise InputError(problems)


def _unknown(setting: str, given: str, known: frozenset[str]) -> str:
    parts = [part.strip() for part in given.split(",")]
    if len(parts) > 1 and known.issuperset(parts):
        return f"{setting} names '{given}', which are {len(parts)} ids: give each on its own"
    near = difflib.get_close_matches(given, sorted(known), 3, 0.4)
    close = ", ".join(f"'{i}'" for i in near)
    hint = f"the closest ids are {close}" if near else f"its ids look like '{min(known, default='')}'"
    return f"{setting} names '{given}', which is not in the index: {hint}"
