"""Filters: what they keep, and what they refuse."""

from typing import Any

import pytest

from mio_rag.errors import InputError
from mio_rag.filters import Filter
from mio_rag.types import Passage

PASSAGES = (
    Passage("a", "One.", source="travel.md", date="2026-03-01", metadata={"tenant": "a", "tags": ["x", "y"]}),
    Passage(
        "b", "Two.", source="hr/leave.pdf", date="2025-12-31", page=3, metadata={"tenant": "b", "size": 12}
    ),
    Passage("c", "Three.", source="hr/pay.md", section=("Pay", "Bonus"), metadata={"draft": True, "size": 9}),
    Passage("d", "Four.", date="2026-03-02T09:00:00Z", metadata={"size": float("nan"), "tags": ["y"]}),
)


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        (None, "abcd"),
        ({"tenant": "a"}, "a"),
        ({"source": "hr/*"}, "bc"),
        ({"source": "hr"}, "bc"),
        ({"source": {"in": ["hr/", "travel.md"]}}, "abc"),
        ("source!=hr", "ad"),
        ({"type": "md"}, "ac"),
        ({"date": {">=": "2026-01-01"}}, "ad"),
        ({"date": {"<": "2026-01-01"}}, "b"),
        ({"size": {">": 9}}, "b"),
        ({"size": {">=": "9", "<": 12}}, "c"),
        ({"tags": "x"}, "a"),
        ({"tenant": {"in": ["a", "b"]}}, "ab"),
        ({"tenant": ["a", "b"]}, "ab"),
        ({"tenant": {"!=": "a"}}, "bcd"),
        ({"section": "Bonus"}, "c"),
        ({"page": 3}, "b"),
        ({"draft": True}, "c"),
        (["source=*.md", "tenant=a"], "a"),
        ("date>=2025-12-31", "abd"),
        (["tenant=in=a,b"], "ab"),
        (["tenant!=a"], "bcd"),
        ("tags!=x", "bcd"),
        ("size>=9", "bc"),
        ("size>=nan", ""),
        ("date<=2026", "abd"),
        ("date>2025", "ad"),
        ("date<=2026-03-02", "abd"),
        ("date>2026-03-02", ""),
        ("date<2026-03", "b"),
        ("date=2026", "ad"),
        ("date=March 2026", "ad"),
        ("date=2025-12", "b"),
        ({"date": 2025}, "b"),
        ({"date": ["2025", "2026-03-01"]}, "ab"),
        ("date=2026-03-*", "ad"),
        ("date!=2026", "bc"),
    ],
)
def test_what_is_kept(where: Any, kept: str) -> None:
    assert "".join(PASSAGES[i].id for i in Filter(where).rows(PASSAGES)) == kept


def test_lacking_documents_are_counted_among_those_that_meet_the_other_conditions() -> None:
    (one,) = Filter(["size>=1", "source=*"]).applied(PASSAGES)[1]
    assert (one.key, one.names, one.of) == ("size", ("travel.md",), 3)
    assert Filter(["size>=1", "source=hr"]).applied(PASSAGES)[1] == ()


def test_both_filters_hold_together() -> None:
    both = Filter({"tenant": "a"}) & Filter("tenant=b")
    assert both.rows(PASSAGES).size == 0


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"tenent": "a"}, "no passage has 'tenent' to filter by: did you mean 'tenant'"),
        ({"size": {"~": 3}}, "'~' is no operator"),
        ({"size": {"in": 3}}, "'in' takes a list"),
        ("tenant", "write KEY=VALUE"),
        ({"date": {">": "soon"}}, "write YYYY, YYYY-MM or YYYY-MM-DD"),
        ("date=next week", "write YYYY, YYYY-MM or YYYY-MM-DD"),
        ({"tenant": {}}, "has no condition"),
        (5, "5 is no filter"),
        ([5], "'5' is no condition"),
    ],
)
def test_what_is_refused(where: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        Filter(where).rows(PASSAGES)
    assert message in str(caught.value)


def test_documents_that_lack_a_key_are_named_where_they_are_left_out() -> None:
    assert [(one.key, one.documents) for one in Filter("tenant=a").applied(PASSAGES)[1]] == [("tenant", 2)]
    assert not Filter("tenant!=a").applied(PASSAGES)[1]
