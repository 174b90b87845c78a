"""Options that several commands share, each declared once, and what a command does with them."""

from __future__ import annotations

import inspect
import math
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from mio_rag.cli.output import Output, open_output
from mio_rag.defaults import DEFAULTS
from mio_rag.errors import DataError, InputError, collect
from mio_rag.errors import refuse as refuse

if TYPE_CHECKING:
    from mio_rag.cli.chosen import Chosen
    from mio_rag.corpora.dataset import Dataset
    from mio_rag.retrieval.index import CorpusIndex
    from mio_rag.selection.selector import Selector
    from mio_rag.sources import Opened


def opt(text: str, *flags: str, **more: Any) -> Any:
    """Return an option that is named like its parameter, or by its flags, and explained by a text."""
    return typer.Option(*flags, help=text, **more)


def arg(text: str, metavar: str | None = None, **more: Any) -> Any:
    """Return an argument that is explained by a text."""
    return typer.Argument(metavar=metavar, help=text, **{"show_default": False, **more})


_USUAL_SECONDS = 60.0  # for a reply of an endpoint
_NEEDED = inspect.Parameter.empty


def group(text: str) -> typer.Typer:
    """Return a group of commands."""
    return typer.Typer(help=text, no_args_is_help=True, rich_markup_mode=None)


def command(
    names: str, *, app: typer.Typer | None = None, name: str | None = None, **defaults: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function: it gets a `Call` with the shared options, then its own.

    names: of shared options, separated by blanks.
    app: group of commands that it belongs to, under `name`.
    defaults: of shared options, where this command has others.

    Options of its own are parameters with their help: ``seed: Annotated[int, "Seed of ..."] = 0``.
    """
    wanted = names.split()

    def made(function: Callable[..., None]) -> Callable[..., None]:
        hints, own = get_type_hints(function, include_extras=True), inspect.signature(function).parameters
        mine = {key: (_option(key, hints[key]), one.default) for key, one in [*own.items()][1:]}
        shared = {key: (kind, defaults.get(key, usual)) for key, (kind, usual) in _shared().items()}
        last = [*shared].index("plugin")
        first, later = (
            [key for key in part if key in wanted] for part in ([*shared][:last], [*shared][last:])
        )
        assert len(first) + len(later) == len(wanted), names
        every = {**{key: shared[key] for key in first}, **mine, **{key: shared[key] for key in later}}

        def run(**given: Any) -> None:
            values = {key: given.get(key, default) for key, (_, default) in every.items()}
            function(Call({key: values.pop(key) for key in wanted}), **values)

        run.__name__, run.__doc__, run.__module__ = function.__name__, function.__doc__, function.__module__
        run.__annotations__ = {key: kind for key, (kind, _) in every.items()}
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
                for key, (kind, default) in every.items()
            ]
        )
        return run if app is None else app.command(name)(run)

    return made


def _option(name: str, hint: Any) -> Any:
    """Return an annotated type with a Typer option: made of a help text, without a --no-... form."""
    kind, found = get_args(hint)
    kind = str if get_origin(kind) is Literal else kind  # what it may be is checked with everything else
    found = opt(found) if isinstance(found, str) else found
    if kind is bool and not found.param_decls:
        found.param_decls = (f"--{name.replace('_', '-')}",)
    return Annotated[kind, found]


@cache
def _shared() -> dict[str, tuple[Any, Any]]:
    hints = get_type_hints(Call, include_extras=True)
    return {key: (_option(key, hint), getattr(Call, key, _NEEDED)) for key, hint in hints.items()}


Texts = list[str] | None
_WHERE = "Only matching documents: 'source=travel*', 'date>=2026-01-01', 'tenant=a'. Repeatable."
_MODEL = "openai:NAME[@URL], gguf:FILE, hf:ID, or extract, which quotes a span. "
_MODEL += "[default: $MIO_RAG_MODEL, else extract]"
_QUESTIONS = "Question set or CSV file if PATH has none; several with commas."


class Call:
    """A call of a command: the shared options, where its result goes, and what it works on.

    Options before `plugin` stand before those of a command itself, the others behind.
    """

    path: Annotated[
        str, arg("Folder or file of documents, an index, JSONL of passages, or a question set.", "PATH")
    ]
    paths: Annotated[
        list[str], arg("As in select; each with questions. Or tables of an earlier run.", "PATH...")
    ]
    question: Annotated[str, arg("What is asked.", "QUESTION")]
    out: Annotated[Path, "File for what is learned."]
    folder: Annotated[Path, opt("Folder of the output; an interrupted run resumes there.", "--out")]
    questions: Annotated[str | None, opt(_QUESTIONS, metavar="DATA")] = None
    budget: Annotated[
        int | None, opt(f"Largest context, in tokens. [default: {DEFAULTS.budget}]", "--budget", "-b")
    ] = None
    where: Annotated[Texts, opt(_WHERE, "--where", "-w", metavar="EXPR")] = None
    units: Annotated[str | None, "auto, passages or sentences. [default: auto]"] = None
    model: Annotated[str | None, _MODEL] = None
    answer: Annotated[int | None, f"Longest answer, in tokens. [default: {DEFAULTS.answer}]"] = None
    plugin: Annotated[
        list[Path] | None, opt("Python file that registers methods or measures. Repeatable.", metavar="FILE")
    ] = None
    policy: Annotated[str, "A policy file, a preset, or a name of `mio-rag policy list`."] = DEFAULTS.policy
    set: Annotated[Texts, opt("Change one setting of the policy. Repeatable.", metavar="KEY=VALUE")] = None
    embedder: Annotated[
        str, "For what is not indexed yet: minilm, tfidf, openai:NAME[@URL], or a model's id or folder."
    ] = DEFAULTS.embedder
    engine: Annotated[Literal["local", "ray"], "local, or ray."] = "local"
    workers: Annotated[int, "Worker processes. 0: one per core."] = 1
    column: Annotated[Texts, "OURS=THEIRS: a column has another name. Repeatable."] = None
    shard_rows: Annotated[int, "Maximum rows of an output file."] = 5000
    limit: Annotated[int | None, "Only the first N questions."] = None
    seed: Annotated[int, "Seed of whatever is drawn."] = 0
    why: Annotated[bool, "Explain what was selected and what was left out."] = False
    proof: Annotated[bool, "Print the certificate."] = False
    no_refresh: Annotated[bool, "Use the stored index, even if documents changed."] = False
    mapped: Annotated[bool, "Leave the index on disk: less memory, slower searches."] = False
    resume: Annotated[bool, "Continue an interrupted run."] = False
    json: Annotated[bool, "Print one JSON object on stdout and nothing else there."] = False

    def __init__(self, given: dict[str, Any]) -> None:
        self.__dict__.update(given)
        self.output: Output = open_output(self.json)
        for file in self.plugin or ():
            from mio_rag.methods import load_plugin

            load_plugin(file)

    def chosen(self, **more: Any) -> Chosen:
        """Return the policy with what the options change of it."""
        from mio_rag.cli.chosen import Chosen

        given = {"budget": self.budget, "answer": self.answer, "units": self.units, "seed": self.seed or None}
        return Chosen.of(self.policy, self.set, **{**given, **more})

    def check(self, *checks: Callable[[], Any], policy: Callable[[], Any] | None = None) -> list[Any]:
        """Return the policy and what other checks give; raise all of their problems at once."""
        least = {"limit": (self.limit, 1), "seed": (self.seed, 0)}
        found = collect(policy or self.chosen, *checks, lambda: at_least(**least))
        return found[:-1]

    def open(self, path: str | None = None, **building: Any) -> Opened:
        """Open the source, and report on stderr what was indexed, what could not be read, what changed."""
        from mio_rag.formulations.numbers import plural
        from mio_rag.sources import Building, kind_of, open_source

        path, how = path or self.path, Building(self.embedder, **building)
        stored = kind_of(path) == "index" and how == Building()
        with _reported_if_slow("loading the index and its embedder"):
            found = open_source(
                path, None if stored else how, refresh=not self.no_refresh, mapped=self.mapped,
                progress=progress,
            )  # fmt: skip
        if found.built:
            parts = {name: len(names) for name, names in vars(found.changes).items() if names}
            again = parts != {"added": len(found.files)}
            told = f" ({', '.join(f'{count} {name}' for name, count in parts.items())})" if again else ""
            files = f"{plural(found.files_read, 'file')}{told}, " if len(found.files) > 1 else ""
            self.output.say(
                f"Indexed {path}: {files}{plural(len(found.index), 'passage')}, {found.seconds:.1f} s",
                *(f"not read  {one.path}: {one.reason}" for one in found.left_out[:5]),
            )
            if len(found.left_out) > 5:
                self.output.say(f"not read  {len(found.left_out) - 5} more: mio-rag index {path} lists them")
        self.output.say(*(f"note: {note}" for note in found.notes))
        if self.where:
            found = replace(found, loaded=found.index.only(self.where))
            self.output.say(*(f"note: {one}" for one in found.index.lacking))
        return found

    def data(self, path: str | None = None, questions: str | None = None) -> tuple[Dataset, CorpusIndex]:
        """Return questions with the passages that they are asked of, and the index of these."""
        found = self.open(path)
        return questions_of(found, questions or self.questions), found.index

    @contextmanager
    def reader(self, spec: str | None, seconds: float = math.inf) -> Iterator[Any]:
        """Load the model that answers, and close it in the end; None without one.

        seconds: longest time of a request, where that is less than usual and the model's name has no other.
        """
        if spec is None:
            yield None
            return
        from mio_rag.generation import make_generator

        own = seconds >= _USUAL_SECONDS or not spec.startswith("openai:") or "timeout_seconds=" in spec
        made = make_generator(spec, **({} if own else {"timeout_seconds": seconds}))
        try:
            yield made
        finally:
            made.close()


def listed(text: str) -> list[str]:
    """Return the parts of a text with commas; the whole where something has that very name."""
    if Path(text).exists():
        return [text]
    return [part.strip() for part in text.split(",") if part.strip()]


def several(paths: Sequence[str], questions: str | None) -> list[tuple[str, str | None]]:
    """Return each source with its question set: one for all, one for each, or none."""
    asked: list[str | None] = [None] if questions is None else [*listed(questions)]
    asked = asked * len(paths) if len(asked) == 1 else asked
    if len(asked) != len(paths):
        raise InputError(f"{len(paths)} sources and {len(asked)} question sets: give one for each")
    return list(zip(paths, asked, strict=True))


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
    refuse(
        [
            f"--{name.replace('_', '-')} must be >= {least:g}, got {value:g}"
            for name, (value, least) in options.items()
            if value is not None and value < least
        ]
    )


def one_of(option: str, value: str | None, *known: str) -> None:
    """Raise `InputError` for a value that is none of these."""
    if value is not None and value not in known:
        raise InputError(f"{option} {value} is unknown: choose {', '.join(known[:-1])} or {known[-1]}")


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


@contextmanager
def _reported_if_slow(what: str) -> Iterator[None]:
    """Print on stderr what takes longer than a second; nothing where nobody watches a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield
        return

    def report() -> None:
        from mio_rag.cli.terminal import errors

        errors.print(f"{what} ...")

    timer = threading.Timer(1.0, report)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def progress(what: str, total: int) -> AbstractContextManager[Callable[..., None]]:
    """Show on stderr how far something has come."""
    from mio_rag.cli.terminal import progress_bar

    return progress_bar(what, total)


def questions_of(found: Opened, questions: str | None) -> Dataset:
    """Return the passages of an opened source with the questions of `questions`, by default its own."""
    from mio_rag.corpora.dataset import Dataset
    from mio_rag.corpora.load import load_questions, source_name

    if questions is None and found.kind not in ("set", "layout", "documents"):
        raise DataError(f"{found.source} has no questions: give them with --questions")
    data = questions or found.source
    passages, asked = tuple(found.index.passages), load_questions(data)
    is_store = found.kind == "store"
    return Dataset(source_name(data), passages, asked, left_out=found.left_out, unlisted=is_store)


def check_fits(selector: Selector, index: CorpusIndex) -> None:
    """Raise `InputError` for ids that are no passages, and for relevance of another embedder."""
    from mio_rag.relevance.model import RelevanceModel

    selector.check_ids(index.ids)
    model = selector.relevance_model
    if isinstance(model, RelevanceModel) and (misfit := model.misfit(index.embedder.fingerprint)):
        raise InputError(misfit)
