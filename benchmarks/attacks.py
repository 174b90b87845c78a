"""Attacked selections: does any perturbation beat a certificate, and how much room do certificates leave?

For every question, uncertainty set and meaning of relevance five selections of the same pool are attacked:
the optima of the nominal program, of the termwise and of the joint counterpart, and two random ones. A
certificate is violated if the attack makes the selection worth less than certified, by the joint lower end or
by the termwise program's value; or if the attacked pool, its cosines computed anew from the perturbed
embeddings and put through the nominal program, is not worth what the attack claims.

The *slack* of a certificate is the share of the loss it charges that no attack reached:
(reached - certified) / (nominal - certified). 0: an attack reaches it; 1: nothing was lost at all.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.questions import load_sets
from benchmarks.runner import Measured, at_least, figure, note, text_table
from mio_rag.errors import SolverError
from mio_rag.formulations import DeviationBudget, Ellipsoid, NormBall, OwnSet, SparseBox
from mio_rag.formulations.uncertainty import UncertaintySet
from mio_rag.pool import Candidates
from mio_rag.relevance import RelevanceModel, load_model
from mio_rag.retrieval import Retriever
from mio_rag.selection.explain import attack
from mio_rag.selection.program import joint_problem
from mio_rag.selection.selector import Selector
from mio_rag.solvers import SolveOptions

FloatArray = NDArray[np.float64]
_RELEVANCE = ("cosine", "calibrated")
_POOL, _BUDGET = 30, 512
_BINS = 20
_OPTIONS = SolveOptions(time_limit_seconds=1.0, relative_gap=1e-3)


@dataclass(frozen=True)
class Attacked:
    """One attacked selection: its value as embedded, what is certified, what was reached."""

    kind: str
    nominal: float
    joint: float
    termwise: float
    reached: float
    wrong: str = ""

    def slack(self, certified: float) -> float | None:
        """None where the certificate charges no loss."""
        charged = self.nominal - certified
        return (self.reached - certified) / charged if charged > 1e-9 else None


def measure(given: argparse.Namespace) -> Measured:
    """Attack the selections of every set; a violated certificate is wrong."""
    at_least(given, limit=1)
    found: dict[str, list[Attacked]] = {}
    for one in load_sets(given):
        retriever = Retriever(one.index, pool=_POOL, link_hops=1)
        for k, question in enumerate(one.dataset.questions[: given.limit]):
            rng, pool = np.random.default_rng([given.seed, k]), retriever.retrieve(question.text)
            found.setdefault(one.name, []).extend(attacked(pool, rng, f"{one.name}, {question.id}"))
            note(f"{one.name}, {question.id}")
    report = summarize(found)
    return Measured(report, table(report), partial(draw, report), len(report["violations"]))


def attacked(pool: Candidates, rng: np.random.Generator, label: str = "") -> list[Attacked]:
    """Five selections of a pool under every kind of set and meaning of relevance, attacked."""
    found = []
    for kind, relevance in itertools.product(SETS, _RELEVANCE):
        uncertainty = drawn_set(kind, pool, rng)
        base = Selector.raw(
            redundancy_weight=float(rng.choice([0.05, 0.1, 0.3])), passage_penalty=0.0, options=_OPTIONS
        )
        if relevance == "calibrated":
            base = base.replace(relevance_model=load_model("ranks"), link_benefit=0.2)
        one = _Attacker(base, uncertainty, pool, f"{relevance}|{kind}", label)
        found += [one.attacked(x, int(rng.integers(2**31))) for x in _decisions(base, uncertainty, pool, rng)]
    return found


def _decisions(
    base: Selector, uncertainty: UncertaintySet, pool: Candidates, rng: np.random.Generator
) -> Iterator[NDArray[np.int8]]:
    robust = base.replace(uncertainty=uncertainty)
    for selector in (base, robust, robust.replace(counterpart="joint")):
        x = selector.select(pool, _BUDGET).result.x
        assert x is not None
        yield x
    for _ in range(2):
        x = np.zeros(len(pool), dtype=np.int8)
        x[rng.choice(len(pool), min(len(pool), int(rng.integers(1, 11))), replace=False)] = 1
        yield x


class _Attacker:
    """Attacks selections of one pool under one set."""

    def __init__(
        self, base: Selector, uncertainty: UncertaintySet, pool: Candidates, kind: str, label: str
    ) -> None:
        self._base, self._pool, self._kind, self._label = base, pool, kind, label
        robust, valued = base.replace(uncertainty=uncertainty), base.valued(pool)
        self._problem = joint_problem(robust, valued, _BUDGET)
        self._termwise = robust.program(valued, _BUDGET)

    def attacked(self, x: NDArray[np.int8], seed: int) -> Attacked:
        """What became of a decision."""
        termwise = self._termwise.objective(x)
        try:
            found = attack(self._problem, x, restarts=1, random=10, seed=seed)
        except SolverError as error:  # the attack's own check of the certificate
            return Attacked(self._kind, 0.0, 0.0, termwise, 0.0, self._said(str(error)))
        worth, wrong = self._worth(found.delta, x), ""
        if found.worst < termwise - 1e-7 * max(1.0, abs(termwise)):
            wrong = self._said(f"reached {found.worst:.9g}, termwise {termwise:.9g}")
        elif abs(worth - found.worst) > 1e-5 * max(1.0, abs(worth)):  # Candidates hold 32-bit embeddings
            wrong = self._said(f"claimed {found.worst:.9g}, the attacked pool is worth {worth:.9g}")
        return Attacked(self._kind, found.nominal, found.certified, termwise, found.worst, wrong)

    def _said(self, text: str) -> str:
        return f"{self._label}, {self._kind.replace('|', ', ')}: {text}"

    def _worth(self, delta: FloatArray, x: NDArray[np.int8]) -> float:
        """Value of a decision in the nominal program of the attacked pool.

        A relevance model takes the best cosine and the ranks as the search observed them
        (`mio_rag.relevance.features`), so that it is asked for its probabilities at the lowered cosines.
        """
        pool = self._pool
        assert pool.embeddings is not None
        assert pool.query_embedding is not None
        query = pool.query_embedding.astype(np.float64)
        moved = pool.embeddings.astype(np.float64) + delta
        value = moved @ query
        if isinstance(self._base.relevance_model, RelevanceModel):
            value = self._base.relevance_model.probabilities(pool, pool.embeddings @ query - value)
        moved_pool = replace(pool, embeddings=moved.astype(np.float32), relevance=value)
        return self._base.program(moved_pool, _BUDGET).objective(x)


def summarize(found: Mapping[str, Sequence[Attacked]]) -> dict[str, Any]:
    """Counts, violations, and slack by meaning of relevance and kind of set."""
    every = [one for part in found.values() for one in part]
    edges = np.linspace(0.0, 1.0, _BINS + 1)
    kinds: dict[str, Any] = {}
    for name in dict.fromkeys(one.kind for one in every):
        mine = [one for one in every if one.kind == name and not one.wrong]
        entry: dict[str, Any] = {"attacked": len(mine)}
        for certificate, of in _CERTIFICATES.items():
            slack = np.array([s for one in mine if (s := one.slack(of(one))) is not None])
            entry[certificate] = {
                "charged": int(slack.size),
                "histogram": np.histogram(np.clip(slack, 0, 1), edges)[0].tolist(),
                **{
                    key: float(np.percentile(slack, share)) if slack.size else None
                    for key, share in (("median", 50), ("p95", 95), ("largest", 100))
                },
            }
        kinds[name] = entry
    return {
        "attacked": len(every),
        "by_data_set": {name: len(part) for name, part in found.items()},
        "violations": [one.wrong for one in every if one.wrong],
        "bin_edges": edges.tolist(),
        "kinds": kinds,
    }


_CERTIFICATES: dict[str, Callable[[Attacked], float]] = {
    "joint": lambda one: one.joint,
    "termwise": lambda one: one.termwise,
}


def table(report: Mapping[str, Any]) -> str:
    """Lay out the slack by kind of set."""
    rows = [
        (name.replace("|", ", "), entry["attacked"], *(
            "-" if not entry[c]["charged"] else f"{entry[c]['median']:.3f} / {entry[c]['p95']:.3f}"
            for c in _CERTIFICATES
        ))
        for name, entry in report["kinds"].items()
    ]  # fmt: skip
    head = f"{report['attacked']} attacked selections, {len(report['violations'])} certificates violated"
    heads = ("slack, median / p95", "selections", *_CERTIFICATES)
    return "\n".join([head, text_table(heads, rows), *report["violations"][:10]])


def draw(report: Mapping[str, Any], path: Path) -> None:
    """Draw histograms of slack, one panel a kind of set, with cosines."""
    edges = np.array(report["bin_edges"])
    made, panels = figure(len(SETS), 2.6, 2.9)
    for panel, kind in zip(panels, SETS, strict=True):
        entry = report["kinds"].get(f"cosine|{kind}")
        panel.set(title=kind, xlabel="slack (0: reached)", xlim=(0, 1))
        for certificate in _CERTIFICATES:
            if entry is not None and entry[certificate]["charged"]:
                counts = np.array(entry[certificate]["histogram"]) / entry[certificate]["charged"]
                panel.stairs(counts, edges, label=certificate, fill=True, alpha=0.6)
    panels[0].set_ylabel("share of selections")
    panels[0].legend(frameon=False, fontsize=7)
    made.savefig(path, format="png", dpi=110)


# Uncertainty sets ------------------------------------------------------------------------------------------


def _mean_support(a: FloatArray) -> FloatArray:
    """Of half an l2 ball plus half an l1 ball."""
    return np.asarray(0.5 * np.linalg.norm(a, axis=-1) + 0.5 * np.abs(a).max(axis=-1))


def _mean_point(a: FloatArray) -> FloatArray:
    return 0.5 * NormBall(1.0).unit_point(a) + 0.5 * NormBall(1.0, "l1").unit_point(a)


def _box(radius: FloatArray) -> SparseBox:
    return SparseBox(radius, 4, (0, 1))


#: name -> (radii, dimensions, random numbers) -> set; scaled so that losses are of like size
SETS: dict[str, Callable[[FloatArray, int, np.random.Generator], UncertaintySet]] = {
    "l2": lambda r, d, rng: NormBall(r),
    "l1": lambda r, d, rng: NormBall(2 * r, "l1"),
    "linf": lambda r, d, rng: NormBall(r / 10, "linf"),
    "sparse box": lambda r, d, rng: _box(r),
    "ellipsoid": lambda r, d, rng: Ellipsoid(r, np.diag(rng.uniform(0.2, 1.0, d))),
    "deviations": lambda r, d, rng: DeviationBudget(NormBall(r), int(rng.integers(1, 5))),
    "deviations, box": lambda r, d, rng: DeviationBudget(_box(r), int(rng.integers(1, 5))),
    "own": lambda r, d, rng: OwnSet(r, _mean_support, 1.0, _mean_point),
}


def drawn_set(kind: str, pool: Candidates, rng: np.random.Generator) -> UncertaintySet:
    """A set of a kind: radii of .02 to .1, half of the time one of its own for each passage."""
    assert pool.embeddings is not None
    size = float(rng.choice([0.02, 0.05, 0.1]))
    spread = rng.uniform(0.0, 2.0, len(pool)) if rng.random() < 0.5 else np.ones(len(pool))
    return SETS[kind](size * spread, pool.embeddings.shape[1], rng)
