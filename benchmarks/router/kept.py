"""Rows of a study by answers as committed numbers, from which another run goes on: no texts, no replies.

What a router sees of the questions is not kept: it comes anew from data and index.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.files import replaced
from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import DataError
from mio_rag.learning.outcomes import Outcomes
from mio_rag.learning.router import LABEL, WORKED, Table, joined
from mio_rag.learning.router_model import Seen
from mio_rag.session.tiers import tiers_of
from mio_rag.storage import read_json

_FORMAT, _VERSION = "router-rows", 1
_DIGITS = 4

#: Set -> what a file says of it.
Kept = Mapping[str, Mapping[str, Any]]


def write_rows(
    path: Path, tables: Mapping[str, Mapping[str, Table]], about: Mapping[str, str], measures: Collection[str]
) -> None:
    """Write the rows of sets, by ladder.

    Parameters
    ----------
    about : mapping
        What rows must have in common to stand in one study, for instance {"by": "answers"}.
    measures : collection of str
        Which columns, beside whether a tier did and which one a question needs.
    """
    sets: dict[str, Any] = {}
    for name, ladders in tables.items():
        first = next(iter(ladders.values()))
        sets[name] = {
            "generator": asked_model(ladders),
            "embedder": first.embedder,
            "ladders": {
                ladder: {
                    "ids": list(table.outcomes.ids),
                    "tiers": [tier.to_dict() for tier in table.tiers],
                    "values": {
                        m: [[None if np.isnan(v) else round(float(v), _DIGITS) for v in row] for row in found]
                        for m, found in table.outcomes.values.items()
                        if m in {WORKED, LABEL, *measures}
                    },
                }
                for ladder, table in ladders.items()
            },
        }
    text = json.dumps({"format": _FORMAT, "version": _VERSION, **about, "sets": sets}, separators=(",", ":"))
    with replaced(path) as partial:
        partial.write_text(text + "\n", encoding="utf-8")


def read_rows(path: Path, about: Mapping[str, str]) -> Kept:
    """What a file keeps, by set.

    Raises
    ------
    DataError
        If it cannot be read, or is of another study.
    """
    held = read_json(path, DataError)
    if not isinstance(held, dict) or (held.get("format"), held.get("version")) != (_FORMAT, _VERSION):
        raise DataError(f"'{path}' holds no rows of this study: give the file that an earlier run wrote")
    if differing := [f"{k}={held.get(k)}, not {v}" for k, v in about.items() if held.get(k) != v]:
        raise DataError(f"'{path}' is of another study: {', '.join(differing)}")
    found: Kept = held["sets"]
    return found


def merged(old: Mapping[str, Table], new: Mapping[str, Table]) -> dict[str, Table]:
    """The tables of a set from two runs, by ladder; either may be empty.

    Raises
    ------
    DataError
        If they are of other tiers or another model, or a question is in both.
    """
    if not old or not new:
        return dict(old or new)
    if (before := asked_model(old)) != (now := asked_model(new)):
        raise DataError(f"the rows of an earlier run are of {before}, not {now}")
    if differing := [k for k in {*old, *new} if k not in old or k not in new or old[k].tiers != new[k].tiers]:
        raise DataError(f"the rows of an earlier run have other tiers: {', '.join(sorted(differing))}")
    both = {i for table in old.values() for i in table.outcomes.ids} & {
        i for table in new.values() for i in table.outcomes.ids
    }
    if both:
        raise DataError(
            f"{len(both)} questions are in the rows of an earlier run and in the work folder, for instance "
            f"'{min(both)}': leave out --rows, or choose a new folder"
        )
    return {ladder: joined([old[ladder], new[ladder]]) for ladder in new}


def asked_model(ladders: Mapping[str, Table]) -> str | None:
    """The model that answered."""
    told = next(iter(ladders.values())).outcomes.provenance
    return dict(told["tables"][0] if "tables" in told else told).get("generator")


def tables_of(
    kept: Mapping[str, Any], dataset: Dataset, embedder: str, look: Callable[[str], Seen]
) -> dict[str, Table]:
    """The tables of a set, by ladder.

    Parameters
    ----------
    look : callable
        Text of a question -> what a router sees of it.

    Raises
    ------
    DataError
        If the rows are of other questions or another embedder.
    """
    by_id = {q.id: q.text for q in dataset.questions}
    seen: dict[str, Seen] = {}
    tables = {}
    for ladder, one in kept["ladders"].items():
        ids = tuple(one["ids"])
        if strange := [i for i in ids if i not in by_id]:
            raise DataError(f"'{dataset.name}' has no question '{strange[0]}': the rows are of other data")
        if kept["embedder"] != embedder:
            raise DataError(
                f"the rows of '{dataset.name}' are of the embedder {kept['embedder']}, not {embedder}"
            )
        tiers = tiers_of(one["tiers"], f"rows of '{dataset.name}'")
        seen |= {i: look(by_id[i]) for i in ids if i not in seen}
        outcomes = Outcomes(
            ids,
            tuple(tier.name for tier in tiers),
            {m: np.array(values, dtype=np.float64) for m, values in one["values"].items()},
            tuple(by_id[i] for i in ids),
            (dataset.name,) * len(ids),
            {"generator": kept["generator"], "tiers": [tier.to_dict() for tier in tiers]},
        )
        tables[ladder] = Table(outcomes, tiers, tuple(seen[i] for i in ids), embedder)
    return tables
