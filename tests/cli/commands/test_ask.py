"""``mio-rag ask``: as the function, or nothing at all."""

from pathlib import Path

from mio_rag.ask import ask
from mio_rag.generation import ExtractiveGenerator
from mio_rag.retrieval import CorpusIndex
from tests.cli.running import here, only_object, refused


def test_ask(index: Path) -> None:
    question = "In what year was the Forth Bridge opened to rail traffic?"
    done = here("ask", index, question, "--budget-tokens", 150, "--pool", 10, "--json")
    assert done.returncode == 0, done.stderr
    told = only_object(done)
    selection, answer = ask(
        CorpusIndex.load(index), question, ExtractiveGenerator(), budget_tokens=150, pool=10
    )
    assert (told["answer"], told["generator"]) == (answer.text, "extractive")
    assert told["selected_ids"] == list(selection.ids)
    assert told["tokens_used"] == selection.tokens_used <= 150
    assert told["prompt_tokens"] == answer.prompt_tokens > told["tokens_used"]
    assert told["status"] == "optimal"


def test_the_answer_comes_first_then_what_was_read(index: Path) -> None:
    question = "In what year was the Forth Bridge opened to rail traffic?"
    told = only_object(here("ask", index, question, "--json"))
    shown = here("ask", index, question).stdout
    answer, spent, empty, read, first, *_ = shown.splitlines()
    assert (answer, empty, read) == (told["answer"], "", "read:")
    assert spent.startswith("extractive: ")
    assert f"  {told['selected_ids'][0]}#s" in first  # of a passage that is read in part
    assert "why:" not in shown
    assert "why: " in here("ask", index, question, "--explain").stdout


def test_an_agent_shows_what_it_read_before_its_steps(index: Path) -> None:
    asked = ("ask", index, "When was the Forth Bridge opened?", "--controller", "fixed-1")
    told = only_object(here(*asked, "--json"))
    shown = here(*asked).stdout
    places = [shown.index(f"  {i}, ") for i in told["selected_ids"]]
    assert places == sorted(places)
    assert places[-1] < shown.index("step  action")
    assert "why: " in here(*asked, "--explain").stdout


def test_ask_does_not_answer_from_an_infeasible_selection(index: Path) -> None:
    question = "When was the Forth Bridge opened?"
    problems = refused(here("ask", index, question, "--budget-tokens", 60, "--min-passages", 4, "--json"), 1)
    assert "at most 60 tokens; at least 4 passages" in problems[0]


def test_no_reader_is_asked_without_anything_to_read(index: Path) -> None:
    asked = ("ask", index, "When was the Forth Bridge opened?", "--budget-tokens", 5)
    told = only_object(here(*asked, "--json"))
    assert (told["answer"], told["selected_ids"]) == ("", [])
    assert (told["prompt_tokens"], told["completion_tokens"]) == (0, 0)
    shown = here(*asked).stdout
    assert "proven: nothing that is allowed and fits is worth its price" in shown
    assert "the shortest sentence has" in shown


def test_readers_that_are_not_there(index: Path, tmp_path: Path) -> None:
    problems = refused(here("ask", index, "What?", "--generator", f"gguf:{tmp_path / 'no.gguf'}", "--json"))
    assert "no.gguf" in problems[0]
    endpoint = "openai:http://127.0.0.1:9/v1#model?retries=0&timeout_seconds=2"
    problems = refused(here("ask", index, "What?", "--generator", endpoint, "--json"), 1)
    assert len(problems) == 1
