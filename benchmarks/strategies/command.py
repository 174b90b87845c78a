"""`python -m benchmarks strategies`: search what is not searched yet, tabulate, simulate, report."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.files import replaced, write_json
from benchmarks.options import numbers
from benchmarks.runner import note
from benchmarks.strategies.found import POOL, find, read_found
from benchmarks.strategies.goals import in_words, when_told
from benchmarks.strategies.limits import limits_in_words
from benchmarks.strategies.live import lived_live
from benchmarks.strategies.picture import draw
from benchmarks.strategies.regimes import regimes_in_words
from benchmarks.strategies.simulate import reported
from benchmarks.strategies.study import at_pool, report
from benchmarks.strategies.table import outcomes_of, tabulate
from mio_rag.errors import InputError
from mio_rag.evaluation.ledger import environment
from mio_rag.generation import Generator, make_generator


def command(given: argparse.Namespace) -> int:
    """Search, tabulate, simulate, report."""
    found = given.work / "found.jsonl"
    if min(given.each, given.orders, given.questions) < 1 or given.questions < 20:
        raise InputError("--each and --orders must be >= 1, --questions >= 20")
    model = given.work / "generator.txt"
    if given.generator is not None:
        with _generator(given.generator) as generator:
            with replaced(model) as temporary:
                temporary.write_text(f"{generator.name}\n", encoding="utf-8")
            find(given.data, given.indexes, generator, found, given.each, note)
    if not found.exists():
        raise InputError(f"'{found}' does not exist: give --generator to search first")
    # The budget is counted without a model, so that a table can be made again without one.
    pools = numbers("--pools", given.pools, int)
    lines = _cells(given, found, pools[0])
    told = report(lines, given.orders, given.questions, note)
    told["pool"] = pools[0]
    told["other_pools"] = {
        str(pool): at_pool(
            _cells(given, found, pool), max(1, given.orders // 4), max(20, given.questions // 2), note
        )
        for pool in pools[1:]
    }
    if given.live and given.generator is not None:
        with _generator(given.generator) as generator:
            told["live"] = lived_live(lines, given.data, given.indexes, generator, given.live, note)
    outcomes_of(lines).write(given.work / "outcomes.parquet")
    notes = _searching(read_found(found))
    digest = hashlib.sha256(found.read_bytes()).hexdigest()
    asked = model.read_text(encoding="utf-8").strip() if model.exists() else None
    data = {"benchmark": "strategies", "generator": asked, "found_sha256": digest, "searching": notes}
    write_json(given.out, {**data, **told, **environment()})
    draw(told, given.out.with_suffix(".png"))
    text = _text(told)
    with replaced(given.out.with_suffix(".txt")) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")
    print(text)
    return 0


@contextmanager
def _generator(spec: str) -> Iterator[Generator]:
    made = make_generator(spec)
    try:
        yield made
    finally:
        made.close()


def _cells(given: argparse.Namespace, found: Path, pool: int) -> list[Mapping[str, Any]]:
    """The table at a size of the pools, without questions that settings were chosen by."""
    name = "cells.jsonl" if pool == POOL else f"cells-{pool}.jsonl"
    return reported(tabulate(given.data, given.indexes, None, found, given.work / name, note, pool))


def _searching(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How often each strategy found nothing, and names that were dropped."""
    names = list(rows[0]["strategies"])
    return {
        name: {
            "found_nothing": sum(not row["strategies"][name]["rows"] for row in rows),
            "failed": sum(row["strategies"][name]["failed"] for row in rows),
            "dropped_names": sum(row["strategies"][name]["dropped"] for row in rows),
            "tokens": sum(
                row["strategies"][name]["prompt_tokens"] + row["strategies"][name]["completion_tokens"]
                for row in rows
            )
            / len(rows),
        }
        for name in names
    }


def _text(told: dict[str, Any]) -> str:
    sets, best = len(told["sets"]), told["oracle"]
    lines = [f"{told['questions']} questions of {sets} sets; a token costs {told['price_of_a_token']:g}", ""]
    lines.append(f"{'set of strategies':45} {'recall':>7} {'all':>6} {'pool':>6} {'tokens':>7} {'worth':>7}")
    for name, each in sorted(told["actions"].items(), key=lambda item: -item[1]["utility"]):
        lines.append(
            f"{name:45} {each['gold_recall']:7.3f} {each['all_gold']:6.3f} {each['pool_recall']:6.3f} "
            f"{each['tokens']:7.0f} {each['utility']:7.3f}"
        )
    lines.append(
        f"{'oracle':45} {best['gold_recall']:7.3f} {'':6} {'':6} {best['tokens']:7.0f} {best['utility']:7.3f}"
    )
    last = str(max(int(p) for p in next(iter(told["policies"].values()))["regret"]))
    orders = told["orders"]
    lines += [
        "",
        f"worth lost in {last} questions, mean of {orders} orders and half its 95 % interval:",
        "  'one for all' against the best set for all in hindsight, which is the regret of a bandit;",
        "  'of each' against the best set of every single question, which nobody can know.",
        "recall, tokens and worth are of the second half",
        f"{'policy':50} {'one for all':>11} {'+-':>6} {'of each':>8} {'+-':>6} {'recall':>7} {'tokens':>7} "
        f"{'worth':>7}",
    ]
    for name, each in sorted(told["policies"].items(), key=lambda item: item[1]["regret"][last]["mean"]):
        regrets = [each[kind][last] for kind in ("regret_to_best_fixed", "regret")]
        (one, half), (single, wide) = ((r["mean"], r["high"] - r["mean"]) for r in regrets)
        lines.append(
            f"{name:50} {one:11.2f} {half:6.2f} {single:8.2f} {wide:6.2f} {each['late_recall']:7.3f} "
            f"{each['late_tokens']:7.1f} {each['late_utility']['mean']:7.4f}"
        )
    lines += [
        "",
        f"regret of linucb less that of ..., on the same {orders} orders (either definition: the same "
        "difference), with 95 % intervals",
    ]
    lines += [
        f"{name:55} {each['mean']:+8.2f}  [{each['low']:+.2f}, {each['high']:+.2f}]"
        for name, each in told["goals"]["difference_of_regret"].items()
    ]
    lines += ["", *_equal(told["equal_cost"]), "", *_others(told["other_costs"]), ""]
    for pool, each in {str(told.get("pool", POOL)): told, **told.get("other_pools", {})}.items():
        for regime, seen in (("without labels", each), ("told the gold", when_told(each))):
            lines += [f"goals {regime}, pools of {pool}:", *(f"  {said}" for said in in_words(seen)), ""]
        lines += [f"any policy, pools of {pool}:", *(f"  {said}" for said in limits_in_words(each)), ""]
    for pool, each in {str(told.get("pool", POOL)): told, **told.get("other_pools", {})}.items():
        lines += [f"both regimes, pools of {pool}", *regimes_in_words(each)]
    if "live" in told:
        lines.append(f"live: { {k: v for k, v in told['live'].items() if k != 'rows'} }")
    lines += ["", f"off-policy: truth {told['off_policy']['truth']:.4f}"]
    for name, each in told["off_policy"]["estimators"].items():
        lines.append(f"  {name}: {each['mean']:.4f}, width {each['width']:.4f}, covers {each['covered']:.0%}")
    lines += [f"{name}: {told[name]}" for name in ("change", "prior", "choosing_ms")]
    return "\n".join([*lines, "", *told["insights"]])


def _equal(told: dict[str, Any]) -> list[str]:
    """What anybody could have reached at the tokens that the default spends."""
    sets = " and ".join(f"{share:.0%} {name}" for name, share in told["fixed_sets"].items())
    beyond, spent = told["beyond_fixed"], told["tokens"]
    lines = [
        f"at equal cost, {spent:.1f} tokens a question: recall, and beyond the best fixed sets in hindsight, "
        "with 95 % bootstrap intervals over questions; learners are cross-fitted",
        f"{'fixed: ' + sets:55} {told['fixed_mixture']:.4f}",
        f"{'linucb':55} {told['recall']:.4f}  {beyond['mean']:+.4f}  [{beyond['low']:+.4f}, "
        f"{beyond['high']:+.4f}]",
    ]
    for name, each in sorted(told["question_alone"].items(), key=lambda item: -item[1]["recall"]):
        beyond = each["beyond_fixed"]
        lines.append(
            f"{'told the gold of other questions: ' + name:55} {each['recall']:.4f}  {beyond['mean']:+.4f}  "
            f"[{beyond['low']:+.4f}, {beyond['high']:+.4f}]"
        )
    told_all = f"{'oracle: told the gold of this question':55} {told['oracle']:.4f}"
    return [*lines, f"{told_all}  {told['oracle_margin']:+.4f}"]


def _others(told: list[dict[str, Any]]) -> list[str]:
    """The same at other costs, of the best learner in hindsight."""
    title = "at other costs: tokens at most, best learner of eight"
    lines = [f"{title:55} {'fixed':>7} {'oracle':>8} {'learner':>8}"]
    for each in told:
        beyond, name = each["beyond_fixed"], f"{each['at_most']:.0f}, {each['best_learner']}"
        lines.append(
            f"{name:55} {each['fixed_mixture']:7.4f} {each['oracle_margin']:+8.4f} {beyond['mean']:+8.4f}  "
            f"[{beyond['low']:+.4f}, {beyond['high']:+.4f}]"
        )
    return lines
