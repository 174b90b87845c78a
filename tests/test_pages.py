"""The pages that people open, in a real browser: no text is run over, cut off, or set one word a line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mio_rag.corpora.dataset import Dataset
from mio_rag.evaluation.harness import EvaluationSettings, evaluate_and_report
from mio_rag.frontier.dataset import FrontierSettings, data_frontier
from mio_rag.generation import make_generator
from mio_rag.retrieval import CorpusIndex, RetrievalSettings
from tests.browsing import layout_problems, served

pytest.importorskip("plotly")

WIDTHS = (1280, 390)
#: A word that no line holds.
LONG = "Llanfairpwllgwyngyllgogerychwyrndrobwllllantysiliogogogoch" * 3


@pytest.fixture(scope="module")
def asked(demo: Dataset) -> Dataset:
    """The bundled set; the first question holds a word that no line holds."""
    first, *others = demo.questions
    return replace(demo, questions=(replace(first, text=f"{first.text} {LONG}"), *others))


@pytest.fixture(scope="module")
def pages(
    asked: Dataset, demo_index: CorpusIndex, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """The report of an evaluation and the page of a frontier."""
    folder = tmp_path_factory.mktemp("pages")
    reader = make_generator("extractive")
    evaluate_and_report(
        asked,
        demo_index,
        reader,
        EvaluationSettings(
            budgets=(128, 256),
            retrieval=RetrievalSettings(pool=15),
            limit=4,
        ),
        folder / "evaluation",
    )
    settings = FrontierSettings(
        budgets=(100, 200),
        weights=(0.0, 0.3),
        radii=(0.0, 0.1),
        retrieval=RetrievalSettings(pool=15),
        draws=1,
        limit=3,
    )
    data_frontier(asked, demo_index, settings, folder / "frontier", generator=reader)
    return {
        "report": folder / "evaluation" / "report.html",
        "frontier": folder / "frontier" / "frontier.html",
    }


@pytest.fixture(scope="module")
def address(demo_index: CorpusIndex) -> Iterator[str]:
    examples = ("Which tower is taller?", f"What is {LONG}?", "Who built the Bell Rock Lighthouse? " * 6)
    yield from served(demo_index, examples=examples)


def opened(browser: Any, width: int, address: str) -> Any:
    page = browser.new_page(viewport={"width": width, "height": 900}, reduced_motion="reduce")
    page.goto(address)
    return page


@pytest.mark.parametrize("name", ["report", "frontier"])
def test_reports_are_laid_out_whatever_they_show(browser: Any, pages: dict[str, Path], name: str) -> None:
    for width in WIDTHS:
        page = opened(browser, width, pages[name].as_uri())
        page.wait_for_selector(".plot-container")
        assert layout_problems(page) == []
        tables = page.evaluate(  # of each: does it go on, is it faded there, and is it said
            """() => [...document.querySelectorAll(".scroll")].filter(one => one.checkVisibility())
              .map(box => [box.scrollWidth > box.clientWidth + 4, box.classList.contains("beyond"),
              !box.previousElementSibling.hidden])"""
        )
        assert all(goes_on == faded == said for goes_on, faded, said in tables)
        if width == min(WIDTHS):
            beyond = sum(goes_on for goes_on, _, _ in tables)
            assert beyond
            page.evaluate("document.querySelector('.scroll.beyond').scrollLeft = 1e6")
            page.wait_for_timeout(100)
            assert page.locator(".scroll.beyond:visible").count() == beyond - 1
            page.evaluate("document.querySelectorAll('.scroll').forEach(one => one.scrollLeft = 0)")
            for choice in page.query_selector_all("input[type=checkbox], .switch input"):
                choice.evaluate("one => one.click()")
                page.wait_for_timeout(20)  # the picture is drawn
                assert layout_problems(page) == [], choice.evaluate("one => one.value")
        page.eval_on_selector_all("details", "all => all.slice(0, 4).forEach(one => one.open = true)")
        assert layout_problems(page) == []
        page.close()


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_of_the_service_is_laid_out_whatever_it_shows(
    browser: Any, address: str, width: int
) -> None:
    page = opened(browser, width, address)
    page.wait_for_selector("#examples button")
    assert layout_problems(page) == []
    page.keyboard.type(f"Which tower is taller, Bell Rock Lighthouse or Skerryvore? {LONG}")
    page.keyboard.press("Enter")
    page.wait_for_selector("#selection[aria-busy=false] #in li[data-id]")
    page.click("#ask")
    page.wait_for_selector("#answer:not([hidden])")
    page.click("#all")
    page.eval_on_selector_all("details", "all => all.slice(0, 4).forEach(one => one.open = true)")
    assert layout_problems(page) == []
    page.route(
        "**/select", lambda route: route.fulfill(status=400, json={"error": {"problems": [f"no {LONG}"]}})
    )
    page.keyboard.press("Tab")
    page.focus("#redundancy")
    page.keyboard.press("End")
    page.wait_for_selector("#status.error")
    assert layout_problems(page) == []
    page.close()


@pytest.mark.parametrize("width", WIDTHS)
def test_the_reference_of_the_service_is_laid_out(browser: Any, address: str, width: int) -> None:
    page = opened(browser, width, f"{address}/docs")
    assert layout_problems(page) == []
    page.close()
