"""Weights of the formula for documents: fitted, kept, used, refused."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mio_rag.context import RegexCounter
from mio_rag.corpora.dataset import load_folder
from mio_rag.errors import InputError
from mio_rag.pool import Pool
from mio_rag.relevance import DocumentModel, fit_documents, load_model
from mio_rag.relevance.documents import terms
from mio_rag.relevance.synthetic import made_questions
from mio_rag.retrieval import CorpusIndex, Retriever, TfidfEmbedder
from mio_rag.selection.selector import Selector
from tests.cli.running import here

PORTS = ("Loen", "Olden", "Geiranger", "Hellesylt", "Stranda", "Valldal", "Eidsdal", "Linge", "Sykkylven")
GOODS = ("bicycles", "dogs", "trailers", "caravans", "kayaks", "pianos")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("ferries")
    for k, port in enumerate(PORTS):
        lines = [f"# The ferry of {port}", ""]
        for j, goods in enumerate(GOODS):
            lines += [f"## Carrying {goods}", ""]
            lines += [f"Passengers may carry {goods} to {port} for a fee of {3 * k + 7 * j + 11} crowns.", ""]
        (out / f"{port.lower()}.md").write_text("\n".join(lines))
    return out


@pytest.fixture(scope="module")
def retriever(folder: Path) -> Retriever:
    return Retriever(CorpusIndex.build(load_folder(folder).passages, TfidfEmbedder()))


@pytest.fixture(scope="module")
def pools(retriever: Retriever) -> list[Pool]:
    return retriever.retrieve_many([f"the fee for {g} to {p}" for p in PORTS[:5] for g in GOODS])


def test_fitting_finds_what_tells_needed_units_apart(pools: list[Pool]) -> None:
    needed = [terms(pool)[:, 3] == terms(pool)[:, 3].max() for pool in pools]  # the most words, and no more
    model = fit_documents(pools, needed, name="own")
    words = model.weights[3] / sum(model.weights[:3])
    start = DocumentModel()
    assert words > 2 * start.weights[3] / sum(start.weights[:3])
    assert model.measures["log_loss_after"] < model.measures["log_loss_before"]
    assert model.measures["needed"] == sum(int(mark.sum()) for mark in needed)
    noise = np.random.default_rng(0)
    drawn = [noise.random(len(mark)) < 0.1 for mark in needed]
    kept = fit_documents(pools, drawn).measures  # nothing to learn: not much worse than what ships
    assert kept["log_loss_after"] <= kept["log_loss_before"] + 0.05
    with pytest.raises(InputError, match="at least 10 are needed"):
        fit_documents(pools[:9], needed[:9])


def test_a_model_is_kept_read_and_used(pools: list[Pool], tmp_path: Path) -> None:
    model = DocumentModel((0.0, 0.0, 0.0, 5.0, 0.0, 0.0), name="words")
    (tmp_path / "own.json").write_text(json.dumps(model.to_dict()))
    assert load_model(tmp_path / "own.json") == model
    by_words = Selector(relevance_model=model)
    assert Selector(relevance_model=model.to_dict()) == by_words
    for pool in pools[:5]:
        chosen = by_words.select(pool, 40, RegexCounter())
        assert chosen.relevance_source is not None
        assert "weights 'words'" in chosen.relevance_source.why
        assert chosen.result.x is not None
        best = int(terms(pool)[:, 3].argmax())
        assert pool.sentences is not None
        assert pool.ids[pool.sentences.owners[best]] in chosen.ids


def test_a_named_document_without_the_words_gives_no_other_one_more(pools: list[Pool]) -> None:
    pool = pools[0]
    units = pool.sentences
    assert units is not None
    named = np.array([float(source == "linge.md") for source in pool.sources or ()])
    if not named.any():
        named[-1] = 1.0
    of_named = named[units.owners] > 0
    words = np.where(of_named, 0.0, 3.0)
    scored = replace(
        pool,
        sentences=replace(
            units, scores={**units.scores, "dense_rest": units.scores["dense"], "bm25_rest": words}
        ),
        scores={
            **pool.scores,
            "dense_rest": pool.scores["dense"],
            "bm25_rest": 3 * (1 - named),
            "scope": named,
        },
    )
    assert np.abs(terms(scored)[:, :5]).max() <= 2.0


def test_questions_are_made_from_units(retriever: Retriever, folder: Path) -> None:
    passages = retriever.index.passages
    asked = made_questions(passages, 12, seed=1)
    assert len(asked) == 12 == len({question.gold_ids for question in asked})
    assert asked == made_questions(passages, 12, seed=1) != made_questions(passages, 12, seed=2)
    held = {passage.id: passage for passage in passages}
    for question in asked:
        (answer,), (gold,) = question.answers, question.gold_ids
        assert answer in held[gold].text
        assert len(question.text.split()) <= 6
    assert len(made_questions(passages, 10**6)) <= len(passages)


def test_the_command_fits_on_made_questions(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "own.json"
    done = here("policy", "fit", "relevance", folder, "--synthetic", 20, "--embedder", "tfidf", "--out", out)
    assert done.returncode == 0, done.stderr
    assert "18 questions" in done.stdout  # as many as there are passages
    model = load_model(out)
    assert isinstance(model, DocumentModel)
    assert (model.level, model.slope) == (DocumentModel().level, DocumentModel().slope)
    asked = ("select", folder, "What is the fee for kayaks to Loen?", "--embedder", "tfidf", "-b", 60)
    chosen = here(*asked, "--set", f"selection.relevance_model={out}")
    assert "carry kayaks to Loen" in chosen.stdout, chosen.stderr


def test_a_question_that_names_many_documents_says_less_of_where_to_look(pools: list[Pool]) -> None:
    pool = pools[0]
    sources = list(dict.fromkeys(pool.sources or ()))
    assert len(sources) > 6
    for named, expected in ((1, -1.0), (3, -1.0), (6, -0.5)):
        scope = np.array([float(source in sources[:named]) for source in pool.sources or ()])
        found = terms(replace(pool, scores={**pool.scores, "scope": scope}))[:, 5]
        assert found.min() == pytest.approx(expected)
        assert found.max() == 0.0
