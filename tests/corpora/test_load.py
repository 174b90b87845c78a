"""The layout on disk, the bundled set, the public sets in their published formats."""

import gzip
import json
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from mio_rag.batch.ask import read_questions
from mio_rag.corpora.dataset import Dataset
from mio_rag.corpora.load import (
    convert_rows,
    load_dataset,
    load_passages,
    load_questions,
)
from mio_rag.errors import DataError
from mio_rag.measures import normalize_answer
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


@pytest.mark.parametrize("between", [",", ";"])
def test_questions_come_in_a_table(tmp_path: Path, between: str) -> None:
    table = tmp_path / "asked.csv"
    rows = [
        ["question", "answers", "evidence", "remark"],
        ["Is the Po long?", "yes| very ", '"It is long, said ""he"".|Yes."', "x"],
        ["What?", "", "", ""],
    ]
    table.write_text("\ufeff" + "\r\n".join(between.join(row) for row in rows) + "\r\n\r\n")
    wanted = (
        Question("1", "Is the Po long?", ("yes", "very"), evidence=('It is long, said "he".', "Yes.")),
        Question("2", "What?"),
    )
    assert load_questions(table) == read_questions(table) == wanted


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("frage,answers\nWho?,x\n", "no column question"),
        ("question,answer\nWho?,x\n", "line 2: 'answer' is not a field: did you mean 'answers'"),
        ("question,answers\nWho?,x\n ,y\n", "line 3: question '2' is empty"),
        ("question,answers\nWho?,x,y\n", "more cells than the head"),
        ("question,answers\n", "has no questions"),
        ("", "no column question"),
        ("question\nH\xf6he?\n", "not in UTF-8 .* save it as UTF-8"),
    ],
)
def test_what_is_wrong_with_a_table_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "asked.csv").write_text(text, encoding="latin-1")
    with pytest.raises(DataError, match=said):
        load_questions(tmp_path / "asked.csv")


def test_documents_with_questions_beside_them_are_a_set(tmp_path: Path) -> None:
    (tmp_path / "rivers").mkdir()
    (tmp_path / "rivers" / "po.txt").write_text("The Po is 652 kilometres long.", encoding="utf-8")
    (tmp_path / "README.md").write_text("A question about rivers.", encoding="utf-8")
    (tmp_path / "table.csv").write_text("a,b", encoding="utf-8")
    (tmp_path / "evaluation").mkdir()
    (tmp_path / "evaluation" / "run.json").write_text('{"data_sha256": ""}', encoding="utf-8")
    (tmp_path / "evaluation" / "report.html").write_text("<p>652 kilometres</p>", encoding="utf-8")
    alone = {one.source for one in load_dataset(tmp_path).passages}
    assert alone == {"README.md", "rivers/po.txt", "table.csv"}
    asked = {"id": "q", "question": "How long is the Po?", "gold_sources": ["rivers/po.txt"]}
    write(tmp_path, "questions.jsonl", [asked])
    data = load_dataset(tmp_path)
    assert {one.source for one in data.passages} == alone
    assert data.questions == (Question("q", "How long is the Po?", gold_sources=("rivers/po.txt",)),)
    assert {one.path: one.reason for one in data.left_out} == {
        "evaluation/report.html": "mio-rag wrote it: a report",
        "evaluation/run.json": "mio-rag wrote it: a report",
    }
    write(tmp_path, "questions.jsonl", [{**asked, "gold_sources": ["po.txt"]}])
    with pytest.raises(
        DataError, match=r"question 'q' names gold document 'po.txt', which is not in the corpus"
    ):
        load_dataset(tmp_path)


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


def test_damaged_archives(tmp_path: Path) -> None:
    write(tmp_path, "corpus.jsonl.gz", [{"id": str(k), "text": f"text {k * 7919}"} for k in range(500)])
    whole = (tmp_path / "corpus.jsonl.gz").read_bytes()
    flipped = []
    for position in (10, len(whole) // 2, len(whole) - 6):  # header of the block, its content, the checksum
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
        others = (Passage("o", "o", source="s"), Passage("u", "u", source="t"))
        return Dataset("d", (p, *others), (Question(**(asked | changes)),)).content_hash()

    variants = [
        digest(), digest(Passage("p", "text", "title", "other")), digest(id="r"), digest(text="!"),
        digest(answers=("b",)), digest(gold_ids=()), digest(gold_sources=("t",)), digest(choices=("d", "c")),
        digest(type="unanswerable"),
    ]  # fmt: skip
    assert len(set(variants)) == len(variants)
    assert digest() == variants[0]


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


def test_squad_with_its_unanswerable_questions() -> None:
    data = convert_rows("squad_v2", *PUBLISHED["squad_v2"])
    assert data.passages == (Passage("squad_v2-000000", "The Po is long.", "Po River", "Po River"),)
    assert data.questions == (
        Question("s1", "s1?", ("long", "very long"), ("squad_v2-000000",)),
        Question("s2", "s2?", type="unanswerable"),
    )


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_hotpot_through_the_library(tmp_path: Path, kind: str) -> None:
    library = pytest.importorskip("datasets")
    path = tmp_path / f"rows.{kind}"
    rows = PUBLISHED["hotpot_qa"][1]
    if kind == "json":
        write(tmp_path, path.name, rows)
    else:
        library.Dataset.from_list(rows).to_parquet(str(path))
    loaded = library.load_dataset(kind, data_files=str(path), split="train", cache_dir=str(tmp_path / "c"))
    data = convert_rows("hotpot_qa", (), loaded)
    assert [(p.title, p.text) for p in data.passages] == [
        ("Po", "The Po is long. Very long."), ("Arno", "The Arno is short."),
    ]  # fmt: skip
    (question,) = data.questions
    assert question.gold_ids == (data.passages[0].id, data.passages[1].id)
    assert (question.answers, question.type) == (("Po",), "comparison")


def test_natural_questions() -> None:
    data = convert_rows("natural_questions", *PUBLISHED["natural_questions"])
    assert [p.text for p in data.passages] == ["The Po is long ."]
    assert [(q.id, q.answers, q.gold_ids) for q in data.questions] == [
        ("n1", ("long",), (data.passages[0].id,)), ("n2", ("yes",), (data.passages[0].id,)),
    ]  # fmt: skip


def test_rag_mini() -> None:
    wikipedia = convert_rows("rag-mini-wikipedia", *PUBLISHED["rag-mini-wikipedia"])
    assert [p.id for p in wikipedia.passages] == ["0", "2"]
    assert wikipedia.questions == (Question("5", "Is the Po long?", ("yes",)),)
    bioasq = convert_rows("rag-mini-bioasq", *PUBLISHED["rag-mini-bioasq"])
    assert [p.id for p in bioasq.passages] == ["97", "99"]
    assert bioasq.questions[0].gold_ids == ("97", "99")


def test_passages_keep_their_metadata(tmp_path: Path) -> None:
    write(
        tmp_path, "notes.jsonl", [{"text": "Bread.", "metadata": {"tenant": "a", "size": 3}}, {"text": "Po."}]
    )
    found = load_passages(tmp_path / "notes.jsonl").passages
    assert [dict(one.metadata) for one in found] == [{"tenant": "a", "size": 3}, {}]
    write(tmp_path, "notes.jsonl", [{"text": "Bread.", "metadata": "a"}])
    with pytest.raises(DataError, match="'metadata' is not an object"):
        load_passages(tmp_path / "notes.jsonl")


FOLDER = Path(str(resources.files("mio_rag"))) / "data" / "demo"

#: Kinds of question whose first answer stands in the last gold passage and nowhere else.
EXACT = ("single", "bridge", "duplicate", "conflict")


def words(text: str) -> str:
    """Normalised, with a space at both ends, so that whole words can be looked for."""
    return f" {normalize_answer(text)} "


def read(passage: Passage) -> str:
    return words(f"{passage.title} {passage.text}")


def test_answers_stand_in_the_gold_passages(demo: Dataset) -> None:
    texts = {p.id: read(p) for p in demo.passages}
    for question in demo.questions:
        assert len(set(question.gold_ids)) == len(question.gold_ids), question.id
        assert set(question.gold_ids) <= set(texts), question.id
        assert bool(question.answers) == bool(question.gold_ids) == (question.type != "unanswerable")
        if not question.answers or question.answers[0] in ("yes", "no"):
            continue
        answer = words(question.answers[0])
        holders = {i for i, text in texts.items() if answer in text}
        assert holders & set(question.gold_ids), question.id
        if question.type in EXACT:
            assert holders == {question.gold_ids[-1]}, question.id
            assert not any(words(a) in words(question.text) for a in question.answers), question.id
