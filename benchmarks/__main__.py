"""Benchmarks: measure, write the JSON, and fail where a solver is wrong.

python -m benchmarks --help lists them. Each one's module says what it measures and how.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import adapters, attacks, batch, conformance, edge, judges, mdp, rows, service
from benchmarks.composed import command as composed
from benchmarks.control import command as control
from benchmarks.default import command as default
from benchmarks.files import write_json
from benchmarks.fuzz import command as fuzz
from benchmarks.planner import command as planner
from benchmarks.price import command as price
from benchmarks.price import pacing
from benchmarks.relevance import answers_command as answers
from benchmarks.relevance import command as relevance
from benchmarks.relevance import more_commands as more
from benchmarks.repetition import command as repetition
from benchmarks.router import command as router
from benchmarks.sentences import command as sentences
from benchmarks.speed import command as speed
from benchmarks.stability import command as stability
from benchmarks.strategies import command as strategies
from benchmarks.strategies import log as strategies_log
from benchmarks.trust import command as trust
from mio_rag.errors import InputError

_Parser = argparse.ArgumentParser
_Options = argparse.Namespace


def main(arguments: list[str] | None = None) -> int:
    """Run one benchmark; the exit status is 1 where it found a disagreement, 2 for bad input."""
    said = sys.argv[1:] if arguments is None else arguments
    table: dict[str, tuple[str, Callable[[_Parser], None], Callable[[_Options], int]]] = {
        "conformance": ("all solvers against enumeration on random programs", _options, _conformance),
        "trust": (
            "every certificate of the exact kernel against enumeration",
            trust.add_options,
            trust.command,
        ),
        "fuzz": (
            "random and mutated inputs to every public interface; no crash, no wrong result",
            fuzz.add_options,
            fuzz.command,
        ),
        "solvers": (
            "speed on real candidate pools, against general solvers and heuristics",
            speed.add_options,
            lambda given: speed.command(given, said),
        ),
        "rows": ("the exact kernel with source caps, topics and conflicts", rows.add_options, rows.command),
        "default": (
            "what a newcomer gets, against the best ranking of sets that nothing was fitted on",
            default.add_options,
            default.command,
        ),
        "composed": (
            "one policy over all controllers: completeness, parts at equal tokens, answers under kills",
            composed.add_options,
            composed.command,
        ),
        "price": (
            "one price for every token and one total for all questions, against budgets alike for all",
            price.add_options,
            price.command,
        ),
        "repetition": (
            "corpora of overlapping windows: shared text read once, against rankings",
            repetition.add_options,
            repetition.command,
        ),
        "sentences": (
            "sentences as units: their relevance, and what choosing them brings",
            sentences.add_options,
            sentences.command,
        ),
        "relevance": (
            "calibrated relevance and evidence links, against rank baselines",
            relevance.add_options,
            relevance.command,
        ),
        "judges": (
            "judges of support on answers whose support is known",
            judges.add_options,
            judges.command,
        ),
        "answers": (
            "answers of a language model from those selections",
            answers.add_options,
            answers.command,
        ),
        "transfer": (
            "relevance weights fitted on one set, used on another",
            more.add_transfer_options,
            more.transfer_command,
        ),
        "tuned": (
            "weights, source caps and rankings, tuned on one half of each set",
            more.add_tuned_options,
            more.tuned_command,
        ),
        "latency": (
            "the time of a new question by stage, without a reader",
            more.add_latency_options,
            more.latency_command,
        ),
        "attacks": (
            "attacked selections: certificates of worst cases, and their slack",
            attacks.add_options,
            attacks.command,
        ),
        "stability": (
            "costs and gains of robustness at matched token budgets",
            stability.add_options,
            stability.command,
        ),
        "mdp": (
            "decision processes: our kernels, plain Python, numpy, other packages",
            mdp.add_options,
            mdp.command,
        ),
        "pacing": (
            "a pacer of tokens against the best split in hindsight, over orders of questions",
            pacing.add_options,
            pacing.command,
        ),
        "control": (
            "controllers with a language model: quality against cost, calibration",
            control.add_options,
            control.command,
        ),
        "router": (
            "tiers and routers: quality against tokens, fixed tiers, rivals, prices and oracles",
            router.add_options,
            router.command,
        ),
        "edge": (
            "indexes for small devices: recall and memory of every form, a hundred thousand passages",
            edge.add_options,
            edge.command,
        ),
        "strategies": (
            "search strategies alone and together, bandits against fixed sets and the oracle",
            strategies.add_options,
            strategies.command,
        ),
        "strategies-log": (
            "the log of a bandit up to a million questions: time, memory, folding afresh",
            strategies_log.add_options,
            strategies_log.command,
        ),
        "planner": (
            "planners over workflows on a table of outcomes: frontiers, seeds, rivals, a live sample",
            planner.add_options,
            planner.command,
        ),
        "batch": (
            "rows per second of select-batch, memory while streaming, overhead of Ray",
            batch.add_options,
            batch.command,
        ),
        "service": (
            "many clients on loopback, then more than the service accepts",
            service.add_options,
            service.command,
        ),
        "adapters": (
            "what the adapters to other frameworks add to the bare selector",
            adapters.add_options,
            adapters.command,
        ),
    }
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    names = parser.add_subparsers(dest="name", required=True, metavar="BENCHMARK")
    for name, (what, options, _) in table.items():
        options(names.add_parser(name, help=what))
    given = parser.parse_args(arguments)
    try:
        return table[given.name][2](given)
    except InputError as error:
        for problem in error.problems:
            print(f"error: {problem}", file=sys.stderr)
        return 2


def _options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--programs", type=_positive, default=2000, help="how many programs (default: 2000)")
    add("--seed", type=int, default=0, help="of the generator (default: 0)")
    add("--out", type=Path, default=Path("benchmarks/results/conformance.json"))


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
