"""Answers by meaning on paraphrases: how many are served, and how many of these wrongly, by cosine.

For each set a cache keeps the answers to all of its questions. It is asked the paraphrases that the set holds
(`mio_rag.evaluation.paraphrases.held`), and rewordings of some questions by a language model (`written`). The
second count of hits is that of a cache that keeps nothing of the same meaning: all that it gives is what a
new question would get.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binomtest

from benchmarks.files import replaced, write_json
from mio_rag.corpora.load import load_dataset
from mio_rag.errors import InputError
from mio_rag.evaluation.paraphrases import Paraphrase, held, paraphrase_hits, written
from mio_rag.evaluation.record import environment
from mio_rag.generation import make_generator
from mio_rag.retrieval.embedders import make_embedder
from mio_rag.types import Question

__all__ = ["add_options", "command"]

_SHOWN = (0.8, 0.85, 0.9, 0.95, 0.98)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    add = parser.add_argument
    add("--data", default="demo", help="folder of data sets, or one data set (default: the bundled demo set)")
    add("--sets", default="", help="which of the folder, separated by commas (default: all)")
    add("--generator", help="words questions anew, for instance gguf:MODEL.gguf (default: none does)")
    add("--questions", type=int, default=40, help="of a set that are worded anew (default: %(default)s)")
    add("--embedder", default="minilm", help="(default: %(default)s)")
    add("--seed", type=int, default=0, help="of the draw of questions (default: 0)")
    add("--out", type=Path, default=Path("benchmarks/results/paraphrases.json"))


def command(given: argparse.Namespace) -> int:
    """Measure every set and all of them together, write JSON and table, and print the table."""
    if given.questions < 1:
        raise InputError(f"--questions={given.questions} must be >= 1")
    folder = Path(given.data)
    several = folder.is_dir() and not any(folder.glob("corpus.jsonl*"))
    chosen = [name for name in given.sets.split(",") if name] if several else []
    names = chosen or (sorted(p.parent.name for p in folder.glob("*/corpus.jsonl*")) if several else [])
    embedder = make_embedder(given.embedder)
    generator = None if given.generator is None else make_generator(given.generator)
    sets: dict[str, Any] = {}
    try:
        for source in [folder / name for name in names] if several else [given.data]:
            data = load_dataset(source)
            embedder.fit([question.text for question in data.questions])
            asked = {"held": held(data.questions)}
            found: dict[str, Any] = {"data_sha256": data.content_hash(), "questions": len(data.questions)}
            if generator is not None:
                drawn = _drawn(data.questions, given.questions, given.seed)
                asked["written"], left_out = written(drawn, generator, partial(_say, data.name))
                found["left_out"] = dict(left_out)
            for kind, paraphrases in asked.items():
                found[kind] = _rows(data.questions, paraphrases, embedder) if paraphrases else None
            sets[data.name] = found
    finally:
        if generator is not None:
            generator.close()
    report = {
        "benchmark": "paraphrases",
        "seed": given.seed,
        "embedder": embedder.fingerprint,
        "generator": None if generator is None else generator.name,
        "sets": sets,
        "together": {kind: _together(sets, kind) for kind in ("held", "written")},
        **environment(),
    }
    write_json(given.out, report)
    text = _table(report)
    with replaced(given.out.with_suffix(".txt")) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")
    print(text)
    return 0


def _drawn(questions: Sequence[Question], count: int, seed: int) -> list[Question]:
    keyed = [q for q in questions if q.answers]
    return [keyed[int(k)] for k in np.random.default_rng(seed).permutation(len(keyed))[:count]]


def _rows(kept: Sequence[Question], asked: Sequence[Paraphrase], embedder: Any) -> list[dict[str, Any]]:
    """By cosine, without the texts of questions."""
    return [
        {k: v for k, v in row.to_dict().items() if k != "examples"}
        for row in paraphrase_hits(kept, asked, embedder)
    ]


def _together(sets: Mapping[str, Any], kind: str) -> list[dict[str, Any]]:
    """Counts over all sets, by cosine."""
    every = [rows for found in sets.values() if (rows := found.get(kind))]
    counts = ("asked", "hits", "false", "new_hits", "new_false")
    return [
        {"cosine": group[0]["cosine"], **{name: sum(row[name] for row in group) for name in counts}}
        for group in zip(*every, strict=True)
    ]


def _table(report: Mapping[str, Any]) -> str:
    lines = [f"answers by meaning, {report['embedder']}; rewordings by {report['generator']}"]
    for kind in ("held", "written"):
        lines += [
            "",
            f"paraphrases {kind}: right of all asked; wrong of those served; served to new questions",
        ]
        named = {name: found.get(kind) or () for name, found in report["sets"].items()}
        for name, rows in {**named, "together": report["together"][kind]}.items():
            for row in rows:
                if row["cosine"] in _SHOWN:
                    lines.append(f"  {name:16} from {row['cosine']:.2f}: {_told(row)}")
    return "\n".join(lines)


def _told(row: Mapping[str, Any]) -> str:
    right, wrong = row["hits"] - row["false"], row["false"]
    return (
        f"right {right:3} of {row['asked']:3} {_share(right, row['asked']):>18}; wrong {wrong:3} of "
        f"{row['hits']:3} {_share(wrong, row['hits']):>18}; new {row['new_hits']:3}, {row['new_false']} wrong"
    )


def _share(count: int, of: int) -> str:
    """In percent, with the exact 95 % interval (Clopper and Pearson, 1934)."""
    if of == 0:
        return "-"
    interval = binomtest(count, of).proportion_ci(0.95, "exact")
    return f"{100 * count / of:.0f} % ({100 * interval.low:.0f} to {100 * interval.high:.0f})"


def _say(name: str, done: int) -> None:
    if done % 10 == 0:
        print(f"{name}: {done} questions worded anew", file=sys.stderr, flush=True)
