"""Commands that compare: evaluate and demo."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mio_rag.cli import options as o
from mio_rag.cli.output import Output, kept_rows
from mio_rag.defaults import DEFAULTS
from mio_rag.errors import InputError, collect

if TYPE_CHECKING:
    from mio_rag.cli.chosen import Chosen
    from mio_rag.corpora.dataset import Dataset
    from mio_rag.evaluation.harness import EvaluationSettings
    from mio_rag.measures import Instruments
    from mio_rag.retrieval import CorpusIndex
    from mio_rag.retrieval.embedders import Embedder

_METHODS = "mio,fused,topk,bm25,mmr,adaptive-k"


# -- evaluate ---------------------------------------------------------------------------------------------


@o.command("questions where plugin policy set embedder limit seed resume json")
def evaluate(
    call: o.Call,
    path: Annotated[
        str | None,
        o.arg("As in select; several with commas. Without it --questions go to the model alone.", "PATH"),
    ] = None,
    methods: Annotated[
        str, o.opt("Methods (--list) and policies: presets, files, and names of `mio-rag policy list`.")
    ] = _METHODS,
    budgets: Annotated[str, o.opt("Token budgets, separated by commas.", "--budget", "-b")] = "256,1024",
    model: Annotated[str | None, o.opt("Also answer, and score answers: as in ask. [default: none]")] = None,
    answer: Annotated[int, o.opt("Longest answer, in tokens.")] = DEFAULTS.answer,
    baseline: Annotated[str | None, o.opt("Compare with this method. [default: fused, or topk]")] = None,
    measure: Annotated[
        list[str] | None,
        o.opt(
            "judge=words, embedding, nli:MODEL or yes-no:MODEL; cosine=index or an embedder; "
            "bert-score=minilm or MODEL[@LAYER]. Repeatable.",
            "--measure",
            metavar="NAME=MODEL",
        ),
    ] = None,
    keep_choices: Annotated[
        bool, o.opt("Do not shuffle the options of multiple-choice questions.", "--keep-choices")
    ] = False,
    out: Annotated[Path | None, o.opt("Ledger, summary and report. [default: evaluation, or -2, -3]")] = None,
    details: Annotated[bool, o.opt("Print every measure, with 95 % intervals.", "--details")] = False,
    show_list: Annotated[bool, o.opt("List methods and measures.", "--list")] = False,
) -> None:
    """Compare selection methods and policies on your questions.

    Questions come from PATH, if it has a questions.jsonl, or from --questions. Each needs an answer, or the
    ids or sources of its evidence. All methods get the same candidates, budget and model.

    \b
      mio-rag evaluate handbook
      mio-rag evaluate INDEX --questions questions-folder --model gguf:model.gguf --methods mio,fused,frugal
    """
    from mio_rag.evaluation.harness import EvaluationSettings, evaluate_and_report
    from mio_rag.evaluation.ledger import check_folder, free_folder
    from mio_rag.evaluation.rows import refusal_scores
    from mio_rag.filters import Filter
    from mio_rag.generation import check_generator, make_generator
    from mio_rag.refusal.model import Refusal
    from mio_rag.retrieval.embedders import check_embedder
    from mio_rag.sources import kind_of

    out = free_folder(Path("evaluation"), call.resume) if out is None else out
    call.output.kept = kept_rows(out)
    if show_list:
        _print_list(call.output)
        return
    closed_book = path is None
    if path is None and call.questions is None:
        raise InputError("PATH is missing: give documents with questions, an index, or a question set")
    if closed_book and call.where:
        raise InputError("--where restricts documents, and there are none without PATH: leave it out")
    spec = None if model in (None, "none") else o.reader_spec(model)
    ranked, controllers = _split(methods)
    sources = o.listed(path or call.questions or "")
    chosen, at, instruments, where, *_ = call.check(
        lambda: o.whole_numbers("--budget", budgets),
        lambda: _Measuring.of(measure, closed_book, answered=spec is not None),
        lambda: Filter(call.where),
        lambda: _check_methods(ranked, controllers, closed_book, spec),
        lambda: None if spec is None else check_generator(spec),
        lambda: EvaluationSettings(max_tokens=answer),
        lambda: check_folder(out, call.resume),
        lambda: check_embedder(call.embedder),
        *(lambda one=one: None if closed_book else kind_of(one) for one in sources),
    )
    refusal = chosen.policy.answers.refusal
    if refusal is not None and controllers:
        raise InputError("answers.refusal does not go with policies: leave one of them out")
    settings = dataclasses.replace(
        _settings(chosen, ranked, controllers, closed_book), budgets=at, baseline=baseline, limit=call.limit,
        max_tokens=answer, where=where, refusing=None if refusal is None else Refusal.load(refusal),
    )  # fmt: skip
    asked = o.several(sources, None if closed_book else call.questions)
    datasets, corpora = _loaded(call, asked, closed_book, None if keep_choices else chosen.seed)
    for corpus in corpora:
        o.check_fits(settings.selector, corpus)
    reader, loaded = collect(lambda: None if spec is None else make_generator(spec), instruments.load)
    try:
        if corpora:
            loaded = instruments.of_index(loaded, corpora[0].embedder)
        if reader is not None and (rate := chosen.rate(reader.name)) is not None:
            from mio_rag.session.costs import Prices

            settings = dataclasses.replace(settings, prices=Prices({reader.name: (rate.into, rate.out)}))
        with o.progress("evaluating", sum(len(one.questions[: call.limit]) for one in datasets)) as advance:
            result = evaluate_and_report(
                datasets, corpora or None, reader, settings, out, resume=call.resume, progress=advance,
                instruments=loaded,
            )  # fmt: skip
    finally:
        if reader is not None:
            reader.close()
    from mio_rag.cli.show import evaluation_json, evaluation_lines

    refused = {} if settings.refusing is None else refusal_scores(result.rows, settings.refusing.threshold)
    call.output.result(evaluation_json(result, refused), *evaluation_lines(result, refused, details))
    if all(row["error"] for row in result.rows):
        raise typer.Exit(1)


def _split(methods: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the methods, and the policies that stand among them."""
    from mio_rag.cli.chosen import policy_names
    from mio_rag.policies.make import find_kind

    given = policy_names([name.strip() for name in methods.split(",") if name.strip()])
    named = tuple(name for name in given if find_kind(name) is not None)
    return tuple(name for name in given if name not in named and name != "none"), named


def _check_methods(
    methods: tuple[str, ...], controllers: tuple[str, ...], closed_book: bool, spec: str | None
) -> None:
    from mio_rag.evaluation.contenders import check_methods
    from mio_rag.selection.selector import Selector

    if closed_book and methods:
        raise InputError(
            "without PATH there is nothing to select from: give PATH, or compare policies, for instance "
            "--methods always-reason"
        )
    if not methods and not controllers:
        raise InputError("--methods is empty: see `mio-rag evaluate --list`")
    if controllers and spec is None:
        raise InputError(f"{', '.join(controllers)} needs a model that answers: give --model")
    # "calibrated" is checked with the relevance model, which is read later.
    check_methods([n for n in methods if not n.startswith("calibrated")] or ["exact"], Selector())


def _settings(
    chosen: Chosen, methods: tuple[str, ...], controllers: tuple[str, ...], closed_book: bool
) -> EvaluationSettings:
    """What is compared, on which candidates."""
    from mio_rag.cli.chosen import kinds_of
    from mio_rag.evaluation.harness import EvaluationSettings
    from mio_rag.policies.make import check_controllers

    control = chosen.control
    control = dataclasses.replace(control, kinds={**control.kinds, **kinds_of(controllers)})
    check_controllers(controllers, control, closed_book)
    return EvaluationSettings(
        methods=methods, selector=chosen.selector,
        retrieval=chosen.policy.search.retrieval, seed=chosen.seed, controllers=controllers, control=control,
        closed_book=closed_book,
    )  # fmt: skip


def _loaded(
    call: o.Call, sources: Sequence[tuple[str, str | None]], closed_book: bool, seed: int | None
) -> tuple[list[Dataset], list[CorpusIndex]]:
    """Questions with what they are asked of; choices in an order that the seed draws, as they are without."""
    from mio_rag.corpora.load import closed_book as without_corpus
    from mio_rag.corpora.load import shuffle_choices

    if closed_book:
        datasets, corpora = [without_corpus(one) for one, _ in sources], []
    else:
        found = [(call.open(one), its) for one, its in sources]
        datasets = [o.questions_of(one, its) for one, its in found]
        corpora = [one.index for one, _ in found]
    if seed is not None:
        datasets = [
            shuffle_choices(one, seed) if any(q.choices for q in one.questions) else one for one in datasets
        ]
    return datasets, corpora


@dataclasses.dataclass(frozen=True)
class _Measuring:
    """Measures that need a model."""

    judge: str | None = None
    cosine: str | None = None
    bert_score: str | None = None

    @classmethod
    def of(cls, given: list[str] | None, closed_book: bool, answered: bool) -> _Measuring:
        """Read --measure; `InputError` for what cannot be measured. Nothing is loaded."""
        from mio_rag.measures.judges import check_judge
        from mio_rag.retrieval.embedders import check_embedder

        named = {key.replace("-", "_"): value for key, value in o.pairs("--measure", given).items()}
        known = [one.name for one in dataclasses.fields(cls)]
        problems = [f"--measure {key}: choose {', '.join(known)}" for key in named if key not in known]
        if problems:
            raise InputError(problems)
        made = cls(**named)
        if made.cosine == "index" and closed_book:
            problems.append("--measure cosine=index: a closed-book run has no index; name an embedder")
        if made.cosine == "tfidf":
            problems.append("--measure cosine=tfidf: it is fitted to a corpus; give cosine=index")
        if not answered:
            problems += [
                f"--measure {key}={value} measures answers, and no model answers: give --model"
                for key, value in (("cosine", made.cosine), ("bert-score", made.bert_score))
                if value is not None
            ]
        if problems:
            raise InputError(problems)
        collect(
            lambda: None if made.judge is None else check_judge(made.judge),
            lambda: None if made.cosine in (None, "index") else check_embedder(made.cosine or ""),
            made._encoder,
        )
        return made

    def _encoder(self) -> tuple[str, int | None]:
        model, at, layer = (self.bert_score or "").rpartition("@")
        if at and not layer.isdecimal():
            raise InputError(f"--measure bert-score={self.bert_score}: write MODEL@LAYER with a number")
        return (model, int(layer)) if at else (layer, None)

    def load(self) -> Instruments:
        """The instruments, without the embedder of the index."""
        from mio_rag.measures import Instruments
        from mio_rag.measures.instruments import TokenVectors
        from mio_rag.measures.judges import YesNoJudge, make_judge
        from mio_rag.retrieval.embedders import make_embedder

        tokens, judge, embedder = collect(
            lambda: None if self.bert_score is None else TokenVectors(*self._encoder()),
            lambda: None if self.judge is None else make_judge(self.judge),
            lambda: None if self.cosine in (None, "index") else make_embedder(self.cosine or ""),
        )
        writer = judge.writer if isinstance(judge, YesNoJudge) else None
        return Instruments(embedder, tokens, judge, writer)

    def of_index(self, instruments: Instruments, embedder: Embedder) -> Instruments:
        """The instruments with the embedder of the index, where that is asked for."""
        if self.cosine != "index":
            return instruments
        return dataclasses.replace(instruments, embedder=embedder)


def _print_list(output: Output) -> None:
    """Print methods and measures."""
    from mio_rag.cli.show import measure_lines
    from mio_rag.evaluation.contenders import TOTALS
    from mio_rag.measures import measures
    from mio_rag.methods import known_methods
    from mio_rag.policies.make import kind_names

    found, methods = measures(), [*known_methods(), *TOTALS]
    fields = ("name", "label", "meaning", "of", "better", "unit", "source")
    told = [{field: getattr(measure, field) for field in fields} for measure in found]
    more = "exact:UNITS, mmr:LAMBDA, and topk:K, bm25:K and so on, which stop after K passages"
    output.result(
        {"methods": methods, "policies": kind_names(), "measures": told},
        f"methods: {', '.join(methods)}; {more}",
        f"policies: presets, files, {', '.join(kind_names())}\n",
        *measure_lines(found),
    )


# -- demo -------------------------------------------------------------------------------------------------


@o.command("embedder json")
def demo(
    call: o.Call,
    out: Annotated[Path, o.opt("Folder of the report; NAME-2 and so on where it exists.")] = Path(
        "mio-rag-demo"
    ),
    model: Annotated[str, o.opt("As in ask.")] = "extract",
) -> None:
    """Compare methods on the bundled questions. Takes under a minute."""
    from mio_rag.evaluation.ledger import free_folder

    evaluate(
        path="demo", methods="mio,fused,mmr", budgets="256,512", model=model, answer=32,
        embedder=call.embedder, out=free_folder(out), json=call.json,
    )  # fmt: skip
