"""Commands that compare, evaluate and demo, and their tables."""

from __future__ import annotations

import dataclasses
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from mio_rag.cli import options as o
from mio_rag.cli.chosen import kinds_of
from mio_rag.cli.output import Output, kept_rows
from mio_rag.cli.terminal import Table, dim, heading, styled
from mio_rag.corpora.dataset import Dataset
from mio_rag.corpora.load import closed_book as without_corpus
from mio_rag.corpora.load import shuffle_choices, write_questions
from mio_rag.defaults import DEFAULTS
from mio_rag.errors import InputError, MissingExtraError, collect, require
from mio_rag.evaluation import statistics
from mio_rag.evaluation.contenders import DEFAULT_METHODS, TOTALS, check_methods
from mio_rag.evaluation.harness import EvaluationSettings, Report, evaluate_and_report
from mio_rag.evaluation.ledger import check_folder, free_folder
from mio_rag.evaluation.rows import reading_column, refusal_scores
from mio_rag.evaluation.studies import Study, StudyRun, drawn, load_study, made_tables, study_names
from mio_rag.filters import Filter
from mio_rag.formulations.numbers import plural
from mio_rag.generation import check_generator, reader_spec
from mio_rag.measures import Instruments, Measure, added_measures, console_measures, measures
from mio_rag.measures.instruments import TokenVectors
from mio_rag.measures.judges import YesNoJudge, check_judge, make_judge
from mio_rag.methods import known_methods
from mio_rag.policies.make import check_controllers, find_kind, kind_names
from mio_rag.policy.keys import parts_of, policy_names
from mio_rag.refusal.model import Refusal
from mio_rag.retrieval.embedders import check_embedder
from mio_rag.retrieval.index import CorpusIndex, is_index
from mio_rag.selection.selector import Selector
from mio_rag.session.budget import Prices
from mio_rag.sources import kind_of
from mio_rag.storage import read_text, write_atomically

Record = Mapping[str, Any]
Column = tuple[str, Sequence[Any]]
_NONE = "\u2013"
_WIDEST = 120  # columns of a table of a study; whole it stands in tables.md
#: Fewest questions from which a study learns.
_LEAST = 20
_MEASURES = (
    "judge=words, embedding, nli:MODEL or yes-no:MODEL; cosine=index or an embedder; "
    "bert-score=minilm or MODEL[@LAYER]; stability=RADIUS. Repeatable."
)
_PATH = "As in select; several with commas. Without it --questions go to the model alone."


@o.command("questions where plugin policy set embedder limit seed resume json")
def evaluate(
    call: o.Call,
    path: Annotated[str | None, o.arg(_PATH, "PATH")] = None,
    methods: Annotated[
        str, "Methods (--list) and policies: presets, files, and names of `mio-rag policy list`."
    ] = ",".join(DEFAULT_METHODS),
    budgets: Annotated[
        str | None, o.opt("Token budgets, separated by commas. [default: 256,1024]", "--budget", "-b")
    ] = None,
    model: Annotated[str | None, "Also answer, and score answers: as in ask. [default: none]"] = None,
    answer: Annotated[int | None, f"Longest answer, in tokens. [default: {DEFAULTS.answer}]"] = None,
    baseline: Annotated[str | None, "Compare with this method. [default: fused, or topk]"] = None,
    measure: Annotated[list[str] | None, o.opt(_MEASURES, metavar="NAME=MODEL")] = None,
    study: Annotated[
        str | None, o.opt("A published system against ours and rivals: see --list.", metavar="NAME")
    ] = None,
    keep_choices: Annotated[bool, "Do not shuffle the options of multiple-choice questions."] = False,
    out: Annotated[Path | None, "Ledger, summary and report. [default: evaluation, or -2, -3]"] = None,
    details: Annotated[bool, "Print every measure, with 95 % intervals."] = False,
    show_list: Annotated[bool, o.opt("List methods, measures and studies.", "--list")] = False,
) -> None:
    """Compare selection methods and policies on your questions.

    Questions come from PATH, if it has a questions.jsonl, or from --questions. Each needs an answer, or the
    ids or sources of its evidence. All methods get the same candidates, budget and model.

    \b
      mio-rag evaluate handbook
      mio-rag evaluate INDEX --questions questions-folder --model gguf:model.gguf --methods mio,fused,frugal
      mio-rag evaluate DATA --methods 'mio,exact[radius=0.1],exact[radius=0.1,counterpart=joint]'
    """
    out = free_folder(Path((study and Path(study).stem) or "evaluation"), call.resume) if out is None else out
    call.output.kept = kept_rows(out)
    if show_list:
        _print_list(call.output)
        return
    if study is not None:
        if methods != ",".join(DEFAULT_METHODS):
            raise InputError("--study compares methods of its own: leave out --methods, or --study")
        asked = _Asked(path, "", budgets, model, answer, None, measure, keep_choices, out)
        _print_study(call, asked, load_study(study))
        return
    given = _Asked(path, methods, budgets, model, answer, baseline, measure, keep_choices, out)
    result, settings = _evaluated(call, given)
    refused = {} if settings.refusing is None else refusal_scores(result.rows, settings.refusing.threshold)
    told = {"out": str(result.folder), "run": result.run, "summary": result.summary,
            "comparisons": result.comparisons}  # fmt: skip
    told |= {"by_set": result.by_set} if result.by_set else {}
    scores = [{"method": m, "budget_tokens": b, **one.to_dict()} for (m, b), one in refused.items()]
    told |= {"refusal": scores} if scores else {}
    call.output.result(told, *_evaluation_lines(result, refused, details))
    if len({row["method"] for row in result.rows if not row["error"]}) < len(result.run["methods"]):
        raise typer.Exit(1)  # a method failed on every question


@dataclasses.dataclass(frozen=True)
class _Asked:
    """Options of `evaluate`; learn: the first questions of each set, which are not asked."""

    path: str | None
    methods: str
    budgets: str | None
    model: str | None
    answer: int | None
    baseline: str | None
    measure: list[str] | None
    keep_choices: bool
    out: Path
    learn: int = 0

    def sources(self, call: o.Call) -> list[str]:
        """Return documents, or without them questions."""
        return o.listed(self.path or call.questions or "")


def _checked(call: o.Call, asked: _Asked, *more: Callable[[], Any]) -> list[Any]:
    """Raise every problem of what was asked for, else return policy, budgets, measuring and filter."""
    closed_book = asked.path is None
    if closed_book and call.questions is None:
        raise InputError("PATH is missing: give documents with questions, an index, or a question set")
    if closed_book and call.where:
        raise InputError("--where restricts documents, and there are none without PATH: leave it out")
    spec = _spec(asked.model)
    found = call.check(
        lambda: o.whole_numbers("--budget", asked.budgets or "256,1024"),
        lambda: _Measuring.of(asked.measure, closed_book, answered=spec is not None),
        lambda: Filter(call.where),
        lambda: None if spec is None else check_generator(spec),
        lambda: check_folder(asked.out, call.resume),
        lambda: check_embedder(call.embedder),
        *(lambda one=one: None if closed_book else kind_of(one) for one in asked.sources(call)),
        *more,
    )
    return found[:4]


def _spec(model: str | None) -> str | None:
    return None if model in (None, "none") else reader_spec(model)


def _evaluated(call: o.Call, asked: _Asked) -> tuple[Report, EvaluationSettings]:
    """Check everything, load it, and run the harness."""
    out, closed_book, spec = asked.out, asked.path is None, _spec(asked.model)
    answer = DEFAULTS.answer if asked.answer is None else asked.answer
    given = policy_names(parts_of(asked.methods))
    controllers = tuple(name for name in given if find_kind(name) is not None)
    ranked = tuple(name for name in given if name not in controllers and name != "none")
    chosen, at, instruments, where = _checked(
        call, asked,
        lambda: _check_methods(ranked, controllers, closed_book, spec),
        lambda: EvaluationSettings(max_tokens=answer),
    )  # fmt: skip
    refusal = chosen.policy.answers.refusal
    if refusal is not None and controllers:
        raise InputError("answers.refusal does not go with policies: leave one of them out")
    control = chosen.control
    control = control.replace(kinds={**control.kinds, **kinds_of(controllers)})
    check_controllers(controllers, control, closed_book)
    settings = EvaluationSettings(
        methods=ranked, selector=chosen.selector, retrieval=chosen.policy.search.retrieval, seed=chosen.seed,
        controllers=controllers, control=control, closed_book=closed_book, budgets=at,
        baseline=asked.baseline and policy_names([asked.baseline])[0],
        limit=call.limit, max_tokens=answer, where=where, error=instruments.error,
        refusing=None if refusal is None else Refusal.load(refusal),
    )  # fmt: skip
    pairs = o.several(asked.sources(call), None if closed_book else call.questions)
    datasets, corpora = _loaded(call, pairs, closed_book, None if asked.keep_choices else chosen.seed)
    datasets = [dataclasses.replace(one, questions=one.questions[asked.learn :]) for one in datasets]
    for corpus in corpora:
        o.check_fits(settings.selector, corpus)
    with call.reader(spec) as reader:
        loaded = instruments.load(corpora[0].embedder if corpora else None)
        if reader is not None and (rate := chosen.rate(reader.name)) is not None:
            settings = dataclasses.replace(settings, prices=Prices({reader.name: (rate.into, rate.out)}))
        with o.progress("evaluating", sum(len(one.questions[: call.limit]) for one in datasets)) as advance:
            result = evaluate_and_report(
                datasets, corpora or None, reader, settings, out, resume=call.resume, progress=advance,
                instruments=loaded,
            )  # fmt: skip
    return result, settings


def _print_study(call: o.Call, asked: _Asked, study: Study) -> None:
    """Run a study: its commands, the harness once for each reader, then its tables and figures."""
    folder = asked.out
    call.limit = study.limit if call.limit is None else call.limit
    call.set = [*study.set, *(call.set or ())]
    models = o.listed(asked.model or study.model)
    asked = dataclasses.replace(
        asked, measure=[*study.measures, *(asked.measure or ())], model=models[0],
        budgets=asked.budgets or ",".join(map(str, study.budgets)),
    )  # fmt: skip
    if asked.path is None and study.learn:
        raise InputError("PATH is missing: this study needs documents with questions, for instance demo")
    if any("fit settings" in command for command in study.prepare):  # told now, before a folder is made
        require("optuna", "tune", "this study")
    for model in models:
        one = dataclasses.replace(asked, model=model, out=folder / "run" if call.resume else folder)
        _checked(call, one)
    kept, lacking = _measured(study, asked)  # a model that is missing is told now, not after the preparations
    for said in lacking:
        call.output.say(said)
    asked = dataclasses.replace(asked, measure=kept)
    path = asked.path or ""
    names = {"path": path, "out": str(folder), "learn": str(folder / "learn")}
    names |= {"embedder": call.embedder, "model": models[0], "model2": models[-1]}
    names["encoder"] = path if is_index(Path(path)) else call.embedder

    def filled(text: str) -> str:
        for key, value in names.items():
            text = text.replace(f"{{{key}}}", value)
        return text

    learn = _learned(call, asked, study)
    done = folder / "prepared.txt"
    before = read_text(done).splitlines() if done.is_file() else []
    for template in study.prepare:
        if (command := filled(template)) not in before:
            call.output.say(f"mio-rag {command}")
            words = [sys.executable, "-m", "mio_rag", *map(filled, shlex.split(template))]
            if subprocess.run(words, stdout=2, check=False).returncode:
                raise InputError(f"the study '{study.name}' failed to prepare by: mio-rag {command}")
            before.append(command)
            write_atomically(done, "\n".join(before))
    contenders = {label: policy_names([filled(one)])[0] for label, one in study.contenders.items()}
    reports = {}
    for variant, other in study.variants.items():
        one = dataclasses.replace(
            asked, methods=",".join(contenders.values()), out=folder / (variant or "run"), learn=learn,
            model=filled(other.model or "{model}"),
            answer=study.answer if asked.answer is None else asked.answer,
            baseline=next((n for one, n in contenders.items() if study.reference.startswith(one)), None),
        )  # fmt: skip
        reports[variant] = _evaluated(call, one)[0]
    labels = {name: label for label, name in contenders.items()}
    ledgers = {variant: report.rows for variant, report in reports.items()}
    run = StudyRun.of(study, ledgers, labels, folder)
    asked_of = {
        f"{plural(one.run['questions'], 'question')}, reader {one.run['generator'] or 'none'}": one.run[
            "questions"
        ]
        for one in reports.values()
    }
    notes = [*asked_of, *lacking]
    if min(asked_of.values()) < statistics.FEW_QUESTIONS:
        few = f"with fewer than {statistics.FEW_QUESTIONS} questions systems cannot be told apart"
        notes.append(f"note: {few}: a difference may be chance, and its interval is rough")
    made, figures = made_tables(run, notes), drawn(run)
    lines: list[Any] = [study.about, *notes, ""]
    for title, columns in made:
        heads = [(heading(head), cells) for head, cells in columns]
        keys = 1 + (columns[1:2] != [] and columns[1][0] == "budget")
        lines += [styled((title, "bold")), Table(heads, keys=keys, widest=_WIDEST), ""]
    files = [str(folder / "tables.md"), *map(str, sorted(folder.glob("*.csv"))), *map(str, figures)]
    told = {
        "out": str(folder),
        "notes": notes,
        "tables": [{"title": t, "columns": dict(c)} for t, c in made],
        "files": files,
    }
    call.output.result(told, *lines, *files)


def _measured(study: Study, asked: _Asked) -> tuple[list[str], list[str]]:
    """Return the measures whose packages are installed, and a note for each other one of the study's own."""
    kept, lacking = list[str](), list[str]()
    for one in asked.measure or ():
        try:
            _Measuring.of([one], False, True).load(None)
            kept.append(one)
        except MissingExtraError as error:
            if one not in study.measures:
                raise
            lacking.append(f"note: without {one}, since {error}")
    return kept, lacking


def _learned(call: o.Call, asked: _Asked, study: Study) -> int:
    """Write the questions to learn from; return how many: at most two thirds, so that others can be asked."""
    if not study.learn:
        return 0
    sources = asked.sources(call)
    if len(sources) > 1:
        raise InputError(
            f"the study '{study.name}' learns from one set, and {len(sources)} were given: run it once "
            "for each"
        )
    questions = _loaded(call, o.several(sources, call.questions), False, None)[0][0].questions
    learn = min(study.learn, 2 * len(questions) // 3)
    if learn < min(study.learn, _LEAST):
        raise InputError(
            f"the study '{study.name}' learns from {_LEAST} questions or more, and asks others; "
            f"{call.questions or sources[0]} has {plural(len(questions), 'question')}: give at least "
            f"{3 * _LEAST // 2}, in another set or with --questions"
        )
    if learn < study.learn:
        call.output.say(
            f"{plural(len(questions), 'question')}: the first {learn} to learn from (the study takes up to "
            f"{study.learn}), the others to ask"
        )
    write_questions(questions[:learn], asked.out / "learn" / "questions.jsonl")
    return learn


def _check_methods(
    methods: tuple[str, ...], controllers: tuple[str, ...], closed_book: bool, spec: str | None
) -> None:
    if closed_book and methods:
        raise InputError(
            "without PATH there is nothing to select from: give PATH, or compare policies, for instance "
            "--methods always-reason"
        )
    if not methods and not controllers:
        raise InputError("--methods is empty: see `mio-rag evaluate --list`")
    if controllers and spec is None:
        named = [one.removeprefix("policy:") for one in controllers if one.startswith("policy:")]
        less = f", or compare what it selects: --methods mio,fused --policy {named[0]}" if named else ""
        raise InputError(
            f"{', '.join(controllers)} needs a model that answers: give --model (extract quotes without one)"
            + less
        )
    # "calibrated" is checked with the relevance model, which is read later.
    check_methods([n for n in methods if not n.startswith("calibrated")] or ["exact"], Selector())


def _loaded(
    call: o.Call, sources: Sequence[tuple[str, str | None]], closed_book: bool, seed: int | None
) -> tuple[list[Dataset], list[CorpusIndex]]:
    """Return questions with their indexes; choices are shuffled by the seed, if there is one."""
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
    stability: str | None = None

    @classmethod
    def of(cls, given: list[str] | None, closed_book: bool, answered: bool) -> _Measuring:
        """Read --measure; `InputError` for what cannot be measured. Nothing is loaded."""
        named = {key.replace("-", "_"): value for key, value in o.pairs("--measure", given).items()}
        known = [one.name for one in dataclasses.fields(cls)]
        if unknown := [f"--measure {key}: choose {', '.join(known)}" for key in named if key not in known]:
            raise InputError(unknown)
        made, problems = cls(**named), []
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
            lambda: o.numbers("--measure stability", made.stability or "0"),
            lambda: None if made.judge is None else check_judge(made.judge),
            lambda: None if made.cosine in (None, "index") else check_embedder(made.cosine or ""),
            made._encoder,
        )
        return made

    @property
    def error(self) -> float:
        """Size of random errors of embeddings."""
        return o.numbers("--measure stability", self.stability or "0")[0]

    def _encoder(self) -> tuple[str, int | None]:
        model, at, layer = (self.bert_score or "").rpartition("@")
        if at and not layer.isdecimal():
            raise InputError(f"--measure bert-score={self.bert_score}: write MODEL@LAYER with a number")
        return (model, int(layer)) if at else (layer, None)

    def load(self, of_index: Any) -> Instruments:
        """Load the models; of_index: the embedder of the index."""
        from mio_rag.retrieval.embedders import make_embedder

        tokens, judge, embedder = collect(
            lambda: None if self.bert_score is None else TokenVectors(*self._encoder()),
            lambda: None if self.judge is None else make_judge(self.judge),
            lambda: None if self.cosine in (None, "index") else make_embedder(self.cosine or ""),
        )
        writer = judge.writer if isinstance(judge, YesNoJudge) else None
        return Instruments(of_index if self.cosine == "index" else embedder, tokens, judge, writer)


def _print_list(output: Output) -> None:
    """Print methods, and measures in a table for each kind: name and meaning, direction, unit and source."""
    found, methods = measures(), [*known_methods(), *TOTALS]
    fields = ("name", "label", "meaning", "of", "better", "unit", "source")
    told = [{field: getattr(measure, field) for field in fields} for measure in found]
    tables: list[Any] = []
    for of, title in _OF.items():
        rows: list[tuple[str, str]] = []
        for m in (m for m in found if m.of == of):
            better = "no direction" if m.better == "none" else f"{m.better} is better"
            rows += [(m.name, m.meaning), ("", f"{better}; {m.unit}; {m.source}")]
        tables += [Table.rows(f"|{title}", rows, left=2), ""] if rows else []
    more = "exact:UNITS, mmr:LAMBDA, and topk:K, bm25:K and so on, which stop after K passages"
    output.result(
        {"methods": methods, "policies": kind_names(), "measures": told, "studies": study_names()},
        f"methods: {', '.join(methods)}; {more}; program:POLICY",
        f"policies: presets, files, {', '.join(kind_names())}",
        "each may have settings of its own: exact[radius=0.1]",
        f"studies: {', '.join(study_names())}\n",
        *tables,
    )


@o.command("embedder json")
def demo(
    call: o.Call,
    out: Annotated[Path, "Folder of the report; NAME-2 and so on where it exists."] = Path("mio-rag-demo"),
    model: Annotated[str, "As in ask."] = "extract",
) -> None:
    """Compare methods on the bundled questions. Takes under a minute."""
    evaluate(
        path="demo", methods="mio,fused,mmr", budgets="256,512", model=model, answer=32,
        embedder=call.embedder, out=free_folder(out), json=call.json,
    )  # fmt: skip


# -- tables -----------------------------------------------------------------------------------------------

_SIGNS = {-1: "red", 0: "", 1: "green"}
_OF = {
    "selection": "Of a selection",
    "answer": "Of an answer",
    "choice": "Of a chosen option",
    "cost": "Of what it cost, and how it was proven",
    "run": "Of a method, over all questions",
}


def _evaluation_lines(result: Report, refused: Mapping[Any, Any], details: bool) -> Iterator[Any]:
    """What an evaluation ran on, what each method found and read, and what failed."""
    run = result.run
    yield (
        f"{run['dataset']}: {run['questions']} questions, {run['passages']} passages, embedder "
        f"{run['embedder']}, reader {run['generator'] or 'none'}, pool {run['pool']}, {run['seconds']:.0f} s"
    )
    if named := (run["settings"].get("instruments") or {}).items():
        yield "; ".join(f"{kind}: {one['name']}" for kind, one in named)
    yield ""
    yield from summary_lines(result.summary, result.comparisons, run["baseline"], details=details)
    about = (
        statistics.left_out(result.rows, result.summary),
        statistics.reading_nothing(result.rows),
        statistics.part_read(run, result.summary),
        statistics.by_twins(result.rows),
    )
    yield from (styled((f"\nnote: {note}", "yellow")) for note in about if note)
    if result.by_set:
        yield from _set_lines(result.by_set)
    if refused:
        several = len({budget for _, budget in refused}) > 1
        names = [f"{m} @{b}" if several else m for m, b in refused]
        yield "\nunanswerable questions: HasAns and NoAns as by SQuAD 2.0\n"
        yield score_table("method", names, list(refused.values()))
    if not details:
        yield dim("every measure, with intervals: --details, summary.json and the report")
    reasons: dict[tuple[str, str], list[str]] = {}  # one of each kind for each method; all are in the ledger
    for row in (row for row in result.rows if row["error"]):
        reasons.setdefault((row["method"], row["error_kind"]), []).append(str(row["error"]))
    for (method, _), found in sorted(reasons.items(), key=lambda one: -len(one[1])):
        more = len(set(found)) - 1
        also = f" (and {plural(more, 'other reason')}, in the ledger)" if more else ""
        yield styled((f"{method} failed {len(found)}x:", "red"), f" {found[0]}{also}")
    yield f"\nreport: {result.folder}/report.html"


def score_table(title: str, names: Sequence[str], scores: Sequence[Any]) -> Table:
    """One row a name: percent of all questions, of the answerable ones and of the others."""
    columns = {"F1": "f1", "exact": "exact", "HasAns F1": "has_answer_f1", "HasAns exact": "has_answer_exact",
               "NoAns": "no_answer", "refused": "refused", "best F1": "best_f1"}  # fmt: skip
    cells = [
        (
            head,
            [_NONE if (value := getattr(score, name)) is None else f"{100 * value:.1f}" for score in scores],
        )
        for head, name in columns.items()
    ]
    return Table([(title, list(names)), *cells], keys=1)


def summary_lines(
    summary: Sequence[Record],
    comparisons: Sequence[Record] = (),
    baseline: str | None = None,
    *,
    details: bool = False,
) -> Iterator[Any]:
    """What each method found and read, against the baseline; below it everything else.

    details: every measure, with 95 % intervals.
    """
    entries = sorted(summary, key=lambda entry: entry["budget_tokens"])
    columns: list[Column] = []
    for one in statistics.lead_table(entries, comparisons, baseline):
        styles = [_SIGNS[sign] for sign in one.signs] or [""] * len(one.cells)
        columns.append((one.title, list(map(Text, one.cells, styles))))
    keys = columns[: 1 + (columns[1][0] == "budget")]
    budgets = list(dict.fromkeys(entry["budget_tokens"] for entry in entries))
    count = max((entry.get("n") or 0 for entry in entries), default=0)
    said = f"Means over {plural(count, 'question')}" if count else "Means"
    said += f" at a budget of {budgets[0]} tokens" if len(budgets) == 1 else ""
    rivals = baseline is not None and len({entry["method"] for entry in entries}) > 1
    yield f"{said}{f'; the baseline is {baseline}' * rivals}."
    if not statistics.lead_measures(entries):
        yield "The questions have no answers and name no evidence, so nothing found can be counted."
    if reading_column(entries) == "prompt_tokens":
        yield "Prompt tokens: of all calls, since controllers ask more than once."
    yield ""
    yield Table(columns, keys=len(keys))
    for warnings in (statistics.too_few, statistics.proven_yet_behind):
        yield from (styled(("\nnote:", "yellow"), f" {said}") for said in warnings(entries, comparisons))
    if shown := _others(entries, comparisons, details):
        yield styled(("\nanswers, proofs and costs", "bold"))
        yield Table([*keys, *shown], keys=len(keys))


def _set_lines(by_set: Sequence[Record]) -> Iterator[Any]:
    """What was found and read in each question set."""
    entries = sorted(by_set, key=lambda entry: entry["budget_tokens"])
    keys: list[Column] = [
        ("set", [entry["dataset"] for entry in entries]), ("method", [entry["method"] for entry in entries])
    ]  # fmt: skip
    if len({entry["budget_tokens"] for entry in entries}) > 1:
        keys.append(("budget", [str(entry["budget_tokens"]) for entry in entries]))
    fields: list[Column] = [("questions", [str(entry["n"]) for entry in entries])]
    for measure in statistics.lead_measures(entries):
        form = _percent if measure.kind == "rate" else measure.form.format
        fields.append((heading(measure.label.lower()), _means(entries, measure.name, form)))
    fields.append(("tokens\nread", _means(entries, reading_column(entries), "{:.0f}".format)))
    yield styled(("\nby question set", "bold"))
    yield Table([*keys, *fields], left=2, keys=len(keys))


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _means(entries: Sequence[Record], name: str, form: Callable[[float], str]) -> list[str]:
    return [_NONE if (value := entry.get(name)) is None else form(value["mean"]) for entry in entries]


def _others(entries: Sequence[Record], comparisons: Sequence[Record], details: bool) -> list[Column]:
    first = set() if details else {one.name for one in statistics.lead_measures(entries)}
    first |= set() if details else {reading_column(entries)}
    own = {measure.name for measure in added_measures()}
    fields: list[Column] = []
    for measure in console_measures():
        column = measure.console
        asked = details or measure.name in own or (column is not None and column.always)
        if asked and measure.name not in first and any(entry.get(measure.name) for entry in entries):
            fields.append((heading(measure.title), _cells(entries, measure, details)))
    proofs = [entry.get("optimal_share") for entry in entries]
    if any(share is not None for share in proofs):
        below = statistics.behind(entries, comparisons)
        less = ["finds less" * ((one["method"], one["budget_tokens"]) in below) for one in entries]
        cells = [
            _NONE if share is None else ", ".join(filter(None, [f"{share:.0%}", said]))
            for share, said in zip(proofs, less, strict=True)
        ]
        fields.append(("proven", cells))
    if any(share is not None and share < 1 for share in proofs):
        unproven = [entry if share is not None else {} for entry, share in zip(entries, proofs, strict=True)]
        fields.append(("mean\ngap", _means(unproven, "gap", lambda value: f"{100 * value:.2f} %")))
    if any(entry["failed"] for entry in entries):
        fields.append(("failed", [str(entry["failed"]) for entry in entries]))
    return fields


def _cells(entries: Sequence[Record], measure: Measure, details: bool) -> list[Text]:
    """Means of a measure, with intervals where details are wanted."""
    cells = []
    for entry in entries:
        value = entry.get(measure.name)
        cell = Text(_NONE if value is None else measure.form.format(value["mean"]))
        if value is not None and details and value["low"] != value["high"]:
            low = measure.form.format(value["low"])
            high = "unbounded" if value["high"] is None else measure.form.format(value["high"])
            cell.append(f" ({low} to {high})", "dim")
        cells.append(cell)
    return cells
