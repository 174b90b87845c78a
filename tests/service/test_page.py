"""The page in a real browser: sliders, reasons, errors, keyboard, and no layout that jumps."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from mio_rag.retrieval import CorpusIndex
from tests.browsing import served

QUESTION = "Which tower is taller, Bell Rock Lighthouse or Skerryvore?"
KEY = "a key of more than sixteen characters"
READY = "#selection[aria-busy=false] #in li[data-id]"


@pytest.fixture(scope="module")
def address(demo_index: CorpusIndex) -> Iterator[str]:
    yield from served(demo_index)


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page that must log no error and ask nothing of any other host."""
    opened = browser.new_page(viewport={"width": 1200, "height": 900}, reduced_motion="reduce")
    complaints: list[str] = []
    asked: list[str] = []
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("request", lambda request: asked.append(request.url))
    yield opened
    opened.close()
    assert complaints == []
    assert all(url.startswith(("http://127.0.0.1:", "data:")) for url in asked)


def chosen(page: Any) -> list[str]:
    return [node.get_attribute("data-id") for node in page.query_selector_all("#in > li[data-id]")]


def tops(page: Any, *names: str) -> list[float]:
    """Where they begin on the page, scrolled to its top: the settings stay in sight as it is scrolled."""
    page.evaluate("scrollTo(0, 0)")
    return [
        page.locator(name).evaluate("node => node.getBoundingClientRect().top + scrollY") for name in names
    ]


def moved(page: Any, slider: str, to: str | int) -> None:
    """Move a slider, by a key or to a value at once, and wait for what the service says."""
    page.focus(slider)
    with page.expect_response("**/select"):
        if isinstance(to, str):
            page.keyboard.press(to)
        else:
            script = "(node, to) => { node.value = to; node.dispatchEvent(new Event('input')) }"
            page.eval_on_selector(slider, script, to)
    page.wait_for_timeout(200)
    page.wait_for_selector("#selection[aria-busy=false]")


def whole_passages(page: Any) -> None:
    """Choose passages, whatever fits, and wait until they are there."""
    with page.expect_response("**/select") as replied:
        page.select_option("#units", "passages")
    assert replied.value.json()["units"] == "passages"
    page.wait_for_selector("#selection[aria-busy=false]")
    page.wait_for_function("() => !document.querySelector('#read-count').textContent.includes('sentence')")


def test_a_person_asks_moves_sliders_and_sees_passages_enter_and_leave(page: Any, address: str) -> None:
    page.goto(address)
    page.wait_for_selector("#examples button")
    fixed = ("#budget", "#status", "#proof", "#read")
    before = tops(page, *fixed)
    page.keyboard.type(QUESTION)
    page.keyboard.press("Enter")
    page.wait_for_selector(READY)
    whole_passages(page)
    first = chosen(page)
    assert page.text_content("#proof") == "Optimal"
    assert re.match(r"\d+ of 256", page.text_content("#tokens"))
    assert page.text_content("#more").startswith(("gain", "no gain"))
    moved(page, "#budget", 112)
    fewer = chosen(page)
    assert int(page.text_content("#budget-value")) == 112
    assert fewer != first
    assert {n.text_content() for n in page.query_selector_all("#out .badge")} == {"removed"}
    moved(page, "#budget", 256)
    assert chosen(page) == first
    assert {n.text_content() for n in page.query_selector_all("#in .badge")} == {"added"}
    moved(page, "#penalty", "End")
    assert chosen(page) == []
    assert "Nothing is chosen" in page.text_content("#status")
    assert "no passage is worth its price" in page.text_content("#notes")
    moved(page, "#penalty", "Home")
    assert len(chosen(page)) >= len(first)
    assert "worth its price" not in page.text_content("#notes")
    moved(page, "#redundancy", "End")
    moved(page, "#radius", "End")
    assert page.text_content("#radius-value") == "0.30"
    assert tops(page, *fixed) == before, "the layout jumped"


def test_answers_and_errors_are_shown(page: Any, address: str) -> None:
    page.goto(address)
    assert page.is_disabled("#ask")
    page.keyboard.type(QUESTION)
    page.keyboard.press("Enter")
    page.wait_for_selector(READY)
    page.click("#ask")
    page.wait_for_selector("#answer:not([hidden])")
    assert page.text_content("#answer-text").strip()
    assert page.text_content("#answer-title") == "Answer"
    assert page.text_content("#more").startswith(("gain", "no gain"))
    moved(page, "#budget", 112)
    assert page.text_content("#answer-title") == "Answer, from other passages"
    kept = chosen(page)
    page.route(
        "**/select", lambda route: route.fulfill(status=400, json={"error": {"problems": ["no <b>such</b>"]}})
    )
    moved(page, "#redundancy", "End")
    assert page.text_content("#status") == "no <b>such</b>"
    assert "error" in page.get_attribute("#status", "class")
    assert chosen(page) == kept
    page.unroute("**/select")
    page.route("**/select", lambda route: route.abort())
    page.focus("#redundancy")
    page.keyboard.press("Home")
    page.wait_for_selector("#status.error:has-text('cannot be reached')")


def test_a_key_is_asked_for_and_kept_out_of_the_address(browser: Any, demo_index: CorpusIndex) -> None:
    serving = served(demo_index, KEY)
    address = next(serving)
    page = browser.new_page()
    page.goto(address)
    page.wait_for_selector("#examples", state="hidden")
    page.keyboard.type(QUESTION)
    page.keyboard.press("Enter")
    page.wait_for_selector("#key-form:not([hidden])")
    page.keyboard.type(KEY)
    page.keyboard.press("Enter")
    page.wait_for_selector(READY)
    page.wait_for_selector("#examples button")  # they tell of the collection, so they wait for the key
    assert KEY not in page.url
    page.close()
    next(serving, None)
