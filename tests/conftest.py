"""Fixtures for all tests: a cache of their own, a small corpus, the bundled set; indexes without a model."""

import os

# Before anything loads BLAS, and for subprocesses too: arrays of tests are small, and threads that wait for
# one another spin. Where the number of threads matters, a test sets it itself.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Parallel numba sets the threads of OpenMP for the whole process; torch then spins on two.
os.environ.setdefault("NUMBA_NUM_THREADS", "1")
# Tests start this package in about eighty processes of their own: only the first of them need compile it, at
# a tenth of a second of processor time each.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import functools
import gc
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import thread as pools
from pathlib import Path
from typing import Any

# Nor is the tests' own code, with its rewritten assertions, compiled again by every run: that is half of what
# collecting takes.
sys.dont_write_bytecode = False

# Some million objects are loaded before the first test, and stay: looking for garbage among them again and
# again took a tenth of all processor time. Loading makes next to none; what is loaded is then left alone.
gc.disable()

import pytest
import typer.testing

from mio_rag.corpora.dataset import Dataset
from mio_rag.corpora.load import load_dataset
from mio_rag.retrieval import CorpusIndex, TfidfEmbedder
from mio_rag.types import Passage, Question
from tests.browsing import started_browser

# `CliRunner.invoke` builds all commands anew each time, a twentieth of a second; they keep no state.
typer.testing._get_command = functools.cache(typer.testing._get_command)


def pytest_collection_finish() -> None:
    """From here on, garbage is looked for among what the tests make."""
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """A thread that nobody stops would keep the interpreter waiting for ever: name it, and fail."""
    held = getattr(pools, "_threads_queues", {})  # idle workers of pools end with the interpreter
    left = [one for one in threading.enumerate() if not one.daemon and one not in held]
    left.remove(threading.main_thread())
    for one in left:
        one.join(5)
    if left := [one for one in left if one.is_alive()]:
        names = ", ".join(f"{one.name} ({getattr(one, '_target', None)})" for one in left)
        print(f"\nthreads that no test stopped: {names}", flush=True)
        os._exit(1)


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Embeddings made by tests go to a folder of their own, also in subprocesses."""
    before = os.environ.get("MIO_RAG_CACHE")
    folder = tmp_path_factory.mktemp("cache")
    os.environ["MIO_RAG_CACHE"] = str(folder)
    yield folder
    if before is None:
        del os.environ["MIO_RAG_CACHE"]
    else:
        os.environ["MIO_RAG_CACHE"] = before


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs a browser comes last, so that one serves all.

    Playwright keeps an event loop running in this thread, and none can be started beside it.
    """
    items.sort(key=lambda item: "browser" in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A Chromium, steered by Playwright."""
    yield from started_browser()


@pytest.fixture(scope="session")
def demo() -> Dataset:
    """The bundled set."""
    return load_dataset("demo")


@pytest.fixture(scope="session")
def demo_index(demo: Dataset) -> CorpusIndex:
    """The bundled set, indexed without a model.

    Fewer dimensions than passages: unrelated passages then have no exact ties at a cosine of 0.
    """
    return CorpusIndex.build(demo.passages, TfidfEmbedder(dimensions=60), demo.name)


@pytest.fixture(scope="session")
def rivers() -> Dataset:
    """Six passages and four questions; evidence is known, the last question has none."""
    passages = (
        Passage("r0", "The Arno rises on Mount Falterona and flows through Florence.", "Arno", "atlas"),
        Passage("r1", "The Arno is 241 kilometres long.", "Arno", "almanac"),
        Passage("r2", "The Arno runs through Florence after it rises on Mount Falterona.", "Arno", "guide"),
        Passage("r3", "The Tiber is 406 kilometres long and flows through Rome.", "Tiber", "atlas"),
        Passage("r4", "The Po is the longest river of Italy.", "Po", "atlas"),
        Passage("r5", "Bread is baked from flour, water and yeast.", "Bread", "kitchen"),
    )
    questions = (
        Question("a", "On which mountain does the Arno rise?", ("Mount Falterona",), ("r0",)),
        Question("b", "How long is the Tiber?", ("406 kilometres",), ("r3",)),
        Question(
            "c", "Which river is longer, the Arno or the Tiber?", ("Tiber", "the Tiber river"), ("r1", "r3")
        ),
        Question("d", "What is bread baked from?", ("flour",)),
    )
    return Dataset("rivers", passages, questions)


@pytest.fixture(scope="session")
def river_index(rivers: Dataset) -> CorpusIndex:
    """The rivers, indexed without a model."""
    return CorpusIndex.build(rivers.passages, "tfidf", rivers.name)
