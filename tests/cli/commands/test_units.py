"""Sentences on the command line: from the index to what is read."""

import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.cli.running import here, only_object, refused


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("units")
    rows = [
        ("a", "Arno", "The Arno rises in Tuscany. It is 241 kilometres long. Bread is sold there."),
        ("b", "Tiber", "The Tiber is 406 kilometres long. Rome lies on the Tiber."),
        ("c", "Bread", "Flour and water make bread. Salt helps."),
    ]
    lines = [json.dumps({"id": i, "title": title, "text": text}) for i, title, text in rows]
    (folder / "corpus.jsonl").write_text("\n".join(lines), encoding="utf-8")
    question = {
        "id": "q",
        "question": "How long is the Tiber?",
        "answers": ["406 kilometres"],
        "gold_ids": ["b"],
    }
    (folder / "questions.jsonl").write_text(json.dumps(question), encoding="utf-8")
    out = folder / "index"
    told = only_object(here("index", folder, "--out", out, "--embedder", "tfidf", "--sentences", "--json"))
    assert (told["passages"], told["sentences"]) == (3, 7)
    return out


def test_sentences_are_selected_and_asked(cut: Path) -> None:
    asked = (cut, "How long is the Tiber?", "--units", "sentences", "--budget-tokens", 18, "--json")
    told = only_object(here("select", *asked))
    assert told["selected_ids"][0] == "b"
    assert "The Tiber is 406 kilometres long." in told["read"][0]["text"]
    assert {p["id"].partition("#s")[0] for p in told["passages"]} == {"a", "b", "c"}
    assert told["tokens_used"] <= 18
    said = here("select", *asked[:-1], "--explain").stdout
    assert re.search(r"^[12] sentences?, \d+ of 18 tokens", said, re.MULTILINE)
    answer = only_object(here("ask", *asked))
    assert "406" in answer["answer"]


def test_methods_are_compared_on_sentences(cut: Path, tmp_path: Path) -> None:
    done = here(
        "evaluate", cut.parent, "--index", cut, "--units", "sentences", "--methods", "fused,greedy,exact",
        "--budget-tokens", 18, "--out", tmp_path / "run",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = pq.read_table(tmp_path / "run" / "ledger.parquet").to_pylist()
    assert {row["method"]: row["gold_recall"] for row in rows} == {"fused": 1.0, "greedy": 1.0, "exact": 1.0}
    assert all(row["tokens_used"] <= 18 and row["answer_in_context"] for row in rows)
    said = "a gold passage counts as found if any of it is read"
    assert said in " ".join(done.stdout.split())
    assert said in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    whole = here("evaluate", cut.parent, "--index", cut, "--methods", "fused", "--out", tmp_path / "whole")
    assert said not in " ".join(whole.stdout.split())


def test_an_index_need_not_hold_them(index: Path) -> None:
    asked = ("select", index, "When was the Forth Bridge opened?", "--units")
    told = only_object(here(*asked, "sentences", "--budget-tokens", 60, "--json"))
    assert told["unit"] == "sentence"
    assert 0 < told["tokens_used"] <= 60
    (problem,) = refused(here(*asked, "words"))
    assert "units must be passages, sentences or auto" in problem


def test_without_a_word_the_room_decides(cut: Path, index: Path) -> None:
    """select and ask read what measured best, which depends on the budget; whoever says it is obeyed."""
    question = "When was the Forth Bridge opened?"
    for command in ("select", "ask"):
        asked = (command, index, question, "--json")
        by_itself = only_object(here(*asked))  # at the default budget
        named = only_object(here(*asked, "--units", "auto"))
        assert by_itself["unit"] == "sentence"
        for key in ("selected_ids", "objective", "tokens_used"):
            assert by_itself[key] == named[key], (command, key)
        assert only_object(here(*asked, "--budget-tokens", 2000))["unit"] == "passage"
        assert only_object(here(*asked, "--units", "passages"))["unit"] == "passage"
        assert only_object(here(*asked, "--max-per-source", 2))["unit"] == "passage"


def test_whoever_decides_instead_is_given_passages(index: Path, tmp_path: Path) -> None:
    question = "When was the Forth Bridge opened?"
    for command in (
        ("select", index, question, "--strategies", "raw"),
        ("ask", index, question, "--controller", "fixed-1"),
        ("ask", index, question, "--strategies", "raw"),
        ("ask", index, question, "--workflow", "plain"),
    ):
        assert only_object(here(*command, "--json"))["unit"] == "passage", command
    whole = only_object(here("frontier", "query", index, question, "--json"))
    assert whole["budget"]["certified"]
    tuned = tmp_path / "tuned.toml"
    tuned.write_text("token_price = 0.0001\n[measured]\nquestions = 3\n", encoding="utf-8")
    own = tmp_path / "own.toml"
    own.write_text("token_price = 0.0001\n", encoding="utf-8")
    for config, unit in ((tuned, "passage"), (own, "sentence")):
        assert only_object(here("select", index, question, "--config", config, "--json"))["unit"] == unit


def test_an_evaluation_says_that_ask_would_read_otherwise(index: Path, tmp_path: Path) -> None:
    said = "To measure what ask reads, add exact:auto to --methods"
    asked = ("evaluate", "demo", "--index", index, "--limit", 2, "--generator", "none", "--methods")
    for number, (told, options) in enumerate(
        (
            (True, ("exact",)),
            (True, ("exact", "--budget-tokens", "128,4000")),
            (False, ("exact", "--budget-tokens", "4000")),
            (False, ("fused",)),
            (False, ("exact", "--units", "passages")),
            (False, ("exact", "--units", "auto")),
            (False, ("exact,exact:auto",)),
            (False, ("exact", "--max-passages", 3)),
            (False, ("exact", "--preset", "raw")),
        )
    ):
        done = here(*asked, *options, "--out", tmp_path / str(number))
        assert done.returncode == 0, done.stderr
        assert (said in " ".join(done.stdout.split())) == told, options


def test_passages_and_sentences_stand_side_by_side(index: Path, tmp_path: Path) -> None:
    asked = ("evaluate", "demo", "--index", index, "--limit", 6, "--generator", "none", "--budget-tokens")
    done = here(*asked, "100,3000", "--methods", "fused,exact,exact:auto,exact:sentences,exact:passages",
                "--out", tmp_path / "run")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "(by exact:auto and exact:sentences)" in " ".join(done.stdout.split())
    rows = pq.read_table(tmp_path / "run" / "ledger.parquet").to_pylist()
    read = {
        (r["method"], r["budget_tokens"], r["question_id"]): (r["objective"], r["tokens_used"]) for r in rows
    }
    for method, budget, question in read:
        same = {"exact": "exact:passages", "exact:auto": "exact:sentences" if budget == 100 else "exact"}
        if method in same:
            assert read[method, budget, question] == read[same[method], budget, question]
    tested = json.loads((tmp_path / "run" / "comparisons.json").read_text(encoding="utf-8"))
    by = {c["method"]: {d["measure"] for d in tested if d["method"] == c["method"]} for c in tested}
    assert "gold_recall" in by["exact"]
    assert by["exact:auto"]
    assert "gold_recall" not in by["exact:auto"] | by["exact:sentences"]  # of a part it does not compare
    assert any(read["exact", 100, q] != read["exact:sentences", 100, q] for _, _, q in read)
    problems = refused(here(*asked, 100, "--methods", "exact:words,exact:sentences", "--max-passages", 2,
                            "--out", tmp_path / "none"))  # fmt: skip
    assert "method 'exact:words': units must be passages" in problems[0]


def test_what_the_certificate_counts_is_told(index: Path) -> None:
    """A tokenizer may count the text that is read lower than its parts, by which the program goes."""
    apart, why = set(), "sentences, since a passage that is worth its price does not fit"
    for question in (
        "How tall is the tower of the Bell Rock Lighthouse?",
        "When was the Forth Bridge opened?",
    ):
        for budget in (60, 150, 256):
            asked = ("select", index, question, "--budget-tokens", budget)
            told = only_object(here(*asked, "--json"))
            assert told["tokens_used"] <= min(budget, told["certified_tokens"])
            assert told["certified_tokens"] <= told["certified_budget"]
            said = f"of at most {told['certified_budget']} tokens, counted part by part"
            assert f"no other choice {said}, is worth more" in " ".join(here(*asked).stdout.split())
            explained = " ".join(here(*asked, "--explain").stdout.split())
            assert f"the certificate is for choices {said}" in explained
            apart.add(told["certified_tokens"] > told["tokens_used"])
            assert any(why in note for note in told["notes"])
            whole = here(*asked, "--units", "passages").stdout
            assert "proven optimal: no other choice" in whole  # nothing is shared
    assert True in apart


def test_a_sentence_that_stands_out_and_does_not_fit_is_named(index: Path) -> None:
    asked = ("select", index, "In what year was the lamp of the Bell Rock Lighthouse lit, and who built it?")
    small, enough = (only_object(here(*asked, "--budget-tokens", b, "--json")) for b in (14, 100))
    first = max(enough["passages"], key=lambda one: one["relevance"])
    assert first["tokens"] > 14
    assert any(f"'{first['id']}', the most likely to be needed" in note for note in small["notes"])
    assert not any("most likely to be needed" in note for note in enough["notes"])


def test_what_must_be_read_is_read_whole(index: Path) -> None:
    """All sentences of a passage count more, one by one, than the passage: at its size both are feasible."""
    question = "How tall is the tower of the Bell Rock Lighthouse?"
    asked = ("select", index, question, "--must-include", "demo-028", "--budget-tokens", 80)
    for options, unit in (((), "passage"), (("--units", "sentences"), "sentence")):
        told = only_object(here(*asked, *options, "--json"))
        assert (told["status"], told["unit"], told["selected_ids"]) == ("optimal", unit, ["demo-028"])
        assert told["tokens_used"] <= 80
    asked = ("ask", index, question, "--must-include", "demo-028", "--budget-tokens", 30, "--json")
    assert "'demo-028' in; a budget of 80 tokens would do" in " ".join(refused(here(*asked), 1))


def test_where_nothing_can_be_chosen_it_is_said_of_what(index: Path) -> None:
    asked = ("select", index, "How tall is the tower of the Bell Rock Lighthouse?", "--budget-tokens")
    said = here(*asked, 5).stdout
    assert re.search(r"the shortest sentence has \d+ tokens, the budget is 5: raise the budget", said)
    assert "no sentence is worth its price" in here(*asked, 12).stdout
    pool = only_object(here(*asked, 256, "--pool", 3, "--link-hops", 0, "--units", "passages", "--json"))
    out = [part for p in pool["passages"] for part in ("--must-exclude", p["id"])]
    done = here(*asked, 256, "--pool", 3, "--link-hops", 0, *out)
    assert (done.returncode, "every passage of the pool is excluded" in done.stdout) == (0, True)
    few = only_object(here(*asked, 256, "--pool", 8, "--link-hops", 0, "--solver", "exhaustive", "--json"))
    assert (few["status"], few["unit"]) == ("optimal", "passage")


def test_a_kept_answer_names_the_titles_of_what_was_read(index: Path, tmp_path: Path) -> None:
    asked = ("ask", index, "When was the Forth Bridge opened?", "--cache", tmp_path / "c.sqlite")
    assert only_object(here(*asked, "--json"))["unit"] == "sentence"
    assert re.search(r"read then: demo-\d+ \(", here(*asked).stdout)
