"""``mio-rag select`` and ``ask``: context and answers on stdout, the rest on stderr, settings by keys."""

import json
import re
from pathlib import Path

import pytest

from mio_rag.cli.chosen import Chosen
from mio_rag.collection import Collection
from mio_rag.errors import InputError
from mio_rag.retrieval import CorpusIndex
from tests.cli.running import cli, here, ids, only_object, refused

FORTH = "In what year was the Forth Bridge opened to rail traffic?"
TOWERS = "Which tower is taller, Bell Rock Lighthouse or Skerryvore?"


def sets(**values: object) -> list[str]:
    """Options --set: a__b stands for a.b."""
    return [part for key, value in values.items() for part in ("--set", f"{key.replace('__', '.')}={value}")]


# -- select -----------------------------------------------------------------------------------------------


def test_the_context_is_on_stdout_and_the_rest_on_stderr(index: Path) -> None:
    asked = ("select", index, TOWERS, "-b", 300, "--units", "passages")
    told, shown = only_object(here(*asked, "--why", "--json")), here(*asked)
    assert re.match(r"\[1\] \S", shown.stdout)
    chosen = [one for one in told["reasons"] if one["selected"]]
    assert all(one["text"] in shown.stdout for one in chosen)
    assert re.match(
        r"Used \d+ of 300 tokens, \d passages?: proven optimal by the estimated relevance", shown.stderr
    )
    assert "selected:" not in shown.stderr
    why = here(*asked, "--why")
    assert why.stdout == shown.stdout
    for one in chosen:
        assert f" - {one['id']}, {one['tokens']} tokens: {one['text'][:30]}" in why.stderr
        assert f"   {one['reason']}\n" in why.stderr
    assert "left out, most valuable first:" in why.stderr
    assert "proven bound" in here(*asked, "--proof").stderr
    markdown, xml = (here(*asked, "--format", form).stdout for form in ("markdown", "xml"))
    assert markdown.startswith("### [1] ")
    assert re.match(r'<context>\n<passage n="1" source=".+">\n', xml)
    assert ids(only_object(here(*asked, "--format", "json"))) == ids(told)


def test_nothing_selected_is_status_three(index: Path) -> None:
    for budget, said in ((5, "the shortest sentence has"), (12, "no sentence is worth its price")):
        done = here("select", index, "How tall is the tower of the Bell Rock Lighthouse?", "-b", budget)
        assert (done.returncode, done.stdout) == (3, "")
        assert said in done.stderr
    done = here("select", index, FORTH, "-b", 60, *sets(selection__min_passages=4))
    assert done.returncode == 3
    assert "at most 60 tokens; at least 4 passages" in " ".join(done.stderr.split())


def test_documents_are_indexed_on_first_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIO_RAG_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "handbook"
    folder.mkdir()
    (folder / "travel.md").write_text("# Travel\n\nThe allowance in Norway is 75 EUR a day.\n")
    asked = ("select", folder, "What is the allowance in Norway?", "--embedder", "tfidf")
    first, again = here(*asked), here(*asked)
    assert re.match(r"Indexed .*handbook: 1 passage, [\d.]+ s\n", first.stderr)
    assert "Indexed" not in again.stderr
    assert "75 EUR" in first.stdout == again.stdout
    (folder / "travel.md").write_text("# Travel\n\nThe allowance in Norway is 77 EUR a day.\n")
    assert "75 EUR" in here(*asked, "--no-refresh").stdout
    (folder / "pets.md").write_text("# Pets\n\nA dog is welcome.\n")
    changed = here(*asked)
    assert "77 EUR" in changed.stdout
    assert "2 files (1 added, 1 changed), 2 passages" in changed.stderr
    assert "77 EUR" in here("select", folder / "travel.md", *asked[2:]).stdout


def test_files_that_could_not_be_read_are_named_where_the_others_do_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIO_RAG_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "handbook"
    (folder / "hr").mkdir(parents=True)
    (folder / "hr" / "leave.md").write_text("# Leave\n\nThere are thirty days of leave a year.\n")
    (folder / "travel.md").write_text("# Travel\n\nBook the train early.\n")
    (folder / "works.docx").write_bytes(b"no archive")
    call = lambda door, question, *more: here(door, folder, question, "--embedder", "tfidf", *more)  # noqa: E731
    bread = "How do I bake bread without yeast at the train?"
    call("select", bread)  # indexes, and reports what was not read
    assert "note: 1 file could not be read in full, and may hold the answer: " in call("select", bread).stderr
    for door in ("select", "ask"):
        notes = {one["code"]: one["text"] for one in only_object(call(door, bread, "--json"))["notes"]}
        assert "1 file could not be read" in notes["unread_files"]
        known = only_object(call(door, "How many days of leave are there?", "--json"))["notes"]
        assert "unread_files" not in [one["code"] for one in known]
    assert "could not be read" in call("ask", bread).stderr
    assert "could not be read" not in call("ask", bread, "--where", "source=*.md").stderr
    for wrong, meant in (("hrr", "hr/*"), ("hrr/*", "hr/*"), ("leave.md", "*/leave.md")):
        done = call("select", bread, "--where", f"source={wrong}")
        assert done.returncode == 2
        assert f"meets the filter: did you mean source={meant}?" in done.stderr


def test_a_key_implies_who_decides(tmp_path: Path) -> None:
    for given, table, by in (
        ("depth.tier=medium", "depth", "tier"), ("repeat.rule=mdp", "repeat", "rule"),
        ("price.total=9000", "price", "total"), ("search.state=x.sqlite", "search", "bandit"),
    ):  # fmt: skip
        more = {"price": ["price.per=day"], "search": ["search.strategies=raw,hyde"]}
        extra = ["selection.by=tier"] if table == "depth" else more.get(table, [])
        policy = Chosen.of("default", [given, *extra]).policy
        assert getattr(policy, table).by == by
    with pytest.raises(InputError, match='has no effect with by = "never"'):
        Chosen.of("default", ["repeat.most=1"])
    # A total alone leaves open what is read; what was fitted on whole passages reads them.
    for given, units in ((["price.total=9000", "price.per=day"], "auto"), (["repeat.rule=mdp"], "passages")):
        assert Chosen.of("default", given).selector.units == units
    (tmp_path / "p.toml").write_text('[order]\nworkflow = "w.json"\n[answers]\ncache = "a.sqlite"\n')
    (tmp_path / "w.json").write_text(json.dumps({"nodes": {"answer": {"do": "answer"}}}))
    policy = Chosen.of(str(tmp_path / "p.toml"), ["limits.budget=9"]).policy
    assert policy.answers.cache == str(tmp_path / "a.sqlite")
    assert policy.limits.budget == 9


def test_every_problem_of_a_call_at_once(tmp_path: Path) -> None:
    done = cli(
        "ask", tmp_path / "absent", " ", "--budget", 0, "--answer", 0, "--model", "oracle", "--json",
        *sets(search__ranking="sparse", selection__redundancy_weight=-1, limits__max_steps=-1),
    )  # fmt: skip
    problems = refused(done)
    expected = ["question is empty", "--budget must be >= 1", "'sparse'", "--answer must be >= 1",
                "redundancy_weight must be >= 0", "limits.max_steps must be >= 0", "'oracle'"]  # fmt: skip
    for part in expected:
        assert sum(part in problem for problem in problems) == 1, part
    assert len(problems) == len(expected)


# -- ask --------------------------------------------------------------------------------------------------


def test_without_anything_to_read_no_model_is_asked(index: Path) -> None:
    asked = ("ask", index, FORTH, "--budget", 5)
    told = only_object(here(*asked, "--json"))
    assert (told["answer"], told["parts"], told["usage"]["prompt_tokens"]) == ("", [], 0)
    shown = here(*asked)
    assert (shown.returncode, shown.stdout) == (3, "")


@pytest.mark.parametrize("tables", [None, '[depth]\nby = "tier"\ntier = "easy"\n[selection]\nby = "tier"\n'])
def test_a_policy_reads_the_same_at_every_door(tables: str | None, index: Path, tmp_path: Path) -> None:
    policy = "balanced"
    if tables is not None:
        (tmp_path / "mine.toml").write_text(f"[price]\ntoken = 0.0005\n{tables}")
        policy = str(tmp_path / "mine.toml")
    docs = Collection(CorpusIndex.load(index), policy=policy)
    read, answer = docs.select(FORTH).ids, docs.ask(FORTH)
    assert answer.selection is not None
    assert answer.selection.ids == read
    for command in ("select", "ask"):
        told = only_object(here(command, index, FORTH, "--policy", policy, "--json"))
        assert [name for part in told["parts"] for name in part["ids"]] == list(read), command
    assert told["answer"] == answer.text


def test_dollars_are_told_where_the_model_has_a_price(index: Path) -> None:
    priced = sets(models__reader__input=2, models__reader__output=8)
    told = only_object(here("ask", index, TOWERS, "-b", 256, *priced, "--json"))
    usage = told["usage"]
    expected = 2e-6 * usage["prompt_tokens"] + 8e-6 * usage["completion_tokens"]
    assert usage["dollars"] == pytest.approx(expected)
    assert "for these tokens of extractive" in here("ask", index, TOWERS, "-b", 256, *priced).stderr
    # two dollars a million at .004 dollars for complete evidence: .0005 a token
    asked = ("select", index, TOWERS, "-b", 400, "--proof", "--json")
    paid = only_object(here(*asked, *priced, *sets(price__worth=0.004)))
    same = only_object(here(*asked, *sets(price__token=0.0005)))
    assert ids(paid) == ids(same)
    assert paid["certificate"]["objective"] == pytest.approx(same["certificate"]["objective"])
    assert paid["dollars"] == pytest.approx(2e-6 * paid["tokens"])


def test_dollars_are_those_of_every_model(index: Path, tmp_path: Path) -> None:
    own, script = tmp_path / "own.json", tmp_path / "cheap.json"
    nodes = {
        "query": {"do": "rewrite", "model": "cheap"},
        "found": {"do": "retrieve", "from": ["query"]},
        "read": {"do": "select", "from": ["found"]},
        "answer": {"do": "answer", "from": ["read"]},
    }
    own.write_text(json.dumps({"nodes": nodes}))
    script.write_text(json.dumps({TOWERS: "heights of Bell Rock and Skerryvore"}))
    asked = ("ask", index, TOWERS, "--policy", f"workflow:{own}",
             *sets(models__cheap__spec=f"scripted:{script}"))  # fmt: skip
    prices = {"models__cheap__input": 10, "models__cheap__output": 40}
    priced = (*asked, *sets(**prices, models__reader__input=1, models__reader__output=4))
    told = only_object(here(*priced, "--json"))
    (into, out), (rest, more) = (tuple(told["usage"]["models"][m].values())[:2] for m in ("cheap", "reader"))
    assert into > 0 < rest
    assert told["usage"]["dollars"] == pytest.approx((10 * into + 40 * out + rest + 4 * more) / 1e6)
    shown = here(*priced).stderr
    assert f"by model: reader {rest} + {more}, cheap {into} + {out}" in shown
    assert "model 'cheap' has no price" in here(*asked).stderr


# -- kept answers -----------------------------------------------------------------------------------------


def test_an_answer_is_given_again(rivers_at: Path, tmp_path: Path) -> None:
    cache = sets(answers__cache=tmp_path / "a.sqlite")
    first = only_object(here("ask", rivers_at, "Where does the Po end?", *cache, "--json"))
    assert first["cached"] is None
    again = only_object(here("ask", rivers_at, "where does the po end", *cache, "--json"))
    assert again.pop("cached")["question"] == "Where does the Po end?"
    assert {k: v for k, v in again.items() if k != "question"} == {
        k: v for k, v in first.items() if k not in ("question", "cached")
    }
    shown = here("ask", rivers_at, "Where does the Po end?", *cache)
    assert shown.stdout == f"{first['answer']}\n"
    assert re.search(r"seconds? ago; nothing was asked now\nread then: \S+ \(", shown.stderr)
    for other in (("--answer", 63), ("--budget", 99), sets(price__token=0.1)):
        told = only_object(here("ask", rivers_at, "Where does the Po end?", *cache, *other, "--json"))
        assert told["cached"] is None
    explained = here("ask", rivers_at, "Where does the Po end?", *cache, "--why").stderr
    assert "cached" not in explained  # what explains has to be solved again
