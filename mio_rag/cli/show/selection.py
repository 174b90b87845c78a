"""What the command line prints about selections, answers and solves, and about files left out of a corpus."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mio_rag.cli.terminal import Terminal, printable, styled
from mio_rag.formulations.numbers import plural

if TYPE_CHECKING:
    from mio_rag.answer_cache import Hit
    from mio_rag.corpora.dataset import LeftOut
    from mio_rag.refusal.model import Verdict
    from mio_rag.selection.result import Selection
    from mio_rag.solvers.result import SolveResult
    from mio_rag.types import Answer

__all__ = [
    "print_answer",
    "print_left_out",
    "print_passage",
    "print_result",
    "print_selection",
    "snippet",
]


_SNIPPET_LINES, _SNIPPET_LENGTH = 2, 160  # on a terminal; in characters, where the output goes elsewhere


def print_selection(
    console: Terminal,
    selection: Selection,
    *,
    explain: bool = False,
    show_rest: int = 8,
    room: str | None = None,
) -> None:
    """The chosen passages in prompt order, and one line about them.

    Parameters
    ----------
    explain : bool
        Also why each passage is chosen, why the best of the rest are not, and the whole certificate.
    show_rest : int
        How many of the rest, with `explain`.
    room : str, optional
        What said how much may be read, where that was no budget of tokens.
    """
    result = selection.result
    if result.x is None:
        console.print(selection.explain(), soft_wrap=not console.is_terminal)
        return
    for place, i in enumerate(selection.chosen, 1):
        d, passage = selection.decisions[i], selection.candidates.passage(i)
        print_passage(
            console, place, passage.title, d.id, d.tokens, passage.text, f"why: {d.reason}" if explain else ""
        )
    if explain:
        _print_rest(console, selection, show_rest)
    read = f"{selection.tokens_used} of {plural(selection.budget_tokens, 'token')}"
    if room is not None:
        read = f"{plural(selection.tokens_used, 'token')} ({room})"
    console.print(
        styled(
            (f"{plural(len(selection.chosen), selection.unit)}, {read}", "bold"),
            f" \u2014 {result.certificate() if explain else _proof(selection)}",
        ),
        soft_wrap=not console.is_terminal,
    )
    source = selection.relevance_source
    told = []
    if explain and selection.counts_parts is not None:
        told.append(f"the certificate is for choices {selection.counts_parts}")
    told += [f"relevance: {source.why}"] if explain and source is not None else []
    if source is not None and source.unused:
        told.append(
            f"{' and '.join(source.unused)} changed nothing: no model that was fitted with it gives "
            "relevance (`mio-rag calibrate --rerank`)"
        )
    told += [selection.worst_case.explain()] if selection.worst_case else []
    for line in (*told, *selection.notes):
        console.print(line, soft_wrap=not console.is_terminal)


def print_passage(
    console: Terminal, place: int, title: str, identifier: str, tokens: int, text: str, why: str = ""
) -> None:
    """Which passage is read, what it costs, and how it begins."""
    name = ((title, "bold"), "  ", (identifier, "dim")) if title else ((identifier, "bold"),)
    console.print(
        styled(f"{place}. ", *name, (f", {plural(tokens, 'token')}", "dim")),
        soft_wrap=not console.is_terminal,
    )
    for line in snippet(text, console.width - 3 if console.is_terminal else None):
        console.print(f"   {line}", soft_wrap=True)
    if why:
        _print_indented(console, why)


def snippet(text: str, width: int | None) -> list[str]:
    """The beginning of a text, in lines of so many characters; None: in one line, wherever that ends."""
    text = " ".join(printable(text).split())
    lines = 1 if width is None else _SNIPPET_LINES
    width = _SNIPPET_LENGTH if width is None else max(20, width)
    shown = textwrap.wrap(text, width, break_on_hyphens=False)
    if len(shown) <= lines:
        return shown
    shown = textwrap.wrap(" ".join(shown[:lines]), width - 4, break_on_hyphens=False)[:lines]
    return [*shown[:-1], f"{shown[-1]} ..."]


def _print_indented(console: Terminal, text: str) -> None:
    lines = textwrap.wrap(text, max(20, console.width - 3)) if console.is_terminal else [text]
    for line in lines:
        console.print(f"   {line}", style="dim", soft_wrap=True)


def _print_rest(console: Terminal, selection: Selection, shown: int) -> None:
    """The best of what is left out, and why."""
    chosen = set(selection.chosen)
    rest = [i for i in range(len(selection.candidates)) if i not in chosen]
    rest.sort(key=lambda i: -selection.decisions[i].value)
    if rest:
        console.print("\nleft out, most valuable first:", style="dim")
    for i in rest[:shown]:
        d, passage = selection.decisions[i], selection.candidates.passage(i)
        name = f"{passage.title}  {d.id}" if passage.title else d.id
        console.print(f" - {name}, {plural(d.tokens, 'token')}", soft_wrap=not console.is_terminal)
        _print_indented(console, d.reason)
    if len(rest) > shown:
        console.print(f"   and {len(rest) - shown} more; --json lists everything", style="dim")
    console.print()


def _proof(selection: Selection) -> str:
    """What is proven about the choice, in words."""
    result = selection.result
    if result.is_optimal and not selection.chosen:
        return "proven: nothing that is allowed and fits is worth its price"
    if result.is_optimal:
        within = f" to within {result.gap:.2%}" if result.gap and result.gap > 1e-4 else ""
        of = "" if selection.counts_parts is None else f" {selection.counts_parts},"
        return f"proven optimal{within}: no other choice{of} is worth more"
    why = [f"the {result.limit} limit came first"] if result.limit else []
    why += [result.message] if result.message else []
    most = ""
    if result.gap is not None:  # what is not proven never reads as nothing
        most = f": the best choice is worth at most {max(result.gap, 1e-4):.2%} more"
    return f"not proven optimal{most}" + (f" ({'; '.join(why)})" if why else "")


def print_answer(console: Terminal, answer: Answer) -> None:
    """What the reader said, and what that took."""
    console.print(answer.text or "(no answer)", style="bold", soft_wrap=not console.is_terminal)
    console.print(
        f"{answer.generator}: {answer.prompt_tokens} prompt and "
        f"{plural(answer.completion_tokens, 'answer token')}, {answer.latency_seconds:.2f} s\n",
        style="dim",
        soft_wrap=not console.is_terminal,
    )


def print_verdict(console: Terminal, verdict: Verdict, answer: Answer) -> None:
    """A refusal, or the answer with how sure it is that there is one."""
    if not verdict.refused:
        print_answer(console, answer)
        console.print(f"{verdict.explain()}\n", style="dim", soft_wrap=not console.is_terminal)
        return
    console.print(f"{verdict.explain()[0].upper()}{verdict.explain()[1:]}.", style="bold", soft_wrap=True)
    told = answer.text or "(no answer)"
    console.print(f"{answer.generator} would have said: {told}\n", style="dim", soft_wrap=True)


def print_known(console: Terminal, known: Hit) -> None:
    """An answer that was given before, what it was given to, and what had been read for it."""
    told = known.answer
    nothing = "Not in these passages." if told.get("refusal", {}).get("refused") else "(no answer)"
    console.print(told["answer"] or nothing, style="bold", soft_wrap=not console.is_terminal)
    asked = "the same question" if known.cosine is None else f"'{known.question}' (cosine {known.cosine:.3f})"
    console.print(
        f"cached: {told['generator']} said it {_ago(known.age_seconds)} to {asked}; nothing was asked now\n",
        style="dim",
        soft_wrap=not console.is_terminal,
    )
    of_sentences = told.get("unit") == "sentence"
    titles = {p["id"].rpartition("#s")[0] if of_sentences else p["id"]: p["title"] for p in told["passages"]}
    read = ", ".join(f"{i} ({titles[i]})" if titles.get(i) else i for i in told["selected_ids"])
    console.print(f"read then: {read or 'nothing'}", soft_wrap=not console.is_terminal)


def _ago(seconds: float) -> str:
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{plural(round(seconds), 'second')} ago"


def print_result(console: Terminal, result: SolveResult, tokens_used: float | None) -> None:
    """A solve result in two lines."""
    console.print(result.certificate())
    if result.x is not None:
        console.print(f"selected {list(result.selected)}, cost {tokens_used:g}")


def print_left_out(console: Terminal, left_out: Sequence[LeftOut]) -> None:
    """Files of a folder that are not in the corpus, those of one reason together."""
    if not left_out:
        return
    reasons: dict[str, list[str]] = {}
    for item in left_out:
        reasons.setdefault(item.reason, []).append(item.path)
    console.print(f"left out: {len(left_out)}", style="yellow")
    for reason, paths in list(reasons.items())[:20]:
        named = ", ".join(paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")
        console.print(f"  {named}: {reason}", soft_wrap=True)
    if len(reasons) > 20:
        console.print(f"  and {len(reasons) - 20} other reasons; --json lists everything")
