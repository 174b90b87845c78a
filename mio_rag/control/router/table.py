"""What routers learn from: a table of outcomes, and what was seen of its questions before anything was read.

The table is Parquet (`mio_rag.control.outcomes`), with the columns `worked` (1 where a tier did) and `label`
(1 for the tier that the question needs). What was seen lies beside it, as ``NAME.seen.safetensors``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mio_rag.control.outcomes import Outcomes, read_outcomes
from mio_rag.control.router.features import SEARCH, Seen
from mio_rag.control.router.tier import Tier, tiers_of
from mio_rag.control.weights import Weights, read_weights, write_weights
from mio_rag.errors import DataError, InputError

__all__ = ["LABEL", "WORKED", "Table", "read_table", "seen_path", "write_table"]

FloatArray = NDArray[np.float64]

WORKED, LABEL = "worked", "label"

_KIND, _VERSION = "router-questions", 1


@dataclass(frozen=True, eq=False)
class Table:
    """n questions at m tiers.

    Parameters
    ----------
    outcomes : Outcomes
        With `worked`, `label`, and at least `prompt_tokens`; actions are the names of the tiers.
    tiers : tuple of Tier, length m
    seen : tuple of Seen, length n
    embedder : str
        Fingerprint.

    Raises
    ------
    InputError
        If they do not belong together.
    """

    outcomes: Outcomes
    tiers: tuple[Tier, ...]
    seen: tuple[Seen, ...]
    embedder: str

    def __post_init__(self) -> None:
        problems = []
        names = tuple(tier.name for tier in self.tiers)
        if names != self.outcomes.actions:
            problems.append(
                f"the table has the tiers {', '.join(self.outcomes.actions)}, not {', '.join(names)}"
            )
        if len(self.seen) != len(self.outcomes):
            problems.append(
                f"{len(self.seen)} questions were seen, and {len(self.outcomes)} are in the table"
            )
        problems += [
            f"the table has no column '{name}': make it with `mio-rag route label`"
            for name in (WORKED, LABEL, "prompt_tokens")
            if name not in self.outcomes.values
        ]
        if not problems:
            chosen = self.outcomes.of(LABEL)
            if not (np.isin(chosen, (0, 1)).all() and (chosen.sum(axis=1) == 1).all()):
                problems.append(
                    "the column 'label' must be 1 for one tier of each question, and 0 for others"
                )
        if problems:
            raise InputError(problems)

    def __len__(self) -> int:
        return len(self.outcomes)

    @property
    def labels(self) -> NDArray[np.intp]:
        """Place of the tier that each question needs, shape (n,)."""
        return np.asarray(np.argmax(self.outcomes.of(LABEL), axis=1), dtype=np.intp)

    @property
    def worked(self) -> FloatArray:
        """1 where a tier did, shape (n, m)."""
        return self.outcomes.of(WORKED)

    @property
    def by(self) -> tuple[str, ...]:
        """What labels go by, as files say it: "answers" or "evidence"; joined tables may have both."""
        about = self.outcomes.provenance
        return tuple(sorted({str(one.get("by")) for one in about.get("tables", [about])}))

    def costs(self) -> FloatArray:
        """Mean tokens into and out of the model, seconds and peak megabytes of each tier, shape (m, 3).

        Seconds and memory that were not recorded are 0.
        """
        columns = (("prompt_tokens", "completion_tokens"), ("total_seconds",), ("peak_memory_mb",))
        return np.column_stack(
            [
                sum(
                    (
                        np.nan_to_num(self.outcomes.values[name])
                        for name in names
                        if name in self.outcomes.values
                    ),
                    start=np.zeros((len(self), len(self.tiers))),
                ).mean(axis=0)
                for names in columns
            ]
        )

    def where(self, kept: ArrayLike) -> Table:
        """The table of some questions; as `Outcomes.where`."""
        places = np.arange(len(self))[np.asarray(kept)]
        return Table(
            self.outcomes.where(places), self.tiers, tuple(self.seen[i] for i in places), self.embedder
        )

    @property
    def sha256(self) -> str:
        """Of questions, labels and outcomes."""
        digest = sha256(repr((self.outcomes.ids, self.outcomes.actions, self.embedder)).encode())
        for name in sorted(self.outcomes.values):
            digest.update(name.encode() + np.ascontiguousarray(self.outcomes.values[name]).tobytes())
        return digest.hexdigest()


def seen_path(path: Path) -> Path:
    """Where what was seen of a table's questions lies."""
    return path.with_name(f"{path.stem}.seen.safetensors")


def write_table(table: Table, path: Path) -> None:
    """Write table and what was seen, each whole or not at all.

    Raises
    ------
    InputError
        If they cannot be written.
    """
    arrays = {
        "embedding": np.array([one.embedding for one in table.seen], dtype=np.float32),
        "search": np.array([one.search for one in table.seen]),
    }
    about = {"ids": list(table.outcomes.ids), "embedder": table.embedder, "search": list(SEARCH)}
    write_weights(Weights(_KIND, _VERSION, arrays, about), seen_path(path))
    table.outcomes.write(path)


def read_table(paths: Sequence[Path]) -> Table:
    """The tables of files as one, in the order given.

    Raises
    ------
    DataError
        If a file is missing, damaged, foreign, lacks tiers for some questions, or tables differ in tiers,
        columns or embedder.
    """
    if not paths:
        raise DataError("there is no table of outcomes: give at least one")
    tables = [_read_one(path) for path in paths]
    first, problems = tables[0], []
    for path, table in zip(paths, tables, strict=True):
        if table.tiers != first.tiers:
            problems.append(
                f"'{path}' has other tiers than '{paths[0]}': label both with the same file of tiers"
            )
        if table.embedder != first.embedder:
            problems.append(f"'{path}' has questions of another embedder than '{paths[0]}'")
    if problems:
        raise DataError(problems)
    try:
        return joined(tables)
    except InputError as error:
        raise DataError([f"these tables do not go together: {p}" for p in error.problems]) from error


def joined(tables: Sequence[Table]) -> Table:
    """Tables of the same tiers as one, with the columns that all of them have.

    Raises
    ------
    InputError
        If a question is in two of them.
    """
    first = tables[0]
    names = [n for n in first.outcomes.values if all(n in table.outcomes.values for table in tables)]
    every = all(table.outcomes.questions for table in tables)
    named = all(table.outcomes.sets for table in tables)
    outcomes = Outcomes(
        tuple(i for table in tables for i in table.outcomes.ids),
        first.outcomes.actions,
        {name: np.concatenate([table.outcomes.values[name] for table in tables]) for name in names},
        tuple(q for table in tables for q in table.outcomes.questions) if every else (),
        tuple(s for table in tables for s in table.outcomes.sets) if named else (),
        {"tables": [dict(table.outcomes.provenance) for table in tables]} | {"tiers": _plain(first.tiers)},
    )
    return Table(outcomes, first.tiers, tuple(s for table in tables for s in table.seen), first.embedder)


def _plain(tiers: Sequence[Tier]) -> list[dict[str, Any]]:
    return [tier.to_dict() for tier in tiers]


def _read_one(path: Path) -> Table:
    outcomes = read_outcomes(path)
    held = read_weights(seen_path(path), _KIND, _VERSION)
    try:
        if tuple(held.about["ids"]) != outcomes.ids:
            raise DataError(f"'{seen_path(path)}' is of other questions than '{path}': label them anew")
        if list(held.about["search"]) != list(SEARCH):
            raise DataError(f"'{seen_path(path)}' was made by another release: label the questions anew")
        texts = outcomes.questions or outcomes.ids
        seen = tuple(
            Seen(text, np.asarray(vector, dtype=np.float64), np.asarray(search, dtype=np.float64))
            for text, vector, search in zip(
                texts, held.arrays["embedding"], held.arrays["search"], strict=True
            )
        )
        tiers = tiers_of(outcomes.provenance["tiers"], f"'{path}'")
        return Table(outcomes, tiers, seen, str(held.about["embedder"]))
    except (KeyError, TypeError) as error:
        raise DataError(f"'{path}' was not made by `mio-rag route label`: {error} is missing") from error
    except DataError:
        raise
    except (InputError, ValueError) as error:
        raise DataError(f"'{path}': {error}") from error
