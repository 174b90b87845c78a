"""Settings: how they are made, checked, explained, read and written; TOML is read back as it was."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, model_validator

from mio_rag.errors import DataError, InputError
from mio_rag.formulations.mdp import RetrievalMDP
from mio_rag.settings import Settings, explain, toml_text
from mio_rag.storage import read_toml


class Never(Settings):
    by: Literal["never"] = "never"


class ByPrice(Settings):
    """Search again while it pays."""

    by: Literal["price"] = "price"
    gain: Annotated[float, Field(ge=0, le=1)] = 0.15
    """Share of the missing probability
    that another search is expected to add."""
    query: Literal["feedback", "model"] = "feedback"


class Limits(Settings):
    budget: Annotated[int, Field(ge=1)] = 1024
    """Largest block."""
    max_tokens: Annotated[int, Field(ge=1)] = 64
    timeout: Annotated[float, Field(gt=0)] | None = None
    penalty: Annotated[float, Field(ge=0, le=1e50)] | Literal["auto", "adaptive"] = "adaptive"
    ids: tuple[str, ...] = ()
    on: bool = False

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.budget < self.max_tokens:
            raise InputError(["budget is below max_tokens", "raise it"])
        return self


class Policy(Settings):
    name: str = "policy"
    limits: Limits = Limits()
    again: Annotated[Never | ByPrice, Field(discriminator="by")] = Never()
    models: dict[str, Limits] = Field(default_factory=dict)
    steps: tuple[Limits, ...] = ()


texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)
numbers = st.floats(allow_nan=False) | st.integers(-(2**63), 2**63 - 1) | st.booleans()


values = texts | numbers | st.lists(texts, max_size=3) | st.lists(st.floats(allow_nan=False), max_size=3)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("toml") / "file.toml"


@pytest.mark.parametrize(
    ("data", "problems"),
    [
        ({"limits": {"budget": 0}}, ["limits.budget must be >= 1, got 0"]),
        ({"limits": {"budget": "5"}}, ["limits.budget must be a whole number, got '5'"]),
        ({"limits": {"budget": 2.0}}, ["limits.budget must be a whole number, got 2.0"]),
        ({"limits": {"budget": True}}, ["limits.budget must be a whole number, got True"]),
        ({"limits": {"budgets": 3}}, ["limits.budgets is not a setting: did you mean 'budget'?"]),
        ({"limit": {}}, ["limit is not a setting: did you mean 'limits'?"]),
        ({"limits": {"timeout": float("nan")}}, ["limits.timeout must be a finite number, got nan"]),
        ({"limits": {"on": 1}}, ["limits.on must be True or False, got 1"]),
        ({"limits": {"ids": "a"}}, ["limits.ids must be a list, got 'a'"]),
        ({"limits": {"ids": [1]}}, ["limits.ids[0] must be a text, got 1"]),
        ({"limits": 3}, ["limits must be a table of settings, got 3"]),
        (
            {"limits": {"penalty": "adaptiv"}},
            ["limits.penalty must be a number, auto or adaptive, got 'adaptiv'; did you mean 'adaptive'?"],
        ),
        ({"limits": {"penalty": -1}}, ["limits.penalty must be >= 0, auto or adaptive, got -1"]),
        ({"limits": {"budget": 3}}, ["limits: budget is below max_tokens", "limits: raise it"]),
        ({"again": {"by": "prise"}}, ["again.by must be never or price, got 'prise'; did you mean 'price'?"]),
        ({"again": {}}, ["again.by is missing"]),
        ({"again": {"by": "price", "gain": 1.5}}, ["again.gain must be <= 1, got 1.5"]),
        ({"again": {"by": "never", "gain": 1}}, ["again.gain is not a setting: choose by"]),
        ({"models": {"big": {"budget": "x"}}}, ["models.big.budget must be a whole number, got 'x'"]),
        ({"models": [1]}, ["models must be a table, got [1]"]),
        ({"steps": [{"on": None}]}, ["steps[0].on must be True or False, got None"]),
        ({"name": None, "steps": 4}, ["name must be a text, got None", "steps must be a list, got 4"]),
    ],
)
def test_every_problem_is_reported_in_our_words(data: dict[str, Any], problems: list[str]) -> None:
    with pytest.raises(InputError) as made:
        Policy(**data)
    with pytest.raises(DataError) as read:
        Policy.from_dict(data, "'p.toml'", DataError)
    assert list(made.value.problems) == problems
    assert list(read.value.problems) == [f"'p.toml': {problem}" for problem in problems]


def test_no_kind_of_error_is_explained_in_words_of_pydantic() -> None:
    from typing import get_args

    from pydantic_core import core_schema

    context = {
        "expected": "'a' or 'b'", "expected_tags": "'a', 'b'", "discriminator": "'by'", "tag": "x",
        "class": "C", "gt": 1, "ge": 1, "lt": 1, "le": 1, "min_length": 2, "max_length": 2, "pattern": "x",
        "multiple_of": 2,
    }  # fmt: skip
    for kind in get_args(core_schema.ErrorType):
        (text,) = explain(
            [{"type": kind, "loc": ("x",), "input": 3, "ctx": context, "msg": "Input should be"}]
        )
        assert text.startswith("x"), text
        assert "nput should" not in text


def test_toml_round_trip_keeps_the_variant_and_leaves_defaults_out(tmp_path: Any) -> None:
    policy = Policy(limits=Limits(budget=99), again=ByPrice(), models={"m": Limits(ids=["x"])})
    text = policy.to_toml()
    assert text == '[limits]\nbudget = 99\n\n[again]\nby = "price"\n\n[models.m]\nids = [\n    "x",\n]\n'
    (tmp_path / "p.toml").write_text(text)
    assert Policy.from_toml(tmp_path / "p.toml") == policy
    assert Policy.from_dict(policy.to_dict()) == policy
    (tmp_path / "p.toml").write_text("limits = nan")
    with pytest.raises(InputError, match=r"p\.toml.*nan is not allowed"):
        Policy.from_toml(tmp_path / "p.toml")


@given(options=st.dictionaries(texts, values))
def test_settings_are_read_as_they_were_written(options: dict[str, Any], file: Path) -> None:
    file.write_bytes(toml_text(options).encode())
    found = read_toml(file)
    assert found == options
    assert {name: type(value) for name, value in found.items()} == {n: type(v) for n, v in options.items()}


@pytest.mark.parametrize(
    "wrong",
    [
        {"success": np.array([[0.5]])},
        {"success": np.array([])},
        {"success": np.bool_(True)},
        {"success": np.float32(math.nan)},
        {"k": 1j},
        {"quality": ["linear"]},
        {"horizon": np.array([3, 4])},
        {"grid": np.datetime64("2020-01-01")},
        {"discount": "0.5"},
    ],
)
def test_what_is_no_number_is_refused_with_its_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        RetrievalMDP(**wrong)
