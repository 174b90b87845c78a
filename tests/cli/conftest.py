"""An index on disk, for every test of the command line."""

from pathlib import Path

import pytest

from mio_rag.retrieval import CorpusIndex


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory, demo_index: CorpusIndex) -> Path:
    return demo_index.save(tmp_path_factory.mktemp("cli") / "index")
