"""Settings of a selector: as keywords, and as plain data."""

import json

import numpy as np
import pytest

from mio_rag import select
from mio_rag.adapters.plain import SelectorSettings, from_plain, make_selector, to_plain
from mio_rag.errors import InputError
from mio_rag.relevance import load_model
from mio_rag.selection.constraints import SideConstraints
from mio_rag.selection.selector import Selector
from mio_rag.solvers import SolveOptions

ALL = {
    "redundancy_weight": 0.3,
    "passage_penalty": "auto",
    "token_price": 0.001,
    "norm": "l1",
    "min_passages": 1,
    "max_passages": 5,
    "max_per_source": {"a": 2},
    "must_include": ["x"],
    "must_exclude": ["y"],
    "solver": "highs",
    "options": SolveOptions(time_limit_seconds=None, relative_gap=0.01),
    "relevance_model": load_model("default"),
    "link_benefit": 0.2,
    "redundancy_by_relevance": False,
    "prompt_order": "document",
    "counterpart": "joint",
    "passage_radii": {"x": 0.1},
    "merge": False,
    "shared_text_weight": 0.5,
    "near_duplicates": "all",
    "side": SideConstraints(cover="kmeans:3", conflicts=[("x", "z")], prices={"clusters": 0.1}),
}


def test_every_setting_is_a_keyword() -> None:
    assert set(SelectorSettings.__annotations__) == {"preset", *Selector.model_fields}
    assert set(ALL) | {"preset", "radius", "uncertainty", "units"} == set(SelectorSettings.__annotations__)


def test_settings_survive_json() -> None:
    selector = Selector(**ALL)
    plain = to_plain(selector)
    assert set(plain) == set(ALL) - {"redundancy_by_relevance"}  # what is as by default is left out
    again = from_plain(json.loads(json.dumps(plain, allow_nan=False)))
    assert to_plain(again) == plain
    for name, value in ALL.items():
        if name != "side":
            assert getattr(again, name) == (tuple(value) if isinstance(value, list) else value)
    assert again.side.prices == {"clusters": 0.1}
    assert [tuple(pair) for pair in again.side.conflicts] == [("x", "z")]
    assert to_plain(Selector()) == {}
    assert from_plain({}) == Selector()
    assert from_plain(to_plain(Selector.raw())) == Selector.raw()
    assert from_plain(to_plain(Selector(units="sentences"))) == Selector(units="sentences")


def test_keywords_override_a_selector_unless_they_are_none() -> None:
    base = Selector.raw(max_passages=2, radius=0.1)
    made = make_selector(base, {"radius": 0.2, "max_passages": None})
    assert (made.max_passages, made.radius) == (2, 0.2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: make_selector(None, {"redundancy": 1}), "'redundancy' is unknown: did you mean"),
        (lambda: make_selector(None, {"zzz": 1}), "'zzz' is unknown: choose preset, redundancy_weight"),
        (lambda: from_plain([1]), "expected a table of settings"),
        (lambda: from_plain({"options": 3}), "options must be of type SolveOptions"),
        (lambda: from_plain({"options": {"time_limit": 3}}), "did you mean 'time_limit_seconds'"),
        (lambda: from_plain({"side": {"max_similarty": 3}}), "did you mean 'max_similarity'"),
        (lambda: from_plain({"relevance_model": {}}), "not a relevance model"),
        (lambda: from_plain({"uncertainty": {"set": "cube"}}), "an uncertainty set is"),
        (lambda: from_plain({"radius": -1}), "radius must be >= 0"),
    ],
)
def test_what_is_no_setting_is_named(call, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


def test_the_plain_door_takes_every_setting() -> None:
    texts = ["a", "b", "c"]
    given = {"scores": [1.0, 3.0, 2.0], "tokens": [1, 1, 1], "budget_tokens": 9, "redundancy_weight": 0}
    assert select("q", texts, prompt_order="document", **given).ids == ("0", "1", "2")
    side = SideConstraints(conflicts=[("1", "2")])
    assert select("q", texts, side=side, **given).ids == ("1", "0")
    covered = SideConstraints(cover="labels")
    chosen = select("q", texts, side=covered, clusters=["x", "y", "y"], max_passages=2, **given)
    assert set(chosen.ids) == {"0", "1"}
    links = [[0, 0, 1], [0, 0, 0], [0, 0, 0]]
    linked = select("q", texts, links=links, link_benefit=5, max_passages=2, **given)
    assert set(linked.ids) == {"0", "2"}
    with pytest.raises(InputError, match="did you mean 'max_passages'"):
        select("q", texts, max_pasages=2, **given)
    with pytest.raises(InputError, match=r"passages without text \(x\)"):
        select("q", ["a", " "], ids=["w", "x"], scores=[1, 2], budget_tokens=3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"texts": ["a", None]}, r"texts\[1\] is None, expected a string"),
        ({"titles": [1, "b"]}, r"titles\[0\] is 1, expected a string"),
        ({"links": "abc"}, "links is not an array of numbers"),
        ({"counter": len}, "is not a TokenCounter"),
        ({"scores": [10**400, 1]}, "relevance is not an array of numbers"),
        ({"embeddings": np.array([[1j], [0]])}, "embeddings holds complex numbers"),
        ({"tokens": [10**30, 1]}, "tokens must be at most 1e.12, given 1e.30"),
        ({"tokens": np.array([2**62, 1])}, "tokens must be at most"),
    ],
)
def test_what_select_cannot_take_is_named(changes, message: str) -> None:
    given = {"texts": ["a", "b"], "scores": [1, 2], "budget_tokens": 9, "redundancy_weight": 0} | changes
    with pytest.raises(InputError, match=message):
        select("q", **given)
