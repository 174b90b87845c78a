"""Benchmarks: measure, write the JSON, and fail where a solver is wrong.

python -m benchmarks conformance    all solvers against exhaustive enumeration on random programs
python -m benchmarks trust          every certificate of the exact kernel against enumeration
python -m benchmarks solvers        speed on real candidate pools, against general solvers and heuristics
python -m benchmarks rows           the exact kernel with source caps, topics and conflicts
python -m benchmarks relevance      calibrated relevance and evidence links, against rank baselines
python -m benchmarks attacks        attacked selections: certificates of worst cases, and their slack
python -m benchmarks stability      what robustness costs and buys at matched token budgets
python -m benchmarks mdp            decision processes: our kernels, plain Python, numpy, other packages
python -m benchmarks control        controllers with a language model: quality against cost, calibration
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks import attacks, conformance, mdp, rows
from benchmarks.control import command as control
from benchmarks.files import write_json
from benchmarks.relevance import command as relevance
from benchmarks.speed.command import add_options, command
from benchmarks.stability import command as stability
from benchmarks.trust import command as trust


def main(arguments: list[str] | None = None) -> int:
    """Run one benchmark; the exit status is 1 where it found a disagreement, 2 for bad input."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    names = parser.add_subparsers(dest="name", required=True)
    one = names.add_parser(
        "conformance", help="all solvers against exhaustive enumeration on random programs"
    )
    one.add_argument("--programs", type=_positive, default=2000, help="how many programs (default: 2000)")
    one.add_argument("--seed", type=int, default=0, help="of the generator (default: 0)")
    one.add_argument("--out", type=Path, default=Path("benchmarks/results/conformance.json"))
    add_options(names.add_parser("solvers", help="speed on real candidate pools"))
    relevance.add_options(names.add_parser("relevance", help="calibrated relevance and evidence links"))
    rows.add_options(names.add_parser("rows", help="the exact kernel on programs with side rows"))
    attacks.add_options(names.add_parser("attacks", help="attacked selections and their certificates"))
    stability.add_options(names.add_parser("stability", help="robust selection at matched token budgets"))
    trust.add_options(
        names.add_parser("trust", help="every certificate of the exact kernel against enumeration")
    )
    mdp.add_options(names.add_parser("mdp", help="decision processes: our kernels against other packages"))
    control.add_options(names.add_parser("control", help="controllers with a language model"))
    given = parser.parse_args(arguments)
    if given.name == "control":
        return control.command(given)
    if given.name == "mdp":
        return mdp.command(given)
    if given.name == "relevance":
        return relevance.command(given)
    if given.name == "rows":
        return rows.command(given)
    if given.name == "attacks":
        return attacks.command(given)
    if given.name == "stability":
        return stability.command(given)
    if given.name == "trust":
        return trust.command(given)
    if given.name == "solvers":
        return command(given, sys.argv[1:] if arguments is None else arguments)
    return _conformance(given)


def _conformance(given: argparse.Namespace) -> int:
    report = conformance.run(
        given.programs, given.seed, progress=lambda done: conformance.show_progress(done, given.programs)
    )
    write_json(given.out, report)
    wrong = len(report["disagreements"])
    print(f"{report['comparisons']} comparisons, {wrong} disagreements: {given.out}", file=sys.stderr)
    for found in report["disagreements"][:10]:
        print(f"program {found['program']}, {found['solver']}: {found['wrong']}", file=sys.stderr)
    return 1 if wrong else 0


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not >= 1")
    return value


if __name__ == "__main__":
    sys.exit(main())
