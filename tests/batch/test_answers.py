"""Many questions under a policy: each answered and charged once, and no total ever exceeded."""

import gzip
import json
import sqlite3
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mio_rag.batch.answering import Answered, Died, Workers
from mio_rag.batch.ask import AskedSummary, ask_many, read_questions
from mio_rag.batch.ledger import Claim, Ledger
from mio_rag.cli.batch import _why_left
from mio_rag.corpora.load import Dataset
from mio_rag.errors import InputError, StateError
from mio_rag.generation import Prompt, ScriptedGenerator, make_generator
from mio_rag.policy import Policy, policy_of
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.selection.selector import Selector
from mio_rag.session.workflow import chain
from mio_rag.sources import Building, open_source
from mio_rag.types import Answer, GenerationError, Question
from tests.batch.made import lines_of, write
from tests.cli.running import here
from tests.learning.files import TIERS, router_file

QUESTIONS = tuple(Question(f"q{k}", f"How long is river {k}, and where does it rise?") for k in range(24))
BASE: dict[str, Any] = {"limits": {"budget": 60, "max_tokens": 8}, "search": {"pool": 6}}
PRICED = BASE | {"models": {"reader": {"input": 100.0, "output": 400.0}}}
POLICY, IN_DOLLARS = policy_of(BASE, "small"), policy_of(PRICED, "priced")


class Shaky:
    """Fails on a fixed share of its calls; of those that stall it never reports whether they were done."""

    def __init__(self, fails: int = 0, stalls: int = 0, says: str = "241 kilometres") -> None:
        self.calls: list[str] = []
        self.stalled = 0
        self._fails, self._stalls, self._says, self._lock = fails, stalls, says, threading.Lock()

    def __call__(self, prompt: Prompt) -> str:
        with self._lock:
            self.calls.append(prompt.question.id)
            count = len(self.calls)
            if self._stalls and count % self._stalls == 0:
                self.stalled += 1
                raise GenerationError("no answer within a second", untold=True)
        if self._fails and count % self._fails == 0:
            raise GenerationError("HTTP 500")
        return self._says


def run(
    index: CorpusIndex, out: Path, says: Any = None, policy: Policy = POLICY, **more: Any
) -> AskedSummary:
    questions = more.pop("questions", QUESTIONS)
    given = {"concurrency": 3, "retries": 4} | more
    return ask_many(questions, index, ScriptedGenerator(says or Shaky()), policy, out, **given)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mio_rag.generation.base._FIRST_SECONDS", 0.0)


@pytest.fixture
def begun(river_index: CorpusIndex, tmp_path: Path) -> Path:
    """A batch whose ledger was begun, and no question asked."""
    stop = threading.Event()
    stop.set()
    run(river_index, tmp_path, stop=stop)
    return tmp_path


# Each question once


def test_every_question_is_answered_in_its_place(river_index: CorpusIndex, tmp_path: Path) -> None:
    done = run(river_index, tmp_path)
    assert (done.answered, done.failed, done.left, done.needs) == (24, 0, 0, None)
    found = lines_of(tmp_path)
    assert [row["query_id"] for row in found] == [q.id for q in QUESTIONS]
    assert {row["answer"] for row in found} == {"241 kilometres"}
    assert all(row["way"] and 0 <= row["complete"] <= 1 for row in found)
    assert done.spent == sum(row["prompt_tokens"] + row["completion_tokens"] for row in found)
    assert json.loads((tmp_path / "summary.json").read_text())["answered"] == 24


def test_rows_over_documents_name_their_section_and_claim_no_completeness(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    text = "# Rivers\n\n## Arno\n\nThe Arno is 241 km long.\n\n## Tiber\n\nThe Tiber is 406 km long.\n"
    (tmp_path / "docs" / "rivers.md").write_text(text)
    opened = open_source(tmp_path / "docs", Building(embedder="tfidf"), out=tmp_path / "INDEX")
    run(opened.index, tmp_path / "out", questions=(Question("q", "How long is the Arno?"),))
    (row,) = lines_of(tmp_path / "out")
    assert row["complete"] is None
    assert {place["source"] for place in row["read"]} == {"rivers.md"}
    assert ["Arno"] in [place["section"][-1:] for place in row["read"]]
    assert all({"id", "source", "page", "section"} == set(place) for place in row["read"])


def test_a_stopped_run_resumes_and_asks_nothing_twice(river_index: CorpusIndex, tmp_path: Path) -> None:
    stop, says = threading.Event(), Shaky()

    def progress(more: int, count: int) -> None:
        if len(says.calls) >= 7:
            stop.set()

    first = run(river_index, tmp_path, says, stop=stop, progress=progress)
    assert 7 <= first.answered == 24 - first.left < 24
    assert len({tuple(row) for row in lines_of(tmp_path)}) == 1  # rows without an answer have the same keys
    second, third = run(river_index, tmp_path, says), run(river_index, tmp_path, says)
    assert (second.done_before, second.answered) == (first.answered, 24)
    assert sorted(says.calls) == sorted(q.id for q in QUESTIONS)
    assert (third.done_before, third.spent) == (24, second.spent)


def test_a_server_that_fails_and_stalls_costs_no_question(river_index: CorpusIndex, tmp_path: Path) -> None:
    says = Shaky(fails=3, stalls=7)
    done = run(river_index, tmp_path, says)
    assert done.answered == 24
    assert all(row["attempts"] == 1 for row in lines_of(tmp_path))
    assert 0 < done.lost <= says.stalled * 200  # what the longest prompt and answer may take


def test_failed_questions_are_tried_again_and_a_dead_server_ends_the_run(
    river_index: CorpusIndex, tmp_path: Path
) -> None:
    def broken(prompt: Prompt) -> str:
        if prompt.question.id in ("q3", "q9"):
            raise GenerationError("HTTP 500")
        return "yes"

    def dead(prompt: Prompt) -> str:
        raise GenerationError("connection refused")

    done = run(river_index, tmp_path, broken, retries=1)
    assert (done.answered, done.failed) == (22, 2)
    failed = {row["query_id"]: row["error"] for row in lines_of(tmp_path) if row["state"] == "failed"}
    assert failed.keys() == {"q3", "q9"}
    assert all("HTTP 500" in why for why in failed.values())
    again = run(river_index, tmp_path, retries=1)
    assert (again.answered, again.failed, again.done_before) == (24, 0, 22)
    with pytest.raises(GenerationError, match="20 questions in a row failed"):
        run(river_index, tmp_path / "dead", dead, retries=0)


def test_a_killed_run_s_reservation_is_lost_and_its_question_asked_again(
    begun: Path, river_index: CorpusIndex
) -> None:
    ledger = Ledger(begun / "ledger.sqlite")
    assert ledger.hold(0, 500, None)
    ledger.close()  # as a kill leaves it
    done = run(river_index, begun)
    assert (done.answered, done.lost) == (24, 500)
    assert lines_of(begun)[0]["attempts"] == 2


@pytest.mark.parametrize(("total", "answered"), [(None, 23), (700, 4)])
def test_a_dead_worker_s_reservation_is_lost_and_its_question_asked_again(
    total: int | None, answered: int, tmp_path: Path
) -> None:
    asked, deaths = Counter[str](), {"q1": 1, "q2": 99}

    class Mortal:
        def most(self, question: Question) -> int:
            return 100

        def least(self, question: Question) -> int | None:
            return None

        def answer(self, claim: Claim) -> Answered:
            asked[claim.question.id] += 1
            if asked[claim.question.id] <= deaths.get(claim.question.id, 0):
                raise Died("the worker died")
            return Answered(60, {"answer": "a", "token_price": 0.001})

    ledger = Ledger(tmp_path / "l.sqlite")
    ledger.begin({"policy": "x"}, len(QUESTIONS))
    Workers(ledger, Mortal(), QUESTIONS, total, threading.Event()).work(1)
    account = ledger.account()
    assert (account.states["answered"], account.states["failed"]) == (answered, 1)  # q2: no worker survived
    assert (account.spent, account.held, account.lost) == (60 * answered, 0, 400)
    assert (asked["q1"], asked["q2"]) == (2, 3)
    assert ledger.last_price() == 0.001
    ledger.close()


def test_no_question_is_charged_twice(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.sqlite")
    ledger.begin({"policy": "x"}, len(QUESTIONS))
    claim = Claim(0, QUESTIONS[0])
    assert ledger.hold(0, 100, 150)
    assert not ledger.hold(1, 100, 150)
    ledger.settle(claim, 60, {"answer": "a"})
    with pytest.raises(StateError, match="settled already"):
        ledger.settle(claim, 60, {"answer": "a"})
    account = ledger.account()
    assert (account.spent, account.held, account.lost) == (60, 0, 0)
    assert account.states == {"answered": 1, "open": 23}
    assert ledger.hold(1, 90, 150)
    # 60 + 90 are taken: a lost call of 50 comes out of the reservation, and no other may be made.
    assert not ledger.lose(Claim(1, QUESTIONS[1]), 50, 150)
    account = ledger.account()
    assert (account.spent, account.held, account.lost) == (60, 40, 50)
    ledger.close()
    (tmp_path / "other.sqlite").write_bytes(b"something else, and long enough to be no database at all")
    with pytest.raises(InputError, match="cannot be used as a ledger"):
        Ledger(tmp_path / "other.sqlite")


@pytest.mark.parametrize(
    ("damage", "row"),
    [
        ("questions SET told = '7', state = 'answered'", "row 23 of questions"),
        ("account SET spent = 'much'", "row 1 of account"),
    ],
)
def test_a_damaged_ledger_is_refused_with_file_and_row(
    damage: str, row: str, begun: Path, river_index: CorpusIndex
) -> None:
    with closing(sqlite3.connect(begun / "ledger.sqlite")) as connection, connection:
        connection.execute(f"UPDATE {damage}")
    with pytest.raises(StateError, match=f"ledger.sqlite' is damaged: {row} holds"):
        run(river_index, begun)


def test_other_questions_policies_or_files_do_not_mix(river_index: CorpusIndex, tmp_path: Path) -> None:
    embedder, width = river_index.embedder.fingerprint, river_index.embedder.encode(["x"]).shape[1]
    router_file(tmp_path / "r.safetensors", embedder, width)
    told = BASE | {
        "limits": {"budget": 90, "max_tokens": 16},
        "depth": {"by": "router", "file": "r.safetensors"},
    }
    policy, out, few = policy_of(told, "routed", tmp_path), tmp_path / "out", QUESTIONS[:6]
    for total in (9000, 9500):  # a total may be raised
        run(river_index, out, policy=policy, total_tokens=total, questions=few)
    with pytest.raises(InputError, match="another questions"):
        run(river_index, out, policy=policy, total_tokens=9500, questions=few[:3])
    other = policy_of(told | {"limits": {"budget": 90, "max_tokens": 20}}, "other", tmp_path)
    with pytest.raises(InputError, match="another policy"):
        run(river_index, out, policy=other, total_tokens=9500, questions=few)
    router_file(tmp_path / "r.safetensors", embedder, width, (TIERS[0].replace(context=20), *TIERS[1:]))
    with pytest.raises(InputError, match="another policy"):
        run(river_index, out, policy=policy, total_tokens=9500, questions=few)


# Totals


@pytest.mark.parametrize("total", [1, 150, 900, 2000])
def test_a_total_of_tokens_is_never_exceeded(total: int, river_index: CorpusIndex, tmp_path: Path) -> None:
    if total < 70:
        with pytest.raises(InputError, match="below one question"):
            run(river_index, tmp_path, total_tokens=total)
        return
    done = run(river_index, tmp_path, Shaky(fails=4, stalls=5), total_tokens=total)
    assert done.spent + done.lost <= total
    assert done.answered + done.failed + done.unread + done.left == 24
    if total == 2000:
        assert done.answered > 2


def test_a_total_of_dollars_is_never_exceeded_and_may_be_raised(
    river_index: CorpusIndex, tmp_path: Path
) -> None:
    done = run(river_index, tmp_path, Shaky(stalls=5), IN_DOLLARS, total_dollars=0.2)
    assert done.unit == "dollars"
    assert 0 < done.spent <= done.spent + done.lost <= 0.2
    assert 0 < done.answered < 24
    more = run(river_index, tmp_path, policy=IN_DOLLARS, total_dollars=9.0)
    assert (more.answered, more.needs) == (24, None)


@pytest.mark.parametrize("untold", [False, True])
@pytest.mark.parametrize("dollars", [0.034, 0.036, 0.11, 0.4])
def test_repeated_calls_without_an_answer_stay_within_the_total(
    untold: bool, dollars: float, river_index: CorpusIndex, tmp_path: Path
) -> None:
    billed = []

    class Useless(ScriptedGenerator):
        """Takes the most that it may, and returns nothing of use."""

        def _generate(self, prompt: Prompt, max_tokens: int) -> Answer:
            reply = Answer("?", self.prompt_tokens(prompt), max_tokens, 0.0, self.name)
            billed.append(reply.prompt_tokens * 1e-4 + reply.completion_tokens * 4e-4)
            raise GenerationError("no letter", None if untold else reply, untold=untold)

    done = ask_many(
        QUESTIONS[:6], river_index, Useless({}), IN_DOLLARS, tmp_path, total_dollars=dollars, retries=2
    )
    assert done.answered == 0
    assert sum(billed) <= done.spent + done.lost + 1e-9 <= dollars + 2e-9


def test_a_raised_total_goes_on_at_the_last_price(river_index: CorpusIndex, tmp_path: Path) -> None:
    given = {"concurrency": 1, "questions": [Question(f"q{k}", f"How long is river {k}?") for k in range(24)]}
    first = run(river_index, tmp_path, total_tokens=800, **given)
    before = [row["token_price"] for row in lines_of(tmp_path) if row["state"] == "answered"]
    assert 0 < first.answered < 24
    more = run(river_index, tmp_path, total_tokens=9000, **given)
    assert more.answered == 24
    assert first.spent < more.spent <= 9000
    assert lines_of(tmp_path)[first.answered]["token_price"] == pytest.approx(before[-1])


def test_what_a_total_does_not_allow_is_left_and_answered_with_a_larger_one(
    demo: Dataset, tmp_path: Path
) -> None:
    index, reader = CorpusIndex.build(demo.passages, "tfidf", demo.name), make_generator("extractive")
    data = {"price": {"token": 0.0005}, "limits": {"budget": 400, "max_tokens": 32}}
    policy = policy_of(data | {"selection": {"by": "program", "units": "passages"}}, "p12")
    asked, sparse = read_questions("demo")[:40], 7000

    def batch(total: int, concurrency: int = 1) -> AskedSummary:
        return ask_many(
            asked, index, "extractive", policy, tmp_path, total_tokens=total, concurrency=concurrency
        )

    first = batch(sparse)
    before = lines_of(tmp_path)
    assert first.spent + first.lost <= sparse
    assert (first.failed, first.unread) == (0, 0)
    assert first.left == len(asked) - first.answered > 0
    assert first.needs is not None
    assert sparse - first.spent < first.needs <= 1000
    assert json.loads((tmp_path / "summary.json").read_text())["needs"] == first.needs
    assert "raise the total" in _why_left(first)
    retriever = Retriever(index)
    refused = [row for row in before if "nothing worth reading fits in" in (row["way"] or [""])[-1]]
    assert refused
    for row in refused:
        pool = retriever.retrieve(row["question"])
        assert Selector(token_price=row["token_price"], units="passages").select(pool, 400, reader).chosen
        assert (row["state"], row["lm_calls"]) == ("open", 0)
    same = batch(sparse, concurrency=3)
    assert (same.answered, same.spent, same.unread) == (first.answered, first.spent, 0)
    more = batch(20_000, concurrency=3)
    assert (more.answered, more.failed, more.unread, more.left) == (len(asked), 0, 0, 0)
    assert first.spent < more.spent <= 20_000
    found = lines_of(tmp_path)
    assert all(found[row["row"]] == row for row in before if row["state"] == "answered")
    assert more.spent == sum(row["prompt_tokens"] + row["completion_tokens"] for row in found)


def test_what_is_not_worth_its_price_costs_nothing(river_index: CorpusIndex, tmp_path: Path) -> None:
    dear = policy_of(BASE | {"price": {"token": 0.9}}, "dear")
    done = run(river_index, tmp_path / "dear", policy=dear)
    assert (done.answered, done.failed, done.unread, done.left, done.spent) == (0, 0, 24, 0, 0)
    row = lines_of(tmp_path / "dear")[0]
    assert (row["state"], row["selected_ids"], row["lm_calls"]) == ("unread", [], 0)
    assert row["way"][-1] == "no model was asked: nothing was worth reading"
    # Under a total the price is the pacer's, so that a larger one reads what the smaller one could not.
    poor = run(river_index, tmp_path / "total", total_tokens=400)
    assert poor.unread + poor.left > 0
    assert run(river_index, tmp_path / "total", total_tokens=20_000).answered > poor.answered
    found = lines_of(tmp_path / "total")
    assert all(bool(row["selected_ids"]) == (row["state"] == "answered") for row in found)


def test_the_total_of_a_policy_is_that_of_all_runs(river_index: CorpusIndex, tmp_path: Path) -> None:
    own = policy_of(BASE | {"price": {"total": 500, "questions": 24}}, "own")
    first = run(river_index, tmp_path / "a", policy=own)
    assert 0 < first.answered < len(QUESTIONS)
    again = run(river_index, tmp_path / "a", policy=own)
    assert again.spent + again.lost <= 500 == again.total
    daily = policy_of(BASE | {"price": {"total": 500, "per": "day"}}, "daily")
    priced = policy_of(PRICED | {"price": {"total": 500, "questions": 24}}, "priced")
    for policy, total in ((daily, {}), (priced, {"total_dollars": 1.0})):
        with pytest.raises(InputError, match="would begin anew"):
            run(river_index, tmp_path / "b", policy=policy, **total)
    kept = policy_of(BASE | {"price": {"total": 500, "per": "day", "state": "p.sqlite"}}, "kept", tmp_path)
    run(river_index, tmp_path / "c", policy=kept)
    assert run(river_index, tmp_path / "c", policy=kept).spent <= 500


# Calls besides the answer


@pytest.mark.parametrize(
    "more",
    [{"search": {"pool": 6, "strategies": ["raw", "hyde"]}}, {"order": {"workflow": "decompose-parallel"}}],
)
def test_a_lost_call_of_a_thread_is_charged_to_its_question(
    more: dict[str, Any], river_index: CorpusIndex, tmp_path: Path
) -> None:
    says = Shaky(stalls=5, says="1. How long is it?\n2. Where does it rise?")
    done = run(river_index, tmp_path, says, policy_of(BASE | more, "more"), questions=QUESTIONS[:12])
    found = lines_of(tmp_path)
    assert (done.answered, {row["error"] for row in found}) == (12, {None})  # nothing was dropped
    assert sum(row["lm_calls"] for row in found) == len(says.calls) - says.stalled
    assert says.stalled > 0
    assert done.lost > 20 * says.stalled  # each at least its prompt


def test_calls_of_a_workflow_s_own_model_are_repeated_and_counted(
    river_index: CorpusIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cheap, opened = Shaky(stalls=5, says="rivers of Austria"), list[str]()

    def make(spec: str, replies: Any = None) -> ScriptedGenerator:
        opened.append(spec)
        return ScriptedGenerator(cheap)

    monkeypatch.setattr("mio_rag.batch.answering.make_reader", make)
    workflow = chain("worded", {"do": "rewrite", "model": "cheap"}, "retrieve", "select", "answer")
    (tmp_path / "worded.json").write_text(json.dumps(workflow.to_dict()))
    prices = {
        "reader": {"input": 1.0, "output": 1.0},
        "cheap": {"input": 3.0, "output": 3.0, "spec": "extractive"},
    }
    policy = policy_of(BASE | {"order": {"workflow": "worded.json"}, "models": prices}, "named", tmp_path)
    done = run(river_index, tmp_path / "out", policy=policy, total_dollars=10.0)
    assert (done.answered, opened) == (24, ["extractive"])  # opened once for all questions
    assert len(cheap.calls) - cheap.stalled == 24  # each lost call was repeated
    assert done.lost > cheap.stalled * 20 * 3e-6 > 0


def test_a_batch_with_a_bandit_resumes(river_index: CorpusIndex, tmp_path: Path) -> None:
    search = {"by": "bandit", "strategies": ["raw", "hyde"], "state": "arms.sqlite", "pool": 6}
    stop = threading.Event()

    def batch(**more: Any) -> AskedSummary:
        policy = policy_of(BASE | {"search": search}, "learning", tmp_path)
        return run(river_index, tmp_path / "out", Shaky(says="yes"), policy, **more)

    first = batch(stop=stop, progress=lambda more, count: stop.set())
    assert 0 < first.answered < len(QUESTIONS)
    more = batch()  # the log exists by now
    assert (more.done_before, more.answered) == (first.answered, len(QUESTIONS))


# Problems, and the command


def test_every_problem_is_reported_before_anything_is_made(river_index: CorpusIndex, tmp_path: Path) -> None:
    bandit = policy_of(
        {"search": {"by": "bandit", "strategies": ["raw", "hyde"], "state": "b.sqlite"}}, "b", tmp_path
    )
    on_ray = ("a bandit learns in one file", "workers must be", "folder of an index", "name of a generator")
    for policy, more, said in (
        (bandit, {"engine": "ray", "workers": 0}, on_ray),
        (POLICY, {"total_dollars": 1.0, "questions": ()}, ("no questions", "needs the price of")),
    ):
        with pytest.raises(InputError) as error:
            run(river_index, tmp_path / "out", policy=policy, **more)
        assert all(part in str(error.value) for part in said)
    told = here(
        *("batch", "answer", str(tmp_path / "INDEX"), str(tmp_path / "none.jsonl"), "--model", "gguf:none"),
        *("--out", str(tmp_path / "out"), "--total-tokens", "5", "--concurrency", "0"),
    ).stderr
    assert all(part in told for part in ("none.jsonl", "INDEX", "gguf:none", "--concurrency must be"))
    assert not (tmp_path / "out").exists()


def test_the_command_resumes(river_index: CorpusIndex, tmp_path: Path) -> None:
    index, asked, out = (tmp_path / name for name in ("INDEX", "q.jsonl", "out"))
    river_index.save(index)
    asked.write_text('{"id": "a", "question": "How long is the Tiber?"}\n')
    done = here("batch", "answer", index, asked, "--out", out, "--policy", "frugal", "--json")
    assert (done.returncode, json.loads(done.stdout)["answered"]) == (0, 1), done.stderr
    again = here("batch", "answer", index, asked, "--out", out, "--policy", "frugal")
    assert "1 were answered before" in again.stdout


# The questions themselves


def test_questions_come_from_lines_and_parquet(tmp_path: Path) -> None:
    lines = [{"id": "a", "question": "Who?"}, {"question": "What?", "choices": ["x", "y"]}]
    text = "\n".join(json.dumps(line) for line in lines)
    (tmp_path / "q.jsonl").write_text(text)
    (tmp_path / "q.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    expected = (Question("a", "Who?"), Question("1", "What?", choices=("x", "y")))
    assert read_questions(tmp_path / "q.jsonl") == read_questions(tmp_path / "q.jsonl.gz") == expected
    write(tmp_path / "q.parquet", [{"query_id": "a", "question": "Who?"}])
    assert read_questions(tmp_path / "q.parquet") == expected[:1]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "bad.jsonl",
            '{"question": 3}\nnothing\n{"question": "Who?", "choices": "x"}\n[]\n',
            "row|line|choices",
        ),
        ("none.jsonl", "\n", "has no questions"),
        ("q.txt", "Who built it?", r"q\.txt' is not read: questions come in \.jsonl"),
        ("index", "", "is an index, not questions: give the questions first"),
    ],
)
def test_what_is_no_file_of_questions_is_refused(tmp_path: Path, name: str, text: str, said: str) -> None:
    if name == "index":
        (tmp_path / name).mkdir()
        for part in ("manifest.json", "passages.jsonl"):
            (tmp_path / name / part).write_text("{}")
    else:
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=said) as error:
        read_questions(tmp_path / name)
    assert len(error.value.problems) == (4 if name == "bad.jsonl" else 1)
