"""What users see, as lines of text: what was asked, and what came of it.

Each function goes through one public door and returns rows that a person can read. Nothing here depends on
how the answer comes about: when a class changes its name, only this file changes, and never the recordings.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from mio_rag import CorpusIndex, Dataset, InputError, LinearConstraint, Retriever, Selector, SideConstraints
from mio_rag.errors import MioRagError
from mio_rag.generation import make_generator
from mio_rag.policies.make import make_controller
from mio_rag.policies.setup import ControlSettings, Setup
from mio_rag.service.app import create_app
from mio_rag.session.ask import ask
from mio_rag.solvers import SolveOptions
from tests.cli.running import here
from tests.learning.files import planner_file, router_file

#: Chosen by different rules, by different tools; each is asked six questions of the bundled set.
POLICIES = (
    *("fixed-0", "fixed-3", "always-reason", "always-retrieve", "mdp", "threshold:.4", "random"),
    *("mdp@evidence", "mdp@complete", "threshold:.4@evidence"),
    *(f"workflow:{name}" for name in (
        "plain", "no-retrieval", "rewrite-first", "two-queries", "search-parts", "decompose-parallel",
        "decompose-serial", "read-and-decompose", "plain-then-serial", "verify-or-parts", "priced-sentences",
    )),
    *("strategies:raw", "strategies:raw+hyde", "strategies:raw+multi-query+query2doc", "strategies:bandit"),
    *("tier:easy", "tier:medium", "tier:hard", "random-tier", "oracle-tier", "routed"),
    *("planner", "planner@.4"),
    *("policy:frugal", "policy:balanced", "policy:thorough"),
)  # fmt: skip

#: Further policies, as their files say it.
TOML = {
    "ranking": '[selection]\nby = "ranking"\n[limits]\nbudget = 200\n',
    "strategies": '[search]\nstrategies = ["raw", "hyde"]\n',
    "bandit": '[search]\nby = "bandit"\nstrategies = ["raw", "hyde"]\nstate = "bandit.sqlite"\n',
    "tier": '[depth]\nby = "tier"\ntier = "small"\ntiers = "tiers.toml"\n',
    "tier-rule": '[depth]\nby = "tier"\ntier = "medium"\n[selection]\nby = "tier"\n',
    "router": '[depth]\nby = "router"\nfile = "router.safetensors"\n',
    "planner": '[order]\nby = "planner"\nfile = "planner.safetensors"\n',
    "planner-again": '[order]\nby = "planner"\nfile = "again.safetensors"\n',
    "again": '[price]\ntoken = 0.00005\n[repeat]\nby = "price"\n',
    "process": '[price]\ntoken = 0.00001\n[repeat]\nby = "process"\nquery = "model"\n',
    "rule": '[repeat]\nby = "threshold:.4"\nquery = "model"\nsignal = "evidence"\n',
    "parts": '[order]\nworkflow = "decompose-parallel"\n[search]\nstrategies = ["raw", "hyde"]\n',
    "small": "[limits]\nmax_total_tokens = 1500\nbudget = 900\nmax_steps = 1\n",
    "total": "[price]\ntotal = 4000\nquestions = 25\n[limits]\nbudget = 300\nmax_total_tokens = 2000\n",
}

TIERS = """
[[tier]]
name = "small"
depth = 3
context = 120
new_tokens = 16
unit = "tokens"
compress = "none"
"""


def policies(data: Dataset, index: CorpusIndex, folder: Path) -> Iterator[str]:
    """Every policy on some questions: answer, passages read, tokens in and out, calls, searches."""
    router_file(folder / "router.safetensors", index.embedder.fingerprint, index.dimensions)
    planner_file(folder / "planner.safetensors")
    planner_file(folder / "again.safetensors", "again")
    (folder / "tiers.toml").write_text(TIERS, encoding="utf-8")
    for name, text in TOML.items():
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    kinds = {
        "router": {"router": str(folder / "router.safetensors")},
        "planner": {"file": str(folder / "planner.safetensors")},
        "strategies": {"state": str(folder / "alone.sqlite"), "possible": ("raw", "hyde", "multi-query")},
    }
    reader = make_generator("extractive")
    retriever = Retriever(index, counter=reader)
    for name in (*POLICIES, *(f"policy:{folder / stem}.toml" for stem in TOML)):
        given = {} if name.startswith("tier:") or "-tier" in name else kinds
        setup = Setup(ControlSettings(kinds=given), retriever, Selector(), 32, 0)
        made = make_controller(name, setup)
        shown = re.sub(r"policy:.*/(.*)\.toml", r"policy:\1", name)
        budget = 10_000 if name.startswith(("policy:", "tier:", "routed")) or "-tier" in name else 256
        for question in data.questions[::15]:
            if "bandit" in name and question is not data.questions[0]:
                break  # it draws by a random id, and learns
            found = made.attempt(question, reader, budget)
            total = found.costs.total()
            ids = () if found.selection is None else found.selection.ids
            answer = type(found.error).__name__ if found.reply is None else found.reply.answer.text
            spent = (total.prompt_tokens, total.completion_tokens, total.lm_calls, total.retrieval_calls)
            if "bandit" in name:
                answer, ids, spent = answer and "answered", (), ()  # type: ignore[assignment]
            yield _row(shown, question.id, answer, _short(ids), *spent)


#: By words that a reader of the recordings understands.
SELECTORS: dict[str, Callable[[], Selector]] = {
    "default": Selector,
    "auto units": lambda: Selector(units="auto"),
    "sentences": lambda: Selector(units="sentences"),
    "price .001": lambda: Selector(token_price=0.001),
    "redundancy .3": lambda: Selector(redundancy_weight=0.3),
    "radius .05, joint": lambda: Selector(radius=0.05, counterpart="joint"),
    "radius .05": lambda: Selector(radius=0.05),
    "raw": Selector.raw,
    "frugal": lambda: Selector.preset("frugal"),
    "thorough": lambda: Selector.preset("thorough"),
    "top-k": lambda: Selector(solver="topk"),
    "highs": lambda: Selector(solver="highs"),
    "at most two": lambda: Selector(max_passages=2),
    "in order": lambda: Selector(prompt_order="document"),
    "excluded": lambda: Selector(must_exclude=("demo-006",)),
    "one source: a third": lambda: Selector(side=SideConstraints(max_source_share=0.34)),
}


def selections(data: Dataset, index: CorpusIndex, folder: Path) -> Iterator[str]:
    """Selection from Python: pools of the bundled questions, settings, budgets."""
    reader = make_generator("extractive")
    retriever = Retriever(index, counter=reader)
    pools = {q.id: retriever.retrieve(q.text) for q in data.questions[:8]}
    for name, make in SELECTORS.items():
        selector = make()
        for budget in (64, 256):
            for identity, pool in pools.items():
                one = selector.select(pool, budget, reader)
                status, value = one.result.status.value, one.result.objective
                shown = f"{value:.7g}" if value is not None else ""
                yield _row(name, budget, identity, _short(one.ids), one.tokens_used, shown, status, one.unit)
    for question in data.questions:
        selection, answer = ask(index, question, reader, budget_tokens=256)
        yield _row("ask", 256, question.id, _short(selection.ids), selection.tokens_used, answer.text)


QUESTION = "Which bridge has the longer main span, the Forth Bridge or the Quebec Bridge?"


def commands(data: Dataset, index: CorpusIndex, folder: Path) -> Iterator[str]:
    """JSON of the commands, without texts, seconds and hashes."""
    at = index.save(folder / "index")
    many = folder / "ask.jsonl"
    many.write_text(
        "".join(json.dumps({"id": q.id, "question": q.text}) + "\n" for q in data.questions[:6]),
        encoding="utf-8",
    )
    (folder / "total.toml").write_text(TOML["total"], encoding="utf-8")
    small, whole = ("--budget", 256), ("--set", "selection.units=passages")
    for given in (
        ("select", at, QUESTION, *small),
        ("select", at, QUESTION),
        ("select", at, QUESTION, "--units", "passages", "--budget", 100),
        ("select", at, QUESTION, "--method", "fused", *small),
        ("select", at, QUESTION, "--set", "search.strategies=raw,grounded", *small),
        ("ask", at, QUESTION, *small),
        ("ask", at, QUESTION, "--policy", "balanced"),
        ("ask", at, QUESTION, "--policy", folder / "total.toml"),
        ("ask", at, QUESTION, "--policy", "mdp", *small),
        ("ask", at, QUESTION, "--policy", "tier:medium"),
        ("ask", at, QUESTION, "--policy", "workflow:decompose-parallel", *small),
        ("ask", at, QUESTION, "--policy", "strategies:raw+hyde", *small),
        ("lab", "frontier", at, QUESTION, *small),
        ("policy", "show", "balanced"),
        ("policy", "show", "plain"),
        ("lab", "solve", "mdp"),
        ("evaluate", "--list"),
        ("evaluate", "demo", "--embedder", "tfidf", "--limit", 6, "--budget", 256, "--methods",
         "exact,topk,mdp,workflow:plain", "--model", "extract", "--answer", 32, *whole,
         "--out", folder / "run"),
        ("batch", "answer", at, many, "--out", folder / "answers", "--policy", "balanced"),
    ):  # fmt: skip
        done = here(*given, "--json")
        shown = " ".join(str(one).replace(str(at), "INDEX").replace(str(folder), "F") for one in given)
        out = done.stdout.strip()
        told = json.dumps(_plain(json.loads(out), folder), sort_keys=True) if out else _words(done.stderr)
        yield _row(shown, done.returncode, told)


def requests(data: Dataset, index: CorpusIndex, folder: Path) -> Iterator[str]:
    """Bodies of the service, right and wrong."""
    sent: tuple[tuple[str, str, Any], ...] = (
        ("POST", "/select", {"question": QUESTION}),
        ("POST", "/select", {"question": QUESTION, "budget_tokens": 100, "units": "passages"}),
        ("POST", "/select", {"question": QUESTION, "exclude": ["demo-050"], "redundancy_weight": 0.3}),
        ("POST", "/ask", {"question": QUESTION}),
        ("POST", "/ask", {"question": "What is the capital of Peru?"}),
        ("GET", "/v1/models", None),
        ("POST", "/select", {"question": QUESTION, "where": "titel=Forth*", "budget_tokens": 100}),
        ("POST", "/select", {"question": QUESTION, "where": "title=Forth*", "budget_tokens": 100}),
        ("POST", "/select", {"question": ""}),
        ("POST", "/select", {"question": QUESTION, "budget_tokens": 0}),
        ("POST", "/select", {"question": QUESTION, "budget_tokens": "many"}),
        ("POST", "/select", {"question": QUESTION, "budget_tokens": 10**9}),
        ("POST", "/select", {"question": QUESTION, "bugdet_tokens": 10}),
        ("POST", "/select", {"question": QUESTION, "radius": -1, "pool": 0}),
        ("POST", "/ask", {"question": 7}),
        ("POST", "/ask", {"question": QUESTION, "max_tokens": 0}),
        ("POST", "/ask", []),
        ("POST", "/feedback", {"id": "none", "helpful": True}),
        ("GET", "/nothing", None),
        ("GET", "/select", None),
    )
    for policy in (None, "balanced"):
        with TestClient(create_app(index, make_generator("extractive"), policy=policy)) as client:
            for method, path, body in sent:
                got = client.request(method, path, json=body)
                told = json.dumps(_plain(got.json(), folder), sort_keys=True)
                yield _row(policy or "-", method, path, json.dumps(body), got.status_code, told)


def wrong_inputs(data: Dataset, index: CorpusIndex, folder: Path) -> Iterator[str]:
    """What people type wrong, and the sentences that they get."""
    at = index.save(folder / "index")
    for given in WRONG_COMMANDS:
        arguments = [str(at) if one == "INDEX" else one for one in given]
        done = here(*arguments)
        shown = " ".join(given)
        yield _row(
            shown,
            done.returncode,
            _words(done.stderr).replace(str(at), "INDEX").replace(str(Path.cwd()), "CWD"),
        )
    for text in WRONG_POLICIES:
        path = folder / "wrong.toml"
        path.write_text(text, encoding="utf-8")
        done = here("policy", "check", path)
        yield _row(
            text.replace("\n", "; "),
            done.returncode,
            _words(done.stderr).replace(str(path), "FILE").replace(str(folder), "F"),
        )
    for shown, act in WRONG_CALLS.items():
        try:
            act()
            said = "accepted"
        except (InputError, MioRagError) as error:
            said = f"{type(error).__name__}: {'; '.join(getattr(error, 'problems', [str(error)]))}"
        yield _row(shown, said)


WRONG_COMMANDS = (
    ("select", "INDEX", ""),
    ("select", "INDEX", "Who?", "--budget", "0"),
    ("select", "INDEX", "Who?", "--budget", "many"),
    ("select", "INDEX", "Who?", "--buget", "10"),
    ("select", "INDEX", "Who?", "--budget-tokens", "10"),
    ("select", "INDEX", "Who?", "--redundancy", "1"),
    ("select", "INDEX", "Who?", "--method", "best"),
    ("select", "INDEX", "Who?", "--format", "html"),
    ("select", "INDEX", "Who?", "--units", "words"),
    ("select", "INDEX", "Who?", "--set", "search.pool=0"),
    ("select", "INDEX", "Who?", "--set", "search.pol=9"),
    ("select", "INDEX", "Who?", "--set", "price.token"),
    ("select", "INDEX", "Who?", "--set", "selection.solver=gurobbi"),
    ("select", "INDEX", "Who?", "--set", "selection.redundancy_weight=-1"),
    ("select", "INDEX", "Who?", "--set", "selection.redundancy_weight=nan"),
    ("select", "INDEX", "Who?", "--set", "selection.radius=-1"),
    ("select", "INDEX", "Who?", "--set", "price.token=-1"),
    ("select", "INDEX", "Who?", "--set", "selection.preset=fast"),
    ("select", "INDEX", "Who?", "--set", "search.ranking=sparse"),
    ("select", "INDEX", "Who?", "--set", "selection.options.time_limit_seconds=0"),
    ("select", "INDEX", "Who?", "--set", "selection.options.relative_gap=-1"),
    ("select", "INDEX", "Who?", "--set", "selection.must_include=nothing"),
    ("select", "INDEX", "Who?", "--set", "search.strategies=raw,hide"),
    ("select", "INDEX", "Who?", "--set", "search.by=bandit"),
    ("select", "INDEX", "Who?", "--policy", "missing.toml"),
    ("select", "INDEX", "Who?", "--policy", "mdp"),
    ("select", "INDEX", "Who?", "--embedder", "tfidf"),
    ("select", "nowhere", "Who?"),
    ("select", "tests/goldn", "Who?"),
    ("select",),
    ("selekt", "INDEX", "Who?"),
    ("ask", "INDEX", "Who?", "--model", "gpt"),
    ("ask", "INDEX", "Who?", "--model", "gguf:missing.gguf"),
    ("ask", "INDEX", "Who?", "--policy", "mpd"),
    ("ask", "INDEX", "Who?", "--policy", "threshold:2"),
    ("ask", "INDEX", "Who?", "--policy", "fixed-x"),
    ("ask", "INDEX", "Who?", "--policy", "mdp@luck"),
    ("ask", "INDEX", "Who?", "--policy", "tier:huge"),
    ("ask", "INDEX", "Who?", "--policy", "routed"),
    ("ask", "INDEX", "Who?", "--policy", "planner"),
    ("ask", "INDEX", "Who?", "--policy", "workflow:plane"),
    ("ask", "INDEX", "Who?", "--set", "order.workflow=missing.json"),
    ("ask", "INDEX", "Who?", "--policy", "cheap"),
    ("ask", "INDEX", "Who?", "--policy", "missing.toml"),
    ("ask", "INDEX", "Who?", "--answer", "0"),
    (
        "ask",
        "INDEX",
        "Who?",
        "--policy",
        "balanced",
        "--set",
        "answers.cache=x.sqlite",
        "--set",
        "repeat.by=price",
    ),
    ("ask", "INDEX", "Who?", "--set", "depth.file=missing.safetensors"),
    ("index",),
    ("index", "nothing", "--embedder", "minilmm"),
    ("evaluate",),
    ("evaluate", "nothing"),
    ("evaluate", "demo", "--methods", "best"),
    ("evaluate", "demo", "--methods", "mpd", "--model", "extract"),
    ("evaluate", "demo", "--methods", "mdp"),
    ("evaluate", "demo", "--budget", "0"),
    ("evaluate", "demo", "--limit", "0"),
    ("evaluate", "demo", "--measure", "judge=nobody"),
    ("serve", "INDEX", "--port", "99999999"),
    ("serve", "INDEX", "--policy", "cheap"),
    ("serve", "INDEX", "--policy", "mdp"),
    ("serve", "INDEX", "--model", "gpt"),
    ("serve", "INDEX", "--workers", "0"),
    ("serve", "INDEX", "--set", "server.max_pol=3"),
    ("batch", "answer", "INDEX", "missing.jsonl", "--out", "out"),
    ("batch", "select", "missing.parquet", "--out", "out"),
    ("batch", "allocate", "missing.parquet", "--out", "out"),
    ("batch", "allocate", "missing.parquet", "--out", "out", "--total-tokens", "10"),
    ("lab", "frontier", "INDEX", "Who?", "--budget", "1,2"),
    ("lab", "solve", "missing.json"),
    ("lab", "solve", "mdp", "--set", "horizn=3"),
    ("lab", "solve", "missing.toml"),
    ("policy", "show", "plane"),
    ("policy", "show", "cheap"),
    ("policy", "fit", "router", "missing.parquet", "--out", "x"),
    ("policy", "state", "show", "missing.sqlite"),
    *((old, "INDEX") for old in ("select-batch", "frontier")),
)

WRONG_POLICIES = (
    "[price]\ntoken = -1\n",
    "[price]\ntoken = nan\n",
    '[price]\ntoken = "cheap"\n',
    "[price]\ntoken = 0.1\ntotal = 10\n",
    "[price]\nworth = 1.0\n",
    "[price]\ntotal = 100\n",
    "[price]\ntotal = 100000\n",
    '[price]\ntotal = 100000\nper = "week"\n',
    "[price]\ntokens = 1\n",
    '[order]\nworkflow = "plane"\n',
    '[order]\nby = "luck"\n',
    '[order]\nby = "planner"\n',
    '[order]\nby = "planner"\nfile = "missing"\n',
    '[order]\nworkflow = "no-retrieval"\n[repeat]\nby = "price"\n',
    '[search]\nstrategies = ["hide"]\n',
    '[search]\nby = "bandit"\n',
    '[search]\nstate = "x.sqlite"\n',
    "[search]\npool = 0\n",
    "[search]\npool = 2.5\n",
    '[depth]\nby = "tier"\n',
    '[depth]\nby = "tier"\ntier = "huge"\n',
    '[depth]\nby = "router"\n',
    '[depth]\ntier = "medium"\n',
    '[depth]\nunsure = "maybe"\n',
    '[selection]\nby = "tier"\n',
    '[selection]\nby = "ranking"\nredundancy_weight = 1.0\n',
    '[selection]\nby = "ranking"\n[depth]\nby = "tier"\ntier = "medium"\n',
    '[selection]\npreset = "raw"\n',
    "[selection]\ntoken_price = 1.0\n",
    "[selection]\nredundancy = 1.0\n",
    "[selection]\nredundancy_weight = -1.0\n",
    '[repeat]\nby = "often"\n',
    '[repeat]\nby = "price"\nfinds = 2\n',
    '[repeat]\nby = "price"\nmost = 0\n',
    '[repeat]\nby = "price"\nsignal = "luck"\n',
    '[repeat]\nby = "price"\n[depth]\nby = "tier"\ntier = "medium"\n[selection]\nby = "tier"\n',
    "[limits]\nbudget = 0\n",
    '[limits]\nbudget = "all"\n',
    "[limits]\nmax_total_tokens = 100\n",
    "[limits]\nmax_steps = -1\n",
    "[limits]\ntimeout = 0\n",
    "[limits]\nsecond = 1\n",
    "[limitz]\nmax_steps = 1\n",
    "[models.reader]\ninput = 1.0\n",
    '[models.reader]\nspec = "extractive"\n',
    "[models.small]\ninput = 1.0\noutput = 1.0\n",
    "price = 3\n",
    "[price\n",
)

WRONG_CALLS: dict[str, Callable[[], Any]] = {
    "Selector(redundancy_weight=-1)": lambda: Selector(redundancy_weight=-1),
    "Selector(redundancy_weight=nan)": lambda: Selector(redundancy_weight=float("nan")),
    "Selector(units='words')": lambda: Selector(units="words"),  # type: ignore[arg-type]
    "Selector(solver='gurobbi')": lambda: Selector(solver="gurobbi"),
    "Selector(prompt_order='random')": lambda: Selector(prompt_order="random"),  # type: ignore[arg-type]
    "Selector(radius=-1)": lambda: Selector(radius=-1),
    "Selector(counterpart='none', radius=1)": lambda: Selector(counterpart="none", radius=1),  # type: ignore[arg-type]
    "Selector(max_passages=0)": lambda: Selector(max_passages=0),
    "Selector.preset('fast')": lambda: Selector.preset("fast"),
    "SideConstraints(max_source_share=0)": lambda: SideConstraints(max_source_share=0),
    "SolveOptions(time_limit_seconds=0)": lambda: SolveOptions(time_limit_seconds=0),
    "SolveOptions(relative_gap=-1)": lambda: SolveOptions(relative_gap=-1),
    "ControlSettings(note_tokens=0)": lambda: ControlSettings(note_tokens=0),
    "LinearConstraint(sense='=')": lambda: LinearConstraint({0: 1.0}, "=", 1.0),  # type: ignore[arg-type, call-arg]
}


def _row(*cells: Any) -> str:
    return "\t".join(re.sub(r"[\t\r\n]+", " ", str(cell)) for cell in cells)


def _short(ids: Any) -> str:
    return ",".join(one.removeprefix("demo-") for one in ids)


def _words(text: str) -> str:
    """What was said, on one line; without the box that a terminal of another width would break anew."""
    lines = [re.sub(r"[\u2500-\u257f]", "", line).strip() for line in text.splitlines()]
    return " | ".join(line for line in lines if line and not line.startswith(("Usage:", "Try ", "warning:")))


_LEFT_OUT = re.compile(
    r".*(seconds|_ms|sha256|hash|version|memory|passages|text|texts|read|context|costs|stages|trace)$"
    r"|id|run|index|generated|folder|out|file|files|page|report|data|machine|threads|packages|certificate"
    r"|explanation|explain|method_versions|environment|started|finished|examples|curve|created"
)


def _plain(value: Any, folder: Path) -> Any:
    """Without what differs from run to run, or is long; floats in six digits."""
    if isinstance(value, dict):
        return {k: _plain(v, folder) for k, v in value.items() if not _LEFT_OUT.fullmatch(k)}
    if isinstance(value, list):
        return [_plain(one, folder) for one in value[:8]]
    if isinstance(value, float):
        return float(f"{value:.6g}") if abs(value) > 1e-12 else 0.0  # rounding, which threads change
    if isinstance(value, str):
        return re.sub(r"\d+(\.\d+)? (ms|s|MB)\b", "N", value.replace(str(folder), "F"))[:160]
    return value


#: Name of a recording -> who makes its rows.
DOORS: dict[str, Callable[[Dataset, CorpusIndex, Path], Iterator[str]]] = {
    "policies": policies,
    "selections": selections,
    "commands": commands,
    "requests": requests,
    "wrong_inputs": wrong_inputs,
}
