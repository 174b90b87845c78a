"""TOML files: options for ``--config``, and decision processes for ``mio-rag mdp``."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner

from benchmarks.fuzz.commands import check_printed, run_command
from benchmarks.fuzz.endings import Wrong
from benchmarks.fuzz.odd import NUMBERS, TEXTS, chance, mutated_bytes, mutated_text, number, pick, simpler
from mio_rag.cli import output as cli_output
from mio_rag.cli.app import app
from mio_rag.corpora.load import load_dataset
from mio_rag.formulations.mdp import RetrievalMDP
from mio_rag.learning.mdp import Plan, model_from_mapping, read_model, solve_plan
from mio_rag.retrieval import CorpusIndex, TfidfEmbedder

#: Options of `mio-rag select` with values that they may have.
_OPTIONS: dict[str, tuple[Any, ...]] = {
    "budget_tokens": (1, 50, 256, 10**9),
    "pool": (1, 10, 50, 10**6),
    "retrieval": ("fused", "dense", "bm25"),
    "redundancy": (0, 0.1, 5),
    "passage_penalty": ("auto", 0, "0.02"),
    "token_price": (0, 0.001),
    "radius": (0, 0.1),
    "norm": ("l2", "l1", "linf"),
    "max_per_source": (1, 3),
    "min_passages": (0, 2),
    "max_passages": (1, 5),
    "solver": ("auto", "branch_and_bound", "greedy", "highs"),
    "time_limit": (0.5, 1),
    "relative_gap": (0, 0.01),
    "threads": (1, 2),
    "seed": (0, 7),
    "relevance": ("cosine", "default", "gone.json"),
    "link_benefit": (0, 0.2),
    "prompt_order": ("best_first", "document"),
    "counterpart": ("termwise", "joint"),
    "cover": ("kmeans:3", "labels", "agglomerative:0.5"),
    "price": (["clusters=0.1"], ["sources=1"]),
}
_DROPS = ("retrieve_drop", "reason_drop", "success")
_LARGEST = 20_000  # points times decisions of a process that is also checked
_QUESTION = "Which tower is taller?"


class Toml:
    """Bytes of a file, and which command reads it."""

    chunk = 50

    def __init__(self, folder: Path) -> None:
        self._file = folder / "file.toml"
        demo = load_dataset("demo")
        index = CorpusIndex.build(demo.passages, TfidfEmbedder(dimensions=60), demo.name)
        self._index = str(index.save(folder / "index"))

    def draw(self, rng: np.random.Generator) -> Any:
        """Known keys with values that may be odd, and text that may be bent."""
        reads = pick(rng, ["select", "mdp", "mdp"])
        text = _config(rng) if reads == "select" else _process(rng)
        if chance(rng, 0.3):
            text = mutated_text(rng, text)
        data = text.encode("utf-8", "surrogatepass")
        if chance(rng, 0.05):
            data = mutated_bytes(rng, data)
        return {"reads": reads, "file": data, "alone": chance(rng, 0.002), "json": chance(rng, 0.7)}

    def run(self, given: Any) -> str:
        """Read the file as its command does."""
        self._file.write_bytes(given["file"])
        if given["reads"] == "mdp" and not given["alone"]:
            model = model_from_mapping(read_model(self._file), "the file")
            if model.grid * (model.horizon or 1000) > _LARGEST:
                return "too large to be checked"
            return _checked(model, solve_plan(model))
        command = ["mdp", "solve"] if given["reads"] == "mdp" else ["select", self._index, _QUESTION]
        command += ["--config", str(self._file), *(["--json"] if given["json"] else [])]
        return run_command(command, b"", {})[0] if given["alone"] else _here(command)

    def smaller(self, given: Any) -> Iterator[Any]:
        """Fewer lines, then less of them."""
        lines = given["file"].split(b"\n")
        for part in simpler(lines) if len(lines) > 1 else simpler(given["file"]):
            if isinstance(part, bytes) or all(isinstance(line, bytes) for line in part):
                yield {**given, "file": part if isinstance(part, bytes) else b"\n".join(part)}

    def close(self) -> None:
        """Nothing is held."""


def _here(command: list[str]) -> str:
    """The command in this process, whose standard output is given back whatever happens."""
    cli_output._current = None  # of the command before
    kept = os.dup(1)
    try:
        done = CliRunner().invoke(app, command, catch_exceptions=False)
    finally:
        os.dup2(kept, 1)
        os.close(kept)
    ended, found = check_printed(done.exit_code, done.stdout, done.stderr, "--json" in command)
    if found is not None and found.get("tokens_used", 0) > found.get("budget_tokens", 0):
        raise Wrong("more tokens than the budget", found)
    return ended


def _written(value: Any) -> str:
    """A value as TOML writes it, or tries to."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_written, value))}]"
    return json.dumps(value)


def _odd(rng: np.random.Generator) -> Any:
    kind = int(rng.integers(4))
    if kind == 0:
        return pick(rng, TEXTS)
    if kind == 1:
        return [number(rng) for _ in range(int(rng.integers(4)))]
    return pick(rng, NUMBERS) if kind == 2 else number(rng)


def _config(rng: np.random.Generator) -> str:
    lines = []
    for name in rng.permutation(list(_OPTIONS))[: int(rng.integers(1, 6))]:
        odd = chance(rng, 0.25)
        lines.append(f"{name} = {_written(_odd(rng) if odd else pick(rng, _OPTIONS[str(name)]))}")
    if chance(rng, 0.2):
        lines += ["[measured]", "questions = 3"]
    return "\n".join(lines)


def _process(rng: np.random.Generator) -> str:
    def share() -> Any:
        few = rng.random(int(rng.integers(1, 4))).tolist()
        return few[0] if chance(rng, 0.8) else few

    values: dict[str, Any] = {name: share() for name in _DROPS}
    values |= {name: float(rng.random() * 0.2) for name in ("retrieve_cost", "reason_cost")}
    values |= {"discount": float(rng.uniform(0.5, 1)), "horizon": pick(rng, [1, 2, 5, 10, "inf"])}
    values |= {"quality": pick(rng, ["linear", "log", "exp"]), "k": float(10 ** rng.uniform(-3, 3))}
    values["grid"] = pick(rng, [2, 3, 11, 101, 1001])
    chosen = {name: part for name, part in values.items() if name == "grid" or chance(rng, 0.6)}
    for _ in range(int(rng.choice(3, p=[0.5, 0.35, 0.15]))):
        chosen[pick(rng, [f.name for f in dataclasses.fields(RetrievalMDP)])] = _odd(rng)
    return ("[mdp]\n" if chance(rng, 0.5) else "") + "\n".join(
        f"{k} = {_written(v)}" for k, v in chosen.items()
    )


def _checked(model: RetrievalMDP, plan: Plan) -> str:
    """Value iteration anew, in plain loops over actions; the plan may be off by the error that it states."""
    u, own = model.levels, np.arange(model.grid)
    after = {}
    for action in ("retrieve", "reason"):
        position = np.maximum(0.0, u - model.at(f"{action}_drop", u)) * (model.grid - 1)
        low = np.minimum(position.astype(np.int64), model.grid - 2)
        after[action] = (low, position - low)
    quality = model.quality_at(u)
    found = quality if model.horizon is not None else np.zeros(model.grid)
    for _ in range(model.horizon or 400):
        worth = [quality] if model.horizon is not None else []
        for action, (low, part) in after.items():
            lowered = (1 - part) * found[low] + part * found[low + 1]
            chance_of = model.at("success", u) if action == "retrieve" else np.ones(model.grid)
            then = chance_of * lowered + (1 - chance_of) * found[own]
            now = -model.at(f"{action}_cost", u) + (quality if model.horizon is None else 0.0)
            worth.append(now + model.discount * then)
        found = np.max(worth, axis=0)
    solution = plan.solution
    if not (np.isfinite(solution.values).all() and np.isfinite(solution.error) and solution.error >= 0):
        raise Wrong("values or their error are not finite", solution.error)
    largest = max(1.0, float(np.abs(found).max()))
    off = 1e-9 * largest + solution.error
    if model.horizon is None:  # what is left of the series after so many steps
        most = float(np.abs(quality).max() + max(model.at(f"{a}_cost", u).max() for a in after))
        off += model.discount**400 * most / (1 - model.discount)
    if float(np.abs(found - plan.values(0)).max()) > off:
        raise Wrong(
            "values of the process are off by more than their error", np.abs(found - plan.values(0)).max()
        )
    if plan.action_at(0, 1.0) not in model.actions:
        raise Wrong("an action that the process does not have")
    return "solved"
