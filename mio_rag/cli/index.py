"""The command index."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from mio_rag.cli.options import EmbedderName, Json, arg, opt, progress
from mio_rag.cli.output import Output, open_output
from mio_rag.defaults import DEFAULTS
from mio_rag.errors import InputError, collect

if TYPE_CHECKING:
    from mio_rag.sources import Building, Opened


def index(
    path: Annotated[
        str | None, arg("Folder or file of documents, a JSONL file of passages, or a question set.", "PATH")
    ] = None,
    out: Annotated[Path | None, opt("Write the index here. [default: the cache]")] = None,
    embedder: EmbedderName = DEFAULTS.embedder,
    vectors: Annotated[str, opt("exact, 8bit (a quarter of the memory), or pq (a 16th).")] = "exact",
    sentences: Annotated[
        bool, opt("Embed every sentence, too: better for units of sentences.", "--sentences")
    ] = False,
    entities: Annotated[
        str | None, opt("Link passages by the named entities of a model: spacy:MODEL.")
    ] = None,
    max_file_mb: Annotated[float | None, opt("Skip larger files. [default: 100]")] = None,
    follow_links: Annotated[bool, opt("Follow symbolic links out of PATH.", "--follow-links")] = False,
    overwrite: Annotated[bool, opt("Replace an index of something else at --out.", "--overwrite")] = False,
    check: Annotated[
        bool, opt("Report what changed and what cannot be read. Write nothing.", "--check")
    ] = False,
    show_list: Annotated[bool, opt("List cached indexes.", "--list")] = False,
    prune: Annotated[bool, opt("Remove cached indexes whose source is gone.", "--prune")] = False,
    json_output: Json = False,
) -> None:
    """Index documents, or refresh an index. select and ask do this themselves.

    \b
      mio-rag index handbook
      mio-rag index handbook --out INDEX --embedder tfidf
    """
    from mio_rag.sources import Building, cached_indexes, changes_of, open_source
    from mio_rag.sources import prune as remove

    output = open_output(json_output)
    if show_list or prune:
        found = remove() if prune else cached_indexes()
        _print_list(output, found, "removed" if prune else "")
        return
    if path is None:
        raise InputError("PATH is missing: give a folder or file of documents")
    if max_file_mb is not None and not 0 < max_file_mb < math.inf:
        raise InputError(f"--max-file-mb must be > 0, got {max_file_mb:g}")
    most = None if max_file_mb is None else max(1, round(max_file_mb * 1e6))
    how = Building(embedder, vectors, sentences, entities, follow_links, most)
    if check:
        collect(how.check)
        _print_changes(output, changes_of(path, how, out))
        return
    done = open_source(path, how, out=out, overwrite=overwrite, progress=progress)
    _print_built(output, done, how)


def _print_list(output: Output, found: list[dict[str, Any]], did: str) -> None:
    if output.as_json:
        output.json({"indexes": found})
        return
    for one in found:
        gone = "  (gone)" if one["gone"] and not did else ""
        told = f"{one['index']}  {one['source']}  {one['embedder']}, {one['files']} files{gone}"
        output.console.print(f"{did} {told}".strip(), soft_wrap=True)
    if not found:
        output.console.print("nothing to remove" if did else "no cached indexes")


def _print_changes(output: Output, found: Opened) -> None:
    changes = found.changes
    if output.as_json:
        output.json({**asdict(changes), "not_read": [asdict(one) for one in found.left_out]})
        return
    for what in ("changed", "added", "removed"):
        for name in getattr(changes, what):
            output.console.print(f"{what:<9} {name}", soft_wrap=True)
    if not changes:
        output.console.print("Nothing changed.")
    for one in found.left_out:
        output.console.print(f"not read  {one.path}: {one.reason}", soft_wrap=True)


def _print_built(output: Output, done: Opened, how: Building) -> None:
    from mio_rag.cli.show import print_left_out
    from mio_rag.formulations.numbers import plural
    from mio_rag.retrieval.repetition import contradicting

    index, repeated = done.index, done.index.repetition
    contradict = contradicting(index.passages)
    overlapping, copies = (0, 0) if repeated is None else (repeated.overlapping, repeated.copies)
    if output.as_json:
        output.json(
            {
                "index": str(done.folder),
                "source": done.source,
                "files": len(done.files),
                **asdict(done.changes),
                "passages": len(index),
                "dimensions": index.dimensions,
                "embedder": how.embedder,
                "seconds": done.seconds,
                "overlapping": overlapping,
                "contradicting": contradict,
                "near_duplicates": copies,
                "sentences": 0 if index.sentences is None else len(index.sentences),
                "left_out": [asdict(item) for item in done.left_out],
            }
        )
        return
    console = output.console
    if not done.built:
        console.print("Nothing changed.")
    else:
        cut = "" if index.sentences is None else f" in {plural(len(index.sentences), 'sentence')}"
        files = f"Read {plural(len(done.files), 'file')}. " if done.files else ""
        console.print(
            f"{files}Indexed {plural(len(index), 'passage')}{cut}, {index.dimensions} dimensions by "
            f"{how.embedder}, in {done.seconds:.1f} s."
        )
    console.print(f"Stored in {done.folder}", soft_wrap=True)
    for count, what in (
        (overlapping, "with a known place in their document (overlaps are read once)"),
        (contradict, "of documents with two texts at the same place (read by themselves)"),
        (copies, f"near-duplicate{'s' * (copies > 1)} of an earlier one"),
    ):
        if count:
            console.print(f"of these, {count} {what}")
    print_left_out(console, done.left_out)
