"""Published question sets, each in a small file written by hand in its published layout."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from mio_rag.cli.app import app
from mio_rag.corpora.load import closed_book, load_dataset, load_questions
from mio_rag.corpora.published import load_published, read_published
from mio_rag.errors import DataError
from mio_rag.types import Passage, Question

TWO_WIKI = [
    {
        "_id": "a1", "type": "comparison", "question": "Which is longer, the Po or the Arno?", "answer": "Po",
        "context": [
            ["Po", ["The Po is 652 km long. ", " It ends in the sea."]], ["Arno", ["241 km."]], ["X", []],
        ],
        "supporting_facts": [["Po", 0], ["Arno", 0], ["Po", 1], ["absent", 0]],
        "evidences": [["Po", "length", "652"]],
    },
    {"_id": "a2", "type": "inference", "question": "Where?", "context": [["Arno", ["241 km."]]]},
]  # fmt: skip

MUSIQUE = {
    "id": "2hop__1_2", "question": "Where does it end?", "answer": "the sea",
    "answer_aliases": ["sea", "the sea"], "answerable": True, "question_decomposition": [],
    "paragraphs": [
        {"idx": 0, "title": "Po", "paragraph_text": "It ends in the sea.", "is_supporting": True},
        {"idx": 1, "title": "Arno", "paragraph_text": "Florence.", "is_supporting": False},
    ],
}  # fmt: skip

TRIVIA = {
    "Data": [
        {
            "Question": "Which river flows through Florence?", "QuestionId": "tc_1", "QuestionSource": "x",
            "Answer": {"Value": "Arno", "Aliases": ["Arno", "River Arno"], "NormalizedAliases": ["arno"]},
            "EntityPages": [{"DocSource": "TagMe", "Filename": "Florence.txt", "Title": "Florence"}],
            "SearchResults": [
                {"Filename": "1/1_2.txt", "Title": "Rivers", "Rank": 0},
                {"Filename": "9/absent.txt", "Title": "?"},
            ],
        },
        {"Question": "Who?", "QuestionId": "tc_2", "EntityPages": [], "SearchResults": []},
    ],
    "Domain": "Wikipedia", "Version": 1.0,
}  # fmt: skip

POPQA = (
    "id\tsubj\tprop\tobj\tsubj_id\tquestion\tpossible_answers\n"
    '4222362\tGeorge\toccupation\tpolitician\t1\tWhat is George\'s occupation?\t"[""politician"", ""pol""]"\n'
)
ORAN = (
    '["What is SRB?", ["1. System Bearer", "2. 5. generation", "3. SRB"], "2"]\n'
    '["", ["1. a", "2. b"], "1"]\n["Which?", [], "1"]\n["Which one?", ["1. a", "2. b"], "5"]\n'
)
SEC = (
    "Question,Source Docs,Question Type,Source Chunk Type,Answer\n"
    'How did sales change?,*AAPL*,Multi-Doc RAG,Table,"They rose.\n\nSOURCE(S): 2023 Q1 AAPL.pdf"\n'
    'And margins?,"*2022 Q3 AAPL*, *MSFT*",Single-Doc Multi-Chunk RAG,Text,They fell.\n'
)


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["2wikimultihop", "hotpotqa"])
def test_questions_with_supporting_facts(tmp_path: Path, name: str) -> None:
    data = load_dataset(f"{name}:{write(tmp_path / 'dev.json', TWO_WIKI)}")
    first, second = f"{name}-000000", f"{name}-000001"
    assert data.name == name
    assert data.passages == (
        Passage(first, "The Po is 652 km long. It ends in the sea.", "Po", "Po"),
        Passage(second, "241 km.", "Arno", "Arno"),
    )
    assert data.questions == (
        Question("a1", str(TWO_WIKI[0]["question"]), ("Po",), (first, second), type="comparison"),
        Question("a2", "Where?", type="inference"),  # a test file tells neither answer nor facts
    )


def test_musique_and_its_unanswerable_twins(tmp_path: Path) -> None:
    twin = MUSIQUE | {"answerable": False, "paragraphs": MUSIQUE["paragraphs"][1:]}  # type: ignore[index]
    lines = "\n".join(json.dumps(row) for row in (MUSIQUE, twin)) + "\n"
    packed = tmp_path / "dev.jsonl.gz"
    packed.write_bytes(gzip.compress(lines.encode()))
    for path in (packed, write(tmp_path / "dev.jsonl", lines)):
        data = load_dataset(f"musique:{path}")
        assert [p.title for p in data.passages] == ["Po", "Arno"]
        assert data.questions == (
            Question("2hop__1_2", "Where does it end?", ("the sea", "sea"), ("musique-000000",), type="2hop"),
            Question("2hop__1_2-unanswerable", "Where does it end?", type="unanswerable"),
        )


def test_triviaqa_with_its_documents(tmp_path: Path) -> None:
    path = write(tmp_path / "qa" / "wikipedia-dev.json", TRIVIA)
    write(tmp_path / "evidence/wikipedia/Florence.txt", "Florence lies on the river\nArno.")
    write(tmp_path / "evidence/web/1/1_2.txt", "The Po. The Tiber.")
    data = load_dataset(f"triviaqa:{path}")
    assert data.passages == (
        Passage(
            "wikipedia/Florence.txt#0", "Florence lies on the river Arno.", "Florence",
            "wikipedia/Florence.txt",
        ),
        Passage("web/1/1_2.txt#0", "The Po. The Tiber.", "Rivers", "web/1/1_2.txt"),
    )  # fmt: skip
    assert data.questions[0].answers == ("Arno", "River Arno")
    assert data.questions[0].gold_sources == ("wikipedia/Florence.txt",)  # the other document never says it
    assert data.questions[1] == Question("tc_2", "Who?")
    assert [item.path for item in data.left_out] == ["evidence/web/9/absent.txt"]


def test_triviaqa_reads_nothing_outside_of_its_evidence(tmp_path: Path) -> None:
    foreign = json.loads(json.dumps(TRIVIA))
    foreign["Data"][0]["EntityPages"][0]["Filename"] = "../../secret.txt"
    write(tmp_path / "secret.txt", "secret")
    (tmp_path / "evidence").mkdir()
    with pytest.raises(DataError, match=r"\.\./\.\./secret\.txt', which lies outside"):
        load_dataset(f"triviaqa:{write(tmp_path / 'qa' / 'dev.json', foreign)}")


def test_popqa(tmp_path: Path) -> None:
    (question,) = load_questions(f"popqa:{write(tmp_path / 'popQA.tsv', POPQA)}")
    asked = "What is George's occupation?"
    assert question == Question("4222362", asked, ("politician", "pol"), type="occupation")


def test_oran_bench_leaves_out_what_is_damaged_and_says_it(tmp_path: Path) -> None:
    write(tmp_path / "Benchmark" / "fin_E.json", ORAN)
    write(tmp_path / "Benchmark" / "fin_H.json", '["Hard?", ["1.  yes", "2. no"], "1"]\n')
    data = closed_book(f"oran-bench:{tmp_path}")
    assert data.questions == (
        Question(
            "oran-bench-fin_E-1", "What is SRB?", ("5. generation",),
            choices=("System Bearer", "5. generation", "SRB"), type="easy",
        ),
        Question("oran-bench-fin_H-1", "Hard?", ("yes",), choices=("yes", "no"), type="hard"),
    )  # fmt: skip
    assert [(item.path, item.reason.split(",")[0]) for item in data.left_out] == [
        ("fin_E.json, line 2", "the question is blank"),
        ("fin_E.json, line 3", "it has 0 options with text"),
        ("fin_E.json, line 4", "the right option is said to be '5' of 2"),
    ]
    alone = load_questions(f"oran-bench:{tmp_path / 'Benchmark' / 'fin_H.json'}")
    assert alone == data.questions[1:]


def test_sec_10q(tmp_path: Path) -> None:
    folder = write(tmp_path / "v1" / "qna_data.csv", SEC).parent
    for name in ("2022 Q3 AAPL", "2023 Q1 AAPL", "2023 Q1 MSFT", "2023 Q1 NVDA"):
        write(folder / "docs" / f"{name}.txt", f"Report {name}.")
    data = load_dataset(f"sec-10q:{folder}")
    assert data.passages[0].source == "2022 Q3 AAPL.txt"
    assert data.questions == (
        Question(
            "sec-10q-001", "How did sales change?", ("They rose.",),
            gold_sources=("2023 Q1 AAPL.txt",), type="Multi-Doc RAG",
        ),
        Question(
            "sec-10q-002", "And margins?", ("They fell.",),
            gold_sources=("2022 Q3 AAPL.txt", "2023 Q1 MSFT.txt"), type="Single-Doc Multi-Chunk RAG",
        ),
    )  # fmt: skip
    write(folder / "qna_data.csv", SEC.replace("*2022 Q3 AAPL*, *MSFT*", "*TSLA*"))
    with pytest.raises(DataError, match=r"qna_data\.csv, line 5: 'Source Docs' is \*TSLA\*"):
        load_dataset(f"sec-10q:{folder}")


@pytest.mark.parametrize(
    ("source", "content", "said"),
    [
        ("musique", "{oops\n", "dev, line 1: the line"),
        ("musique", json.dumps(MUSIQUE | {"paragraphs": None}), "'paragraphs' is missing"),
        ("musique", json.dumps(TWO_WIKI[0]), "'paragraphs' is missing"),
        ("musique", "", "holds no questions"),
        ("2wikimultihop", json.dumps(MUSIQUE), "expected a list of questions"),
        ("2wikimultihop", json.dumps([MUSIQUE]), "'context' is missing"),
        ("hotpotqa", json.dumps([TWO_WIKI[0] | {"context": {"title": ["Po"]}}]), "'context' is not a list"),
        ("triviaqa", json.dumps(TWO_WIKI), 'an object with a list "Data"'),
        ("triviaqa", json.dumps({"Data": [{"Question": "?"}]}), "'QuestionId' is missing"),
        ("popqa", POPQA.replace("\t", ","), "no column id, prop, question, possible_answers"),
        ("popqa", POPQA.replace('""pol""]', '""pol""'), "possible_answers"),
        ("bamboogle", "q,a\nx,y\n", "has no column Question, Answer"),
        ("bamboogle", 'Question,Answer\n"open,1\n', "is no line of a table"),
        ("bamboogle", "Question,Answer\n ,James\n", "is empty"),
        ("oran-bench", '{"question": "?"}\n', "line 1: no question of this set"),
        ("oran-bench", "[1, 2", "no question of this set"),
    ],
)
def test_a_foreign_file_is_refused_with_what_was_expected(
    tmp_path: Path, source: str, content: str, said: str
) -> None:
    with pytest.raises(DataError) as raised:
        read_published(f"{source}:{write(tmp_path / 'dev', content)}")
    assert said in str(raised.value)


def test_rag_mini_is_read_from_tables(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "document.csv").write_text('passage,id\nThe Po is long.,7\nnan,8\n"Two, parts",9\n')
    (tmp_path / "q_and_a.csv").write_text('question,answer,id,relevant_passage_ids\nWhich?,Po,0,"[7, 8]"\n')
    (tmp_path / "readme.txt").write_text("x")
    found = load_published(f"rag-mini-bioasq:{tmp_path}")
    assert [p.id for p in found.passages] == ["7", "9"]
    assert found.questions == (Question("0", "Which?", ("Po",), ("7",)),)
    table = pyarrow.table({"passage": ["a"], "id": [1]})
    (tmp_path / "parts" / "passages.parquet").mkdir(parents=True)  # as they are published
    pyarrow.parquet.write_table(table, tmp_path / "parts" / "passages.parquet" / "part.0.parquet")
    (tmp_path / "parts" / "test.jsonl").write_text('{"question": "W?", "answer": "a", "id": 3}')
    other = load_published(f"rag-mini-wikipedia:{tmp_path / 'parts'}")
    assert (other.passages, other.questions[0].answers) == ((Passage("1", "a"),), ("a",))


def test_natural_questions_in_lines(tmp_path: Path) -> None:
    file = tmp_path / "nq.jsonl.gz"
    rows = [
        {"question": "who", "answers": ["A"], "ctxs": [{"title": "T", "text": "A.", "isgold": True},
                                                       {"title": "U", "text": "B.", "isgold": False}]},
        {"question": "what", "answer": ["B"]},
    ]  # fmt: skip
    file.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    found = load_published(f"nq:{file}")
    assert len(found.passages) == 2
    assert found.questions[0].gold_ids == (found.passages[0].id,)
    assert found.questions[1] == Question("nq-2", "what", ("B",))


def test_a_published_set_is_indexed_and_evaluated_by_name(tmp_path: Path) -> None:
    source = f"2wikimultihop:{write(tmp_path / 'dev.json', TWO_WIKI)}"
    command = [
        "evaluate", source, "--embedder", "tfidf", "--methods", "topk", "--json",
        "--out", str(tmp_path / "run"),
    ]  # fmt: skip
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (run["dataset"], run["questions"], run["passages"]) == ("2wikimultihop", 2, 2)
    bad = CliRunner().invoke(app, ["index", f"musique:{tmp_path / 'dev.json'}", "--out", str(tmp_path / "i")])
    assert bad.exit_code == 2
