"""The layout on disk, folders of documents, the bundled set, the public sets in their published formats."""

import gzip
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from mio_rag.datasets import Dataset, chunk_text, convert_rows, load_dataset, load_folder, load_named
from mio_rag.errors import DataError, InputError
from mio_rag.types import Passage, Question

CORPUS = [
    {"id": 7, "text": "The Po is long.", "title": "Po", "source": "atlas"},
    {"id": "b", "text": "Bread."},
]
QUESTIONS = [
    {
        "id": 1,
        "question": "Is the Po long?",
        "answers": ["yes"],
        "gold_ids": [7],
        "choices": ["yes", "no"],
        "type": "x",
    },
    {"id": "q2", "question": "What?", "gold_sources": ["atlas"]},
]


def write(folder: Path, name: str, lines: Iterable[Any]) -> None:
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    data = text.encode()
    (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_layout(tmp_path: Path, ending: str) -> None:
    write(tmp_path, f"corpus.jsonl{ending}", [CORPUS[0], "", CORPUS[1]])
    write(tmp_path, f"questions.jsonl{ending}", QUESTIONS)
    data = load_dataset(tmp_path)
    assert data.name == tmp_path.name
    assert data.passages == (Passage("7", "The Po is long.", "Po", "atlas"), Passage("b", "Bread."))
    assert data.questions == (
        Question("1", "Is the Po long?", ("yes",), ("7",), choices=("yes", "no"), type="x"),
        Question("q2", "What?", gold_sources=("atlas",)),
    )


def test_a_byte_order_mark_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_bytes(b"\xef\xbb\xbf" + json.dumps(CORPUS[1]).encode())
    assert load_dataset(tmp_path).passages == (Passage("b", "Bread."),)


def test_every_broken_line_is_named(tmp_path: Path) -> None:
    write(
        tmp_path,
        "corpus.jsonl",
        [CORPUS[0], "{oops", "[1]", {"id": "c"}, {"id": "", "text": "x"}, {"id": "e", "text": " "}],
    )
    write(tmp_path, "questions.jsonl", [
        QUESTIONS[0], {"id": "q", "question": ""}, {"id": "r", "question": "?", "answers": "yes"},
        {"id": True, "question": "?"}, '{"id": ' + "9" * 5000 + ', "question": "?"}',
    ])  # fmt: skip
    with pytest.raises(DataError) as raised:
        load_dataset(tmp_path)
    assert [p.split(":")[0] for p in raised.value.problems] == [
        *(f"corpus.jsonl, line {k}" for k in (2, 3, 4, 5, 6)),
        *(f"questions.jsonl, line {k}" for k in (2, 3, 4, 5)),
    ]


def test_many_broken_lines_are_counted(tmp_path: Path) -> None:
    write(tmp_path, "corpus.jsonl", ["{"] * 25)
    with pytest.raises(DataError, match="and 15 more"):
        load_dataset(tmp_path)


def test_repeated_and_unknown_ids_are_reported_together(tmp_path: Path) -> None:
    write(tmp_path, "corpus.jsonl", [CORPUS[0], CORPUS[1], CORPUS[1]])
    write(tmp_path, "questions.jsonl", [QUESTIONS[1], QUESTIONS[1] | {"gold_ids": ["nowhere"]}])
    with pytest.raises(DataError) as raised:
        load_dataset(tmp_path)
    said = " ".join(raised.value.problems)
    assert len(raised.value.problems) == 3
    assert "'b' occurs more than once" in said
    assert "'q2' occurs more than once" in said
    assert "'nowhere'" in said


def test_half_a_character_is_refused(tmp_path: Path) -> None:
    write(
        tmp_path,
        "corpus.jsonl",
        [{"id": "x", "text": "\ud83d broken emoji"}, {"id": "y", "text": "\U0001f600 whole"}],
    )
    with pytest.raises(DataError) as raised:
        load_dataset(tmp_path)
    assert len(raised.value.problems) == 1
    assert "passage 'x'" in raised.value.problems[0]


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a folder"):
        load_dataset(tmp_path / "absent")
    with pytest.raises(DataError, match="holds no text"):
        load_dataset(tmp_path)
    write(tmp_path, "questions.jsonl", QUESTIONS)
    with pytest.raises(DataError, match=r"no corpus\.jsonl"):
        load_dataset(tmp_path)
    write(tmp_path, "corpus.jsonl", [])
    with pytest.raises(DataError, match="is empty"):
        load_dataset(tmp_path)


def test_damaged_archives(tmp_path: Path) -> None:
    write(tmp_path, "corpus.jsonl.gz", [{"id": str(k), "text": f"text {k * 7919}"} for k in range(500)])
    whole = (tmp_path / "corpus.jsonl.gz").read_bytes()
    flipped = []
    for position in (
        10,
        12,
        len(whole) // 2,
        len(whole) - 6,
    ):  # header of the block, its content, the checksum
        flipped.append(bytearray(whole))
        flipped[-1][position] ^= 0xFF
    for damaged in (whole[: len(whole) // 2], *flipped, b"no archive"):
        (tmp_path / "corpus.jsonl.gz").write_bytes(damaged)
        with pytest.raises(DataError, match=r"corpus\.jsonl\.gz"):
            load_dataset(tmp_path)


def test_the_hash_covers_everything_that_scores() -> None:
    passage = Passage("p", "text", "title", "source")
    asked = {
        "id": "q",
        "text": "?",
        "answers": ("a",),
        "gold_ids": ("p",),
        "gold_sources": ("s",),
        "choices": ("c", "d"),
    }

    def digest(p: Passage = passage, **changes: Any) -> str:
        return Dataset("d", (p,), (Question(**(asked | changes)),)).content_hash()

    variants = [
        digest(), digest(Passage("p", "text", "title", "other")), digest(id="r"), digest(text="!"),
        digest(answers=("b",)), digest(gold_ids=()), digest(gold_sources=("t",)), digest(choices=("d", "c")),
        digest(type="unanswerable"),
    ]  # fmt: skip
    assert len(set(variants)) == len(variants)
    assert digest() == variants[0]


def test_bundled_set(demo: Dataset) -> None:
    assert (len(demo.passages), len(demo.questions)) == (84, 25)
    known = {p.id for p in demo.passages}
    for question in demo.questions:
        assert question.gold_ids
        assert set(question.gold_ids) <= known
        assert question.answers
        if question.type in ("single", "bridge"):
            assert not any(answer.lower() in question.text.lower() for answer in question.answers)
    assert {q.type for q in demo.questions} >= {"single", "bridge"}
    assert len({p.source for p in demo.passages}) > 2


# --- folders of documents --------------------------------------------------------------------------------


def pdf(*pages: str) -> bytes:
    """A PDF of one line of text a page, written out by hand."""
    kids = " ".join(f"{4 + 2 * k} 0 R" for k in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for k, text in enumerate(pages):
        stream = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET"
        resources = "<< /Font << /F1 3 0 R >> >>"
        objects += [
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {5 + 2 * k} 0 R "
            f"/Resources {resources} >>",
            f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream",
        ]
    out, offsets = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, start=1):
        offsets.append(len(out))
        out += f"{number} 0 obj\n{content}\nendobj\n".encode()
    table = "".join(f"{offset:010d} 00000 n \n" for offset in offsets)
    out += f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}".encode()
    start = out.index(b"xref\n0")
    return out + f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{start}\n%%EOF\n".encode()


def test_folder_of_documents(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "notes.md").write_text("# Arno\n\nThe Arno is a river. It flows through Florence.\n")
    (tmp_path / "po.txt").write_text("The Po is long.")
    (tmp_path / "PAPER.PDF").write_bytes(pdf("The Tiber flows through Rome.", "It is 406 kilometres long."))
    (tmp_path / "image.png").write_bytes(b"\x89PNG")
    data = load_folder(tmp_path, max_words=5)
    assert {(p.id, p.text) for p in data.passages} == {
        ("PAPER.PDF#1.0", "The Tiber flows through Rome."),
        ("PAPER.PDF#2.0", "It is 406 kilometres long."),
        ("po.txt#0", "The Po is long."),
        ("sub/notes.md#0", "# Arno"),
        ("sub/notes.md#1", "The Arno is a river."),
        ("sub/notes.md#2", "It flows through Florence."),
    }
    assert {(p.title, p.source) for p in data.passages if p.id.startswith("sub")} == {
        ("notes", "sub/notes.md")
    }
    assert data.questions == ()


def test_unreadable_documents_are_all_named(tmp_path: Path) -> None:
    (tmp_path / "broken.pdf").write_bytes(pdf("text")[:150])
    (tmp_path / "latin.txt").write_bytes("caf\u00e9".encode("latin-1"))
    (tmp_path / "fine.txt").write_text("Fine.")
    with pytest.raises(DataError) as raised:
        load_dataset(tmp_path)
    assert [Path(p.split(" cannot")[0]).name for p in raised.value.problems] == ["broken.pdf", "latin.txt"]


@pytest.mark.parametrize("cut", range(40, 700, 60))
def test_a_cut_pdf_never_breaks_the_reader(tmp_path: Path, cut: int) -> None:
    (tmp_path / "cut.pdf").write_bytes(pdf("The Tiber flows through Rome.", "It is long.")[:cut])
    try:
        texts = {p.text for p in load_folder(tmp_path).passages}
    except DataError as error:
        texts = set()
        said = str(error)
    assert texts <= {"The Tiber flows through Rome.", "It is long."}
    assert texts or "cut.pdf" in said or "holds no text" in said


PROSE = (
    "Dr. Smith crossed the Po at 3.5 km/h on 1 Jan. 1901. He was late! Why? Nobody knows, e.g. he didn't.\n\n"
    "AT&T v. Smith & Co. (1987) was decided... Prices rose \u26a0 by 2.5 %. "
    "See http://x.org/a?q=1. \u266c \u222f Signs & wonders \u2302 remain. " + "word " * 45 + "end."
)


@pytest.mark.parametrize("max_words", [1, 7, 20, 1000])
def test_chunks_hold_every_word_in_order(max_words: int) -> None:
    chunks = chunk_text(PROSE, max_words)
    assert " ".join(chunks).split() == PROSE.split()
    assert all(len(chunk.split()) <= max_words for chunk in chunks)


def test_more_overlap_than_sentences_repeats_what_fits_not_less() -> None:
    text = "A b. C d. E f. G h. I j."
    three, four = (chunk_text(text, 6, overlap_sentences=k) for k in (3, 4))
    assert three == four == ["A b. C d. E f.", "C d. E f. G h.", "E f. G h. I j."]


def test_chunks_keep_sentences_whole_and_overlap() -> None:
    text = "One two three. Four five. Six seven eight nine. Ten."
    assert chunk_text(text, 6) == ["One two three. Four five.", "Six seven eight nine. Ten."]
    assert chunk_text(text, 6, overlap_sentences=1) == [
        "One two three. Four five.", "Four five. Six seven eight nine.", "Six seven eight nine. Ten.",
    ]  # fmt: skip
    assert chunk_text(" \n\n ") == []
    with pytest.raises(InputError, match="max_words=0"):
        chunk_text("x", 0)


# --- public sets in their published formats, read by the `datasets` package ------------------------------

NQ_TOKENS = ["<P>", "The", "Po", "is", "long", ".", "</P>", "<P>", "Other", "</P>"]


def natural(number: str, start: int, shorts: list[str], verdict: int) -> dict[str, Any]:
    long_answer = {"start_token": start, "end_token": start + 7 if start >= 0 else -1, "candidate_index": 0}
    return {
        "id": number,
        "document": {
            "title": "Po", "tokens": {"token": NQ_TOKENS, "is_html": [t.startswith("<") for t in NQ_TOKENS]},
        },
        "question": {"text": f"question {number}", "tokens": ["question"]},
        "annotations": {
            "id": ["1"], "long_answer": [long_answer], "short_answers": [{"text": shorts}],
            "yes_no_answer": [verdict],
        },
    }  # fmt: skip


def squad(number: str, answers: list[str]) -> dict[str, Any]:
    answer = {"text": answers, "answer_start": [0] * len(answers)}
    return {
        "id": number,
        "title": "Po_River",
        "context": "The Po is long.",
        "question": f"{number}?",
        "answers": answer,
    }


PUBLISHED: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "squad_v2": ([], [squad("s1", ["long", "long", "very long"]), squad("s2", [])]),
    "hotpot_qa": ([], [
        {
            "id": "h1", "question": "Which is longer?", "answer": "Po", "type": "comparison", "level": "hard",
            "supporting_facts": {"title": ["Po", "Arno", "Po", "Gone"], "sent_id": [0, 0, 1, 0]},
            "context": {
                "title": ["Po", "Arno", "Blank"],
                "sentences": [["The Po is long.", " Very long."], ["The Arno is short."], [""]],
            },
        },
    ]),
    "natural_questions": ([], [
        natural("n1", 0, ["long"], -1), natural("n2", 0, [], 1), natural("n3", -1, [], -1),
    ]),
    "rag-mini-wikipedia": (
        [{"id": 0, "passage": "The Po is long."}, {"id": 1, "passage": ""}, {"id": 2, "passage": "Bread."}],
        [{"id": 5, "question": "Is the Po long?", "answer": "yes"}],
    ),
    "rag-mini-bioasq": (
        [{"id": 97, "passage": "A gene."}, {"id": 98, "passage": "nan"}, {"id": 99, "passage": "A protein."}],
        [{"id": 3, "question": "What binds?", "answer": "It.", "relevant_passage_ids": "[97, 98, 99, 12]"}],
    ),
}  # fmt: skip


def through_library(rows: list[dict[str, Any]], folder: Path, kind: str) -> Iterable[Mapping[str, Any]]:
    """Rows as the `datasets` package yields them from a file."""
    library = pytest.importorskip("datasets")
    if not rows:
        return ()
    path = folder / f"rows-{len(rows)}-{'passage' in rows[0]}.{kind}"
    if kind == "json":
        write(folder, path.name, rows)
    else:
        library.Dataset.from_list(rows).to_parquet(str(path))
    loaded: Iterable[Mapping[str, Any]] = library.load_dataset(
        kind, data_files=str(path), split="train", cache_dir=str(folder / "cache")
    )
    return loaded


def published(name: str, folder: Path, kind: str) -> Dataset:
    corpus, questions = (through_library(rows, folder, kind) for rows in PUBLISHED[name])
    return convert_rows(name, corpus, questions)


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_squad(tmp_path: Path, kind: str) -> None:
    data = published("squad_v2", tmp_path, kind)
    assert data.passages == (Passage("squad_v2-000000", "The Po is long.", "Po River", "Po River"),)
    assert data.questions == (
        Question("s1", "s1?", ("long", "very long"), ("squad_v2-000000",)),
        Question("s2", "s2?", type="unanswerable"),
    )


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_hotpot(tmp_path: Path, kind: str) -> None:
    data = published("hotpot_qa", tmp_path, kind)
    assert [(p.title, p.text) for p in data.passages] == [
        ("Po", "The Po is long. Very long."), ("Arno", "The Arno is short."),
    ]  # fmt: skip
    (question,) = data.questions
    assert question.gold_ids == (data.passages[0].id, data.passages[1].id)
    assert (question.answers, question.type) == (("Po",), "comparison")


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_natural_questions(tmp_path: Path, kind: str) -> None:
    data = published("natural_questions", tmp_path, kind)
    assert [p.text for p in data.passages] == ["The Po is long ."]
    assert [(q.id, q.answers, q.gold_ids) for q in data.questions] == [
        ("n1", ("long",), (data.passages[0].id,)), ("n2", ("yes",), (data.passages[0].id,)),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_rag_mini(tmp_path: Path, kind: str) -> None:
    wikipedia = published("rag-mini-wikipedia", tmp_path, kind)
    assert [p.id for p in wikipedia.passages] == ["0", "2"]
    assert wikipedia.questions == (Question("5", "Is the Po long?", ("yes",)),)
    bioasq = published("rag-mini-bioasq", tmp_path, kind)
    assert [p.id for p in bioasq.passages] == ["97", "99"]
    assert bioasq.questions[0].gold_ids == ("97", "99")


def test_unknown_names() -> None:
    with pytest.raises(DataError, match="'hf:nonsense' is unknown: choose one of rag-mini-wikipedia"):
        load_dataset("hf:nonsense")
    with pytest.raises(DataError, match="'nonsense' is unknown"):
        convert_rows("nonsense", (), ())


def test_an_unreachable_hub_is_an_error_with_the_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = pytest.importorskip("datasets")
    import huggingface_hub.constants

    monkeypatch.setattr(library.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(library.config, "HF_DATASETS_CACHE", str(tmp_path))
    with pytest.raises(DataError, match=r"hf:squad_v2.*could not be fetched"):
        load_named("squad_v2", limit=3)


def test_the_limit_takes_the_first_questions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The hub's loader is replaced by one that reads the same rows from a file."""
    library = pytest.importorskip("datasets")
    rows = library.Dataset.from_list(PUBLISHED["squad_v2"][1])
    monkeypatch.setattr(library, "load_dataset", lambda *_, **__: rows)
    assert [q.id for q in load_named("squad_v2", limit=1).questions] == ["s1"]
    assert len(load_named("squad_v2", limit=9).questions) == 2
