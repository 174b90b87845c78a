"""The benchmark of decision processes tells the truth about small ones."""

import json
from pathlib import Path

import pytest

from benchmarks import mdp, mdp_contenders
from benchmarks.__main__ import main

pytest.importorskip("quantecon")
pytest.importorskip("mdpsolver")


def test_every_contender_solves_both_processes(tmp_path: Path) -> None:
    out = tmp_path / "mdp.json"
    assert main(["mdp", "--rounds", "1", "--states", "60", "--out", str(out)]) == 0
    report = json.loads(out.read_text())
    retrieval, general = report["processes"]
    for process in (retrieval, general):
        errors = {row["name"]: row["error"] for row in process["contenders"]}
        assert {name.split()[0] for name in errors} >= {"mio-rag", "quantecon", "mdpsolver"}
        assert max(errors.values()) < 1e-5
        assert all(
            error <= mdp_contenders.EPSILON for name, error in errors.items() if name.startswith("mio-rag")
        )
        assert process["fastest_peer"] in errors
    assert "plain Python" in {row["name"] for row in retrieval["contenders"]}
    assert {"quantecon", "mdpsolver", "numba"} <= set(report["versions"])
    assert report["seed"] == 0
    assert out.with_suffix(".png").read_bytes()[:4] == b"\x89PNG"
    assert "mdpsolver" in mdp.table(report)


def test_the_large_process_is_what_it_says() -> None:
    process = mdp_contenders.large_process(50, 5, 10, 0.95, seed=1)
    assert (process.n_states, process.n_actions, process.discount) == (50, 5, 0.95)
    again = mdp_contenders.large_process(50, 5, 10, 0.95, seed=1)
    assert (process.transitions != again.transitions).nnz == 0
