"""Names of earlier checkouts, understood for one release: each is replaced by today's, and said."""

from __future__ import annotations

import sys

#: Commands; then options of select, ask, evaluate and serve: a name of today, or a key of the policy.
NAMES = {
    "select-batch": "batch select", "answer-batch": "batch answer", "allocate": "batch allocate",
    "solve": "lab solve", "frontier": "lab frontier", "radius": "lab radius", "warmup": "lab warmup",
    "measures": "evaluate --list",
    "--budget-tokens": "--budget", "--max-tokens": "--answer", "--generator": "--model", "--explain": "--why",
    "--config": "--policy", "--controller": "--policy", "--controllers": "--methods",
    "--policies": "--methods",
    "--pool": "search.pool", "--retrieval": "search.ranking", "--link-hops": "search.link_hops",
    "--rerank": "search.rerank", "--strategies": "search.strategies", "--preset": "selection.preset",
    "--redundancy": "selection.redundancy_weight", "--passage-penalty": "selection.passage_penalty",
    "--max-per-source": "selection.max_per_source", "--max-passages": "selection.max_passages",
    "--solver": "selection.solver", "--relevance": "selection.relevance_model",
    "--token-price": "price.token", "--cache": "answers.cache", "--refusal": "answers.refusal",
    "--router": "depth.file", "--planner": "order.file",
}  # fmt: skip


def renamed(words: list[str]) -> list[str]:
    """Return the words of a command line with today's names, and say on stderr which were replaced."""
    if not words:
        return words
    said = []
    if not words[0].startswith("-") and words[0] in NAMES:
        said.append((words[0], NAMES[words[0]]))
        words = [*NAMES[words[0]].split(), *words[1:]]
    if words[0] in ("select", "ask", "evaluate", "serve"):
        made, rest = [words[0]], iter(words[1:])
        for word in rest:
            name, mark, value = word.partition("=")
            now = NAMES.get(name) if name.startswith("--") else None
            if now is None:
                made.append(word)
            elif not now.startswith("--"):
                made += ["--set", f"{now}={value if mark else next(rest, '')}"]
                said.append((name, f"--set {now}=..."))
            else:
                said.append((name, now))
                if name != "--generator":
                    made.append(now + mark + value)
                elif (given := value if mark else next(rest, "")) != "none":  # which is now the default
                    made += [now, given]
        words = made
    for old, new in said:
        print(f"note: {old} is now {new}", file=sys.stderr)
    return words
