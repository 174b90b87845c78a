"""`python -m benchmarks price --scale N`: allocating many rows, beside selecting for each of them alone.

Rows are those of `benchmarks.batch`. Both commands run on the same files, one after the other, and are
compared by CPU seconds of all their processes, the sample for the price included. With `--scratch`, rows and
shards stay there, and a run that was stopped goes on.

    pairs   redundancy between passages is charged: every row is a quadratic program
    plain   relevance and tokens alone, without vectors: reading and writing count for most
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.batch_memory import Watch
from benchmarks.batch_rows import write_rows
from benchmarks.files import write_json
from benchmarks.options import numbers
from benchmarks.price.decisions import decisions_a_second
from benchmarks.runner import note
from benchmarks.speed.pools import load_pools
from benchmarks.speed.runner import machine
from mio_rag.batch import BatchSummary, allocate_batch, select_batch
from mio_rag.errors import require
from mio_rag.evaluation.ledger import environment
from mio_rag.pictures import save_figure, set_title
from mio_rag.selection.selector import Selector
from mio_rag.solvers import SolveOptions
from mio_rag.solvers.branch_and_bound import warmup
from mio_rag.storage import write_atomically

_BUDGET = 512
_CEILING = 2048
_PATIENT = SolveOptions(time_limit_seconds=900.0)
_ITEMS = 50  # of a row of pairs
_KINDS = {
    "pairs": Selector.raw(redundancy_weight=0.1, passage_penalty="auto", options=_PATIENT),
    "plain": Selector.raw(redundancy_weight=0.0, passage_penalty=0.0, options=_PATIENT),
}


def scale(given: argparse.Namespace) -> int:
    """Measure, and write JSON and text; the exit status is 1 where a total was exceeded."""
    sizes = dict(zip(_KINDS, numbers("--scale", given.scale, int), strict=False))
    items = dict(zip(_KINDS, (_ITEMS, given.plain_items), strict=True))
    pools, described = load_pools(given.data, (), 10 if given.data else 25, given.seed, note)
    warmup()  # compiling is neither selecting nor allocating
    scratch = given.scratch or given.out.parent / "price-scale.scratch"
    report: dict[str, Any] = {
        "benchmark": "price --scale",
        "machine": machine(),
        "pools": described,
        "items": items,
        "seed": given.seed,
        "budget_tokens": _BUDGET,
        "ceiling": _CEILING,
        "runs": {},
    }
    for kind, rows in sizes.items():
        folder = scratch / f"rows-{kind}-{items[kind]}-{rows}"
        source = write_rows(folder, pools, rows, items[kind], given.seed, note, embeddings=kind == "pairs")
        report["runs"][kind] = _pair(kind, rows, source, scratch)
    report["decisions"] = decisions_a_second()
    report |= environment()
    write_json(given.out, report)
    draw(report, given.out.with_suffix(".png"))
    text = table(report)
    write_atomically(given.out.with_suffix(".txt"), text + "\n")
    print(text)
    if given.scratch is None:
        shutil.rmtree(scratch)
    return int(any(run["allocate"]["tokens_used"] > run["total_tokens"] for run in report["runs"].values()))


def _pair(kind: str, rows: int, source: Path, scratch: Path) -> dict[str, Any]:
    selector, total = _KINDS[kind], _BUDGET * rows * 2 // 3
    selected = _run(
        f"select {kind}", rows, scratch, lambda out, watch: select_batch(
            source, out, _BUDGET, selector, progress=watch.progress
        ),
    )  # fmt: skip
    shared = _run(
        f"allocate {kind}", rows, scratch, lambda out, watch: allocate_batch(
            source, out, total, selector, ceiling=_CEILING, progress=watch.progress
        ),
    )  # fmt: skip
    return {
        "rows": rows,
        "total_tokens": total,
        "select": selected,
        "allocate": shared,
        "ratio": shared["cpu_seconds"] / selected["cpu_seconds"],
    }


def _run(name: str, rows: int, scratch: Path, work: Callable[[Path, Watch], BatchSummary]) -> dict[str, Any]:
    out = scratch / f"{name.replace(' ', '-')}-{rows}"
    watch, cpu, began = Watch(name, out.with_suffix(".memory"), note), _cpu(), time.perf_counter()
    load = os.getloadavg()
    with watch:
        done = work(out, watch)
    told = done.to_dict()
    kept = ["rows", "rejected", "done_before", "statuses", "worker_seconds", "peak_worker_mb"]
    kept += ["gap", "rounds", "tokens_used", "prices"]
    return {
        **{key: told[key] for key in kept if key in told},
        "cpu_seconds": _cpu() - cpu,
        "seconds": time.perf_counter() - began,
        "memory": watch.summary(rows),
        "load_before": load,
    }


def _cpu() -> float:
    """CPU seconds of this process and of those that it waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def draw(report: dict[str, Any], path: Path) -> None:
    """Memory of worker and parent over the rows, of both commands on the rows that are most."""
    require("matplotlib", "evaluation", "the picture")
    from matplotlib.figure import Figure

    kind, run = max(report["runs"].items(), key=lambda entry: entry[1]["rows"])
    figure = Figure(figsize=(7, 3.5), layout="constrained")
    panel = figure.subplots()
    for name, colour in (("select", "#9aa1a8"), ("allocate", "#0072b2")):
        curve = run[name]["memory"]["curve_rows_worker_mb_parent_mb"]
        rows = [point[0] for point in curve]
        for place, who, style in ((1, "worker", "-"), (2, "parent", "--")):
            panel.plot(rows, [point[place] for point in curve], style, color=colour, label=f"{name}, {who}")
    panel.set(xlabel=f"rows ({kind})", ylabel="resident MB", ylim=(0, None))
    panel.legend(frameon=False)
    set_title(
        figure, f"{run['rows']:,} rows: allocate takes {run['ratio']:.2f} times the CPU of select-batch"
    )
    save_figure(figure, path)


def _listed(items: dict[str, int]) -> str:
    return " and ".join(f"{count} ({kind})" for kind, count in items.items())


def table(report: dict[str, Any]) -> str:
    """The figures as text."""
    lines = [
        f"rows of {_listed(report['items'])} passages; select-batch at {report['budget_tokens']} tokens a "
        "row, allocate with two thirds of that in the mean; one worker, CPU seconds with the parent's",
        "",
        f"{'rows':>18}{'select-batch':>14}{'allocate':>10}{'ratio':>7}{'gap':>9}  MB of the largest "
        "worker, and of the parent: second tenth -> last tenth",
    ]
    for kind, run in report["runs"].items():
        early, late = (run["allocate"]["memory"][part] for part in ("second_tenth", "last_tenth"))
        memory = "too short to tell"
        if early and late:
            memory = (
                f"{early['largest_mb']:.0f} -> {late['largest_mb']:.0f}, "
                f"{early['parent_largest_mb']:.0f} -> {late['parent_largest_mb']:.0f}"
            )
        seconds = [run[name]["cpu_seconds"] for name in ("select", "allocate")]
        lines.append(
            f"{run['rows']:>12} {kind:5}{seconds[0]:12.0f} s{seconds[1]:8.0f} s"
            f"{run['ratio']:7.2f}{run['allocate']['gap']:9.4%}  {memory}"
        )
    said = report["decisions"]
    lines += [
        "",
        f"a pacer: {said['processes']} processes on one file take {said['a_second']:.0f} questions a second, "
        f"two transactions each; one takes {1e3 * said['median_seconds']:.2f} ms (median), "
        f"{1e3 * said['p95_seconds']:.2f} ms (95 %), waiting included; alone "
        f"{1e3 * said['alone_median_seconds']:.2f} ms",
    ]
    return "\n".join(lines)
