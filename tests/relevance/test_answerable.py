"""Whether a collection holds an answer at all: signals and probability by hand, and what is read then."""

import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from mio_rag import Collection, Selector
from mio_rag.corpora.load import load_dataset
from mio_rag.pool import Candidates
from mio_rag.relevance import RelevanceModel, load_model
from mio_rag.relevance.model import OUTSIDE, Answerable, Stage, answerable_for, pool_signals, relevance_of
from mio_rag.retrieval import CorpusIndex, Retriever
from tests.selection.pools import replace

_ELSEWHERE = (
    "How do I sort a list of dictionaries by a key in Python?",
    "What is the boiling point of ethanol at high altitude?",
    "Which party won the 1998 parliamentary election in Hungary?",
    "How long should sourdough prove in the refrigerator overnight?",
    "What does the mitochondrial membrane potential regulate in neurons?",
    "Who composed the soundtrack of the film about the chess champion?",
)


@pytest.fixture(scope="module")
def retriever() -> Retriever:
    return Retriever(CorpusIndex.build(load_dataset("demo").passages, "minilm", "demo"))


def pool(question: str = "red kite wing") -> Candidates:
    return Candidates(
        ids=["a", "b", "c", "d"],
        texts=["a red kite", "the kite", "a wing of a red kite", "nothing"],
        relevance=[0.4, 0.3, 0.2, 0.1],
        tokens=[3, 2, 6, 1],
        scores={"dense": [0.4, 0.3, 0.2, 0.1], "bm25": [1, 1, 2, 0], "fused": [3, 2, 1, 0]},
        question=question,
    )


def test_signals_are_those_of_a_hand_calculation() -> None:
    # red is in 2 of 4 passages, kite in 3, wing in 1: log 5/2.5, log 5/3.5, log 5/1.5.
    red, kite, wing = math.log(5 / 2.5), math.log(5 / 3.5), math.log(5 / 1.5)
    total = red + kite + wing
    assert pool_signals(pool()) == pytest.approx(
        {
            "cover": 1.0,
            "first_cover": (red + kite) / total,
            "top_cover": ((red + kite) / total + kite / total + 1) / 3,
            "cosine": 0.4,
        }
    )


def test_the_probability_has_the_prior_and_nothing_is_said_without_signals() -> None:
    model = Answerable({"cover": 2.0, "cosine": 1.0}, -1.0)
    odds = 2.0 + 0.4 - 1.0 + math.log((1 - OUTSIDE) / OUTSIDE)
    assert model.probability(pool()) == pytest.approx(1 / (1 + math.exp(-odds)))
    assert model.probability(pool(" ")) is None
    assert model.probability(replace(pool(), scores={})) is None
    assert Answerable({"cover": 1e6}, 0.0).probability(pool()) == pytest.approx(1.0)
    assert 0 < (Answerable({"cover": -1e6}, 0.0).probability(pool()) or 0.0) < 1e-10


def test_an_unlikely_answer_makes_passages_dearer() -> None:
    stage = (Stage(("cosine",), (1.0,), 0.0),)
    certain = Selector(relevance_model=RelevanceModel(stage), link_benefit=0.0)
    doubtful = replace(
        certain, relevance_model=RelevanceModel(stage, answerable=Answerable({"cosine": 0.0}, -3.0))
    )
    valued = certain.valued(pool())
    likely = doubtful.answerable(valued)
    assert likely == pytest.approx(1 / (1 + math.exp(3.0) * OUTSIDE / (1 - OUTSIDE)))
    assert doubtful.penalty(valued) == pytest.approx(0.2 * (1 - likely))
    sure = Selector(relevance_model=RelevanceModel(stage, answerable=Answerable({"cosine": 0.0}, 5.0)))
    assert sure.penalty(valued) == certain.penalty(valued) > 0.2 * (1 - (sure.answerable(valued) or 0))
    assert certain.answerable(valued) is None
    low = (Stage(("cosine",), (1.0,), -4.0),)  # probabilities of .02 to .03
    hopeless = Selector(relevance_model=RelevanceModel(low, answerable=Answerable({"cosine": 0.0}, -25.0)))
    assert hopeless.penalty(hopeless.valued(pool())) == pytest.approx(0.2)
    made = hopeless.select(pool(), 12)
    assert made.chosen == ()
    assert made.result.is_optimal
    assert "may not hold the answer" in " ".join(made.notes)
    assert "each must be worth 0.2" in " ".join(made.notes)
    assert made.to_dict()["answerable"] == made.answerable == hopeless.answerable(valued)
    # By words alone it is told, and no price goes by it.
    words = replace(certain, relevance_model=RelevanceModel(stage, answerable=Answerable({}, -3.0)))
    assert words.answerable(valued) == likely
    assert words.penalty(valued) == certain.penalty(valued)
    # A price that somebody set is not touched.
    assert replace(hopeless, passage_penalty=0.02).penalty(valued) == 0.02


def test_a_model_is_kept_with_its_weights(tmp_path: object) -> None:
    model = load_model("minilm")
    assert model is not None
    assert model.answerable is not None
    assert set(model.answerable.weights) == {"cover", "first_cover", "top_cover", "cosine"}
    again = RelevanceModel.from_dict(json.loads(json.dumps(model.to_dict())))
    assert again == model
    for name in ("tfidf", "ranks"):
        shipped = load_model(name)
        assert shipped is not None
        assert shipped.answerable is not None
        assert "cosine" not in shipped.answerable.weights
    bare = load_model("scores")
    assert bare is not None
    assert bare.answerable is None
    assert answerable_for(model.embedder + "f") == model.answerable
    assert answerable_for("") == answerable_for("somebody else's")


def test_questions_from_elsewhere_are_told_and_read_little(retriever: Retriever) -> None:
    own = [question.text for question in load_dataset("demo").questions][:40]
    selector = Selector()
    likely = [selector.answerable(retriever.retrieve(text)) or 0.0 for text in own]
    strange = [selector.answerable(retriever.retrieve(text)) or 0.0 for text in _ELSEWHERE]
    assert np.mean(np.array(likely) > 0.5) >= 0.95
    assert max(strange) < 0.5
    told = relevance_of("auto", retriever.retrieve(own[0]))[0]
    assert told is not None
    plain = selector.replace(relevance_model=replace(told, answerable=None))
    read, filled = [], []
    for text in _ELSEWHERE:
        found = retriever.retrieve(text)
        made = selector.select(found, 512)
        assert made.complete is None or not made.chosen or made.complete <= (made.answerable or 0)
        assert "may not hold the answer" in " ".join(made.notes)
        read.append(made.tokens_used)
        filled.append(plain.select(found, 512).tokens_used)
    assert np.median(read) < 80
    assert np.mean(filled) > 5 * np.mean(read)  # what they cost where an answer is taken for granted


def test_a_cosine_below_all_that_was_fitted_on_still_counts(retriever: Retriever) -> None:
    """Ranks take over there; the cosine says all the more that there is no answer."""
    found = retriever.retrieve(_ELSEWHERE[0])
    model, source = relevance_of("auto", found)
    assert source.kind == "ranks"
    shipped = load_model("minilm")
    assert model is not None
    assert shipped is not None
    assert model.answerable == shipped.answerable


def test_a_better_passage_or_a_larger_budget_never_empties_a_selection(retriever: Retriever) -> None:
    for text in ("What was first?", "Who is he?", "What happened in 1900?", *_ELSEWHERE):
        found = retriever.retrieve(text)
        read = [Selector().select(found, budget).result.objective or 0.0 for budget in (64, 128, 256, 512)]
        emptied = [a > 0 and b == 0 for a, b in pairwise(read)]
        assert not any(emptied), (text, read)


def test_the_cosine_is_that_of_the_question(retriever: Retriever) -> None:
    found = retriever.retrieve(_ELSEWHERE[0])
    mixed = replace(found, scores={**found.scores, "dense": np.full(len(found), 0.9)})  # of another query
    assert (pool_signals(mixed) or {})["cosine"] == pytest.approx((pool_signals(found) or {})["cosine"])
    assert (pool_signals(mixed) or {})["cosine"] < 0.3


def test_the_name_of_the_company_answers_nothing(tmp_path: Path) -> None:
    about = {
        "leave": "Full-time staff have 26 days of leave a year. Carried days lapse on 30 June.",
        "travel": "Travel second class. First class is paid on journeys of more than four hours.",
        "pension": "Contributions to the pension are matched up to 4.5 percent of the salary.",
        "remote work": "Staff may work from home up to three days a week.",
    }
    for name, text in about.items():
        head = f"# {name.title()}\n\nApplies to all staff of Fennmark Logistics.\n\n"
        (tmp_path / f"{name}.md").write_text(head + text, encoding="utf-8")
    documents = Collection(tmp_path, embedder="minilm")

    def likely(question: str) -> float:
        return documents.select(question, budget=100).answerable or 0.0

    assert likely("Who is the director of Fennmark Logistics?") < 0.5
    assert likely("Does Fennmark offer dental insurance?") < 0.5
    assert likely("Up to how much does Fennmark match contributions to the pension?") > 0.8
    assert likely("How many days a week may staff of Fennmark Logistics work from home?") > 0.8
