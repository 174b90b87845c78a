"""What of a policy holds where one total is shared over candidates."""

import pytest

from mio_rag.control.composed.allocating import allocating
from mio_rag.control.composed.policy import policy_of
from mio_rag.control.composed.read import PRESETS, read_policy
from mio_rag.errors import InputError
from mio_rag.selection.selector import Selector

TOTAL = {"price": {"total": 5000, "questions": 10}}
BASE = Selector()


@pytest.mark.parametrize("name", PRESETS)
def test_presets_share_a_total_that_is_given(name: str) -> None:
    found = allocating(read_policy(name), BASE, 4000)
    assert found.total_tokens == 4000
    assert found.ceiling == read_policy(name).limits.evidence_tokens
    assert found.selector.token_price == 0
    assert any("instead" in said for said in found.unused)
    with pytest.raises(InputError, match="needs a total"):
        allocating(read_policy(name), BASE)


def test_what_is_read_is_the_policy_s() -> None:
    data = {"reading": {"max_per_source": 2}, "limits": {"evidence_tokens": 300}, "search": {"pool": 9}}
    found = allocating(policy_of({**TOTAL, **data}, "p"), BASE)
    assert (found.selector.max_per_source, found.ceiling, found.total_tokens) == (2, 300, 5000)
    assert [said.partition(":")[0] for said in found.unused] == ["search", "limits but evidence_tokens"]


def test_all_that_cannot_be_kept_is_named_at_once() -> None:
    data = {
        "price": {"total": 5000, "per": "day"},
        "amount": {"by": "tier", "tier": "easy"},
        "reading": {"by": "tier"},
    }
    with pytest.raises(InputError) as error:
        allocating(policy_of(data, "p"), BASE)
    assert [said.partition(":")[0] for said in error.value.problems] == ["amount", "reading", "price"]
    with pytest.raises(InputError, match="has what was found"):
        allocating(policy_of({**TOTAL, "repetition": {"by": "price"}}, "p"), BASE)
