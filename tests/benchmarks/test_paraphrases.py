"""The study of paraphrases: from its command to JSON and table."""

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import main


def test_a_report_of_held_and_written_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Every question of four is said to be the first one's rewording; the others lose their names.
    data = tmp_path / "data" / "made"
    data.mkdir(parents=True)
    (data / "corpus.jsonl").write_text('{"id": "p", "text": "The Po and the Arno."}\n')
    texts = (
        ("Which river is longest?", "Po"),
        ("What is the longest river?", "the Po"),
        ("Where does Arno end?", "Pisa"),
        ("Who knows Bo?", "Cy"),
    )
    asked = [
        {"id": str(k), "question": text, "answers": [answer], "gold_ids": ["p"]}
        for k, (text, answer) in enumerate(texts)
    ]
    (data / "questions.jsonl").write_text("".join(json.dumps(one) + "\n" for one in asked))
    replies = tmp_path / "replies.json"
    replies.write_text(json.dumps({str(k): "Name the longest of rivers!" for k in range(4)}))
    given = ["--data", str(tmp_path / "data"), "--embedder", "tfidf", "--out", str(tmp_path / "p.json")]
    assert main(["paraphrases", *given, "--generator", f"scripted:{replies}", "--questions", "9"]) == 0
    report = json.loads((tmp_path / "p.json").read_text())
    found = report["sets"]["made"]
    assert [row["asked"] for row in found["held"]] == [2] * 10  # the two rivers answer each other
    assert found["left_out"] == {"lost": 2}
    assert [row["asked"] for row in found["written"]] == [2] * 10
    assert report["together"]["held"][0]["hits"] == found["held"][0]["hits"]
    assert "Name the" not in json.dumps(report)  # no texts
    assert "rewordings by scripted" in capsys.readouterr().out
    assert "paraphrases held" in (tmp_path / "p.txt").read_text()


def test_bad_input(tmp_path: Path) -> None:
    assert main(["paraphrases", "--questions", "0", "--out", str(tmp_path / "p.json")]) == 2
    assert not (tmp_path / "p.json").exists()


def test_the_committed_report_names_what_it_rests_on() -> None:
    report = json.loads((Path(__file__).parents[2] / "benchmarks/results/paraphrases.json").read_text())
    assert {"seed", "embedder", "generator", "versions", "sets"} <= set(report)
    assert all(found["data_sha256"] for found in report["sets"].values())
