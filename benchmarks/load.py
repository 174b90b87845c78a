"""What a model's server that fails in every way bills, against what each door counts; under kills, too.

The server runs in this process (`benchmarks.faults`). Batches and services run in processes of their own,
are killed, and started again with the same arguments. Its bill must never exceed what is counted: by the
ledger of a batch, the accounts of keys, the file of a total, the usage of an answer or what its error says.
No question may be lost, be answered by the reply to another one, or pay for a reply twice.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import httpx
import numpy as np

from benchmarks.faults import INTO, OUT, FaultyServer, dollars, faulty_server
from benchmarks.runner import Measured, at_least, note, resident_mb, text_table, write_json, write_text
from benchmarks.service import free_port
from mio_rag import Collection, evaluate
from mio_rag.assistants import Assistants, FindContext
from mio_rag.batch.ask import read_questions
from mio_rag.corpora.load import load_dataset
from mio_rag.errors import SpentError
from mio_rag.generation import OpenAIGenerator, ScriptedGenerator, build_prompt, make_generator
from mio_rag.generation.base import telling
from mio_rag.policies.compose import compose, pacer_of
from mio_rag.policies.setup import Setup
from mio_rag.policy import policy_of
from mio_rag.pool import Candidates
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.minilm import packaged_minilm
from mio_rag.retrieval.retriever import Retriever
from mio_rag.service.keys import new_key
from mio_rag.storage import read_json, read_toml
from mio_rag.types import GenerationError, Question

T = TypeVar("T")
_POLICY = """
[limits]
budget = 256
max_tokens = 16
"""
_PRICED = f"""
[price]
token = 0.002
[models.reader]
input = {INTO}
output = {OUT}
"""
_ASKING = """
[price]
token = 0.0005
[search]
strategies = ["raw", "query2doc", "hyde"]
[repeat]
by = "price"
query = "model"
"""
_PARTS = """
[order]
workflow = "decompose-parallel"
"""
_PACED = """
[price]
total = 100000000
questions = 100000
state = "{state}"
"""
_STRATEGIES, _WORKFLOW, _TOTAL = "strategies", "workflow", "total"
_KILL_SECONDS, _LOOK_SECONDS = (0.0, 1.5), 0.1  # after the first new answer
#: Policies whose decisions are timed.
_DECIDING: Mapping[str, dict[str, Any]] = {
    "price": {"price": {"token": 0.002}},
    "price, another search": {"price": {"token": 0.0005}, "repeat": {"by": "price", "most": 1}},
    "total, another search by the process": {
        "price": {"total": 10**7, "questions": 10_000},
        "repeat": {"by": "process", "most": 2},
    },
}


def measure(given: argparse.Namespace) -> Measured:
    """Ask through every door; time decisions without a model."""
    at_least(given, calls=10, questions=1, kills=0, decisions=1)
    work, drawn = given.work, random.Random(given.seed)
    _make_ready(work, given.questions)
    found: dict[str, dict[str, Any]] = {}
    doors: dict[str, Callable[[FaultyServer], dict[str, Any]]] = {
        "reader, 16 threads": partial(_reader, calls=given.calls),
        "ask, MCP": partial(_asked, work=work, calls=given.calls // 100, policy=None),
        "ask by strategies": partial(_asked, work=work, calls=given.calls // 200, policy=_STRATEGIES),
        "ask by a workflow": partial(_asked, work=work, calls=given.calls // 200, policy=_WORKFLOW),
        "ask within a total": partial(_asked, work=work, calls=given.calls // 200, policy=_TOTAL),
        "evaluate": partial(_evaluated, work=work, questions=max(2, given.calls // 200)),
        "service, keys": partial(_served, work=work, kills=given.kills, drawn=drawn, policy=None),
        "service within a total": partial(
            _served, work=work, kills=given.kills // 4, drawn=drawn, policy=_TOTAL
        ),
        "batch": partial(_batch, work=work, given=given, drawn=drawn, kills=given.kills),
        "batch, half of that": partial(
            _batch, work=work, given=given, drawn=drawn, kills=given.kills // 8, share=0.5
        ),
        "batch, paced": partial(
            _batch, work=work, given=given, drawn=drawn, kills=given.kills // 8, paced=True
        ),
        "batch, Ray": partial(_batch, work=work, given=given, drawn=drawn, kills=given.kills // 25, ray=True),
    }
    chosen = [name for name in doors if not given.only or name in given.only.split(";")]
    for number, name in enumerate(chosen):
        done = work / f"{name}.json"
        if done.is_file():  # of an interrupted run
            found[name] = dict(read_json(done))
            continue
        with faulty_server(seed=given.seed + number, late=3.0) as server:
            one = doors[name](server)
            one["faults"] = {k[7:]: n for k, n in sorted(server.bill.items()) if k.startswith("fault: ")}
            one["billed"] = dollars(server.bill)
            one["calls"] = server.bill["asked"]
        if one["billed"] > one["counted"] + 1e-9:
            one["problems"].append(f"billed ${one['billed']:.6f}, counted ${one['counted']:.6f}")
        write_json(done, one)
        found[name] = one
        note(f"{name}: {one['calls']} calls, {one.get('kills', 0)} kills, {one['problems']}")
    problems = [f"{name}: {problem}" for name, one in found.items() for problem in one["problems"]]
    rows = [
        (
            *(name, f"{one['calls']:,}", str(one.get("kills", 0))),
            *(f"${one['billed']:.4f}", f"${one['counted']:.4f}"),
            *(
                f"{one['counted'] / max(one['billed'], 1e-12):.3f}",
                f"{one['answered']:,} of {one['asked']:,}",
            ),
        )
        for name, one in found.items()
    ]
    heads = ("door", "calls", "kills", "billed", "counted", "counted / billed", "answered")
    table = text_table(heads, rows)
    deciding = _deciding(work, given.decisions)
    lines = [f"deciding, {n}: {1e3 * d['median_seconds']:.1f} ms of CPU" for n, d in deciding.items()]
    total = {key: sum(one.get(key, 0) for one in found.values()) for key in ("calls", "kills")}
    report = {"total": total, "doors": found, "deciding": deciding, "problems": problems}
    return Measured(report, "\n".join([table, f"{total}", *lines, *problems]), wrong=len(problems))


def _make_ready(work: Path, questions: int) -> None:
    """Write index, questions and policies, once. A question has a number, which its answer repeats."""
    if (work / "total.toml").is_file():
        return
    demo = load_dataset("demo")
    CorpusIndex.build(demo.passages, "tfidf", demo.name).save(work / "INDEX", overwrite=True)
    texts = [question.text for question in demo.questions]
    lines = (
        json.dumps({"id": f"q{k}", "question": f"{texts[k % len(texts)]} (no. {k})"})
        for k in range(questions)
    )
    write_text(work / "questions.jsonl", "\n".join(lines) + "\n")
    for name, more in {"policy": _PRICED, _STRATEGIES: _ASKING, _WORKFLOW: _PARTS, _TOTAL: _PACED}.items():
        write_text(work / f"{name}.toml", _POLICY + more.format(state=work / "total.sqlite"))


def _spec(server: FaultyServer, retries: int, seconds: float = 2.0, here: bool = True) -> str:
    """Name the model; here: count tokens in the process that asks, which takes 3 s to begin."""
    counter = f"&tokenizer={packaged_minilm()}" if here else ""
    return f"openai:{server.url}#scripted?timeout_seconds={seconds}&retries={retries}&concurrency=32{counter}"


def _cost(usage: Mapping[str, int]) -> float:
    return (usage["prompt_tokens"] * INTO + usage["completion_tokens"] * OUT) / 1e6


class _Counted:
    """What is counted, answered, and wrong; threads share it."""

    def __init__(self) -> None:
        self.dollars, self.answered, self.asked = 0.0, 0, 0
        self.problems: Counter[str] = Counter()
        self._lock = threading.Lock()

    def take(self, number: int, answer: str, usage: Mapping[str, int] | None) -> None:
        """Count an answer, or a failure: an empty one."""
        with self._lock:
            self.asked += 1
            self.dollars += 0.0 if usage is None else _cost(usage)
            self.answered += bool(answer)
            if answer and answer.partition("\n")[0].split(". ")[-1] != str(number):
                self.problems[f"question {number} is answered by {answer!r:.60}"] += 1

    def failed(self, number: int, error: BaseException) -> None:
        """Count what a failure says that it cost."""
        if not isinstance(error, (GenerationError, SpentError)):
            self.problems[f"{type(error).__name__}: {error}"[:200]] += 1
        spent = getattr(error, "spent", None)
        self.take(number, "", None if spent is None else spent.usage)

    def each(self, ask: Callable[[int], None], count: int, threads: int) -> dict[str, Any]:
        """Ask so many questions, and return what came of it."""

        def tried(number: int) -> None:
            try:
                ask(number)
            except Exception as error:
                self.failed(number, error)

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(tried, range(count)))
        return self.found()

    def found(self) -> dict[str, Any]:
        """As the report has it."""
        problems = [f"{problem} ({times} times)" for problem, times in self.problems.items()]
        return {"counted": self.dollars, "answered": self.answered, "asked": self.asked, "problems": problems}


def _reader(server: FaultyServer, calls: int) -> dict[str, Any]:
    """Every other reply is a stream."""
    counted = _Counted()
    with cast(OpenAIGenerator, make_generator(_spec(server, 2, 0.5))) as reader:

        def ask(number: int) -> None:
            told: list[str] = []
            prompt = build_prompt(Question("q", f"Where is the tower? (no. {number})"))
            with telling(told.append) if number % 2 else nullcontext():
                answer = reader.generate(prompt, max_tokens=16)
            counted.take(number, answer.text, answer.usage)
            if number % 2 and "".join(told).strip() != answer.text:
                counted.problems[f"a stream reported {told}, the answer is {answer.text!r}"] += 1

        return counted.each(ask, calls // 2, 16)


def _asked(server: FaultyServer, work: Path, calls: int, policy: str | None) -> dict[str, Any]:
    """Without a policy every other question goes through the tool of assistants."""
    counted, spec, before = _Counted(), _spec(server, 1), 0 if policy != _TOTAL else _of_total(work)
    collection = Collection(work / "INDEX", policy="default" if policy is None else work / f"{policy}.toml")
    tools = Assistants([work / "INDEX"], allow_ask=spec)

    def ask(number: int) -> None:
        question = f"Which tower is taller, Bell Rock or Skerryvore? (no. {number})"
        if policy is None and number % 2:
            reply = tools.ask_documents(FindContext(question=question))
            counted.take(number, reply.text, reply.data)
        else:
            answer = collection.ask(question, model=spec, answer_tokens=16)
            counted.take(number, answer.text, answer.usage)

    found = counted.each(ask, calls, 8)
    collection.close()
    if policy == _TOTAL:  # in tokens: at the lower price, as if all were of prompts
        bill, spent = _tokens(server), _of_total(work) - before
        found["problems"] += [f"billed {bill} tokens, the total counts {spent}"] if bill > spent else []
    return found


def _tokens(server: FaultyServer) -> int:
    return server.bill["prompt_tokens"] + server.bill["completion_tokens"]


def _of_total(work: Path) -> int:
    pacer = pacer_of(policy_of(read_toml(work / f"{_TOTAL}.toml"), _TOTAL))
    assert pacer is not None
    with closing(pacer):
        account = pacer.account()
    return int(account.spent + account.reserved)


def _evaluated(server: FaultyServer, work: Path, questions: int) -> dict[str, Any]:
    out, counted = work / "evaluated", _Counted()
    asked = [Question(f"q{k}", f"How tall is Skerryvore? (no. {k})") for k in range(questions)]
    evaluate(work / "INDEX", asked, methods=("mio", "topk"), budgets=128, model=_spec(server, 1), out=out)
    for line in (out / "rows.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row.get("method") is not None:
            counted.take(int(row["question_id"][1:]), row.get("answer") or "", row)
    return counted.found()


# Services -----------------------------------------------------------------------------------------------


def _served(
    server: FaultyServer, work: Path, kills: int, drawn: random.Random, policy: str | None
) -> dict[str, Any]:
    """Clients ask without pause, each question until it is answered, also where the service was killed."""
    key, table = new_key("one")
    write_text(work / "keys.toml", f"{table}tokens = {{ month = 1_000_000_000 }}\n")
    counted, ended, port = _Counted(), threading.Event(), free_port()
    before_all = 0 if policy is None else _of_total(work)  # other doors spend from the same total
    numbers, lives = itertools.count(), 0
    options = ["--set", "server.concurrency=4"]
    options += (
        ["--keys", str(work / "keys.toml")] if policy is None else ["--policy", str(work / f"{policy}.toml")]
    )
    command = [
        sys.executable, "-m", "mio_rag", "serve", str(work / "INDEX"), "--port", str(port),
        "--model", _spec(server, 1, here=False), *options,
    ]  # fmt: skip

    def client() -> None:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60) as http:
            while not ended.is_set():
                number = next(numbers)
                text = f"Which tower is taller, Bell Rock or Skerryvore? (no. {number})"
                path, body = _requests(text)[number % 4]
                while not ended.is_set():
                    try:
                        reply = http.post(path, json=body, headers={"X-API-Key": key})
                    except httpx.HTTPError:  # killed
                        time.sleep(0.1)
                        continue
                    if reply.status_code not in (200, 502, 503):
                        counted.problems[f"{path}: {reply.status_code} {reply.text[:200]}"] += 1
                    if reply.status_code == 200:
                        counted.take(number, _said(reply), None)
                        break

    clients = [threading.Thread(target=client) for _ in range(8)]
    for thread in clients:
        thread.start()
    while lives <= kills:
        before, life = counted.answered, subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while counted.answered == before and life.poll() is None:
            time.sleep(0.02)
        if life.poll() is not None:
            counted.problems[f"the service ended with {life.poll()}"] += 1
            break
        time.sleep(drawn.uniform(0.0, 1.5))
        lives += 1
        if lives > kills:
            ended.set()
            for thread in clients:
                thread.join()
            life.terminate()
        else:
            life.kill()
        life.wait()
    found = counted.found() | {"kills": kills}
    if policy is not None:
        bill, spent = _tokens(server), _of_total(work) - before_all
        found["problems"] += [f"billed {bill} tokens, the total counts {spent}"] if bill > spent else []
        return found | {"counted": spent * dollars(server.bill) / max(1, bill)}
    with closing(sqlite3.connect(work / "keys.sqlite")) as accounts:
        tokens = sum(
            accounts.execute(f"SELECT total(tokens) FROM {name}").fetchone()[0]
            for name in ("spent", "reserved")
        )
    bill = _tokens(server)
    found["problems"] += [f"billed {bill} tokens, the key counts {tokens:.0f}"] if bill > tokens else []
    return found | {"counted": tokens * dollars(server.bill) / max(1, bill)}


def _requests(text: str) -> list[tuple[str, dict[str, Any]]]:
    ask = {"question": text, "budget_tokens": 128, "max_tokens": 16}
    chat = {"model": "", "messages": [{"role": "user", "content": text}], "max_tokens": 16}
    paths = {"/ask": ask, "/v1/chat/completions": chat}
    return [(path, {**body, "stream": streams}) for path, body in paths.items() for streams in (False, True)]


def _said(reply: httpx.Response) -> str:
    """The answer of either form, whole or as a stream; empty where the stream reports an error."""
    if not reply.headers["content-type"].startswith("text/event-stream"):
        data = reply.json()
        return str(data["answer"] if "answer" in data else data["choices"][0]["message"]["content"])
    if "event: error" in reply.text:
        return ""
    data = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
    deltas = [choice["delta"].get("content", "") for one in data for choice in one.get("choices", ())]
    return "".join([one.get("text", "") for one in data if "text" in one] + deltas)


# Batches ------------------------------------------------------------------------------------------------


def _batch(
    server: FaultyServer, work: Path, given: argparse.Namespace, drawn: random.Random, kills: int,
    share: float | None = None, paced: bool = False, ray: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Run until every question is answered, or the total is spent; see how each was charged.

    share: of the money that the first batch took.
    """
    name = "ray" if ray else "paced" if paced else "half" if share else "all"
    count = given.questions // (25 if ray else 4 if paced else 1)
    total = ["--total-dollars", "1000"]
    if share is not None:
        total[1] = f"{read_json(work / 'batch.json')['spent'] * share:.9f}"
    if paced:
        total = ["--total-tokens", str(150 * count)]
    out = work / f"{name}-{kills}"
    command = [
        *(sys.executable, "-m", "mio_rag", "batch", "answer", str(work / "INDEX"), "--json"),
        *(str(work / "questions.jsonl"), "--out", str(out), "--policy", str(work / "policy.toml"), *total),
        *("--model", _spec(server, 0, here=False), "--concurrency", "8", "--limit", str(count)),
        *(["--engine", "ray"] if ray else []),
    ]
    seen, killed, problems, summary = list[tuple[int, float]](), 0, list[str](), dict[str, Any]()
    for _ in range(kills + 20):
        run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        seen.clear()
        if _is_killed(run, out, drawn.uniform(*_KILL_SECONDS) if killed < kills else None, seen):
            killed += 1
            continue
        text, error = run.communicate()
        if not text.startswith("{"):
            problems.append(f"the command said {error[-300:]!r}")
            break
        before, summary = summary, json.loads(text)
        if summary["answered"] == count or (before and before["spent"] == summary["spent"]):
            break
    counted = summary["spent"] + summary["lost"]
    bill = _tokens(server) if paced else dollars(server.bill)
    problems += [f"billed {bill}, the ledger counts {counted}"] if bill > counted + 1e-9 else []
    problems += [f"{counted} of {summary['total']} are counted"] if counted > summary["total"] + 1e-9 else []
    rows = _lines(out)
    if share is None and not paced and len(rows) < 0.99 * count:
        problems.append(f"{len(rows)} of {count} questions are answered")
    answered = _Counted()
    for number, cost, told, attempts in rows:
        answered.take(number, told["answer"], None)
        exact = round(_cost(told) * 1e9)
        if attempts == 1 and not paced and abs(cost - exact) > told["lm_calls"]:
            answered.problems[f"question {number} paid {cost}, its replies cost {exact}"] += 1
    return {
        **answered.found(), "kills": killed, "spent": summary["spent"], "lost": summary["lost"],
        "counted": dollars(server.bill) * counted / max(bill, 1e-12), "asked": count, "memory": _memory(seen),
        "problems": [*answered.found()["problems"], *problems],
    }  # fmt: skip


def _is_killed(
    run: subprocess.Popen[str], out: Path, after: float | None, seen: list[tuple[int, float]]
) -> bool:
    """Wait for a run and watch its memory; return whether it was killed `after` seconds of new answers."""
    before, first = _answered(out), None
    while run.poll() is None:
        time.sleep(_LOOK_SECONDS)
        if (answered := _answered(out)) > before:
            first = first or time.monotonic()
            seen.append((answered, resident_mb(run.pid)))
        if after is not None and first is not None and time.monotonic() - first >= after:
            run.kill()
            run.communicate()
            return True
    return False


def _memory(seen: Sequence[tuple[int, float]]) -> dict[str, Any]:
    picked = np.linspace(0, len(seen) - 1, min(11, len(seen))).astype(int)
    curve = [[seen[k][0], round(seen[k][1], 1)] for k in picked]
    return {"mb_by_answered": curve, "peak_mb": round(max((size for _, size in seen), default=0.0), 1)}


def _answered(out: Path) -> int:
    return int(_read(out, "SELECT count(*) FROM questions WHERE state = 'answered'")[0][0])


def _lines(out: Path) -> list[tuple[int, int, dict[str, Any], int]]:
    """Return number, cost, result and attempts of every answered question."""
    rows = _read(out, "SELECT number, cost, told, attempts FROM questions WHERE state = 'answered'")
    return [(int(number), int(cost), json.loads(line), tries) for number, cost, line, tries in rows]


def _read(out: Path, query: str) -> list[tuple[Any, ...]]:
    file = out / "ledger.sqlite"
    with suppress(sqlite3.OperationalError):  # it is being made
        if file.is_file():
            with closing(sqlite3.connect(file)) as ledger:
                return ledger.execute(query).fetchall()
    return [(0,)] if "count" in query else []


# CPU time of decisions, without searching and without a model -----------------------------------------------


class _Timed(Retriever):
    """Count the CPU seconds of searches."""

    searching = 0.0
    _inside = False

    def _timed(self, search: Callable[[], T]) -> T:
        if self._inside:  # one search calls another
            return search()
        self._inside, began = True, time.process_time()
        try:
            return search()
        finally:
            self._inside = False
            self.searching += time.process_time() - began

    def retrieve(self, question: str) -> Candidates:
        return self._timed(lambda: super(_Timed, self).retrieve(question))

    def ranked(self, text: str, words: str | None = None) -> list[int]:
        return self._timed(lambda: super(_Timed, self).ranked(text, words))

    def pool_of(self, question: str, ranking: Sequence[int], fused: Mapping[int, float]) -> Candidates:
        return self._timed(lambda: super(_Timed, self).pool_of(question, ranking, fused))


def _deciding(work: Path, questions: int, warm: int = 5) -> dict[str, dict[str, float]]:
    index, found = CorpusIndex.load(work / "INDEX"), {}
    asked = read_questions(work / "questions.jsonl")[: questions + warm]
    for name, policy in _DECIDING.items():
        reader, retriever = ScriptedGenerator(lambda prompt: "yes"), _Timed(index)
        made = compose(policy_of(policy, name), Setup(retriever=retriever))
        session = replace(made, kit=replace(made.kit, retriever=retriever))
        took = []
        for question in asked:
            before, began = retriever.searching, time.process_time()
            session.attempt(question, reader, 1024)
            took.append(time.process_time() - began - (retriever.searching - before))
        session.close()
        kept = np.array(took[warm:] or took)
        found[name] = {
            "median_seconds": float(np.median(kept)),
            "p95_seconds": float(np.quantile(kept, 0.95)),
        }
    return found
