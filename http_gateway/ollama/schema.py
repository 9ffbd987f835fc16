"""Ollama's request bodies and the treatment of each of their fields.

Every documented field is either honoured, ignored because it cannot change the answer, or refused
unless it holds a value that changes nothing. Unknown fields pass, as with Ollama, and a header of
the reply names them (`http_gateway.modes`).
"""

from __future__ import annotations

import json
import re
from functools import cached_property
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict

from http_gateway.bounds import bounded, checked, ranged, sized
from http_gateway.ollama.messages import OllamaTurn, read_ollama_turns, with_pictures
from http_gateway.ollama.options import read_options, sampling_of
from http_gateway.openai.chat_schema import to_tools
from http_gateway.openai.reply_schema import Shape
from http_gateway.openai.unsupported import refuse_unsupported
from sax.errors import InvalidRequest
from sax.fields.field import RequestRoute
from sax.fields.table import field
from sax.format import quoted
from sax.types import ChatOptions, Message, ReplyOptions, SamplingParams

_CHAT, _GENERATE = RequestRoute.OLLAMA_CHAT, RequestRoute.OLLAMA_GENERATE
_EMBED, _OLD = RequestRoute.OLLAMA_EMBED, RequestRoute.OLLAMA_EMBEDDINGS
_SCHEMA = field(RequestRoute.STREAM, "json_schema")

LEVELS = ("low", "medium", "high")  # of thinking
# A number of seconds, or numbers with units. Not zero, which unloads a model.
DURATION = r"^[-+]?(?=.*[1-9])([0-9]+(\.[0-9]+)?|([0-9]+(\.[0-9]+)?(ns|us|ms|[smh]))+)$"

# Field -> the values besides null that change nothing. Any other value is refused.
ANSWER_UNCHANGED: dict[str, tuple[object, ...]] = {
    # What does not fit the context is refused, never cut.
    "truncate": (True, False),
    "shift": (True, False),
}
GENERATE_UNCHANGED: dict[str, tuple[object, ...]] = {
    **ANSWER_UNCHANGED,
    "context": ([],),
    "template": ("",),
    "width": (0,),
    "height": (0,),
    "steps": (0,),
}
EMBED_UNCHANGED: dict[str, tuple[object, ...]] = {"truncate": (True, False)}
SHOW_UNCHANGED: dict[str, tuple[object, ...]] = {
    "verbose": (False, True),  # there is no more to tell
    "system": ("",),
    "template": ("",),
}
# Field that the cell may refuse -> ours that stands for it
NAMES = {"chat_template_kwargs.enable_thinking": "think", "reasoning_effort": "think"}
# A level is left out for a model that has none: to Ollama, too, it says only that it may think.
HINTS = frozenset({"reasoning_effort"})


class OllamaFields(BaseModel):
    """null always means the default."""

    model_config = ConfigDict(defer_build=True, extra="allow", strict=True, frozen=True)

    model: Annotated[str, bounded(_CHAT, "model")]
    options: Annotated[dict[str, object], bounded(_CHAT, "options")] | None = None
    keep_alive: Annotated[str | float | int, bounded(_CHAT, "keep_alive")] | None = None

    def _check_keep_alive(self) -> None:
        value = self.keep_alive
        if value is None or (re.search(DURATION, value) if isinstance(value, str) else value):
            return
        raise InvalidRequest(
            f"keep_alive is {quoted(value)}: give a duration such as 5m, or leave it out. A model "
            "stays loaded until it is unpublished (sax unpublish)",
            param="keep_alive",
        )


class OllamaAnswerFields(OllamaFields):
    """Fields of a request for an answer."""

    stream: Annotated[bool, checked(_CHAT, "stream")] | None = None
    format: Annotated[str | dict[str, object], bounded(_CHAT, "format")] | None = None
    think: Annotated[bool | str, bounded(_CHAT, "think")] | None = None
    logprobs: Annotated[bool, checked(_CHAT, "logprobs")] | None = None
    top_logprobs: (
        Annotated[int, ranged(_CHAT, "top_logprobs"), checked(_CHAT, "top_logprobs")] | None
    ) = None

    @property
    def streamed(self) -> bool:
        return self.stream is not False

    def sampling(self) -> SamplingParams:
        """Raises InvalidRequest or UnsupportedParameter naming the field."""
        tops = (self.top_logprobs or 0) if self.logprobs else None
        return sampling_of(self.options, logprobs=tops, **self._constraint())

    def reply(self) -> ReplyOptions:
        return ReplyOptions()

    def _constraint(self) -> dict[str, Any]:
        if isinstance(self.format, dict):
            schema = json.dumps(self.format)
            _SCHEMA.check_text(schema, "format")
            return {"json_schema": schema}
        if self.format not in (None, "", "json"):
            raise InvalidRequest(
                f"format is {quoted(self.format)}: give json or a JSON Schema", param="format"
            )
        return {"json_object": True} if self.format == "json" else {}

    def _template_kwargs(self) -> str:
        """Return the variables of the template as JSON; "": there are none."""
        match self.think:
            case None:
                return ""
            case True:
                return json.dumps({"enable_thinking": True})
            case False:
                # Where a template cannot tell, nothing changes.
                return json.dumps({"reasoning_effort": "none"})
            case level if level in LEVELS:
                return json.dumps({"reasoning_effort": level})
            case other:
                raise InvalidRequest(
                    f"think is {quoted(other)}: give true, false or one of {', '.join(LEVELS)}",
                    param="think",
                )


class OllamaChat(OllamaAnswerFields):
    """POST /api/chat."""

    messages: (
        Annotated[list[OllamaTurn], sized(_CHAT, "messages"), bounded(_CHAT, "messages")] | None
    ) = None
    tools: Annotated[list[dict[str, object]], bounded(_CHAT, "tools")] | None = None

    def check(self) -> None:
        """Raise InvalidRequest or UnsupportedParameter for a field that cannot be honoured."""
        refuse_unsupported(self.model_extra, ANSWER_UNCHANGED)
        self._check_keep_alive()
        self.sampling()
        self.chat  # noqa: B018  (checks its fields)

    @cached_property
    def prompt(self) -> tuple[Message, ...]:
        """Empty: the model is only loaded."""
        return read_ollama_turns(self.messages or ())

    @cached_property
    def chat(self) -> ChatOptions:
        last = self.prompt[-1] if self.prompt else None
        # A last message of the assistant is the beginning of its answer.
        begun = bool(last and last.role == "assistant" and last.content and not last.tool_calls)
        return ChatOptions(
            tools=to_tools(self.tools or ()),
            chat_template_kwargs=self._template_kwargs(),
            add_generation_prompt=not begun,
            continue_final_message=begun,
            divided=True,
        )

    def shape(self) -> Shape:
        tools = tuple(tool.name for tool in self.chat.tools)
        return Shape(tools=tools, include_reasoning=self.think is not False)


BARRED_BY_RAW = ("system", "think", "images")


class OllamaGenerate(OllamaAnswerFields):
    """POST /api/generate."""

    prompt: Annotated[str, bounded(_GENERATE, "prompt")] | None = None
    images: Annotated[list[str], bounded(_GENERATE, "images")] | None = None
    system: Annotated[str, bounded(_GENERATE, "system")] | None = None
    raw: Annotated[bool, checked(_GENERATE, "raw")] | None = None
    suffix: Annotated[str, bounded(_GENERATE, "suffix")] | None = None

    def check(self) -> None:
        """Raise InvalidRequest or UnsupportedParameter for a field that cannot be honoured."""
        refuse_unsupported(self.model_extra, GENERATE_UNCHANGED)
        self._check_keep_alive()
        self.sampling()
        self.chat  # noqa: B018  (checks its fields)
        for name in BARRED_BY_RAW:
            if self._is_bare and getattr(self, name):
                raise InvalidRequest(
                    f"{name} is for the model's template, which raw and suffix leave out: send one "
                    "of them",
                    param=name,
                )

    @property
    def _is_bare(self) -> bool:
        """True if the prompt is no chat."""
        return bool(self.raw or self.suffix)

    def reply(self) -> ReplyOptions:
        return ReplyOptions(suffix=self.suffix or None)

    @property
    def text(self) -> str | tuple[Message, ...]:
        """The prompt, or with the model's template a chat. Empty: the model is only loaded."""
        prompt = self.prompt or ""
        if self._is_bare or not (prompt or self.images):
            return prompt
        system = (Message("system", self.system),) if self.system else ()
        content = with_pictures(self.images or (), prompt, "images")
        return (*system, Message("user", content))

    @cached_property
    def chat(self) -> ChatOptions:
        return ChatOptions(chat_template_kwargs=self._template_kwargs(), divided=True)

    def shape(self) -> Shape:
        return Shape(include_reasoning=self.think is not False)


def _texts(value: object) -> object:
    return [value] if isinstance(value, str) else value


class OllamaEmbed(OllamaFields):
    """POST /api/embed."""

    input: Annotated[
        list[str],
        BeforeValidator(_texts),
        sized(_EMBED, "input"),
        bounded(_EMBED, "input"),
    ]
    dimensions: (
        Annotated[int, ranged(_EMBED, "dimensions"), checked(_EMBED, "dimensions")] | None
    ) = None

    def check(self) -> None:
        """Raise InvalidRequest or UnsupportedParameter for a field that cannot be honoured."""
        refuse_unsupported(self.model_extra, EMBED_UNCHANGED)
        self._check_keep_alive()
        read_options(self.options)


class OllamaOldEmbed(OllamaFields):
    """POST /api/embeddings."""

    prompt: Annotated[str, bounded(_OLD, "prompt")]

    def check(self) -> None:
        """Raise InvalidRequest or UnsupportedParameter for a field that cannot be honoured."""
        refuse_unsupported(self.model_extra, {})
        self._check_keep_alive()
        read_options(self.options)


class OllamaShow(BaseModel):
    """POST /api/show."""

    model_config = ConfigDict(defer_build=True, extra="allow", strict=True, frozen=True)

    model: Annotated[str, bounded(RequestRoute.OLLAMA_SHOW, "model")] | None = None
    name: Annotated[str, bounded(RequestRoute.OLLAMA_SHOW, "name")] | None = None  # older clients'

    @property
    def asked(self) -> str:
        """The model. Raises InvalidRequest or UnsupportedParameter for what cannot be honoured."""
        refuse_unsupported(self.model_extra, SHOW_UNCHANGED)
        name = self.model if self.name is None else self.name
        if name is None or (self.model or name) != name:
            raise InvalidRequest("model is missing: send model, or name", param="model")
        return name
