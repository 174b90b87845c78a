"""Question sets in the files that their authors publish, named FORMAT:PATH.

    hotpotqa:FILE        hotpot_dev_distractor_v1.json and the like; with paragraphs
    2wikimultihop:FILE   dev.json; with paragraphs
    musique:FILE         musique_ans_v1.0_dev.jsonl, musique_full_v1.0_dev.jsonl; with paragraphs
    triviaqa:FILE        qa/wikipedia-dev.json, with the documents in evidence/ beside qa/
    sec-10q:FOLDER       sec-10-q/data/v1 of Docugami's KG-RAG data sets; with documents
    popqa:FILE           popQA.tsv; questions alone
    bamboogle:FILE       the CSV file; questions alone
    oran-bench:PATH      fin_E.json, fin_M.json, fin_H.json, or their folder; questions alone

Text files may be packed with gzip. Nothing is fetched. Questions without passages are asked of another
corpus, or of a model alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mio_rag.corpora.dataset import Dataset
from mio_rag.corpora.no_passages import read_bamboogle, read_oran_bench, read_popqa
from mio_rag.corpora.own_documents import read_sec_10q, read_triviaqa
from mio_rag.corpora.own_passages import read_musique, read_supporting_facts
from mio_rag.corpora.raw import Found
from mio_rag.errors import DataError

__all__ = ["PUBLISHED_FORMATS", "check_published", "is_published", "load_published", "read_published"]


@dataclass(frozen=True)
class _Format:
    """How a set is read: the function, and whether it is given a file, a folder, or either."""

    read: Callable[[Path, str], Found]
    file: bool = True
    folder: bool = False


_FORMATS = {
    "hotpotqa": _Format(read_supporting_facts),
    "2wikimultihop": _Format(read_supporting_facts),
    "musique": _Format(read_musique),
    "triviaqa": _Format(read_triviaqa),
    "sec-10q": _Format(read_sec_10q, file=False, folder=True),
    "popqa": _Format(read_popqa),
    "bamboogle": _Format(read_bamboogle),
    "oran-bench": _Format(read_oran_bench, folder=True),
}

#: Names that may stand before the colon.
PUBLISHED_FORMATS = tuple(_FORMATS)


def is_published(source: str | Path) -> bool:
    """Whether a source names a published format."""
    return str(source).partition(":")[0] in _FORMATS and ":" in str(source)


def check_published(source: str | Path) -> None:
    """Raise `DataError` where there is nothing to read; nothing is read."""
    name, _, path = str(source).partition(":")
    kind, there = _FORMATS[name], Path(path)
    if not path or not ((kind.file and there.is_file()) or (kind.folder and there.is_dir())):
        what = " or ".join(["a file"] * kind.file + ["a folder"] * kind.folder)
        raise DataError(f"'{source}': '{path}' is not {what}: give {name}:PATH with the path of one")


def read_published(source: str | Path) -> Found:
    """Passages, if the set has any, and questions.

    Parameters
    ----------
    source : str or Path
        FORMAT:PATH; see the head of this module.

    Raises
    ------
    DataError
        With every row that does not have the published layout.
    """
    check_published(source)
    name, _, path = str(source).partition(":")
    return _FORMATS[name].read(Path(path), name)


def load_published(source: str | Path) -> Dataset:
    """A published set with its passages, as the layout's types.

    Raises
    ------
    DataError
        As `read_published`; and for a set that comes without passages.
    """
    found = read_published(source)
    if not found.passages:
        raise DataError(
            f"'{source}' brings questions without passages: give them another corpus (--corpus), or ask a "
            "model alone (--closed-book)"
        )
    return Dataset(str(source).partition(":")[0], found.passages, found.questions, left_out=found.left_out)
