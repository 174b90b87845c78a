"""A table of outcomes: what every action did on every question, and what it cost.

With every action run once on every training question, whatever chooses among actions can be trained, replayed
and compared exactly: with the fixed actions, their best mixture at the same cost, and the oracle.

On disk it is Parquet, one row for a question and an action, with the measures of a ledger as columns.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mio_rag.errors import DataError, InputError, require
from mio_rag.learning.weights import json_text
from mio_rag.measures import answer_measures, failed_measures
from mio_rag.session.workflow import dollars
from mio_rag.storage import (
    append_lines,
    make_parent,
    parse_json,
    read_json,
    read_text,
    replaced,
    write_atomically,
)
from mio_rag.types import Question

if TYPE_CHECKING:
    from mio_rag.generation import Generator
    from mio_rag.retrieval.index import CorpusIndex
    from mio_rag.session.budget import Replies
    from mio_rag.session.loop import Session
    from mio_rag.session.trace import Outcome, Trace
    from mio_rag.session.workflow import Workflow, WorkflowSettings

# -- tables -------------------------------------------------------------------------------------------------

FORMAT = "mio-rag-outcomes"
VERSION = 1

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]

_NAMES = ("question_id", "action", "question", "set")
_CELLS = 500_000  # of an array of draws by questions


@dataclass(frozen=True, eq=False)
class Outcomes:
    """What each of m actions did on each of n questions.

    ids: length n; of the questions, all different.
    actions: length m; in the order in which they are to be listed.
    values: shape (n, m); name of a measure -> its values; nan where a measure is undefined.
    questions: length n; their texts.
    sets: length n; the data set that each question comes from.
    provenance: origin of the table: data, index, model, seed, versions. Plain data.
    arrays: shapes (n, d); what is seen of each question before anything is done.

    Raises `InputError` for an id that is given twice, or values of another shape.
    """

    ids: tuple[str, ...]
    actions: tuple[str, ...]
    values: Mapping[str, FloatArray]
    questions: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shape = (len(self.ids), len(self.actions))
        problems = [
            f"'{name}' has shape {array.shape}: {shape} is questions by actions"
            for name, array in self.values.items()
            if array.shape != shape
        ]
        if twice := next((entry for entry, times in Counter(self.ids).items() if times > 1), None):
            problems.append(f"ids holds '{twice}' more than once: each is one row")
        if problems:
            raise InputError(problems)

    @classmethod
    def from_rows(
        cls,
        rows: Iterable[Mapping[str, Any]],
        measures: Sequence[str],
        *,
        actions: Sequence[str] | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> Outcomes:
        """Return the table of rows such as a ledger's: one for each question and action.

        rows: with question_id, action and the measures; question and set where they are known.
        measures: columns to keep. A measure that a row lacks is nan there.
        actions: in their order; others are left out. By default all, as they first occur.

        Raises `DataError` if there are no rows, an action is missing for a question, or is twice there.
        """
        rows = list(rows)
        order = list(dict.fromkeys(actions or (str(row["action"]) for row in rows)))
        cells: dict[tuple[str, str], Mapping[str, Any]] = {}
        problems = []
        for row in rows:
            cell = str(row["question_id"]), str(row["action"])
            if cell in cells:
                problems.append(f"question '{cell[0]}' has action '{cell[1]}' twice")
            if cell[1] in order:
                cells[cell] = row
        ids = list(dict.fromkeys(question for question, _ in cells))
        if missing := [f"'{q}' lacks {a}" for q in ids for a in order if (q, a) not in cells]:
            problems.append(
                f"{len(missing)} of {len(ids) * len(order)} cells are missing ({'; '.join(missing[:3])}): "
                "run every action on every question, or name the actions to keep"
            )
        if not ids:
            problems.append("there are no rows: run every action on every question")
        if problems:
            raise DataError(problems[:3])
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
        """Return a measure's values, shape (n, m).

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
                "questions out"
            )
        return found

    def where(self, kept: ArrayLike) -> Outcomes:
        """Return the table of some questions: a mask of length n, or their places in the order wanted."""
        places = np.arange(len(self))[np.asarray(kept)]
        texts = (self.ids, self.questions, self.sets)
        ids, questions, sets = (tuple(each[i] for i in places) if each else () for each in texts)
        values, arrays = ({k: a[places] for k, a in each.items()} for each in (self.values, self.arrays))
        return Outcomes(ids, self.actions, values, questions, sets, self.provenance, arrays)

    def mean(self, measure: str, choice: IntArray) -> float:
        """Return the mean of a measure over the questions, by the place of an action for each, shape (n,)."""
        return float(self.of(measure)[np.arange(len(self.ids)), choice].mean())

    def write(self, path: Path) -> None:
        """Write it as Parquet, whole or not at all; `InputError` if it cannot be written."""
        arrow: Any = require("pyarrow", "evaluation", "tables of outcomes")
        parquet: Any = require("pyarrow.parquet", "evaluation", "tables of outcomes")
        m, texts = len(self.actions), {"question_id": self.ids, "question": self.questions, "set": self.sets}
        columns: dict[str, Any] = {
            name: [text for text in each for _ in range(m)] for name, each in texts.items() if each
        }
        columns |= {"action": list(self.actions) * len(self.ids)}
        columns |= {name: arrow.array(v.ravel(), from_pandas=True) for name, v in self.values.items()}
        for name, array in self.arrays.items():
            flat = np.repeat(array, m, axis=0).ravel()
            columns[name] = arrow.FixedSizeListArray.from_arrays(flat, array.shape[1])
        about = {"format": FORMAT, "version": VERSION, "provenance": dict(self.provenance)}
        table = arrow.table(columns).replace_schema_metadata({FORMAT: json_text(about)})
        make_parent(path)
        with replaced(path) as partial:
            parquet.write_table(table, partial)


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
    except (OSError, ValueError, arrow.ArrowException) as error:
        raise DataError(f"'{path}' cannot be read as Parquet: {error}") from error
    about = parse_json((table.schema.metadata or {}).get(FORMAT.encode(), b"null"), f"'{path}'", DataError)
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise DataError(f"'{path}' is not a table of outcomes: it lacks the mark '{FORMAT}'")
    if about.get("version") != VERSION:
        raise DataError(f"'{path}' has version {about.get('version')!r}: this release reads {VERSION}")
    lists = [one.name for one in table.schema if arrow.types.is_fixed_size_list(one.type)]
    measures = [name for name in table.column_names if name not in (*_NAMES, *lists)]
    try:
        rows = table.drop_columns(lists).to_pylist()
        found = Outcomes.from_rows(rows, measures, provenance=about.get("provenance"))
    except InputError as error:
        raise DataError([f"'{path}': {problem}" for problem in error.problems]) from error
    first = {str(row["question_id"]): place for place, row in reversed(list(enumerate(rows)))}
    places = [first[name] for name in found.ids]
    flat = {name: table[name].combine_chunks().flatten().to_numpy() for name in lists}
    return replace(found, arrays={name: a.reshape(len(rows), -1)[places] for name, a in flat.items()})


def _number(row: Mapping[str, Any], measure: str) -> float:
    value = row.get(measure)
    try:
        return math.nan if value is None else float(value)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"'{measure}' of question '{row['question_id']}' must be a number, got {value!r:.40}"
        ) from error


# -- comparison with fixed actions --------------------------------------------------------------------------


def mixtures(quality: FloatArray, cost: FloatArray, spent: FloatArray) -> FloatArray:
    """Return the mean quality of the best mixture of fixed actions whose mean cost is at most `spent`.

    The strongest policy that looks at no question draws one of two actions with fixed probabilities: the
    upper concave envelope of the actions' means. All pairs are tried, for many tables at once. Below the cost
    of the cheapest action it is the cheapest.

    quality, cost: shape (k, m); means of every action.
    spent: shape (k,).

    Returns array, shape (k,).
    """
    spent = np.maximum(spent, cost.min(axis=1))[:, None, None]
    one, more = cost[:, :, None], cost[:, None, :] - cost[:, :, None]
    share = np.clip(np.divide(spent - one, more, out=np.zeros_like(more), where=more > 0), 0, 1)
    found = (1 - share) * quality[:, :, None] + share * quality[:, None, :]
    return np.asarray(np.where(one <= spent, found, -np.inf).max(axis=(1, 2)))


def gain_over_mixtures(
    quality: FloatArray, cost: FloatArray, chosen: IntArray, *, draws: int = 2000, seed: int = 0
) -> tuple[float, float, float]:
    """Return what a choice has above the best mixture of fixed actions at its cost, and the 95 % interval.

    The interval is a bootstrap over questions; each draw has a mixture of its own.

    quality, cost: shape (n, m).
    chosen: shape (n,); places of actions.
    """
    rows = np.arange(len(chosen))
    own = quality[rows, chosen], cost[rows, chosen]
    return gain_over_others(*own, quality, cost, draws=draws, seed=seed)


def gain_over_others(
    reached: FloatArray,
    spent: FloatArray,
    quality: FloatArray,
    cost: FloatArray,
    *,
    draws: int = 2000,
    seed: int = 0,
) -> tuple[float, float, float]:
    """Return what is reached at a cost, shapes (n,), above the best mixture of others; as above."""
    n = len(reached)

    def gains(weights: FloatArray) -> FloatArray:
        return weights @ reached - mixtures(weights @ quality, weights @ cost, weights @ spent)

    rng, drawn, at_once = np.random.default_rng(seed), [], max(1, _CELLS // n)
    for start in range(0, draws, at_once):
        k = min(at_once, draws - start)
        cells = (rng.integers(n, size=(k, n)) + n * np.arange(k)[:, None]).ravel()
        drawn.append(gains(np.bincount(cells, minlength=k * n).reshape(k, n) / n))
    low, high = np.quantile(np.concatenate(drawn), [0.025, 0.975])
    return float(gains(np.full((1, n), 1 / n))[0]), float(low), float(high)


# -- collection ---------------------------------------------------------------------------------------------

#: Columns of the table of outcomes.
MEASURES = (
    "token_f1", "exact_match", "evidence", "tokens", "prompt_tokens", "completion_tokens", "lm_calls",
    "retrieval_calls", "seconds", "dollars", "dropped", "failed",
)  # fmt: skip
_NEEDED = {"question_id", "set", "question", "action", "steps"}
_SPENT = ("prompt_tokens", "completion_tokens", "lm_calls", "retrieval_calls", "seconds")
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
    known = read_json(folder / _ABOUT)
    if changed := [key for key, value in about.items() if known.get(key) != value]:
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
    table = _table_of(read_rows(folder), about)
    table.write(folder / _TABLE)
    return table


def _row(name: str, source: Source, question: Question, workflow: Workflow, found: Outcome) -> dict[str, Any]:
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
        **{name: getattr(total, name) for name in _SPENT},
        "dollars": dollars(trace.steps, source.settings),
        "dropped": len(trace.dropped),
        "failed": int(found.error is not None),
        **{name: getattr(trace, name) for name in ("answer", "error", "fallback")},
        "steps": list(_top_steps(workflow, trace, source.settings)),
    }


def _top_steps(workflow: Workflow, trace: Trace, settings: WorkflowSettings) -> Iterator[dict[str, Any]]:
    """The workflow's own nodes, each with what it cost with everything inside it."""
    costs, steps = trace.by_step(), {step.id: step for step in trace.steps}
    for node, signature in zip(workflow.nodes, workflow.signatures(), strict=True):
        if (step := steps.get(node.id)) is None:
            continue
        spent = costs[node.id]
        inside = [s for s in trace.steps if f"{s.id}/".startswith(f"{node.id}/")]
        yield {
            "node": node.id,
            "do": node.do,
            "signature": signature,
            "tokens": spent.prompt_tokens + spent.completion_tokens,
            "dollars": dollars(inside, settings),
            "retrieval_calls": spent.retrieval_calls,
            "seconds": spent.seconds,
            "signals": step.signals,
            "dropped": step.dropped,
            "gave": step.output,
        }


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a folder that `collect_outcomes` wrote; a line cut short by a kill is passed over.

    Raises `InputError` if there are none, `DataError` if one is damaged.
    """
    path = folder / _ROWS
    rows: list[dict[str, Any]] = []
    lines = read_text(path).splitlines()
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            row = None
            if number == len(lines):
                break
        if not isinstance(row, dict) or not row.keys() >= _NEEDED or not isinstance(row["steps"], list):
            raise DataError(f"'{path}', line {number} is damaged: remove it, and run the same command again")
        rows.append(row)
    return rows


def read_collected(folder: Path) -> tuple[Outcomes, list[dict[str, Any]]]:
    """Return the table of a folder, also of a run that is not finished, and its rows.

    Raises `InputError` if the folder holds none, or no question that every workflow has answered.
    """
    if not (folder / _ABOUT).is_file():
        raise InputError(f"'{folder}' holds no outcomes: run `mio-rag policy fit planner`")
    rows = read_rows(folder)
    outcomes = _table_of(rows, read_json(folder / _ABOUT))
    kept = set(outcomes.ids)
    return outcomes, [row for row in rows if row["question_id"] in kept]


def _table_of(rows: Sequence[Mapping[str, Any]], about: Mapping[str, Any]) -> Outcomes:
    """The table of rows; questions that not every workflow has answered are left out."""
    seen: dict[str, set[str]] = {}
    for row in rows:
        seen.setdefault(row["question_id"], set()).add(row["action"])
    whole = [row for row in rows if seen[row["question_id"]] >= set(about["workflows"])]
    measures = [m for m in MEASURES if any(row.get(m) is not None for row in whole)]
    provenance = {**about, "rows_sha256": sha256(json.dumps(whole).encode()).hexdigest()}
    return Outcomes.from_rows(whole, measures, actions=list(about["workflows"]), provenance=provenance)


def shuffled(
    questions: Sequence[Question], limit: int | None, seed: int, skip: int = 0
) -> tuple[Question, ...]:
    """Return so many questions, drawn by seed; a smaller number is the beginning of a larger one.

    skip: questions that are passed over first: those of an earlier draw of so many by the same seed.
    """
    order = np.random.default_rng(seed).permutation(len(questions))[skip:]
    return tuple(questions[i] for i in order[:limit])


def data_hash(index: CorpusIndex, questions: Sequence[Question]) -> str:
    """Hash what rows depend on: all of the index that decides, and all questions with what is right."""
    digest = sha256(index.digest().encode())
    for q in questions:
        labels = [q.answers, q.gold_ids, q.gold_sources, q.choices, q.type]
        digest.update(json.dumps([q.id, q.text, *labels]).encode() + b"\0")
    return digest.hexdigest()
