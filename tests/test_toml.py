"""What is written as TOML is read back as it was: configurations, and the processes of controllers."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mio_rag.cli.options import config_text, read_config
from mio_rag.errors import InputError
from mio_rag.formulations.mdp import RetrievalMDP
from mio_rag.learning.mdp import model_from_mapping, model_to_toml, read_model

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)
numbers = st.floats(allow_nan=False) | st.integers(-(2**63), 2**63 - 1) | st.booleans()
values = texts | numbers | st.lists(texts, max_size=3) | st.lists(st.floats(allow_nan=False), max_size=3)
#: The same numbers as numpy gives them.
AS_NUMPY = (np.float64, np.float32, np.float16, lambda value: np.array(value))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("toml") / "file.toml"


@given(options=st.dictionaries(texts.filter(lambda name: name not in ("relevance", "measured")), values),
       measured=st.dictionaries(texts, values), comment=texts)  # fmt: skip
def test_configurations_are_read_as_they_were(
    options: dict[str, Any], measured: dict[str, Any], comment: str, file: Path
) -> None:
    file.write_bytes(config_text({"nothing": None, **options}, measured, comment).encode())
    found = read_config(file, options)
    assert found == options
    assert {name: type(value) for name, value in found.items()} == {n: type(v) for n, v in options.items()}


def test_numpy_in_a_configuration_is_written_as_what_it_holds(file: Path) -> None:
    given = {
        "a": np.float64(0.1),
        "b": np.int64(3),
        "c": np.bool_(True),
        "d": [np.float32(0.5)],
        "e": np.str_("x"),
    }
    file.write_text(config_text(given | {"f": np.arange(2), "g": (1, 2)}, {}, ""))
    assert read_config(file, "abcdefg") == {
        "a": 0.1, "b": 3, "c": True, "d": [0.5], "e": "x", "f": [0, 1], "g": [1, 2],
    }  # fmt: skip


def test_what_no_file_can_hold_is_refused() -> None:
    with pytest.raises(InputError, match="no text"):
        config_text({"relevance": "model-\udcff.json"}, {}, "")


shares = st.floats(0, 1)
costs = st.floats(0, 1e12)


@st.composite
def models(draw: st.DrawFn) -> dict[str, Any]:
    """Settings of a process, each number as Python's or numpy's."""

    def one_or_more(among: st.SearchStrategy[float]) -> Any:
        value = draw(among | st.lists(among, min_size=1, max_size=4))
        return draw(st.sampled_from([value, np.array(value), np.float64(value) if isinstance(value, float)
                                     else [np.float64(v) for v in value]]))  # fmt: skip

    return {
        **{name: one_or_more(shares) for name in ("retrieve_drop", "reason_drop", "success")},
        **{name: one_or_more(costs) for name in ("retrieve_cost", "reason_cost")},
        "discount": draw(st.sampled_from([0.5, np.float64(0.98), np.float32(0.5)])),
        "horizon": draw(st.sampled_from([None, 1, 10.0, np.int64(4), np.float64(3)])),
        "quality": draw(st.sampled_from(["linear", "log", "exp", np.str_("log")])),
        "k": draw(st.floats(1e-9, 1e9).map(np.float64)),
        "grid": draw(st.sampled_from([2, np.int32(11), 101.0])),
    }


@given(settings=models())
def test_processes_are_read_as_they_were(settings: dict[str, Any], file: Path) -> None:
    model = RetrievalMDP(**settings)
    file.write_text(model_to_toml(model), encoding="utf-8")
    assert "np." not in file.read_text()
    again = model_from_mapping(read_model(file), "file")
    assert again == model
    assert repr(again.to_dict()) == repr(model.to_dict())


@pytest.mark.parametrize("kind", AS_NUMPY)
def test_numbers_of_numpy_make_the_same_process(kind: Any) -> None:
    plain = RetrievalMDP(success=0.5, k=2.0, retrieve_cost=(0.25, 0.5), discount=0.5)
    made = RetrievalMDP(
        success=kind(0.5), k=kind(2.0), retrieve_cost=[kind(0.25), kind(0.5)], discount=kind(0.5)
    )
    assert made == plain
    assert repr(made) == repr(plain)
    for wrong in (math.nan, 1.5, -0.1):
        with pytest.raises(InputError, match="success="):
            RetrievalMDP(success=kind(wrong))


@pytest.mark.parametrize(
    "wrong",
    [{"success": np.array([[0.5]])}, {"success": np.array([])}, {"success": np.bool_(True)}, {"k": 1j},
     {"success": np.complex128(1)}, {"quality": ["linear"]}, {"quality": np.array(["log", "exp"])},
     {"horizon": np.array([3, 4])}, {"grid": np.datetime64("2020-01-01")}, {"discount": "0.5"}],
)  # fmt: skip
def test_what_is_no_number_is_refused_with_its_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        RetrievalMDP(**wrong)
