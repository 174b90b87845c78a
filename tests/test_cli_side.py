"""Side constraints, robustness and radii on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mio_rag.retrieval import CorpusIndex
from tests.test_cli import here, only_object, refused


@pytest.fixture(scope="module")
def folder(demo_index: CorpusIndex, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return demo_index.save(tmp_path_factory.mktemp("side") / "index")


QUESTION = "Which tower is taller, Bell Rock Lighthouse or Skerryvore?"


def test_constraints_change_the_choice(folder: Path) -> None:
    plain = only_object(here("select", folder, QUESTION, "--pool", 20, "--json"))
    first, second = plain["selected_ids"][:2]
    conflict = only_object(
        here("select", folder, QUESTION, "--pool", 20, "--conflict", f"{first},{second}", "--json")
    )
    assert not {first, second} <= set(conflict["selected_ids"])
    previous = [p["id"] for p in plain["passages"] if not p["selected"]][:2]
    kept = only_object(
        here("select", folder, QUESTION, "--pool", 20, "--max-changes", 1, "--json",
             *(part for i in previous for part in ("--previous", i)))
    )  # fmt: skip
    assert len(set(kept["selected_ids"]) ^ set(previous)) <= 1
    needs = only_object(
        here("select", folder, QUESTION, "--pool", 20, "--needs", f"{first},no-such-passage", "--json")
    )
    assert first not in needs["selected_ids"]


def test_infeasible_coverage_is_explained_and_soft_coverage_paid(folder: Path) -> None:
    cover = ("select", folder, QUESTION, "--pool", 20, "--budget-tokens", 90, "--cover", "kmeans:8")
    found = only_object(here(*cover, "--json"))
    assert found["status"] == "infeasible"
    assert found["conflict"]["smallest_budget"] > 90
    assert found["conflict"]["parts"][0] == "at most 90 tokens"
    assert "cannot hold together: at most 90 tokens" in here(*cover).stdout.replace("\n", " ")
    soft = only_object(here(*cover, "--soft", "clusters:0.01", "--json"))
    assert soft["status"] == "optimal"
    assert soft["notes"]
    assert "paid 0.01" in here(*cover, "--soft", "clusters:0.01").stdout


def test_counterparts_and_sets(folder: Path, tmp_path: Path) -> None:
    asked = ("select", folder, QUESTION, "--pool", 15, "--json")
    termwise, joint = (
        only_object(here(*asked, "--radius", 0.05, "--counterpart", name)) for name in ("termwise", "joint")
    )
    assert joint["worst_case"]["lower"] >= termwise["worst_case"]["lower"] - 1e-9
    assert joint["bound"] >= joint["worst_case"]["lower"]
    given = tmp_path / "set.json"
    given.write_text(json.dumps({"set": "l2", "radius": 0.05}))
    same = only_object(here(*asked, "--uncertainty-set", given))
    assert same["selected_ids"] == termwise["selected_ids"]
    fewer = only_object(here(*asked, "--radius", 0.05, "--deviations", 1, "--counterpart", "joint"))
    assert fewer["worst_case"]["lower"] >= joint["worst_case"]["lower"] - 1e-9


def test_bad_options_are_listed_together(folder: Path) -> None:
    problems = refused(
        here(
            "select", folder, QUESTION, "--cover", "topics", "--max-changes", -1, "--redundancy", -1, "--json"
        )
    )
    assert len(problems) == 3
    assert "KIND:PRICE" in refused(here("select", folder, QUESTION, "--soft", "clusters"))[0]
    assert "two ids" in refused(here("select", folder, QUESTION, "--needs", "a"))[0]
    assert (
        "cannot be read" in refused(here("select", folder, QUESTION, "--uncertainty-set", "nowhere.json"))[0]
    )
    both = ("--radius", 0.1, "--uncertainty-set", "-")
    given = '{"set": "l2", "radius": 1}'
    assert "exclude each other" in refused(here("select", folder, QUESTION, *both, stdin=given))[0]


def test_radius(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "errors.npz"
    found = only_object(here("radius", folder, "--method", "sq8", "--out", out, "--json"))
    assert found["method"] == "sq8"
    assert 0 < found["median"] <= found["radius"] <= found["largest"] < 0.2
    assert out.is_file()
    assert "use --radius" in here("radius", folder, "--method", "chunks").stdout
    assert "is unknown" in refused(here("radius", folder, "--method", "guess"))[0]


def test_measured_radii_of_each_passage_are_used(folder: Path, tmp_path: Path) -> None:
    asked = ("select", folder, QUESTION, "--pool", 15, "--json")
    measured = tmp_path / "errors.npz"
    found = only_object(here("radius", folder, "--method", "pq:10x4", "--out", measured, "--json"))
    robust = only_object(here(*asked, "--radii", measured))
    widest = only_object(here(*asked, "--radius", found["largest"]))
    assert robust["worst_case"]["lower"] >= widest["worst_case"]["lower"]
    assert robust["worst_case"]["lower"] < only_object(here(*asked))["objective"]
    only_some = tmp_path / "some.npz"
    here("radius", folder, "--method", "chunks", "--limit", 10, "--out", only_some)
    assert "measure every passage" in refused(here(*asked, "--radii", only_some))[0]
    measured.write_text("nothing of the kind")
    assert "cannot be read as radii" in refused(here(*asked, "--radii", measured))[0]
