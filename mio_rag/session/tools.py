"""The tools: what actions do, what each takes and gives.

rewrite         asks the question in words that a search engine understands
decompose       breaks the question into simpler ones
each            answers every sub-question by a workflow of its own
retrieve        searches for the question, or for every question that it is given
select          chooses what is read, by the exact program, or by a model (by = "model")
answer          answers from what was read and from facts, or from memory
summarise       answers from the answers to sub-questions
verify          checks an answer against what was read; otherwise another workflow answers

Deciders may also propose search_again, reason, draft, stop and write_workflow, which no workflow names.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from mio_rag.context import SEPARATOR, render_context
from mio_rag.errors import InfeasibleError, InputError, UnsuitableModelError
from mio_rag.generation import Prompt, build_prompt
from mio_rag.generation.protocol import LETTERS
from mio_rag.pool import Candidates
from mio_rag.relevance.complete import Completeness, shipped
from mio_rag.relevance.documents import is_document_pool
from mio_rag.retrieval.retriever import Retriever, reciprocal_rank_fusion
from mio_rag.selection.result import Selection
from mio_rag.selection.selector import Selector
from mio_rag.session.budget import Branch, LimitReached, Reply
from mio_rag.session.search import (
    SearchSettings,
    check_strategies,
    filled,
    search,
    strategies_of,
    strategies_problem,
    template,
)
from mio_rag.session.state import (
    NOTES_ID,
    Fact,
    Facts,
    Memory,
    Queries,
    Result,
    State,
    Value,
)
from mio_rag.session.tiers import TierReader
from mio_rag.types import Answer, GenerationError, Passage, Question, clean

_QUERY_TOKENS = 32  # of a rewritten question, or a query of the model
_PART_TOKENS = 24  # of one sub-question
_PLAN_TOKENS = 48
_PICK_TOKENS = 24  # numbers of passages
_LONGEST_QUERY = 200  # characters
_FEEDBACK_WORDS = 40  # of the passage: a longer query drowns the question
_REFERENCE = re.compile(r"#(\d)")
_ANY = 8
_FACTS = {"facts": (0, _ANY)}
_RANKED = Selector.raw(redundancy_weight=0.0, passage_penalty=0.0, solver="topk")


class Nothing(InfeasibleError):
    """A tool came to no result."""


@dataclass(frozen=True, eq=False)
class Equipment:
    """What tools work with, the same for all questions.

    retriever: None: there is nothing to search in.
    selector: the selection program.
    reading: {"program", "ranking", "tier"}; what is read of a pool: by the program, the best ranks until the
        budget is full, or as a tier says.
    deadline: by `time.monotonic`; programs and strategies get the time that is left until then.
    judges: whether each selection gets a probability that the evidence is complete.
    completeness: tells that probability; None: the model that ships.
    """

    retriever: Retriever | None
    selector: Selector
    reading: Literal["program", "ranking", "tier"] = "program"
    search: SearchSettings = field(default_factory=SearchSettings)
    judges: bool = False
    completeness: Completeness | None = None
    deadline: float | None = None

    def timed(self, selector: Selector) -> Selector:
        """The selector with no more time than is left, at least 10 ms: enough for a selection and a bound."""
        if self.deadline is None:
            return selector
        left, usual = max(0.01, self.deadline - time.monotonic()), selector.options.time_limit_seconds
        options = replace(selector.options, time_limit_seconds=left if usual is None else min(left, usual))
        return selector.model_copy(update={"options": options})  # as checked as before


#: Answers sub-questions by a workflow, one after another (True) or in parallel. Returns each as it was asked,
#: with its reply; None: there is none.
Solve = Callable[["Job", Any, Sequence[str], bool], list[tuple[str, Reply | None]]]


class Job:
    """One use of a tool: the action, the state of the question, and the account that pays.

    facts: takes what the tool reports.
    """

    def __init__(self, kit: Equipment, solve: Solve, state: State, result: Result, branch: Branch) -> None:
        self.kit, self.solve, self.state, self.result, self.branch = kit, solve, state, result, branch
        self.action, self.facts = result.action, result.facts
        self.settings, self.question = result.action.settings, state.question
        self.max_tokens = int(self.settings.get("max_tokens", state.max_tokens))

    @property
    def temperature(self) -> float:
        """Of answers."""
        return self.state.temperatures.get(self.action.model or "reader", 0.0)

    @property
    def retriever(self) -> Retriever:
        """Raises `InputError` where there is no corpus."""
        if self.kit.retriever is None:
            raise InputError(
                "there is no corpus to search: use a workflow without 'retrieve', or give an index"
            )
        return self.kit.retriever

    def every(self, kind: type[Any]) -> list[Any]:
        """The inputs of a type, in order."""
        return [value for value in self.state.values(self.action.inputs) if isinstance(value, kind)]

    def last(self, kind: type[Any]) -> Any:
        """The last input of a type; None: there is none."""
        return next(iter(reversed(self.every(kind))), None)

    @property
    def known_facts(self) -> tuple[Fact, ...]:
        """Answers to earlier sub-questions, those among the inputs, and the notes of the action."""
        inputs = (fact for facts in self.every(Facts) for fact in facts.found)
        notes = (Fact("", note) for note in self.settings.get("notes", ()))
        return (*self.state.known, *inputs, *notes)

    @property
    def passages(self) -> tuple[Passage, ...]:
        """What the last selection among the inputs reads."""
        read = self.last(Selection)
        return () if read is None else tuple(read.passages)

    def note(self, text: str) -> None:
        """Report something, for the trace."""
        self.facts.setdefault("notes", []).append(text)


#: What is wrong with the value of a setting, in words; None: nothing is.
Check = Callable[[Any], str | None]


@dataclass(frozen=True)
class Tool:
    """A kind of step.

    takes: type -> how many at least and at most; others are refused. gives: a type.
    run: raises what prevents a result.
    asks: whether it asks a language model.
    settings: name of a setting -> its check; needs: settings that must be given.
    runs_others: whether it answers sub-questions, and waits for them.
    """

    name: str
    takes: Mapping[str, tuple[int, int]]
    gives: str
    run: Callable[[Job], Value | None]
    asks: bool = True
    settings: Mapping[str, Check] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    runs_others: bool = False


def number(low: float, high: float, *, whole: bool = False) -> Check:
    """A check for numbers of a range, both ends included."""

    def problem(value: Any) -> str | None:
        fine = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if fine and low <= value <= high and (not whole or value == int(value)):
            return None
        return f"must be a {'whole ' if whole else ''}number in [{low:g}, {high:g}]"

    return problem


def one_of(*names: str) -> Check:
    """A check for one of these names."""
    return lambda value: None if value in names else f"must be one of {', '.join(names)}"


def _workflow_problem(value: Any) -> str | None:
    return None if isinstance(value, (str, Mapping)) else "must be the name of a workflow, or a workflow"


def _context(passages: Sequence[Passage]) -> str:
    return f"Passages:\n\n{render_context(passages)}{SEPARATOR}" if passages else ""


def _lines(facts: Sequence[Fact]) -> str:
    return "\n".join(f"- {clean(fact.question).strip()} {clean(fact.answer).strip()}" for fact in facts)


def _with_facts(passages: Sequence[Passage], facts: Sequence[Fact]) -> tuple[Passage, ...]:
    """Passages to read, and facts, if any, as one more."""
    return (*passages, Passage(NOTES_ID, _lines(facts), "Notes")) if facts else tuple(passages)


def _short_prompt(
    name: str,
    question: Question,
    text: str,
    facts: Sequence[Fact] = (),
    passages: Sequence[Passage] = (),
    **fields: str,
) -> Prompt:
    """The prompt `prompts/NAME_system.txt` and `prompts/NAME_user.txt`.

    text: what is asked, which may be another wording of the question.
    """
    known = {
        "context": _context(passages),
        "question": clean(text).strip(),
        "facts": f"Known:\n{_lines(facts)}\n" if facts else "",
        **{key: clean(value) for key, value in fields.items()},
    }
    # Without the options: a generator that is given them would choose one instead of writing.
    asked = replace(question, choices=())
    return Prompt(asked, tuple(passages), filled(f"{name}_system", known), filled(f"{name}_user", known))


def _loop_prompt(memory: Memory, name: str, max_notes: int, history: str, uncertainty: float = 1.0) -> Prompt:
    options = [f"{a}. {clean(c)}" for a, c in zip(LETTERS, memory.question.choices, strict=False)]
    fields = {
        "context": _context(memory.passages(0)),
        "question": "\n".join([clean(memory.question.text).strip(), *options]),
        "history": history,
        "uncertainty": f"{uncertainty:.2f}",
    }
    passages, user = memory.passages(max_notes), filled(f"{name}_user", fields)
    return Prompt(replace(memory.question, choices=()), passages, template(f"{name}_system"), user)


def _listed(title: str, items: Sequence[str]) -> str:
    return "".join([f"{title}:\n", *(f"- {clean(item)}\n" for item in items)]) if items else ""


def _line(said: str) -> str:
    first = next((line for line in said.splitlines() if re.search(r"\w", line)), "")
    return first.strip(" \"'`-*")[:_LONGEST_QUERY]


def _rewrite(job: Job) -> Value:
    prompt = _short_prompt("rewrite", job.question, str(job.last(str) or job.question.text), job.known_facts)
    query = _line(job.branch.generate("rewrite", prompt, _QUERY_TOKENS).text)
    if not query:
        raise Nothing("the rewritten question is empty")
    return query


def _decompose(job: Job) -> Value:
    serial, most = job.settings.get("order") == "serial", int(job.settings.get("most", 3))
    name = "split_serial" if serial else "split_parallel"
    prompt = _short_prompt(
        name, job.question, str(job.last(str) or job.question.text), job.known_facts, most=str(most)
    )
    said = job.branch.generate("decompose", prompt, _PART_TOKENS * most).text
    lines = [
        re.sub(r"^\W*\d+[.):]\s*", "", line).strip(" \"'`-*")[:_LONGEST_QUERY] for line in said.splitlines()
    ]
    kept = list(dict.fromkeys(line for line in lines if re.search(r"\w", line)))[:most]
    if not kept:
        raise Nothing("no sub-question was written")
    return Queries(tuple(kept), serial)


def _each(job: Job) -> Value:
    queries = job.last(Queries)
    told = job.solve(job, job.settings["workflow"], queries.texts, queries.serial)
    found = [Fact(query, reply.answer.text) for query, reply in told if reply is not None]
    if not found:
        raise Nothing("no sub-question was answered")
    return Facts(tuple(found), len(told) if queries.serial else 1)


def _retrieve(job: Job) -> Value:
    retriever, settings = job.retriever, job.settings
    if "mode" in settings or "pool" in settings:
        retriever = Retriever(
            retriever.index,
            pool=settings.get("pool", retriever.pool),
            mode=settings.get("mode", retriever.mode),
            counter=retriever.counter,
            link_hops=retriever.link_hops,
            rerankers=retriever.rerankers,
        )
    # A model names earlier answers as #1; nothing that the user wrote is changed.
    written = [text for value in job.every(Queries) for text in value.texts] + job.every(str)
    pools = []
    for query in dict.fromkeys(_REFERENCE.sub("", text) for text in written) or [job.question.text]:
        if "strategies" in settings:
            pools.append(_searched(job, retriever, query))
            continue
        with job.branch.timed("retrieve", searches=1):
            pools.append(retriever.retrieve(query))
    return _joined(pools)


def _searched(job: Job, retriever: Retriever, query: str) -> Candidates:
    """The pool of a query by several strategies."""
    settings, branch, how = job.settings, job.branch, job.kit.search
    names = check_strategies(settings["strategies"])
    if settings.get("deadline") is not None:
        how = how.replace(deadline_seconds=float(settings["deadline"]))
    is_question = query == job.question.text
    asked = job.question if is_question else Question(job.question.id, query)
    if branch.closed is None and any(one.needs_model for one in strategies_of(settings)):
        try:
            branch.budget.check()
            branch.budget.step()
        except LimitReached as limit:  # the strategies that ask no model still search
            branch.closed = str(limit)
    left = branch.budget.seconds_left
    if job.kit.deadline is not None:
        left = min(left, job.kit.deadline - time.monotonic())
    found = search(
        asked, retriever, branch.generator, names, how.within(left), weights=settings.get("weights"),
        branch=branch, alone=settings.get("alone", ()),
    )  # fmt: skip
    if is_question:
        job.facts.setdefault("searched", found)
    known = job.facts.setdefault("found_by", {})
    for identity, ranks in found.found.items():  # of several queries, the rank in the first
        known[identity] = {**ranks, **known.get(identity, {})}
    counts = {name: sum(name in by for by in found.found.values()) for name in names}
    job.note(f"of {len(found.pool)} found: {', '.join(f'{name} {n}' for name, n in counts.items())}")
    for left_out in found.notes:
        job.note(left_out)
        job.facts.setdefault("left_out", []).append(left_out)
    return found.pool


def _joined(pools: Sequence[Candidates]) -> Candidates:
    """Pools as one, best first, as large as the largest."""
    if not pools or not any(map(len, pools)):
        raise Nothing("nothing was found")
    joined = pools[0]
    for other in pools[1:]:
        joined = joined.merge(other, max(len(joined), len(other)), set())
    return joined


def _select(job: Job) -> Value:
    return _read(job, _joined(job.every(Candidates)))


def _read(job: Job, pool: Candidates) -> Selection:
    """What is read of a pool, with what a policy wants to know of it."""
    state = job.state
    job.facts["pool"] = pool
    selection = _chosen(job, pool, state.budget)
    if state.budget < state.allowed and not selection.chosen:
        try:  # the rest of a total is small: what would be read with the policy's own budget?
            wanted = _chosen(job, pool, state.allowed).tokens_used
        except InfeasibleError:
            wanted = 0
        wanted = math.ceil(wanted / float(job.settings.get("share", 1.0)))
        job.facts["wanted"] = wanted if wanted > state.budget else 0
    if job.kit.judges:
        if job.kit.reading == "program":
            job.facts["priced"] = True
        job.facts["complete"] = _complete(job, pool, selection)
        # The model that ships was fitted on passages: of documents its number is no probability.
        job.facts["is_unsure"] = job.kit.completeness is None and is_document_pool(pool)
    return selection


def _chosen(job: Job, pool: Candidates, budget: int) -> Selection:
    settings, branch, retriever = job.settings, job.branch, job.retriever
    changed = {name: settings[name] for name in ("token_price", "units") if name in settings}
    program = job.kit.selector
    if any(getattr(program, name) != value for name, value in changed.items()):
        program = program.replace(**changed)
    program = job.kit.timed(program)
    tokens = max(1, int(budget * float(settings.get("share", 1.0))))
    if (tier := settings.get("tier")) is not None:
        if tier.unit == "tokens":
            tokens = min(tokens, max(1, tier.context))
        # A selection alone may have nothing that answers.
        counter = retriever.counter if branch.generator is None else branch.generator
        return TierReader(tier, retriever, program).read(
            pool, tokens, counter, branch, settings.get("more", 0)
        )
    if settings.get("by") == "model":
        pool, program = _picked(job, pool, tokens), _RANKED.replace(options=program.options)
    with branch.timed("select"):
        if job.kit.reading == "ranking":
            program = _RANKED.replace(options=program.options)
            pool = replace(pool, relevance=pool.scores["fused"])
        chosen = program.select(pool, tokens, retriever.counter)
    if chosen.result.x is None:
        job.facts["infeasible"] = chosen
        raise InfeasibleError(chosen.explain())
    return chosen


def _picked(job: Job, pool: Candidates, tokens: int) -> Candidates:
    """What a model names of the best passages that fit; all of these where it names none."""
    ranked = replace(pool, relevance=pool.scores["fused"])
    shown = _RANKED.select(ranked, tokens, job.retriever.counter)
    texts = [f"[{k}] {one.title}\n{one.text}".strip() for k, one in enumerate(shown.passages, 1)]
    listed = "\n\n".join(map(clean, texts))
    prompt = _short_prompt("pick", job.question, job.question.text, job.known_facts, listed=listed)
    try:
        job.branch.budget.check()
        job.branch.budget.step()
        said = job.branch.generate("pick", prompt, _PICK_TOKENS).text
    except LimitReached as limit:
        job.note(f"limit of {limit}: no model chose, all are read")
        return ranked.take(list(shown.chosen))
    named = {int(number) for number in re.findall(r"\d{1,3}", said)} & set(range(1, len(texts) + 1))
    job.note(
        f"the model chose {len(named)} of {len(texts)}" if named else "the model chose none: all are read"
    )
    chosen = {shown.passages[k - 1].id for k in named}
    return ranked.take([i for i in shown.chosen if not chosen or shown.candidates.ids[i] in chosen])


def _complete(job: Job, pool: Candidates, selection: Selection) -> float:
    """The probability that the evidence is complete; never above that of there being an answer at all."""
    program, valued = job.kit.selector, selection.pool
    if job.kit.reading != "program" or len(valued) != len(pool):
        valued = program.valued(pool)
    place = {name: i for i, name in enumerate(valued.ids)}
    model = job.kit.completeness or shipped()
    level = model.probability(valued.relevance, [place[name] for name in selection.ids], job.question.text)
    likely = program.answerable(pool)
    return level if likely is None else min(level, likely)


def memory_of(state: State, loop: str) -> Memory:
    """What a loop of searches and notes knows: the loop of a `select`, or "" before anything is read."""
    memory = Memory(state.question)
    if loop:
        start = state.results[loop]
        memory.pool = start.facts.get("pool")
        memory.selection = start.value if isinstance(start.value, Selection) else None
        memory.queries.append(state.question.text)
    for result in state.results.values():
        if result.action.settings.get("loop") != loop or result.dropped is not None:
            continue
        if result.action.do == "search_again":
            if isinstance(result.value, Selection):
                memory.pool, memory.selection = result.facts["pool"], result.value
            if not result.facts.get("repeated"):
                memory.queries.append(result.facts["query"])
        elif result.action.do == "reason" and result.value:
            memory.notes.append(str(result.value))
    return memory


def _model_query(job: Job, memory: Memory) -> str:
    """The model's next query; the first one is the question itself, which costs nothing.

    A reply that is empty or was searched for before is replaced by the question with the last note.
    """
    if not memory.queries:
        return memory.question.text
    max_notes = job.settings["max_notes"]
    history = _listed("Earlier queries", memory.queries) + _listed("Notes", memory.last_notes(max_notes))
    prompt = _loop_prompt(memory, "decompose", max_notes, history, job.settings["uncertainty"])
    prompt = replace(prompt, temperature=job.settings.get("query_temperature", 0.0))
    said = job.branch.generate("decompose", prompt, job.settings.get("query_tokens", _QUERY_TOKENS)).text
    query = _line(said.strip().split("\n", 1)[0])
    if not query or memory.has_query(query):
        query = " ".join([memory.question.text, *memory.notes[-1:]])
    return query


def _feedback_query(memory: Memory) -> str:
    """The question with the first words of the best passage that is read and was not used for it yet.

    Pseudo-relevance feedback; no model is asked. Without such a passage, the question itself.
    """
    question = memory.question.text
    if memory.queries and memory.selection is not None:
        pool = memory.selection.candidates
        for place in sorted(memory.selection.chosen, key=lambda i: -float(pool.relevance[i])):
            passage = pool.passage(place)
            words = " ".join([question, passage.title, *passage.text.split()[:_FEEDBACK_WORDS]])
            if words not in memory.queries:
                return words
    return question


def _search_again(job: Job) -> Value | None:
    """Word the next query, search for it, and choose from all that was found."""
    settings, retriever = job.settings, job.retriever
    memory, by_model = memory_of(job.state, settings["loop"]), settings["query"] == "model"
    query = job.facts["query"] = _model_query(job, memory) if by_model else _feedback_query(memory)
    if memory.has_query(query):
        job.facts["repeated"] = True
        return None
    before = () if memory.selection is None else memory.selection.ids
    with job.branch.timed("retrieve", searches=1):
        if by_model or memory.pool is None:
            # A query of its own: a passage counts with its best relevance over all queries.
            found = retriever.retrieve(query)
            size = len(found) if memory.pool is None else max(len(memory.pool), len(found))
        else:
            # The question with more words: what it finds is compared with the question.
            fused = reciprocal_rank_fusion([retriever.ranked(text) for text in (*memory.queries, query)])
            order = sorted(fused, key=lambda row: -fused[row])
            found = retriever.pool_of(memory.question.text, order, fused)
            size = len(memory.pool) + len(found)
        pool = found if memory.pool is None else memory.pool.merge(found, size, set(before))
    selection = _read(job, pool)
    job.facts["new"] = tuple(i for i in selection.ids if i not in before)
    return selection


def _reason(job: Job) -> Value:
    """One more sentence by the model; empty where it says nothing new."""
    memory, max_notes = memory_of(job.state, job.settings["loop"]), job.settings["max_notes"]
    history = _listed("Notes so far", memory.last_notes(max_notes))
    prompt = _loop_prompt(memory, "reason", max_notes, history)
    said = " ".join(job.branch.generate("reason", prompt, job.settings["note_tokens"]).text.split())
    return "" if said in memory.notes else said


def _draft(job: Job) -> Value | None:
    """Answer from what is read by now, to see how sure the model is; the draft may be the answer."""
    memory = memory_of(job.state, job.settings["loop"])
    prompt, options = _memory_prompt(memory, job), len(memory.question.choices)
    if options:
        try:
            chosen = job.branch.choose("measure", prompt)
        except GenerationError:
            job.facts["uncertainty"] = 1.0  # it named no option; a model out of order fails again
            return None
        if chosen.probability is None or math.isnan(chosen.probability):
            raise _unmeasured(chosen.answer.generator)
        rest = min(1.0, max(0.0, 1.0 - chosen.probability))
        # More where it is worse than a guess.
        job.facts["uncertainty"] = min(1.0, rest * options / (options - 1))
        return chosen
    answer = job.branch.generate("measure", replace(prompt, temperature=job.temperature), job.max_tokens)
    if answer.logprobs is None or any(map(math.isnan, answer.logprobs)):
        raise _unmeasured(answer.generator)
    sure = math.exp(min(0.0, sum(answer.logprobs) / len(answer.logprobs))) if answer.logprobs else 0.0
    job.facts["uncertainty"] = 1.0 - sure
    return Reply(answer)


def _unmeasured(generator: str) -> InputError:
    return UnsuitableModelError(
        f"{generator} gives no probabilities, or invalid ones, and confidence needs them: use another "
        "generator (gguf:, hf:, openai: with logprobs=1), or a policy that ends in @tracked or @evidence"
    )


def _memory_prompt(memory: Memory, job: Job) -> Prompt:
    return build_prompt(memory.question, memory.passages(job.settings["max_notes"]))


def _stop(job: Job) -> None:
    """Nothing: the decision is on record."""


def _option(part: str, job: Job, prompt: Prompt) -> Reply:
    """The option that is named most surely, in as many orders of the options as the settings say.

    A model that prefers a letter names what stands there: every option has its turn at each.
    """
    question, orders = prompt.question, int(job.settings.get("orders", 1))
    options, sure, said = question.choices, dict[int, float](), dict[int, Reply]()
    for k in range(min(orders, len(options))):
        turned = replace(question, choices=options[k:] + options[:k])
        asked = replace(build_prompt(turned, prompt.passages), temperature=prompt.temperature)
        reply = job.branch.choose(part, asked, final=job.action.final)
        place = ((reply.choice or 0) + k) % len(options)
        said[place] = reply
        sure[place] = sure.get(place, 0.0) + (1.0 if reply.probability is None else reply.probability)
    best = max(sure, key=lambda place: sure[place])
    known = said[best].probability is not None
    return replace(said[best], choice=best, probability=sure[best] / (k + 1) if known else None)


def _reply(part: str, job: Job, prompt: Prompt) -> Reply:
    final = job.action.final
    prompt = replace(prompt, temperature=job.temperature)
    if prompt.question.choices:
        reply = _option(part, job, prompt)
    else:
        reply = Reply(job.branch.generate(part, prompt, job.max_tokens, final=final))
    if reply.is_empty and not final:
        raise Nothing("the answer is empty")
    return reply


def _answer(job: Job) -> Value:
    settings = job.settings
    if (draft := settings.get("draft")) is not None:
        value = job.state.results[draft].value
        assert isinstance(value, Reply)
        return value
    if "loop" in settings:  # of rules that decide before anything is read: they always ask
        return _reply("answer", job, _memory_prompt(memory_of(job.state, settings["loop"]), job))
    passages, facts = job.passages, job.known_facts
    if job.last(Selection) is not None and not (passages or facts or job.question.choices):
        # Without what was looked for, a model would answer from memory.
        if not job.action.final:
            raise Nothing("nothing was worth reading")
        return Reply(Answer("", 0, 0, 0.0, job.branch.generator.name))
    return _reply("answer", job, build_prompt(job.question, _with_facts(passages, facts)))


def _summarise(job: Job) -> Value:
    passages, facts = job.passages, job.known_facts
    if (guess := job.last(Reply)) is not None:
        facts = (*facts, Fact("A first answer to the whole question", guess.answer.text))
    prompt = build_prompt(job.question, _with_facts(passages, facts))
    if not job.question.choices:
        prompt = _short_prompt("summarise", job.question, job.question.text, facts, passages)
    return _reply("summarise", job, prompt)


def _verify(job: Job) -> Value:
    given, question = job.last(Reply), job.question
    prompt = _short_prompt(
        "verify", question, question.text, job.known_facts, job.passages, answer=given.answer.text
    )
    said = job.branch.generate("verify", prompt, 4).text.strip().lower()
    if said.startswith("yes") or "otherwise" not in job.settings:
        return Reply(given.answer, given.choice, given.probability if said.startswith("yes") else 0.0)
    _, other = job.solve(job, job.settings["otherwise"], [question.text], False)[0]
    return given if other is None else other


def _write_workflow(job: Job) -> Value:
    """Let the model write the steps; `settings["grammar"]` allows valid ones alone, None anything."""
    prompt = _short_prompt("plan", job.question, job.question.text)
    return job.branch.write("plan", prompt, job.settings["grammar"], _PLAN_TOKENS).text


_TOOLS = (
    Tool("rewrite", {"question": (0, 1), **_FACTS}, "question", _rewrite),
    Tool("decompose", {"question": (0, 1), **_FACTS}, "questions", _decompose,
         settings={"order": one_of("serial", "parallel"), "most": number(1, 8, whole=True)}),
    Tool("each", {"questions": (1, 1)}, "facts", _each, asks=False,
         settings={"workflow": _workflow_problem}, needs=("workflow",), runs_others=True),
    Tool("retrieve", {"question": (0, _ANY), "questions": (0, _ANY)}, "pool", _retrieve, asks=False,
         settings={"mode": one_of("fused", "dense", "bm25"), "pool": number(1, 10_000, whole=True),
                   "strategies": strategies_problem, "deadline": number(1e-3, 1e6)}),
    Tool("select", {"pool": (1, _ANY)}, "passages", _select, asks=False,
         settings={"token_price": number(0, 1), "share": number(0.01, 1),
                   "units": one_of("passages", "sentences", "auto"),
                   "by": one_of("program", "model")}),
    Tool("answer", {"passages": (0, 1), **_FACTS}, "answer", _answer,
         settings={"orders": number(1, 26, whole=True)}),
    Tool("summarise", {"facts": (1, _ANY), "passages": (0, 1), "answer": (0, 1)}, "answer", _summarise),
    Tool("verify", {"answer": (1, 1), "passages": (0, 1), **_FACTS}, "answer", _verify,
         settings={"otherwise": _workflow_problem}, runs_others=True),
)  # fmt: skip
#: Those that deciders propose and workflows cannot name.
_INNER = (
    Tool("search_again", {}, "passages", _search_again, asks=False),
    Tool("reason", {}, "question", _reason),
    Tool("draft", {}, "answer", _draft, asks=False),
    Tool("stop", {}, "passages", _stop, asks=False),
    Tool("write_workflow", {}, "question", _write_workflow, asks=False),
)
#: Those that workflows name.
TOOLS: Mapping[str, Tool] = {tool.name: tool for tool in _TOOLS}
EVERY = {**TOOLS, **{tool.name: tool for tool in _INNER}}


def find_tool(name: str) -> Tool:
    """The tool of a name."""
    return EVERY[name]


def asks(do: str, settings: Mapping[str, Any]) -> bool:
    """Whether a tool with these settings asks a language model before the answer."""
    return (
        EVERY[do].asks
        or settings.get("by") == "model"
        or any(one.needs_model for one in strategies_of(settings))
    )
