"""What a price means, on the service's page and at /price: by example, beside the operator's own curve."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from fastapi.testclient import TestClient

from mio_rag import InputError
from mio_rag.allocation.money import Rate
from mio_rag.allocation.pacer import Pacer
from mio_rag.generation import make_generator
from mio_rag.retrieval import CorpusIndex
from mio_rag.service.app import create_app
from mio_rag.service.page import Curve, CurvePoint, curve_beside, read_curve
from tests.browsing import layout_problems, served
from tests.cli.running import here

MEASURED = {
    "run": {"questions": 20},
    "price": {
        "prices": [
            {"token_price": 0.0, "tokens": {"mean": 900.4}, "evidence": {"mean": 0.9}},
            {"token_price": 0.002, "tokens": {"mean": 211.5}, "evidence": {"mean": 0.683}},
            {"token_price": 0.02, "tokens": {"mean": 3.0}, "evidence": {"mean": 0.1}},
        ]
    },
}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory, demo_index: CorpusIndex) -> Path:
    return demo_index.save(tmp_path_factory.mktemp("served") / "index")


PRICE = ("policy", "fit", "price", "--questions", "demo", "--mean-tokens", 150)


def curve_of(tmp_path: Path, content: Any = MEASURED) -> Path:
    path = tmp_path / "frontier.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def asked(index: CorpusIndex, **given: Any) -> dict[str, Any]:
    with TestClient(create_app(index, make_generator("extractive"), **given)) as client:
        found: dict[str, Any] = client.get("/price").json()
    return found


def test_the_price_that_applies_is_told_by_example(demo_index: CorpusIndex) -> None:
    plain = asked(demo_index)
    words = "0.0005 a token, 100 tokens must add more than 5 % of a needed passage."
    assert plain["example"] == f"At a price of {words}"
    assert plain["curve"] == []
    assert "lab frontier" in plain["how"]
    assert (
        asked(demo_index, pacer=Pacer(1000, 5, price=0.0005))["example"] == f"At the present price of {words}"
    )
    assert asked(demo_index, rate=Rate("m", 1.0, 2.0, 0.002))["example"] == f"At the price of {words}"
    dear = asked(demo_index, pacer=Pacer(1000, 5, price=0.01))["example"]
    assert dear.endswith("must add more than all of a needed passage.")


def test_the_curve_is_read_from_what_frontier_and_tune_write(
    demo_index: CorpusIndex, index: Path, tmp_path: Path
) -> None:
    curve = read_curve(curve_of(tmp_path))
    assert curve == Curve(
        (CurvePoint(0.02, 3.0, 0.1), CurvePoint(0.002, 211.5, 0.683), CurvePoint(0.0, 900.4, 0.9)), 20
    )
    told = asked(demo_index, curve=curve)
    assert told["questions"] == 20
    assert told["curve"][1] == {"token_price": 0.002, "mean_tokens": 211.5, "evidence": 0.683}
    assert told["how"] is None
    out = tmp_path / "price.toml"
    done = here(*PRICE, index, "--out", out, "--limit", 8)
    assert done.returncode == 0, done.stderr
    tuned = read_curve(out)
    assert tuned.questions == 8
    prices = [point.token_price for point in tuned.points]
    tokens = [point.mean_tokens for point in tuned.points]
    assert len(prices) >= 3
    assert prices == sorted(prices, reverse=True)
    assert tokens == sorted(tokens)


def test_the_newest_curve_of_the_index_is_found_beside_it(demo_index: CorpusIndex, tmp_path: Path) -> None:
    index = demo_index.save(tmp_path / "index")
    assert curve_beside(index) is None
    run = {"questions": 20, "passages": len(demo_index), "embedder_fingerprint": "another's"}
    for folder, changed, seconds in (
        ("others", {}, 300),
        ("ours", {"embedder_fingerprint": demo_index.embedder.fingerprint}, 200),
        ("older", {"embedder_fingerprint": demo_index.embedder.fingerprint}, 100),
        ("without", {"embedder_fingerprint": demo_index.embedder.fingerprint}, 400),
    ):
        (tmp_path / folder).mkdir()
        content = {**MEASURED, "run": {**run, **changed}}
        if folder == "without":
            del content["price"]
        os.utime(curve_of(tmp_path / folder, content), (seconds, seconds))
    (tmp_path / "damaged.toml").write_text("= [", encoding="utf-8")
    assert curve_beside(index) == tmp_path / "ours" / "frontier.json"
    tuned = tmp_path / "price.toml"
    done = here(*PRICE, index, "--out", tuned, "--limit", 3)
    assert done.returncode == 0, done.stderr
    assert curve_beside(index) == tuned
    assert "server.start_price=" in tuned.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "content",
    [
        {},
        [],
        {"run": {"questions": 3}},
        {**MEASURED, "price": {"prices": []}},
        {**MEASURED, "price": {"prices": [{"token_price": -1, "tokens": {"mean": 1}, "evidence": None}]}},
        {**MEASURED, "price": {"prices": [{"token_price": "x", "tokens": {"mean": 1}, "evidence": None}]}},
        {**MEASURED, "price": {"prices": [{"token_price": 1, "tokens": {}, "evidence": None}]}},
        {
            **MEASURED,
            "price": {"prices": [{"token_price": 1, "tokens": {"mean": 1}, "evidence": {"mean": 7}}]},
        },
    ],
)
def test_a_file_without_a_curve_is_refused_before_anything_is_served(
    content: Any, tmp_path: Path, index: Path
) -> None:
    path = curve_of(tmp_path, content)
    with pytest.raises(InputError, match=r"holds (no curve over prices: give|a curve that cannot be)"):
        read_curve(path)
    refused = here("serve", index, "--curve", path)
    assert refused.returncode == 2
    assert "curve" in refused.stderr


def test_the_page_shows_the_curve(browser: Any, demo_index: CorpusIndex, tmp_path: Path) -> None:
    for curve in (None, read_curve(curve_of(tmp_path))):
        serving = served(demo_index, curve=curve)
        page = browser.new_page(viewport={"width": 390, "height": 900}, reduced_motion="reduce")
        page.goto(next(serving))
        page.wait_for_selector("#price summary")
        page.click("#price summary")
        assert layout_problems(page) == []
        assert "more than 5 %" in page.text_content("#price-example")
        rows = page.eval_on_selector_all(
            "#price-curve tbody tr", "all => all.map(row => [...row.cells].map(cell => cell.textContent))"
        )
        if curve is None:
            assert rows == []
            assert "lab frontier" in page.text_content("#price-how")
        else:
            assert rows == [
                ["0.02", "never", "3", "10 %"], ["0.002", "20 %", "212", "68 %"], ["0", "0 %", "900", "90 %"]
            ]  # fmt: skip
        page.close()
        serving.close()
