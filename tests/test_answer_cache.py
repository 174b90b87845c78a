"""The answer cache: what it finds, what it never finds, what it lets go, and which files it touches."""

import sqlite3
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import InputError
from mio_rag.retrieval import CorpusIndex, TfidfEmbedder
from mio_rag.session.cache import AnswerCache, CacheSettings, digest_of
from mio_rag.types import Passage

INDEX, OTHER = "aa" * 32, "bb" * 32
SCOPE = digest_of({"budget": 256, "model": "m"})


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def opened(path: Path, corpus: str = INDEX, clock: Clock | None = None, **settings: object) -> AnswerCache:
    held = CacheSettings(**settings)  # type: ignore[arg-type]
    return AnswerCache(path / "a.sqlite", corpus, held, clock or Clock())


@pytest.mark.parametrize(
    ("question", "same"),
    [
        ("Who baked?", True), ("  who \n baked", True), ("WHO BAKED ?!", True), ("Who baked it?", False),
        ("Who bake?", False), ("baked who", False), ("Who, baked", False),
    ],
)  # fmt: skip
def test_the_same_question_is_found_however_it_is_written(tmp_path: Path, question: str, same: bool) -> None:
    cache = opened(tmp_path)
    cache.put("Who baked?", SCOPE, {"answer": "Ada"})
    found = cache.get(question, SCOPE)
    assert (found is not None) is same
    if found is not None:
        assert (found.answer, found.question) == ({"answer": "Ada"}, "Who baked?")


def test_another_setting_model_index_or_version_finds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = opened(tmp_path)
    cache.put("q", SCOPE, {"answer": "a"})
    assert cache.get("q", digest_of({"budget": 255, "model": "m"})) is None
    assert cache.get("q", digest_of({"budget": 256, "model": "n"})) is None
    monkeypatch.setattr("mio_rag.defaults.__version__", "0.0.0")
    assert cache.get("q", digest_of({"budget": 256, "model": "m"})) is None
    assert len(cache) == 1
    assert opened(tmp_path).get("q", SCOPE) is not None  # it is kept
    assert len(opened(tmp_path, OTHER)) == 0  # the index is another one: dropped
    assert opened(tmp_path).get("q", SCOPE) is None


def test_old_answers_are_not_given_and_go(tmp_path: Path) -> None:
    clock = Clock()
    cache = opened(tmp_path, clock=clock, days=1)
    cache.put("Who baked?", SCOPE, {"answer": "a"})
    clock.now += 86_000
    found = cache.get("Who baked?", SCOPE)
    assert found is not None
    assert found.age_seconds == 86_000
    clock.now += 401
    assert cache.get("Who baked?", SCOPE) is None
    cache.put("When?", SCOPE, {"answer": "b"})
    assert len(cache) == 1


def test_too_many_answers_push_out_what_was_not_asked_for_longest(tmp_path: Path) -> None:
    clock = Clock()
    cache = opened(tmp_path, clock=clock, entries=2)
    for name in ("a", "b"):
        cache.put(name, SCOPE, {"answer": name})
        clock.now += 1
    assert cache.get("a", SCOPE) is not None
    clock.now += 1
    cache.put("c", SCOPE, {"answer": "c"})
    assert [name for name in "abc" if cache.get(name, SCOPE)] == ["a", "c"]


def test_a_cache_of_another_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    opened(tmp_path).put("q", SCOPE, {"answer": "old"})
    path = tmp_path / "a.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 7")
    before = path.read_bytes()
    with pytest.raises(InputError, match="no answer cache of this version"):
        opened(tmp_path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"my thesis", b"SQLite format 3\0" + b"x" * 100])
def test_a_file_that_is_no_cache_is_left_alone(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.sqlite").write_bytes(content)
    with pytest.raises(InputError, match="no answer cache"):
        opened(tmp_path)
    assert (tmp_path / "a.sqlite").read_bytes() == content


def test_damage_costs_no_answer(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    for damage in ("{", "[1]", "{}", None, 7):
        cache.put("q", SCOPE, {"answer": "a"})
        with closing(sqlite3.connect(cache.path)) as connection, connection:
            connection.execute("UPDATE answers SET answer = ?", ("" if damage is None else damage,))
        assert cache.get("q", SCOPE) is None
    assert len(cache) == 0  # what is damaged is gone
    cache.put("q", SCOPE, {"answer": "a"})
    cache.path.unlink()  # while it is open
    assert cache.get("q", SCOPE) is None
    cache.put("q", SCOPE, {"answer": "b"})
    assert opened(tmp_path).get("q", SCOPE) is not None
    other = opened(tmp_path)
    assert other.get("q", SCOPE) is not None
    for each in tmp_path.iterdir():
        each.unlink()
    cache.put("r", SCOPE, {"answer": "c"})  # a new file, which the other must see
    assert other.get("q", SCOPE) is None
    assert other.get("r", SCOPE) is not None
    cache.close()
    other.close()
    cache.path.write_bytes(b"x" * 5000)
    with pytest.warns(UserWarning, match="cannot be written"):
        cache.put("q", SCOPE, {"answer": "a"})


def test_a_file_that_cannot_be_written_costs_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(tmp_path).put("q", SCOPE, {"answer": "a"})
    monkeypatch.setattr("mio_rag.storage._PATIENCE_SECONDS", 0.01)
    with closing(sqlite3.connect(tmp_path / "a.sqlite", isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        with pytest.warns(UserWarning, match="cannot be opened .database is locked.: continuing without it"):
            cache = opened(tmp_path)
    assert cache.get("q", SCOPE) is not None


def test_threads_share_a_cache(tmp_path: Path) -> None:
    cache = opened(tmp_path)

    def work(k: int) -> str:
        cache.put(f"q{k}", SCOPE, {"answer": str(k)})
        found = cache.get(f"q{k}", SCOPE)
        return "" if found is None else found.answer["answer"]

    with warnings.catch_warnings(), ThreadPoolExecutor(4) as pool:
        warnings.simplefilter("error")
        assert list(pool.map(work, range(20))) == [str(k) for k in range(20)]
    assert len(cache) == 20


def test_the_digest_of_an_index_goes_by_its_content(rivers: Dataset, river_index: CorpusIndex) -> None:
    def digest(*passages: Passage, **options: Any) -> str:
        return CorpusIndex.build(passages, TfidfEmbedder(), **options).digest()

    assert digest(*rivers.passages, name="another name") == river_index.digest()
    first, *rest = rivers.passages
    placed = replace(first, source="document", start=0)
    changed = [
        digest(replace(first, text=first.text + "."), *rest),
        digest(replace(first, date="2026-04-01"), *rest),  # of versions the newest is read
        digest(replace(first, source="document"), *rest),
        digest(placed, *rest),
        digest(replace(placed, start=7, end=None), *rest),
        digest(*rivers.passages, vectors="8bit"),
        digest(*rivers.passages, sentences=True),
        digest(*rivers.passages, name_of=lambda p: "Mount Falterona" if p is not first else "Arno"),
        digest(*rest, first),
    ]
    assert len({river_index.digest(), *changed}) == len(changed) + 1


@pytest.mark.parametrize("vectors", ["exact", "8bit"])
def test_the_digest_stays_on_disk_and_mapped(rivers: Dataset, tmp_path: Path, vectors: str) -> None:
    built = CorpusIndex.build(rivers.passages, TfidfEmbedder(), vectors=vectors, sentences=True)
    built.save(tmp_path / "index")
    for mapped in (False, True):
        assert CorpusIndex.load(tmp_path / "index", mapped=mapped).digest() == built.digest()
