"""Options that several commands share, and how their values are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mio_rag.defaults import DEFAULTS
from mio_rag.errors import InputError

if TYPE_CHECKING:
    from mio_rag.cli.output import Output
    from mio_rag.corpora.dataset import Dataset
    from mio_rag.retrieval.index import CorpusIndex
    from mio_rag.selection.selector import Selector
    from mio_rag.sources import Opened


def opt(text: str, *flags: str, **more: Any) -> Any:
    """Return an option that is named like its parameter, or by its flags, and explained by a text."""
    return typer.Option(*flags, help=text, **more)


def arg(text: str, metavar: str | None = None) -> Any:
    """Return an argument that is explained by a text."""
    return typer.Argument(metavar=metavar, help=text, show_default=False)


SourcePath = Annotated[
    str, arg("Folder or file of documents, an index, a JSONL file of passages, or a question set.", "PATH")
]
QuestionText = Annotated[str, arg("What is asked.", "QUESTION")]
Questions = Annotated[
    str | None, opt("Question set, where PATH has none of its own.", "--questions", metavar="DATA")
]
Budget = Annotated[
    int | None, opt(f"Largest context, in tokens. [default: {DEFAULTS.budget}]", "--budget", "-b")
]
Budgets = Annotated[str, opt("Token budgets, separated by commas.", "--budget", "-b")]
Answer = Annotated[int | None, opt(f"Longest answer, in tokens. [default: {DEFAULTS.answer}]", "--answer")]
Units = Annotated[str | None, opt("auto, passages or sentences. [default: auto]", "--units")]
Model = Annotated[
    str | None,
    opt(
        "openai:NAME[@URL], gguf:FILE, hf:ID, or extract, which quotes a span. "
        "[default: $MIO_RAG_MODEL, else extract]",
        "--model",
    ),
]
PolicyName = Annotated[str, opt("A policy file, a preset, or a name of `mio-rag policy list`.", "--policy")]
Sets = Annotated[
    list[str] | None, opt("Change one setting of the policy. Repeatable.", "--set", metavar="KEY=VALUE")
]
EmbedderName = Annotated[
    str, opt("For what is not indexed yet: minilm, tfidf, or a model's id or folder.", "--embedder")
]
NoRefresh = Annotated[bool, opt("Use the stored index, even if documents changed.", "--no-refresh")]
Mapped = Annotated[bool, opt("Leave the index on disk: less memory, slower searches.", "--mapped")]
Where = Annotated[
    list[str] | None,
    opt(
        "Only matching documents: 'source=travel*', 'date>=2026-01-01', 'tenant=a'. Repeatable.",
        "--where",
        "-w",
        metavar="EXPR",
    ),
]
Why = Annotated[bool, opt("Explain what was selected and what was left out.", "--why")]
Limit = Annotated[int | None, opt("Only the first N questions.", "--limit")]
Seed = Annotated[int | None, opt("Seed of whatever is drawn. [default: 0]", "--seed")]
Resume = Annotated[bool, opt("Continue an interrupted run.", "--resume")]
Json = Annotated[bool, opt("Print one JSON object on stdout and nothing else there.", "--json")]


Plugins = Annotated[
    list[Path] | None,
    opt("Python file that registers methods or measures. Repeatable.", "--plugin", metavar="FILE"),
]


def load_plugins(files: Sequence[Path] | None) -> None:
    """Import the files of --plugin."""
    from mio_rag.methods import load_plugin

    for file in files or ():
        load_plugin(file)


def reader_spec(model: str | None, default: str | None = None) -> str:
    """Return a model as `make_generator` takes it; see `mio_rag.generation.reader_spec`."""
    from mio_rag.generation import reader_spec

    return reader_spec(model, default)


def listed(text: str) -> list[str]:
    """Return the parts of a text with commas; the whole where something has that very name."""
    if Path(text).exists():
        return [text]
    return [part.strip() for part in text.split(",") if part.strip()]


def numbers(option: str, text: str) -> tuple[float, ...]:
    """Return the numbers of an option with commas."""
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise InputError(f"{option} must be numbers separated by commas, got {text!r}") from error


def whole_numbers(option: str, text: str) -> tuple[int, ...]:
    """Return the whole numbers of an option with commas."""
    found = numbers(option, text)
    if any(value % 1 != 0 for value in found) or not found:
        raise InputError(f"{option} must be whole numbers separated by commas, got {text!r}")
    if low := [value for value in found if value < 1]:
        raise InputError(f"{option} must be >= 1, got {low[0]:g}")
    return tuple(int(value) for value in found)


def at_least(**options: tuple[float | None, float]) -> None:
    """Raise `InputError` for options below their least values: name -> (value, least)."""
    wrong = {k.replace("_", "-"): v for k, v in options.items() if v[0] is not None and v[0] < v[1]}
    if wrong:
        raise InputError(
            [f"--{name} must be >= {least:g}, got {value:g}" for name, (value, least) in wrong.items()]
        )


def check_question(question: str) -> None:
    """Raise `InputError` for an empty question."""
    if not question.strip():
        raise InputError("the question is empty")


def check_ending(option: str, path: Path | None, *endings: str) -> None:
    """Raise `InputError` where an output file is a folder or has another ending."""
    if path is not None and (path.is_dir() or path.suffix not in endings):
        raise InputError(f"{option} must be a file that ends in {' or '.join(endings)}, got {path}")


def pairs(option: str, given: Sequence[str] | None) -> dict[str, str]:
    """Return name -> value of a repeated option NAME=VALUE."""
    found: dict[str, str] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not (name.strip() and equals and value.strip()):
            raise InputError(f"{option} {text}: write NAME=VALUE")
        found[name.strip()] = value.strip()
    return found


def progress(what: str, total: int) -> AbstractContextManager[Callable[..., None]]:
    """Show on stderr how far something has come."""
    from mio_rag.cli.terminal import progress_bar

    return progress_bar(what, total)


def opened(
    output: Output,
    path: str,
    embedder: str = DEFAULTS.embedder,
    *,
    refresh: bool = True,
    mapped: bool = False,
    where: Sequence[str] | None = None,
    **building: Any,
) -> Opened:
    """Open a source, and report on stderr what was indexed, what could not be read, and what changed."""
    from mio_rag.cli.terminal import said_if_slow
    from mio_rag.formulations.numbers import plural
    from mio_rag.sources import Building, kind_of, open_source

    how = Building(embedder, **building)
    is_index = kind_of(path) == "index"
    with said_if_slow("loading the index and its embedder"):
        found = open_source(
            path,
            None if is_index and how == Building() else how,
            refresh=refresh,
            mapped=mapped,
            progress=progress,
        )
    if found.built:
        files = f"{len(found.files)} files, " if len(found.files) > 1 else ""
        passages = plural(len(found.index), "passage")
        output.say(f"Indexed {path}: {files}{passages}, {found.seconds:.1f} s")
        for one in found.left_out[:5]:
            output.say(f"not read  {one.path}: {one.reason}")
        if len(found.left_out) > 5:
            output.say(f"not read  {len(found.left_out) - 5} more: mio-rag index {path} lists them")
    for note in found.notes:
        output.say(f"note: {note}")
    return replace(found, loaded=found.index.only(where)) if where else found


def questions_of(found: Opened, questions: str | None) -> Dataset:
    """Return the passages of an opened source with the questions of `questions`, by default its own."""
    from mio_rag.corpora.dataset import Dataset
    from mio_rag.corpora.load import load_questions, source_name
    from mio_rag.errors import DataError

    if questions is None and found.kind not in ("set", "layout", "documents"):
        raise DataError(f"{found.source} has no questions: give them with --questions")
    asked = load_questions(questions or found.source)
    name = source_name(questions or found.source)
    return Dataset(name, tuple(found.index.passages), asked, left_out=found.left_out)


def check_fits(selector: Selector, index: CorpusIndex) -> None:
    """Raise `InputError` for ids that are no passages, and for relevance of another embedder."""
    from mio_rag.relevance.model import RelevanceModel
    from mio_rag.selection.selector import check_ids

    check_ids(selector, index.ids)
    model = selector.relevance_model
    if isinstance(model, RelevanceModel) and (misfit := model.misfit(index.embedder.fingerprint)):
        raise InputError(misfit)


#: Old command -> what replaces it.
OLD_COMMANDS = {
    "select-batch": "batch select", "answer-batch": "batch answer", "allocate": "batch allocate",
    "calibrate": "policy fit relevance", "tune": "policy fit settings, or policy fit price",
    "unanswerable": "policy fit refusal", "mdp": "lab solve mdp, policy fit process and policy replay",
    "route": "policy fit router and policy show", "strategies": "policy state",
    "plan": "policy fit planner, policy show and policy replay", "solve": "lab solve",
    "frontier": "lab frontier", "radius": "lab radius", "warmup": "lab warmup",
    "measures": "evaluate --list",
}  # fmt: skip
#: Old option -> what replaces it.
OLD_OPTIONS = {
    "--budget-tokens": "--budget", "--max-tokens": "--answer", "--generator": "--model",
    "--explain": "--why", "--config": "--policy FILE", "--controller": "--policy NAME",
    "--controllers": "--methods", "--policies": "--methods",
    "--workflow": "--policy workflow:NAME, or --set order.workflow=NAME",
    "--strategies": "--set search.strategies=NAME,NAME", "--strategy-state": "--set search.state=FILE",
    "--strategy-price": "--set price.token=PRICE", "--router": "--set depth.file=FILE",
    "--tiers": "--set depth.tiers=FILE", "--utility": "--set price.token=PRICE",
    "--unsure": "--set depth.unsure=stay|up", "--planner": "--set order.file=FILE",
    "--alpha": "--set price.token=PRICE", "--model-price": "--set models.NAME.input=DOLLARS",
    "--prices": "--set models.reader.input=DOLLARS", "--worth": "--set price.worth=DOLLARS",
    "--preset": "--set selection.preset=NAME", "--redundancy": "--set selection.redundancy_weight=X",
    "--passage-penalty": "--set selection.passage_penalty=X", "--token-price": "--set price.token=PRICE",
    "--radius": "--set selection.radius=X", "--norm": "--set selection.norm=NAME",
    "--max-per-source": "--set selection.max_per_source=N",
    "--min-passages": "--set selection.min_passages=N", "--max-passages": "--set selection.max_passages=N",
    "--no-merge": "--set selection.merge=false",
    "--near-duplicates": "--set selection.near_duplicates=one|all",
    "--shared-text": "--set selection.shared_text_weight=X",
    "--must-include": "--set selection.must_include=ID,ID",
    "--must-exclude": "--set selection.must_exclude=ID,ID", "--solver": "--set selection.solver=NAME",
    "--time-limit": "--set selection.options.time_limit_seconds=S",
    "--relative-gap": "--set selection.options.relative_gap=X",
    "--threads": "--set selection.options.threads=N", "--relevance": "--set selection.relevance_model=FILE",
    "--link-hops": "--set search.link_hops=N", "--link-benefit": "--set selection.link_benefit=X",
    "--redundancy-by-relevance": "--set selection.redundancy_by_relevance=true",
    "--prompt-order": "--set selection.prompt_order=document", "--rerank": "--set search.rerank=NAME",
    "--pool": "--set search.pool=N", "--retrieval": "--set search.ranking=fused|dense|bm25",
    "--max-source-share": "--set selection.side.max_source_share=X",
    "--cover": "--set selection.side.cover=HOW",
    "--max-similarity": "--set selection.side.max_similarity=X",
    "--conflict": '--set \'selection.side.conflicts=[["A", "B"]]\'',
    "--needs": "--set selection.side.needs.ID=ID", "--previous": "--set selection.side.previous=ID,ID",
    "--max-changes": "--set selection.side.max_changes=N",
    "--change-price": "--set selection.side.change_price=X", "--soft": "--set selection.side.prices.KIND=X",
    "--counterpart": "--set selection.counterpart=joint",
    "--uncertainty-set": "--set selection.uncertainty=FILE",
    "--radii": "--set selection.passage_radii=FILE", "--cache": "--set answers.cache=FILE",
    "--cache-entries": "--set answers.cache_entries=N", "--cache-days": "--set answers.cache_days=N",
    "--refusal": "--set answers.refusal=FILE", "--max-steps": "--set limits.max_steps=N",
    "--max-total-tokens": "--set limits.max_total_tokens=N", "--max-seconds": "--set limits.timeout=S",
    "--mdp-config": "--set repeat.process=FILE",
    "--tokens-per-day": "--set price.total=N --set price.per=day",
    "--tokens-per-hour": "--set price.total=N --set price.per=hour",
    "--pacer-state": "--set price.state=FOLDER", "--start-price": "--set server.start_price=X",
    "--mean-tokens": "`mio-rag policy fit price`", "--judge": "--measure judge=NAME",
    "--cosine": "--measure cosine=NAME", "--bert-score": "--measure bert-score=NAME",
    "--corpus": "PATH, with --questions DATA", "--index": "PATH, with --questions DATA",
    "--help-all": "`mio-rag policy show --keys`",
}  # fmt: skip
