"""The command index."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from mio_rag.cli import options as o
from mio_rag.errors import InputError

if TYPE_CHECKING:
    from mio_rag.sources import Opened


@o.command("embedder json")
def index(
    call: o.Call,
    path: Annotated[
        str | None, o.arg("Folder or file of documents, a JSONL file of passages, or a question set.", "PATH")
    ] = None,
    out: Annotated[Path | None, "Write the index here. [default: the cache]"] = None,
    vectors: Annotated[str, "exact, 8bit (a quarter of the memory), or pq (a 16th)."] = "exact",
    sentences: Annotated[bool, "Embed every sentence, too: better for units of sentences."] = False,
    entities: Annotated[str | None, "Link passages by the named entities of a model: spacy:MODEL."] = None,
    max_file_mb: Annotated[float | None, "Skip larger files. [default: 100]"] = None,
    follow_links: Annotated[bool, "Follow symbolic links out of PATH."] = False,
    overwrite: Annotated[bool, "Replace an index of something else at --out."] = False,
    check: Annotated[bool, "Report what changed and what cannot be read. Write nothing."] = False,
    show_list: Annotated[bool, o.opt("List cached indexes.", "--list")] = False,
    prune: Annotated[bool, "Remove cached indexes whose source is gone."] = False,
) -> None:
    """Index documents, or refresh an index.

    select and ask do this themselves.

    \b
      mio-rag index handbook
      mio-rag index handbook --out INDEX --embedder tfidf
    """
    from mio_rag.sources import Building, cached_indexes, changes_of, left_out_now, open_source
    from mio_rag.sources import prune as remove
    from mio_rag.stores import is_store, shown_url

    output = call.output
    if show_list or prune:
        found = remove() if prune else cached_indexes()
        did, none = ("removed ", "nothing to remove") if prune else ("", "no cached indexes")
        lines = [
            f"{did}{one['index']}  {one['source']}  {one['embedder']}, {one['files']} files"
            f"{'  (gone)' if one['gone'] and not prune else ''}"
            for one in found
        ]
        output.result({"indexes": found}, *(lines or [none]))
        return
    if path is None:
        raise InputError("PATH is missing: give a folder or file of documents")
    if is_store(path):
        raise InputError(f"{shown_url(path)} is a store, which is searched as it is: leave index out")
    if max_file_mb is not None and not 0 < max_file_mb < math.inf:
        raise InputError(f"--max-file-mb must be > 0, got {max_file_mb:g}")
    most = None if max_file_mb is None else max(1, round(max_file_mb * 1e6))
    how = Building(call.embedder, vectors, sentences, entities, follow_links, most)
    if check:
        how.check()
        seen = changes_of(path, how, out)
        changes = asdict(seen.changes)
        lines = [f"{what:<9} {name}" for what in ("changed", "added", "removed") for name in changes[what]]
        lines += [] if seen.changes else ["Nothing changed."]
        lines += [f"not read  {one.path}: {one.reason}" for one in seen.left_out]
        output.result({**changes, "not_read": [asdict(one) for one in seen.left_out]}, *lines)
        return
    done = open_source(path, how, out=out, overwrite=overwrite, progress=o.progress)
    if not done.built:
        done = replace(done, left_out=left_out_now(done, how))
    told, lines = _built(done, call.embedder)
    output.result(told, *lines, *_left_out(done))


def _left_out(found: Opened) -> Iterator[str]:
    """Files that are not in the index, those of one reason together."""
    reasons: dict[str, list[str]] = {}
    for item in found.left_out:
        reasons.setdefault(item.reason, []).append(item.path)
    for reason, paths in list(reasons.items())[:20]:
        more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
        yield f"not read  {', '.join(paths[:3])}{more}: {reason}"
    if len(reasons) > 20:
        yield f"and {len(reasons) - 20} other reasons; --json lists everything"


def _built(done: Opened, embedder: str) -> tuple[dict[str, Any], list[str]]:
    """Return an index as plain data, and in words."""
    from mio_rag.formulations.numbers import plural

    index, repeated = done.index, done.index.repetition
    overlapping, apart, copies = (
        (0, 0, 0) if repeated is None else (repeated.overlapping, repeated.contradicting, repeated.copies)
    )
    told: dict[str, Any] = {
        "index": str(done.folder), "source": done.source, "files": done.files_read, **asdict(done.changes),
        "passages": len(index), "dimensions": index.dimensions, "embedder": embedder, "seconds": done.seconds,
        "overlapping": overlapping, "contradicting": apart, "near_duplicates": copies,
        "sentences": 0 if index.sentences is None else len(index.sentences),
        "left_out": [asdict(item) for item in done.left_out],
    }  # fmt: skip
    built = "Nothing changed."
    if done.built:
        files = f"Read {plural(done.files_read, 'file')}. " if done.files else ""
        cut = "" if index.sentences is None else f" in {plural(len(index.sentences), 'sentence')}"
        built = f"{files}Indexed {plural(len(index), 'passage')}{cut}, {index.dimensions} dimensions by "
        built += f"{embedder}, in {done.seconds:.1f} s."
    kinds = {
        "with a known place in their document (overlaps are read once)": overlapping % len(index),
        "of documents with two texts at the same place (read by themselves)": told["contradicting"],
        "like an earlier one (near-duplicates)": copies,
    }
    lines = [f"{plural(count, 'passage')} {what}" for what, count in kinds.items() if count]
    return told, [built, f"Stored in {done.folder}", *lines]
