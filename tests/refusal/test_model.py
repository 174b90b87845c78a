"""A refusal model: signs by hand, a fit that finds what is there, files, and the command line."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from mio_rag.cli.app import app
from mio_rag.context import RegexCounter
from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import DataError, InputError
from mio_rag.generation import ExtractiveGenerator
from mio_rag.measures import token_f1
from mio_rag.pool import Candidates
from mio_rag.refusal.fitting import Observed, best_threshold, fit_refusal, squad_scores, warnings_of
from mio_rag.refusal.model import SIGNS, Refusal, Verdict, signs_of
from mio_rag.retrieval import CorpusIndex, Retriever, TfidfEmbedder
from mio_rag.selection.selector import Selector
from mio_rag.types import Answer, Passage, Question


def answer(text: str) -> Answer:
    return Answer(text, 10, 2, 0.0, "extractive")


def test_signs_by_hand() -> None:
    pool = Candidates(
        ["p", "q", "r"], ["Ada baked dark bread. It rained.", "The Po is long.", "Ada sang."],
        relevance=np.array([0.5, 0.4, 0.1]), tokens=np.ones(3, dtype=int),
        embeddings=np.array([[1, 0], [0.6, 0.8], [0, 1]]), query_embedding=np.array([0.8, 0.6]),
        scores={"bm25": np.array([2.0, 1.0, 4.0])},
    )  # fmt: skip
    chosen = Selector.raw(redundancy_weight=0, must_include=["p", "q"], must_exclude=["r"]).select(pool, 3)
    signs = dict(zip(SIGNS, signs_of("Who baked the white bread?", chosen, answer("Ada")), strict=True))
    assert signs == {
        "best_cosine": pytest.approx(0.96), "mean_cosine": pytest.approx(0.88), "lexical": 0.5,
        "best_relevance": 0.5,
        # of bake, white, bread the first sentence has two
        "sentence_cover": pytest.approx(2 / 3), "answer_cover": pytest.approx(2 / 3), "said": 1.0,
    }  # fmt: skip
    assert signs_of("Who baked?", chosen, answer("Bert"))[5] == 0  # said nowhere
    assert signs_of("Who baked?", chosen, answer(" "))[6] == 0
    none = Selector.raw(redundancy_weight=0, must_exclude=["p", "q", "r"]).select(pool, 3)
    assert not signs_of("Who baked?", none, answer("Ada")).any()


def test_of_sentences_the_signs_are_those_of_their_passages() -> None:
    texts = ["Ada baked dark bread. It rained.", "The Po is long. It is cold.", "Ada sang. Bert slept."]
    passages = [Passage(f"p{k}", text) for k, text in enumerate(texts)]
    index = CorpusIndex.build(passages, TfidfEmbedder(dimensions=3), "breads", sentences=True)
    pool = Retriever(index, counter=RegexCounter()).retrieve("Who baked dark bread?")
    selector = Selector(units="sentences", passage_penalty=0.0)
    chosen = selector.select(pool, 6, RegexCounter())
    rest = set(pool.ids) - set(chosen.ids)
    same = selector.replace(units="passages", must_include=chosen.ids, must_exclude=tuple(rest))
    whole = same.select(pool, 40, RegexCounter())
    assert chosen.candidates.cut_from is not None
    assert [chosen.pool.ids[i] for i in chosen.places] == list(chosen.ids)
    assert set(whole.ids) == set(chosen.ids)
    for name, one, other in zip(
        SIGNS, signs_of("Who?", chosen, answer("Ada")), signs_of("Who?", whole, answer("Ada")), strict=True
    ):
        if name in ("best_cosine", "mean_cosine", "lexical", "best_relevance"):
            assert one == pytest.approx(other), name
    assert chosen.complete == pytest.approx(whole.complete)


def made(n: int, told: float, seed: int = 0) -> list[Observed]:
    """Questions of both kinds, whose first sign tells them apart as well as it is told."""
    rng = np.random.default_rng(seed)
    rows = []
    for k in range(n):
        known = bool(rng.random() < 0.5)
        signs = rng.normal(size=len(SIGNS))
        signs[0] += told * known
        question = Question(f"q{k}", "?", ("Ada",) if known else (), type="" if known else "unanswerable")
        rows.append(Observed(question, "Ada", signs))
    return rows


def test_a_sign_that_tells_is_found_and_measured_on_the_other_half(river_index: CorpusIndex) -> None:
    model, scores = fit_refusal(made(600, 4.0), river_index, ExtractiveGenerator())
    assert model.weights[0] < -1
    assert max(map(abs, model.weights[1:])) < 0.5
    assert scores["model"].f1 > 0.9
    assert scores["never refuse"].no_answer == 0
    assert scores["always refuse"].has_answer_f1 == 0
    assert scores["never refuse"].f1 + scores["always refuse"].f1 == pytest.approx(1)
    assert scores["model"].questions + model.provenance["fitted_on"] == 600
    assert 0 < model.provenance["brier"] < 0.1
    assert warnings_of(scores) == []
    for constant, name in (("always refuse", "always refusing"), ("never refuse", "never refusing")):
        better = {"always refuse": 0.4, "never refuse": 0.3, constant: scores["model"].f1}
        (note,) = warnings_of(scores | {one: replace(scores[one], f1=f1) for one, f1 in better.items()})
        assert f"no better than {name}" in note


MODEL = Refusal((-1.0, *[0.0] * 6), 0.5, 0.6, "tfidf:1", "extractive", {"seed": 0})


def test_a_model_comes_back_as_it_was(tmp_path: Path) -> None:
    MODEL.save(tmp_path / "m.json")
    assert Refusal.load(tmp_path / "m.json") == MODEL
    MODEL.check_fits("tfidf:1", "extractive")
    with pytest.raises(InputError) as raised:
        MODEL.check_fits("tfidf:2", "gguf:x")
    assert len(raised.value.problems) == 2
    assert "probability 0.83 that they do not answer it" in Verdict(0.83, 0.6).explain()
    assert not Verdict(0.6, 0.6).refused


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": "mio-rag refusal 2"}, "another version"), ({"format": "other"}, "no refusal model"),
        ({"signs": ["other"]}, "another version"), ({"weights": [1.0]}, "damaged"),
        ({"threshold": 2.0}, "damaged"), ({"weights": "x"}, "damaged"), ({"provenance": 3}, "damaged"),
    ],
)  # fmt: skip
def test_foreign_and_damaged_files_are_refused(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    MODEL.save(tmp_path / "m.json")
    told = json.loads((tmp_path / "m.json").read_text()) | changes
    (tmp_path / "m.json").write_text(json.dumps(told))
    with pytest.raises(DataError, match=said):
        Refusal.load(tmp_path / "m.json")


def test_ask_refuses_in_words(
    tmp_path: Path, rivers: Dataset, river_index: CorpusIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    index, file = tmp_path / "index", tmp_path / "m.json"
    river_index.save(index)
    fits = replace(MODEL, embedder=river_index.embedder.fingerprint)
    command = ["ask", str(index), rivers.questions[0].text, "--set", f"answers.refusal={file}"]
    for constant, refused in ((9.0, True), (-9.0, False)):
        replace(fits, constant=constant).save(file)
        told = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
        assert told["refusal"]["refused"] is refused
        assert (told["answer"] == "") is refused
        shown = CliRunner().invoke(app, command)
        assert shown.exit_code == (3 if refused else 0)
        assert ("These passages probably do not answer the question" in shown.stderr) is refused
        assert ("would have said" in shown.stderr) is refused
        assert (shown.stdout == "") is refused
    MODEL.save(file)
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2
    assert "another embedder" in done.output


ACCEPTED = [("the Po", "Po"), ("red wine",), (), (), ("Ada",)]
ANSWERS = ["po", "wine", "Arno", "", "Bert"]
CHANCES = [0.1, 0.6, 0.7, 0.2, 0.9]


def test_scores_by_hand() -> None:
    found = squad_scores(ACCEPTED, ANSWERS, CHANCES, 0.65)
    # refused: the third and fifth by probability, the fourth by its blank answer
    assert found.has_answer == 3
    assert found.has_answer_exact == pytest.approx(1 / 3)
    assert found.has_answer_f1 == pytest.approx((1 + 2 / 3 + 0) / 3)
    assert (found.no_answers, found.no_answer) == (2, 1.0)
    assert found.exact == pytest.approx(3 / 5)
    assert found.f1 == pytest.approx((1 + 2 / 3 + 0 + 1 + 1) / 5)
    assert found.refused == 3 / 5
    # from .6 on (and below .7) the second is answered and the third is refused: nothing is better
    assert found.best_f1 == pytest.approx(found.f1)
    assert found.best_threshold == 0.6


def test_a_threshold_is_exceeded_not_reached() -> None:
    assert squad_scores([("a",)], ["a"], [0.5], 0.5).f1 == 1
    assert squad_scores([("a",)], ["a"], [0.5], 0.4999).f1 == 0
    assert squad_scores([("a",)], ["a"], [0.5], 0.5).no_answer is None
    assert squad_scores([()], ["a"], [0.5], 0.4).has_answer_f1 is None


@pytest.mark.parametrize("seed", range(12))
def test_the_best_threshold_is_the_best_of_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 12))
    words = ["Po", "Arno", "red wine", "wine", ""]
    accepted = [() if rng.random() < 0.5 else (str(rng.choice(words[:4])),) for _ in range(n)]
    answers = [str(rng.choice(words)) for _ in range(n)]
    chances = (rng.integers(0, 5, n) / 4).tolist()  # many are the same, some 0 and 1

    def f1(threshold: float) -> float:
        said = ["" if c > threshold else a for a, c in zip(answers, chances, strict=True)]
        return float(np.mean([token_f1(a, keys) for a, keys in zip(said, accepted, strict=True)]))

    tried = {t: f1(t) for t in sorted({0.0, *chances})}
    best, threshold = best_threshold(accepted, answers, chances)
    assert best == pytest.approx(max(tried.values()))
    assert threshold == min(t for t, value in tried.items() if value >= max(tried.values()) - 1e-12)
    assert squad_scores(accepted, answers, chances, threshold).f1 == pytest.approx(best)
