"""Parts of documents that a question names by their number are read first."""

import pytest

from mio_rag import Collection

FILES = {
    "statutes.md": "# Statutes\n\n## 4 Membership\n\nThe following holds for members:\n\n"
    "### 4.1 Admission\n\nWhoever wants to join applies in writing.\n\n### 4.2 Fees\n\nDue in May.\n\n"
    "### 4.3 Leaving\n\nA member leaves by a letter to the board.\n\n### 4.4 Exclusion\n\nThe board may "
    "exclude a member by a letter.\n\n## 12 Dissolution\n\nThree quarters of the votes are needed.\n",
    "bylaws.txt": "BYLAWS OF THE GARDEN\n\nSection 3. Plots\n(1) Each member has one plot.\n(2) A plot may "
    "not be passed on.\n\nSection 7. Noise\n(1) Quiet hours are from 13 to 15.\n(2) On Sundays rest:\n"
    "(a) mowers,\n(b) trimmers.\n\nAnnex B. Amounts\nThe amount is 90 EUR.\n",
    "lease.txt": "Lease of a boat\n\n1. Use\n\n1.1 The boat is used on the lake. It is moored at night.\n\n"
    "1.2 The boat must not be lent. Children wear vests.\n\n2. Rent\n\n2.1 Rent is paid on Fridays.\n",
    "repair.md": "# Repair\n\n1. Unplug the pump.\n2. Open the lid.\n3. Take out the filter.\n4. Rinse it.\n",
    "satzung.md": "# Satzung\n\n## § 5 Beitrag\n\n(1) Der Beitrag beträgt 40 Euro.\n\n(2) Schüler zahlen "
    "die Hälfte.\n\n## § 6 Vorstand\n\n(1) Der Vorstand hat drei Mitglieder.\n",
    "kisoku.md": "# 利用規則\n\n## 第三条（予約）\n\n予約は三日前までに行う。\n\n"
    "## 第四条（料金）\n\n料金は千円とする。\n",
}


@pytest.fixture(scope="module")
def docs(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    folder = tmp_path_factory.mktemp("numbered")
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    return Collection(folder, embedder="minilm")


@pytest.mark.parametrize(
    ("question", "read"),
    [
        ("Statutes clause 4.1", "4.1 Admission\nWhoever wants to join applies in writing."),
        ("What do the statutes say in 4.3?", "4.3 Leaving\nA member leaves"),
        ("What does § 12 of the statutes say?", "12 Dissolution\nThree quarters"),
        ("What do clauses 4.2 and 4.4 say?", "4.4 Exclusion\nThe board may exclude"),
        ("Section 7(2)(b) of the bylaws", "  (b) trimmers."),
        ("Paragraph 1 of Section 3", "Section 3. Plots\n(1) Each member"),
        ("What does Annex B say?", "The amount is 90 EUR."),
        ("What is in clause 1.2 of the lease?", "1.2 The boat must not be lent. Children wear vests."),
        ("Section 7, item 1 of the bylaws", "(1) Quiet hours are from 13 to 15."),
        ("Which is step 3 of the repair?", "3. Take out the filter."),
        ("Was steht in § 5 Abs. 2 der Satzung?", "(2) Schüler zahlen die Hälfte."),
        ("第4条の内容は？", "料金は千円とする。"),
    ],
)
def test_a_part_is_read_first_by_its_number(question: str, read: str, docs: Collection) -> None:
    found = docs.select(question, budget=45)
    assert read in found.context
    assert found.answerable is None or found.answerable >= 0.5


@pytest.mark.parametrize("question", ["By how much did rents rise, 4.1 %?", "Which section I should read?"])
def test_other_numbers_name_no_part(question: str, docs: Collection) -> None:
    assert "Admission" not in docs.select(question, budget=30).context
