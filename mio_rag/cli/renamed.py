"""Names of earlier checkouts, understood for one release: each is replaced by today's, and said."""

from __future__ import annotations

import sys

COMMANDS = {
    "select-batch": ("batch", "select"),
    "answer-batch": ("batch", "answer"),
    "allocate": ("batch", "allocate"),
    "solve": ("lab", "solve"),
    "frontier": ("lab", "frontier"),
    "radius": ("lab", "radius"),
    "warmup": ("lab", "warmup"),
    "measures": ("evaluate", "--list"),
}
#: Of select, ask, evaluate and serve.
OPTIONS = {
    "--budget-tokens": "--budget",
    "--max-tokens": "--answer",
    "--generator": "--model",
    "--explain": "--why",
    "--config": "--policy",
    "--controller": "--policy",
    "--controllers": "--methods",
    "--policies": "--methods",
}
#: Of the same: options with a value that are keys of the policy.
KEYS = {
    "--pool": "search.pool",
    "--retrieval": "search.ranking",
    "--link-hops": "search.link_hops",
    "--rerank": "search.rerank",
    "--strategies": "search.strategies",
    "--preset": "selection.preset",
    "--redundancy": "selection.redundancy_weight",
    "--passage-penalty": "selection.passage_penalty",
    "--max-per-source": "selection.max_per_source",
    "--max-passages": "selection.max_passages",
    "--solver": "selection.solver",
    "--relevance": "selection.relevance_model",
    "--token-price": "price.token",
    "--cache": "answers.cache",
    "--refusal": "answers.refusal",
    "--router": "depth.file",
    "--planner": "order.file",
}
_MAIN = ("select", "ask", "evaluate", "serve")


def renamed(words: list[str]) -> list[str]:
    """Return the words of a command line with today's names, and say on stderr which were replaced."""
    if not words:
        return words
    said = []
    if (found := COMMANDS.get(words[0])) is not None:
        said.append((words[0], " ".join(found)))
        words = [*found, *words[1:]]
    if words[0] in _MAIN:
        made, rest = [words[0]], iter(words[1:])
        for word in rest:
            name, mark, value = word.partition("=")
            if (key := KEYS.get(name)) is not None:
                made += ["--set", f"{key}={value if mark else next(rest, '')}"]
                said.append((name, f"--set {key}=..."))
            elif (now := OPTIONS.get(name)) is not None:
                said.append((name, now))
                given = (value if mark else next(rest, "")) if name == "--generator" else None
                if given is None:
                    made.append(now + mark + value)
                elif given != "none":  # that evaluate answers nothing is now the default
                    made += [now, given]
            else:
                made.append(word)
        words = made
    for old, new in said:
        print(f"note: {old} is now {new}", file=sys.stderr)
    return words
