"""Side constraints, robustness and radii on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet as parquet
import pytest

from mio_rag.retrieval import CorpusIndex, TfidfEmbedder
from tests.cli.running import here, only_object, refused


@pytest.fixture(scope="module")
def folder(demo_index: CorpusIndex, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return demo_index.save(tmp_path_factory.mktemp("side") / "index")


QUESTION = "Which tower is taller, Bell Rock Lighthouse or Skerryvore?"


def pool_of(found: dict[str, Any]) -> set[str]:
    return {p["id"] for p in found["passages"]}


def test_constraints_change_the_choice(folder: Path) -> None:
    plain = only_object(here("select", folder, QUESTION, "--pool", 20, "--units", "passages", "--json"))
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
    elsewhere = next(p.id for p in CorpusIndex.load(folder).passages if p.id not in pool_of(plain))
    needs = only_object(
        here("select", folder, QUESTION, "--pool", 20, "--needs", f"{first},{elsewhere}", "--json")
    )
    assert first not in needs["selected_ids"]
    reasons = {p["id"]: p["reason"] for p in needs["passages"]}
    assert reasons[first] == f"cannot be chosen: '{first}' needs '{elsewhere}', which is not in the pool"
    assert any(f"'{first}': cannot be read" in note for note in needs["notes"])
    asked = ("select", folder, QUESTION, "--pool", 20, "--units", "passages", "--json")
    apart = only_object(here(*asked, "--conflict", f"{first},{elsewhere}"))
    assert apart["selected_ids"] == plain["selected_ids"]
    assert any("nothing to forbid" in note for note in apart["notes"])
    gone = only_object(here(*asked, "--previous", elsewhere, "--change-price", 0.01))
    assert any(f"'{elsewhere}': of the previous selection, but not" in note for note in gone["notes"])


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
            "select", folder, QUESTION, "--cover", "topics", "--max-changes", -1, "--previous", "demo-001",
            "--redundancy", -1, "--json"
        )
    )  # fmt: skip
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
    said = here("radius", folder, "--method", "chunks", "--limit", 10, "--out", only_some).stdout
    assert "not measured: 195 of 205 passages; " in said
    assert only_object(here(*asked, "--radii", only_some))["worst_case"]
    small = CorpusIndex.build(CorpusIndex.load(folder).passages[:20], TfidfEmbedder(dimensions=8))
    other = small.save(tmp_path / "other")
    here("radius", other, "--out", only_some)
    assert "measure every passage" in refused(here(*asked, "--radii", only_some))[0]
    measured.write_text("nothing of the kind")
    assert "cannot be read as radii" in refused(here(*asked, "--radii", measured))[0]


NOTHING = {
    ("--deviations", "2"): "--deviations=2: no embedding can deviate; give --radius",
    ("--counterpart", "joint"): "--counterpart=joint: no embedding can deviate",
    ("--counterpart", "joint", "--radius", "0"): "--counterpart=joint: no embedding can deviate",
    ("--deviations", "2", "--radius", "0.1"): "--deviations=2 needs --counterpart joint",
    ("--norm", "l1"): "--norm=l1 is the norm of a radius",
    ("--soft", "clusters:0.1"): "'clusters' needs clusters to cover",
    ("--soft", "needs:0.1"): "--soft needs: no such constraint is set; give --needs",
    ("--soft", "passages:0.1"): "give --min-passages or --max-passages",
    ("--soft", "sources:1", "--soft", "sources:2"): "--soft sources is given twice",
    ("--max-changes", "1"): "--max-changes compare with a previous selection: give --previous",
    ("--change-price", "0.1"): "--change-price compare with a previous selection: give --previous",
    ("--previous", "demo-001"): "--previous has no effect alone",
}


@pytest.mark.parametrize(("options", "message"), NOTHING.items())
def test_options_without_effect_are_refused(folder: Path, options: tuple[str, ...], message: str) -> None:
    assert any(message in problem for problem in refused(here("select", folder, QUESTION, *options)))


def test_every_command_refuses_them(folder: Path, tmp_path: Path) -> None:
    lost = ("--max-changes", 1, "--soft", "needs:0.1", "--json")
    radius = ("--counterpart", "joint", "--deviations", 2)
    for command in (
        ("ask", folder, QUESTION),
        ("evaluate", "demo", "--index", folder, "--out", tmp_path / "e"),
    ):
        assert len(refused(here(*command, *lost, *radius))) == 4
    pools = tmp_path / "pools.parquet"
    columns = {"query_id": ["q"], "ids": [["a", "b"]], "relevance": [[0.5, 0.4]], "tokens": [[3, 4]]}
    parquet.write_table(pyarrow.table(columns | {"embeddings": [[[1.0, 0.0], [0.0, 1.0]]]}), pools)
    batch = ("select-batch", pools, "--out", tmp_path / "b")
    assert len(refused(here(*batch, *lost))) == 2
    assert "needs a radius: give one, a set, or a 'radius' column" in refused(here(*batch, *radius[:2]))[0]
    assert "deviations need a radius" in refused(here(*batch, *radius))[0]
    file = tmp_path / "r.npz"
    here("radius", folder, "--out", file)
    both = ("--radii", file, "--radius", 0.1)
    assert "exclude each other" in refused(here("select", folder, QUESTION, *both))[0]
    grid = ("frontier", "data", "demo", "--index", folder, "--out", tmp_path / "f")
    assert "--radii lists its radii" in refused(here(*grid, "--radius", 0.1))[0]
    tune = ("tune", "demo", "--index", folder, "--out", tmp_path / "t.toml")
    assert "tuned without one" in refused(here(*tune, "--norm", "l1"))[0]


def test_unknown_ids_are_named_with_the_closest(folder: Path, tmp_path: Path) -> None:
    changes = ("--max-changes", 2)
    for options, message in {
        (
            "--conflict",
            "demo-01,demo-002",
        ): "conflicts names 'demo-01', which is not in the index: the closest ids are 'demo-201', 'demo-101'",
        ("--needs", "demo-001,header"): "needs names 'header', which is not in the index: ",
        ("--previous", "demo-001,demo-002", *changes): "which are 2 ids: give each on its own",
        ("--must-exclude", "demo-9999"): "must_exclude names 'demo-9999'",
    }.items():
        assert message in refused(here("select", folder, QUESTION, *options))[0]
    wrong = ("--previous", "nobody", "--conflict", "demo-001,elsewhere", *changes)
    for command in (
        ("ask", folder, QUESTION),
        ("ask", folder, QUESTION, "--controller", "mdp"),
        ("evaluate", "demo", "--index", folder, "--out", tmp_path / "e", "--limit", 1, "--generator", "none"),
    ):
        assert len(refused(here(*command, *wrong))) == 2
    asked = ("frontier", "query", folder, QUESTION, "--must-exclude", "nobody")
    assert "must_exclude names 'nobody'" in refused(here(*asked))[0]


def test_broken_conflicts_and_needs_are_paid_in_sight(folder: Path) -> None:
    asked = ("select", folder, QUESTION, "--pool", 20, "--units", "passages")
    plain = only_object(here(*asked, "--json"))
    first, second = plain["selected_ids"][:2]
    other = next(p["id"] for p in plain["passages"] if not p["selected"])
    rules = ("--conflict", f"{first},{second}", "--needs", f"{first},{other}", "--soft", "conflicts:0.0001",
             "--soft", "needs:0.0002")  # fmt: skip
    found = only_object(here(*asked, *rules, "--json"))
    assert f"paid 0.0002: '{first}' needs '{other}', broken by 1" in found["notes"]
    assert any("paid 0.0001: not both of" in note and first in note for note in found["notes"])
    assert found["objective"] == pytest.approx(plain["objective"] - 0.0003)
    shown = here(*asked, *rules).stdout
    assert "paid 0.0001: not both of" in shown
    assert "paid 0.0002: " in shown
