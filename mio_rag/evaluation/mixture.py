"""The question sets of a run: one, or several that are asked in one stream, as a service is asked them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import DataError, InputError
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.types import Question

__all__ = ["Mixture", "check_corpus", "mixture_of"]


@dataclass(frozen=True, eq=False)
class Mixture:
    """Question sets, and the index that each is asked of.

    Parameters
    ----------
    datasets : tuple of Dataset
    indexes : tuple of CorpusIndex or None
        One for each set; the same object where they share one. None: closed book.
    limit : int, optional
        Only the first so many questions of each set.
    """

    datasets: tuple[Dataset, ...]
    indexes: tuple[CorpusIndex | None, ...]
    limit: int | None = None

    @property
    def is_mixed(self) -> bool:
        """Whether there are several sets."""
        return len(self.datasets) > 1

    @property
    def name(self) -> str:
        """Of all sets."""
        return ", ".join(dataset.name for dataset in self.datasets)

    @cached_property
    def _asked(self) -> tuple[tuple[Question, int], ...]:
        """Questions and their sets, spread evenly: any tenth of the stream has a tenth of each."""
        if not self.is_mixed:
            return tuple((question, 0) for question in self.datasets[0].questions[: self.limit])
        spread = []
        for place, dataset in enumerate(self.datasets):
            chosen = dataset.questions[: self.limit]
            spread += [
                ((k + 0.5) / len(chosen), place, replace(question, id=f"{dataset.name}:{question.id}"))
                for k, question in enumerate(chosen)
            ]
        spread.sort(key=lambda one: one[:2])
        return tuple((question, place) for _, place, question in spread)

    @property
    def questions(self) -> tuple[Question, ...]:
        """In the order in which they are asked; of several sets their ids begin with the set's name."""
        return tuple(question for question, _ in self._asked)

    @cached_property
    def set_of(self) -> Mapping[str, int]:
        """Question id -> position of its set."""
        return {question.id: place for question, place in self._asked}

    @property
    def passages(self) -> int:
        """Of all corpora, each counted once."""
        return len({p for dataset in self.datasets for p in dataset.passages})

    def content_hash(self) -> str:
        """What a result was measured on."""
        hashes = [dataset.content_hash() for dataset in self.datasets]
        if not self.is_mixed:
            return hashes[0]
        named = [f"{dataset.name} {found}" for dataset, found in zip(self.datasets, hashes, strict=True)]
        return hashlib.sha256("\n".join(named).encode()).hexdigest()


def mixture_of(
    datasets: Dataset | Sequence[Dataset],
    indexes: CorpusIndex | Sequence[CorpusIndex] | None,
    limit: int | None = None,
) -> Mixture:
    """Question sets with their indexes: one for each, or one that holds the corpora of all.

    Raises
    ------
    InputError
        For two sets of one name, another number of indexes than sets, or an index of another corpus.
    DataError
        For a set without questions.
    """
    sets = (datasets,) if isinstance(datasets, Dataset) else tuple(datasets)
    found: tuple[CorpusIndex | None, ...]
    found = (indexes,) if indexes is None or isinstance(indexes, CorpusIndex) else tuple(indexes)
    if not sets:
        raise InputError("no question set is given: name one at least")
    names = [dataset.name for dataset in sets]
    problems = [
        f"two question sets are called '{name}': questions are told apart by it; rename one of the folders"
        for name in dict.fromkeys(names)
        if names.count(name) > 1
    ]
    if len(found) not in (1, len(sets)):
        problems.append(
            f"{len(sets)} question sets and {len(found)} indexes: give one index for all, or one for each"
        )
    fitted = [id(one.embedder) for one in found if one is not None and hasattr(one.embedder, "fit")]
    if len(set(fitted)) < len(fitted) and len(set(map(id, found))) == len(found):
        problems.append(
            "two indexes share an embedder that was fitted to the corpus of one of them: make one for each"
        )
    if problems:
        raise InputError(problems)
    for dataset in sets:
        if not dataset.questions:
            raise DataError(f"'{dataset.name}' has no questions to evaluate: it needs questions.jsonl[.gz]")
    mixture = Mixture(sets, found if len(found) == len(sets) else found * len(sets), limit)
    if len(mixture.set_of) < len(mixture.questions):
        raise InputError(
            f"questions of {mixture.name} cannot be told apart by 'set:id': rename a folder that has a colon"
        )
    if len(found) == len(sets):
        for dataset, index in zip(sets, found, strict=True):
            check_corpus(dataset, index)
    else:
        check_corpus(sets, found[0])
    return mixture


def check_corpus(datasets: Dataset | Sequence[Dataset], index: CorpusIndex | None) -> None:
    """Raise `InputError` unless the index holds just the corpora of these sets; none holds an empty one."""
    sets = (datasets,) if isinstance(datasets, Dataset) else tuple(datasets)
    # Ids alone do not tell: many corpora number their passages from 0.
    wanted = {passage for dataset in sets for passage in dataset.passages}
    differing = {p.id for p in wanted ^ set(index.passages if index else ())}
    if differing:
        names = ", ".join(f"'{dataset.name}'" for dataset in sets)
        raise InputError(
            f"the index does not hold the corpus of {names} ({len(differing)} passages differ, "
            f"for instance '{min(differing)}'): build it from the same data"
        )
