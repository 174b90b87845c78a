"""Documents that change while they are served, and filters on them."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from fastapi.testclient import TestClient

from mio_rag import InputError
from mio_rag.filters import Filter
from mio_rag.generation import make_generator
from mio_rag.service.app import create_app
from mio_rag.service.documents import Documents
from mio_rag.service.keys import Keys, new_key
from mio_rag.session.cache import AnswerCache
from mio_rag.sources import Building, open_source

ASKED = {"question": "How tall is the tower of Skerryvore?", "deadline_seconds": 20}
TFIDF = Building("tfidf")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MIO_RAG_CACHE", str(tmp_path / "cache"))
    made = tmp_path / "towers"
    made.mkdir()
    (made / "a.md").write_text("# Skerryvore\n\nThe tower of Skerryvore is 48 metres tall.\n")
    (made / "b.md").write_text(
        "---\ntenant: b\n---\n# Bell Rock\n\nThe tower of Bell Rock is 35 metres tall.\n"
    )
    return made


@pytest.fixture
def documents(folder: Path) -> Documents:
    return Documents(str(folder), TFIDF, seconds=0.0)


@pytest.fixture
def client(documents: Documents) -> Iterator[TestClient]:
    with TestClient(create_app(documents, make_generator("extractive"))) as started:
        yield started


def until(client: TestClient, holds: Any) -> dict[str, Any]:
    """The first answer of which something holds."""
    for _ in range(300):
        got = client.post("/ask", json=ASKED)
        assert got.status_code == 200, got.text
        if holds(got.json()):
            return dict(got.json())
        time.sleep(0.02)
    raise AssertionError(got.json())


def test_changed_added_and_removed_files_are_noticed(client: TestClient, folder: Path) -> None:
    assert "48" in until(client, lambda got: True)["answer"]
    (folder / "a.md").write_text("# Skerryvore\n\nThe tower of Skerryvore is 49 metres tall.\n")
    until(client, lambda got: "49" in got["answer"])
    (folder / "c.md").write_text("# Skerryvore, new\n\nNothing else.\n")
    until(client, lambda got: client.get("/health").json()["passages"] == 3)
    (folder / "a.md").unlink()
    until(client, lambda got: "49" not in got["answer"])


def test_documents_that_cannot_be_read_leave_the_old_ones(client: TestClient, folder: Path) -> None:
    until(client, lambda got: True)
    for file in folder.iterdir():
        file.unlink()
    until(client, lambda got: client.get("/health").json()["problem"])
    assert "48" in client.post("/ask", json=ASKED).json()["answer"]
    (folder / "a.md").write_text("# Skerryvore\n\nThe tower of Skerryvore is 50 metres tall.\n")
    until(client, lambda got: "50" in got["answer"])
    assert client.get("/health").json()["problem"] is None


def test_no_request_is_lost_while_documents_change(client: TestClient, folder: Path) -> None:
    with ThreadPoolExecutor(3) as threads:
        asked = [threads.submit(client.post, "/ask", json=ASKED) for _ in range(24)]
        for k in range(10):
            text = f"# Skerryvore\n\nThe tower of Skerryvore is {k + 50} metres tall.\n"
            (folder / "a.md").write_text(text)
            time.sleep(0.02)
    assert [one.result().status_code for one in asked] == [200] * 24
    until(client, lambda got: "59" in got["answer"])


def test_a_rebuilt_index_is_taken_over(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "index"
    open_source(folder, TFIDF, out=out)
    documents = Documents(str(out), seconds=0.0)
    with TestClient(create_app(documents, make_generator("extractive"))) as client:
        assert "48" in until(client, lambda got: True)["answer"]
        (folder / "a.md").write_text("# Skerryvore\n\nThe tower of Skerryvore is 51 metres tall.\n")
        open_source(folder, TFIDF, out=out, overwrite=True)
        until(client, lambda got: "51" in got["answer"])


def test_stored_answers_are_those_of_the_documents(
    documents: Documents, folder: Path, tmp_path: Path
) -> None:
    cache = AnswerCache.of(tmp_path / "a.sqlite", documents.index())
    with TestClient(create_app(documents, make_generator("extractive"), cache=cache)) as client:
        until(client, lambda got: got["cached"] is not None)
        (folder / "a.md").write_text("# Skerryvore\n\nThe tower of Skerryvore is 52 metres tall.\n")
        until(client, lambda got: "52" in got["answer"])


@pytest.mark.parametrize("path", ["/select", "/ask"])
def test_a_filter_restricts_what_is_read(client: TestClient, path: str) -> None:
    def sources(**given: Any) -> set[str]:
        got = client.post(path, json={**ASKED, **given})
        assert got.status_code == 200, got.text
        return {part["source"] for part in got.json()["parts"]}

    assert sources(where="source=b*") == {"b.md"}
    assert sources(where={"tenant": "b"}) == {"b.md"}
    assert sources(where=["type=md", "source!=b.md"]) == {"a.md"}
    for where, words in (
        ({"tenent": "b"}, "no passage has 'tenent' to filter by: did you mean 'tenant'?"),
        ("tenant=c", "no passage of"),
        ({"date": {"above": 3}}, "'above' is no operator"),
    ):
        got = client.post(path, json={**ASKED, "where": where})
        assert got.status_code == 400
        assert words in got.json()["error"]["message"]


def test_documents_that_lack_a_key_are_named_but_not_those_of_others(folder: Path, tmp_path: Path) -> None:
    (folder / "a.md").write_text("---\nsalary: 9\n---\n# Skerryvore\n\nIt is 48 metres tall.\n")
    (folder / "c.md").write_text("---\ntenant: b\nyear: 1811\n---\n# Lamps\n\nThe lamps were lit in 1811.\n")
    new, table = new_key("b")
    keys = tmp_path / "keys.toml"
    keys.write_text(f'{table}where = "tenant=b"\n')
    app = create_app(Documents(str(folder), TFIDF), make_generator("extractive"), keys=Keys(keys, "k" * 20))
    with TestClient(app) as client:

        def asked(key: str, path: str, where: str | None) -> Any:
            head = {"Authorization": f"Bearer {key}"}
            return client.post(path, json={**ASKED, "where": where}, headers=head).json()

        def notes(key: str, path: str, where: str | None) -> list[str]:
            told = asked(key, path, where)["notes"]
            return [one["text"][:23] for one in told if one["code"] == "filter_key_missing"]

        for path in ("/select", "/ask"):
            assert notes("k" * 20, path, "year=1811") == ["2 of 3 documents have n"]
            assert notes(new, path, "year=1811") == ["1 of 2 documents has no"]
            assert notes(new, path, None) == []
        for key, known in (("k" * 20, True), (new, False)):
            assert ("'salary'" in asked(key, "/select", "salery=1")["error"]["message"]) is known


def test_files_that_could_not_be_read_are_told_of_but_not_those_of_others(
    folder: Path, tmp_path: Path
) -> None:
    (folder / "broken.docx").write_bytes(b"no archive")
    (own, own_table), (other, other_table) = new_key("own"), new_key("other")
    keys = tmp_path / "keys.toml"
    keys.write_text(f'{own_table}where = "source!=b.md"\n{other_table}where = "source=*.md"\n')
    app = create_app(Documents(str(folder), TFIDF), make_generator("extractive"), keys=Keys(keys))
    asked = {**ASKED, "question": "How do I bake bread without yeast?"}
    with TestClient(app) as client:
        for key, told in ((own, True), (other, False)):
            head = {"Authorization": f"Bearer {key}"}
            for path in ("/select", "/ask"):
                notes = client.post(path, json=asked, headers=head).json()["notes"]
                assert ("unread_files" in [one["code"] for one in notes]) is told


def test_a_filter_of_the_service_holds_for_everything(folder: Path) -> None:
    documents = Documents(str(folder), TFIDF, where=Filter("tenant=b"))
    with TestClient(create_app(documents, make_generator("extractive"))) as client:
        got = client.post("/select", json=ASKED).json()
        assert {part["source"] for part in got["parts"]} <= {"b.md"}
        assert client.post("/select", json={**ASKED, "where": "source=a.md"}).status_code == 400
    with pytest.raises(InputError, match="meets the filter"):
        Documents(str(folder), TFIDF, where=Filter("tenant=c"))
