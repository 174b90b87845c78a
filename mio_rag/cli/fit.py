"""Commands that learn from questions: policy fit relevance, settings, price, refusal and completeness."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

from mio_rag.allocation import price_for
from mio_rag.cli import options as o
from mio_rag.cli.chosen import Chosen
from mio_rag.cli.evaluate import score_table
from mio_rag.corpora.dataset import Dataset
from mio_rag.defaults import DEFAULTS
from mio_rag.errors import DataError, InputError
from mio_rag.evaluation.fit import calibrate, calibrate_completeness, calibrate_documents, write_model
from mio_rag.evaluation.ledger import environment
from mio_rag.evaluation.tune import Goal, TuneResult, TuneSettings, tune
from mio_rag.generation import Prompt, check_generator, reader_spec
from mio_rag.policy import policy_of
from mio_rag.refusal import fitting as refusals
from mio_rag.relevance import DocumentModel, Labelled, RelevanceModel, fit
from mio_rag.relevance.documents import is_document_pool
from mio_rag.relevance.synthetic import made_questions
from mio_rag.retrieval import Retriever
from mio_rag.settings import toml_text
from mio_rag.storage import claimed, make_parent, write_atomically
from mio_rag.types import Question

fit_app = o.group("Learn from your questions: one kind, one report, one file.")
_DATA = "path questions out embedder limit json"
_KINDS = ("logistic", "isotonic")


# -- relevance --------------------------------------------------------------------------------------------


@o.command(f"{_DATA} set seed", app=fit_app, name="relevance")
def fit_relevance(
    call: o.Call,
    kind: Annotated[str, "logistic or isotonic."] = "logistic",
    link_stages: Annotated[int, "Stages with features from evidence links. 0: none."] = 1,
    sentences: Annotated[bool, "Fit weights of sentences, too, on answers; no gold is needed then."] = False,
    synthetic: Annotated[
        int | None, "Make so many questions from the documents, where none are labelled."
    ] = None,
    writer: Annotated[str | None, o.opt("Writes them. Default: their rarest words.", "--model")] = None,
) -> None:
    """Fit the probability that a passage is needed.

    Needs labelled questions, or makes some (--synthetic). Use the file with
    --set selection.relevance_model=FILE. Candidates are found as search.* says.
    """
    out, stages = call.out, [f"--link-stages must be between 0 and 3, got {link_stages}"]
    chosen, *_ = call.check(
        lambda: o.one_of("--kind", kind, *_KINDS),
        lambda: o.refuse([] if 0 <= link_stages <= 3 else stages),
        lambda: o.check_ending("--out", out, ".json"),
        lambda: o.at_least(synthetic=(synthetic, 1)),
    )
    if synthetic is None:
        dataset, index = call.data()
        asked = dataset.questions[: call.limit]
    else:
        index, made = call.open().index, Question("made", "question")
        with (
            call.reader(writer and reader_spec(writer)) as reader,
            o.progress("making questions", synthetic) as advance,
        ):
            write = reader and (lambda text: reader.generate(Prompt(made, (), "", text), max_tokens=48).text)
            asked = made_questions(index.passages, synthetic, write=write, seed=call.seed, progress=advance)
        dataset = Dataset("made", tuple(index.passages), asked)
        if reader is None:
            call.output.say(
                "Questions of words alone are unlike people's: compare with what ships before use."
            )
    found = chosen.policy.search.retrieval
    if found.link_hops is None and index.links is not None:
        found = dataclasses.replace(found, link_hops=1)
    retriever = Retriever.of(index, found)
    of_fit: dict[str, Any] = {"seed": call.seed, "name": out.stem}
    more: dict[str, Any] = {"kind": kind, "link_stages": link_stages, "sentences": sentences}
    fitted: RelevanceModel | DocumentModel
    with o.progress("retrieving", len(asked)) as advance:
        if is_document_pool(retriever.retrieve(asked[0].text)):
            fitted = calibrate_documents(asked, retriever, **of_fit, progress=advance)
        else:
            fitted = calibrate(dataset, retriever, limit=call.limit, **more, **of_fit, progress=advance)
    picture = write_model(fitted, out)
    told = {"out": str(out), "plot": picture and str(picture), **fitted.to_dict()}
    call.output.result(told, *_relevance_lines(fitted, out, picture))


def _relevance_lines(model: RelevanceModel | DocumentModel, out: Path, picture: Path | None) -> list[str]:
    """What was fitted, and how good it is on questions that were not seen."""
    of, lines = model.measures, []
    if isinstance(model, DocumentModel):
        return [
            f"{of['questions']} questions, {of['units']} units, {of['needed']} needed; log loss "
            f"{of['log_loss_after']:.3f} out of fold, {of['log_loss_before']:.3f} by what ships; {out}"
        ]
    if model.sentences is not None:
        said = model.sentences.measures
        lines.append(
            f"{said['questions']} questions, {said['sentences']} sentences, {said['needed']} needed; "
            f"log loss {said['log_loss_after']:.4f} out of fold, {said['log_loss_before']:.4f} by what ships"
        )
    if picture is None:
        return [*lines, f"{out}: relevance of passages as it ships"]
    return [
        *lines,
        f"{of['questions']} questions, {of['candidates']} candidates, {of['needed']} needed; out of fold:",
        *(
            f"  {label:<16} calibration error {of[key]['ece']:.4f} ({of[key]['ece_likely']:.4f} where "
            f"likely), log loss {of[key]['log_loss']:.4f}"
            for label, key in (("cosine as it is", "before"), (f"{model.kind} model", "after"))
        ),
        f"{out}, {picture}",
    ]


# -- policies ---------------------------------------------------------------------------------------------

_VARY = "redundancy_weight,passage_penalty,token_price,link_benefit"
_VARY_COSINES = "redundancy_weight,passage_penalty,radius"  # a price of a token is one of probabilities


def _write(
    out: Path, chosen: Chosen, selection: Mapping[str, Any], measured: Mapping[str, Any], comment: str,
    **tables: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """Write a policy file with other settings, of which None is left out, checked first; return its data."""
    policy = chosen.policy
    data = policy.to_dict(defaults=False)
    for name in ("name", "about", "measured", "server"):
        data.pop(name, None)
    own = {**(policy.selection.settings or {}), **selection, "options": None}
    own = {key: value for key, value in own.items() if value is not None}
    data["selection"] = {"preset": policy.selection.preset, **own}
    data |= {name: {**data.get(name, {}), **table} for name, table in tables.items()}
    policy_of(data, out.stem, out.absolute().parent)
    plain = ("".join(c if c.isprintable() else " " for c in line) for line in comment.splitlines())
    text = "".join(f"# {line}\n" for line in plain) + toml_text({**data, "measured": dict(measured)})
    write_atomically(out, text)
    return data


def _pools(retriever: Retriever, asked: Sequence[Question]) -> list[Any]:
    """Retrieve the candidates of questions."""
    with o.progress("retrieving", len(asked)) as advance:
        return list(retriever.retrieve_many([question.text for question in asked], advance))


@o.command(f"{_DATA} budget policy set seed", app=fit_app, name="settings")
def fit_settings(
    call: o.Call,
    recall: Annotated[float | None, "Find this share of the evidence with the fewest tokens."] = None,
    vary: Annotated[
        str | None,
        f"Also redundancy_by_relevance, max_per_source. [default: {_VARY}; of cosines {_VARY_COSINES}]",
    ] = None,
    trials: Annotated[int, "Maximum trials of each search."] = 60,
    patience: Annotated[int, "Stop a search after N trials without improvement."] = 25,
    folds: Annotated[int, "Folds of the cross-validation."] = 4,
    relevance: Annotated[str | None, "Fit a relevance model within the folds: logistic or isotonic."] = None,
    storage: Annotated[Path | None, "SQLite file of the trials. [default: OUT, .sqlite]"] = None,
) -> None:
    """Find weights of the program, and write a policy file.

    Needs labelled questions; what to expect is measured by nested cross-validation.
    Run the same command again to resume; with larger --trials or --patience it continues a finished search.
    """
    out, kept = call.out, storage or call.out.with_suffix(".sqlite")
    told = f"finished trials are kept in '{kept}': run the same command to resume"
    call.output.kept = lambda: told if kept.exists() else ""

    def check() -> None:
        o.check_ending("--out", out, ".toml")
        if storage is not None and os.path.realpath(storage) == os.path.realpath(out):
            raise InputError(f"--storage must be another file than --out, got {storage}")
        make_parent(out)

    chosen, *_ = call.check(
        lambda: o.one_of("--relevance", relevance, *_KINDS), check, policy=lambda: call.chosen().whole()
    )
    options = dataclasses.replace(chosen.selector.options, time_limit_seconds=1.0, relative_gap=0.001)
    selector = chosen.selector.replace(options=options, **({"relevance_model": "given"} if relevance else {}))
    cosines = selector.relevance_model == "given" and not relevance
    varied = o.listed(vary or (_VARY_COSINES if cosines else _VARY))
    if cosines and "token_price" in varied:
        raise InputError(
            "--vary token_price: relevance is the cosine, and the price is one of probabilities: leave it out"
        )
    settings = TuneSettings(
        Goal(chosen.policy.limits.budget, recall), selector,
        cast("Any", relevance) or selector.relevance_model, varied, trials, patience, folds,
        call.seed,
    )  # fmt: skip
    dataset, index = call.data()
    o.check_fits(selector, index)
    asked = [q for q in dataset.questions[: call.limit] if q.gold_ids]
    asked = asked or [q for q in dataset.questions[: call.limit] if q.gold_sources]
    if not asked:
        raise DataError(f"no question of '{dataset.name}' names its gold passages or documents: label some")
    search = chosen.policy.search
    label = str([dataset.content_hash(), index.digest(), search.to_dict()])
    with claimed(out):
        pools = _pools(Retriever.of(index, search.retrieval), asked)
        with o.progress("trials", (folds + 1) * trials) as advance:
            found = tune(asked, pools, settings, kept, label=label, progress=advance)
        best = found.setting
        names = ("redundancy_weight", "passage_penalty", "link_benefit", "max_per_source")
        own = {**{name: getattr(best, name) for name in names}, "units": selector.units}
        own["redundancy_by_relevance"] = best.redundancy_by_relevance or None
        own["radius"] = best.radius if best.radius or "radius" in varied else None
        if relevance:
            labelled = [Labelled(p, frozenset(q.gold_ids)) for p, q in zip(pools, asked, strict=True)]
            model = fit(
                labelled, kind=cast("Any", relevance), seed=call.seed, name=out.stem,
                embedder=index.embedder.fingerprint,
                provenance=f"{len(labelled)} questions of '{dataset.name}', fitted while tuning",
            )  # fmt: skip
            path = out.with_name(f"{out.stem}.relevance.json")
            write_model(model, path)
            own["relevance_model"] = path.name
        measured = {
            "questions": found.questions, "trials": found.trials, "clearly_better": found.clearly_better,
        } | {
            f"{part}_{key}": [round(getattr(found, part)[key][end], 4) for end in ("mean", "low", "high")]
            for part in ("outer", "inner", "start")
            for key in ("recall", "tokens")
        }  # fmt: skip
        goal = f"the fewest tokens that find {recall:.0%} of the evidence" if recall else "the most evidence"
        comment = (
            f"Tuned on {found.questions} questions of '{dataset.name}' for {goal}; use it with --policy.\n"
            "outer_*: on questions that the search did not see (mean, and its 95 % interval): expect this.\n"
            "inner_*: on those that it did see. start_*: the setting that it started from.\n"
            "recall: the share of the evidence that was found. clearly_better: than the start, on questions "
            "not\nseen, by the 95 % interval."
        )
        price, limits = {"token": best.token_price}, {"budget": best.budget_tokens}
        data = _write(out, chosen, own, measured, comment, price=price, limits=limits)
    call.output.result({"out": str(out), "policy": data, **found.to_dict()}, *tuned_lines(found), str(out))


def tuned_lines(found: TuneResult) -> list[str]:
    """The outcome of a search for people: what to expect first."""

    def figures(entry: dict[str, Any]) -> str:
        r, t = entry["recall"], entry["tokens"]
        return (
            f"evidence found {r['mean']:.1%} ({r['low']:.1%} to {r['high']:.1%}) with {t['mean']:.0f} tokens"
        )

    def signed(entry: dict[str, float], scale: float, digits: int, unit: str = "") -> str:
        mean, low, high = (
            f"{round(scale * entry[end], digits) + 0.0:+.{digits}f}" for end in ("mean", "low", "high")
        )
        return f"{mean}{unit} ({low} to {high})"

    gain, saved = found.outer["gain"], found.outer["saved"]
    more = {"mean": -saved["mean"], "low": -saved["high"], "high": -saved["low"]}
    searches = len(found.folds) + 1
    lines = [
        f"{found.questions} questions; {found.trials} trials in {searches} searches, one for each of "
        f"{searches - 1} folds and one on all questions",
        f"  on questions not seen   {figures(found.outer)}",
        f"  on questions seen       {figures(found.inner)}  (optimistic)",
        f"  the start, on all       {figures(found.start)}",
        f"  against the start       evidence found {signed(gain, 100, 1, ' points')}, "
        f"tokens {signed(more, 1, 0)}",
    ]
    if not found.improved:
        lines.append("nothing better was found: the file holds the settings that the search started from")
    elif not found.clearly_better:
        lines.append("no clear improvement on questions not seen: try more questions before relying on it")
    return lines


@o.command(f"{_DATA} budget policy set", app=fit_app, name="price", budget=2048)
def fit_price(
    call: o.Call, mean_tokens: Annotated[float, "Tokens of context that a question may take on average."]
) -> None:
    """Find the price of a token for a mean length of contexts.

    Writes a policy file. Needs no labels.
    """
    out, budget = call.out, call.budget or 0

    def check() -> None:
        o.check_ending("--out", out, ".toml")
        if not 0 < mean_tokens <= 1e12:
            raise InputError(f"--mean-tokens must be > 0, got {mean_tokens:g}")
        if mean_tokens > budget:
            raise InputError(f"--mean-tokens {mean_tokens:g} is above --budget {budget}: raise the budget")
        make_parent(out)

    chosen, *_ = call.check(check, policy=call.chosen)
    if "price.token" in chosen.given:
        raise InputError("price.token is what is looked for: leave it out")
    dataset, index = call.data()
    o.check_fits(chosen.selector, index)
    asked = dataset.questions[: call.limit]
    with claimed(out):
        retriever = Retriever.of(index, chosen.policy.search.retrieval)
        pools = _pools(retriever, asked)
        if not any(map(is_document_pool, pools)):
            chosen = chosen.whole()
        selector = chosen.selector.replace(token_price=0.0)
        found = price_for(pools, mean_tokens, selector=selector, ceilings=budget, counter=retriever.counter)
        curve: list[Any] = []  # points that are a tenth apart
        for point in found.curve:
            if point.mean_tokens > 0 and (not curve or point.mean_tokens >= 1.1 * curve[-1].mean_tokens):
                curve.append(point)
        measured = {
            "questions": found.questions,
            "mean_tokens": round(found.at.mean_tokens, 1),
            "wanted_mean_tokens": found.wanted,
            "mean_value": round(found.at.mean_value, 6),
            "curve_token_prices": [float(f"{point.token_price:.4g}") for point in curve],
            "curve_mean_tokens": [round(point.mean_tokens, 1) for point in curve],
            "passages": len(index),
            "embedder_fingerprint": index.embedder.fingerprint,
        }
        comment = (
            f"The price of a token at which {found.questions} questions of '{dataset.name}' take at most "
            f"{found.wanted:g} tokens\non average; use it with --policy. No labels were used. limits.budget "
            "is the most that one question\nmay take. For a total of N tokens a day instead: "
            'price.total = N and price.per = "day".'
        )
        price = {"by": "fixed", "token": found.token_price}
        data = _write(out, chosen, {"units": selector.units}, measured, comment, price=price)
    call.output.result({"out": str(out), "policy": data, **found.to_dict()}, found.explain(), str(out))


# -- refusal and completeness -----------------------------------------------------------------------------


@o.command(f"{_DATA} model budget answer seed", app=fit_app, name="refusal")
def fit_refusal(call: o.Call) -> None:
    """Fit when to refuse a question, and measure it.

    Needs questions of both kinds. Questions without an answer have the type 'unanswerable'. Use the file with
    --set answers.refusal=FILE.
    """
    spec = reader_spec(call.model)
    limits: dict[str, Any] = {"budget_tokens": call.budget or DEFAULTS.budget}
    limits["max_tokens"] = call.answer or DEFAULTS.answer
    call.check(lambda: check_generator(spec))
    dataset, index = call.data()
    asked = dataclasses.replace(dataset, questions=dataset.questions[: call.limit])
    with call.reader(spec) as reader:
        with o.progress("answering", len(asked.questions)) as advance:
            observed = refusals.observe(asked, index, reader, **limits, progress=advance)
        made, scores = refusals.fit_refusal(
            observed, index, reader, call.seed, data=dataset.name, data_sha256=asked.content_hash(),
            **limits, **environment(),
        )  # fmt: skip
    made.save(call.out)
    notes = refusals.warnings_of(scores)
    told = {key: made.provenance[key] for key in ("fitted_on", "brier", "held_out")}
    count = next(iter(scores.values())).questions
    call.output.result(
        {"out": str(call.out), "threshold": made.threshold, **told, "notes": notes},
        f"{dataset.name}: fitted on {told['fitted_on']} questions, measured on {count} others; "
        f"reader {made.reader}\n",
        score_table("", list(scores), list(scores.values())),
        *(f"note: {note}" for note in notes),
        f"\nrefused above a probability of {made.threshold:.3f}; Brier score {told['brier']:.3f} -> "
        f"{call.out}",
    )


@o.command(f"{_DATA} seed", app=fit_app, name="completeness", limit=500)
def fit_completeness(call: o.Call) -> None:
    """Learn how likely the evidence is complete.

    Needs labelled questions, of which --limit are drawn by --seed. Use the file with
    --set repeat.calibration=FILE.
    """
    limit = call.limit or 0
    o.at_least(limit=(limit, 1))
    dataset, index = call.data()
    with o.progress("reading", min(limit, len(dataset.questions))) as advance:
        found = calibrate_completeness(dataset, index, limit=limit, seed=call.seed, progress=advance)
    make_parent(call.out)
    write_atomically(call.out, found.model.to_json())
    call.output.result(
        {"file": str(call.out), **found.to_dict()},
        f"{found.questions} questions: on those not seen, probabilities are off by {found.error:.3f} (as "
        f"shipped: {found.shipped_error:.3f}; by chance alone, on so few: {found.chance:.3f}), Brier "
        f"{found.brier:.3f} ({found.shipped_brier:.3f})",
        str(call.out),
    )
