"""Tiers on questions: what is held against evidence needs no reader."""

import dataclasses
from pathlib import Path

import numpy as np

from mio_rag.corpora.dataset import Dataset
from mio_rag.evaluation.tiers import LabelSettings, label_questions
from mio_rag.retrieval import CorpusIndex
from mio_rag.session.tiers import Tier

TIERS = (Tier("easy", 1, 100, 8, unit="tokens"), Tier("hard", 6, 900, 16, unit="tokens"))


def test_options_are_held_against_evidence_too(
    demo: Dataset, demo_index: CorpusIndex, tmp_path: Path
) -> None:
    some = [q for q in demo.questions if q.gold_ids and not q.choices][:4]
    chosen = [dataclasses.replace(q, choices=("one", *q.answers[:1], "three")) for q in some]
    found = []
    for k, questions in enumerate((some, chosen)):
        asked = dataclasses.replace(demo, questions=tuple(questions))
        labelled = label_questions(
            asked, demo_index, None, LabelSettings(TIERS, "evidence"), tmp_path / str(k)
        )
        assert (labelled.failed, len(labelled.table)) == (0, 4)
        assert "accuracy" not in labelled.table.outcomes.values  # nobody chose
        found.append(labelled.table)
    np.testing.assert_array_equal(found[0].worked, found[1].worked)
    np.testing.assert_array_equal(found[0].labels, found[1].labels)
