"""What is read of folders of documents: our default against plain rankings and other libraries' pipelines.

A set is a folder with ``files`` and ``questions.jsonl``: id, question, answers, evidence [{"text": ...}].
Lines with ``"answerable": false`` are left out. Coverage is the share of the evidence's words that stand in
what is read, in runs of four words (or characters, in scripts without spaces). All contenders have one
embedder and one token counter. Rankings cut the last text to fill the budget, which is in their favour.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.compare import Columns, Row, differences, interval, summarized
from benchmarks.peers import PEERS, Peer
from benchmarks.runner import Measured, figure, interval_text, note, numbers, text_table
from mio_rag.context import TokenCounter, render_passage
from mio_rag.corpora.load import load_dataset
from mio_rag.errors import InputError, require
from mio_rag.generation import build_prompt, make_generator
from mio_rag.measures import coverage
from mio_rag.measures.answers import normalize_answer, token_f1
from mio_rag.pool import Pool
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.selection.selector import Selector
from mio_rag.types import Passage, Question

_SMALLER = (32, 64, 128)  # tokens
_SHORT = 6  # words of an answer that a model is asked for
_ANSWERS = ("answered", "f1")
_COMPARED = ("coverage", *_ANSWERS)
RANKINGS = ("dense", "bm25", "rrf", "minmax")


class Tiktoken:
    """Count and cut by tiktoken's cl100k_base."""

    def __init__(self) -> None:
        tiktoken = require("tiktoken", "bench", "counting tokens")
        try:
            self._encoding = tiktoken.get_encoding("cl100k_base")
        except OSError as error:  # of requests
            raise InputError(
                f"tiktoken cannot load cl100k_base ({type(error).__name__}): go online once, or set "
                "TIKTOKEN_CACHE_DIR to a folder that holds its file"
            ) from error
        self._known: dict[str, int] = {}
        self.name = "cl100k_base"

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text."""
        for text in texts:
            if text not in self._known:
                self._known[text] = len(self._encoding.encode(text, disallowed_special=()))
        return [self._known[text] for text in texts]

    def cut(self, text: str, tokens: int) -> str:
        """The first tokens of a text."""
        found: str = self._encoding.decode(self._encoding.encode(text, disallowed_special=())[:tokens])
        return found.rstrip("\ufffd")


# -- sets ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """A question with the texts that answer it."""

    id: str
    question: str
    evidence: tuple[str, ...]
    answers: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class DocumentSet:
    """Documents and questions about them."""

    name: str
    files: Path
    questions: tuple[Asked, ...]


def load_document_set(folder: Path, limit: int = 0) -> DocumentSet:
    """Read a set; at most `limit` questions, 0 for all."""
    lines = (folder / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines if line.strip()]
    asked = [
        Asked(
            str(row["id"]),
            row["question"],
            tuple(one["text"] for one in row["evidence"]),
            tuple(map(str, row.get("answers") or ())),
        )
        for row in rows
        if row.get("answerable", True) and row.get("evidence")
    ]
    return DocumentSet(folder.name, folder / "files", tuple(asked[: limit or None]))


def bundled_set(work: Path, limit: int) -> DocumentSet:
    """The demo's passages as a folder of Markdown files, one for each title."""
    demo = load_dataset("demo")
    folder = work / "demo-files"
    folder.mkdir(parents=True, exist_ok=True)
    texts: dict[str, list[str]] = {}
    for passage in demo.passages:
        texts.setdefault(passage.title, []).append(passage.text)
    for k, (title, parts) in enumerate(texts.items()):
        (folder / f"{k:03d}.md").write_text(f"# {title}\n\n" + "\n\n".join(parts), encoding="utf-8")
    by_id = {passage.id: passage.text for passage in demo.passages}
    labelled = [q for q in demo.questions if q.gold_ids]
    asked = [Asked(q.id, q.text, tuple(by_id[i] for i in q.gold_ids), q.answers) for q in labelled]
    return DocumentSet("demo", folder, tuple(asked[: limit or None]))


# -- contenders ---------------------------------------------------------------------------------------------


def filled(texts: Iterable[str], budget: int, counter: Tiktoken) -> list[str]:
    """Texts in order while they fit, the last one cut."""
    read: list[str] = []
    used = 0
    for text in texts:
        tokens = counter.count([text])[0] + bool(read)
        if used + tokens > budget:
            if (left := budget - used - 1) >= 12:
                read.append(counter.cut(text, left))
            break
        read.append(text)
        used += tokens
    return read


def _ranks(scores: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.argsort(np.argsort(-scores, kind="stable"), kind="stable")


def _spread(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    low, high = scores.min(), scores.max()
    return np.asarray((scores - low) / (high - low + 1e-9))


def ranked(pool: Pool, how: str) -> list[int]:
    """Rows of a pool in the order of a plain ranking."""
    dense, words = pool.scores["dense"], pool.scores["bm25"]
    score = {
        "dense": dense,
        "bm25": words,
        "rrf": 1 / (60 + _ranks(dense)) + 1 / (60 + _ranks(words)),
        "minmax": _spread(dense) + _spread(words),
    }[how]
    found: list[int] = np.argsort(-score, kind="stable").tolist()
    return found


def _whole(pool: Pool, i: int) -> str:
    """A passage with its title and the lines before it."""
    start = 0 if pool.spans is None else int(pool.spans[i, 0])
    lines = [] if pool.lines is None else sorted({line for line in pool.lines[i] if line.start < start})
    text = "\n".join([*(line.text for line in lines), pool.texts[i]])
    return render_passage(Passage(pool.ids[i], text, "" if pool.titles is None else pool.titles[i]))


@dataclass(eq=False)
class Contender:
    """A way to choose what is read: question and budget -> texts, and the seconds that the last one took."""

    name: str
    read: Callable[[int, int], list[str]]


def _contenders(
    found: DocumentSet, given: argparse.Namespace, counter: Tiktoken, about: dict[str, Any]
) -> list[Contender]:
    """Ours, plain rankings, other libraries; then ours and the dense ranking with each further embedder."""
    first, *others = given.embedder.split(",")
    index = _index(found, given, first, about)
    pools = _pools(found, index, counter, about)
    spent, proofs = list[float](), list[str]()

    def ours(k: int, budget: int) -> list[str]:
        start = time.perf_counter()
        texts = _selected(pools, counter, k, budget, proofs)
        spent.append(time.perf_counter() - start)
        about["select_ms"] = round(1e3 * float(np.median(spent)), 2)
        about["optimal"] = round(proofs.count("optimal") / len(proofs), 4)
        return texts

    made = [Contender("mio", ours), *(_ranking(f"passages {how}", pools, how, counter) for how in RANKINGS)]
    for name in filter(None, given.peers.split(",")):
        if name not in PEERS:
            raise InputError(f"--peers: '{name}' is unknown: choose {', '.join(PEERS)}")
        peer: Peer = PEERS[name](found.files, index.embedder, given.work / f"{found.name}-{name}")
        made.append(Contender(name, _filled_by(peer, found, counter)))
    for name in others:
        known = _pools(found, _index(found, given, name, {}), counter, {})
        label = name.split("@")[0]
        chosen = partial(_selected, known, counter)
        made += [Contender(f"mio, {label}", chosen), _ranking(f"dense, {label}", known, "dense", counter)]
    return made


def _pools(found: DocumentSet, index: CorpusIndex, counter: Tiktoken, about: dict[str, Any]) -> list[Pool]:
    retriever, pools, seconds = Retriever(index, counter=counter), list[Pool](), list[float]()
    for asked in found.questions:
        start = time.perf_counter()
        pools.append(retriever.retrieve(asked.question))
        seconds.append(time.perf_counter() - start)
    about["retrieve_ms"] = round(1e3 * float(np.median(seconds)), 2)
    return pools


def _selected(
    pools: Sequence[Pool], counter: Tiktoken, k: int, budget: int, proofs: list[str] | None = None
) -> list[str]:
    selection = Selector(units="auto").select(pools[k], budget, counter)
    if proofs is not None:
        proofs.append(selection.result.status.value)
    return [render_passage(passage) for passage in selection.passages]


def _ranking(name: str, pools: Sequence[Pool], how: str, counter: Tiktoken) -> Contender:
    def read(k: int, budget: int) -> list[str]:
        return filled((_whole(pools[k], i) for i in ranked(pools[k], how)), budget, counter)

    return Contender(name, read)


def _filled_by(peer: Peer, found: DocumentSet, counter: Tiktoken) -> Callable[[int, int], list[str]]:
    def read(k: int, budget: int) -> list[str]:
        return filled(peer(found.questions[k].question, budget), budget, counter)

    return read


def _index(
    found: DocumentSet, given: argparse.Namespace, embedder: str, about: dict[str, Any]
) -> CorpusIndex:
    folder = given.work / "indexes" / f"{found.name}-{re.sub(r'[^a-z0-9]+', '-', embedder.lower())}"
    if (folder / "manifest.json").is_file():
        return CorpusIndex.load(folder)
    start = time.perf_counter()
    dataset = load_dataset(found.files)
    about["reading_seconds"] = round(time.perf_counter() - start, 2)
    passages: Sequence[Passage] = dataset.passages
    index = CorpusIndex.build(passages, embedder, found.name)
    about["passages"], about["left_out"] = len(passages), len(dataset.left_out)
    index.save(folder, overwrite=True)
    return index


# -- study --------------------------------------------------------------------------------------------------


def measure(given: argparse.Namespace) -> Measured:
    """Read every question's context by every contender at every budget."""
    budgets = numbers("--budgets", given.budgets, int)
    counter = Tiktoken()
    if given.data is None:
        sets = [bundled_set(given.work, given.limit)]
    else:
        names = [name.strip() for name in given.sets.split(",") if name.strip()]
        if missing := [name for name in names if not (given.data / name / "questions.jsonl").is_file()]:
            raise InputError(f"'{given.data}' holds no {', '.join(missing)}: change --data or --sets")
        sets = [load_document_set(given.data / name, given.limit) for name in names]
    report: dict[str, Any] = {"counter": counter.name, "embedder": given.embedder, "sets": {}}
    lines: list[list[Any]] = []
    curves: dict[str, dict[str, list[tuple[float, float]]]] = {}
    answered: list[dict[str, Columns]] = []
    for found in sets:
        about: dict[str, Any] = {"questions": len(found.questions)}
        contenders = _contenders(found, given, counter, about)
        rows: dict[str, Any] = {}
        for budget in budgets:
            made = [_row(one, found, budget, counter) for one in contenders]
            if given.reader and budget == budgets[0]:
                made, answers = _with_answers(made, contenders, found, budget, given)
                answered.append(answers)
            rivals = [row for row in made[1:] if "," not in row.kind]  # those have further embedders
            ours, best = made[0], max(rivals, key=lambda row: row.mean("coverage"))
            for row in made:
                curves.setdefault(found.name, {}).setdefault(row.kind, []).append(
                    (row.mean("tokens"), row.mean("coverage"))
                )
                paired = {} if row is ours else differences(ours.columns, row.columns, _COMPARED)
                rows[row.name] = {**summarized([row])[row.name], "mio_less_this": paired}
            less = interval(ours.columns["coverage"] - best.columns["coverage"])
            assert less is not None
            lines.append(
                [
                    found.name,
                    budget,
                    f"{ours.mean('coverage'):.3f}",
                    f"{best.mean('coverage'):.3f} {best.kind}",
                    f"{less['mean']:+.3f} ({less['low']:+.3f} to {less['high']:+.3f})",
                    *(f"{row.mean('coverage'):.3f}" for row in made[5:]),
                ]
            )
            note(" ".join(map(str, lines[-1])))
        for (
            budget
        ) in _SMALLER:  # what rivals reach at their largest budget may take ours less than its smallest
            if budget < min(budgets):
                row = _row(contenders[0], found, budget, counter)
                curves[found.name]["mio"].append((row.mean("tokens"), row.mean("coverage")))
        report["sets"][found.name] = {**about, "rows": rows, "tokens_needed": _needed(curves[found.name])}
    heads = ["set", "budget", "mio", "best rival", "difference", *(one.name for one in contenders[5:])]
    table = text_table(heads, lines)
    if answered:
        report["answers"], said = _answers_of_all(answered)
        table += "\n" + said
    return Measured(report, table, lambda path: _drawn(path, curves))


def _answers_of_all(sets: Sequence[dict[str, Columns]]) -> tuple[dict[str, Any], str]:
    """Answers over the questions of all sets: means, and differences of ours to each contender."""
    names = [name for name in sets[0] if all(name in one for one in sets)]
    rows = [
        Row(name, name, {m: np.concatenate([one[name][m] for one in sets]) for m in _ANSWERS})
        for name in names
    ]
    less = {row.name: differences(rows[0].columns, row.columns, _ANSWERS) for row in rows[1:]}
    lines = [
        [
            row.name,
            *(f"{row.mean(m):.3f}" for m in _ANSWERS),
            *map(interval_text, less.get(row.name, {}).values()),
        ]
        for row in rows
    ]
    heads = ["reads", "answered", "F1", "ours less this: answered", "F1"]
    asked = int(np.sum(~np.isnan(rows[0].columns["f1"])))
    return {"questions": asked, "means": summarized(rows), "mio_less_this": less}, text_table(heads, lines)


def _row(one: Contender, found: DocumentSet, budget: int, counter: TokenCounter) -> Row:
    texts = [one.read(k, budget) for k in range(len(found.questions))]
    columns = {
        "coverage": np.array(
            [coverage(q.evidence, read) for q, read in zip(found.questions, texts, strict=True)]
        ),
        "tokens": np.array([float(counter.count(["\n\n".join(read)])[0]) for read in texts]),
        "precision": np.array([_precision(q, read) for q, read in zip(found.questions, texts, strict=True)]),
    }
    return Row(f"{one.name} at {budget}", one.name, columns)


def _with_answers(
    rows: Sequence[Row],
    contenders: Sequence[Contender],
    found: DocumentSet,
    budget: int,
    given: argparse.Namespace,
) -> tuple[list[Row], dict[str, Columns]]:
    """Let a language model answer from what each contender reads; of the rankings, the best one.

    Returns: the rows with the answers, and the answers alone by contender.
    """
    asked = [k for k, q in enumerate(found.questions) if _is_short(q.answers)]
    asked = np.random.default_rng(given.seed).permutation(asked)[: given.answers or None].tolist()
    rankings = [k for k, one in enumerate(contenders) if one.name.startswith("passages ")]
    best = max(rankings, key=lambda k: rows[k].mean("coverage"))
    made, alone = [*rows], dict[str, Columns]()
    with closing(make_generator(given.reader)) as generator:
        for k, one in enumerate(contenders):
            if k in rankings and k != best:
                continue
            columns = {m: np.full(len(found.questions), np.nan) for m in _ANSWERS}
            for q in asked:
                question = found.questions[q]
                texts = [Passage(f"{i + 1}", text) for i, text in enumerate(one.read(q, budget))]
                prompt = build_prompt(Question(question.id, question.question), texts)
                said = generator.generate(prompt, max_tokens=32).text
                columns["answered"][q] = _holds(said, question.answers)
                columns["f1"][q] = token_f1(said, question.answers)
            made[k] = replace(rows[k], columns={**rows[k].columns, **columns})
            alone["best ranking" if k == best else one.name] = columns
            said = " ".join(f"{m} {np.nanmean(values):.3f}" for m, values in columns.items() if asked)
            note(f"{found.name}: {one.name}, {len(asked)} questions: {said}")
    return made, alone


def _is_short(answers: Sequence[str]) -> bool:
    """Whether an answer has few words and may stand in a text: neither yes, no nor 10/31/24."""
    return any(
        0 < len(a.split()) <= _SHORT
        and not re.fullmatch(r"yes|no|\d+/\d+/\d+|unanswerable", a.strip(" ."), re.I)
        for a in answers
    )


def _holds(said: str, answers: Sequence[str]) -> float:
    """Whether an accepted answer stands in what was said, word for word."""
    words = f" {normalize_answer(said)} "
    return float(
        any(f" {normalize_answer(answer)} " in words for answer in answers if normalize_answer(answer))
    )


def _precision(asked: Asked, texts: Sequence[str]) -> float:
    """Share of the words read that are evidence."""
    return coverage(texts, asked.evidence) if texts else 0.0


def _needed(curves: dict[str, list[tuple[float, float]]]) -> dict[str, float | None]:
    """Tokens that ours needs for a rival's coverage at its largest budget, as a share of the rival's."""
    tokens, reached = (np.array(column) for column in zip(*sorted(curves["mio"]), strict=True))
    found: dict[str, float | None] = {}
    for name, points in curves.items():
        most, wanted = max(points)
        known = np.maximum.accumulate(reached)
        inside = wanted <= known[-1]
        found[name] = round(float(np.interp(wanted, known, tokens)) / most, 3) if inside else None
    return found


def _drawn(path: Path, curves: dict[str, dict[str, list[tuple[float, float]]]]) -> None:
    drawing, panels = figure(len(curves), width=3.4, height=3.2)
    for panel, (name, lines) in zip(panels, curves.items(), strict=True):
        for kind, points in lines.items():
            x, y = zip(*sorted(points), strict=True)
            ours = kind == "mio"
            panel.plot(x, y, marker="o", markersize=3, linewidth=2.2 if ours else 1.0, label=kind)
        panel.set_title(name)
        panel.set_xlabel("tokens read")
    panels[0].set_ylabel("share of the evidence read")
    panels[-1].legend(fontsize=6)
    drawing.savefig(path, dpi=150)
