"""What a message proposes in place of a name that is unknown, wherever a name is given."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mio_rag import Selector
from mio_rag.cli.options import read_config
from mio_rag.errors import InputError, choose
from mio_rag.evaluation.contenders import make_methods
from mio_rag.policies.make import find_kind, make_controller
from mio_rag.policies.setup import Setup
from mio_rag.solvers.registry import check_name


def test_one_that_is_alike_or_all() -> None:
    assert choose("exat", ["topk", "exact"]) == "did you mean 'exact'?"
    assert choose("zzz", ["topk", "exact"], more=", topk:K") == "choose topk, exact, topk:K"
    assert choose(3, iter(["topk"])) == "choose topk"


@pytest.mark.parametrize(
    ("act", "meant"),
    [
        (lambda: make_methods(["exakt"], Selector()), "exact"),
        (lambda: make_methods(["alocated"], Selector()), "allocated"),
        (lambda: check_name("high"), "highs"),
        (lambda: check_name("branch_and_bond"), "branch_and_bound"),
        (lambda: make_controller("treshold", Setup()), "threshold"),
        (lambda: Selector.preset("thorogh"), "thorough"),
    ],
)
def test_every_list_of_names_proposes(act: Callable[[], object], meant: str) -> None:
    with pytest.raises(InputError, match=f"is unknown: did you mean '{meant}'"):
        act()
    assert find_kind("treshold") is None


def test_a_key_of_a_configuration(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("bugdet = 3\n")
    with pytest.raises(InputError, match="option 'bugdet' is unknown: did you mean 'budget'"):
        read_config(path, ["budget", "pool"])
