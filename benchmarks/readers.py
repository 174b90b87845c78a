"""Time and memory of reading a folder of files, next to pypdfium2's text of its PDFs and to another checkout.

Every contender reads in a process of its own, in turn, and the order turns round with every round: ratios are
those of a round. Imports are not counted, the start of further processes is.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.documents import bundled_set
from benchmarks.runner import Measured, note, text_table
from mio_rag.documents.files import KINDS
from mio_rag.errors import InputError

_ALONE = "pypdfium2, text alone"
_READ = {
    _ALONE: """
import pypdfium2
def read(folder, files):
    for path in files:
        pdf = pypdfium2.PdfDocument(path)
        for page in pdf:
            text = page.get_textpage()
            text.get_text_range()
            text.close()
            page.close()
        pdf.close()
""",
    "one file after another": """
import pypdfium2
from mio_rag.documents import docx, html, markdown, office, passages, pdf, plain
from mio_rag.documents.files import read_file
def read(folder, files):
    for path in files:
        read_file(path)
""",
    "the folder": """
from mio_rag.documents.files import read_folder
def read(folder, files):
    read_folder(folder)
""",
    "the other checkout": """
try:
    from mio_rag.documents.files import read_folder
except ImportError:
    from mio_rag.corpora.documents import load_folder as read_folder
def read(folder, files):
    read_folder(folder)
""",
}
_TIMED = """
import json, resource, sys, time
from pathlib import Path
folder = Path(sys.argv[1])
files = sorted(path for path in folder.rglob("*") if path.is_file())
start, used = time.perf_counter(), time.process_time()
read(folder, files)
seconds, used = time.perf_counter() - start, time.process_time() - used
own, others = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
cpu = used + others.ru_utime + others.ru_stime
print(json.dumps({"seconds": seconds, "cpu": cpu, "megabytes": max(own.ru_maxrss, others.ru_maxrss) / 1024}))
"""


def measure(given: argparse.Namespace) -> Measured:
    """Read the files of each format, all together and one by one."""
    source = bundled_set(given.work, 0).files if given.data is None else given.data
    found = sorted(path for path in source.rglob("*") if path.is_file() and path.suffix.lower() in KINDS)
    kinds = {path.suffix.lower() for path in found} & set(given.kinds.split(",") if given.kinds else KINDS)
    if not kinds:
        raise InputError(f"'{source}' holds no files of the wanted kinds: change --data or --kinds")
    report: dict[str, Any] = {}
    lines = []
    for kind in sorted(kinds):
        folder = given.work / f"files{kind}"
        folder.mkdir(parents=True, exist_ok=True)
        files = [path for path in found if path.suffix.lower() == kind]
        for k, path in enumerate(files):
            copy = folder / f"{k:05d}{kind}"
            if not copy.exists():
                copy.write_bytes(path.read_bytes())
        names = [name for name in _READ if kind == ".pdf" or name != _ALONE]
        names = [name for name in names if given.other or name != "the other checkout"]
        rounds = [
            {name: _timed(name, folder, given.other) for name in (names if k % 2 else names[::-1])}
            for k in range(given.rounds)
        ]
        size = sum(path.stat().st_size for path in files) / 1e6
        about: dict[str, Any] = {"files": len(files), "megabytes": round(size, 3), "contenders": {}}
        base = names[0]
        for name in names:
            one = {key: statistics.median(r[name][key] for r in rounds) for key in rounds[0][name]}
            for key in ("seconds", "cpu"):
                one[f"{key}_to_first"] = statistics.median(r[name][key] / r[base][key] for r in rounds)
            about["contenders"][name] = {key: round(value, 4) for key, value in one.items()}
            lines.append(
                [
                    f"{kind}: {name}",
                    f"{one['cpu']:.2f} s",
                    f"{one['seconds']:.2f} s",
                    f"{one['cpu_to_first']:.2f}",
                    f"{one['seconds_to_first']:.2f}",
                    f"{one['megabytes']:.0f} MB",
                ]
            )
        report[kind] = about
        note(f"{kind}: {len(files)} files, {size:.1f} MB")
    heads = ["files", "CPU", "time", "CPU, ratio", "time, ratio", "memory of the largest process"]
    return Measured({"kinds": report, "cores": os.cpu_count()}, text_table(heads, lines))


def _timed(name: str, folder: Path, other: Path | None) -> dict[str, float]:
    home = other if name == "the other checkout" and other else Path(__file__).parents[1]
    paths = [str(home.resolve()), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-c", _READ[name] + _TIMED, str(folder.resolve())],
        cwd=home,  # its folder comes before PYTHONPATH
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise InputError(f"{name}: reading '{folder.name}' failed: {done.stderr.strip()[-300:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found
