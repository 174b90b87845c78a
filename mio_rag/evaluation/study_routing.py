"""Tables and figures of the studies of the strategy bandit and of the router."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mio_rag.evaluation.statistics import mean_interval, ratio_interval
from mio_rag.evaluation.studies import Column, StudyRun, figure, spread, table
from mio_rag.learning.bandit_report import Hindsight, hindsight, settings_of, stats_of
from mio_rag.learning.outcomes import gain_over_others
from mio_rag.learning.router_model import Router, read_router
from mio_rag.pictures import label_points
from mio_rag.policy import Policy

Given = Mapping[str, Any]

_DASH = "\u2013"


def _values(run: StudyRun, label: str, name: str, ids: Sequence[str] | None = None) -> dict[str, float]:
    """Question -> a number of the ledger, at the smallest budget of a contender; failed rows are left out."""
    key = next(key for key in run.groups if key[0] == label)
    rows = {str(row["question_id"]): row for row in run.groups[key]}
    names = ("prompt_tokens", "completion_tokens") if name == "tokens" else (name,)
    return {
        i: float(sum(row[n] for n in names))
        for i, row in rows.items()
        if (ids is None or i in ids) and all(row.get(n) is not None for n in names)
    }


def _labels(run: StudyRun) -> list[str]:
    return list(dict.fromkeys(label for label, _ in run.groups))


# The bandit -------------------------------------------------------------------------------------------------


def _worth(run: StudyRun, label: str, price: float) -> dict[str, float]:
    """Question -> the share of the evidence that was found, less the price of all tokens."""
    found, spent = _values(run, label, "gold_recall"), _values(run, label, "tokens")
    return {i: value - price * spent[i] for i, value in found.items() if i in spent}


@table("worth")
def _worth_table(run: StudyRun, given: Given) -> list[Column]:
    """Worth of each contender; differences from a rival, also of the last quarter, and from the baseline."""
    labels, rival, first = _labels(run), given["rival"], run.study.reference
    each = {label: _worth(run, label, given["price"]) for label in labels}

    def less(label: str, other: str, late: bool = False) -> str:
        both = [i for i in each[label] if i in each[other]]
        kept = both[-max(1, len(both) // 4) :] if late else both
        change = mean_interval([each[label][i] - each[other][i] for i in kept], run.seed)
        return "" if label == other else spread(change, 4, "+")

    return [
        ("system", labels),
        (
            "evidence less tokens",
            [spread(mean_interval(list(each[label].values()), run.seed), 4) for label in labels],
        ),
        (f"against {rival}", [less(label, rival) for label in labels]),
        ("of the last quarter", [less(label, rival, late=True) for label in labels]),
        *([(f"against {first}", [less(label, first) for label in labels])] if first != rival else []),
    ]


@figure("worth_lost")
def _worth_lost(run: StudyRun, given: Given, axes: Any) -> None:
    """Worth lost so far to one contender, question by question."""
    base = _worth(run, given["rival"], given["price"])
    for label in _labels(run):
        own = _worth(run, label, given["price"])
        axes.plot(np.cumsum([base[i] - own[i] for i in own if i in base]), label=label)
    axes.set_xlabel("questions")
    axes.set_ylabel(f"evidence less tokens, below {given['rival']}")
    axes.legend(fontsize=7)


@table("bandit_strategies")
def _strategies(run: StudyRun, given: Given) -> list[Column]:
    """Each strategy: how often it ran and explored, what it added and earned, and what it took."""
    told = stats_of(run.folder / given["state"])
    heads = {
        "ran": ("selection_rate", "{:.0%}"), "exploring": ("share_exploring", "{:.0%}"),
        "adds in": ("contribution_rate", "{:.0%}"), "adds": ("contribution", "{:+.3f}"),
        "reward": ("reward", "{:+.3f}"), "tokens": ("tokens", "{:.0f}"), "seconds": ("seconds", "{:.2f}"),
    }  # fmt: skip
    each = told["strategies"]
    return [
        ("strategy", list(each)),
        *(
            (head, [_DASH if one[name] is None else form.format(one[name]) for one in each.values()])
            for head, (name, form) in heads.items()
        ),
    ]


def _hindsights(run: StudyRun, given: Given) -> dict[str, Hindsight]:
    """The bandits that are replayed on the log of one, where all strategies ran."""
    path = run.folder / given["state"]
    if not path.is_file():
        return {}
    own = settings_of(path)
    shared = {"base": own.base, "token_price": given["price"], "dimensions": own.dimensions}
    ours = type(own)(**Policy.load("ours/strategy-bandit").search.bandit or {}).replace(**shared)
    kinds = {
        "published": own.replace(token_price=given["price"]),
        "ours": ours,
        **{kind: ours.replace(policy=kind) for kind in ("thompson", "epsilon-greedy", "uniform")},
    }
    found = {label: hindsight(path, how) for label, how in kinds.items()}
    return {label: one for label, one in found.items() if one is not None}


@table("bandit_hindsight")
def _hindsight_table(run: StudyRun, given: Given) -> list[Column]:
    """What each bandit would have earned, and lost against the best set for all and the best of each."""
    found = _hindsights(run, given)
    best = next(iter(found.values()), None)
    return [
        ("bandit", [*found, *([f"always {'+'.join(best.best)}", "best of each"] if best else [])]),
        ("questions", [str(one.questions) for one in found.values()] + [str(best.questions)] * 2 * bool(best)
         if best else []),
        ("passages gained less costs", [f"{one.worth:.4f}" for one in found.values()]
         + ([f"{best.best_worth:.4f}", f"{best.oracle:.4f}"] if best else [])),
        ("regret", [f"{one.regret[-1]:.2f}" for one in found.values()] + (["0", _DASH] if best else [])),
        ("lost to the best of each", [f"{one.lost[-1]:.2f}" for one in found.values()]
         + ([f"{best.questions * (best.oracle - best.best_worth):.2f}", "0"] if best else [])),
    ]  # fmt: skip


@figure("bandit_hindsight")
def _hindsight_figure(run: StudyRun, given: Given, axes: Any) -> None:
    """Regret to the best set for all, question by question."""
    for label, one in _hindsights(run, given).items():
        axes.plot(np.arange(1, one.questions + 1), one.regret, label=label)
    axes.set_xlabel("questions on which all strategies ran")
    axes.set_ylabel("regret, in passages needed")
    axes.legend(fontsize=7)


# The router -------------------------------------------------------------------------------------------------

_QUALITIES = ("exact_match", "token_f1")


@table("router_claim")
def _claim(run: StudyRun, given: Given) -> list[Column]:
    """Quality and tokens of the router as shares of those of others, with intervals, and whether it holds."""
    columns: dict[str, list[str]] = {"of": [], "EM": [], "F1": [], "tokens": [], "holds": []}
    for against in given["others"]:
        shares = []
        for name in (*_QUALITIES, "tokens"):
            own, base = _values(run, given["router"], name), _values(run, against, name)
            both = [i for i in own if i in base]
            shares.append(ratio_interval([own[i] for i in both], [base[i] for i in both], run.seed))
        columns["of"].append(against)
        for head, one in zip(("EM", "F1", "tokens"), shares, strict=True):
            columns[head].append(_DASH if one is None else spread(one))
        known = [float(one["mean"] or 0.0) for one in shares if one is not None]
        good = len(known) == 3 and min(known[:2]) >= 0.98 and known[2] <= 0.7
        columns["holds"].append("yes" if good else "no")
    return list(columns.items())


@table("equal_tokens")
def _equal(run: StudyRun, given: Given) -> list[Column]:
    """What contenders have above the best mixture of others that reads no more tokens than they do."""
    columns: dict[str, list[str]] = {"system": [], "tokens": [], "EM": [], "F1": [], "evidence": []}
    others = list(given["with"])
    for label in given["compared"]:
        names = [label, *others]
        spent = [_values(run, one, "tokens") for one in names]
        columns["system"].append(label)
        columns["tokens"].append(f"{np.mean(list(spent[0].values())):.0f}")
        for head, quality in zip(("EM", "F1", "evidence"), (*_QUALITIES, "gold_recall"), strict=True):
            right = [_values(run, one, quality) for one in names]
            ids = [i for i in right[0] if all(i in one for one in (*right, *spent))]
            if not ids:
                columns[head].append(_DASH)
                continue
            good, cost = (np.array([[one[i] for one in each] for i in ids]) for each in (right, spent))
            above = gain_over_others(good[:, 0], cost[:, 0], good[:, 1:], cost[:, 1:], seed=run.seed)
            columns[head].append(spread(above, 3, "+"))
    return list(columns.items())


@table("by_type")
def _by_type(run: StudyRun, given: Given) -> list[Column]:
    """Measures of questions that can be answered, and of those that cannot."""
    types = {str(row["question_id"]): row["question_type"] == "unanswerable" for row in run.rows}
    labels = _labels(run)
    columns: list[Column] = [("system", labels)]
    for title, wanted in (("answerable", False), ("unanswerable", True)):
        ids = [i for i, none in types.items() if none == wanted]
        for name in given["measures"] if ids else ():
            each = [list(_values(run, label, name, ids).values()) for label in labels]
            cells = [f"{np.mean(one):.3f}" if one and name != "prompt_tokens" else f"{np.mean(one):.0f}"
                     if one else _DASH for one in each]  # fmt: skip
            columns.append((f"{name.replace('_', ' ')}, {len(ids)} {title}", cells))
    return columns


def _router(run: StudyRun, given: Given) -> Router | None:
    path = Path(run.folder / given["router"])
    return read_router(str(path)) if path.is_file() else None


@table("router_labels")
def _labels_table(run: StudyRun, given: Given) -> list[Column]:
    """How many questions need each tier, how many get it out of fold, and what it costs."""
    router = _router(run, given)
    if router is None:
        return [("tier", [])]
    accuracy, most = (router.measures[name] for name in ("accuracy", "most_frequent_label"))
    rows = zip(router.tiers, router.provenance["labels"], router.shares, router.costs, strict=True)
    cells = [(t.name, f"{label:.0%}", f"{chosen:.0%}", f"{cost[0]:.0f}") for t, label, chosen, cost in rows]
    cells.append(("right tier out of fold", f"{accuracy:.3f}", f"always the most frequent: {most:.3f}", ""))
    heads = ("tier", "label", "chosen", "tokens")
    return [(head, [row[k] for row in cells]) for k, head in enumerate(heads)]


@figure("router_labels")
def _labels_figure(run: StudyRun, given: Given, axes: Any) -> None:
    """Labels and choices of each tier."""
    if (router := _router(run, given)) is None:
        return
    at = np.arange(len(router.tiers))
    axes.bar(at - 0.2, router.provenance["labels"], 0.4, label="needed, by the labels")
    axes.bar(at + 0.2, router.shares, 0.4, label="chosen, out of fold")
    axes.set_xticks(at, [tier.name for tier in router.tiers])
    axes.set_ylabel("share of the questions")
    axes.legend(fontsize=7)


@figure("router_training")
def _training(run: StudyRun, given: Given, axes: Any) -> None:
    """Loss and accuracies by epoch."""
    router = _router(run, given)
    curve = np.array([] if router is None else router.provenance["curve"])
    if not curve.size:
        return
    epochs = np.arange(1, len(curve) + 1)
    lines = ("loss", "accuracy in training", "accuracy in validation")
    for values, label in zip(curve.T, lines, strict=True):
        axes.plot(epochs, values, label=label)
    best = int(curve[:, 2].argmax())
    label_points(axes, [((epochs[best], curve[best, 2]), "taken")])
    axes.set_xlabel("epoch")
    axes.legend(fontsize=7)
