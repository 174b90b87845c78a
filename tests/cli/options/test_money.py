"""--prices and --worth: a price of a token, dollars where tokens are shown, and what contradicts itself."""

import json
from pathlib import Path

import pytest

from tests.cli.running import here, only_object, refused

QUESTION = "Which tower is taller, Bell Rock Lighthouse or Skerryvore?"


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    path = tmp_path / "prices.toml"
    path.write_text("[extractive]\ninput = 2.0\noutput = 8.0\n", encoding="utf-8")
    return path


def test_select_buys_what_is_worth_its_dollars(index: Path, prices: Path) -> None:
    asked = ("select", index, QUESTION, "--budget-tokens", 400, "--json")
    # two dollars a million at .004 dollars a needed passage: .0005 a token
    paid = only_object(here(*asked, "--prices", prices, "--worth", 0.004))
    same = only_object(here(*asked, "--token-price", 0.0005))
    free = only_object(here(*asked))
    assert paid["selected_ids"] == same["selected_ids"]
    assert paid["objective"] == pytest.approx(same["objective"])
    assert paid["tokens_used"] <= free["tokens_used"]
    assert paid["dollars"] == pytest.approx(2e-6 * paid["tokens_used"])
    assert "dollars" not in free
    told = here(*asked[:-1], "--prices", prices, "--worth", 0.004).stdout
    assert "for these tokens of extractive; at $0.00400 for a needed passage" in " ".join(told.split())


def test_ask_tells_dollars_of_prompt_and_answer(index: Path, prices: Path) -> None:
    asked = ("ask", index, QUESTION, "--prices", prices)
    got = only_object(here(*asked, "--json"))
    assert got["dollars"] == pytest.approx(2e-6 * got["prompt_tokens"] + 8e-6 * got["completion_tokens"])
    assert "for these tokens of extractive" in here(*asked).stdout
    agent = only_object(here(*asked, "--controller", "fixed-1", "--json"))
    assert agent["dollars"] == pytest.approx(
        2e-6 * agent["prompt_tokens"] + 8e-6 * agent["completion_tokens"]
    )


def test_evaluate_has_dollars_in_its_rows_and_pays_the_price(prices: Path, tmp_path: Path) -> None:
    asked = ("evaluate", "demo", "--embedder", "tfidf", "--limit", 6, "--methods", "fused,exact")
    money = ("--prices", prices, "--worth", 0.004)
    done = here(*asked, *money, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert "dollars" in done.stdout.lower()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    for entry in summary:
        expected = 2e-6 * entry["prompt_tokens"]["mean"] + 8e-6 * entry["completion_tokens"]["mean"]
        assert entry["dollars"]["mean"] == pytest.approx(expected)
    run = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    assert run["settings"]["token_price"] == pytest.approx(0.0005)
    assert run["settings"]["prices"] == {"extractive": [2.0, 8.0]}
    assert "dollars" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8").lower()
    none = here(*asked, *money, "--generator", "none", "--out", tmp_path / "none", "--json")
    assert only_object(none)["run"]["settings"]["token_price"] == pytest.approx(0.0005)


def test_what_contradicts_itself_is_refused(index: Path, prices: Path, tmp_path: Path) -> None:
    def problems(*options: object) -> str:
        return " ".join(refused(here("select", index, QUESTION, *options)))

    assert "--worth needs --prices" in problems("--worth", 0.1)
    assert "--price-model needs --prices" in problems("--price-model", "x")
    assert "both set the price of a token" in problems(
        "--prices", prices, "--worth", 0.1, "--token-price", 0.1
    )
    assert "worth=0.0 must be a number of dollars > 0" in problems("--prices", prices, "--worth", 0)
    assert "model 'x' has no price" in problems("--prices", prices, "--price-model", "x")
    assert "missing.toml" in problems("--prices", tmp_path / "missing.toml")
    other = tmp_path / "other.toml"
    other.write_text("[large]\ninput = 1\noutput = 1\n", encoding="utf-8")
    [problem] = refused(here("ask", index, QUESTION, "--prices", other))
    assert "model 'extractive' has no price: prices are given for large" in problem


def test_money_may_stand_in_the_file_of_options(index: Path, prices: Path, tmp_path: Path) -> None:
    """The list of prices is looked for beside the file; what is given on the command line wins."""
    config = tmp_path / "config.toml"
    config.write_text(
        f'prices = "{prices.name}"\nworth = 0.004\nprice_model = "extractive"\n', encoding="utf-8"
    )
    asked = ("select", index, QUESTION, "--budget-tokens", 400, "--json")
    told = only_object(here(*asked, "--config", config))
    same = only_object(here(*asked, "--prices", prices, "--worth", 0.004))
    assert told["selected_ids"] == same["selected_ids"]
    assert told["objective"] == pytest.approx(same["objective"])
    assert told["dollars"] == pytest.approx(same["dollars"])
    other = only_object(here(*asked, "--config", config, "--worth", 0.04))
    assert other["tokens_used"] >= told["tokens_used"]
    assert other["objective"] != pytest.approx(told["objective"])
    config.write_text('prices = "nowhere.toml"\n', encoding="utf-8")
    assert "nowhere.toml" in refused(here(*asked[:-1], "--config", config))[0]
    config.write_text("worth = 0.004\n", encoding="utf-8")
    assert refused(here(*asked[:-1], "--config", config)) == ["--worth needs --prices: give the file"]
