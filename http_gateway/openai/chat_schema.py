"""Fields of a chat's body for its template, its tools and its reasoning."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated

from pydantic import BaseModel, ConfigDict

from http_gateway.bounds import bounded, checked
from http_gateway.openai.chat_tools import KINDS, custom_names, to_tools
from http_gateway.openai.tools import read_choice
from sax.errors import InvalidRequest
from sax.fields.field import RequestRoute
from sax.fields.table import field
from sax.types import ChatOptions

_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")


class ChatFields(BaseModel):
    """null always means the default."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    tools: Annotated[list[dict[str, object]], bounded(RequestRoute.CHAT, "tools")] | None = None
    tool_choice: (
        Annotated[str | dict[str, object], bounded(RequestRoute.CHAT, "tool_choice")] | None
    ) = None
    parallel_tool_calls: (
        Annotated[bool, checked(RequestRoute.CHAT, "parallel_tool_calls")] | None
    ) = None
    reasoning_effort: Annotated[str, bounded(RequestRoute.CHAT, "reasoning_effort")] | None = None
    # vLLM's
    include_reasoning: Annotated[bool, checked(RequestRoute.CHAT, "include_reasoning")] | None = (
        None
    )
    chat_template_kwargs: (
        Annotated[dict[str, object], bounded(RequestRoute.CHAT, "chat_template_kwargs")] | None
    ) = None
    add_generation_prompt: (
        Annotated[bool, checked(RequestRoute.CHAT, "add_generation_prompt")] | None
    ) = None
    continue_final_message: (
        Annotated[bool, checked(RequestRoute.CHAT, "continue_final_message")] | None
    ) = None

    @cached_property
    def options(self) -> ChatOptions:
        """Raises InvalidRequest or UnsupportedParameter naming the field."""
        if self.add_generation_prompt and self.continue_final_message:
            raise InvalidRequest(
                "continue_final_message goes on with the last message, and add_generation_prompt "
                "begins a new one: leave one of them out",
                param="continue_final_message",
            )
        tools = to_tools(self.tools or (), KINDS)
        chosen = read_choice(self.tool_choice, tools, nested=True)
        return ChatOptions(
            tools=tools,
            tool_choice=chosen.choice,
            tool_name=chosen.name,
            allowed_tools=chosen.allowed,
            parallel_tool_calls=self.parallel_tool_calls is not False,
            chat_template_kwargs=template_variables(
                self.chat_template_kwargs, self.reasoning_effort, "reasoning_effort"
            ),
            add_generation_prompt=self.add_generation_prompt is not False,
            continue_final_message=bool(self.continue_final_message),
            divided=True,
        )

    @property
    def custom_tools(self) -> frozenset[str]:
        """Names of the custom tools; `options` has checked them."""
        return custom_names(self.tools or ())


def template_variables(given: Mapping[str, object] | None, effort: object, param: str) -> str:
    """Return the variables of the template as JSON; "": there are none.

    param: the field that says the effort. Raises InvalidRequest.
    """
    variables = dict(given or {})
    if effort is not None:
        if effort not in _EFFORTS:
            raise InvalidRequest(
                f"{param} is {effort!r}: give one of {', '.join(_EFFORTS)}", param=param
            )
        if variables.setdefault("reasoning_effort", effort) != effort:
            raise InvalidRequest(
                f"{param} and chat_template_kwargs.reasoning_effort differ: send one", param=param
            )
    if not variables:
        return ""
    text = json.dumps(variables, ensure_ascii=False)
    field(RequestRoute.STREAM, "chat_template_kwargs").check_text(text)
    return text
