"""Names of earlier checkouts are understood, and said."""

import pytest

from mio_rag.cli.output import renamed
from tests.cli.running import here


@pytest.mark.parametrize(
    ("given", "now", "said"),
    [
        ("select P Q --budget-tokens 9 --explain", "select P Q --budget 9 --why", "--explain is now --why"),
        ("ask P Q --pool=8", "ask P Q --set search.pool=8", "--pool is now --set search.pool=..."),
        (
            "evaluate P --generator none --policies a,b",
            "evaluate P --methods a,b",
            "--policies is now --methods",
        ),
        ("select-batch F --out O", "batch select F --out O", "select-batch is now batch select"),
        ("lab frontier P --pool 3", "lab frontier P --pool 3", ""),
        ("select P Q -b 9", "select P Q -b 9", ""),
    ],
)
def test_they_become_todays(given: str, now: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert renamed(given.split()) == now.split()
    assert said in capsys.readouterr().err


def test_a_command_runs_with_them() -> None:
    old = here("select", "demo", "How tall is Skerryvore?", "--embedder", "tfidf", "--budget-tokens", 60)
    new = here("select", "demo", "How tall is Skerryvore?", "--embedder", "tfidf", "--budget", 60)
    assert old.returncode == 0
    assert old.stdout == new.stdout
