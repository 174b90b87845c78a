"""`answer-batch` against a local server with a real model: llama.cpp's own, in a process of its own.

`python -m benchmarks.composed.local URL_FILE GGUF` runs the server.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.composed.load import made_ready, run_of
from mio_rag.errors import require


def with_model(
    work: Path, gguf: Path, questions: int, kills: int, seed: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """Questions against a real model, with kills; goes on where it was interrupted."""
    made_ready(work, questions)
    url = work / "url"
    url.unlink(missing_ok=True)
    server = subprocess.Popen([sys.executable, "-m", "benchmarks.composed.local", str(url), str(gguf)])
    try:
        while not url.is_file():
            if server.poll() is not None:
                raise RuntimeError("the server has ended")
            time.sleep(0.2)
        spec = f"openai:{url.read_text(encoding='utf-8')}/v1#any?window=2048&timeout_seconds=300"
        run = run_of(work, "model", spec, questions, 1000.0, kills, seed, say)
    finally:
        server.terminate()
        server.wait()
    run["problems"] = [
        *([] if run["answered"] == questions else [f"{run['answered']} of {questions} are answered"]),
        *([] if run["nothing_asked_again"] else ["a finished batch asked again"]),
        *([] if not run["answered_more_than_once"] else ["questions were charged otherwise than once"]),
    ]
    return {"questions": questions, "seed": seed, "model": gguf.name, "run": run}


def main(url_file: str, gguf: str) -> None:
    """Serve until the process is ended."""
    xllamacpp = require("xllamacpp", "gguf", "running a GGUF model")
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.verbosity = gguf, 8192, 4, -1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)
    Path(url_file).write_text(server.listening_address, encoding="utf-8")
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main(*sys.argv[1:3])
