"""`mio_rag.evaluate`: methods of a collection, of your own, and the peers, in one call."""

import json
from pathlib import Path

import pytest

from mio_rag import Collection, evaluate, register_method
from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import InputError
from mio_rag.measures import Measure, find_measure
from mio_rag.methods import unregister_method
from mio_rag.pool import Pool
from mio_rag.retrieval import CorpusIndex, make_embedder
from tests.cli.running import here, only_object
from tests.stores.memory import Memory

FILES = {
    "travel.md": "# Allowance\n\nThe full-day allowance in Norway is 75 euros.\n\nIn Sweden it is 61 euros.",
    "pets.md": "# Pets\n\nDogs may come to the office on Fridays.",
}
ASKED = (
    '{"id": "a", "question": "What is the full-day allowance in Norway?", "answers": ["75 euros"], '
    '"evidence": ["The full-day allowance in Norway is 75 euros."]}\n'
    '{"id": "b", "question": "When may dogs come to the office?", "answers": ["Fridays"], '
    '"evidence": [{"text": "Dogs may come to the office on Fridays."}]}\n'
)
METHODS = ("mio", "topk", "adaptive-k")


@pytest.fixture
def handbook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MIO_RAG_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "handbook"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (tmp_path / "questions.jsonl").write_text(ASKED)
    return folder


def test_methods_of_your_own_stand_beside_the_others(handbook: Path) -> None:
    @register_method("reversed")
    def backwards(pool: Pool, budget: int) -> list[str]:
        return list(pool.ids)[::-1]

    asked = handbook.parent / "questions.jsonl"
    words = Measure(
        "passages_twice", "Twice", "passages, twice", "selection", "none", "passages", "this test",
        compute=lambda question, selection: 2.0 * len(selection.ids),
    )  # fmt: skip
    try:
        docs = Collection(handbook, embedder="tfidf")
        report = evaluate(docs, asked, methods=[*METHODS, "reversed"], budgets=(64,), measures=[words])
    finally:
        unregister_method("reversed")
    assert {row["error"] for row in report.rows} == {None}
    assert [row["passages_twice"] for row in report.rows] == [2 * len(r["selected_ids"]) for r in report.rows]
    assert find_measure("passages_twice") is None
    assert report.folder is None
    table = report.table().split("\n")
    assert table[0].split() == ["answer", "in", "against", "topk", "evidence", "text", "against", "topk",
                                "tokens", "tokens", "saved"]  # fmt: skip
    rows = {line.split()[0]: line for line in table[2:6]}
    assert set(rows) == {*METHODS, "reversed"}
    assert rows["mio"].split()[1:3] == ["100.0", "%"]
    assert "with 2 questions methods cannot be told apart" in report.table()


def test_a_budget_is_understood_and_unknown_arguments_are_told(handbook: Path) -> None:
    asked = handbook.parent / "questions.jsonl"
    given = {"methods": ["topk"], "embedder": "tfidf"}
    for budget in (64, [64]):
        report = evaluate(handbook, asked, budget=budget, **given)
        assert [entry["budget_tokens"] for entry in report.summary] == [64]
    for wrong, said in (
        ({"buget": 64}, "no argument 'buget': did you mean 'budget'"),
        ({"budget": 1.5}, "1.5"),
        ({"budget": "many"}, "budget_tokens='many'"),
        ({"model": "gpt-5"}, "did you mean 'openai:gpt-5'"),
    ):
        with pytest.raises(InputError, match=said):
            evaluate(handbook, asked, **given, **wrong)


def test_it_gives_what_the_command_gives(handbook: Path) -> None:
    asked = handbook.parent / "questions.jsonl"
    out = handbook.parent / "out"
    found = evaluate(
        str(handbook), asked, methods=[*METHODS, "exact"], budgets=(16, 64), embedder="tfidf", out=out
    )
    assert (out / "report.html").is_file()
    told = only_object(
        here("evaluate", handbook, "--questions", asked, "--methods", ",".join([*METHODS, "exact"]),
             "--budget", "16,64", "--embedder", "tfidf", "--out", handbook.parent / "o", "--json")
    )  # fmt: skip
    names = ("method", "budget_tokens", "answer_in_context", "evidence_covered", "tokens_used")
    assert [[e[n] for n in names] for e in found.summary] == [[e[n] for n in names] for e in told["summary"]]


def test_only_documents_that_meet_a_filter_are_found(handbook: Path) -> None:
    asked, out = handbook.parent / "questions.jsonl", handbook.parent / "out"
    given = {"methods": ["mio", "topk"], "budgets": (64,), "embedder": "tfidf"}
    report = evaluate(handbook, asked, where={"source": "travel*"}, **given)
    read = {one for row in report.rows for one in row["selected_ids"]}
    assert read
    assert all(one.startswith("travel.md") for one in read)
    assert report.run["settings"]["where"] == ["source = travel*"]
    command = ("evaluate", handbook, "--questions", asked, "--methods", "mio,topk", "--budget", 64,
               "--embedder", "tfidf", "--out", out, "--resume")  # fmt: skip
    told = only_object(here(*command, "-w", "source=travel*", "--json"))
    assert [e["evidence_covered"] for e in told["summary"]] == [e["evidence_covered"] for e in report.summary]
    assert "where" in here(*command).stderr
    with pytest.raises(InputError, match="no passage has 'sauce'"):
        evaluate(handbook, asked, where="sauce=x", **given)


def test_a_store_is_evaluated_by_what_it_returns(demo: Dataset, demo_index: CorpusIndex) -> None:
    docs = Collection(Memory(demo_index), embedder=demo_index.embedder)
    asked = [question for question in demo.questions if question.gold_ids][:4]
    report = evaluate(docs, asked, methods=["mio", "topk"], budgets=(200,), where={"source": "*"})
    assert {row["error"] for row in report.rows} == {None}
    assert max(row["gold_recall"] for row in report.rows) == 1.0
    with pytest.raises(InputError, match="a store has no questions"):
        evaluate(docs)


def test_the_command_evaluates_a_store(handbook: Path) -> None:
    lancedb = pytest.importorskip("lancedb")
    texts = [text.partition("\n\n")[2] for text in FILES.values()]
    rows = [
        {"id": str(k), "text": text, "source": name, "vector": list(map(float, vector))}
        for k, (name, text, vector) in enumerate(
            zip(FILES, texts, make_embedder("minilm").encode(texts), strict=True)
        )
    ]
    lancedb.connect(str(handbook.parent / "base")).create_table("rules", rows)
    url, out = f"lancedb:{handbook.parent / 'base'}/rules", handbook.parent / "out"
    command = ("evaluate", url, "--methods", "mio,topk", "--budget", "64", "--out", out, "--json")
    assert "give them with --questions" in here(*command).stderr
    told = only_object(here(*command, "--questions", handbook.parent / "questions.jsonl"))
    assert {entry["answer_in_context"]["mean"] for entry in told["summary"]} == {1.0}


def test_the_command_takes_plugins(handbook: Path) -> None:
    plugin = handbook.parent / "mine.py"
    plugin.write_text(
        "from mio_rag import register_method\n\n"
        "@register_method('first', needs=('embeddings',))\n"
        "def first(pool, budget):\n    return pool.ids[:1]\n"
        "@register_method('fails')\ndef fails(pool, budget):\n    return ['absent']\n"
    )
    asked = handbook.parent / "questions.jsonl"
    command = ("evaluate", handbook, "--questions", asked, "--embedder", "tfidf", "--methods", "mio,first",
               "--plugin", plugin, "--out", handbook.parent / "out")  # fmt: skip
    try:
        done = here(*command)
        assert done.returncode == 0, done.stderr
        assert "first" in done.stdout
        failing = here(*command[:-1], handbook.parent / "failing", "--methods", "mio,first,fails")
        assert failing.returncode == 1  # it failed on every question
        assert "fails failed 4x: method 'fails' returned 'absent'" in failing.stdout
        table = {e["method"]: e for e in json.loads((handbook.parent / "failing/summary.json").read_text())}
        assert [table[name]["optimal_share"] for name in ("mio", "first", "fails")] == [1.0, None, None]
        assert "gap" not in table["first"]
        listed = only_object(here("evaluate", "--list", "--json", "--plugin", plugin))
        assert "first" in listed["methods"]
        read = here(
            "select", handbook, "Dogs?", "--embedder", "tfidf", "--method", "first", "--plugin", plugin
        )
        assert read.returncode == 0
        plugin.write_text(plugin.read_text() + "\n# changed\n")
        again = here(*command, "--resume")
        assert again.returncode == 2
        assert "had another own_methods" in again.stderr
    finally:
        unregister_method("first")
        unregister_method("fails")
    assert here("evaluate", handbook, "--plugin", handbook / "absent.py").returncode == 2
