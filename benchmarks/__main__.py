"""`python -m benchmarks conformance`: measure, write the JSON, and fail where a solver is wrong."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import conformance


def main(arguments: list[str] | None = None) -> int:
    """Run one benchmark; the exit status is 1 where it found a disagreement."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    names = parser.add_subparsers(dest="name", required=True)
    one = names.add_parser(
        "conformance", help="all solvers against exhaustive enumeration on random programs"
    )
    one.add_argument("--programs", type=_positive, default=2000, help="how many programs (default: 2000)")
    one.add_argument("--seed", type=int, default=0, help="of the generator (default: 0)")
    one.add_argument("--out", type=Path, default=Path("benchmarks/results/conformance.json"))
    given = parser.parse_args(arguments)
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


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Write all or nothing: readers never see half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(data, file, indent=1, sort_keys=True)
            file.write("\n")
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


if __name__ == "__main__":
    sys.exit(main())
