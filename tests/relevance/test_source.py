"""Where relevance comes from where nobody says: by what candidates bring, never a silent mismatch."""

import numpy as np
import pytest

from mio_rag import Candidates, Retriever, select
from mio_rag.context import RegexCounter
from mio_rag.errors import InputError
from mio_rag.relevance import feature_matrix, load_model
from mio_rag.relevance.features import cosine_slopes, given
from mio_rag.relevance.model import RelevanceModel, Stage, relevance_of
from mio_rag.selection.program import Read
from mio_rag.selection.selector import Selector
from tests.selection.pools import replace

MINILM = "sentence-transformers:72362722b466552f"


@pytest.fixture(scope="module")
def pool(demo, demo_index) -> Candidates:
    return Retriever(demo_index, pool=25).retrieve(demo.questions[3].text)


def in_range(pool: Candidates) -> Candidates:
    """The pool as if MiniLM had made it, with the best scores in the range of fitting."""
    ranges = load_model("minilm").ranges
    scores = {
        name: np.asarray(pool.scores[name]) * np.mean(ranges[name]) / np.max(pool.scores[name])
        for name in ranges
    }
    return replace(pool, embedder=MINILM, relevance=scores["dense"], scores={**pool.scores, **scores})


def test_the_packaged_embedder_is_the_one_that_weights_were_fitted_on() -> None:
    from mio_rag.retrieval.minilm import FINGERPRINT

    assert load_model("minilm").embedder == FINGERPRINT == MINILM


def test_each_source_is_chosen_by_what_candidates_bring(pool: Candidates) -> None:
    assert pool.embedder.startswith("tfidf:")
    known = relevance_of("auto", in_range(pool))
    assert (known[1].kind, known[0]) == ("fitted weights", load_model("minilm"))
    assert relevance_of("auto", pool)[1].kind in ("fitted weights", "ranks")  # tfidf has weights of its own
    other = relevance_of("auto", replace(pool, embedder="sentence-transformers:other"))
    assert (other[1].kind, other[0]) == ("ranks", load_model("ranks"))
    assert "no weights that ship were fitted on this embedder" in other[1].why
    unknown = relevance_of("auto", replace(pool, embedder=""))
    assert unknown[1].kind == "ranks"
    bare = Candidates(ids=pool.ids, texts=pool.texts, relevance=pool.relevance, tokens=pool.tokens)
    assert relevance_of("auto", bare)[1].kind == "scores"
    own = relevance_of("auto", replace(pool, relevance=pool.relevance[::-1]))
    assert own[1].kind == "scores"
    assert "not what the Retriever gave" in own[1].why
    assert own[0].valued(replace(pool, relevance=pool.relevance[::-1])).relevance.argmax() == len(
        pool
    ) - 1 - int(pool.relevance.argmax())
    mine = load_model("default")
    assert relevance_of(mine, in_range(pool))[0] is mine
    assert relevance_of(mine, in_range(pool))[1].kind == "model"
    with pytest.raises(InputError, match="'default' was fitted on the embedder sentence-transformers"):
        relevance_of(mine, pool)
    for nobody in ("given", None):
        assert relevance_of(nobody, pool) == (None, relevance_of("given", pool)[1])
    assert relevance_of("given", pool)[1].kind == "given"


@pytest.mark.parametrize("score", ["dense", "bm25"])
def test_scores_beyond_what_was_seen_in_fitting_are_not_trusted_to_fitted_weights(pool, score) -> None:
    strange = in_range(pool)
    strange = replace(strange, scores={**strange.scores, score: strange.scores[score] * 100})
    strange = replace(strange, relevance=strange.scores["dense"])
    model, source = relevance_of("auto", strange)
    ranks, fitted = load_model("ranks"), load_model("minilm")
    assert ranks is not None
    assert fitted is not None
    assert (model, source.kind) == (replace(ranks, answerable=fitted.answerable), "ranks")
    assert f"the best {score} score is" in source.why


def test_without_links_the_stages_that_need_none_are_used(pool: Candidates) -> None:
    model, _ = relevance_of("auto", replace(in_range(pool), links=None))
    assert model is not None
    assert len(model.stages) == 1
    assert len(load_model("minilm").stages) > 1


@pytest.mark.parametrize(
    "scores",
    [
        [1 / 61, 1 / 62, 1 / 63, 1 / 64],  # reciprocal rank fusion
        [-3.0, -8.0, -9.0, -9.5],  # logits
        [-0.1, -0.7, -0.9, -1.4],  # distances, negated
        [1e-30, 1e-31, 1e-32, 0.0],
        [1e6, 9e5, 1e5, 0.0],
        [7.0, 7.0, 7.0, 7.0],
        [2e-310, 1e-310, 5e-324, 0.0],
    ],
)
def test_scores_of_any_scale_choose_something_and_keep_their_order(scores: list[float]) -> None:
    chosen = select("which?", ["one", "two", "three", "four"], scores=scores, budget_tokens=2)
    assert chosen.tokens_used == 2
    assert set(chosen.ids) == {"0", "1"}
    relevance = chosen.candidates.relevance
    assert np.all((relevance > 0) & (relevance < 1))
    assert list(np.argsort(-relevance, kind="stable")) == [0, 1, 2, 3]
    assert len(set(relevance.tolist())) == len(set(scores))  # equal scores, equal probabilities
    assert chosen.relevance_source is not None
    assert chosen.relevance_source.kind == "scores"
    assert chosen.relevance_source.why in chosen.explain()
    assert ("scores given are equal" in chosen.relevance_source.why) == (len(set(scores)) == 1)


def test_the_scale_of_scores_changes_nothing() -> None:
    scores = np.array([0.9, 0.7, 0.2, 0.1])
    one, other = (
        select("q", list("abcd"), scores=s, budget_tokens=3).candidates.relevance
        for s in (scores, 1000 * scores - 7)
    )
    assert one == pytest.approx(other, abs=1e-9)


def test_probabilities_are_made_once_from_the_scores_that_were_given(pool: Candidates) -> None:
    bare = Candidates(ids=pool.ids, texts=pool.texts, relevance=pool.relevance, tokens=pool.tokens)
    selector = Selector()
    once = selector.valued(bare)
    assert np.array_equal(given(once), bare.relevance)
    own = replace(once, relevance=np.arange(len(once), dtype=float))  # somebody knows better
    assert np.array_equal(given(own), own.relevance)
    assert selector.valued(own).relevance.argmax() == len(once) - 1
    named = replace(bare, scores={"given": -bare.relevance})  # a score of one's own, whatever its name
    assert np.array_equal(selector.valued(named).relevance, once.relevance)
    assert np.array_equal(selector.valued(once).relevance, once.relevance)
    assert np.array_equal(selector.select(once, 200).candidates.relevance, once.relevance)


@pytest.mark.parametrize("name", ["minilm", "tfidf", "ranks"])
def test_a_lower_cosine_lowers_shipped_probabilities_by_exactly_what_slopes_say(name: str, pool) -> None:
    model = load_model(name)
    assert model is not None
    rng = np.random.default_rng(1)
    loss = rng.uniform(0, 0.1, len(pool))
    low, high = model.probabilities(pool, loss), model.probabilities(pool, -loss)
    plain = model.probabilities(pool)
    assert np.all(low <= plain)
    assert np.all(plain <= high)
    slopes = cosine_slopes(pool, model.features)
    assert np.all(slopes >= 0)
    for feature, slope in zip(model.features, slopes, strict=True):
        if feature.startswith(("spread_gap", "question_cover")):
            before = feature_matrix(pool, [feature])
            after = feature_matrix(pool, [feature], cosine_loss=loss)
            assert (before - after)[:, 0] == pytest.approx(slope * loss, abs=1e-12)


# --- presets


@pytest.mark.parametrize(
    "name",
    ["spread_gap*bm25_share", "cosine*cosine_gap", "score:dense*pool_agreement",
     "best_mentioning*pool_agreement", "pool_agreement*spread_gap*bm25_share"],
)  # fmt: skip
def test_products_that_no_worst_case_holds_for_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="is no product of a feature of the passage and one of the pool"):
        RelevanceModel((Stage((name,), (1.0,), 0.0),))


def test_scores_of_a_reranker_that_no_shipped_weights_know_are_named(pool: Candidates) -> None:
    scored = replace(pool, scores={**pool.scores, "cross-encoder": pool.relevance})
    assert "without cross-encoder: fit a model to use it" in relevance_of("auto", scored)[1].why
    learnt = RelevanceModel((Stage(("score:cross-encoder",), (1.0,), 0.0),))
    unused = {str(how): relevance_of(how, scored)[1].unused for how in ("auto", "given")}
    assert unused == {"auto": ("cross-encoder",), "given": ("cross-encoder",)}
    assert relevance_of(learnt, scored)[1].unused == ()
    assert relevance_of("auto", pool)[1].unused == ()


# --- what is doubtful is said


def test_a_note_says_where_nothing_likely_can_be_read(
    pool: Candidates, demo_index, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Selector().select(pool, 400)
    assert not [note for note in read.notes if "stands out" in note or "more than the budget" in note]
    likely = Selector().valued(pool).relevance >= 0.2
    long = replace(pool, tokens=np.where(likely, 401, np.minimum(pool.tokens, 400)))
    (note,) = Selector().select(long, 400).notes
    best = pool.ids[int(Selector().valued(pool).relevance.argmax())]
    assert note.startswith(f"'{best}', the most likely to be needed (probability ")
    assert "has 401 tokens, more than the budget of 400 (of those that fit it the best has 0." in note
    assert note.endswith("raise the budget, or split passages")  # nobody counts the tokens of sentences here
    counted = Selector(units="passages").select(long, 400, RegexCounter())
    assert any(one.endswith("choose sentences (units='sentences')") for one in counted.notes)
    capped = Selector(max_passages=5).select(long, 400, RegexCounter())
    assert not any("choose sentences" in one for one in capped.notes)
    without = Selector(must_exclude=[i for i, one in zip(pool.ids, likely, strict=True) if one])
    assert not [note for note in without.select(long, 400).notes if "more than the budget" in note]
    other = Retriever(demo_index, pool=25).retrieve("zebra crossings painted at midnight by unknown tailors")
    other = replace(other, relevance=other.relevance)
    assert Selector().valued(other).relevance.max() < 0.2
    (note,) = Selector().select(other, 400).notes
    assert note.startswith("the collection may not hold the answer (estimate 0.")
    monkeypatch.setattr(Read, "answerable", None)  # where nothing else tells
    (note,) = Selector().select(other, 400).notes
    assert note.startswith("no passage stands out")
    assert "reads less then" in note
    assert "reads less then" not in Selector(passage_penalty=0.01).select(other, 400).notes[0]
    monkeypatch.setattr(Read, "answerable", 0.9)  # and where an answer is likely
    (note,) = Selector().select(other, 400).notes
    assert note.startswith("no passage stands out")
    assert "may not hold" not in note
