"""A browser for tests, the service's page to open in it, and what is wrong with the layout of a page."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from mio_rag.generation import make_generator
from mio_rag.retrieval import CorpusIndex

__all__ = ["layout_problems", "served", "started_browser"]

_NAMES = ("chromium", "chromium-browser", "google-chrome")


def started_browser() -> Iterator[Any]:
    """A Chromium that runs until the iterator goes on; the test is skipped where there is none."""
    api: Any = pytest.importorskip("playwright.sync_api")
    found = next((path for path in map(shutil.which, _NAMES) if path), None)
    if found is None:
        pytest.skip("no Chromium is installed: apt-get install chromium")
    with api.sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


def served(index: CorpusIndex, api_key: str | None = None, examples: Sequence[str] = ()) -> Iterator[str]:
    """The address of an index that is served until the iterator goes on or is closed."""
    uvicorn: Any = pytest.importorskip("uvicorn")
    pytest.importorskip("fastapi")
    from mio_rag.service.app import create_app

    app = create_app(index, make_generator("extractive"), api_key=api_key, examples=examples)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:  # a server that nobody stops keeps the interpreter from ending
        server.should_exit = True
        thread.join()


def layout_problems(page: Any) -> list[str]:
    """Text that overlaps, leaves its box, its picture or the window, and cells of a word a line.

    Parameters
    ----------
    page : playwright.sync_api.Page
        Shown and at rest.
    """
    found: list[str] = page.evaluate(Path(__file__).with_name("layout.js").read_text(encoding="utf-8"))
    return found
