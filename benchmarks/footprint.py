"""Peak memory and processor seconds of answering a question, each component in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import InputError, MioRagError
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.vectors import VECTOR_KINDS, make_dense, why_not
from mio_rag.session.costs import peak_memory_mb
from mio_rag.session.tiers import Tier, tiers_of

#: In the order in which a question meets them; each is measured with all before it.
COMPONENTS = ("program", "embedder", "index", "search", "selection", "answer")
_DEPTH = 10
_UNBOUNDED = 1_000_000  # tokens: what is read is for the tier to say
_MEGABYTE = 1e6


@dataclass(frozen=True)
class Footprint:
    """What a process needed that went as far as a component.

    Parameters
    ----------
    peak_mb : float
        Largest resident memory, in megabytes (10^6 bytes).
    added_mb : float
        More than that of the component before.
    seconds : float
        Processor time of this component.
    prompt_tokens : int or None
        Of the answer at a tier.
    """

    component: str
    peak_mb: float
    added_mb: float
    seconds: float
    prompt_tokens: int | None = None


@dataclass(frozen=True)
class Fit:
    """What an index needs in one form.

    Parameters
    ----------
    vectors : str
        See `mio_rag.retrieval.vectors`.
    mapped : bool
        Whether vectors (but product codes), texts and the lexical index stay on disk.
    recall : float
        Share of the 10 nearest passages of the exact vectors that are among the 10 nearest of these.
    peak_mb, above_model_mb : float
        Of a process that answers a question; and beyond one that has only loaded the embedder.
    vectors_mb : float
        File of the vectors.
    """

    vectors: str
    mapped: bool
    recall: float
    peak_mb: float
    above_model_mb: float
    vectors_mb: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def footprints(
    index: str | Path, question: str, generator: str = "extractive", *, mapped: bool = False
) -> list[Footprint]:
    """Memory and seconds of every component.

    Raises
    ------
    InputError
        If a process fails, with what it said.
    """
    told = {"index": str(index), "question": question, "generator": generator, "mapped": mapped}
    found: list[Footprint] = []
    for component in COMPONENTS:
        measured = _measured(component, told)
        before = found[-1].peak_mb if found else 0.0
        peak = measured["peak_mb"]
        found.append(Footprint(component, peak, max(0.0, peak - before), measured["seconds"]))
    return found


def tier_footprints(
    index: str | Path,
    question: str,
    tiers: Sequence[Tier],
    generator: str = "extractive",
    *,
    mapped: bool = False,
) -> list[Footprint]:
    """Memory and seconds of an answer at each tier, from the question on; beyond a process with the embedder.

    Raises
    ------
    InputError
        As `footprints`.
    """
    told = {"index": str(index), "question": question, "generator": generator, "mapped": mapped}
    before = _measured("embedder", told)["peak_mb"]
    found = []
    for tier in tiers:
        measured = _measured("tier", {**told, "tier": tier.to_dict()})
        peak, tokens = measured["peak_mb"], int(measured["prompt_tokens"])
        found.append(
            Footprint(f"tier:{tier.name}", peak, max(0.0, peak - before), measured["seconds"], tokens)
        )
    return found


def _measured(component: str, told: Mapping[str, Any]) -> dict[str, float]:
    """What a process says of itself that went as far as a component."""
    command = [sys.executable, "-m", __name__, json.dumps({**told, "upto": component})]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise InputError(f"'{component}' could not be measured: {said[-1] if said else 'no reason given'}")
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def fits(index: CorpusIndex, queries: NDArray[np.float32], question: str) -> list[Fit]:
    """Every form of an index that it can have (`why_not`): what it needs, and what recall it costs.

    Parameters
    ----------
    index : CorpusIndex
        With exact vectors.
    queries : ndarray, shape (m, d)
        Unit vectors whose nearest passages are compared.

    Raises
    ------
    InputError
        If the vectors of the index are compressed already.
    """
    vectors = index.embeddings(range(len(index)))
    exact = make_dense(vectors)
    if type(index._dense) is not type(exact):
        raise InputError("the index has compressed vectors: give one that was built with --vectors exact")
    found = []
    with tempfile.TemporaryDirectory() as folder:
        told: dict[str, Any] = {"question": question, "generator": "extractive"}
        before: float | None = None
        for kind in VECTOR_KINDS:
            if why_not(kind, *vectors.shape):
                continue
            dense = make_dense(vectors, kind)
            path = replace(index, _dense=dense).save(Path(folder) / kind)
            recall = recall_of(exact, dense, queries)
            told["index"] = str(path)
            if before is None:
                before = _measured("embedder", {**told, "mapped": False})["peak_mb"]
            size = (path / "dense.faiss").stat().st_size / _MEGABYTE
            for mapped in (False, True):
                peak = _measured("answer", {**told, "mapped": mapped})["peak_mb"]
                found.append(Fit(kind, mapped, recall, peak, peak - before, size))
    return found


def recall_of(exact: Any, other: Any, queries: NDArray[np.float32], depth: int = _DEPTH) -> float:
    """Mean share of the nearest rows of one FAISS index that are among as many nearest of another."""
    depth = min(depth, int(exact.ntotal))
    wanted, got = exact.search(queries, depth)[1], other.search(queries, depth)[1]
    return float(np.mean([len(set(a) & set(b)) / depth for a, b in zip(wanted, got, strict=True)]))


# In the process that is measured ---------------------------------------------------------------------------


def _work(told: dict[str, Any]) -> dict[str, float]:
    """Go as far as a component, and tell what that took."""
    state: dict[str, Any] = {}

    def embedder() -> None:
        from mio_rag.retrieval.embedders import make_embedder
        from mio_rag.storage import read_json

        folder = Path(told["index"])
        state["embedder"] = make_embedder(read_json(folder / "manifest.json")["embedder"], folder)
        state["embedder"].encode([told["question"]])

    def index() -> None:
        state["index"] = CorpusIndex.load(told["index"], state["embedder"], mapped=told["mapped"])

    def search() -> None:
        from mio_rag.generation import make_generator
        from mio_rag.retrieval.retriever import Retriever

        state["generator"] = make_generator(told["generator"])
        state["pool"] = Retriever(state["index"], counter=state["generator"]).retrieve(told["question"])

    def selection() -> None:
        from mio_rag.selection.selector import Selector

        state["selection"] = Selector().select(state["pool"], 256, state["generator"])

    def answer() -> None:
        from mio_rag.generation import build_prompt
        from mio_rag.types import Question

        prompt = build_prompt(Question("question", told["question"]), state["selection"].passages)
        state["generator"].generate(prompt, max_tokens=32)
        state["generator"].close()

    def tier() -> None:
        from mio_rag.generation import make_generator
        from mio_rag.learning.router_model import KEY, RouterSettings
        from mio_rag.policies.make import make_controller
        from mio_rag.policies.setup import ControlSettings, Setup
        from mio_rag.retrieval.retriever import Retriever
        from mio_rag.types import Question

        generator = make_generator(told["generator"])
        settings = RouterSettings(tiers_of([told["tier"]], "the tier"))
        setup = Setup(
            ControlSettings(kinds={KEY: settings.to_dict()}), Retriever(state["index"], counter=generator)
        )
        made = make_controller(f"tier:{told['tier']['name']}", setup)
        found = made.attempt(Question("question", told["question"]), generator, _UNBOUNDED).check()
        state["prompt_tokens"] = found.costs.total().prompt_tokens
        generator.close()

    steps: dict[str, Callable[[], None]] = dict(
        zip(COMPONENTS, (lambda: None, embedder, index, search, selection, answer), strict=True)
    )
    if told["upto"] == "tier":
        steps = {"embedder": embedder, "index": index, "tier": tier}
    seconds = 0.0
    for name, step in steps.items():
        start = time.process_time()
        step()
        seconds = time.process_time() - start
        if name == told["upto"]:
            break
    peak = peak_memory_mb()
    if peak is None:
        raise InputError("this system does not tell how much memory a process held")
    return {"peak_mb": peak, "seconds": seconds, "prompt_tokens": state.get("prompt_tokens", 0)}


if __name__ == "__main__":
    try:
        print(json.dumps(_work(json.loads(sys.argv[1]))))
    except MioRagError as error:
        sys.exit(str(error))
