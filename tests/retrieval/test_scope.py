"""Which document a question names, and what it asks of it."""

import numpy as np
import pytest

from mio_rag.retrieval.scope import Identities
from mio_rag.retrieval.unit_terms import UnitTerms
from mio_rag.types import Passage, Unit


def identities(texts: dict[str, str]) -> tuple[Identities, UnitTerms]:
    passages = [
        Passage(source, text, title=text.split(".")[0], source=source, units=(Unit(0, len(text)),))
        for source, text in texts.items()
    ]
    terms = UnitTerms.build(passages)
    return Identities.build(passages, terms), terms


COMMON = "Payment is due in May. Repairs are paid by the tenant. Interest is paid monthly."
CONTRACTS = {
    "a.txt": f"Reseller agreement between Alder Software and Birch Trading. {COMMON}",
    "b.txt": f"Lease agreement between Cedar Homes and Doric Limited. {COMMON}",
    "c.txt": f"Licence agreement between Elm Records and Fir Studios. {COMMON}",
    "d.txt": f"Loan agreement between Gorse Bank and Hazel Farms. {COMMON}",
}


@pytest.mark.parametrize(
    ("question", "document", "rest"),
    [
        (
            "In the reseller agreement between Alder Software and Birch Trading: when is payment due?",
            0,
            "when is payment due?",
        ),
        (
            'What does the "Lease agreement between Cedar Homes and Doric Limited" say about repairs?',
            1,
            "What does the say about repairs?",
        ),
        ("When is payment due to Elm Records by Fir Studios as licence?", 2, "When is payment due to by as"),
        ("What interest does Gorse ask?", 3, None),
        ("In the loan agreement between Gorse and others: is interest paid?", 3, "is interest paid?"),
        ("In the loan agreement of others: is interest paid to Gorse?", 3, None),
        ("When is payment due?", None, None),
        ("zebra", None, None),
    ],
)
def test_a_question_names_a_document(question: str, document: int | None, rest: str | None) -> None:
    found, terms = identities(CONTRACTS)
    scope = found.of(question, terms.words)
    assert (scope.rest is None) == (rest is None)
    if rest is not None:
        assert " ".join(scope.rest.split()) == rest  # type: ignore[union-attr]
    if document is None:
        assert scope.documents.tolist() == [1.0] * 4
    else:
        assert np.flatnonzero(scope.documents >= 0.999).tolist() == [document]


def test_two_named_documents_are_both_in_scope() -> None:
    found, terms = identities(CONTRACTS)
    scope = found.of("Do Alder and Gorse pay interest?", terms.words)
    assert scope.rest is None
    assert scope.documents.tolist() == [1.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("question", "documents", "rest"),
    [
        ("What do Alder Software and Gorse Bank pay?", [0, 3], None),  # hardly half of each title
        (
            "Compare Oak Homes Limited and Pine Shops: when are repairs paid?",
            [4, 5],
            "when are repairs paid?",
        ),
        ("When do oak homes limited and pine shops pay?", [4, 5], "When do and pay?"),
        (
            "What do Oak Homes, Pine Shops, Rowan Farms, Sorrel Mills and Thyme Films pay?",
            [4, 5, 6, 7, 8],
            None,
        ),
        ("When does Oak Homes pay?", [4], None),
    ],
)
def test_documents_that_are_compared(question: str, documents: list[int], rest: str | None) -> None:
    names = ("Oak Homes Limited", "Pine Shops", "Rowan Farms", "Sorrel Mills", "Thyme Films")
    found, terms = identities(CONTRACTS | {f"{k}.txt": f"{name}. {COMMON}" for k, name in enumerate(names)})
    scope = found.of(question, terms.words)
    assert np.flatnonzero(scope.documents >= 0.999).tolist() == documents
    assert (scope.rest and " ".join(scope.rest.split())) == rest


def test_two_documents_have_no_scope() -> None:
    found, terms = identities({name: CONTRACTS[name] for name in ("a.txt", "b.txt")})
    scope = found.of("In the lease agreement between Cedar Homes and Doric Limited: who pays?", terms.words)
    assert (scope.documents.tolist(), scope.rest) == ([1.0, 1.0], None)


@pytest.mark.parametrize(
    ("question", "documents"),
    [
        ("What was the revenue of Alder Tools in FY2023?", [0, 1]),
        ("How has the revenue of ALDER TOOLS grown?", [0, 1, 2]),
        ("What is the revenue in Q2 of FY2023 at Alder Tools?", [1]),
        ("What did Birch earn?", [3]),
        ("How many tools did they sell?", [0, 1, 2, 3, 4, 5, 6]),
    ],
)
def test_a_name_that_filings_of_a_company_share_is_in_scope(question: str, documents: list[int]) -> None:
    names = ["ALDERTOOLS_2023_10K", "ALDERTOOLS_2023Q2_10Q", "ALDERTOOLS_2022_10K", "BIRCH_2023_10K"]
    names += ["CEDAR_2022_10K", "DORIC_2021_10K", "ELM_2020_8K"]
    told = "The revenue grew in the second quarter of the fiscal year, and more tools were sold."
    found, terms = identities({f"{name}.pdf": told for name in names})
    scope = found.of(question, terms.words)
    assert np.flatnonzero(scope.documents >= 0.999).tolist() == documents


def test_of_models_and_years_in_titles_the_asked_ones_are_in_scope() -> None:
    told = "The cooker keeps rice warm for a day. Wash the lid after each use. Rice is done in an hour."
    found, terms = identities({f"Rice cooker KX-{k}.md": told for k in (100, 200, 300)} | CONTRACTS)
    for question, documents in (
        ("How long does the KX-100 keep rice warm?", [0]),
        ("How do the rice cookers KX-100 and KX-300 differ?", [0, 2]),
        ("How long does the rice cooker KX keep rice warm?", [0, 1, 2]),
    ):
        scope = found.of(question, terms.words)
        assert np.flatnonzero(scope.documents >= 0.999).tolist() == documents


COMPANY = {
    name: f"{title}. Applies to all staff of Gorse Bank. {text}"
    for name, title, text in (
        ("leave.md", "Leave policy", "Carried days lapse on 31 March."),
        ("travel.md", "Travel policy", "First class is paid on long journeys."),
        ("pension.md", "Pension", "Contributions are matched up to four percent."),
        ("hazel-contract.md", "Contract with Hazel Farms", "Milk is delivered every morning."),
    )
}


@pytest.mark.parametrize(
    ("question", "bare"),
    [
        ("Who is the director of Gorse Bank?", "Who is the director"),
        ("Does Gorse match the contributions?", "Does match the contributions?"),
        ("What time does Hazel deliver milk?", "What time does deliver milk?"),
        ("When do carried days of leave lapse?", None),
        ("Who is Gorse Bank?", None),
        ("Does The Gorse Bank Match All Contributions?", None),
        ("When is Morning?", None),
    ],
)
def test_names_that_many_documents_have_are_left_out(question: str, bare: str | None) -> None:
    found, terms = identities(COMPANY)
    assert found.without_names(question, terms.words) == bare
