"""A table of outcomes: what every action did on every question, and what it cost.

Run every action once on every training question, and whatever chooses among actions can be trained, replayed
and compared exactly: against the best fixed action, the best mixture of fixed actions at the same cost, and
the oracle that knows each question's best action.

On disk it is Parquet, one row for a question and an action, with the measures of a ledger as columns.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mio_rag.errors import DataError, InputError, require
from mio_rag.learning.weights import json_text
from mio_rag.storage import append_lines, make_parent, parse_json, read_text, replaced, write_atomically
from mio_rag.types import Question

if TYPE_CHECKING:
    from mio_rag.generation import Generator
    from mio_rag.retrieval.index import CorpusIndex
    from mio_rag.session.budget import Replies
    from mio_rag.session.loop import Session
    from mio_rag.session.models import WorkflowSettings
    from mio_rag.session.trace import Outcome, Trace
    from mio_rag.session.workflow import Workflow

# -- tables -------------------------------------------------------------------------------------------------

FORMAT = "mio-rag-outcomes"
VERSION = 1

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]

_IDS = ("question_id", "action")
_TEXTS = ("question", "set")


@dataclass(frozen=True, eq=False)
class Outcomes:
    """What each of m actions did on each of n questions.

    ids: length n; of the questions, all different.
    actions: length m; in the order in which they are to be listed, all different.
    values: shape (n, m); name of a measure -> its values; nan where a measure is undefined. At least one.
    questions: length n; their texts.
    sets: length n; the data set that each question comes from.
    provenance: where the table comes from: data, index, model, seed, versions. Plain data.

    Raises `InputError` with everything that does not fit together.
    """

    ids: tuple[str, ...]
    actions: tuple[str, ...]
    values: Mapping[str, FloatArray]
    questions: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shape = (len(self.ids), len(self.actions))
        problems = [
            f"{name} holds '{twice}' more than once: each is one row or column"
            for name, entries in (("ids", self.ids), ("actions", self.actions))
            for twice in [entry for entry, times in Counter(entries).items() if times > 1][:1]
        ]
        if 0 in shape:
            problems.append(f"there are {shape[0]} questions and {shape[1]} actions: at least one of each")
        if not self.values:
            problems.append("there is no measure: give at least one, for instance {'token_f1': array}")
        kept = {}
        for name, given in self.values.items():
            array = np.array(given, dtype=np.float64)
            if array.shape != shape:
                problems.append(f"'{name}' has shape {array.shape}: {shape} is questions by actions")
            elif np.isinf(array).any():
                row, column = np.argwhere(np.isinf(array))[0]
                problems.append(
                    f"'{name}' is infinite for '{self.ids[row]}', {self.actions[column]}: measures are "
                    "finite, nan is undefined"
                )
            array.setflags(write=False)
            kept[name] = array
        problems += [
            f"{name} has {len(entries)} entries for {shape[0]} questions"
            for name, entries in (("questions", self.questions), ("sets", self.sets))
            if entries and len(entries) != shape[0]
        ]
        try:
            json_text(dict(self.provenance))
        except (TypeError, ValueError) as error:
            problems.append(f"provenance must be plain finite data: {error}")
        if problems:
            raise InputError(problems)
        object.__setattr__(self, "values", kept)

    @classmethod
    def from_rows(
        cls,
        rows: Iterable[Mapping[str, Any]],
        measures: Sequence[str],
        *,
        action: str = "action",
        actions: Sequence[str] | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> Outcomes:
        """The table of rows such as a ledger's: one for each question and action.

        rows: with question_id, the column `action`, and the measures; question and set where they are known.
        measures: columns to keep. A measure that a row lacks is nan there; a failed row's quality is in the
            row.
        action: column that names the action; in a ledger "method".
        actions: the actions, in their order; others are left out. By default all, as they first occur.

        Raises `DataError` if an action is missing for a question, twice there, or a column is missing in
        every row.
        """
        rows = list(rows)
        problems = [
            f"column '{name}' is missing: there are {', '.join(sorted({c for row in rows for c in row}))}"
            for name in ("question_id", action, *measures)
            if not any(name in row for row in rows)
        ]
        if problems:
            raise DataError(problems if rows else "there are no rows: run every action on every question")
        order = list(dict.fromkeys(actions or (str(row[action]) for row in rows)))
        cells: dict[tuple[str, str], Mapping[str, Any]] = {}
        twice = []
        for row in rows:
            cell = (str(row["question_id"]), str(row[action]))
            if cell[1] not in order:
                continue
            if cell in cells:
                twice.append(f"question '{cell[0]}' has action '{cell[1]}' twice")
            cells[cell] = row
        ids = list(dict.fromkeys(question for question, _ in cells))
        missing = [(q, a) for q in ids for a in order if (q, a) not in cells]
        if missing or twice or not ids:
            raise DataError(_gaps(missing, twice, order, len(ids)))
        first = [cells[q, order[0]] for q in ids]
        return cls(
            tuple(ids),
            tuple(order),
            {m: np.array([[_number(cells[q, a], m) for a in order] for q in ids]) for m in measures},
            tuple(str(row["question"]) for row in first) if "question" in first[0] else (),
            tuple(str(row["set"]) for row in first) if first[0].get("set") is not None else (),
            dict(provenance or {}),
        )

    def __len__(self) -> int:
        return len(self.ids)

    def of(self, measure: str) -> FloatArray:
        """A measure's values, shape (n, m).

        Raises `InputError` if it is not in the table, or is undefined somewhere.
        """
        if measure not in self.values:
            raise InputError(f"measure '{measure}' is not in the table: it holds {', '.join(self.values)}")
        found = self.values[measure]
        if np.isnan(found).any():
            rows, columns = np.nonzero(np.isnan(found))
            raise InputError(
                f"measure '{measure}' is undefined in {len(rows)} of {found.size} cells, for instance for "
                f"'{self.ids[rows[0]]}', {self.actions[columns[0]]}: choose another measure, or leave those "
                "questions out with `where`"
            )
        return found

    def where(self, kept: ArrayLike) -> Outcomes:
        """The table of some questions: a mask of length n, or their places in the order wanted."""
        places = np.arange(len(self))[np.asarray(kept)]
        return Outcomes(
            tuple(self.ids[i] for i in places),
            self.actions,
            {name: array[places] for name, array in self.values.items()},
            tuple(self.questions[i] for i in places) if self.questions else (),
            tuple(self.sets[i] for i in places) if self.sets else (),
            self.provenance,
        )

    def cost(self, prices: Mapping[str, float]) -> FloatArray:
        """What each action cost on each question, in units of quality, shape (n, m).

        prices: name of a measure, for instance "prompt_tokens" -> what one unit of it must be worth, >= 0.
        """
        total = np.zeros((len(self.ids), len(self.actions)))
        for name, price in prices.items():
            if not 0 <= price < math.inf:
                raise InputError(f"price of '{name}' is {price!r}: it must be finite and >= 0")
            if price:
                total += price * self.of(name)
        return total

    def mean(self, measure: str, choice: ArrayLike) -> float:
        """Return the mean of a measure over the questions under a choice.

        choice: places of actions, shape (n,), or their probabilities, shape (n, m), rows summing to 1.
        """
        given = np.asarray(choice)
        found = self.of(measure)
        if given.ndim == 1 and given.shape[0] == len(self.ids) and np.issubdtype(given.dtype, np.integer):
            if given.size and not (given.min() >= 0 and given.max() < len(self.actions)):
                raise InputError(f"choice holds a place outside 0..{len(self.actions) - 1}")
            return float(found[np.arange(len(self.ids)), given].mean())
        if given.shape == found.shape and (given >= 0).all() and np.allclose(given.sum(axis=1), 1):
            return float((found * given).sum(axis=1).mean())
        raise InputError(
            f"choice has shape {given.shape}: give one place of an action for each of {len(self.ids)} "
            f"questions, or probabilities of shape {found.shape} whose rows sum to 1"
        )

    def oracle(self, quality: str, prices: Mapping[str, float]) -> IntArray:
        """Return the place of each question's action of most quality less cost: an upper bound."""
        return np.asarray(np.argmax(self.of(quality) - self.cost(prices), axis=1), dtype=np.intp)

    def fixed_at(self, quality: str, cost: str, spent: float) -> float:
        """Mean quality of the best mixture of fixed actions whose mean cost is at most `spent`.

        The strongest policy that looks at no question: draw one of two actions with fixed probabilities. It
        is the upper concave envelope of the actions' means; a policy is worth its place if it lies above.

        Returns nan where `spent` is below the cheapest action's mean cost.
        """
        means = [self.of(name).mean(axis=0)[None] for name in (quality, cost)]
        if spent < means[1].min():
            return math.nan
        return float(mixtures(means[0], means[1], np.array([spent], dtype=np.float64))[0])

    def write(self, path: Path) -> None:
        """Write it as Parquet, whole or not at all.

        Raises `InputError` if it cannot be written.
        """
        arrow: Any = require("pyarrow", "evaluation", "tables of outcomes")
        parquet: Any = require("pyarrow.parquet", "evaluation", "tables of outcomes")
        n, m = len(self.ids), len(self.actions)
        columns: dict[str, Any] = {
            "question_id": [question for question in self.ids for _ in range(m)],
            "action": list(self.actions) * n,
        }
        for name, texts in zip(_TEXTS, (self.questions, self.sets), strict=True):
            if texts:
                columns[name] = [text for text in texts for _ in range(m)]
        columns |= {name: arrow.array(v.ravel(), from_pandas=True) for name, v in self.values.items()}
        about = {"format": FORMAT, "version": VERSION, "provenance": dict(self.provenance)}
        table = arrow.table(columns).replace_schema_metadata({FORMAT: json_text(about)})
        make_parent(path)
        with replaced(path) as partial:
            parquet.write_table(table, partial)


def mixtures(quality: FloatArray, cost: FloatArray, spent: FloatArray) -> FloatArray:
    """As `Outcomes.fixed_at`, for many tables at once; below the cheapest action the cheapest.

    The best mixture is one of two actions: all pairs are tried.

    quality, cost: shape (k, m); means of every action.
    spent: shape (k,).

    Returns array, shape (k,).
    """
    spent = np.maximum(spent, cost.min(axis=1))
    best = np.full(len(spent), -np.inf)
    for one in range(cost.shape[1]):
        here = cost[:, one] <= spent
        for other in range(cost.shape[1]):
            more = cost[:, other] - cost[:, one]
            share = np.zeros(len(spent))
            np.divide(spent - cost[:, one], more, out=share, where=more > 0)
            share = np.clip(share, 0, 1)
            found = (1 - share) * quality[:, one] + share * quality[:, other]
            best = np.where(here, np.maximum(best, found), best)
    return best


def read_outcomes(path: str | Path) -> Outcomes:
    """Read what `Outcomes.write` wrote.

    Raises `DataError` if there is no such file, it is no table of outcomes, of another version, or has
    missing or repeated cells.
    """
    arrow: Any = require("pyarrow", "evaluation", "tables of outcomes")
    parquet: Any = require("pyarrow.parquet", "evaluation", "tables of outcomes")
    if not Path(path).is_file():
        raise DataError(f"'{path}' does not exist: give a table of outcomes")
    try:
        table = parquet.read_table(path)
        about = parse_json(
            (table.schema.metadata or {}).get(FORMAT.encode(), b"null"), f"'{path}'", DataError
        )
    except DataError:
        raise
    except (OSError, ValueError, arrow.ArrowException) as error:
        raise DataError(f"'{path}' cannot be read as Parquet: {error}") from error
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise DataError(f"'{path}' is not a table of outcomes: it lacks the mark '{FORMAT}'")
    if about.get("version") != VERSION:
        raise DataError(f"'{path}' has version {about.get('version')!r}: this release reads {VERSION}")
    measures = [name for name in table.column_names if name not in (*_IDS, *_TEXTS)]
    try:
        return Outcomes.from_rows(table.to_pylist(), measures, provenance=about.get("provenance"))
    except InputError as error:
        raise DataError([f"'{path}': {problem}" for problem in error.problems]) from error


def _number(row: Mapping[str, Any], measure: str) -> float:
    value = row.get(measure)
    try:
        return math.nan if value is None else float(value)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"'{measure}' of question '{row['question_id']}' must be a number, got {value!r:.40}"
        ) from error


def _gaps(
    missing: Sequence[tuple[str, str]], twice: Sequence[str], actions: Sequence[str], questions: int
) -> list[str]:
    problems = list(twice[:3])
    if len(twice) > 3:
        problems.append(f"{len(twice) - 3} more cells are there twice")
    if missing:
        few = "; ".join(f"'{question}' lacks {action}" for question, action in missing[:3])
        problems.append(
            f"{len(missing)} of {questions * len(actions)} cells are missing ({few}): run every action on "
            "every question, or name the actions to keep"
        )
    return problems or ["no row has one of the actions " + ", ".join(actions)]


# -- collection ---------------------------------------------------------------------------------------------

#: Columns of the table of outcomes.
MEASURES = (
    "token_f1",
    "exact_match",
    "evidence",
    "tokens",
    "prompt_tokens",
    "completion_tokens",
    "lm_calls",
    "retrieval_calls",
    "seconds",
    "dollars",
    "dropped",
    "failed",
)
_NEEDED = ("question_id", "set", "question", "action", "steps")
_ROWS, _ABOUT, _TABLE = "rows.jsonl", "settings.json", "outcomes.parquet"


@dataclass(frozen=True, eq=False)
class Source:
    """A question set, with what its workflows run with.

    session: (name, workflow) -> a session that follows it.
    settings: with the prices of models.
    data_sha256: of questions and index, so that rows of different ones never mix.
    """

    name: str
    questions: Sequence[Question]
    session: Callable[[str, Workflow], Session]
    settings: WorkflowSettings
    data_sha256: str = ""


def collect_outcomes(
    folder: Path,
    sources: Sequence[Source],
    workflows: Sequence[Workflow],
    generator: Generator,
    *,
    budget_tokens: int = 256,
    progress: Callable[[str, int, int], None] | None = None,
) -> Outcomes:
    """Answer every question by every workflow, and write the table; what is finished already is kept.

    folder: takes rows.jsonl, settings.json and outcomes.parquet.
    progress: called with a question's id, how many are finished, and of how many.

    Raises `InputError` if the folder holds rows of another run: other workflows, model, budget or data.
    """
    from mio_rag.generation.protocol import content_of

    about: dict[str, Any] = {
        "workflows": {workflow.name: workflow.sha256 for workflow in workflows},
        "generator": content_of(generator),
        "budget_tokens": int(budget_tokens),
        "sources": {source.name: source.data_sha256 for source in sources},
        "settings": json.loads(json.dumps([source.settings.to_dict() for source in sources[:1]])),
    }
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / _ABOUT).exists():
        write_atomically(folder / _ABOUT, json.dumps(about, indent=1))
    elif changed := [key for key, value in about.items() if _about(folder).get(key) != value]:
        raise InputError(
            f"'{folder}' holds outcomes of another {', '.join(changed)}: rows of different runs cannot be "
            "mixed; choose another folder"
        )
    rows = read_rows(folder) if (folder / _ROWS).exists() else []
    done = {(row["question_id"], row["action"]) for row in rows}
    in_turns = zip_longest(*([(source, question) for question in source.questions] for source in sources))
    asked = [pair for turn in in_turns for pair in turn if pair is not None]
    for place, (source, question) in enumerate(asked, 1):
        name, lines = f"{source.name}:{question.id}", []
        replies: Replies = {}
        # A write that was cut off may have left some rows of a question.
        for workflow in [w for w in workflows if (name, w.name) not in done]:
            session = source.session(f"workflow:{workflow.name}", workflow)
            # What several workflows have in common is asked once, and charged to each.
            found = session.attempt(question, generator, budget_tokens, replies)
            lines.append(json.dumps(_row(name, source, question, workflow, found)))
        if lines:
            append_lines(folder / _ROWS, lines)
        if progress is not None:
            progress(name, place, len(asked))
    table = table_of(read_rows(folder), tuple(w.name for w in workflows), about)
    table.write(folder / _TABLE)
    return table


def _about(folder: Path) -> dict[str, Any]:
    path = folder / _ABOUT
    found = parse_json(read_text(path), str(path))
    if not isinstance(found, dict) or not isinstance(found.get("workflows"), dict):
        raise DataError(f"'{path}' is damaged: choose another folder")
    return found


def _row(name: str, source: Source, question: Question, workflow: Workflow, found: Outcome) -> dict[str, Any]:
    from mio_rag.measures import answer_measures, failed_measures
    from mio_rag.session.models import dollars

    trace, total = found.trace, found.costs.total()
    if found.error is None:
        right = answer_measures(question, trace.answer, trace.choice)
    else:
        right = dict(failed_measures(question, selection=False, answer=True))
    f1, gold = right.get("token_f1"), set(question.gold_ids)
    read = gold & {i for step in trace.steps for i in step.selected_ids}  # by any step
    return {
        "question_id": name,
        "set": source.name,
        "question": question.text,
        "action": workflow.name,
        "token_f1": right.get("accuracy") if f1 is None else f1,
        "exact_match": right.get("accuracy") if f1 is None else right.get("exact_match"),
        "evidence": len(read) / len(gold) if gold else None,
        "tokens": total.prompt_tokens + total.completion_tokens,
        "prompt_tokens": total.prompt_tokens,
        "completion_tokens": total.completion_tokens,
        "lm_calls": total.lm_calls,
        "retrieval_calls": total.retrieval_calls,
        "seconds": total.seconds,
        "dollars": dollars(trace.steps, source.settings),
        "dropped": len(trace.dropped),
        "failed": int(found.error is not None),
        "answer": trace.answer,
        "error": trace.error,
        "fallback": trace.fallback,
        "steps": _top_steps(workflow, trace, source.settings),
    }


def _top_steps(workflow: Workflow, trace: Trace, settings: WorkflowSettings) -> list[dict[str, Any]]:
    """The workflow's own nodes, each with what it cost with everything inside it."""
    from mio_rag.session.models import dollars

    costs = trace.by_step()
    steps = {step.id: step for step in trace.steps}
    found = []
    for node, signature in zip(workflow.nodes, workflow.signatures(), strict=True):
        if (step := steps.get(node.id)) is None:
            continue
        spent = costs[node.id]
        found.append(
            {
                "node": node.id,
                "do": node.do,
                "signature": signature,
                "tokens": spent.prompt_tokens + spent.completion_tokens,
                "dollars": dollars(
                    [s for s in trace.steps if f"{s.id}/".startswith(f"{node.id}/")], settings
                ),
                "retrieval_calls": spent.retrieval_calls,
                "seconds": spent.seconds,
                "signals": step.signals,
                "dropped": step.dropped,
                "gave": step.output,
            }
        )
    return found


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of a folder that `collect_outcomes` wrote; a line cut short by a kill is passed over.

    Raises `InputError` if there are none.
    """
    path = folder / _ROWS
    rows: list[dict[str, Any]] = []
    lines = read_text(path).splitlines()
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            if number < len(lines):
                raise DataError(f"'{path}', line {number} is damaged: {error}") from error
            break
        lacking = [name for name in _NEEDED if not isinstance(row, dict) or name not in row]
        if lacking or not isinstance(row["steps"], list):
            raise DataError(f"'{path}', line {number} is damaged: it lacks {', '.join(lacking) or 'steps'}")
        rows.append(row)
    return rows


def read_collected(folder: Path) -> tuple[Outcomes, list[dict[str, Any]]]:
    """The table of a folder, also of a run that is not finished, and its rows.

    Raises `InputError` if the folder holds none, or no question that every workflow has answered.
    """
    path = folder / _ABOUT
    if not path.is_file():
        raise InputError(f"'{folder}' holds no outcomes: run `mio-rag policy fit planner`")
    about = _about(folder)
    rows = read_rows(folder)
    outcomes = table_of(rows, tuple(about["workflows"]), about)
    kept = set(outcomes.ids)
    return outcomes, [row for row in rows if row["question_id"] in kept]


def table_of(
    rows: Sequence[Mapping[str, Any]], workflows: Sequence[str], about: Mapping[str, Any]
) -> Outcomes:
    """The table of rows; questions that not every workflow has answered are left out."""
    seen: dict[str, set[str]] = {}
    for row in rows:
        seen.setdefault(row["question_id"], set()).add(row["action"])
    whole = [row for row in rows if seen[row["question_id"]] >= set(workflows)]
    measures = [m for m in MEASURES if any(row.get(m) is not None for row in whole)]
    provenance = {**about, "rows_sha256": sha256(json.dumps(whole).encode()).hexdigest()}
    return Outcomes.from_rows(whole, measures, actions=list(workflows), provenance=provenance)


def shuffled(
    questions: Sequence[Question], limit: int | None, seed: int, skip: int = 0
) -> tuple[Question, ...]:
    """So many questions, drawn by seed; a smaller number is the beginning of a larger one.

    skip: questions that are passed over first: those of an earlier draw of so many by the same seed.
    """
    order = np.random.default_rng(seed).permutation(len(questions))[skip:]
    return tuple(questions[i] for i in order[:limit])


def data_hash(index: CorpusIndex, questions: Sequence[Question]) -> str:
    """Of what rows depend on: all of the index that decides, and all questions with what is right."""
    digest = sha256(index.digest().encode())
    for q in questions:
        labels = [q.answers, q.gold_ids, q.gold_sources, q.choices, q.type]
        digest.update(json.dumps([q.id, q.text, *labels]).encode() + b"\0")
    return digest.hexdigest()
