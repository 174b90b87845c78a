"""Options that several commands share, each declared once, and what a command does with them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from mio_rag.cli.output import Output, open_output
from mio_rag.defaults import DEFAULTS
from mio_rag.errors import InputError, collect

if TYPE_CHECKING:
    from mio_rag.cli.chosen import Chosen
    from mio_rag.corpora.dataset import Dataset
    from mio_rag.generation import Generator
    from mio_rag.retrieval.index import CorpusIndex
    from mio_rag.selection.selector import Selector
    from mio_rag.sources import Opened


def opt(text: str, *flags: str, **more: Any) -> Any:
    """Return an option that is named like its parameter, or by its flags, and explained by a text."""
    return typer.Option(*flags, help=text, **more)


def arg(text: str, metavar: str | None = None) -> Any:
    """Return an argument that is explained by a text."""
    return typer.Argument(metavar=metavar, help=text, show_default=False)


_NEEDED = inspect.Parameter.empty
Shared = tuple[Any, Any]


def _opt(kind: Any, default: Any, text: str, *flags: str, **more: Any) -> Shared:
    return Annotated[kind, opt(text, *flags, **more)], default


def _arg(kind: Any, text: str, metavar: str) -> Shared:
    return Annotated[kind, arg(text, metavar)], _NEEDED


Texts = list[str] | None
#: Shared options by name: type, help and default. These stand before the options of a command itself;
_FIRST: dict[str, Shared] = {
    "path": _arg(str, "Folder or file of documents, an index, JSONL of passages, or a question set.", "PATH"),
    "paths": _arg(list[str], "As in select; each with questions. Or tables of an earlier run.", "PATH..."),
    "question": _arg(str, "What is asked.", "QUESTION"),
    "out": _opt(Path, _NEEDED, "File for what is learned.", "--out"),
    "folder": _opt(Path, _NEEDED, "Folder of the output; an interrupted run resumes there.", "--out"),
    "questions": _opt(
        str | None, None, "Question set or CSV file if PATH has none; several with commas.", "--questions",
        metavar="DATA",
    ),
    "budget": _opt(
        int | None, None, f"Largest context, in tokens. [default: {DEFAULTS.budget}]", "--budget", "-b"
    ),
    "where": _opt(
        Texts, None, "Only matching documents: 'source=travel*', 'date>=2026-01-01', 'tenant=a'. Repeatable.",
        "--where", "-w", metavar="EXPR",
    ),
    "units": _opt(str | None, None, "auto, passages or sentences. [default: auto]", "--units"),
    "model": _opt(
        str | None, None, "openai:NAME[@URL], gguf:FILE, hf:ID, or extract, which quotes a span. "
        "[default: $MIO_RAG_MODEL, else extract]", "--model",
    ),
    "answer": _opt(
        int | None, None, f"Longest answer, in tokens. [default: {DEFAULTS.answer}]", "--answer"
    ),
}  # fmt: skip
#: and these behind.
_LAST: dict[str, Shared] = {
    "plugin": _opt(
        list[Path] | None, None, "Python file that registers methods or measures. Repeatable.", "--plugin",
        metavar="FILE",
    ),
    "policy": _opt(
        str, DEFAULTS.policy, "A policy file, a preset, or a name of `mio-rag policy list`.", "--policy"
    ),
    "set": _opt(
        Texts, None, "Change one setting of the policy. Repeatable.", "--set", metavar="KEY=VALUE"
    ),
    "embedder": _opt(
        str, DEFAULTS.embedder, "For what is not indexed yet: minilm, tfidf, or a model's id or folder.",
        "--embedder",
    ),
    "engine": _opt(str, "local", "local, or ray.", "--engine"),
    "workers": _opt(int, 1, "Worker processes. 0: one per core.", "--workers"),
    "column": _opt(Texts, None, "OURS=THEIRS: a column has another name. Repeatable.", "--column"),
    "shard_rows": _opt(int, 5000, "Maximum rows of an output file.", "--shard-rows"),
    "limit": _opt(int | None, None, "Only the first N questions.", "--limit"),
    "seed": _opt(int, 0, "Seed of whatever is drawn.", "--seed"),
    "why": _opt(bool, False, "Explain what was selected and what was left out.", "--why"),
    "proof": _opt(bool, False, "Print the certificate.", "--proof"),
    "no_refresh": _opt(bool, False, "Use the stored index, even if documents changed.", "--no-refresh"),
    "mapped": _opt(bool, False, "Leave the index on disk: less memory, slower searches.", "--mapped"),
    "resume": _opt(bool, False, "Continue an interrupted run.", "--resume"),
    "json": _opt(bool, False, "Print one JSON object on stdout and nothing else there.", "--json"),
}  # fmt: skip


def command(
    names: str, *, app: typer.Typer | None = None, name: str | None = None, **defaults: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function: it gets a `Call` with the shared options, then its own.

    names: of shared options, parted by blanks.
    app: group of commands that it belongs to, under `name`.
    defaults: of shared options, where this command has others.
    """
    wanted = set(names.split())

    def made(function: Callable[..., None]) -> Callable[..., None]:
        own = dict(list(inspect.signature(function).parameters.items())[1:])
        hints = get_type_hints(function, include_extras=True)
        shared = {
            key: (kind, defaults.get(key, default))
            for table in (_FIRST, _LAST)
            for key, (kind, default) in table.items()
            if key in wanted
        }
        assert wanted == set(shared), wanted - set(shared)
        mine = {key: (hints[key], one.default) for key, one in own.items()}
        first = {key: value for key, value in shared.items() if key in _FIRST}
        every = {**first, **mine, **shared}

        def run(**given: Any) -> None:
            every_one = {key: given.get(key, default) for key, (_, default) in every.items()}
            call = Call({key: every_one.pop(key) for key in shared})
            function(call, **every_one)

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


class Call:
    """A call of a command: its shared options, where its result goes, and what it works on."""

    path: str
    paths: list[str]
    question: str
    out: Path
    folder: Path
    questions: str | None
    budget: int | None
    where: list[str] | None
    units: str | None
    model: str | None
    answer: int | None
    policy: str
    plugin: list[Path] | None
    set: list[str] | None
    embedder: str
    engine: Any
    workers: int
    column: list[str] | None
    shard_rows: int
    limit: int | None
    seed: int
    why: bool
    proof: bool
    no_refresh: bool
    mapped: bool
    resume: bool
    json: bool

    def __init__(self, given: Mapping[str, Any]) -> None:
        usual = {key: None if one is _NEEDED else one for key, (_, one) in {**_FIRST, **_LAST}.items()}
        self.__dict__.update({**usual, **given})
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
        from mio_rag.cli.terminal import said_if_slow
        from mio_rag.formulations.numbers import plural
        from mio_rag.sources import Building, kind_of, open_source

        path, how = path or self.path, Building(self.embedder, **building)
        stored = kind_of(path) == "index" and how == Building()
        with said_if_slow("loading the index and its embedder"):
            found = open_source(
                path, None if stored else how, refresh=not self.no_refresh, mapped=self.mapped,
                progress=progress,
            )  # fmt: skip
        if found.built:
            files = f"{len(found.files)} files, " if len(found.files) > 1 else ""
            self.output.say(
                f"Indexed {path}: {files}{plural(len(found.index), 'passage')}, {found.seconds:.1f} s",
                *(f"not read  {one.path}: {one.reason}" for one in found.left_out[:5]),
            )
            if len(found.left_out) > 5:
                self.output.say(f"not read  {len(found.left_out) - 5} more: mio-rag index {path} lists them")
        self.output.say(*(f"note: {note}" for note in found.notes))
        return replace(found, loaded=found.index.only(self.where)) if self.where else found

    def data(self, path: str | None = None, questions: str | None = None) -> tuple[Dataset, CorpusIndex]:
        """Return questions with the passages that they are asked of, and the index of these."""
        found = self.open(path)
        return questions_of(found, questions or self.questions), found.index

    @contextmanager
    def reader(self, spec: str | None) -> Iterator[Any]:
        """Load the model that answers, and close it in the end; None without one."""
        if spec is None:
            yield None
            return
        from mio_rag.generation import make_generator

        made: Generator = make_generator(spec)
        try:
            yield made
        finally:
            made.close()


def reader_spec(model: str | None) -> str:
    """Return a model as `make_generator` takes it; see `mio_rag.generation.reader_spec`."""
    from mio_rag.generation import reader_spec

    return reader_spec(model)


def check_model(spec: str) -> None:
    """Raise `InputError` for a model that cannot be loaded."""
    from mio_rag.generation import check_generator

    check_generator(spec)


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
    problems = [
        f"--{name.replace('_', '-')} must be >= {least:g}, got {value:g}"
        for name, (value, least) in options.items()
        if value is not None and value < least
    ]
    if problems:
        raise InputError(problems)


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


def progress(what: str, total: int) -> AbstractContextManager[Callable[..., None]]:
    """Show on stderr how far something has come."""
    from mio_rag.cli.terminal import progress_bar

    return progress_bar(what, total)


def questions_of(found: Opened, questions: str | None) -> Dataset:
    """Return the passages of an opened source with the questions of `questions`, by default its own."""
    from mio_rag.corpora.dataset import Dataset
    from mio_rag.corpora.load import load_questions, source_name
    from mio_rag.errors import DataError

    if questions is None and found.kind not in ("set", "layout", "documents"):
        raise DataError(f"{found.source} has no questions: give them with --questions")
    data = questions or found.source
    passages, asked = tuple(found.index.passages), load_questions(data)
    is_store = found.kind == "store"
    return Dataset(source_name(data), passages, asked, left_out=found.left_out, unlisted=is_store)


def check_fits(selector: Selector, index: CorpusIndex) -> None:
    """Raise `InputError` for ids that are no passages, and for relevance of another embedder."""
    from mio_rag.relevance.model import RelevanceModel
    from mio_rag.selection.selector import check_ids

    check_ids(selector, index.ids)
    model = selector.relevance_model
    if isinstance(model, RelevanceModel) and (misfit := model.misfit(index.embedder.fingerprint)):
        raise InputError(misfit)
