"""Folders of question sets and of documents, with damaged or odd lines and files."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fuzz.endings import Wrong
from benchmarks.fuzz.odd import TEXTS, chance, mutated_bytes, mutated_text, pick, value
from mio_rag.corpora.dataset import Dataset
from mio_rag.corpora.load import load_dataset

_SENTENCES = (
    "The Arno is long.",
    "Bread is baked from flour!",
    "Dr. No met Mr. X at 3.5 p.m.",
    "Why? Because.",
)
_PDF = (
    b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n"
    b"2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj\n"
    b"3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 200 200]/Contents 4 0 R"
    b"/Resources<</Font<</F 5 0 R>>>>>>endobj\n"
    b"4 0 obj<</Length 44>>stream\nBT /F 12 Tf 10 100 Td (The Arno is long.) Tj ET\nendstream\nendobj\n"
    b"5 0 obj<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF\n"
)


class Corpora:
    """Bytes of files by their paths, and how many passages and questions they hold for sure."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "corpus"

    def draw(self, rng: np.random.Generator) -> Any:
        """A question set, or documents."""
        return _question_set(rng) if chance(rng, 0.7) else _documents(rng)

    def run(self, given: Any) -> str:
        """Write the folder, load it, check what was loaded."""
        shutil.rmtree(self._folder, ignore_errors=True)
        for name, data in given["files"].items():
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        self._folder.mkdir(exist_ok=True)
        made = load_dataset(self._folder)
        _check(made, given["passages"], given["questions"])
        return "loaded"


def _question_set(rng: np.random.Generator) -> dict[str, Any]:
    passages: list[Any] = [
        {"id": f"p{k}" if chance(rng, 0.9) else k, "text": pick(rng, _SENTENCES), "title": "t", "source": "s"}
        for k in range(int(rng.integers(1, 5)))
    ]
    questions: list[Any] = [
        {
            "id": f"q{k}",
            "question": "who?",
            "answers": ["a"],
            "gold_ids": [pick(rng, passages)["id"]],
            "type": "x",
        }
        for k in range(int(rng.integers(4)))
    ]
    sure = chance(rng, 0.3)
    files: dict[str, bytes] = {}
    for name, rows in (("corpus", passages), ("questions", questions)):
        for row in rows if not sure else ():
            if chance(rng, 0.4):
                odd = pick(rng, TEXTS) if chance(rng, 0.5) else value(rng, True)
                row[pick(rng, [*row, pick(rng, TEXTS)])] = odd
        lines = [json.dumps(row, ensure_ascii=chance(rng, 0.5)) for row in rows]
        if not sure:
            lines = [mutated_text(rng, line) if chance(rng, 0.15) else line for line in lines]
            lines += [pick(rng, ["", "[]", "null", "{}", "\x00", "nan", '"a"'])] if chance(rng, 0.1) else []
            lines += lines[:1] if chance(rng, 0.05) else []
        text = pick(rng, ["\n", "\r\n", "\n\n"]).join(lines)
        data = ("\ufeff" + text if chance(rng, 0.1) else text).encode("utf-8", "surrogatepass")
        zipped = chance(rng, 0.2)
        data = gzip.compress(data, mtime=0) if zipped else data
        if not sure and chance(rng, 0.1):
            data = mutated_bytes(rng, data)
        files[f"{name}.jsonl{'.gz' if zipped else ''}"] = data
    if not sure and chance(rng, 0.1):
        del files[pick(rng, list(files))]
    known = (len(passages), len(questions)) if sure else (None, None)
    return {"files": files, "passages": known[0], "questions": known[1]}


def _documents(rng: np.random.Generator) -> dict[str, Any]:
    files: dict[str, bytes] = {}
    names = (
        "a.txt",
        "b.md",
        "deep/er/c.txt",
        "d.pdf",
        "E.TXT",
        "\u4e2d.md",
        ".hidden.txt",
        "f.doc",
        "g\n.txt",
    )
    for name in rng.permutation(names)[: int(rng.integers(1, 4))]:
        if str(name).endswith("pdf"):
            data = _PDF
        else:
            parts = [pick(rng, _SENTENCES) for _ in range(int(rng.integers(1, 60)))]
            parts += [pick(rng, TEXTS)] if chance(rng, 0.4) else []
            text = pick(rng, [" ", "\n", "\n\n"]).join(parts)
            text = mutated_text(rng, text) if chance(rng, 0.2) else text
            data = text.encode(pick(rng, ["utf-8", "utf-8", "utf-8", "utf-16", "latin-1"]), "replace")
        files[str(name)] = mutated_bytes(rng, data) if chance(rng, 0.25) else data
    return {"files": files, "passages": None, "questions": None}


def _check(made: Dataset, passages: int | None, questions: int | None) -> None:
    """What a data set is, wherever it came from."""
    if passages is not None and (len(made.passages), len(made.questions)) != (passages, questions):
        raise Wrong("not all lines were loaded", f"{len(made.passages)}, {len(made.questions)}")
    if len({p.id for p in made.passages}) < len(made.passages) or not made.passages:
        raise Wrong("ids of passages repeat, or there are none")
    for passage in made.passages:
        parts = (passage.id, passage.text, passage.title, passage.source)
        if not all(isinstance(part, str) for part in parts) or not passage.text.strip() or not passage.id:
            raise Wrong("a passage without id or text", passage)
        "".join(parts).encode()
    known = {p.id for p in made.passages}
    if any(set(q.gold_ids) - known or not q.text.strip() for q in made.questions):
        raise Wrong("a question without text, or whose gold passage is not there")
    if len(made.content_hash()) != 64:
        raise Wrong("no hash of the content")
