"""Record what the doors give today: `python -m tests.golden.record [door ...]`."""

import os
import sys
import tempfile
from pathlib import Path

from mio_rag import CorpusIndex, load_dataset
from mio_rag.retrieval import TfidfEmbedder
from tests.golden.doors import DOORS


def main() -> None:
    """Write one file for each door."""
    data = load_dataset("demo")
    index = CorpusIndex.build(data.passages, TfidfEmbedder(dimensions=60), data.name)
    for door in sys.argv[1:] or DOORS:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["MIO_RAG_CACHE"] = folder
            rows = list(DOORS[door](data, index, Path(folder)))
        path = Path(__file__).parent / "recorded" / f"{door}.tsv"
        path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
        print(f"{path}: {len(rows)} rows, {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
