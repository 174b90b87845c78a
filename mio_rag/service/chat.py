"""OpenAI's chat completions with a selection in front of the model: a client only changes its base URL."""

from __future__ import annotations

import difflib
import json
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mio_rag.generation import Generator
from mio_rag.generation.base import Conversation
from mio_rag.service.edge import UnusableBody
from mio_rag.service.settings import ServiceLimits
from mio_rag.settings import Settings, explain

_NOTHING = "These documents probably do not answer the question."
_DOUBT = "\n\nNote: these documents probably do not answer the question ({:.2g} %)."
_ESTIMATED = {
    "code": "tokens_estimated",
    "text": "The tokens in usage are estimated: the endpoint reported none.",
}
#: Fields of OpenAI that a request may have, and that have no effect -> why.
_IGNORED = {
    **dict.fromkeys(
        ("temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "logit_bias"),
        "answers are decoded greedily",
    ),
    **dict.fromkeys(("tools", "functions"), "no tool is called"),
    **dict.fromkeys(("reasoning_effort", "verbosity"), "the model answers as it is set up"),
    "web_search_options": "only the documents are searched",
}
#: What a request must not ask for -> values with which it does not.
_REFUSED: Mapping[str, tuple[Any, ...]] = {
    "n": (None, 1), "logprobs": (None, False), "top_logprobs": (None, 0),
    "response_format": (None, {"type": "text"}), "stop": (None, []), "modalities": (None, ["text"]),
    "audio": (None,), "tool_choice": (None, "auto", "none"), "function_call": (None, "auto", "none"),
}  # fmt: skip
#: Fields of OpenAI that do not change an answer.
_HARMLESS = (
    *("metadata", "moderation", "parallel_tool_calls", "prediction", "prompt_cache_key"),
    *("prompt_cache_options", "prompt_cache_retention", "safety_identifier", "service_tier", "store"),
)


class ChatPart(BaseModel):
    """A piece of a message."""

    type: str
    text: str = ""


class ChatMessage(BaseModel):
    """A message; a text may come in parts."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[ChatPart] | None = None

    @property
    def text(self) -> str:
        """All parts."""
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content)
        return self.content or ""


class ChatOptions(Settings):
    """What OpenAI's fields do not say, as the field `mio_rag`; as in /ask."""

    budget_tokens: int | None = None
    """Largest context, in tokens."""
    where: str | tuple[str, ...] | dict[str, Any] | None = None
    """Only passages that meet this condition."""
    units: Literal["passages", "sentences", "auto"] | None = None
    """What is selected."""


class ChatRequest(BaseModel):
    """As OpenAI's clients send it, with its other fields; what is ours stands in `mio_rag`."""

    model_config = ConfigDict(extra="allow")

    model: str = Field("", description="POLICY/READER, or a reader; see /v1/models")
    messages: list[ChatMessage] = Field(min_length=1, description="the last one is the question")
    max_tokens: int | None = Field(None, ge=1, description="longest answer")
    max_completion_tokens: int | None = Field(None, ge=1, description="longest answer")
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    user: str | None = Field(None, description="as the header X-User")
    mio_rag: ChatOptions = ChatOptions()


class ChatCompletion(BaseModel):
    """As OpenAI's clients read it; `mio_rag` has the parts that were read and the citations."""

    id: str
    object: str
    created: int
    model: str
    choices: list[dict[str, Any]]
    usage: dict[str, int]
    mio_rag: dict[str, Any]


class Chat:
    """One checked request, and its replies.

    Raises `UnusableBody` with everything that cannot be used.
    """

    smaller = '"mio_rag": {"budget_tokens": ...}, max_tokens'

    def __init__(self, body: Any, limits: ServiceLimits) -> None:
        try:
            self.request = request = ChatRequest.model_validate(body)
        except ValidationError as error:
            raise UnusableBody(explain(error, ChatRequest)) from None
        extra, budget = request.model_extra or {}, request.mio_rag.budget_tokens
        problems = [
            f"{name} is not supported: leave it out"
            for name, fine in _REFUSED.items()
            if name in extra and extra[name] not in fine
        ]
        problems += [_unknown(name) for name in extra if name not in (*_IGNORED, *_REFUSED, *_HARMLESS)]
        parts = [p for m in request.messages if isinstance(m.content, list) for p in m.content]
        problems += [
            f"parts of the type '{p.type}' cannot be read: send text" for p in parts if p.type != "text"
        ]
        if request.messages[-1].role != "user":
            problems.append("the last message must be the user's")
        self._question = request.messages[-1].text
        if len(self._question) > limits.max_question:
            problems.append(f"the last message must have at most {limits.max_question} characters")
        if budget is not None and not 1 <= budget <= limits.max_budget_tokens:
            problems.append(
                f"mio_rag.budget_tokens must be from 1 to {limits.max_budget_tokens}, got {budget}"
            )
        if problems:
            raise UnusableBody(problems)
        longest = limits.max_answer_tokens
        self._max_tokens = min(request.max_completion_tokens or request.max_tokens or longest, longest)
        self._notes = [
            {"code": "no_effect", "text": f"{name} has no effect: {why}"}
            for name, why in _IGNORED.items()
            if extra.get(name) not in (None, 0, 1, [], {})
        ]
        self._head = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": request.model,
        }

    def given(self, limits: ServiceLimits) -> dict[str, Any]:
        """Return the request as /ask takes it."""
        return {
            "question": self._question, "preset": "default", "token_price": None, "model": self.request.model,
            "max_tokens": self._max_tokens, "deadline_seconds": limits.max_deadline_seconds,
            **dict(self.request.mio_rag),
        }  # fmt: skip

    def wrapped(self, reader: Generator) -> Generator:
        """Return a reader that gets the messages before the question, too."""
        messages = self.request.messages
        system = "\n\n".join(m.text for m in messages if m.role in ("system", "developer"))
        before = [(m.role, m.text) for m in messages[:-1] if m.role in ("user", "assistant")]
        return Conversation(reader, system, before)

    def completion(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return the reply, from that of /ask."""
        message = {"role": "assistant", "content": self.text(data) + _doubt(data)}
        choice = {"index": 0, "message": message, "finish_reason": self._reason(data)}
        head = {**self._head, "object": "chat.completion", "choices": [choice]}
        return {**head, "usage": _usage(data), "mio_rag": self._more(data)}

    def chunk(self, text: str, first: bool) -> str:
        """Return the event of a piece of the answer."""
        delta = {**({"role": "assistant"} if first else {}), "content": text}
        return self._event([{"index": 0, "delta": delta, "finish_reason": None}])

    def last(self, data: Mapping[str, Any]) -> str:
        """Return the events that end a stream."""
        end = [{"index": 0, "delta": {}, "finish_reason": self._reason(data)}]
        doubt = _doubt(data)
        events = self.chunk(doubt, False) if doubt else ""
        events += self._event(end, mio_rag=self._more(data))
        if (self.request.stream_options or {}).get("include_usage"):
            events += self._event([], usage=_usage(data))
        return f"{events}data: [DONE]\n\n"

    @staticmethod
    def text(data: Mapping[str, Any]) -> str:
        """Return the whole answer, or that there is none."""
        return data["answer"] or _NOTHING

    def _event(self, choices: Sequence[Any], **more: Any) -> str:
        data = {**self._head, "object": "chat.completion.chunk", "choices": choices, **more}
        return f"data: {json.dumps(data)}\n\n"

    def _reason(self, data: Mapping[str, Any]) -> str:
        return "length" if data["usage"]["completion_tokens"] >= self._max_tokens else "stop"

    def _more(self, data: Mapping[str, Any]) -> dict[str, Any]:
        more = {name: value for name, value in data.items() if name not in ("question", "answer", "usage")}
        own = [_ESTIMATED] if data["usage"].get("estimated") else []
        return {**more, "notes": [*more.get("notes", ()), *own, *self._notes]}


def _unknown(name: str) -> str:
    """What to do with a field that OpenAI's clients do not send."""
    if name in ChatOptions.model_fields:
        advice = f'write "mio_rag": {{"{name}": ...}}'
        return (
            f'{name} at the top level is not read: {advice} (OpenAI\'s client: extra_body={{"mio_rag": ...}})'
        )
    known = [*ChatRequest.model_fields, *_IGNORED, *_REFUSED, *_HARMLESS]
    near = difflib.get_close_matches(name, known, 1)
    advice = f"did you mean '{near[0]}'?" if near else "leave it out."
    settings = ", ".join(ChatOptions.model_fields)
    return f'{name} is no field of a chat request: {advice} Ours stand in "mio_rag": {{...}}: {settings}'


def _doubt(data: Mapping[str, Any]) -> str:
    """What an answer ends with where the documents may have none: many clients show nothing else."""
    likely = data["answerable"]
    told = [_DOUBT.format(100 * likely)] if likely is not None and likely < 0.5 else []
    told += [f"\n\nNote: {note['text']}" for note in data["notes"] if note["code"] == "not_named"]
    return "".join(told) if data["answer"] else ""


def _usage(data: Mapping[str, Any]) -> dict[str, int]:
    into, out = data["usage"]["prompt_tokens"], data["usage"]["completion_tokens"]
    return {"prompt_tokens": into, "completion_tokens": out, "total_tokens": into + out}
