"""Row groups over a Ray cluster, as a Ray Data pipeline.

A row of the data set is one row group; actors read and write the files themselves, so that input and output
must lie where every node sees them. Shards are those of the local engine, byte for byte.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from mio_rag.batch.job import Group, Job
from mio_rag.batch.work import GroupReport, run_group
from mio_rag.errors import SolverError, require


@contextmanager
def joined(workers: int) -> Iterator[Any]:
    """The module `ray`, in the cluster of RAY_ADDRESS or that was joined before, else in one of its own.

    Parameters
    ----------
    workers : int
        Cores that a cluster of our own must have for actors.

    Raises
    ------
    MissingExtraError
        If Ray is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray: Any = require("ray", "ray", "engine='ray'")
    started = not ray.is_initialized()
    if started:
        settings: dict[str, Any] = {"log_to_driver": False, "logging_level": "WARNING"}
        if "RAY_ADDRESS" not in os.environ:
            os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # one of our own, for this machine alone
            # One core beside the workers', for the pipeline itself.
            settings |= {"num_cpus": workers + 1, "include_dashboard": False}
        ray.init(**settings)
    try:
        yield ray
    finally:
        if started:
            ray.shutdown()


class _Actor:
    """A worker: keeps the job, answers row groups."""

    def __init__(self, job: Job, groups: Sequence[Group]) -> None:
        self.job, self.groups = job, {group.number: group for group in groups}

    def __call__(self, batch: Any) -> Any:
        import pyarrow

        reports = [run_group(self.job, self.groups[k]) for k in batch.column("number").to_pylist()]
        return pyarrow.table(
            {
                "number": [r.number for r in reports],
                "rows": [r.rows for r in reports],
                "rejected": [r.rejected for r in reports],
                "statuses": [list(r.statuses.elements()) for r in reports],
                "cpu_seconds": [r.cpu_seconds for r in reports],
                "peak_mb": [r.peak_mb for r in reports],
            },
            schema=pyarrow.schema(
                [
                    ("number", pyarrow.int64()),
                    ("rows", pyarrow.int64()),
                    ("rejected", pyarrow.int64()),
                    ("statuses", pyarrow.list_(pyarrow.string())),
                    ("cpu_seconds", pyarrow.float64()),
                    ("peak_mb", pyarrow.float64()),
                ]
            ),
        )


def run_ray(
    job: Job, groups: Sequence[Group], workers: int, progress: Callable[[int], None]
) -> Iterator[GroupReport]:
    """The report of each row group, in the order of finishing; see `local.run_local`.

    Joins the cluster that RAY_ADDRESS names, or the one that this program has joined; otherwise starts one on
    this machine, and ends it.

    Raises
    ------
    MissingExtraError
        If Ray is not installed.
    SolverError
        If the cluster or an actor failed.
    """
    with joined(workers):
        data: Any = require("ray.data", "ray", "engine='ray'")
        try:
            context = data.DataContext.get_current()
            context.enable_progress_bars = False
            logging.getLogger("ray.data").setLevel(logging.WARNING)
            plan = data.from_items(
                [{"number": group.number} for group in groups], override_num_blocks=len(groups)
            )
            answered = plan.map_batches(
                _Actor,
                fn_constructor_args=(job, list(groups)),
                batch_format="pyarrow",
                batch_size=1,
                compute=data.ActorPoolStrategy(size=workers),
                num_cpus=1,
            )
            for row in answered.iter_rows():
                progress(int(row["rows"]))
                yield GroupReport(
                    int(row["number"]),
                    int(row["rows"]),
                    int(row["rejected"]),
                    Counter(row["statuses"]),
                    float(row["cpu_seconds"]),
                    row["peak_mb"],
                )
        except Exception as error:  # of the cluster, or of an actor: wrapped many times over
            last = next(iter(reversed(str(error).strip().splitlines())), "no reason given")
            raise SolverError(
                f"Ray could not finish ({type(error).__name__}: {last}); finished shards are kept"
            ) from error
